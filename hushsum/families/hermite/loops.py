"""Compiled loops: the same integers and bits as the functions of these names in :mod:`hushsum.families.hermite.grid`.

No product is contracted with a sum: the compiler may do so only where fastmath allows it.
"""

import numpy as np

from hushsum.compiled import compiled
from hushsum.families.hermite.grid import Float64, Int64, MomentGrid


def add(grid: MomentGrid, counters: Int64, cells: Int64, places: Float64) -> None:
    """Adds the moments of located records to the rows ``cells`` of counters, C-contiguous int64, in place."""
    _add(counters, cells, places, grid.order, grid.scales.astype(np.float64))


def read(counters: Int64, cells: Int64, factors: list[Float64], ratios: Float64) -> Float64:
    """Σ_r counters[cell, r]·ratio[r]·Π_j factor_j[r_j] of p cells: d factors (order, p) to (p,), float64."""
    terms = np.empty(len(cells))
    _read(counters, cells, np.ascontiguousarray(np.stack(factors).transpose(2, 0, 1)), ratios, terms)
    return terms


def warm_up() -> None:
    """Compiles the loops, or loads what was compiled before."""
    grid, counters, cells = MomentGrid(np.zeros(1), 1.0, (1,), 1, 1), np.zeros((1, 1), np.int64), np.zeros(1, np.int64)
    add(grid, counters, cells, np.zeros((1, 1)))
    read(counters, cells, [np.zeros((1, 1))], np.ones(1))


@compiled
def _add(counters: Int64, cells: Int64, places: Float64, order: int, scales: Float64) -> None:
    # Two buffers hold u₁^r₁, then u₁^r₁·u₂^r₂; the last coordinate's powers are multiplied on the way out.
    dim, moments = len(places), counters.shape[1]
    powers, prefix, wider = np.empty(order), np.empty(moments), np.empty(moments)
    for i in range(len(cells)):
        row = counters[cells[i]]
        count, prefix[0] = 1, 1.0
        for j in range(dim):
            power = 1.0
            for t in range(order):
                powers[t] = power
                power *= places[j, i]
            if j == dim - 1:
                break
            for k in range(count):
                for t in range(order):
                    wider[k * order + t] = prefix[k] * powers[t]
            count *= order
            prefix, wider = wider, prefix
        for k in range(count):
            for t in range(order):
                row[k * order + t] += np.int64(np.rint(scales[k * order + t] * (prefix[k] * powers[t])))


@compiled
def _read(counters: Int64, cells: Int64, factors: Float64, ratios: Float64, terms: Float64) -> None:
    moments, dim, order = counters.shape[1], factors.shape[1], factors.shape[2]
    parts = np.empty(moments)
    for i in range(len(cells)):
        row, count = counters[cells[i]], moments
        for k in range(moments):
            parts[k] = row[k] * ratios[k]
        for j in range(dim):
            factor = factors[i, j]
            count //= order
            for k in range(count):
                parts[k] *= factor[0]
            for r in range(1, order):
                for k in range(count):
                    parts[k] += parts[r * count + k] * factor[r]
        terms[i] = parts[0]
