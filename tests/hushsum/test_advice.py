"""Advice: what it refuses, what it recommends, and what it says of costs."""

import json
import math

import numpy as np
import pytest

from hushsum import Plan, delta, error_bounds
from hushsum.advice import Advice, Allowance, advise, shown
from hushsum.advice.costs import stand_in, with_rows
from hushsum.advice.forecast import Hashing
from hushsum.delta import DeltaId
from hushsum.query import noise_std_error
from tests.plans import classed_plan, client_plan, model_plan, set_plan, small_plan

SMALL = Allowance(memory_mib=0.25)
DELTA: dict[str, object] = {"delta": "0.000001", "total_delta": "0.000001"}
HERMITE: dict[str, object] = {"family": "hermite", "kernel": "gaussian", "rows": ..., "buckets": ..., "seed": ...}


def advice_for(
    plan: Plan,
    *,
    records: int = 20_000,
    density: float = 0.2,
    clients: int | None = None,
    allowance: Allowance = SMALL,
) -> Advice:
    return advise(plan, records=records, density=density, clients=clients, allowance=allowance)


@pytest.mark.parametrize("density", (0.5, 0.2, 0.02))
@pytest.mark.parametrize("kernel", ("euclidean", "laplacian", "angular"))
def test_made_up_records_have_the_density_that_was_guessed(kernel: str, density: float) -> None:
    sketch: dict[str, object] = {"kernel": kernel, "bandwidth": ... if kernel == "angular" else 1, "power": 6}
    record: dict[str, object] = {"lower": [-10, -10], "upper": [10, 10]}
    plan = small_plan(record=record, sketch=sketch if kernel == "angular" else {**sketch, "power": 1})
    made = stand_in(plan, density, 2000)
    assert made.density == pytest.approx(density, rel=0.01)
    assert made.density == plan.family.kernel(made.records, made.queries).mean()
    assert np.all((made.records >= -10) & (made.records <= 10))


def test_made_up_sets_have_the_density_that_was_guessed() -> None:
    assert stand_in(set_plan(), 0.3, 500).density == pytest.approx(0.3, rel=0.02)


def test_the_stand_in_is_the_same_each_time() -> None:
    first, second = (stand_in(small_plan(), 0.2, 300) for _ in range(2))
    assert first.records.tobytes() == second.records.tobytes()
    assert first.queries.tobytes() == second.queries.tobytes()


@pytest.mark.parametrize("plan", (small_plan(), set_plan(), model_plan()), ids=("vectors", "sets", "models"))
def test_a_density_that_no_records_have_is_refused_with_those_that_some_have(plan: Plan) -> None:
    with pytest.raises(ValueError, match=r"density: got 1e-09, expected from 0\.\d+ to"):
        advice_for(plan, density=1e-9)


@pytest.mark.parametrize(
    ("guess", "message"),
    (
        ({"records": 0}, "records: got 0"),
        ({"density": 0.0}, "density: got 0"),
        ({"density": 1.0}, "density: got 1"),
        ({"clients": 0}, "clients: got 0"),
        ({"clients": 20_001}, "clients: got 20001"),
        ({"clients": 5000}, "5000 clients contribute at most privacy.records_per_client = 3 each, 15000 in all"),
    ),
)
def test_guesses_that_cannot_be_are_refused(guess: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        advice_for(client_plan(), **guess)  # type: ignore[arg-type]  # among them are numbers of every kind


@pytest.mark.parametrize("limit", ("device_ms", "delta_kib", "memory_mib"))
def test_an_allowance_of_nothing_is_refused(limit: str) -> None:
    with pytest.raises(ValueError, match=f"{limit}: got 0"):
        Allowance(**{limit: 0})


@pytest.mark.parametrize("privacy", ({}, DELTA), ids=("pure", "zCDP"))
def test_the_noise_of_the_plan_as_written_is_the_noise_that_it_states(privacy: dict[str, object]) -> None:
    plan = small_plan(privacy=privacy)
    advice = advice_for(plan)
    assert advice.promises[advice.own_promise].own
    assert advice.own.noises[advice.own_promise] == pytest.approx(noise_std_error(plan), rel=1e-12)
    assert advice.std_error == math.hypot(advice.own.hashing, advice.own.noises[advice.own_promise])


PARTITION: dict[str, object] = {"family": "partition", "kernel": ..., "rows": 8}
FOURIER: dict[str, object] = {"family": "fourier", "kernel": "gaussian", "buckets": ...}


@pytest.mark.parametrize(
    ("sketch", "density"),
    (
        ({}, 0.2),
        ({"draws": "sobol", "sobol_sets": 4}, 0.2),
        (FOURIER, 0.2),
        ({**PARTITION, "bandwidth": 1.25}, 0.1),  # a bucket a cell: hashing adds nothing, at any number of rows
        ({**PARTITION, "bandwidth": 0.05}, 0.01),
    ),
    ids=("hashed", "sobol", "fourier", "a bucket a cell", "fine cells"),
)
def test_the_noise_of_every_size_is_that_which_the_plan_of_that_size_states(
    sketch: dict[str, object], density: float
) -> None:
    advice = advise(small_plan(sketch=sketch), records=2000, density=density, allowance=Allowance(memory_mib=0.02))
    assert len(advice.sizes) > 3
    for size in advice.sizes:
        plans = [small_plan(sketch={**sketch, "rows": size.rows}, privacy=privacy) for privacy in ({}, DELTA)]
        assert size.noises == pytest.approx([noise_std_error(plan) for plan in plans], rel=1e-9), size.rows


def test_noise_without_rows_is_that_of_the_queries_and_at_most_what_the_plan_states() -> None:
    plan = small_plan(sketch=HERMITE)
    advice, made = advice_for(plan), stand_in(plan, 0.2, 4096)
    variance = plan.privacy.mechanism.noise().variance
    answer = plan.family.answer(np.zeros(plan.family.shape, np.int64), made.queries, noise_variance=variance)
    assert advice.own.noises[0] == pytest.approx(math.sqrt(np.square(answer.std_error).mean()), rel=1e-9)
    assert 0.5 < advice.own.noises[0] / noise_std_error(plan) <= 1


def test_where_every_cell_has_a_bucket_one_row_is_the_best_for_pure() -> None:
    advice = advice_for(small_plan(sketch={**PARTITION, "bandwidth": 1.25}), density=0.1)
    assert advice.promises[0].best == advice.promises[0].enough == 1
    assert {size.hashing for size in advice.sizes} == {0.0}
    assert advice.bound_by == "more rows gain nothing"


def test_the_other_promise_is_that_of_the_same_plan_without_or_with_delta() -> None:
    pure = advice_for(small_plan())
    both = advice_for(small_plan(privacy=DELTA))
    assert [promise.name for promise in pure.promises] == [promise.name for promise in both.promises]
    assert [promise.own for promise in pure.promises] == [True, False]
    assert [promise.own for promise in both.promises] == [False, True]
    assert pure.own.noises == pytest.approx(both.own.noises, rel=1e-12)


def test_without_an_accountant_pure_advice_is_given_and_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    advice = advice_for(small_plan(privacy={"epsilon": "0.7310001"}))  # of which nothing is known from before
    assert [promise.name for promise in advice.promises] == ["pure"]
    assert advice.missing is not None
    assert "hushsum[analyst]" in advice.missing


def test_for_pure_the_best_rows_have_the_least_error_and_fewer_and_more_have_not() -> None:
    advice = advice_for(small_plan(privacy={"epsilon": "0.1"}))
    best = advice.promises[0].best
    assert best is not None
    errors = {size.rows: size.errors[0] for size in advice.sizes}
    assert errors[best] == min(errors.values())
    smallest, largest = advice.sizes[0], advice.sizes[-1]
    assert smallest.errors[0] > 1.1 * errors[best] < largest.errors[0]
    # Hashing falls as 1/√R, noise grows as √R: at the best size both are about the same.
    assert advice.at(best).hashing == pytest.approx(advice.at(best).noises[0], rel=0.15)


def test_with_delta_noise_does_not_grow_and_the_largest_allowed_size_is_the_best() -> None:
    advice = advice_for(small_plan(sketch={"rows": 64}))
    promise, allowed = advice.promises[1], [size for size in advice.sizes if not size.exceeds]
    assert promise.name == "zCDP"
    assert promise.best == allowed[-1].rows
    assert advice.sizes[-1].exceeds == ("memory_mib",)
    assert advice.bound_by == "memory_mib"
    noises = [size.noises[1] for size in advice.sizes if size.rows and size.rows >= 16]
    assert max(noises) < 1.05 * min(noises)
    assert promise.enough is not None
    assert advice.at(promise.enough).errors[1] <= 1.05 * advice.at(promise.best).errors[1]


def test_the_best_rows_are_those_whose_noise_is_what_collisions_of_made_up_records_come_to() -> None:
    """Counted here: the variance, over codes that are drawn anew, of how many records share a row's code with a query.

    R* of the paper takes f̃² for it, which is its upper bound.
    """
    plan = small_plan(privacy={"epsilon": "0.1"})
    advice, made, rows = advice_for(plan), stand_in(plan, 0.2, 4096), 4096
    many = with_rows(plan, rows).family
    sketch = np.zeros(many.shape, np.int64)
    many.add(sketch, many.accept(made.records)[0])
    one = many.answer(sketch, made.queries, noise_variance=0.0).std_error * math.sqrt(rows) / len(made.records)
    spread = math.sqrt(float(np.square(one).mean()))
    scale = float(plan.privacy.mechanism.scale) / plan.family.sensitivity.l1
    best = 20_000 * spread / (math.sqrt(2) * scale)
    assert advice.optimal_rows == pytest.approx(best, rel=0.15)
    paper = error_bounds.optimal_rows(20_000 * float(np.sqrt(made.kernels).mean()), 1 / scale)
    assert paper > 2 * best
    assert advice.at(advice.optimal_rows).errors[0] < 1.01 * min(size.errors[0] for size in advice.sizes)


def test_the_best_rows_without_limits_may_be_beyond_them() -> None:
    advice = advice_for(small_plan(), allowance=Allowance(memory_mib=0.01))
    assert advice.optimal_rows is not None
    assert advice.optimal_rows > (advice.promises[0].best or 0)
    assert advice.at(advice.optimal_rows).exceeds


def test_unit_client_multiplies_noise_by_its_bound_and_says_how_many_clients_make_up_for_it() -> None:
    record, client = advice_for(small_plan()), advice_for(client_plan(7), clients=4000)
    assert client.own.noises == pytest.approx([7 * noise for noise in record.own.noises], rel=1e-3)
    for promise, noise in zip(client.promises, client.own.noises, strict=True):
        assert promise.useful_records == math.ceil(noise / (0.1 * 0.2))
        assert promise.useful_clients == math.ceil(promise.useful_records / 5)


def test_guessed_clients_fill_their_bound_unless_they_are_given() -> None:
    assert advice_for(client_plan(3), records=10_000).guesses.clients == 3334
    assert advice_for(small_plan(), records=10_000).guesses.clients == 10_000


def test_costs_are_those_of_real_deltas_and_of_all_counters() -> None:
    plan = classed_plan(sketch={"rows": 32})
    advice = advice_for(plan, clients=5000)
    made, costs = stand_in(plan, 0.2, 4096), advice.own.costs
    alone = [delta.encode(plan, made.records[i : i + 1], window=0, id=DeltaId(1, 1000), labels=["a"]) for i in range(4)]
    sizes = [len(one.pack(plan)) for one, _ in alone if one is not None]
    assert costs.delta_bytes == pytest.approx(sum(sizes) / 4)
    assert costs.delta_bytes < costs.client_delta_bytes < 4 * costs.delta_bytes
    assert costs.aggregator_bytes == 8 * 3 * (32 * 64 + 1)
    assert 32 * 2 * 4 <= costs.device_bytes < costs.aggregator_bytes
    assert costs.record_seconds is None


def test_time_is_that_of_the_clock_that_was_brought_and_may_be_what_forbids_a_size() -> None:
    ticks = iter(range(10**6))
    advice = advise(small_plan(), records=1000, density=0.2, clock=lambda: float(next(ticks)))
    assert advice.own.costs.record_seconds == 1 / 16  # one tick for sixteen records
    assert advice.bound_by == "device_ms"
    assert advice.promises[0].best is advice.promises[0].enough is None


def test_beyond_what_is_measured_costs_grow_in_proportion() -> None:
    plan = small_plan(sketch={"rows": 4096, "buckets": 16})
    many = advise(plan, records=1000, density=0.2, allowance=Allowance(memory_mib=2.5))
    measured, beyond = many.at(8192).costs, many.at(16384).costs
    assert beyond.delta_bytes == pytest.approx(2 * measured.delta_bytes)
    assert beyond.aggregator_bytes == 8 * (16384 * 16 + 1)


def test_a_family_without_rows_has_one_size() -> None:
    advice = advice_for(small_plan(sketch=HERMITE))
    assert [size.rows for size in advice.sizes] == [None]
    assert advice.own.hashing == 0
    assert advice.bias == 20_000 * advice.plan.family.kernel_error > 0
    assert advice.to_fields()["bias"] == advice.bias
    assert [promise.best for promise in advice.promises] == [None, None]


def test_rows_of_sobol_points_are_whole_sets() -> None:
    advice = advice_for(small_plan(sketch={"draws": "sobol", "sobol_sets": 6, "rows": 60}))
    assert all(size.rows and size.rows % 6 == 0 for size in advice.sizes)


def test_models_and_sets_are_advised_on_too() -> None:
    assert advice_for(set_plan(), density=0.3).own.hashing > 0
    assert advice_for(model_plan(), density=0.15).own.hashing > 0


def test_more_records_that_lie_alike_are_sketched_as_well_as_fewer() -> None:
    """The variance is C·n² + D·n: measured on few records, it foretells that of many."""
    plan = small_plan(sketch={"bandwidth": 1})
    few, many = (Hashing(plan, stand_in(plan, 0.1, records)) for records in (256, 4096))
    assert few.variance(20, 4096) == pytest.approx(many.variance(20, 4096), rel=0.3)


def test_advice_says_all_it_knows_as_json() -> None:
    advice = advice_for(small_plan())
    fields = json.loads(json.dumps(advice.to_fields(), allow_nan=False))
    assert fields["rows"] == 20
    assert fields["std_error"] == advice.std_error
    assert fields["relative_error"] == advice.std_error / 4000
    assert [size["rows"] for size in fields["sizes"]] == [size.rows for size in advice.sizes]
    assert fields["guarantees"][1]["delta"] == "0.000001"


@pytest.mark.parametrize(("number", "text"), ((0.01234, "0.0123"), (99.4, "99.4"), (1234.5, "1,234"), (0.0, "0")))
def test_numbers_are_shown_short(number: float, text: str) -> None:
    assert shown(number) == text
