"""The compiled loop of a fold: what :class:`aggregator.fold.fold.Fold` does with a delta, for many that are read.

Anything that is not usual stops it before that delta has changed anything, and the fold takes it one by one.
:mod:`aggregator.fold.fold` alone calls it. Rows of streams and contributions, entries of ``ready`` and slots are inside
their arrays by construction: tables gave them out, the reader checked them, and room for a slot is asked for.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aggregator.fold.deduplication import (
    CHANGED,
    CODE,
    COUNT,
    DIGEST,
    FOREIGN,
    HIGHEST,
    LAST_WINDOW,
    MASK,
    REACH,
    ROOM,
    START,
    WINDOW,
)
from aggregator.fold.state import BLOCK
from hushsum.compiled import compiled, inlined

Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Number = Any  # an int64, or what the compiler makes one

# Why it stopped.
DONE: Final = 0
UNUSUAL: Final = 1  # the fold takes this one by one
OTHER_WINDOW: Final = 2
NO_ROOM: Final = 3

# What became of a delta.
COUNTED: Final = 0
DUPLICATE: Final = 1
LATE: Final = 2
ID_REUSED: Final = 3
ID_OF_ANOTHER_WINDOW: Final = 4
TOO_MANY_RECORDS: Final = 5
_NEW: Final = 6

_CODE_REFUSED: Final = 1  # as aggregator.fold.deduplication has it for TOO_MANY_RECORDS


@inlined
def _wipe(slots: Int64, at: int) -> None:
    slots[at, DIGEST], slots[at, WINDOW], slots[at, CODE] = 0, 0, 0


@inlined
def _observe(heads: Int64, row: int, slots: Int64, sequence: int, digest: int, window: int) -> int:
    """See :meth:`aggregator.fold.deduplication.StreamState.observe`."""
    highest, place = heads[row, HIGHEST], sequence & (REACH - 1)
    if sequence <= highest - REACH:
        return DUPLICATE
    if sequence > highest or (heads[row, MASK] >> place) & 1 == 0:
        return _NEW
    at = heads[row, START] + place
    if slots[at, WINDOW] != window:
        return ID_OF_ANOTHER_WINDOW
    return DUPLICATE if slots[at, DIGEST] == digest else ID_REUSED


@inlined
def _has_room(heads: Int64, row: int, slots: Int64, used: Int64, sequence: int) -> bool:
    """Makes room for a stream's slot, with twice as much as it had, unless all slots are given out."""
    wanted = (sequence & (REACH - 1)) + 1
    had, start, first = heads[row, ROOM], heads[row, START], used[0]
    if wanted <= had:
        return True
    room = np.int64(1)
    while room < wanted:
        room *= 2
    if first + room > len(slots):
        return False
    for j in range(room):
        for k in range(3):
            slots[first + j, k] = slots[start + j, k] if j < had else 0
    for j in range(start, start + had):
        _wipe(slots, j)
    heads[row, START], heads[row, ROOM], used[0] = first, room, first + room
    return True


@inlined
def _advance(heads: Int64, row: int, slots: Int64, sequence: int) -> None:
    """Moves the highest number up; what falls out of reach is wiped, not only unmarked."""
    first, highest = heads[row, START], heads[row, HIGHEST]
    if sequence - REACH >= highest:
        for j in range(first, first + heads[row, COUNT]):
            _wipe(slots, j)
        heads[row, MASK], heads[row, COUNT] = 0, 0
    elif sequence > highest:
        for step in range(sequence - highest):
            passed = (highest + 1 + step) & (REACH - 1)
            heads[row, MASK] &= ~(np.int64(1) << passed)
            if passed < heads[row, COUNT]:
                _wipe(slots, first + passed)
    heads[row, HIGHEST] = max(highest, sequence)


@inlined
def _record(heads: Int64, row: int, slots: Int64, sequence: int, digest: int, window: int, code: int) -> None:
    """See :meth:`aggregator.fold.deduplication.StreamState.record`; there is room."""
    _advance(heads, row, slots, sequence)
    place = sequence & (REACH - 1)
    at = heads[row, START] + place
    heads[row, MASK] |= np.int64(1) << place
    heads[row, COUNT] = max(heads[row, COUNT], place + 1)  # slots beyond are zeroes
    slots[at, DIGEST], slots[at, WINDOW], slots[at, CODE] = digest, window, code
    heads[row, LAST_WINDOW] = max(heads[row, LAST_WINDOW], window)
    heads[row, CHANGED] = 1


@inlined
def _add(ready: Int32, at: Number, end: Number, scale: Number, counters: Int64, counts: Int64, touched: Bools) -> None:
    """Adds the runs of a delta, and marks their blocks."""
    size = len(counters) // len(touched)
    while at < end:
        number, records, length = np.int64(ready[at]), np.int64(ready[at + 1]), np.int64(ready[at + 2])
        if scale:  # else there are no count counters
            counts[number] += records * scale
        base, edge, first, last = number * size, np.int64(0), at + 3, at + 3 + abs(length)
        if length >= 0:  # two loops: a choice inside of one halves its speed
            for k in range(first, last):
                index = np.int64(ready[k])
                counters[np.uint64(base + index)] += 1
                if index >= edge:  # indices rise: another block begins
                    touched[number, index // BLOCK] = True
                    edge = (index // BLOCK + 1) * BLOCK
        else:
            for k in range(first, last, 2):
                index = np.int64(ready[k])
                counters[np.uint64(base + index)] += ready[k + 1]
                touched[number, index // BLOCK] = True
        at = last


@inlined
def _allows(contributions: Int64, row: int, bound: int, records: int) -> bool:
    """Charges a client's records of a window, where its bound leaves room; see :meth:`Fold._count_delta`."""
    before = max(contributions[row, 0], 0)
    fits = bound < 0 or before + records <= bound
    if fits:
        contributions[row, 0], contributions[row, 1] = before + records, 1
    return fits


@compiled
def fold(  # noqa: PLR0913, PLR0917 -- flat: compiled loops take no objects
    first: int,
    last: int,
    read: tuple[Bytes, Int64, Int64, Int32, Int64],
    streams: tuple[Int64, Int64, Int64, Int64],
    contributions: tuple[Int64, Int64],
    rules: tuple[int, int, int, int, int],
    window: tuple[int, int, Int64, Int64, Bools],
    outcomes: Bytes,
) -> tuple[int, int]:
    """Folds deltas ``first`` to before ``last``; returns where it stopped, and why.

    Args:
        first: The number of the first delta.
        last: The number after the last one.
        read: Of all: states, headers, spans, ready (see :class:`hushsum.delta_decoder.Batch`), digests.
        streams: Rows (n,) of the deltas, and heads, slots and used of
            :class:`aggregator.fold.deduplication.StreamTable`.
        contributions: Rows (n,), and (records or −1, whether changed) by row; neither is read if they are not counted.
        rules: Windows up to which are closed; whether contributions are counted; the bound or −1; what a record
            adds to the count counter; whether the first delta of a client in a window is not usual.
        window: Whether there is one, which, its counters, flat, its count counters, and the blocks it touched.
        outcomes: (n,) to be written.
    """
    states, headers, spans, ready, digests = read
    rows, heads, slots, used = streams
    contribution_rows, records = contributions
    closed, counted, bound, scale, firsts = rules
    is_open, current, counters, counts, touched = window
    for i in range(first, last):
        row, sequence, of = rows[i], headers[i, 0], headers[i, 1]
        if states[i] != 0 or heads[row, HIGHEST] == FOREIGN:
            return i, UNUSUAL
        found = _observe(heads, row, slots, sequence, digests[i], of)
        if found == _NEW and of <= closed:
            found = LATE
        if found != _NEW:
            outcomes[i] = found
            continue
        if not is_open or of != current:
            return i, OTHER_WINDOW
        if firsts and records[contribution_rows[i], 0] <= 0:
            return i, UNUSUAL
        if not _has_room(heads, row, slots, used, sequence):
            return i, NO_ROOM
        fits = not counted or _allows(records, contribution_rows[i], bound, spans[i, 2])
        if fits:
            _add(ready, spans[i, 0], spans[i, 1], scale, counters, counts, touched)
        _record(heads, row, slots, sequence, digests[i], of, 0 if fits else _CODE_REFUSED)
        outcomes[i] = COUNTED if fits else TOO_MANY_RECORDS
    return last, DONE
