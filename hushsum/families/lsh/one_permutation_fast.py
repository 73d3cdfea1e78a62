"""Codes of one-permutation hashing in compiled loops."""

from typing import Final

import numpy as np

from hushsum.families.lsh import one_permutation_loops
from hushsum.families.lsh.arrays import Int32, UInt32
from hushsum.families.lsh.one_permutation import KeptCodes, OnePermutation
from hushsum.families.lsh.placement import Rehash
from hushsum.families.sets import Sets

_BLOCK_CODES: Final = 1 << 18  # of all rows: they are computed together, and kept for many blocks at a time
_BLOCK_RECORDS: Final = 1 << 12
_KEPT_BLOCKS: Final = 64
_ROWS: Final = 32


class FastOnePermutation:
    """See :class:`~hushsum.families.lsh.coders.FastCoder`."""

    flagged = 0

    def __init__(self, coder: OnePermutation) -> None:
        order, bins = coder.order, coder.bins
        undo_shared, undo_first, undo_second = order.undo
        self.computed, self.block_records = 0, max(1, min(_BLOCK_RECORDS, _BLOCK_CODES // len(coder)))
        self.prepare = KeptCodes(self._all, _KEPT_BLOCKS)
        parts = [*zip(order.keys, order.first, order.second, undo_first, undo_second, strict=True)]
        self._forth = [np.array([*order.shared, key, m, n], np.uint32) for key, m, n, _, _ in parts]
        self._back = [np.array([*undo_shared, key, m, n], np.uint32) for key, _, _, m, n in parts]
        self._tries, self._mixers = coder.tries, coder.mixers
        self._marks = np.empty(bins, np.uint8)
        self._sources, self._waiting = np.empty(bins, np.int32), np.empty(bins, np.int32)

    def rows_at_once(self, n: int, power: int) -> int:
        """Few: a row's counters stay in the cache for many blocks."""
        del n, power
        return _ROWS

    def _all(self, records: Sets) -> UInt32:
        n, bins, power = len(records), len(self._marks), len(self._forth)
        codes, line = np.empty((bins, power, n), np.uint32), np.empty((n, bins), np.uint32)
        scratch = (self._marks, self._sources, self._waiting)
        for part, (forth, back) in enumerate(zip(self._forth, self._back, strict=True)):
            order = (forth, back, self._tries, self._mixers)
            one_permutation_loops.all_codes(records.starts, records.ids, *order, *scratch, line)
            codes[:, part] = line.T
        self.computed += codes.size
        return codes.reshape(-1, n)

    def codes(self, parts: slice, block: UInt32) -> Int32:
        """(k, n): ids as 32-bit words."""
        return block[parts].view(np.int32).copy()

    def rehashed(self, rows: slice, block: UInt32, rehash: Rehash) -> Int32 | None:
        """None: the codes are written down first."""
        del rows, block, rehash
        return None
