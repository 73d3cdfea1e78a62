"""The two streams of one client, each with its own sequence numbers: presence, which is picked first, and records.

A presence delta must not wait for records: how many of them a client has would decide whether it takes part in time. So
it has a stream of its own, of which no backlog of records uses up the 64 numbers; records never take the last place in
flight, so that one presence can be sent while no answer comes; the newest presence within reach of its stream goes
first; and no records are picked before each presence has its answer. A delta of records of a window is then never sent
before its client has shown that it takes part there.

What this does not do: records that are already on their way are overtaken no more, and share the network with the
presence. Where only one delta may be in flight there is no place to keep: presence then waits for the answer that is
outstanding, and goes next.

In the spool, the session and the cargo a delta has one *number*: its sequence number in the stream of records, or
−1 less its sequence number in that of presence. Batches of reports have streams of their own: there the number is the
spool's alone, and a table of what is unanswered says which id it has.
"""

from collections.abc import Iterable, Mapping

from edge_client.outstanding import Outstanding
from hushsum.delta import DeltaId


def presence_stream(stream: int) -> int:
    """The number of the stream of presence of a spool whose records have this one."""
    return stream ^ 1


def is_presence(number: int) -> bool:
    """Whether this is the number of a presence delta."""
    return number < 0


def presence_number(sequence: int) -> int:
    """The number of the presence delta with this sequence number."""
    return -1 - sequence


def id_of(number: int, stream: int) -> DeltaId:
    """The id of a delta in a spool whose records have this stream."""
    return DeltaId(presence_stream(stream), -1 - number) if is_presence(number) else DeltaId(stream, number)


def number_of(id: DeltaId, stream: int) -> int | None:
    """The number of an id in a spool whose records have this stream; None for another spool's."""
    if id.stream == presence_stream(stream):
        return presence_number(id.sequence)
    return id.sequence if id.stream == stream else None


class SpoolIds:
    """Which number an id has where all deltas are of the spool's two streams.

    Args:
        stream: Of records.
    """

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def number_of(self, id: DeltaId) -> int | None:
        """The number of an id; None for another spool's."""
        return number_of(id, self._stream)

    def note(self, number: int, stream: int) -> None:
        """Nothing: the number says it."""

    def forget(self, number: int) -> None:
        """Nothing, likewise."""


class BatchIds:
    """Which number an id has where each delta is a batch with a stream of its own, which it is alone in.

    Args:
        streams: By number, of what the spool holds.
    """

    def __init__(self, streams: Mapping[int, int]) -> None:
        self._streams = dict(streams)
        self._numbers = {stream: number for number, stream in streams.items()}

    def number_of(self, id: DeltaId) -> int | None:
        """The number of an id; None for what is unknown, or answered."""
        return None if id.sequence else self._numbers.get(id.stream)

    def note(self, number: int, stream: int) -> None:
        """A new batch."""
        self._streams[number] = stream
        self._numbers[stream] = number

    def forget(self, number: int) -> None:
        """This batch has its answer."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            self._numbers.pop(stream, None)


Ids = SpoolIds | BatchIds


class Lanes:
    """The unanswered deltas of both streams, by number: what :class:`Outstanding` is to one.

    Args:
        numbers: What the spool holds, in any order.
        kept: Places in flight that records leave to presence: 1 under public participation, else 0.
    """

    def __init__(self, numbers: Iterable[int] = (), *, kept: int = 0) -> None:
        self._kept = kept
        self._presence = Outstanding(newest_first=True)
        self._records = Outstanding()
        self.append(sorted(numbers, key=abs))

    def __len__(self) -> int:
        return len(self._presence) + len(self._records)

    @property
    def in_flight(self) -> int:
        """How many are sent and not answered on this connection."""
        return self._presence.in_flight + self._records.in_flight

    @property
    def mark(self) -> tuple[int, int]:
        """Stands for everything that was appended so far."""
        return self._presence.end, self._records.end

    def is_answered(self, mark: tuple[int, int]) -> bool:
        """Whether everything up to a mark has its durable answer."""
        lanes = zip((self._presence, self._records), mark, strict=True)
        return all(lane.lowest is None or lane.lowest >= end for lane, end in lanes)

    def append(self, numbers: Iterable[int]) -> None:
        """New deltas; in each stream ascending by sequence number, and above all earlier ones."""
        for number in numbers:
            lane, sequence = self._place(number)
            lane.append((sequence,))

    def pick(self, now: float, in_flight_max: int) -> tuple[int, ...]:
        """The numbers to send now; they are in flight from here on. No records while a presence has no answer."""
        if not len(self._presence):
            return self._records.pick(now, self._records_max(in_flight_max))
        room = in_flight_max - self._records.in_flight
        return tuple(map(presence_number, self._presence.pick(now, room)))

    def has_room(self, in_flight_max: int) -> bool:
        """Whether one more could be sent now of the stream whose turn it is."""
        if not len(self._presence):
            return self._records.in_flight < self._records_max(in_flight_max)
        return self.in_flight < in_flight_max

    def is_in_flight(self, number: int) -> bool:
        """Whether an answer to this number is waited for."""
        lane, sequence = self._place(number)
        return lane.is_in_flight(sequence)

    def hold(self, number: int, ready_at: float) -> None:
        """One in flight was refused for now."""
        lane, sequence = self._place(number)
        lane.hold(sequence, ready_at)

    def refusals(self, number: int) -> int:
        """How often this number was refused for now."""
        lane, sequence = self._place(number)
        return lane.refusals(sequence)

    def settle(self, number: int) -> None:
        """One in flight got its definitive answer."""
        lane, sequence = self._place(number)
        lane.settle(sequence)

    def settled(self, number: int, withdrawn: Iterable[int] = ()) -> None:
        """The answer of this number is durable, and these deltas of records went with it, unsent."""
        lane, sequence = self._place(number)
        lane.settled(sequence)
        self._records.withdraw(withdrawn)

    def lose_connection(self) -> None:
        """Nothing is in flight any more; what was is ready to be sent again."""
        self._presence.lose_connection()
        self._records.lose_connection()

    @property
    def next_ready_at(self) -> float | None:
        """When the first held delta may be sent again."""
        return (self._presence if len(self._presence) else self._records).next_ready_at

    def _records_max(self, in_flight_max: int) -> int:
        return max(1, in_flight_max - self._kept)

    def _place(self, number: int) -> tuple[Outstanding, int]:
        return (self._presence, -1 - number) if is_presence(number) else (self._records, number)
