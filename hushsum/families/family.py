"""What every family offers: the protocol, and the values that pass through it."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from hushsum.families.sets import Sets
from hushsum.parameters import NO_PARAMETERS, Parameters
from hushsum.schema import Table
from hushsum.sensitivity import Sensitivity
from hushsum.student import student_t_quantile

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

    def interval(self, confidence: float = 0.95) -> npt.NDArray[np.float64]:
        """(m, 2) float64: lower and upper ends of the interval at this confidence, in (0, 1).

        It is wider by ``bias`` on both sides where there is one.
        """
        from statistics import NormalDist

        if not 0.0 < confidence < 1.0:
            raise ValueError(f"confidence: got {confidence!r}, expected a number between 0 and 1")
        level = 0.5 + confidence / 2
        reach = NormalDist().inv_cdf(level) if self.degrees is None else student_t_quantile(level, self.degrees)
        half = reach * self.std_error + (0.0 if self.bias is None else self.bias)
        return np.stack([self.value - half, self.value + half], axis=1)

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
        """Of one record under add/remove, without the count counter (MATH: sensitivity of one record)."""
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
        """Refuses increments that no ``records`` records can make (PRIVACY: range checks).

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

    def kernel(self, x: Any, y: Any) -> npt.NDArray[np.float64]:
        """The exact kernel k(x, y) of n and m points, as :meth:`accept` reads them, to (n, m): what is estimated."""
        ...
