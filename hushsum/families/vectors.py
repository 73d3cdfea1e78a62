"""Vector records as float32: read, clipped to the public bounds, transformed, centred on their midpoint.

This is part of the definition of a family's bytes: coordinates are cast to float32 (round to nearest; those of a list
by way of float64, row by row), clipped to float32 of the bounds, put through the plan's transforms
(:mod:`hushsum.families.transforms`), clipped to the bounds that follow for what comes out, and less float32 of their
midpoint in float32 arithmetic. A real of the plan becomes float32 by way of float64. A :class:`VectorSpace` does all of
it; a :class:`Box` is the part without transforms.

**Arrays and lists.** An array has a type that its owner chose. A list has none: NumPy would give it one that suits all
of its rows, so that one record would change the last bits of the others, or have them refused. So each row of a list is
*defined* as what it is alone, in float64, and one that is no row of d numbers is NaN, which drops alone. Many rows at
once are a short cut, taken only where it gives the same.

**Rounding.** A record's coordinates are rounded to float32 before anything else, so far from 0 they become coarse,
whatever the bandwidth: Unix times lie on a grid of 128 seconds. Here is a bound on that, for plans to refuse it and for
``kernel_error`` to hold it.
"""

from array import array
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from numbers import Number
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum import compiled
from hushsum.canonical import real_text
from hushsum.errors import PlanError, RecordError
from hushsum.families.base import Float32, Records, RecordSchema, VectorRecords
from hushsum.families.transforms import Float64, Linear, Scale, Transforms, UnitNorm, float32
from hushsum.parameters import Parameters
from hushsum.schema import Table

#: Bounds are at most this, so that differences and sums of a few coordinates stay far inside float32.
MAGNITUDE_MAX: Final = Fraction(2) ** 64


def vector_records(record: RecordSchema, family: str) -> VectorRecords:
    """The schema of vectors.

    Raises:
        PlanError: Records are sets.
    """
    if isinstance(record, VectorRecords):
        return record
    raise PlanError("record.kind", "set", f"'vector' for {family}")


@dataclass(frozen=True, eq=False)
class VectorSpace:
    """From the caller's vectors to those that are hashed.

    Attributes:
        box: The public bounds of the caller's vectors.
        transforms: Of the plan.
        inner: The bounds of what comes out of them; :attr:`box` itself where there are none.
        centred: Whether the midpoint of ``inner`` is taken off: not where the origin means something (angles).
        rounded: Whether kernels in closed form are those of float32: of angles, which rounding turns near 0.
    """

    box: "Box"
    transforms: Transforms
    inner: "Box"
    centred: bool
    rounded: bool = False

    @classmethod
    def of(
        cls, record: VectorRecords, transforms: Transforms, *, centred: bool = True, rounded: bool = False
    ) -> "VectorSpace":
        """The space of a schema.

        Raises:
            PlanError: Bounds are beyond ±2⁶⁴, or a coordinate of what comes out can have one value alone.
        """
        box = Box.of(record)
        if not transforms.steps:
            return cls(box, transforms, box, centred, rounded)
        lower, upper = transforms.bounds(box.lower, box.upper)
        middle = ((lower.astype(np.float64) + upper.astype(np.float64)) / 2).astype(np.float32)
        rounded = rounded or any(isinstance(step, UnitNorm) for step in transforms.steps)
        return cls(box, transforms, Box(lower, upper, middle), centred, rounded)

    @classmethod
    def from_table(
        cls, sketch: Table, record: RecordSchema, parameters: Parameters, *, family: str, centred: bool = True
    ) -> "VectorSpace":
        """Reads ``transforms`` of ``[sketch]``.

        Raises:
            PlanError: Records are sets, or a transform is wrong.
        """
        schema = vector_records(record, family)
        return cls.of(schema, Transforms.from_table(sketch, parameters, schema.dim), centred=centred)

    @property
    def dim(self) -> int:
        """d', the number of coordinates that are hashed."""
        return len(self.inner.lower)

    @property
    def ends(self) -> tuple[Float32, Float32]:
        """(d',) float32, twice: the least and the largest coordinates of accepted records, as they are hashed."""
        if not self.centred:
            return self.inner.lower, self.inner.upper
        return self.inner.centred

    @property
    def sizes(self) -> Float32:
        """(d',) float32 above 0: the largest absolute coordinate of an accepted record."""
        lower, upper = self.ends
        return np.maximum(-lower, upper)

    def accept(self, records: npt.ArrayLike) -> tuple[Float32, npt.NDArray[np.bool_]]:
        """Usable records as they are hashed, (k, d') float32, and the mask (n,) of those that were kept.

        A record with NaN or infinity is dropped alone; in a list, so is one that is no row of d numbers.

        Args:
            records: In the unit of the bounds: (n, d) float64, float32, integers or booleans, or a list or an array of
                objects, of n rows, each read by itself.

        Raises:
            RecordError: An array of another type or dimension. What the items of a list are never raises.
        """
        usable, kept = self.box.read(records)
        if self.transforms.steps:
            usable = np.ascontiguousarray(self.transforms.apply(usable), np.float32)
            np.clip(usable, self.inner.lower, self.inner.upper, out=usable)
        if self.centred:
            usable -= self.inner.middle
        return usable, kept

    def accepted(self, records: Records) -> Float32:
        """The same records, C-contiguous, once it is sure that they come from :meth:`accept`.

        Raises:
            RecordError: They do not.
        """
        if isinstance(records, np.ndarray) and records.dtype == np.float32 and records.ndim == 2:
            contiguous: Float32 = np.ascontiguousarray(records)
            if contiguous.shape[1] == self.dim and _within(contiguous, *self.ends):
                return contiguous
        raise RecordError("records: expected what accept() returned: clipped, centred, (n, d) float32")

    def records(self, records: npt.ArrayLike) -> Float32:
        """All records (n, d) as :meth:`accept` has them, (n, d').

        Raises:
            RecordError: Another type or dimension, or NaN or infinity.
        """
        usable, kept = self.accept(records)
        if not kept.all():
            number, dim = int(np.argmin(kept)), len(self.box.lower)
            raise RecordError(f"records: number {number} has NaN or infinity, or is not a row of {dim} numbers")
        return usable

    def queries(self, queries: npt.ArrayLike) -> Float32:
        """Queries (m, d), transformed and centred like records but not clipped to the bounds, (m, d') float32.

        A coordinate beyond float32 becomes infinite: the family says what is too far.

        Raises:
            RecordError: Another type or dimension, or NaN or infinity.
        """
        points = self.box.read_queries(queries)
        if self.transforms.steps:
            with np.errstate(over="ignore", invalid="ignore"):
                points = np.ascontiguousarray(self.transforms.apply(points), np.float32)
            points[np.isnan(points)] = np.inf
        if self.centred:
            with np.errstate(over="ignore"):
                points -= self.inner.middle
        return points

    def exact(self, points: npt.ArrayLike, *, clip: bool = False) -> Float64:
        """Points (n, d) as float64 (n, d'), transformed, not centred: for kernels in closed form.

        Nothing is rounded, but to float32 where the space is :attr:`rounded`.

        Args:
            points: In the unit of the bounds.
            clip: To the bounds: what :meth:`accept` does with records, but not :meth:`queries`.
        """
        exact = np.asarray(points, np.float64)
        if clip:
            exact = np.clip(exact, self.box.lower, self.box.upper)
        if not self.rounded:
            return self.transforms.exact(exact)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.transforms.apply(exact.astype(np.float32)).astype(np.float64)

    @property
    def rounding(self) -> Float64:
        """(d',): how far float32 may put a difference of two points within the bounds from that of the exact ones."""
        errors = of_points(self.box.lower, self.box.upper, self.transforms)
        return of_pairs(errors, self.sizes if self.centred else None)


@dataclass(frozen=True, eq=False)
class Box:
    """Public bounds as float32.

    Attributes:
        lower: (d,).
        upper: (d,), each above its lower one.
        middle: (d,): float32 of the exact midpoint.
    """

    lower: Float32
    upper: Float32
    middle: Float32

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
        box = cls(float32(record.lower), float32(record.upper), float32(middle))
        ordered = (box.lower < box.upper) & (box.lower <= box.middle) & (box.middle <= box.upper)
        for j in np.flatnonzero(~ordered):
            raise PlanError("record.upper", real_text(record.upper[j]), f"more than {box.lower[j]} as a 32-bit number")
        return box

    @property
    def centred(self) -> tuple[Float32, Float32]:
        """The bounds less the midpoint: those of accepted records."""
        return self.lower - self.middle, self.upper - self.middle

    def read(self, records: npt.ArrayLike) -> tuple[Float32, npt.NDArray[np.bool_]]:
        """Usable records, clipped, (k, d) float32, and the mask (n,) of those that were kept."""
        array = self._matrix(readable(records, len(self.lower)), "records")
        finite = np.isfinite(array)
        kept = np.ones(len(array), np.bool_) if finite.all() else finite.all(axis=1)
        with np.errstate(over="ignore"):  # a float64 beyond float32 is clipped like any other
            usable = (array if kept.all() else array[kept]).astype(np.float32, order="C")
        np.clip(usable, self.lower, self.upper, out=usable)
        return usable, kept

    def outside(self, records: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
        """(k, d): which coordinates of usable records (k, d) lie outside the bounds, and are clipped."""
        with np.errstate(over="ignore"):
            single = records.astype(np.float32)
        return np.asarray((single < self.lower) | (single > self.upper), np.bool_)

    def read_queries(self, queries: npt.ArrayLike) -> Float32:
        """Queries (m, d) as float32; infinite where float32 overflows."""
        array = self._matrix(queries, "queries")
        if not np.isfinite(array).all():
            raise RecordError("queries: got NaN or infinity, expected finite numbers")
        with np.errstate(over="ignore"):
            points: Float32 = array.astype(np.float32, order="C")
        return points

    def _matrix(self, points: npt.ArrayLike, what: str) -> npt.NDArray[np.generic]:
        if isinstance(points, np.ma.MaskedArray):
            raise RecordError(f"{what}: got a masked array; fill or drop masked values first")
        try:
            array = np.asarray(points)
        except ValueError as error:
            raise RecordError(f"{what}: cannot be read as an array: {error}") from error
        if array.dtype.kind not in "biu" and array.dtype not in {np.dtype(np.float32), np.dtype(np.float64)}:
            raise RecordError(f"{what}: got type {array.dtype}, expected float64, float32, integers or booleans")
        dim = len(self.lower)
        if array.ndim != 2 or array.shape[1] != dim:
            raise RecordError(
                f"{what}: got an array of shape {array.shape}, expected (n, {dim}); one point is array.reshape(1, -1)"
            )
        return array


def _within(records: Float32, lower: Float32, upper: Float32) -> bool:
    if compiled.enabled():
        from hushsum.families import vector_loops

        return bool(vector_loops.within(records, lower, upper))
    if not len(records):
        return True
    return bool(np.all(records.min(axis=0) >= lower) and np.all(records.max(axis=0) <= upper))


_BUFFERS: Final = (bytearray, memoryview, array)
_TYPED: Final = (str, bytes, *_BUFFERS)  # sequences that NumPy reads by a type of their own
_NUMBERS: Final = frozenset({float, int, bool, np.float64, np.float32})  # that float64 holds, or rounds once
_INT64: Final = 2.0**63  # from here on an integer's row may be of another type
_CHUNK: Final = 1024


def rows_of(records: Any) -> list[Any] | None:
    """The items of what has no type for all of them: a list, another sequence, an array of objects. Else None."""
    if isinstance(records, np.ndarray):
        untyped = records.dtype == np.object_ and records.ndim > 0 and not isinstance(records, np.ma.MaskedArray)
        return list(records.tolist()) if untyped else None
    return list(records) if isinstance(records, Sequence) and not isinstance(records, _TYPED) else None


def is_one_record(rows: Sequence[Any]) -> bool:
    """Whether a list is one vector, not a batch: numbers in it, and nothing that could be a row.

    A list of bare numbers is one record by its caller's word; where a row stands among them, they are bad records.
    """
    try:
        return all(map(_is_scalar, rows)) and any(map(_is_number, rows))
    except Exception:  # noqa: BLE001 -- what raises when it is looked at is no number
        return False


def typed(records: Any) -> Any:
    """What has a type for all of its items, as the array that it is; anything else as it came."""
    if isinstance(records, np.ndarray) or not (hasattr(records, "__array__") or isinstance(records, _BUFFERS)):
        return records
    try:
        return np.asarray(records)
    except (ValueError, TypeError):  # no array after all: who expected one says so
        return records


def readable(records: Any, dim: int) -> Any:
    """Records as an array that shows all of them: NaN for a row of a list that is no row of ``dim`` numbers.

    Args:
        records: Anything.
        dim: d.

    Returns:
        (n, dim) float64 for what has no type; else what came, as the array that it is where it is one.
    """
    records = typed(records)
    rows = rows_of(records)
    if rows is None or (isinstance(records, np.ndarray) and records.shape[1:] not in ((), (dim,))):
        return records
    read = np.full((len(rows), dim), np.nan)
    for start in range(0, len(rows), _CHUNK):
        some, into = rows[start : start + _CHUNK], read[start : start + _CHUNK]
        if not _read_at_once(some, into):
            for record, row in zip(some, into, strict=True):
                _read_row(record, row)
    return read


def _read_row(record: Any, row: Float64) -> None:
    """The definition. What a record raises when it is read, it raises for itself alone."""
    try:
        if isinstance(record, Sized) and len(record) != len(row):
            return  # before anything of that length is allocated
        values = np.asarray(record)
        if values.dtype == np.object_:
            values = np.asarray(values.tolist())
        if values.shape == row.shape and values.dtype.kind in "biuf" and not isinstance(record, np.ma.MaskedArray):
            with np.errstate(over="ignore"):  # of more than 64 bits
                row[:] = values.astype(np.float64)
    except Exception:  # noqa: BLE001 -- anything may be in a list, and NumPy calls what its items define
        return


def _read_at_once(records: list[Any], rows: Float64) -> bool:
    """Whether rows that are surely numbers could be read together: arrays, or lists of Python's."""
    kinds = set(map(type, records))
    if kinds == {np.ndarray} and all(_is_row(record, rows.shape[1]) for record in records):
        rows[:] = np.concatenate(records, dtype=np.float64, casting="same_kind").reshape(rows.shape)
        return True
    if not kinds <= {list, tuple} or set(map(len, records)) != {rows.shape[1]}:
        return False
    types = set(map(type, chain.from_iterable(records)))
    if not types <= _NUMBERS:
        return False
    try:
        numbers = np.array(records, np.float64)
    except OverflowError:
        return False
    if int in types and bool((np.abs(numbers) >= _INT64).any()):
        return False
    rows[:] = numbers
    return True


def _is_row(record: npt.NDArray[Any], dim: int) -> bool:
    return record.shape == (dim,) and record.dtype.kind in "biuf" and record.dtype.itemsize <= np.float64().itemsize


def _is_number(item: Any) -> bool:
    return getattr(item, "ndim", None) == 0 or isinstance(item, Number)


def _is_scalar(item: Any) -> bool:
    return item is None or isinstance(item, str | bytes) or _is_number(item)


#: Rounding may move a kernel by so much, else the plan is refused.
ROUNDING_MAX: Final = 1e-2

_UNIT: Final = 2.0**-24  # of a number, relative to it
_SLACK: Final = 1.001  # sums in float64 round as well, 2^29 times less


def of_points(lower: Float32, upper: Float32, transforms: Transforms) -> Float64:
    """(d',): how far a coordinate that the transforms give in float32 may be from the same without rounding.

    Of points within [lower, upper], (d,) each. ``unit-norm`` starts from 0: there the exact kernel is that of the
    rounded point (:meth:`hushsum.families.vectors.VectorSpace.exact`).
    """
    error = _UNIT * _reach(lower, upper)
    for step in transforms.steps:
        lower, upper = step.bounds(lower, upper)
        if isinstance(step, UnitNorm):
            error = np.zeros(len(lower))
        elif isinstance(step, Scale):
            error = np.abs(float32(step.factor)) * error + _UNIT * _reach(lower, upper)
        elif isinstance(step, Linear):  # rounded, and clipped to bounds that were rounded
            error = _SLACK * (np.abs(step.matrix.astype(np.float64)) @ error) + 2 * _UNIT * _reach(lower, upper)
    return error


def of_pairs(errors: Float64, sizes: Float32 | None) -> Float64:
    """(d',): the same for a difference of two points; centred ones, up to ``sizes`` long, are rounded once more."""
    return 2 * (errors if sizes is None else errors + _UNIT * sizes.astype(np.float64))


def refuse(error: float, bandwidth: Fraction, key: str) -> None:
    """Refuses a bandwidth that rounding does not leave alone; ``key`` is its table.

    Raises:
        PlanError: The kernel may be off by more than :data:`ROUNDING_MAX`.
    """
    if not error <= ROUNDING_MAX:
        least = float(bandwidth) * error / ROUNDING_MAX
        expected = (
            f"more than about {least:.3g}, or columns shifted so that their bounds are near 0: with coordinates "
            f"of 32 bits the kernel may be off by {min(error, 1.0):.2g}, and at most {ROUNDING_MAX} is allowed"
        )
        raise PlanError(f"{key}.bandwidth", real_text(bandwidth), expected)


def _reach(lower: Float32, upper: Float32) -> Float64:
    return np.maximum(np.abs(lower), np.abs(upper)).astype(np.float64)
