"""Codes of one-permutation hashing in compiled loops, in which nothing is checked."""

from typing import Final

import numpy as np

from hushsum.compiled import compiled, inlined
from hushsum.families.lsh.arrays import Bytes, Int32, Int64, UInt32, UInt64
from hushsum.families.lsh.codes.one_permutation import TRIES, OnePermutation
from hushsum.families.lsh.numpy_engine import KeptCodes
from hushsum.families.lsh.placement import Placement
from hushsum.families.sets import Sets

_BLOCK_CODES: Final = 1 << 18  # of all rows: they are computed together, and kept for many blocks at a time
_BLOCK_RECORDS: Final = 1 << 12
_KEPT_BLOCKS: Final = 64
_ROWS: Final = 32

_EMPTY: Final = np.uint8(0)
_OWN: Final = np.uint8(1)
_LENT: Final = np.uint8(2)
_LAST: Final = np.uint32(2**32 - 1)
_HALF: Final = np.uint32(16)
_UPPER: Final = np.uint64(32)


@compiled
def all_codes(  # noqa: PLR0913, PLR0917 -- flat: tuples of arrays cost reference counts in the inner loops
    starts: Int64,
    ids: UInt32,
    forth: UInt32,
    back: UInt32,
    tries: UInt32,
    mixers: UInt64,
    marks: Bytes,
    sources: Int32,
    waiting: Int32,
    out: UInt32,
) -> None:
    """Codes (n, R) of one part for n sets.

    ``forth`` is K, M, k, m, m' of the order; ``back`` K, the inverse of M, k, the inverses of m and m'. Scratch:
    ``marks``, ``sources`` and ``waiting``, (R,) each.
    """
    bins = np.uint64(out.shape[1])
    for i in range(len(out)):
        codes = out[i]
        codes[:] = _LAST
        marks[:] = _EMPTY
        for j in range(starts[i], starts[i + 1]):
            w = np.uint32(np.uint32(ids[np.uint64(j)] ^ forth[0]) * forth[1])
            w = np.uint32(w ^ np.uint32(w >> _HALF))
            u = np.uint32(np.uint32(w ^ forth[2]) * forth[3])
            image = np.uint32(np.uint32(u ^ np.uint32(u >> _HALF)) * forth[4])
            place = np.uint64(np.uint64(image) * bins) >> _UPPER
            codes[place] = min(codes[place], image)
            marks[place] = _OWN
        filled = 0
        for b in range(len(marks)):
            sources[filled], waiting[b - filled] = b, b
            filled += marks[b]
        for number in range(filled):
            own = np.uint32(sources[number])
            v = np.uint32(codes[own] * back[4])
            w = np.uint32(np.uint32(np.uint32(v ^ np.uint32(v >> _HALF)) * back[3]) ^ back[2])
            w = np.uint32(w ^ np.uint32(w >> _HALF))
            codes[own] = np.uint32(np.uint32(w * back[1]) ^ back[0])
        if filled == 1:
            codes[:] = codes[sources[0]]
        else:
            _borrow(codes, filled, tries, mixers, marks, sources, waiting)


@inlined
def _borrow(
    codes: UInt32, filled: int, tries: UInt32, mixers: UInt64, marks: Bytes, sources: Int32, waiting: Int32
) -> None:
    """Codes of the bins in ``waiting``, which have no ids, from those in ``sources``, which have."""
    left = 0
    for number in range(len(codes) - filled):
        b = np.uint32(waiting[number])
        for step in range(TRIES):
            source = tries[b, step]
            if marks[source] == _OWN:
                codes[b], marks[b] = codes[source], _LENT
                break
        if marks[b] == _EMPTY:
            waiting[left] = b
            left += 1
    bins, high = np.uint64(len(codes)), np.uint64(0)
    while left:
        high += np.uint64(1) << _UPPER
        for number in range(filled):
            lender = np.uint32(sources[number])
            word = np.uint64((mixers[1] ^ (high + np.uint64(lender))) * mixers[2])
            word = np.uint64((word ^ (word >> _UPPER)) * mixers[3])
            place = np.uint64((word >> _UPPER) * bins) >> _UPPER
            if marks[place] == _EMPTY:
                codes[place], marks[place] = codes[lender], _LENT
                left -= 1


class CompiledOnePermutation:
    """See :class:`~hushsum.families.lsh.placement.CompiledCoder`."""

    flagged = 0

    def __init__(self, code: OnePermutation, lowest: Int32) -> None:
        assert not lowest.any(), "no code is below 0"
        order, bins = code.order, code.bins
        undo_shared, undo_first, undo_second = order.undo
        self.computed, self.block_records = 0, max(1, min(_BLOCK_RECORDS, _BLOCK_CODES // len(code)))
        self.prepare = KeptCodes(self._all, _KEPT_BLOCKS)
        parts = [*zip(order.keys, order.first, order.second, undo_first, undo_second, strict=True)]
        self._forth = [np.array([*order.shared, key, m, n], np.uint32) for key, m, n, _, _ in parts]
        self._back = [np.array([*undo_shared, key, m, n], np.uint32) for key, _, _, m, n in parts]
        self._tries, self._mixers = code.tries, code.mixers
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
            all_codes(records.starts, records.ids, *order, *scratch, line)
            codes[:, part] = line.T
        self.computed += codes.size
        return codes.reshape(-1, n)

    def codes(self, parts: slice, block: UInt32) -> Int32:
        """(k, n): ids as 32-bit words."""
        return block[parts].view(np.int32).copy()

    def buckets(self, rows: slice, block: UInt32, placement: Placement, width: int) -> None:
        """None: the codes are written down first."""
        del rows, block, placement, width
