"""What the counters of n records can be, where every record changes one counter of each row by one."""

from typing import Final

import numpy as np

from hushsum.errors import DeltaError, Reason
from hushsum.families.family import Increments

_RECORDS_MAX: Final = 2**38  # of one delta: sums of a row of counters stay far inside int64


def refuse_impossible_counts(increments: Increments, records: int, *, rows: int, buckets: int) -> None:
    """Every row sums to exactly ``records``, and nothing is negative.

    Raises:
        DeltaError: With the reason ``impossible_counts``.
    """
    values = increments.values
    if not 0 <= records <= _RECORDS_MAX:
        raise DeltaError(Reason.IMPOSSIBLE_COUNTS, f"{records} records, expected 0 to {_RECORDS_MAX}")
    if len(values) and not 1 <= int(values.min()) <= int(values.max()) <= records:
        raise DeltaError(
            Reason.IMPOSSIBLE_COUNTS,
            f"counts from {values.min()} to {values.max()}, expected 1 to the {records} records",
        )
    ends = np.searchsorted(increments.indices, np.arange(1, rows + 1) * buckets)
    running = np.concatenate([[0], np.cumsum(values)])
    sums = np.diff(running[np.concatenate([[0], ends])])
    wrong = np.flatnonzero(sums != records)
    if len(wrong):
        row = int(wrong[0])
        raise DeltaError(Reason.IMPOSSIBLE_COUNTS, f"row {row} sums to {sums[row]}, expected {records} in every row")
