"""From the code vector of a row to one of W buckets: directly where all codes fit, else by a strongly universal hash.

With the rows of a sketch, which have a code and a placement, and what engines make of a code: coders.

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
from functools import cached_property
from typing import Final, Protocol

import numpy as np

from hushsum.families.lsh.arrays import Int32, Int64, Points, UInt64
from hushsum.families.lsh.codes.code import Code
from hushsum.families.lsh.codes.projection import Projection
from hushsum.families.threads import Scratch
from hushsum.public_random import PublicSeed, PublicStream

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


@dataclass(frozen=True, eq=False)
class HashedRows:
    """All that an engine knows of the rows of a sketch: R rows of p concatenated codes.

    Attributes:
        code: R·p codes, part after part of row after row.
        placement: Code vectors to buckets.
        power: p, the codes of a row.
        buckets: W.
    """

    code: Code
    placement: Placement
    power: int
    buckets: int

    def __len__(self) -> int:
        """R."""
        return self._number

    @cached_property
    def _number(self) -> int:
        return len(self.code) // self.power

    @cached_property
    def scratch(self) -> Scratch:
        """What an engine keeps of these rows from one call to the next, in each thread its own."""
        return Scratch()

    @property
    def projection(self) -> Projection:
        """The code, where it is a projection."""
        assert isinstance(self.code, Projection), "these rows round no projection"
        return self.code


class NumpyCoder(Protocol):
    """Codes in NumPy, a chunk of rows and a block of records at a time.

    A block is whatever the code takes: vectors (n, d), or sets. Engines only take its length and slices.
    """

    def prepare(self, records: Points) -> Points:
        """What every chunk of rows needs of a block of at least one record."""
        ...

    def codes(self, parts: slice, prepared: Points) -> Int64:
        """(k, n): the codes of parts, of whole rows, for the prepared records; the next call may overwrite them."""
        ...


class CompiledCoder(Protocol):
    """Codes in compiled loops: the same as those of :class:`NumpyCoder`.

    Attributes:
        block_records: Records of a block, best.
    """

    block_records: int

    @property
    def computed(self) -> int:
        """How many codes were computed so far."""
        ...

    @property
    def flagged(self) -> int:
        """How many of them took the slow way of a filter, where there is one."""
        ...

    def rows_at_once(self, n: int, power: int) -> int:
        """How many rows of p codes, for a block of n records, best fit into the caches."""
        ...

    def prepare(self, records: Points) -> Points:
        """What every chunk of rows needs of a block of at least one record."""
        ...

    def codes(self, parts: slice, block: Points) -> Int32:
        """(k, n) less the least code of each part; the caller may write to it, and the next call overwrites it."""
        ...

    def buckets(self, rows: slice, block: Points, placement: Placement, width: int) -> Int32 | None:
        """(rows, n): buckets at once, where that is faster than :meth:`codes` and then to place them; else None.

        ``width`` is W. A bucket outside of all is W or more, as unsigned.
        """
        ...
