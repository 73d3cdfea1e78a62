"""Codes do not depend on the machine (docs/families.md: the same bytes everywhere): always those of the definition.

Everything is compared with the slow definition in tests/hushsum/families/lsh/reference.py, on the records that tempt a
fast implementation most: those on the edges of buckets.
"""

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.families import Hashed, VectorRecords
from hushsum.families.hashed.family import NO_TRANSFORMS
from hushsum.families.lsh import numpy_engine
from hushsum.families.lsh.codes.projection import Projection
from hushsum.families.lsh.compiled import engine as compiled_engine
from hushsum.families.lsh.p_stable import Euclidean
from hushsum.families.lsh.placement import HashedRows
from hushsum.families.lsh.row_sources import Independent
from hushsum.families.vectors import VectorSpace
from hushsum.public_random import PublicSeed
from hushsum.schema import Table
from tests.hushsum.families.lsh import reference

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
ROOT = Path(__file__).resolve().parents[4]
DIMENSIONS = (1, 3, 55)
RECOMPUTED_MAX = 0.003  # share of the codes of ordinary records
SIZE = 8.0  # records lie within ±SIZE

engines = pytest.mark.parametrize("engine", reference.ENGINES.values(), ids=reference.ENGINES)
dimensions = pytest.mark.parametrize("d", DIMENSIONS)


def drawn_rows(d: int, parts: int = 24, power: int = 1, seed: int = 11) -> HashedRows:
    space = VectorSpace.of(VectorRecords(d, (Fraction(-SIZE),) * d, (Fraction(SIZE),) * d), NO_TRANSFORMS)
    source = Independent(PublicSeed(seed), "hashed", parts // power)
    projection = Euclidean(Fraction("1.5"), power).draw(source, space)
    return reference.rehashed_rows(projection, power=power)


def chosen_rows(directions: list[list[float]], offsets: list[float]) -> HashedRows:
    matrix = np.array(directions, np.float32)
    assert np.array_equal(matrix, np.array(directions))
    return reference.rehashed_rows(Projection(matrix, np.array(offsets), np.ones(matrix.shape[1], np.float32)))


def edges_of(rows: HashedRows, per_part: int = 3) -> Float32:
    return reference.edge_records(rows.projection, np.random.default_rng(7), SIZE, per_part)


def counted(engine: ModuleType, rows: HashedRows, records: Float32, cut: list[int]) -> Int64:
    """Counters after adding the records in batches that end at ``cut``."""
    total = np.zeros((len(rows), rows.buckets), np.int64)
    for part in np.split(records, cut):
        engine.add(rows, total, np.ascontiguousarray(part))
    return total


def without_the_definition(rows: HashedRows) -> HashedRows:
    """The planted mistake: float32 alone, no code is ever computed again."""
    projection = Projection(rows.projection.directions, rows.projection.offsets, rows.projection.sizes)
    projection.__dict__["limit"] = np.float32(np.inf)
    return HashedRows(projection, rows.placement, rows.power, rows.buckets)


@dimensions
def test_the_edge_records_do_lie_on_edges(d: int) -> None:
    """Three coordinates reach every float64: on the edge or one away, on both sides. One stays on float32's grid."""
    rows = drawn_rows(d)
    records = edges_of(rows).astype(np.float64).tolist()
    on = below = 0
    per_part = len(records) // len(rows)
    for part, (direction, offset) in enumerate(
        zip(rows.projection.directions.tolist(), rows.projection.offsets.tolist(), strict=True)
    ):
        for record in records[part * per_part : (part + 1) * per_part]:
            s = reference.edge_sum(direction, offset, record)
            gap = s - round(s)
            assert abs(gap) < 2.0**-18 * max(1, abs(s))
            ulp = np.spacing(max(abs(s), 1.0))
            on += 0 <= gap <= ulp
            below += -ulp <= gap < 0
    if d > 1:
        assert on >= len(rows)
        assert below >= len(rows)


@engines
@dimensions
@pytest.mark.parametrize("power", (1, 2))
def test_records_on_edges_have_the_codes_of_the_definition(engine: ModuleType, d: int, power: int) -> None:
    rows = drawn_rows(d, power=power)
    records = edges_of(rows, per_part=2)
    expected = reference.buckets(rows, records)
    for i in range(len(records)):
        indices, values = engine.encode(rows, records[i : i + 1])
        assert np.array_equal(indices - np.arange(len(rows)) * rows.buckets, expected[:, i])
        assert np.all(values == 1)


@engines
def test_a_sum_that_float32_cannot_tell_from_an_edge_is_on_its_own_side(engine: ModuleType) -> None:
    """One coordinate, exact by hand: on the edge, 2^-46 below it, and a denormal below it."""
    eps = 2.0**-23
    rows = chosen_rows([[1.0], [1.0 + eps], [0.75], [1.0]], [0.0, 0.0, 0.25, 2.0**-24])
    records = np.array([[1 - eps], [1 + eps], [1.0], [-1e-45], [1e-45], [-0.0], [1 - 2**-24], [-1.0]], np.float32)
    codes = reference.codes(rows.projection, records)
    assert codes[1].tolist() == [0, 1, 1, -1, 0, 0, 1, -2]  # (1 + ε)(1 − ε) < 1, which float32 rounds to 1
    assert codes[2].tolist() == [0, 1, 1, 0, 0, 0, 0, -1]
    assert codes[3].tolist() == [0, 1, 1, 0, 0, 0, 1, -1]
    assert np.array_equal(counted(engine, rows, records, []), reference.counters(rows, records))


@engines
@dimensions
@pytest.mark.parametrize("batch", (1, 7, 1000))
def test_batches_of_any_size_count_the_same(engine: ModuleType, d: int, batch: int) -> None:
    rows = drawn_rows(d)
    records = edges_of(rows)
    cut = [*range(batch, len(records), batch)]
    assert np.array_equal(counted(engine, rows, records, cut), reference.counters(rows, records))


@engines
@dimensions
def test_any_split_and_any_order_count_the_same(engine: ModuleType, d: int, rng: np.random.Generator) -> None:
    rows = drawn_rows(d)
    records = edges_of(rows)
    expected = reference.counters(rows, records)
    for _ in range(5):
        cut = np.sort(rng.integers(0, len(records), 6)).tolist()
        assert np.array_equal(counted(engine, rows, rng.permutation(records), cut), expected)


@engines
@dimensions
def test_many_records_encode_as_they_add(engine: ModuleType, d: int, rng: np.random.Generator) -> None:
    rows = drawn_rows(d)
    edges = edges_of(rows)
    for n in (1, 63, 64, 65, 1024, 1100):  # either side of the tiles, and of the switch to dense counting
        records = edges[rng.integers(0, len(edges), n)]
        expected = reference.counters(rows, records).reshape(-1)
        indices, values = engine.encode(rows, records)
        assert np.array_equal(indices, np.flatnonzero(expected))
        assert np.array_equal(values, expected[indices])


@engines
@dimensions
def test_queries_on_edges_read_the_counters_of_the_definition(engine: ModuleType, d: int) -> None:
    rows = drawn_rows(d)
    queries = edges_of(rows)
    weights = np.random.default_rng(1).integers(0, 2**20, (len(rows), rows.buckets))
    chosen = np.take_along_axis(weights, reference.buckets(rows, queries), axis=1)
    first, total, squares = engine.sums(rows, weights, np.zeros(len(rows)), queries)
    assert np.array_equal(first, chosen[0])
    assert np.array_equal(total, (chosen - chosen[0]).sum(axis=0))
    assert np.array_equal(squares, ((chosen - chosen[0]) ** 2).sum(axis=0))


@engines
@pytest.mark.parametrize("d", (2, 3, 9, 55))
def test_records_that_cancel_or_span_every_magnitude_have_the_codes_of_the_definition(
    engine: ModuleType, d: int, rng: np.random.Generator
) -> None:
    rows = drawn_rows(d)
    signs = rng.choice([-1.0, 1.0], (200, d))
    mixed = signs * 2.0 ** rng.uniform(-140, 20, (200, d))
    cancelling = rng.uniform(-1e5, 1e5, (100, d))
    direction = rows.projection.directions[0].astype(np.float64)
    cancelling[:, 1] -= (cancelling @ direction) / direction[1]
    records = np.concatenate([mixed, cancelling, np.zeros((1, d)), np.full((1, d), 1e7)]).astype(np.float32)
    assert np.array_equal(counted(engine, rows, records, [3, 50]), reference.counters(rows, records))


@engines
@dimensions
def test_a_code_in_float32_alone_is_caught_by_the_edges(engine: ModuleType, d: int) -> None:
    rows = drawn_rows(d)
    records = edges_of(rows)
    planted = counted(engine, without_the_definition(rows), records, [])
    assert not np.array_equal(planted, reference.counters(rows, records))


@dimensions
def test_the_plain_engine_computes_few_codes_again(
    d: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, again = drawn_rows(d, parts=100), []
    usual = Projection.exact_codes

    def counting(self: Projection, which: Int64, records: Float32) -> Int64:
        again.append(len(which))
        return usual(self, which, records)

    monkeypatch.setattr(Projection, "exact_codes", counting)
    records = rng.uniform(-SIZE, SIZE, (5000, d)).astype(np.float32)
    counted(numpy_engine, rows, records, [])
    assert sum(again) < RECOMPUTED_MAX * rows.projection.directions.shape[0] * len(records)
    counted(numpy_engine, rows, edges_of(rows), [])
    assert sum(again) > len(rows)


@dimensions
def test_the_fast_engine_computes_few_codes_again(d: int, rng: np.random.Generator) -> None:
    rows = drawn_rows(d, parts=100)
    records = rng.uniform(-SIZE, SIZE, (5000, d)).astype(np.float32)
    for some, low, high in ((records, 0, RECOMPUTED_MAX), (edges_of(rows), 0.005, 1)):
        engine = compiled_engine.BucketEngine(rows)
        engine.add(slice(0, len(rows)), np.zeros((len(rows), rows.buckets), np.int64), some)
        assert engine.codes == len(rows) * len(some)
        assert low <= engine.flagged / engine.codes <= high


@pytest.mark.parametrize("bandwidth", ("2.5", "0.01"), ids=("direct", "rehashed"))
@pytest.mark.parametrize("kernels", ("plain", "fast"))
def test_a_family_places_its_records_by_the_definition(
    bandwidth: str, kernels: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    bounds = VectorRecords(3, (Fraction(0),) * 3, (Fraction(10),) * 3)
    keys = {"kernel": "euclidean", "bandwidth": bandwidth, "power": 2, "rows": 20, "buckets": 1024, "seed": 4}
    family = Hashed.from_table(Table(keys, "sketch"), bounds)
    assert family.rehashed == (bandwidth == "0.01")
    edges = reference.edge_records(family._tables.projection, rng, 4.0, per_part=2)
    records = edges[np.abs(edges).max(axis=1) <= 5.0]
    assert len(records) > 50
    total = np.zeros(family.shape, np.int64)
    family.add(total, records)
    assert np.array_equal(total, reference.counters(family._tables, records))


PROCESS = """
import numpy as np
from tests.hushsum.families.lsh import reference, test_codes
for d in test_codes.DIMENSIONS:
    rows = test_codes.drawn_rows(d)
    edges = test_codes.edges_of(rows)
    others = np.random.default_rng(3).uniform(-8, 8, (3000, d)).astype(np.float32)
    print(reference.digest(rows, np.concatenate([edges, others]), edges))
"""


def test_every_process_and_number_of_threads_gives_the_same_bytes() -> None:
    """Two threads of BLAS cut the product in another way; it is large enough here for them to start."""
    expected = []
    for d in DIMENSIONS:
        rows = drawn_rows(d)
        edges = edges_of(rows)
        others = np.random.default_rng(3).uniform(-8, 8, (3000, d)).astype(np.float32)
        expected.append(reference.digest(rows, np.concatenate([edges, others]), edges))
    for threads in ("1", "2"):
        numbers = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads)
        environment = {**os.environ, **numbers, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}
        run = subprocess.run(
            [sys.executable, "-c", PROCESS],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout.split() == expected
