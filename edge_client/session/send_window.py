"""Every delta of the spool that has no definitive answer yet, and which of them may be sent now (WIRE: ids)."""

import enum
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edge_client.config import SEQUENCE_WINDOW
from hushsum.delta import DeltaId


class DeltaNumbers:
    """The number in the spool of each delta's id (:mod:`edge_client.spool.changes`).

    Args:
        stream: The spool's, to which all deltas belong.
        batches: Where each delta is a batch of reports with a stream of its own: the streams of unanswered ones, by
            number.
    """

    def __init__(self, stream: int, batches: Mapping[int, int] | None = None) -> None:
        self._stream = stream if batches is None else None
        self._streams = dict(batches or {})
        self._numbers = {stream: number for number, stream in self._streams.items()}

    def number_of(self, id: DeltaId) -> int | None:
        """The number of an id; None for another spool's, and for a batch that is unknown or answered."""
        if id.stream == self._stream:
            return id.sequence
        return None if id.sequence else self._numbers.get(id.stream)

    def add(self, number: int, stream: int) -> None:
        """Adds a batch."""
        self._streams[number] = stream
        self._numbers[stream] = number

    def remove(self, number: int) -> None:
        """Removes a batch that is answered; a delta of the spool's stream needs no removal."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            self._numbers.pop(stream, None)


class Stage(enum.Enum):
    """Where a delta within the window stands."""

    READY = enum.auto()
    IN_FLIGHT = enum.auto()
    HELD = enum.auto()  # refused for now: not before its time
    SETTLING = enum.auto()  # answered, but not durably so yet


@dataclass
class _Place:
    stage: Stage = Stage.READY
    ready_at: float = 0.0
    refusals: int = 0


class SendWindow:
    """The unanswered deltas, by sequence number.

    A number 64 or more above the lowest unanswered one is never picked: the service remembers only so many. A delta
    counts as unanswered until its answer is durable, so that the rule holds across a crash as well.

    Args:
        sequences: What the spool holds, ascending.
    """

    def __init__(self, sequences: Iterable[int] = ()) -> None:
        self._beyond: deque[int] = deque()  # never picked, ascending, all above those in _places
        self._places: dict[int, _Place] = {}  # picked at least once; ascending
        self._in_flight = 0
        self.end = 0  # one above the highest number ever seen
        self.append(sequences)

    def __len__(self) -> int:
        return len(self._places) + len(self._beyond)

    @property
    def in_flight(self) -> int:
        """How many are sent and not answered on this connection."""
        return self._in_flight

    @property
    def lowest(self) -> int | None:
        """The lowest unanswered number."""
        return next(iter(self._places), self._beyond[0] if self._beyond else None)

    def is_answered(self, end: int) -> bool:
        """Whether everything below a number has its durable answer."""
        return self.lowest is None or self.lowest >= end

    def append(self, sequences: Iterable[int]) -> None:
        """New deltas, ascending and above all earlier ones."""
        for sequence in sequences:
            assert sequence >= self.end, f"{sequence} follows {self.end - 1}"
            self._beyond.append(sequence)
            self.end = sequence + 1

    def pick(self, now: float, in_flight_max: int) -> tuple[int, ...]:
        """The numbers to send now, in this order; they are in flight from here on."""
        room = in_flight_max - self._in_flight
        picked: list[int] = []
        for sequence, place in self._places.items():
            if len(picked) >= room:
                break
            if place.stage is Stage.READY or (place.stage is Stage.HELD and place.ready_at <= now):
                place.stage = Stage.IN_FLIGHT
                picked.append(sequence)
        lowest = self.lowest
        while lowest is not None and len(picked) < room and self._beyond and self._beyond[0] < lowest + SEQUENCE_WINDOW:
            sequence = self._beyond.popleft()
            self._places[sequence] = _Place(Stage.IN_FLIGHT)
            picked.append(sequence)
        self._in_flight += len(picked)
        return tuple(picked)

    def has_room(self, in_flight_max: int) -> bool:
        """Whether one more could be sent now."""
        return self._in_flight < in_flight_max

    def is_in_flight(self, sequence: int) -> bool:
        """Whether an answer to this number is waited for."""
        place = self._places.get(sequence)
        return place is not None and place.stage is Stage.IN_FLIGHT

    def hold(self, sequence: int, ready_at: float) -> None:
        """One in flight was refused for now."""
        place = self._land(sequence, Stage.HELD)
        place.ready_at = ready_at
        place.refusals += 1

    def refusals(self, sequence: int) -> int:
        """How often this number was refused for now."""
        return self._places[sequence].refusals

    def settle(self, sequence: int) -> None:
        """One in flight got its definitive answer."""
        self._land(sequence, Stage.SETTLING)

    def settled(self, sequence: int) -> None:
        """The answer of this number is durable: it is outstanding no more."""
        assert self._places[sequence].stage is Stage.SETTLING
        del self._places[sequence]

    def lose_connection(self) -> None:
        """Nothing is in flight any more; what was is ready to be sent again."""
        for place in self._places.values():
            if place.stage is Stage.IN_FLIGHT:
                place.stage = Stage.READY
        self._in_flight = 0

    @property
    def next_ready_at(self) -> float | None:
        """When the first held delta may be sent again."""
        return min((place.ready_at for place in self._places.values() if place.stage is Stage.HELD), default=None)

    def _land(self, sequence: int, stage: Stage) -> _Place:
        place = self._places[sequence]
        assert place.stage is Stage.IN_FLIGHT
        place.stage = stage
        self._in_flight -= 1
        return place
