"""Reads which kernel a plan names, and says where one is that this family, or this kind of record, does not have."""

from collections.abc import Iterable
from typing import Final

from hushsum.errors import PlanError
from hushsum.schema import Table

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
