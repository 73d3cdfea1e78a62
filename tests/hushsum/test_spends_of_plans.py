"""What releases of a plan spend: every mechanism that runs, with the sensitivity of the whole unit."""

from fractions import Fraction
from math import prod
from typing import Any

import pytest

import hushsum as hs
from hushsum.errors import GuaranteeError
from hushsum.privacy.accountant import Account
from hushsum.privacy.events import IN_PROCESS, TUMBLING, Event
from hushsum.releases import spend_of
from hushsum.sensitivity import Sensitivity
from tests.plans import small_plan

DELTA = {"delta": "0.000001", "total_delta": "0.000001"}
CLIENT = {"unit": "client", "records_per_client": 5}
ZERO = Fraction(0)


def plan_with(privacy: dict[str, Any], min_clients: int = 0) -> hs.Plan:
    """The small plan, with other keys of [privacy] and a least number of clients."""
    fields: dict[str, Any] = small_plan().to_fields()
    del fields["format"], fields["privacy"]["mechanism"]
    window = {**fields["window"], **({"min_clients": min_clients} if min_clients else {})}
    return hs.Plan.from_fields({**fields, "privacy": {**fields["privacy"], **privacy}, "window": window})


def test_a_pure_release_spends_the_plans_epsilon_exactly() -> None:
    plan = small_plan()
    spend = spend_of(plan, kind=TUMBLING, window=3)
    mechanism = plan.privacy.mechanism
    whole = plan.family.sensitivity.with_count(mechanism.count_scale)
    assert spend.events == (Event("discrete-laplace", mechanism.scale, whole, plan.privacy.epsilon),)
    assert (spend.window, spend.relation, spend.plan_id) == (3, "add/remove", plan.hex_id)


@pytest.mark.parametrize("privacy", (DELTA, {**DELTA, **CLIENT}), ids=("record", "client"))
def test_a_zcdp_release_spends_by_all_records_of_the_unit_and_the_count_counter(privacy: dict[str, Any]) -> None:
    plan = plan_with(privacy)
    (event,) = spend_of(plan, kind=TUMBLING, window=0).events
    records, count = plan.privacy.records_per_client or 1, plan.privacy.mechanism.count_scale
    assert isinstance(event, Event)
    assert event.sensitivity.l2_squared == records**2 * (plan.family.sensitivity.l2_squared + count**2)
    assert event.sensitivity.l0 <= prod(plan.counters_shape) + plan.counters_shape[0]
    assert event.rho == event.sensitivity.l2_squared / (2 * plan.privacy.mechanism.scale)
    cost = event.loss.cost(plan.privacy.delta)
    assert cost is not None
    assert Fraction(99, 100) * plan.privacy.epsilon < cost.epsilon <= plan.privacy.epsilon


@pytest.mark.parametrize("privacy", ({}, DELTA, CLIENT, {**DELTA, **CLIENT}), ids=("pure", "zcdp", "client", "both"))
def test_the_test_of_the_number_of_clients_is_spent_whatever_the_outcome(privacy: dict[str, Any]) -> None:
    plan = plan_with(privacy, min_clients=10)
    one = Sensitivity(1, 1, 1, 1)
    released = spend_of(plan, kind=TUMBLING, window=0)
    withheld = spend_of(plan, kind=TUMBLING, window=0, withheld=True)
    test = Event("discrete-laplace", plan.privacy.mechanism.clients_scale or ZERO, one, plan.privacy.epsilon / 20)
    assert withheld.events == (test,)
    assert released.events[0] == test
    assert len(released.events) == 2
    assert spend_of(plan, kind=IN_PROCESS, window=None).events == released.events[1:]


@pytest.mark.parametrize("min_clients", (0, 10))
@pytest.mark.parametrize("privacy", ({}, DELTA, CLIENT, {**DELTA, **CLIENT}), ids=("pure", "zcdp", "client", "both"))
def test_one_window_costs_at_most_what_the_plan_claims(privacy: dict[str, Any], min_clients: int) -> None:
    plan = plan_with({**privacy, "total_epsilon": "1"}, min_clients)
    assert plan.privacy.epsilon == 1
    account = Account(plan.limits).charge(spend_of(plan, kind=TUMBLING, window=0))
    assert account.spent.epsilon <= plan.privacy.epsilon
    assert account.spent.delta <= plan.privacy.delta


def test_an_event_with_less_noise_than_the_plan_claims_is_refused() -> None:
    (event,) = spend_of(small_plan(), kind=TUMBLING, window=0).events
    assert isinstance(event, Event)
    with pytest.raises(GuaranteeError):
        Event(event.mechanism, event.scale / 2, event.sensitivity, event.epsilon)
