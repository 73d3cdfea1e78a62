"""Failures of secure sums in the ledger: what they take of δ, and that no output can choose how δ is divided."""

from dataclasses import replace
from fractions import Fraction

import pytest

from hushsum import BudgetError, Plan, PlanError
from hushsum.privacy.accountant import Account, Limits
from hushsum.privacy.cohort import FAILURE
from hushsum.privacy.events import Spend
from hushsum.privacy.relations import FAILURE_SHARE, NO_LOSS, Cost, Loss, implied
from hushsum.privacy.statement import account_told, spend_told
from hushsum.privacy.zcdp import epsilon_of
from hushsum.releases import spend_of
from tests.hushsum.privacy import spends
from tests.plans import secure_plan

MILLIONTH = Fraction(1, 10**6)
CLIENT = {"unit": "client", "records_per_client": 3}
PURE = secure_plan(privacy=CLIENT)
CLOSE = secure_plan(privacy={**CLIENT, "delta": "0.000001"})


def window(plan: Plan, index: int) -> Spend:
    return spend_of(plan, kind="tumbling", window=index)


def account(delta: Fraction = MILLIONTH, epsilon: int = 100) -> Account:
    return Account(Limits("", "client", "zero-out", Fraction(epsilon), delta))


def charged(*loss: Spend, delta: Fraction = MILLIONTH) -> Account:
    result = account(delta)
    for spend in loss:
        result = result.charge(spend)
    return result


def test_pure_windows_take_their_epsilon_and_a_failure_each() -> None:
    after = charged(*(window(PURE, index) for index in range(5)))
    assert after.spent == Cost(Fraction(5), 5 * FAILURE)
    assert after.left == Cost(Fraction(95), MILLIONTH - 5 * FAILURE)


def test_no_more_windows_than_delta_pays_failures_for() -> None:
    after = charged(*(window(PURE, index) for index in range(3)), delta=3 * FAILURE)
    assert after.affordable(window(PURE, 3)) == 0
    with pytest.raises(BudgetError, match="Budget exceeded"):
        after.charge(window(PURE, 3))


def test_windows_of_unit_record_take_one_failure_together() -> None:
    plan = secure_plan()
    limits = plan.limits
    after = Account(limits)
    for index in range(4):
        after = after.charge(window(plan, index))
    assert after.spent == Cost(Fraction(1), FAILURE)
    assert after.affordable(window(plan, 4)) is None


def test_zcdp_beside_failures_is_converted_at_what_their_part_of_delta_leaves() -> None:
    spend = window(CLOSE, 0)
    after = charged(spend, replace(spend, window=1))
    kept = FAILURE_SHARE * MILLIONTH
    assert after.spent == Cost(epsilon_of(2 * spend.loss.rho, MILLIONTH - kept), MILLIONTH)
    assert spend.loss == Loss(rho=spend.loss.rho, failure=FAILURE)


def test_failures_beyond_their_part_of_delta_are_refused() -> None:
    delta = 8 * 3 * FAILURE
    after = charged(*(window(CLOSE, index) for index in range(3)), delta=delta)
    assert after.affordable(window(CLOSE, 3)) == 0
    with pytest.raises(BudgetError, match="no finite ε"):
        after.charge(window(CLOSE, 3))


def test_a_population_that_began_without_failures_takes_none() -> None:
    central = spends.spend(unit="client", relation="zero-out")
    with pytest.raises(BudgetError, match="started without secure sums"):
        charged(central).charge(window(PURE, 0))
    assert charged(window(PURE, 0)).charge(central).spent.epsilon == 2


def test_a_population_of_pure_secure_sums_takes_no_zcdp() -> None:
    for spend in (spends.gaussian(unit="client", relation="zero-out"), window(CLOSE, 0)):
        with pytest.raises(BudgetError, match="started with pure secure sums"):
            charged(window(PURE, 0)).charge(spend)


def test_zcdp_beside_failures_takes_pure_sums_and_central_releases() -> None:
    after = charged(window(CLOSE, 0), window(PURE, 0), spends.gaussian(unit="client", relation="zero-out"))
    assert after.loss is not None
    assert after.loss.failure == 2 * FAILURE


def test_a_withheld_window_decides_nothing() -> None:
    withheld = spends.of_events(plan=3, window=1, unit="client", relation="zero-out")
    assert charged(withheld).charge(window(PURE, 0)).spent == Cost(Fraction(1), FAILURE)


def test_a_failure_counts_once_for_a_replacement_too() -> None:
    loss = Loss.of_pure(Fraction(1)).failing(FAILURE)
    replaced = implied(loss, unit="client", relation="zero-out", for_unit="record", for_relation="replace")
    assert replaced == Loss(Fraction(2), Fraction(0), Fraction(2), Fraction(0), FAILURE)


def test_failures_add_up_subtract_and_multiply() -> None:
    loss = Loss.of_pure(Fraction(1)).failing(FAILURE)
    assert loss.plus(loss) == loss.times(2)
    assert loss.plus(loss).minus(loss) == loss
    assert loss.minus(loss) == NO_LOSS
    assert loss.worst(NO_LOSS).failure == NO_LOSS.worst(loss).failure == FAILURE
    assert not loss.within(Cost(Fraction(1), FAILURE / 2))
    assert loss.within(Cost(Fraction(1), FAILURE))


def test_what_a_secure_window_tells_is_said_with_its_delta() -> None:
    told = spend_told(window(PURE, 0), delta=MILLIONTH, own_delta=FAILURE)
    assert told.endswith("That is ε = 1, δ = 7.27596e-12.")
    assert "whether one client had any records to send" in told
    everything = account_told(charged(window(PURE, 0)), next_spend=window(PURE, 1))
    assert "This suffices for 99 more such windows." in everything


# ------------------------------------------------------------------ pure sums that keep an eighth of δ for failures

RESERVED = secure_plan({"failures": "reserved"}, privacy=CLIENT)
KEPT = FAILURE_SHARE * MILLIONTH


def test_pure_sums_that_keep_a_part_of_delta_cost_their_epsilon_or_their_zcdp() -> None:
    (event,) = window(RESERVED, 0).events
    rho = Fraction(9 * (20 + 2**2)) / (2 * event.scale**2)  # type: ignore[union-attr]  # an event of this version
    one = charged(window(RESERVED, 0))
    assert one.loss == Loss(epsilon=Fraction(1), pure_rho=rho, failure=FAILURE, reserved=FAILURE)
    assert one.spent == Cost(Fraction(1), FAILURE)
    many = charged(*(window(RESERVED, index) for index in range(100)))
    assert many.spent == Cost(epsilon_of(100 * rho, MILLIONTH - KEPT), MILLIONTH)
    assert many.spent.epsilon < 15, "a hundred without that part"
    assert charged(window(PURE, 0), window(PURE, 1)).spent == Cost(Fraction(2), 2 * FAILURE)


def test_few_large_epsilons_still_add_where_that_is_less() -> None:
    large = secure_plan({"failures": "reserved"}, privacy={**CLIENT, "epsilon": 30}, sketch={"rows": 1})
    assert charged(window(large, 0)).spent == Cost(Fraction(30), FAILURE)


def test_failures_beyond_the_kept_part_are_refused_whatever_the_epsilon() -> None:
    delta = 8 * 3 * FAILURE
    after = charged(*(window(RESERVED, index) for index in range(3)), delta=delta)
    assert after.affordable(window(RESERVED, 3)) == 0
    with pytest.raises(BudgetError, match="no finite ε"):
        after.charge(window(RESERVED, 3))
    whole = charged(*(window(PURE, index) for index in range(24)), delta=delta)
    assert whole.spent == Cost(Fraction(24), delta)


def test_which_part_failures_may_use_is_fixed_by_the_first_release() -> None:
    # Chosen by what a release showed, failures of the whole δ beside zCDP at its rest would pass it.
    old = charged(window(PURE, 0)).charge(window(RESERVED, 0))
    assert old.spent == Cost(Fraction(2), 2 * FAILURE)
    assert old.loss is not None
    assert not old.loss.keeps
    with pytest.raises(BudgetError, match="started with pure secure sums"):
        old.charge(spends.gaussian(unit="client", relation="zero-out"))
    new = charged(window(RESERVED, 0))
    with pytest.raises(BudgetError, match=r'failures = "reserved" in \[privacy.secure\] too'):
        new.charge(window(PURE, 0))
    mixed = new.charge(spends.gaussian(unit="client", relation="zero-out")).charge(window(CLOSE, 0))
    assert mixed.charge(window(PURE, 0)).loss is not None
    assert mixed.spent.delta == MILLIONTH


def test_a_plan_that_keeps_a_part_needs_a_total_of_eight_failures_and_says_so_in_its_bytes_and_spends() -> None:
    assert b'"failures":"reserved"' in RESERVED.to_bytes()
    assert Plan.from_bytes(RESERVED.to_bytes()) == RESERVED
    spend = window(RESERVED, 3)
    assert b'"failure":"0.0000000000072759576141834259033203125","failures":"reserved"' in spend.to_bytes()
    assert Spend.from_bytes(spend.to_bytes()) == spend
    for old in (PURE, CLOSE):
        assert b'"failures"' not in old.to_bytes()
        assert b'"failures"' not in window(old, 3).to_bytes()
    with pytest.raises(PlanError, match=r"at least 2\^-34 .* that is to be at most 1/8 of it"):
        secure_plan({"failures": "reserved"}, privacy={**CLIENT, "total_delta": "0.00000000001"})
    with pytest.raises(PlanError, match=r"privacy\.secure\.failures"):
        secure_plan({"failures": "eighth"}, privacy=CLIENT)


def test_a_secure_plan_has_pure_noise_at_a_delta_only_where_it_reserves_a_part_for_failures() -> None:
    sketch, privacy = {"rows": 1}, {"delta": "0.000001"}
    whole = secure_plan(sketch=sketch, privacy=privacy)
    reserved = secure_plan({"failures": "reserved"}, sketch=sketch, privacy=privacy)
    assert whole.privacy.mechanism.name == "discrete-gaussian"  # so that Gaussian plans of the population can follow
    assert reserved.privacy.mechanism.name == "discrete-laplace"
