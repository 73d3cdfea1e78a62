"""A device's policy refuses a plan by name, and by what its mechanism can keep."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest

from edge_client import Policy, PolicyError, SettingsError
from hushsum import Plan
from hushsum.privacy.cohort import FAILURE
from tests.plans import client_plan, secure_plan, small_plan


def local_plan(privacy: dict[str, object] | None = None, **local: object) -> Plan:
    """A small plan of mode local: randomised reports, unless told otherwise."""
    return small_plan(privacy={"mode": "local", "local": local, **(privacy or {})})


LOCAL_PLANS = {
    "silo": local_plan(form="silo"),
    "k-rr": local_plan(),
    "projective": local_plan(randomiser="projective"),
    "shuffled": local_plan({"delta": "0.00001", "total_delta": "0.00001"}, shuffle_min=1000),
}


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


def approximate(delta: object) -> Plan:
    return small_plan(privacy={"delta": delta, "total_delta": "0.5"})


def test_a_delta_above_the_limit_is_refused() -> None:
    Policy(max_delta="0.000001").check(approximate("0.000001"))
    with pytest.raises(PolicyError) as caught:
        Policy(max_delta=0).check(approximate("0.000001"))
    assert (caught.value.rule, caught.value.asked) == ("max_delta", "delta 0.000001 per window and record")
    assert caught.value.allowed == "at most 0"


def test_a_large_delta_is_refused_unless_the_owner_allows_it() -> None:
    Policy().check(approximate("0.00001"))
    with pytest.raises(PolicyError, match="max_delta"):
        Policy(max_epsilon=1).check(approximate("0.001"))
    Policy(max_delta=None).check(approximate("0.001"))


def test_an_owner_may_demand_protection_of_all_that_a_client_sends() -> None:
    Policy(unit="client").check(client_plan())
    Policy(unit="record").check(client_plan())  # which protects each record, too
    Policy(unit="record").check(small_plan())
    with pytest.raises(PolicyError, match="unit 'record'") as caught:
        Policy(unit="client").check(small_plan())
    assert caught.value.rule == "unit"


@pytest.mark.parametrize("plan", [small_plan(), approximate("0.000001")], ids=["pure", "approximate"])
def test_a_plan_whose_mechanism_does_not_support_its_claim_is_refused_whatever_the_rules(plan: Plan) -> None:
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


@pytest.mark.parametrize("limit", [1, -1.0, float("nan"), "little", True])
def test_a_limit_that_is_no_delta_is_refused(limit: float | str) -> None:
    with pytest.raises(SettingsError, match="max_delta"):
        Policy(max_delta=limit)


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(SettingsError, match="'record' or 'client'"):
        Policy(unit="household")


def test_an_owner_may_demand_that_nobody_sees_whether_the_device_takes_part() -> None:
    public = secure_plan()
    Policy(participation="protected").check(small_plan())
    for rule in (None, "public"):
        Policy(participation=rule).check(small_plan())
        Policy(participation=rule).check(public)
    with pytest.raises(PolicyError, match="mode 'secure', in which participation is visible") as caught:
        Policy(participation="protected").check(public)
    assert caught.value.rule == "participation"


def test_an_unknown_participation_is_refused() -> None:
    with pytest.raises(SettingsError, match="participation: got 'secret', expected 'protected' or 'public'"):
        Policy(participation="secret")


def test_the_failure_of_a_secure_sum_counts_as_delta() -> None:
    Policy().check(secure_plan())
    Policy(max_delta=FAILURE).check(secure_plan())
    with pytest.raises(PolicyError) as caught:
        Policy(max_delta=0).check(secure_plan())
    assert caught.value.rule == "max_delta"


MODES_OF_PLANS = {"central": small_plan(), "secure": secure_plan(), **LOCAL_PLANS}


@pytest.mark.parametrize("weakest", [None, "central", "secure", "local"])
@pytest.mark.parametrize("of", list(MODES_OF_PLANS))
def test_the_weakest_mode_that_a_device_accepts_allows_every_stricter_one(weakest: str | None, of: str) -> None:
    order = ["central", "secure", "local"]
    plan, policy = MODES_OF_PLANS[of], Policy(mode=weakest)
    if order.index(plan.privacy.mode) >= order.index(weakest or "central"):
        policy.check(plan)
        return
    with pytest.raises(PolicyError, match=f"mode '{plan.privacy.mode}'") as caught:
        policy.check(plan)
    assert caught.value.rule == "mode"
    assert "local" in caught.value.allowed


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(SettingsError, match="mode: got 'federated', expected 'central' or 'secure' or 'local'"):
        Policy(mode="federated")


def test_who_demands_secure_sums_trusts_no_server_to_keep_to_the_protocol() -> None:
    curious = secure_plan({"adversary": "honest-but-curious", "directory": "ab" * 32})
    with pytest.raises(PolicyError, match="trusted to follow the protocol") as caught:
        Policy(mode="secure").check(curious)
    assert caught.value.rule == "mode"
    Policy(directory=True).check(curious)  # another question
    Policy(mode="secure").check(secure_plan({"directory": ""}))  # and so is this: see the next rule


def test_a_device_may_demand_a_directory_of_clients() -> None:
    known = secure_plan({"directory": "ab" * 32})
    Policy(directory=True).check(known)
    Policy(directory=True).check(small_plan())
    with pytest.raises(PolicyError) as caught:
        Policy(directory=True).check(secure_plan())
    assert caught.value.rule == "directory"
    with pytest.raises(SettingsError, match="directory"):
        Policy(directory="yes")  # type: ignore[arg-type]  # that is the point


def test_who_wants_not_to_be_seen_takes_part_in_no_secure_sum() -> None:
    with pytest.raises(PolicyError) as caught:
        Policy(participation="protected").check(secure_plan())
    assert caught.value.rule == "participation"


def test_windows_may_not_be_shorter_than_the_owner_asks_for() -> None:
    for least in (3600, "3600", 3600.0, 1, None):
        Policy(min_window_s=least).check(small_plan())
    with pytest.raises(PolicyError) as caught:
        Policy(min_window_s="3600.001").check(small_plan())
    assert (caught.value.rule, caught.value.allowed) == ("min_window_s", "windows of at least 3600.001 s")
    assert "windows of 3600 s" in caught.value.asked


def test_the_total_of_a_population_is_what_a_device_may_spend_in_its_lifetime() -> None:
    for most in (100, "100", 1000, None):
        Policy(max_total_epsilon=most).check(small_plan())
    with pytest.raises(PolicyError) as caught:
        Policy(max_total_epsilon="99.999").check(small_plan())
    assert (caught.value.rule, caught.value.allowed) == ("max_total_epsilon", "at most 99.999")
    assert caught.value.asked.startswith("total_epsilon 100, ")


@pytest.mark.parametrize("rule", ["min_window_s", "max_total_epsilon"])
@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), "long", True])
def test_a_rule_that_is_no_number_above_zero_is_refused(rule: str, limit: float | str) -> None:
    with pytest.raises(SettingsError, match=f"{rule}: got .* expected a number above 0"):
        Policy(**{rule: limit})  # type: ignore[arg-type]  # a dict of any rule


@pytest.mark.parametrize("plan", LOCAL_PLANS.values(), ids=LOCAL_PLANS)
def test_the_rules_of_numbers_hold_for_local_plans_and_no_shuffler_softens_them(plan: Plan) -> None:
    Policy(max_epsilon=1, max_total_epsilon=100, min_window_s=3600, mode="local").check(plan)
    for rule, limit in (("max_epsilon", "0.999"), ("max_total_epsilon", 99), ("min_window_s", 3601)):
        with pytest.raises(PolicyError) as caught:
            Policy(**{rule: limit}).check(plan)  # type: ignore[arg-type]  # a dict of any rule
        assert caught.value.rule == rule


@pytest.mark.parametrize("plan", LOCAL_PLANS.values(), ids=LOCAL_PLANS)
def test_a_local_plan_whose_parameters_do_not_support_its_claim_is_refused_always(plan: Plan) -> None:
    """Less noise than it needs: a smaller scale; or a likelihood ratio of 2.71829, just above e."""
    mechanism, local = plan.privacy.mechanism, plan.privacy.local
    assert local is not None
    worse = mechanism.scale + (Fraction(1, 10**5) if local.reports else -Fraction(1, 10**4))
    tampered = Plan.from_bytes(plan.bundle)
    weaker = replace(plan.privacy, mechanism=replace(mechanism, scale=worse))
    object.__setattr__(tampered, "privacy", weaker)
    with pytest.raises(PolicyError, match="does not support") as caught:
        Policy().check(tampered)
    assert caught.value.rule == "mechanism"


def test_a_device_that_wants_not_to_be_seen_sends_no_reports() -> None:
    for plan in LOCAL_PLANS.values():
        with pytest.raises(PolicyError) as caught:
            Policy(participation="protected").check(plan)
        assert caught.value.rule == "participation"


# ---------------------------------------------------------------------------------------------------- a change of plan

CURIOUS = {"adversary": "honest-but-curious"}


def total(total_epsilon: int, **privacy: object) -> Plan:
    return small_plan(privacy={"total_epsilon": total_epsilon, **privacy})


@pytest.mark.parametrize(
    ("earlier", "plan"),
    [
        (total(3), small_plan(privacy={"total_epsilon": 2}, sketch={"rows": 10})),
        (small_plan(), LOCAL_PLANS["k-rr"]),
        (secure_plan(CURIOUS), secure_plan(CURIOUS, sketch={"rows": 10})),
        (secure_plan(CURIOUS), secure_plan()),
        (secure_plan(), LOCAL_PLANS["silo"]),
        (secure_plan(), secure_plan({"corrupt": "0.2"})),
    ],
    ids=["a lower total", "a stricter mode", "the same adversary", "a stronger one", "from secure to local", "corrupt"],
)
def test_a_plan_that_protects_as_its_predecessor_does_may_follow_it(earlier: Plan, plan: Plan) -> None:
    Policy().check_change(earlier, plan, None)


@pytest.mark.parametrize(
    ("earlier", "plan", "why"),
    [
        (small_plan(), small_plan(privacy={"population": "another"}), "population 'another'.*begins to count anew"),
        (total(3), total(4), "at most the total of the plan before, 3, but the plan has total_epsilon 4"),
        (secure_plan(), small_plan(), "rule mode"),
        (LOCAL_PLANS["silo"], secure_plan(), "rule mode"),
        (secure_plan(), secure_plan(CURIOUS), "adversary 'honest-but-curious'"),
        (secure_plan({"corrupt": "0.2"}), secure_plan(), "a share of 0.1 may be corrupt"),
    ],
    ids=["another population", "a raised total", "central", "secure", "a weaker adversary", "fewer corrupt clients"],
)
def test_a_plan_that_protects_less_than_its_predecessor_may_not_follow_it(earlier: Plan, plan: Plan, why: str) -> None:
    Policy().check(plan)
    with pytest.raises(PolicyError, match=why):
        Policy().check_change(earlier, plan, None)
    Policy().check(earlier)


def test_a_policy_of_mode_secure_still_wants_a_malicious_adversary_after_a_weaker_one() -> None:
    with pytest.raises(PolicyError, match="mode 'secure' with adversary 'malicious'"):
        Policy(mode="secure").check_change(secure_plan(CURIOUS), secure_plan(CURIOUS), None)
