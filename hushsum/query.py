"""Answers with error bars, from a plan and noised counters alone: nothing here costs privacy."""

import math

import numpy as np
import numpy.typing as npt

from hushsum.families import Answer
from hushsum.plan import Plan

Counters = npt.NDArray[np.int64]


def kernel_sum(plan: Plan, counters: Counters, queries: npt.ArrayLike) -> Answer:
    """Estimates of Σ k(x, q) over all records.

    Args:
        plan: Of the release.
        counters: (classes, shape...) int64, noised.
        queries: (m, d).
    """
    return plan.family.answer(counters[0], queries)


def count(plan: Plan, counts: Counters) -> float:
    """The noisy number of records, from the count counters (classes,): unbiased, and maybe below 0."""
    return float(counts.sum()) / plan.privacy.mechanism.count_scale


def count_std_error(plan: Plan) -> float:
    """The standard error of :func:`count`, from the mechanism alone."""
    mechanism = plan.privacy.mechanism
    return math.sqrt(plan.counters_shape[0]) * mechanism.noise().std / mechanism.count_scale


def density(plan: Plan, counters: Counters, counts: Counters, queries: npt.ArrayLike) -> Answer:
    """Estimates of the mean kernel Σ k(x, q)/n, both parts noisy.

    The number of records is taken as at least 1. The standard error is that of a ratio to first order (delta method).
    """
    answer = kernel_sum(plan, counters, queries)
    records = max(count(plan, counts), 1.0)
    value = answer.value / records
    variance = answer.std_error**2 + (value * count_std_error(plan)) ** 2
    return Answer(value, np.sqrt(variance) / records)


def noise_std_error(plan: Plan) -> float:
    """The part of an answer's standard error that is noise, from the plan alone.

    For the hashed family √(2R)·(1 + c/R)/ε in records, which grows with R (MATH: central noise; RACE, Theorem 3.4).
    """
    return math.sqrt(plan.family.answer_variance(plan.privacy.mechanism.noise().variance))
