"""The zCDP that pure noise implies, against other libraries: divergences by mpmath, compositions by dp_accounting."""

import math
from dataclasses import replace
from fractions import Fraction
from functools import reduce

import mpmath  # type: ignore[import-untyped]  # it has no stubs
import pytest
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_discrete_laplace_mechanism

from hushsum.plan import Plan
from hushsum.privacy.accountant import Account
from hushsum.privacy.events import ONE_REPORT, Event, Spend
from hushsum.privacy.relations import Cost
from hushsum.privacy.statement import account_told
from hushsum.privacy.verifier import loss_of
from hushsum.privacy.zcdp import epsilon_of
from hushsum.releases import spend_of
from hushsum.sensitivity import Sensitivity
from tests.plans import secure_plan, small_plan

MILLIONTH = Fraction(1, 10**6)
CLIENT = {"unit": "client", "records_per_client": 1}


def a_plan(rows: int, **privacy: object) -> Plan:
    """Of ε = 1 a window, within a total of ``total_epsilon`` at δ = 10⁻⁶."""
    keys = {"epsilon": 1, "total_epsilon": 1, "total_delta": "0.000001", **privacy}
    return small_plan(sketch={"rows": rows}, privacy=keys)


def with_c(plan: Plan, c: int, b: int) -> Plan:
    """The same with the noise of an older version."""
    return plan.replace_privacy(mechanism={"name": "discrete-laplace", "scale": b, "count_scale": c})


def windows(plan: Plan, number: int) -> list[Spend]:
    return [spend_of(plan, kind="tumbling", window=window) for window in range(number)]


def total(plan: Plan, number: int) -> Cost:
    spent = Account(plan.limits).recorded(*windows(plan, number)).cost
    assert spent is not None
    return spent


# ----------------------------------------------------------------------------------------------------- divergences


def divergence(order: float, shift: int, scale: float) -> mpmath.mpf:
    """The Rényi divergence of discrete Laplace noise from itself moved by so many, summed over all integers."""
    with mpmath.workdps(60):
        alpha, b = mpmath.mpf(order), mpmath.mpf(scale)
        q = mpmath.exp(-1 / b)
        mass = (1 - q) / (1 + q)

        def term(k: int) -> mpmath.mpf:
            return mpmath.exp(-(alpha * abs(k) + (1 - alpha) * abs(k - shift)) / b)

        inside = sum((term(k) for k in range(shift + 1)), start=mpmath.mpf(0))
        outside = (term(-1) + term(shift + 1)) / (1 - q)  # geometric from there
        return mpmath.log(mass * (inside + outside)) / (alpha - 1)


@pytest.mark.parametrize("scale", [0.1, 0.7, 5.3, 53.0], ids=str)
def test_a_counter_that_moves_by_a_loses_half_the_square_of_a_over_b(scale: float) -> None:
    for shift in (1, 2, 7, 20):
        bound = shift**2 / (2 * scale**2)
        for order in (1.001, 1.5, 2.0, 10.0, 1000.0):
            assert divergence(order, shift, scale) <= order * bound * (1 + 1e-12)
    if scale > 50:
        assert divergence(2.0, 1, scale) > 0.99 * 2 / (2 * scale**2), "no smaller factor would do"


def test_each_report_loses_half_the_square_of_ln_lambda_and_no_report_more_than_its_share() -> None:
    ratio, reports = Fraction(7), 12
    event = Event("k-rr", ratio, ONE_REPORT.times(reports, reports), Fraction(24))
    assert math.isclose(event.loss.pure_rho, reports * math.log(7) ** 2 / 2)
    assert event.loss.pure_rho > reports * Fraction(math.log(7) * (1 - 1e-15)) ** 2 / 2, "rounded up"
    assert event.loss.pure_rho < event.epsilon**2 / 2
    with mpmath.workdps(60):  # of randomised response between two values, the worst of that ratio
        p = mpmath.mpf(7) / 8
        for order in (1.001, 2, 50):
            found = mpmath.log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)) / (order - 1)
            assert reports * found <= order * mpmath.mpf(float(event.loss.pure_rho)) * (1 + mpmath.mpf(10) ** -15)


def test_no_event_implies_more_than_half_the_square_of_its_epsilon() -> None:
    one = Sensitivity(l0=1, l1=1, l2_squared=1, linf=1)
    assert Event("discrete-laplace", Fraction(10), one, Fraction(1)).loss.pure_rho == Fraction(1, 200)
    assert Event("discrete-laplace", Fraction(10), one, Fraction(1, 10)).loss.pure_rho == Fraction(1, 200)
    assert Event("report-noisy-max", Fraction(20), one, Fraction(1)).loss.pure_rho == Fraction(1, 2)


# ---------------------------------------------------------------------------------------------------- compositions


def losses(b: Fraction, changes: dict[int, int], times: int) -> PrivacyLossDistribution:
    """Of so many draws on counters of which ``changes[a]`` differ by a, rounded towards less."""
    each = [
        from_discrete_laplace_mechanism(
            1 / float(b), shift, pessimistic_estimate=False, value_discretization_interval=1 / float(b) / 8
        ).self_compose(number * times)
        for shift, number in changes.items()
    ]
    return reduce(lambda one, other: one.compose(other), each)


@pytest.mark.parametrize(
    ("rows", "c", "number", "charged", "proven"),
    [(1000, 53, 1, 0.2438, 0.1547), (1000, 53, 100, 2.8804, 2.6411), (100, 6, 100, 5.8192, 5.4257)],
)
def test_what_the_ledger_charges_for_windows_of_a_client_is_near_the_exact_epsilon(
    rows: int, c: int, number: int, charged: float, proven: float
) -> None:
    plan = with_c(a_plan(rows, **CLIENT), c, rows + c)
    cost = total(plan, number)
    assert cost.delta == MILLIONTH
    assert float(cost.epsilon) == pytest.approx(charged, abs=1e-4)
    exact = losses(Fraction(rows + c), {1: rows, c: 1}, number).get_epsilon_for_delta(1e-6)
    assert exact == pytest.approx(proven, abs=1e-4)
    assert exact <= float(cost.epsilon)


def test_a_year_of_daily_windows_of_a_client_costs_little_more_than_three() -> None:
    plan = a_plan(1000, **CLIENT, total_epsilon="3.1")
    assert plan.privacy.mechanism.count_scale == 8
    assert plan.privacy.mechanism.scale == 1008
    account = reduce(Account.charge, windows(plan, 365), Account(plan.limits))
    assert float(account.spent.epsilon) == pytest.approx(3.0537, abs=1e-4)
    assert account.spent.delta == MILLIONTH
    exact = losses(Fraction(1008), {1: 1000, 8: 1}, 365).get_epsilon_for_delta(1e-6)
    assert 0.9 * float(account.spent.epsilon) < exact <= float(account.spent.epsilon)


def test_all_records_of_a_client_may_move_the_same_counters() -> None:
    plan = a_plan(100, unit="client", records_per_client=5)
    (event,) = windows(plan, 1)[0].events
    assert isinstance(event, Event)
    assert event.loss.pure_rho == Fraction(25 * (100 + plan.privacy.mechanism.count_scale**2)) / (2 * event.scale**2)
    changes = {5: 100, 5 * plan.privacy.mechanism.count_scale: 1}
    exact = losses(event.scale, changes, 20).get_epsilon_for_delta(1e-6)
    assert 0.85 * float(total(plan, 20).epsilon) < exact <= float(total(plan, 20).epsilon)


# -------------------------------------------------------------------------------------------------- what readers see


def test_windows_of_records_do_not_add_and_cost_what_one_does() -> None:
    plan = a_plan(1000)
    assert total(plan, 100) == total(plan, 1)
    assert total(plan, 1).epsilon == epsilon_of(Fraction(1000 + 53**2) / (2 * 1053**2), MILLIONTH)


def test_a_total_without_a_delta_is_the_sum_of_epsilon() -> None:
    plan = a_plan(1000, **CLIENT, total_delta="0")
    assert total(plan, 100) == Cost(Fraction(100), Fraction(0))


def test_spends_that_an_older_version_stored_read_with_the_smaller_total_and_the_same_bytes() -> None:
    spend = windows(with_c(a_plan(1000, **CLIENT), 53, 1053), 1)[0]
    stored = (
        b'{"events":[{"epsilon":"1","mechanism":"discrete-laplace","scale":"1053",'
        b'"sensitivity":{"l0":"1001","l1":"1053","l2_squared":"3809","linf":"53"}}],"kind":"tumbling",'
        b'"mode":"central","plan_id":"' + spend.plan_id.encode() + b'","population":"","relation":"add/remove",'
        b'"unit":"client","window":0}'
    )
    assert spend.to_bytes() == stored
    read = Spend.from_bytes(stored)
    assert read.loss == spend.loss
    assert read.loss.epsilon == 1
    assert read.loss.pure_rho == Fraction(3809, 2 * 1053**2)


def test_the_statement_of_an_account_says_what_the_sum_of_epsilon_would_be() -> None:
    account = Account(a_plan(1000, **CLIENT, total_epsilon=3).limits).recorded(*windows(a_plan(1000, **CLIENT), 100))
    told = account_told(account)
    assert "spent ε = 1.50865, δ = 1e-6 in 100 spends, for unit client under add/remove." in told
    assert "This is by zCDP, at the total δ; the sum of their ε is 100." in told
    assert "zCDP" not in account_told(Account(a_plan(1, **CLIENT).limits).recorded(*windows(a_plan(1, **CLIENT), 1)))


PLANS = {
    "central": a_plan(20),
    "client": a_plan(20, unit="client", records_per_client=3),
    "tested": small_plan(privacy={"min_clients_share": "0.2"}, window={"min_clients": 5}),
    "gaussian": a_plan(20, delta="0.000001", noise="gaussian"),
    "secure": secure_plan(),
    "secure, reserved": secure_plan({"failures": "reserved"}),
    "secure, gaussian": secure_plan(privacy={"delta": "0.000001"}),
    "silo": small_plan(privacy={"mode": "local", "local": {"form": "silo"}}, window={"lateness": "1m"}),
    "reports": small_plan(
        privacy={"mode": "local", "unit": "client", "records_per_client": 3, "epsilon": 6, "total_epsilon": 20},
        window={"lateness": "1m"},
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_maker_of_a_plan_counts_a_release_as_the_ledger_does(name: str) -> None:
    plan = PLANS[name]
    made = loss_of(plan.privacy.mechanism, plan.family.sensitivity, plan.privacy.claim)
    assert made == spend_of(plan, kind="tumbling", window=0).loss
    assert replace(made, failure=Fraction(0)).cost(MILLIONTH) is not None
