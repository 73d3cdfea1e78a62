"""Vector records as float32: read, clipped to the public bounds, centred on their midpoint.

This is part of the definition of a family's bytes: coordinates are cast to float32 (round to nearest), clipped to
float32 of the bounds, and less float32 of the midpoint in float32 arithmetic. A real of the plan becomes float32 by way
of float64.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.canonical import real_text
from hushsum.errors import PlanError, RecordError
from hushsum.families.family import Records, VectorRecords

#: Bounds are at most this, so that differences and sums of a few coordinates stay far inside float32.
MAGNITUDE_MAX: Final = Fraction(2) ** 64


@dataclass(frozen=True, eq=False)
class Box:
    """Public bounds as float32.

    Attributes:
        lower: (d,).
        upper: (d,), each above its lower one.
        middle: (d,): float32 of the exact midpoint.
    """

    lower: Records
    upper: Records
    middle: Records

    @classmethod
    def of(cls, record: VectorRecords) -> "Box":
        """The box of a schema.

        Raises:
            PlanError: A bound is beyond ±2⁶⁴, or two bounds are too close to differ as float32.
        """
        for key, bounds in (("record.lower", record.lower), ("record.upper", record.upper)):
            for bound in bounds:
                if abs(bound) > MAGNITUDE_MAX:
                    raise PlanError(key, real_text(bound), "bounds within ±2^64")
        middle = tuple((low + high) / 2 for low, high in zip(record.lower, record.upper, strict=True))
        box = cls(_float32(record.lower), _float32(record.upper), _float32(middle))
        ordered = (box.lower < box.upper) & (box.lower <= box.middle) & (box.middle <= box.upper)
        for j in np.flatnonzero(~ordered):
            raise PlanError("record.upper", real_text(record.upper[j]), f"more than {box.lower[j]} as a 32-bit number")
        return box

    @property
    def centred(self) -> tuple[Records, Records]:
        """The bounds less the midpoint: those of accepted records."""
        return self.lower - self.middle, self.upper - self.middle

    def accept(self, records: npt.ArrayLike) -> tuple[Records, npt.NDArray[np.bool_]]:
        """Usable records, clipped and centred, (k, d) float32, and the mask (n,) of those that were kept.

        A record with NaN or infinity is dropped alone.

        Args:
            records: (n, d) float64, float32, integers or booleans, in the unit of the bounds.

        Raises:
            RecordError: Another type or dimension.
        """
        array = self._matrix(records, "records")
        finite = np.isfinite(array)
        kept = np.ones(len(array), np.bool_) if finite.all() else finite.all(axis=1)
        with np.errstate(over="ignore"):  # a float64 beyond float32 is clipped like any other
            usable = (array if kept.all() else array[kept]).astype(np.float32, order="C")
        np.clip(usable, self.lower, self.upper, out=usable)
        usable -= self.middle
        return usable, kept

    def centre_queries(self, queries: npt.ArrayLike) -> Records:
        """Queries (m, d), centred like records but not clipped; infinite where float32 overflows.

        Raises:
            RecordError: Another type or dimension, or NaN or infinity.
        """
        array = self._matrix(queries, "queries")
        if not np.isfinite(array).all():
            raise RecordError("queries: got NaN or infinity, expected finite numbers")
        with np.errstate(over="ignore"):
            centred: Records = array.astype(np.float32, order="C")
            centred -= self.middle
        return centred

    def _matrix(self, points: npt.ArrayLike, what: str) -> npt.NDArray[np.generic]:
        if isinstance(points, np.ma.MaskedArray):
            raise RecordError(f"{what}: got a masked array; fill or drop what is masked first")
        try:
            array = np.asarray(points)
        except ValueError as error:
            raise RecordError(f"{what}: not an array: {error}") from error
        if array.dtype.kind not in "biu" and array.dtype not in {np.dtype(np.float32), np.dtype(np.float64)}:
            raise RecordError(f"{what}: got type {array.dtype}, expected float64, float32, integers or booleans")
        dim = len(self.lower)
        if array.ndim != 2 or array.shape[1] != dim:
            raise RecordError(
                f"{what}: got an array of shape {array.shape}, expected (n, {dim}); one point is array.reshape(1, -1)"
            )
        return array


def _float32(reals: tuple[Fraction, ...]) -> Records:
    return np.array([float(value) for value in reals], np.float64).astype(np.float32)
