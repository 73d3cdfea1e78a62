"""Counters of a secure sum, or of a silo, as words modulo 2^ℓ: how wide they must be, and how they are packed.

ℓ covers what all clients of a cohort can submit together with their shares of noise, and a silo is a cohort of one
that draws it whole; what lies outside is wrapped around, with a probability below 2^−40 over all counters. For unit
client that is what the plan allows; for unit record, of which no plan bounds a client, 4096 records of each client of a
cohort are assumed, and 2^20 of a silo: more than that may not fit, which costs accuracy and no privacy. All bounds are
integers.

Packed form of n words of ℓ bits, with lanes of L = 32 bits (64 where any width is above 32): the first n − (n mod L)
words are L equal runs; word i of run j takes the bits j·ℓ to (j + 1)·ℓ − 1 of column i, lowest first; a column is ℓ
little-endian lanes, and the lanes of equal number of all columns stand together. So every step is one operation on a
whole run. What is left follows as :func:`hushsum.bitpacking.pack_bits` writes it. The counters come before the counts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.bitpacking import pack_bits, packed_size, unpack_bits
from hushsum.errors import DeltaError, PlanError, SecureSumError
from hushsum.noise.exp_thresholds import exp_minus
from hushsum.privacy.mechanisms import DISCRETE_LAPLACE
from hushsum.privacy.spec import PrivacySpec
from hushsum.sensitivity import Sensitivity

BITS_MAX: Final = 63
SILO_BITS_MAX: Final = 48  # so that 2^15 submissions, whatever they hold, add up within int64
PACKED_MAX: Final = 1 << 24  # bytes of one client's vector
OVERFLOW: Final = Fraction(1, 2**41)  # of any counter, and of any count counter
_NARROW: Final = 32
_WORKING_BITS: Final = 256
_MOMENTS: Final = (2, 4, 8, 16, 32, 64, 128)
_RECORDS_ASSUMED: Final = 4096  # of each client of a cohort, unit record: for correctness; nothing refuses more
_RECORDS_OF_A_SILO: Final = 1 << 20  # likewise: a silo is a client of many records

Array = npt.NDArray[Any]  # of uint32 or uint64
Int64 = npt.NDArray[np.int64]
Tail = Callable[[int], Fraction]
Bytes = bytes  # Words has a size of this name


@dataclass(frozen=True)
class Words:
    """The vector of one client of a secure sum: D counters, and a count counter of each class where there are some.

    Adding two is plain addition in :attr:`dtype`, which wraps around; packing reduces modulo 2^ℓ.

    Args:
        bits: ℓ of the counters, from 2 to 63.
        count_bits: ℓ of the count counters, from 2 to 63.
        size: D, at least 1.
        classes: At least 1; 0 without count counters.

    Raises:
        ValueError: A width or a size is out of range.
    """

    bits: int
    count_bits: int
    size: int
    classes: int

    def __post_init__(self) -> None:
        for name in ("bits", "count_bits"):
            if not 2 <= getattr(self, name) <= BITS_MAX:
                raise ValueError(f"{name} of words is from 2 to {BITS_MAX}, got {getattr(self, name)}")
        if self.size < 1 or self.classes < 0:
            came = f"words of {self.size} counters and {self.classes} count counters"
            raise ValueError(f"{came}, expected at least 1 and 0")

    @property
    def dtype(self) -> "np.dtype[Any]":
        """uint32 where both widths fit it, else uint64; of this machine's byte order."""
        return np.dtype(np.uint32 if max(self.bits, self.count_bits) <= _NARROW else np.uint64)

    @property
    def length(self) -> int:
        """Words of a vector: D + classes."""
        return self.size + self.classes

    @property
    def bytes(self) -> int:
        """Of a packed vector."""
        return packed_size(self.size, self.bits) + packed_size(self.classes, self.count_bits)

    def of(self, counters: Int64, counts: Int64) -> Array:
        """(length,) words of (size,) counters and (classes,) counts of any sign.

        Raises:
            ValueError: A shape is another.
        """
        if counters.shape != (self.size,) or counts.shape != (self.classes,):
            raise ValueError(
                f"counters {counters.shape} and counts {counts.shape}, expected ({self.size},) and ({self.classes},)"
            )
        words = np.empty(self.length, self.dtype)
        words[: self.size] = counters.astype(np.int64, copy=False).view(np.uint64)  # modulo 2^32 or 2^64
        words[self.size :] = counts.astype(np.int64, copy=False).view(np.uint64)
        return words

    def pack(self, words: Array) -> Bytes:
        """The packed form of (length,) words, each reduced modulo 2^ℓ.

        Raises:
            ValueError: The shape or the type is another.
        """
        if words.shape != (self.length,) or words.dtype != self.dtype:
            raise ValueError(f"words {words.dtype} {words.shape}, expected {self.dtype} ({self.length},)")
        return _pack(words[: self.size], self.bits) + _pack(words[self.size :], self.count_bits)

    def unpack(self, data: Bytes | memoryview) -> Array:
        """The (length,) words that :meth:`pack` wrote, each below 2^ℓ; writable.

        Raises:
            SecureSumError: The length is another, or bits after the last word are not zero.
        """
        if len(data) != self.bytes:
            raise SecureSumError(f"a vector of {len(data)} bytes, expected {self.bytes}")
        view, split = memoryview(data), packed_size(self.size, self.bits)
        words = np.empty(self.length, self.dtype)
        _unpack(view[:split], self.bits, words[: self.size])
        _unpack(view[split:], self.count_bits, words[self.size :])
        return words

    def centred(self, words: Array) -> tuple[Int64, Int64]:
        """The (size,) counters and (classes,) counts, each the one in [−2^(ℓ−1), 2^(ℓ−1)) that its word stands for.

        Raises:
            ValueError: The shape or the type is another.
        """
        if words.shape != (self.length,) or words.dtype != self.dtype:
            raise ValueError(f"words {words.dtype} {words.shape}, expected {self.dtype} ({self.length},)")
        return _centred(words[: self.size], self.bits), _centred(words[self.size :], self.count_bits)


def words_of(sensitivity: Sensitivity, shape: tuple[int, ...], classes: int, spec: PrivacySpec) -> Words:
    """The words of a secure plan, or of one whose clients are silos: of one client, with noise drawn whole.

    Args:
        sensitivity: Of one record, without the count counter.
        shape: Of the counters of one class.
        classes: At least 1; each has a count counter, if the plan has them.
        spec: What the plan promises, with a cohort, or of form ``silo``.

    Raises:
        PlanError: A counter needs more than 63 bits (of a silo 48), or a client's vector more than 16 MiB.
    """
    cohort, mechanism = spec.cohort, spec.mechanism
    assert cohort is not None or spec.local is not None, "the plan is a secure one, or a silo's"
    clients, shares = (1, 1) if cohort is None else (cohort.size, cohort.honest_survivors)
    assumed = _RECORDS_OF_A_SILO if cohort is None else _RECORDS_ASSUMED
    records = clients * (spec.records_per_client or assumed)  # of all clients together
    noise = laplace_tail if mechanism.name == DISCRETE_LAPLACE else gaussian_tail
    size, classes = classes * prod(shape), classes if mechanism.count_scale else 0
    bits, count_bits = (
        bits_needed(records * each, noise(mechanism.scale, clients, shares, counters))
        for each, counters in ((sensitivity.linf, size), (mechanism.count_scale, classes))
    )
    if cohort is None and max(bits, count_bits) > SILO_BITS_MAX:
        expected = f"fewer records a client or less noise: a submission needs more than {SILO_BITS_MAX} bits a counter"
        raise PlanError("privacy.local.form", "silo", expected)
    if cohort is not None and max(bits, count_bits) > BITS_MAX:
        expected = f"fewer clients, records a client or noise: their sum needs more than {BITS_MAX} bits a counter"
        raise PlanError("privacy.secure.cohort", cohort.size, expected)
    words = Words(bits, count_bits, size, classes)
    if words.bytes > PACKED_MAX:
        came = f"{size} counters of {bits} bits"
        what = "what a client can submit" + (" to a secure sum" if cohort else "")
        raise PlanError("sketch", came, f"at most {PACKED_MAX} bytes, {what}")
    return words


def bits_needed(largest: int, tail: Tail) -> int:
    """The least ℓ that holds sums of absolute value at most ``largest`` with noise, but for 2^−41.

    Args:
        largest: Of the sum without noise, at least 0.
        tail: An upper bound of P(|noise| ≥ x) of all counters of the sum together, for x ≥ 1.

    Returns:
        At least 2; 64 where 63 are too few.
    """
    bits = max(2, largest.bit_length() + 1)
    while bits <= BITS_MAX and ((1 << bits - 1) <= largest or tail((1 << bits - 1) - largest) > OVERFLOW):
        bits += 1
    return min(bits, BITS_MAX + 1)


def laplace_tail(scale: Fraction, submissions: int, shares: int, counters: int) -> Tail:
    """Of the sum of ``submissions`` Pólya shares, any ``shares`` of which sum to discrete Laplace noise.

    What is added is negative binomial with r = submissions/shares, and so is what is subtracted: as a geometric is, to
    the power r. For a whole number a, E[e^(sG)] = (1 − q)/(1 − q^(1/a)) ≤ a at s = (1 − 1/a)/scale, so that each is at
    least x with a probability of at most a^⌈r⌉·e^(−sx) (Markov).
    """
    whole = -(-submissions // shares)

    def tail(x: int) -> Fraction:
        bounds = (a**whole * _exp_minus_upper((1 - Fraction(1, a)) * x / scale, 2 * whole) for a in _MOMENTS)
        return Fraction(2 * counters * min(bounds))

    return tail


def gaussian_tail(scale: Fraction, submissions: int, shares: int, counters: int) -> Tail:
    """Of the sum of ``submissions`` discrete Gaussians of variance parameter ``scale``/``shares``.

    Each is sub-Gaussian with that parameter (Canonne, Kamath, Steinke 2020), so the sum is with theirs.
    """

    def tail(x: int) -> Fraction:
        return 2 * counters * _exp_minus_upper(x * x * shares / (2 * scale * submissions))

    return tail


def _exp_minus_upper(x: Fraction, more_bits: int = 0) -> Fraction:
    bits = _WORKING_BITS + more_bits
    return Fraction(exp_minus(x, bits)[1], 1 << bits)


def _pack(words: Array, bits: int) -> Bytes:
    lanes = words.dtype.itemsize * 8
    run = len(words) // lanes
    whole, rest = words[: run * lanes].reshape(lanes, run), words[run * lanes :]
    mask = words.dtype.type((1 << bits) - 1)
    columns = np.zeros((bits, run), words.dtype)
    spare = np.empty(run, words.dtype)
    word = np.empty(run, words.dtype)
    for j in range(lanes if run else 0):
        lane, shift = divmod(j * bits, lanes)
        np.bitwise_and(whole[j], mask, out=word)
        np.bitwise_or(columns[lane], np.left_shift(word, words.dtype.type(shift), out=spare), out=columns[lane])
        if shift + bits > lanes:
            np.right_shift(word, words.dtype.type(lanes - shift), out=columns[lane + 1])
    tail = pack_bits((rest & mask).astype(np.int64), bits)
    return columns.astype(words.dtype.newbyteorder("<"), copy=False).tobytes() + tail


def _unpack(data: memoryview, bits: int, out: Array) -> None:
    lanes = out.dtype.itemsize * 8
    run = len(out) // lanes
    split = run * bits * out.dtype.itemsize
    little = np.frombuffer(data[:split], out.dtype.newbyteorder("<"))
    columns = little.astype(out.dtype, copy=False).reshape(bits, run)
    whole = out[: run * lanes].reshape(lanes, run)
    mask = out.dtype.type((1 << bits) - 1)
    spare = np.empty(run, out.dtype)
    for j in range(lanes if run else 0):
        lane, shift = divmod(j * bits, lanes)
        np.right_shift(columns[lane], out.dtype.type(shift), out=whole[j])
        if shift + bits > lanes:
            np.left_shift(columns[lane + 1], out.dtype.type(lanes - shift), out=spare)
            np.bitwise_or(whole[j], spare, out=whole[j])
        np.bitwise_and(whole[j], mask, out=whole[j])
    try:
        out[run * lanes :] = unpack_bits(data[split:].tobytes(), len(out) - run * lanes, bits)
    except DeltaError as error:
        raise SecureSumError("a vector whose bits after the last word are not zero") from error


def _centred(words: Array, bits: int) -> Int64:
    """Two's complement of ``bits`` bits: up to the sign of the type and back, which keeps it."""
    up = words.dtype.itemsize * 8 - bits
    signed = np.left_shift(words, words.dtype.type(up)).view(words.dtype.str.replace("u", "i"))
    centred: Int64 = np.right_shift(signed, up).astype(np.int64)
    return centred
