"""The state of one stream: which of its ids were used, for which bytes and which window (WIRE: ids and duplicates).

A client never sends a sequence number 64 or more above its lowest unanswered one. So an id 64 or more below the highest
was answered before, and only the last 64 need remembering: one bit, 8 bytes of digest, the window and the verdict each.
"""

import enum
import struct
from typing import Final, NamedTuple, Self

from aggregator.errors import StoreError
from hushsum.errors import Reason

REACH: Final = 64
DIGEST_BYTES: Final = 8
STREAM_FORMAT: Final = 1

# Stored numbers, never reused: what the fold said of a remembered id. 0 is counted; only refusals that depend on what
# came before are remembered, for any other is found again in the bytes alone.
_CODES: Final[dict[Reason | None, int]] = {None: 0, Reason.TOO_MANY_RECORDS: 1, Reason.SECOND_DELTA: 2}
_REASONS: Final = {code: reason for reason, code in _CODES.items()}

_SLOT: Final = struct.Struct(">8sqB")  # digest, window, code
SLOT_BYTES: Final = _SLOT.size
HEAD: Final = struct.Struct(">BqQqB")  # format, highest, mask, last window, number of slots that follow
_EMPTY_SLOT: Final = bytes(SLOT_BYTES)


class Observation(enum.Enum):
    """What an id is to a stream."""

    NEW = "new"
    DUPLICATE = "duplicate"  # the same bytes, or so old that it was answered before
    ID_REUSED = "id_reused"  # other bytes for the same window
    ID_OF_ANOTHER_WINDOW = "id_of_another_window"


class Use(NamedTuple):
    """How an id was used: the digest of its bytes, its window, and why it was refused (None: it was counted)."""

    digest: bytes
    window: int
    reason: Reason | None


class StreamState:
    """What is remembered of one stream. It starts empty.

    Attributes:
        highest: The highest sequence number used; −1 before the first.
        last_window: The latest window that the stream touched; what decides when it can be forgotten.
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
        """What a delta with this id is; changes nothing."""
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

    def use_of(self, sequence: int) -> Use | None:
        """How an id was used, where that is remembered."""
        if sequence > self.highest or self.is_below(sequence) or not self._mask >> sequence % REACH & 1:
            return None
        digest, window, code = _SLOT.unpack_from(self._slots, sequence % REACH * SLOT_BYTES)
        return Use(digest, window, _REASONS[code])

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
        """Reads what :meth:`to_bytes` wrote.

        Raises:
            StoreError: A newer format, or bytes that are no stream state.
        """
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
                f"stream state: format {data[0]}, this version reads up to {STREAM_FORMAT}: update the service"
            )
        if len(data) < HEAD.size or data[0] != STREAM_FORMAT:
            raise StoreError("stream state: not the bytes of one")
        _, highest, mask, last_window, count = HEAD.unpack_from(data)
        if count > REACH or len(data) - HEAD.size != count * SLOT_BYTES or mask >> count:
            raise StoreError("stream state: its slots do not fit its head")
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
