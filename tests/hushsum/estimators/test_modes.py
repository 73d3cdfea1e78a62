"""Modes and samples of a release."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import hushsum as hs
from hushsum.estimators import find_modes, sample
from tests.plans import classed_plan, model_plan, set_plan, small_plan

Floats = npt.NDArray[np.float64]
CENTRES = np.array([[2.5, 2.5], [7.5, 2.5], [5.0, 7.5]])


def hills(rng: np.random.Generator, n: int) -> Floats:
    return np.concatenate([rng.normal(centre, 0.5, (n // 3, 2)) for centre in CENTRES])


def released(records: Any, question: str, epsilon: float = 2) -> hs.Release:
    return hs.Release.from_data(
        records, bounds=[(0, 10)] * len(records[0]), epsilon=epsilon, records=len(records), question=question
    )


@pytest.mark.statistical
@pytest.mark.parametrize(("question", "near"), (("density", 0.4), ("histogram", 1.0)))
def test_each_hill_has_one_mode(question: str, near: float, rng: np.random.Generator) -> None:
    release = released(hills(rng, 9000), question)
    modes = find_modes(release)
    assert len(modes) == len(modes.points) == 3
    for centre in CENTRES:
        assert np.linalg.norm(modes.points - centre, axis=1).min() < near
    assert (np.diff(modes.density.value) <= 0).all()
    low, high = modes.density.interval()
    assert (low < high).all()
    assert np.array_equal(find_modes(release).points, modes.points), "of one release they are the same"


@pytest.mark.statistical
def test_noise_alone_has_no_modes() -> None:
    found = [len(find_modes(released(np.full((1, 2), 5.0), question))) for question in ("density", "histogram")]
    assert found == [0, 0]


@pytest.mark.statistical
def test_modes_of_one_class(rng: np.random.Generator) -> None:
    records = hills(rng, 3000)
    plan = classed_plan("a", "b", "c", privacy={"epsilon": 20, "total_epsilon": 20}, sketch={"rows": 400})
    counted = hs.Sketch(plan).add(records, labels=np.repeat(["a", "b", "c"], 1000))
    modes = find_modes(hs.release(counted), label="b")
    assert np.linalg.norm(modes.points[0] - CENTRES[1]) < 0.8


def test_releases_without_a_density_are_refused() -> None:
    with pytest.raises(hs.PlanError, match="sets have no coordinates"):
        find_modes(hs.release(hs.Sketch(set_plan())))
    with pytest.raises(hs.PlanError, match="this one answers with losses"):
        find_modes(hs.release(hs.Sketch(model_plan())))
    with pytest.raises(ValueError, match="got starts = 0"):
        find_modes(hs.release(hs.Sketch(small_plan())), starts=0)


@pytest.mark.statistical
def test_samples_are_distributed_as_the_records(rng: np.random.Generator) -> None:
    records = hills(rng, 9000)
    release = released(records, "histogram", epsilon=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = sample(release, 3000, random_state=1)
    assert np.abs(drawn.mean(axis=0) - records.mean(axis=0)).max() < 0.4
    assert np.array_equal(drawn, sample(release, 3000, random_state=1))


@pytest.mark.statistical
def test_samples_that_are_no_better_than_independent_columns_are_warned_of(rng: np.random.Generator) -> None:
    mixed = rng.normal(5, 1.2, (20_000, 2))
    with pytest.warns(hs.errors.HushsumWarning, match="a histogram of each column says as much"):
        sample(released(mixed, "histogram", epsilon=1), 10, random_state=0)
    wide = rng.uniform(0, 10, (3000, 3))
    crowded = np.concatenate([wide, np.full((300, 3), 5.5)])
    plan = small_plan(  # three records in each of a thousand cells, which 4 deviations of noise hide
        record={"dim": 3, "lower": [0] * 3, "upper": [10] * 3},
        sketch={"family": "partition", "kernel": ..., "bandwidth": 1, "rows": 1, "buckets": 1000},
    )
    with pytest.warns(hs.errors.HushsumWarning, match="are in no heavy cell and have no part in the samples"):
        sample(hs.release(hs.Sketch(plan).add(crowded)), 10, random_state=0)
