"""Consistent cells: least squares against dense matrices, and honest intervals of releases."""

import math
import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom

import hushsum as hs
from hushsum import query
from hushsum.entropy import ReplayableEntropy
from hushsum.families.partition.consistency import ConsistentCells, total_variance
from hushsum.releases import draw
from hushsum.sketch import Sketch
from hushsum_simulator.audit.cases import with_count_counter

Floats = npt.NDArray[np.float64]
FALSE_ALARM = 1e-6
DRAWN = 1500
RECORDS = np.random.default_rng(5).normal(14, 5, 4000).clip(0, 37)[:, None]


def designs(shape: tuple[int, ...], levels: int) -> list[Floats]:
    """Of each level the matrix (cells, finest cells) of which finest cell lies in which."""
    finest = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1).reshape(-1, len(shape))
    found = []
    for level in range(levels):
        counts = [((cells - 1) >> level) + 1 for cells in shape]
        flat = np.ravel_multi_index(tuple((finest >> level).T), counts)
        found.append((np.arange(math.prod(counts))[:, None] == flat).astype(np.float64))
    return found


@pytest.mark.parametrize("count", (None, (70.0, 2.5)), ids=("cells alone", "with a count"))
@pytest.mark.parametrize(
    ("shape", "variances"),
    (((5,), (1.0,)), ((7,), (1.0, 1.0, 1.0, 1.0)), ((13,), (0.5, 2.0)), ((3, 5), (1.0, 0.3, 4.0)), ((2, 3, 5), (1, 1))),
)
def test_estimates_and_covariances_are_those_of_generalised_least_squares(
    shape: tuple[int, ...], variances: tuple[float, ...], count: tuple[float, float] | None, rng: np.random.Generator
) -> None:
    parts = designs(shape, len(variances))
    seen = [rng.normal(0, 5, len(part)) for part in parts]
    rows, weights, values = np.concatenate(parts), np.repeat(1 / np.array(variances), list(map(len, parts))), seen
    if count is not None:
        rows = np.append(rows, np.ones((1, rows.shape[1])), axis=0)
        weights, values = np.append(weights, 1 / count[1]), [*seen, np.array([count[0]])]
    covariance = np.linalg.inv((rows.T * weights) @ rows)
    expected = covariance @ (rows.T * weights) @ np.concatenate(values)

    grids = [[((cells - 1) >> level) + 1 for cells in shape] for level in range(len(parts))]
    levels = [level.reshape(grid) for level, grid in zip(seen, grids, strict=True)]
    found = ConsistentCells.of(levels, variances, count=count, noise_variance=3.0)

    for part, value, variance in zip(parts, found.values, found.variances, strict=False):
        assert np.allclose(value.reshape(-1), part @ expected)
        assert np.allclose(variance.reshape(-1), 3 * ((part @ covariance) * part).sum(axis=1))
    assert found.total == pytest.approx(expected.sum())
    assert found.total_variance == pytest.approx(3 * covariance.sum())
    asked = rng.normal(0, 1, (4, len(expected)))
    value, error = found.weighted(asked.reshape(-1, *shape))
    assert np.allclose(value, asked @ expected)
    assert np.allclose(np.square(error), 3 * ((asked @ covariance) * asked).sum(axis=1))
    codes = np.stack(np.unravel_index(np.arange(len(expected)), shape), axis=1)
    share = expected / max(expected.sum(), 1.0)
    by_hand = np.diag(covariance) - 2 * share * covariance.sum(axis=1) + np.square(share) * covariance.sum()
    shares = found.shares(codes)
    assert np.allclose(shares.value, share)
    assert np.allclose(shares.std_error, np.sqrt(3 * by_hand) / max(expected.sum(), 1.0))


@pytest.mark.parametrize("shape", ((1,), (5,), (13,), (64,), (3, 5), (2, 3, 5)))
@pytest.mark.parametrize("share", (0.0, 0.3, 1.0))
def test_prefixes_are_sums_of_weighted_cells(shape: tuple[int, ...], share: float, rng: np.random.Generator) -> None:
    levels = [rng.normal(0, 5, [((cells - 1) >> level) + 1 for cells in shape]) for level in range(3)]
    found = ConsistentCells.of(levels, [1.0, 0.5, 3.0], count=(70.0, 2.5), noise_variance=3.0)
    for axis, cells in enumerate(shape):
        steps = (np.arange(cells) < np.arange(cells + 1)[:, None]) - share
        whole = steps.reshape([cells + 1, *(cells if j == axis else 1 for j in range(len(shape)))])
        value, error = found.weighted(np.broadcast_to(whole, (cells + 1, *shape)))
        assert np.allclose(found.prefixes(axis, share), [value, error])


def test_weights_of_another_shape_are_refused() -> None:
    found = ConsistentCells.of([np.ones(4)], [1.0])
    with pytest.raises(ValueError, match=r"got shape \(4,\), expected \(m, 4\)"):
        found.weighted(np.ones(4))


@pytest.mark.parametrize("shape", ((1,), (5,), (64,), (3, 5), (2, 3, 5)))
@pytest.mark.parametrize("levels", (1, 2, 3))
def test_the_variance_of_the_total_needs_no_counters(shape: tuple[int, ...], levels: int) -> None:
    shapes = [tuple(((cells - 1) >> level) + 1 for cells in shape) for level in range(levels)]
    cells = ConsistentCells.of([np.zeros(each) for each in shapes], [1.0] * levels)
    assert total_variance(shapes) == pytest.approx(cells.total_variance)


def plan_of(delta: object = 0, classes: tuple[str, ...] = (), dim: int = 1, **keys: object) -> hs.Plan:
    """Cells of side 1 within [0, 37]^d."""
    sketch = {"family": "partition", "bandwidth": 1, "rows": 2, "buckets": 38, "levels": 4, "seed": 3, **keys}
    privacy = {"epsilon": 1, "delta": delta, "total_epsilon": 10, "total_delta": 1e-6}
    record = {"dim": dim, "lower": [0] * dim, "upper": [37] * dim, "classes": list(classes)}
    return hs.Plan(name="cells", record=record, sketch=sketch, privacy=privacy)


def released(plan: hs.Plan, records: Any, seed: int, labels: Any = None) -> hs.Release:
    sketch = Sketch(plan)
    sketch.add(records, labels=labels)
    entropy = ReplayableEntropy(b"consistency %d" % seed)
    return draw(sketch, kind="in-process", window=None, entropy=entropy, accounted=False)


def cells_of(release: hs.Release) -> ConsistentCells:
    found = query.ClassSums(release.plan, release.counters, release.counts).estimates(slice(0, 1))
    assert found is not None
    assert found.cells is not None
    return found.cells


@pytest.mark.statistical
@pytest.mark.parametrize("delta", (0, 1e-6), ids=("pure", "gaussian"))
def test_intervals_of_cells_shares_ranges_and_counts_cover_as_often_as_they_say(delta: float) -> None:
    """Seeds 0 to 1499, 95 % intervals: Gaussian noise within a binomial's limits, false alarm 1e-6 for all together.

    Discrete Laplace noise has wider tails: of a single counter 93.75 % are covered, and of sums of several more.
    """
    plan, exact = plan_of(delta), np.bincount(RECORDS[:, 0].astype(int), minlength=37)
    n, asked = len(RECORDS), np.array([[10.5], [36.5]])
    weights, covered = np.zeros((1, 37)), np.zeros(6)
    weights[0, 3:22] = 1
    truth = np.array([exact[10], exact[36], exact[10] / n, exact[36] / n, exact[3:22].sum(), n])
    for seed in range(DRAWN):
        release = released(plan, RECORDS, seed)
        sums, shares = release.kernel_sum(asked), release.density(asked)
        value, error = cells_of(release).weighted(weights)
        of_count = query.count_std_error(plan, counters=release.counters)
        values = np.array([*sums.value, *shares.value, *value, release.count])
        errors = np.array([*sums.std_error, *shares.std_error, *error, of_count])
        covered += np.abs(values - truth) <= 1.959964 * errors
    least = binom.ppf(FALSE_ALARM / 12, DRAWN, 0.95 if delta else 0.9375)
    assert (covered >= least).all(), covered
    assert (covered <= binom.isf(FALSE_ALARM / 12, DRAWN, 0.95 if delta else 0.96)).all(), covered


@pytest.mark.statistical
def test_consistent_cells_and_counts_err_less_than_level_0_and_the_count_counter_alone() -> None:
    """Seeds 0 to 1499; by theory 0.78 of the RMS error of cells and 0.76 of that of counts; false alarm below 1e-6."""
    plan, exact = with_count_counter(plan_of()), np.bincount(RECORDS[:, 0].astype(int), minlength=37)
    asked, errors = np.arange(37)[:, None] + 0.5, np.zeros((2, 2))
    for seed in range(DRAWN):
        release = released(plan, RECORDS, seed)
        alone = plan.family.answer(release.counters[0], asked)
        errors[0] += [np.square(release.kernel_sum(asked).value - exact).sum(), (release.count - len(RECORDS)) ** 2]
        errors[1] += [np.square(alone.value - exact).sum(), (query.count(plan, release.counts) - len(RECORDS)) ** 2]
    cells, counts = np.sqrt(errors[0] / errors[1])
    assert 0.74 < cells < 0.82
    assert 0.66 < counts < 0.86
    counters = np.zeros(plan.counters_shape, np.int64)
    stated = query.count_std_error(plan, counters=counters) / query.count_std_error(plan)
    assert stated == pytest.approx(0.76, abs=0.01)


def test_classes_are_consistent_each_and_together(rng: np.random.Generator) -> None:
    plan = plan_of(classes=("a", "b"))
    release = released(plan, RECORDS, 1, labels=rng.choice(["a", "b"], len(RECORDS)))
    asked = np.arange(37)[:, None] + 0.5
    for label in (None, "a", "b"):
        answer, shares = release.kernel_sum(asked, label=label), release.density(asked, label=label)
        count = release.count if label is None else release.count_of(label)
        assert answer.value.sum() == pytest.approx(count)
        assert shares.value.sum() == pytest.approx(1)
        assert np.allclose(answer.value / count, shares.value)
    both = release.kernel_sum(asked, label="a").value + release.kernel_sum(asked, label="b").value
    assert np.allclose(both, release.kernel_sum(asked).value)


def test_queries_beyond_the_bounds_have_no_cell(rng: np.random.Generator) -> None:
    release = released(plan_of(dim=2, buckets=2000), rng.uniform(0, 37, (500, 2)), 1)
    for answer in (release.kernel_sum([[5, 38], [5, 37]]), release.density([[5, 38], [5, 37]])):
        assert answer.value[0] == answer.std_error[0] == 0
        assert answer.std_error[1] > 0


def test_where_level_0_collides_coarser_levels_still_count_records() -> None:
    """Answers are those of level 0 alone, over a number of records that errs less than the count counter."""
    plan = plan_of(1e-6, rows=5, buckets=16)
    release = released(plan, RECORDS, 1)
    alone = query.count_std_error(plan)
    error = query.count_std_error(plan, counters=release.counters)
    assert cells_of(release).first == 2
    assert error < 0.9 * alone
    sums = release.kernel_sum([[10.5]])
    assert sums.spread == "rows"
    density = release.density([[10.5]])
    assert density.value * release.count == pytest.approx(sums.value)
    assert density.std_error * release.count == pytest.approx(np.hypot(sums.std_error, density.value * error))


@pytest.mark.parametrize(
    "keys",
    ({"levels": 1, "buckets": 512, "bandwidth": "0.1", "rows": 5}, {"levels": 3, "buckets": 2, "rows": 2}),
    ids=("one level of many cells", "two rows of cells that collide in every level"),
)
def test_what_gains_nothing_is_read_as_before(keys: dict[str, Any]) -> None:
    plan = with_count_counter(plan_of(1e-6, **keys))
    release = released(plan, RECORDS, 1)
    plain = plan.family.answer(release.counters[0], [[10.5]], noise_variance=query.noise_variance(plan))
    answer = release.kernel_sum([[10.5]])
    assert (answer.value, answer.std_error) == (plain.value, plain.std_error)
    assert release.count == query.count(plan, release.counts)
    assert query.count_std_error(plan, counters=release.counters) == query.count_std_error(plan)


@pytest.mark.parametrize("dim", (30, 33, 70))
def test_columns_of_one_cell_take_no_memory(dim: int) -> None:
    """2^d numbers would be 8 GB of 30 columns; beyond 32 columns answers are those of level 0."""
    record: dict[str, object] = {"dim": dim, "lower": [0] * dim, "upper": [4, *[1] * (dim - 1)]}
    sketch: dict[str, object] = {"family": "partition", "bandwidth": 1, "rows": 4, "buckets": 16, "levels": 2}
    privacy: dict[str, object] = {"epsilon": 1, "total_epsilon": 1}
    plan = hs.Plan(name="cells", record=record, sketch=sketch, privacy=privacy)
    release = hs.release(hs.Sketch(plan).add(np.full((1000, dim), 0.5)))
    tracemalloc.start()
    assert release.kernel_sum(np.full((1, dim), 0.5)).value[0] == pytest.approx(1000, abs=400)
    assert release.density(np.full((1, dim), 0.5)).value[0] == pytest.approx(1, abs=0.5)
    assert release.count == pytest.approx(1000, abs=400)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24
