"""Fixed maps of vectors before they are sketched, part of the plan (``[[sketch.transforms]]``, in this order).

They follow the clip to the public bounds and hold for queries too: a family with transforms T answers Σ k(T(x), T(q)).

**Frozen**: every step takes float32 and gives float32. ``scale`` is a float32 product; ``clip`` a comparison;
``unit-norm`` divides by √Σx_j², and ``linear`` sums a_kj·x_j, both in float64 in the order of j (products of two
float32 are exact there), then rounds. A zero vector stays zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.canonical import real_text
from hushsum.errors import PlanError
from hushsum.parameters import NUMBERS_MAX, Parameters
from hushsum.schema import Table

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
_KINDS: Final = ("scale", "clip", "unit-norm", "linear")
_BLOCK_NUMBERS: Final = 1 << 18
_MAGNITUDE_MAX: Final = 2**64  # of what goes into a step and comes out of it: float32 then never overflows
_DIM_MAX: Final = 2**16
_STEPS_MAX: Final = 16


@dataclass(frozen=True)
class Scale:
    """Multiplies each coordinate by a factor other than 0."""

    factor: tuple[Fraction, ...]

    def to_fields(self) -> dict[str, object]:
        """The keys of its table."""
        return {"kind": "scale", "factor": [real_text(value) for value in self.factor]}

    def apply(self, x: Float32) -> Float32:
        """(n, d) to (n, d)."""
        return np.multiply(x, float32(self.factor))

    def exact(self, x: Float64) -> Float64:
        """The same in float64, without rounding to float32."""
        return x * float32(self.factor).astype(np.float64)

    def bounds(self, lower: Float32, upper: Float32) -> tuple[Float32, Float32]:
        """Of what comes out, from those of what goes in."""
        ends = self.apply(np.stack([lower, upper]))
        return ends.min(axis=0), ends.max(axis=0)


@dataclass(frozen=True)
class Clip:
    """Clips each coordinate to bounds of its own."""

    lower: tuple[Fraction, ...]
    upper: tuple[Fraction, ...]

    def to_fields(self) -> dict[str, object]:
        """The keys of its table."""
        lower, upper = ([real_text(value) for value in side] for side in (self.lower, self.upper))
        return {"kind": "clip", "lower": lower, "upper": upper}

    def apply(self, x: Float32) -> Float32:
        """(n, d) to (n, d)."""
        return np.clip(x, float32(self.lower), float32(self.upper))

    def exact(self, x: Float64) -> Float64:
        """The same in float64."""
        return np.clip(x, float32(self.lower), float32(self.upper)).astype(np.float64)

    def bounds(self, lower: Float32, upper: Float32) -> tuple[Float32, Float32]:
        """Of what comes out, from those of what goes in."""
        return self.apply(lower), self.apply(upper)


@dataclass(frozen=True)
class UnitNorm:
    """Divides a vector by its euclidean norm; zero stays zero."""

    def to_fields(self) -> dict[str, object]:
        """The keys of its table."""
        return {"kind": "unit-norm"}

    def apply(self, x: Float32) -> Float32:
        """(n, d) to (n, d)."""
        out, block = np.empty_like(x), max(1, _BLOCK_NUMBERS // x.shape[1])
        for start in range(0, len(x), block):
            out[start : start + block] = self.exact(x[start : start + block].astype(np.float64))
        return out

    def exact(self, x: Float64) -> Float64:
        """The same in float64."""
        squares = np.zeros(len(x))
        with np.errstate(over="ignore"):
            for j in range(x.shape[1]):
                squares += x[:, j] * x[:, j]
        norms = np.sqrt(squares)
        norms[norms == 0] = 1.0
        with np.errstate(invalid="ignore"):  # a query of infinite coordinates is refused afterwards
            return np.asarray(x / norms[:, None], np.float64)

    def bounds(self, lower: Float32, upper: Float32) -> tuple[Float32, Float32]:
        """Of what comes out: −1 and 1."""
        del upper
        return np.full(len(lower), -1, np.float32), np.full(len(lower), 1, np.float32)


@dataclass(frozen=True)
class Linear:
    """A fixed linear map, public or learned on public data, by the digest of its matrix.

    Attributes:
        digest: Of the matrix.
        matrix: (d', d) float32, read-only; the digest stands for it where two are compared.
    """

    digest: str
    matrix: Float32 = field(compare=False, repr=False)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy's matrix is as read-only as the original's, which NumPy forgets."""
        self.__dict__.update(state)
        self.matrix.flags.writeable = False

    def to_fields(self) -> dict[str, object]:
        """The keys of its table."""
        return {"kind": "linear", "matrix": self.digest}

    def apply(self, x: Float32) -> Float32:
        """(n, d) to (n, d')."""
        out = np.empty((len(x), len(self.matrix)), np.float32)
        block = max(1, _BLOCK_NUMBERS // max(self.matrix.shape))
        for start in range(0, len(x), block):
            with np.errstate(over="ignore"):
                out[start : start + block] = self.exact(x[start : start + block].astype(np.float64))
        return out

    def exact(self, x: Float64) -> Float64:
        """The same in float64."""
        columns, sums = np.ascontiguousarray(self.matrix.T, np.float64), np.zeros((len(x), len(self.matrix)))
        for j in range(x.shape[1]):  # one coordinate after the other: a matrix product has an order of its own
            sums += x[:, j, None] * columns[j]
        return sums

    def bounds(self, lower: Float32, upper: Float32) -> tuple[Float32, Float32]:
        """Of what comes out, from those of what goes in: both attained, but for rounding."""
        matrix, low, high = self.matrix.astype(np.float64), lower.astype(np.float64), upper.astype(np.float64)
        least = [math.fsum(np.minimum(row * low, row * high).tolist()) for row in matrix]
        most = [math.fsum(np.maximum(row * low, row * high).tolist()) for row in matrix]
        return np.array(least).astype(np.float32), np.array(most).astype(np.float32)


Transform = Scale | Clip | UnitNorm | Linear


@dataclass(frozen=True)
class Transforms:
    """Maps in their order; most plans have none."""

    steps: tuple[Transform, ...] = ()

    @classmethod
    def from_table(cls, sketch: Table, parameters: Parameters, dim: int) -> "Transforms":
        """Reads ``transforms`` of ``[sketch]`` for records of ``dim`` coordinates.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        steps: list[Transform] = []
        tables, numbers = sketch.tables("transforms"), 0
        if len(tables) > _STEPS_MAX:
            raise PlanError(sketch.name("transforms"), f"{len(tables)} steps", f"at most {_STEPS_MAX}")
        for table in tables:
            step = _read(table, parameters, dim)
            if isinstance(step, Linear):  # a matrix may be named by several steps: each costs what it costs alone
                dim, numbers = len(step.matrix), numbers + step.matrix.size
            steps.append(step)
        if numbers > NUMBERS_MAX:
            came = f"matrices of {numbers} numbers over all steps"
            raise PlanError(sketch.name("transforms"), came, f"at most {NUMBERS_MAX}")
        return cls(tuple(steps))

    def to_fields(self) -> dict[str, object]:
        """``transforms``, or nothing where there are none: the key is left out at its default."""
        return {"transforms": [step.to_fields() for step in self.steps]} if self.steps else {}

    def dim(self, dim: int) -> int:
        """Coordinates of what comes out of ``dim`` that go in."""
        for step in self.steps:
            dim = len(step.matrix) if isinstance(step, Linear) else dim
        return dim

    def factors(self, dim: int) -> Float64:
        """(d,): what each of ``dim`` coordinates is multiplied by, where nothing else is done to them.

        Raises:
            PlanError: A step is no ``scale``.
        """
        found = np.ones(dim)
        for step in self.steps:
            if not isinstance(step, Scale):
                kinds = [str(each.to_fields()["kind"]) for each in self.steps]
                raise PlanError("sketch.transforms", kinds, "'scale': other transforms cannot be inverted")
            found *= float32(step.factor)
        return found

    def apply(self, x: Float32) -> Float32:
        """(n, d) to (n, d') float32."""
        for step in self.steps:
            x = step.apply(x)
        return x

    def exact(self, x: Float64) -> Float64:
        """(n, d) to (n, d') float64, without rounding to float32: for kernels in closed form."""
        for step in self.steps:
            x = step.exact(x)
        return x

    def bounds(self, lower: Float32, upper: Float32) -> tuple[Float32, Float32]:
        """Of what comes out, from those of what goes in.

        Raises:
            PlanError: A step's are beyond ±2⁶⁴, or leave a coordinate one value alone.
        """
        for index, step in enumerate(self.steps):
            with np.errstate(over="ignore"):
                lower, upper = step.bounds(lower, upper)
            key, reach = f"sketch.transforms[{index}]", float(np.abs(np.stack([lower, upper])).max())
            if not reach <= _MAGNITUDE_MAX:
                raise PlanError(key, f"coordinates up to {reach:.3g}", "coordinates within ±2^64")
            for j in np.flatnonzero(~(lower < upper)):
                came = f"coordinate {j} from {lower[j]} to {upper[j]}"
                raise PlanError(key, came, "coordinates that can differ within the bounds")
        return lower, upper

    @property
    def digests(self) -> tuple[str, ...]:
        """Of the matrices."""
        return tuple(step.digest for step in self.steps if isinstance(step, Linear))


def float32(reals: Sequence[Fraction]) -> Float32:
    """Reals of a plan as float32, by way of float64."""
    return np.array([float(value) for value in reals], np.float64).astype(np.float32)


def _read(table: Table, parameters: Parameters, dim: int) -> Transform:
    kind = table.choice("kind", built=_KINDS)
    step: Transform = UnitNorm()
    if kind == "scale":
        step = Scale(table.reals("factor", length=dim))
        for j, factor in enumerate(step.factor):
            if not 2.0**-64 <= abs(factor) <= 2.0**64:
                raise PlanError(table.name(f"factor[{j}]"), real_text(factor), "a number of size 2^-64 to 2^64")
    elif kind == "clip":
        step = _read_clip(table, dim)
    elif kind == "linear":
        digest = table.text("matrix")
        matrix = parameters.take(table.name("matrix"), digest, columns=dim)
        if len(matrix) > _DIM_MAX:
            raise PlanError(table.name("matrix"), f"{len(matrix)} rows", f"at most {_DIM_MAX}")
        step = Linear(digest, matrix)
    table.finish()
    return step


def _read_clip(table: Table, dim: int) -> Clip:
    step = Clip(table.reals("lower", length=dim), table.reals("upper", length=dim))
    for j, (low, high) in enumerate(zip(step.lower, step.upper, strict=True)):
        for key, bound in (("lower", low), ("upper", high)):
            if abs(bound) > _MAGNITUDE_MAX:
                raise PlanError(table.name(f"{key}[{j}]"), real_text(bound), "bounds within ±2^64")
        if low >= high:
            raise PlanError(table.name(f"upper[{j}]"), real_text(high), f"above lower[{j}] = {real_text(low)}")
    return step
