"""Which delta in the spool an id names: its *number* in the spool, the session and the cargo.

Where a spool has one stream, the number is the sequence number of the id. Batches of reports have streams of their own:
there the number is the spool's alone, and a table of what is unanswered says which id it has.
"""

from collections.abc import Mapping

from hushsum.delta import DeltaId


class SpoolIds:
    """The numbers of deltas that are all of the spool's stream.

    Args:
        stream: Of the spool.
    """

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def number_of(self, id: DeltaId) -> int | None:
        """The number of an id; None for another spool's."""
        return id.sequence if id.stream == self._stream else None

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
