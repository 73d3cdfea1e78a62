"""The envelope that discrete Gaussian draws are taken from: strips of |x| whose integer weights sum to 2³² exactly.

Strip j < J holds the integers of [j·w, (j + 1)·w), w a power of two, and weighs W_j ≥ C·e^(−(j·w)²/2σ²), which is
C times the greatest e^(−x²/2σ²) within it. What lies from T = J·w on is the tail, cut into pieces of width w_t: piece
i is chosen with probability 2^−(i+1), which falls more slowly than e^(−x²/2σ²) does. What is left of 2³² is void.

Here, in NumPy, random words become draws that are kept, rejected or undecided.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.noise.exp_thresholds import Form, ProbabilityThreshold, exp_minus

CHOICE_BITS: Final = 32  # of the word that chooses a strip
GUIDE_BITS: Final = 12  # of them that the guide takes at once
ACCEPTANCE_BITS: Final = 32  # of U that are read with every draw
HEIGHT_BITS: Final = 31
RATE_BITS: Final = 43
_STRIPS_OF_SIGMA_LOG: Final = 5  # σ/w is from 2^5 to 2^6, or below where w = 1
_TAIL_EXPONENT: Final = Fraction(89, 4)  # the tail begins where e^(−x²/2σ²) < e^−22.25 < 2^−32
_LOG_TWO_UPPER: Final = Fraction(7, 10)
_WORKING_BITS: Final = 192  # of the recurrence, whose enclosures widen by less than 2^20 units

UInt64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Strips:
    """The envelope of one σ². Its arrays have J + 2 entries: the strips, the tail, the void.

    Attributes:
        scale: σ².
        shift: log₂ w.
        count: J.
        peak: C.
        weights: W, exact.
        tail_shift: log₂ w_t.
        ends: (J + 2,) one past the last choosing word of each; the last is 2^32.
        guide: (2^12,) entry of the first of all choosing words that begin with these 12 bits.
        squeezes: (J + 2,) every acceptance probability of the strip is at least squeeze·2^−32; 0 for tail and void.
        heights: (J + 2,) ⌊h·2^31⌋, h = C·e^(−(j·w)²/2σ²)/W_j: the acceptance probability where the strip begins.
        rate: ⌊c·2^43⌋, c = w²/2σ²; 0 where w = 1, for then nothing depends on it.
    """

    scale: Fraction
    shift: int
    count: int
    peak: int
    weights: tuple[int, ...]
    tail_shift: int
    ends: UInt64
    guide: npt.NDArray[np.uint16]
    squeezes: UInt64
    heights: UInt64
    rate: int

    @property
    def tail(self) -> int:
        """The entry of the tail."""
        return self.count

    def acceptance(self, strip: int, x: int) -> ProbabilityThreshold:
        """The probability that |x| of this strip is kept. Where w = 1, zero is kept with either sign."""
        factor = Fraction(self.peak, self.weights[strip])
        return self._acceptance(x, factor / 2 if self.shift == 0 and x == 0 else factor)

    def tail_acceptance(self, piece: int, x: int) -> ProbabilityThreshold:
        """The probability that |x| of this piece of the tail is kept."""
        factor = Fraction(self.peak << self.tail_shift + piece + 1, self.weights[self.tail] << self.shift)
        return self._acceptance(x, factor)

    def _acceptance(self, x: int, factor: Fraction) -> ProbabilityThreshold:
        return ProbabilityThreshold(x * x / (2 * self.scale), Form.TAIL, factor)


@lru_cache(maxsize=64)
def strips(scale: Fraction) -> Strips:
    """The envelope of σ² = ``scale``."""
    shift = 0
    while scale >= 4 ** (shift + 1 + _STRIPS_OF_SIGMA_LOG):
        shift += 1
    rate = Fraction(4**shift) / (2 * scale)  # c
    count = 1
    while rate * count * count < _TAIL_EXPONENT:
        count += 1
    lows, highs = _gaussian(rate, count)
    start = count << shift
    tail_shift = 0  # until e^(−T·w_t/σ²) <= 1/2
    while (start << tail_shift) / scale < _LOG_TWO_UPPER:
        tail_shift += 1
    one = 1 << _WORKING_BITS
    tail_high = -(-(highs[count] << tail_shift + 1) >> shift)  # of e^(−T²/2σ²)·2·w_t/w
    halved = 1 if shift == 0 else 0
    sum_high = (one >> halved) + sum(highs[1:count]) + tail_high
    peak = (((1 << CHOICE_BITS) - count - 2) * one // sum_high) & ~1
    inner = [peak >> halved, *(-(-peak * high >> _WORKING_BITS) for high in highs[1:count])]
    weights = [*inner, -(-peak * tail_high >> _WORKING_BITS)]
    weights.append((1 << CHOICE_BITS) - sum(weights))
    least = lows[1:] if shift else [one, *lows[1:]]
    peaks = [peak >> halved, *[peak] * (count - 1)]
    scales = [(top, weight << _WORKING_BITS) for top, weight in zip(peaks, weights, strict=False)]
    squeezes = [(top * low << ACCEPTANCE_BITS) // whole for (top, whole), low in zip(scales, least, strict=False)]
    heights = [(top * low << HEIGHT_BITS) // whole for (top, whole), low in zip(scales, lows, strict=False)]
    ends = np.array(list(accumulate(weights)), dtype=np.uint64)
    buckets = np.arange(1 << GUIDE_BITS, dtype=np.uint64) << np.uint64(CHOICE_BITS - GUIDE_BITS)
    return Strips(
        scale=scale,
        shift=shift,
        count=count,
        peak=peak,
        weights=tuple(weights),
        tail_shift=tail_shift,
        ends=ends,
        guide=np.searchsorted(ends, buckets, side="right").astype(np.uint16),
        squeezes=np.array([*squeezes, 0, 0], dtype=np.uint64),
        heights=np.array([*heights, 0, 0], dtype=np.uint64),
        rate=(rate.numerator << RATE_BITS) // rate.denominator if shift else 0,
    )


def _gaussian(rate: Fraction, count: int) -> tuple[list[int], list[int]]:
    """Enclosures of e^(−j²·rate)·2^192 for 0 <= j <= count, by e^(−(j+1)²r) = e^(−j²r)·e^(−(2j+1)r)."""
    lows, highs = [1 << _WORKING_BITS], [1 << _WORKING_BITS]
    factor = exp_minus(rate, _WORKING_BITS)
    ratio = exp_minus(2 * rate, _WORKING_BITS)
    for _ in range(count):
        lows.append(lows[-1] * factor[0] >> _WORKING_BITS)
        highs.append(-(-highs[-1] * factor[1] >> _WORKING_BITS))
        factor = factor[0] * ratio[0] >> _WORKING_BITS, -(-factor[1] * ratio[1] >> _WORKING_BITS)
    return lows, highs


DOUBT: Final = 128  # units of 2^-32: more than the fixed-point acceptance is ever away from the true one
PART_BITS: Final = 24  # of λ = l/w
PRODUCT_SHIFT: Final = 28  # λ·(2j + λ) from units of 2^-48 to units of 2^-20
EXPONENT_SHIFT: Final = 31  # E from units of 2^-63 to units of 2^-32
TERMS: Final = 8  # of e^-E, whose remainder is below 0.25^9/9! < 2^-36

_GUIDE_SHIFT: Final = np.uint64(64 - GUIDE_BITS)
_CHOICE_SHIFT: Final = np.uint64(CHOICE_BITS)
_ACCEPTANCE_MASK: Final = np.uint64(2**ACCEPTANCE_BITS - 1)
_SIGN_SHIFT: Final = np.uint64(63)
_ONE: Final = np.uint64(1 << 32)
_LOW: Final = np.uint64(32)


def settle(
    envelope: Strips, words: UInt64, values: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Writes the values of (n, 2) words, and says which of them are rejected and which are undecided.

    Args:
        envelope: Of the distribution.
        words: The first of each pair chooses a strip with its upper half and holds U's first bits in its lower one; the
            second holds the place within the strip in its lowest bits and the sign in its highest.
        values: (n,) where the values go; those of rejected and undecided ones mean nothing.

    Returns:
        Ascending positions: of the rejected, and of the undecided.
    """
    first, second = words[:, 0], words[:, 1]
    entry = _entries(envelope, first)
    place = second & np.uint64((1 << envelope.shift) - 1)
    magnitudes = (entry << envelope.shift) + place.astype(np.int64)
    negative = second >> _SIGN_SHIFT
    np.multiply(magnitudes, 1 - 2 * negative.astype(np.int64), out=values)
    u = first & _ACCEPTANCE_MASK
    unsure = np.flatnonzero(u >= envelope.squeezes[entry])
    kept, clear = _compare(envelope, entry[unsure], place[unsure], u[unsure])
    rejected, undecided = unsure[~kept & clear], unsure[~clear]
    if envelope.shift:  # minus zero
        twice = np.flatnonzero((magnitudes == 0) & (negative == 1))
        if len(twice):
            rejected, undecided = np.union1d(rejected, twice), np.setdiff1d(undecided, twice)
    return rejected, undecided


def _entries(envelope: Strips, first: UInt64) -> npt.NDArray[np.int64]:
    entry: npt.NDArray[np.int64] = envelope.guide[first >> _GUIDE_SHIFT].astype(np.int64)
    choice = first >> _CHOICE_SHIFT
    beyond = np.flatnonzero(choice >= envelope.ends[entry])  # what the guide's bits do not tell
    entry[beyond] = np.searchsorted(envelope.ends, choice[beyond], side="right")
    return entry


def _compare(
    envelope: Strips, entry: npt.NDArray[np.int64], place: UInt64, u: UInt64
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Whether U < p, and whether the first bits of U tell that; the void is clear, the tail never is."""
    probability = acceptance(envelope, entry.astype(np.uint64), place)
    kept = u + np.uint64(DOUBT + 1) <= probability
    clear = kept | (u >= probability + np.uint64(DOUBT))
    return kept & (entry < envelope.tail), (clear | (entry > envelope.tail)) & (entry != envelope.tail)


def acceptance(envelope: Strips, strip: UInt64, place: UInt64) -> UInt64:
    """p·2^32 of places within strips, to within 128: h·e^(−E), E = c·λ(2j + λ), λ = l/w, in fixed point.

    Where w > 1, σ/w >= 32, so that c <= 2^-11, and J = ⌈√(22.25/c)⌉ is from 214 to 427: 2c·J < 0.22, which E is below.
    λ is cut to 24 bits, which moves E by less than 2c·J·2^-24 < 2^-26: 64 units of 2^-32. The product is cut by 2^-20,
    which times c is 2 units, c by 2^-43, which times the product is 1, and E by 1. Each of the eight steps of the sum
    is cut by at most 2 units, and what is cut from one is multiplied by E/n < 0.22 in the next: 3 units; what follows
    them adds less than 1. h is cut by 2 units, and p by 1: 75 in all. Where w = 1, E = 0, and only h and p are cut.
    """
    bits = PART_BITS - envelope.shift
    part = place << np.uint64(bits) if bits >= 0 else place >> np.uint64(-bits)
    product = part * ((strip << np.uint64(PART_BITS + 1)) + part)
    exponent = (product >> np.uint64(PRODUCT_SHIFT)) * np.uint64(envelope.rate) >> np.uint64(EXPONENT_SHIFT)
    power = np.full_like(exponent, _ONE)
    for n in range(TERMS, 0, -1):  # 1 − E(1 − E/2·(1 − E/3·(…)))
        power = _ONE - (exponent * power >> _LOW) // np.uint64(n)
    return envelope.heights[strip] * power >> np.uint64(HEIGHT_BITS)
