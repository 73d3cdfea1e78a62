"""The outlier detector: the order of its scores, and an offset from the release alone."""

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.datasets import load_iris
from sklearn.metrics import roc_auc_score

import hushsum as hs
from hushsum.estimators import KernelOutlierDetector
from hushsum.estimators.particles import particles, unsmoothed
from tests.plans import small_plan

Floats = npt.NDArray[np.float64]


def two_hills(rng: np.random.Generator, n: int) -> Floats:
    return np.concatenate([rng.normal(3, 0.5, (n // 2, 2)), rng.normal(7, 0.5, (n - n // 2, 2))])


@pytest.mark.statistical
def test_points_between_hills_are_outliers_and_those_on_them_are_not(rng: np.random.Generator) -> None:
    model = KernelOutlierDetector(epsilon=2, bounds=(0, 10), records=4000).fit(two_hills(rng, 4000))
    assert model.predict([[3.0, 3.0], [7.0, 7.0], [9.5, 0.5], [0.5, 9.5]]).tolist() == [1, 1, -1, -1]
    scores = model.score_samples([[3.0, 3.0], [9.5, 0.5]])
    assert np.array_equal(model.decision_function([[3.0, 3.0], [9.5, 0.5]]), scores - model.offset_)


@pytest.mark.statistical
@pytest.mark.parametrize("contamination", (0.05, 0.2))
def test_about_the_share_that_was_asked_for_is_outlying(contamination: float, rng: np.random.Generator) -> None:
    records = two_hills(rng, 20_000)
    model = KernelOutlierDetector(epsilon=1e6, bounds=(0, 10), records=20_000, contamination=contamination).fit(records)
    # The noise is next to nothing, so the share follows from the seeds: 0.45 to 1.63 of what was asked, with 24.
    share = float((model.predict(records) < 0).mean())
    assert 0.3 * contamination < share < 2.2 * contamination


@pytest.mark.statistical
def test_the_offset_of_a_release_without_records_is_above_its_noise() -> None:
    plan = small_plan(privacy={"epsilon": 1, "total_epsilon": 1})
    with pytest.warns(hs.errors.HushsumWarning, match="stands out of its noise nowhere"):
        model = KernelOutlierDetector(plan=plan).fit(np.empty((0, 2)))
    assert model.offset_ > 0


@pytest.mark.statistical
def test_the_flowers_of_one_kind_are_outliers_among_another(seed: int) -> None:
    X, y = load_iris(return_X_y=True)
    model = KernelOutlierDetector(epsilon=20, bounds=(0, 8), records=50).fit(X[y == 0])
    # 1.000 in each of 100 fits.
    assert roc_auc_score(y == 0, model.score_samples(X)) > 0.9


@pytest.mark.statistical
def test_particles_are_distributed_as_the_smoothed_records(rng: np.random.Generator) -> None:
    records = two_hills(rng, 20_000)
    no_hash = dict.fromkeys(("buckets", "rows", "seed"), ...)
    plan = small_plan(sketch={**no_hash, "family": "hermite", "kernel": "gaussian", "bandwidth": 1, "order": 6})
    release = hs.release(hs.Sketch(plan).add(records))
    found = particles(release, 512)
    assert len(found.points) == len(found.values) > 400
    assert np.array_equal(found.points, particles(release, 512).points), "of one release they are the same"
    assert 0.3 < (found.points[:, 0] < 5).mean() < 0.7
    inner = found.points[(found.points < 5).all(axis=1)]
    assert inner.mean(axis=0) == pytest.approx([3, 3], abs=0.4)
    smoothed, exact = np.hypot(0.5, np.sqrt(0.5)), 0.5
    assert inner[:, 0].std() == pytest.approx(smoothed, rel=0.3)
    weights = unsmoothed(plan, found.points)
    assert weights.sum() == pytest.approx(1)
    near = (found.points < 5).all(axis=1)
    spread = np.sqrt(np.average((found.points[near, 0] - 3) ** 2, weights=weights[near]))
    assert spread < (smoothed + exact) / 2, "weighted, they are nearer to the records than to the smoothed ones"


@pytest.mark.parametrize("contamination", (0.0, 0.6, float("nan")))
def test_a_share_out_of_range_is_refused(contamination: float) -> None:
    with pytest.raises(ValueError, match="contamination: got"):
        KernelOutlierDetector(epsilon=1, bounds=(0, 1), contamination=contamination).fit(np.ones((3, 2)))
