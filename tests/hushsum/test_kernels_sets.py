"""Jaccard similarity of sets, and exact sums over sets, against Python's own sets."""

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushsum import kernels
from hushsum.kernels import Sets, sets

Floats = npt.NDArray[np.float64]
IDS = st.integers(0, 12) | st.sampled_from([-(2**63), -1, 2**40, 2**63 - 1])
MANY = st.lists(st.frozensets(IDS, max_size=8), max_size=12)


def packed(many: list[frozenset[int]], dtype: npt.DTypeLike = np.int64) -> Sets:
    starts = np.concatenate([[0], np.cumsum([len(one) for one in many], dtype=np.int64)]).astype(np.int64)
    return starts, np.array([i for one in many for i in sorted(one)], dtype)


def similarity(a: frozenset[int], b: frozenset[int]) -> float:
    return len(a & b) / len(a | b) if a | b else 1.0


def some_sets(n: int, rng: np.random.Generator) -> list[frozenset[int]]:
    return [frozenset(rng.integers(0, 40, rng.integers(0, 12)).tolist()) for _ in range(n)]


@given(MANY, MANY)
def test_jaccard_is_that_of_the_definition(a: list[frozenset[int]], b: list[frozenset[int]]) -> None:
    expected = np.array([[similarity(x, y) for y in b] for x in a]).reshape(len(a), len(b))
    assert np.array_equal(kernels.jaccard(packed(a), packed(b)), expected)
    assert np.array_equal(kernels.jaccard(packed(a), packed(b), 3), expected**3)


@pytest.mark.parametrize("most", (1, 7, 100))
def test_blocks_of_any_size_give_the_same(most: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = packed(some_sets(60, rng)), packed(some_sets(50, rng))
    whole = kernels.jaccard(a, b)
    monkeypatch.setattr(sets, "_MATCHES_MAX", most)
    assert np.array_equal(kernels.jaccard(a, b), whole)
    monkeypatch.setattr(sets, "_PAIRS_MAX", most)
    assert np.array_equal(kernels.jaccard(a, b), whole)


@pytest.mark.parametrize("dtype", (np.uint8, np.int32, np.uint64))
def test_ids_of_any_integer_type_are_the_same_ids(dtype: npt.DTypeLike, rng: np.random.Generator) -> None:
    a, b = some_sets(20, rng), some_sets(20, rng)
    assert np.array_equal(kernels.jaccard(packed(a, dtype), packed(b)), kernels.jaccard(packed(a), packed(b)))


@pytest.mark.statistical
def test_jaccard_is_the_collision_probability_of_min_hash(rng: np.random.Generator) -> None:
    draws = 200_000
    a, b = frozenset(range(12)), frozenset(range(4, 20))
    ranks = rng.random((draws, 20))
    same = ranks[:, sorted(a)].min(axis=1) == ranks[:, sorted(b)].min(axis=1)
    error = 6.0 * float(same.std()) / math.sqrt(draws)  # a false alarm in 2e-9 of the runs
    expected = float(kernels.jaccard(packed([a]), packed([b]))[0, 0])
    assert abs(same.mean() - expected) < error
    assert abs(same.mean() - 1.05 * expected) > error


@pytest.mark.parametrize(
    ("starts", "ids", "what"),
    (
        ([0, 2], [1, 2, 3], "number of ids, 3"),
        ([1, 3], [1, 2, 3], "from 0"),
        ([], [], "from 0"),
        ([0, 3, 2, 3], [1, 2, 3], "ascend"),
        ([0, 3], [1, 1, 2], "different ids in ascending order"),
        ([0, 1, 3], [1, 3, 2], "different ids in ascending order"),
        ([0, 1], [1.0], "float64"),
        ([[0, 1]], [1], "one dimension"),
        ([0, 1], np.array([2**63], np.uint64), r"below 2\^63"),
    ),
)
def test_what_is_no_sets_is_refused(starts: list[int], ids: list[int], what: str) -> None:
    good = packed([frozenset([1])])
    bad = np.array(starts, np.int64), np.asarray(ids if len(ids) else np.empty(0, np.int64))
    with pytest.raises(ValueError, match=what):
        kernels.jaccard(bad, good)
    with pytest.raises(ValueError, match=what):
        kernels.jaccard(good, bad)
    with pytest.raises(ValueError, match=what):
        kernels.set_kernel_sums(kernels.jaccard, good, bad)


@pytest.mark.parametrize("block_pairs", (1, 7, 64, 1000, 1 << 20))
def test_set_kernel_sums_are_the_direct_sums_in_blocks_of_any_size(block_pairs: int, rng: np.random.Generator) -> None:
    records, queries = some_sets(70, rng) * 2, some_sets(9, rng)
    sums = kernels.set_kernel_sums(kernels.jaccard, packed(records), packed(queries), block_pairs=block_pairs)
    expected = [math.fsum(similarity(x, q) for x in records) for q in queries]
    assert np.allclose(sums, expected, rtol=1e-13, atol=0)


def test_the_order_of_the_sets_changes_no_bit_and_equal_ones_are_evaluated_once(rng: np.random.Generator) -> None:
    evaluated = []

    def kernel(a: Sets, b: Sets) -> Floats:
        evaluated.append(len(a[0]) - 1)
        return kernels.jaccard(a, b)

    records, queries = [*some_sets(40, rng), frozenset(), frozenset()] * 3, packed(some_sets(5, rng))
    sums = kernels.set_kernel_sums(kernel, packed(records), queries)
    assert sum(evaluated) == len(set(records))
    shuffled = [records[i] for i in rng.permutation(len(records))]
    assert sums.tobytes() == kernels.set_kernel_sums(kernel, packed(shuffled), queries).tobytes()


def test_merged_sets_are_the_sets_with_their_counts(rng: np.random.Generator) -> None:
    records = some_sets(30, rng) * 2 + some_sets(30, rng)
    (starts, ids), weights = kernels.merge_equal_sets(packed(records))
    merged = [frozenset(ids[a:b].tolist()) for a, b in pairwise(starts.tolist())]
    assert dict(zip(merged, weights.tolist(), strict=True)) == {one: records.count(one) for one in records}


def test_sums_over_no_sets_are_nothing() -> None:
    none, two = packed([]), packed([frozenset([1]), frozenset()])
    assert kernels.set_kernel_sums(kernels.jaccard, none, two).tolist() == [0.0, 0.0]
    assert kernels.set_kernel_sums(kernels.jaccard, two, none).shape == (0,)
