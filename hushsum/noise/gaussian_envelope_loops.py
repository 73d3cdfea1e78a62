"""A compiled loop that makes discrete Gaussian draws of random words, as :mod:`.gaussian_envelope` defines them."""

from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.compiled import compiled, inlined
from hushsum.noise.gaussian_envelope import (
    ACCEPTANCE_BITS,
    CHOICE_BITS,
    DOUBT,
    EXPONENT_SHIFT,
    GUIDE_BITS,
    HEIGHT_BITS,
    PART_BITS,
    PRODUCT_SHIFT,
    TERMS,
    Strips,
    UInt64,
    strips,
)

Int64 = npt.NDArray[np.int64]

_GUIDE_SHIFT: Final = np.uint64(64 - GUIDE_BITS)
_CHOICE_SHIFT: Final = np.uint64(CHOICE_BITS)
_ACCEPTANCE_MASK: Final = np.uint64(2**ACCEPTANCE_BITS - 1)
_SIGN_SHIFT: Final = np.uint64(63)

_ONE: Final = np.uint64(1 << 32)
_LOW: Final = np.uint64(32)
_PART_SHIFT: Final = np.uint64(PART_BITS + 1)
_PRODUCT_SHIFT: Final = np.uint64(PRODUCT_SHIFT)
_EXPONENT_SHIFT: Final = np.uint64(EXPONENT_SHIFT)
_HEIGHT_SHIFT: Final = np.uint64(HEIGHT_BITS)
_DOUBT: Final = np.uint64(DOUBT)
_SURE: Final = np.uint64(DOUBT + 1)


def warm_up() -> None:
    """Compiles the loop, or loads it."""
    settle(strips(Fraction(1)), np.frombuffer(bytes(16), np.uint64).reshape(1, 2), np.zeros(1, np.int64))


def settle(envelope: Strips, words: UInt64, values: Int64) -> tuple[Int64, Int64]:
    """See :func:`hushsum.noise.gaussian_envelope.settle`."""
    rejected, undecided = np.empty(len(words), np.int64), np.empty(len(words), np.int64)
    tables = (envelope.guide, envelope.ends, envelope.squeezes, envelope.heights)
    lost, open_ = _settle(words, *tables, envelope.shift, envelope.rate, values, rejected, undecided)
    return rejected[:lost], undecided[:open_]


@compiled
def _settle(  # noqa: PLR0913, PLR0917 -- flat arrays are what a compiled loop takes
    words: UInt64,
    guide: npt.NDArray[np.uint16],
    ends: UInt64,
    squeezes: UInt64,
    heights: UInt64,
    shift: int,
    rate: int,
    values: Int64,
    rejected: Int64,
    undecided: Int64,
) -> tuple[int, int]:
    """How many positions it wrote to ``rejected`` and to ``undecided``."""
    up, tail = np.uint64(shift), len(ends) - 2
    mask = (np.uint64(1) << up) - np.uint64(1)
    lost = open_ = 0
    for i in range(len(words)):
        first, second = words[i, 0], words[i, 1]
        choice, u = first >> _CHOICE_SHIFT, first & _ACCEPTANCE_MASK
        entry = np.int64(guide[first >> _GUIDE_SHIFT])
        while choice >= ends[entry]:
            entry += 1
        place = second & mask
        magnitude, negative = np.int64((np.uint64(entry) << up) + place), np.int64(second >> _SIGN_SHIFT)
        values[i] = (magnitude ^ -negative) + negative
        if magnitude == 0 and negative and shift:
            rejected[lost] = i
            lost += 1
        elif u >= squeezes[entry]:
            probability = _acceptance(heights[entry], np.uint64(entry), place, up, np.uint64(rate))
            if entry == tail:
                undecided[open_] = i
                open_ += 1
            elif entry > tail or u >= probability + _DOUBT:
                rejected[lost] = i
                lost += 1
            elif u + _SURE > probability:
                undecided[open_] = i
                open_ += 1
    return lost, open_


@inlined
def _acceptance(height: np.uint64, strip: np.uint64, place: np.uint64, shift: np.uint64, rate: np.uint64) -> np.uint64:
    """See :func:`hushsum.noise.gaussian_envelope.acceptance`."""
    bits = np.int64(PART_BITS) - np.int64(shift)
    part = place << np.uint64(bits) if bits >= 0 else place >> np.uint64(-bits)
    exponent = ((part * ((strip << _PART_SHIFT) + part)) >> _PRODUCT_SHIFT) * rate >> _EXPONENT_SHIFT
    power = _ONE
    for n in range(TERMS, 0, -1):
        power = _ONE - (exponent * power >> _LOW) // np.uint64(n)
    return height * power >> _HEIGHT_SHIFT
