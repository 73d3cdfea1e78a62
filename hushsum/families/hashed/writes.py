"""Records into the counters of hashed rows, on all cores where there are many."""

from typing import Final

import numpy as np

from hushsum.families import parallel
from hushsum.families.family import Counters
from hushsum.families.lsh.arrays import Int64, Points
from hushsum.families.lsh.engines import engine
from hushsum.families.lsh.placement import HashedRows

_ROWS_ABREAST: Final = 4  # the compiled loops take so many rows at once
_COPIED_MAX: Final = 2**24  # counters


def add(rows: HashedRows, counters: Counters, records: Points, *, together: bool) -> None:
    """Adds records within the bounds to counters (R, W) in place.

    Each core takes some of the rows, or where the codes of all rows are computed ``together`` some of the records, with
    counters of its own: these must not be too many.
    """
    loops, n = engine(), len(records)
    if not together:
        work = parallel.shares(len(rows), n, grain=_ROWS_ABREAST)
        parallel.spread(lambda which: loops.add(rows, counters[which], records, which), work, n)
        return

    def some(which: slice) -> Counters:
        own = counters if which.start == 0 else np.zeros_like(counters)
        loops.add(rows, own, records[which], slice(0, len(rows)))
        return own

    work = parallel.shares(n, n if counters.size <= _COPIED_MAX else 0)
    for own in parallel.spread(some, work, 0)[1:]:
        counters += own


def encode(rows: HashedRows, records: Points, *, together: bool) -> tuple[Int64, Int64]:
    """Flat indices, strictly increasing, and counts of what :func:`add` does to zeroes."""
    loops, n = engine(), len(records)
    work = parallel.shares(len(rows), 0 if together else n, grain=_ROWS_ABREAST)
    parts = parallel.spread(lambda which: loops.encode(rows, records, which), work, n)
    if len(parts) == 1:
        return parts[0][0], parts[0][1]
    indices, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    return indices, values
