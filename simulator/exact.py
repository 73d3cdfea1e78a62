"""Exact kernel sums of all records, to compare with: the one thing that needs the records themselves."""

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from hushsum import kernels
from hushsum.plan import Plan
from simulator.progress import Bar
from simulator.records import Floats

_TABLE_MAX: Final = 1 << 22
_PAIRS_MAX: Final = 1 << 29  # without a table: about 40 ns each
_BLOCK_PAIRS: Final = 1 << 18
_TABLE_POINTS: Final = 2048  # blocks that stay in a core's own cache
_TABLE_QUERIES: Final = 16
_THREADS: Final = 2
_PARTS: Final = 50


class ExactSums:
    """Σ_x k(x, q) over all records, for any queries.

    Args:
        plan: Whose kernel it is, and whose bounds records are clipped to, as its sketches do.
        values: (n, d) records; those with NaN or infinity are left out.
    """

    def __init__(self, plan: Plan, values: Floats) -> None:
        self._plan = plan
        usable = clip(plan, values[np.isfinite(values).all(axis=1)])
        self.records = len(usable)
        self._points, self._weights = kernels.merge_equal(usable)
        self._table = _table(plan, self._points)

    def affordable(self, queries: int) -> int:
        """How many of so many queries can be compared within seconds: all, but for large files of real numbers."""
        if self._table is not None:
            return queries
        return min(queries, max(1, _PAIRS_MAX // max(1, len(self._points))))

    def at(self, queries: Floats, bar: Bar) -> Floats:
        """The sums at (m, d) queries: (m,) float64."""
        parts = np.array_split(queries, max(1, min(_PARTS, len(queries))))
        on_grid = self._table is not None and bool(np.all(queries == np.rint(queries)))
        lower, upper = self._points.min(initial=0.0), self._points.max(initial=0.0)
        on_grid = on_grid and bool(lower <= queries.min() and queries.max() <= upper)
        sums: list[Floats] = []
        with ThreadPoolExecutor(_THREADS) as threads:
            for part in threads.map(self._by_table if on_grid else self._by_kernel, parts):
                sums.append(part)
                bar(sum(map(len, sums)))
        return np.concatenate(sums)

    def _by_kernel(self, queries: Floats) -> Floats:
        kernel = self._plan.family.kernel
        return kernels.weighted_kernel_sums(kernel, self._points, self._weights, queries, block_pairs=_BLOCK_PAIRS)

    def _by_table(self, queries: Floats) -> Floats:
        assert self._table is not None, "looked at before"
        # ‖p − q‖² = (−2p, ‖p‖², 1)·(q, 1, ‖q‖²): one product of matrices. float32 holds every integer below 2^24
        # exactly, and so all that comes up in it.
        points, asked = self._points.astype(np.float32), queries.astype(np.float32)
        left = np.column_stack([asked, np.ones(len(asked), np.float32), np.einsum("ij,ij->i", asked, asked)])
        right = np.vstack([-2.0 * points.T, np.einsum("ij,ij->i", points, points), np.ones(len(points), np.float32)])
        sums = np.zeros(len(queries))
        for start in range(0, len(points), _TABLE_POINTS):
            block = np.ascontiguousarray(right[:, start : start + _TABLE_POINTS])
            weights = self._weights[start : start + _TABLE_POINTS]
            for first in range(0, len(queries), _TABLE_QUERIES):
                squared = (left[first : first + _TABLE_QUERIES] @ block).astype(np.int32)
                sums[first : first + _TABLE_QUERIES] += np.take(self._table, squared, mode="clip") @ weights
        return sums


def clip(plan: Plan, points: Floats) -> Floats:
    """Points (n, d) within the plan's public bounds."""
    lower, upper = ([float(bound) for bound in bounds] for bounds in (plan.vectors.lower, plan.vectors.upper))
    return np.clip(points, lower, upper)


def _table(plan: Plan, points: Floats) -> Floats | None:
    """The kernel at every squared distance that integers can have; None where coordinates are no small integers.

    Of pixels, every squared distance is an integer below 200,000: the kernel is evaluated once for each instead of once
    for each of hundreds of millions of pairs, with the same result.
    """
    fields = plan.family.to_fields()
    if fields.get("kernel") != "euclidean" or "transforms" in fields:  # else a distance does not decide
        return None
    if np.any(points != np.rint(points)) or not len(points):
        return None
    dim = points.shape[1]
    lower, upper = points.min(), points.max()
    largest = dim * (upper - lower) ** 2
    if max(largest, 4 * dim * max(abs(lower), abs(upper)) ** 2) >= _TABLE_MAX:
        return None
    at = np.zeros((int(largest) + 1, dim))
    at[:, 0] = np.sqrt(np.arange(len(at)))
    origin = clip(plan, np.zeros((1, dim)))  # the kernel clips records to the bounds
    kernel: Floats = plan.family.kernel(origin, origin + at)[0]
    return kernel
