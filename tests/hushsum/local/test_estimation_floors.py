"""Error bars of few reports, or of reports that are all alike: never below what the randomiser alone makes of them.

Of one value the coverage is exact, a sum over the binomial law; of classes, and of whole answers, it is counted.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from hushsum import Plan
from hushsum.local import estimation
from hushsum.local import reports as encoding
from hushsum.local.estimation import Floor
from hushsum.local.reports import choice_of
from hushsum.noise import KRR, Projective, Randomiser
from tests.hushsum.local.report_plans import BOTH, Int64, counted, entropy_of, rehashed_plan, report_plan, wave_plan

SIZES = (1, 5, 20, 100, 400)
SETTINGS = [(randomiser, epsilon) for randomiser in BOTH for epsilon in (2, 4, 8)]
TRIALS = 80
LEAST = binom.isf(1 - 1e-9, TRIALS, 0.90)  # of so many intervals; false alarm below 1e-6 a test of hundreds
QUERIES = np.array([[3.0, 3.0], [9.0, 1.0]])
TWO: dict[str, Any] = {"record": {"classes": ["a", "b"]}}


def trials(plan: Plan, n: int, rng: np.random.Generator, labels: list[str] | None = None) -> list[Int64]:
    """Counters of so many windows of n equal records each."""
    every = None if labels is None else labels * TRIALS
    reports, _ = encoding.reports(plan, np.full((n * TRIALS, 2), 3.0), every, entropy_of(rng))
    return [counted(plan, some) for some in reports.reshape(TRIALS, n)]


def inside(found: list[tuple[float, float]], truth: float) -> int:
    """How many are within 2 standard errors of the truth, which is also where there is no standard error."""
    return sum(not abs(value - truth) > 2 * error for value, error in found)


@pytest.mark.parametrize(("name", "epsilon"), SETTINGS)
@pytest.mark.parametrize("near", [True, False])
def test_two_bars_of_the_randomiser_alone_hold_nine_times_of_ten_exactly(name: str, epsilon: float, near: bool) -> None:
    plan = rehashed_plan(name, epsilon)
    floor = Floor.of(choice_of(plan))
    share = floor.hit if near else floor.miss + (floor.hit - floor.miss) / 8
    for n in SIZES:
        supports = np.arange(n + 1)
        variance = floor.of_sum(supports, np.full(n + 1, n), 1)
        chances = binom.pmf(supports, n, share)
        assert chances[np.abs(supports - n * share) <= 2 * np.sqrt(variance)].sum() >= 0.90
        assert (chances * variance).sum() <= n * share * (1 - share) + 3  # hardly too wide, of many
    sure = min(p * (1 - p) for p in (floor.hit, floor.miss))
    assert (floor.of_sum(np.arange(401), np.full(401, 400), 1) >= 400 * sure).all()


@pytest.mark.parametrize(
    "response", [KRR(Fraction(3), 8), Projective(Fraction(3), 8, 7), Projective(Fraction(3), 8, 2)]
)
def test_a_randomiser_is_exclusive_where_no_report_supports_two_values(response: Randomiser) -> None:
    most = response.support(np.eye(response.outputs, dtype=np.int64)).sum(axis=1).max()
    assert Floor.of(response).exclusive == (most == 1)


@pytest.mark.parametrize("response", [KRR(Fraction(9), 16), Projective(Fraction(9), 16, 3)])
@pytest.mark.parametrize("less", [0.0, 0.3, 1.2])
def test_what_one_law_says_is_its_variance(response: Randomiser, less: float) -> None:
    """From counts as they are expected of many reports: exactly of k-rr; else no more, as supports hardly depend."""
    floor, n, width = Floor.of(response), 10**9, 8
    law = np.array([float(response.probability(3, output)) for output in range(response.outputs)])
    supports = response.support(np.eye(response.outputs, dtype=np.int64)).astype(np.float64)
    own, every = supports[:, 3], supports[:, :width].sum(axis=1)
    z = 1.5 * own - less * every
    expected = (law * z**2).sum() - (law * z).sum() ** 2
    one, others = (np.array([round(n * float((law * seen).sum()))]) for seen in (own, every - own))
    found = floor.of_parts(one, others, np.array([n]), width, 1.5, np.array([less]))[0] / n
    least, most = (1 - 1e-6, 1 + 1e-6) if floor.exclusive else (0.6, 1.1)
    assert least < found / expected < most
    total = (law * every**2).sum() - (law * every).sum() ** 2
    found = floor.of_sum(one + others, np.array([n]), width)[0] / n
    assert least < found / total < most


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "epsilon"), SETTINGS)
def test_answers_of_few_reports_are_as_near_as_they_say(name: str, epsilon: float, rng: np.random.Generator) -> None:
    one, two = (
        rehashed_plan(name, epsilon, sketch={"rows": 40}),
        rehashed_plan(name, epsilon, sketch={"rows": 40}, **TWO),
    )
    for n in SIZES[:4]:
        other = n // 4
        for plan, labels in ((one, None), (two, ["a"] * (n - other) + ["b"] * other)):
            asked = [(None, n)] if labels is None else [(None, n), ("a", n - other), ("b", other)]
            found: dict[Any, list[tuple[float, float]]] = {}
            for counters in trials(plan, n, rng, labels):
                tally = estimation.tally(plan, counters)
                for label, _ in asked:
                    answer = estimation.kernel_sum(plan, counters, QUERIES, label=label, tally=tally)
                    for place, pair in enumerate(zip(answer.value, answer.std_error, strict=True)):
                        found.setdefault((label, place), []).append(pair)
                    if label is not None:
                        error = estimation.count_std_error(plan, counters, label=label, tally=tally)
                        number = estimation.count_of(plan, counters, label, tally=tally)
                        found.setdefault((label, "number"), []).append((number, error))
            for (label, place), pairs in found.items():
                assert inside(pairs, 0 if place == 1 else dict(asked)[label]) >= LEAST, (n, label, place)
                assert min(error for _, error in pairs) > 0


@pytest.mark.statistical
@pytest.mark.parametrize("epsilon", [2, 8])
def test_so_are_those_of_bits(epsilon: float, rng: np.random.Generator) -> None:
    plan = wave_plan(epsilon)
    for n in SIZES[:3]:
        answers = [estimation.kernel_sum(plan, counters, QUERIES[:1]) for counters in trials(plan, n, rng)]
        pairs = [(float(answer.value[0]), float(answer.std_error[0])) for answer in answers]
        assert inside(pairs, n) >= LEAST
        assert min(error for _, error in pairs) >= math.sqrt(n)


@pytest.mark.parametrize("groups", [None, 5])
def test_reports_that_are_all_alike_have_an_error_bar(groups: int | None) -> None:
    for name in BOTH:
        plan = rehashed_plan(name, 8, sketch={"rows": 40}, **TWO)
        values = choice_of(plan)
        counters = np.zeros(plan.counters_shape, np.int64)
        counters[0, :, :] = np.eye(values.outputs, dtype=np.int64)[0]
        for label in (None, "a", "b"):
            assert (estimation.kernel_sum(plan, counters, QUERIES, label=label, groups=groups).std_error > 0).all()
        assert estimation.count_std_error(plan, counters, label="a") > 0


def test_one_row_has_no_error_bar_still(rng: np.random.Generator) -> None:
    plan = report_plan(sketch={"rows": 1})
    assert np.isnan(estimation.kernel_sum(plan, trials(plan, 20, rng)[0], QUERIES).std_error).all()


@pytest.mark.parametrize("groups", [None, 5])
def test_shares_of_a_class_that_may_be_empty_have_no_error_bar(groups: int | None, rng: np.random.Generator) -> None:
    plan = rehashed_plan("k-rr", 4, sketch={"rows": 40}, **TWO)
    for counters in trials(plan, 400, rng, ["a"] * 398 + ["b"] * 2)[:20]:
        number, error = (ask(plan, counters, label="b") for ask in (estimation.count_of, estimation.count_std_error))
        rare = estimation.density(plan, counters, QUERIES, label="b", groups=groups)
        assert np.isnan(rare.std_error).all() == (number <= 2 * error)
        assert np.isfinite(rare.value).all()
        assert np.isfinite(estimation.kernel_sum(plan, counters, QUERIES, label="b").std_error).all()
        assert np.isfinite(estimation.density(plan, counters, QUERIES, label="a", groups=groups).std_error).all()
    nothing = estimation.density(plan, np.zeros(plan.counters_shape, np.int64), QUERIES, label="b")
    assert np.isnan(nothing.std_error).all()
