"""Counts of reports to answers with error bars: what the randomiser did is undone on average, and rows are summed.

**Fourier.** A report names one of 2P cosines and sines, uniformly, and a bit that is 1 with probability
½ + v/peak·(λ − 1)/(2(λ + 1)), v what the record adds there. With D the ones less the zeroes of each, 2P·peak·(λ + 1)/
(λ − 1)·D is the counter of a whole sketch on average; answers are linear in counters. Their error bars are the family's
own, of the spread of pairs: reports of different pairs are independent, so it holds response, choice and frequencies.
None is below √(n(2w² − 1)), w = peak·(λ + 1)/(κ(λ − 1)): a report's square is 2w² on average, and its mean 1 at most.

**Unusable records** are uniform reports. Each adds 1/N of a record to every value, N the outputs (K of k-rr), so to
rehashed answers (1/N − 1/W)·W/(W − 1), which is 0 for k-rr and one class; and W/N of one to every class.

**Hashed.** A report i goes to a uniform row r, and supports a value with probability p* where that is its own, else q*.
So z_i = (s_i − q*)/(p* − q*), s_i whether it supports (class, bucket of the query in r), is on average the share of
rows in which record and query collide: Σ z_i is unbiased for the mean over rows of a whole sketch. Rows are summed, for
each record went to one. Rehashed buckets collide by chance too: z_i becomes (z_i − u_i/W)·W/(W − 1) with u_i an
unbiased estimate of whether the record is of that class at all (1 where every class is asked for).

**Error bars.** Let Y_r be the sum of z_i over the n_r reports of a row, f = Σ Y_r. Reports are independent given the
hashes, and hashes are those of R independent rows, so that with E_r = Y_r − n_r·f/n the mean of R/(R − 1)·Σ E_r² is

    n·Var(z of a report drawn at random) + Var(hash)/R,

the second term that of the mean over rows of Σ_i 1[record i collides]. The truth has Σ_i Var(z_i) for the first, which
is less by the spread of the records' own means: nobody can know that of one report a record, and it is small where
randomisation is most of the error. So the bar holds, and is cautious where ε is large and many records are near. Rows
that depend on each other are taken in independent sets. Of few rows, or sets, the t interval has few degrees. No bar
is below what the randomiser alone makes of so many reports (the floor).

**The floor** is the least error of an answer, whatever its reports: a few of them, or all alike, show no spread. Given
the hashes, a record's report supports a certain value with a probability from q* to p*, so that n reports of the mean
probability a do so with the variance n·a(1 − a), their records' own means counted in. From S of n that support, a is
taken as (S + 2)/(n + 4) (Agresti and Coull 1998: the middle of what two standard errors do not refute), and never
nearer to 0 or 1 than p* and q* allow: n·min(p*(1 − p*), q*(1 − q*)) is sure, whatever comes.

Of m values of which a record's own can be one, a report of an *exclusive* randomiser (λq* = p*: no report supports two)
supports one with a probability from m·q* to p* + (m − 1)q*. Otherwise they are supported nearly independently, m − 1 of
them with q*. A share of a class is an answer z less the ratio times a count u: αs − γ(s + o), s the support of the
query's bucket, o those of the class's other buckets.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.errors import RecordError
from hushsum.families import Answer, Hashed
from hushsum.families.estimators import Division, median_of_means
from hushsum.families.fourier import Fourier
from hushsum.families.lsh.placement import OUTSIDE
from hushsum.local import predicted_error
from hushsum.local.reports import Int64, bit_of, check_reports, choice_of
from hushsum.noise.randomiser import Randomiser
from hushsum.plan import Plan

_MANY_ROWS: Final = 30
_RARE: Final = 2.0  # standard errors of a class's number of records, above 0
_TABLED: Final = 1 << 12  # outputs, at most, that are looked at one by one


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


def tally(plan: Plan, counters: Int64) -> Tally | None:
    """What a caller with many queries makes of its counters once, and hands to each; None where nothing is saved.

    Raises:
        GuaranteeError: The plan's devices send no reports.
    """
    check_reports(plan)
    return None if isinstance(plan.family, Fourier) else Tally.of(plan, counters)


def kernel_sum(
    plan: Plan,
    counters: Int64,
    queries: Any,
    *,
    label: str | None = None,
    groups: int | None = None,
    tally: Tally | None = None,
) -> Answer:
    """Unbiased estimates of Σ k(x, q) over all records, or over those of one class.

    Args:
        plan: Of reports.
        counters: (1, R, outputs): exact counts of reports.
        queries: (m, d), or m sets.
        label: Of the class; None: all of them.
        groups: The median of the sums of so many groups of rows (each times their number) instead of the sum.
        tally: What :func:`tally` made of the same counters.

    Raises:
        RecordError: The queries cannot be used, or the plan has no such class.
        ValueError: Rows are not drawn independently, and ``groups`` asks for it.
        GuaranteeError: The plan's devices send no reports.
    """
    chosen = _chosen(plan, label)
    if isinstance(plan.family, Fourier):
        return _of_bits(plan, plan.family, counters, queries, groups)
    supports = Supports.of(plan, tally or Tally.of(plan, counters), chosen)
    return _Summed(supports, supports.family.division(groups)).answer(queries)


def density(
    plan: Plan,
    counters: Int64,
    queries: Any,
    *,
    label: str | None = None,
    groups: int | None = None,
    tally: Tally | None = None,
) -> Answer:
    """Estimates of the mean kernel Σ k(x, q)/n, of all records or those of one class; n is taken as at least 1.

    The number of all records is known exactly; that of a class is estimated, and its error bar is that of the ratio to
    first order, of both from the same reports. It is NaN where that number is within 2 of its own standard errors of 0:
    nothing is known of such a share, and :func:`kernel_sum` says what there is.
    """
    chosen = _chosen(plan, label)
    if isinstance(plan.family, Fourier) or label is None:
        answer = kernel_sum(plan, counters, queries, label=label, groups=groups, tally=tally)
        return answer.over(max(float(counters.sum()), 1.0))
    supports = Supports.of(plan, tally or Tally.of(plan, counters), chosen)
    answer = _Summed(supports, supports.family.division(groups), ratio=True).answer(queries)
    error = _count_error(supports, choice_of(plan), counters, chosen.start)
    if float(supports.records.sum()) <= _RARE * error:
        return replace(answer, std_error=np.full(len(answer.value), math.nan))
    return answer


def count(plan: Plan, counts: Int64) -> float:
    """The exact number of reports, those of unusable records too: under *replace* it is visible."""
    check_reports(plan)
    return float(counts.sum())


def count_of(plan: Plan, counters: Int64, label: str, *, tally: Tally | None = None) -> float:
    """The estimated number of records of one class: unbiased, and maybe below 0.

    Raises:
        RecordError: The plan has no such class.
    """
    chosen = _chosen(plan, label)
    return float(Supports.of(plan, tally or Tally.of(plan, counters), chosen).records.sum())


def count_std_error(plan: Plan, counters: Int64, *, label: str | None = None, tally: Tally | None = None) -> float:
    """The standard error of :func:`count` (0: it is exact) or of :func:`count_of`.

    From the reports' own spread: cautious, as said at the top of this file.
    """
    if label is None:
        return 0.0
    chosen = _chosen(plan, label)
    supports = Supports.of(plan, tally or Tally.of(plan, counters), chosen)
    return _count_error(supports, choice_of(plan), counters, chosen.start)


Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Floor:
    """Of one randomiser.

    Attributes:
        hit: p*.
        miss: q*.
        exclusive: Whether no report supports two values.
    """

    hit: float
    miss: float
    exclusive: bool

    @classmethod
    def of(cls, randomiser: Randomiser) -> "Floor":
        """Of a randomiser."""
        exclusive = randomiser.hit == randomiser.ratio * randomiser.miss
        return cls(float(randomiser.hit), float(randomiser.miss), exclusive)

    def of_sum(self, supports: Int64, reports: Int64, values: int) -> Float64:
        """(k,): the least variance of how many of so many values all reports support.

        Args:
            supports: (k,): what was counted.
            reports: (k,): n, those that may support one.
            values: m, at least 1.
        """
        share = self._share(supports, reports, values)
        return np.asarray(reports * self._variance(share, values), np.float64)

    def of_parts(
        self, supports: Int64, others: Int64, reports: Int64, values: int, weight: float, less: Float64
    ) -> Float64:
        """(k,): the least variance of Σ weight·s − less·(s + o), s of one value and o of the others of m.

        Args:
            supports: (k,): Σ s.
            others: (k,): Σ o.
            reports: (k,): n.
            values: m, at least 2.
            weight: α.
            less: (k,): γ.
        """
        one, rest = self._share(supports, reports, 1), self._share(others, reports, values - 1)
        own = weight - less
        variance = own**2 * self._variance(one, 1) + less**2 * self._variance(rest, values - 1)
        if self.exclusive:  # where one is, the others are not
            variance = variance + 2 * own * less * one * rest
        return np.asarray(reports * np.maximum(variance, 0.0), np.float64)

    def _share(self, supports: Int64, reports: Int64, values: int) -> Float64:
        """a; where several may be supported, beyond those that are by chance."""
        chance = (values - 1) * self.miss
        low, high = self.miss, self.hit
        if self.exclusive:
            low, high, chance = values * self.miss, self.hit + chance, 0.0
        share = (supports - reports * chance + 2.0) / (reports + 4.0)
        return np.clip(share, min(low, 0.5), max(high, 0.5))

    def _variance(self, share: Float64, values: int) -> Float64:
        more = 0.0 if self.exclusive else (values - 1) * self.miss * (1.0 - self.miss)
        return np.asarray(share * (1.0 - share) + more, np.float64)


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


def _count_error(supports: Supports, randomiser: Randomiser, counters: Int64, index: int) -> float:
    n, estimate, floor = max(supports.total, 1), float(supports.records.sum()), supports.law.floor
    width, gap, rows = supports.family.buckets, supports.law.gap, supports.family.rows
    least = floor.of_sum(supports.table.sum(keepdims=True)[0], np.array([supports.total]), width)[0] / gap**2
    k_rr = randomiser.outputs == randomiser.inputs
    if not k_rr and (rows >= _MANY_ROWS or randomiser.outputs > _TABLED) and rows > 1:
        by_row, ratio = Division.of("rows", rows, rows), np.array([estimate / n])
        weights = supports.reports.astype(np.float64)
        variance = float(spread(by_row, supports.records[:, None], ratio, weights)[0])
    else:
        pooled, first = counters[0].sum(axis=0), index * width
        eye = np.eye(randomiser.outputs, dtype=np.int64)
        supported = randomiser.support(eye)[:, first : first + width].sum(axis=1)
        each = (supported - float(width * randomiser.miss)) / gap
        variance = float((pooled * np.square(each)).sum()) - estimate**2 / n
    return math.sqrt(max(variance, least))


def noise_std_error(plan: Plan, reports: float, *, near: float = 0.0) -> float:
    """The part of an answer's standard error that the choice of rows and the responses are, before any report is seen.

    Args:
        plan: Of reports.
        reports: n.
        near: The share of the records that are at the query; the rest are far from it.
    """
    return math.sqrt(reports * predicted_error.report_variance(predicted_error.setting(plan), near=near))


class _Summed:
    """Answers from supports, and their error bars from independent parts of the rows.

    Args:
        supports: Of what is asked for.
        division: Of the rows.
        ratio: Whether answers are shares of the estimated number of records; else sums.
    """

    def __init__(self, supports: Supports, division: Division, *, ratio: bool = False) -> None:
        self._supports, self._division, self._ratio = supports, division, ratio
        self._weights = supports.records if ratio else supports.reports.astype(np.float64)
        self._total = max(float(self._weights.sum()), 1.0)
        self._analytic = division.spread == "noise" and supports.law.single and not ratio
        if division.spread == "noise" and not self._analytic:  # then rows' spread, which may be too much
            self._division = Division.of("rows", supports.family.rows, supports.family.rows)

    def answer(self, queries: Any) -> Answer:
        """At all queries."""
        division = self._division
        found = [self._some(reads, seen) for _, reads, seen in self._supports.reads(queries)]
        value, error = (np.concatenate([np.empty(0), *side]) for side in zip(*found, strict=True)) if found else _EMPTY
        degrees = None if self._analytic else division.degrees
        if division.spread == "groups":
            degrees = max(1, len(division.ends) - 2)
        answer = Answer(value, error, division.spread, degrees)
        return answer.over(self._total) if self._ratio else answer

    def _some(self, reads: Float64, seen: Seen) -> tuple[Float64, Float64]:
        division, total = self._division, self._total
        value = in_order(reads)
        if division.spread == "groups":
            sizes = np.diff(division.ends)
            value, error = median_of_means(part_sums(division, reads) * (len(reads) / sizes)[:, None], int(sizes.min()))
            variance = np.square(error) + np.square(value / total) * self._variance_of_total()
        elif self._analytic:
            variance = self._supports.response(seen)
        else:
            variance = self._of_rows(reads, value / total, seen)
        least = self._supports.least(seen, value / total if self._ratio else None)
        return value, np.sqrt(np.maximum(variance, least))  # NaN stays NaN

    def _of_rows(self, reads: Float64, ratio: Float64, seen: Seen) -> Float64:
        variance = spread(self._division, reads, ratio, self._weights)
        if self._supports.family.product.rows_together:
            # Rows of one-permutation hashing err together: what their hashes add is up to twice what their spread says.
            variance = variance + np.maximum(variance - self._supports.response(seen), 0.0)
        return variance

    def _variance_of_total(self) -> float:
        """Of the number of records; 0 where it is exact, or of one row."""
        rows, reports = len(self._weights), self._supports.reports.astype(np.float64)
        if not self._ratio or rows == 1:
            return 0.0
        share = np.array([self._weights.sum() / max(self._supports.total, 1)])
        return float(spread(Division.of("rows", rows, rows), self._weights[:, None], share, reports)[0])


_EMPTY: Final = (np.empty(0), np.empty(0))


def _of_bits(plan: Plan, family: Fourier, counters: Int64, queries: Any, groups: int | None) -> Answer:
    counted = counters[0].reshape(family.rows, 2, 2)
    signed = np.ascontiguousarray(counted[:, :, 1] - counted[:, :, 0])
    scale = 2 * family.rows * float(bit_of(plan).factor)
    each = float(counters.sum()) / (2 * family.rows)  # variance of one of them, at most: how often it was chosen
    answer = family.answer(signed, queries, noise_variance=each, groups=groups)
    least = math.sqrt(float(counters.sum()) * predicted_error.report_variance(predicted_error.setting(plan), near=1.0))
    return replace(answer, value=answer.value * scale, std_error=np.maximum(answer.std_error * scale, least))


def _chosen(plan: Plan, label: str | None) -> slice:
    check_reports(plan)
    if label is None:
        return slice(0, max(1, len(plan.classes)))
    if label not in plan.classes:
        known = ", ".join(map(repr, plan.classes)) or "none: it has no classes"
        raise RecordError(f"label: got {label!r}; the plan's classes are {known}")
    index = plan.classes.index(label)
    return slice(index, index + 1)


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
