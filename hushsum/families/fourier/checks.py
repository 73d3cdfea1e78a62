"""What counters of a declared number of records can be, in exact integers."""

from typing import Final

import numpy as np

from hushsum.errors import DeltaError, Reason
from hushsum.families.base import Increments
from hushsum.families.fourier.parameters import Waves
from hushsum.families.lsh.arrays import Int64

#: Of one delta: sums of two counters stay far inside int64.
RECORDS_MAX: Final = 2**38


def refuse_impossible(increments: Increments, records: int, table: Waves) -> None:
    """Refuses a pair (C, S) of counters that no so many records add up to.

    |C| and |S| are at most n·max |A|, |C| + |S| at most n·max (|A| + |B|), C² + S² at most n²·max (A² + B²): norms of
    a sum are at most the sum of the norms, which over the table's entries are at most these.

    Raises:
        DeltaError: With the reason ``impossible_counts``.
    """
    if not 0 <= records <= RECORDS_MAX:
        raise DeltaError(Reason.IMPOSSIBLE_COUNTS, f"{records} records, expected 0 to {RECORDS_MAX}")
    values, most = increments.values, records * table.entry_max
    if not len(values):
        return
    least, largest = int(values.min()), int(values.max())  # Python's integers: the size of −2⁶³ is none of int64's
    if least < -most or largest > most or (values == 0).any():
        raise DeltaError(
            Reason.IMPOSSIBLE_COUNTS, f"counters from {least} to {largest}, expected other than 0, to ±{most}"
        )
    pair, cosines, sines = _pairs(increments)
    wrong = np.flatnonzero(cosines + sines > records * table.sum_max)
    if not len(wrong):
        wrong = _beyond(cosines, sines, records**2 * table.squares_max)
    if len(wrong):
        which = int(wrong[0])
        detail = f"pair {pair[which]} holds ±{cosines[which]} and ±{sines[which]}, more than {records} records can add"
        raise DeltaError(Reason.IMPOSSIBLE_COUNTS, detail)


def _pairs(increments: Increments) -> tuple[Int64, Int64, Int64]:
    """(pair, |C|, |S|) of every pair that changes, 0 where a counter does not."""
    pairs, column = np.divmod(increments.indices, 2)
    changed, place = np.unique(pairs, return_inverse=True)
    sizes = np.zeros((2, len(changed)), np.int64)
    sizes[column, place.reshape(-1)] = np.abs(increments.values)
    return changed, sizes[0], sizes[1]


def _beyond(cosines: Int64, sines: Int64, most: int) -> Int64:
    """Where C² + S² > most. float64 tells most of it; what it leaves open is told by Python's integers."""
    squares = np.square(cosines.astype(np.float64)) + np.square(sines.astype(np.float64))
    close = np.flatnonzero(squares >= float(most) * (1.0 - 2.0**-48))
    exact = cosines[close].astype(object) ** 2 + sines[close].astype(object) ** 2
    return np.asarray(close[np.asarray(exact > most, np.bool_)], np.int64)
