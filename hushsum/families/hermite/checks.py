"""What the hermite family's counters of n records must satisfy, whatever the records."""

from typing import Final

import numpy as np

from hushsum.errors import DeltaError, Reason
from hushsum.families.hermite.grid import Int64, MomentGrid

_LARGEST: Final = 2**46  # a counter of one delta; packing takes up to 2⁴⁷
_HALF: Final = 20  # bits at which a sum of many counts is split, so that neither part leaves int64


def check(grid: MomentGrid, indices: Int64, values: Int64, records: int) -> None:
    """Refuses increments that no ``records`` records can make.

    The moment r = 0 is s for every record, so in each cell it is s times the number of records in that cell; these
    numbers sum to ``records``; and a cell with k records has |moment r| ≤ k·round(s_r·2^{−|r|}), and no negative moment
    whose r_j are all even. Sums of |moments| and of their squares are then within their bounds as well.

    Args:
        grid: With the moments' bounds.
        indices: (k,) of (cells, order^d), flat and strictly increasing.
        values: (k,), any int64.
        records: n.

    Raises:
        DeltaError: With the reason ``impossible_counts``.
    """
    if not 0 <= records <= _LARGEST // grid.scale:
        raise _impossible(f"{records} records", f"0 to {_LARGEST // grid.scale}")
    cell, number = np.divmod(indices, grid.moments)
    first = np.flatnonzero(number == 0)
    counts, rest = np.divmod(values[first], grid.scale)
    if rest.any() or np.any((counts < 1) | (counts > records)):
        raise _impossible("a cell's first moment", f"{grid.scale} times a number of records from 1 to {records}")
    low, high = counts & (2**_HALF - 1), counts >> _HALF
    total = int(low.sum()) + (int(high.sum()) << _HALF)
    if total != records:
        raise _impossible(f"cells with {total} records in all", f"{records}")
    if not np.isin(cell, cell[first]).all():
        raise _impossible("moments of a cell without records", "none")
    at = np.searchsorted(cell[first], cell)
    most = counts[at] * grid.bounds[number]  # at most 2⁴⁶
    least = np.where((grid.degrees[number] % 2).any(axis=1), -most, 0)
    wrong = np.flatnonzero((values < least) | (values > most))
    if len(wrong):
        k = int(wrong[0])
        raise _impossible(f"{values[k]} at counter {indices[k]}", f"{least[k]} to {most[k]} of its cell's records")


def _impossible(came: str, expected: str) -> DeltaError:
    return DeltaError(Reason.IMPOSSIBLE_COUNTS, f"{came}, expected {expected}")
