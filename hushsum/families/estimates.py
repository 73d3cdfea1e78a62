"""From what pairs read to answers and their standard errors; every sum in order, so that batches change no bit."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.families.medians import median_of_means

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
_SETS_MAX: Final = 64  # of blocks: more would hardly gain degrees of freedom


@dataclass(frozen=True, eq=False)
class Division:
    """How P pairs are divided for an answer and its standard error.

    Attributes:
        spread: As in :class:`~hushsum.families.family.Answer`.
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


def _in_order(terms: Float64) -> Float64:
    return np.asarray(np.add.accumulate(terms, axis=0)[-1], np.float64)
