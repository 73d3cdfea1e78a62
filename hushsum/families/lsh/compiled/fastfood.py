"""Codes of Walsh–Hadamard directions in compiled loops.

Nothing is checked in the loops. Records go through all stages a tile at a time, which stays in a core's cache; loops
over a whole tile have a length that the compiler knows. Two or three stages are done at once, in registers, with the
same sums and differences as one after the other; without fastmath no product is fused with a sum.
"""

from typing import Final, NamedTuple

import numpy as np

from hushsum.compiled import compiled, inlined
from hushsum.families.lsh.arrays import Float32, Float64, Int32
from hushsum.families.lsh.codes.fastfood import Fastfood
from hushsum.families.lsh.placement import Placement

#: Records of a tile.
TILE: Final = 128
_BLOCK_NUMBERS: Final = 1 << 18  # of u, for a block of records
_ROWS: Final = 128
_CODES_MAX: Final = 1 << 22


@inlined
def _eight(x: Float32, j: int, h: int, n: int) -> None:
    """Stages h, h/2 and h/4 of the eight rows from j on."""
    q, e = h // 2, h // 4
    for k in range(n):
        a, b, c, d = x[j, k], x[j + e, k], x[j + q, k], x[j + q + e, k]
        s, t, u, v = x[j + h, k], x[j + h + e, k], x[j + h + q, k], x[j + h + q + e, k]
        a, b, c, d, s, t, u, v = a + s, b + t, c + u, d + v, a - s, b - t, c - u, d - v
        a, b, c, d, s, t, u, v = a + c, b + d, a - c, b - d, s + u, t + v, s - u, t - v
        x[j, k], x[j + e, k], x[j + q, k], x[j + q + e, k] = a + b, a - b, c + d, c - d
        x[j + h, k], x[j + h + e, k], x[j + h + q, k], x[j + h + q + e, k] = s + t, s - t, u + v, u - v


@inlined
def _transform(x: Float32, size: int, n: int) -> None:
    """H of n columns of the first ``size`` rows, in place."""
    h = size // 2
    while h >= 4:
        for i in range(0, size, 2 * h):
            for j in range(i, i + h // 4):
                _eight(x, j, h, n)
        h //= 8
    if h == 2:
        for i in range(0, size, 4):
            for k in range(n):
                a, b, c, d = x[i, k], x[i + 1, k], x[i + 2, k], x[i + 3, k]
                a, b, c, d = a + c, b + d, a - c, b - d
                x[i, k], x[i + 1, k], x[i + 2, k], x[i + 3, k] = a + b, a - b, c + d, c - d
    if h == 1:
        for i in range(0, size, 2):
            for k in range(n):
                a, b = x[i, k], x[i + 1, k]
                x[i, k], x[i + 1, k] = a + b, a - b


@compiled
def spread_out(columns: Float32, flips: Float32, out: Float32) -> None:
    """u of columns (d, n) into (tiles, D, TILE), tile after tile."""
    d, n = columns.shape
    for tile in range(len(out)):
        start, one = tile * TILE, out[tile]
        some = min(TILE, n - start)
        for j in range(d):
            sign = flips[j]
            for k in range(some):
                one[j, k] = sign * columns[j, start + k]
        one[d:] = 0
        if some == TILE:
            _transform(one, len(one), TILE)
        else:
            _transform(one, len(one), some)


@inlined
def _four(u: Float32, permutation: Int32, diagonal: Float32, j: int, h: int, n: int, out: Float32) -> None:
    """Row j of v after the first two stages, the half that leads to the first rows."""
    q = h // 2
    a, b, c, d = u[permutation[j]], u[permutation[j + q]], u[permutation[j + h]], u[permutation[j + h + q]]
    s, t, v, w = diagonal[j], diagonal[j + q], diagonal[j + h], diagonal[j + h + q]
    row = out[j]
    for k in range(n):
        row[k] = (s * a[k] + v * c[k]) + (t * b[k] + w * d[k])


@inlined
def _rotate(u: Float32, permutation: Int32, diagonal: Float32, height: int, n: int, two: Float32) -> None:
    """p of a block into the first ``height`` rows of ``two``: of the first stages, the half that leads there."""
    whole = len(diagonal)
    if whole >= 4 * height:
        for j in range(whole // 4):
            _four(u, permutation, diagonal, j, whole // 2, n, two)
        whole //= 4
    else:
        for j in range(whole):
            source, factor = permutation[j], diagonal[j]
            for k in range(n):
                two[j, k] = factor * u[source, k]
    h = whole // 2
    while h >= height:
        for j in range(h):
            for k in range(n):
                two[j, k] += two[j + h, k]
        h //= 2
    _transform(two, height, n)


@inlined
def _floors(sums: Float32, scale: float, offset: float, lowest: int, n: int, out: Int32) -> None:
    for k in range(n):
        out[k] = np.int32(np.floor(np.float64(sums[k]) * scale + offset)) - lowest


@inlined
def _signs(sums: Float32, lowest: int, n: int, out: Int32) -> None:
    for k in range(n):
        out[k] = np.int32(sums[k] >= 0) - lowest


@compiled
def rotated_codes(  # noqa: PLR0913, PLR0917 -- flat: the compiler knows arrays and numbers, no structures
    tiles: Float32,
    permutations: Int32,
    diagonals: Float32,
    scales: Float32,
    offsets: Float64,
    lowest: Int32,
    signs: bool,  # noqa: FBT001 -- compiled loops take no keywords
    power: int,
    height: int,
    first: int,
    two: Float32,
    out: Int32,
) -> None:
    """Codes (k·p, n), each less the least of its part, of k rows from ``first`` on, for u (tiles, D, TILE).

    ``two`` (D, TILE) is scratch.
    """
    n, last = out.shape[1], first + len(out) // power
    for block in range(first // height * power, (last - 1) // height * power + power):
        top = block // power * height
        for tile in range(len(tiles)):
            start = tile * TILE
            some = min(TILE, n - start)
            if some == TILE:
                _rotate(tiles[tile], permutations[block], diagonals[block], height, TILE, two)
            else:
                _rotate(tiles[tile], permutations[block], diagonals[block], height, some, two)
            for j in range(max(0, first - top), min(height, last - top)):
                part = (top + j) * power + block % power
                row = out[part - first * power, start : start + some]
                if signs:
                    _signs(two[j], lowest[part], some, row)
                else:
                    _floors(two[j], np.float64(scales[part]), offsets[part], lowest[part], some, row)


class FastfoodBlock(NamedTuple):
    """u of n records, as (tiles, D, TILE)."""

    tiles: Float32
    n: int


class CompiledFastfood:
    """See :class:`~hushsum.families.lsh.placement.CompiledCoder`."""

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

    def prepare(self, records: Float32) -> FastfoodBlock:
        """u of the definition."""
        tiles = np.empty((-(-len(records) // TILE), self._fastfood.size, TILE), np.float32)
        spread_out(np.ascontiguousarray(records.T), self._fastfood.flips, tiles)
        return FastfoodBlock(tiles, len(records))

    def codes(self, parts: slice, block: FastfoodBlock) -> Int32:
        """(k, n) less the least code of each part."""
        fastfood, count, n = self._fastfood, parts.stop - parts.start, block.n
        if count * n > len(self._out):
            self._out = np.empty(count * n, np.int32)
        out, first = self._out[: count * n].reshape(count, n), parts.start // fastfood.power
        tables = (fastfood.permutations, fastfood.diagonals, fastfood.scales, fastfood.offsets, self._lowest)
        how = (fastfood.signs, fastfood.power, fastfood.height, first)
        rotated_codes(block.tiles, *tables, *how, self._scratch, out)
        self.computed += out.size
        return out

    def buckets(self, rows: slice, block: FastfoodBlock, placement: Placement, width: int) -> None:
        """None: the codes are written down first."""
        del rows, block, placement, width
