"""Codes of MinHash in compiled loops.

Nothing is checked in the loop: arrays fit. Vectors run over parts: all of them take the same id, so that sets of any
size are hashed without padding.
"""

from typing import Final

import numpy as np

from hushsum.compiled import compiled, inlined
from hushsum.families.lsh.arrays import Int32, Int64, UInt32
from hushsum.families.lsh.codes.minhash import MinHash
from hushsum.families.lsh.placement import Placement
from hushsum.families.sets import Sets

#: Parts that are hashed side by side.
LANES: Final = 32
#: Sets whose codes are written down together, part by part.
TILE: Final = 16

# Counters of a row are read and written from all over, so a row takes as many records at once as memory is for. No
# power of two: codes of one record would all fall into the same few lines of the cache.
_BLOCK_RECORDS: Final = (1 << 17) + 16
_BLOCK_CODES: Final = 1 << 21

_LAST: Final = np.uint32(2**32 - 1)
_HALF: Final = np.uint32(16)


@inlined
def _codes(  # noqa: PLR0913, PLR0917 -- flat: tuples of arrays cost reference counts in the inner loops
    starts: Int64,
    ids: UInt32,
    shared: UInt32,
    keys: UInt32,
    first: UInt32,
    second: UInt32,
    undo_shared: UInt32,
    undo_first: UInt32,
    undo_second: UInt32,
    tile: UInt32,
    out: Int32,
    lanes: int,
) -> None:
    n, common, multiplier = len(starts) - 1, shared[0], shared[1]
    for begin in range(0, n, TILE):
        end = min(begin + TILE, n)
        for i in range(begin, end):
            least = tile[i - begin]
            for lane in range(lanes):
                least[lane] = _LAST
            for j in range(starts[i], starts[i + 1]):
                w = np.uint32(np.uint32(ids[np.uint64(j)] ^ common) * multiplier)
                w = np.uint32(w ^ np.uint32(w >> _HALF))
                for lane in range(lanes):
                    u = np.uint32(np.uint32(w ^ keys[lane]) * first[lane])
                    v = np.uint32(u ^ np.uint32(u >> _HALF))
                    least[lane] = min(least[lane], np.uint32(v * second[lane]))
            for lane in range(lanes):
                v = np.uint32(least[lane] * undo_second[lane])
                u = np.uint32(v ^ np.uint32(v >> _HALF))
                w = np.uint32(np.uint32(u * undo_first[lane]) ^ keys[lane])
                w = np.uint32(w ^ np.uint32(w >> _HALF))
                least[lane] = np.uint32(np.uint32(w * undo_shared[1]) ^ undo_shared[0])
        for lane in range(lanes):
            row = out[lane]
            for i in range(begin, end):
                row[np.uint64(i)] = np.int32(tile[i - begin, lane])


@compiled
def first_ids(  # noqa: PLR0913, PLR0917 -- flat: see above
    starts: Int64,
    ids: UInt32,
    shared: UInt32,
    keys: UInt32,
    first: UInt32,
    second: UInt32,
    undo_shared: UInt32,
    undo_first: UInt32,
    undo_second: UInt32,
    tile: UInt32,
    out: Int32,
) -> None:
    """Codes (k, n) of n sets, as 32-bit words, for k ≤ :data:`LANES` parts.

    Parameters of parts are (k,); ``tile`` (TILE, LANES) is scratch.
    """
    order = (shared, keys, first, second, undo_shared, undo_first, undo_second)
    if len(out) == LANES:  # a length that the compiler knows
        _codes(starts, ids, *order, tile, out, LANES)
    else:
        _codes(starts, ids, *order, tile, out, len(out))


class CompiledMinHash:
    """See :class:`~hushsum.families.lsh.placement.CompiledCoder`."""

    block_records = _BLOCK_RECORDS
    flagged = 0

    def __init__(self, minhash: MinHash, lowest: Int32) -> None:
        assert not lowest.any(), "no code is below 0"
        order = minhash.order
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
            first_ids(block.starts, block.ids, *order, self._tile, some)
        self.computed += out.size
        return out

    def buckets(self, rows: slice, block: Sets, placement: Placement, width: int) -> None:
        """None: the codes are written down first."""
        del rows, block, placement, width
