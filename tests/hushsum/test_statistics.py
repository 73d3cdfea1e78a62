"""Statistics of releases of cells: exact without noise, intervals that cover, and what few records or bounds do."""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import isotonic_regression
from scipy.stats import binom

import hushsum as hs
from hushsum.entropy import ReplayableEntropy
from hushsum.errors import PlanError, RecordError
from hushsum.releases import draw
from hushsum.statistics import Quantiles, Statistic, Statistics, _reach
from tests.plans import model_plan, set_plan, small_plan

Floats = npt.NDArray[np.float64]
FALSE_ALARM = 1e-6
DRAWN = 1000
REACH = 1.959964
RNG = np.random.default_rng(8)
AGES = np.floor(RNG.normal(14, 5, 3000).clip(0, 36)) + 0.5
LABELS = np.where(RNG.random(3000) < 0.3, "a", "b").tolist()


def plan_of(dim: int = 1, delta: object = 0, classes: tuple[str, ...] = (), **sketch: object) -> hs.Plan:
    """Cells of side 1 within [0, 37]^d."""
    keys = {"family": "partition", "bandwidth": 1, "rows": 1, "buckets": 38**dim, "seed": 3, **sketch}
    record = {"dim": dim, "lower": [0] * dim, "upper": [37] * dim, "classes": list(classes)}
    noise = "gaussian" if delta else "laplace"
    privacy = {"epsilon": 1, "delta": delta, "total_epsilon": 10, "total_delta": 1e-6, "noise": noise}
    return hs.Plan(name="cells", record=record, sketch=keys, privacy=privacy)


def exact(plan: hs.Plan, records: npt.ArrayLike) -> hs.Release:
    """A release without noise, of a plan without classes."""
    counters = np.zeros(plan.counters_shape, np.int64)
    taken = plan.family.accept(np.reshape(records, (-1, plan.vectors.dim)))[0]
    if len(taken):
        plan.family.add(counters[0], taken)
    counts = np.full(plan.count_counters, len(taken) * plan.privacy.mechanism.count_scale)
    return hs.Release(plan, "in-process", None, counters, counts, plan.guarantee, accounted=False)


def noised(sketch: hs.Sketch, seed: int) -> hs.Release:
    entropy = ReplayableEntropy(b"statistics %d" % seed)
    return draw(sketch, kind="in-process", window=None, entropy=entropy, accounted=False)


def assert_covered(covered: Floats, *, of: int, at_most: bool = True) -> None:
    """Each number of covered intervals of 95 % is a binomial's; false alarm 1e-6 for all together."""
    alarm = FALSE_ALARM / (2 * covered.size)
    assert (covered >= binom.ppf(alarm, of, 0.95)).all(), covered / of
    if at_most:
        assert (covered <= binom.ppf(1 - alarm, of, 0.95)).all(), covered / of


# ----------------------------------------------------------------------------------------------------- without noise
def test_without_noise_every_statistic_is_that_of_records_in_the_middle_of_their_cells() -> None:
    found = Statistics(exact(plan_of(levels=3), AGES))
    assert found.count.value == pytest.approx(len(AGES))
    histogram = found.histogram()
    assert np.allclose(histogram.edges, np.arange(38))
    assert np.allclose(histogram.counts.value, np.bincount(AGES.astype(int), minlength=37))
    few = found.histogram(bins=4)
    assert few.counts.value.sum() == pytest.approx(len(AGES))
    assert np.allclose(few.counts.value, np.histogram(AGES, few.edges)[0])
    assert found.mean().value == pytest.approx(AGES.mean())
    assert found.variance().value == pytest.approx(AGES.var())
    assert found.std().value == pytest.approx(AGES.std())
    assert np.allclose(found.cdf([-1, 0, 10, 37, 99]).shares.value, [0, 0, (AGES < 10).mean(), 1, 1])
    assert found.records_within({0: (5, 20)}).value == pytest.approx(((AGES >= 5) & (AGES < 20)).sum())
    quartiles = found.quantiles()
    assert (np.abs(quartiles.value - np.quantile(AGES, [0.25, 0.5, 0.75])) <= 0.5).all()


def test_a_cross_table_and_boxes_of_two_columns_are_exact_without_noise(rng: np.random.Generator) -> None:
    records = np.floor(rng.uniform(0, 37, (2000, 2))) + 0.5
    found = Statistics(exact(plan_of(dim=2), records))
    table = found.cross_table(1, 0, bins=(5, 3))
    assert table.columns == ("x1", "x0")
    expected = np.histogram2d(records[:, 1], records[:, 0], list(table.edges))[0]
    assert np.allclose(table.counts.value.reshape(table.shape), expected)
    assert np.allclose(table.non_negative(), expected)
    box = (records[:, 0] < 9) & (records[:, 1] >= 4) & (records[:, 1] < 30)
    assert found.records_within({"x0": (None, 9), "x1": (4, 30)}).value == pytest.approx(box.sum())
    assert found.mean("x1").value == pytest.approx(records[:, 1].mean())
    assert np.allclose(found.histogram("x1").counts.value, np.bincount(records[:, 1].astype(int), minlength=37))


def test_values_are_in_the_units_of_the_bounds_where_a_transform_scales_them(rng: np.random.Generator) -> None:
    record = {"dim": 2, "lower": [0, -3], "upper": [100, 0.1], "names": ["a", "b"]}
    sketch = {"family": "partition", "bandwidth": 0.125, "rows": 1, "buckets": 1000}
    scale = {"kind": "scale", "factor": [0.01, -0.3]}  # the grid has the cells of b the other way round
    privacy = {"epsilon": 1, "total_epsilon": 10}
    plan = hs.Plan(name="s", record=record, sketch={**sketch, "transforms": [scale]}, privacy=privacy)
    records = rng.uniform([0, -3], [30, -1], (5000, 2))
    found = Statistics(exact(plan, records))
    for column, name in enumerate(("a", "b")):
        histogram = found.histogram(name)
        assert histogram.edges[[0, -1]].tolist() == [
            float(plan.vectors.lower[column]),
            float(plan.vectors.upper[column]),
        ]
        inner = histogram.edges[1:-1]
        assert np.allclose(
            np.cumsum(histogram.counts.value)[:-1], [(records[:, column] < edge).sum() for edge in inner]
        )
        assert abs(found.mean(name).value - records[:, column].mean()) <= found.mean(name).bias
        quartiles = found.quantiles(column=name)
        off = np.abs(quartiles.value - np.quantile(records[:, column], [0.25, 0.5, 0.75]))
        assert (off <= found.cell_width(name)).all()
    edge = float(found.histogram("b").edges[3])
    joint = found.records_within({"a": (0, 12.5), "b": (edge, None)})
    assert joint.value == pytest.approx(((records[:, 0] < 12.5) & (records[:, 1] >= edge)).sum())


def test_the_bias_holds_what_records_do_within_their_cells(rng: np.random.Generator) -> None:
    records = np.floor(rng.normal(15, 2, 4000).clip(0, 36)) + 0.999  # all at the upper end of their cells
    found = Statistics(exact(plan_of(), records))
    assert 0.49 < records.mean() - found.mean().value[0] <= found.mean().bias[0] == 0.5
    assert abs(records.std() - found.std().value[0]) <= found.std().bias[0]
    assert abs(records.var() - found.variance().value[0]) <= found.variance().bias[0]
    for end in (14.25, 15.9):
        within = found.records_within({0: (3.5, end)})
        assert abs(((records >= 3.5) & (records < end)).sum() - within.value[0]) <= within.bias[0]
        share = found.cdf([end]).shares
        assert abs((records < end).mean() - share.value[0]) <= share.bias[0] + 1e-12


def test_statistics_use_the_finest_level_whose_cells_do_not_share_counters() -> None:
    found = Statistics(exact(plan_of(levels=4, buckets=10, rows=3), AGES))
    assert found.cell_width() == 4
    assert np.allclose(found.histogram().counts.value, np.histogram(AGES, [*range(0, 37, 4), 37])[0])


# -------------------------------------------------------------------------------------------------------- arithmetic
def test_statistics_of_one_release_count_their_covariances() -> None:
    sketch = hs.Sketch(plan_of(classes=("a", "b"), levels=3)).add(AGES[:, None], labels=LABELS)
    release = noised(sketch, 1)
    both, a, b = (Statistics(release, label=label) for label in (None, "a", "b"))
    assert both.count.value == pytest.approx(a.count.value + b.count.value)
    nothing = both.count - a.count - b.count
    assert np.allclose(nothing.std_error, 0, atol=1e-9)
    assert (a.count - b.count).std_error == pytest.approx(both.count.std_error)
    assert np.allclose((both.histogram().counts - a.histogram().counts).std_error, b.histogram().counts.std_error)
    again = Statistics(hs.Release.from_bytes(release.to_bytes()))  # the same noise, from a file
    assert np.allclose((both.mean() - again.mean()).std_error, 0, atol=1e-9)
    other = Statistics(noised(sketch, 2))
    assert (both.count - other.count).std_error == pytest.approx(math.sqrt(2) * both.count.std_error)
    whole = both.histogram(bins=5).counts
    assert np.allclose((whole / both.count)[2].std_error, (whole[2] / both.count).std_error)
    assert (1.0 - 2 * a.count / both.count).value == pytest.approx(1 - 2 * a.count.value / both.count.value)
    with pytest.raises(IndexError, match="got 5, expected one of 5 statistics"):
        whole[5]


def test_counts_and_errors_are_those_of_the_release() -> None:
    release = noised(hs.Sketch(plan_of(levels=3)).add(AGES[:, None]), 4)
    found, answer = Statistics(release).histogram().counts, release.kernel_sum(np.arange(37)[:, None] + 0.5)
    assert np.allclose(found.value, answer.value)
    assert np.allclose(found.std_error, answer.std_error)
    assert Statistics(release).count.value == pytest.approx(release.count)


# ---------------------------------------------------------------------------------------------------------- coverage
def checked_statistics(release: hs.Release) -> list[tuple[Statistic, float]]:
    """Statistics without a bias, for records lie in the middle of cells, and what they estimate."""
    found, a = Statistics(release), Statistics(release, label="a")
    is_a = np.array(LABELS) == "a"
    return [
        (found.count, len(AGES)),
        (found.records_within({0: (3, 22)}), ((AGES >= 3) & (AGES < 22)).sum()),
        (found.cdf([12]).shares, (AGES < 12).mean()),
        (found.mean(), AGES.mean()),
        (found.variance(), AGES.var()),
        (found.std(), AGES.std()),
        (a.mean() - found.mean(), AGES[is_a].mean() - AGES.mean()),
        (a.count / found.count, is_a.mean()),
    ]


@pytest.mark.statistical
@pytest.mark.slow
@pytest.mark.parametrize("delta", (0, 1e-6), ids=("pure", "gaussian"))
def test_intervals_cover_as_often_as_they_say(delta: float) -> None:
    """Seeds 0 to 999; with discrete Laplace noise at least as often. Intervals of 90 % would be found out."""
    sketch = hs.Sketch(plan_of(delta=delta, classes=("a", "b"), levels=3)).add(AGES[:, None], labels=LABELS)
    covered, planted = np.zeros(8), np.zeros(8)
    quartiles, truth = np.zeros(3), np.quantile(AGES, [0.25, 0.5, 0.75], method="inverted_cdf")
    for seed in range(DRAWN):
        release = noised(sketch, seed)
        for index, (found, expected) in enumerate(checked_statistics(release)):
            unbiased = replace(found, bias=np.zeros(1))
            low, high = unbiased.interval(0.95)
            covered[index] += bool(low[0] <= expected <= high[0])
            low, high = unbiased.interval(0.9)
            planted[index] += bool(low[0] <= expected <= high[0])
        told = Statistics(release).quantiles()
        quartiles += (told.low <= truth) & (truth <= told.high)
    assert_covered(covered, of=DRAWN, at_most=delta > 0)
    assert_covered(quartiles, of=DRAWN, at_most=False)
    with pytest.raises(AssertionError):
        assert_covered(planted, of=DRAWN, at_most=False)


@pytest.mark.statistical
@pytest.mark.parametrize("end", (3.1, 3.9))
@pytest.mark.parametrize("within", (0.05, 0.95))
def test_ranges_that_cut_a_cell_cover_wherever_its_records_lie(end: float, within: float) -> None:
    """Seeds 0 to 199, at least as often as they say: all records of the cells lie at one place within them."""
    records = np.floor(AGES[:500]) + within
    sketch, truth = hs.Sketch(plan_of()).add(records[:, None]), ((records >= 3) & (records < end)).sum()
    covered = np.zeros(2)
    for seed in range(200):
        found = Statistics(noised(sketch, seed))
        for index, (told, expected) in enumerate((
            (found.records_within({0: (3, end)}), truth),
            (found.cdf([end]).shares, (records < end).mean()),
        )):  # fmt: skip
            low, high = told.interval()
            covered[index] += bool(low[0] <= expected <= high[0])
    assert_covered(covered, of=200, at_most=False)


@pytest.mark.statistical
def test_standard_errors_that_are_5_percent_off_would_be_found_out() -> None:
    """Seeds 0 to 999: of a single level differences of separate pairs of cells are independent, 18,000 in all."""
    sketch, truth = hs.Sketch(plan_of(delta=1e-6)).add(AGES[:, None]), np.bincount(AGES.astype(int), minlength=37)
    truth, inside = truth[0:36:2] - truth[1:36:2], {1.0: 0, 0.95: 0, 1.05: 0}
    for seed in range(DRAWN):
        counts = Statistics(noised(sketch, seed)).histogram().counts
        pairs = counts[0:36:2] - counts[1:36:2]
        for factor in inside:
            inside[factor] += int((np.abs(pairs.value - truth) <= REACH * factor * pairs.std_error).sum())
    tried = DRAWN * len(truth)
    assert_covered(np.array([inside[1.0]]), of=tried)
    for factor in (0.95, 1.05):
        with pytest.raises(AssertionError):
            assert_covered(np.array([inside[factor]]), of=tried)


@pytest.mark.statistical
@pytest.mark.parametrize("weights", ((1,), (1, 1), (1, 0.5), (1, 0.7, 0.4, 0.2), (1, *[0.1] * 20)))
def test_intervals_of_sums_of_laplace_noise_cover_at_every_confidence(weights: tuple[float, ...]) -> None:
    """Seed 6, 40,000 draws; false alarm 1e-6 for each of five sums and seven confidences."""
    drawn = np.random.default_rng(6).laplace(size=(40_000, len(weights))) @ np.array(weights)
    std_error = math.sqrt(2 * np.square(weights).sum())
    for confidence in (0.5, 0.8, 0.9, 0.91, 0.92, 0.95, 0.99):
        inside = int((np.abs(drawn) <= _reach(confidence, normal=False) * std_error).sum())
        assert inside >= binom.ppf(FALSE_ALARM, len(drawn), confidence), (confidence, inside)


# ---------------------------------------------------------------------------------------------------- post-processing
def test_cumulative_shares_and_counts_are_made_monotone_and_non_negative_and_err_less() -> None:
    sketch, truth = hs.Sketch(plan_of()).add(AGES[:300, None]), np.bincount(AGES[:300].astype(int), minlength=37)
    before, after = 0.0, 0.0
    for seed in range(20):
        found = Statistics(noised(sketch, seed))
        cdf, histogram = found.cdf(), found.histogram()
        shares = cdf.monotone()
        assert (np.diff(shares) >= 0).all()
        assert (shares[0], shares[-1]) == (0, pytest.approx(1))
        assert np.allclose(shares, isotonic_regression(cdf.shares.value).x.clip(0, 1))
        counts = histogram.non_negative()
        assert (counts >= 0).all()
        assert counts.sum() == pytest.approx(found.count.value[0])
        before += np.square(histogram.counts.value - truth).sum()
        after += np.square(counts - truth).sum()
    assert after < before
    shuffled = Statistics(noised(sketch, 0)).cdf([20, 5, 30, 10]).monotone()
    assert (shuffled[[1, 3, 0, 2]] == np.sort(shuffled)).all()


def test_a_cross_table_is_made_non_negative_with_the_same_sum() -> None:
    table = Statistics(noised(hs.Sketch(plan_of(dim=2)).add(np.tile(AGES[:200, None], 2)), 1)).cross_table()
    assert table.counts.value.min() < 0
    assert table.non_negative().min() == 0
    assert table.non_negative().sum() == pytest.approx(table.counts.value.sum())


# ------------------------------------------------------------------------------------------- few records, and bounds
def test_of_too_few_records_averages_are_nan_and_sums_are_not() -> None:
    for release in (noised(hs.Sketch(plan_of()), 3), exact(plan_of(), np.empty((0, 1)))):
        found = Statistics(release)
        assert abs(found.count.value[0]) < 20
        for none in (found.mean(), found.variance(), found.std(), found.cdf([5]).shares, found.count / found.count):
            assert np.isnan(none.value).all()
            assert np.isnan(none.std_error).all()
        assert np.isfinite(found.histogram().counts.std_error).all()
        quartiles = found.quantiles()
        assert np.isnan(quartiles.value).all()
        assert (quartiles.low <= quartiles.high).all()
        assert math.isnan(found.describe().columns["x0"][0].value)


def test_a_negative_number_of_records_has_no_averages_and_counts_of_zero() -> None:
    release = exact(plan_of(), AGES)
    negative = Statistics(replace(release, counters=-release.counters, counts=-release.counts))
    assert negative.count.value == pytest.approx(-len(AGES))
    assert np.isnan(negative.quantiles().value).all()
    assert (negative.histogram().non_negative() == 0).all()


def test_quantiles_in_the_outermost_cells_are_at_the_bound() -> None:
    clipped = exact(plan_of(), np.concatenate([np.full(400, 99.0), np.full(300, 18.5), np.full(300, -5.0)]))
    found = Statistics(clipped).quantiles([0.1, 0.5, 0.9])
    assert isinstance(found, Quantiles)
    assert found.at_bound.tolist() == [True, False, True]
    assert found.low[0] == 0
    assert found.high[2] == 37
    assert [figure.at_bound for figure in Statistics(clipped).describe().columns["x0"]] == [0, 0, 0, 1, 0, 1, 0]


def test_describe_has_the_figures_of_each_column_with_their_intervals() -> None:
    found = Statistics(noised(hs.Sketch(plan_of(dim=2)).add(np.tile(AGES[:, None], 2)), 1))
    told = found.describe(confidence=0.9)
    assert list(told.columns) == ["x0", "x1"]
    assert [figure.name for figure in told.columns["x1"]] == ["mean", "std", "min", "25%", "50%", "75%", "max"]
    mean, std, least, *_, most = told.columns["x1"]
    assert (mean.low, mean.high) == tuple(float(end[0]) for end in found.mean(1).interval(0.9))
    assert (least.value, most.value, least.std_error) == (0, 37, None)
    assert std.low <= AGES.std() <= std.high
    assert told.count.std_error == float(found.count.std_error[0])
    assert told.cell_widths == {"x0": 1, "x1": 1}
    assert "25%" in told._repr_html_()
    assert "bias" in found.count._repr_html_()


# ----------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("plan", "expected"),
    (
        (small_plan(), r"got 'hashed', expected 'partition' .* use release.kernel_sum and release.density"),
        (model_plan(), r"got 'paired', expected 'partition' .* use fitting.fit_regression"),
        (set_plan(), r"got 'hashed', expected 'partition'"),
        (plan_of(cells="lsh", buckets=50), r"sketch.cells: got 'lsh', expected 'grid'"),
        (plan_of(buckets=10, rows=3), r"sketch.buckets: got 10, expected 37, one for each cell"),
        (plan_of(dim=2, transforms=[{"kind": "unit-norm"}], buckets=9999), r"'scale': other transforms"),
    ),
)  # fmt: skip
def test_a_release_without_such_statistics_is_refused_with_what_to_use(plan: hs.Plan, expected: str) -> None:
    with pytest.raises(PlanError, match=expected):
        Statistics(hs.release(hs.Sketch(plan)))


def test_unknown_columns_and_classes_and_impossible_arguments_are_refused() -> None:
    release = noised(hs.Sketch(plan_of(dim=2)).add(np.tile(AGES[:, None], 2)), 1)
    found = Statistics(release)
    with pytest.raises(RecordError, match=r"column: got 'age'; the plan's columns are 'x0', 'x1'"):
        found.mean("age")
    with pytest.raises(RecordError, match="column: got 2"):
        found.histogram(2)
    with pytest.raises(RecordError, match="label: got 'a'; the plan's classes are none"):
        Statistics(release, label="a")
    with pytest.raises(ValueError, match="bins: got 38, expected 1 to 37"):
        found.histogram(bins=38)
    with pytest.raises(ValueError, match="got 'x0' twice"):
        found.cross_table(0, 0)
    with pytest.raises(ValueError, match="expected numbers between 0 and 1"):
        found.quantiles([0.5, 1])
    with pytest.raises(ValueError, match="expected a lower and an upper end"):
        found.records_within({0: (5, 3)})
    with pytest.raises(ValueError, match="without NaN"):
        found.cdf([math.nan])
    with pytest.raises(ValueError, match="confidence: got 1"):
        found.count.interval(1)


def test_more_weights_than_fit_are_refused_with_a_number_that_fits() -> None:
    found = Statistics(exact(plan_of(bandwidth="0.001", buckets=37_001), AGES))
    with pytest.raises(ValueError, match=r"bins: got 37,000, expected at most 1,813 of a grid of 37,000 cells"):
        found.histogram()
    assert found.histogram(bins=20).counts.value.sum() == pytest.approx(found.count.value[0])
    assert (np.abs(found.quantiles().value - np.quantile(AGES, [0.25, 0.5, 0.75])) < 0.1).all()
