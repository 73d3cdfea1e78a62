"""Mixed totals: valid beside another library's tight composition, tight where they can be, and what they pay for."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from math import exp, sqrt

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st

from hushsum.errors import BudgetError
from hushsum.privacy.accountant import Account, Limits
from hushsum.privacy.events import Spend
from hushsum.privacy.relations import Cost
from hushsum.privacy.zcdp import epsilon_of
from tests.hushsum.privacy.spends import claimed, gaussian, spend, with_test

ZERO = Fraction(0)
DELTA = Fraction(1, 10**6)
LIMITS = Limits(population="", unit="client", relation="add/remove", epsilon=Fraction(8), delta=DELTA)
RHO = Fraction(1, 50)
TEST = Fraction(1, 20)  # ε of a test of the number of clients


def total_of(*spends: Spend, limits: Limits = LIMITS) -> Cost | None:
    return Account(limits).recorded(*spends).cost


def client(*spends: Spend) -> list[Spend]:
    return [replace(item, unit="client") for item in spends]


# ------------------------------------------------------------------------------------------- what adds up to what


def test_zcdp_adds_up_before_it_is_converted() -> None:
    total = total_of(*client(gaussian(RHO), gaussian(3 * RHO)))
    assert total == Cost(epsilon_of(4 * RHO, DELTA), DELTA)


def test_pure_beside_zcdp_counts_as_zcdp_however_large() -> None:
    for pure in (TEST, Fraction(5)):  # a sum of 5 and an epsilon would be less, and no bound for spends that are chosen
        mixed = client(spend(pure), gaussian(RHO))
        assert total_of(*mixed) == Cost(epsilon_of(RHO + pure**2 / 2, DELTA), DELTA)


def test_many_pure_spends_cost_less_where_a_delta_is_allowed() -> None:
    many = client(*[spend(Fraction(1, 10))] * 100)
    assert total_of(*many) == Cost(epsilon_of(Fraction(1, 2), DELTA), DELTA)
    assert total_of(*many, limits=replace(LIMITS, delta=ZERO)) == Cost(Fraction(10), ZERO)
    assert total_of(*many[:3]) == Cost(Fraction(3, 10), ZERO)


def test_a_claimed_delta_leaves_that_much_less_to_convert_at() -> None:
    total = total_of(*client(gaussian(RHO), claimed(1, DELTA / 4)))
    assert total == Cost(epsilon_of(RHO + Fraction(1, 2), DELTA * 3 / 4), DELTA)


def test_a_replacement_is_worth_four_times_the_zcdp() -> None:
    account = Account(LIMITS).recorded(*client(gaussian(RHO), spend(2)))
    assert account.total("client", "replace") == Cost(epsilon_of(4 * (RHO + 2), DELTA), DELTA)


def test_a_record_less_of_a_client_is_worth_four_times_the_zcdp() -> None:
    account = Account(LIMITS).recorded(*client(gaussian(RHO), spend(2)))
    fourfold = Cost(epsilon_of(4 * (RHO + 2), DELTA), DELTA)
    assert account.total("record", "add/remove") == fourfold
    assert account.total("record", "replace") == fourfold, "once, not of what it is worth for one record less"
    windows = Account(LIMITS).recorded(*client(*(gaussian(part * RHO, window=part) for part in (1, 3, 2))))
    assert windows.total("record", "add/remove") == Cost(epsilon_of(4 * 3 * RHO, DELTA), DELTA)
    assert windows.cost == Cost(epsilon_of(6 * RHO, DELTA), DELTA)


def test_record_windows_cost_what_the_worst_of_them_does_component_by_component() -> None:
    limits = replace(LIMITS, unit="record")
    windows = [
        with_test(RHO, TEST, window=0, withheld=True),
        with_test(2 * RHO, TEST, window=1),
        with_test(RHO, TEST, window=2),
    ]
    worst = Cost(min(TEST + epsilon_of(2 * RHO, DELTA), epsilon_of(2 * RHO + TEST**2 / 2, DELTA)), DELTA)
    assert total_of(*windows, limits=limits) == worst
    assert total_of(windows[0], limits=limits) == Cost(TEST, ZERO)
    assert total_of(*windows, gaussian(RHO), limits=limits) == Cost(epsilon_of(3 * RHO + TEST**2 / 2, DELTA), DELTA)


def test_withheld_windows_of_clients_cost_their_test_alone() -> None:
    windows = [with_test(RHO, TEST, window=window, unit="client", withheld=True) for window in range(4)]
    assert total_of(*windows) == Cost(4 * TEST, ZERO)


# ------------------------------------------------------------------------------------------------------ validity

MIXED = (
    ((Fraction(1, 2),), (Fraction(1, 10),)),
    ((Fraction(1),) * 3, (Fraction(1, 500),)),
    ((Fraction(1, 20),) * 4, (Fraction(1, 5), Fraction(1, 50))),
    ((Fraction(1, 10),) * 40, ()),
    ((), (Fraction(1, 50),) * 10),
)


@pytest.mark.parametrize("delta", (Fraction(1, 100), Fraction(1, 10**5)), ids=str)
@pytest.mark.parametrize("pure, rho", MIXED)
def test_no_total_is_below_what_the_worst_mechanisms_lose_by_dp_accounting(
    pure: tuple[Fraction, ...], rho: tuple[Fraction, ...], delta: Fraction
) -> None:
    total = total_of(*client(*map(spend, pure), *map(gaussian, rho)), limits=replace(LIMITS, delta=delta))
    assert total is not None
    proven = _least_epsilon(pure, rho, float(delta))
    slack = 3.5 if pure and rho else 1.35  # an epsilon of 1 as zCDP is dear: the price of a bound for every sequence
    assert proven <= float(total.epsilon) < slack * proven


def _least_epsilon(pure: Sequence[Fraction], rho: Sequence[Fraction], delta: float) -> float:
    """By privacy loss distributions, rounded towards less so that the library's own notches cannot be to blame."""
    notches = {"pessimistic_estimate": False, "value_discretization_interval": 1e-3}
    losses = [
        # Randomised response between two answers loses all of a pure ε.
        *(pld.from_randomized_response(2 / (1 + exp(epsilon)), 2, **notches) for epsilon in pure),
        *(pld.from_gaussian_mechanism(sqrt(1 / (2 * item)), use_connect_dots=False, **notches) for item in rho),
    ]
    together = reduce(lambda one, other: one.compose(other), losses)
    return float(together.get_epsilon_for_delta(delta))


# --------------------------------------------------------------------------------------------------------- limits


def test_zcdp_without_a_total_delta_is_refused() -> None:
    account = Account(replace(LIMITS, delta=ZERO)).charge(*client(spend(1)))
    with pytest.raises(
        BudgetError, match="total_delta is required: this release has no finite ε at the total δ of the population, 0"
    ):
        account.charge(*client(gaussian(RHO)))


def test_a_delta_at_which_what_is_spent_has_no_epsilon_cannot_be_registered() -> None:
    account = Account(LIMITS).charge(*client(gaussian(RHO)))
    with pytest.raises(BudgetError, match="total_delta of the population cannot be lowered to 0"):
        account.register(replace(LIMITS, delta=ZERO))
    lowered = account.register(replace(LIMITS, delta=DELTA / 10))
    assert lowered.spent == Cost(epsilon_of(RHO, DELTA / 10), DELTA / 10)


def test_the_whole_of_delta_is_spent_once_for_all_zcdp() -> None:
    account = Account(LIMITS).charge(*client(gaussian(RHO))).charge(*client(gaussian(RHO)))
    assert account.left == Cost(8 - epsilon_of(2 * RHO, DELTA), ZERO)


@settings(max_examples=30)
@given(
    rho=st.fractions(min_value=Fraction(1, 100), max_value=2, max_denominator=100),
    epsilon=st.fractions(min_value=Fraction(1, 10), max_value=2, max_denominator=10),
    before=st.integers(0, 3),
)
def test_what_can_be_afforded_is_what_can_be_charged(rho: Fraction, epsilon: Fraction, before: int) -> None:
    account = Account(LIMITS)
    for window in range(before):
        try:
            account = account.charge(with_test(rho / 3, epsilon / 7, window=window, unit="client"))
        except BudgetError:
            break
    promised, charged = account.affordable(with_test(rho, epsilon, window=10, unit="client")), 0
    try:
        while charged < 1000:
            account = account.charge(with_test(rho, epsilon, window=10 + charged, unit="client"))
            charged += 1
    except BudgetError:
        pass
    assert promised == charged


def test_any_number_of_a_clients_windows_can_be_afforded_by_records_and_one_after_the_other_by_clients() -> None:
    pure = replace(LIMITS, delta=ZERO)
    records = replace(pure, unit="record")
    one = spend(2, window=0, unit="client")
    assert Account(records).affordable(one) is None
    assert Account(records).affordable(spend(5, window=0, unit="client")) == 0
    assert Account(records).charge(one).affordable(spend(4, window=1, unit="client")) is None
    assert Account(records).charge(one).affordable(spend(2, plan=2, window=1, unit="client")) is None
    assert Account(records).charge(one).affordable(spend(3, plan=2, window=1, unit="client")) == 0
    assert Account(records).affordable(spend(1, unit="client")) == 4
    assert Account(pure).affordable(one) == 4


def test_any_number_of_record_windows_can_be_afforded_or_none() -> None:
    limits = replace(LIMITS, unit="record")
    assert Account(limits).affordable(spend(8, window=0)) is None
    assert Account(limits).affordable(spend(9, window=0)) == 0
    assert Account(limits).charge(spend(1)).affordable(spend(Fraction(15, 2), window=0)) == 0
    assert Account(replace(limits, delta=ZERO)).affordable(spend(2)) == 4


def test_a_delta_at_which_pure_spends_would_exceed_the_total_cannot_be_registered() -> None:
    account = Account(replace(LIMITS, epsilon=Fraction(5)))
    for index in range(200):
        account = account.charge(spend(Fraction(1, 20), window=index, plan=index, unit="client"))
    assert account.spent == Cost(epsilon_of(Fraction(1, 4), DELTA), DELTA)  # the sum of their ε is 10
    with pytest.raises(
        BudgetError, match=r"total_delta of the population cannot be lowered from .* to 0: earlier spends"
    ):
        account.register(replace(account.limits, delta=ZERO))
    assert account.register(replace(account.limits, epsilon=Fraction(1))).is_passed  # nothing more may be spent
