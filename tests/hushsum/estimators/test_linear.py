"""Linear models from released sketches of the paired family."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris, load_wine
from sklearn.linear_model import LinearRegression

import hushsum as hs
from hushsum.errors import PlanError
from hushsum.estimators import LinearClassifier, LinearRegressor
from tests.hushsum.paired_releases import Floats, paired_plan, regression_records, release_of
from tests.plans import model_plan, small_plan


def margin_records(rng: np.random.Generator, n: int) -> Floats:
    x = rng.uniform(-1, 1, (n, 2))
    return np.column_stack([x, np.where(x @ [1, -0.5] > 0, 1, -1)])


@pytest.mark.statistical
def test_coefficients_of_the_inner_form_are_those_of_least_squares(seed: int, rng: np.random.Generator) -> None:
    records = regression_records(rng, 4000)
    exact = np.linalg.lstsq(records[:, :2], records[:, 2], rcond=None)[0]
    plan = paired_plan(rows=600, radius=1.8, seed=seed % 2**53)
    found = LinearRegressor.from_release(release_of(plan, records))
    assert np.abs(found.coef_ - exact).max() < 0.15
    assert found.intercept_ == 0.0
    noised = release_of(plan, records, noise=60)
    assert np.abs(LinearRegressor.from_release(noised).coef_ - exact).max() < 0.25


@pytest.mark.statistical
def test_noise_alone_gives_coefficients_near_0(seed: int) -> None:
    plan = paired_plan(rows=100, radius=2, seed=seed % 2**53)
    releases = [release_of(plan, np.zeros((1, 3)), 1e4, number) for number in range(20)]
    assert np.median(np.abs([LinearRegressor.from_release(release).coef_ for release in releases])) < 0.6


@pytest.mark.statistical
@pytest.mark.parametrize("form", ({"radius": 1.2}, {"form": "orthogonal"}))
def test_a_fitted_classifier_finds_the_labels(form: dict[str, Any], seed: int, rng: np.random.Generator) -> None:
    records = margin_records(rng, 3000)
    plan = paired_plan(rows=100, loss="margin", seed=seed % 2**53, **form)
    model = LinearClassifier.from_release(release_of(plan, records, noise=50))
    assert model.classes_.tolist() == [-1, 1]
    assert model.score(records[:, :2], records[:, 2]) > 0.9
    turned = np.column_stack([records[:, :2], -records[:, 2]])
    opposite = LinearClassifier.from_release(release_of(plan, turned, noise=50))
    assert opposite.score(records[:, :2], records[:, 2]) < 0.1


def test_another_family_or_loss_is_refused() -> None:
    with pytest.raises(PlanError, match="expected 'regression'; LinearClassifier fits this plan"):
        LinearRegressor.from_release(hs.release(hs.Sketch(paired_plan(rows=20, loss="margin", radius=2))))
    with pytest.raises(PlanError, match="expected 'paired'"):
        LinearClassifier.from_release(hs.release(hs.Sketch(small_plan())))
    with pytest.raises(PlanError, match="expected 'margin'; LinearRegressor fits this plan"):
        LinearClassifier.from_release(hs.release(hs.Sketch(paired_plan(rows=20, radius=2))))


@pytest.mark.statistical
@pytest.mark.parametrize("has_intercept", (True, False))
def test_a_fit_finds_slopes_and_intercept_in_the_units_of_the_columns(
    has_intercept: bool, rng: np.random.Generator
) -> None:
    middle = 200.0 * has_intercept  # what has no intercept has 0 in the middle
    x = np.column_stack([middle + rng.uniform(-100, 100, 20_000), rng.uniform(-0.01, 0.01, 20_000)])
    y = 3.0 * has_intercept + x @ [0.02, 100.0] + rng.normal(0, 0.5, 20_000)
    bounds, ends = [(middle - 200, middle + 200), (-0.015, 0.015)], (middle / 25 - 8, middle / 25 + 8)
    model = LinearRegressor(
        epsilon=5, delta=1e-6, bounds=bounds, target_bounds=ends, records=20_000, fit_intercept=has_intercept
    ).fit(x, y)
    exact = LinearRegression(fit_intercept=has_intercept).fit(x, y)
    assert model.score(x, y) > exact.score(x, y) - 0.1
    assert model.coef_ == pytest.approx(exact.coef_, rel=0.35)
    assert (model.intercept_ != 0.0) == has_intercept


@pytest.mark.statistical
def test_petals_and_wines_are_fitted_nearly_as_without_privacy() -> None:
    X = load_iris().data
    model = LinearRegressor(
        epsilon=50, delta=1e-6, bounds=[(4, 8), (2, 4.5), (1, 7)], target_bounds=(0, 3), records=150
    )
    # In 100 fits: 0.928 with a standard deviation of 0.004; least squares explains 0.94.
    assert model.fit(X[:, :3], X[:, 3]).score(X[:, :3], X[:, 3]) > 0.8
    wines, kinds = load_wine(return_X_y=True)
    kept = wines[:, [0, 6, 9, 12]]
    bounds = [(11, 15), (0, 5.5), (1, 13), (250, 1700)]
    classifier = LinearClassifier(epsilon=50, delta=1e-6, bounds=bounds, classes=[0, 1], records=130)
    # In 100 fits: 0.962 with a standard deviation of 0.002.
    assert classifier.fit(kept[kinds < 2], kinds[kinds < 2]).score(kept[kinds < 2], kinds[kinds < 2]) > 0.8
    with pytest.warns(hs.DroppedRecordsWarning, match="48 of 178 records"):
        classifier.fit(kept, kinds)


def test_a_target_without_bounds_is_refused_and_one_that_is_no_number_is_dropped() -> None:
    X, y = np.ones((4, 2)), np.array([1.0, np.nan, 1.0, 1.0])
    keys: dict[str, Any] = {"epsilon": 1, "bounds": (0, 2)}
    with pytest.raises(hs.RecordError, match="target_bounds: missing, expected public bounds of y"):
        LinearRegressor(**keys).fit(X, y)
    with pytest.warns(hs.DroppedRecordsWarning, match="1 of 4"):
        LinearRegressor(**keys, target_bounds=(0, 2)).fit(X, y)
    with pytest.raises(ValueError, match="target_bounds: not allowed together with plan"):
        LinearRegressor(plan=model_plan(), target_bounds=(0, 2)).fit(X, y)


def test_a_map_that_mixes_the_target_into_the_columns_is_refused() -> None:
    plan = paired_plan(rows=20, radius=2, transforms=[{"kind": "unit-norm"}])
    with pytest.raises(PlanError, match="'scale' and 'linear': other transforms cannot be inverted"):
        LinearRegressor.from_release(hs.release(hs.Sketch(plan)))


def test_three_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="Only binary classification is supported"):
        LinearClassifier(epsilon=1, bounds=(0, 1), classes=[1, 2, 3]).fit(np.ones((3, 2)), [1, 2, 3])
