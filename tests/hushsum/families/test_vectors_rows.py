"""Lists of vectors are read row by row: what a row becomes, no other row decides, and the short cut gives the same."""

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hushsum import Plan
from hushsum.choosing.utilities import usable_records
from hushsum.families import vectors
from hushsum.families.vectors import is_one_record, readable
from tests.checks.examples import Raising, objects
from tests.checks.test_family_input import encoded, on_the_device, sketched
from tests.plans import small_plan

# As an int64, and as a float64, it becomes two different float32.
TWICE_ROUNDED = 2**60 + 2**36 + 1


def wide_plan() -> Plan:
    """Records up to 2^61, in which float32 tells the two apart."""
    record = {"lower": [0, 0], "upper": [2**61, 2**61]}
    return small_plan(record=record, sketch={"bandwidth": 5 * 10**13, "rows": 1000})


def test_a_float_record_changes_no_bit_of_large_integers() -> None:
    plan, whole = wide_plan(), [[TWICE_ROUNDED] * 2] * 5
    integers, floats = np.array(whole, np.int64), np.array(whole, np.float64)
    assert not np.array_equal(sketched(plan, integers), sketched(plan, floats)), "the plan does not tell the two apart"
    for one in ([0.5, 0.5], np.array([0.5, 0.5], np.float32), [2**63, 1], np.array([2**63, 1], np.uint64)):
        for some in (whole, list(integers), [tuple(row) for row in whole]):
            apart = sketched(plan, some) + sketched(plan, [one])
            for way in (sketched, encoded, on_the_device):
                assert np.array_equal(way(plan, [*some, one]), apart)
            assert np.array_equal(usable_records(plan, [*some, one], None)[:5], usable_records(plan, some, None))


def rows_of_every_kind(rng: np.random.Generator) -> list[Any]:
    whole = rng.integers(-(2**62), 2**62, 2).tolist()
    return [
        rng.normal(size=2).tolist(), whole, [whole[0], 0.1], [True, False], [True, 3], (1.5, 2), [np.float32(0.1), 0.1],
        [np.float64(0.1), 2**60 + 1], np.array(whole), rng.normal(size=2), rng.normal(size=2).astype(np.float32),
        np.array(whole).astype(np.uint64), np.array([1, 2], np.int8), np.array([1, 0], bool), [2**63, 1], [2**64, 1],
        [2**63, -1], [-(2**63), 1], [-(2**63) - 1, 1], [1e300, 1], [np.inf, 1], [np.nan, 1], [10**400, 1], None, 1.0,
        ["1", "2"], [1], [], np.array([1.0, 2.0], np.float16), np.array([1, 2], np.longdouble), Raising(),
        np.array([None, 1.0]), np.array([2.0, 1.0], object), [1e308, np.longdouble(10) ** 400],
    ]  # fmt: skip


def test_many_rows_at_once_are_what_each_is_alone(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_CHUNK", 3)
    taken = 0
    for _ in range(400):
        kinds = rng.permutation(len(rows_of_every_kind(rng)))[: rng.integers(1, 3)].tolist()
        rows = [rows_of_every_kind(rng)[kinds[number % len(kinds)]] for number in range(8)]
        alone = np.full((8, 2), np.nan)
        for row, into in zip(rows, alone, strict=True):
            vectors._read_row(row, into)
        assert np.array_equal(readable(rows, 2), alone, equal_nan=True), rows
        taken += vectors._read_at_once(rows, np.empty((8, 2)))
    assert 30 < taken < 370, "both ways were compared"


@pytest.mark.parametrize(
    "row, read",
    [
        ([2**53 + 1, 1], [2**53, 1]), ([2**63, 1], [2**63, 1]), ([2**64, 1], None), ([10**400, 1], None),
        (np.array([0.1, 1], np.float16), [float(np.float16(0.1)), 1]), (np.array([1, 2.5], object), [1, 2.5]),
        ([True, 2.5], [1, 2.5]), (["1", "2"], None), ([b"1", 2.0], None), ([1j, 1], None), ([1, None], None),
        (np.array(["2020", "2021"], "M8[Y]"), None), (np.ma.masked_array([1.0, 2.0], [False, True]), None),
        ([[1, 2]], None), ([1, 2, 3], None), ([[1], [2]], None), ({1, 2}, None), ("12", None), (Raising(), None),
    ],
)  # fmt: skip
def test_a_row_of_a_list_is_d_numbers_or_drops(row: Any, read: Any) -> None:
    expected = np.array([[3.0, 4.0], [np.nan] * 2 if read is None else read], np.float64)
    for rows in ([[3.0, 4.0], row], deque([[3.0, 4.0], row]), objects([[3.0, 4.0], row])):
        assert np.array_equal(readable(rows, 2), expected, equal_nan=True)


def test_an_array_of_objects_is_its_rows_where_it_has_the_width() -> None:
    grid = np.array([[1.0, 2.0], [None, 2.0], [3, 4]], object)
    assert np.array_equal(readable(grid, 2), np.array([[1, 2], [np.nan, np.nan], [3, 4]]), equal_nan=True)
    others: list[npt.NDArray[np.object_]] = [grid[:, :1], grid[None], np.array(None, object)]
    for other in others:
        assert readable(other, 2) is other


@pytest.mark.parametrize("kind", (np.float64, np.float32, np.int64, np.uint8, bool, complex, str, np.float16))
def test_an_array_with_a_type_stays_what_it_is(kind: Any) -> None:
    array = np.ones((3, 2), kind)
    assert readable(array, 2) is array


@pytest.mark.parametrize(
    "rows, one",
    [
        ([1.0, 2.0], True), ([1, 2, 3], True), ([1.0, None], True), (["1", 2], True), ([np.float32(1), 1], True),
        ([np.array(1.0), 2], True), ([1j, 2], True),
        ([], False), ([None, None], False), (["a", "b"], False), ([[1.0, 2.0]], False), ([[1.0, 2.0], 1.0], False),
        ([1.0, 2.0, (3.0, 4.0)], False), ([1.0, np.ones(2)], False), ([1.0, {2}], False), ([1.0, {}], False),
    ],
)  # fmt: skip
def test_numbers_without_a_row_among_them_are_one_record(rows: Any, one: bool) -> None:
    assert is_one_record(rows) is one
