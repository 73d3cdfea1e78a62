"""Error bars of answers from reports hold the exact answer as often as they say, over rows, records and responses.

Bands are those of the binomial distribution at a false alarm of 1e-6 a test; bars of half the length are caught.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from hushsum import Plan
from hushsum.families import Answer, Hashed
from hushsum.families.fourier import Fourier
from hushsum.local import estimation
from hushsum.parameters import digest
from hushsum.public_random import PublicSeed
from tests.hushsum.local.report_plans import collected, entropy_of, rehashed_plan, report_plan, wave_plan
from tests.plans import tables

FALSE_ALARM = 1e-6
TRIALS = 100
NEAR = np.array([[3.0, 3.0]])
LABELS: dict[str, Any] = {"record": {"classes": ["a", "b", "c"]}}


def rows(number: int, **keys: object) -> dict[str, Any]:
    return {"sketch": {"rows": number, "buckets": 16, **keys}}


CASES: dict[str, Callable[[], Plan]] = {
    "2 rows": lambda: report_plan(**rows(2)),
    "30 rows": lambda: report_plan("projective", **rows(30)),
    "1000 rows": lambda: rehashed_plan("projective", **rows(1000, bandwidth=1)),
    "rehashed": lambda: rehashed_plan(**rows(30, bandwidth="0.5")),
    "sobol": lambda: report_plan(**rows(32, draws="sobol", sobol_sets=4)),
    "class": lambda: rehashed_plan(**rows(30, bandwidth="0.5"), **LABELS),
    "sure class": lambda: rehashed_plan("k-rr", 4, **rows(30, bandwidth="0.5"), **LABELS),
    "projective class": lambda: report_plan("projective", **rows(30), **LABELS),
    "2 pairs": lambda: wave_plan(rows=2),
    "30 pairs": lambda: wave_plan(rows=30),
}


def reseeded(plan: Plan, number: int) -> Plan:
    """The same plan with other rows: much faster than to calibrate a new one."""
    other, family = object.__new__(Plan), plan.family  # a copy would be read and verified anew
    assert isinstance(family, Hashed | Fourier)
    other.__dict__.update(plan.__dict__, family=replace(family, seed=PublicSeed(number)))
    return other


def covered(name: str, rng: np.random.Generator, wrong: float = 1.0, shares: bool = False) -> int:
    """How many of the intervals hold the exact answer; standard errors are made wrong by a factor."""
    inside, first = 0, CASES[name]()
    for number in range(TRIALS):
        plan = reseeded(first, number)
        records = np.concatenate([rng.uniform(0, 10, (400, 2)), rng.normal(3, 0.2, (100, 2))])
        label = "b" if plan.classes else None
        labels = ["abc"[i] for i in rng.integers(0, 3, 500)] if label else None
        mine = np.ones(500, np.bool_) if labels is None else np.array(labels) == label
        counters = collected(plan, records, entropy_of(rng), labels)
        ask = estimation.density if shares else estimation.kernel_sum
        answer: Answer = ask(plan, counters, NEAR, label=label)
        truth = plan.family.kernel(records[mine], NEAR).sum() / (mine.sum() if shares else 1)
        low, high = replace(answer, std_error=answer.std_error * wrong).interval(0.95)
        inside += bool(low <= truth <= high)
    return inside


def least_and_most() -> tuple[float, float]:
    return binom.isf(1 - FALSE_ALARM / 2, TRIALS, 0.95), binom.isf(FALSE_ALARM / 2, TRIALS, 0.95)


@pytest.mark.statistical
@pytest.mark.parametrize("name", CASES)
def test_intervals_cover_as_often_as_they_say(name: str, rng: np.random.Generator) -> None:
    least, most = least_and_most()
    assert least <= covered(name, rng) <= most


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["sure class", "30 pairs"])
def test_so_do_intervals_of_densities(name: str, rng: np.random.Generator) -> None:
    """Of a class that is far from empty: shares of others have no interval."""
    least, most = least_and_most()
    assert least <= covered(name, rng, shares=True) <= most


@pytest.mark.statistical
def test_intervals_that_are_too_short_are_caught(rng: np.random.Generator) -> None:
    assert covered("rehashed", rng, wrong=0.5) < least_and_most()[0]


@pytest.mark.statistical
@pytest.mark.parametrize("randomiser", ["k-rr", "projective"])
@pytest.mark.parametrize("number", [2, 40])
def test_counts_of_classes_are_as_far_off_as_they_say(randomiser: str, number: int, rng: np.random.Generator) -> None:
    """Their mean and their standard deviation over the trials; z below 5 each: false alarm 1e-6."""
    plan = report_plan(randomiser, **rows(number), **LABELS)
    records, labels = np.full((500, 2), 3.0), ["a"] * 100 + ["b"] * 400
    found = [collected(plan, records, entropy_of(rng), labels) for _ in range(TRIALS)]
    counts = np.array([estimation.count_of(plan, counters, "a") for counters in found])
    errors = np.array([estimation.count_std_error(plan, counters, label="a") for counters in found])
    stated = np.sqrt(np.square(errors).mean())
    assert abs(counts.mean() - 100) < 5 * stated / np.sqrt(TRIALS)
    assert abs(counts.std() / stated - 1) < 5 / np.sqrt(2 * TRIALS)


def given_plan(randomiser: str, rng: np.random.Generator, *classes: str) -> Plan:
    matrix = np.concatenate([rng.normal(0, 0.2, (20, 2)), np.zeros((20, 1))], axis=1).astype(np.float32)
    keys = {"draws": "given", "parameters": digest(matrix), "bandwidth": ..., "buckets": 16, "rows": 20}
    local = {"mode": "local", "epsilon": 2, "local": {"randomiser": randomiser}}
    return Plan.from_fields(tables(sketch=keys, privacy=local, record={"classes": list(classes)}), [matrix])


@pytest.mark.parametrize("randomiser", ["k-rr", "projective"])
@pytest.mark.parametrize("classes", [(), ("a", "b")])
def test_given_rows_err_by_choice_and_response_alone(
    randomiser: str, classes: tuple[str, ...], rng: np.random.Generator
) -> None:
    """Nothing else is drawn: the same rows, the exact answer of their sketch, z below 5 in each; false alarm 1e-6.

    Where a report supports values of several classes, the bar is that of the spread of rows, and may be too long.
    """
    plan = given_plan(randomiser, rng, *classes)
    records, labels = rng.uniform(0, 10, (500, 2)), ["a"] * 500 if classes else None
    found = [
        estimation.kernel_sum(plan, collected(plan, records, entropy_of(rng), labels), NEAR) for _ in range(TRIALS)
    ]
    values, errors = (np.array([getattr(answer, side)[0] for answer in found]) for side in ("value", "std_error"))
    known = randomiser == "k-rr" or not classes
    assert (found[0].spread, found[0].degrees) == (("noise", None) if known else ("rows", 19))
    stated = np.sqrt(np.square(errors).mean())
    assert abs(values.mean() - plan.family.kernel(records, NEAR).sum()) < 5 * stated / np.sqrt(TRIALS)
    assert values.std() / stated - 1 < 5 / np.sqrt(2 * TRIALS)
    if known:
        assert values.std() / stated - 1 > -5 / np.sqrt(2 * TRIALS)
