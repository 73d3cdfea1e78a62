"""Estimates of a count sketch from what its rows read, and their standard errors."""

import math

import numpy as np

from hushsum.families.family import Answer
from hushsum.families.lsh.projection import Float32, Float64, Int64
from hushsum.families.partition_rows import Rows


def mean(tables: Rows, counters: Int64, points: Float32, noise_variance: float) -> Answer:
    """The mean of the rows of level 0 at points (m, d).

    Where no two cells collide the rows are no draws, and the noise on the counters is the whole error. Else one row has
    NaN as standard error.
    """
    rows = len(tables)
    first, total, squares = tables.sums(counters, points, slice(0, rows))
    value = first + total / rows
    if tables.levels[0].direct:
        return Answer(value, np.full(len(value), math.sqrt(noise_variance / rows)), spread="noise")
    if rows == 1:
        return Answer(value, np.full(len(value), math.nan))
    return Answer(value, _std(total, squares, rows) / math.sqrt(rows), degrees=rows - 1)


def median(tables: Rows, counters: Int64, points: Float32, groups: int) -> Answer:
    """The median of the means of so many groups of rows, at least two.

    The variance of the median of normal variables is about π/2 that of their mean.
    """
    rows, means = len(tables), np.empty((groups, len(points)))
    for group in range(groups):
        some = slice(group * rows // groups, (group + 1) * rows // groups)
        first, total, _ = tables.sums(counters, points, some)
        means[group] = first + total / (some.stop - some.start)
    less = means - means[0]
    total, squares = np.add.accumulate(less)[-1], np.add.accumulate(less * less)[-1]  # in the order of the groups
    spread = _std(total, squares, groups) * math.sqrt(math.pi / 2 / groups)
    return Answer(np.median(means, axis=0), spread, spread="groups", degrees=groups - 1)


def _std(total: Float64, squares: Float64, n: int) -> Float64:
    """Of n values, from the sums of their differences to one of them and of the squares of these."""
    return np.asarray(np.sqrt(np.maximum(squares - total * total / n, 0.0) / (n - 1)), np.float64)
