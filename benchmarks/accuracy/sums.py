"""Exact kernel sums, to compare with."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum import kernels
from hushsum.families import Family

Floats = npt.NDArray[np.float64]

_THREADS: Final = 2
_BLOCK_PAIRS: Final = 1 << 17
_PART: Final = 50  # queries at once


def exact_sums(family: Family, records: Any, queries: Any) -> Floats:
    """Σ_x k(x, q) over all records, for each of m queries: (m,) float64.

    Args:
        family: Whose kernel it is.
        records: (n, d), or n sets as a CSR matrix.
        queries: (m, d), or m sets as one.
    """
    parts = [queries[start : start + _PART] for start in range(0, queries.shape[0], _PART)]
    one = _sets(records) if hasattr(records, "indptr") else _vectors(family, records)
    with ThreadPoolExecutor(_THREADS) as threads:
        return np.concatenate([*threads.map(one, parts)])


def _vectors(family: Family, records: Floats) -> Callable[[Floats], Floats]:
    points, weights = kernels.merge_equal(np.asarray(records, np.float64))

    def sums(queries: Floats) -> Floats:
        asked = np.asarray(queries, np.float64)
        return kernels.weighted_kernel_sums(family.kernel, points, weights, asked, block_pairs=_BLOCK_PAIRS)

    return sums


def _sets(records: Any) -> Callable[[Any], Floats]:
    points, weights = kernels.merge_equal_sets((records.indptr, records.indices))

    def sums(queries: Any) -> Floats:
        asked = (queries.indptr, queries.indices)
        total = np.zeros(queries.shape[0])
        # Different sets are few of all; each block of them meets every query of this part.
        for start in range(0, len(weights), _BLOCK_PAIRS // _PART):
            stop = min(start + _BLOCK_PAIRS // _PART, len(weights))
            total += weights[start:stop] @ kernels.jaccard(_cut(points, start, stop), asked)
        return total

    return sums


def _cut(sets: kernels.Sets, start: int, stop: int) -> kernels.Sets:
    starts, ids = sets
    return starts[start : stop + 1] - starts[start], ids[starts[start] : starts[stop]]
