"""A device's limits on what many windows may cost together, and on reports that are the same in all of them."""

from fractions import Fraction

import pytest

from edge_client import Policy, PolicyError, SettingsError
from hushsum import Plan
from hushsum.privacy.accountant import Account
from hushsum.privacy.events import TUMBLING
from hushsum.privacy.spending import spend_of
from tests.plans import secure_plan, small_plan

CLIENT = {"unit": "client", "records_per_client": 5}


def totalled(total_delta: object, **privacy: object) -> Plan:
    """A pure plan of reports of clients, whose windows are added up at this δ."""
    keys: dict[str, object] = {"mode": "local", "total_epsilon": 20, "total_delta": total_delta, **CLIENT, **privacy}
    return small_plan(privacy=keys)


def refused(policy: Policy, plan: Plan) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        policy.check(plan)
    return caught.value


def windows(plan: Plan) -> int:
    """How many the account of a device pays for."""
    return Account(plan.limits).affordable(spend_of(plan, kind=TUMBLING, window=1)) or 0


def test_a_total_is_worth_no_more_than_the_delta_at_which_it_is_counted() -> None:
    """Why the rule exists: a total of ε 20 paid for 320 windows of ε 1, in plans without any δ."""
    careful = Policy(max_epsilon=1, max_delta=0, mode="local", min_window_s=3600, max_total_epsilon=20, unit="client")
    careful.check(totalled(0))
    assert windows(totalled(0)) == 20
    assert windows(totalled("0.999999")) == 320
    for total_delta in ("0.00000001", "0.00001", "0.5", "0.999999"):
        error = refused(careful, totalled(total_delta))
        assert (error.rule, error.allowed) == ("max_total_delta", "at most 0")
        assert error.asked == f"total_delta {total_delta}, the total for this device"


@pytest.mark.parametrize("form", ["silo", "report"])
def test_a_limit_of_the_total_epsilon_limits_its_delta_too(form: str) -> None:
    delta: dict[str, object] = {"delta": "0.000001"} if form == "silo" else {}
    policy = Policy(max_epsilon=1, max_total_epsilon=20)
    for total_delta in ("0.00001", "0.0001"):
        policy.check(totalled(total_delta, local={"form": form}, **delta))
    error = refused(policy, totalled("0.000100001", local={"form": form}, **delta))
    assert (error.rule, error.allowed) == ("max_total_delta", "at most 0.0001")
    Policy(max_epsilon=1).check(totalled("0.5", local={"form": form}, **delta))  # no total is asked for


@pytest.mark.parametrize(
    ("limit", "allowed", "too_much"),
    [(0, "0", "0.000000001"), ("0.001", "0.001", "0.0010001"), (Fraction(1, 2), "0.5", "0.51"), (1, "0.999999", None)],
)
@pytest.mark.parametrize("others", [{}, {"max_total_epsilon": 20}, {"max_delta": 0}])
def test_who_names_a_total_delta_gets_that(
    limit: float | str | Fraction, allowed: str, too_much: str | None, others: dict[str, float]
) -> None:
    policy = Policy(max_total_delta=limit, **others)  # type: ignore[arg-type]  # a dict of any rule
    policy.check(totalled(allowed))
    if too_much is not None:
        assert refused(policy, totalled(too_much)).rule == "max_total_delta"


def test_who_demands_pure_plans_demands_pure_totals() -> None:
    Policy(max_delta=0).check(totalled(0))
    assert refused(Policy(max_delta=0), totalled("0.00001")).rule == "max_total_delta"


def test_the_failures_of_a_secure_sum_need_a_total_of_their_own() -> None:
    plan = secure_plan()
    assert plan.limits.delta > 0
    Policy(max_total_epsilon=100).check(plan)
    Policy(max_delta=plan.guarantee.delta, max_total_epsilon=100, max_total_delta=plan.limits.delta).check(plan)
    assert refused(Policy(max_total_delta=plan.limits.delta / 2), plan).rule == "max_total_delta"
    assert refused(Policy(max_total_delta=0), plan).rule == "max_total_delta"


@pytest.mark.parametrize("limit", ["1.000001", -1.0, float("nan"), "little", True])
def test_a_total_that_is_no_share_is_refused(limit: float | str) -> None:
    with pytest.raises(SettingsError, match=r"max_total_delta: got .* expected a number from 0 to 1"):
        Policy(max_total_delta=limit)


def test_memoised_reports_are_refused_unless_the_owner_allows_them() -> None:
    memoised = totalled(0, local={"memoise": True})
    error = refused(Policy(mode="local"), memoised)
    assert error.rule == "memoise"
    assert "make recurring records visible" in error.asked
    Policy(mode="local", memoise=True).check(memoised)
    for plan in (totalled(0), small_plan(), secure_plan()):
        Policy(memoise=True).check(plan)
        Policy().check(plan)
    with pytest.raises(SettingsError, match="memoise: got 1, expected True or False"):
        Policy(memoise=1)  # type: ignore[arg-type]  # that is the point
