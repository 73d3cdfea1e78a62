"""What a plan collects: vectors or sets, with or without labels, and the class that each label stands for."""

from collections.abc import Iterable
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from hushsum import PlanError, RecordError
from hushsum.collection import Collection, by_class, label_list
from hushsum.families import SetRecords, VectorRecords
from hushsum.families.sets import Sets, Universe
from hushsum.schema import Table

VECTORS: dict[str, object] = {"kind": "vector", "dim": 2, "lower": [0, -1], "upper": [10, 1]}


def collection(**keys: object) -> Collection:
    return Collection.from_table(Table(keys, "record"))


def labelled(*classes: str) -> Collection:
    return collection(**VECTORS, classes=list(classes))


def test_vectors_are_what_is_collected_where_nothing_else_is_said() -> None:
    without = {key: value for key, value in VECTORS.items() if key != "kind"}
    assert collection(**without) == collection(**VECTORS)
    schema = collection(**VECTORS).schema
    assert isinstance(schema, VectorRecords)
    assert schema == VectorRecords(2, (Fraction(0), Fraction(-1)), (Fraction(10), Fraction(1)))


def test_sets_have_a_universe_and_no_columns() -> None:
    assert collection(kind="set", universe=1000).schema == SetRecords(1000)
    assert collection(kind="set").schema == SetRecords(2**31)
    for key in ("dim", "lower", "names", "units"):
        with pytest.raises(PlanError, match=f"record.{key}.*a known key"):
            collection(kind="set", **{key: VECTORS.get(key, [])})


@pytest.mark.parametrize("universe", [0, 2**32 + 1, 10.0, "10", True])
def test_a_universe_that_ids_of_32_bits_do_not_fill_is_refused(universe: object) -> None:
    with pytest.raises(PlanError, match=r"record\.universe"):
        collection(kind="set", universe=universe)


@pytest.mark.parametrize(
    "keys",
    [
        VECTORS,
        {**VECTORS, "names": ["x", "y"], "units": ["m", "m"], "classes": ["b", "a"]},
        {"kind": "set"},
        {"kind": "set", "universe": 2**32, "classes": ["1", "0"]},
    ],
)
def test_the_fields_are_read_back_to_the_same_collection(keys: dict[str, object]) -> None:
    made = collection(**keys)
    again = collection(**made.to_fields())
    assert again == made
    assert again.to_fields() == made.to_fields()


def test_classes_stand_in_the_order_of_the_plan() -> None:
    assert labelled("b", "a", "c").class_indices(["a", "b", "c", "b"], 4).tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize(
    "labels",
    [
        ["a", None, "z", "b", float("nan"), "A", "a "],
        np.array(["a", None, "z", "b", np.nan, "A", "a "], object),
        ("a", None, "z", "b", np.float32("nan"), "A", ""),
        (label for label in ("a", None, "z", "b", None, "A", "")),
    ],
    ids=["list", "array", "tuple", "generator"],
)
def test_a_label_that_is_missing_or_unknown_stands_for_no_class(labels: Iterable[object]) -> None:
    assert labelled("a", "b").class_indices(labels, 7).tolist() == [0, -1, -1, 1, -1, -1, -1]


def test_an_array_of_strings_is_a_list_of_labels_and_one_string_is_one_label() -> None:
    some = labelled("ab", "cd")
    assert some.class_indices(np.array(["cd", "ab", "c"]), 3).tolist() == [1, 0, -1]
    assert some.class_indices("cd", 1).tolist() == [1]
    assert some.class_indices([], 0).tolist() == []
    with pytest.raises(RecordError, match="1 labels for 2 records"):
        some.class_indices("cd", 2)


@pytest.mark.parametrize(
    "labels",
    [
        None, 5, 1.5, True, b"ab", {"a", "b"}, {"a": 1, "b": 2}, frozenset("ab"), np.array("a"), np.array([["a", "b"]]),
        ["a"], ["a", "b", "a"], [b"a", b"b"], [True, None], [1.5, 2.5], [["a"], ["b"]], np.array([0.0, 1.0]),
    ],
    ids=lambda labels: type(labels).__name__ if isinstance(labels, set | frozenset) else repr(labels),
)  # fmt: skip
def test_labels_of_another_number_or_type_are_refused(labels: object) -> None:
    with pytest.raises(RecordError, match="labels: ") as caught:
        labelled("a", "b").class_indices(labels, 2)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "odd", (1, b"a", True, 1.5, ["a"], np.array(["a", "b"]), np.datetime64("NaT", "s"), complex("nan"))
)
def test_one_odd_label_costs_its_own_record_alone(odd: object) -> None:
    assert labelled("a", "b").class_indices(["a", odd, "b"], 3).tolist() == [0, -1, 1]


def test_integers_are_labels() -> None:
    some = labelled("1", "2", "-3")
    for labels in ([1, 2, -3, 7], np.array([1, 2, -3, 7]), ["1", 2, np.int8(-3), np.uint64(7)]):
        assert some.class_indices(labels, 4).tolist() == [0, 1, 2, -1]
    assert some.class_indices(2, 1).tolist() == [1]
    assert some.class_indices([True, "1", 10**5000], 3).tolist() == [-1, 0, -1]


def test_labels_of_pyarrow_are_labels() -> None:
    given: list[object] = ["a", None, "z", "b"]
    for labels in (pa.array(given), pa.chunked_array([given[:1], given[1:]]), pa.array(given).dictionary_encode()):
        assert labelled("a", "b").class_indices(labels, 4).tolist() == [0, -1, -1, 1]


class Unhashable(str):
    """A string that raises where it is looked up, or compared."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise RuntimeError("hash")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")


class Nameless:
    """What does not even say its type."""

    @property  # type: ignore[misc] # to be hostile
    def __class__(self) -> type:
        raise RuntimeError("class")


def test_a_label_that_raises_costs_its_own_record_alone() -> None:
    some = labelled("a", "b")
    assert some.class_indices(["a", Unhashable("b"), Unhashable("z"), Nameless(), np.str_("b")], 5).tolist() == [
        0, 1, -1, -1, 1,
    ]  # fmt: skip
    offsets = pa.py_buffer(np.array([0, 1, 2, 3], np.int32).tobytes())
    broken = pa.Array.from_buffers(pa.utf8(), 3, [None, offsets, pa.py_buffer(b"a\xffb")])
    for labels in (broken, pa.chunked_array([broken])):
        assert some.class_indices(labels, 3).tolist() == [0, -1, 1]
    assert label_list(pa.array([0, 2**62], pa.timestamp("s")))[1] is None


def test_records_are_parted_by_class_in_their_order(rng: np.random.Generator) -> None:
    classes = rng.choice([7, 0, 3], 500)
    records = rng.random((500, 2)).astype(np.float32)
    parted = dict(by_class(records, classes))
    assert list(parted) == [0, 3, 7]
    for index, mine in parted.items():
        assert isinstance(mine, np.ndarray)
        assert np.array_equal(mine, records[classes == index])
    assert [index for index, _ in by_class(records[:0], classes[:0])] == []
    sets, _ = Universe(50).accept([np.arange(number % 7 + 1) + number % 11 for number in range(500)])
    for index, some in by_class(sets, classes):
        expected = sets[classes == index]
        assert isinstance(some, Sets)
        assert np.array_equal(some.starts, expected.starts)
        assert np.array_equal(some.ids, expected.ids)


def test_labels_and_classes_go_together() -> None:
    assert collection(**VECTORS).class_indices(None, 3).tolist() == [0, 0, 0]
    for labels in (["a"] * 3, [], "a"):
        with pytest.raises(RecordError, match="this plan has no classes"):
            collection(**VECTORS).class_indices(labels, 3)
    with pytest.raises(RecordError, match="expected one per record: one of 'a', 'b'"):
        labelled("a", "b").class_indices(None, 0)


def test_an_error_names_a_few_of_a_thousand_classes() -> None:
    many = labelled(*(str(number) for number in range(1000)))
    assert many.class_indices(["999"], 1).tolist() == [999]
    with pytest.raises(RecordError, match=r"'7' \.\.\.$"):
        many.class_indices([7.5], 1)
