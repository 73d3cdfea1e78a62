"""The partition family: a count sketch with signs of the cells that space is cut into (density sketch).

f adds the sign of the record's cell at its bucket, in each of R rows; g reads the sign of the query's cell times the
counter at its bucket. Signs make a row's answer unbiased: what else is in a bucket has mean 0 (Charikar, Chen and
Farach-Colton 2002; Density Sketches, theorem 3, *average recovery*).

* ``cells = "grid"``: cubes of side ``bandwidth`` over the public bounds, the same for every row: the kernel is 1 within
one cell and 0 else, and an answer over n·volume is a density (:mod:`~hushsum.families.partition.density`). The H
``levels`` have cells of 2^ℓ × the side (:mod:`~hushsum.families.partition.heavy_hitters` descends them). A query beyond
the bounds has no cell: its answer is 0, with a standard error of 0. * ``cells = "lsh"``: each row cuts space by
p-stable hashes of its own, so that rows are independent draws and their spread holds the choice of the cells too. The
kernel is the collision probability of the euclidean hash to the power ``power``; such cells have no volume and no
levels.

**Frozen**: :mod:`hushsum.families.vectors`, and :mod:`cells` and :mod:`hashes` here.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from hushsum import kernels
from hushsum.canonical import INTEGER_LIMIT, real_text
from hushsum.errors import DeltaError, Reason, RecordError
from hushsum.families import vectors
from hushsum.families.base import (
    Answer,
    Counters,
    FieldsAlone,
    Float32,
    Increments,
    Queried,
    Records,
    RecordSchema,
    SignedPacked,
    VectorRecords,
    check_counters,
)
from hushsum.families.estimators import checked_groups
from hushsum.families.lsh.arrays import Int64
from hushsum.families.lsh.codes.projection import CODE_LIMIT, Projection
from hushsum.families.lsh.p_stable import Euclidean
from hushsum.families.partition import cells as partition_cells
from hushsum.families.partition import checks, consistency, count_sketch
from hushsum.families.partition import signed_hashes as partition_hashes
from hushsum.families.partition.cells import CellGrid
from hushsum.families.partition.consistency import ConsistentCells
from hushsum.families.partition.count_sketch import PartitionRows
from hushsum.families.transforms import Transforms
from hushsum.families.vectors import VectorSpace, vector_records
from hushsum.parameters import NO_PARAMETERS, Parameters
from hushsum.public_random import PublicSeed
from hushsum.schema import Table
from hushsum.sensitivity import RecordRows, Sensitivity

_LEVELS_MAX: Final = 32
_POWER_MAX: Final = 8
_ROWS_MAX: Final = 2**20
_BUCKETS_MAX: Final = 2**24


@dataclass(frozen=True)
class Partition(Queried, SignedPacked, FieldsAlone):
    """The partition family with its parameters; hashes are drawn from the seed at first use.

    Attributes:
        record: Dimension and public bounds of the records.
        cells: ``grid`` or ``lsh``.
        bandwidth: The side of a cell, or w of the p-stable hash, in the unit of the (transformed) records.
        power: p, hashes concatenated in a row of LSH cells; 1 for a grid.
        levels: H, dyadic levels that are sketched; 1 for LSH cells.
        rows: R of a level.
        buckets: W, counters a row.
        seed: Of all hashes.
        transforms: Of the records before they are put into cells.
    """

    name: ClassVar[str] = "partition"

    record: VectorRecords
    cells: str
    bandwidth: Fraction
    power: int
    levels: int
    rows: int
    buckets: int
    seed: PublicSeed
    transforms: Transforms

    def __post_init__(self) -> None:
        checks.refuse_sizes(
            self.space,
            self.bandwidth,
            rows=self.rows,
            buckets=self.buckets,
            levels=self.levels,
            power=self.power if self.cells == "lsh" else None,
        )
        vectors.refuse(self._rounding, self.bandwidth, "sketch")

    @classmethod
    def from_table(cls, sketch: Table, record: RecordSchema, parameters: Parameters = NO_PARAMETERS) -> Self:
        """Reads the keys cells, bandwidth, levels (grid) or power (LSH), rows, buckets, seed and transforms.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        schema = vector_records(record, "the partition family")
        cells = sketch.choice("cells", built=("grid", "lsh"), default="grid")
        family = cls(
            record=schema,
            cells=cells,
            bandwidth=sketch.real("bandwidth", expected="a number above 0", above=0),
            power=sketch.integer("power", low=1, high=_POWER_MAX, default=1) if cells == "lsh" else 1,
            levels=sketch.integer("levels", low=1, high=_LEVELS_MAX, default=1) if cells == "grid" else 1,
            rows=sketch.integer("rows", low=1, high=_ROWS_MAX),
            buckets=sketch.integer("buckets", low=2, high=_BUCKETS_MAX),
            seed=PublicSeed(sketch.integer("seed", low=0, high=INTEGER_LIMIT, default=0)),
            transforms=Transforms.from_table(sketch, parameters, schema.dim),
        )
        sketch.finish()
        return family

    def to_fields(self) -> dict[str, object]:
        """The keys of ``[sketch]`` that these cells have, but ``family``."""
        return {
            "cells": self.cells,
            "bandwidth": real_text(self.bandwidth),
            **({"levels": self.levels} if self.cells == "grid" else {"power": self.power}),
            "rows": self.rows,
            "buckets": self.buckets,
            "seed": self.seed.value,
            **self.transforms.to_fields(),
        }

    @property
    def digests(self) -> tuple[str, ...]:
        """Of the matrices of transforms."""
        return self.transforms.digests

    @property
    def kernel_error(self) -> float:
        """0 for a grid, whose cells are of float32; that of coordinates of float32 for LSH cells."""
        return min(1.0, self._rounding)

    @property
    def shape(self) -> tuple[int, int]:
        """(levels·rows, buckets), level after level, the finest first."""
        return self.levels * self.rows, self.buckets

    @property
    def sensitivity(self) -> Sensitivity:
        """One counter a row of each level changes, by one."""
        changes = self.levels * self.rows
        return Sensitivity(l0=changes, l1=changes, l2_squared=changes, linf=1)

    def accept(self, records: npt.ArrayLike) -> tuple[Float32, npt.NDArray[np.bool_]]:
        """Usable records, clipped and transformed, (k, d') float32, and the mask (n,) of those that were kept.

        Raises:
            RecordError: See :meth:`hushsum.families.vectors.VectorSpace.accept`.
        """
        return self.space.accept(records)

    def add(self, counters: Counters, records: Records) -> None:
        """Adds accepted records to counters (H·R, W), C-contiguous int64, in place.

        Raises:
            RecordError: The records do not come from :meth:`accept`.
            ValueError: The counters have another shape, type or layout.
        """
        check_counters(counters, self.shape)
        self.tables.add(counters, self.space.accepted(records))

    def encode(self, records: Records) -> Increments:
        """The increments of accepted records: at most H·R·min(n, W) of them.

        Raises:
            RecordError: The records do not come from :meth:`accept`.
        """
        return Increments(*self.tables.encode(self.space.accepted(records)))

    def check(self, increments: Increments, records: int) -> None:
        """In every row the absolute values sum to at most ``records`` and differ from it by an even number.

        Where no two cells collide, the values times the signs of their cells sum to exactly ``records``.

        Raises:
            DeltaError: With the reason ``impossible_counts``.
        """
        checks.check(increments, records, *self.shape)
        for level in self._direct:
            ends = np.searchsorted(increments.indices, np.array([level, level + 1]) * (self.rows * self.buckets))
            some = slice(int(ends[0]), int(ends[1]))
            of_level = increments.indices[some] - level * self.rows * self.buckets
            sums = self.tables.row_sums(of_level, increments.values[some], level)
            # Absolute values sum to no more, so that none has the wrong sign either.
            if sums is None or (sums != records).any():
                raise DeltaError(
                    Reason.IMPOSSIBLE_COUNTS,
                    f"counters of level {level} that are no sum of {records} records with the signs of their cells",
                )

    @property
    def rows_sum_to_records(self) -> bool:
        """Whether all cells of some level of a grid fit into W buckets, so that none collide."""
        return bool(self._direct)

    @property
    def record_rows(self) -> RecordRows:
        """Those of the levels whose cells do not collide, together.

        Raises:
            ValueError: Cells of all levels collide.
        """
        if not self._direct:
            return super().record_rows
        count = consistency.total_variance([self._level_shape(level) for level in self._direct]) / self.rows
        return RecordRows(answer=1.0 / self.rows, count=count, exact=len(self._direct) == self.levels)

    def records_in(self, counters: npt.NDArray[np.int64]) -> float:
        """The sums of all cells of the levels whose cells do not collide, weighted by how few cells they have.

        Raises:
            ValueError: Cells of all levels collide.
        """
        tables, grid = self.tables, self.tables.grid
        if grid is None or not self._direct:
            return super().records_in(counters)
        cells = [math.prod(self._level_shape(level)) for level in self._direct]
        sums = [
            math.fsum(float(tables.read(counters, codes, level).sum()) for codes in grid.all_codes(level))
            for level in self._direct
        ]
        if len(sums) == 1:
            return sums[0]
        weighted = math.fsum(total / number for total, number in zip(sums, cells, strict=True))
        return weighted / math.fsum(1.0 / number for number in cells)

    def records_covariance(self, counter_variance: float) -> float:
        """σ²/R of a level 0 that alone has no cells that collide.

        Answers from a level 0 whose cells collide have noise of their own. Other levels mostly answer by consistent
        cells; where there are too many for that, 0 overstates the error of shares.
        """
        return counter_variance / self.rows if self.levels == 1 and self._direct else 0.0

    @cached_property
    def _direct(self) -> tuple[int, ...]:
        """The levels whose cells do not collide, the finest first."""
        if self.cells != "grid":
            return ()
        levels = range(self.levels)
        return tuple(level for level in levels if math.prod(self._level_shape(level)) <= self.buckets)

    def _level_shape(self, level: int) -> tuple[int, ...]:
        grid = CellGrid.of(*self.space.ends, float(self.bandwidth))
        return tuple(grid.level_counts(level).tolist())

    def answer(
        self,
        counters: npt.NDArray[np.int64],
        queries: npt.ArrayLike,
        *,
        noise_variance: float = 0.0,
        groups: int | None = None,
    ) -> Answer:
        """Unbiased estimates of the records in the cell of each query (m, d), by the mean of level 0's rows.

        ``groups``: the median of the means of so many groups of rows instead, the usual one of a count sketch. The
        standard error is NaN for R = 1, but that of the noise alone where all cells of the grid fit into W buckets.

        Raises:
            RecordError: The queries' type or dimension is wrong, or one is not finite, or too far for LSH cells.
            ValueError: ``groups`` is not from 1 to R.
        """
        if counters.shape != self.shape:
            raise ValueError(f"counters: got shape {counters.shape}, expected {self.shape}")
        if groups is not None:
            groups = checked_groups(groups, self.rows)
        counters, points = np.ascontiguousarray(counters, np.int64), self.points(queries)
        if groups is None:
            answer = count_sketch.mean(self.tables, counters, points, noise_variance)
        else:
            answer = count_sketch.median(self.tables, counters, points, groups)
        return self.zero_outside(answer, points)

    def estimates(
        self, counters: npt.NDArray[np.int64], *, noise_variance: float, count: tuple[float, int] | None = None
    ) -> "CellEstimates":
        """What answers from counters (H·R, W) share: they must not change afterwards.

        Args:
            counters: Noised.
            noise_variance: Of the noise on each of them.
            count: See :func:`hushsum.families.partition.consistency.consistent`.
        """
        return CellEstimates(self, np.ascontiguousarray(counters, np.int64), noise_variance, count)

    def answer_variance(self, counter_variance: float) -> float:
        """σ²/R."""
        return counter_variance / self.rows

    @property
    def answer_weight_max(self) -> float:
        """1/R of one level; of several, whose cells are adjusted to each other, it is not known."""
        return 1.0 / self.rows if self.levels == 1 else math.inf

    @property
    def kernel_min(self) -> float:
        """0."""
        return 0.0

    def kernel(self, x: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The exact kernel, (n, d) and (m, d) to (n, m): whether both are in one cell of the grid, x clipped to it.

        For LSH cells the probability that they are, again with x clipped to the bounds.

        Raises:
            RecordError: A point cannot be used.
        """
        grid = self.tables.grid
        if grid is None:
            distances = kernels.euclidean_distances(self.space.exact(x, clip=True), self.space.exact(y))
            return kernels.euclidean(distances, float(self.bandwidth), self.power)
        records, queries = self.space.queries(x), self.space.queries(y)
        a, b = grid.words(records), grid.words(queries)  # of the nearest cell where a point is beyond the bounds
        same = np.repeat(grid.inside(queries)[None], len(records), axis=0)
        for j in range(len(a)):
            same &= a[j][:, None] == b[j]
        return same.astype(np.float64)

    @property
    def _rounding(self) -> float:
        return Euclidean(self.bandwidth, self.power).rounding(self.space) if self.cells == "lsh" else 0.0

    def crowded(self) -> str:
        """What its author may not mean by the number of buckets, a sentence; empty: nothing.

        One row whose cells share counters has no error bars. And where the bounds, rounded to float32, reach into one
        cell more than they do as they are written, cells share counters that seem to be enough.
        """
        if self.cells != "grid":
            return ""
        counts: list[int] = CellGrid.of(*self.space.ends, float(self.bandwidth)).counts.tolist()
        cells, rounded = math.prod(counts), False
        if not self.transforms.steps:
            ends = zip(self.record.lower, self.record.upper, strict=True)
            rounded = math.prod(math.ceil((upper - lower) / self.bandwidth) for lower, upper in ends) <= self.buckets
        if cells <= self.buckets or (self.rows > 1 and not rounded):
            return ""
        grid = f"{' x '.join(map(str, counts))} = " if len(counts) > 1 else ""
        more = "; rounded to float32, the bounds reach into more cells than they do as written" if rounded else ""
        without = ": one row has no error bars then, and finds no heavy cells" if self.rows == 1 else ""
        return (
            f"{self.buckets:,} are fewer than the {grid}{cells:,} cells, so that cells share counters{without}{more}; "
            f"expected {cells:,} or more{'' if self.rows > 1 else ', or 5 rows'}"
        )

    def zero_outside(self, answer: Answer, points: Float32) -> Answer:
        """The same, but for queries beyond the bounds of a grid, which have no cell."""
        if self.tables.grid:
            outside = ~self.tables.grid.inside(points)
            answer.value[outside] = answer.std_error[outside] = 0.0
        return answer

    def points(self, queries: npt.ArrayLike) -> Float32:
        """Queries (m, d) as they are put into cells.

        Raises:
            RecordError: Their type or dimension is wrong, or one is not finite, or too far for LSH cells.
        """
        points, cells = self.space.queries(queries), self.tables.cells
        if isinstance(cells, Projection):
            with np.errstate(invalid="ignore"):
                reach = np.abs(points).astype(np.float64) @ cells.widest
            if not np.all(reach < CODE_LIMIT):
                worst = int(np.argmax(~(reach < CODE_LIMIT)))
                raise RecordError(f"queries: number {worst} is too far outside the bounds: its codes exceed 32 bits")
        return points

    @cached_property
    def tables(self) -> PartitionRows:
        """Cells, and the hashes of every row: what the engines know."""
        side, space = float(self.bandwidth), self.space
        parts, grid = self.power, None
        cells: CellGrid | Projection
        if self.cells == "grid":
            cells = grid = CellGrid.of(*space.ends, side)
            parts = space.dim
        else:
            cells = partition_cells.draw(self.seed, rows=self.rows, power=self.power, width=side, sizes=space.sizes)
        hashes = tuple(
            partition_hashes.draw(
                self.seed,
                level,
                rows=self.rows,
                parts=parts,
                buckets=self.buckets,
                counts=grid.level_counts(level) if grid else None,
            )
            for level in range(self.levels)
        )
        return PartitionRows(cells, hashes, self.buckets)

    @cached_property
    def space(self) -> VectorSpace:
        """From the caller's vectors to those that are put into cells."""
        return VectorSpace.of(self.record, self.transforms, centred=self.cells == "lsh")


@dataclass(frozen=True, eq=False)
class CellEstimates:
    """Answers that err less than the mean of level 0's rows, from the same counters; its parts are computed once.

    Attributes:
        family: Of the counters.
        counters: (H·R, W) int64.
        noise_variance: Of the noise on each of them.
        count: n̂, and the factor by which its noise is smaller; None: cells alone.
    """

    family: Partition
    counters: npt.NDArray[np.int64]
    noise_variance: float
    count: tuple[float, int] | None

    @cached_property
    def cells(self) -> ConsistentCells | None:
        """The levels whose cells do not collide, made consistent; None where that gains nothing."""
        return consistency.consistent(
            self.family.tables, self.counters, noise_variance=self.noise_variance, count=self.count
        )

    def direct_cells(self) -> ConsistentCells | None:
        """As ``cells``, also where they gain little; None where all levels collide, or there are too many cells."""
        return self.cells or consistency.direct_cells(
            self.family.tables, self.counters, noise_variance=self.noise_variance, count=self.count
        )

    def answer(self, queries: npt.ArrayLike) -> Answer | None:
        """The records in the cell of each query (m, d); None without consistent cells of level 0.

        Raises:
            RecordError: The queries' type or dimension is wrong, or one is not finite.
        """
        if (codes := self._codes(queries)) is None or self.cells is None:
            return None
        return self.family.zero_outside(self.cells.answer(codes[1]), codes[0])

    def shares(self, queries: npt.ArrayLike) -> Answer | None:
        """The share of all records in the cell of each query (m, d); None without consistent cells of level 0.

        Raises:
            RecordError: As :meth:`answer`.
        """
        if (codes := self._codes(queries)) is None or self.cells is None:
            return None
        return self.family.zero_outside(self.cells.shares(codes[1]), codes[0])

    def _codes(self, queries: npt.ArrayLike) -> tuple[Float32, Int64] | None:
        """Points and their cells, where level 0 is consistent with others."""
        grid = self.family.tables.grid
        if grid is None or self.cells is None or self.cells.first:
            return None
        points = self.family.points(queries)
        return points, grid.codes(points)
