"""Parameters of the paired family, and its lift: records and coefficients as vectors whose angle holds the loss.

**Frozen**, every step one IEEE operation, sums in the order of the coordinates. Let z be an accepted record [x, y] of
the regression loss, or label·x of the margin loss (the label is +1 where the last coordinate is above 0, else −1), and
q = [θ, −1] or −θ, all float32.

* ``orthogonal``: z and q themselves; zero has an angle of π/2 to all others.
* ``inner``: z' = float32(z / max(‖z‖, radius)) in float64, r = float32(√max(0, 1 − ‖z'‖²)), and the record becomes
  [z', ±r/8 (64 of them), 0]; q' = float32(q / norm_bound) and the query [q', 0 (64), float32(√max(0, 1 − ‖q'‖²))].
  Both have length 1, and their inner product is ⟨z', q'⟩ whatever the signs are.

One coordinate r would do for that (asymmetric hashing: Shrivastava and Li 2014). But then all records lie close to one
point, and fall into one bucket of a row or another together: the hashing error grows with n, not with √n. Signs that
differ from record to record spread them, at the same expectation: the error seen is a seventh. They are the bits of
a mix of the bits of z' (the finaliser of SplitMix64 after each coordinate), public, the same for equal records.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.canonical import real_text
from hushsum.errors import Missing, PlanError, RecordError
from hushsum.families.base import Float32
from hushsum.families.limits import NORMAL, refuse_draws
from hushsum.families.vectors import MAGNITUDE_MAX, VectorSpace
from hushsum.schema import Table

#: Coordinates that share what a record's length lacks of 1.
AUXILIARY: Final = 64

_ROOT: Final = np.float32(8)  # √AUXILIARY: a power of two, so that the quotient is exact
_SLACK: Final = 1.0 + 2.0**-20  # a query at its bound must not be refused for its rounding
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)

Float64 = npt.NDArray[np.float64]
UInt64 = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Lift:
    """From accepted records and coefficients to what is hashed.

    Attributes:
        margin: The margin loss, else the regression loss.
        inner: The inner form, else the orthogonal one.
        columns: d, coordinates of an accepted record, the target or label among them.
        radius: Of the inner form: longer records are shortened to it.
        norm_bound: Of the inner form: no q is longer.
    """

    margin: bool
    inner: bool
    columns: int
    radius: float
    norm_bound: float

    @property
    def features(self) -> int:
        """Coordinates of z and of q."""
        return self.columns - self.margin

    @property
    def dim(self) -> int:
        """Coordinates of what is hashed."""
        return self.features + (AUXILIARY + 1 if self.inner else 0)

    @property
    def coefficients(self) -> int:
        """Coordinates of θ."""
        return self.columns - 1

    def records(self, records: Float32) -> Float32:
        """Accepted records (n, d) as they are hashed, (n, :attr:`dim`) float32."""
        z = records
        if self.margin:
            z = records[:, :-1] * np.where(records[:, -1:] > 0, np.float32(1), np.float32(-1))
        if not self.inner:
            return np.ascontiguousarray(z, np.float32)
        lengths = np.maximum(_lengths(z), self.radius)
        out = np.zeros((len(z), self.dim), np.float32)
        shortened = out[:, : self.features]
        shortened[:] = z / lengths[:, None]  # float64 by float64, then rounded
        shortened += np.float32(0)  # no negative zero: its bits are others
        rest = _missing(shortened) / _ROOT
        bits = (_mixed(shortened)[:, None] >> np.arange(AUXILIARY, dtype=np.uint64)) & np.uint64(1)
        out[:, self.features : -1] = np.where(bits == 1, -rest[:, None], rest[:, None])
        return out

    def queries(self, coefficients: Float32) -> Float32:
        """θ (m, d − 1) as they are hashed, (m, :attr:`dim`) float32."""
        q = -coefficients
        if not self.margin:
            q = np.concatenate([coefficients, np.full((len(coefficients), 1), -1, np.float32)], axis=1)
        if not self.inner:
            return np.ascontiguousarray(q, np.float32)
        out = np.zeros((len(q), self.dim), np.float32)
        out[:, : self.features] = q.astype(np.float64) / self.norm_bound
        out[:, -1] = _missing(out[:, : self.features])
        return out

    def accepted(self, queries: npt.ArrayLike) -> Float32:
        """θ (m, d − 1) as float32.

        Raises:
            RecordError: Their type or dimension is wrong, or one is not finite, or beyond :attr:`norm_bound`.
        """
        if isinstance(queries, np.ma.MaskedArray):
            raise RecordError("queries: got a masked array; fill or drop masked values first")
        try:
            array = np.asarray(queries)
        except ValueError as error:
            raise RecordError(f"queries: cannot be read as an array: {error}") from error
        if array.dtype.kind not in "biu" and array.dtype not in {np.dtype(np.float32), np.dtype(np.float64)}:
            raise RecordError(f"queries: got type {array.dtype}, expected float64, float32, integers or booleans")
        if array.ndim != 2 or array.shape[1] != self.coefficients:
            raise RecordError(f"queries: got an array of shape {array.shape}, expected (m, {self.coefficients})")
        if not (np.abs(array.astype(np.float64)) <= float(MAGNITUDE_MAX)).all():
            raise RecordError("queries: got NaN, infinity or a coefficient beyond 2^64, expected smaller numbers")
        coefficients = np.ascontiguousarray(array, np.float32)
        if self.inner:
            lengths = _lengths(coefficients)
            if not self.margin:
                lengths = np.sqrt(lengths * lengths + 1.0)
            for index in np.flatnonzero(~(lengths <= self.norm_bound * _SLACK))[:1]:
                what = "θ" if self.margin else "[θ, −1]"
                came = f"number {index} has {what} of length {lengths[index]:.4g}"
                raise RecordError(f"queries: {came}, expected at most norm_bound = {self.norm_bound:g}")
        return coefficients


def _squares(points: Float32) -> Float64:
    total = np.zeros(len(points))
    for j in range(points.shape[1]):
        column = points[:, j].astype(np.float64)
        total += column * column  # a product of two float32 is exact
    return total


def _lengths(points: Float32) -> Float64:
    return np.asarray(np.sqrt(_squares(points)), np.float64)


def _missing(points: Float32) -> Float32:
    """(n,) float32: what makes the length of points within the unit ball 1."""
    return np.sqrt(np.maximum(1.0 - _squares(points), 0.0)).astype(np.float32)


def _mixed(points: Float32) -> UInt64:
    """(n,) uint64: a mix of all bits of a point."""
    h = np.zeros(len(points), np.uint64)
    for j in range(points.shape[1]):
        h ^= np.ascontiguousarray(points[:, j]).view(np.uint32)
        h += _GOLDEN  # modulo 2⁶⁴, as all of it
        h = (h ^ (h >> np.uint64(30))) * _FIRST
        h = (h ^ (h >> np.uint64(27))) * _SECOND
        h ^= h >> np.uint64(31)
    return h


DIM_MAX: Final = 2**15

_POWER_MAX: Final = 8
_DEFAULT_POWER: Final = 4
_LEAST: Final = Fraction(1, 2**64)


def read_power(sketch: Table, loss: str) -> int:
    """``power``, 2 to 8.

    Raises:
        PlanError: Among others for 1, with which no loss is left.
    """
    power = sketch.integer("power", low=1, high=_POWER_MAX, default=_DEFAULT_POWER)
    if power == 1:
        why = "1 makes the regression loss constant" if loss == "regression" else "with 1 the margin loss is not convex"
        raise PlanError("sketch.power", power, f"an integer from 2 to {_POWER_MAX}: {why}")
    return power


def read_radius(sketch: Table) -> Fraction:
    """``radius`` of the inner form. It has no default: the largest length within the bounds would drown in noise.

    Raises:
        PlanError: It is left out, or not within 2⁻⁶⁴ to 2⁶⁴.
    """
    if not sketch.has("radius"):
        expected = "1 to 1.5 times a typical length of [x, y] (margin: of x); form = 'orthogonal' needs none"
        raise PlanError("sketch.radius", Missing.MISSING, expected)
    return _length(sketch, "radius", None)


def read_norm_bound(sketch: Table, loss: str) -> Fraction:
    """``norm_bound`` of the inner form: 2 for the regression loss, 1 for the margin loss where it is left out.

    Raises:
        PlanError: It is not within 2⁻⁶⁴ to 2⁶⁴, or no coefficients but 0 are within it.
    """
    bound = _length(sketch, "norm_bound", "2" if loss == "regression" else "1")
    if loss == "regression" and bound <= 1:
        raise PlanError("sketch.norm_bound", real_text(bound), "more than 1: no vector [θ, −1] is shorter")
    return bound


def lift_of(space: VectorSpace, *, loss: str, radius: Fraction | None, norm_bound: Fraction | None) -> Lift:
    """What is hashed; both constants are None for the orthogonal form.

    Raises:
        PlanError: There is no feature beside the target, or no label of one sign is within the bounds.
    """
    margin = loss == "margin"
    if space.dim < 2:
        raise PlanError("record.dim", space.dim, "at least 2 columns: features, and the target or label last")
    lower, upper = space.ends
    if margin and not lower[-1] <= 0 < upper[-1]:
        came = f"labels from {lower[-1]:g} to {upper[-1]:g}"
        raise PlanError("record.lower", came, "bounds of the last column that contain labels above and below 0")
    constants = float(radius or 1), float(norm_bound or 1)
    return Lift(margin, radius is not None, space.dim, *constants)


def refuse_sizes(lift: Lift, *, rows: int, power: int) -> None:
    """Refuses more columns or draws than there may be.

    Raises:
        PlanError: With the rows that would do.
    """
    if lift.columns > DIM_MAX:
        raise PlanError("record.dim", lift.columns, f"at most {DIM_MAX} columns for the paired family")
    refuse_draws(rows, NORMAL * power * lift.dim, "power and dim")


def _length(sketch: Table, key: str, default: str | None) -> Fraction:
    value = sketch.real(key, expected="a number above 0", above=0, default=default)
    if not _LEAST <= value <= MAGNITUDE_MAX:
        raise PlanError(f"sketch.{key}", real_text(value), "a number from 2^-64 to 2^64")
    return value
