"""Which sketch answers a plan's kernel with the least predicted error: its family, rows, buckets or order."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from hushsum.advice.costs import Allowance, with_rows
from hushsum.advice.forecast import advise
from hushsum.errors import PlanError
from hushsum.plan import Plan

_BUCKETS: Final = (64, 256, 1024, 4096)
_ORDERS: Final = (1, 2, 3, 4, 6, 8)
_ROWS: Final = 1024  # of a family that the plan does not have: where the search begins
_HERMITE_DIM: Final = 3
#: The families that have a kernel of one name and bandwidth.
_FAMILIES_OF: Final = {"laplacian": ("hashed", "fourier"), "gaussian": ("fourier", "hermite")}


@dataclass(frozen=True)
class SketchChoice:
    """A sketch of the plan's kernel, with the rows that suit it best within the limits.

    Attributes:
        plan: The plan with this sketch.
        std_error: Predicted, of an answer of it, in records: hashing and noise.
        bias: The most by which an answer may lie off beside that, in records (families ``hermite`` and ``fourier``).
    """

    plan: Plan
    std_error: float
    bias: float

    @property
    def error(self) -> float:
        """Both together: what choices are compared by."""
        return math.hypot(self.std_error, self.bias)

    def to_fields(self) -> dict[str, object]:
        """All of it for JSON; the sketch as a plan has it."""
        return {"sketch": self.plan.to_fields()["sketch"], "std_error": self.std_error, "bias": self.bias}


def choose_sketch(
    plan: Plan, *, records: int, density: float, clients: int | None = None, allowance: Allowance | None = None
) -> tuple[SketchChoice, ...]:
    """Sketches of the plan's kernel by every family that has it, the one with the least predicted error first.

    Nothing is read but the plan and these guesses, as for :func:`hushsum.advice.advise`; each sketch has the noise of
    the plan's own ε and δ.

    Args:
        plan: As it is written. Its kernel, bandwidth, privacy and bounds stay.
        records: See :func:`hushsum.advice.advise`.
        density: The same.
        clients: The same.
        allowance: What a sketch may cost; what exceeds it is left out.

    Raises:
        ValueError: A guess is out of range, contradicts the plan, or no sketch is within the limits.
        GuaranteeError: The plan's devices send reports.
    """
    found = []
    for candidate in _candidates(plan):
        advice = advise(candidate, records=records, density=density, clients=clients, allowance=allowance)
        index, allowed = advice.own_promise, [size for size in advice.sizes if not size.exceeds]
        if allowed:
            size = min(allowed, key=lambda size: size.errors[index])
            found.append(SketchChoice(with_rows(candidate, size.rows), size.errors[index], advice.bias))
    if not found:
        raise ValueError("allowance: no sketch of this kernel is within the limits; allow more memory, bytes or time")
    return tuple(sorted(found, key=lambda choice: choice.error))


def _candidates(plan: Plan) -> Iterator[Plan]:
    """The plan, and its kernel by other families, buckets and orders: those that a plan can have."""
    own = plan.to_fields()["sketch"]
    assert isinstance(own, dict), "a table of every plan"
    seen: set[bytes] = set()
    for keys in _sketches(plan, own):
        try:
            candidate = plan if keys == own else _with_sketch(plan, keys)
        except PlanError:  # no plan of these bounds, mode or unit can have it
            continue
        if candidate.id not in seen:  # weights that were chosen may be those of another
            seen.add(candidate.id)
            yield candidate


def _sketches(plan: Plan, own: Mapping[str, object]) -> Iterator[dict[str, object]]:
    yield dict(own)
    name, kernel = plan.family.name, str(own.get("kernel"))
    families = _FAMILIES_OF.get(kernel, ()) if own.get("power", 1) == 1 else ()
    for family in families or (name,):
        base = dict(own) if family == name else _of_family(family, own)
        if family == "hashed":
            yield from ({**base, "buckets": buckets} for buckets in _BUCKETS if buckets != base.get("buckets"))
        elif family == "hermite":
            if plan.vectors.dim <= _HERMITE_DIM:
                orders = dict.fromkeys((*_ORDERS, base.get("order", _ORDERS[-1])))
                yield from ({**base, "order": order, "weights": "auto"} for order in orders)
        elif family != name:
            yield base


def _of_family(family: str, own: Mapping[str, object]) -> dict[str, object]:
    kept = {key: own[key] for key in ("kernel", "bandwidth") if key in own}
    if family == "hermite":
        return {"family": family, **kept}
    return {"family": family, **kept, "rows": own.get("rows", _ROWS), "seed": own.get("seed", 1)}


def _with_sketch(plan: Plan, sketch: Mapping[str, object]) -> Plan:
    fields = plan.to_fields()
    privacy = fields["privacy"]
    assert isinstance(privacy, dict), "a table of every plan"
    del fields["format"]
    privacy = {key: value for key, value in privacy.items() if key != "mechanism"}
    return Plan.from_fields({**fields, "sketch": dict(sketch), "privacy": privacy}, plan.parameters)
