"""Set records: which are taken, which are dropped alone, what is refused, and how they are cut."""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from scipy import sparse

from hushsum.errors import RecordError
from hushsum.families.sets import Sets, Universe, set_id
from tests.checks.examples import objects

UNIVERSE = 50
Int64 = npt.NDArray[np.int64]


def lists(sets: Sets) -> list[list[int]]:
    return [sets.ids[start:stop].tolist() for start, stop in pairwise(sets.starts.tolist())]


def many(rng: np.random.Generator, n: int = 200) -> list[Int64]:
    """Sets in any order, some with an id twice, and arrays that are none: empty, or with an id outside the universe."""
    found = [np.sort(rng.choice(UNIVERSE, size, replace=False)) for size in rng.integers(1, 20, n).tolist()]
    for number in range(0, n, 3):
        bad = found[number].copy()
        where = int(rng.integers(len(bad)))
        bad[where] = rng.choice([-1, UNIVERSE, -(2**40), 2**40, bad[where - 1], bad[0]])
        found[number] = rng.permutation(bad) if number % 2 else bad
    for number in rng.integers(n, size=10).tolist():
        found[number] = np.empty(0, np.int64)
    return found


def is_a_set(ids: list[int]) -> bool:
    """The definition."""
    return len(ids) > 0 and all(0 <= each < UNIVERSE for each in ids)


def csr(arrays: list[Int64], index: type[np.signedinteger[Any]] = np.int32) -> Any:
    starts = np.cumsum([0, *map(len, arrays)])
    ids = np.concatenate([np.empty(0, np.int64), *arrays])
    matrix = sparse.csr_matrix((np.ones(len(ids)), ids.astype(index), starts.astype(index)), (len(arrays), UNIVERSE))
    matrix.indices, matrix.indptr = matrix.indices.astype(index), matrix.indptr.astype(index)
    return matrix


def test_what_is_no_set_is_dropped_alone(rng: np.random.Generator) -> None:
    records = many(rng)
    sets, kept = Universe(UNIVERSE).accept(records)
    assert kept.tolist() == [is_a_set(each.tolist()) for each in records]
    assert lists(sets) == [sorted({*each.tolist()}) for each in records if is_a_set(each.tolist())]
    assert sets.ids.dtype == np.uint32
    assert sets.starts.dtype == np.int64


@pytest.mark.parametrize("index", (np.int32, np.int64))
def test_a_csr_matrix_holds_the_same_sets_as_a_list(rng: np.random.Generator, index: type[Any]) -> None:
    records = [each for each in many(rng) if np.all(np.abs(each) < 2**31)]
    for some in (records, [each for each in records if is_a_set(each.tolist())]):
        listed, matrix = Universe(UNIVERSE).accept(some), Universe(UNIVERSE).accept(csr(some, index))
        assert lists(listed[0]) == lists(matrix[0])
        assert np.array_equal(listed[1], matrix[1])


@pytest.mark.parametrize("make", (sparse.csr_matrix, sparse.csr_array))
def test_good_indices_of_32_bits_are_not_copied(make: Any) -> None:
    matrix = make(csr([np.array([1, 2]), np.array([0])]))
    matrix.indices = matrix.indices.astype(np.int32)
    assert np.shares_memory(Universe(UNIVERSE).accept(matrix)[0].ids, matrix.indices)


def test_a_csr_matrix_may_have_room_for_more_entries() -> None:
    matrix = csr([np.array([1, 2]), np.array([0]), np.array([5, 7])])
    matrix.indptr = matrix.indptr[:-1]
    matrix._shape = (2, UNIVERSE)
    matrix.data[3:] = 0
    assert lists(Universe(UNIVERSE).accept(matrix)[0]) == [[1, 2], [0]]


@pytest.mark.parametrize("dtype", ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">u8"))
def test_integers_of_every_type_are_ids(dtype: str) -> None:
    sets, kept = Universe(300).accept([np.array([0, 3, 100], dtype), [1, 2]])
    assert kept.all()
    assert lists(sets) == [[0, 3, 100], [1, 2]]


def test_sets_of_python_are_sets() -> None:
    sets, kept = Universe(UNIVERSE).accept([{9, 3, 7}, frozenset({0}), set(), {1: "", 0: ""}.keys(), {-1, 2}, {"a", 1}])
    assert kept.tolist() == [True, True, False, True, False, False]
    assert lists(sets) == lists(Universe(UNIVERSE).queries([{9, 3, 7}, {0}, {0, 1}])) == [[3, 7, 9], [0], [0, 1]]


def test_strings_become_ids_which_never_change() -> None:
    frozen = {("cough", 100): 95, ("naïve", 2**32): 3_900_343_434, ("", 7): 1}
    assert {key: set_id(*key) for key in frozen} == frozen
    words = ["cough", "fever", "cough"]
    expected = sorted({set_id(word, UNIVERSE) for word in words})
    forms = [words, tuple(words), set(words), np.array(words), np.array(words, object)]
    sets, kept = Universe(UNIVERSE).accept(forms)
    assert kept.all()
    assert lists(sets) == [expected] * len(forms)
    assert lists(Universe(UNIVERSE).accept(pa.array([words]))[0]) == [expected]
    assert lists(Universe(UNIVERSE).queries([words])) == [expected]


def test_a_set_that_mixes_strings_and_others_is_dropped_alone() -> None:
    records: list[object] = [["a", 1], ["a", None], ["\ud800"], "ab", ["a"]]
    sets, kept = Universe(UNIVERSE).accept(records)
    assert kept.tolist() == [False, False, False, False, True]
    assert lists(sets) == [[set_id("a", UNIVERSE)]]
    with pytest.raises(RecordError, match=r"number 0: got <U.* expected one axis of integers or of strings"):
        Universe(UNIVERSE).queries([["a", 1]])


def test_lists_of_pyarrow_are_sets() -> None:
    given = [[0, 3], None, [], [1, 49], [2, 1, 2]]
    for records in (pa.array(given), pa.chunked_array([given[:2], given[2:]])):
        sets, kept = Universe(UNIVERSE).accept(records)
        assert kept.tolist() == [True, False, False, True, True]
        assert lists(sets) == [[0, 3], [1, 49], [1, 2]]


def test_ids_reach_up_to_the_last_of_32_bits_and_no_further() -> None:
    last = 2**32 - 1
    records = [
        np.array([0, last]),
        np.array([last + 1]),
        np.array([2**64 - 1], np.uint64),
        np.array([2**63], np.uint64),
    ]
    sets, kept = Universe(2**32).accept(records)
    assert kept.tolist() == [True, False, False, False]
    assert lists(sets) == [[0, last]]


def test_no_records_are_no_sets() -> None:
    no_records: tuple[Any, ...] = ([], (), csr([]))
    for empty in no_records:
        sets, kept = Universe(UNIVERSE).accept(empty)
        assert len(sets) == len(kept) == 0
    sets, kept = Universe(UNIVERSE).accept([[], [60]])
    assert len(sets) == 0
    assert kept.tolist() == [False, False]


def broken() -> Any:
    matrix = csr([np.array([1, 2]), np.array([0])])
    matrix.indptr = np.array([0, 3, 2], np.int32)
    return matrix


def short() -> Any:
    matrix = csr([np.array([1, 2]), np.array([0])])
    matrix.indptr = np.array([0, 2, 9], np.int32)
    return matrix


REFUSED: tuple[tuple[Any, str], ...] = (
    (np.ones((2, 3), np.int64), r"array of shape \(2, 3\), expected a list of sets or integer arrays"),
    (np.array([1, 2]), r"array of shape \(2,\), expected a list"),
    ("1 2", "got str"),
    (b"12", "got bytes"),
    (3, "got int"),
    (None, "got NoneType"),
    ({1, 2}, "got set"),
    (csr([np.array([1])]).tocoo(), r"expected .*CSR|list of sets or integer arrays"),
    (csr([np.array([1])]).tocsc(), r"expected CSR: matrix\.tocsr"),
    (csr([np.array([1])])[:, :7].tocsr(), rf"shape \(1, 7\), expected \(n, {UNIVERSE}\)"),
    (csr([np.array([1])]).astype(np.complex128), "complex128, expected real"),
    (broken(), "invalid CSR"),
    (short(), "invalid CSR"),
)


UNREADABLE: tuple[tuple[list[Any], str], ...] = (
    ([1, 2], r"number 0: got int64 of shape \(\), expected one axis"),
    ([[1.5], [2.5]], "number 0: got float64"),
    ([{1.5, 2}], "number 0: got float64"),
    ([[True, False]], "number 0: got bool"),
    ([["1", 2]], "number 0: got <U"),
    ([None], "number 0: got object"),
    ([[[1]]], r"number 0: got int64 of shape \(1, 1\)"),
    ([[[1], [1, 2]]], "number 0: not an array"),
    ([np.ma.masked_array([1, 2], mask=[False, True])], "number 0: got a masked array"),
)


@pytest.mark.parametrize("records, match", REFUSED)
@pytest.mark.parametrize("what", ("records", "queries"))
def test_what_holds_no_sets_is_refused_with_what_came(records: Any, match: str, what: str) -> None:
    universe = Universe(UNIVERSE)
    with pytest.raises(RecordError, match=f"^{what}: .*({match})"):
        (universe.accept if what == "records" else universe.queries)(records)


@pytest.mark.parametrize("records, match", UNREADABLE)
def test_a_list_without_a_set_has_none_to_keep_and_is_no_list_of_queries(records: list[Any], match: str) -> None:
    for given in (records, objects(records)):
        sets, kept = Universe(UNIVERSE).accept(given)
        assert len(sets) == 0
        assert kept.tolist() == [False] * len(records)
    with pytest.raises(RecordError, match=f"^queries: .*({match})"):
        Universe(UNIVERSE).queries(records)


def test_a_row_that_stores_a_zero_is_dropped_alone_and_no_query() -> None:
    matrix = csr([np.array([1, 2]), np.array([0]), np.array([3, 4, 5])])
    before = matrix.indices.copy()
    for places, left in (([1], [[0], [3, 4, 5]]), ([2], [[1, 2], [3, 4, 5]]), ([0, 1, 4], [[0]]), ([0, 2, 5], [])):
        matrix.data[:] = 1
        matrix.data[places] = 0
        sets, kept = Universe(UNIVERSE).accept(matrix)
        assert lists(sets) == left
        assert kept.sum() == len(left)
        with pytest.raises(RecordError, match=r"queries: .*explicitly.*eliminate_zeros"):
            Universe(UNIVERSE).queries(matrix)
    assert np.array_equal(matrix.indices, before)


@pytest.mark.parametrize("bad", ([], set(), [-1], [UNIVERSE]))
def test_a_query_that_is_no_set_is_refused_by_its_number(bad: list[int] | set[int]) -> None:
    with pytest.raises(RecordError, match=r"queries: number 1 cannot be used, expected a non-empty set .* 0 to 49"):
        Universe(UNIVERSE).queries([[3], bad, bad])


def test_queries_are_the_same_sets(rng: np.random.Generator) -> None:
    good = [each for each in many(rng) if is_a_set(each.tolist())]
    assert lists(Universe(UNIVERSE).queries(good)) == [sorted({*each.tolist()}) for each in good]


@pytest.mark.parametrize(
    "starts, ids",
    (
        ([0, 2, 1], [1, 2]),
        ([0, 1], [1, 2]),
        ([0, 3], [1, 2]),
        ([1, 2], [1, 2]),
        ([-1, 2], [1, 2]),
        ([0, 0, 2], [1, 2]),
        ([0, 2], [2, 1]),
        ([0, 2], [1, 1]),
        ([0, 1], [UNIVERSE]),
        ([], []),
    ),
)
def test_only_sets_that_were_accepted_are_taken(starts: list[int], ids: list[int]) -> None:
    universe = Universe(UNIVERSE)
    assert universe.accepted(Sets(np.array([0, 2, 3]), np.array([1, 2, 0], np.uint32)))
    with pytest.raises(RecordError, match=r"accept\(\) returned"):
        universe.accepted(Sets(np.array(starts, np.int64), np.array(ids, np.uint32)))


def test_other_values_and_types_were_not_accepted() -> None:
    universe, starts, ids = Universe(UNIVERSE), np.array([0, 1]), np.array([1], np.uint32)
    forged: tuple[Any, ...] = ([[1]], None, Sets(starts.astype(np.int32), ids), Sets(starts, ids.astype(np.int64)))
    for each in forged:
        with pytest.raises(RecordError, match=r"accept\(\) returned"):
            universe.accepted(each)


def test_slices_and_masks_cut_as_they_cut_a_list(rng: np.random.Generator) -> None:
    sets, _ = Universe(UNIVERSE).accept(many(rng))
    whole = lists(sets)
    for start, stop in ((0, 5), (3, 3), (7, 4), (2, None), (None, -1), (-3, 10**6)):
        assert lists(sets[start:stop]) == whole[start:stop]
        assert np.shares_memory(sets[start:stop].ids, sets.ids) or not whole[start:stop]
    mask = rng.integers(0, 2, len(sets)).astype(bool)
    assert lists(sets[mask]) == [each for each, taken in zip(whole, mask, strict=True) if taken]


@pytest.mark.parametrize("most", (1, 10, 45, 10**6))
def test_runs_hold_all_sets_in_order_and_few_ids_each(most: int, rng: np.random.Generator) -> None:
    sets, _ = Universe(UNIVERSE).accept(many(rng))
    runs = list(sets.runs(most))
    assert [each for run in runs for each in range(run.start, run.stop)] == list(range(len(sets)))
    assert all(len(sets[run].ids) <= most or len(sets[run]) == 1 for run in runs)
    whole = [sum(len(sets[each].ids) for each in pair) for pair in pairwise(runs)]
    assert all(size > most for size in whole), "two neighbouring runs would have been one"
