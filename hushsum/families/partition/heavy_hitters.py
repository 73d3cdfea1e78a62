"""Heavy cells of a grid from noised counters: descent of its dyadic levels over the bounded domain.

The coarsest level that is sketched is looked at whole; of every other one only the 2^d children of heavy cells are.
Levels whose cells do not collide are made consistent first (:mod:`hushsum.families.partition.consistency`). All of it
is post-processing of what is released. (Cormode and Hadjieleftheriou 2008, section 3, describe the hierarchy.)
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from hushsum.families.lsh.arrays import Float64, Int64
from hushsum.families.partition import Partition
from hushsum.families.partition.cells import CellGrid
from hushsum.families.partition.consistency import ConsistentCells, consistent
from hushsum.families.partition.count_sketch import PartitionRows

#: Cells of a level that are looked at unless the caller allows more.
CELLS_MAX: Final = 2**24
_BLOCK_NUMBERS: Final = 1 << 18
_DEVIATIONS_MAX: Final = 10.0
_ROWS_ENOUGH: Final = 99  # the median of more rows errs less


@dataclass(frozen=True)
class HeavyThreshold:
    """From which estimate on a cell is heavy.

    Attributes:
        noise_std: The standard deviation of the noise on each counter, at least 0.
        least: Records of a heavy cell, at least 0.
        deviations: From 0 to 10. An empty cell's estimate is as large no more often than a normal variable is beyond so
            many of its standard deviations. One row of discrete Laplace noise without collisions has wider tails:
            0.17 % of the empty cells pass 4 deviations, 0.04 % pass 5.
    """

    noise_std: float
    least: float
    deviations: float

    def __post_init__(self) -> None:
        for name, most in (("noise_std", math.inf), ("least", math.inf), ("deviations", _DEVIATIONS_MAX)):
            value = getattr(self, name)
            if not (0 <= value <= most and math.isfinite(value)):
                raise ValueError(f"{name}: got {value}, expected a number from 0 to {most}")

    def of(self, rows: PartitionRows, counters: Int64, level: int, cells: ConsistentCells | None = None) -> float:
        """The least estimate at a level, whose estimates are those of ``cells`` where it has them.

        Above level 0 ``least`` gives way, so that no cell well above it is lost with its parent.
        """
        if cells is not None and level >= cells.first:
            error = self.deviations * math.sqrt(float(cells.variances[level - cells.first].max()))
        else:
            error = self._error(rows, counters, level)
        return max(self.least - (error if level else 0.0), error)

    def _error(self, rows: PartitionRows, counters: Int64, level: int) -> float:
        """What an empty cell's estimate of this level alone rarely exceeds.

        Without collisions that is the noise of a mean of R rows. Else row r holds sign·C of a bucket that others fill,
        and the median of R of them exceeds t only where half of the rows do, each with probability ½·P(|C| > t), which
        the noised counters of the level tell. No moment would: a few full cells make most of Σc².
        """
        if rows.levels[level].direct:
            return self.deviations * self.noise_std / math.sqrt(len(rows))
        own = np.abs(counters[level * len(rows) : (level + 1) * len(rows)]).reshape(-1)
        above = int(2.0 * _row_probability(min(len(rows), _ROWS_ENOUGH), self.deviations) * own.size)
        if above >= own.size:
            return 0.0
        if not above and own.any():
            cells = math.prod(rows.grid.level_counts(level).tolist()) if rows.grid else 0
            raise ValueError(
                f"the {cells:,} cells of level {level} share {rows.buckets:,} buckets in {len(rows)} "
                f"row{'s' * (len(rows) > 1)}, too few to detect heavy cells at {self.deviations:g} deviations: "
                "use a plan with as many buckets as cells, or with more rows"
            )
        return float(np.partition(own, own.size - 1 - above)[own.size - 1 - above]) + 0.5


@dataclass(frozen=True, eq=False)
class HeavyCells:
    """Cells of level 0, the fullest first.

    Attributes:
        codes: (k, d) int64: their numbers along each axis.
        lower: (k, d) float64: their lower corners, in the unit of the transformed records.
        upper: (k, d) float64: their upper corners, cut at the bounds.
        counts: (k,) float64: their estimated records.
        threshold: The estimate from which a cell is here.
    """

    codes: Int64
    lower: Float64
    upper: Float64
    counts: Float64
    threshold: float

    def __len__(self) -> int:
        """k."""
        return len(self.codes)


def heavy_cells(
    family: Partition,
    counters: Int64,
    *,
    noise_std: float = 0.0,
    least: float = 0.0,
    deviations: float = 4.0,
    cells_max: int = CELLS_MAX,
) -> HeavyCells:
    """Cells of level 0 with many records, found from the coarsest level down.

    Args:
        family: Of grid cells.
        counters: (H·R, W), noised.
        noise_std: The standard deviation of the noise on each counter.
        least: Records from which a cell is heavy.
        deviations: See :class:`HeavyThreshold`.
        cells_max: At most so many cells of a level are looked at.

    Raises:
        ValueError: More would have to be looked at, an argument is out of range, or cells share so few counters that
            none of them can be told to be heavy.
    """
    rows, grid = family.tables, family.tables.grid
    if grid is None:
        raise ValueError("not supported for cells = 'lsh', which has no levels; use cells = 'grid'")
    if counters.shape != family.shape:
        raise ValueError(f"counters: got shape {counters.shape}, expected {family.shape}")
    counters = np.ascontiguousarray(counters, np.int64)
    threshold, top = HeavyThreshold(noise_std, least, deviations), len(rows.levels) - 1
    _refuse_top(grid, top, cells_max)
    cells = consistent(rows, counters, noise_variance=noise_std**2)
    codes, counts, asked = _kept(rows, counters, top, grid.all_codes(top), threshold, cells)
    for level in range(top - 1, -1, -1):
        if len(codes) << family.space.dim > cells_max:
            raise ValueError(
                f"{len(codes)} heavy cells of level {level + 1} have 2^{family.space.dim} children each, more than "
                f"cells_max = {cells_max}: increase least, deviations or cells_max"
            )
        codes, counts, asked = _kept(
            rows, counters, level, _children(codes, grid.level_counts(level)), threshold, cells
        )
    order = np.lexsort((*codes.T[::-1], -counts))
    codes, counts = codes[order], counts[order]
    return HeavyCells(codes, *grid.corners(codes), counts, asked)


def _row_probability(rows: int, deviations: float) -> float:
    """The p with which at least half of the rows do what each does with probability p, as rarely as such a normal."""
    wanted, half = 0.5 * math.erfc(deviations / math.sqrt(2.0)), (rows + 1) // 2
    low, high = 0.0, 0.5
    for _ in range(60):
        p = 0.5 * (low + high)
        tail = math.fsum(math.comb(rows, k) * p**k * (1.0 - p) ** (rows - k) for k in range(half, rows + 1))
        low, high = (p, high) if tail <= wanted else (low, p)
    return low


def _kept(
    rows: PartitionRows,
    counters: Int64,
    level: int,
    candidates: Iterator[Int64],
    threshold: HeavyThreshold,
    cells: ConsistentCells | None,
) -> tuple[Int64, Float64, float]:
    """Codes (k, d), estimates (k,) of the heavy ones of some cells, and the least estimate that was asked for."""
    least = threshold.of(rows, counters, level, cells)
    codes, counts = [], []
    for block in candidates:
        if cells is not None and level >= cells.first:
            estimates = cells.values[level - cells.first][tuple(block.T)]
        else:
            estimates = rows.read(counters, block, level)
        heavy = (estimates >= least) & (estimates > 0)
        codes.append(block[heavy])
        counts.append(estimates[heavy])
    return np.concatenate(codes), np.concatenate(counts), least


def _refuse_top(grid: CellGrid, top: int, cells_max: int) -> None:
    if math.prod(grid.level_counts(top).tolist()) > cells_max:
        wanted = next(n for n in range(top, 64) if math.prod(grid.level_counts(n).tolist()) <= max(1, cells_max))
        raise ValueError(
            f"the coarsest of {top + 1} levels has more than {cells_max} cells, too many to enumerate: use a plan with "
            f"sketch.levels of at least {wanted + 1}, or a larger cells_max"
        )


def _children(parents: Int64, counts: Int64) -> Iterator[Int64]:
    """Those of cells (k, d) that exist; one empty block at least."""
    dim = parents.shape[1]
    yield np.empty((0, dim), np.int64)
    total, size = len(parents) << dim, max(1, _BLOCK_NUMBERS // dim)
    for start in range(0, total, size):
        each = np.arange(start, min(start + size, total))
        codes = 2 * parents[each >> dim] + ((each[:, None] >> np.arange(dim - 1, -1, -1)) & 1)
        yield codes[(codes < counts).all(axis=1)]
