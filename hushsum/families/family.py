"""What every family offers: the protocol, and the values that pass through it."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from hushsum.schema import Table
from hushsum.sensitivity import Sensitivity

Counters = npt.NDArray[np.int64]
Records = npt.NDArray[np.float32]


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
        std_error: (m,) float64, the standard error of ``value``: hashing error and noise together, from the spread of
            the rows, so that it costs no privacy.
    """

    value: npt.NDArray[np.float64]
    std_error: npt.NDArray[np.float64]

    def interval(self, confidence: float = 0.95) -> npt.NDArray[np.float64]:
        """(m, 2) float64: lower and upper ends of the normal interval at this confidence, in (0, 1)."""
        from statistics import NormalDist

        if not 0.0 < confidence < 1.0:
            raise ValueError(f"confidence: got {confidence!r}, expected a number between 0 and 1")
        reach = NormalDist().inv_cdf(0.5 + confidence / 2) * self.std_error
        return np.stack([self.value - reach, self.value + reach], axis=1)


class Family(Protocol):
    """An LSQ pair with its parameters: immutable, built from the keys of ``[sketch]``, the same on every platform."""

    name: ClassVar[str]

    @classmethod
    def from_table(cls, sketch: Table, record: VectorRecords) -> Self:
        """Reads and validates the family's keys (all of ``[sketch]`` but ``family``), and calls ``sketch.finish()``.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        ...

    def to_fields(self) -> dict[str, object]:
        """Every v1 key of the family with canonical-ready values: integers, strings, reals as canonical text."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one class's counters: (rows, buckets) for hashed."""
        ...

    @property
    def sensitivity(self) -> Sensitivity:
        """Of one record under add/remove, without the count counter (MATH: sensitivity of one record)."""
        ...

    def accept(self, records: npt.ArrayLike) -> tuple[Records, npt.NDArray[np.bool_]]:
        """Usable records, clipped to the public bounds and centred, and the mask (n,) of those that were kept.

        A record with NaN or infinity is dropped alone. The result is what :meth:`add` and :meth:`encode` take.

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

    def answer(self, counters: npt.NDArray[np.int64], queries: npt.ArrayLike) -> Answer:
        """Estimates of the kernel sum at (m, d) queries from the (noised) counters of one class: the rows' g, averaged.

        Raises:
            RecordError: The queries' type or dimension is wrong, or one of them is not finite.
        """
        ...

    def answer_variance(self, counter_variance: float) -> float:
        """The part of an answer's variance that noise of this variance on every counter brings: σ²·‖g‖²."""
        ...

    def kernel(self, x: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The exact kernel k(x, y), (n, d) and (m, d) to (n, m): what the answers estimate, for comparison."""
        ...
