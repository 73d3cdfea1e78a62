"""How Pólya noise is made of events: how many a draw has, and how large each is, by exact thresholds.

The law is compound Poisson: for each k ≥ 1, events of size ±k come at rate 2·q^k/(h·k), q = e^(−1/b). They are thinned
from a process whose rates are integer weights. Block j holds the sizes 2^j to 2^(j+1) − 1; it weighs W_j ≥ C·q^(2^j),
its sizes are equally likely, and size k of it is kept with probability p = C·2^j·q^k/(k·W_j). Blocks from J on are
the tail, piece i of which (block J + i) is chosen with probability 2^−(i+1), which falls more slowly than q^(2^(J+i))
does. What is left of 2³² is void. All weights together stand for the rate Λ = 2·2³²/(C·h) of a draw.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.noise.thresholds import Form, ProbabilityThreshold, exp_minus

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
