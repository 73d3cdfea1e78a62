"""What the sampler of Pólya shares really does, read off by driving it with crafted words instead of random ones.

A draw reads 16 bits that say how many events it has, 8 bytes more where they do not tell, and then 16 bytes an event.
Behind what is written beforehand come zeros: a comparison with them comes out "below" for ever, and an event of zeros
is +1. So bisection gives the exact binary digits of every probability: of the code, not of the formula.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hushsum.noise import PolyaShare

CHOICES = 2**32


class Zeros:
    """Entropy that was written beforehand, and zeros behind its end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def read(self, size: int) -> bytes:
        part = self.data[self.at : self.at + size]
        self.at += size
        return part + bytes(size - len(part))


def below_digits(levels: tuple[int, ...], comes_out: Callable[[list[int]], bool]) -> int:
    """The first Σ levels binary digits of p, of a comparison U < p that ``comes_out`` with U's digits and then zeros.

    At each level the digits of p themselves are the last that come out: they are tied, and zeros decide it.
    """
    found: list[int] = []
    digits = 0
    for bits in levels:
        low, high = 0, 1 << bits  # the first that does not come out is above low and at most high
        assert comes_out([*found, 0])
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if comes_out([*found, middle]) else (low, middle)
        found.append(low)
        digits = digits << bits | low
    return digits


def events_at_most(share: PolyaShare, n: int, ties: int = 2) -> int:
    """The first 16 + 64·ties digits of P(at most n events)."""

    def comes_out(words: list[int]) -> bool:
        data = words[0].to_bytes(2, "little") + b"".join(word.to_bytes(8, "little") for word in words[1:])
        return int(share.sample(1, Zeros(data))[0]) <= n  # each event is +1

    return below_digits((16, *[64] * ties), comes_out)


def event(share: PolyaShare, choice: int, u: int, second: int = 0, *ties: int) -> int:
    """What a draw of exactly one event of these words gives."""
    words = (choice << 32 | u, second, *ties)
    data = one_event(share) + b"".join(word.to_bytes(8, "little") for word in words)
    return int(share.sample(1, Zeros(data))[0])


@lru_cache
def one_event(share: PolyaShare) -> bytes:
    """The word of a draw with one event, where one says that."""
    return (events_at_most(share, 0, ties=0) + 1).to_bytes(2, "little")


def block_ends(share: PolyaShare, blocks: int) -> list[int]:
    """One past the last choosing word of each block 0 to ``blocks`` − 1, by which event each word gives."""
    ends: list[int] = []
    for block in range(blocks):
        low, high = (ends[-1] if ends else 0), CHOICES
        assert event(share, low, 0) == 1 << block
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if event(share, middle, 0) == 1 << block else (low, middle)
        ends.append(high)
    return ends


def kept(share: PolyaShare, choice: int, size: int, more: int = 64) -> Fraction:
    """The probability that a size of the block of this choosing word is kept, to 32 + ``more`` bits, rounded down."""
    place = size - (1 << size.bit_length() - 1)

    def comes_out(words: list[int]) -> bool:
        return event(share, choice, words[0], place, *[word << 64 - more for word in words[1:]]) == size

    return Fraction(below_digits((32, more), comes_out), 1 << 32 + more)


def realised(share: PolyaShare, reach: int) -> npt.NDArray[np.float64]:
    """P(k), |k| ≤ ``reach``, of what is drawn, from observed decisions alone; the tail's blocks are left out.

    The chances of one event of each size, as often as events are observed to come.
    """
    blocks = reach.bit_length()
    ends = [0, *block_ends(share, blocks)]
    one = np.zeros(2 * reach + 1)
    for size in range(1, reach + 1):
        block = size.bit_length() - 1
        weight = Fraction(ends[block + 1] - ends[block], CHOICES << block)
        one[reach + size] = one[reach - size] = float(weight * kept(share, ends[block], size, 16) / 2)
    one[reach] = 1 - one.sum()
    digits, law, power, n, before = 16 + 64, np.zeros_like(one), np.zeros_like(one), 0, 0
    power[reach] = 1
    while before < (1 << digits) - (1 << digits - 50):  # until no 2^−50 is left
        up_to = events_at_most(share, n, ties=1)
        law += float(Fraction(up_to - before, 1 << digits)) * power
        power = np.convolve(power, one)[reach : 3 * reach + 1]
        before, n = up_to, n + 1
    return law
