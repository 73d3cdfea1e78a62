"""What the server of a secure sum sees: honest shares keep the claim, and each planted mistake is caught."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from hushsum.noise import PolyaShare
from hushsum.plan import Plan
from hushsum_simulator.audit import cases, runner, secure
from hushsum_simulator.audit.empirical import shares_check
from hushsum_simulator.audit.exact import GAUSSIAN, LAPLACE, Bounds, changes, disagreements, gaussian_losses, stated
from hushsum_simulator.audit.pipelines import added, submitted
from hushsum_simulator.audit.secure import (
    NoiseShare,
    drawn_sum,
    gaussian_sum,
    honest_shares,
    polya_sum,
    sum_epsilon,
    sum_law,
)
from tests.hushsum.noise.observed_polya import realised
from tests.hushsum_simulator.audit import planted

PLANS = [*runner.secure_plans()]
IDS = [f"{plan.privacy.mechanism.name} {plan.privacy.unit}" for plan in PLANS]
COHORTS = [*runner.cohort_plans()]
every_cohort = pytest.mark.parametrize("plan", COHORTS, ids=["polya", "gaussian"])
every_plan = pytest.mark.parametrize("plan", PLANS, ids=IDS)
CLIENT: dict[str, object] = {"unit": "client", "records_per_client": 2}
DELTA: dict[str, object] = {"delta": "0.000001"}


def found(plan: Plan) -> float:
    return sum_epsilon(plan, changes(plan, submitted))


@contextmanager
def a_mistake(mistake: planted.Plant) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch)
        yield


@lru_cache
def observed(share: PolyaShare, reach: int) -> Any:
    return realised(share, reach)


def drawn(share: NoiseShare, number: int, reach: int) -> Bounds:
    """The law of a sum of what the code draws, by its observed decisions, near 0: where too few shares show most."""
    assert isinstance(share, PolyaShare)
    looked, reach = 24, min(reach, 4)
    one, law = observed(share, looked), np.ones(1)
    for _ in range(number):
        law = np.convolve(law, one)
    middle = len(law) // 2
    return {k: (Fraction(float(law[middle + k])),) * 2 for k in range(-reach, reach + 1)}


# -------------------------------------------------------------------------------------------------- honest shares


@every_plan
def test_no_sum_of_a_cohort_tells_more_than_is_claimed(plan: Plan) -> None:
    claimed = float(plan.privacy.epsilon)
    assert found(plan) <= claimed * (1 + 1e-9)
    assert found(plan) >= claimed * (0.999999 if plan.privacy.delta == 0 else 0.9), "the worst case is among them"


@every_plan
def test_what_a_device_submits_changes_as_records_do(plan: Plan) -> None:
    assert plan.guarantee.relation == "zero-out"
    assert changes(plan, submitted) == changes(plan, added)


@pytest.mark.parametrize("clients", [5, 6, 7, 14])
def test_clients_sign_no_sum_of_fewer_honest_shares_than_the_noise_is_made_of(clients: int) -> None:
    plan = cases.secure_plan_of(clients)
    assert honest_shares(plan) == plan.privacy.mechanism.honest_survivors == clients - 2


@pytest.mark.parametrize("number", [1, 3, 5])
def test_polya_shares_come_to_laplace_noise_where_there_are_as_many_as_there_should_be(number: int) -> None:
    scale = Fraction(7, 3)
    whole = stated(LAPLACE, scale, 80)
    assert disagreements(polya_sum(PolyaShare(scale, number), number, 80), whole) == []
    assert len(disagreements(polya_sum(PolyaShare(scale, number), number + 1, 80), whole)) > 150


def test_it_holds_for_the_shares_that_are_drawn() -> None:
    plan = cases.secure_plan_of(5)
    assert sum_epsilon(plan, changes(plan, submitted), drawn) == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize("change", [(2,), (1, 1), (1, 1, 2)], ids=str)
def test_one_gaussian_share_alone_loses_what_whole_noise_loses(change: tuple[int, ...]) -> None:
    alone = secure._gaussian_epsilon(Fraction(41), 1, change, 1e-6)
    assert alone == pytest.approx(gaussian_losses(change, Fraction(41)).epsilon(1e-6), rel=1e-7)


def test_the_law_of_gaussian_shares_is_that_of_their_convolution() -> None:
    k = np.arange(-300, 301)
    one = np.exp(-np.square(k) / (2 * 4.5))
    one /= one.sum()
    law, missing = gaussian_sum(Fraction(9, 2), 3)
    middle = len(law) // 2
    three = np.convolve(np.convolve(one, one), one)[900 - 40 : 900 + 41]
    assert law[middle - 40 : middle + 41] == pytest.approx(three, rel=1e-9, abs=1e-16)
    assert missing < 1e-28
    assert sum_law(GAUSSIAN, PLANS[3].privacy.mechanism.share(), 3, 20).shape == (41,)


@pytest.mark.statistical
@pytest.mark.parametrize("keys", [{}, DELTA], ids=["polya", "gaussian"])
def test_drawn_shares_sum_to_what_is_stated_and_half_the_noise_does_not(keys: dict[str, object]) -> None:
    """χ², false alarm 1e-6."""
    plan = cases.secure_plan_of(5, **keys)
    assert shares_check(plan, 20_000).holds
    with a_mistake(planted.half_the_noise_in_the_sampler):
        assert not shares_check(plan, 4000).holds


# ------------------------------------------------------------------------------------------------- large cohorts


def cohort_found(plan: Plan) -> float:
    return sum_epsilon(plan, changes(plan, submitted), drawn_sum)


@pytest.mark.parametrize("number", [80, 800, 8000])
def test_drawn_polya_shares_come_to_laplace_noise_however_many(number: int) -> None:
    scale = Fraction(3, 2)
    law = drawn_sum(PolyaShare(scale, number), number, 10)
    assert set(law) == set(range(-10, 11))
    assert disagreements(law, stated(LAPLACE, scale, 10)) == []


@every_cohort
def test_a_cohort_of_800_honest_clients_keeps_what_is_claimed(plan: Plan) -> None:
    assert honest_shares(plan) == plan.privacy.mechanism.honest_survivors == 800
    claimed = float(plan.privacy.epsilon)
    assert 0.9 * claimed <= cohort_found(plan) <= claimed * (1 + 1e-9)
    assert shares_check(plan, 2000).holds


def test_half_the_variance_of_many_shares_is_caught_where_few_do_not_show_it() -> None:
    with a_mistake(planted.half_the_variance_of_many_shares):
        rows = [*runner._secure()]
        assert not shares_check(COHORTS[0], 2000).holds
    few, many = rows[: len(PLANS)], rows[len(PLANS) :]
    assert all(row.holds for row in few)
    assert not any(row.holds for row in many)
    assert [(row.exact or 0) > 1.25 * row.epsilon for row in many] == [True, True]


def test_a_scale_five_percent_off_with_many_shares_is_caught() -> None:
    with a_mistake(planted.five_percent_less_of_many_shares):
        assert cohort_found(COHORTS[0]) == pytest.approx(1.05, abs=1e-6)


def test_a_block_of_sizes_that_many_shares_never_draw_is_caught() -> None:
    with a_mistake(planted.no_events_of_one_block):
        assert cohort_found(COHORTS[0]) > 1.3


@every_cohort
def test_one_honest_client_too_few_of_801_is_caught(plan: Plan) -> None:
    with a_mistake(planted.sign_one_survivor_too_few):
        assert honest_shares(plan) == 799
        if plan.privacy.delta == 0:
            assert cohort_found(plan) > 1.001


# ------------------------------------------------------------------------------------------------- planted mistakes


@every_plan
@pytest.mark.parametrize(
    "mistake", [planted.sign_one_survivor_too_few, planted.a_share_of_one_client_more], ids=lambda each: each.__name__
)
def test_noise_of_one_share_too_few_is_caught(plan: Plan, mistake: planted.Plant) -> None:
    with a_mistake(mistake):
        assert found(plan) > 1.02 * float(plan.privacy.epsilon)


def test_it_is_caught_in_the_shares_that_are_drawn_too() -> None:
    plan = cases.secure_plan_of(5)
    with a_mistake(planted.sign_one_survivor_too_few):
        assert sum_epsilon(plan, changes(plan, submitted), drawn) > 1.4


@pytest.mark.parametrize("keys", [{}, CLIENT, DELTA, {**DELTA, **CLIENT}], ids=str)
def test_noise_of_corrupt_clients_that_is_counted_is_caught(keys: dict[str, object]) -> None:
    with a_mistake(planted.count_the_noise_of_the_corrupt):
        plan = cases.secure_plan_of(5, **keys)
        assert plan.privacy.mechanism.honest_survivors == 4, "plan, calibration and verifier all believe it"
        assert honest_shares(plan) == 3
        assert found(plan) > 1.05


@pytest.mark.parametrize("keys", [{}, DELTA], ids=["polya", "gaussian"])
def test_a_scale_of_one_record_is_caught_where_a_client_has_two(keys: dict[str, object]) -> None:
    honest = cases.secure_plan_of(5, **keys, **CLIENT)
    with a_mistake(planted.calibrate_for_one_record):
        plan = cases.secure_plan_of(5, **keys, **CLIENT)
        assert plan.privacy.mechanism.scale < honest.privacy.mechanism.scale, "calibration and verifier both believe it"
        assert found(plan) > 1.8


def test_where_no_client_need_be_honest_nothing_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cases.secure_plan_of(5)
    monkeypatch.setattr("hushsum_simulator.audit.secure.NeighbourGraph.check_survivors", lambda *_: None)
    assert honest_shares(plan) == 0
    assert found(plan) == math.inf


def test_the_table_shows_the_mode_of_every_promise() -> None:
    rows = [*runner._secure()]
    assert len(rows) == len(PLANS) + len(COHORTS)
    assert {(row.mode, row.relation, row.unit) for row in rows} == {
        ("secure", "zero-out", "record"),
        ("secure", "zero-out", "client"),
    }
    assert all(row.holds and row.exact is not None for row in rows)
