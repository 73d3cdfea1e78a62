"""Medians of means: which groups there may be, in every family alike, and the same bytes in every batch."""

import math
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from hushsum.families import Hashed
from hushsum.families.base import SetRecords, VectorRecords
from hushsum.families.estimators import SparseMedianWarning, checked_groups, median_of_means
from hushsum.families.fourier import Fourier
from hushsum.families.paired import Paired
from hushsum.families.partition import Partition
from hushsum.schema import Table

ROWS = 12
KEYS: dict[str, tuple[Any, dict[str, object]]] = {
    "hashed": (Hashed, {"kernel": "euclidean", "bandwidth": 2, "buckets": 16}),
    "fourier": (Fourier, {"kernel": "gaussian", "bandwidth": 2}),
    "paired": (Paired, {"form": "orthogonal"}),
    "partition": (Partition, {"cells": "grid", "bandwidth": 1, "buckets": 16}),
}


def built(name: str) -> tuple[Any, int]:
    """A family of three coordinates, and those of its queries."""
    kind, keys = KEYS[name]
    record = VectorRecords(3, (Fraction(-4),) * 3, (Fraction(4),) * 3)
    return kind.from_table(Table({"rows": ROWS, "seed": 5, **keys}, "sketch"), record), 2 if name == "paired" else 3


@pytest.mark.parametrize("name", KEYS)
def test_what_is_no_integer_from_one_to_the_rows_is_refused(name: str) -> None:
    family, dim = built(name)
    refused: tuple[Any, ...] = (0, -1, ROWS + 1, 2.5, 2.0, True, False, "a", "2", np.float64(2), math.nan, (2,))
    for groups in refused:
        with pytest.raises(ValueError, match=rf"groups: got .*, expected an integer from 1 to the {ROWS} rows"):
            family.answer(np.zeros(family.shape, np.int64), np.zeros((1, dim)), groups=groups)


def test_integers_of_numpy_are_integers() -> None:
    assert [checked_groups(kind(3), 3) for kind in (int, np.int8, np.uint64)] == [3, 3, 3]


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("groups", (1, 2, 5, 11, ROWS))
def test_a_median_has_the_same_bytes_alone_and_among_forty(name: str, groups: int, rng: np.random.Generator) -> None:
    family, dim = built(name)
    counters, queries = rng.integers(-1000, 1000, family.shape) * 999_983, rng.uniform(-4, 4, (40, dim))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SparseMedianWarning)
        together = family.answer(counters, queries, groups=groups)
        alone = [family.answer(counters, query[None], groups=groups) for query in queries]
    for part in ("value", "std_error"):
        assert np.concatenate([getattr(one, part) for one in alone]).tobytes() == getattr(together, part).tobytes()
    assert together.spread == "groups"
    assert np.isnan(together.std_error).all() == (groups == 1)


def test_medians_and_errors_are_the_usual_ones(rng: np.random.Generator) -> None:
    for groups in (2, 3, 8, 9):
        means = rng.normal(1e6, 1.0, (groups, 50))
        value, error = median_of_means(means, 4)
        assert np.array_equal(value, np.median(means, axis=0))
        factor = math.sqrt(math.pi / 2) if groups > 2 else 1.0
        assert np.allclose(error, means.std(axis=0, ddof=1) / math.sqrt(groups) * factor, rtol=1e-9)


def test_sums_of_many_groups_do_not_depend_on_the_number_of_queries(rng: np.random.Generator) -> None:
    """NumPy's own sum of 1,000 numbers would: pairwise where they lie in a row, one after the other elsewhere."""
    means = rng.normal(size=(1000, 40))
    together = median_of_means(means, 1)[1]
    alone = [median_of_means(np.ascontiguousarray(means[:, j : j + 1]), 1)[1] for j in range(40)]
    assert np.concatenate(alone).tobytes() == together.tobytes()
    columns = [np.ascontiguousarray(means[:, j : j + 1]).std(axis=0, ddof=1) for j in range(40)]
    assert np.concatenate(columns).tobytes() != means.std(axis=0, ddof=1).tobytes()


def test_rows_of_one_permutation_have_no_median() -> None:
    keys = {"kernel": "jaccard", "rows": 8, "buckets": 16, "minhash": "one-permutation"}
    family = Hashed.from_table(Table(keys, "sketch"), SetRecords(100))
    with pytest.raises(ValueError, match="one-permutation rows are dependent"):
        family.answer(np.zeros(family.shape, np.int64), [[1, 2]], groups=2)
