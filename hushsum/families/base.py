"""The protocol of a family, the values that pass through it, and what several families share.

Shared are: checks of counters, the pickle of a family, the counters that n records can make where every record changes
one counter of each row by one, and how increments are packed (rows that each sum to the number of records, or signed
counters).
"""

import math
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from hushsum.bitpacking import pack_rows, pack_signed, signed_bytes_max, size_max, unpack_rows, unpack_signed
from hushsum.errors import DeltaError, Reason
from hushsum.families.estimators import shrunk
from hushsum.families.sets import Sets
from hushsum.notebook import ROWS_MAX, table_html
from hushsum.parameters import NO_PARAMETERS, Parameters
from hushsum.schema import Table
from hushsum.sensitivity import RecordRows, Sensitivity
from hushsum.student_t import student_t_quantile

Counters = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
#: Accepted records: vectors (n, d) or sets; both have a length and are cut by a slice or a mask.
Records = Float32 | Sets


@dataclass(frozen=True)
class VectorRecords:
    """The schema of records that are vectors (``[record]`` with ``kind = "vector"``).

    Attributes:
        dim: d, the number of coordinates.
        lower: d public lower bounds; records are clipped to them.
        upper: d public upper bounds, each above its lower one.
    """

    dim: int
    lower: tuple[Fraction, ...]
    upper: tuple[Fraction, ...]


@dataclass(frozen=True)
class SetRecords:
    """The schema of records that are sets of ids (``kind = "set"``).

    Attributes:
        universe: Ids are 0 to ``universe`` − 1.
    """

    universe: int


RecordSchema = VectorRecords | SetRecords


class Queried:
    """A family of vectors whose queries are points like its records."""

    record: VectorRecords

    @property
    def query_dim(self) -> int:
        """d, as many coordinates as a record has."""
        return self.record.dim


@dataclass(frozen=True, eq=False)
class Increments:
    """A sparse change of the counters of one class.

    Attributes:
        indices: (k,) int64, flat indices into the family's ``shape`` (C order), strictly increasing.
        values: (k,) int64, what is added at each; never 0.
    """

    indices: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]


class Interval(NamedTuple):
    """The ends of the intervals of m answers: ``low, high = answer.interval()``.

    Attributes:
        low: (m,) float64.
        high: (m,) float64.
    """

    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Answer:
    """Estimates of a kernel sum at m queries.

    Attributes:
        value: (m,) float64, in records.
        std_error: (m,) float64, the standard error of ``value``: hashing error and noise together, at no privacy cost.
        spread: Where the standard error comes from: ``rows`` (the spread of independent rows), ``sets`` (that of
            independently scrambled sets of rows), ``groups`` (that of the groups' means, for a median of means),
            ``noise`` (the mechanism alone: the sketch itself is no draw).
        degrees: Of freedom of the standard error, where they are few; None: the normal interval.
        bias: (m,) float64: how far the mean of ``value`` may lie off, where a family truncates a series; None: nowhere.
    """

    value: npt.NDArray[np.float64]
    std_error: npt.NDArray[np.float64]
    spread: str = "rows"
    degrees: int | None = None
    bias: npt.NDArray[np.float64] | None = None

    def interval(self, confidence: float = 0.95) -> Interval:
        """The lower and the upper ends, (m,) each, of the intervals at this confidence, in (0, 1).

        They are wider by ``bias`` on both sides where there is one.
        """
        from statistics import NormalDist

        if not 0.0 < confidence < 1.0:
            raise ValueError(f"confidence: got {confidence!r}, expected a number between 0 and 1")
        level = 0.5 + confidence / 2
        reach = NormalDist().inv_cdf(level) if self.degrees is None else student_t_quantile(level, self.degrees)
        half = reach * self.std_error + (0.0 if self.bias is None else self.bias)
        return Interval(self.value - half, self.value + half)

    def columns(self, confidence: float = 0.95) -> dict[str, npt.NDArray[np.float64]]:
        """The answers as named columns, (m,) float64 each: for a data frame of pandas or polars, or an Arrow table.

        ``value``, ``std_error``, and the ends of the intervals at this confidence, ``low`` and ``high``; ``bias`` where
        there is one.
        """
        low, high = self.interval(confidence)
        columns = {"value": self.value, "std_error": self.std_error, "low": low, "high": high}
        return columns if self.bias is None else {**columns, "bias": self.bias}

    def shrunk(self) -> npt.NDArray[np.float64]:
        """(m,) float64: the values with less mean squared error over many queries, such as a grid over the bounds.

        Values below 0 become 0, and where most of 30 answers or more are noise, all are moved towards 0 by a number of
        standard errors that is chosen from the answers themselves (Stein's estimate of the risk). So they are biased,
        depend on what was asked together, and do not add up: sum ``value``, not these. Intervals stay those of
        :meth:`interval`, around ``value``. For kernels that are never negative: all but those of given frequencies.
        """
        return shrunk(self.value, self.std_error)

    def _repr_html_(self) -> str:
        """The first answers as a table, with their 95 % intervals."""
        columns = self.columns()
        shown = [column[:ROWS_MAX].tolist() for column in columns.values()]
        rows = [[f"{number:,.6g}" for number in row] for row in zip(*shown, strict=True)]
        names = {"low": "95 % low", "high": "95 % high"}
        title = f"{len(self.value):,} answer{'' if len(self.value) == 1 else 's'}"
        return table_html(title, [names.get(name, name) for name in columns], rows, total=len(self.value))

    def over(self, total: float) -> "Answer":
        """The same divided by a number above 0."""
        bias = None if self.bias is None else self.bias / total
        return Answer(self.value / total, self.std_error / total, self.spread, self.degrees, bias)


class Family(Protocol):
    """An LSQ pair with its parameters: immutable, built from the keys of ``[sketch]``, the same on every platform."""

    name: ClassVar[str]

    @classmethod
    def from_table(cls, sketch: Table, record: RecordSchema, parameters: Parameters = NO_PARAMETERS) -> Self:
        """Reads and validates the family's keys (all of ``[sketch]`` but ``family``), and calls ``sketch.finish()``.

        ``parameters`` holds the arrays that came beside the plan.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        ...

    def to_fields(self) -> dict[str, object]:
        """Every v1 key of the family with canonical-ready values: integers, strings, reals as canonical text."""
        ...

    @property
    def digests(self) -> tuple[str, ...]:
        """Of the arrays beside the plan that this family uses."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of one class's counters: (rows, buckets) for hashed."""
        ...

    @property
    def query_dim(self) -> int:
        """Coordinates of a query; 0 where it is a set."""
        ...

    @property
    def sensitivity(self) -> Sensitivity:
        """Of one record under add/remove, without the count counter (docs/families.md)."""
        ...

    @property
    def rows_sum_to_records(self) -> bool:
        """Whether each record adds exactly 1 to every row, or to every row of some level, and :meth:`check` demands it.

        A plan then needs no count counter.
        """
        ...

    @property
    def record_rows(self) -> RecordRows:
        """How well :meth:`records_in` tells the number of records; where rows sum to it alone."""
        ...

    def records_in(self, counters: npt.NDArray[np.int64]) -> float:
        """The number of records, from the sums of rows: exact of exact counters, else unbiased.

        Raises:
            ValueError: Rows do not sum to it.
        """
        ...

    def records_covariance(self, counter_variance: float) -> float:
        """Of the noise of :meth:`records_in` with that of :meth:`answer`, without groups."""
        ...

    @property
    def kernel_error(self) -> float:
        """α: |E[f(x)·g(q)] − k(x, q)| is at most this for any record and any query within the public bounds."""
        ...

    def accept(self, records: Any) -> tuple[Records, npt.NDArray[np.bool_]]:
        """Usable records in the form that :meth:`add` and :meth:`encode` take, and the mask (n,) of those kept.

        A record that cannot be used (NaN, infinity, an empty set) is dropped alone.

        Raises:
            RecordError: The array's type or dimension is wrong, and nothing of it can be used.
        """
        ...

    def add(self, counters: Counters, records: Records) -> None:
        """Adds accepted records to the counters of one class, in place: f, summed."""
        ...

    def encode(self, records: Records) -> Increments:
        """The increments of accepted records: f, summed, sparse. Equal to what :meth:`add` does to zeroes."""
        ...

    def check(self, increments: Increments, records: int) -> None:
        """Refuses increments that no ``records`` records can make.

        Indices are within the shape and strictly increasing; that is checked before.

        Raises:
            DeltaError: With the reason ``impossible_counts``.
        """
        ...

    def pack(self, increments: Increments, records: int) -> tuple[int, bytes]:
        """The smallest encoding of the increments of so many records (at least 1), and its bytes."""
        ...

    def unpack(self, encoding: int, data: bytes, records: int) -> Increments:
        """What :meth:`pack` was given, from untrusted bytes; the caller then calls :meth:`check`.

        Raises:
            DeltaError: ``malformed``, ``bucket_out_of_range`` or ``impossible_counts``. Sizes are checked before
                anything is allocated.
        """
        ...

    def packed_bytes_max(self, records: int) -> int:
        """The most bytes that :meth:`pack` can give for up to so many records."""
        ...

    def answer(
        self,
        counters: npt.NDArray[np.int64],
        queries: Any,
        *,
        noise_variance: float = 0.0,
        groups: int | None = None,
    ) -> Answer:
        """Estimates of the kernel sum at m queries from the (noised) counters of one class: the rows' g, averaged.

        Args:
            counters: Shaped as :attr:`shape`.
            queries: (m, d), or m sets.
            noise_variance: Of the noise on every counter, for families whose rows do not show it.
            groups: The median of the means of so many groups of rows instead of the mean (RACE, Lemma 3.3).

        Raises:
            RecordError: The queries' type or dimension is wrong, or one of them cannot be used.
            ValueError: ``groups`` where rows are no independent repetitions, or not from 1 to their number.
        """
        ...

    def answer_variance(self, counter_variance: float) -> float:
        """The most of an answer's variance that noise of this variance on every counter brings: σ²·‖g‖²."""
        ...

    @property
    def answer_weight_max(self) -> float:
        """No counter has more weight than this in any answer; infinity where no bound is known."""
        ...

    @property
    def kernel_min(self) -> float:
        """The least value that the kernel may have: 0, or −1 where it takes both signs; the most is 1."""
        ...

    def kernel(self, x: Any, y: Any) -> npt.NDArray[np.float64]:
        """The exact kernel k(x, y) of n and m points, as :meth:`accept` reads them, to (n, m): what is estimated."""
        ...


def check_counters(counters: Counters, shape: tuple[int, int]) -> None:
    """Refuses counters that records cannot be added to.

    Raises:
        ValueError: They have another shape, type or layout.
    """
    flags = counters.flags
    if counters.shape != shape or counters.dtype != np.int64 or not (flags.c_contiguous and flags.writeable):
        raise ValueError(
            f"counters: got {counters.dtype} of shape {counters.shape}, "
            f"expected C-contiguous int64 {shape} that may be written"
        )


@dataclass(frozen=True)
class FieldsAlone:
    """A dataclass that is pickled and copied without its cached tables: they are drawn again where they are needed."""

    def __getstate__(self) -> dict[str, object]:
        """The fields."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


_RECORDS_MAX: Final = 2**38  # of one delta: sums of a row of counters stay far inside int64


def refuse_impossible_counts(increments: Increments, records: int, *, rows: int, buckets: int) -> None:
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
    ends = np.searchsorted(increments.indices, np.arange(1, rows + 1) * buckets)
    running = np.concatenate([[0], np.cumsum(values)])
    sums = np.diff(running[np.concatenate([[0], ends])])
    wrong = np.flatnonzero(sums != records)
    if len(wrong):
        row = int(wrong[0])
        raise DeltaError(Reason.IMPOSSIBLE_COUNTS, f"row {row} sums to {sums[row]}, expected {records} in every row")


_LARGEST: Final = 2**47 - 1  # what the packing of signed counters holds


_NO_SUMS: Final = "rows of this family do not sum to the number of records: a count counter tells it"


class _Shaped(Protocol):
    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def sensitivity(self) -> Sensitivity: ...


class RowsPacked:
    """A family each of whose rows sums to the number of records (:mod:`hushsum.bitpacking`)."""

    rows_sum_to_records: ClassVar[bool] = True

    @property
    def answer_weight_max(self) -> float:
        """Not known."""
        return math.inf

    @property
    def kernel_min(self) -> float:
        """0: a probability, or a loss."""
        return 0.0

    @property
    def record_rows(self: _Shaped) -> RecordRows:
        """The mean of R sums of W counters; an answer reads one counter a row."""
        rows, width = self.shape
        return RecordRows(answer=1.0 / rows, count=width / rows)

    def records_in(self: _Shaped, counters: npt.NDArray[np.int64]) -> float:
        """The mean of the sums of rows."""
        return float(counters.sum()) / self.shape[0]

    def records_covariance(self: _Shaped, counter_variance: float) -> float:
        """Of one counter a row with the sums of all rows: σ²/R."""
        return counter_variance / self.shape[0]

    def pack(self: _Shaped, increments: Increments, records: int) -> tuple[int, bytes]:
        """A list of buckets a row, Elias–Fano, or counts."""
        return pack_rows(increments.indices, increments.values, *self.shape, records)

    def unpack(self: _Shaped, encoding: int, data: bytes, records: int) -> Increments:
        """What :meth:`pack` was given.

        Raises:
            DeltaError: See :func:`hushsum.bitpacking.unpack_rows`.
        """
        return Increments(*unpack_rows(encoding, data, *self.shape, records))

    def packed_bytes_max(self: _Shaped, records: int) -> int:
        """Of up to so many records.

        Every encoding's size grows with the records, except where one more record takes away a low bit of Elias–Fano,
        which is after n = W >> k for any k: a largest size is at one of these, or at ``records``.
        """
        rows, width = self.shape
        ends = (width >> k for k in range(width.bit_length()))
        return max(size_max(rows, width, n) for n in (records, *(end for end in ends if end < records)))


class SignedPacked:
    """A family whose counters have signs and no fixed sum (:mod:`hushsum.bitpacking`)."""

    @property
    def rows_sum_to_records(self) -> bool:
        """No."""
        return False

    @property
    def record_rows(self) -> RecordRows:
        """None.

        Raises:
            ValueError: Always.
        """
        raise ValueError(_NO_SUMS)

    def records_in(self, counters: npt.NDArray[np.int64]) -> float:
        """None.

        Raises:
            ValueError: Always.
        """
        del counters
        raise ValueError(_NO_SUMS)

    def records_covariance(self, counter_variance: float) -> float:
        """0: a count counter has noise of its own."""
        del counter_variance
        return 0.0

    def pack(self: _Shaped, increments: Increments, records: int) -> tuple[int, bytes]:
        """Every counter, or those that are not 0 with their places, whichever is smaller."""
        del records
        return pack_signed(increments.indices, increments.values, math.prod(self.shape))

    def unpack(self: _Shaped, encoding: int, data: bytes, records: int) -> Increments:
        """What :meth:`pack` was given.

        Raises:
            DeltaError: See :func:`hushsum.bitpacking.unpack_signed`.
        """
        return Increments(*unpack_signed(encoding, data, math.prod(self.shape), **_limits(self, records)))

    def packed_bytes_max(self: _Shaped, records: int) -> int:
        """Of up to so many records."""
        return signed_bytes_max(math.prod(self.shape), **_limits(self, records))


def _limits(family: _Shaped, records: int) -> dict[str, int]:
    """How many counters so many records can change, and by how much one of them."""
    stated = family.sensitivity
    entries = min(records * stated.l0, math.prod(family.shape))
    return {"entries_max": entries, "largest": min(records * stated.linf, _LARGEST)}
