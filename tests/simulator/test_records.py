"""The records of a run: the photograph's, and files of each format."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from simulator.errors import RecordsError
from simulator.records import Records, hold_out, load, photograph


def test_the_photograph_has_its_pixels() -> None:
    records = photograph()
    assert records.values.shape == (273_280, 3)
    assert records.values.min() >= 0
    assert records.values.max() <= 255
    assert records.names == ("red", "green", "blue")
    # The first pixel of the picture's upper left corner, as any viewer shows it.
    assert records.values[0].tolist() == [174.0, 201.0, 231.0]


def write(path: Path, values: np.ndarray) -> None:
    if path.suffix == ".npy":
        np.save(path, values)
    elif path.suffix == ".csv":
        np.savetxt(path, values, delimiter=",", header="a,b", comments="", fmt="%.17g")
    else:
        parquet.write_table(pa.table({"a": values[:, 0], "b": values[:, 1]}), path)


@pytest.mark.parametrize("name", ("r.npy", "r.csv", "r.parquet"))
def test_each_format_gives_the_same_numbers(tmp_path: Path, rng: np.random.Generator, name: str) -> None:
    values = rng.normal(size=(20, 2))
    write(tmp_path / name, values)
    records = load(tmp_path / name)
    assert np.array_equal(records.values, values)
    assert records.names == (("column 0", "column 1") if name.endswith("npy") else ("a", "b"))
    assert records.source == name


def test_a_csv_without_names_loses_no_record(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("1,2\n3,4\n")
    assert load(tmp_path / "r.csv").values.tolist() == [[1, 2], [3, 4]]


def test_a_missing_value_is_nan(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": [1, None, 3], "b": [True, False, True]}), tmp_path / "r.parquet")
    (tmp_path / "r.csv").write_text("a,b\n1,1\n,0\n3,1\n")
    for name in ("r.parquet", "r.csv"):
        np.testing.assert_array_equal(load(tmp_path / name).values, [[1, 1], [np.nan, 0], [3, 1]])


def test_columns_are_taken_by_name_in_the_given_order(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("a,city,b\n1,Basel,2\n")
    assert load(tmp_path / "r.csv", ("b", "a")).values.tolist() == [[2, 1]]
    with pytest.raises(RecordsError, match=r"column 'city' holds string, expected numbers; .* --columns"):
        load(tmp_path / "r.csv")
    with pytest.raises(RecordsError, match="no column 'c'; it has a, city, b"):
        load(tmp_path / "r.csv", ("c",))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    (
        ("r.txt", b"1", "expected a file that ends in .parquet, .csv, .npy, got '.txt'"),
        ("r.csv", b"a,b\n", "expected at least one record, got 0 rows of 2"),
        ("r.csv", b"a,b\n1\n1,2,3\n", "not a CSV file"),
        ("r.csv", b"\xff\xfe\xfd", "not a CSV file in UTF-8"),
        ("r.parquet", b"PAR0 not one", "not a Parquet file"),
        ("r.npy", b"not one", "not a NumPy array file"),
    ),
)
def test_a_file_that_cannot_be_used_is_told_in_one_line(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(RecordsError) as caught:
        load(tmp_path / name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("array", (np.array(["a"]), np.zeros((2, 2, 2)), np.array([1j])))
def test_an_array_of_something_else_is_refused(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "r.npy", array)
    with pytest.raises(RecordsError, match="expected an array"):
        load(tmp_path / "r.npy")


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(RecordsError, match="no such file"):
        load(Path("nowhere.csv"))


def test_queries_are_other_records_than_the_rest_and_never_a_missing_value(seed: int) -> None:
    values = np.arange(200.0).reshape(100, 2)
    values[::3, 0] = np.nan
    records = Records(values, ("a", "b"), "here", tuple(str(row) for row in values[:, 1]))
    held, queries = hold_out(records, 2000, seed)
    rest = held.values
    assert held.labels == tuple(str(row) for row in rest[:, 1])
    assert len(queries) == 6  # a tenth of the usable ones
    assert np.isfinite(queries).all()
    assert not set(queries[:, 1]) & set(rest[:, 1])
    assert sorted([*queries[:, 1], *rest[:, 1]]) == values[:, 1].tolist()
    assert rest[:, 1].tolist() == sorted(rest[:, 1])
    assert np.array_equal(hold_out(records, 2000, seed)[1], queries)


def test_too_few_records_to_hold_any_out_are_refused() -> None:
    with pytest.raises(RecordsError, match="at least two records"):
        hold_out(Records(np.array([[1.0], [np.nan]]), ("a",), "here"), 10, 0)


def test_labels_are_strings_and_integers_become_their_decimal_text(tmp_path: Path) -> None:
    columns = {
        "text": pa.array(["sky", None, "", "grünes Gras"]),
        "number": pa.array([-7, 2**40, None, 0]),
        "category": pa.array(["b", "a", "b", None]).dictionary_encode(),
        "large": pa.array(["b", "a", "b", None], pa.large_string()),
        "x": pa.array([1.0, 2.0, 3.0, 4.0]),
    }
    path = tmp_path / "records.parquet"
    parquet.write_table(pa.table(columns), path)
    assert load(path, ("x",), "text").labels == ("sky", None, "", "grünes Gras")
    assert load(path, ("x",), "number").labels == ("-7", "1099511627776", None, "0")
    assert load(path, ("x",), "category").labels == load(path, ("x",), "large").labels == ("b", "a", "b", None)
    assert load(path, ("x",)).labels is None


def test_the_column_of_labels_is_none_of_the_records_unless_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    path.write_text("x,kind,y\n1,10,2\n3,20,4\n")
    records = load(path, (), "kind")
    assert (records.names, records.values.tolist()) == (("x", "y"), [[1, 2], [3, 4]])
    assert records.labels == ("10", "20")
    assert load(path, ("kind", "y"), "kind").names == ("kind", "y")


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("a.csv", "z", "no column 'z'; it has x, t"),
        ("a.csv", "t", "column 't' holds double, expected labels: strings or integers"),
        ("a.npy", "x", "the columns of a .npy file have no names; got x"),
    ],
)
def test_a_column_that_holds_no_labels_is_told(tmp_path: Path, name: str, column: str, message: str) -> None:
    (tmp_path / "a.csv").write_text("x,t\n1,0.5\n")
    np.save(tmp_path / "a.npy", np.ones((2, 2)))
    with pytest.raises(RecordsError, match=message):
        load(tmp_path / name, (), column)
