"""The median of the means of groups of rows (RACE, Lemma 3.3), and when it must not be trusted."""

import math
import operator
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

#: Collisions of a record in a group's rows below which the median sits far below the mean.
COLLISIONS_MIN: Final = 3.0
_ROOT_HALF_PI: Final = math.sqrt(math.pi / 2)


class SparseMedianWarning(UserWarning):
    """A median of means over so few rows a group, where so few records are near, underestimates badly."""


def checked_groups(groups: Any, rows: int) -> int:
    """The number of groups that was asked for.

    Raises:
        ValueError: It is no integer from 1 to the number of rows.
    """
    try:
        count = 0 if isinstance(groups, bool) else operator.index(groups)
    except TypeError:
        count = 0
    if not 1 <= count <= rows:
        raise ValueError(f"groups: got {groups!r}, expected an integer from 1 to the {rows} rows")
    return count


def means_of_groups(rows: int, groups: int, read: Callable[[slice], tuple[Float64, Float64, Float64]]) -> Float64:
    """(G, m): the means of G contiguous groups of about as many rows each.

    Args:
        rows: At least G.
        groups: G.
        read: Of some rows, (m,) each: what the first reads, the sum of what each reads above it, and another sum.
    """
    means = []
    for start, stop in pairwise(rows * group // groups for group in range(groups + 1)):
        first, total, _ = read(slice(start, stop))
        means.append(first + total / (stop - start))
    return np.stack(means)


def median_of_means(group_means: Float64, rows_per_group: int) -> tuple[Float64, Float64]:
    """The median over groups, and its standard error: the same bits in batches of any size.

    That is √(π/2) times the standard error of the mean of G groups for G ≥ 3, the asymptotic value for normal means, a
    little too large for few groups; of one group alone nothing is known: NaN.

    Args:
        group_means: (G, m).
        rows_per_group: At least 1.

    Raises:
        ValueError: There is no group, or no row in one.
    """
    groups = len(group_means)
    if groups < 1 or rows_per_group < 1:
        raise ValueError(f"got {groups} groups of {rows_per_group} rows, expected at least one of each")
    ordered = np.sort(group_means, axis=0)
    value = 0.5 * (ordered[(groups - 1) // 2] + ordered[groups // 2])
    if groups == 1:
        return value, np.full(len(value), math.nan)
    squares = _in_order(np.square(group_means - mean_of_groups(group_means)))
    factor = _ROOT_HALF_PI if groups > 2 else 1.0
    return value, np.sqrt(squares / (groups - 1)) * (factor / math.sqrt(groups))


def mean_of_groups(group_means: Float64) -> Float64:
    """(m,): the mean over groups, added in their order."""
    return np.asarray(_in_order(group_means) / len(group_means), np.float64)


def is_sparse(mean: Float64, records: float, rows_per_group: int) -> npt.NDArray[np.bool_]:
    """Queries whose records collide less than :data:`COLLISIONS_MIN` times in a group: k·(rows a group), k = mean/n."""
    return np.asarray(~(mean * rows_per_group >= COLLISIONS_MIN * max(records, 1.0)), np.bool_)


def _in_order(terms: Float64) -> Float64:
    """The sum over the first axis in its order, however many columns there are, which NumPy's sum does not promise."""
    return np.asarray(np.add.accumulate(terms, axis=0)[-1], np.float64)
