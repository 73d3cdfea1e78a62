"""How far the mean of an answer of the hermite family can be from Σ k, from the released counters alone.

The moment r = 0 of a cell is s for each of its records, so it tells how many lie in the cell, up to noise; negative
numbers are taken for 0, which can only enlarge the mean of the bound. Each of them may lie anywhere in its cell. With v
the place of the query relative to a cell's centre and u that of a record, the bound is the sum of

1. what another series would answer, less what was answered: the kernel's Chebyshev series in 2u, cut at the same order,
   e^{−(v−u)²} ≈ Σ_{k < order} b_k(v)·T_k(2u), reads the same moments and is many times closer on |u| ≤ ½ than Taylor's;
2. what that series leaves out, for each record of a cell within the cutoff: Π_j (K_j + R_j) − Π_j K_j, where
   K_j = max e^{−(v_j−u)²} and R_j = Σ_{k ≥ order} |b_k(v_j)|, as |T_k| ≤ 1;
3. the fixed point of every moment but the first, which has no error: ½/s_r times the series' weights of all others, a
   product over coordinates with K·½/s·Π_j 1/w_{r_j} in place of ½/s_r (:attr:`MomentGrid.rounding_excess`), which
   covers moments that are not read, too;
4. the kernel of each record of a cell beyond the cutoff, which is not read: Π_j K_j.

Coordinates are rounded to float32, which moves a record by a slack at most: |u| ≤ ½ + slack in K_j, and R_j has
that slack times the slope of e^{−c²} besides.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from hushsum.families.hermite.grid import Float32, Float64, Int64, MomentGrid
from hushsum.families.hermite.series import (
    PAIR_BLOCK_NUMBERS,
    Read,
    by_query,
    functions,
    largest,
    pairs,
    reach_of,
    steps,
)
from hushsum.math_portable import exp

_FAR: Final = 6  # cells; a record farther than that has a kernel below 2⁻⁵¹
_MORE: Final = 8  # terms of Taylor's series beyond the order, for a tail far below what the first of them leaves out
_ROUNDING: Final = 2.0**-40  # of float64, a record
_STEEPEST_AT: Final = math.sqrt(0.5)  # where e^{−c²} is steepest


def bias(
    grid: MomentGrid, counters: Int64, queries: Float32, cutoff: float, magnitude: Float64, value: Float64, read: Read
) -> Float64:
    """The bound (m,) at queries (m, d), times s: the same bits in batches of any size and with either engine.

    Records that are farther than 6σ along a coordinate are left out where they bring no more than 2⁻⁴⁸ each.

    Args:
        grid: Of the records.
        counters: (cells, order^d), noised.
        queries: In the unit of the grid.
        cutoff: In units of σ.
        magnitude: (d,): the largest absolute coordinate of a record.
        value: (m,): the answers Σ g·counters.
        read: That of an engine, such as :func:`hushsum.families.hermite.grid.read`.
    """
    reach = max(reach_of(cutoff), _FAR)
    nearby = 2.0 * magnitude + (reach + 2) * grid.width  # of a record and a query that sees it, together
    slack = 2.0**-24 * nearby / grid.width + 2.0**-50 * (np.array(grid.cells) + reach + 2.0)
    bound = np.empty(len(queries))
    size = max(1, PAIR_BLOCK_NUMBERS // (2 * reach + 1) ** len(grid.cells))
    for start in range(0, len(queries), size):
        some = slice(start, start + size)
        bound[some] = _all_cells(grid, counters, queries[some], reach, slack, read)
        bound[some] += _cells_read(grid, counters, queries[some], cutoff, slack, value[some], read)
    outside = math.exp(-(max(0.0, reach - float(slack.max())) ** 2))
    if outside > 2.0**-48:
        bound += outside * float(np.maximum(counters[:, 0], 0).sum(dtype=np.float64))
    return bound


def _all_cells(grid: MomentGrid, counters: Int64, queries: Float32, reach: int, slack: Float64, read: Read) -> Float64:
    """Π K_j of every record, as if nothing were read; a row of numbers of records is read like moments."""
    m, dim = len(queries), len(grid.cells)
    cell, kernels = np.zeros((m, *(1,) * dim), np.int64), []
    for j, spare in enumerate(slack.tolist()):
        index, v = steps(grid, queries, j, reach)
        inside = np.minimum(np.maximum(index, 0.0), grid.cells[j] - 1.0)  # beyond the domain: any cell, times 0
        kernels.append(np.where(index == inside, _kernel(v, spare), 0.0).T)
        shape = (m, *(v.shape[1] if i == j else 1 for i in range(dim)))
        cell = cell + (inside.astype(np.int64) * grid.strides[j]).reshape(shape)
    counts = np.maximum(counters[:, 0][cell.reshape(m, -1)], 0)
    return read(counts, np.arange(m), kernels, np.ones(counts.shape[1])) * (1.0 + _ROUNDING)


def _cells_read(
    grid: MomentGrid, counters: Int64, queries: Float32, cutoff: float, slack: Float64, value: Float64, read: Read
) -> Float64:
    """What cells within the cutoff bring in place of their Π K_j."""
    cell, which, places = pairs(grid, queries, cutoff)
    tables = [_tables(v, grid.relative, spare) for v, spare in zip(places, slack.tolist(), strict=True)]
    series, kernel, reached, sizes, first = zip(*tables, strict=True)
    read_there, each = np.empty(len(cell)), np.empty(len(cell))
    size = max(1, PAIR_BLOCK_NUMBERS // grid.moments)
    for start in range(0, len(cell), size):
        some = slice(start, start + size)
        at = [(which[0][some], which[1 + j][some]) for j in range(len(places))]
        factors = [table[:, *w] for table, w in zip(series, at, strict=True)]
        read_there[some] = read(counters, cell[some], factors, grid.ratios)
        half = grid.rounding_excess * 0.5 / grid.scale
        rounding = (_product(sizes, at) - _product(first, at)) * half + _ROUNDING
        error = (_product(reached, at) - 2.0 * _product(kernel, at)) + rounding
        each[some] = np.maximum(counters[:, 0][cell[some]], 0) * error
    m = len(queries)
    return np.abs(by_query(which[0], read_there, m) - value) + by_query(which[0], each, m)


def _product(factors: Sequence[Float64], at: list[tuple[Int64, Int64]]) -> Float64:
    total = np.ones(len(at[0][0]))
    for factor, where in zip(factors, at, strict=True):
        total *= factor[where]
    return total


def _tables(v: Float64, relative: Float64, slack: float) -> tuple[Float64, ...]:
    """Of places v along one coordinate: the series' weights (order, …), K, K + R, the weights' sizes, and the first.

    The sizes are divided by the relative weights w_r (order,), of which the first is 1.
    """
    weights, left_out = _chebyshev(v, len(relative))
    kernel, sizes = _kernel(v, slack), np.abs(weights)
    total = np.zeros_like(v)
    for each, w in zip(sizes, relative.tolist(), strict=True):
        total += each / w
    return weights, kernel, kernel + (left_out + slack * _slope(v, slack)), total, sizes[0]


def _kernel(v: Float64, slack: float) -> Float64:
    """K: the largest e^{−c²} with |c − v| ≤ ½ + slack."""
    least = np.maximum(np.abs(v) - (0.5 + slack), 0.0)
    return exp(-(least * least))


def _slope(v: Float64, slack: float) -> Float64:
    """The steepest that e^{−c²} is where |c − v| ≤ ½ + slack."""
    size = np.abs(v)
    at = np.minimum(np.maximum(size - (0.5 + slack), _STEEPEST_AT), size + (0.5 + slack))
    return 2.0 * at * exp(-(at * at))


def _chebyshev(v: Float64, order: int) -> tuple[Float64, Float64]:
    """The weights (order, …) of moments that the Chebyshev series gives, and the most (…) that it leaves out.

    u^r = Σ_k c_{rk}·T_k(2u), c_{rk} = 2^{1−2r}·C(r, (r−k)/2) for k ≡ r (mod 2), half as much for k = 0; so
    b_k = Σ_r c_{rk}·a_r. Back to powers of u by T_{k+1}(2u) = 4u·T_k(2u) − T_{k−1}(2u).
    """
    terms = order + _MORE
    taylor, tail = functions(v, terms), 2.0 * 0.5**terms * largest(terms)  # terms are less than half of the one before
    left_out, weights = np.full_like(v, tail), np.zeros((order, *v.shape))
    before, power = np.zeros(order + 1), np.eye(1, order + 1)[0]
    for k in range(terms):
        b = np.zeros_like(v)
        for r in range(k, terms, 2):
            b += (math.comb(r, (r - k) // 2) * 2.0 ** (1 - 2 * r) * (0.5 if k == 0 else 1.0)) * taylor[r]
        if k >= order:
            left_out += np.abs(b)
            continue
        for r in range(k % 2, k + 1, 2):
            weights[r] += float(power[r]) * b
        rise = 2.0 if k == 0 else 4.0
        before, power = power, rise * np.append(0.0, power[:-1]) - before
    return weights, left_out
