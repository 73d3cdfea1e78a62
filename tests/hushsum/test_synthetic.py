"""Synthetic records from a released partition sketch."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2

from hushsum import Plan, Release
from hushsum.errors import PlanError, RecordError
from hushsum.families.partition.heavy_hitters import HeavyCells
from hushsum.synthetic import Uniforms, heavy_cells, synthetic_records
from tests.plans import small_plan

FALSE_ALARM = 1e-6
DRAWN = 40_000
Floats = npt.NDArray[np.float64]
Counters = npt.NDArray[np.int64]


def partition_plan(classes: tuple[str, ...] = (), **keys: object) -> Plan:
    """Of records within [0, 10]²; all 400 cells fit, so that only noise errs."""
    sketch = {"family": "partition", "bandwidth": "0.5", "rows": 1, "buckets": 400, "kernel": ..., "seed": 5, **keys}
    return small_plan(sketch=sketch, record={"classes": list(classes)})


def release_of(plan: Plan, *classes: npt.ArrayLike, noise: Counters | int = 0) -> Release:
    """Of exact counters, but for this noise."""
    counters = np.zeros(plan.counters_shape, np.int64)
    for index, records in enumerate(classes):
        plan.family.add(counters[index], plan.family.accept(records)[0])
    counts = np.zeros(plan.count_counters, np.int64)
    return Release(plan, "in-process", None, counters + noise, counts, plan.guarantee, accounted=False)


def blobs(rng: np.random.Generator, n: int) -> Floats:
    return np.concatenate([rng.normal(3, 0.6, (n // 2, 2)), rng.normal([8, 6], 0.3, (n - n // 2, 2))])


def assert_drawn_as_the_cells_say(cells: HeavyCells, drawn: Floats) -> None:
    """χ² of the four quarters of each cell, in proportion to the cells' counts; false alarm 1e-6.

    Quarters with fewer than ten records are taken together.
    """
    assert len(drawn) == DRAWN
    middle = (cells.lower + cells.upper) / 2
    found = np.zeros((len(cells), 4))
    for index in range(len(cells)):
        inside = ((drawn >= cells.lower[index]) & (drawn < cells.upper[index])).all(axis=1)
        quarter = (drawn[inside] >= middle[index]) @ [2, 1]
        found[index] = np.bincount(quarter, minlength=4)
    assert found.sum() == DRAWN
    expected = np.repeat(cells.counts[:, None] / cells.counts.sum() * DRAWN / 4, 4, axis=1)
    many = expected >= 10
    seen, wanted = (np.append(each[many], each[~many].sum()) for each in (found, expected))
    kept = wanted > 0
    statistic = (np.square(seen - wanted)[kept] / wanted[kept]).sum()
    assert statistic <= chi2.isf(FALSE_ALARM, kept.sum() - 1), statistic / (kept.sum() - 1)


def heavy_of_blobs(rng: np.random.Generator) -> tuple[Release, HeavyCells]:
    plan, p = partition_plan(), -math.expm1(-1.0)
    noise = rng.geometric(p, plan.counters_shape) - rng.geometric(p, plan.counters_shape)
    release = release_of(plan, blobs(rng, 20_000), noise=noise)
    return release, heavy_cells(release, least=30)


@pytest.mark.statistical
def test_records_are_drawn_in_proportion_to_cells_and_uniformly_within(rng: np.random.Generator) -> None:
    release, cells = heavy_of_blobs(rng)
    assert len(cells) > 30
    assert_drawn_as_the_cells_say(cells, synthetic_records(release, cells, DRAWN, rng))


class Lopsided:
    """Coordinates too near to the lower corner: the uniform numbers are squared."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def random(self, size: tuple[int, int]) -> Floats:
        uniforms = self._rng.random(size)
        uniforms[:, 1:] **= 1.2
        return uniforms


@pytest.mark.statistical
def test_planted_proportions_and_places_are_caught(rng: np.random.Generator) -> None:
    release, cells = heavy_of_blobs(rng)
    for power in (0.0, 0.9):
        flatter = replace(cells, counts=cells.counts**power)
        with pytest.raises(AssertionError):
            assert_drawn_as_the_cells_say(cells, synthetic_records(release, flatter, DRAWN, rng))
    lopsided: Uniforms = Lopsided(rng)
    with pytest.raises(AssertionError):
        assert_drawn_as_the_cells_say(cells, synthetic_records(release, cells, DRAWN, lopsided))


@pytest.mark.statistical
def test_synthetic_records_have_the_moments_of_the_records(rng: np.random.Generator) -> None:
    """Five standard deviations of a mean of 40,000 are 0.07, of a covariance 0.25; left-out cells may take the rest."""
    release, cells = heavy_of_blobs(rng)
    drawn, records = synthetic_records(release, cells, DRAWN, rng), blobs(rng, DRAWN)
    assert np.abs(drawn.mean(axis=0) - records.mean(axis=0)).max() < 0.15
    assert np.abs(np.cov(drawn.T) - np.cov(records.T)).max() < 0.5


def test_one_generator_gives_the_same_records(rng: np.random.Generator, seed: int) -> None:
    release, cells = heavy_of_blobs(rng)
    a, b = (synthetic_records(release, cells, 200, np.random.default_rng(seed)) for _ in range(2))
    assert np.array_equal(a, b)
    assert a.shape == (200, 2)
    assert synthetic_records(release, cells, 0, rng).shape == (0, 2)


def test_scaled_records_come_back_in_the_callers_unit(rng: np.random.Generator) -> None:
    """With a factor below 0 the lower corner of a cell is its upper one."""
    transforms = [{"kind": "scale", "factor": [2, -4]}, {"kind": "scale", "factor": [1, "0.5"]}]
    plan = partition_plan(transforms=transforms, bandwidth=2)
    release = release_of(plan, np.full((50, 2), [3.2, 7.3]))
    cells = heavy_cells(release)
    drawn = synthetic_records(release, cells, 500, rng)
    assert drawn.min(axis=0) == pytest.approx([3, 7], abs=0.05)
    assert drawn.max(axis=0) == pytest.approx([4, 8], abs=0.05)


@pytest.mark.parametrize("kind", ("unit-norm", "clip"))
def test_transforms_that_cannot_be_undone_are_refused(kind: str, rng: np.random.Generator) -> None:
    step: dict[str, Any] = {"kind": kind, **({"lower": [1, 1], "upper": [9, 9]} if kind == "clip" else {})}
    plan = partition_plan(transforms=[step])
    release = release_of(plan, np.full((50, 2), 5.0))
    cells = heavy_cells(release)
    with pytest.raises(PlanError, match=rf"sketch.transforms: got \['{kind}'\], .* cannot be inverted"):
        synthetic_records(release, cells, 5, rng)


def test_a_class_has_cells_of_its_own_and_all_of_them_together_have_more_noise() -> None:
    release = release_of(partition_plan(("a", "b")), np.full((100, 2), 1.2), np.full((80, 2), 7.2))
    a, b, both = (heavy_cells(release, label=label) for label in ("a", "b", None))
    assert [cells.codes.tolist() for cells in (a, b, both)] == [[[2, 2]], [[14, 14]], [[2, 2], [14, 14]]]
    assert both.threshold == pytest.approx(math.sqrt(2) * a.threshold)
    with pytest.raises(RecordError, match="'c'"):
        heavy_cells(release, label="c")


def test_nothing_can_be_drawn_from_no_cells_or_another_family(rng: np.random.Generator) -> None:
    release = release_of(partition_plan())
    none = heavy_cells(release)
    assert len(none) == 0
    with pytest.raises(ValueError, match="no heavy cell"):
        synthetic_records(release, none, 5, rng)
    with pytest.raises(ValueError, match="n: got -1"):
        synthetic_records(release, none, -1, rng)
    hashed = release_of(small_plan())
    for ask in (lambda: heavy_cells(hashed), lambda: synthetic_records(hashed, none, 5, rng)):
        with pytest.raises(PlanError, match=r"sketch.family: got 'hashed', expected 'partition'"):
            ask()
    with pytest.raises(PlanError, match=r"sketch.cells: got 'lsh', expected 'grid'"):
        heavy_cells(release_of(partition_plan(cells="lsh", rows=4)))


def test_a_uniform_number_next_to_one_picks_a_cell_with_a_count(rng: np.random.Generator) -> None:
    class Last:
        def random(self, size: tuple[int, int]) -> Floats:
            return np.full(size, math.nextafter(1.0, 0.0))

    release, cells = heavy_of_blobs(rng)
    counts = cells.counts / 3
    counts[-2:] = 0.0, -1.0
    drawn = synthetic_records(release, replace(cells, counts=counts), 3, Last())
    assert np.all((drawn >= cells.lower[-3]) & (drawn <= cells.upper[-3]))
