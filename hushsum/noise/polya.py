"""One client's share of discrete Laplace noise, the difference of two Pólya (negative binomial) variables, exactly.

A geometric with ratio q is infinitely divisible: it is the sum of h variables NB(1/h, q), P(k) ∝ Γ(k + 1/h)/k!·q^k. So
h shares NB(1/h, q) − NB(1/h, q), q = e^(−1/b), sum to discrete Laplace noise of scale b. A share is mostly 0: it is a
sum of a Poisson number of events (see below), of which most draws have none.

A draw takes 16 bits, which say how many events it may have; each of these takes 16 bytes: 32 bits choose a block of
sizes, 32 are the first bits of U, and the other word holds the place within the block and the sign. It is kept if
U < p. Bits that decide nothing yet are followed by as many more as it takes, and there is no largest size: the share is
drawn at distance 0 from its distribution, of unbounded support, given uniform bytes.

Its time depends on what is drawn: draw where nobody can measure it.

The share of discrete Gaussian noise needs no sampler of its own: it is
:class:`hushsum.noise.discrete_gaussian.DiscreteGaussian` of σ²/h (see :mod:`hushsum.privacy.distributed_gaussian`).

**Events**: how many a draw has, and how large each is, is decided by exact thresholds. The law is compound Poisson: for
each k ≥ 1, events of size ±k come at rate 2·q^k/(h·k), q = e^(−1/b). They are thinned from a process whose rates are
integer weights. Block j holds the sizes 2^j to 2^(j+1) − 1; it weighs W_j ≥ C·q^(2^j), its sizes are equally likely,
and size k of it is kept with probability p = C·2^j·q^k/(k·W_j). Blocks from J on are the tail, piece i of which (block
J + i) is chosen with probability 2^−(i+1), which falls more slowly than q^(2^(J+i)) does. What is left of 2³² is void.
All weights together stand for the rate Λ = 2·2³²/(C·h) of a draw.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hushsum import math_portable
from hushsum.entropy import Entropy
from hushsum.noise.discrete_laplace import SCALE_MAX, SCALE_MIN
from hushsum.noise.exp_thresholds import Form, ProbabilityThreshold, exp_minus
from hushsum.noise.random_words import TIE_BITS, below, check_draws, read, word, wrapped

CHOICE_BITS: Final = 32  # of the word that chooses a block
GUIDE_BITS: Final = 12  # of them that the guide takes at once
COUNT_BITS: Final = 16  # of the word that says how many events a draw has, where it says
_TAIL_EXPONENT: Final = 23  # e^−23 < 2^−33: the tail weighs next to nothing
_WORKING_BITS: Final = 128
TIED: Final = 2**16 - 1  # in the table of counts
_COUNTS_MAX: Final = 4096  # far above the number of events of any draw that 16 bits decide

UInt16 = npt.NDArray[np.uint16]
UInt64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class EventSizes:
    """The envelope of the sizes of events. Its arrays have J + 2 entries: the blocks, the tail, the void.

    Attributes:
        scale: b.
        count: J.
        peak: C.
        weights: W, exact, together 2^32.
        ends: (J + 2,) one past the last choosing word of each.
        guide: (2^12,) entry of the first of all choosing words that begin with these 12 bits.
        heights: (J + 2,) float64 near C·q^(2^j)/W_j, the acceptance probability where a block begins; 0 for the others.
        rate: float64 next to 1/b.
    """

    scale: Fraction
    count: int
    peak: int
    weights: tuple[int, ...]
    ends: UInt64
    guide: npt.NDArray[np.uint8]
    heights: npt.NDArray[np.float64]
    rate: float

    @property
    def tail(self) -> int:
        """The entry of the tail."""
        return self.count

    def acceptance(self, block: int, size: int) -> ProbabilityThreshold:
        """The probability that an event of this size of the block is kept; the block may be one of the tail's."""
        weight = self.weights[min(block, self.tail)]
        piece = max(0, block - self.tail + 1)  # i + 1
        return ProbabilityThreshold(size / self.scale, Form.TAIL, Fraction(self.peak << block + piece, size * weight))


@dataclass(frozen=True, eq=False)
class Counts:
    """How many events a draw has: Poisson with rate Λ. A uniform U in [0, 1) gives n where P(≤ n − 1) ≤ U < P(≤ n).

    Attributes:
        rate: Λ.
        first: ⌊e^−Λ·2^16⌋: a word below has no event.
        table: (2^16,) n by the first 16 bits of U; where they do not tell, :data:`TIED`.
    """

    rate: Fraction
    first: int
    table: UInt16

    def below(self, n: int) -> ProbabilityThreshold:
        """P(at most n events)."""
        return _at_most(self.rate, n)


@lru_cache(maxsize=64)
def sizes(scale: Fraction) -> EventSizes:
    """The envelope of q = e^(−1/``scale``)."""
    count = 0
    while 2**count < _TAIL_EXPONENT * scale:
        count += 1
    enclosures = [exp_minus(2**j / scale, _WORKING_BITS) for j in range(count + 1)]
    one = 1 << _WORKING_BITS
    highs = [high for _, high in enclosures[:count]] + [2 * enclosures[count][1]]
    whole = 1 << CHOICE_BITS
    peak = min(whole - count - 2, (whole - count - 2) * one // sum(highs))
    weights = [-(-peak * high >> _WORKING_BITS) for high in highs]
    weights.append(whole - sum(weights))
    lows = [low for low, _ in enclosures[:count]]
    heights = [float(Fraction(peak * low, weight << _WORKING_BITS)) for low, weight in zip(lows, weights, strict=False)]
    ends = np.array(list(accumulate(weights)), dtype=np.uint64)
    buckets = np.arange(1 << GUIDE_BITS, dtype=np.uint64) << np.uint64(CHOICE_BITS - GUIDE_BITS)
    return EventSizes(
        scale=scale,
        count=count,
        peak=peak,
        weights=tuple(weights),
        ends=ends,
        guide=np.searchsorted(ends, buckets, side="right").astype(np.uint8),
        heights=np.array([*heights, 0.0, 0.0]),
        rate=float(1 / scale),
    )


@lru_cache(maxsize=64)
def counts(scale: Fraction, shares: int) -> Counts:
    """The number of events of one of ``shares`` draws that sum to discrete Laplace noise."""
    rate = Fraction(2 << CHOICE_BITS, sizes(scale).peak * shares)
    last = (1 << COUNT_BITS) - 1
    table = np.full(1 << COUNT_BITS, TIED, dtype=np.uint16)
    n, start = 0, 0  # n events where no threshold before said more
    while start <= last and n < _COUNTS_MAX:
        prefix = _at_most(rate, n).prefix(COUNT_BITS)
        table[start:prefix] = n
        n, start = n + 1, prefix + 1 if prefix >= start else start
        if prefix == last:
            break
    table.flags.writeable = False
    return Counts(rate, _at_most(rate, 0).prefix(COUNT_BITS), table)


@lru_cache(maxsize=4096)
def _at_most(rate: Fraction, n: int) -> ProbabilityThreshold:
    return ProbabilityThreshold(rate, Form.TAIL, _partial(rate, n))


@lru_cache(maxsize=4096)
def _partial(rate: Fraction, n: int) -> Fraction:
    """Σ Λ^i/i! over i = 0 to n."""
    total = term = Fraction(1)
    for i in range(1, n + 1):
        term = term * rate / i
        total += term
    return total


SHARES_MAX: Final = 2**16
_COUNT: Final = np.dtype("<u2")
_EVENT: Final = np.dtype("<u8")
_EVENT_BYTES: Final = 16
_ACCEPTANCE_BITS: Final = 32  # of U that are read with every event
_ACCEPTANCE_MASK: Final = np.uint64(2**_ACCEPTANCE_BITS - 1)
_DOUBT: Final = 2.0**-40  # float64 is never away from p by 2^-44: the exponent is below 47, and rounded thrice
_TERMS_MAX: Final = 2**25  # of a table of probabilities

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PolyaShare:
    """A share of discrete Laplace noise.

    Args:
        scale: b of the whole noise, exact, from 2^−48 to 2^48.
        shares: h, how many shares sum to it; from 1 to 2^16.

    Raises:
        TypeError: The scale is no Fraction, or the number of shares no integer.
        ValueError: One is out of range.
    """

    scale: Fraction
    shares: int
    block_draws: ClassVar[int] = 1 << 14  # the words of a block stay in the second-level cache

    def __post_init__(self) -> None:
        if not isinstance(self.scale, Fraction) or type(self.shares) is not int:
            came = f"{type(self.scale).__name__} and {type(self.shares).__name__}"
            raise TypeError(f"a PolyaShare takes a Fraction and an integer, got {came}")
        if not SCALE_MIN <= self.scale <= SCALE_MAX:
            raise ValueError(f"the scale of a PolyaShare is from 2^-48 to 2^48, got {self.scale}")
        if not 1 <= self.shares <= SHARES_MAX:
            raise ValueError(f"the shares of a PolyaShare are from 1 to {SHARES_MAX}, got {self.shares}")

    @property
    def variance(self) -> float:
        """2q/(h·(1 − q)²), of one draw."""
        x = float(1 / self.scale)
        return 2.0 * math.exp(-x) / math.expm1(-x) ** 2 / self.shares

    @property
    def std(self) -> float:
        """The standard deviation of one draw."""
        return math.sqrt(self.variance)

    def log_probability(self, k: Int64) -> Float64:
        """The natural logarithm of P(k) of each element, in float64; its time goes with 30·scale and the largest |k|.

        Raises:
            ValueError: They are beyond 2^25.
        """
        away = np.abs(np.asarray(k, dtype=np.int64))
        reach = max(int(away.max(initial=0)), 64)
        terms = (1 << reach.bit_length()) + math.ceil(30 * self.scale)
        if terms > _TERMS_MAX:
            raise ValueError(f"a table of {terms} probabilities, expected at most {_TERMS_MAX}")
        return _log_probabilities(self, terms)[away]

    def sample(self, size: int, entropy: Entropy) -> Int64:
        """Independent draws.

        It reads the 16 bits of all draws in their order, then what the undecided among them need; then the words of
        the first event of each draw that has one, of the second, and so on, and then what their undecided need. So the
        draws do not depend on the size of a block. A value beyond int64 (never seen: e^(−2^14) and less) wraps around,
        which is post-processing and takes nothing from the guarantee.

        Args:
            size: Number of draws, at least 0.
            entropy: Private randomness.

        Returns:
            (size,) int64.

        Raises:
            TypeError: ``entropy`` cannot be read from; a public seed cannot.
            ValueError: ``size`` is negative.
            OSError: ``entropy`` gave fewer bytes than it was asked for.
        """
        check_draws(size, entropy)
        positions, numbers = self._numbers(size, entropy)
        envelope = sizes(self.scale)
        values = np.zeros(size, dtype=np.int64)
        undecided: list[_Undecided] = []
        while len(positions):  # one event of each
            for start in range(0, len(positions), self.block_draws):
                at = positions[start : start + self.block_draws]
                words = np.frombuffer(read(entropy, at.size * _EVENT_BYTES), dtype=_EVENT).reshape(-1, 2)
                events, open_ = settle(envelope, words.astype(np.uint64, copy=False))
                values[at] += events  # each position is there once
                undecided += [_Undecided(int(at[i]), *words[i].tolist()) for i in open_.tolist()]
            more = numbers > 1
            positions, numbers = positions[more], numbers[more] - 1
        for event in undecided:
            values[event.draw] = wrapped(int(values[event.draw]) + _resolve(envelope, event, entropy))
        return values

    def _numbers(self, size: int, entropy: Entropy) -> tuple[Int64, Int64]:
        """The ascending positions of the draws that have events, and how many each has."""
        decided = counts(self.scale, self.shares)
        found: list[tuple[Int64, npt.NDArray[np.uint16], Int64]] = []
        for start in range(0, size, self.block_draws):
            many = min(self.block_draws, size - start)
            words = np.frombuffer(read(entropy, many * _COUNT.itemsize), dtype=_COUNT)
            at = np.flatnonzero(words >= decided.first)
            digits = words[at].astype(np.uint16, copy=False)
            found.append((at + start, digits, decided.table[digits].astype(np.int64)))
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        positions, digits, numbers = (np.concatenate(parts) for parts in zip(*found, strict=True))
        for i in np.flatnonzero(numbers == TIED).tolist():
            numbers[i] = _number(decided, int(digits[i]), entropy)
        has = numbers > 0
        return positions[has], numbers[has]


class _Undecided(NamedTuple):
    """An event whose first bits of U do not tell whether it is kept, or one of the tail: its two words."""

    draw: int
    choice: int
    place: int


def settle(envelope: EventSizes, words: UInt64) -> tuple[Int64, Int64]:
    """The signed sizes of (n, 2) words, 0 where they are not kept, and the ascending positions of the undecided.

    Every step is one float64 operation, rounded alike everywhere: the same events are undecided on all platforms.
    """
    first, second = words[:, 0], words[:, 1]
    entry: Int64 = envelope.guide[first >> np.uint64(64 - GUIDE_BITS)].astype(np.int64)
    choice = first >> np.uint64(CHOICE_BITS)
    beyond = np.flatnonzero(choice >= envelope.ends[entry])  # what the guide's bits do not tell
    entry[beyond] = np.searchsorted(envelope.ends, choice[beyond], side="right")
    block = np.minimum(entry, 62)
    start = np.int64(1) << block
    place = (second & (start - 1).astype(np.uint64)).astype(np.int64)
    magnitude = start | place
    falling = math_portable.exp(place.astype(np.float64) * -envelope.rate)
    probability = envelope.heights[entry] * falling * (start.astype(np.float64) / magnitude.astype(np.float64))
    u = (first & _ACCEPTANCE_MASK).astype(np.float64) * 2.0**-_ACCEPTANCE_BITS
    kept = u + 2.0**-_ACCEPTANCE_BITS <= probability - _DOUBT
    unclear = ~kept & (u < probability + _DOUBT) | (entry == envelope.tail)
    unclear &= entry <= envelope.tail
    sign = 1 - 2 * (second >> np.uint64(63)).astype(np.int64)
    return np.where(kept & ~unclear, sign * magnitude, 0), np.flatnonzero(unclear)


def _number(decided: Counts, digits: int, entropy: Entropy) -> int:
    """How many events a draw has whose first 16 bits of U equal those of a threshold."""
    bits, n = COUNT_BITS, 0
    while True:
        while (wanted := decided.below(n).prefix(bits)) < digits:
            n += 1
        if digits < wanted:
            return n
        digits, bits = digits << TIE_BITS | word(entropy), bits + TIE_BITS


def _resolve(envelope: EventSizes, event: _Undecided, entropy: Entropy) -> int:
    """The signed size of an undecided event; 0 where it is not kept."""
    block = int(np.searchsorted(envelope.ends, event.choice >> CHOICE_BITS, side="right"))
    place, bits = event.place & (1 << 63) - 1, 63
    if block == envelope.tail:
        block += _successes(entropy)
        while bits < block:
            place, bits = place << TIE_BITS | word(entropy), bits + TIE_BITS
    size = 1 << block | place & (1 << block) - 1
    threshold = envelope.acceptance(block, size)
    if not below(threshold, event.choice & (1 << _ACCEPTANCE_BITS) - 1, _ACCEPTANCE_BITS, entropy):
        return 0
    return -size if event.place >> 63 else size


def _successes(entropy: Entropy) -> int:
    """Fair coins that come up 1 before the first 0: i with probability 2^−(i+1)."""
    passed = 0
    while (coins := word(entropy)) == 2**64 - 1:
        passed += 64
    return passed + (~coins & coins + 1).bit_length() - 1


@lru_cache(maxsize=8)
def _log_probabilities(share: PolyaShare, terms: int) -> Float64:
    """(terms,) of k = 0, 1, …, by the recurrence of P(k) in k, from above, where it is stable.

    z·G′/G of the generating function gives (1 + q²)·k·P(k) = q(k − 1 + r)·P(k − 1) + q(k + 1 − r)·P(k + 1), r = 1/h.
    """
    x, r = float(1 / share.scale), 1.0 / share.shares
    q = math.exp(-x)
    ratio = q  # P(k)/P(k − 1), of a k far above
    logs = np.zeros(terms)
    for k in range(terms, 0, -1):
        ratio = q * (k - 1 + r) / ((1 + q * q) * k - q * (k + 1 - r) * ratio)
        if k < terms:
            logs[k] = math.log(ratio)
    np.cumsum(logs, out=logs)
    return logs - math.log(2.0 * math.fsum(np.exp(logs)) - 1.0)
