"""What the engines ask of a hash: codes, a chunk of rows and a block of records at a time.

A :class:`Coder` is what was drawn for the R·p codes of R rows, part after part of row after row; it defines each code.
Everything else is shared by all hashes: blocks, placement into buckets, increments, compaction, reads
(:mod:`~hushsum.families.lsh.plain`, :mod:`~hushsum.families.lsh.fast`). A new hash offers

* ``ends``: the least and the largest code of any record, a part; buckets are direct where they fit;
* ``plain()``: its codes in NumPy as (k, n) int64;
* ``fast(lowest)``: its codes in compiled loops as (k, n) int32 less ``lowest``, and, where it can, buckets of a rehash
  without writing codes down.

Both hold memory that is used again, so each call of an engine asks for its own. What a block of records is, is the
coder's to say: vectors (n, d) here, sets (:class:`~hushsum.families.sets.Sets`) for MinHash. An engine only takes
``len(records)`` and slices ``records[start:stop]``.
"""

from typing import Any, Protocol

import numpy.typing as npt

from hushsum.families.lsh.arrays import Float32, Int32, Int64, Points
from hushsum.families.lsh.placement import Rehash


class PlainCoder(Protocol):
    """Codes in NumPy."""

    def prepare(self, records: Points) -> Points:
        """What every chunk of rows needs of a block of at least one record."""
        ...

    def codes(self, parts: slice, prepared: Points) -> Int64:
        """(k, n): the codes of parts, of whole rows, for the prepared records; the next call may overwrite them."""
        ...


class FastCoder(Protocol):
    """Codes in compiled loops: the same as those of :class:`PlainCoder`.

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

    def rehashed(self, rows: slice, block: Points, rehash: Rehash) -> Int32 | None:
        """(rows, n): buckets at once; None where there is no faster way than :meth:`codes` and then to hash them."""
        ...


class Coder(Protocol):
    """The drawn parameters of R·p codes."""

    def __len__(self) -> int:
        """R·p."""
        ...

    def ends(self, lower: Float32, upper: Float32) -> tuple[Int64, Int64]:
        """(R·p,) twice: no record within the bounds has a smaller or a larger code of a part."""
        ...

    def far(self, queries: Points) -> npt.NDArray[Any]:
        """(m,) bool: queries with some code that leaves 32 bits."""
        ...

    def plain(self) -> PlainCoder:
        """An engine's own."""
        ...

    def fast(self, lowest: Int32) -> FastCoder:
        """An engine's own; ``lowest`` (R·p,) is taken off the codes, 0 where they are rehashed."""
        ...
