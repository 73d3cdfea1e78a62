"""The statements for everybody: exact numbers, rounded against us, and what is left of a budget."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushsum.privacy.accountant import Account, Limits
from hushsum.privacy.exact_numbers import numeral
from hushsum.privacy.relations import RELATIONS, UNITS, Cost
from hushsum.privacy.statement import (
    account_told,
    belief_after,
    chance_after,
    fact_text,
    percent_text,
    spend_told,
    told,
)
from hushsum.privacy.zcdp import epsilon_of
from hushsum.releases import spend_of
from tests.hushsum.local_plans import report_plan, silo_plan
from tests.hushsum.privacy.spends import gaussian, spend, with_test

ZERO = Fraction(0)
LIMITS = Limits("", "client", "add/remove", Fraction(3), Fraction(1, 10**6))


def test_at_epsilon_one_a_belief_of_a_half_becomes_at_most_73_percent() -> None:
    assert told(Cost(Fraction(1), ZERO), unit="client", relation="add/remove") == (
        "An observer who believes with 50 % that one client's records are included can afterwards believe it with at "
        "most 73.2 %."
    )


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_and_relation_has_its_words(unit: str, relation: str) -> None:
    assert f"one {unit}" in told(Cost(Fraction(1), ZERO), unit=unit, relation=relation)


@given(st.fractions(Fraction(1, 100), 20), st.fractions(Fraction(1, 1000), Fraction(999, 1000)))
def test_a_belief_grows_by_its_odds_and_is_rounded_up(epsilon: Fraction, before: Fraction) -> None:
    after = belief_after(epsilon, before)
    odds = float(before / (1 - before)) * math.exp(epsilon)
    assert math.isclose(after, odds / (1 + odds), rel_tol=1e-9)
    assert after >= before
    assert belief_after(epsilon, Fraction(1, 2)) == chance_after(Cost(epsilon, ZERO))


def test_beliefs_are_those_of_the_how_to_page() -> None:
    shown = [percent_text(belief_after(Fraction(2), Fraction(part, 100))) for part in (1, 10, 50)]
    assert shown == ["7 %", "45.1 %", "88.1 %"]
    assert belief_after(Fraction(1000), Fraction(1, 100)) == 1
    assert fact_text("record", "add/remove") == "one record is included"


def test_with_a_delta_it_is_a_chance_of_being_right() -> None:
    words = told(Cost(Fraction(1), Fraction(1, 10)), unit="record", relation="add/remove")
    assert words == (  # (e + 0.1)/(1 + e) = 0.75796
        "A guess, from even odds, whether one record is included is correct with a probability of at most 75.8 %."
    )


@given(epsilon=st.fractions(min_value=0, max_value=100), delta=st.fractions(min_value=0, max_value=Fraction(99, 100)))
@settings(max_examples=50)
def test_the_chance_is_never_stated_too_low(epsilon: Fraction, delta: Fraction) -> None:
    exact = (1 + float(delta) * math.exp(-epsilon)) / (1 + math.exp(-epsilon))
    assert exact - 1e-12 <= chance_after(Cost(epsilon, delta)) <= 1
    stated = told(Cost(epsilon, delta), unit="record", relation="add/remove").split()[-2]
    assert float(stated) / 100 >= exact - 1e-12


@pytest.mark.parametrize(
    ("epsilon", "stated"),
    ((0, "50 %"), (3, "95.3 %"), (8, "99.97 %"), (9, "99.99 %"), (30, "100 %"), (10**6, "100 %")),
)
def test_what_is_not_certain_does_not_read_as_certain_nor_the_reverse(epsilon: int, stated: str) -> None:
    assert told(Cost(Fraction(epsilon), ZERO), unit="record", relation="replace").endswith(f"at most {stated}.")


def test_one_release_tells_what_it_tells_alone() -> None:
    item = replace(gaussian(Fraction(1, 50)), unit="client")
    words = spend_told(item, delta=Fraction(1, 10**6))
    assert words.startswith("A guess, from even odds, whether one client's records are included is correct")
    epsilon = epsilon_of(Fraction(1, 50), Fraction(1, 10**6))
    assert 0.8999 < epsilon < 0.89994
    assert words.endswith(" That is ε = 0.899939, δ = 1e-6.")
    assert spend_told(item, delta=ZERO) == "At δ = 0 no finite ε holds."


def test_nothing_spent_leaves_everything() -> None:
    assert account_told(Account(LIMITS)) == ("The population: nothing spent yet. Left: ε = 3 of 3, δ = 1e-6 of 1e-6.")
    words = account_told(Account(LIMITS), next_spend=spend(1, window=0, unit="client"))
    assert words.endswith("This suffices for 3 more such windows.")


def test_several_spends_are_told_alone_and_together() -> None:
    spends = (spend(Fraction(1, 2), window=0, unit="client"), spend(1, window=1, unit="client"))
    account = Account(replace(LIMITS, delta=ZERO)).recorded(*spends)
    assert account_told(account) == (
        "The population: spent ε = 1.5, δ = 0 in 2 spends, for unit client under add/remove. The newest alone: An "
        "observer who believes with 50 % that one client's records are included can afterwards believe it with at most "
        "73.2 %. That is ε = 1, δ = 0. All together: An observer who believes with 50 % that one client's records are "
        "included can afterwards believe it with at most 81.8 %. Left: ε = 1.5 of 3. This suffices for 1 more such "
        "window."
    )


def test_another_delta_than_its_own_is_explained() -> None:
    item = gaussian(Fraction(1, 50))
    explained = " That is ε = 0.899939, at the population's total δ of 1e-6."
    assert spend_told(item, delta=Fraction(1, 10**6), own_delta=Fraction(1, 10**7)).endswith(explained)
    same = spend_told(item, delta=Fraction(1, 10**6), own_delta=Fraction(1, 10**6))
    assert same == spend_told(item, delta=Fraction(1, 10**6))
    pure = spend_told(spend(1), delta=Fraction(1, 10**6), own_delta=ZERO)
    assert pure.endswith(" That is ε = 1, δ = 0.")


def test_after_a_choice_what_is_left_pays_for_releases() -> None:
    choice = replace(spend(Fraction(1, 2), unit="client"), kind="choice")
    account = Account(replace(LIMITS, delta=ZERO)).recorded(choice)
    assert account_told(account).endswith("Left: ε = 2.5 of 3.")
    account = account.recorded(spend(1, unit="client", plan=2), choice)
    assert account_told(account).endswith("Left: ε = 1 of 3. This suffices for 1 more such release.")
    assert account_told(account, next_spend=choice).endswith("Left: ε = 1 of 3.")


def test_a_window_that_cost_nothing_does_not_pay_for_ever() -> None:
    free = replace(spend(window=1, unit="client"), events=())
    account = Account(replace(LIMITS, delta=ZERO)).recorded(spend(1, window=0, unit="client"), free)
    assert account_told(account).endswith("This suffices for 2 more such windows.")


def test_a_delta_that_covers_all_releases_does_not_read_as_used_up() -> None:
    account = Account(LIMITS).recorded(with_test(Fraction(1, 50), Fraction(1, 20), window=0, unit="client"))
    assert "at δ = 1e-6 for all releases together. This suffices for 7 more such windows." in account_told(account)


def test_record_windows_are_paid_for_ever_or_not_at_all() -> None:
    account = Account(replace(LIMITS, unit="record")).recorded(spend(1, window=0))
    assert account_told(account).endswith(
        "This suffices for any number of such windows, because each record is in one window."
    )
    words = account_told(account, next_spend=spend(3, plan=2, window=0))
    assert words.endswith("This suffices for no more such windows.")


def test_records_are_told_what_a_clients_windows_tell_about_one_of_them() -> None:
    account = Account(Limits("", "record", "add/remove", Fraction(3), ZERO))
    account = account.recorded(*(spend(1, window=window, unit="client") for window in range(100)))
    words = account_told(account)
    assert words.startswith(
        "The population: spent ε = 2, δ = 0 in 100 spends, for unit record under add/remove. The newest alone: An "
        "observer who believes with 50 % that one client's records are included can afterwards believe it with at most "
        "73.2 %."
    )
    assert words.endswith(
        "that one record is included can afterwards believe it with at most 88.1 %. Left: ε = 1 of 3. This suffices "
        "for any number of such windows, because each record is in one window."
    )


def test_limits_that_are_passed_say_so_and_that_nothing_is_left() -> None:
    account = Account(Limits("", "record", "add/remove", Fraction(1), ZERO))
    assert "exceeds the limits" not in account_told(account.recorded(spend(1, window=0)))
    assert account_told(account.recorded(spend(1, window=0, unit="client"))) == (
        "The population: spent ε = 2, δ = 0 in 1 spend, for unit record under add/remove. An observer who believes "
        "with 50 % that one record is included can afterwards believe it with at most 88.1 %. This exceeds the limits: "
        "they were lowered, or an earlier version counted less. Left: ε = 0 of 1. This suffices for no more such "
        "windows."
    )


def test_spends_without_a_total_at_this_delta_say_so() -> None:
    account = Account(replace(LIMITS, delta=ZERO)).recorded(replace(gaussian(), unit="client"))
    assert account_told(account) == "The population: the spends have no finite total ε at δ = 0."


@pytest.mark.parametrize(
    ("value", "up", "down"),
    (
        (Fraction(1, 2), "0.5", "0.5"),
        (Fraction(1, 3), "1/3", "1/3"),
        (Fraction(10**9), "1000000000", "1000000000"),
        (Fraction(10**18 + 1, 10**18), "1.00001", "1"),
        (Fraction(123456789123456789, 10**17), "1.23457", "1.23456"),
        (Fraction(10**18 + 1, 10**24), "1.00001e-6", "1e-6"),
        (Fraction(1, 3 * 10**20), "3.33334e-21", "3.33333e-21"),
        (Fraction(1, 10**6), "1e-6", "1e-6"),
        (Fraction(1, 1000), "0.001", "0.001"),
        (Fraction(999_999_999, 10**13), "1e-4", "9.99999e-5"),
        (ZERO, "0", "0"),
    ),
)
def test_a_numeral_is_short_and_rounded_against_us(value: Fraction, up: str, down: str) -> None:
    assert (numeral(value, up=True), numeral(value, up=False)) == (up, down)


@given(value=st.fractions(min_value=0, max_value=10**30), small=st.integers(0, 30))
@settings(max_examples=100)
def test_a_numeral_is_near_and_on_the_right_side(value: Fraction, small: int) -> None:
    value /= 10**small
    up, down = Fraction(numeral(value, up=True)), Fraction(numeral(value, up=False))
    assert down <= value <= up
    assert up - down <= value / 10**4


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        ({}, "for a record replaced at every occurrence by one that its device has nowhere else"),
        (
            {"unit": "client", "records_per_client": 3},
            "for records replaced by others that are equal to each other where the originals are",
        ),
    ],
)
def test_of_several_windows_of_reports_it_is_told_what_memoised_ones_promise(
    unit: dict[str, object], said: str
) -> None:
    """A spend does not say whether its plan memoises; the sentence holds of those that do not, too."""
    plan = report_plan(privacy={"local": {"memoise": True}, "total_epsilon": 100, **unit})
    account = Account(plan.limits).charge(spend_of(plan, kind="tumbling", window=0))
    assert "memoise" not in account_told(account)  # one window: reports are independent of each other
    for window in (1, 2):
        account = account.charge(spend_of(plan, kind="tumbling", window=window))
        words = account_told(account)
        assert words.count("If a plan memoises its reports (see `hushsum plan show`)") == 1
        assert f"this holds for all its windows together {said}; recurrences and changes of a record" in words


def test_where_no_reports_are_sent_nothing_is_told_of_memoised_ones() -> None:
    plan = silo_plan(privacy={"total_epsilon": 100})
    account = Account(plan.limits)
    for window in range(3):
        account = account.charge(spend_of(plan, kind="tumbling", window=window))
        assert "memoise" not in account_told(account)
