"""The law of a sum of Pólya shares as they are drawn: read off the running sampler, whatever its tables say.

The sampler is driven with crafted words in place of random ones. A draw reads 16 bits that say how many events it has,
8 bytes more where they do not tell, and then 16 bytes an event. Behind what is crafted come zeros: with them every
comparison comes out "below", and an event of zeros is +1. So bisection finds the digits of every probability, of the
code and not of the formula, and the largest cohort costs as much as the smallest. That all places of a block and both
signs are equally likely is taken for granted: they are bits of a uniform word.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Final

import numpy as np

from simulator.audits.confidence import Integers
from simulator.audits.laws import Bounds
from simulator.audits.losses import convolved, cut, summed
from simulator.audits.shares import Flags, Share

_COUNT_BITS: Final = 16  # of the word that says how many events a draw has
_CHOICE_BITS: Final = 32  # of an event's first word that choose its block; the other half is the first of U
_TIE_BITS: Final = 64  # of a further word, where a comparison is not decided
_TIE_DIGITS: Final = 40  # of them that are read
_SCALES: Final = 23  # sizes below so many scales lie in ordinary blocks, none in the tail
_BITS: Final = 320  # of a probability in fixed point
_BEYOND: Final = 3  # outcomes are looked at up to the largest size over this: what is cut moves none by 10^-13 of it
_SLACK: Final = Fraction(1, 10**11)  # relative: more than what is cut, and the digits that are not read

ComesOut = Callable[[Integers], Flags]


def drawn_sum(share: Share, number: int, reach: int) -> Bounds:
    """The law of so many drawn shares together, where none has an event of the tail (all but 10^-11 of the sums).

    Args:
        share: A sampler of Pólya shares, of a scale of at most about 100: every size is looked at.
        number: Of shares.
        reach: Of the outcomes, at most; they end where what is not looked at would begin to show.
    """
    one = _law(share)
    whole, middle = summed(one, number, _BITS), len(one) // 2
    reach = min(reach, middle // _BEYOND)
    masses = {k: Fraction(whole[middle + k], 1 << _BITS) for k in range(-reach, reach + 1)}
    return {k: (mass * (1 - _SLACK), mass * (1 + _SLACK)) for k, mass in masses.items()}


def _law(share: Share) -> list[int]:
    """P(k) of one drawn share in fixed point, its middle 0, up to the largest size of the ordinary blocks."""
    counts = _counts(share)
    event = _Events(share, (counts[0] >> _TIE_DIGITS) + 1).law()
    total, events = [0] * len(event), summed(event, 0, _BITS)
    for before, up_to in pairwise([0, *counts]):
        chance = up_to - before << _BITS - _COUNT_BITS - _TIE_DIGITS
        total = [a + (chance * b >> _BITS) for a, b in zip(total, events, strict=True)]
        events = cut(convolved(events, event), len(event), _BITS)
    return total


def _counts(share: Share) -> list[int]:
    """The first 56 binary digits of P(at most n events), n = 0, 1, … until they are all ones."""

    def number(first: int, tied: int) -> int:
        words = first.to_bytes(2, "little") + (tied << _TIE_BITS - _TIE_DIGITS).to_bytes(8, "little")
        return int(share.sample(1, _Tape(words))[0])  # each event is +1

    def at_most(n: int) -> int:
        first = _last(_COUNT_BITS, 1, lambda digits: np.array([number(int(digits[0]), 0) <= n]))[0]
        tied = _last(_TIE_DIGITS, 1, lambda digits: np.array([number(int(first), int(digits[0])) <= n]))[0]
        return int(first) << _TIE_DIGITS | int(tied)

    found = [at_most(0)]
    while found[-1] + 1 < 1 << _COUNT_BITS + _TIE_DIGITS:
        found.append(at_most(len(found)))
    return found


class _Events:
    """Draws of just one event, driven.

    Args:
        share: Whose.
        single: The first word of such a draw.
    """

    def __init__(self, share: Share, single: int) -> None:
        self._share = share
        self._single = single
        self._blocks = (math.ceil(_SCALES * share.scale) - 1).bit_length()

    def law(self) -> list[int]:
        """The chance in fixed point of each signed size; in the middle, at 0, that it is not kept."""
        ends = [0]
        for block in range(self._blocks):
            ends.append(ends[-1] + self._length(ends[-1], 1 << block))
        sizes = np.arange(1, 1 << self._blocks)
        blocks = np.repeat(np.arange(self._blocks), 1 << np.arange(self._blocks))
        kept = self._kept(np.array(ends)[blocks], sizes, sizes - (1 << blocks))
        weights = [(end - start) << _BITS - 2 * _CHOICE_BITS - _TIE_DIGITS - 1 for start, end in pairwise(ends)]
        side = [weights[block] * digits >> block for block, digits in zip(blocks.tolist(), kept, strict=True)]
        return [*side[::-1], (1 << _BITS) - 2 * sum(side), *side]

    def _length(self, start: int, size: int) -> int:
        """How many choosing words from this one on give this size, where its place is the first and U is 0."""

        def gives_it(more: Integers) -> Flags:
            zero, inside = np.zeros_like(more), start + more < 1 << _CHOICE_BITS
            given: Flags = self._drawn(np.where(inside, start + more, 0), zero, zero) == size
            return inside & given

        return int(_last(_CHOICE_BITS, 1, gives_it)[0]) + 1

    def _kept(self, choices: Integers, sizes: Integers, places: Integers) -> list[int]:
        """The first 72 binary digits of the probability that each of these sizes is kept."""
        first = _last(_CHOICE_BITS, len(sizes), lambda u: self._drawn(choices, u, places) == sizes)
        u = np.maximum(first, 0)
        tied = _last(_TIE_DIGITS, len(sizes), lambda ties: self._drawn(choices, u, places, ties) == sizes)
        return [
            a << _TIE_DIGITS | max(b, 0) if a >= 0 else 0 for a, b in zip(first.tolist(), tied.tolist(), strict=True)
        ]

    def _drawn(self, choices: Integers, u: Integers, places: Integers, ties: Integers | None = None) -> Integers:
        """What each of these events comes to; ties are further digits of U, of events that are all tied."""
        words = np.stack([choices << _CHOICE_BITS | u, places], axis=1)
        tape = np.full(len(u), self._single, dtype="<u2").tobytes() + words.astype("<i8").tobytes()
        if ties is not None:
            tape += (ties.astype("<u8") << np.uint64(_TIE_BITS - _TIE_DIGITS)).tobytes()
        return self._share.sample(len(u), _Tape(tape))


class _Tape:
    """Entropy that was crafted, and zeros behind its end."""

    def __init__(self, data: bytes) -> None:
        self._left = memoryview(data)

    def read(self, size: int) -> bytes:
        taken, self._left = self._left[:size], self._left[size:]
        return bytes(taken).ljust(size, b"\0")


def _last(bits: int, many: int, comes_out: ComesOut) -> Integers:
    """The largest integer below 2^bits that comes out, of which all smaller ones do: of each of many; -1 where none."""
    low, high = np.full(many, -1, dtype=np.int64), np.full(many, 1 << bits, dtype=np.int64)
    while (high - low > 1).any():
        middle = np.maximum((low + high) // 2, 0)
        out = comes_out(middle)
        open_ = high - low > 1
        low, high = np.where(open_ & out, middle, low), np.where(open_ & ~out, middle, high)
    return low
