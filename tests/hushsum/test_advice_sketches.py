"""The sketch that is advised for a kernel: every family that has it, with its best rows, buckets or order."""

import math

import pytest

import hushsum as hs
from hushsum.advice import Allowance, SketchChoice, advise, choose_sketch
from hushsum.errors import GuaranteeError
from tests.hushsum import local_plans
from tests.plans import small_plan

LIMITS = Allowance(memory_mib=0.1)


def chosen(plan: hs.Plan, allowance: Allowance = LIMITS) -> tuple[SketchChoice, ...]:
    return choose_sketch(plan, records=20_000, density=0.1, allowance=allowance)


def test_a_kernel_is_tried_in_every_family_that_has_it_and_the_least_error_is_first() -> None:
    plan = small_plan(sketch={"kernel": "laplacian"})
    found = chosen(plan)
    assert {choice.plan.family.name for choice in found} == {"hashed", "fourier"}
    assert [choice.error for choice in found] == sorted(choice.error for choice in found)
    assert found[0].error < advise(plan, records=20_000, density=0.1, allowance=LIMITS).std_error / 3
    for choice in found:
        fields = choice.plan.family.to_fields()
        assert (fields["kernel"], fields["bandwidth"]) == ("laplacian", "2.5")
        assert (choice.plan.privacy.epsilon, choice.plan.privacy.delta) == (plan.privacy.epsilon, plan.privacy.delta)


def test_what_is_said_of_a_choice_is_what_advice_says_of_its_plan_which_is_within_the_limits() -> None:
    best = chosen(small_plan())[0]
    advice = advise(best.plan, records=20_000, density=0.1, allowance=LIMITS)
    assert best.std_error == pytest.approx(advice.std_error, rel=1e-9)
    assert advice.own.exceeds == ()
    assert hs.Plan.from_bytes(best.plan.to_bytes()) == best.plan


def test_orders_count_with_the_bias_that_they_may_have() -> None:
    found = chosen(small_plan(sketch={"family": "fourier", "kernel": "gaussian", "buckets": ...}))
    orders = {int(str(choice.plan.family.to_fields()["order"])): choice for choice in found[1:] if choice.bias > 1}
    assert orders[1].std_error < orders[4].std_error
    assert orders[1].bias > orders[4].bias > 0
    assert all(choice.error == math.hypot(choice.std_error, choice.bias) for choice in found)


def test_moments_are_tried_with_the_weights_that_have_the_least_noise_each_sketch_once() -> None:
    keys = {"family": "hermite", "kernel": "gaussian", "rows": ..., "buckets": ..., "seed": ..., "order": 4}
    equal = small_plan(sketch=keys)
    found = [choice for choice in chosen(equal) if choice.plan.family.name == "hermite"]
    weights = {str(choice.plan.family.to_fields().get("weights", "equal")) for choice in found}
    assert weights == {"equal", "laplace"}
    assert len({choice.plan.id for choice in found}) == len(found)
    at_four = {
        choice.plan.id == equal.id: choice.std_error for choice in found if choice.plan.family.to_fields()["order"] == 4
    }
    assert 0.9 * at_four[True] < at_four[False] < 0.95 * at_four[True]
    weighted = next(choice.plan for choice in found if choice.plan.family.to_fields().get("weights"))
    again = [choice.plan.id for choice in chosen(weighted)]
    assert len(set(again)) == len(again)


def test_where_nothing_is_within_the_limits_that_is_said() -> None:
    with pytest.raises(ValueError, match="no sketch of this kernel is within the limits"):
        chosen(small_plan(), Allowance(memory_mib=1e-6))


def test_reports_have_advice_of_their_own() -> None:
    with pytest.raises(GuaranteeError, match="use advise_reports"):
        chosen(local_plans.report_plan())
