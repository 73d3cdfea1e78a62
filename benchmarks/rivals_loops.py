"""Bare compiled loops of the arithmetic of a family: what a good programmer would write with nothing else to mind.

They may fuse and regroup operations (fastmath), check nothing, and write to memory that is used again.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]

#: Permutations side by side in :func:`least_products`: with 32 the compiler takes no vectors.
LANES = 64
_TILE = 1024
_Function = TypeVar("_Function", bound=Callable[..., Any])
_LAST = np.uint32(2**32 - 1)


def _compiled(function: _Function) -> _Function:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": True, "cache": True}
    loop: _Function = numba.njit(**options)(function)
    return loop


@_compiled
def mixed_bins(
    columns: Float32, inverses: Float32, offsets: Float64, multipliers: UInt64, shift: int, h: UInt64, out: UInt32
) -> None:
    """Random binning of columns (d, n): multiply, floor, mix into 64 bits a coordinate and row; buckets (k, n)."""
    for k in range(len(out)):
        h[:] = multipliers[k, 0]
        for j in range(len(columns)):
            a, b, m, x = np.float64(inverses[k, j]), offsets[k, j], multipliers[k, j + 1], columns[j]
            for i in range(len(h)):
                h[i] += m * np.uint64(np.uint32(np.int32(np.floor(a * np.float64(x[i]) + b))))
        row = out[k]
        for i in range(len(h)):
            row[i] = np.uint32(h[i] >> np.uint64(shift))


@_compiled
def mixed_bin_pairs(
    columns: Float32, inverses: Float32, offsets: Float64, multipliers: UInt64, shift: int, h: UInt64, out: UInt32
) -> None:
    """The same, two coordinates at a time (the last one alone where d is odd)."""
    d = len(columns)
    for k in range(len(out)):
        h[:] = multipliers[k, 0]
        for j in range(0, d - 1, 2):
            a, b, m, x = np.float64(inverses[k, j]), offsets[k, j], multipliers[k, j + 1], columns[j]
            a2, b2, m2, x2 = np.float64(inverses[k, j + 1]), offsets[k, j + 1], multipliers[k, j + 2], columns[j + 1]
            for i in range(len(h)):
                c = np.uint32(np.int32(np.floor(a * np.float64(x[i]) + b)))
                c2 = np.uint32(np.int32(np.floor(a2 * np.float64(x2[i]) + b2)))
                h[i] += m * np.uint64(c) + m2 * np.uint64(c2)
        if d % 2:
            a, b, m, x = np.float64(inverses[k, d - 1]), offsets[k, d - 1], multipliers[k, d], columns[d - 1]
            for i in range(len(h)):
                h[i] += m * np.uint64(np.uint32(np.int32(np.floor(a * np.float64(x[i]) + b))))
        row = out[k]
        for i in range(len(h)):
            row[i] = np.uint32(h[i] >> np.uint64(shift))


@_compiled
def narrow_bins(
    columns: Float32, inverses: Float32, offsets: Float32, multipliers: UInt32, shift: int, h: UInt32, out: UInt32
) -> None:
    """The same in 32 bits throughout: codes depend on rounding, and the mix is no strongly universal hash."""
    for k in range(len(out)):
        h[:] = multipliers[k, 0]
        for j in range(len(columns)):
            a, b, m, x = inverses[k, j], offsets[k, j], multipliers[k, j + 1], columns[j]
            for i in range(len(h)):
                h[i] += m * np.uint32(np.int32(np.floor(a * x[i] + b)))
        row = out[k]
        for i in range(len(h)):
            row[i] = h[i] >> np.uint32(shift)


@_compiled
def least_products(starts: Int64, ids: UInt32, multipliers: UInt32, out: UInt32) -> None:
    """Multiply and min, an id of n sets and permutation each: the least products (n, k), k a multiple of 64."""
    for first in range(0, len(multipliers), LANES):
        m = multipliers[first : first + LANES]
        least = np.empty(LANES, np.uint32)
        for i in range(len(starts) - 1):
            for lane in range(LANES):
                least[lane] = _LAST
            for j in range(starts[i], starts[i + 1]):
                x = np.uint32(ids[np.uint64(j)])
                for lane in range(LANES):
                    least[lane] = min(least[lane], np.uint32(x * m[lane]))
            row = out[i]
            for lane in range(LANES):
                row[first + lane] = least[lane]


@_compiled
def least_mixed(starts: Int64, ids: UInt32, keys: UInt32, first_m: UInt32, second_m: UInt32, out: UInt32) -> None:
    """The same with the whole of a permutation's arithmetic: xor, multiply, fold, multiply, min."""
    for first in range(0, len(keys), LANES):
        key, m, m2 = keys[first : first + LANES], first_m[first : first + LANES], second_m[first : first + LANES]
        least = np.empty(LANES, np.uint32)
        for i in range(len(starts) - 1):
            for lane in range(LANES):
                least[lane] = _LAST
            for j in range(starts[i], starts[i + 1]):
                x = np.uint32(ids[np.uint64(j)])
                for lane in range(LANES):
                    u = np.uint32(np.uint32(x ^ key[lane]) * m[lane])
                    least[lane] = min(least[lane], np.uint32((u ^ np.uint32(u >> np.uint32(16))) * m2[lane]))
            row = out[i]
            for lane in range(LANES):
                row[first + lane] = least[lane]


@_compiled
def add_moments(
    records: Float32, lower: Float64, width: float, strides: Int64, order: int, scale: float, counters: Int64
) -> None:
    """Cells and rounded moments of records (n, 2)."""
    first, second, inverse = np.empty(order), np.empty(order), 1.0 / width
    for i in range(len(records)):
        x, y = (records[i, 0] - lower[0]) * inverse, (records[i, 1] - lower[1]) * inverse
        fx, fy = np.floor(x), np.floor(y)
        row = counters[np.int64(fx) * strides[0] + np.int64(fy) * strides[1]]
        p, q, u, v = scale, 1.0, x - fx - 0.5, y - fy - 0.5
        for t in range(order):
            first[t], second[t] = p, q
            p *= u
            q *= v
        for r in range(order):
            for s in range(order):
                row[r * order + s] += np.int64(np.rint(first[r] * second[s]))


@_compiled
def read_moments(  # noqa: PLR0913, PLR0917 -- flat, as compiled loops are
    queries: Float32,
    lower: Float64,
    width: float,
    counts: Int64,
    order: int,
    cutoff: float,
    counters: Int64,
    out: Float64,
) -> None:
    """Hermite functions of queries (m, 2) about each cell within the cutoff, times its moments."""
    reach = np.int64(np.floor(cutoff + 0.5))
    cells = 2 * reach + 1
    tables, places = np.empty((2, cells, order)), np.empty((2, cells))
    for i in range(len(queries)):
        for j in range(2):
            y = (queries[i, j] - lower[j]) / width
            base = np.floor(y)
            for c in range(cells):
                v = y - (base + (c - reach)) - 0.5
                places[j, c] = v
                a, b = np.exp(-v * v), 0.0
                for r in range(order):
                    tables[j, c, r] = a
                    a, b = (2.0 * v * a - 2.0 * b) / (r + 1), a
        bx = np.int64(np.floor((queries[i, 0] - lower[0]) / width)) - reach
        by = np.int64(np.floor((queries[i, 1] - lower[1]) / width)) - reach
        total = 0.0
        for c in range(cells):
            for e in range(cells):
                x, y = bx + c, by + e
                near = places[0, c] ** 2 + places[1, e] ** 2 <= cutoff * cutoff
                if near and 0 <= x < counts[0] and 0 <= y < counts[1]:
                    row = counters[x * counts[1] + y]
                    for r in range(order):
                        part = 0.0
                        for s in range(order):
                            part += row[r * order + s] * tables[1, e, s]
                        total += part * tables[0, c, r]
        out[i] = total


@_compiled
def add_signs(words: UInt32, places: UInt64, signs: UInt64, shift: int, counters: Int64) -> None:
    """Count sketch of cells (p, n): two hashes a row, and a signed increment."""
    h, g = np.empty(_TILE, np.uint64), np.empty(_TILE, np.uint64)
    for k in range(len(counters)):
        row = counters[k]
        for start in range(0, words.shape[1], _TILE):
            count = min(_TILE, words.shape[1] - start)
            h[:], g[:] = places[k, 0], signs[k, 0]
            for part in range(len(words)):
                m, s, line = places[k, part + 1], signs[k, part + 1], words[part, start : start + count]
                for i in range(count):
                    h[i] += m * np.uint64(line[i])
                    g[i] += s * np.uint64(line[i])
            for i in range(count):
                row[h[i] >> np.uint64(shift)] += 1 - 2 * np.int64(g[i] >> np.uint64(63))


@_compiled
def read_signs(words: UInt32, places: UInt64, signs: UInt64, shift: int, counters: Int64, sums: Int64) -> None:
    """The sum over rows of sign times counter, at cells (p, n)."""
    h, g = np.empty(_TILE, np.uint64), np.empty(_TILE, np.uint64)
    for k in range(len(counters)):
        row = counters[k]
        for start in range(0, words.shape[1], _TILE):
            count = min(_TILE, words.shape[1] - start)
            h[:], g[:] = places[k, 0], signs[k, 0]
            for part in range(len(words)):
                m, s, line = places[k, part + 1], signs[k, part + 1], words[part, start : start + count]
                for i in range(count):
                    h[i] += m * np.uint64(line[i])
                    g[i] += s * np.uint64(line[i])
            for i in range(count):
                sums[start + i] += row[h[i] >> np.uint64(shift)] * (1 - 2 * np.int64(g[i] >> np.uint64(63)))


@_compiled
def grid_words(records: Float32, lower: Float64, side: float, words: UInt32) -> None:
    """Cells (d, n) of records (n, d)."""
    inverse = 1.0 / side
    for j in range(len(words)):
        for i in range(len(records)):
            words[j, i] = np.uint32(np.int64(np.floor((records[i, j] - lower[j]) * inverse)))


@_compiled
def rotate(columns: Float32, signs: Float32) -> None:
    """Three rounds of random signs (3, d) and a fast Walsh–Hadamard transform of columns (d, n), d from 4, in place.

    Two levels of the transform at a time: it waits for memory, not for additions.
    """
    d, n = columns.shape
    for turn in range(len(signs)):
        s = signs[turn]
        for j in range(0, d, 4):
            s0, s1, s2, s3 = s[j], s[j + 1], s[j + 2], s[j + 3]
            x, y, z, w = columns[j], columns[j + 1], columns[j + 2], columns[j + 3]
            for i in range(n):
                a, b, e, f = s0 * x[i] + s1 * y[i], s0 * x[i] - s1 * y[i], s2 * z[i] + s3 * w[i], s2 * z[i] - s3 * w[i]
                x[i], y[i], z[i], w[i] = a + e, b + f, a - e, b - f
        half = 4
        while half < d:
            for start in range(0, d, 4 * half if 2 * half < d else 2 * half):
                for j in range(start, start + half):
                    x, y = columns[j], columns[j + half]
                    if 2 * half < d:
                        z, w = columns[j + 2 * half], columns[j + 3 * half]
                        for i in range(n):
                            a, b, e, f = x[i] + y[i], x[i] - y[i], z[i] + w[i], z[i] - w[i]
                            x[i], y[i], z[i], w[i] = a + e, b + f, a - e, b - f
                    else:
                        for i in range(n):
                            a, b = x[i], y[i]
                            x[i], y[i] = a + b, a - b
            half *= 4
