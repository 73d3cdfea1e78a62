"""A device's policy refuses a plan by name, and by what its mechanism can keep."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest

from edge_client import Policy, PolicyError, SettingsError
from hushsum import Plan
from tests.plans import client_plan, small_plan


@pytest.mark.parametrize("limit", [1.0, 1, "1", Decimal("1.0"), Fraction(1), 2, None])
def test_a_plan_within_the_limit_is_allowed(limit: float | str | Decimal | Fraction | None) -> None:
    Policy(max_epsilon=limit).check(small_plan())
    Policy(max_epsilon=limit).check(client_plan())


def test_the_limit_is_exact() -> None:
    plan = small_plan(privacy={"epsilon": 0.1})
    Policy(max_epsilon=0.1).check(plan)
    with pytest.raises(PolicyError) as caught:
        Policy(max_epsilon="0.0999999999999999999999").check(plan)
    assert (caught.value.rule, caught.value.asked) == ("max_epsilon", "epsilon 0.1 per window and record")
    assert caught.value.allowed == "at most 0.0999999999999999999999"


def test_a_plan_whose_mechanism_does_not_support_its_claim_is_refused_whatever_the_rules() -> None:
    plan = small_plan()
    weaker = replace(plan.privacy.mechanism, scale=plan.privacy.mechanism.scale * Fraction(99, 100))
    tampered = Plan.from_bytes(plan.to_bytes())
    object.__setattr__(tampered, "privacy", replace(plan.privacy, mechanism=weaker))
    with pytest.raises(PolicyError, match="does not support epsilon 1") as caught:
        Policy().check(tampered)
    assert caught.value.rule == "mechanism"


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf"), "much", "1/0", True])
def test_a_limit_that_is_no_number_above_zero_is_refused(limit: float | str) -> None:
    with pytest.raises(SettingsError, match="max_epsilon"):
        Policy(max_epsilon=limit)
