from fractions import Fraction

import pytest

from hushsum.plan import Plan
from simulator.audits import cases, runner
from simulator.audits.exact import change, changes, epsilon
from simulator.audits.laws import GAUSSIAN, LAPLACE, Bounds
from simulator.audits.pipelines import added, folded
from tests.hushsum.noise.observed import pmf
from tests.simulator.audits import planted

PLANS = [*runner.plans()]
SEVERAL_ROWS = {"rows": 3, "buckets": 4}


def drawn(name: str, scale: Fraction, reach: int) -> Bounds:
    """The law of the sampler that runs, read off by driving it."""
    from hushsum.noise import SAMPLERS

    return pmf(SAMPLERS[name](scale), reach)


def found(plan: Plan) -> float:
    return epsilon(plan, changes(plan, added), float(plan.privacy.delta))


@pytest.mark.parametrize("plan", [plan for _, plan in PLANS], ids=str)
def test_no_outcome_of_any_plan_tells_more_than_it_claims(plan: Plan) -> None:
    claimed = float(plan.privacy.epsilon)
    assert found(plan) <= claimed * (1 + 1e-9)
    assert found(plan) >= claimed * (0.999999 if plan.privacy.delta == 0 else 0.5), "the worst case is among them"


@pytest.mark.parametrize("plan", [plan for _, plan in PLANS if plan.privacy.mechanism.name == LAPLACE][:2], ids=str)
def test_it_holds_for_what_the_running_sampler_draws(plan: Plan) -> None:
    exact = epsilon(plan, changes(plan, added), 0.0, drawn)
    assert exact == pytest.approx(float(plan.privacy.epsilon), abs=1e-9)


@pytest.mark.parametrize("unit", [{}, {"unit": "client", "records_per_client": 2}])
def test_deltas_change_the_counters_as_records_do(unit: dict[str, object]) -> None:
    plan = cases.plan_of(sketch=SEVERAL_ROWS, **unit)
    assert changes(plan, added) == changes(plan, folded)


def test_one_record_changes_one_counter_a_row_and_the_count() -> None:
    plan = cases.plan_of(sketch=SEVERAL_ROWS)
    moved = changes(plan, added)
    assert len(moved) > 2
    assert {(sum(change[:-1]), change[-1]) for change in moved} == {(3, 1)}


def test_a_replacement_costs_what_one_removal_and_one_addition_cost() -> None:
    plan = cases.plan_of(sketch=SEVERAL_ROWS)
    exact = epsilon(plan, changes(plan, added, replace=True), 0.0)
    assert exact == pytest.approx(2 * 3 / float(plan.privacy.mechanism.scale))


@pytest.mark.parametrize("plan", [*runner.full_clients()], ids=str)
def test_one_record_less_of_a_full_client_shows_more_than_one_step_and_no_more_than_the_two_that_are_charged(
    plan: Plan,
) -> None:
    row = runner.one_record_less(plan)
    assert (row.unit, row.relation) == ("record", plan.guarantee.relation)
    assert row.holds
    assert row.exact is not None
    if plan.privacy.delta == 0:
        assert row.epsilon == 2 * float(plan.privacy.epsilon)
        assert row.exact == pytest.approx(2000 / 1053, rel=0.01), "but for rows in which the two ends share a bucket"
    else:
        assert row.exact > 1.1 * float(plan.privacy.epsilon)


@pytest.mark.parametrize("plan", [*runner.full_clients()], ids=str)
def test_one_record_of_a_full_client_decides_about_its_other_batches_in_folds_as_in_sketches(plan: Plan) -> None:
    case = cases.one_record_less(plan, "")
    moved = change(case, folded)
    assert moved == change(case, added)
    assert sum(map(abs, moved[:-1])) > 3.9 * plan.family.sensitivity.l1, "2 of 2 records, out and in"
    assert moved[-1] == 0, "as many records"


@pytest.mark.parametrize("delta", ["0.000001", "0.05"])
def test_with_a_test_of_the_clients_delta_covers_both_parts(delta: str) -> None:
    keys: dict[str, object] = {"delta": delta, "epsilon": 2}
    tested = cases.plan_of(min_clients=4, min_clients_share="0.5", **keys)
    counters = cases.plan_of(**{**keys, "epsilon": 1})
    assert tested.privacy.mechanism.scale == counters.privacy.mechanism.scale
    assert found(counters) < found(tested) <= found(counters) + 1


# ------------------------------------------------------------------------------------------------- planted mistakes


@pytest.mark.parametrize("keys", [{}, {"delta": "0.000001"}, {"min_clients": 4}], ids=str)
def test_half_the_noise_is_caught(keys: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    planted.half_the_noise(monkeypatch)
    plan = cases.plan_of(**keys)
    assert found(plan) > 1.5 * float(plan.privacy.epsilon)


@pytest.mark.parametrize("keys", [{}, {"delta": "0.000001"}], ids=str)
def test_a_forgotten_row_is_caught(keys: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    honest = cases.plan_of(sketch={"rows": 2, "buckets": 2}, **keys)
    assert found(honest) <= 1 + 1e-9
    planted.forget_a_row(monkeypatch)
    plan = cases.plan_of(sketch={"rows": 2, "buckets": 2}, **keys)
    assert plan.privacy.mechanism.scale < honest.privacy.mechanism.scale, "calibration and verifier both believe it"
    assert found(plan) > 1.05


@pytest.mark.parametrize("plan", [*runner.full_clients()], ids=str)
def test_a_clients_spend_that_counts_in_full_for_records_is_caught(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.count_a_clients_spend_in_full_for_records(monkeypatch)
    row = runner.one_record_less(plan)
    assert not row.holds
    assert row.epsilon == pytest.approx(float(plan.privacy.epsilon), rel=0.1), "the ledger believes it"
    assert (row.exact or 0) > 1.1 * row.epsilon


def test_a_dropped_top_part_of_laplace_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cases.plan_of()
    planted.drop_the_top_part(monkeypatch)
    monkeypatch.setattr("simulator.audits.exact._REACH", 140)  # beyond the digits of this scale
    assert epsilon(plan, changes(plan, added), 0.0, drawn) > 10


def test_a_dropped_tail_of_gaussian_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.drop_the_top_part(monkeypatch)
    with pytest.raises(AssertionError, match="no choice leads to the tail"):
        drawn(GAUSSIAN, Fraction(3, 10), 12)
