"""The bare loops that engines are measured against do the families' own work: one that does less is no floor."""

import numpy as np
import pytest

from benchmarks import rivals, rivals_loops
from benchmarks.stopwatch import Rounds
from benchmarks.workloads import Keys, Workload, hashed
from hushsum import compiled
from hushsum.families.hermite import Hermite
from hushsum.families.lsh import numpy_engine
from hushsum.families.lsh.codes.bins import Bins
from hushsum.families.lsh.codes.minhash import MinHash
from hushsum.families.lsh.placement import Rehash
from hushsum.families.partition import Partition
from hushsum.families.sets import Sets

pytestmark = pytest.mark.skipif(not compiled.enabled(), reason="the rivals are compiled loops")
RECORDS = 500


def workload(rng: np.random.Generator, dim: int, keys: Keys) -> Workload:
    return Workload("random", keys, rng.uniform(0, 255, (RECORDS, dim)))


def counters_of(given: Workload) -> rivals.Int64:
    counters = np.zeros(given.family.shape, np.int64)
    given.family.add(counters, given.vectors(RECORDS))
    return counters


@pytest.mark.parametrize("dim", [2, 5])
def test_the_loops_of_random_binning_give_the_buckets_but_for_rounding(rng: np.random.Generator, dim: int) -> None:
    given = workload(rng, dim, hashed("laplacian", bandwidth=20, rows=16, buckets=32))
    tables, records = rivals.rows_of(given.hashed), given.vectors(RECORDS)
    assert isinstance(tables.code, Bins)
    assert isinstance(tables.placement, Rehash)
    parameters = (tables.code.inverses, tables.code.offsets, tables.placement.multipliers, 64 - tables.placement.bits)
    columns, h = np.ascontiguousarray(records.T), np.empty(RECORDS, np.uint64)
    for loop in (rivals_loops.mixed_bins, rivals_loops.mixed_bin_pairs):
        buckets = np.empty((16, RECORDS), np.uint32)
        loop(columns, *parameters, h, buckets)
        assert np.mean(buckets == rivals.ready_buckets(given.hashed, records)) > 0.999


def test_the_loop_of_minhash_gives_the_codes(rng: np.random.Generator) -> None:
    sets = [np.sort(rng.choice(1000, size, replace=False)).astype(np.uint32) for size in (1, 3, 40)]
    ids, starts = np.concatenate(sets), np.cumsum([0, *map(len, sets)])
    from scipy import sparse

    matrix = sparse.csr_matrix((np.ones(len(ids), np.int8), ids, starts), (3, 1000))
    keys = hashed("jaccard", minhash="full", rows=rivals_loops.LANES, buckets=1000)
    code = rivals.rows_of(Workload("sets", keys, matrix).hashed).code
    assert isinstance(code, MinHash)
    order, least = code.order, np.empty((3, len(code)), np.uint32)
    rivals_loops.least_mixed(starts, order.mixed(ids), order.keys, order.first, order.second, least)
    codes = numpy_engine.coder(code).codes(slice(0, len(code)), Sets(starts, ids))
    assert all(np.array_equal(order.ids(row, least[:, row]), codes[row]) for row in range(len(code)))


def test_the_loops_of_moments_add_and_read_the_same_but_for_rounding(rng: np.random.Generator) -> None:
    given = workload(rng, 2, {"family": "hermite", "kernel": "gaussian", "bandwidth": 40, "order": 4})
    assert isinstance(given.family, Hermite)
    grid, records, expected = given.family._grid, given.vectors(RECORDS), counters_of(given)
    counters, strides = np.zeros_like(expected), np.array(grid.strides)
    rivals_loops.add_moments(records, grid.lower, grid.width, strides, grid.order, float(grid.scale), counters)
    assert np.abs(counters - expected).max() <= 2
    read, cutoff, counts = np.empty(RECORDS), float(given.family.cutoff), np.array(grid.cells)
    rivals_loops.read_moments(records, grid.lower, grid.width, counts, grid.order, cutoff, expected, read)
    answers = given.family.answer(expected, given.values).value
    assert np.allclose(read / grid.scale, answers, rtol=1e-3)


@pytest.mark.parametrize("bandwidth", [60, 3])
def test_the_loops_of_signs_add_and_read_the_same(rng: np.random.Generator, bandwidth: int) -> None:
    given = workload(rng, 2, {"family": "partition", "bandwidth": bandwidth, "rows": 8, "buckets": 64})
    assert isinstance(given.family, Partition)
    tables, records, expected = given.family.tables, given.vectors(RECORDS), counters_of(given)
    assert tables.grid is not None
    words, hashes = np.empty((2, RECORDS), np.uint32), tables.levels[0]
    rivals_loops.grid_words(records, tables.grid.lower, tables.grid.side, words)
    parameters = (hashes.places, hashes.signs, hashes.shift)
    counters, sums = np.zeros_like(expected), np.zeros(RECORDS, np.int64)
    rivals_loops.add_signs(words, *parameters, counters)
    assert np.array_equal(counters, expected)
    rivals_loops.read_signs(words, *parameters, expected, sums)
    assert np.allclose(sums / 8, given.family.answer(expected, given.values).value)


@pytest.mark.parametrize("dim", [4, 8, 64])
def test_a_rotation_is_three_signed_hadamard_matrices(rng: np.random.Generator, dim: int) -> None:
    from scipy.linalg import hadamard

    signs, columns = rng.choice(np.array([-1, 1], np.float32), (3, dim)), rng.normal(size=(dim, 3)).astype(np.float32)
    expected = columns.astype(np.float64)
    for turn in signs:
        expected = hadamard(dim) @ (turn[:, None] * expected)
    rivals_loops.rotate(columns, signs)
    assert np.allclose(columns, expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max())


def test_ratios_compare_cases_within_a_round() -> None:
    done: list[str] = []
    rounds = Rounds({"a": lambda: done.append("a"), "b": lambda: done.append("b")}, repeats=2)
    assert done == ["a", "b"] * 3
    assert rounds.ratio(["a", "b"], ["a", "b"]) == 1
