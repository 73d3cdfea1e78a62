""""""

import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_discrete_laplace_mechanism
from scipy.stats import norm

from hushsum.noise import DiscreteGaussian, DiscreteLaplace
from hushsum.plan import Plan
from hushsum.privacy.zcdp import epsilon_of
from hushsum_simulator.audit import cases, runner
from hushsum_simulator.audit.exact import (
    GAUSSIAN,
    LAPLACE,
    Bounds,
    change,
    changes,
    disagreements,
    epsilon,
    gaussian_losses,
    laplace_losses,
    stated,
    tail,
    worst_loss,
)
from hushsum_simulator.audit.pipelines import added, folded
from tests.hushsum.noise.observed import pmf
from tests.hushsum_simulator.audit import planted

PLANS = [*runner.plans(), *(("weighted moments", plan) for plan in runner.weighted_plans())]
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


@pytest.mark.parametrize(("plan", "times"), [*runner.repeated()], ids=str)
def test_windows_that_add_up_lose_no_more_than_the_ledger_charges_by_their_zcdp(plan: Plan, times: int) -> None:
    row = runner.many_releases(plan, times)
    assert row.holds
    assert row.epsilon < times * float(plan.privacy.epsilon)
    assert row.delta == 1e-6
    assert row.exact is not None
    assert row.exact > (0.6 if times == 1 else 0.9) * row.epsilon, "a loss of many counters is nearly Gaussian"


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(7), Fraction(53)], ids=str)
def test_losses_of_laplace_noise_are_those_of_dp_accounting(scale: Fraction) -> None:
    each = {"parameter": 1 / float(scale), "value_discretization_interval": 1 / float(scale) / 8}
    together = from_discrete_laplace_mechanism(**each, sensitivity=1).self_compose(12)
    together = together.compose(from_discrete_laplace_mechanism(**each, sensitivity=4).self_compose(3))
    expected = together.get_epsilon_for_delta(1e-6)
    assert laplace_losses([1, -1, 0, 1, 1, 4], scale, 3).epsilon(1e-6) == pytest.approx(expected, rel=1e-3)


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


@pytest.mark.parametrize("number", [0, 1])
def test_a_sensitivity_of_moments_without_their_weights_is_caught(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = [*runner.weighted_plans()][number]
    planted.state_every_moment_at_one_scale(monkeypatch)
    plan = [*runner.weighted_plans()][number]
    assert plan.privacy.mechanism.scale < honest.privacy.mechanism.scale, "calibration and verifier both believe it"
    assert found(plan) > 1.05


@pytest.mark.parametrize("plan", [*runner.full_clients()], ids=str)
def test_a_clients_spend_that_counts_in_full_for_records_is_caught(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.count_a_clients_spend_in_full_for_records(monkeypatch)
    row = runner.one_record_less(plan)
    assert not row.holds
    assert row.epsilon == pytest.approx(float(plan.privacy.epsilon), rel=0.1), "the ledger believes it"
    assert (row.exact or 0) > 1.1 * row.epsilon


@pytest.mark.parametrize(
    ("mistake", "number"),
    [(planted.forget_the_count_in_zcdp, 0), (planted.count_one_record_of_a_client_in_zcdp, 3)],
)
def test_a_mistake_in_the_zcdp_of_laplace_noise_is_caught(
    mistake: planted.Plant, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, times = [*runner.repeated()][number]
    mistake(monkeypatch)
    row = runner.many_releases(plan, times)
    assert not row.holds
    assert (row.exact or 0) > 1.1 * row.epsilon


def test_a_dropped_top_part_of_laplace_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cases.plan_of()
    planted.drop_the_top_part(monkeypatch)
    monkeypatch.setattr("hushsum_simulator.audit.exact._REACH", 140)  # beyond the digits of this scale
    assert epsilon(plan, changes(plan, added), 0.0, drawn) > 10


def test_a_dropped_tail_of_gaussian_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.drop_the_top_part(monkeypatch)
    with pytest.raises(AssertionError, match="no choice leads to the tail"):
        drawn(GAUSSIAN, Fraction(3, 10), 12)


SCALES = (Fraction(1, 3), Fraction(2), Fraction(17, 10))


@pytest.mark.parametrize("name", [LAPLACE, GAUSSIAN])
@pytest.mark.parametrize("scale", SCALES)
def test_a_stated_law_is_a_distribution_between_tight_bounds(name: str, scale: Fraction) -> None:
    law = stated(name, scale, 400 if name == LAPLACE else 40)
    low, high = (sum(bounds[end] for bounds in law.values()) for end in (0, 1))
    assert low <= 1 <= high + Fraction(1, 10**50)
    assert high - low < Fraction(1, 10**60)
    assert all(law[k] == law[-k] for k in law)


@pytest.mark.parametrize(("scale", "change"), [(Fraction(2), 1), (Fraction(2), -3), (Fraction(1, 3), 2)])
def test_laplace_noise_hides_a_change_up_to_its_share_of_the_scale(scale: Fraction, change: int) -> None:
    low, high = worst_loss(stated(LAPLACE, scale, 64), change)
    assert low == pytest.approx(high, abs=1e-15) == pytest.approx(abs(change) / float(scale), abs=1e-14)


def test_the_loss_of_gaussian_noise_grows_with_the_outcome() -> None:
    law = stated(GAUSSIAN, Fraction(2), 40)
    assert worst_loss(law, 1)[1] == pytest.approx((2 * 40 - 1) / 4)


def test_an_outcome_that_only_one_neighbour_shows_is_an_infinite_loss() -> None:
    law = dict(stated(LAPLACE, Fraction(2), 10))
    law[7] = (Fraction(0), Fraction(0))
    assert worst_loss(law, 1) == (math.inf, math.inf)


@pytest.mark.parametrize("least", [-9, -1, 0, 1, 2, 30])
def test_the_tail_is_the_sum_of_what_lies_there(least: int) -> None:
    law = stated(LAPLACE, Fraction(2), 300)
    summed = sum(law[k][0] for k in law if k >= least)
    low, high = tail(Fraction(2), least)
    assert low <= summed + Fraction(1, 10**50)
    assert summed - Fraction(1, 10**50) <= high
    assert high - low < Fraction(1, 10**60)


def test_the_laplace_sampler_that_runs_draws_from_the_stated_law() -> None:
    assert disagreements(pmf(DiscreteLaplace(Fraction(2)), 260), stated(LAPLACE, Fraction(2), 260)) == []


def test_the_gaussian_sampler_that_runs_draws_from_the_stated_law() -> None:
    scale = Fraction(3, 10)
    assert disagreements(pmf(DiscreteGaussian(scale), 12), stated(GAUSSIAN, scale, 12)) == []


def test_laws_of_other_parameters_disagree_nearly_everywhere() -> None:
    other = stated(LAPLACE, Fraction(2) + Fraction(1, 10**12), 50)
    assert len(disagreements(stated(LAPLACE, Fraction(2), 50), other)) > 90


REACH = 60


def summed(changes: tuple[int, ...], variance: float, epsilon: float) -> float:
    """δ by the definition: Σ max(0, P − e^ε·P') over all outcomes of all counters."""
    k = np.arange(-REACH, REACH + 1)
    weights = np.exp(-np.square(np.arange(-REACH - 9, REACH + 10)) / (2 * variance))
    total = weights.sum()
    first, second = np.ones(1), np.ones(1)
    for moved in changes:
        first = np.multiply.outer(first, weights[9:-9] / total).reshape(-1)
        second = np.multiply.outer(second, np.exp(-np.square(k - moved) / (2 * variance)) / total).reshape(-1)
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


@pytest.mark.parametrize("changes", [(1,), (2,), (1, 1), (3, -1), (0, 2)])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.5])
def test_delta_is_the_sum_of_its_definition(changes: tuple[int, ...], epsilon: float) -> None:
    losses = gaussian_losses(changes, Fraction(13, 2))
    assert losses.delta(epsilon) == pytest.approx(summed(changes, 6.5, epsilon), rel=1e-9, abs=1e-14)


def test_the_masses_are_those_of_a_distribution_and_what_is_missing_is_negligible() -> None:
    losses = gaussian_losses((2, 1, 1), Fraction(40))
    assert losses.masses.sum() == pytest.approx(1, abs=1e-12)
    assert losses.missing < 1e-28


def test_epsilon_is_where_delta_is_reached() -> None:
    losses = gaussian_losses((1, 1), Fraction(50))
    epsilon = losses.epsilon(1e-6)
    assert losses.delta(epsilon) <= 1e-6 < losses.delta(epsilon * (1 - 1e-9))
    assert losses.epsilon(0.9) == 0


def test_for_large_noise_it_is_the_curve_of_the_continuous_gaussian() -> None:
    # Balle and Wang 2018, theorem 8.
    change, sigma, epsilon = 3, 30.0, 0.1
    ratio = change / sigma
    curve = norm.cdf(ratio / 2 - epsilon / ratio) - math.exp(epsilon) * norm.cdf(-ratio / 2 - epsilon / ratio)
    assert gaussian_losses((change,), Fraction(900)).delta(epsilon) == pytest.approx(curve, rel=1e-3)


@pytest.mark.parametrize("delta", ["0.01", "1e-6", "1e-10"])
def test_what_zcdp_promises_is_never_below_and_hardly_above_the_exact_epsilon(delta: str) -> None:
    rho = Fraction(3, 2 * 40)  # three counters change by one
    exact, promised = gaussian_losses((1, 1, 1), Fraction(40)).epsilon(float(delta)), epsilon_of(rho, Fraction(delta))
    assert exact <= promised <= exact * 1.5
