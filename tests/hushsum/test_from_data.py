"""From a table to a release in one call: hs.Release.from_data."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hushsum as hs
from hushsum.estimators import LinearRegressor
from hushsum.proposal import propose

BOUNDS = {"x": (0, 10), "y": (0, 20)}


@pytest.fixture
def frame(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame({"x": rng.uniform(2, 4, 3000), "y": rng.uniform(5, 9, 3000)})


def test_the_plan_is_that_of_the_bounds_alone_whatever_the_data_are(frame: pd.DataFrame) -> None:
    plan = propose(BOUNDS, epsilon=1, total_epsilon=1).plan
    for data in (frame, frame[["y", "x"]] * 2, frame[:1], {"x": [1.5], "y": [2.0]}, frame.to_dict("records")[:5]):
        assert hs.Release.from_data(data, bounds=BOUNDS, epsilon=1).plan.id == plan.id


def test_the_release_is_that_of_a_sketch_of_the_plan(frame: pd.DataFrame) -> None:
    release = hs.Release.from_data(frame, bounds=BOUNDS, epsilon=5)
    exact = float(release.plan.family.kernel(frame.to_numpy(), [[3.0, 7.0]]).sum())
    answer = release.kernel_sum([[3.0, 7.0]])
    assert answer.value[0] == pytest.approx(exact, abs=6 * answer.std_error[0] + 0.1 * exact)
    assert release.count == pytest.approx(3000, abs=100)
    assert not release.accounted
    assert "unaccounted" in repr(release)


def test_what_was_chosen_shows_in_the_repr() -> None:
    release = hs.Release.from_data(np.ones((5, 3)), bounds=[(0, 2)] * 3, epsilon=1)
    for part in ("ε=1 per record", "hashed, kernel euclidean, bandwidth ", "rows ", "buckets 1024", "draws sobol"):
        assert part in repr(release)


def test_a_ledger_is_charged_and_its_limit_holds(frame: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    def release(**more: Any) -> hs.Release:
        return hs.Release.from_data(frame, bounds=BOUNDS, epsilon=1, ledger=path, **more)

    assert release(total_epsilon=2).accounted
    assert release(question="histogram").accounted  # under the limit that the first one has fixed
    with pytest.raises(
        hs.BudgetError, match=r"earlier releases have spent the rest permanently; query a saved release, .*ledger\.db"
    ):
        release()
    with hs.Ledger(path) as ledger:
        assert ledger.spent.epsilon == len(ledger.events()) == 2
        with pytest.raises(hs.BudgetError):
            hs.Release.from_data(frame, bounds=BOUNDS, epsilon=1, ledger=ledger)


def test_a_new_ledger_pays_for_one_release_unless_more_is_said(frame: pd.DataFrame, tmp_path: Path) -> None:
    hs.Release.from_data(frame, bounds=BOUNDS, epsilon="0.5", ledger=tmp_path / "ledger.db")
    with hs.Ledger(tmp_path / "ledger.db") as ledger:
        assert ledger.limits is not None
        assert float(ledger.limits.epsilon) == 0.5


def test_a_ledger_that_it_creates_is_named_until_the_release_is_saved(frame: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "mistyped.db"

    def release() -> hs.Release:
        return hs.Release.from_data(frame, bounds=BOUNDS, epsilon=1, total_epsilon=2, ledger=path)

    first = release()
    for shown in (repr(first), first._repr_html_()):
        assert "mistyped.db: it counts no earlier release" in shown
    first.save(tmp_path / "today.hush")
    for other in (release(), hs.load(tmp_path / "today.hush")):
        assert "mistyped" not in repr(other) + other._repr_html_() + other.statement()
    with pytest.raises(hs.BudgetError, match="only for data of other people, never for the same people"):
        release()


@pytest.mark.parametrize("bounds", [{"x": (0, 10)}, {"x": (0, 10), "y": None}, {"x": (0, 10), "y": (0, None)}])
def test_a_column_without_bounds_is_refused_with_the_reason_and_nothing_is_charged(
    frame: pd.DataFrame, tmp_path: Path, bounds: dict[str, Any]
) -> None:
    with pytest.raises(hs.RecordError, match=r"bounds: column 'y' .*must not be taken from the data: its minimum"):
        hs.Release.from_data(frame, bounds=bounds, epsilon=1, ledger=tmp_path / "ledger.db")
    assert not (tmp_path / "ledger.db").exists()


def test_bounds_of_no_column_and_columns_that_are_left_out(frame: pd.DataFrame) -> None:
    with pytest.raises(hs.RecordError, match="bounds: no column 'z'; there are x, y"):
        hs.Release.from_data(frame, bounds={**BOUNDS, "z": (0, 1)}, epsilon=1)
    release = hs.Release.from_data(frame, bounds={"x": (0, 10)}, epsilon=1, columns=["x"])
    assert release.plan.collection.names == ("x",)
    with pytest.raises(hs.RecordError, match="expected them by the names of the columns: x, y"):
        hs.Release.from_data(frame, bounds=[(0, 1), (0, 2)], epsilon=1)


def test_records_that_are_clipped_or_left_out_are_warned_of(frame: pd.DataFrame) -> None:
    frame.loc[0, "x"] = np.nan
    frame.loc[1, "y"] = 50
    with pytest.warns(hs.DroppedRecordsWarning, match="1 of 3000"), pytest.warns(hs.ClippedRecordsWarning, match="y 1"):
        hs.Release.from_data(frame, bounds=BOUNDS, epsilon=1)


@pytest.mark.parametrize("records", [[[np.nan, 1.0]] * 3, [[1.0, np.inf]], []])
def test_a_single_record_does_not_decide_whether_there_is_a_release(
    records: list[list[float]], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    data = np.array(records).reshape(-1, 2)
    path = tmp_path / "ledger.db"
    release = hs.Release.from_data(data, bounds=[(0, 10), (0, 20)], epsilon=1, ledger=path)
    assert release.counters.any()
    with hs.Ledger(path) as ledger:
        assert len(ledger.events()) == 1
    warned = [str(each.message) for each in recwarn if each.category is hs.DroppedRecordsWarning]
    assert [f"none of {len(data)} can be used" in each for each in warned] == [True] * bool(records)


def test_labels_and_clients_are_columns_that_need_no_bounds(frame: pd.DataFrame) -> None:
    frame["kind"], frame["who"] = np.where(frame["x"] > 3, "a", "b"), np.arange(3000)

    def release(**more: Any) -> hs.Release:
        more = {"question": "classes", "labels": "kind", "classes": ["a", "b"], **more}
        return hs.Release.from_data(frame, bounds=BOUNDS, epsilon=5, **more)

    released = release(clients="who", records_per_client=2)
    assert released.plan.privacy.unit == "client"
    assert released.count_of("a") == pytest.approx(int((frame["kind"] == "a").sum()), abs=100)
    with pytest.raises(ValueError, match="expected together with records_per_client"):
        release(clients="who")
    frame["who"] = 1
    with pytest.raises(hs.ContributionError):
        release(clients="who", records_per_client=2)


def test_a_csv_is_read_by_its_names(frame: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    frame.to_csv(path, index=False)
    assert hs.Release.from_data(path, bounds=BOUNDS, epsilon=5).count == pytest.approx(3000, abs=100)


def test_the_target_of_a_regression_is_found_by_its_name_and_of_an_array_it_is_the_last_column(
    rng: np.random.Generator,
) -> None:
    x = rng.uniform(-1, 1, 20_000)
    frame = pd.DataFrame({"y": x / 2 + rng.normal(0, 0.05, 20_000), "x": x})
    bounds = {"y": (-1, 1), "x": (-1, 1)}
    release = hs.Release.from_data(frame, bounds=bounds, epsilon=10, question="regression", target="y")
    assert release.plan.collection.names == ("x", "y")
    assert LinearRegressor.from_release(release).coef_[0] == pytest.approx(0.5, abs=0.1)
    with pytest.raises(ValueError, match="of an array the last column is the target"):
        hs.Release.from_data(frame.to_numpy(), bounds=bounds, epsilon=1, question="regression", target="y")


def test_bounds_by_name_are_refused_for_data_whose_columns_have_no_names(frame: pd.DataFrame, tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", frame.to_numpy())
    for data in (frame.to_numpy(), frame.to_numpy().astype(object), frame.to_numpy().tolist(), tmp_path / "data.npy"):
        with pytest.raises(hs.RecordError, match="bounds: got them by names, but the columns of the data have none"):
            hs.Release.from_data(data, bounds={"y": (0, 20), "x": (0, 10)}, epsilon=1, ledger=tmp_path / "ledger.db")
    assert not (tmp_path / "ledger.db").exists()
    for named in (list(frame[:5].itertuples(index=False)), frame[:5].to_dict("records"), {"x": 1.0, "y": 2.0}, []):
        hs.Release.from_data(named, bounds=BOUNDS, epsilon=1)


@pytest.mark.parametrize("question", ["density", "histogram", "outliers"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0},
        {"epsilon": -1},
        {"epsilon": 1, "total_epsilon": 0},
        {"epsilon": 1, "records_per_client": -1, "clients": [1] * 3},
        {"epsilon": 1, "records_per_client": 0, "clients": [1] * 3},
    ],
    ids=str,
)
def test_numbers_that_no_plan_may_have_are_plan_errors(question: str, wrong: dict[str, Any]) -> None:
    for dim in (1, 2, 3):
        with pytest.raises(hs.PlanError, match=r"^privacy\."):
            hs.Release.from_data(np.ones((3, dim)), bounds=[(0, 2)] * dim, question=question, **wrong)


def test_warnings_point_at_the_line_that_called(frame: pd.DataFrame) -> None:
    frame.loc[0, "x"] = np.nan
    with pytest.warns(hs.HushsumWarning) as warned:
        hs.Release.from_data(frame, bounds={"x": (0, 3), "y": (0, 6)}, epsilon=20)
    assert {each.category for each in warned} == {hs.DroppedRecordsWarning, hs.ClippedRecordsWarning, hs.PlanWarning}
    assert {each.filename for each in warned} == {__file__}


def test_the_share_of_clipped_records_is_a_plain_percentage(frame: pd.DataFrame) -> None:
    with pytest.warns(hs.ClippedRecordsWarning, match=r"^3,000 \(100 %\) of 3000 records"):
        hs.Release.from_data(frame, bounds={"x": (20, 30), "y": (0, 20)}, epsilon=1)
