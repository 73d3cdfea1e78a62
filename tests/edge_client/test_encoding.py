"""What a caller may give: copied before another thread reads it, and cut into the deltas of the usable records."""

import warnings
from array import array
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from edge_client.encoding import ReportEncoder, copied, split
from hushsum import Plan, RecordError, Sketch
from hushsum.delta import Delta, DeltaId, apply
from hushsum.errors import DroppedRecordsWarning
from hushsum.tables import read_table
from tests.checks.examples import Raising, objects
from tests.plans import classed_plan, client_plan, small_plan

RECORDS = np.random.default_rng(0).uniform(0, 10, (20, 2))
SETS = [[1, 5], [2], [3, 4, 90]]


def set_plan() -> Plan:
    record = {"kind": "set", "universe": 100, "dim": ..., "lower": ..., "upper": ...}
    return small_plan(record=record, sketch={"kernel": "jaccard", "bandwidth": ...})


def counters_of(plan: Plan, records: Any, labels: object = None) -> tuple[np.ndarray, int]:
    """The counters that the deltas of a batch add up to, and the number of dropped records."""
    batch = split(plan, records, 0, labels)
    counters, counts = np.zeros(plan.counters_shape, np.int64), np.zeros(plan.count_counters, np.int64)
    for number, unbound in enumerate(batch.deltas):
        delta = Delta.unpack(unbound.pack(DeltaId(0, number)), plan)
        assert delta.records == unbound.records <= plan.delta_records_max
        apply(delta, counters, counts, plan.privacy.mechanism.count_scale)
    return counters, batch.dropped


def sketched(plan: Plan, records: Any, **more: Any) -> np.ndarray:
    sketch = Sketch(plan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DroppedRecordsWarning)
        sketch.add(records, **more)
    return sketch.counters


class Frame:
    """What NumPy reads through ``__array__``, and its owner goes on to write to, like a data frame or a series."""

    def __init__(self, values: Any) -> None:
        self.values = np.array(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.values, dtype) if copy else np.asarray(self.values, dtype)


def frame() -> Frame:
    return Frame(RECORDS)


def overwritten(given: Any) -> None:
    """What a caller may do with its own while the records are hashed."""
    if isinstance(given, Frame):
        given.values[:] = 0
    elif isinstance(given, np.ndarray):
        given[:] = 0
    elif isinstance(given, array):
        given[0] *= 0
    elif isinstance(given, memoryview):
        overwritten(given.obj)
    else:
        for item in given:
            if isinstance(item, float | int):
                given[0] = 0
            else:
                overwritten(item)


@pytest.mark.parametrize(
    "given",
    [
        RECORDS.copy(), RECORDS.tolist(), list(RECORDS.copy()), tuple(RECORDS.tolist()), frame(), RECORDS[0].tolist(),
        array("d", [1.0, 2.0]), memoryview(RECORDS.copy().data), [array("d", row) for row in RECORDS.tolist()],
        [Frame(row) for row in RECORDS.tolist()], deque(map(deque, RECORDS.tolist())),
    ],
    ids=["array", "lists", "arrays", "tuple", "frame", "one", "array.array", "buffer", "buffers", "series", "deques"],
)  # fmt: skip
def test_a_copy_keeps_what_the_caller_overwrites(given: Any) -> None:
    mine = copied(given)
    before = np.array(mine)
    assert before.any()
    assert np.array_equal(before, np.array(given))
    overwritten(given)
    assert not np.array_equal(before, np.array(given))
    assert np.array_equal(np.array(mine), before)


def test_a_copy_of_sets_keeps_what_the_caller_overwrites() -> None:
    given = [[1, 5], np.array([2]), array("q", [3, 4, 90])]
    mine = copied(given)
    overwritten(given)
    assert [list(item) for item in mine] == SETS


@pytest.mark.parametrize("given", [[[5.0, 5.0], [1.0, 9.0, 2.0], [1.0, None], "x", [2.0, 3.0]]], ids=["ragged"])
@pytest.mark.parametrize("plan", [small_plan(), client_plan(1), client_plan(2)], ids=["record", "one", "two"])
def test_a_row_of_another_length_is_left_out_alone_however_a_batch_is_cut(plan: Plan, given: Any) -> None:
    counters, dropped = counters_of(plan, copied(given))
    assert dropped == 3
    clients = None if plan.privacy.unit == "record" else ["a", "b"]
    assert np.array_equal(counters, sketched(plan, [given[0], given[4]], clients=clients))


@pytest.mark.parametrize(
    "given",
    [
        "text", None, {}, 1.0, np.ma.masked_array([1.0, 2.0], [True, False]),
        np.ma.masked_array(RECORDS, RECORDS > 5), Frame([["x", 1]]), np.zeros(3), np.ones((2, 2), complex),
        np.ones((2, 3), object),
    ],
    ids=lambda given: repr(given)[:30],
)  # fmt: skip
def test_what_is_no_batch_whatever_its_records_are_is_refused(given: Any) -> None:
    with pytest.raises(RecordError):
        split(small_plan(), copied(given), 0)


@pytest.mark.parametrize(
    "given, dropped",
    [
        ([], 0), ([[1.0], [1.0, 2.0, 3.0]], 2), (["ab", "cd"], 2), ([[]], 1), ([None, None], 2), ([1.0, None], 1),
        ([1.0, 2.0, 3.0], 1), ([[[1.0, 2.0]], [[1.0]]], 2), ([[10**400, 1], [2]], 2), ([["1", "2"]], 1),
        (np.array([[None, 1.0]]), 1), ([Raising()] * 2, 2),
    ],
    ids=lambda given: repr(given)[:30],
)  # fmt: skip
def test_a_list_without_a_usable_record_is_a_batch_of_none(given: Any, dropped: int) -> None:
    counters, count = counters_of(small_plan(), copied(given))
    assert count == dropped
    assert not counters.any()


@pytest.mark.parametrize("odd", [None, 1.0, "x", ["x", "y"], [1j, 2], [], [10**400, 1], {1}, Raising()], ids=repr)
def test_no_record_of_a_list_decides_whether_it_is_one_record_or_has_a_type(odd: Any) -> None:
    for batch in ([[1.0, 2.0], odd], [odd, [1.0, 2.0]], deque([odd, [1.0, 2.0]]), objects([odd, [1.0, 2.0]])):
        counters, dropped = counters_of(small_plan(), copied(batch))
        assert dropped == 1
        assert np.array_equal(counters, sketched(small_plan(), np.array([[1.0, 2.0]])))


def test_a_frame_is_its_rows() -> None:
    assert np.array_equal(counters_of(small_plan(), copied(frame()))[0], sketched(small_plan(), RECORDS))


def test_one_record_needs_no_list() -> None:
    for one in (RECORDS[0], RECORDS[0].tolist(), RECORDS[0].astype(np.float32), array("d", RECORDS[0])):
        counters, dropped = counters_of(small_plan(), copied(one))
        assert dropped == 0
        assert (counters.sum(axis=2) == 1).all()
    counters, _ = counters_of(set_plan(), np.array(SETS[0]))
    assert np.array_equal(counters, sketched(set_plan(), SETS[:1]))


@pytest.mark.parametrize(
    "given",
    [SETS, [set(SETS[0]), SETS[1][::-1], SETS[2] * 2], [*SETS, {7.5}, None, []], pa.array([*SETS, None, []])],
    ids=["lists", "any order", "odd", "arrow"],
)
def test_sets_of_every_form_arrive_and_odd_ones_are_left_out_alone(given: Any) -> None:
    counters, dropped = counters_of(set_plan(), copied(given))
    assert dropped == len(given) - 3
    assert np.array_equal(counters, sketched(set_plan(), SETS))


@pytest.mark.parametrize("bound", (None, 1, 3))
def test_labels_go_with_their_records_where_some_are_dropped(bound: int | None) -> None:
    privacy: dict[str, object] = {} if bound is None else {"unit": "client", "records_per_client": bound}
    plan = classed_plan(privacy=privacy)
    records = RECORDS.copy()
    records[3] = np.nan
    labels: list[object] = [*"abcabcabca", None, 5, *"zbcabcab"]
    counters, dropped = counters_of(plan, records, labels)
    assert dropped == 4
    clients = None if bound is None else list(range(20))
    assert np.array_equal(counters, sketched(plan, records, labels=labels, clients=clients))
    for wrong in (labels[:-1], [*labels, "a"], None, [5.5] * 20):
        with pytest.raises(RecordError, match="labels: "):
            split(plan, records, 0, wrong)


class Hostile(list[float]):
    """A row that raises when anybody looks at it."""

    def __iter__(self) -> Iterator[float]:
        raise RuntimeError("no")

    def __len__(self) -> int:
        raise RuntimeError("no")


@pytest.mark.parametrize("odd", (Hostile(), range(10**13), range(150_000_000)), ids=("raises", "endless", "long"))
def test_a_row_that_cannot_even_be_looked_at_drops_alone(odd: object) -> None:
    plan = small_plan()
    batch = split(plan, copied([[1.0, 2.0], odd, [3.0, 4.0]]), window=0)
    assert (batch.records, batch.dropped) == (2, 1)


@pytest.mark.parametrize("names", ({"names": ["x", "y"]}, {}), ids=("names", "no names"))
@pytest.mark.parametrize("by_position", (True, False))
@pytest.mark.parametrize("row", ({"x": 1.0, "y": 2.0}, {"x": 1.0, "z": 2.0}, {}), ids=repr)
def test_the_number_of_reports_is_that_of_rows_whatever_they_hold(
    names: dict[str, Any], by_position: bool, row: dict[str, float]
) -> None:
    plan = small_plan(record=names, privacy={"mode": "local"})
    for batch in ([row, row, 5], [5, row], [row, None]):
        records = copied(read_table(plan, batch, by_position=by_position).records)
        assert ReportEncoder(plan).encode(records, 0).contributed == len(batch)


def test_what_raises_when_it_is_copied_stays_a_row() -> None:
    plan = small_plan(privacy={"mode": "local"})
    assert ReportEncoder(plan).encode(copied([Hostile(), 5.0, 6.0]), 0).contributed == 3


def test_a_copy_of_arrow_sets_keeps_what_the_caller_overwrites() -> None:
    ids = np.array([1, 5, 2], np.int64)
    mine = copied(pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), pa.array(ids)))
    ids[:] = 0
    assert mine.to_pylist() == [[1, 5], [2]]
