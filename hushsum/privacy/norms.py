"""How far one unit moves the values of a mechanism, as a spend keeps it: norms as strings, which no encoding bounds."""

from typing import Final

from hushsum.canonical import real_text
from hushsum.errors import PlanError
from hushsum.schema import Table
from hushsum.sensitivity import Sensitivity

_NORMS: Final = ("l0", "l1", "l2_squared", "linf")
_WHOLE: Final = "an integer of at least 1"


def check(sensitivity: Sensitivity) -> None:
    """Refuses norms that are no integers of at least 1.

    Raises:
        PlanError: It names the norm under ``event.sensitivity``.
    """
    for name in _NORMS:
        norm = getattr(sensitivity, name)
        if type(norm) is not int or norm < 1:
            raise PlanError(f"event.sensitivity.{name}", norm, _WHOLE)


def to_fields(sensitivity: Sensitivity) -> dict[str, str]:
    """Strings, for norms pass the integers of the canonical encoding."""
    return {name: str(getattr(sensitivity, name)) for name in _NORMS}


def from_table(table: Table) -> Sensitivity:
    """Reads what :func:`to_fields` wrote.

    Raises:
        PlanError: A norm is missing, unknown or no integer of at least 1.
    """
    sensitivity = Sensitivity(**{name: _whole(table, name) for name in _NORMS})
    table.finish()
    return sensitivity


def _whole(table: Table, name: str) -> int:
    value = table.real(name, expected=_WHOLE, above=0)
    if value.denominator != 1:
        raise PlanError(table.name(name), real_text(value), _WHOLE)
    return value.numerator
