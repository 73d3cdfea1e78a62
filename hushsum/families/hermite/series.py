"""Hermite functions: what a query reads from the hermite family's counters, and how far off that can be.

e^{−(v−u)²} = Σ_r u^r·a_r(v), a_r(v) = h_r(v)/r!, h_r(v) = H_r(v)·e^{−v²} with the physicists' Hermite polynomials
(LSQ, section 3.2 and appendix B.1; its sums start at 1 in print). Their Fourier integral bounds them everywhere:
|a_r(v)| ≤ c_r = 2^r·Γ((r+1)/2)/(√π·r!), with equality at 0 for even r.
"""

import math
from collections.abc import Callable
from itertools import product
from typing import Final

import numpy as np

from hushsum.families.hermite.grid import Float32, Float64, Int64, MomentGrid
from hushsum.families.hermite.weights import EQUAL
from hushsum.math_portable import exp

Read = Callable[[Int64, Int64, list[Float64], Float64], Float64]

#: Pairs of a query and a cell, and numbers about them, that are worked on at once.
PAIR_BLOCK_NUMBERS: Final = 1 << 18
#: The steepest slope of e^{−c²}.
STEEPEST: Final = math.sqrt(2.0 / math.e)
_FLAT: Final = 8.0  # beyond it Σ|a_r| is below e^{−30}, by Cramér's inequality
_STEPS: Final = 16  # boxes along half a cell, where the largest ‖g‖ is sought
_POINTS: Final = 256  # in each of them


def functions(v: Float64, order: int) -> Float64:
    """(order, …): a_r(v) of float64 v of any shape. a_{r+1} = (2v·a_r − 2·a_{r−1})/(r+1)."""
    values = np.empty((order, *v.shape))
    values[0] = exp(-(v * v))
    for r in range(1, order):
        values[r] = 2.0 * v * values[r - 1]
        if r > 1:
            values[r] -= 2.0 * values[r - 2]
        values[r] /= r
    return values


def sums(grid: MomentGrid, counters: Int64, queries: Float32, cutoff: float, read: Read) -> tuple[Float64, Float64]:
    """Σ g(q)·counters and ‖g(q)‖², both times s, at queries (m, d): the same bits in batches of any size.

    Every sum runs over one query's cells and moments in a fixed order. ``read`` is that of an engine, such as
    :func:`hushsum.families.hermite.grid.read`.
    """
    value, squares = np.empty(len(queries)), np.empty(len(queries))
    window = (2 * reach_of(cutoff) + 1) ** len(grid.cells)
    size = max(1, PAIR_BLOCK_NUMBERS // (window + grid.order))
    for start in range(0, len(queries), size):
        some = slice(start, start + size)
        value[some], squares[some] = _sums(grid, counters, queries[some], cutoff, read)
    return value, squares


def _sums(grid: MomentGrid, counters: Int64, queries: Float32, cutoff: float, read: Read) -> tuple[Float64, Float64]:
    cell, which, places = pairs(grid, queries, cutoff)
    tables = [functions(v, grid.order) for v in places]
    terms, norms = np.empty(len(cell)), np.empty(len(cell))
    size = max(1, PAIR_BLOCK_NUMBERS // grid.moments)
    for start in range(0, len(terms), size):
        some = slice(start, start + size)
        factors = [table[:, which[0][some], which[1 + j][some]] for j, table in enumerate(tables)]
        terms[some] = read(counters, cell[some], factors, grid.ratios)
        norms[some] = _norms(grid, factors, read)
    return by_query(which[0], terms, len(queries)), by_query(which[0], norms, len(queries))


def pairs(grid: MomentGrid, queries: Float32, cutoff: float) -> tuple[Int64, tuple[Int64, ...], list[Float64]]:
    """The cells that each of m queries (m, d) reads, query by query.

    Returns:
        Their numbers (p,); the query of each (p,) and its steps along each coordinate, d times (p,); and for each
        coordinate the places v (m, w) that these are indices of.
    """
    m, dim, reach = len(queries), len(grid.cells), reach_of(cutoff)
    near, cell = np.zeros((m, *(1,) * dim)), np.zeros((m, *(1,) * dim), np.int64)
    inside, places = np.ones_like(near, np.bool_), []
    for j, count in enumerate(grid.cells):
        index, v = steps(grid, queries, j, reach)
        shape = (m, *(v.shape[1] if i == j else 1 for i in range(dim)))
        near = near + (v * v).reshape(shape)
        inside = inside & ((index >= 0) & (index < count)).reshape(shape)
        cell = cell + index.astype(np.int64).reshape(shape) * grid.strides[j]
        places.append(v)
    which = np.nonzero(inside & (near <= cutoff * cutoff))
    return cell[which], which, places


def steps(grid: MomentGrid, queries: Float32, j: int, reach: int) -> tuple[Float64, Float64]:
    """The indices along coordinate j of the cells up to ``reach`` from each query's, and its places v relative to them.

    Both (m, 2·reach + 1). Indices may lie outside the domain.
    """
    y = (queries[:, j].astype(np.float64) - grid.lower[j]) / grid.width
    y = np.clip(y, -reach - 2.0, grid.cells[j] + reach + 2.0)  # from farther nothing is within reach either
    index = np.floor(y)[:, None] + np.arange(-reach, reach + 1)
    return index, (y[:, None] - index) - 0.5


def by_query(query: Int64, terms: Float64, count: int) -> Float64:
    """Sums of each query's terms, one addition a term, in their order: bincount never regroups them."""
    return np.bincount(query, weights=terms, minlength=count).astype(np.float64, copy=False)


def _norms(grid: MomentGrid, factors: list[Float64], read: Read) -> Float64:
    count = len(factors[0][0])
    if grid.weights != EQUAL:  # Σ_r (ratio[r]·Π_j factor_j[r_j])², read from counters of 1
        squares = [factor * factor for factor in factors]
        return read(np.ones((1, grid.moments), np.int64), np.zeros(count, np.int64), squares, grid.ratios**2)
    norm = np.ones(count)
    for factor in factors:
        norm *= _squares(factor)
    return norm


def _squares(values: Float64) -> Float64:
    total = np.zeros(values.shape[1:])
    for each in values:
        total += each * each
    return total


def kernel_error(grid: MomentGrid, cutoff: float, slack: Float64) -> float:
    """How far Σ g(q)·f(x)/s can be from the kernel, for any x in the domain and any q: the worst case of one record.

    What the records of a sketch may cost one query is usually far less: :mod:`hushsum.families.hermite.bias`.

    Within the cutoff: the d sums stop at ``order``, each within e = (½)^p·c_p of its factor (Lagrange's remainder), so
    their product is within (1 + e)^d − 1; and every counter is within ½ of s_r·f, or is not read and below ½. Both are
    worth K·(max Σ_r |a_r|/w_r)^d/(2s) at most, K of :attr:`MomentGrid.rounding_excess`. Beyond the cutoff nothing is
    read, and x is at least cutoff − √d/2 away: e^{−(cutoff − √d/2)²}.

    Args:
        grid: Of the records.
        cutoff: In units of σ.
        slack: (d,): by how much rounding may move x − q, in units of σ.
    """
    dim, p = len(grid.cells), grid.order
    truncation = (1.0 + 0.5**p * largest(p)) ** dim - 1.0
    step = 1.0 / 1024
    grid_points = np.arange(0.0, min(cutoff, _FLAT) + step, step)
    weights = grid.relative
    steepest = sum((r + 1) * largest(r + 1) / float(w) for r, w in enumerate(weights))  # a_r' = −(r+1)·a_{r+1}
    widest = float(np.abs(functions(grid_points, p) / weights[:, None]).sum(axis=0).max()) + 0.5 * step * steepest
    within = truncation + grid.rounding_excess * widest**dim / (2.0 * grid.scale)
    beyond = math.exp(-(max(0.0, cutoff - math.sqrt(dim) / 2) ** 2))
    return max(within, beyond) + STEEPEST * math.hypot(*slack.tolist()) + 2.0**-40


def norm_squared_max(grid: MomentGrid, cutoff: float) -> float:
    """No query's ‖g(q)‖², times s², is above this; what one does reach is less than a few per cent below.

    Places of a query within its cell fall into small boxes (half a cell is enough, by symmetry). In a box each cell
    that any of its points reads counts with the most that Σ_r a_r² can be there: the most on a fine grid, and what its
    steepest slope adds between two points.
    """
    dim, order, weights = len(grid.cells), grid.order, grid.relative
    reach, steps = reach_of(cutoff), np.arange(_STEPS)
    shift = 0.5 * (steps[:, None] + np.linspace(0.0, 1.0, _POINTS + 1)) / _STEPS
    v = shift - np.arange(-reach, reach + 1)[:, None, None]  # (cells, boxes, points)
    steepest = sum(2.0 * largest(r) * (r + 1) * largest(r + 1) / float(w) ** 2 for r, w in enumerate(weights))
    most = _squares(functions(v, order) / weights[:, None, None, None]).max(axis=2) + steepest * 0.25 / (
        _STEPS * _POINTS
    )
    least = np.square(np.where(v[:, :, 0] * v[:, :, -1] <= 0.0, 0.0, np.abs(v).min(axis=2)))
    total = np.zeros((_STEPS,) * dim)
    for cell in product(range(len(v)), repeat=dim):
        term, near = np.ones((1,) * dim), np.zeros((1,) * dim)
        for j, k in enumerate(cell):
            shape = tuple(_STEPS if i == j else 1 for i in range(dim))
            term, near = term * most[k].reshape(shape), near + least[k].reshape(shape)
        total += np.where(near <= cutoff * cutoff * (1.0 + 1e-9), term, 0.0)
    return float(total.max()) * grid.ratio_excess**2


def reach_of(cutoff: float) -> int:
    """How many cells on either side of a query's own have their centre within the cutoff, at most."""
    return math.floor(cutoff + 0.5)


def largest(r: int) -> float:
    """c_r, the largest |a_r| anywhere."""
    return math.exp(r * math.log(2.0) + math.lgamma((r + 1) / 2) - 0.5 * math.log(math.pi) - math.lgamma(r + 1))
