"""One row a record: buckets and table entries are where a whole sketch counts them, record by record."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.families import Family, Hashed
from hushsum.families.fourier import Fourier
from hushsum.families.lsh import single_row
from hushsum.families.lsh.placement import OUTSIDE
from tests.checks.examples import EXAMPLES, Example
from tests.plans import small_plan

Int64 = npt.NDArray[np.int64]
BUCKETED = [example for example in EXAMPLES if example.family == "hashed"]
WAVES = [example for example in EXAMPLES if example.family == "fourier"]
KERNELS = pytest.mark.parametrize("kernels", ["plain", "fast"])


def name_of(example: Example) -> str:
    return f"{example.family}-{example.label}"


def accepted(example: Example, family: Family, rng: np.random.Generator) -> Any:
    points = example.points
    batch = points.join(points.random(rng, 20), points.extreme())
    return family.accept(batch)[0]


def by_sketch(family: Family, records: Any, number: int) -> Int64:
    """The counters of one record alone."""
    counters = np.zeros(family.shape, np.int64)
    found = family.encode(records[number : number + 1])
    counters.reshape(-1)[found.indices] = found.values
    return counters


@KERNELS
@pytest.mark.parametrize("example", BUCKETED, ids=name_of)
def test_a_record_is_in_the_bucket_where_a_sketch_of_it_alone_has_its_one(
    example: Example, kernels: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    family = example.build(1)
    assert isinstance(family, Hashed)
    records = accepted(example, family, rng)
    rows = rng.integers(0, family.rows, len(records))
    found = family.buckets_of(records, rows)
    assert found.dtype == np.int64
    expected = [int(by_sketch(family, records, i)[row].argmax()) for i, row in enumerate(rows.tolist())]
    assert found.tolist() == expected


@KERNELS
@pytest.mark.parametrize("example", WAVES, ids=name_of)
def test_a_record_has_the_entry_that_a_sketch_of_it_alone_holds(
    example: Example, kernels: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    family = example.build(1)
    assert isinstance(family, Fourier)
    records = accepted(example, family, rng)
    features = rng.integers(0, 2 * family.rows, len(records))
    found = family.entries_of(records, features)
    expected = [int(by_sketch(family, records, i).reshape(-1)[place]) for i, place in enumerate(features.tolist())]
    assert found.tolist() == expected
    assert np.abs(found).max() <= family.peak


@pytest.mark.parametrize("example", BUCKETED, ids=name_of)
def test_the_size_of_a_batch_changes_no_bucket(example: Example, rng: np.random.Generator) -> None:
    family = example.build(2)
    assert isinstance(family, Hashed)
    records = accepted(example, family, rng)
    rows = rng.integers(0, family.rows, len(records))
    one_by_one = [int(family.buckets_of(records[i : i + 1], rows[i : i + 1])[0]) for i in range(len(records))]
    assert family.buckets_of(records, rows).tolist() == one_by_one


@KERNELS
def test_many_records_of_many_blocks_are_as_few(
    kernels: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    monkeypatch.setattr(single_row, "_BLOCK", 7)
    monkeypatch.setattr(single_row, "_BLOCK_NUMBERS", 6)
    family = small_plan(sketch={"power": 2}).family
    assert isinstance(family, Hashed)
    records, _ = family.accept(rng.uniform(0, 10, (50, 2)))
    rows = rng.integers(0, family.rows, 50)
    found = family.buckets_of(records, rows)
    monkeypatch.undo()
    assert np.array_equal(found, family.buckets_of(records, rows))


@pytest.mark.parametrize("example", BUCKETED, ids=name_of)
def test_queries_have_in_every_row_the_bucket_that_answers_read(example: Example, rng: np.random.Generator) -> None:
    family = example.build(3)
    assert isinstance(family, Hashed)
    queries = example.points.queries(rng, 5)
    marks = rng.integers(0, 1000, family.shape)
    [(some, buckets)] = list(family.buckets_at(queries))
    assert (some.start, some.stop) == (0, 5)
    read = np.where(buckets == OUTSIDE, 0, np.take_along_axis(marks, np.maximum(buckets, 0), axis=1)).mean(axis=0)
    if family.rehashed:
        read = (read - marks.sum(axis=1).mean() / family.buckets) * family.buckets / (family.buckets - 1)
    np.testing.assert_allclose(family.answer(marks, queries).value, read, rtol=1e-9)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(np.zeros(4, np.int64), id="another number"),
        pytest.param(np.zeros(3, np.int32), id="another type"),
        pytest.param(np.array([0, 1, 20]), id="beyond the last"),
        pytest.param(np.array([0, -1, 2]), id="below 0"),
    ],
)
def test_rows_that_do_not_exist_are_refused(rows: Any) -> None:
    family = small_plan().family
    assert isinstance(family, Hashed)
    records, _ = family.accept([[1.0, 1.0]] * 3)
    with pytest.raises(ValueError, match="rows: got"):
        family.buckets_of(records, rows)
    wave = small_plan(sketch={"family": "fourier", "buckets": ..., "kernel": "gaussian", "rows": 10}).family
    assert isinstance(wave, Fourier)
    with pytest.raises(ValueError, match="rows: got"):
        wave.entries_of(wave.accept([[1.0, 1.0]] * 3)[0], rows)
