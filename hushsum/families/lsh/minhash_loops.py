"""The compiled loop of MinHash; :mod:`hushsum.families.lsh.minhash_fast` alone calls it, with arrays that fit.

Vectors run over parts: all of them take the same id, so that sets of any size are hashed without padding.
"""

from typing import Final

import numpy as np

from hushsum.acceleration import compiled, inlined
from hushsum.families.lsh.arrays import Int32, Int64, UInt32

#: Parts that are hashed side by side.
LANES: Final = 32
#: Sets whose codes are written down together, part by part.
TILE: Final = 16

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
