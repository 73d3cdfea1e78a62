"""Counts of reports to answers with error bars: what the randomiser did is undone on average, and rows are summed.

Hashed: :mod:`hushsum.local.reads` derives answers and their error bars.

**Fourier.** A report names one of 2P cosines and sines, uniformly, and a bit that is 1 with probability
½ + v/peak·(λ − 1)/(2(λ + 1)), v what the record adds there. With D the ones less the zeroes of each, 2P·peak·(λ + 1)/
(λ − 1)·D is the counter of a whole sketch on average; answers are linear in counters. Their error bars are the family's
own, of the spread of pairs: reports of different pairs are independent, so it holds response, choice and frequencies.
None is below √(n(2w² − 1)), w = peak·(λ + 1)/(κ(λ − 1)): a report's square is 2w² on average, and its mean 1 at most.

**Unusable records** are uniform reports. Each adds 1/N of a record to every value, N the outputs (K of k-rr), so to
rehashed answers (1/N − 1/W)·W/(W − 1), which is 0 for k-rr and one class; and W/N of one to every class.
"""

import math
from dataclasses import replace
from typing import Any, Final

import numpy as np

from hushsum.errors import RecordError
from hushsum.families import Answer
from hushsum.families.estimates import Division
from hushsum.families.fourier import Fourier
from hushsum.families.medians import median_of_means
from hushsum.local import errors
from hushsum.local.layout import Int64, bit_of, check_reports, choice_of
from hushsum.local.reads import Float64, Seen, Supports, Tally, in_order, part_sums, spread
from hushsum.noise.randomiser import Randomiser
from hushsum.plan import Plan

_MANY_ROWS: Final = 30
_RARE: Final = 2.0  # standard errors of a class's number of records, above 0
_TABLED: Final = 1 << 12  # outputs, at most, that are looked at one by one


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

    From the reports' own spread: cautious, as :mod:`hushsum.local.reads` says.
    """
    if label is None:
        return 0.0
    chosen = _chosen(plan, label)
    supports = Supports.of(plan, tally or Tally.of(plan, counters), chosen)
    return _count_error(supports, choice_of(plan), counters, chosen.start)


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


def noise_std_error(plan: Plan, reports: int, *, near: float = 0.0) -> float:
    """The part of an answer's standard error that the choice of rows and the responses are, before any report is seen.

    Args:
        plan: Of reports.
        reports: n.
        near: The share of the records that are at the query; the rest are far from it.
    """
    return math.sqrt(reports * errors.report_variance(errors.setting(plan), near=near))


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
    least = math.sqrt(float(counters.sum()) * errors.report_variance(errors.setting(plan), near=1.0))
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
