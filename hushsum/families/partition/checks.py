"""What the partition family refuses: plans too large, and increments that no records can make."""

from fractions import Fraction
from typing import Final

import numpy as np

from hushsum.canonical import real_text
from hushsum.errors import DeltaError, PlanError, Reason
from hushsum.families.base import Increments
from hushsum.families.limits import NORMAL, WORD, refuse_draws
from hushsum.families.lsh.codes.projection import DIM_MAX
from hushsum.families.partition import cells as partition_cells
from hushsum.families.partition.cells import CellGrid
from hushsum.families.vectors import MAGNITUDE_MAX, VectorSpace

_COUNTERS_MAX: Final = 2**31
_RECORDS_MAX: Final = 2**38  # of one delta: sums of a row of counters stay far inside int64


def check(increments: Increments, records: int, rows: int, buckets: int) -> None:
    """Every row's absolute values sum to at most ``records``, less an even number.

    Raises:
        DeltaError: With the reason ``impossible_counts``.
    """
    values = increments.values
    if not 0 <= records <= _RECORDS_MAX:
        raise DeltaError(Reason.IMPOSSIBLE_COUNTS, f"{records} records, expected 0 to {_RECORDS_MAX}")
    if len(values) and (values.min() < -records or values.max() > records or not values.all()):
        came = f"values from {values.min()} to {values.max()}"
        raise DeltaError(
            Reason.IMPOSSIBLE_COUNTS, f"{came}, expected absolute values from 1 to {records}, the number of records"
        )
    ends = np.searchsorted(increments.indices, np.arange(rows + 1) * buckets)
    # Running sums may wrap around over many rows; their differences, at most 2^62, are right all the same.
    sums = np.diff(np.concatenate([[0], np.cumsum(np.abs(values))])[ends])
    wrong = np.flatnonzero((sums > records) | ((sums ^ records) & 1 == 1))
    if len(wrong):
        came = f"row {wrong[0]} sums to {sums[wrong[0]]} in absolute values"
        raise DeltaError(Reason.IMPOSSIBLE_COUNTS, f"{came}, expected at most {records}, with the same parity")


def refuse_sizes(
    space: VectorSpace, bandwidth: Fraction, *, rows: int, buckets: int, levels: int, power: int | None
) -> None:
    """Refuses what is too large, or has codes that are; ``power`` is None for a grid.

    Raises:
        PlanError: With the key, what came and what was expected.
    """
    dim, side = max(space.dim, len(space.box.lower)), float(bandwidth)
    if not 1 / MAGNITUDE_MAX <= bandwidth <= MAGNITUDE_MAX:
        raise PlanError("sketch.bandwidth", real_text(bandwidth), "a number from 2^-64 to 2^64")
    if dim > DIM_MAX:
        raise PlanError("record.dim", dim, f"at most {DIM_MAX} for the partition family")
    if levels * rows * buckets > _COUNTERS_MAX:
        most = _COUNTERS_MAX // (buckets * levels)
        raise PlanError("sketch.rows", rows, f"at most {most} with these buckets and levels: 2^31 counters in all")
    parts = space.dim if power is None else power
    numbers = WORD * 2 * levels * (parts + 1) + (0 if power is None else NORMAL * parts * space.dim)
    refuse_draws(rows, numbers, "dim, and levels or power,")
    if power is not None:
        partition_cells.refuse_codes(space.sizes, side)
    elif levels > (most := CellGrid.of(*space.ends, side).levels_max):
        raise PlanError("sketch.levels", levels, f"at most {most}: the cells of the last are the whole domain")
