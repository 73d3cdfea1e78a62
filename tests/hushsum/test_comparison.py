"""Comparisons of two releases: errors that are right, a level that holds, differences that are found."""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom, t

import hushsum as hs
from hushsum.comparison import Comparison, _chernoff, _Noise, _Sample, places_within
from hushsum.entropy import ReplayableEntropy
from hushsum.errors import PlanError, RecordError
from hushsum.families.hermite import Hermite
from hushsum.releases import draw
from hushsum.student_t import student_t_tails
from tests.plans import model_plan, set_plan

Floats = npt.NDArray[np.float64]
FALSE_ALARM: Final = 1e-6
CLASSES: Final = tuple(f"c{number}" for number in range(40))
QUERIES: Final = np.array([[1.0], [3.0], [5.0], [7.0], [9.0]])


def plan_of(
    sketch: Mapping[str, object] | None = None,
    *,
    classes: tuple[str, ...] = (),
    dim: int = 1,
    epsilon: object = 4,
    privacy: Mapping[str, object] | None = None,
) -> hs.Plan:
    keys = {"family": "hashed", "kernel": "euclidean", "bandwidth": 1, "rows": 40, "buckets": 32, "seed": 5}
    promised = {"epsilon": epsilon, **(privacy or {})}
    return hs.Plan(
        name="compared",
        record={"dim": dim, "lower": [0] * dim, "upper": [10] * dim, "classes": list(classes)},
        sketch={key: value for key, value in {**keys, **(sketch or {})}.items() if value is not None},
        privacy={"total_epsilon": promised["epsilon"], **promised},
    )


def released(
    plan: hs.Plan, records: Floats, seed: int, name: str, labels: list[str] | None = None, **about: int
) -> hs.Release:
    sketch = hs.Sketch(plan)
    sketch.add(records, labels=labels)
    entropy = ReplayableEntropy(f"{name} {seed}".encode())
    return draw(sketch, kind="in-process", window=about.get("window"), entropy=entropy, accounted=False)


def test_the_difference_of_answers_is_that_of_both(seed: int, rng: np.random.Generator) -> None:
    plan = plan_of()
    first = released(plan, rng.normal(5, 1, (3000, 1)).clip(0, 10), seed, "first")
    second = released(plan, rng.normal(4, 1, (1000, 1)).clip(0, 10), seed, "second")
    compared = first.compare(second)
    for name in ("kernel_sum", "density"):
        difference = getattr(compared, name)(QUERIES)
        expected = getattr(first, name)(QUERIES).value - getattr(second, name)(QUERIES).value
        assert np.allclose(difference.value, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    counted = compared.count()
    assert counted.value[0] == pytest.approx(first.count - second.count)
    assert counted.std_error[0] > 0
    assert np.allclose(second.compare(first).density(QUERIES).value, -compared.density(QUERIES).value)


def test_hashing_errors_cancel_where_the_records_are_the_same(seed: int, rng: np.random.Generator) -> None:
    plan = plan_of({"rows": 100}, epsilon=1000)
    records = rng.normal(5, 1, (20_000, 1)).clip(0, 10)
    first, second = (released(plan, records, seed, name) for name in ("first", "second"))
    alone, both = first.kernel_sum(QUERIES).std_error, first.compare(second).kernel_sum(QUERIES).std_error
    assert np.all(both < 0.05 * alone)


@pytest.mark.parametrize("same", (True, False), ids=("same records", "other records"))
def test_the_standard_error_of_a_difference_is_right(same: bool, seed: int) -> None:
    # 40 classes have noise of their own and, where records differ, records of their own: 40 draws of one t each at each
    # of 12 seeds and 5 places, which are far apart. Of the same records even those of one place are independent.
    squares, degrees = [], 0
    rng = np.random.default_rng(seed)
    for number in range(12):
        plan = plan_of({"seed": number}, classes=CLASSES, epsilon=2)
        labels = [label for label in CLASSES for _ in range(200)]
        first = rng.uniform(0, 10, (len(labels), 1))
        second = first if same else first + rng.normal(0, 0.3, first.shape)
        one = released(plan, first, seed + number, "one", labels)
        other = released(plan, second.clip(0, 10), seed + number, "other", labels)
        for label in CLASSES:
            found = one.compare(other).kernel_sum(QUERIES, label=label)
            assert found.degrees is not None
            degrees = found.degrees
            truth = np.zeros(len(QUERIES))
            if not same:
                start = 200 * CLASSES.index(label)
                mine = slice(start, start + 200)
                for sign, records in ((1.0, first), (-1.0, second.clip(0, 10))):
                    truth += sign * plan.family.kernel(records[mine], QUERIES).sum(axis=0)
            squares.append(np.square((found.value - truth) / found.std_error))
    mean, draws = float(np.mean(squares)), len(squares) * len(QUERIES)
    expected = degrees / (degrees - 2)
    # Var T² of Student's t; a standard error that is wrong by 5 % moves the mean by 10 %, this is five deviations.
    spread = math.sqrt((3 * degrees**2 / ((degrees - 2) * (degrees - 4)) - expected**2) / draws)
    assert mean == pytest.approx(expected, abs=4.9 * spread), f"seed {seed}"
    assert 4.9 * spread < 0.21 * expected


def test_the_level_of_the_test_and_of_the_regions_holds(seed: int) -> None:
    # 300 pairs of samples of one population, at a level of 0.2: Bonferroni may only reject less.
    rng, rejected, named = np.random.default_rng(seed), 0, 0
    for number in range(300):
        plan = plan_of({"rows": 20, "seed": number % 16})
        one, other = (
            released(plan, rng.normal(4, 1, (size, 1)).clip(0, 10), seed + number, name)
            for size, name in ((300, "one"), (500, "other"))
        )
        compared = one.compare(other)
        places = np.linspace(0.5, 9.5, 10)[:, None]
        rejected += compared.p_value(places) <= 0.2
        named += len(compared.regions(places, level=0.2, sampling=True)) > 0
    most = int(binom.ppf(1 - FALSE_ALARM, 300, 0.2))
    assert rejected <= most, f"seed {seed}"
    assert named == rejected  # the smallest p-value of Holm's is Bonferroni's


CELLS: Final = {"family": "partition", "kernel": None, "rows": 1, "buckets": 256, "bandwidth": "0.0390625"}
MOMENTS: Final = {"family": "hermite", "kernel": "gaussian", "rows": None, "buckets": None, "seed": None, "order": 4}
GAUSSIAN: Final = {"delta": "0.000001", "total_delta": "0.000001", "noise": "gaussian"}


@pytest.mark.parametrize(
    ("sketch", "privacy", "sizes"),
    [
        pytest.param(CELLS, {"epsilon": 1}, (2000, 2000), id="noise of single cells, which has a long tail"),
        pytest.param(CELLS, {"epsilon": 10}, (2000, 2000), id="noise that is mostly 0"),
        pytest.param(CELLS, {"epsilon": 1}, (2000, 40_000), id="twenty times as many records"),
        pytest.param(MOMENTS, {"epsilon": 1}, (20, 100_000), id="few records against many"),
        pytest.param(MOMENTS, {"epsilon": 1, **GAUSSIAN}, (100, 100_000), id="Gaussian noise"),
        pytest.param({"rows": 8, "bandwidth": 3}, {"epsilon": 1}, (5000, 5000), id="few rows"),
        pytest.param({"draws": "sobol", "rows": 64}, {"epsilon": 1}, (2000, 40_000), id="sets of rows"),
    ],
)
def test_places_are_named_by_noise_alone_no_more_often_than_the_level_says(
    sketch: Mapping[str, object], privacy: Mapping[str, object], sizes: tuple[int, int], seed: int
) -> None:
    # Both have the same share of records everywhere. 40 pairs at a level of 0.1: false alarm 1e-6 for each case.
    plan = plan_of(sketch, privacy=privacy)
    rng = np.random.default_rng(seed)
    records = np.sort(rng.normal(5, 1, (min(sizes), 1)), axis=0).clip(0, 10)
    one, other = (np.tile(records, (size // len(records), 1)) for size in sizes)
    named = 0
    for number in range(40):
        compared = released(plan, one, seed + number, "one").compare(released(plan, other, seed + number, "other"))
        named += len(compared.regions(level=0.1)) > 0
    assert named <= int(binom.ppf(1 - FALSE_ALARM, 40, 0.1)), f"seed {seed}"


@pytest.mark.parametrize(
    ("sketch", "epsilon", "sizes"),
    [
        pytest.param(CELLS, 1, (3000, 3000), id="cells"),
        pytest.param(CELLS, 10, (3000, 3000), id="cells with few records and little noise"),
        pytest.param(CELLS, 10, (200, 50_000), id="a small sample"),
        pytest.param(MOMENTS, 10, (200, 50_000), id="moments of a small sample"),
    ],
)
def test_samples_of_one_population_are_told_apart_no_more_often_than_the_level_says(
    sketch: Mapping[str, object], epsilon: int, sizes: tuple[int, int], seed: int
) -> None:
    plan, rng, rejected = plan_of(sketch, epsilon=epsilon), np.random.default_rng(seed), 0
    for number in range(40):
        one, other = (
            released(plan, rng.normal(5, 1, (size, 1)).clip(0, 10), seed + number, name)
            for size, name in zip(sizes, ("one", "other"), strict=True)
        )
        rejected += one.compare(other).p_value() <= 0.1
    assert rejected <= int(binom.ppf(1 - FALSE_ALARM, 40, 0.1)), f"seed {seed}"


def test_tails_of_noise_are_above_the_exact_ones(rng: np.random.Generator) -> None:
    b = 1.0
    variance = 2 * math.exp(-1 / b) / (1 - math.exp(-1 / b)) ** 2
    one = _Noise(np.array([math.sqrt(variance)]), np.array([1.0]), variance, is_gaussian=False)
    for distance in (1, 5, 20, 60):
        exact = math.exp(-distance / b) / (1 + math.exp(-1 / b))  # P(X ≥ x) of discrete Laplace noise of scale b
        found = float(_chernoff([one], np.array([float(distance)]))[0])
        assert exact <= found <= (20 + 3 * distance) * exact
    many = _Noise(np.array([math.sqrt(100 * variance)]), np.array([1.0]), variance, is_gaussian=False)
    drawn = (
        rng.geometric(1 - math.exp(-1 / b), (100_000, 100)) - rng.geometric(1 - math.exp(-1 / b), (100_000, 100))
    ).sum(1)
    for distance in (20, 40):
        share = float(np.mean(drawn >= distance))
        assert share <= float(_chernoff([many], np.array([float(distance)]))[0]) <= 20 * share
    normal = _Noise(np.array([2.0]), np.array([2.0]), 1.0, is_gaussian=True)
    assert float(_chernoff([normal], np.array([6.0]))[0]) == pytest.approx(math.exp(-4.5))
    assert float(_chernoff([normal, one], np.array([0.0]))[0]) == 1.0
    for mean in (0.001, 0.3):
        sample, hits = _Sample(np.array([mean]), 500.0, is_signed=False), rng.binomial(500, mean, 200_000) / 500
        for reach in (3, 5):
            far = reach * math.sqrt(mean / 500)
            assert np.mean(hits - mean >= far) <= float(_chernoff([sample], np.array([far]))[0]) < 1


def test_no_counter_of_moments_weighs_more_than_is_said(rng: np.random.Generator) -> None:
    plan = plan_of({**MOMENTS, "order": 3, "weights": "laplace"})
    assert isinstance(plan.family, Hermite)
    counters = np.zeros(plan.family.shape, np.int64)
    asked = np.linspace(0, 10, 400)[:, None]
    most = 0.0
    for number in range(plan.family.shape[1]):
        counters[5, number] = 2**30
        most = max(most, float(np.abs(plan.family.answer(counters, asked).value).max()) / 2**30)
        counters[5, number] = 0
    assert 0.9 * plan.family.answer_weight_max < most <= plan.family.answer_weight_max


def test_a_release_that_may_have_no_records_differs_from_none(seed: int) -> None:
    plan = plan_of(MOMENTS, epsilon=1)
    few, many = (released(plan, np.full((size, 1), 5.0), seed, "one") for size in (3, 100_000))
    assert few.compare(many).p_value() == 1.0
    assert len(few.compare(many).regions()) == 0


def test_a_difference_is_found_where_it_is(seed: int, rng: np.random.Generator) -> None:
    plan = plan_of({"rows": 200})
    before = rng.normal(3, 0.7, (5000, 1)).clip(0, 10)
    after = np.concatenate([before[:4000], rng.normal(8, 0.3, (1000, 1)).clip(0, 10)])
    compared = released(plan, after, seed, "after").compare(released(plan, before, seed, "before"))
    assert compared.p_value() < 1e-9
    found = compared.regions()
    assert found.asked == 256
    assert 0 < len(found) < 256
    more = np.asarray(found.places)[found.difference.value > 0]
    assert np.all(np.abs(more - 8) < 2.5)
    assert abs(float(more[0, 0]) - 8) < 1
    assert np.all(np.diff(found.p_value) >= 0)
    assert found.p_value[-1] <= 0.05


def test_holm_names_no_fewer_places_than_bonferroni_and_counts_all_that_were_asked(seed: int) -> None:
    plan = plan_of({"rows": 100})
    records = np.linspace(0, 10, 2000)[:, None]
    compared = released(plan, records, seed, "all").compare(released(plan, records[:1000], seed, "half"))
    few, many = QUERIES, np.tile(QUERIES, (200, 1))
    difference = compared.density(few)
    alone = np.array([2 * t.sf(abs(each), difference.degrees) for each in difference.value / difference.std_error])
    found = compared.regions(few)
    assert np.array_equal(found.places, few[found.at])
    assert len(found) >= int((alone * len(few) <= 0.05).sum()) > 0
    assert found.p_value[0] == pytest.approx(alone.min() * len(few), rel=1e-6)
    assert compared.regions(many).p_value[0] == pytest.approx(200 * found.p_value[0], rel=1e-6)


@pytest.mark.parametrize("family", ("partition", "hermite", "fourier"))
def test_every_family_compares_and_its_errors_cover(family: str, seed: int, rng: np.random.Generator) -> None:
    keys: Mapping[str, Mapping[str, object]] = {
        "partition": {"rows": 1, "buckets": 16, "seed": 5},
        "hermite": {"kernel": "gaussian", "order": 8},
        "fourier": {"kernel": "gaussian", "rows": 400, "seed": 5},
    }
    plan = hs.Plan(
        name="compared",
        record={"dim": 1, "lower": [0], "upper": [10]},
        sketch={"family": family, "bandwidth": 1, **keys[family]},
        privacy={"epsilon": 1, "total_epsilon": 1},
    )
    first, second = rng.normal(5, 1, (4000, 1)).clip(0, 10), rng.normal(4, 1, (2000, 1)).clip(0, 10)
    compared = released(plan, first, seed, "first").compare(released(plan, second, seed, "second"))
    truth = plan.family.kernel(first, QUERIES).mean(axis=0) - plan.family.kernel(second, QUERIES).mean(axis=0)
    low, high = compared.density(QUERIES).interval(1 - FALSE_ALARM / len(QUERIES))
    assert np.all((low <= truth) & (truth <= high)), f"seed {seed}"
    assert compared.p_value(QUERIES) < 1e-3
    assert Comparison(compared.first, compared.first).regions(QUERIES).asked == len(QUERIES)


def test_releases_of_another_epsilon_and_window_compare_and_those_of_other_rows_do_not(seed: int) -> None:
    records = np.linspace(0, 10, 500)[:, None]
    first = released(plan_of(), records, seed, "first")
    assert first.compare(released(plan_of(epsilon=1), records, seed, "second", window=3)).p_value() > 0
    for sketch, dim in (({"seed": 6}, 1), ({"rows": 41}, 1), ({"bandwidth": 2}, 1), ({}, 2)):
        other = released(plan_of(sketch, dim=dim), np.tile(records, (1, dim)), seed, "other")
        with pytest.raises(PlanError, match="compared by counters of the same rows"):
            first.compare(other)


def test_what_cannot_be_tested_is_refused(seed: int) -> None:
    one_row = released(plan_of({"rows": 1}), QUERIES, seed, "one")
    with pytest.raises(ValueError, match="the sketch has 1 rows or sets of rows, expected 8 or more"):
        one_row.compare(one_row).regions()
    models = hs.release(hs.Sketch(model_plan()))
    with pytest.raises(PlanError, match="answers with losses"):
        models.compare(models).p_value()
    sets = hs.release(hs.Sketch(set_plan()))
    with pytest.raises(PlanError, match="or queries: sets have no bounds"):
        sets.compare(sets).p_value()
    assert 0 < sets.compare(sets).p_value([[1, 2, 3]]) <= 1
    compared = one_row.compare(one_row)
    for level in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="level: got"):
            compared.regions(QUERIES, level=level)
    with pytest.raises(RecordError, match="label"):
        compared.density(QUERIES, label="x")


@pytest.mark.parametrize(("dim", "number"), ((1, 256), (2, 1024), (3, 1024), (20, 1024)))
def test_places_lie_evenly_within_the_bounds(dim: int, number: int) -> None:
    places = places_within(plan_of(dim=dim))
    assert places.shape == (number, dim)
    assert np.all((places > 0) & (places < 10))
    counted = np.stack([np.histogram(places[:, column], 16, (0, 10))[0] for column in range(dim)])
    assert np.all(counted == number // 16)


@pytest.mark.parametrize("degrees", (1, 2, 3, 5, 39, 500, 10**6, None))
def test_tails_of_students_t_are_scipys(degrees: int | None) -> None:
    from scipy.stats import norm

    distances = np.array([0.0, 0.3, 1.0, 1.9, 2.1, 5.0, 12.0])
    expected = norm.sf(distances) if degrees is None else t.sf(distances, degrees)
    np.testing.assert_allclose(student_t_tails(distances, degrees), expected, rtol=1e-9)


@pytest.mark.parametrize("degrees", (1, 7, None))
def test_the_tail_at_infinity_is_nothing(degrees: int | None) -> None:
    assert student_t_tails(np.array([math.inf]), degrees).tolist() == [0.0]


@pytest.mark.parametrize("degrees", (1, 2, 3, 7, 15, 99, 100, 999, 99_999, 10**6, None))
def test_many_tails_at_once_are_those_of_each(degrees: int | None) -> None:
    around = [0.0, 5e-324, math.nextafter(2.0, 0.0), 2.0, 1e154, 1e155, 1e308, math.inf]
    distances = np.concatenate([around, np.linspace(0.0, 40.0, 401), np.geomspace(1e-9, 1e9, 101)])
    expected = np.concatenate([student_t_tails(distances[at : at + 1], degrees) for at in range(len(distances))])
    np.testing.assert_allclose(student_t_tails(distances, degrees), expected, rtol=1e-12, atol=1e-307)
    for some in (np.zeros(0), np.zeros(3), np.full(3, 9.0)):
        assert len(student_t_tails(some, degrees)) == len(some)
    with pytest.raises(ValueError, match="expected a number from 0"):
        student_t_tails(np.array([1.0, -1.0]), degrees)
    with pytest.raises(ValueError, match="expected a number from 0"):
        student_t_tails(np.array([1.0, math.nan]), degrees)


def test_an_answer_that_is_changed_by_whoever_got_it_changes_no_other() -> None:
    release = released(plan_of(), np.full((500, 1), 5.0), 1, "one")
    first = release.kernel_sum(QUERIES)
    expected = first.value.copy(), first.std_error.copy()
    first.value[:], first.std_error[:] = -1.0, -1.0
    again = release.kernel_sum(QUERIES)
    np.testing.assert_array_equal(again.value, expected[0])
    np.testing.assert_array_equal(again.std_error, expected[1])


def test_answers_do_not_depend_on_what_was_asked_before() -> None:
    labels = ["a"] * 300 + ["b"] * 200
    saved = released(plan_of(classes=("a", "b")), np.full((500, 1), 5.0), 1, "one", labels).to_bytes()
    asked = hs.Release.from_bytes(saved)
    for label in (None, "a", "b", None):
        for places in (QUERIES, QUERIES[::-1].copy(), QUERIES[:1], QUERIES.astype(np.float32), [[5.0]]):
            asked.density(places, label=label)
            expected = hs.Release.from_bytes(saved).kernel_sum(places, label=label)
            found = asked.kernel_sum(places, label=label)
            np.testing.assert_array_equal(found.value, expected.value)
            np.testing.assert_array_equal(found.std_error, expected.std_error)
