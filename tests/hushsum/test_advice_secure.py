"""Advice for secure sums: noise of every cohort, at exactly h survivors and with all, and what a client uploads."""

import math
from dataclasses import replace
from functools import cache

import pytest

from hushsum.advice import Advice, Allowance, advise
from hushsum.query import draws_of, noise_std_error
from tests.plans import secure_plan

ALLOWANCE = Allowance(memory_mib=0.2)


@cache
def advice(clients: int, *, cohort: int = 100, delta: str = "0") -> Advice:
    plan = secure_plan({"cohort": cohort}, privacy={"delta": delta})
    return advise(plan, records=1_000, density=0.2, clients=clients, allowance=ALLOWANCE)


@pytest.mark.parametrize("delta", ["0", "0.000001"])
def test_one_cohort_has_the_noise_of_exactly_h_shares(delta: str) -> None:
    found = advice(100, delta=delta)
    noise = found.own.noises[found.own_promise]
    assert noise == pytest.approx(noise_std_error(found.plan))
    assert found.more_noise == pytest.approx(math.sqrt(100 / 80))
    assert found.std_error_of_all == pytest.approx(
        math.hypot(found.own.hashing, noise_std_error(found.plan, draws=draws_of(found.plan, 100)))
    )


def test_every_cohort_adds_its_own_noise() -> None:
    one, many = advice(100), advice(400)
    assert many.own.noises[0] == pytest.approx(2 * one.own.noises[0])
    assert many.more_noise == pytest.approx(one.more_noise)
    assert advice(400, cohort=400).own.noises[0] < many.own.noises[0] / 1.9


def test_few_clients_are_never_said_to_have_less_noise_than_h() -> None:
    assert advice(50).more_noise == 1


def test_delta_above_0_is_shown_to_be_better_with_many_rows() -> None:
    found = advice(100)
    assert [promise.name for promise in found.promises] == ["pure", "zCDP"]
    large = found.sizes[-1]
    assert large.rows is not None
    assert large.rows >= 50
    assert large.noises[0] > 2 * large.noises[1]


def test_the_upload_is_the_vector_and_shares_for_each_neighbour() -> None:
    found = advice(100)
    cohort, costs = found.plan.privacy.cohort, found.own.costs
    assert cohort is not None
    assert costs.upload_bytes is not None
    shares = costs.upload_bytes - found.plan.words.bytes
    assert 60 * cohort.degree < shares < 100 * cohort.degree + 1000
    assert found.to_fields()["secure"] == {
        "cohorts": 1,
        "clients_in_cohorts": 100,
        "corrupt_clients": None,
        "pool": 0,
        "corrupt_of_cohort": 10,
        "survivors_min": 90,
        "honest_survivors": 80,
        "degree": cohort.degree,
        "threshold": cohort.threshold,
        "std_error_of_all": found.std_error_of_all,
    }


def test_no_limit_on_deltas_holds_where_none_are_sent() -> None:
    costs = advice(100).own.costs
    tight = Allowance(delta_kib=1e-6)
    assert tight.exceeded(costs) == ()
    assert tight.exceeded(replace(costs, upload_bytes=None)) == ("delta_kib",)
