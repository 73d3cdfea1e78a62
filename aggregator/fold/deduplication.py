"""De-duplication: which ids of each stream were used, for which bytes and which window.

A client never sends a sequence number 64 or more above its lowest unanswered one. So an id 64 or more below the highest
was answered before, and only the last 64 need remembering: one bit, 8 bytes of digest, the window and the verdict each.

A row of ``heads`` is one :class:`StreamState`, and its slots lie one after another in ``slots``. So memory grows with
the streams that live, and not with deltas.
"""

import enum
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Self

import numpy as np

from aggregator.errors import StoreError
from aggregator.fold.state import FoldMark, Int64, RowNumbers, StreamKey, StreamUse, grown
from aggregator.fold.verdicts import RememberedKind
from hushsum.errors import Reason
from hushsum_proto.many_entries import client_and_stream, stream_key

REACH: Final = 64
DIGEST_BYTES: Final = 8
STREAM_FORMAT: Final = 1

# Stored numbers, never reused: what the fold said of a remembered id. 0 is counted; only refusals that depend on what
# came before are remembered, for any other is found again in the bytes alone.
_CODES: Final[dict[Reason | None, int]] = {
    None: 0,
    Reason.TOO_MANY_RECORDS: 1,
    Reason.SECOND_DELTA: 2,
    Reason.TOO_MANY_WINDOWS: 3,
}
_REASONS: Final = {code: reason for reason, code in _CODES.items()}

_SLOT: Final = struct.Struct(">8sqB")  # digest, window, code
SLOT_BYTES: Final = _SLOT.size
HEAD: Final = struct.Struct(">BqQqB")  # format, highest, mask, last window, number of slots that follow
_EMPTY_SLOT: Final = bytes(SLOT_BYTES)


class Observation(enum.Enum):
    """The result of comparing a delta's id with the ids that its stream remembers."""

    NEW = "new"
    DUPLICATE = "duplicate"  # the same bytes, or so old that it was answered before
    ID_REUSED = "id_reused"  # other bytes for the same window
    ID_OF_ANOTHER_WINDOW = "id_of_another_window"


class IdUse(NamedTuple):
    """How an id was used: the digest of its bytes, its window, and why it was refused (None: it was counted)."""

    digest: bytes
    window: int
    reason: Reason | None


class StreamState:
    """What is remembered of one stream. It starts empty.

    Attributes:
        highest: The highest sequence number used; −1 before the first.
        last_window: The latest window that the stream touched; with it the stream is forgotten.
    """

    __slots__ = ("_mask", "_slots", "highest", "last_window")

    def __init__(self) -> None:
        self.highest = -1
        self.last_window = -(2**63)
        # Bit and slot number `sequence mod 64`; the slots end with the last one that was ever used, which keeps the
        # many streams of few deltas small.
        self._mask = 0
        self._slots = bytearray()

    def observe(self, sequence: int, digest: bytes, window: int) -> Observation:
        """Compares a delta with the ids that are remembered; changes nothing."""
        if self.is_below(sequence):
            return Observation.DUPLICATE
        use = self.use_of(sequence)
        if use is None:
            return Observation.NEW
        if use.window != window:
            return Observation.ID_OF_ANOTHER_WINDOW
        return Observation.DUPLICATE if use.digest == digest else Observation.ID_REUSED

    def is_below(self, sequence: int) -> bool:
        """Whether an id is so far below the highest that it was answered before, and no more is known of it."""
        return sequence <= self.highest - REACH

    def use_of(self, sequence: int) -> IdUse | None:
        """How an id was used, where that is remembered."""
        if sequence > self.highest or self.is_below(sequence) or not self._mask >> sequence % REACH & 1:
            return None
        digest, window, code = _SLOT.unpack_from(self._slots, sequence % REACH * SLOT_BYTES)
        return IdUse(digest, window, _REASONS[code])

    def record(self, sequence: int, digest: bytes, window: int, reason: Reason | None = None) -> None:
        """Remembers a new id: counted, or refused for a reason that its bytes alone do not show."""
        assert self.observe(sequence, digest, window) is Observation.NEW
        assert len(digest) == DIGEST_BYTES
        self._advance(sequence)
        place = sequence % REACH
        self._mask |= 1 << place
        missing = (place + 1) * SLOT_BYTES - len(self._slots)
        if missing > 0:
            self._slots.extend(bytes(missing))
        _SLOT.pack_into(self._slots, place * SLOT_BYTES, digest, window, _CODES[reason])
        self.last_window = max(self.last_window, window)

    def to_bytes(self) -> bytes:
        """Compact bytes for the store, the format version first."""
        count = len(self._slots) // SLOT_BYTES
        return HEAD.pack(STREAM_FORMAT, self.highest, self._mask, self.last_window, count) + self._slots

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Reads what :meth:`to_bytes` wrote; StoreError for a newer format, or for bytes that are no stream state."""
        state = cls()
        state.highest, state._mask, state.last_window, _ = cls.head_of(data)
        state._slots = bytearray(data[HEAD.size :])
        return state

    @staticmethod
    def head_of(data: bytes) -> tuple[int, int, int, int]:
        """Highest number, mask, last window and number of slots, of the bytes of a state.

        Raises:
            StoreError: A newer format, or bytes that are no stream state.
        """
        if data[:1] > bytes([STREAM_FORMAT]):
            raise StoreError(
                f"stream state: format {data[0]}, this version supports up to {STREAM_FORMAT}: update the service"
            )
        if len(data) < HEAD.size or data[0] != STREAM_FORMAT:
            raise StoreError("stream state: invalid encoding")
        _, highest, mask, last_window, count = HEAD.unpack_from(data)
        if count > REACH or len(data) - HEAD.size != count * SLOT_BYTES or mask >> count:
            raise StoreError("stream state: the number of slots does not match the header")
        return highest, mask, last_window, count

    def _advance(self, sequence: int) -> None:
        """Moves the highest up; what falls out of reach is wiped, not only unmarked."""
        steps = sequence - self.highest
        if steps >= REACH:
            self._mask = 0
            self._slots.clear()
        else:
            for passed in range(self.highest + 1, sequence + 1):
                place = passed % REACH
                self._mask &= ~(1 << place)
                at = place * SLOT_BYTES
                if at < len(self._slots):
                    self._slots[at : at + SLOT_BYTES] = _EMPTY_SLOT
        self.highest = max(self.highest, sequence)


#: What an id that was bound to something else is refused with.
REFUSALS: Final = {
    Observation.ID_REUSED: Reason.ID_REUSED,
    Observation.ID_OF_ANOTHER_WINDOW: Reason.ID_OF_ANOTHER_WINDOW,
}


def recall(
    stream: StreamState | None, mark: FoldMark, sequence: int, digest: bytes, window: int
) -> tuple[RememberedKind, Reason | None]:
    """The verdict on a delta that the fold has passed, and whose window is no longer open.

    *late* is returned only while an id that had been counted would still be known: it promises that the records were
    not counted and never will be. Where the fold cannot know, it returns *unknown*.

    ``stream`` is the state of the delta's stream, if there is one, and ``mark`` how far the fold was at that moment.
    """
    if stream is not None:
        found = stream.observe(sequence, digest, window)
        if found in REFUSALS:
            return RememberedKind.REFUSED, REFUSALS[found]
        use = stream.use_of(sequence)
        if use is not None:
            return (RememberedKind.REFUSED, use.reason) if use.reason else (RememberedKind.COUNTED, None)
        if found is Observation.DUPLICATE:
            return RememberedKind.OUT_OF_REACH, None
    late = mark.forgotten_through < window <= mark.closed_through
    return (RememberedKind.LATE if late else RememberedKind.UNKNOWN), None


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
_NO_STREAM: Final = np.array([UNUSED, 0, -(2**63), 0, 0, 0, 0], np.int64)
_64_BITS: Final = 2**64 - 1

# Columns of a slot: the digest as a big-endian number, the window, the code of the verdict.
DIGEST: Final = 0
WINDOW: Final = 1
CODE: Final = 2
_STORED: Final = np.dtype([("digest", ">i8"), ("window", ">i8"), ("code", "u1")])  # as _SLOT packs it
assert _STORED.itemsize == SLOT_BYTES


class StreamTable:
    """Stream states by (client id, stream), in arrays that the compiled loop reads and writes.

    ``heads`` (rows or more, 7), ``slots`` (room, 3), and ``used`` (1,): the number of slots that are given out, from
    the first on.

    Raises:
        StoreError: Bytes that are no stream state.
    """

    def __init__(self, packed: Mapping[StreamKey, bytes]) -> None:
        self._rows: RowNumbers[bytes] = RowNumbers(stream_key(*key) for key in packed)
        self.heads: Int64 = grown(np.empty((0, len(_NO_STREAM)), np.int64), len(packed), _NO_STREAM)
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
        row = self._rows.get(stream_key(*key))
        return None if row is None or self.heads[row, HIGHEST] < 0 else StreamState.from_bytes(self._packed(row))

    def is_above(self, key: tuple[str, int], sequence: int) -> bool:
        """Whether a number is above all that are remembered of a stream, as the next one of a live session is."""
        row = self._rows.get(stream_key(*key))
        return row is None or bool(self.heads[row, HIGHEST] < sequence)

    def uses(self) -> Iterator[StreamUse]:
        """Each stream, with the latest window that it touched."""
        lasts = self.heads[: len(self._rows.keys_of), LAST_WINDOW].tolist()
        for key, last_window in zip(self._rows.keys_of, lasts, strict=True):
            if key is not None:
                yield StreamUse(*client_and_stream(key), last_window)

    def put(self, key: tuple[str, int], state: StreamState) -> None:
        row = self._rows[stream_key(*key)]
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

    def rows_of(self, keys: Iterable[bytes], count: int, is_foreign: Callable[[str], bool]) -> Int64:
        """Row numbers in :attr:`heads`, for the compiled loop, of ``count`` keys of streams.

        A stream without a row gets an unused one. If no id is recorded in it, because all its deltas were refused,
        :meth:`free_unused_rows` takes it back. A new stream of a client that belongs to another partition is marked
        with :data:`FOREIGN`: the loop leaves its deltas to the fold, which refuses them.
        """
        before = len(self._rows.fresh)
        rows = np.fromiter(map(self._rows.__getitem__, keys), np.int64, count)
        self._make_rows()
        for key in self._rows.fresh[before:]:
            if is_foreign(client_and_stream(key)[0]):
                self.heads[self._rows[key], HIGHEST] = FOREIGN
        return rows

    def free_unused_rows(self) -> None:
        if self._rows.fresh:
            fresh = [self._rows[key] for key in self._rows.fresh]
            is_used = dict(zip(fresh, (self.heads[fresh, HIGHEST] >= 0).tolist(), strict=True))
            self.heads[[row for row, used in is_used.items() if not used], HIGHEST] = UNUSED
            self._rows.free_unused(is_used.__getitem__)

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
            found[StreamKey(*client_and_stream(key))] = last_window, head + slots[begin : begin + count * SLOT_BYTES]
        return found

    def forget(self, window: int) -> None:
        """Forgets every stream whose last window is not above this one."""
        stays = (self.heads[: len(self._rows.keys_of), LAST_WINDOW] > window).tolist()
        kept = [row for row, key in enumerate(self._rows.keys_of) if key is not None and stays[row]]
        self._rows = RowNumbers(self._rows.keys_of[row] for row in kept)
        self.heads = grown(self.heads[kept], len(kept), _NO_STREAM)
        self.used[0] = len(self.slots)
        self.make_room(1)

    def _make_rows(self) -> None:
        self.heads = grown(self.heads, len(self._rows.keys_of), _NO_STREAM)

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
