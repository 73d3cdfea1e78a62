"""Plans that would draw more than fits into memory are refused with the rows that would do."""

import re
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from hushsum.errors import PlanError
from hushsum.families import Hashed
from hushsum.families.base import VectorRecords
from hushsum.families.fourier import Fourier
from hushsum.families.limits import NUMBERS_MAX
from hushsum.families.lsh.placement import direct
from hushsum.families.paired import Paired
from hushsum.families.partition import Partition
from hushsum.schema import Table

BUCKETS: dict[str, object] = {"buckets": 2}
CASES: tuple[tuple[Any, int, dict[str, object]], ...] = (
    (Hashed, 1000, {"kernel": "euclidean", "bandwidth": 1000, **BUCKETS}),
    (Hashed, 200, {"kernel": "angular", "power": 5, **BUCKETS}),
    (Hashed, 1000, {"kernel": "euclidean", "bandwidth": 1000, "draws": "orthogonal", **BUCKETS}),
    (Hashed, 1000, {"kernel": "manhattan", "bandwidth": 10**6, **BUCKETS}),
    (Hashed, 1000, {"kernel": "laplacian", "bandwidth": 1000, **BUCKETS}),
    (Hashed, 500, {"kernel": "euclidean", "bandwidth": 1000, "draws": "sobol", "sobol_sets": 2, **BUCKETS}),
    (Fourier, 1000, {"kernel": "gaussian", "bandwidth": 1}),
    (Fourier, 1000, {"kernel": "exponential-p", "bandwidth": 1000, "exponent": "1.5"}),
    (Fourier, 400, {"kernel": "gaussian", "bandwidth": 1, "draws": "orthogonal"}),
    (Paired, 1000, {"power": 8, "form": "orthogonal"}),
    (Partition, 1000, {"cells": "grid", "bandwidth": 1, **BUCKETS}),
    (Partition, 1000, {"cells": "lsh", "bandwidth": 1000, "power": 2, **BUCKETS}),
)


def plan(kind: Any, dim: int, rows: int, keys: dict[str, object]) -> Any:
    record = VectorRecords(dim, (Fraction(-1),) * dim, (Fraction(1),) * dim)
    return kind.from_table(Table({**keys, "rows": rows}, "sketch"), record)


@pytest.mark.parametrize("kind, dim, keys", CASES)
def test_more_draws_than_memory_are_refused_with_the_rows_that_would_do(
    kind: Any, dim: int, keys: dict[str, object]
) -> None:
    with pytest.raises(PlanError, match=r"sketch\.rows") as caught:
        plan(kind, dim, 2**17, keys)
    step = dim if keys.get("draws") == "orthogonal" else 2  # rows are a multiple of it
    most = int(re.search(r"at most (\d+)", str(caught.value))[1])  # type: ignore[index]  # there is one, or the test fails
    assert plan(kind, dim, most - most % step, keys).rows <= most
    assert NUMBERS_MAX / 64 <= most * dim < NUMBERS_MAX
    with pytest.raises(PlanError, match=r"sketch\.rows"):
        plan(kind, dim, most - most % step + step, keys)


@pytest.mark.parametrize("kind, dim, keys", CASES)
def test_plans_of_pictures_are_taken(kind: Any, dim: int, keys: dict[str, object]) -> None:
    """Two thousand rows of 784 coordinates, or of as many as there may be."""
    dim = min(dim, 784)
    rows = 2000 - 2000 % dim if keys.get("draws") == "orthogonal" else 2000
    assert plan(kind, dim, rows, keys).rows == rows


def test_orthogonal_rows_of_many_coordinates_take_too_long() -> None:
    keys = {"kernel": "angular", "draws": "orthogonal", **BUCKETS}
    with pytest.raises(PlanError, match=r"sketch\.rows.*at most 128\b"):
        plan(Hashed, 4096, 129, keys)
    assert plan(Hashed, 4096, 128, keys).rows == 128


def test_groups_are_at_most_64_and_share_65536_columns() -> None:
    hashed: dict[str, object] = {"kernel": "angular"}
    groups = [{"columns": [0, 1], **hashed}] * 64
    assert len(plan(Hashed, 2, 4, {"groups": groups, **BUCKETS}).product.groups) == 64
    with pytest.raises(PlanError, match=r"sketch\.groups.*at most 64 groups"):
        plan(Hashed, 2, 4, {"groups": [*groups, groups[0]], **BUCKETS})
    wide = {"columns": list(range(40_000)), **hashed}
    with pytest.raises(PlanError, match=r"sketch\.groups.*at most 65536 in all"):
        plan(Hashed, 40_000, 4, {"groups": [wide, wide], **BUCKETS})


def test_codes_whose_product_overflows_do_not_fit_and_warn_of_nothing() -> None:
    least, largest = np.zeros((1, 200), np.int64), np.full((1, 200), 2**31, np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert direct(least, largest, 2**24) is None
