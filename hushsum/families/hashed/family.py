"""The hashed family: each row counts the records of each bucket of a locality-sensitive hash (RACE, section 3).

f increments one counter a row, at the bucket of the record; g reads the counter at the bucket of the query; the kernel
is the probability that both share a bucket.

**What is frozen** (the same record gives the same buckets on every platform and in every version):

1. A record's float32 coordinates: :mod:`hushsum.families.vectors`.
2. Codes: the files of :mod:`hushsum.families.lsh.codes` say how, the file of each hash with which parameters.
3. Buckets: :mod:`hushsum.families.lsh.placement`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from hushsum.canonical import INTEGER_LIMIT
from hushsum.errors import RecordError
from hushsum.families import threads
from hushsum.families.base import (
    Answer,
    Counters,
    FieldsAlone,
    Increments,
    Records,
    RecordSchema,
    RowsPacked,
    SetRecords,
    VectorRecords,
    check_counters,
    refuse_impossible_counts,
)
from hushsum.families.estimators import Division, checked_groups
from hushsum.families.hashed.answers import RowReads, shared_codes
from hushsum.families.hashed.product_kernel import Product
from hushsum.families.hashed.row_draws import RowDraws, read_given
from hushsum.families.lsh import placement, single_row
from hushsum.families.lsh.arrays import Int64, Points
from hushsum.families.lsh.engines import engine
from hushsum.families.lsh.hash import Domain
from hushsum.families.lsh.jaccard import SetSpace
from hushsum.families.lsh.placement import HashedRows
from hushsum.families.transforms import Transforms
from hushsum.families.vectors import VectorSpace
from hushsum.parameters import NO_PARAMETERS, Parameters
from hushsum.public_random import PublicSeed
from hushsum.schema import Table
from hushsum.sensitivity import Sensitivity

NO_TRANSFORMS: Final = Transforms()
_ROWS_MAX: Final = 2**20
_BUCKETS_MAX: Final = 2**24


@dataclass(frozen=True)
class Hashed(RowsPacked, FieldsAlone):
    """The hashed family with its parameters; tables are drawn from the seed at first use.

    Attributes:
        record: Dimension and public bounds of the records, or the universe of sets.
        product: The hashes and their columns.
        rows: R.
        buckets: W, counters a row.
        draws: How rows are drawn.
        seed: Of all hash parameters.
        transforms: Of vectors before they are hashed.
    """

    name: ClassVar[str] = "hashed"

    record: RecordSchema
    product: Product
    rows: int
    buckets: int
    draws: RowDraws
    seed: PublicSeed
    transforms: Transforms = NO_TRANSFORMS

    def __post_init__(self) -> None:
        self.product.refuse_sizes(self._space, rows=self.rows, buckets=self.buckets, draws=self.draws.kind)
        self.draws.refuse(self.product, self._space, self.rows)
        self.product.refuse_codes(self._space, self.draws.kind)

    @classmethod
    def from_table(cls, sketch: Table, record: RecordSchema, parameters: Parameters = NO_PARAMETERS) -> Self:
        """Reads the keys of the hash or ``groups``, and rows, buckets, draws (with its own), seed and transforms.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        sets, dim = isinstance(record, SetRecords), 1
        transforms = NO_TRANSFORMS
        if isinstance(record, VectorRecords):
            transforms = Transforms.from_table(sketch, parameters, record.dim)
            dim = transforms.dim(record.dim)
        rows, draws = sketch.integer("rows", low=1, high=_ROWS_MAX), RowDraws.from_table(sketch)
        if draws.kind == "given" and not sets:
            product = read_given(sketch, parameters, draws.parameters, rows=rows, dim=dim)
        else:
            product = Product.from_table(sketch, dim=dim, sets=sets)
        family = cls(
            record=record,
            product=product,
            rows=rows,
            buckets=sketch.integer("buckets", low=2, high=_BUCKETS_MAX),
            draws=draws,
            seed=PublicSeed(sketch.integer("seed", low=0, high=INTEGER_LIMIT, default=0)),
            transforms=transforms,
        )
        sketch.finish()
        return family

    def to_fields(self) -> dict[str, object]:
        """Every v1 key of ``[sketch]`` but ``family``."""
        return {
            **self.product.to_fields(),
            "rows": self.rows,
            "buckets": self.buckets,
            **self.draws.to_fields(),
            "seed": self.seed.value,
            **self.transforms.to_fields(),
        }

    @property
    def digests(self) -> tuple[str, ...]:
        """Of the matrices of transforms, and of given directions."""
        return self.transforms.digests + self.draws.digests

    @property
    def kernel_error(self) -> float:
        """What hashes add that cut draws off, and arithmetic in float32: of coordinates, and of fastfood."""
        return min(1.0, self.product.kernel_error(self._space) + self.draws.rounding(self.product, self._space))

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, buckets)."""
        return self.rows, self.buckets

    @property
    def query_dim(self) -> int:
        """d; 0 for sets."""
        return self.record.dim if isinstance(self.record, VectorRecords) else 0

    @property
    def sensitivity(self) -> Sensitivity:
        """One counter a row changes, by one."""
        return Sensitivity(l0=self.rows, l1=self.rows, l2_squared=self.rows, linf=1)

    @property
    def rehashed(self) -> bool:
        """Whether codes are hashed into buckets, because they do not provably fit: answers then cost W/(W − 1)."""
        return isinstance(self._tables.placement, placement.Rehash)

    def accept(self, records: Any) -> tuple[Any, npt.NDArray[np.bool_]]:
        """Usable records as they are hashed, (k, d) float32 or sets, and the mask (n,) of those that were kept.

        Args:
            records: (n, d) float64, float32, integers or booleans, in the unit of the plan's bounds; or sets of ids. A
                record with NaN or infinity, or a set that cannot be used, is dropped alone.

        Raises:
            RecordError: Another type or dimension.
        """
        usable, kept = self._space.accept(records)
        return usable, kept

    def add(self, counters: Counters, records: Records) -> None:
        """Adds accepted records to counters (R, W), C-contiguous int64, in place.

        Raises:
            RecordError: The records do not come from :meth:`accept`.
            ValueError: The counters have another shape, type or layout.
        """
        check_counters(counters, self.shape)
        usable = self._space.accepted(records)
        add(self._tables, counters, usable, together=self.product.rows_together)

    def encode(self, records: Records) -> Increments:
        """The increments of accepted records: at most R·min(n, W) of them.

        Raises:
            RecordError: The records do not come from :meth:`accept`.
        """
        usable = self._space.accepted(records)
        return Increments(*encode(self._tables, usable, together=self.product.rows_together))

    def check(self, increments: Increments, records: int) -> None:
        """Every row sums to exactly ``records``, and nothing is negative.

        Raises:
            DeltaError: With the reason ``impossible_counts``.
        """
        refuse_impossible_counts(increments, records, rows=self.rows, buckets=self.buckets)

    def answer(
        self,
        counters: npt.NDArray[np.int64],
        queries: Any,
        *,
        noise_variance: float = 0.0,
        groups: int | None = None,
    ) -> Answer:
        """Unbiased estimates of Σ k(x, q) at m queries, which are not clipped; R = 1 has NaN as standard error.

        Direct buckets: the mean over rows. Rehashed ones: (mean − N̂/W)·W/(W − 1), N̂ the mean of the row totals. The
        standard error is that of the spread of rows, or of independent sets of rows where these depend on each other
        (Sobol, orthogonal and fastfood draws), or for given rows in direct buckets that of the noise alone. Rows of
        one-permutation hashing err together by up to √2 times their spread: there it is that, which may be too much.

        Raises:
            RecordError: The queries' type or dimension is wrong, or one is not finite, or too far from the bounds.
            ValueError: Counters of another shape, or ``groups`` where rows are not drawn independently.
        """
        if counters.shape != self.shape:
            raise ValueError(f"counters: got shape {counters.shape}, expected {self.shape}")
        counters = np.ascontiguousarray(counters, np.int64)
        points = self._near(queries)
        reads = RowReads.of(self._tables, counters, points)
        if groups is not None:
            return reads.median_of_groups(self._grouped(groups))
        if self._row_sets is not None:
            return reads.mean_of_sets(self._row_sets)
        if self.draws.kind == "given" and not self.rehashed:  # the multipliers of a rehash are drawn
            return reads.mean_of_given(self.answer_variance(noise_variance))
        answer = reads.mean()
        if self.product.rows_together:
            return replace(answer, std_error=answer.std_error * math.sqrt(2))
        return answer

    def answer_variance(self, counter_variance: float) -> float:
        """σ²/R, and W/(W − 1) times that where buckets are rehashed."""
        return counter_variance / self.rows * (self.buckets / (self.buckets - 1) if self.rehashed else 1.0)

    def records_covariance(self, counter_variance: float) -> float:
        """σ²/R; 0 where buckets are rehashed, of whose answers the mean of the row totals takes a part off."""
        return 0.0 if self.rehashed else super().records_covariance(counter_variance)

    def kernel(self, x: Any, y: Any) -> npt.NDArray[np.float64]:
        """The exact kernel of n records and m queries, to (n, m): records are clipped to the bounds.

        For given rows, the share in which both share their codes.

        Raises:
            RecordError: A point that given rows cannot hash.
        """
        if self.draws.kind != "given":
            return self.product.kernel(self._space, x, y)
        return shared_codes(self._tables, self._space.records(x), self._near(y))

    def buckets_of(self, records: Records, rows: Int64) -> Int64:
        """(n,) int64: the bucket of each accepted record in row ``rows[i]``, where :meth:`add` counts it.

        Raises:
            RecordError: The records do not come from :meth:`accept`.
            ValueError: ``rows`` is not (n,) int64, of rows from 0 to R − 1.
        """
        usable = self._space.accepted(records)
        return single_row.buckets(self._tables, usable, single_row.checked_rows(rows, len(usable), self.rows))

    def buckets_at(self, queries: Any) -> Iterator[tuple[slice, Int64]]:
        """(some of m queries, their buckets (R, k) int64 in every row), until all are told.

        A bucket is :data:`~hushsum.families.lsh.placement.OUTSIDE` where no record within the bounds can be.

        Raises:
            RecordError: The queries' type or dimension is wrong, or one is not finite, or too far from the bounds.
        """
        return single_row.buckets_at(self._tables, self._near(queries))

    def division(self, groups: int | None = None) -> Division:
        """The parts of the rows that are independent of each other; see :meth:`answer`.

        Raises:
            ValueError: ``groups`` where rows are not drawn independently, or not from 1 to R.
        """
        if groups is not None:
            return Division.of("groups", self.rows, self._grouped(groups))
        if self._row_sets is not None:
            return self._row_sets
        given = self.draws.kind == "given" and not self.rehashed
        return Division.of("noise" if given else "rows", self.rows, self.rows)

    @cached_property
    def _tables(self) -> HashedRows:
        code = self.product.draw(
            self.seed, self._space, rows=self.rows, draws=self.draws.kind, sets=self.draws.sobol_sets
        )
        power = self.product.codes(self._space)
        least, largest = code.ends(*self._space.ends)
        shape = (self.rows, power)
        chosen = placement.direct(least.reshape(shape), largest.reshape(shape), self.buckets) or placement.rehash(
            self.seed, rows=self.rows, power=power, buckets=self.buckets
        )
        return HashedRows(code, chosen, power, self.buckets)

    @cached_property
    def _row_sets(self) -> Division | None:
        return self.draws.sets(self.product, self._space, self.rows)

    @cached_property
    def _space(self) -> Domain:
        if isinstance(self.record, SetRecords):
            return SetSpace(self.record.universe)
        centred = self.product.centred
        return VectorSpace.of(self.record, self.transforms, centred=centred, rounded=not centred)

    def _near(self, queries: Any) -> Points:
        points = self._space.queries(queries)
        far = self._tables.code.far(points)
        if far.any():
            worst = int(np.argmax(far))
            raise RecordError(f"queries: number {worst} is too far outside the bounds: its bucket codes exceed 32 bits")
        return points

    def _grouped(self, groups: int) -> int:
        if self.draws.kind != "independent":
            raise ValueError(f"groups: got {groups!r}, expected None: {self.draws.kind} rows are dependent")
        if self.product.rows_together:
            raise ValueError(f"groups: got {groups!r}, expected None: one-permutation rows are dependent")
        return checked_groups(groups, self.rows)


_ROWS_ABREAST: Final = 4  # the compiled loops take so many rows at once
_COPIED_MAX: Final = 2**24  # counters


def add(rows: HashedRows, counters: Counters, records: Points, *, together: bool) -> None:
    """Adds records within the bounds to counters (R, W) in place.

    Each core takes some of the rows, or where the codes of all rows are computed ``together`` some of the records, with
    counters of its own: these must not be too many.
    """
    loops, n = engine(), len(records)
    if not together:
        work = threads.shares(len(rows), n, grain=_ROWS_ABREAST)
        threads.spread(lambda which: loops.add(rows, counters[which], records, which), work, n)
        return

    def some(which: slice) -> Counters:
        own = counters if which.start == 0 else np.zeros_like(counters)
        loops.add(rows, own, records[which], slice(0, len(rows)))
        return own

    work = threads.shares(n, n if counters.size <= _COPIED_MAX else 0)
    for own in threads.spread(some, work, 0)[1:]:
        counters += own


def encode(rows: HashedRows, records: Points, *, together: bool) -> tuple[Int64, Int64]:
    """Flat indices, strictly increasing, and counts of what :func:`add` does to zeroes."""
    loops, n = engine(), len(records)
    work = threads.shares(len(rows), 0 if together else n, grain=_ROWS_ABREAST)
    parts = threads.spread(lambda which: loops.encode(rows, records, which), work, n)
    if len(parts) == 1:
        return parts[0][0], parts[0][1]
    indices, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    return indices, values
