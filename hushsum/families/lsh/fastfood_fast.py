"""Codes of Walsh–Hadamard directions in compiled loops."""

from typing import Final, NamedTuple

import numpy as np

from hushsum.families.lsh import fastfood_loops
from hushsum.families.lsh.arrays import Float32, Int32
from hushsum.families.lsh.fastfood import Fastfood
from hushsum.families.lsh.fastfood_loops import TILE
from hushsum.families.lsh.placement import Rehash

_BLOCK_NUMBERS: Final = 1 << 18  # of u, for a block of records
_ROWS: Final = 128
_CODES_MAX: Final = 1 << 22


class Block(NamedTuple):
    """u of n records, as (tiles, D, TILE)."""

    tiles: Float32
    n: int


class FastFastfood:
    """See :class:`~hushsum.families.lsh.coders.FastCoder`."""

    flagged = 0

    def __init__(self, fastfood: Fastfood, lowest: Int32) -> None:
        self.computed = 0
        self.block_records = max(TILE, min(1024, _BLOCK_NUMBERS // fastfood.size))
        self._fastfood, self._lowest = fastfood, lowest
        self._out: Int32 = np.empty(0, np.int32)
        self._scratch: Float32 = np.empty((fastfood.size, TILE), np.float32)

    def rows_at_once(self, n: int, power: int) -> int:
        """Whole blocks of rows, whose transforms are then not done twice, unless codes or counters took too much."""
        height = self._fastfood.height
        return min(max(1, _ROWS // height) * height, _CODES_MAX // (n * power))

    def prepare(self, records: Float32) -> Block:
        """u of the definition."""
        tiles = np.empty((-(-len(records) // TILE), self._fastfood.size, TILE), np.float32)
        fastfood_loops.spread(np.ascontiguousarray(records.T), self._fastfood.flips, tiles)
        return Block(tiles, len(records))

    def codes(self, parts: slice, block: Block) -> Int32:
        """(k, n) less the least code of each part."""
        fastfood, count, n = self._fastfood, parts.stop - parts.start, block.n
        if count * n > len(self._out):
            self._out = np.empty(count * n, np.int32)
        out, first = self._out[: count * n].reshape(count, n), parts.start // fastfood.power
        tables = (fastfood.permutations, fastfood.diagonals, fastfood.scales, fastfood.offsets, self._lowest)
        how = (fastfood.signs, fastfood.power, fastfood.height, first)
        fastfood_loops.codes(block.tiles, *tables, *how, self._scratch, out)
        self.computed += out.size
        return out

    def rehashed(self, rows: slice, block: Block, rehash: Rehash) -> Int32 | None:
        """None: the codes are written down first."""
        del rows, block, rehash
        return None
