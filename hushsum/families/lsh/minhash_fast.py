"""Codes of MinHash in compiled loops."""

from typing import Final

import numpy as np

from hushsum.families.lsh import minhash_loops
from hushsum.families.lsh.arrays import Int32, UInt32
from hushsum.families.lsh.minhash import Order
from hushsum.families.lsh.minhash_loops import LANES, TILE
from hushsum.families.lsh.placement import Rehash
from hushsum.families.sets import Sets

# Counters of a row are read and written from all over, so a row takes as many records at once as memory is for. No
# power of two: codes of one record would all fall into the same few lines of the cache.
_BLOCK_RECORDS: Final = (1 << 17) + 16
_BLOCK_CODES: Final = 1 << 21


class FastMinHash:
    """See :class:`~hushsum.families.lsh.coders.FastCoder`."""

    block_records = _BLOCK_RECORDS
    flagged = 0

    def __init__(self, order: Order) -> None:
        undo_shared, undo_first, undo_second = order.undo
        self.computed = 0
        self._shared, self._undo_shared = order.shared, undo_shared
        self._parts = (order.keys, order.first, order.second, undo_first, undo_second)
        self._tile: UInt32 = np.empty((TILE, LANES), np.uint32)
        self._codes: Int32 = np.empty(0, np.int32)

    def rows_at_once(self, n: int, power: int) -> int:
        """How many rows best fit into the caches: whole groups of lanes, if the block's codes allow."""
        return max(_BLOCK_CODES // n, LANES) // power

    def prepare(self, records: Sets) -> Sets:
        """The same sets."""
        return records

    def codes(self, parts: slice, block: Sets) -> Int32:
        """(k, n): ids as 32-bit words."""
        k, n = parts.stop - parts.start, len(block)
        if k * n > len(self._codes):
            self._codes = np.empty(k * n, np.int32)
        out = self._codes[: k * n].reshape(k, n)
        for start in range(0, k, LANES):
            some = out[start : start + LANES]
            lanes = slice(parts.start + start, parts.start + start + len(some))
            keys, first, second, undo_first, undo_second = (one[lanes] for one in self._parts)
            order = (self._shared, keys, first, second, self._undo_shared, undo_first, undo_second)
            minhash_loops.first_ids(block.starts, block.ids, *order, self._tile, some)
        self.computed += out.size
        return out

    def rehashed(self, rows: slice, block: Sets, rehash: Rehash) -> Int32 | None:
        """None: the codes are written down first."""
        del rows, block, rehash
        return None
