"""The hashed family: each row counts the records of each bucket of a locality-sensitive hash (RACE, section 3).

f increments one counter a row, at the bucket of the record; g reads the counter at the bucket of the query; the kernel
is the probability that both share a bucket.

**What is frozen** (the same record gives the same buckets on every platform and in every version):

1. A record's float32 coordinates: :mod:`hushsum.families.vectors`.
2. Codes: :mod:`hushsum.families.lsh.projection` says how, :mod:`hushsum.families.lsh.euclidean` with which parameters.
3. Buckets: :mod:`hushsum.families.lsh.placement`.
"""

import math
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from types import ModuleType
from typing import ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from hushsum import acceleration, kernels
from hushsum.canonical import INTEGER_LIMIT, real_text
from hushsum.draws import PublicSeed
from hushsum.errors import DeltaError, PlanError, Reason, RecordError
from hushsum.families.family import Answer, Counters, Increments, Records, VectorRecords
from hushsum.families.lsh import euclidean, placement, plain
from hushsum.families.lsh.projection import CODE_LIMIT, DIM_MAX
from hushsum.families.lsh.rows import Rows
from hushsum.families.vectors import MAGNITUDE_MAX, Box
from hushsum.schema import Table
from hushsum.sensitivity import Sensitivity

_KERNELS_BUILT: Final = ("euclidean",)
_KERNELS_KNOWN: Final = ("manhattan", "laplacian", "angular", "jaccard")
_DRAWS_KNOWN: Final = ("sobol", "orthogonal", "given")
_POWER_MAX: Final = 8
_ROWS_MAX: Final = 2**20
_BUCKETS_MAX: Final = 2**24
_COUNTERS_MAX: Final = 2**31
_PARAMETERS_MAX: Final = 2**28
_RECORDS_MAX: Final = 2**38  # of one delta: sums of a row of counters stay far inside int64


@dataclass(frozen=True)
class Hashed:
    """The hashed family with its parameters; tables are drawn from the seed at first use.

    Attributes:
        record: Dimension and public bounds of the records.
        kernel_name: ``euclidean``.
        bandwidth: w, in the unit of the records.
        power: p, hashes concatenated in a row: the kernel to the power p.
        rows: R.
        buckets: W, counters a row.
        draws: ``independent``.
        seed: Of all hash parameters.
    """

    name: ClassVar[str] = "hashed"

    record: VectorRecords
    kernel_name: str
    bandwidth: Fraction
    power: int
    rows: int
    buckets: int
    draws: str
    seed: PublicSeed

    def __post_init__(self) -> None:
        _refuse_sizes(self)
        _refuse_codes(self)

    @classmethod
    def from_table(cls, sketch: Table, record: VectorRecords) -> Self:
        """Reads the keys kernel, bandwidth, power, rows, buckets, draws and seed.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        family = cls(
            record=record,
            kernel_name=sketch.choice("kernel", built=_KERNELS_BUILT, known=_KERNELS_KNOWN),
            bandwidth=sketch.real("bandwidth", expected="a number above 0", above=0),
            power=sketch.integer("power", low=1, high=_POWER_MAX, default=1),
            rows=sketch.integer("rows", low=1, high=_ROWS_MAX),
            buckets=sketch.integer("buckets", low=2, high=_BUCKETS_MAX),
            draws=sketch.choice("draws", built=("independent",), known=_DRAWS_KNOWN, default="independent"),
            seed=PublicSeed(sketch.integer("seed", low=0, high=INTEGER_LIMIT, default=0)),
        )
        sketch.finish()
        return family

    def to_fields(self) -> dict[str, object]:
        """Every v1 key of ``[sketch]`` but ``family``."""
        return {
            "kernel": self.kernel_name,
            "bandwidth": real_text(self.bandwidth),
            "power": self.power,
            "rows": self.rows,
            "buckets": self.buckets,
            "draws": self.draws,
            "seed": self.seed.value,
        }

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, buckets)."""
        return self.rows, self.buckets

    @property
    def sensitivity(self) -> Sensitivity:
        """One counter a row changes, by one."""
        return Sensitivity(l0=self.rows, l1=self.rows, l2_squared=self.rows, linf=1)

    @property
    def rehashed(self) -> bool:
        """Whether codes are hashed into buckets, because they do not provably fit: answers then cost W/(W − 1)."""
        return isinstance(self._tables.placement, placement.Rehash)

    def accept(self, records: npt.ArrayLike) -> tuple[Records, npt.NDArray[np.bool_]]:
        """Usable records, clipped and centred, (k, d) float32, and the mask (n,) of those that were kept.

        Args:
            records: (n, d) float64, float32, integers or booleans, in the unit of the plan's bounds. A record with NaN
                or infinity is dropped alone.

        Raises:
            RecordError: Another type or dimension.
        """
        return self._box.accept(records)

    def add(self, counters: Counters, records: Records) -> None:
        """Adds accepted records to counters (R, W), C-contiguous int64, in place.

        Raises:
            RecordError: The records do not come from :meth:`accept`.
            ValueError: The counters have another shape, type or layout.
        """
        flags = counters.flags
        if counters.shape != self.shape or counters.dtype != np.int64 or not (flags.c_contiguous and flags.writeable):
            raise ValueError(
                f"counters: got {counters.dtype} of shape {counters.shape}, "
                f"expected C-contiguous int64 {self.shape} that may be written"
            )
        _engine().add(self._tables, counters, self._accepted(records))

    def encode(self, records: Records) -> Increments:
        """The increments of accepted records: at most R·min(n, W) of them.

        Raises:
            RecordError: The records do not come from :meth:`accept`.
        """
        indices, values = _engine().encode(self._tables, self._accepted(records))
        return Increments(indices, values)

    def check(self, increments: Increments, records: int) -> None:
        """Every row sums to exactly ``records``, and nothing is negative.

        Raises:
            DeltaError: With the reason ``impossible_counts``.
        """
        values = increments.values
        if not 0 <= records <= _RECORDS_MAX:
            raise DeltaError(Reason.IMPOSSIBLE_COUNTS, f"{records} records, expected 0 to {_RECORDS_MAX}")
        if len(values) and not 1 <= int(values.min()) <= int(values.max()) <= records:
            raise DeltaError(
                Reason.IMPOSSIBLE_COUNTS,
                f"counts from {values.min()} to {values.max()}, expected 1 to the {records} records",
            )
        ends = np.searchsorted(increments.indices, np.arange(1, self.rows + 1) * self.buckets)
        running = np.concatenate([[0], np.cumsum(values)])
        sums = np.diff(running[np.concatenate([[0], ends])])
        wrong = np.flatnonzero(sums != records)
        if len(wrong):
            row = int(wrong[0])
            raise DeltaError(
                Reason.IMPOSSIBLE_COUNTS, f"row {row} sums to {sums[row]}, expected {records} in every row"
            )

    def answer(self, counters: npt.NDArray[np.int64], queries: npt.ArrayLike) -> Answer:
        """Unbiased estimates of Σ k(x, q) at queries (m, d), which are not clipped; R = 1 has NaN as standard error.

        Direct buckets: the mean over rows. Rehashed ones: (mean − N̂/W)·W/(W − 1), N̂ the mean of the row totals.

        Raises:
            RecordError: The queries' type or dimension is wrong, or one is not finite, or too far from the bounds.
        """
        if counters.shape != self.shape:
            raise ValueError(f"counters: got shape {counters.shape}, expected {self.shape}")
        counters = np.ascontiguousarray(counters, np.int64)
        centred = self._centre_queries(queries)
        factor, less = 1.0, np.zeros(self.rows)
        if self.rehashed:
            factor = self.buckets / (self.buckets - 1)
            less = counters.sum(axis=1) / self.buckets
        first, total, squares = _engine().sums(self._tables, counters, less, centred)
        value = (first + total / self.rows) * factor
        if self.rows == 1:
            return Answer(value, np.full(len(value), math.nan))
        variance = np.maximum(squares - total * total / self.rows, 0.0) / (self.rows - 1)
        return Answer(value, np.sqrt(variance / self.rows) * factor)

    def answer_variance(self, counter_variance: float) -> float:
        """σ²/R, and W/(W − 1) times that where buckets are rehashed."""
        return counter_variance / self.rows * (self.buckets / (self.buckets - 1) if self.rehashed else 1.0)

    def kernel(self, x: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The exact kernel, (n, d) and (m, d) to (n, m)."""
        return kernels.euclidean(kernels.euclidean_distances(x, y), float(self.bandwidth), self.power)

    @cached_property
    def _tables(self) -> Rows:
        lower, upper = self._box.centred
        projection = euclidean.draw(
            self.seed,
            rows=self.rows,
            power=self.power,
            width=float(self.bandwidth),
            sizes=np.maximum(-lower, upper),
        )
        least, largest = projection.ends(lower, upper)
        shape = (self.rows, self.power)
        chosen = placement.direct(least.reshape(shape), largest.reshape(shape), self.buckets) or placement.rehash(
            self.seed, rows=self.rows, power=self.power, buckets=self.buckets
        )
        return Rows(projection, chosen, self.power, self.buckets)

    @cached_property
    def _box(self) -> Box:
        return Box.of(self.record)

    def _accepted(self, records: Records) -> Records:
        if records.dtype == np.float32 and records.ndim == 2 and records.shape[1] == self.record.dim:
            contiguous = np.ascontiguousarray(records)
            if _engine().within(contiguous, *self._box.centred):
                return contiguous
        raise RecordError("records: expected what accept() returned: clipped, centred, (n, d) float32")

    def _centre_queries(self, queries: npt.ArrayLike) -> Records:
        centred = self._box.centre_queries(queries)
        with np.errstate(invalid="ignore"):
            reach = np.abs(centred).astype(np.float64) @ self._tables.projection.widest
        if not np.all(reach < CODE_LIMIT):
            worst = int(np.argmax(~(reach < CODE_LIMIT)))
            raise RecordError(f"queries: number {worst} is so far from the bounds that its bucket codes leave 32 bits")
        return centred

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: tables are drawn again where they are needed."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _engine() -> ModuleType:
    if acceleration.enabled():
        from hushsum.families.lsh import fast

        return fast
    return plain


def _refuse_sizes(family: Hashed) -> None:
    dim, rows, buckets, numbers = family.record.dim, family.rows, family.buckets, family.power * family.record.dim
    if dim > DIM_MAX:
        raise PlanError("record.dim", dim, f"at most {DIM_MAX} for the hashed family")
    if rows * buckets > _COUNTERS_MAX:
        most = _COUNTERS_MAX // buckets
        raise PlanError("sketch.rows", rows, f"at most {most} with buckets = {buckets}: 2^31 counters in all")
    if rows * numbers > _PARAMETERS_MAX:
        most = _PARAMETERS_MAX // numbers
        raise PlanError(
            "sketch.rows", rows, f"at most {most} with power x dim = {numbers}: 2^28 hash parameters in all"
        )


def _refuse_codes(family: Hashed) -> None:
    """Refuses a bandwidth with which some code might leave int32, whatever the seed."""
    came, width = real_text(family.bandwidth), float(family.bandwidth)
    if not 1 / MAGNITUDE_MAX <= family.bandwidth <= MAGNITUDE_MAX:
        raise PlanError("sketch.bandwidth", came, "a number from 2^-64 to 2^64")
    lower, upper = Box.of(family.record).centred
    reach = math.fsum(np.maximum(-lower, upper).tolist()) * euclidean.DIRECTION_LIMIT
    if not reach < CODE_LIMIT * width:
        raise PlanError(
            "sketch.bandwidth",
            came,
            f"more than {reach / CODE_LIMIT:.3g}: within record.lower and record.upper bucket codes may reach "
            f"{reach / width:.3g}, and they must stay within 32 bits",
        )
