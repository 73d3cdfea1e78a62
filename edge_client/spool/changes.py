"""Changes to a spool as values: what they add, what they bind; and the numbers of deltas in it.

A delta's *number* in the spool names it there. Where a spool has one stream, the number is the sequence number of the
id. Batches of reports have streams of their own: there the number is the spool's alone, and a table of what is
unanswered says which id it has.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.delta import DeltaId, renumbered
from hushsum.errors import HushsumError


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

Int64s = npt.NDArray[np.int64]

NO_ID: Final = DeltaId(0, 0)  # stands in until the spool gives the real one

#: How this client stands to a window of a secure sum, or of a silo; stored, never reused.
TAKES_PART: Final = 1
SPENT: Final = 2  # what it submits is on its way, or was
OVER: Final = 3  # unspent: the window has passed
UNPAID: Final = 4  # unspent: the device's account does not pay for it


@dataclass(frozen=True)
class PackedDelta:
    """A delta that has no id yet: its number of records, and its bytes once it has one."""

    records: int
    pack: Callable[[DeltaId], bytes]


@dataclass(frozen=True)
class DrawnReports:
    """Reports that were drawn for records, where the plan memoises: which of them count, the spool says.

    Attributes:
        keys: Of the records, in their order, 32 bytes each: equal for equal records (``memo``).
        reports: (n,), freshly drawn, for those that have none yet.
        split: Into packed batches, each with an id of its own.
    """

    keys: tuple[bytes, ...] = field(repr=False)
    reports: Int64s = field(repr=False)
    split: Callable[[Int64s], tuple[PackedDelta, ...]] = field(repr=False)


@dataclass(frozen=True)
class Add:
    """A change: new deltas of one window.

    Attributes:
        window: Its index.
        deltas: In the order in which they get their ids.
        dropped: Records that were left out, to be counted.
        records_max: The most records that this client may add to one window; None without such a bound.
        pending: Of a plan with a secure sum, or of a silo: the deltas get no ids and are never sent. They wait for the
            window's turn, where this client takes part in the window; else they are left out, and counted.
        charged: Of reports: the window is charged to this device's account, with its first batch. The deltas are
            batches that have ids of their own, of as many reports as their records.
        drawn: Of reports that are memoised, in place of deltas.
        price: Bytes that the spool sets aside for the deltas: the most that those of as many records could take,
            whatever they are, so that no record decides whether there is room for others. None: as many as they have,
            which for reports follows from their number.
        refused: Records that are left out because they are more than ``records_max``, to be counted.
        first: Makes the same change of the first records alone that count, for whom all are too many; their number is
            below ``contributed``. None where there is no bound.
    """

    window: int
    deltas: tuple[PackedDelta, ...]
    dropped: int
    records_max: int | None
    pending: bool = False
    charged: bool = False
    drawn: DrawnReports | None = None
    price: int | None = None
    refused: int = 0
    first: "Callable[[int], Add] | None" = field(default=None, repr=False, compare=False)

    @property
    def contributed(self) -> int:
        """What counts towards ``records_max``: the records of all deltas, or reports, unusable ones too."""
        if self.drawn is not None:
            return len(self.drawn.keys)
        return sum(delta.records for delta in self.deltas)

    @property
    def records(self) -> int:
        """Usable records. An unusable one sends a report all the same, which tells nothing."""
        return self.contributed - (self.dropped if self.charged else 0)


def packed(addition: Add) -> Add:
    """The same with its deltas packed but for their ids, so that to bind them takes a transaction no time."""
    if addition.charged:  # they have their ids
        return addition
    deltas = tuple(PackedDelta(delta.records, partial(renumbered, delta.pack(NO_ID))) for delta in addition.deltas)
    return replace(addition, deltas=deltas)


@dataclass(frozen=True)
class Submit:
    """A change: what a silo submits for a window: its bytes, its charge and its window's end, together or not at all.

    It is bound whatever else the spool holds: its limit on bytes is for records.

    Attributes:
        window: Its index.
        pack: Its bytes, noised already, under the id that it gets.
        upto: What it holds of what waits: everything that came before.
    """

    window: int
    pack: Callable[[DeltaId], bytes] = field(repr=False)
    upto: int


@dataclass(frozen=True)
class Remove:
    """A change: a delta has its definitive answer, counted under this name."""

    sequence: int
    answer: str


@dataclass(frozen=True)
class StoredDelta:
    """A delta's bytes under its number (``lanes``), for ever; and where it was just added, of how many records."""

    sequence: int
    data: bytes
    records: int = field(default=0, compare=False)


Change = Add | Submit | Remove
#: What was bound; nothing for a removal.
Result = tuple[StoredDelta, ...] | HushsumError

#: Rows that a query finds. Any: the values of a row are those of its query.
Rows = Callable[[str, tuple[object, ...]], Iterable[Any]]

#: What is set aside for a delta (:class:`edge_client.spool.changes.Add`). It stands beside the bytes, which do not tell
#: how many records were given with theirs and could not be used.
ROOM: Final = "coalesce(room, length(bytes))"
