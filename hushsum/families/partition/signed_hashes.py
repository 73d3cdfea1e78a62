"""Hashes of a count sketch: each row sends a cell to one of W buckets, and gives it a sign.

With random 64-bit multipliers m₀ … m_p of each row, and words c₁ … c_p of 32 bits that name a cell,

    h = m₀ + Σ m_k·c_k  mod 2⁶⁴,

whose upper 33 bits or fewer are strongly universal (Dietzfelbinger 1996; Thorup, High speed hashing for integers and
strings, section 3.3). The bucket is the top log₂W bits of one such h, or (v·W) >> 32 of its upper 32 bits v where W is
no power of two. The sign is the top bit of **another**: signs of two cells are independent of each other and of all
buckets, so that the error of a row has mean 0 and variance Σ c²/W over the other cells' counts c, whatever the buckets
of more than two cells have in common (Charikar, Chen and Farach-Colton 2002). Signs from the lower bits of the same h
would be pairwise independent too, but not of the buckets of a third cell.

Where all cells of a level fit into W buckets a bucket is the cell's mixed-radix number, and no two cells collide.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.families.lsh.arrays import Int64
from hushsum.public_random import PublicSeed, PublicStream

_WORD: Final = 64
UInt64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class SignedHashes:
    """The hashes of the rows of one level.

    Attributes:
        places: (R, p + 1) uint64: m₀ … m_p of the buckets.
        signs: (R, p + 1) uint64: m₀ … m_p of the signs.
        shift: How far h is shifted to the right, below 64.
        factor: What is shifted again by 32 after a multiplication with this; 0: nothing.
        direct: Whether no two cells share a bucket.
    """

    places: UInt64
    signs: UInt64
    shift: int
    factor: int
    direct: bool

    def __len__(self) -> int:
        """R."""
        return len(self.places)

    def tokens(self, rows: slice, words: UInt64) -> Int64:
        """(k, n) int64: 2·bucket, and 1 more where the sign is −1, of words (1 or k, p, n) uint64 below 2³²."""
        h = _mixed(self.places[rows], words)
        h >>= np.uint64(self.shift)
        if self.factor:
            h *= np.uint64(self.factor)
            h >>= np.uint64(32)
        h <<= np.uint64(1)
        signs = _mixed(self.signs[rows], words)
        signs >>= np.uint64(_WORD - 1)
        h |= signs
        return h.view(np.int64)


def draw(seed: PublicSeed, level: int, *, rows: int, parts: int, buckets: int, counts: Int64 | None) -> SignedHashes:
    """The hashes of a level, from the seed alone, in the order (row, k); fewer rows are a prefix of more.

    Args:
        seed: The plan's.
        level: ℓ, whose hashes are independent of those of the others.
        rows: R.
        parts: p, words of a cell.
        buckets: W.
        counts: (p,): words are below these; None where nobody knows.
    """
    signs = PublicStream(seed, f"partition/level {level}/signs").words(rows * (parts + 1)).reshape(rows, parts + 1)
    if counts is not None and np.prod(counts.astype(np.float64)) <= buckets:
        strides = np.append(np.cumprod(counts[:0:-1])[::-1], 1)
        places = np.tile(np.append(0, strides).astype(np.uint64), (rows, 1))
        return SignedHashes(places, signs, 0, 0, direct=True)
    places = PublicStream(seed, f"partition/level {level}/buckets").words(rows * (parts + 1)).reshape(rows, parts + 1)
    if buckets & (buckets - 1) == 0:
        return SignedHashes(places, signs, _WORD + 1 - buckets.bit_length(), 0, direct=False)
    return SignedHashes(places, signs, 32, buckets, direct=False)


def _mixed(multipliers: UInt64, words: UInt64) -> UInt64:
    """h modulo 2⁶⁴, (k, n)."""
    h = np.repeat(multipliers[:, :1], words.shape[2], axis=1)
    for part in range(words.shape[1]):
        h += multipliers[:, part + 1, None] * words[:, part]
    return h
