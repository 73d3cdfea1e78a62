"""Limits of plans: draws that would not fit into memory, and kernels that a family does not have, are refused.

The first use of a plan draws all its parameters at once. What it holds meanwhile is counted in numbers of 16 bytes, and
at most 2²⁶ of them are allowed: 1 GiB, and some seconds.
"""

from collections.abc import Iterable
from typing import Final

from hushsum.errors import PlanError
from hushsum.schema import Table

NUMBERS_MAX: Final = 2**26

#: Of a word of 64 bits, with what it is read from.
WORD: Final = 1
#: Of a polar normal: itself, its float32, and what the filter of its projection takes.
NORMAL: Final = 2
#: Of a normal of an orthogonal block, which takes another for its length.
ORTHOGONAL: Final = 4
#: Of an entry that a function of :mod:`hushsum.distributions` makes of uniforms, with the steps of that function.
QUANTILE: Final = 8
_STEPS_MAX: Final = 2**31


def refuse_draws(rows: int, each: int, what: str, *, steps: int = 0) -> None:
    """Refuses more rows than there may be with so many numbers each.

    Args:
        rows: R.
        each: Numbers of a row, by the weights above.
        what: What else could be less, for the message.
        steps: Of the orthogonalisation, a row.

    Raises:
        PlanError: With the rows that would do.
    """
    most = NUMBERS_MAX // each
    if steps:
        most = min(most, _STEPS_MAX // steps)
    if rows > most:
        raise PlanError("sketch.rows", rows, f"at most {most} with this {what}: more rows need over 1 GiB, or minutes")


#: Families that have a kernel of vectors.
FAMILIES_OF: Final = {
    "euclidean": ("hashed",),
    "manhattan": ("hashed",),
    "laplacian": ("hashed", "fourier"),
    "angular": ("hashed",),
    "gaussian": ("fourier", "hermite"),
    "cauchy": ("fourier",),
    "exponential-p": ("fourier",),
}
KERNELS_OF_SETS: Final = ("jaccard",)


def read_kernel(table: Table, built: Iterable[str], *, sets: bool = False) -> str:
    """The key ``kernel``: one of those that are built for this family and this kind of record.

    Raises:
        PlanError: Another, with the family that has it, or the kind of record that it is for.
    """
    try:
        return table.choice("kernel", built=tuple(built))
    except PlanError as error:
        hint = _hint(error.came, sets=sets)
        if not hint:
            raise
        raise PlanError(error.key, error.came, f"{error.expected} ({hint})") from None


def _hint(name: object, *, sets: bool) -> str:
    if not isinstance(name, str):
        return ""
    if sets:
        return "because record.kind = 'set'" if name in FAMILIES_OF else ""
    if name in KERNELS_OF_SETS:
        return "because record.kind = 'vector'"
    return f"family {' or '.join(map(repr, FAMILIES_OF[name]))} has it" if name in FAMILIES_OF else ""
