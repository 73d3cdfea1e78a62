"""Synthetic records from a release of the partition family: public post-processing, at no privacy cost.

A heavy cell is picked in proportion to its estimated records, then a point of it, uniformly (Density Sketches,
sampling). Cells of few records are left out: their estimates are noise.
"""

import math
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from hushsum import query
from hushsum.errors import PlanError
from hushsum.families.partition import Partition
from hushsum.families.partition import heavy_hitters as partition_heavy
from hushsum.families.partition.heavy_hitters import HeavyCells
from hushsum.releases import Release

Floats = npt.NDArray[np.float64]
_BLOCK_RECORDS: Final = 1 << 16


class Uniforms(Protocol):
    """What draws the records: a NumPy ``Generator``. Nothing private depends on it."""

    def random(self, size: tuple[int, int]) -> Floats:
        """Uniform numbers in [0, 1)."""
        ...


def heavy_cells(
    release: Release,
    *,
    label: str | None = None,
    least: float = 0.0,
    deviations: float = 4.0,
    cells_max: int = partition_heavy.CELLS_MAX,
) -> HeavyCells:
    """The heavy cells of a release.

    Args:
        release: Of the family ``partition`` with ``cells = "grid"``.
        label: Of the class; None: all of them together, whose noise adds up.
        least: Records from which a cell is heavy.
        deviations: See :class:`hushsum.families.partition.heavy_hitters.HeavyThreshold`.
        cells_max: At most so many cells of a level are looked at.

    Raises:
        PlanError: Another family, or other cells.
        RecordError: The plan has no such class.
        ValueError: See :func:`hushsum.families.partition.heavy_hitters.heavy_cells`.
    """
    family, plan, counters = _partition(release), release.plan, release.counters
    chosen = counters[query.classes_of(plan, label)]
    return partition_heavy.heavy_cells(
        family,
        chosen.sum(axis=0),
        noise_std=math.sqrt(len(chosen) * query.noise_variance(plan, draws=release.draws)),
        least=least,
        deviations=deviations,
        cells_max=cells_max,
    )


def synthetic_records(release: Release, cells: HeavyCells, n: int, rng: Uniforms) -> Floats:
    """Records that are distributed as heavy cells are, uniformly within each.

    Args:
        release: Whose cells they are.
        cells: Those that :func:`heavy_cells` found in it.
        n: How many records.
        rng: A NumPy generator.

    Returns:
        (n, d) float64 within the bounds, in the unit of the plan's bounds.

    Raises:
        PlanError: Another family, other cells, or transforms other than ``scale``, which cannot be undone.
        ValueError: ``n`` is negative, or no cell is heavy.
    """
    family = _partition(release)
    factors, weights = family.transforms.factors(family.record.dim), np.add.accumulate(np.maximum(cells.counts, 0.0))
    if n < 0:
        raise ValueError(f"n: got {n}, expected an integer from 0")
    if not len(cells) or not weights[-1] > 0:
        raise ValueError("no heavy cell: decrease least or deviations, or collect more records")
    last = int(np.flatnonzero(cells.counts > 0)[-1])  # where u·total is rounded up to the total
    records = np.empty((n, len(factors)))
    for start in range(0, n, _BLOCK_RECORDS):
        uniforms = rng.random((min(_BLOCK_RECORDS, n - start), 1 + len(factors)))
        picked = np.minimum(np.searchsorted(weights, uniforms[:, 0] * weights[-1], side="right"), last)
        lower, upper = cells.lower[picked], cells.upper[picked]
        records[start : start + len(picked)] = (lower + uniforms[:, 1:] * (upper - lower)) / factors
    low, high = (np.array([float(end) for end in ends]) for ends in (family.record.lower, family.record.upper))
    return np.asarray(np.clip(records, low, high), np.float64)


def _partition(release: Release) -> Partition:
    family = release.plan.family
    if not isinstance(family, Partition):
        raise PlanError("sketch.family", family.name, "'partition'")
    if family.cells != "grid":
        raise PlanError("sketch.cells", family.cells, "'grid'")
    return family
