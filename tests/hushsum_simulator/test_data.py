"""The records of a run: the photograph's, and files of each format.

Who holds which records.

Exact kernel sums, by table and by formula.
"""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from hushsum import Plan, kernels
from hushsum.errors import RecordError
from hushsum_simulator.data import ExactSums, Records, clip, deal, hold_out, load, photograph
from hushsum_simulator.errors import RecordsError
from hushsum_simulator.plans import of_photograph, privacy_table
from tests.plans import small_plan


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
    assert records.names == (("x0", "x1") if name.endswith("npy") else ("a", "b"))
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
    with pytest.raises((RecordError, RecordsError), match=r"column 'city' contains str, expected numbers"):
        load(tmp_path / "r.csv")
    with pytest.raises((RecordError, RecordsError), match="no column 'c'; it has a, city, b"):
        load(tmp_path / "r.csv", ("c",))


def test_columns_of_a_plan_with_names_are_taken_in_its_order(tmp_path: Path) -> None:
    plan = small_plan(record={"names": ["x", "y"]})
    (tmp_path / "r.csv").write_text("y,x\n1,2\n")
    assert load(tmp_path / "r.csv", plan=plan).values.tolist() == [[2, 1]]
    (tmp_path / "r.csv").write_text("north,kind,east\n1,a,2\n1\n")
    records = load(tmp_path / "r.csv", {"x": "east", "y": "north"}, "kind", plan)
    np.testing.assert_array_equal(records.values, [[2, 1], [np.nan, np.nan]])
    assert (records.names, records.labels) == (("x", "y"), ("a", None))
    with pytest.raises(RecordError, match="missing: x, y; not in the plan: north, east"):
        load(tmp_path / "r.csv", label_column="kind", plan=plan)
    with pytest.raises(RecordsError, match="a mapping of columns requires a --plan"):
        load(tmp_path / "r.csv", {"x": "east"})


@pytest.mark.parametrize(
    ("name", "data", "message"),
    (
        ("r.txt", b"1", "expected a file with extension .parquet, .csv, .npy, got '.txt'"),
        ("r.csv", b"a,b\n", "expected at least one record, got 0 rows of 2"),
        ("r.csv", b"\xff\xfe\xfd", "not a CSV file in UTF-8"),
        ("r.parquet", b"PAR0 not one", "not a Parquet file"),
        ("r.npy", b"not one", "not a NumPy .npy file"),
    ),
)
def test_a_file_that_cannot_be_used_is_told_in_one_line(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises((RecordError, RecordsError)) as caught:
        load(tmp_path / name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("array", (np.array(["a"]), np.zeros((2, 2, 2)), np.array([1j])))
def test_an_array_of_something_else_is_refused(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "r.npy", array)
    with pytest.raises((RecordError, RecordsError), match="expected an array"):
        load(tmp_path / "r.npy")


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises((RecordError, RecordsError), match="no such file"):
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
    with pytest.raises((RecordError, RecordsError), match="at least two records"):
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
        ("a.npy", "x", "its columns have no names; got x"),
    ],
)
def test_a_column_that_holds_no_labels_is_told(tmp_path: Path, name: str, column: str, message: str) -> None:
    (tmp_path / "a.csv").write_text("x,t\n1,0.5\n")
    np.save(tmp_path / "a.npy", np.ones((2, 2)))
    with pytest.raises((RecordError, RecordsError), match=message):
        load(tmp_path / name, (), column)


VALUES = np.arange(60_000.0).reshape(30_000, 2)


def test_every_record_is_dealt_once_and_in_its_order() -> None:
    shares = deal(VALUES, clients=200, deltas=5000, seed=3, records_per_client=None)
    assert np.array_equal(np.concatenate([batch for share in shares for batch in share.batches]), VALUES)
    assert len({share.client_id for share in shares}) == len(shares) == 200


def test_there_are_as_many_deltas_as_were_asked_for() -> None:
    shares = deal(VALUES, clients=200, deltas=5000, seed=3, records_per_client=None)
    assert sum(len(share.batches) for share in shares) >= 5000


def test_shares_are_uneven() -> None:
    sizes = sorted(share.records for share in deal(VALUES, clients=200, deltas=5000, seed=3, records_per_client=None))
    assert sizes[-1] > 20 * sizes[0]
    assert sizes[0] >= 1


def test_no_client_has_more_than_the_bound() -> None:
    shares = deal(VALUES, clients=200, deltas=5000, seed=3, records_per_client=5)
    assert max(share.records for share in shares) == 5
    assert sum(len(share.batches) for share in shares) == sum(share.records for share in shares)


@pytest.mark.parametrize("clients", (1, 3, 30))
def test_nobody_is_without_a_record(clients: int) -> None:
    shares = deal(VALUES[:3], clients=clients, deltas=5000, seed=3, records_per_client=None)
    assert [share.records for share in shares] == ([3] if clients == 1 else [1, 1, 1])


def test_the_seed_decides_who_has_much() -> None:
    first, again, other = (
        [share.records for share in deal(VALUES, clients=20, deltas=100, seed=seed, records_per_client=None)]
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("bound", (None, 5))
def test_labels_go_with_their_records(bound: int | None) -> None:
    labels = tuple(None if row % 7 == 0 else str(row) for row in VALUES[:, 0])
    shares = deal(VALUES, clients=20, deltas=100, seed=1, records_per_client=bound, labels=labels)
    assert all(share.labels is not None for share in shares)
    dealt = [label for share in shares for batch in share.labels or () for label in batch]
    records = np.concatenate([batch for share in shares for batch in share.batches])
    assert dealt == [None if row % 7 == 0 else str(row) for row in records[:, 0]]
    assert [tuple(map(len, share.labels or ())) for share in shares] == [
        tuple(map(len, share.batches)) for share in shares
    ]
    without = deal(VALUES, clients=20, deltas=100, seed=1, records_per_client=bound)
    assert all(share.labels is None for share in without)


PLAN = of_photograph(privacy_table(Fraction(1), "record", None), seed=1)


def told(_: int) -> None:
    """A bar that nobody looks at."""


@pytest.mark.parametrize("whole", (True, False), ids=("integers", "reals"))
@pytest.mark.parametrize("on_grid", (True, False), ids=("on the grid", "between"))
def test_sums_are_those_of_the_closed_form(rng: np.random.Generator, *, whole: bool, on_grid: bool) -> None:
    records = rng.uniform(0, 255, (700, 3))
    records = np.rint(records) if whole else records
    records[350:] = records[:350]  # equal records count each
    queries = rng.uniform(0, 255, (30, 3))
    queries = np.rint(queries) if on_grid else queries
    queries[0] = records[0]
    expected = kernels.kernel_sums(PLAN.family.kernel, records, queries)
    np.testing.assert_allclose(ExactSums(PLAN, records).at(queries, told), expected, rtol=1e-12)


def test_a_query_beyond_the_records_is_right_too() -> None:
    records, queries = np.array([[10.0, 10, 10], [12, 10, 10]]), np.array([[250.0, 0, 3], [-40, 0, 0]])
    expected = kernels.kernel_sums(PLAN.family.kernel, records, queries)
    np.testing.assert_allclose(ExactSums(PLAN, records).at(queries, told), expected, rtol=1e-12)


def test_records_are_clipped_to_the_bounds_and_those_without_a_value_are_left_out() -> None:
    sums = ExactSums(PLAN, np.array([[300.0, -5, 10], [np.nan, 0, 0]]))
    assert sums.records == 1
    assert sums.at(np.array([[255.0, 0, 10]]), told).tolist() == [1.0]
    assert clip(PLAN, np.array([[300.0, -5, 10]])).tolist() == [[255, 0, 10]]


def test_the_bar_is_told_of_every_query(rng: np.random.Generator) -> None:
    seen: list[int] = []
    ExactSums(PLAN, rng.uniform(0, 255, (10, 3))).at(rng.uniform(0, 255, (120, 3)), seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 120


def test_many_real_records_are_compared_at_fewer_queries(rng: np.random.Generator) -> None:
    reals = ExactSums(PLAN, rng.uniform(0, 255, (600_000, 3)))
    whole = ExactSums(PLAN, rng.integers(0, 256, (1000, 3)).astype(float))
    assert 100 <= reals.affordable(2000) < 2000
    assert whole.affordable(2000) == 2000


def test_transforms_are_part_of_the_exact_kernel(rng: np.random.Generator) -> None:
    steps = [{"kind": "scale", "factor": [2, 1, 1]}, {"kind": "clip", "lower": [0, 0, 0], "upper": [300, 200, 200]}]
    fields = PLAN.to_fields()
    del fields["format"]
    plan = Plan.from_fields(
        {**fields, "sketch": {"family": PLAN.family.name, **PLAN.family.to_fields(), "transforms": steps}}
    )
    records, queries = np.rint(rng.uniform(0, 255, (200, 3))), np.rint(rng.uniform(0, 255, (20, 3)))
    mapped = [np.clip(points * [2, 1, 1], 0, [300, 200, 200]) for points in (records, queries)]
    wide = Plan.from_fields({**fields, "record": {"dim": 3, "lower": [0, 0, 0], "upper": [300, 300, 300]}})
    expected = kernels.kernel_sums(wide.family.kernel, *mapped)
    np.testing.assert_allclose(ExactSums(plan, records).at(queries, told), expected, rtol=1e-6)
