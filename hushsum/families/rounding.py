"""How far float32 may put coordinates from where they are, and with them a kernel.

A record's coordinates are rounded to float32 before anything else, so far from 0 they become coarse, whatever the
bandwidth: Unix times lie on a grid of 128 seconds. Here is a bound on that, for plans to refuse it and for
``kernel_error`` to hold it.
"""

from fractions import Fraction
from typing import Final

import numpy as np

from hushsum.canonical import real_text
from hushsum.errors import PlanError
from hushsum.families.transforms import Float32, Float64, Linear, Scale, Transforms, UnitNorm, float32

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
