"""From counts of reports to what each hashed row says at a query, and how far the sum of all rows may be off.

A report i goes to a uniform row r, and supports a value with probability p* where that is its own, else q*. So z_i =
(s_i − q*)/(p* − q*), s_i whether it supports (class, bucket of the query in r), is on average the share of rows in
which record and query collide: Σ z_i is unbiased for the mean over rows of a whole sketch. Rows are summed, for each
record went to one. Rehashed buckets collide by chance too: z_i becomes (z_i − u_i/W)·W/(W − 1) with u_i an unbiased
estimate of whether the record is of that class at all (1 where every class is asked for).

**Error bars.** Let Y_r be the sum of z_i over the n_r reports of a row, f = Σ Y_r. Reports are independent given the
hashes, and hashes are those of R independent rows, so that with E_r = Y_r − n_r·f/n the mean of R/(R − 1)·Σ E_r² is

    n·Var(z of a report drawn at random) + Var(hash)/R,

the second term that of the mean over rows of Σ_i 1[record i collides]. The truth has Σ_i Var(z_i) for the first, which
is less by the spread of the records' own means: nobody can know that of one report a record, and it is small where
randomisation is most of the error. So the bar holds, and is cautious where ε is large and many records are near. Rows
that depend on each other are taken in independent sets. Of few rows, or sets, the t interval has few degrees. No bar
is below what the randomiser alone makes of so many reports: see :mod:`hushsum.local.floors`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hushsum.families import Hashed
from hushsum.families.estimates import Division
from hushsum.families.lsh.placement import OUTSIDE
from hushsum.local.floors import Floor
from hushsum.local.layout import Int64, choice_of
from hushsum.noise.randomiser import Randomiser
from hushsum.plan import Plan

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Law:
    """What a report's support is worth.

    Attributes:
        hit: p*.
        miss: q*.
        less: 1/W where buckets are rehashed, else 0.
        factor: W/(W − 1), else 1.
        single: Whether a report supports at most one of the values that are read, and nothing else of it counts.
        floor: What it errs at least.
    """

    hit: float
    miss: float
    less: float
    factor: float
    single: bool
    floor: Floor

    @property
    def gap(self) -> float:
        """p* − q*."""
        return self.hit - self.miss


@dataclass(frozen=True, eq=False)
class Tally:
    """What counts of reports say before any query: folded once, it serves every one.

    Of k-ary response it is the counts themselves; of others it holds 8·R·K bytes, which is no more than the counts.

    Attributes:
        supports: (R, K) int64: how many reports support each value.
        reports: (R,) int64: n_r.
    """

    supports: Int64
    reports: Int64

    @classmethod
    def of(cls, plan: Plan, counters: Int64) -> "Tally":
        """Of counters (1, R, outputs) of a hashed plan."""
        raw = np.ascontiguousarray(counters[0])
        return cls(choice_of(plan).support(raw), raw.sum(axis=1))


@dataclass(frozen=True, eq=False)
class Seen:
    """What the reports of all rows support at k queries.

    Attributes:
        supports: (k,) int64: how often the query's bucket.
        others: (k,) int64: of one class of several: how often its other buckets, else 0.
        inside: (k,) int64: reports of rows in which the query has a bucket.
    """

    supports: Int64
    others: Int64
    inside: Int64


@dataclass(frozen=True, eq=False)
class Supports:
    """How many reports support each bucket of one class, or of all classes together.

    Attributes:
        family: Of the rows.
        law: Of one report.
        table: (R, W) int64.
        classes: How many of them are read together.
        reports: (R,) int64: n_r, of all classes.
        records: (R,) float64: of those reports the estimated number of the classes that are read.
        whole: Whether every class is read.
    """

    family: Hashed
    law: Law
    table: Int64
    classes: int
    reports: Int64
    records: Float64
    whole: bool

    @classmethod
    def of(cls, plan: Plan, tally: Tally, chosen: slice) -> "Supports":
        """Of a hashed plan."""
        assert isinstance(plan.family, Hashed), "only buckets are supported"
        family, randomiser, reports = plan.family, choice_of(plan), tally.reports
        every, classes = max(1, len(plan.classes)), chosen.stop - chosen.start
        whole, table = classes == every, tally.supports
        if every > 1:
            table = table.reshape(family.rows, every, family.buckets)[:, chosen].sum(axis=1)
        records = reports.astype(np.float64) if whole else class_records(randomiser, table, reports)
        floor = Floor.of(randomiser)
        one = classes == 1 or floor.exclusive
        single = one and (whole or not family.rehashed)
        less, factor = (1 / family.buckets, family.buckets / (family.buckets - 1)) if family.rehashed else (0.0, 1.0)
        law = Law(float(randomiser.hit), float(randomiser.miss), less, factor, single, floor)
        return cls(family, law, table, classes, reports, records, whole)

    @property
    def total(self) -> int:
        """n: the exact number of reports."""
        return int(self.reports.sum())

    def reads(self, queries: Any) -> Iterator[tuple[slice, Float64, Seen]]:
        """(some of m queries, Y (R, k) of every row there, what all rows support there).

        Raises:
            RecordError: The queries cannot be used.
        """
        law, expected = self.law, self.reports * (self.law.miss * self.classes)
        owned = self.table.sum(axis=1) if not self.whole else None
        for some, buckets in self.family.buckets_at(queries):
            outside = buckets == OUTSIDE
            found = np.take_along_axis(self.table, np.maximum(buckets, 0), axis=1)
            found[outside] = 0
            inside = np.where(outside, 0, self.reports[:, None]).sum(axis=0)
            reads = found - expected[:, None]
            reads /= law.gap
            reads[outside] = 0.0
            if law.less:
                reads -= self.records[:, None] * law.less
                reads *= law.factor
            supports, others = found.sum(axis=0), np.zeros_like(inside)
            if owned is not None:
                others = np.where(outside, 0, owned[:, None]).sum(axis=0) - supports
            yield some, reads, Seen(supports, others, inside)

    def response(self, seen: Seen) -> Float64:
        """(k,): n·Var(z) of the choice of rows and the responses, from the reports; 0 where it is not known."""
        law, supports, inside = self.law, seen.supports, seen.inside
        if not law.single:
            return np.zeros(len(supports))
        hit, miss = (((s - law.miss) / law.gap - law.less) * law.factor for s in (1.0, 0.0))
        others = inside - supports
        value = supports * hit + others * miss
        return np.maximum(supports * hit**2 + others * miss**2 - value * value / max(self.total, 1), 0.0)

    def least(self, seen: Seen, ratio: Float64 | None = None) -> Float64:
        """(k,): the least variance of an answer, by responses alone; of one less a ratio times the number of records.

        Args:
            seen: At the queries.
            ratio: (k,): of one class of several; None: 0.
        """
        law, width = self.law, self.family.buckets
        weight = law.factor / law.gap
        if self.whole or width == 1:
            return law.floor.of_sum(seen.supports, seen.inside, self.classes) * weight**2
        less = law.less * weight + (np.zeros(len(seen.supports)) if ratio is None else ratio / law.gap)
        return law.floor.of_parts(seen.supports, seen.others, seen.inside, width, weight, less)


def class_records(randomiser: Randomiser, table: Int64, reports: Int64) -> Float64:
    """(R,): the estimated number of records of a class in each row.

    A record of the class adds p* + (W − 1)q* to the sum of its W supports, any other W·q*: unbiased is that sum less
    n_r·W·q*, over p* − q*.

    Args:
        randomiser: Of the reports.
        table: (R, W): supports of the class.
        reports: (R,): n_r.
    """
    width, miss = table.shape[1], randomiser.miss
    gap = float(randomiser.hit - miss)
    return np.asarray((table.sum(axis=1) - reports * float(width * miss)) / gap, np.float64)


def part_sums(division: Division, reads: Float64) -> Float64:
    """(S, k): the sum over the rows of each part, in their order."""
    if len(division.ends) - 1 == len(reads):
        return reads
    return np.stack([in_order(reads[start:stop]) for start, stop in pairwise(division.ends.tolist())])


def spread(division: Division, reads: Float64, ratio: Float64, weights: Float64) -> Float64:
    """(k,): the variance of Σ_r (reads − ratio·weights), whose own sum is 0, from the spread of independent parts.

    Args:
        division: Of the rows.
        reads: (R, k).
        ratio: (k,): the sum of the reads over that of the weights.
        weights: (R,).

    Returns:
        NaN of a single part.
    """
    squares = np.square(part_sums(division, reads - ratio * weights[:, None]))
    shares = np.diff(division.ends) / division.ends[-1]
    left = 1.0 - float(np.square(shares).sum())
    if len(shares) == 1:
        return np.full(len(ratio), np.nan)
    return in_order(squares) / left


def in_order(terms: Float64) -> Float64:
    """The sum over the first axis in its order, however many columns there are, which NumPy's sum does not promise."""
    return np.asarray(np.add.accumulate(terms, axis=0)[-1], np.float64)
