"""The median of the means of groups of rows (RACE, Lemma 3.3), and when it must not be trusted."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

#: Collisions of a record in a group's rows below which the median sits far below the mean.
COLLISIONS_MIN: Final = 3.0
_ROOT_HALF_PI: Final = math.sqrt(math.pi / 2)


class SparseMedianWarning(UserWarning):
    """A median of means over so few rows a group, where so few records are near, underestimates badly."""


def median_of_means(group_means: Float64, rows_per_group: int) -> tuple[Float64, Float64]:
    """The median over groups, and its standard error.

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
    value = np.median(group_means, axis=0)
    if groups == 1:
        return value, np.full(len(value), math.nan)
    factor = _ROOT_HALF_PI if groups > 2 else 1.0
    return value, group_means.std(axis=0, ddof=1) * (factor / math.sqrt(groups))


def is_sparse(mean: Float64, records: float, rows_per_group: int) -> npt.NDArray[np.bool_]:
    """Queries whose records collide less than :data:`COLLISIONS_MIN` times in a group: k·(rows a group), k = mean/n."""
    return np.asarray(~(mean * rows_per_group >= COLLISIONS_MIN * max(records, 1.0)), np.bool_)
