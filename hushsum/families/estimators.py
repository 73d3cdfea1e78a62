"""Estimators: means over rows or pairs with standard errors, and the median of means (RACE, Lemma 3.3).

Every sum is taken in order, so that the size of a batch changes no bit. The median of means underestimates where few
records are near: :func:`is_sparse` says where.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
_SETS_MAX: Final = 64  # of blocks: more would hardly gain degrees of freedom


@dataclass(frozen=True, eq=False)
class Division:
    """How P pairs are divided for an answer and its standard error.

    Attributes:
        spread: As in :class:`~hushsum.families.base.Answer`.
        ends: (S + 1,) int64 from 0 to P: the parts.
    """

    spread: str
    ends: Int64

    @classmethod
    def of(cls, spread: str, rows: int, parts: int, *, unit: int = 1) -> "Division":
        """P pairs in so many parts, of nearly the same number of whole units of pairs; what is left is in the last."""
        ends = np.arange(parts + 1, dtype=np.int64) * (rows // unit) // parts * unit
        ends[-1] = rows
        return cls(spread, ends)

    @classmethod
    def of_blocks(cls, rows: int, block: int) -> "Division":
        """P pairs in sets of whole blocks: pairs of one block depend on each other, blocks do not.

        Too few pairs for two sets leave one, which has no standard error.
        """
        return cls.of("sets", rows, max(1, min(rows // block, _SETS_MAX)), unit=block)

    @property
    def degrees(self) -> int | None:
        """Of freedom: one less than what is independent, parts or pairs; None where that is one, or no draw."""
        count = int(self.ends[-1]) if self.spread == "rows" else len(self.ends) - 1
        return count - 1 if self.spread != "noise" and count > 1 else None

    def reduce(self, read: Callable[[slice], tuple[Float64, Float64, Float64]]) -> tuple[Float64, Float64]:
        """Values (m,) and their standard errors, from what a slice of pairs reads at m queries, as the engines say."""
        if self.spread in {"rows", "noise"}:
            return of_rows(*read(slice(0, int(self.ends[-1]))), int(self.ends[-1]))
        sizes, means = np.diff(self.ends), []
        for start, stop in zip(self.ends[:-1].tolist(), self.ends[1:].tolist(), strict=True):
            first, total, _ = read(slice(start, stop))
            means.append(first + total / (stop - start))
        if self.spread == "groups":
            return median_of_means(np.stack(means), int(sizes.min()))
        return of_sets(np.stack(means), sizes)


def of_rows(first: Float64, total: Float64, squares: Float64, rows: int) -> tuple[Float64, Float64]:
    """Mean and its standard error, each (m,), of independent pairs; NaN for one pair.

    Args:
        first: (m,): what the first pair reads.
        total: (m,): the sum of what each pair reads above the first.
        squares: (m,): the sum of the squares of that.
        rows: P.
    """
    value = first + total / rows
    if rows == 1:
        return value, np.full(len(value), math.nan)
    variance = np.maximum(squares - total * total / rows, 0.0) / (rows - 1)
    return value, np.sqrt(variance / rows)


def of_sets(means: Float64, sizes: Int64) -> tuple[Float64, Float64]:
    """Mean over all pairs and its standard error, each (m,), of independent sets of pairs; NaN for one set.

    With shares w of the pairs, and variances of the sets' means m in proportion to 1/w, that of the mean v is the mean
    of Σ w²(m − v)²/(1 − Σ w²).

    Args:
        means: (S, m): the mean of each set.
        sizes: (S,): its pairs, about the same number in each.
    """
    shares = sizes / sizes.sum()
    value = _in_order(means * shares[:, None])
    if len(means) == 1:
        return value, np.full(len(value), math.nan)
    squares = _in_order(np.square((means - value) * shares[:, None]))
    return value, np.sqrt(squares / (1.0 - math.fsum(np.square(shares).tolist())))


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


_SHRUNK_MIN: Final = 30  # answers: the risk of fewer is estimated too badly
_WORTH: Final = 0.5  # of the risk without a threshold


def shrunk(value: Float64, std_error: Float64) -> Float64:
    """(m,): sums that are not negative, from unbiased estimates: with less mean squared error over many of them.

    Soft thresholding: max(value − t·std_error, 0), t ≥ 0 that minimises Stein's unbiased estimate of the risk for
    normal errors (Donoho and Johnstone, *Adapting to unknown smoothness via wavelet shrinkage*, 1995, section 2.4, here
    on one side). t is 0 unless that estimate halves the risk, for answers of one sketch err together, and with fewer
    than 30 answers. Cutting at 0 alone raises no error; what t > 0 does to a single sum may be either.
    """
    known = np.isfinite(std_error) & (std_error > 0)
    errors, squares = value[known] / std_error[known], np.square(std_error[known])
    order = np.argsort(errors)
    z, weights = errors[order], squares[order]
    limit, first = math.sqrt(2.0 * math.log(max(len(z), 2))), int(np.searchsorted(z, 0.0, side="right"))
    tried = slice(first, int(np.searchsorted(z, limit, side="right")))
    if len(z) < _SHRUNK_MIN or tried.start >= tried.stop:
        return np.asarray(np.maximum(value, 0.0), np.float64)
    below = np.append(0.0, np.cumsum((np.square(z) - 1.0) * weights))
    above = np.append(np.cumsum(weights[::-1])[::-1], 0.0)
    risks = (below[1:] + above[1:] * (1.0 + np.square(z)))[tried]
    best = int(np.argmin(risks))
    worth = risks[best] < _WORTH * (below[first] + above[first])
    cut = np.where(known, std_error, 0.0) * (z[tried][best] if worth else 0.0)
    return np.asarray(np.maximum(value - cut, 0.0), np.float64)


def is_sparse(mean: Float64, records: float, rows_per_group: int) -> npt.NDArray[np.bool_]:
    """Queries whose records collide less than :data:`COLLISIONS_MIN` times in a group: k·(rows a group), k = mean/n."""
    return np.asarray(~(mean * rows_per_group >= COLLISIONS_MIN * max(records, 1.0)), np.bool_)


def _in_order(terms: Float64) -> Float64:
    """The sum over the first axis in its order, however many columns there are, which NumPy's sum does not promise."""
    return np.asarray(np.add.accumulate(terms, axis=0)[-1], np.float64)
