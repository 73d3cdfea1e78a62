"""What a population has spent: every rule of the ledger as a line of a table, and as a property of all histories."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushsum.errors import BudgetError, PlanError
from hushsum.privacy.accountant import Account, Limits
from hushsum.privacy.events import Spend
from hushsum.privacy.relations import RELATIONS, UNITS, Cost
from tests.hushsum.privacy.spends import claimed, gaussian, spend

ZERO = Fraction(0)
DELTA = Fraction(1, 10**6)
LIMITS = Limits(population="", unit="record", relation="add/remove", epsilon=Fraction(30), delta=Fraction(1, 100))
PURE = replace(LIMITS, delta=ZERO)  # nothing is converted: ε is a plain sum


def recorded(spends: Sequence[Spend], limits: Limits = LIMITS) -> Account:
    account = Account(limits)
    for item in spends:
        account = account.recorded(item)
    return account


# ------------------------------------------------------------------------------------------------- composition

COMPOSITION = {
    "nothing costs nothing": ([], "record", "add/remove", (0, ZERO)),
    "windows of one plan, unit record: the largest": (
        [spend(1, window=0), spend(3, window=1), spend(2, window=2)],
        "record",
        "add/remove",
        (3, ZERO),
    ),
    "the largest delta too": (
        [claimed(2, 2 * DELTA, window=0), claimed(3, DELTA, window=1)],
        "record",
        "add/remove",
        (3, 2 * DELTA),
    ),
    "zero-out windows likewise": (
        [spend(1, window=w, relation="zero-out") for w in range(5)],
        "record",
        "zero-out",
        (1, ZERO),
    ),
    "replace windows likewise": (
        [spend(1, window=w, relation="replace") for w in range(5)],
        "record",
        "replace",
        (1, ZERO),
    ),
    "windows of two plans: they add": (
        [spend(1, plan=1, window=0), spend(2, plan=2, window=0), spend(1, plan=1, window=1)],
        "record",
        "add/remove",
        (3, ZERO),
    ),
    "windows of unit client: they add": (
        [spend(1, window=w, unit="client") for w in range(4)],
        "client",
        "add/remove",
        (4, ZERO),
    ),
    "releases without a window: they add": ([spend(1), spend(2), spend(1)], "record", "add/remove", (4, ZERO)),
    "a window and a release without one: they add": (
        [spend(2, window=0), spend(1), spend(2, window=1)],
        "record",
        "add/remove",
        (3, ZERO),
    ),
    "deltas add too": ([claimed(1, DELTA), claimed(1, DELTA)], "record", "add/remove", (2, 2 * DELTA)),
    "a record less of a client is two steps: twice epsilon": (
        [spend(1, unit="client")],
        "record",
        "add/remove",
        (2, ZERO),
    ),
    "zero-out of a client likewise": (
        [spend(1, unit="client", relation="zero-out")],
        "record",
        "zero-out",
        (2, ZERO),
    ),
    "a record of a client replaced is two steps, not four": (
        [spend(1, unit="client")],
        "record",
        "replace",
        (2, ZERO),
    ),
    "zero-out of a client likewise two": (
        [spend(1, unit="client", relation="zero-out")],
        "record",
        "replace",
        (2, ZERO),
    ),
    "a client's content replaced covers a record replaced": (
        [spend(1, unit="client", relation="replace")],
        "record",
        "replace",
        (1, ZERO),
    ),
    "a client's windows of one plan, for records: the largest": (
        [spend(1, window=0, unit="client"), spend(3, window=1, unit="client"), spend(2, window=2, unit="client")],
        "record",
        "add/remove",
        (6, ZERO),
    ),
    "a hundred windows cost a record what one does": (
        [spend(1, window=w, unit="client") for w in range(100)],
        "record",
        "add/remove",
        (2, ZERO),
    ),
    "a client's windows of reports, for records": (
        [spend(1, window=w, unit="client", relation="replace") for w in range(5)],
        "record",
        "replace",
        (1, ZERO),
    ),
    "a client's windows of two plans, for records: they add": (
        [spend(1, plan=p, window=w, unit="client") for p in (1, 2) for w in range(3)],
        "record",
        "add/remove",
        (4, ZERO),
    ),
    "a client's releases without a window, for records: they add": (
        [spend(1, unit="client"), spend(2, unit="client")],
        "record",
        "add/remove",
        (6, ZERO),
    ),
    "choices of a client's plan, for records: they add": (
        [replace(spend(1, unit="client"), kind="choice")] * 2,
        "record",
        "add/remove",
        (4, ZERO),
    ),
    "a client's spend beside record windows": (
        [spend(2, window=0), spend(1, plan=2, window=0, unit="client"), spend(2, window=1)],
        "record",
        "add/remove",
        (4, ZERO),
    ),
    "a record's spend says nothing for clients": ([spend(1)], "client", "add/remove", None),
    "one is enough": ([spend(1, unit="client"), spend(1)], "client", "add/remove", None),
    "add/remove implies replace at twice epsilon": ([spend(1)], "record", "replace", (2, ZERO)),
    "zero-out implies replace at twice epsilon": ([spend(1, relation="zero-out")], "record", "replace", (2, ZERO)),
    "windows: twice the largest": (
        [spend(1, window=0), spend(3, window=1), spend(2, window=2)],
        "record",
        "replace",
        (6, ZERO),
    ),
    "clients to records and to replace at once, windows": (
        [spend(1, window=w, unit="client") for w in range(3)],
        "record",
        "replace",
        (2, ZERO),
    ),
    "replace says nothing for add/remove": ([spend(1, relation="replace")], "record", "add/remove", None),
    "replace says nothing for zero-out": ([spend(1, relation="replace")], "record", "zero-out", None),
    "a client's replacement says nothing for a record less": (
        [spend(1, unit="client", relation="replace")],
        "record",
        "add/remove",
        None,
    ),
    "a client's add/remove claims nothing for a record's zero-out": (
        [spend(1, unit="client")],
        "record",
        "zero-out",
        None,
    ),
    "add/remove claims nothing for zero-out": ([spend(1)], "record", "zero-out", None),
    "zero-out claims nothing for add/remove": ([spend(1, relation="zero-out")], "record", "add/remove", None),
}


@pytest.mark.parametrize("rule", COMPOSITION)
def test_composition(rule: str) -> None:
    spends, unit, relation, expected = COMPOSITION[rule]
    total = None if expected is None else Cost(Fraction(expected[0]), expected[1])
    assert recorded(spends).total(unit, relation) == total


def test_the_delta_of_an_implied_replacement_is_rounded_against_us() -> None:
    total = recorded([claimed(1, DELTA)]).total("record", "replace")
    assert total is not None
    e = Fraction("2.718281828459045235360287471352662497757")
    assert total.epsilon == 2
    assert (1 + e) * DELTA < total.delta < (1 + e) * DELTA * (1 + Fraction(1, 2**60))


def test_a_delta_of_client_windows_is_multiplied_window_by_window_before_the_largest_is_taken() -> None:
    windows = [claimed(3, DELTA / 100, window=0, unit="client"), claimed(1, DELTA, window=1, unit="client")]
    total = recorded(windows).total("record", "add/remove")
    assert total is not None
    assert total.epsilon == 6
    e = Fraction("2.718281828459045235360287471352662497757")
    assert (1 + e) * DELTA < total.delta < (1 + e) * DELTA * (1 + Fraction(1, 2**60))


def test_an_implied_delta_never_exceeds_one() -> None:
    total = recorded([claimed(29, Fraction(1, 2))]).total("record", "replace")
    assert total is not None
    assert total.delta == 1


epsilons = st.fractions(min_value=Fraction(1, 8), max_value=4, max_denominator=8)
places = {
    "plan": st.integers(1, 3),
    "window": st.none() | st.integers(0, 5),
    "unit": st.sampled_from(UNITS),
    "relation": st.sampled_from(RELATIONS),
}
pure_spends = st.builds(spend, epsilons, **places)
spends = (
    pure_spends
    | st.builds(claimed, epsilons, st.just(DELTA), **places)
    | st.builds(gaussian, st.fractions(min_value=Fraction(1, 1000), max_value=1, max_denominator=1000), **places)
)
histories = st.lists(spends, max_size=8)


@settings(max_examples=50)
@given(history=histories, order=st.randoms(use_true_random=False))
def test_totals_do_not_depend_on_the_order_of_spends(history: list[Spend], order: Random) -> None:
    shuffled = list(history)
    order.shuffle(shuffled)
    for unit, relation in product(UNITS, RELATIONS):
        assert recorded(history).total(unit, relation) == recorded(shuffled).total(unit, relation)


@settings(max_examples=50)
@given(history=histories)
def test_spends_recorded_at_once_equal_spends_recorded_one_by_one(history: list[Spend]) -> None:
    at_once = Account(LIMITS).recorded(*history)
    for unit, relation in product(UNITS, RELATIONS):
        assert recorded(history).total(unit, relation) == at_once.total(unit, relation)
    assert recorded(history).spends == at_once.spends == tuple(history)


@settings(max_examples=50)
@given(history=st.lists(pure_spends, max_size=8))
def test_pure_totals_are_sums_of_epsilon_exactly(history: list[Spend]) -> None:
    account = recorded(history, PURE)
    for unit, relation in product(UNITS, RELATIONS):
        total = account.total(unit, relation)
        assert (None if total is None else total.epsilon) == _from_scratch(history, unit, relation)
        assert total is None or total.delta == 0


def _from_scratch(history: Sequence[Spend], unit: str, relation: str) -> Fraction | None:
    groups: dict[object, Fraction] = {}
    for number, item in enumerate(history):
        if (item.unit == "record" and unit == "client") or relation not in (item.relation, "replace"):
            return None
        in_full = (item.unit, item.relation) == (unit, relation) or item.relation == "replace"
        epsilon = item.loss.epsilon * (1 if in_full else 2)
        parallel = unit == "record" and item.window is not None
        key = (item.plan_id, item.unit, item.relation) if parallel else number
        groups[key] = max(epsilon, groups.get(key, ZERO))
    return sum(groups.values(), start=ZERO)


@settings(max_examples=50)
@given(history=histories, extra=spends)
def test_a_total_never_falls(history: list[Spend], extra: Spend) -> None:
    before, after = recorded(history), recorded([*history, extra])
    for unit, relation in product(UNITS, RELATIONS):
        old, new = before.total(unit, relation), after.total(unit, relation)
        assert new is None or (old is not None and new.epsilon >= old.epsilon)


@settings(max_examples=50)
@given(history=st.lists(spends, max_size=16), limit=epsilons, delta=st.sampled_from((ZERO, DELTA, 2 * DELTA)))
def test_no_history_of_charges_passes_a_limit(history: list[Spend], limit: Fraction, delta: Fraction) -> None:
    account = Account(replace(LIMITS, epsilon=limit, delta=delta))
    for item in history:
        try:
            after = account.charge(item)
        except BudgetError:
            continue
        assert after.spent.epsilon <= limit
        assert after.spent.delta <= delta
        assert after.left == Cost(limit - after.spent.epsilon, delta - after.spent.delta)
        account = after


# ----------------------------------------------------------------------------------------------------- charges


def test_a_charge_up_to_the_limit_is_allowed_and_one_beyond_is_not() -> None:
    account = Account(LIMITS).charge(spend(29)).charge(spend(1))
    assert account.left == Cost(ZERO, Fraction(1, 100))
    with pytest.raises(BudgetError):
        account.charge(spend(Fraction(1, 10**9)))


def test_a_refusal_says_what_is_asked_and_what_is_left() -> None:
    account = Account(LIMITS).charge(spend(Fraction(59, 2)))
    expected = "this needs ε = 1, 0.5 of 30 is left"
    with pytest.raises(BudgetError, match=expected):
        account.charge(spend(1))


def test_a_spend_with_a_delta_of_its_own_is_refused_however_much_is_left() -> None:
    # Chosen by what a zCDP release showed, it would trade one delta for the other: 1.2 times the limit in all.
    with pytest.raises(BudgetError, match="its own δ"):
        Account(LIMITS).charge(claimed(1, DELTA))


def test_a_refused_charge_leaves_the_account_as_it_was() -> None:
    account = Account(LIMITS).charge(spend(29))
    with pytest.raises(BudgetError):
        account.charge(spend(2))
    assert account.spent == Cost(Fraction(29), ZERO)
    assert account.spends == (spend(29),)


def test_record_windows_within_the_largest_cost_nothing_more() -> None:
    account = Account(replace(LIMITS, epsilon=Fraction(1)))
    for window in range(100):
        account = account.charge(spend(1, window=window))
    assert account.spent == Cost(Fraction(1), ZERO)


@pytest.mark.parametrize("again", (3, 0, 5))
def test_no_window_is_charged_twice(again: int) -> None:
    account = Account(LIMITS)
    for window in (3, 0, 5):
        account = account.charge(spend(1, window=window))
    with pytest.raises(BudgetError, match=f"window {again} of plan .* was already charged"):
        account.charge(spend(1, window=again))


def test_a_skipped_window_may_still_be_charged_later() -> None:
    account = Account(LIMITS).charge(spend(1, window=5)).charge(spend(1, window=3))
    assert [item.window for item in account.spends] == [5, 3]


def test_a_spend_of_another_population_is_refused() -> None:
    with pytest.raises(BudgetError, match="the plan names population 'staff'"):
        Account(LIMITS).charge(replace(spend(1), population="staff"))


@pytest.mark.parametrize(
    "foreign",
    (spend(1, relation="replace"), spend(1, relation="zero-out"), spend(1, relation="replace", unit="client")),
    ids=lambda item: f"{item.unit}, {item.relation}",
)
def test_a_spend_that_would_make_the_total_read_none_is_refused(foreign: Spend) -> None:
    with pytest.raises(BudgetError, match="cannot be converted"):
        Account(LIMITS).charge(foreign)


def test_a_record_spend_is_refused_where_clients_are_accounted() -> None:
    with pytest.raises(BudgetError, match="cannot be converted"):
        Account(replace(LIMITS, unit="client")).charge(spend(1))


def test_a_record_population_takes_client_spends_at_twice_their_epsilon_and_any_number_of_their_windows() -> None:
    account = Account(replace(LIMITS, epsilon=Fraction(3)))
    for window in range(100):
        account = account.charge(spend(Fraction(3, 2), window=window, unit="client"))
    assert account.left.epsilon == 0
    with pytest.raises(BudgetError, match=r"this needs ε = 1, 0 of "):
        account.charge(spend(2, window=100, unit="client"))
    with pytest.raises(BudgetError, match="this needs ε = 3, "):
        account.charge(spend(Fraction(3, 2), plan=2, window=0, unit="client"))


def test_a_replace_population_takes_add_remove_spends_at_twice_their_epsilon() -> None:
    account = Account(replace(LIMITS, relation="replace", epsilon=Fraction(4)))
    account = account.charge(spend(1)).charge(spend(1, relation="replace"))
    assert account.spent.epsilon == 3
    with pytest.raises(BudgetError, match="this needs ε = 2, "):
        account.charge(spend(1))


# ------------------------------------------------------------------------------------------------ registration


def test_a_plan_may_lower_the_limits() -> None:
    account = Account(LIMITS).charge(spend(5)).register(replace(LIMITS, epsilon=Fraction(10), delta=ZERO))
    assert account.limits.cost == Cost(Fraction(10), ZERO)
    assert account.left == Cost(Fraction(5), ZERO)


@pytest.mark.parametrize(
    ("name", "change"),
    (("total_epsilon", {"epsilon": Fraction(31)}), ("total_delta", {"delta": Fraction(2, 100)})),
)
def test_a_plan_may_not_raise_a_limit(name: str, change: dict[str, Fraction]) -> None:
    with pytest.raises(BudgetError, match=f"{name} .* cannot be raised"):
        Account(LIMITS).register(replace(LIMITS, **change))  # type: ignore[arg-type]  # a change of one field


def test_limits_below_what_is_spent_leave_nothing_and_allow_nothing() -> None:
    account = Account(LIMITS).charge(spend(5, window=0)).register(replace(LIMITS, epsilon=Fraction(3)))
    assert account.left.epsilon == 0
    assert account.is_passed
    with pytest.raises(BudgetError):
        account.charge(spend(1, window=1))


def test_the_first_plan_fixes_unit_and_relation() -> None:
    account = Account(replace(LIMITS, relation="replace")).register(replace(LIMITS, unit="client"))
    assert (account.limits.unit, account.limits.relation) == ("record", "replace")


def test_a_plan_whose_spends_would_make_the_total_read_none_is_refused() -> None:
    with pytest.raises(BudgetError, match="cannot be converted"):
        Account(LIMITS).register(replace(LIMITS, relation="replace"))


def test_a_plan_of_another_population_is_refused() -> None:
    with pytest.raises(BudgetError, match="the plan names population 'staff'"):
        Account(LIMITS).register(replace(LIMITS, population="staff"))


@pytest.mark.parametrize(
    ("key", "change"),
    (
        ("privacy.total_epsilon", {"epsilon": ZERO}),
        ("privacy.total_epsilon", {"epsilon": 30.0}),
        ("privacy.total_delta", {"delta": Fraction(1)}),
        ("privacy.unit", {"unit": "household"}),
        ("relation", {"relation": "edit"}),
    ),
    ids=str,
)
def test_limits_out_of_range_are_refused_by_their_key(key: str, change: dict[str, object]) -> None:
    with pytest.raises(PlanError) as refusal:
        replace(LIMITS, **change)  # type: ignore[arg-type]  # a change of one field
    assert refusal.value.key == key


# ------------------------------------------------------------------------------------------------------- speed


@pytest.mark.timeout(60)  # about 2 s; quadratic work would take minutes
@pytest.mark.parametrize(("unit", "spent"), (("client", 10_000), ("record", 2)))
def test_ten_thousand_windows_are_charged_in_linear_time_and_memory(unit: str, spent: int) -> None:
    account = Account(replace(PURE, unit=unit, epsilon=Fraction(10**6)))
    for window in range(10_000):
        account = account.charge(spend(1, window=window, unit="client"))
    assert account.spent.epsilon == spent
    assert len(account.spends) == 10_000


def test_a_population_without_a_name_is_named_in_words() -> None:
    limits = Limits("", "record", "add/remove", Fraction(1), Fraction(0))
    named = replace(limits, population="staff")
    with pytest.raises(BudgetError, match=r"^Budget exceeded: this needs ε = 2, "):
        Account(limits).charge(spend(2))
    with pytest.raises(
        BudgetError, match=r"^this ledger belongs to the population, the plan names population 'staff'$"
    ):
        Account(limits).register(named)
    with pytest.raises(BudgetError, match=r"^this ledger belongs to population 'staff', the plan names none$"):
        Account(named).register(limits)
