"""Estimates of a count sketch from what its rows read, and their standard errors."""

import math
from functools import partial

import numpy as np

from hushsum.families.family import Answer
from hushsum.families.lsh.arrays import Float32, Float64, Int64
from hushsum.families.medians import means_of_groups, median_of_means
from hushsum.families.partition.rows import PartitionRows


def mean(tables: PartitionRows, counters: Int64, points: Float32, noise_variance: float) -> Answer:
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


def median(tables: PartitionRows, counters: Int64, points: Float32, groups: int) -> Answer:
    """The median of the means of so many groups of rows."""
    rows = len(tables)
    means = means_of_groups(rows, groups, partial(tables.sums, counters, points))
    value, error = median_of_means(means, rows // groups)
    return Answer(value, error, spread="groups", degrees=max(1, groups - 1))


def _std(total: Float64, squares: Float64, n: int) -> Float64:
    """Of n values, from the sums of their differences to one of them and of the squares of these."""
    return np.asarray(np.sqrt(np.maximum(squares - total * total / n, 0.0) / (n - 1)), np.float64)
