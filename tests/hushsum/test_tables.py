"""Tables are read by the names of the plan's columns, in any order, and by position only where that is asked for."""

import math
import sqlite3
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

import hushsum as hs
from hushsum import DroppedRecordsWarning, Plan, RecordError, Sketch
from hushsum.entropy import OsEntropy, ReplayableEntropy
from hushsum.local.reports import reports
from hushsum.releases import draw
from hushsum.tables import column_names, read_file, read_table
from tests.plans import classed_plan, client_plan, set_plan, small_plan

NAMED = small_plan(record={"names": ["x", "y"]})
X, Y = np.random.default_rng(0).uniform(0, 10, (2, 50))
EXPECTED = Sketch(NAMED).add(np.column_stack([X, Y])).counters


def as_csv(columns: dict[str, Any], folder: Path) -> Path:
    csv.write_csv(pa.table(columns), folder / "records.csv")
    return folder / "records.csv"


def as_parquet(columns: dict[str, Any], folder: Path) -> str:
    parquet.write_table(pa.table(columns), folder / "records.parquet")
    return str(folder / "records.parquet")


def as_dicts(columns: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    del folder
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


Form = Callable[[dict[str, Any], Path], Any]
FORMS: dict[str, Form] = {
    "pandas": lambda columns, _: pd.DataFrame(columns),
    "polars": lambda columns, _: pl.DataFrame(columns),
    "lazy": lambda columns, _: pl.LazyFrame(columns),
    "arrow": lambda columns, _: pa.table(columns),
    "batch": lambda columns, _: pa.table(columns).to_batches()[0],
    "mapping": lambda columns, _: columns,
    "dicts": as_dicts,
    "csv": as_csv,
    "parquet": as_parquet,
}
TABLES = [name for name in FORMS if name != "dicts"]


@pytest.fixture(params=list(FORMS))
def form(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[dict[str, Any]], Any]:
    return lambda columns: FORMS[request.param](columns, tmp_path)


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[dict[str, Any]], Any]:
    return lambda columns: FORMS[request.param](columns, tmp_path)


def test_columns_are_found_by_their_names_in_any_order(form: Callable[..., Any]) -> None:
    for columns in ({"x": X, "y": Y}, {"y": Y, "x": X}):
        assert np.array_equal(Sketch(NAMED).add(form(columns)).counters, EXPECTED)


def test_columns_are_mapped_and_chosen(form: Callable[..., Any]) -> None:
    for columns, chosen in (
        ({"b": Y, "other": X, "a": X}, {"x": "a", "y": "b"}),
        ({"y": Y, "other": Y, "a": X}, {"x": "a"}),
        ({"y": Y, "other": Y, "x": X}, ["x", "y"]),
        ({"y": Y, "other": Y, "x": X}, ["y", "x"]),
    ):
        assert np.array_equal(Sketch(NAMED).add(form(columns), columns=chosen).counters, EXPECTED)


def test_a_missing_and_an_extra_column_are_both_named(table: Callable[..., Any]) -> None:
    sketch = Sketch(NAMED)
    for columns, text in (
        ({"x": X, "z": Y}, r"columns x, z, the plan has x, y \(missing: y; not in the plan: z\)"),
        ({"x": X}, r"\(missing: y\)"),
        ({"x": X, "y": Y, "z": Y}, r"\(not in the plan: z\)"),
    ):
        with pytest.raises(RecordError, match=text):
            sketch.add(table(columns))
    with pytest.raises(RecordError, match="no column 'q'; it has x, y"):
        sketch.add(table({"x": X, "y": Y}), columns={"y": "q"})
    with pytest.raises(RecordError, match="the plan has no column 'q'; it has x, y"):
        sketch.add(table({"x": X, "y": Y}), columns={"q": "y"})
    assert sketch.records == 0


def test_without_names_in_the_plan_a_position_is_taken_only_if_asked_for(table: Callable[..., Any]) -> None:
    plan, columns = small_plan(), {"b": X, "a": Y}
    with pytest.raises(
        RecordError, match=r"has no names for its 2 columns .* use by_position to take b, a in this order"
    ):
        Sketch(plan).add(table(columns))
    for asked in ({"by_position": True}, {"columns": ["b", "a"]}):
        assert np.array_equal(Sketch(plan).add(table(columns), **asked).counters, EXPECTED)
    with pytest.raises(RecordError, match=r"3 columns \(b, a, c\), the plan expects 2"):
        Sketch(plan).add(table({**columns, "c": X}), by_position=True)
    with pytest.raises(RecordError, match="a mapping requires a plan with column names"):
        Sketch(plan).add(table(columns), columns={"x": "b"})


def test_names_of_the_plan_are_passed_over_only_if_asked_for(table: Callable[..., Any]) -> None:
    assert np.array_equal(Sketch(NAMED).add(table({"y": X, "x": Y}), by_position=True).counters, EXPECTED)


def test_a_column_of_anything_else_than_numbers_is_refused(table: Callable[..., Any]) -> None:
    for values in (["a", "b"], np.array(["2026-01-01", "2026-01-02"], "datetime64[ns]")):
        with pytest.raises(RecordError, match=r"column 'y' contains .*, expected numbers"):
            Sketch(NAMED).add(table({"x": [1.0, 2.0], "y": values}))


def test_a_missing_value_drops_its_record_alone(tmp_path: Path) -> None:
    nullable = pd.DataFrame({"x": pd.array([1, None, 3], "Int64"), "y": [1.0, 2.0, 3.0]})
    objects = pd.DataFrame({"x": [1, "a", 3], "y": [1.0, 2.0, 3.0]})
    arrow = pa.table({"x": [1, None, 3], "y": [1.0, 2.0, 3.0]})
    flags = pa.table({"x": [1, 2, 3], "y": [True, None, True]})
    dicts = [{"x": 1, "y": 1}, {"y": 2}, {"x": 3, "y": 3}]
    others = [{"x": 1, "y": 1}, {"x": 2, "y": 2, "z": 2}, "x", {"x": 3, "y": 3}, {"x": "1", "y": 1}]
    for records, dropped in ((nullable, 1), (objects, 1), (arrow, 1), (pl.from_arrow(arrow), 1), (flags, 1),
                             (FORMS["csv"]({"x": [1, None, 3], "y": [1.0, 2.0, 3.0]}, tmp_path), 1), (dicts, 1),
                             (others, 3)):  # fmt: skip
        with pytest.warns(DroppedRecordsWarning, match=f"{dropped} of "):
            assert Sketch(NAMED).add(records).records == 2


def test_dicts_with_other_keys_alone_are_refused() -> None:
    with pytest.raises(RecordError, match="the first has x, z, expected x, y in each"):
        Sketch(NAMED).add([{"x": 1, "z": 2}, {"y": 1}])


def test_one_dict_of_numbers_is_one_record() -> None:
    assert np.array_equal(
        Sketch(NAMED).add({"y": Y[0], "x": X[0]}).counters, Sketch(NAMED).add([[X[0], Y[0]]]).counters
    )


def test_labels_and_clients_may_be_columns(form: Callable[..., Any]) -> None:
    labels = np.random.default_rng(1).integers(1, 3, 50)
    plan = classed_plan("1", "2", record={"names": ["x", "y"]}, privacy={"unit": "client", "records_per_client": 1})
    expected = Sketch(plan).add(np.column_stack([X, Y]), clients=range(50), labels=list(map(str, labels)))
    columns = {"y": Y, "device": np.arange(50), "x": X, "kind": labels}
    given = Sketch(plan).add(form(columns), clients="device", labels="kind")
    assert np.array_equal(given.counters, expected.counters)
    assert np.array_equal(given.counts, expected.counts)
    with pytest.raises(hs.ContributionError):
        given.add(form({**columns, "device": np.zeros(50, np.int64)}), clients="device", labels="kind")


def test_a_label_that_is_missing_in_a_table_drops_its_record_alone() -> None:
    plan = classed_plan("a", "b", record={"names": ["x", "y"]})
    columns: dict[str, Any] = {"x": [1.0, 2.0], "y": [1.0, 2.0], "kind": ["a", None]}
    for form in ("pandas", "polars", "arrow", "mapping", "dicts"):
        records = FORMS[form](columns, Path())
        with pytest.warns(DroppedRecordsWarning, match="1 of 2 records were left out: 1 without a label"):
            assert Sketch(plan).add(records, labels="kind").records == 1
    with pytest.raises(RecordError, match="no column 'a'; it has x, y, kind"):
        Sketch(plan).add(pd.DataFrame(columns), labels="a")


class Point(NamedTuple):
    y: Any
    x: Any


@dataclass
class DataPoint:
    y: Any
    x: Any


class Labelled(NamedTuple):
    kind: str
    y: float
    x: float


def as_sqlite_row(point: Point) -> sqlite3.Row:
    with closing(sqlite3.connect(":memory:")) as database:
        database.row_factory = sqlite3.Row
        row: sqlite3.Row = database.execute("SELECT ? AS y, ? AS x", [float(value) for value in point]).fetchone()
        return row


ROWS: dict[str, Callable[[Point], Any]] = {
    "dict": lambda point: point._asdict(),
    "namedtuple": lambda point: point,
    "dataclass": lambda point: DataPoint(*point),
    "series": lambda point: pd.Series(point._asdict()),
    "sqlite": as_sqlite_row,
}
POINTS = [Point(y, x) for x, y in zip(X, Y, strict=True)]


@pytest.fixture(params=ROWS)
def row(request: pytest.FixtureRequest) -> Callable[[Point], Any]:
    return ROWS[request.param]


def test_rows_with_names_are_read_by_them(row: Callable[[Point], Any]) -> None:
    rows, objects = [row(point) for point in POINTS], np.empty(len(POINTS), np.object_)
    for place, item in enumerate(rows):
        objects[place] = item
    for records in (rows, tuple(rows), deque(rows), objects, pd.Series(rows)):
        assert np.array_equal(Sketch(NAMED).add(records).counters, EXPECTED)
    first = Sketch(NAMED).add([[X[0], Y[0]]]).counters
    assert np.array_equal(Sketch(NAMED).add(row(POINTS[0])).counters, first)
    mixed = Sketch(NAMED).add([*rows[:-1], [X[-1], Y[-1]]])  # the last has no names, and is read by its places
    assert np.array_equal(mixed.counters, EXPECTED)


def test_rows_with_other_names_are_refused_or_mapped(row: Callable[[Point], Any]) -> None:
    plan = small_plan(record={"names": ["east", "north"]})
    rows = [row(point) for point in POINTS]
    with pytest.raises(RecordError, match="the first has y, x, expected east, north in each"):
        Sketch(plan).add(rows)
    mapped = Sketch(plan).add(rows, columns={"east": "x", "north": "y"})
    assert np.array_equal(mapped.counters, EXPECTED)
    chosen = Sketch(small_plan()).add(rows, columns=["x", "y"])
    assert np.array_equal(chosen.counters, EXPECTED)


def test_rows_with_ordered_names_are_read_by_position_only_if_asked_to() -> None:
    for kind in ("namedtuple", "dataclass", "series", "sqlite"):
        rows = [ROWS[kind](Point(x, y)) for x, y in zip(X, Y, strict=True)]  # called y, x
        for plan in (NAMED, small_plan()):
            assert np.array_equal(Sketch(plan).add(rows, by_position=True).counters, EXPECTED)
            one = Sketch(plan).add(rows[0], by_position=True)
            assert np.array_equal(one.counters, Sketch(plan).add([[X[0], Y[0]]]).counters)
    with pytest.raises(RecordError, match="dicts have no column order"):
        Sketch(NAMED).add([point._asdict() for point in POINTS], by_position=True)


def test_rows_without_names_stay_what_they_are() -> None:
    rows = np.column_stack([X, Y])
    for records in ([pd.Series(row) for row in rows], pd.Series([*rows], index=[f"id {n}" for n in range(50)])):
        assert np.array_equal(Sketch(NAMED).add(records).counters, EXPECTED)
    assert np.array_equal(Sketch(small_plan()).add([Point(x, y) for x, y in rows]).counters, EXPECTED)


def test_labels_may_be_fields_of_rows() -> None:
    plan = classed_plan("a", "b", record={"names": ["x", "y"]})
    rows = [Labelled("ab"[n % 2], y, x) for n, (x, y) in enumerate(zip(X, Y, strict=True))]
    expected = Sketch(plan).add(np.column_stack([X, Y]), labels=list("ab" * 25))
    assert np.array_equal(Sketch(plan).add(rows, labels="kind").counters, expected.counters)


@pytest.mark.parametrize("kind", ["namedtuple", "dataclass", "series"])
@pytest.mark.parametrize("odd", ["n/a", None, [1, 2], {}])
def test_no_row_decides_about_other_rows(kind: str, odd: Any) -> None:
    rows = [ROWS[kind](Point(1.0, x)) for x in (0.1, odd, 0.3)]
    expected = Sketch(NAMED).add([[0.1, 1.0], [0.3, 1.0]])
    with pytest.warns(DroppedRecordsWarning, match="1 of 3 records"):
        assert np.array_equal(Sketch(NAMED).add(rows).counters, expected.counters)
    plan = small_plan(record={"names": ["x", "y"]}, privacy={"mode": "local"})
    for records in (rows, rows[1]):
        assert len(reports(plan, read_table(plan, records).records, None, OsEntropy())[0]) == (
            3 if records is rows else 1
        )


def test_integers_that_float64_does_not_hold_stay_exact_as_labels_and_ids(form: Callable[..., Any]) -> None:
    first, other = 2**53, 2**53 + 1
    names: dict[str, Any] = {"record": {"names": ["x", "y"]}, "privacy": {"unit": "client", "records_per_client": 1}}
    columns = {
        "x": [1.0, 2.0, 3.0],
        "y": [1.0, 2.0, 3.0],
        "kind": [first, other, other],
        "who": [first, other, other + 1],
    }
    for plan, counts in (
        (classed_plan(str(first), str(other), **names), [1, 2]),
        (classed_plan(str(other), "z", **names), [2, 0]),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DroppedRecordsWarning)
            sketch = Sketch(plan).add(form(columns), labels="kind", clients="who")
        assert (sketch.counts // plan.privacy.mechanism.count_scale).tolist() == counts


def test_a_column_of_sets_is_read_from_any_table() -> None:
    sets = [[3, 1], [2], [1, 3, 1]]
    expected = Sketch(set_plan()).add([{1, 3}, {2}, {1, 3}]).counters
    for column in (
        pd.DataFrame({"ids": sets})["ids"],
        pl.DataFrame({"ids": sets})["ids"],
        pa.table({"ids": sets})["ids"],
    ):
        assert np.array_equal(Sketch(set_plan()).add(column).counters, expected)


def test_two_columns_of_one_name_are_refused() -> None:
    frame = pd.DataFrame(np.ones((2, 3)), columns=["x", "y", "x"])
    with pytest.raises(RecordError, match="two columns are named 'x'"):
        Sketch(NAMED).add(frame)


def test_a_table_holds_no_sets() -> None:
    with pytest.raises(RecordError, match="pass the column with the sets"):
        Sketch(set_plan()).add(pd.DataFrame({"ids": [[1], [2]]}))


def test_what_has_no_columns_has_no_names() -> None:
    for asked in ({"columns": ["x", "y"]}, {"by_position": True}):
        with pytest.raises(RecordError, match="not a table"):
            Sketch(NAMED).add(np.ones((2, 2)), **asked)


def test_files_without_names_are_read_by_position(tmp_path: Path) -> None:
    np.save(tmp_path / "records.npy", np.column_stack([X, Y]))
    assert np.array_equal(Sketch(NAMED).add(tmp_path / "records.npy").counters, EXPECTED)
    np.savetxt(tmp_path / "records.csv", np.column_stack([X, Y]), fmt="%.17g", delimiter=",")
    assert np.array_equal(Sketch(NAMED).add(tmp_path / "records.csv", by_position=True).counters, EXPECTED)
    for plan in (NAMED, small_plan()):
        with pytest.raises(RecordError, match="x0, x1"):
            Sketch(plan).add(tmp_path / "records.csv")


@pytest.mark.parametrize(
    ("first", "names"), [("0.1,", ()), ('"0.1","0.2"', ()), ("1,2", ()), ("2020,2019", ("2019", "2020"))]
)
def test_a_first_line_of_numbers_is_a_record_unless_it_has_the_plans_names(
    tmp_path: Path, first: str, names: tuple[str, ...]
) -> None:
    (tmp_path / "records.csv").write_text(f"{first}\n0.3,0.4\n", encoding="utf-8-sig")
    table = read_file(tmp_path / "records.csv", names=names)
    if names:
        assert table.numbers(names).tolist() == [[0.4, 0.3]]
    else:
        assert table.names == ("x0", "x1")
        assert len(table.numbers(table.names)) == 2


def test_labels_of_a_csv_stay_text(tmp_path: Path) -> None:
    plan = classed_plan("01", "02", record={"names": ["x", "y"]})
    (tmp_path / "records.csv").write_text("x,y,kind\n1,2,01\n3,4,02\n5,6,01\n")
    assert Sketch(plan).add(tmp_path / "records.csv", labels="kind").records == 3


class Hostile:
    """A value that raises when anybody looks at it."""

    @property  # type: ignore[misc]  # wrong on purpose
    def __class__(self) -> type:
        raise RuntimeError("not today")

    def __array__(self, *_: object) -> Any:
        raise RuntimeError("nor so")

    def __float__(self) -> float:
        raise RuntimeError("nor like this")


@pytest.mark.parametrize(
    "odd",
    ("n/a", [1, 2], None, "hostile", {}, 10**400, 1j, float("nan"), pd.NaT, pd.NA),
    ids=lambda odd: type(odd).__name__,
)
def test_no_value_of_a_table_decides_about_other_records(odd: Any) -> None:
    hostile = odd is not pd.NA and odd == "hostile"
    values = [0.1, Hostile() if hostile else odd, 0.3]
    objects = np.empty(3, object)
    for place, value in enumerate(values):
        objects[place] = value
    rows = [{"x": value, "y": 1.0} for value in values]
    tables: list[Any] = [{"x": values, "y": [1.0] * 3}, {"x": objects, "y": np.ones(3)}, rows]
    if not hostile:  # pandas itself looks at it
        tables.append(pd.DataFrame({"x": objects, "y": np.ones(3)}))
    expected = Sketch(NAMED).add([[0.1, 1.0], [0.3, 1.0]])
    for table in tables:
        with pytest.warns(DroppedRecordsWarning, match="1 of 3 records"):
            assert np.array_equal(Sketch(NAMED).add(table).counters, expected.counters)


@pytest.mark.parametrize("odd", ({}, {"x": 1.0}, {"x": 0.1, "y": 0.2}))
def test_a_dict_among_rows_decides_about_itself_alone(odd: dict[str, float]) -> None:
    rows: list[Any] = [[0.1, 0.2], [0.3, 0.4], odd]
    expected = Sketch(small_plan()).add(rows[:2])
    fits = len(odd) == 2
    for plan in (NAMED, small_plan()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DroppedRecordsWarning)
            added = Sketch(plan).add(rows)
        assert added.records == 2 + (fits and plan is NAMED)
        if added.records == 2:
            assert np.array_equal(added.counters, expected.counters)
    with pytest.warns(DroppedRecordsWarning, match="1 of 3"):
        Sketch(set_plan()).add([[1, 2], [3], odd])


@pytest.mark.parametrize(
    "odd",
    (
        {}, {"x": [1.0], "y": 0.2}, {"x": [1, 2], "y": [1]}, {"x": Hostile(), "y": 0.1}, {"x": 0.1, "z": 1.0},
        {"x": "n/a", "y": 0.1}, [{"x": 1.0}], [{"x": 1.0}, [0.1]], pd.DataFrame({"x": ["n/a"], "y": [0.2]}),
        pd.DataFrame({"x": [pd.NaT], "y": [0.2]}), {"x": np.array(["a"]), "y": np.array([0.2])},
    ),
    ids=range(11),
)  # fmt: skip
def test_under_a_plan_of_reports_what_cannot_be_used_sends_a_report(odd: Any) -> None:
    plan = small_plan(record={"names": ["x", "y"]}, privacy={"mode": "local"})
    records = read_table(plan, odd).records
    found, problems = reports(plan, records, None, OsEntropy())
    assert len(found) == problems.records == len(odd) if isinstance(odd, list) else len(found) == 1
    assert problems.dropped == problems.records


def test_a_column_is_taken_once_and_by_a_list_of_names() -> None:
    columns: dict[str, Any] = {"x": X, "y": Y}
    for chosen in ({"x": "y"}, {"x": "y", "y": "y"}, ["x", "y", "x"]):
        with pytest.raises(RecordError, match="is used twice"):
            Sketch(NAMED).add(columns, columns=chosen)
    with pytest.raises(RecordError, match="got the single name 'xy'"):
        Sketch(NAMED).add(columns, columns="xy")
    frame = pd.DataFrame(np.column_stack([Y, X]))  # whose columns are called 0 and 1
    assert np.array_equal(Sketch(small_plan()).add(frame, columns=[1, 0]).counters, EXPECTED)  # type: ignore[list-item]  # as pandas has them


def test_columns_that_are_none_are_refused() -> None:
    for columns, text in (
        ({"x": [1.0, 2.0], "y": [1.0]}, "columns have different lengths: x 2, y 1"),
        ({"x": np.ma.masked_array([1.0, 2.0], [True, False]), "y": [1.0, 2.0]}, "column 'x' is masked"),
        ({"x": np.ones((2, 2)), "y": [1.0, 2.0]}, "column 'x' contains arrays of shape"),
    ):
        with pytest.raises(RecordError, match=text):
            Sketch(NAMED).add(columns)


def test_an_arrow_label_that_is_no_text_drops_its_record_alone() -> None:
    plan = classed_plan("a", "b", record={"names": ["x", "y"]})
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff")]
    )
    with pytest.warns(DroppedRecordsWarning, match="1 of 2"):
        assert Sketch(plan).add(pa.table({"x": [1.0, 2.0], "y": [1.0, 2.0], "k": broken}), labels="k").records == 1


def test_labels_may_be_read_once() -> None:
    with pytest.warns(DroppedRecordsWarning, match="such as 'z'"):
        Sketch(classed_plan("a", "b")).add([[1.0, 2.0], [3.0, 4.0]], labels=(label for label in "az"))


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.txt", b"", "expected a file with extension .parquet, .csv, .npy, got '.txt'"),
        ("a.npy", b"no array", "not a NumPy .npy file"),
        ("a.parquet", b"no table", "not a Parquet file"),
        ("a.csv", b"x,y\n1,2,3\n", "none of 1 can be used: .* line 2 of a.csv: 3 cells, expected 2"),
        ("a.csv", b"\xff\xfe\x00", "not a CSV file in UTF-8"),
        ("none.csv", None, "no such file"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, name: str, content: bytes | None, text: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RecordError, match=text):
        Sketch(NAMED).add(tmp_path / name)


RAGGED = 'x,y,kind\n1,2,a\n\n3,4,"a\nb"\n5,6\n3,4,b\n7,8,a,9\n'


def test_a_line_of_a_csv_with_another_number_of_cells_is_one_record_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(RAGGED)
    table = read_file(tmp_path / "a.csv", texts=["kind"])
    expected = np.array([[1, 2], [3, 4], [np.nan, np.nan], [3, 4], [np.nan, np.nan]])
    assert np.array_equal(table.numbers(["x", "y"]), expected, equal_nan=True)
    assert list(table.values("kind")) == ["a", "a\nb", None, "b", None]
    plan = classed_plan("a", "b", record={"names": ["x", "y"]})
    said = (
        r"3 of 5 records were left out: 2 cannot be read \(NaN, infinity, an empty set, or another number of columns"
        r"\), such as line 6 of a.csv: 2 cells, expected 3, line 8 of a.csv: 4 cells, expected 3; 1 without a label"
    )
    with pytest.warns(DroppedRecordsWarning, match=said):
        assert Sketch(plan).add(tmp_path / "a.csv", labels="kind").records == 2
    with pytest.warns(DroppedRecordsWarning, match="2 of 5"):
        assert (
            Sketch(plan).add(tmp_path / "a.csv", columns=["x", "y"], labels=list("abbab")).counts.tolist()
            == (np.array([2, 1]) * plan.privacy.mechanism.count_scale).tolist()
        )
    local = small_plan(record={"names": ["x", "y"]}, privacy={"mode": "local"})
    records = read_table(local, tmp_path / "a.csv", columns=["x", "y"]).records
    assert len(reports(local, records, None, OsEntropy())[0]) == 5


@pytest.mark.parametrize(
    "cell", [b"abc", b"-", b"2020-01-01", b"\xff", b" ", b"1\x00", b'"1,5"', b"1e", b"0x", b"12:30"], ids=repr
)
@pytest.mark.parametrize("others", [b"1,2\n3,4\n", b"0x10,2\ntrue,4\n", b"1.5,2\nNA,4\n", b"1,2\n3\n"], ids=repr)
def test_a_cell_of_a_csv_that_is_no_number_is_one_record_that_cannot_be_used(
    tmp_path: Path, others: bytes, cell: bytes
) -> None:
    path, local = tmp_path / "a.csv", small_plan(record={"names": ["x", "y"]}, privacy={"mode": "local"})
    path.write_bytes(b"x,y\n" + cell + b",6\n" + others)
    for plan in (NAMED, local):
        found = read_table(plan, path)
        assert found.lines[0] == "line 2 of a.csv: not a number: x"
        assert np.isnan(found.records[0, 0])
        alone = read_csv_floats(others)
        assert np.array_equal(found.records[1:, 0], alone, equal_nan=True)
    assert len(reports(local, read_table(local, path).records, None, OsEntropy())[0]) == 3
    path.write_bytes(b"x,y\n" + (cell + b",6\n") * 2)
    if cell not in {b"2020-01-01", b"12:30"}:  # types of their own
        with pytest.raises(RecordError, match="column 'x' contains str, expected numbers"):
            read_table(NAMED, path)
    assert np.isnan(read_table(local, path).records[:, 0]).all()


def read_csv_floats(lines: bytes) -> Any:
    """The first column, as Python reads it."""
    values = {b"NA": math.nan, b"0x10": 16.0, b"true": 1.0}
    cells = [(line.split(b",")[0], b"," in line) for line in lines.splitlines()]
    return np.array([(values[cell] if cell in values else float(cell)) if whole else math.nan for cell, whole in cells])


def test_text_in_a_csv_changes_no_bit_of_its_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    floats = rng.integers(0, 2**64, 20_000, np.uint64).view(np.float64)
    integers = rng.integers(-(2**63), 2**63, 20_000, np.int64)
    odd = [" 5 ", "\t-.5", "+1.e+05", "-0", "1e400", "-1e400", "1e-400", "5e-324", "inf", "+Infinity", "NAN", ""]
    columns: dict[str, list[str]] = {
        "floats": [repr(value) for value in floats.tolist()],
        "short": [f"{value:.6g}" for value in rng.normal(size=20_000).tolist()],
        "integers": [str(value) for value in integers.tolist()],
        "hexadecimal": [hex(value) for value in integers.tolist() if value >= 0] + ["0X8000000000000001"],
        "odd": [*odd, "nan(1)", "9" * 400, "0." + "1" * 400],
        "booleans": ["true", "false", "TRUE", "False", "1", "0"],
    }
    for name, cells in columns.items():
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(["x,y", *(f"{cell},1" for cell in cells)]))
        good = read_table(NAMED, path).records
        path.write_text("\n".join(["x,y", *(f"{cell},1" for cell in cells), "text,1"]))
        found = read_table(NAMED, path).records
        assert np.isnan(found[-1, 0])
        assert np.array_equal(np.isnan(found[:-1]), np.isnan(good))
        assert np.array_equal(np.nan_to_num(found[:-1]).tobytes(), np.nan_to_num(good).tobytes()), name


def test_a_byte_of_a_label_that_is_not_utf8_is_one_record_without_a_label(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"x,y,kind\n1,2,a\n3,4,\xff\n5,6,b\n7,8,\xff,9\n")
    plan = classed_plan("a", "b", record={"names": ["x", "y"]})
    with pytest.warns(DroppedRecordsWarning, match="1 cannot be read .* 1 without a label"):
        assert Sketch(plan).add(tmp_path / "a.csv", labels="kind").records == 2


class Pair(NamedTuple):
    """A row whose names have an order."""

    a: float
    b: float


@pytest.mark.parametrize("plan", (NAMED, small_plan()), ids=("names", "no names"))
def test_a_dict_among_rows_by_position_decides_about_itself_alone(plan: Plan) -> None:
    rows: list[Any] = [Pair(0.1, 0.2), Pair(0.3, 0.4)]
    expected = Sketch(plan).add(np.array(rows)).counters
    for odd in ({"x": 1.0, "y": 2.0}, {}):
        for batch in ([*rows, odd], [odd, *rows], [odd, *map(list, rows)]):
            with pytest.warns(DroppedRecordsWarning, match="1 of 3"):
                assert np.array_equal(Sketch(plan).add(batch, by_position=True).counters, expected)


def test_a_type_that_cannot_be_compared_costs_its_own_record_alone() -> None:
    class Incomparable(type):
        def __hash__(cls) -> int:
            raise RuntimeError("no")

    class Odd(metaclass=Incomparable): ...

    found = read_table(NAMED, [{"x": 0.1, "y": 0.2}, Odd()])
    assert found.records == [[0.1, 0.2], []]


def test_a_ragged_line_of_a_long_file_without_names_is_found(tmp_path: Path) -> None:
    lines = ["1,2"] * 300_000
    lines[250_000] = "1"
    (tmp_path / "a.csv").write_text("\n".join(lines))
    table = read_file(tmp_path / "a.csv")
    assert np.flatnonzero(np.isnan(table.numbers(table.names)[:, 0])).tolist() == [250_000]
    assert table.read(table.names)[1] == ("line 250001 of a.csv: 1 cell, expected 2",)


def test_queries_of_a_table_are_read_by_name(form: Callable[..., Any]) -> None:
    release = draw(
        Sketch(NAMED).add({"x": X, "y": Y}), kind="tumbling", window=3, entropy=ReplayableEntropy(b"a"), accounted=True
    )
    asked = form({"y": Y[:5], "x": X[:5]})
    if isinstance(asked, str | Path):
        return  # a file is no query
    expected = np.column_stack([X, Y])[:5]
    assert np.array_equal(release.kernel_sum(asked).value, release.kernel_sum(expected).value)
    assert np.array_equal(release.density(asked).value, release.density(expected).value)
    with pytest.raises(RecordError, match="y"):
        release.kernel_sum(form({"x": X[:5], "z": X[:5]}))


def test_ids_of_clients_in_a_table_are_of_one_type() -> None:
    sketch = Sketch(client_plan(3))
    with pytest.raises(RecordError, match="clients"):
        sketch.add({"a": [1.0, 2.0], "b": [1.0, 2.0], "who": [None, 7]}, clients="who", by_position=True)


def test_the_names_of_a_files_columns_are_read_without_a_value(tmp_path: Path) -> None:
    table = pa.table({"x": [1.0], "größe": [2.0]})
    parquet.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("\ufeffx,größe\nnot,numbers,and a third", encoding="utf-8")
    assert column_names(tmp_path / "a.parquet") == column_names(tmp_path / "a.csv") == ("x", "größe")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1,2\n", "its first line contains a number"),
        ("name,7.5\n", "its first line contains a number"),
        ("", "no column has a name"),
        ("x,\n", "a column has no name"),
        ("x,x\n", "two columns have the same name"),
        ('"x,y\n1,2\n', "unmatched quotes"),
        ("x;y\n", "semicolon"),
    ],
)
def test_a_file_without_names_of_columns_is_refused(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(RecordError, match=error):
        column_names(path)
    for other in (tmp_path / "none.csv", tmp_path / "a.npy"):
        with pytest.raises(RecordError):
            column_names(other)


def test_names_of_a_parquet_file_that_look_like_values_are_refused_unless_given(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"34": [1.0], "Smith": [2.0]}), path)
    with pytest.raises(RecordError, match="its schema contains a number") as refused:
        column_names(path)
    assert "Smith" not in str(refused.value)
    assert column_names(path, given=["34"]) == ("34", "Smith")
