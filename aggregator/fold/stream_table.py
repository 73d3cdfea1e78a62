"""The states of all streams of a partition, in arrays that compiled loops read and write.

A row of ``heads`` is one :class:`aggregator.fold.streams.StreamState`, and its slots lie one after another in
``slots``. So memory grows with the streams that live, and not with deltas.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from aggregator.fold.row_numbers import Int64, RowNumbers, grown
from aggregator.fold.state import StreamKey, StreamUse
from aggregator.fold.streams import HEAD, SLOT_BYTES, STREAM_FORMAT, StreamState

# Columns of a row of heads.
HIGHEST: Final = 0  # or one of the next two
MASK: Final = 1
LAST_WINDOW: Final = 2
COUNT: Final = 3  # slots, up to the last one that was ever used
ROOM: Final = 4  # slots that there is room for
START: Final = 5  # of them
CHANGED: Final = 6

UNUSED: Final = -1  # nothing is remembered
FOREIGN: Final = -2  # and the client belongs to another partition
_EMPTY: Final = np.array([UNUSED, 0, -(2**63), 0, 0, 0, 0], np.int64)
_64_BITS: Final = 2**64 - 1

# Columns of a slot: the digest as a big-endian number, the window, the code of the verdict.
DIGEST: Final = 0
WINDOW: Final = 1
CODE: Final = 2
_STORED: Final = np.dtype([("digest", ">i8"), ("window", ">i8"), ("code", "u1")])  # as aggregator.fold.streams packs it
assert _STORED.itemsize == SLOT_BYTES


class StreamTable:
    """Stream states by (client id, stream).

    Args:
        packed: Their bytes.

    Attributes:
        heads: (at least as many as rows, 7).
        slots: (room, 3).
        used: (1,) slots that are given out, from the first on.

    Raises:
        StoreError: Bytes that are no stream state.
    """

    def __init__(self, packed: Mapping[StreamKey, bytes]) -> None:
        self._rows: RowNumbers[tuple[str, int]] = RowNumbers((key.client_id, key.stream) for key in packed)
        self.heads: Int64 = grown(np.empty((0, len(_EMPTY)), np.int64), len(packed), _EMPTY)
        for row, data in enumerate(packed.values()):
            highest, mask, last_window, count = StreamState.head_of(data)
            self.heads[row, :5] = highest, _signed(mask), last_window, count, count
        counts = self.heads[: len(packed), COUNT]
        self.heads[: len(packed), START] = np.cumsum(counts) - counts
        slots = b"".join([data[HEAD.size :] for data in packed.values()])
        self.slots: Int64 = _loaded(slots)
        self.used: Int64 = np.array([len(self.slots)], np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: tuple[str, int]) -> StreamState | None:
        """The state of a stream: a copy."""
        row = self._rows.get(key)
        return None if row is None or self.heads[row, HIGHEST] < 0 else StreamState.from_bytes(self._packed(row))

    def uses(self) -> Iterator[StreamUse]:
        """Each, with the latest window that it touched."""
        lasts = self.heads[: len(self._rows.keys_of), LAST_WINDOW].tolist()
        for key, last_window in zip(self._rows.keys_of, lasts, strict=True):
            if key is not None:
                yield StreamUse(*key, last_window)

    def put(self, key: tuple[str, int], state: StreamState) -> None:
        """Replaces the state of a stream."""
        row = self._rows[key]
        self._make_rows()
        data = state.to_bytes()
        highest, mask, last_window, count = StreamState.head_of(data)
        if self.heads[row, ROOM] < count:
            self.make_room(count)
            self._wipe(row)
            self.heads[row, ROOM], self.heads[row, START] = count, self.used[0]
            self.used[0] += count
        start = int(self.heads[row, START])
        self.slots[start : start + count] = _loaded(data[HEAD.size :])
        self.slots[start + count : start + int(self.heads[row, COUNT])] = 0
        self.heads[row, :4] = highest, _signed(mask), last_window, count
        self.heads[row, CHANGED] = 1

    def rows_of(self, keys: Iterable[tuple[str, int]], count: int, is_foreign: Callable[[str], bool]) -> Int64:
        """The row of each of ``count`` keys; a stream that is new gets one, until :meth:`settle` at least."""
        before = len(self._rows.fresh)
        rows = np.fromiter(map(self._rows.__getitem__, keys), np.int64, count)
        self._make_rows()
        for key in self._rows.fresh[before:]:
            if is_foreign(key[0]):
                self.heads[self._rows[key], HIGHEST] = FOREIGN
        return rows

    def settle(self) -> None:
        """Forgets rows that nothing was remembered in."""
        if self._rows.fresh:
            fresh = [self._rows[key] for key in self._rows.fresh]
            is_used = dict(zip(fresh, (self.heads[fresh, HIGHEST] >= 0).tolist(), strict=True))
            self.heads[[row for row, used in is_used.items() if not used], HIGHEST] = UNUSED
            self._rows.settle(is_used.__getitem__)

    def make_room(self, slots: int) -> None:
        """Room for so many more slots; what was given up is used again."""
        if self.used[0] + slots <= len(self.slots):
            return
        rooms = self.heads[: len(self._rows.keys_of), ROOM]
        starts = self.heads[: len(rooms), START]
        live = int(rooms.sum())
        places = np.cumsum(rooms) - rooms
        larger = np.zeros((max(2 * (live + slots), 64), 3), np.int64)
        larger[:live] = self.slots[np.repeat(starts - places, rooms) + np.arange(live)]
        starts[:] = places
        self.slots, self.used[0] = larger, live

    def take_changed(self) -> dict[StreamKey, tuple[int, bytes]]:
        """Last window and bytes of each stream that changed since the last call."""
        changed = np.flatnonzero(self.heads[: len(self._rows.keys_of), CHANGED])
        heads = self.heads[changed]
        self.heads[changed, CHANGED] = 0
        ends = np.cumsum(heads[:, COUNT])
        begins = ends - heads[:, COUNT]
        slots = _stored(self.slots[np.repeat(heads[:, START] - begins, heads[:, COUNT]) + np.arange(ends[-1:].sum())])
        found = {}
        cuts = zip(changed.tolist(), heads.tolist(), (begins * SLOT_BYTES).tolist(), strict=True)
        for row, (highest, mask, last_window, count, *_), begin in cuts:
            key = self._rows.keys_of[row]
            assert key is not None, "a stream that is forgotten has not changed"
            head = HEAD.pack(STREAM_FORMAT, highest, mask & _64_BITS, last_window, count)
            found[StreamKey(*key)] = last_window, head + slots[begin : begin + count * SLOT_BYTES]
        return found

    def forget(self, window: int) -> None:
        """Forgets every stream whose last window is not above this one."""
        kept = [
            row
            for row, goes in enumerate((self.heads[: len(self._rows.keys_of), LAST_WINDOW] <= window).tolist())
            if not goes and self._rows.keys_of[row] is not None
        ]
        self._rows = RowNumbers(key for row in kept if (key := self._rows.keys_of[row]) is not None)
        self.heads = grown(self.heads[kept], len(kept), _EMPTY)
        self.used[0] = len(self.slots)
        self.make_room(1)

    def _make_rows(self) -> None:
        self.heads = grown(self.heads, len(self._rows.keys_of), _EMPTY)

    def _wipe(self, row: int) -> None:
        start = int(self.heads[row, START])
        self.slots[start : start + int(self.heads[row, ROOM])] = 0

    def _packed(self, row: int) -> bytes:
        highest, mask, last_window, count, _, start, _ = self.heads[row].tolist()
        head = HEAD.pack(STREAM_FORMAT, highest, mask & _64_BITS, last_window, count)
        return head + _stored(self.slots[start : start + count])


def _loaded(stored: bytes) -> Int64:
    """Slots (n, 3) of their stored bytes."""
    slots = np.frombuffer(stored, _STORED)
    loaded = np.empty((len(slots), 3), np.int64)
    loaded[:, DIGEST], loaded[:, WINDOW], loaded[:, CODE] = slots["digest"], slots["window"], slots["code"]
    return loaded


def _stored(slots: Int64) -> bytes:
    found = np.empty(len(slots), _STORED)
    found["digest"], found["window"], found["code"] = slots.T
    return found.tobytes()


def _signed(mask: int) -> int:
    return mask - 2**64 if mask >> 63 else mask
