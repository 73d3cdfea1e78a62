"""From what pairs read to answers and their standard errors; every sum in order, so that batches change no bit."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


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
        """P pairs in so many parts, of nearly the same number of whole units of pairs."""
        return cls(spread, np.arange(parts + 1, dtype=np.int64) * (rows // unit) // parts * unit)

    @property
    def degrees(self) -> int | None:
        """Of freedom, of parts that are few."""
        parts = len(self.ends) - 1
        return parts - 1 if self.spread in {"sets", "groups"} and parts > 1 else None

    def reduce(self, read: Callable[[slice], tuple[Float64, Float64, Float64]]) -> tuple[Float64, Float64]:
        """Values (m,) and their standard errors, from what a slice of pairs reads at m queries, as the engines say."""
        if self.spread in {"rows", "noise"}:
            return of_rows(*read(slice(0, int(self.ends[-1]))), int(self.ends[-1]))
        sizes, means = np.diff(self.ends), []
        for start, stop in zip(self.ends[:-1].tolist(), self.ends[1:].tolist(), strict=True):
            first, total, _ = read(slice(start, stop))
            means.append(first + total / (stop - start))
        return of_groups(np.stack(means)) if self.spread == "groups" else of_sets(np.stack(means), sizes)


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

    Args:
        means: (S, m): the mean of each set.
        sizes: (S,): its pairs, about the same number in each.
    """
    shares = sizes / sizes.sum()
    value = _in_order(means * shares[:, None])
    count = len(means)
    if count == 1:
        return value, np.full(len(value), math.nan)
    squares = _in_order(np.square((means - value) * shares[:, None]))
    return value, np.sqrt(squares * (count / (count - 1)))


def of_groups(means: Float64) -> tuple[Float64, Float64]:
    """Median of means (G, m) and its standard error, each (m,); NaN for one group.

    The standard error is √(π/2) times that of the groups' mean for G ≥ 3: of the median of many normal means.
    """
    count = len(means)
    ordered = np.sort(means, axis=0)
    value = 0.5 * (ordered[(count - 1) // 2] + ordered[count // 2])
    if count == 1:
        return value, np.full(len(value), math.nan)
    squares = _in_order(np.square(means - _in_order(means) / count))
    return value, np.sqrt(squares / (count - 1) * ((math.pi / 2 if count > 2 else 1.0) / count))


def _in_order(terms: Float64) -> Float64:
    return np.asarray(np.add.accumulate(terms, axis=0)[-1], np.float64)
