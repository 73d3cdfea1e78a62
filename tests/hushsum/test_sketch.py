"""Sketches count exactly, merge only what may be merged, and enforce the contribution bound."""

import copy
import pickle
import re
import tracemalloc
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import pytest

from hushsum import (
    ClippedRecordsWarning,
    ContributionError,
    DroppedRecordsWarning,
    GuaranteeError,
    HushsumWarning,
    MergeError,
    PlanMismatchError,
    RecordError,
    Sketch,
)
from hushsum.families import Hashed
from tests.plans import classed_plan, client_plan, small_plan

RECORDS = np.random.default_rng(0).uniform(0, 10, (200, 2))


def test_a_merge_is_the_sketch_of_all_records() -> None:
    plan = small_plan()
    whole, left, right = Sketch(plan), Sketch(plan), Sketch(plan)
    whole.add(RECORDS)
    left.add(RECORDS[:50])
    right.add(RECORDS[50:])
    merged = left + right
    assert np.array_equal(merged.counters, whole.counters)
    assert merged.records == whole.records == 200


def test_a_part_that_was_merged_in_can_be_taken_out_again() -> None:
    plan = small_plan()
    left, right = Sketch(plan), Sketch(plan)
    left.add(RECORDS[:50])
    right.add(RECORDS[50:])
    rest = (left + right) - right
    assert np.array_equal(rest.counters, left.counters)
    right.add(RECORDS[:1])
    with pytest.raises(MergeError, match="changed since"):
        _ = (left + Sketch(plan)) - right


def test_a_part_in_common_is_refused() -> None:
    plan = small_plan()
    left, right = Sketch(plan), Sketch(plan)
    left.add(RECORDS[:50])
    right.add(RECORDS[50:])
    for first, second in [(left, left), (left + right, left), (left + right, right + Sketch(plan))]:
        with pytest.raises(MergeError, match="share records"):
            _ = first + second


def test_sketches_of_other_plans_are_refused() -> None:
    with pytest.raises(PlanMismatchError):
        _ = Sketch(small_plan()) + Sketch(small_plan(sketch={"seed": 4}))


def test_unusable_records_are_dropped_alone_and_counted() -> None:
    sketch = Sketch(small_plan())
    with pytest.warns(DroppedRecordsWarning, match="2 of 3 records were left out: 2 cannot be read"):
        assert sketch.add([[1.0, 1.0], [np.nan, 0.0], [np.inf, 0.0]]) is sketch
    assert sketch.records == 1
    assert (sketch.counters.sum(axis=2) == 1).all()


@pytest.mark.parametrize("records", [[["a", "b"]], [None], [1.0, 2.0], [[1.0, 2.0, 3.0]], [[[1.0, 2.0]]], ["ab"]])
def test_a_list_without_a_usable_record_is_refused(records: list[object]) -> None:
    for plan, clients in ((small_plan(), None), (client_plan(3), ["a"] * len(records))):
        sketch = Sketch(plan)
        with pytest.raises(RecordError, match=f"none of {len(records)} can be used: {len(records)} cannot be read"):
            sketch.add(records, clients=clients)
        assert sketch.records == 0
        assert not sketch.counters.any()


def test_no_records_are_no_error() -> None:
    assert Sketch(small_plan()).add([]).add(np.empty((0, 2))).records == 0


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("place", [0, 255, 256, 700])
@pytest.mark.parametrize(("column", "value"), [(0, -1.0), (1, 11.0)])
def test_one_clipped_record_among_many_is_found_wherever_it_is(
    order: Literal["C", "F"], place: int, column: int, value: float
) -> None:
    records = np.full((701, 2), 5.0, order=order)
    Sketch(small_plan()).add(records)
    records[place, column] = value
    with pytest.warns(ClippedRecordsWarning, match=rf"^1 \(0.14 %\) of 701 records .*: x{column} 1 \(0.14 %\)$"):
        Sketch(small_plan()).add(records)


def test_records_outside_the_bounds_are_clipped_with_a_warning() -> None:
    values = [[1.0, 11.0], [-1.0, 12.0], [10.0, 0.0], [np.nan, 50.0]]
    text = r"2 \(50 %\) of 4 records lay outside .*: {} 1 \(25 %\), {} 2 \(50 %\)$"
    for names, shown in (([], ("x0", "x1")), (["width", "height"], ("width", "height"))):
        sketch = Sketch(small_plan(record={"names": names}))
        with pytest.warns() as caught:
            sketch.add(values)
        (_, warning) = caught
        assert warning.category is ClippedRecordsWarning
        assert re.search(text.format(*shown), str(warning.message))
        assert sketch.records == 3


def test_where_a_warning_is_an_error_nothing_is_added() -> None:
    sketch = Sketch(small_plan())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for values in ([[1.0, 1.0], [np.nan, 0.0]], [[1.0, 11.0]]):
            with pytest.raises(HushsumWarning):
                sketch.add(values)
    assert sketch.records == 0
    assert not sketch.counters.any()


@pytest.mark.parametrize(
    "records", [np.zeros((3, 3)), np.zeros((1, 2, 2)), np.ones(2), "ab", np.zeros((2, 2), complex)]
)
def test_an_array_that_cannot_be_used_changes_nothing(records: object) -> None:
    sketch = Sketch(small_plan())
    with pytest.raises(RecordError):
        sketch.add(records)
    assert not sketch.counters.any()


def test_a_client_beyond_its_bound_is_refused_and_changes_nothing() -> None:
    sketch = Sketch(client_plan(3))
    sketch.add(RECORDS[:4], clients=["a", "a", "b", "a"])
    before = sketch.counters.copy()
    with pytest.raises(
        ContributionError, match=r"'a' would have 4.*cut each client to its first 3 records; do not choose"
    ):
        sketch.add(RECORDS[:2], clients=["b", "a"])
    assert np.array_equal(sketch.counters, before)
    sketch.add(RECORDS[:2], clients=["b", "b"])


def test_the_bound_holds_over_merges() -> None:
    plan = client_plan(3)
    left, right = Sketch(plan), Sketch(plan)
    left.add(RECORDS[:2], clients=["a", "a"])
    right.add(RECORDS[:2], clients=["a", "a"])
    with pytest.raises(ContributionError):
        _ = left + right


@pytest.mark.parametrize("left, right, third", [("7", 7, "8"), (b"7", "7", b"8"), (7, b"7", np.int64(8))])
def test_sketches_whose_ids_are_of_two_types_are_not_merged(left: Any, right: Any, third: Any) -> None:
    """One client under two ids would pass the bound."""
    plan = client_plan(3)
    sketches = Sketch(plan), Sketch(plan)
    for sketch, client in zip(sketches, (left, right), strict=True):
        sketch.add(RECORDS[:3], clients=[client] * 3)
    for one, other in (sketches, sketches[::-1]):
        with pytest.raises(MergeError, match=r"clients: ids of types .* and .*, expected one type"):
            _ = one + other
    more = Sketch(plan)
    more.add(RECORDS[:3], clients=[third] * 3)
    assert (sketches[0] + more + Sketch(plan)).records == 6


def test_unit_client_needs_an_id_for_each_record() -> None:
    for clients in (None, ["a"]):
        with pytest.raises(RecordError, match="clients"):
            Sketch(client_plan()).add(RECORDS[:2], clients=clients)


def test_a_repr_shows_the_plan_and_nothing_else() -> None:
    sketch = Sketch(small_plan())
    sketch.add(RECORDS)
    assert repr(sketch) == f"Sketch(plan='test', id={sketch.plan.hex_id[:12]})"


def test_a_merge_remembers_what_each_client_has_contributed() -> None:
    plan = client_plan(3)
    left, right = Sketch(plan), Sketch(plan)
    left.add(RECORDS[:2], clients=["a", "a"])
    right.add(RECORDS[:2], clients=["b", "b"])
    merged = left + right
    for client in ("a", "b"):
        with pytest.raises(ContributionError):
            merged.add(RECORDS[:2], clients=[client, client])
    rest = merged - right
    assert rest.records == 2
    rest.add(RECORDS[:2], clients=["b", "b"])
    with pytest.raises(ContributionError):
        rest.add(RECORDS[:2], clients=["a", "a"])


def test_what_is_left_may_be_merged_with_what_was_taken_out() -> None:
    plan = small_plan()
    left, right = Sketch(plan), Sketch(plan)
    left.add(RECORDS[:50])
    right.add(RECORDS[50:])
    both = left + right
    assert np.array_equal(((both - right) + right).counters, both.counters)
    with pytest.raises(MergeError):
        _ = (both - right) + left


def test_dropped_records_cost_their_client_nothing() -> None:
    sketch = Sketch(client_plan(3))
    with pytest.warns(DroppedRecordsWarning):
        sketch.add([[np.nan, 0.0]] * 5 + [[1.0, 1.0]], clients=["a"] * 6)
    sketch.add(RECORDS[:2], clients=["a"] * 2)


@pytest.mark.parametrize(
    "clients",
    [[np.nan] * 2, [None] * 2, [1.5] * 2, [["a"]] * 2, [True] * 2, "ab", b"ab", ["7", 7]],
)
def test_ids_that_could_hide_one_client_behind_several_are_refused(clients: object) -> None:
    sketch = Sketch(client_plan(3))
    with pytest.raises(RecordError, match="clients"):
        sketch.add(RECORDS[:2], clients=clients)  # type: ignore[arg-type]  # wrong on purpose
    assert not sketch.counters.any()


def test_one_sketch_has_ids_of_one_type() -> None:
    sketch = Sketch(client_plan(3))
    sketch.add(RECORDS[:2], clients=np.array([7, 7]))
    with pytest.raises(RecordError, match="one type"):
        sketch.add(RECORDS[:2], clients=["7", "7"])
    with pytest.raises(ContributionError):
        sketch.add(RECORDS[:2], clients=[7, 7])


def test_an_interrupted_addition_never_passes_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = client_plan(3)
    sketch = Sketch(plan)

    def interrupted(self: Hashed, counters: np.ndarray, records: np.ndarray) -> None:
        counters += 1
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Hashed, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sketch.add(RECORDS[:3], clients=["a"] * 3)
    assert not sketch.counters.any()
    assert sketch.records == 0
    sketch.add(RECORDS[:3], clients=["a"] * 3)
    assert (sketch.counters.sum(axis=2) == 3).all()


@pytest.mark.parametrize("records", (1, 3, 40, 200))
@pytest.mark.parametrize("buckets", (2, 64, 5000))
def test_few_records_and_many_add_the_same_over_all_classes(
    records: int, buckets: int, rng: np.random.Generator
) -> None:
    plan = classed_plan(sketch={"buckets": buckets})
    mine, labels = RECORDS[:records], rng.choice(list("abcz"), records)
    sketch, expected = Sketch(plan), np.zeros(plan.counters_shape, np.int64)
    for index, label in enumerate("abc"):
        plan.family.add(expected[index], plan.family.accept(mine[labels == label])[0])
    for times in (1, 2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DroppedRecordsWarning)
            with suppress(RecordError):  # where no label of these is the plan's
                sketch.add(mine, labels=labels)
        assert np.array_equal(sketch.counters, times * expected)


def test_a_few_records_of_a_large_sketch_take_no_memory_of_its_size() -> None:
    sketch = Sketch(small_plan(sketch={"rows": 64, "buckets": 2**16}))
    sketch.add(RECORDS[:1])
    tracemalloc.start()
    try:
        sketch.add(RECORDS[:20])
        assert tracemalloc.get_traced_memory()[1] < sketch.counters.nbytes / 16
    finally:
        tracemalloc.stop()
    assert (sketch.counters.sum(axis=2) == 21).all()


def test_counters_that_were_folded_elsewhere_are_added_to_in_place_whatever_their_order() -> None:
    plan = small_plan(sketch={"buckets": 5000})
    theirs = np.zeros(plan.counters_shape, np.int64, order="F")
    sketch = Sketch.of_counters(plan, theirs, np.zeros(1, np.int64))
    sketch.add(RECORDS[:2])
    assert (theirs.sum(axis=2) == 2).all()


@pytest.mark.parametrize("buckets", (64, 5000))
def test_an_addition_that_fails_in_its_second_class_changes_nothing(
    buckets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sketch = Sketch(classed_plan(sketch={"buckets": buckets}))
    for name in ("add", "encode"):
        original = getattr(Hashed, name)

        def second(self: Hashed, *given: Any, original: Any = original) -> Any:
            if np.array_equal(given[-1], self.accept(RECORDS[1:2])[0]):
                raise KeyboardInterrupt
            return original(self, *given)

        monkeypatch.setattr(Hashed, name, second)
    with pytest.raises(KeyboardInterrupt):
        sketch.add(RECORDS[:2], labels=["a", "b"])
    assert not sketch.counters.any()
    assert sketch.records == 0


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda sketch: pickle.loads(pickle.dumps(sketch))])
def test_a_copy_shares_its_past_and_not_its_future(copied: Callable[[Sketch], Sketch]) -> None:
    original, other = Sketch(small_plan()), Sketch(small_plan())
    original.add(RECORDS[:10])
    other.add(RECORDS[10:20])
    twin = copied(original)
    with pytest.raises(MergeError):
        _ = original + twin
    original.add(RECORDS[20:30])
    twin.add(RECORDS[30:40])
    with pytest.raises(MergeError):
        _ = (original + other) - twin


def test_records_of_a_plan_of_reports_are_in_no_sketch(rng: np.random.Generator) -> None:
    plan = small_plan(privacy={"mode": "local", "local": {"form": "report"}})
    sketch = Sketch(plan)
    with pytest.raises(GuaranteeError, match="randomised reports"):
        sketch.add(rng.uniform(0, 1, (3, plan.vectors.dim)))
    assert not sketch.counters.any()
