"""Answers of hashed rows at queries: the mean over rows, sets of rows or groups, each with its error bar."""

import math
import warnings
from dataclasses import dataclass
from itertools import pairwise
from weakref import ref

import numpy as np
import numpy.typing as npt

from hushsum.families import threads
from hushsum.families.base import Answer
from hushsum.families.estimators import Division, SparseMedianWarning, is_sparse, mean_of_groups, median_of_means
from hushsum.families.lsh import numpy_engine
from hushsum.families.lsh.arrays import Points
from hushsum.families.lsh.engines import RowEngine, engine
from hushsum.families.lsh.placement import HashedRows, Rehash

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def shared_codes(rows: HashedRows, points: Points, others: Points) -> Float64:
    """(n, m): the share of rows in which n and m accepted points share all their codes."""
    coder, shared = numpy_engine.coder(rows.code), np.zeros((len(points), len(others)))
    if not shared.size:
        return shared
    left, right = coder.prepare(points), numpy_engine.coder(rows.code).prepare(others)
    for row in range(len(rows)):
        parts = slice(row * rows.power, (row + 1) * rows.power)
        first = coder.codes(parts, left).copy()
        shared += (first[:, :, None] == coder.codes(parts, right)[:, None, :]).all(axis=0)
    return shared / len(rows)


def _bucket_means(rows: HashedRows, counters: Int64) -> Float64:
    """(R,): the mean counter of each row. For counters that are read-only, as a release's, it is computed once."""
    scratch = rows.scratch
    if counters.flags.writeable:
        return np.asarray(counters.sum(axis=1) / rows.buckets, np.float64)
    known = scratch.derived
    if known is None or known[0]() is not counters:
        known = scratch.derived = (ref(counters), counters.sum(axis=1) / rows.buckets)
    means: Float64 = known[1]
    return means


@dataclass(frozen=True, eq=False)
class RowReads:
    """The reads of R rows at m queries: y_r = (counters[r, bucket] − less[r])·factor.

    Attributes:
        rows: Their parameters.
        counters: (R, W) int64, C-contiguous.
        queries: m of them, accepted.
        less: (R,): 0, or a W-th of the row's total where codes are rehashed.
        factor: 1, or W/(W − 1).
    """

    rows: HashedRows
    counters: Int64
    queries: Points
    less: Float64
    factor: float

    @classmethod
    def of(cls, rows: HashedRows, counters: Int64, queries: Points) -> "RowReads":
        """What is read where the rows place their codes."""
        if not isinstance(rows.placement, Rehash):
            return cls(rows, counters, queries, np.zeros(len(rows)), 1.0)
        width = rows.buckets
        return cls(rows, counters, queries, _bucket_means(rows, counters), width / (width - 1))

    def mean(self) -> Answer:
        """Over independent rows, with the standard error of their spread; one row knows none."""
        value, variance = self._moments(slice(0, len(self.rows)))
        if len(self.rows) == 1:
            return Answer(value, np.full(len(value), math.nan))
        return Answer(value, np.sqrt(variance / len(self.rows)), degrees=len(self.rows) - 1)

    def mean_of_sets(self, sets: Division) -> Answer:
        """Over all rows, with the standard error of the spread of independent sets of them; one set knows none."""
        parts = list(pairwise(sets.ends.tolist()))
        found = dict(zip(parts, self._sums_of_sets(engine(), [slice(*part) for part in parts]), strict=True))
        value, error = sets.reduce(lambda which: found[which.start, which.stop])
        return Answer(value * self.factor, error * self.factor, spread="sets", degrees=sets.degrees)

    def mean_of_given(self, variance: float) -> Answer:
        """Over rows that are no draw: ``variance`` of the answer is all that is uncertain."""
        value, _ = self._moments(slice(0, len(self.rows)))
        return Answer(value, np.full(len(value), math.sqrt(variance)), spread="noise")

    def median_of_groups(self, count: int) -> Answer:
        """The median of the means of ``count`` contiguous groups of rows.

        Warns:
            SparseMedianWarning: At some query the groups have too few rows for the records that are near.
        """
        means, each = self._means(count), len(self.rows) // count
        records = float(self.counters.sum()) / len(self.rows)
        sparse = is_sparse(mean_of_groups(means), records, each)
        if count > 1 and sparse.any():
            text = (
                f"{int(sparse.sum())} of {len(sparse)} queries have so few records near them that the median of "
                f"{count} groups of {each} rows is far too low: use fewer groups, or the mean"
            )
            warnings.warn(text, SparseMedianWarning, stacklevel=4)
        value, error = median_of_means(means, each)
        return Answer(value, error, spread="groups", degrees=max(1, count - 1))

    def _means(self, count: int) -> Float64:
        """(count, m): of contiguous groups of rows, the longer ones first."""
        sizes = [len(part) for part in np.array_split(np.empty(len(self.rows)), count)]
        ends = np.cumsum([0, *sizes]).tolist()
        return np.stack([self._moments(slice(*pair))[0] for pair in pairwise(ends)])

    def _moments(self, which: slice) -> tuple[Float64, Float64]:
        """(m,) each: the mean of these rows, and their variance (of one row: 0)."""
        loops, n = engine(), which.stop - which.start
        first, total, squares = self._sums(loops, which)
        value = first + total / n
        variance = np.maximum(squares - total * total / n, 0.0) / max(1, n - 1)
        return (
            (value, variance) if self.factor == 1.0 else (value * self.factor, variance * (self.factor * self.factor))
        )

    def _sums(self, loops: RowEngine, which: slice) -> tuple[Float64, Float64, Float64]:
        return self._sums_of_sets(loops, [which])[0]

    def _sums_of_sets(self, loops: RowEngine, sets: list[slice]) -> list[tuple[Float64, Float64, Float64]]:
        """What the rows of each set read, see :func:`numpy_engine.sums`; queries are prepared once."""
        m = len(self.queries)

        def work(some: slice) -> list[tuple[Float64, Float64, Float64]]:
            return loops.sums_of_sets(self.rows, self.counters, self.less, self.queries[some], sets)

        parts = threads.spread(work, threads.shares(m, m), m)
        if len(parts) == 1:
            return parts[0]
        return [
            (first, total, squares) for first, total, squares in np.concatenate(list(map(np.asarray, parts)), axis=2)
        ]
