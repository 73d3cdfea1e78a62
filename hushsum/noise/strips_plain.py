"""Discrete Gaussian draws out of random words, in NumPy: which are kept, which are rejected, which are undecided."""

from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.noise.strips import ACCEPTANCE_BITS, CHOICE_BITS, GUIDE_BITS, HEIGHT_BITS, Strips, UInt64

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
