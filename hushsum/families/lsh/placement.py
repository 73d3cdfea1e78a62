"""From the code vector of a row to one of W buckets: directly where all codes fit, else by a strongly universal hash.

**Direct.** Where in every row the codes of all records within the public bounds fit into W buckets, a bucket is the
mixed-radix number of (code − least code) over the row's parts. Different codes never collide.

**Rehash.** Else each row has its own random 64-bit multipliers m₀ … m_p and

    h = m₀ + Σ m_k·c_k  mod 2⁶⁴,   c_k the k-th code as an unsigned 32-bit word,

whose upper 32 bits or fewer are strongly universal (Dietzfelbinger 1996; Thorup, High speed hashing for integers and
strings, section 3.3: l bits need 64 ≥ 32 + l − 1). The bucket is the top log₂W bits of h where W is a power of two:
two different code vectors share one with probability 1/W exactly. Else it is (v·W) >> 32 with v the upper 32 bits of h:
within a relative (W/2³²)² of that. A bare ``code mod W`` would let far points collide with certainty.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from hushsum.draws import PublicSeed, PublicStream
from hushsum.families.lsh.arrays import Int64, UInt64

#: The bucket of a code that no record within the bounds can have; a query there meets an empty bucket.
OUTSIDE: Final = -1


@dataclass(frozen=True, eq=False)
class Direct:
    """Mixed-radix numbers of codes.

    Attributes:
        lowest: (R, p) int64: the least code of each part.
        spans: (R, p) int64: the number of codes of each part; their product is at most W in every row.
        strides: (R, p) int64: the product of the spans of the later parts.
    """

    lowest: Int64
    spans: Int64
    strides: Int64

    def place(self, rows: slice, codes: Int64) -> Int64:
        """Buckets (rows, n) of codes (rows, p, n), which are overwritten; :data:`OUTSIDE` where one is out of span."""
        codes -= self.lowest[rows, :, None]
        outside = ((codes < 0) | (codes >= self.spans[rows, :, None])).any(axis=1)
        codes *= self.strides[rows, :, None]
        buckets = codes.sum(axis=1)
        buckets[outside] = OUTSIDE
        return np.asarray(buckets, np.int64)

    def place_within(self, rows: slice, codes: Int64) -> Int64:
        """The same for codes of records within the bounds, which are never out of span."""
        codes -= self.lowest[rows, :, None]
        if codes.shape[1] == 1:
            return codes[:, 0]
        codes *= self.strides[rows, :, None]
        return np.asarray(codes.sum(axis=1), np.int64)


@dataclass(frozen=True, eq=False)
class Rehash:
    """Strongly universal buckets.

    Attributes:
        multipliers: (R, p + 1) uint64: m₀ … m_p of each row.
        buckets: W.
    """

    multipliers: UInt64
    buckets: int

    @property
    def bits(self) -> int:
        """log₂ W where W is a power of two, else 0."""
        return self.buckets.bit_length() - 1 if self.buckets & (self.buckets - 1) == 0 else 0

    def place(self, rows: slice, codes: Int64) -> Int64:
        """Buckets (rows, n) of codes (rows, p, n), which are overwritten."""
        words = codes.view(np.uint64)
        words &= np.uint64(0xFFFFFFFF)
        words *= self.multipliers[rows, 1:, None]  # modulo 2⁶⁴, as all of it
        h = words[:, 0]
        for part in range(1, words.shape[1]):
            h += words[:, part]
        h += self.multipliers[rows, :1]
        if self.bits:
            h >>= np.uint64(64 - self.bits)
        else:
            h >>= np.uint64(32)
            h *= np.uint64(self.buckets)
            h >>= np.uint64(32)
        return h.view(np.int64)

    place_within = place


Placement = Direct | Rehash


def direct(least: Int64, largest: Int64, buckets: int) -> Direct | None:
    """The direct placement of codes from ``least`` to ``largest``, (R, p) each; None where some row does not fit."""
    spans = largest - least + 1
    with np.errstate(over="ignore"):  # infinity does not fit either
        products = np.prod(spans.astype(np.float64), axis=1)
    if np.any(products > buckets):
        return None
    strides = np.ones_like(spans)
    for part in range(spans.shape[1] - 2, -1, -1):
        strides[:, part] = strides[:, part + 1] * spans[:, part + 1]
    return Direct(least, spans, strides)


def rehash(seed: PublicSeed, *, rows: int, power: int, buckets: int) -> Rehash:
    """The multipliers of every row, from the seed alone, in the order (row, k); fewer rows are a prefix of more."""
    words = PublicStream(seed, "hashed/rehash").words(rows * (power + 1))
    return Rehash(words.reshape(rows, power + 1), buckets)
