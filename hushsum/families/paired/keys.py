"""What the keys of the paired family may say."""

from fractions import Fraction
from typing import Final

from hushsum.canonical import real_text
from hushsum.errors import PlanError
from hushsum.families.drawn_sizes import NORMAL, refuse_draws
from hushsum.families.paired.lift import Lift
from hushsum.families.vectors import MAGNITUDE_MAX, VectorSpace
from hushsum.schema import Table

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
        raise PlanError("sketch.radius", None, expected)
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
        raise PlanError("record.lower", came, "bounds of the last column that hold labels above 0 and others")
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
