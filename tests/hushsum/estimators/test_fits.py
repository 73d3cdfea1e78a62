"""What every estimator's fit has to do with the ledger, the release, pickles, pipelines and data frames."""

import pickle
from collections.abc import Callable
from pathlib import Path
from traceback import format_exception
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import hushsum as hs
from hushsum.estimators import KernelClassifier, KernelDensity, KernelOutlierDetector, LinearClassifier, LinearRegressor
from tests.plans import model_plan, small_plan

Floats = npt.NDArray[np.float64]
NAMES = ["sepal length (cm)", "sepal width (cm)", "petal length (cm)", "petal width (cm)"]
COMMON: dict[str, Any] = {"epsilon": 2, "bounds": (0, 9), "records": 150}
OTHERS: dict[type[Any], dict[str, Any]] = {
    KernelDensity: {},
    KernelClassifier: {"classes": [0, 1, 2]},
    KernelOutlierDetector: {"contamination": 0.2},
    LinearRegressor: {"target_bounds": (0, 3)},
    LinearClassifier: {"classes": [0, 1]},
}
QUESTIONS = {LinearRegressor: "predict", LinearClassifier: "decision_function", KernelClassifier: "predict_proba"}
FEW_ROWS = small_plan(
    record={"dim": 3, "lower": [-2] * 3, "upper": [2] * 3},
    sketch={"family": "paired", "rows": 1, "radius": 2, "kernel": ..., "bandwidth": ..., "buckets": ...},
)
#: Of all of them, what depends on the records: the release, and what is computed from it.
DERIVED = {"release_", "floor_", "normalised_", "class_count_", "offset_", "coef_", "intercept_"}


@pytest.fixture(params=OTHERS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> type[Any]:
    found: type[Any] = request.param
    return found


def iris() -> tuple[Floats, npt.NDArray[np.int64]]:
    data = load_iris()
    return data.data, data.target


def built(kind: type[Any], **changes: Any) -> Any:
    return kind(**{**COMMON, **OTHERS[kind], **changes})


def asked(model: Any, X: Any) -> Floats:
    return np.asarray(getattr(model, QUESTIONS.get(type(model), "score_samples"))(X))


#: The third kind of iris is none of a linear classifier's labels, which it warns of; that is tested elsewhere.
pytestmark = pytest.mark.filterwarnings("ignore::hushsum.errors.DroppedRecordsWarning")


def test_a_fit_charges_the_ledger_once_and_nothing_else_does(kind: type[Any], tmp_path: Path) -> None:
    X, y = iris()
    path = tmp_path / "ledger.db"
    model = built(kind, ledger=path, total_epsilon=5).fit(X, y)
    asked(model, X)
    kind.from_release(model.release_, **OTHERS[kind])
    pickle.loads(pickle.dumps(model))
    with hs.Ledger(path) as ledger:
        assert (len(ledger.events()), float(ledger.spent.epsilon)) == (1, 2.0)
    assert model.release_.accounted
    model.fit(X, y)
    with hs.Ledger(path) as ledger:
        assert float(ledger.spent.epsilon) == 4.0
    with pytest.raises(hs.BudgetError):
        model.fit(X, y)
    assert not [name for name in vars(model) if name.endswith("_")], "of the fit before nothing is left either"
    with pytest.raises(NotFittedError):
        asked(model, X)


def test_every_fold_of_a_cross_validation_is_charged(tmp_path: Path) -> None:
    X, y = iris()
    path = tmp_path / "ledger.db"
    model = built(KernelClassifier, ledger=path, total_epsilon=6)
    cross_val_score(model, X, y, cv=3)
    with hs.Ledger(path) as ledger:
        assert len(ledger.events()) == 3
    with pytest.raises(hs.BudgetError):
        cross_val_score(model, X, y, cv=2, error_score="raise")


def test_a_fit_that_fails_before_the_charge_leaves_nothing(kind: type[Any], tmp_path: Path) -> None:
    X, y = iris()
    path = tmp_path / "ledger.db"
    for wrong in ({"bounds": None}, {"epsilon": None}, {"bounds": [(0, 9)] * 3}, {"bounds": {"a": (0, 9)}}):
        model = built(kind, ledger=path, **wrong)
        with pytest.raises((ValueError, hs.RecordError), match=r"bounds|epsilon"):
            model.fit(X, y)
        assert not [name for name in vars(model) if name.endswith("_")]
    assert not path.exists()


@pytest.mark.parametrize("secret", ("Jane Roe", 10**400), ids=("text", "large"))
def test_an_error_shows_no_value_of_a_record(kind: type[Any], secret: object, tmp_path: Path) -> None:
    X, y = (values.astype(object) for values in iris())
    path = tmp_path / "ledger.db"
    wrong = X.copy()
    wrong[7, 2] = secret
    fitted = built(kind).fit(X, y.astype(int))
    attempts: list[Callable[[], object]] = [
        lambda: built(kind, ledger=path).fit(wrong, y.astype(int)),
        lambda: asked(fitted, wrong),
    ]
    if kind is LinearRegressor:
        targets = y.copy()
        targets[7] = secret
        attempts.append(lambda: built(kind, ledger=path).fit(X, targets))
    for attempt in attempts:
        with pytest.raises(ValueError, match="expected numbers") as caught:
            attempt()
        assert str(secret)[:20] not in "".join(format_exception(caught.value))
    assert not path.exists()


def test_an_error_about_a_shape_or_a_type_shows_no_record(kind: type[Any]) -> None:
    X, y = iris()
    fitted = built(kind).fit(X, y)
    for wrong, text in ((np.full(4, 7.125), "Expected 2D array"), (np.full((4, 4), 7.125j), "Complex data not supp")):
        for attempt in (lambda X: built(kind).fit(X, y[:4]), lambda X: asked(fitted, X)):
            with pytest.raises(ValueError, match=f"X: {text}") as caught:
                attempt(wrong)
            assert "7.125" not in "".join(format_exception(caught.value))
    if kind in {LinearRegressor, LinearClassifier, KernelClassifier}:
        targets = np.full(len(X), 7.125j)
        with pytest.raises(ValueError, match="y: Complex data not supported") as caught:
            built(kind).fit(X, targets)
        assert "7.125" not in "".join(format_exception(caught.value))


def test_an_open_ledger_is_refused(kind: type[Any], tmp_path: Path) -> None:
    with hs.Ledger(tmp_path / "ledger.db") as ledger, pytest.raises(TypeError, match="expected the path of a ledger"):
        built(kind, ledger=ledger).fit(*iris())


@pytest.mark.filterwarnings("ignore:offset_")  # so few records need not stand out of the noise
def test_a_pickle_holds_the_bytes_of_the_release_and_no_record(kind: type[Any], rng: np.random.Generator) -> None:
    X = rng.uniform(1, 8, (60, 4))
    model = built(kind).fit(X, np.arange(60) % 2)
    data = pickle.dumps(model)
    assert model.release_.to_bytes() in data
    assert not any(value.tobytes() in data for value in X.reshape(-1)), "of 8 bytes each, some random"
    assert not any(pair.tobytes() in data for pair in X.astype(np.float32).reshape(-1, 2)), "of 4 bytes each"
    assert b"hushsum.sketch" not in data
    again = pickle.loads(data)
    assert np.array_equal(asked(again, X), asked(model, X))
    assert again.get_params()["epsilon"] == 2


def test_all_that_depends_on_the_records_is_computed_from_the_release(kind: type[Any]) -> None:
    X, y = iris()
    model = built(kind).fit(X, y)
    other = kind.from_release(model.release_, **OTHERS[kind])
    public = {"n_features_in_", "classes_"}
    fitted = {name for name in vars(model) if name.endswith("_")}
    assert fitted <= DERIVED | public
    for name in fitted - {"release_"}:
        assert np.array_equal(getattr(model, name), getattr(other, name)), name
    assert np.array_equal(asked(model, X), asked(other, X))


def test_a_clone_has_the_parameters_and_is_not_fitted(kind: type[Any], tmp_path: Path) -> None:
    model = built(kind, ledger=tmp_path / "ledger.db").fit(*iris())
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        asked(copy, iris()[0])


@pytest.mark.parametrize("frame", (pd.DataFrame, pl.DataFrame))
def test_columns_of_a_frame_are_read_by_their_names(kind: type[Any], frame: Any) -> None:
    X, y = iris()
    named = frame(dict(zip(NAMES, X.T, strict=True)))
    bounds = {NAMES[1]: (0, 5), NAMES[0]: (0, 9), NAMES[3]: (0, 3), NAMES[2]: (0, 7)}
    model = built(kind, bounds=bounds).fit(named, y)
    assert model.feature_names_in_.tolist() == NAMES
    assert model.release_.plan.collection.names[:4] == tuple(NAMES)
    assert [float(high) for high in model.release_.plan.vectors.upper[:4]] == [9, 5, 7, 3]
    model_of_release = kind.from_release(model.release_, **OTHERS[kind])
    assert np.array_equal(asked(model_of_release, named), asked(model, named))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        assert np.allclose(asked(model, X), asked(model, named), rtol=1e-12)
    with pytest.raises(hs.RecordError, match="has none"):
        built(kind, bounds=dict.fromkeys(NAMES[:3], (0, 9))).fit(named, y)
    with pytest.raises(ValueError, match="feature names should match"):
        asked(model, named[NAMES[::-1]])


def test_a_plan_reads_a_frame_by_its_own_names() -> None:
    X = iris()[0]
    named = pd.DataFrame(X, columns=NAMES)
    record = {"dim": 2, "lower": [0, 0], "upper": [9, 9], "names": [NAMES[2], NAMES[0]]}
    plan = small_plan(record=record, privacy={"epsilon": 50, "total_epsilon": 50})
    model = KernelDensity(plan=plan).fit(named[[NAMES[0], NAMES[2]]])
    assert model.release_.plan.id == plan.id
    assert model.feature_names_in_.tolist() == [NAMES[0], NAMES[2]]
    assert model.score_samples(named[[NAMES[0], NAMES[2]]]).mean() > np.log(0.1)
    crossed = model.release_.density(named[[NAMES[2], NAMES[0]]]).value
    assert np.array_equal(model.density_(named[[NAMES[0], NAMES[2]]]).value, crossed)
    wrong: dict[str, Any]
    for wrong in ({"epsilon": 1}, {"bounds": (0, 9)}, {"records": 5}):
        with pytest.raises(ValueError, match="not allowed together with plan"):
            KernelDensity(plan=plan, **wrong).fit(X[:, :2])


def test_a_bandwidth_is_the_users_share_of_the_bounds_and_not_given_beside_a_plan() -> None:
    X, y = iris()
    for kind in (KernelDensity, KernelClassifier, KernelOutlierDetector):
        model = built(kind, bandwidth="0.1").fit(X, y)
        assert model.release_.plan.family.to_fields()["bandwidth"] == "0.9"  # of columns 9 wide
        with pytest.raises(ValueError, match="bandwidth: not allowed together with plan"):
            kind(plan=model.release_.plan, bandwidth="0.1", **OTHERS[kind]).fit(X, y)


def test_a_plan_of_another_question_is_refused_before_the_charge(tmp_path: Path) -> None:
    X, y = iris()
    path = tmp_path / "ledger.db"
    for model, text in (
        (KernelDensity(plan=model_plan(), ledger=path), "LinearRegressor fits this plan"),
        (KernelClassifier(plan=small_plan(), ledger=path, classes=[0, 1]), "all labels that records may have"),
        (LinearRegressor(plan=small_plan(), ledger=path), "expected 'paired'"),
        (LinearClassifier(plan=model_plan(), ledger=path, classes=[0, 1]), "LinearRegressor fits this plan"),
        (LinearRegressor(plan=FEW_ROWS, ledger=path), "too few for 3 columns"),
        (LinearRegressor(plan=model_plan(), ledger=path), "4 columns, a column named 'intercept' if wanted"),
    ):
        with pytest.raises(hs.PlanError, match=text):
            model.fit(X, (y > 0) * 1)
    assert not path.exists()


@pytest.mark.parametrize("records", (np.empty((0, 4)), np.full((1, 4), np.nan)))
@pytest.mark.parametrize("plan", (False, True))
def test_a_single_record_does_not_decide_whether_there_is_a_release(
    records: Floats, plan: bool, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.db"
    record: dict[str, object] = {"dim": 4, "lower": [0] * 4, "upper": [9] * 4}
    keys: dict[str, Any] = {"plan": small_plan(record=record)} if plan else COMMON
    assert KernelDensity(**keys, ledger=path).fit(records).release_.accounted


def test_estimators_end_pipelines() -> None:
    X, y = iris()
    halved = FunctionTransformer(lambda values: values / 2)
    model = make_pipeline(halved, built(KernelClassifier, bounds=(0, 4.5), epsilon=50)).fit(X, y)
    assert model.score(X, y) > 0.8
