"""The kernel classifier: its posteriors, its priors, and where labels come from."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.datasets import load_iris, load_wine

import hushsum as hs
from hushsum.estimators import KernelClassifier
from tests.plans import classed_plan, small_plan

Floats = npt.NDArray[np.float64]


def release_of(counts: dict[str, int], at: dict[str, list[float]], epsilon: float = 1000) -> hs.Release:
    plan = classed_plan(*counts, privacy={"epsilon": epsilon, "total_epsilon": epsilon}, sketch={"rows": 300})
    sketch = hs.Sketch(plan)
    for label, count in counts.items():
        sketch.add(np.repeat([at[label]], count, axis=0), labels=[label] * count)
    return hs.release(sketch)


def test_posteriors_are_counts_times_densities_or_densities_alone() -> None:
    release = release_of({"b": 900, "a": 100}, {"a": [5, 5], "b": [5, 5]})
    for prior, expected in (("counts", [0.1, 0.9]), ("uniform", [0.5, 0.5])):
        model = KernelClassifier.from_release(release, prior=prior)
        assert model.classes_.tolist() == ["a", "b"]
        # Noise of ε = 1000 in 300 rows is far below a record of 100.
        assert model.predict_proba([[5.0, 5.0]])[0] == pytest.approx(expected, abs=0.05)
        assert model.class_count_ == pytest.approx([100, 900], abs=5)


def test_far_from_all_records_the_posterior_is_the_prior() -> None:
    sketch: dict[str, Any] = {"family": "hermite", "kernel": "gaussian", "bandwidth": 1, "order": 4}
    others = dict.fromkeys(("buckets", "rows", "seed"), ...)
    privacy: dict[str, object] = {"epsilon": 1e9, "total_epsilon": 1e9}  # no noise: the kernel is 0 beyond its cutoff
    plan = classed_plan("a", "b", sketch={**others, **sketch}, privacy=privacy)
    counted = hs.Sketch(plan).add([[1, 1]] * 100, labels=["a"] * 90 + ["b"] * 10)
    for prior, expected in (("counts", [0.9, 0.1]), ("uniform", [0.5, 0.5])):
        model = KernelClassifier.from_release(hs.release(counted), prior=prior)
        assert model.predict_proba([[9.0, 9.0]])[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.statistical
@pytest.mark.parametrize("load", (load_iris, load_wine))
def test_flowers_and_wines_are_told_apart(load: Any) -> None:
    data = load()
    low, high = data.data.min(axis=0), data.data.max(axis=0)  # public here, as of a data set that anybody has
    bounds = list(zip((low - 0.1).tolist(), (high + 0.1).tolist(), strict=True))
    model = KernelClassifier(epsilon=50, delta=1e-6, bounds=bounds, classes=[0, 1, 2], records=150)
    # In 100 fits: 0.981 with a standard deviation of 0.005 (iris), 0.991 with one of 0.004 (wine).
    assert model.fit(data.data, data.target).score(data.data, data.target) > 0.8


@pytest.mark.statistical
@pytest.mark.parametrize("dim", (3, 8))
def test_a_rare_class_in_a_part_of_wide_bounds_is_found(dim: int, rng: np.random.Generator) -> None:
    y = np.arange(20_000) % 10 == 0
    X = np.where(y[:, None], 0.6, 0.4) + rng.normal(0, 1 / 12, (len(y), dim))
    model = KernelClassifier(epsilon=1, bounds=(0, 1), classes=[False, True], records=len(y)).fit(X, y)
    # In 50 fits: 0.986 with a standard deviation of 0.0023, and 0.978 with 0.0036. The commonest label has 0.9.
    assert model.score(X[:2000], y[:2000]) > 0.94


def test_labels_are_taken_from_the_parameter_or_the_plan_and_from_y_with_a_warning() -> None:
    X = np.full((6, 2), 5.0)
    y = [3, 3, 1, 1, 1, 7]
    keys: dict[str, Any] = {"epsilon": 10, "bounds": (0, 10), "records": 100}
    with pytest.warns(hs.DroppedRecordsWarning, match="1 without a label of the plan"):
        assert KernelClassifier(**keys, classes=[3, 1]).fit(X, y).classes_.tolist() == [1, 3]
    plan = classed_plan("1", "3", "7")
    assert KernelClassifier(plan=plan).fit(X, [str(label) for label in y]).classes_.tolist() == ["1", "3", "7"]
    assert KernelClassifier(plan=plan, classes=[1, 3, 7]).fit(X, y).predict(X[:1]).dtype.kind == "i"
    with pytest.warns(hs.errors.HushsumWarning, match=r"classes: taken from y \(3 labels\), so that the set of labels"):
        assert KernelClassifier(**keys).fit(X, y).classes_.tolist() == [1, 3, 7]


@pytest.mark.parametrize(
    ("wrong", "text"),
    (
        ({"classes": [1]}, "got 1 class, expected at least 2"),
        ({"classes": ["1", 1]}, "got 1 class"),
        ({"classes": [1, 2], "prior": "flat"}, "prior: got 'flat', expected 'counts' or 'uniform'"),
    ),
)
def test_wrong_labels_and_priors_are_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        KernelClassifier(epsilon=1, bounds=(0, 10), **wrong).fit(np.ones((4, 2)), [1, 1, 2, 2])


def test_a_release_with_other_labels_or_none_is_refused() -> None:
    with pytest.raises(hs.PlanError, match=r"record.classes: got \['a', 'b', 'c'\], expected those of the parameter"):
        KernelClassifier.from_release(hs.release(hs.Sketch(classed_plan())), classes=["a", "b"])
    with pytest.raises(hs.PlanError, match="all labels that records may have"):
        KernelClassifier.from_release(hs.release(hs.Sketch(small_plan())))
