"""Codes of Walsh–Hadamard directions in compiled loops."""

from typing import Final

import numpy as np

from hushsum.families.lsh import fastfood_loops
from hushsum.families.lsh.fastfood import Fastfood
from hushsum.families.lsh.placement import Rehash
from hushsum.families.lsh.projection import Float32, Int32

_BLOCK_CODES: Final = 1 << 18
_CODES_MAX: Final = 1 << 20  # of a block of records for a block of directions
_FEWEST: Final = 4


class FastFastfood:
    """See :class:`~hushsum.families.lsh.coders.FastCoder`."""

    flagged = 0

    def __init__(self, fastfood: Fastfood, lowest: Int32) -> None:
        self.computed = 0
        self._fastfood, self._lowest = fastfood, lowest
        rows = min(fastfood.size, len(fastfood) // fastfood.power)
        self.block_records = max(16, min(1024, _CODES_MAX // (rows * fastfood.power)))
        self._out: Int32 = np.empty(0, np.int32)
        self._scratch: Float32 = np.empty((2, fastfood.size, fastfood_loops.TILE), np.float32)

    def rows_at_once(self, n: int, power: int) -> int:
        """Whole blocks of directions, whose transforms are then not done twice, unless the codes took too much memory."""
        size = self._fastfood.size
        rows = max(1, _BLOCK_CODES // (n * power * size)) * size
        while rows > _FEWEST and min(rows, len(self._fastfood)) * n * power > 4 * _CODES_MAX:
            rows //= 2
        return rows

    def prepare(self, records: Float32) -> Float32:
        """(d, n): the records' coordinates."""
        return np.ascontiguousarray(records.T)

    def codes(self, parts: slice, block: Float32) -> Int32:
        """(k, n) less the least code of each part."""
        fastfood, count, n = self._fastfood, parts.stop - parts.start, block.shape[1]
        if count * n > len(self._out):
            self._out = np.empty(count * n, np.int32)
        out, first = self._out[: count * n].reshape(count, n), parts.start // fastfood.power
        tables = (fastfood.flips, fastfood.permutations, fastfood.diagonals, fastfood.scales, fastfood.offsets)
        how = (self._lowest, fastfood.signs, fastfood.power, first)
        fastfood_loops.codes(block, *tables, *how, self._scratch[0], self._scratch[1], out)
        self.computed += out.size
        return out

    def rehashed(self, rows: slice, block: Float32, rehash: Rehash) -> Int32 | None:
        """None: the codes are written down first."""
        del rows, block, rehash
        return None
