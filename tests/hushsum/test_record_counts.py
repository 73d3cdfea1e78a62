"""Plans without a count counter: when they are made, what is refused, and how well rows tell the number of records."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom

import hushsum as hs
from hushsum import query
from hushsum.delta import Delta, DeltaId, encode
from hushsum.entropy import ReplayableEntropy
from hushsum.errors import DeltaError, GuaranteeError, MergeError, PlanError, Reason, ReleaseError
from hushsum.families import Increments
from hushsum.plan import Plan
from hushsum.privacy.events import TUMBLING, Event
from hushsum.privacy.mechanisms import Mechanism
from hushsum.privacy.relations import CLIENT
from hushsum.privacy.verifier import verify_counters
from hushsum.release_format import Header
from hushsum.release_format import encode as packed_release
from hushsum.releases import draw, of_silos, spend_of
from hushsum_simulator.audit.cases import with_count_counter

Floats = npt.NDArray[np.float64]

CELLS: dict[str, Any] = {"family": "partition", "bandwidth": 1, "rows": 1, "buckets": 64}
RACE: dict[str, Any] = {"family": "hashed", "kernel": "euclidean", "bandwidth": 20, "rows": 4, "buckets": 4}
PAIRED: dict[str, Any] = {"family": "paired", "radius": 80, "rows": 6, "power": 3}
FOURIER: dict[str, Any] = {"family": "fourier", "kernel": "gaussian", "bandwidth": 9, "rows": 1}
HERMITE: dict[str, Any] = {"family": "hermite", "kernel": "gaussian", "bandwidth": 40, "order": 2}


def plan_of(sketch: dict[str, Any], *, dim: int = 1, classes: tuple[str, ...] = (), **privacy: Any) -> Plan:
    if sketch["family"] == "paired":
        dim = max(dim, 2)
    record: dict[str, Any] = {"dim": dim, "lower": [0] * dim, "upper": [63] * dim, "classes": list(classes)}
    window = {"length": "1h", "lateness": "1m"}
    promise = {"epsilon": 1, "total_epsilon": 1000, **privacy}
    return Plan.from_fields({"name": "n", "record": record, "sketch": sketch, "privacy": promise, "window": window})


# ------------------------------------------------------------------------------------------------------ the choice
@pytest.mark.parametrize("keys", ({}, {"rows": 2}, {"levels": 7}, {"buckets": 4096, "bandwidth": "0.02"}), ids=str)
@pytest.mark.parametrize("delta", (0, "0.000001"))
def test_a_histogram_has_the_noise_of_its_cells_alone(keys: dict[str, Any], delta: object) -> None:
    plan = plan_of({**CELLS, **keys}, delta=delta, total_delta=delta, noise="laplace")
    mechanism, rows = plan.privacy.mechanism, plan.family.shape[0]
    assert mechanism == Mechanism("discrete-laplace", Fraction(rows), 0)
    assert plan.count_counters == 0


@pytest.mark.parametrize("mode", ("central", "secure", "local"))
def test_a_histogram_has_no_count_counter_in_any_mode(mode: str) -> None:
    local, secure = {"form": "silo"}, {"cohort": 10, "corrupt": "0.1", "dropout": "0.1"}
    of_modes: dict[str, dict[str, Any]] = {"central": {}, "local": {"local": local}, "secure": {"secure": secure}}
    for delta, noise in (("0", "laplace"), ("0.000001", "gaussian")):
        plan = plan_of(
            CELLS, mode=mode, epsilon="0.25", delta=delta, total_delta="0.000001", noise=noise, **of_modes[mode]
        )
        assert plan.count_counters == 0
        assert mode == "central" or plan.words.length == math.prod(plan.counters_shape)


@pytest.mark.parametrize(
    ("sketch", "bare"),
    (
        ({**CELLS, "rows": 3}, False),  # a third more noise, against a number of records that is much better
        ({**CELLS, "rows": 3, "levels": 7}, True),
        (RACE, True),
        ({**RACE, "rows": 1, "buckets": 8}, True),
        ({**RACE, "rows": 1, "buckets": 12}, False),  # 1 + sqrt(12) times the noise against 2 + 2
        ({**RACE, "rows": 190, "buckets": 2}, True),
        ({**RACE, "rows": 210, "buckets": 2}, False),
        ({**RACE, "rows": 100, "buckets": 64}, False),
        (PAIRED, True),
        ({**PAIRED, "power": 8}, False),
        ({**CELLS, "levels": 3, "buckets": 16}, False),  # answers from cells that collide: errors add up to more
        ({**CELLS, "buckets": 32}, False),  # all cells collide
        ({**CELLS, "cells": "lsh"}, False),
        (FOURIER, False),
        (HERMITE, False),
    ),
    ids=str,
)
def test_other_sketches_do_without_a_count_where_errors_add_up_to_less(sketch: dict[str, Any], bare: bool) -> None:
    plan = plan_of(sketch)
    assert (plan.privacy.mechanism.count_scale == 0) == bare
    if not plan.family.rows_sum_to_records:
        return
    rows, counted = plan.family.record_rows, with_count_counter(plan).privacy.mechanism
    alone = math.sqrt(replace(counted, scale=Fraction(plan.family.sensitivity.l1), count_scale=0).noise_variance)
    without = alone * (math.sqrt(rows.answer) + math.sqrt(rows.count))
    with_counter = math.sqrt(counted.noise_variance) * (math.sqrt(rows.answer) + 1 / counted.count_scale)
    assert (without < with_counter) == bare


def test_limits_that_pay_for_no_release_without_a_count_keep_it() -> None:
    """Less noise at the same ε may be a larger zCDP, by which a total below ε is paid for."""
    scales = {}
    for total in ("1", "0.97"):
        limits: dict[str, Any] = {
            "total_epsilon": total,
            "total_delta": "0.1",
            "unit": CLIENT,
            "records_per_client": 1,
        }
        scales[total] = plan_of(CELLS, **limits).privacy.mechanism.count_scale
    assert scales == {"1": 0, "0.97": 1}


def test_reports_have_no_such_choice() -> None:
    plan = plan_of(CELLS | {"family": "hashed", "kernel": "euclidean"}, mode="local", local={"form": "report"})
    assert (plan.privacy.mechanism.count_scale, plan.count_counters) == (1, 1)


@pytest.mark.parametrize("sketch", (FOURIER, HERMITE, {**CELLS, "buckets": 32}, {**CELLS, "cells": "lsh"}), ids=str)
def test_a_plan_without_a_count_whose_rows_do_not_sum_to_n_is_refused(
    sketch: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism = {"name": "discrete-laplace", "scale": "100000000", "count_scale": 0}
    with pytest.raises(PlanError, match="do not sum to the number of records") as refused:
        plan_of(sketch, mechanism=mechanism)
    assert refused.value.key == "privacy.mechanism.count_scale"
    bundle = plan_of(sketch, mechanism={**mechanism, "count_scale": 1}).to_bytes()
    with pytest.raises(PlanError, match="do not sum to the number of records"):
        Plan.from_bytes(bundle.replace(b'"count_scale":1,', b'"count_scale":0,'))


# ------------------------------------------------------------------------------------------------------ the promise
@pytest.mark.parametrize("sketch", (CELLS, {**CELLS, "rows": 3, "levels": 7}, RACE, PAIRED), ids=str)
def test_the_scale_is_the_rows_alone_and_a_smaller_one_is_refused(sketch: dict[str, Any]) -> None:
    plan = plan_of(sketch, unit=CLIENT, records_per_client=5, epsilon="0.5")
    privacy, rows = plan.privacy, plan.family.shape[0]
    assert privacy.mechanism.scale == 10 * rows
    verify_counters(privacy.mechanism, plan.family.sensitivity, privacy.claim)
    less = replace(privacy.mechanism, scale=Fraction(10 * rows) - Fraction(1, 1000))
    with pytest.raises(GuaranteeError, match=f"5 x {rows} = {5 * rows}"):
        verify_counters(less, plan.family.sensitivity, privacy.claim)
    (event,) = spend_of(plan, kind=TUMBLING, window=0).events
    assert isinstance(event, Event)
    stated = event.sensitivity
    assert (stated.l1, stated.l2_squared, stated.linf) == (5 * rows, 25 * rows, 5)
    assert stated.l0 == min(5 * rows, math.prod(plan.counters_shape))


# ------------------------------------------------------------------------------------------------------ the estimate
@pytest.mark.parametrize(
    "sketch",
    (
        CELLS,
        {**CELLS, "rows": 3},
        {**CELLS, "levels": 4, "bandwidth": "1.7", "buckets": 40, "rows": 2},
        {**CELLS, "levels": 3, "buckets": 33, "rows": 2},  # the finest level collides
        RACE,
        {**RACE, "rows": 6, "buckets": 64, "bandwidth": "2"},
        PAIRED,
    ),
    ids=str,
)
@pytest.mark.statistical
def test_counts_and_shares_err_as_they_state(sketch: dict[str, Any], rng: np.random.Generator) -> None:
    """800 releases of fixed records and hashes: the variance of noise alone, within 5 standard errors of it."""
    drawn, plan = 800, without_count(plan_of(sketch))
    records = rng.uniform(0, 63, (3000, plan.vectors.dim))
    sketch_of = hs.Sketch(plan).add(records)
    asked = np.full((1, plan.family.query_dim), 0.3 if sketch["family"] == "paired" else 20.0)
    releases = [drawn_from(sketch_of, seed) for seed in range(drawn)]
    counts = np.array([release.count for release in releases])
    stated = query.count_std_error(plan)
    assert stated == pytest.approx(query.count_std_error(plan, counters=releases[0].counters))
    assert abs(counts.mean() - 3000) < 5 * stated / math.sqrt(drawn)
    assert counts.std() == pytest.approx(stated, rel=5 / math.sqrt(drawn))
    shares = np.array([release.density(asked).value[0] for release in releases])
    answers = np.array([release.kernel_sum(asked).value[0] for release in releases])
    noise = plan.family.answer_variance(query.noise_variance(plan))
    covariance = np.cov(answers, counts)[0, 1]
    if sketch.get("levels", 1) == 1:
        expected = plan.family.records_covariance(query.noise_variance(plan))
        assert covariance == pytest.approx(expected, abs=6 * stated * math.sqrt(noise / drawn))
        share = shares.mean()
        variance = noise + share**2 * stated**2 - 2 * share * expected
        assert shares.std() * 3000 == pytest.approx(math.sqrt(variance), rel=5 / math.sqrt(drawn))
    if sketch["family"] == "partition" and sketch["buckets"] != 33:
        error = np.mean([release.density(asked).std_error[0] for release in releases])
        assert shares.std() == pytest.approx(error, rel=5 / math.sqrt(drawn))


@pytest.mark.parametrize(("rows", "epsilon"), ((2, "0.02"), (3, "0.02"), (20, "0.1")))
@pytest.mark.statistical
def test_intervals_of_shares_cover_where_few_rows_tell_both_parts(
    rows: int, epsilon: str, rng: np.random.Generator
) -> None:
    """300 releases of 30 sketches; at 95 % and a false alarm of 1e-6 for each number of rows."""
    records, covered = rng.uniform(0, 40, (2000, 2)), 0
    for seed in range(30):
        plan = hs.Plan(
            name="n",
            record={"dim": 2, "lower": [0, 0], "upper": [40, 40]},
            sketch={"family": "paired", "radius": 80, "rows": rows, "power": 2, "seed": seed},
            privacy={"epsilon": epsilon, "total_epsilon": 1000},
        )
        sketch, asked = hs.Sketch(without_count(plan)).add(records), np.full((1, plan.family.query_dim), 0.3)
        truth = float(plan.family.kernel(records, asked).mean())
        for number in range(10):
            found = drawn_from(sketch, 100 * seed + number).density(asked)
            low, high = found.interval()
            assert found.std_error[0] > 0
            covered += float(low[0]) <= truth <= float(high[0])
    assert covered >= int(binom.ppf(1e-6, 300, 0.95))


@pytest.mark.parametrize("dim", (65, 200))
def test_cells_of_more_columns_than_numpy_has_axes_are_checked(dim: int, rng: np.random.Generator) -> None:
    plan = Plan.from_fields(
        {
            "name": "wide",
            "record": {"dim": dim, "lower": [0] * dim, "upper": [4] * dim},
            # The coarsest level has one cell, and alone none that collide.
            "sketch": {"family": "partition", "bandwidth": 1, "rows": 5, "buckets": 1024, "levels": 3, "seed": 1},
            "privacy": {"epsilon": 1, "total_epsilon": 1},
        }
    )
    delta, _ = encode(plan, rng.uniform(0, 4, (5, dim)), window=0, id=DeltaId(1, 1))
    assert delta is not None
    assert Delta.unpack(delta.pack(plan), plan).records == 5
    increments = delta.runs[0].increments
    more = Increments(
        increments.indices, np.where(increments.indices >= 10 * 1024, increments.values * 2, increments.values)
    )
    with pytest.raises(DeltaError) as refused:
        plan.family.check(more, 5)
    assert refused.value.reason is Reason.IMPOSSIBLE_COUNTS


def test_noise_too_small_without_a_count_counter_is_taken_with_one() -> None:
    for promise in ({"epsilon": 3 * 10**14}, {"epsilon": 40_000, "delta": "0.000001", "total_delta": "0.000001"}):
        plan = hs.Plan(
            name="n",
            record={"dim": 1, "lower": [0], "upper": [63]},
            sketch=CELLS,
            privacy={"total_epsilon": promise["epsilon"], **promise},
        )
        assert plan.privacy.mechanism.count_scale == 1


def without_count(plan: Plan) -> Plan:
    if not plan.count_counters:
        return plan
    scale = str(plan.family.sensitivity.l1)
    return plan.replace_privacy(mechanism={"name": "discrete-laplace", "scale": scale, "count_scale": 0})


def drawn_from(sketch: hs.Sketch, seed: int) -> hs.Release:
    entropy = ReplayableEntropy(b"n %d" % seed)
    return draw(sketch, kind="in-process", window=None, entropy=entropy, accounted=False)


def test_classes_and_submissions_add_their_variances() -> None:
    plan = plan_of(CELLS, classes=("a", "b", "c"), mode="local", local={"form": "silo"})
    one = query.count_std_error(plan, label="a", draws=1)
    assert one == pytest.approx(math.sqrt(63 * plan.privacy.mechanism.noise_variance))
    assert query.count_std_error(plan, draws=4) == pytest.approx(one * math.sqrt(12))
    counters, counts = np.zeros(plan.counters_shape, np.int64), np.zeros(0, np.int64)
    plan.family.add(counters[1], plan.family.accept(np.full((7, 1), 5.0))[0])
    release = of_silos(plan, counters, counts, window=0, submissions=2)
    assert [release.count_of(label) for label in "abc"] == [0, 7, 0]
    assert release.count == 7
    assert hs.Release.from_bytes(release.to_bytes()).count == 7
    with pytest.raises(GuaranteeError, match="requires their counters"):
        query.count(plan, release.counts)


@pytest.mark.parametrize("sketch", (CELLS, {**CELLS, "levels": 7}, {**RACE, "rows": 3}, PAIRED), ids=str)
def test_exact_sketches_know_their_records(sketch: dict[str, Any], rng: np.random.Generator) -> None:
    plan = plan_of(sketch, classes=("a", "b"))
    assert plan.count_counters == 0
    records, labels = rng.uniform(0, 63, (500, plan.vectors.dim)), np.where(np.arange(500) < 200, "a", "b")
    whole, part = hs.Sketch(plan).add(records, labels=labels), hs.Sketch(plan).add(records[:70], labels=labels[:70])
    assert (whole.records, whole.class_records.tolist(), whole.counts.shape) == (500, [200, 300], (0,))
    assert ((whole + part).records, (whole + part - whole).records) == (570, 70)
    counted = with_count_counter(plan)
    assert (whole.under(counted).counts == np.array([200, 300]) * counted.privacy.mechanism.count_scale).all()
    assert whole.under(counted).under(plan).records == 500
    assert hs.release(whole, epsilon=2).plan.count_counters == 0
    with pytest.raises(MergeError, match="count counters of shape"):
        hs.Sketch.of_counters(plan, whole.counters, np.array([200, 300]))


# ------------------------------------------------------------------------------------------------------ what is refused
@pytest.mark.parametrize("sketch", (CELLS, RACE, PAIRED), ids=str)
def test_a_delta_whose_rows_do_not_sum_to_its_records_is_refused(
    sketch: dict[str, Any], rng: np.random.Generator
) -> None:
    plan = plan_of(sketch)
    delta, _ = encode(plan, rng.uniform(0, 63, (40, plan.vectors.dim)), window=0, id=DeltaId(1, 1))
    assert delta is not None
    honest = Delta.unpack(delta.pack(plan), plan)
    assert honest.records == 40
    moved = delta.runs[0].increments.values.copy()
    moved[0] += 2  # of one row
    for records, values in ((42, delta.runs[0].increments.values), (40, moved)):
        increments = Increments(delta.runs[0].increments.indices, values)
        with pytest.raises(DeltaError) as refused:
            plan.family.check(increments, records)
        assert refused.value.reason is Reason.IMPOSSIBLE_COUNTS


def test_a_release_with_a_count_that_the_plan_does_not_have_is_refused() -> None:
    plan = plan_of(CELLS)
    release = drawn_from(hs.Sketch(plan).add([[3.0]]), 1)
    with pytest.raises(ReleaseError, match="count counters of shape"):
        replace(release, counts=np.array([1]))
    header = Header("in-process", None, release.counters.shape, accounted=False)
    data = packed_release(plan, header, np.append(release.counters.reshape(-1), 1))
    with pytest.raises(ReleaseError):
        hs.Release.from_bytes(data)
