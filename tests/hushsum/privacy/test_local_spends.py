"""What plans of mode local spend, what their events must support, and how they add up with others."""

from dataclasses import replace
from fractions import Fraction

import pytest

from hushsum import Plan
from hushsum.errors import BudgetError, GuaranteeError, PlanError
from hushsum.privacy.accountant import Account, Limits
from hushsum.privacy.events import IN_PROCESS, TUMBLING, Event, Spend
from hushsum.privacy.exact_numbers import notch_of
from hushsum.privacy.relations import Cost
from hushsum.releases import spend_of
from hushsum.sensitivity import Sensitivity
from tests.hushsum.local_plans import SHUFFLED, bit_plan, report_plan, silo_plan
from tests.hushsum.privacy.spends import spend as central

CLIENT = {"unit": "client", "records_per_client": 3}
ONE = Sensitivity(1, 1, 1, 1)
THREE = Sensitivity(3, 3, 9, 3)
FOUR = report_plan()
OF_CLIENTS = report_plan(privacy=CLIENT)
TOTAL = Fraction(100)


def account(unit: str = "record", relation: str = "replace", delta: str = "0") -> Account:
    return Account(Limits("", unit, relation, TOTAL, Fraction(delta)))


def pure(epsilon: int) -> Cost:
    return Cost(Fraction(epsilon), Fraction(0))


def test_reports_spend_the_epsilon_of_the_unit_with_all_its_reports() -> None:
    spend = spend_of(FOUR, kind=TUMBLING, window=3)
    assert spend.events == (Event("k-rr", Fraction("54.5981"), ONE, Fraction(4)),)
    assert (spend.mode, spend.relation, spend.window) == ("local", "replace", 3)
    assert spend_of(OF_CLIENTS, kind=TUMBLING, window=3).events == (
        Event("k-rr", OF_CLIENTS.privacy.mechanism.scale, THREE, Fraction(4)),
    )
    assert spend_of(bit_plan(), kind=TUMBLING, window=3).events[0].mechanism == "one-bit"


def test_shuffled_reports_spend_what_each_loses_by_itself() -> None:
    assert spend_of(report_plan(privacy=SHUFFLED), kind=TUMBLING, window=0).loss.cost(Fraction(0)) == pure(1)


def test_silos_spend_as_a_central_release_does() -> None:
    plan = silo_plan(privacy=CLIENT)
    (event,) = spend_of(plan, kind=TUMBLING, window=3).events
    assert isinstance(event, Event)
    assert (event.mechanism, event.epsilon, event.shares) == ("discrete-laplace", Fraction(1), None)
    assert event.sensitivity.l1 == 3 * (plan.family.sensitivity.l1 + plan.privacy.mechanism.count_scale)
    gaussian = silo_plan(privacy={"delta": "0.00001", "total_delta": "0.00001"})
    cost = spend_of(gaussian, kind=TUMBLING, window=3).loss.cost(Fraction("0.00001"))
    assert cost is not None
    assert cost.epsilon <= 1


@pytest.mark.parametrize("plan", [FOUR, silo_plan()], ids=["reports", "silo"])
def test_what_was_sent_is_spent_whatever_comes_of_it(plan: Plan) -> None:
    sent = spend_of(plan, kind=TUMBLING, window=3)
    assert spend_of(plan, kind=TUMBLING, window=3, withheld=True) == sent
    assert spend_of(plan, kind=TUMBLING, window=3, entered=False).events == ()


def test_silos_have_no_release_without_a_window() -> None:
    assert spend_of(FOUR, kind=IN_PROCESS, window=None).loss == spend_of(FOUR, kind=TUMBLING, window=0).loss
    with pytest.raises(GuaranteeError, match="mode 'local'"):
        spend_of(silo_plan(), kind=IN_PROCESS, window=None)


@pytest.mark.parametrize("plan", [FOUR, OF_CLIENTS, bit_plan(), silo_plan()], ids=["k-rr", "m", "bit", "silo"])
def test_a_local_spend_is_its_bytes(plan: Plan) -> None:
    spend = spend_of(plan, kind=TUMBLING, window=-7)
    assert Spend.from_bytes(spend.to_bytes()) == spend


@pytest.mark.parametrize(("plan", "reports"), [(FOUR, 1), (OF_CLIENTS, 3)], ids=["one", "three"])
def test_an_event_one_notch_beyond_its_epsilon_is_refused(plan: Plan, reports: int) -> None:
    event = spend_of(plan, kind=TUMBLING, window=0).events[0]
    assert isinstance(event, Event)
    with pytest.raises(GuaranteeError, match=f"{reports} reports of one unit: it supports {reports} x ln"):
        replace(event, scale=event.scale + notch_of(event.scale))
    with pytest.raises(GuaranteeError, match=r"does not support epsilon 3\.99"):
        replace(event, epsilon=Fraction("3.99"))
    with pytest.raises(GuaranteeError):
        replace(event, sensitivity=ONE.times(reports + 1, reports + 1))
    planted = spend_of(plan, kind=TUMBLING, window=0).to_bytes().replace(b'"epsilon":"4"', b'"epsilon":"3.99"')
    with pytest.raises(GuaranteeError):
        Spend.from_bytes(planted)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("scale", {"scale": Fraction(1)}),
        ("scale", {"scale": Fraction("54.59811")}),
        ("epsilon", {"epsilon": Fraction(0)}),
        ("sensitivity", {"sensitivity": Sensitivity(1, 3, 9, 3)}),
        ("sensitivity", {"sensitivity": Sensitivity(3, 3, 3, 1)}),
    ],
)  # fmt: skip
def test_an_event_of_reports_out_of_range_is_refused(field: str, values: dict[str, object]) -> None:
    with pytest.raises(PlanError) as refusal:
        replace(Event("k-rr", Fraction("2.5"), THREE, Fraction(4)), **values)  # type: ignore[arg-type]  # fields of an event
    assert refusal.value.key == f"event.{field}"


def test_reports_and_noise_keep_to_their_modes() -> None:
    reports, silo = (spend_of(plan, kind=TUMBLING, window=0) for plan in (FOUR, silo_plan()))
    for spend, changes in (
        (reports, {"relation": "zero-out"}),
        (reports, {"mode": "central"}),
        (silo, {"relation": "replace"}),
        (central(window=1, relation="replace"), {"mode": "local"}),
    ):
        with pytest.raises(PlanError, match=r"spend\.events"):
            replace(spend, **changes)  # type: ignore[arg-type]  # fields of a spend
    with pytest.raises(PlanError, match=r"spend\.mode"):
        replace(silo, relation="add/remove")


def test_a_record_is_in_one_window_and_windows_of_a_client_add_up() -> None:
    record, client = account(), account("client")
    for window in range(5):
        record = record.charge(spend_of(FOUR, kind=TUMBLING, window=window))
        client = client.charge(spend_of(OF_CLIENTS, kind=TUMBLING, window=window))
    assert record.spent == pure(4)
    assert client.spent == pure(20)
    assert client.affordable(spend_of(OF_CLIENTS, kind=TUMBLING, window=9)) == 20
    assert record.affordable(spend_of(FOUR, kind=TUMBLING, window=9)) is None


def test_replace_implies_nothing_about_the_others() -> None:
    after = account().charge(spend_of(FOUR, kind=TUMBLING, window=0))
    assert after.total("record", "replace") == pure(4)
    for unit, relation in (("record", "add/remove"), ("record", "zero-out"), ("client", "replace")):
        assert after.total(unit, relation) is None
    of_clients = account("client").charge(spend_of(OF_CLIENTS, kind=TUMBLING, window=0))
    assert of_clients.total("record", "replace") == pure(4)  # one record replaced replaces its client's content
    for relation in ("add/remove", "zero-out"):
        with pytest.raises(BudgetError, match="cannot be converted"):
            account(relation=relation).charge(spend_of(FOUR, kind=TUMBLING, window=0))


@pytest.mark.parametrize("relation", ["add/remove", "zero-out"])
def test_the_others_imply_replace_at_twice_their_epsilon(relation: str) -> None:
    mixed = account().charge(spend_of(FOUR, kind=TUMBLING, window=0)).charge(central(3, plan=9, relation=relation))
    assert mixed.spent == pure(10)


def test_a_population_of_silos_takes_no_reports() -> None:
    silos = Account(silo_plan().limits).charge(spend_of(silo_plan(), kind=TUMBLING, window=0))
    assert silos.limits.relation == "zero-out"
    assert silos.total("record", "replace") == pure(2)
    with pytest.raises(BudgetError, match="cannot be converted"):
        silos.register(FOUR.limits)
