"""The discrete Laplace distribution P(k) ∝ e^(−|k|/scale) on all integers, drawn exactly (MATH: exact samplers).

A draw is the difference of two geometrics with ratio q = e^(−1/scale). The binary digits of a geometric are
independent, digit i being 1 with probability q^(2^i) / (1 + q^(2^i)), and what stands above B digits is geometric
again, with ratio q^(2^B). So a draw is a fixed number of comparisons of random 16-bit words with fixed thresholds. A
word that equals its threshold's first 16 bits decides nothing yet: more bits of both are compared, as many as it takes.
That makes it exact, at distance 0 from the distribution, given uniform bytes.

The work of a draw is the same whatever comes out, but for those ties: one word in 65,536.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from hushsum.entropy import Entropy
from hushsum.noise.thresholds import Form, Threshold

SCALE_MAX: Final = 2**48  # int64 then holds every draw, but for an event of probability e^(−2^14)
SCALE_MIN: Final = Fraction(1, 2**48)  # so that 1/scale is a float for the error bars
WORD_BITS: Final = 16  # of a first comparison
TIE_BITS: Final = 64  # of each further one
_TIE_MASK: Final = 2**TIE_BITS - 1
_WORD: Final = np.dtype("<u2")
_TAIL_EXPONENT: Final = 45  # e^−45 < 2^−64


@dataclass(frozen=True)
class DiscreteLaplace:
    """Discrete Laplace noise.

    Args:
        scale: Exact, from 2^−48 to 2^48. Noise of scale Δ1/ε on every counter is pure ε for changes of L1 norm Δ1.

    Raises:
        TypeError: The scale is no Fraction (a float would not say what it means).
        ValueError: The scale is out of range.
    """

    scale: Fraction
    block_draws: ClassVar[int] = 2048  # the words of a block stay in the second-level cache

    def __post_init__(self) -> None:
        if not isinstance(self.scale, Fraction):
            raise TypeError(f"the scale of a DiscreteLaplace is a Fraction, got {type(self.scale).__name__}")
        if not SCALE_MIN <= self.scale <= SCALE_MAX:
            raise ValueError(f"the scale of a DiscreteLaplace is from 2^-48 to 2^48, got {self.scale}")

    @property
    def variance(self) -> float:
        """2q/(1 − q)², of one draw."""
        x = float(1 / self.scale)
        return 2.0 * math.exp(-x) / math.expm1(-x) ** 2

    @property
    def std(self) -> float:
        """The standard deviation of one draw: nearly √2·scale where the scale is large."""
        return math.sqrt(self.variance)

    def log_probability(self, k: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The natural logarithm of P(k) = (1 − q)/(1 + q)·q^|k| of each element, in float64."""
        x = float(1 / self.scale)
        peak = math.log(math.tanh(x / 2))  # (1 − q)/(1 + q)
        return peak - np.abs(np.asarray(k, dtype=np.float64)) * x

    def sample(self, size: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        """Independent draws.

        It reads all first words in order of the draws, and then what the ties need, in the same order: the draws do not
        depend on the size of a block. A value beyond int64 (never seen: e^(−2^14) and less) wraps around, which is
        post-processing and takes nothing from the guarantee.

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
        if not isinstance(entropy, Entropy):
            raise TypeError(f"noise is drawn from an Entropy, got {type(entropy).__name__}")
        if size < 0:
            raise ValueError(f"cannot draw {size} times")
        digits = _digits(self.scale)
        draws = np.empty(size, dtype=np.int64)
        ties: list[int] = []
        thresholds = np.tile(digits.first_words, 2 * min(size, self.block_draws))
        for start in range(0, size, self.block_draws):
            block = draws[start : start + self.block_draws]
            words = np.frombuffer(_read(entropy, block.size * digits.bytes_per_draw), dtype=_WORD)
            block[:] = _differences(words < thresholds[: words.size], digits.columns)
            tied = np.flatnonzero(words == thresholds[: words.size])
            ties.extend((tied + start * 2 * digits.columns).tolist())
        for position in ties:
            _resolve(draws, position, digits, entropy)
        return draws


@dataclass(frozen=True)
class _Digits:
    """What decides one geometric: ``columns`` words, one a binary digit and the last for all that stands above them.

    The number of columns is a multiple of 8, so that comparisons pack into whole bytes.
    """

    thresholds: tuple[Threshold, ...]
    first_words: npt.NDArray[np.uint16]

    @property
    def columns(self) -> int:
        return len(self.thresholds)

    @property
    def bytes_per_draw(self) -> int:
        return 2 * self.columns * _WORD.itemsize


@lru_cache(maxsize=64)
def _digits(scale: Fraction) -> _Digits:
    needed = 0
    while 2**needed < _TAIL_EXPONENT * scale:  # until q^(2^B) < 2^−64
        needed += 1
    top = 8 * (needed // 8 + 1) - 1
    thresholds = (*(Threshold(2**i / scale, Form.DIGIT) for i in range(top)), Threshold(2**top / scale, Form.TAIL))
    first_words = np.array([threshold.prefix(WORD_BITS) for threshold in thresholds], dtype=_WORD)
    first_words.flags.writeable = False
    return _Digits(thresholds, first_words)


def _differences(bits: npt.NDArray[np.bool_], columns: int) -> npt.NDArray[np.int64]:
    """(n,) int64 from the (2n·columns,) digits of n pairs of geometrics, lowest digits first."""
    packed = np.packbits(bits, bitorder="little").reshape(-1, columns // 8)
    values = packed[:, -1].astype(np.int64)
    for column in range(columns // 8 - 2, -1, -1):
        values <<= 8
        values |= packed[:, column]
    return values[0::2] - values[1::2]


def _resolve(draws: npt.NDArray[np.int64], position: int, digits: _Digits, entropy: Entropy) -> None:
    """Decides the word at ``position``, which equals its threshold's first bits, and adds what it stands for."""
    geometric, column = divmod(position, digits.columns)
    draw, subtracted = divmod(geometric, 2)
    threshold = digits.thresholds[column]
    if not _below(threshold, WORD_BITS, entropy):
        return
    times = 1
    if threshold.form is Form.TAIL:  # unbounded: geometric with ratio q^(2^B)
        while _below(threshold, 0, entropy):
            times += 1
    value = times << column
    draws[draw] = _wrapped(int(draws[draw]) + (-value if subtracted else value))


def _below(threshold: Threshold, bits: int, entropy: Entropy) -> bool:
    """Whether U < p, given that their first ``bits`` binary digits are equal."""
    while True:
        word = int.from_bytes(_read(entropy, TIE_BITS // 8), "little")
        bits += TIE_BITS
        wanted = threshold.prefix(bits) & _TIE_MASK
        if word != wanted:
            return word < wanted


def _read(entropy: Entropy, size: int) -> bytes:
    data = entropy.read(size)
    if len(data) != size:  # never stretch what came: the same word would decide two draws
        raise OSError(f"the source of entropy gave {len(data)} bytes of {size}")
    return data


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63
