"""Answers with error bars, from a plan and noised counters alone: nothing here costs privacy.

Counters of reports are undone in :mod:`hushsum.local.estimation`.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from hushsum.errors import GuaranteeError, RecordError
from hushsum.families import Answer
from hushsum.local import estimation
from hushsum.local.estimation import Tally
from hushsum.plan import Plan

Counters = npt.NDArray[np.int64]


class ClassSums:
    """Counters of one class, or of several added up, computed once and read-only.

    Args:
        counters: (classes, shape...) int64, noised. They must not change afterwards.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._sums: dict[tuple[int, int], Counters] = {}

    def of(self, classes: slice) -> Counters:
        """(shape...): the sum over these classes, the same array whenever it is asked for."""
        key = classes.start, classes.stop
        if key not in self._sums:
            summed = _class_sum(self._counters, classes).view()
            summed.flags.writeable = False
            self._sums[key] = summed
        return self._sums[key]


#: What is computed of a release's counters once, to answer many queries.
Prepared = Tally | ClassSums | None


def prepare(plan: Plan, counters: Counters) -> Prepared:
    """What answers to many queries share; the counters must not change afterwards. None where there is nothing."""
    return estimation.tally(plan, counters) if _of_reports(plan) else ClassSums(counters)


def kernel_sum(
    plan: Plan,
    counters: Counters,
    queries: Any,
    *,
    label: str | None = None,
    groups: int | None = None,
    submissions: int | None = None,
    prepared: Prepared = None,
) -> Answer:
    """Estimates of Σ k(x, q) over all records, or over those of one class.

    Args:
        plan: Of the release.
        counters: (classes, shape...) int64, noised; of reports (1, R, outputs).
        queries: (m, d), or m sets.
        label: Of the class; None: all of them together, whose noise adds up.
        groups: The median of the means of so many groups of rows, instead of the mean.
        submissions: Of a secure sum or of silos, see :func:`noise_variance`.
        prepared: What :func:`prepare` computed of the same counters.

    Raises:
        RecordError: The queries cannot be used, or the plan has no such class.
        ValueError: The family has no such groups.
    """
    if _of_reports(plan):
        return estimation.kernel_sum(plan, counters, queries, label=label, groups=groups, tally=_tally(prepared))
    chosen = _classes(plan, label)
    summed = prepared.of(chosen) if isinstance(prepared, ClassSums) else _class_sum(counters, chosen)
    variance = (chosen.stop - chosen.start) * noise_variance(plan, submissions)
    return plan.family.answer(summed, queries, noise_variance=variance, groups=groups)


def noise_variance(plan: Plan, submissions: int | None = None) -> float:
    """The variance of the noise on one counter.

    Args:
        plan: Of the release.
        submissions: How many clients are in it, in mode ``secure``: each drew a share of 1/h of the noise, so that 0
            of them left none. In mode ``local`` each drew all of it. None: all noise was drawn whole, or as exactly h
            shares, the least that a sum may have.

    Raises:
        GuaranteeError: The plan's counters are of reports, to which no noise is added.
    """
    variance, h = plan.privacy.mechanism.noise_variance, plan.privacy.mechanism.honest_survivors
    if submissions is None or (h is None and plan.privacy.local is None):
        return variance
    return variance * submissions / (h or 1)


def count(plan: Plan, counts: Counters, *, label: str | None = None, counters: Counters | None = None) -> float:
    """The noisy number of records, from the count counters (classes,): unbiased, and maybe below 0.

    Of reports it is exact, and that of one class is estimated from their counters, which are read for that alone.
    """
    if _of_reports(plan):
        return estimation.count(plan, counts) if label is None else estimation.count_of(plan, _given(counters), label)
    return float(counts[_classes(plan, label)].sum()) / plan.privacy.mechanism.count_scale


def count_std_error(
    plan: Plan, *, label: str | None = None, submissions: int | None = None, counters: Counters | None = None
) -> float:
    """The standard error of :func:`count`, from the mechanism alone (and ``submissions``, see :func:`noise_variance`).

    Of reports 0, or of one class from their counters.
    """
    if _of_reports(plan):
        return 0.0 if label is None else estimation.count_std_error(plan, _given(counters), label=label)
    chosen = _classes(plan, label)
    variance = noise_variance(plan, submissions)
    return math.sqrt((chosen.stop - chosen.start) * variance) / plan.privacy.mechanism.count_scale


def density(  # noqa: PLR0913 -- counts beside what kernel_sum takes
    plan: Plan,
    counters: Counters,
    counts: Counters,
    queries: Any,
    *,
    label: str | None = None,
    groups: int | None = None,
    submissions: int | None = None,
    prepared: Prepared = None,
) -> Answer:
    """Estimates of the mean kernel Σ k(x, q)/n, both parts noisy, over all records or those of one class.

    The number of records is taken as at least 1. The standard error is that of a ratio to first order (delta method).
    """
    if _of_reports(plan):
        return estimation.density(plan, counters, queries, label=label, groups=groups, tally=_tally(prepared))
    records = max(count(plan, counts, label=label), 1.0)
    answer = kernel_sum(
        plan, counters, queries, label=label, groups=groups, submissions=submissions, prepared=prepared
    ).over(records)
    of_count = count_std_error(plan, label=label, submissions=submissions) / records
    std_error = np.hypot(answer.std_error, answer.value * of_count)
    return Answer(answer.value, std_error, answer.spread, answer.degrees, answer.bias)


def _tally(prepared: Prepared) -> Tally | None:
    return prepared if isinstance(prepared, Tally) else None


def _class_sum(counters: Counters, classes: slice) -> Counters:
    if classes.stop - classes.start == 1:
        return np.asarray(counters[classes.start], np.int64)
    return np.asarray(counters[classes].sum(axis=0), np.int64)


def _classes(plan: Plan, label: str | None) -> slice:
    if label is None:
        return slice(0, plan.counters_shape[0])
    if label not in plan.classes:
        known = ", ".join(map(repr, plan.classes)) or "none: it has no classes"
        raise RecordError(f"label: got {label!r}; the plan's classes are {known}")
    index = plan.classes.index(label)
    return slice(index, index + 1)


def noise_std_error(plan: Plan, submissions: int | None = None) -> float:
    """The part of an answer's standard error that is noise, from the plan alone; of one class, where it has classes.

    In mode ``secure`` it is that of a sum with exactly h survivors, the least that there can be, unless ``submissions``
    says how many: more survivors add noise.

    For the hashed family and pure ε it is √(2R)·(1 + c/R)/ε in records, which grows with R (RACE,
    Theorem 3.4); with δ above 0 it is √((1 + c²/R)/(2ρ)), which does not.

    Of reports ``submissions`` is their number, by default 1: it goes as its root. It is that of the choice of a row and
    of the response, far from all records.
    """
    if _of_reports(plan):
        return estimation.noise_std_error(plan, 1 if submissions is None else submissions)
    return math.sqrt(plan.family.answer_variance(noise_variance(plan, submissions)))


def _of_reports(plan: Plan) -> bool:
    return plan.privacy.reports is not None


def _given(counters: Counters | None) -> Counters:
    if counters is None:
        raise GuaranteeError("the number of records of one class of a plan of reports requires their counters")
    return counters
