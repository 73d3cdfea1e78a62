"""Answers with error bars, from a plan and noised counters alone: nothing here costs privacy.

Counters of reports are undone in :mod:`hushsum.local.estimation`.
"""

import math
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from hushsum.errors import GuaranteeError, RecordError
from hushsum.families import Answer
from hushsum.local import estimation
from hushsum.local.estimation import Tally
from hushsum.plan import Plan
from hushsum.privacy.guarantee import Guarantee
from hushsum.privacy.mechanisms import DISCRETE_GAUSSIAN

if TYPE_CHECKING:
    from hushsum.families.partition import Partition
    from hushsum.families.partition.consistency import ConsistentCells
    from hushsum.families.partition.family import CellEstimates

Counters = npt.NDArray[np.int64]

_KEPT_NUMBERS: Final = 2**16  # of the queries whose answer is kept


class Queryable(Protocol):
    """What comparisons, statistics and figures read of a release or a span of releases, which use them in turn."""

    @property
    def plan(self) -> Plan:
        """Whose counters these are."""
        ...

    @property
    def windows(self) -> int:
        """How many windows its records are of; 1 without windows."""
        ...

    @property
    def period_ms(self) -> tuple[int, int] | None:
        """When they begin and end, in ms since 1970 UTC; None without windows."""
        ...

    @property
    def steps(self) -> tuple[int, int] | None:
        """Of the release of the second step of a cumulative sequence minus that of the first, or minus none (0)."""
        ...

    @property
    def counters(self) -> Counters:
        """(classes, shape...) int64: the noised integers."""
        ...

    @property
    def counts(self) -> Counters:
        """(classes,) int64: the noised count counters."""
        ...

    @property
    def guarantee(self) -> Guarantee:
        """Its guarantee."""
        ...

    @property
    def draws(self) -> float | None:
        """See :func:`noise_variance`."""
        ...

    @property
    def count(self) -> float:
        """The noisy number of records."""
        ...

    def count_of(self, label: str) -> float:
        """The noisy number of records of one class."""
        ...

    def kernel_sum(self, queries: Any, *, label: str | None = None) -> Answer:
        """Estimates of Σ k(x, q) over all records, or over those of one class."""
        ...

    def density(self, queries: Any, *, label: str | None = None) -> Answer:
        """Estimates of the mean kernel."""
        ...


class ClassSums:
    """Counters of one class, or of several added up, computed once and read-only; and the cells that they make.

    Args:
        plan: Of the counters.
        counters: (classes, shape...) int64, noised. They must not change afterwards.
        counts: Noised count counters; None, or of a plan without: cells are consistent among themselves alone.
        draws: See :func:`noise_variance`.
    """

    def __init__(
        self, plan: Plan, counters: Counters, counts: Counters | None = None, draws: float | None = None
    ) -> None:
        self._plan, self._counters, self._counts, self._draws = plan, counters, counts, draws
        self._sums: dict[tuple[int, int], Counters] = {}
        self._newest: tuple[object, Answer] | None = None  # one attribute, so that threads see both or neither
        self._estimates: dict[tuple[int, int], CellEstimates] = {}

    def of(self, classes: slice) -> Counters:
        """(shape...): the sum over these classes, the same array whenever it is asked for."""
        key = classes.start, classes.stop
        if key not in self._sums:
            summed = class_sum(self._counters, classes).view()
            summed.flags.writeable = False
            self._sums[key] = summed
        return self._sums[key]

    def answer(self, classes: slice, queries: Any) -> Answer:
        """The family's answer. Of few queries the newest is kept: sums, densities and tests ask at the same places."""
        variance = (classes.stop - classes.start) * noise_variance(self._plan, draws=self._draws)
        if not isinstance(queries, np.ndarray) or queries.size > _KEPT_NUMBERS:
            return self._plan.family.answer(self.of(classes), queries, noise_variance=variance)
        key = classes.start, classes.stop, queries.shape, queries.dtype.str, queries.tobytes()
        newest = self._newest
        if newest is None or newest[0] != key:
            newest = key, self._plan.family.answer(self.of(classes), queries, noise_variance=variance)
            self._newest = newest
        found = newest[1]  # whoever gets it may change it
        bias = None if found.bias is None else found.bias.copy()
        return replace(found, value=found.value.copy(), std_error=found.std_error.copy(), bias=bias)

    def estimates(self, classes: slice) -> "CellEstimates | None":
        """Of the cells of a partition; None for other families."""
        if (family := _partition(self._plan)) is None:
            return None
        key, scale = (classes.start, classes.stop), self._plan.privacy.mechanism.count_scale
        if key not in self._estimates:
            variance = (classes.stop - classes.start) * noise_variance(self._plan, draws=self._draws)
            count = (float(self._counts[classes].sum()) / scale, scale) if self._counts is not None and scale else None
            self._estimates[key] = family.estimates(self.of(classes), noise_variance=variance, count=count)
        return self._estimates[key]


#: What is computed of a release's counters once, to answer many queries.
Prepared = Tally | ClassSums | None


def prepare(plan: Plan, counters: Counters, counts: Counters | None = None, *, draws: float | None = None) -> Prepared:
    """What answers to many queries share; the counters must not change afterwards. None where there is nothing.

    Args:
        plan: Of the release.
        counters: (classes, shape...) int64, noised; of reports (1, R, outputs).
        counts: Count counters: the cells of a partition are then consistent with the number of records, too.
        draws: See :func:`noise_variance`.
    """
    return estimation.tally(plan, counters) if _of_reports(plan) else ClassSums(plan, counters, counts, draws)


def kernel_sum(
    plan: Plan,
    counters: Counters,
    queries: Any,
    *,
    label: str | None = None,
    groups: int | None = None,
    draws: float | None = None,
    prepared: Prepared = None,
) -> Answer:
    """Estimates of Σ k(x, q) over all records, or over those of one class.

    Args:
        plan: Of the release.
        counters: (classes, shape...) int64, noised; of reports (1, R, outputs).
        queries: (m, d), or m sets.
        label: Of the class; None: all of them together, whose noise adds up.
        groups: The median of the means of so many groups of rows, instead of the mean.
        draws: See :func:`noise_variance`.
        prepared: What :func:`prepare` computed of the same counters.

    Raises:
        RecordError: The queries cannot be used, or the plan has no such class.
        ValueError: The family has no such groups.
    """
    if _of_reports(plan):
        return estimation.kernel_sum(plan, counters, queries, label=label, groups=groups, tally=_tally(prepared))
    chosen = classes_of(plan, label)
    sums = prepared if isinstance(prepared, ClassSums) else ClassSums(plan, counters, draws=draws)
    estimates = sums.estimates(chosen) if groups is None else None
    if estimates is not None and (found := estimates.answer(queries)) is not None:
        return found
    if groups is None:
        return sums.answer(chosen, queries)
    variance = (chosen.stop - chosen.start) * noise_variance(plan, draws=draws)
    return plan.family.answer(sums.of(chosen), queries, noise_variance=variance, groups=groups)


def noise_variance(plan: Plan, *, draws: float | None = None) -> float:
    """The variance of the noise on one counter.

    Args:
        plan: Of the release.
        draws: In variances of one draw of the plan's noise (:attr:`hushsum.Release.draws`). None: one draw, which a
            secure sum has of exactly h shares, the least that there may be; of cumulative releases that of the step
            with the most noise.

    Raises:
        GuaranteeError: The plan's counters are of reports, to which no noise is added.
    """
    cumulation = plan.privacy.cumulation
    if draws is None:
        draws = 1.0 if cumulation is None else cumulation.worst_variance
    return plan.privacy.mechanism.noise_variance * draws


def draws_of(plan: Plan, submissions: float) -> float | None:
    """What :func:`noise_variance` takes of so many clients.

    In a secure sum each drew a share of 1/h of the noise, so that 0 of them left none; in mode ``local`` all of it.
    None where clients draw no noise.
    """
    h = plan.privacy.mechanism.honest_survivors
    return None if h is None and plan.privacy.local is None else submissions / (h or 1)


def noise_covariance(plan: Plan, first: int, second: int) -> float:
    """The covariance of the noise that two cumulative releases have on the same counter, in variances of one draw.

    The difference of the releases of steps a < b is the sketch of the windows after a up to b, with noise of variance
    cov(a, a) − 2·cov(a, b) + cov(b, b), in the unit of :attr:`hushsum.Release.draws`. Rounding to integers is in it.

    Args:
        plan: Of cumulative releases.
        first: A step, from 1 to the plan's horizon.
        second: Another, or the same.

    Raises:
        GuaranteeError: The plan has no cumulative releases.
        ValueError: No such step.
    """
    cumulation = plan.privacy.cumulation
    if cumulation is None:
        raise GuaranteeError(f"plan {plan.name!r} has tumbling windows, whose noise is independent")
    covariance = cumulation.covariance(first, second)
    if first == second and plan.privacy.mechanism.name == DISCRETE_GAUSSIAN:
        covariance += 1 / (12 * plan.privacy.mechanism.noise_variance)  # of rounding a sum of finer noise
    return covariance


def span_draws(plan: Plan, first: int, second: int) -> float:
    """The variance of the noise of step ``second`` minus step ``first``, or minus none (0), in variances of a draw."""
    draws = noise_covariance(plan, second, second)
    if first:
        draws += noise_covariance(plan, first, first) - 2.0 * noise_covariance(plan, first, second)
    return draws


def opposed_draws(one: Queryable, other: Queryable) -> float:
    """By how much the noise of two spans of a cumulative sequence moves against each other, at least 0, in draws.

    Spans that follow each other share the noise of the release between them with opposite signs: their difference has
    more noise than the sum of both variances. It is minus the covariance, where that is negative; a positive one, with
    which the difference has less noise, is not counted: the two may be of different sequences of one plan.
    """
    if one.steps is None or other.steps is None or one.plan.id != other.plan.id:
        return 0.0
    signed = zip((-1.0, 1.0), one.steps, strict=True), zip((-1.0, 1.0), other.steps, strict=True)
    covariance = sum(
        sign * by * noise_covariance(one.plan, step, second)
        for (sign, step), (by, second) in product(*signed)
        if step and second
    )
    return max(0.0, -covariance)


def count(
    plan: Plan,
    counts: Counters,
    *,
    label: str | None = None,
    counters: Counters | None = None,
    prepared: Prepared = None,
) -> float:
    """The noisy number of records: unbiased, and maybe below 0.

    It is that of the count counters (classes,), or with ``counters`` of a partition that of its cells and the counter
    together, where that is better. Of a plan without count counters it is that of the sums of the rows of ``counters``.
    Of reports it is exact, and that of one class is estimated from their counters, which are read for that alone.

    Raises:
        GuaranteeError: ``counters`` are missing, and no count counter tells it.
    """
    if _of_reports(plan):
        return estimation.count(plan, counts) if label is None else estimation.count_of(plan, _given(counters), label)
    if (cells := _cells(plan, counts, label, counters, prepared)) is not None:
        return cells.total
    chosen, scale = classes_of(plan, label), plan.privacy.mechanism.count_scale
    if not scale:
        sums = prepared if isinstance(prepared, ClassSums) else ClassSums(plan, _given(counters))
        return plan.family.records_in(sums.of(chosen))
    return float(counts[chosen].sum()) / scale


def count_std_error(
    plan: Plan, *, label: str | None = None, draws: float | None = None, counters: Counters | None = None
) -> float:
    """The standard error of :func:`count`, from the mechanism alone (and ``draws``, see :func:`noise_variance`).

    With ``counters`` it is that of the count with them; their values tell it of reports alone, where it is 0 but for
    one class. Of a plan without count counters it is the same without them.
    """
    if _of_reports(plan):
        return 0.0 if label is None else estimation.count_std_error(plan, _given(counters), label=label)
    chosen, scale = classes_of(plan, label), plan.privacy.mechanism.count_scale
    variance = (chosen.stop - chosen.start) * noise_variance(plan, draws=draws)
    if not scale:
        return math.sqrt(variance * plan.family.record_rows.count)
    counts = np.zeros(plan.count_counters, np.int64)  # whose values tell no variance
    if (cells := _cells(plan, counts, label, counters, None, draws)) is not None:
        return math.sqrt(cells.total_variance)
    return math.sqrt(variance) / scale


def density(  # noqa: PLR0913 -- counts beside what kernel_sum takes
    plan: Plan,
    counters: Counters,
    counts: Counters,
    queries: Any,
    *,
    label: str | None = None,
    groups: int | None = None,
    draws: float | None = None,
    prepared: Prepared = None,
) -> Answer:
    """Estimates of the mean kernel Σ k(x, q)/n, both parts noisy, over all records or those of one class.

    The number of records is taken as at least 1. The standard error is that of a ratio to first order (delta method).
    Where the sums of rows tell the number of records, both parts share noise. It is counted where the standard error is
    that of the noise; where that is the spread of rows, it is not, and the error that is stated may be too much.
    """
    if _of_reports(plan):
        return estimation.density(plan, counters, queries, label=label, groups=groups, tally=_tally(prepared))
    sums = prepared if isinstance(prepared, ClassSums) else ClassSums(plan, counters, counts, draws)
    estimates = sums.estimates(classes_of(plan, label))
    if groups is None and estimates is not None and (shares := estimates.shares(queries)) is not None:
        return shares
    if estimates is None or (cells := estimates.cells) is None:
        of_n = count_std_error(plan, label=label, draws=draws)
        of_rows = None if plan.privacy.mechanism.count_scale else counters
        n = count(plan, counts, label=label, counters=of_rows, prepared=prepared)
    else:
        n, of_n = cells.total, math.sqrt(cells.total_variance)
    records = max(n, 1.0)
    answer = kernel_sum(plan, counters, queries, label=label, groups=groups, draws=draws, prepared=prepared).over(
        records
    )
    std_error = np.hypot(answer.std_error, answer.value * (of_n / records))
    if not plan.privacy.mechanism.count_scale and answer.spread == "noise":
        chosen = classes_of(plan, label)
        noise = (chosen.stop - chosen.start) * noise_variance(plan, draws=draws)
        shared = answer.value * (2.0 * plan.family.records_covariance(noise) / records**2)
        std_error = np.sqrt(np.maximum(np.square(std_error) - shared, 0.0))
    return Answer(answer.value, std_error, answer.spread, answer.degrees, answer.bias)


def _partition(plan: Plan) -> "Partition | None":
    if plan.family.name != "partition":
        return None
    from hushsum.families.partition import Partition  # which plans of other families do not load

    return plan.family if isinstance(plan.family, Partition) else None


def _cells(
    plan: Plan,
    counts: Counters,
    label: str | None,
    counters: Counters | None,
    prepared: Prepared,
    draws: float | None = None,
) -> "ConsistentCells | None":
    if counters is None:
        return None
    sums = prepared if isinstance(prepared, ClassSums) else ClassSums(plan, counters, counts, draws)
    estimates = sums.estimates(classes_of(plan, label))
    return None if estimates is None else estimates.cells


def _tally(prepared: Prepared) -> Tally | None:
    return prepared if isinstance(prepared, Tally) else None


def class_sum(counters: Counters, classes: slice) -> Counters:
    """(shape...): the sum of the counters (classes, shape...) over these classes; of one class a view of them."""
    if classes.stop - classes.start == 1:
        return np.asarray(counters[classes.start], np.int64)
    return np.asarray(counters[classes].sum(axis=0), np.int64)


def classes_of(plan: Plan, label: str | None) -> slice:
    """Which classes' counters hold the records of this label; None: all of them.

    Raises:
        RecordError: The plan has no such class.
    """
    if label is None:
        return slice(0, plan.counters_shape[0])
    if label not in plan.classes:
        known = ", ".join(map(repr, plan.classes)) or "none: it has no classes"
        raise RecordError(f"label: got {label!r}; the plan's classes are {known}")
    index = plan.classes.index(label)
    return slice(index, index + 1)


def noise_std_error(plan: Plan, *, draws: float | None = None) -> float:
    """The part of an answer's standard error that is noise, from the plan alone; of one class, where it has classes.

    In mode ``secure`` it is that of a sum with exactly h survivors, the least that there can be, unless ``draws`` says
    otherwise: more survivors add noise.

    For the hashed family and pure ε it is √(2R)·(1 + c/R)/ε in records, which grows with R (RACE,
    Theorem 3.4); with δ above 0 it is √((1 + c²/R)/(2ρ)), which does not.

    Of reports ``draws`` is their number, by default 1: it goes as its root. It is that of the choice of a row and
    of the response, far from all records.
    """
    if _of_reports(plan):
        return estimation.noise_std_error(plan, 1 if draws is None else round(draws))
    return math.sqrt(plan.family.answer_variance(noise_variance(plan, draws=draws)))


def _of_reports(plan: Plan) -> bool:
    return plan.privacy.reports is not None


def _given(counters: Counters | None) -> Counters:
    if counters is None:
        raise GuaranteeError(
            "the number of records of a plan without count counters, or of one class of a plan of reports, requires "
            "their counters"
        )
    return counters
