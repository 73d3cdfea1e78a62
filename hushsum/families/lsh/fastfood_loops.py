"""Compiled loops of Walsh–Hadamard directions; :mod:`hushsum.families.lsh.fastfood_fast` alone calls them.

Nothing is checked in the loops. Records go through all stages a tile at a time, which stays in a core's cache; loops
over a whole tile have a length that the compiler knows. Three stages are done at once, in registers, with the same sums
and differences as one after the other.
"""

from typing import Final

import numpy as np

from hushsum.acceleration import compiled, inlined
from hushsum.families.lsh.projection import Float32, Float64, Int32

#: Records of a tile.
TILE: Final = 128


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


@inlined
def _rotate(  # noqa: PLR0913, PLR0917 -- flat: the compiler knows arrays and numbers, no structures
    columns: Float32,
    start: int,
    flips: Float32,
    permutation: Int32,
    diagonal: Float32,
    low: int,
    size: int,
    one: Float32,
    two: Float32,
    n: int,
) -> None:
    """p of rows ``low`` to ``low + size`` of a block into ``two``, for n records from ``start`` on.

    ``size`` is a power of two that divides ``low``: of the first stages only the half that leads there is computed.
    """
    d, whole = len(columns), len(flips)
    for j in range(d):
        sign = flips[j]
        for k in range(n):
            one[j, k] = sign * columns[j, start + k]
    for j in range(d, whole):
        for k in range(n):
            one[j, k] = 0
    _transform(one, whole, n)
    for j in range(whole):
        source, factor = permutation[j], diagonal[j]
        for k in range(n):
            two[j, k] = factor * one[source, k]
    h = whole // 2
    while h >= size:
        sign = np.float32(-1 if low & h else 1)
        for j in range(h):
            for k in range(n):
                two[j, k] += sign * two[j + h, k]
        h //= 2
    _transform(two, size, n)


@inlined
def _floors(sums: Float32, scale: float, offset: float, lowest: int, n: int, out: Int32) -> None:
    for k in range(n):
        out[k] = np.int32(np.floor(np.float64(sums[k]) * scale + offset)) - lowest


@inlined
def _signs(sums: Float32, lowest: int, n: int, out: Int32) -> None:
    for k in range(n):
        out[k] = np.int32(sums[k] >= 0) - lowest


@compiled
def codes(  # noqa: PLR0913, PLR0917 -- flat: see above
    columns: Float32,
    flips: Float32,
    permutations: Int32,
    diagonals: Float32,
    scales: Float32,
    offsets: Float64,
    lowest: Int32,
    signs: bool,
    power: int,
    first: int,
    one: Float32,
    two: Float32,
    out: Int32,
) -> None:
    """Codes (k·p, n), each less the least of its part, of k rows from ``first`` on, for columns (d, n).

    ``one`` and ``two`` (D, TILE) are scratch.
    """
    whole, n, last = flips.shape[1], columns.shape[1], first + len(out) // power
    for block in range(first // whole * power, (last - 1) // whole * power + power):
        top = block // power * whole
        low, high, size = max(0, first - top), min(whole, last - top), whole
        while size > 1 and low // (size // 2) == (high - 1) // (size // 2):
            size //= 2
        base = low // size * size
        tables = (flips[block], permutations[block], diagonals[block], base, size, one, two)
        for start in range(0, n, TILE):
            some = min(TILE, n - start)
            if some == TILE:
                _rotate(columns, start, *tables, TILE)
            else:
                _rotate(columns, start, *tables, some)
            for j in range(low, high):
                part = (top + j) * power + block % power
                sums, row = two[j - base], out[part - first * power, start : start + some]
                if signs:
                    _signs(sums, lowest[part], some, row)
                else:
                    _floors(sums, np.float64(scales[part]), offsets[part], lowest[part], some, row)
