"""Densities from a partition sketch of grid cells (Density Sketches: count over n·volume)."""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hushsum.families.base import Answer, Counters
from hushsum.families.partition import Partition


def volumes(family: Partition, queries: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """(m,): the volume of the cell of each query (m, d), cut at the bounds; NaN beyond them, where there is none.

    In the unit of the transformed records.

    Raises:
        RecordError: The queries' type or dimension is wrong, or one is not finite.
        ValueError: LSH cells have no volume.
    """
    grid = family.tables.grid
    if grid is None:
        raise ValueError("not supported for cells = 'lsh', because these cells have no volume; use cells = 'grid'")
    points = family.space.queries(queries)
    low, high = grid.corners(grid.codes(points))
    return np.where(grid.inside(points), np.prod(high - low, axis=1), np.nan)


def density(
    family: Partition,
    counters: Counters,
    queries: npt.ArrayLike,
    records: float,
    *,
    noise_variance: float,
    groups: int | None = None,
) -> Answer:
    """Estimates of the probability density at queries: a cell's records over n·volume, 0 beyond the bounds.

    It reads one level of the cells. Releases do not use it: :func:`hushsum.query.density` answers for them.

    Args:
        family: Of grid cells.
        counters: (H·R, W), noised.
        queries: (m, d).
        records: n, noised like the counters; taken as at least 1.
        noise_variance: Of the noise on every counter and on n, 0 where there is none.
        groups: See :meth:`Partition.answer`.

    Returns:
        Whose standard error holds that of n too: of a quotient, to the first order.

    Raises:
        RecordError: See :func:`volumes`.
        ValueError: See :func:`volumes` and :meth:`Partition.answer`.
    """
    found, n = volumes(family, queries), max(records, 1.0)
    answer = family.answer(counters, queries, noise_variance=noise_variance, groups=groups)
    whole = np.where(np.isnan(found), 1.0, found) * n
    error = np.hypot(answer.std_error, answer.value * (math.sqrt(noise_variance) / n))
    return replace(answer, value=answer.value / whole, std_error=error / whole)
