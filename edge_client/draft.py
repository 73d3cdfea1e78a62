"""Changes to a spool, and how those of one transaction are put together before it begins."""

import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from edge_client.attendance import Attendance, Holdings, Rows
from edge_client.errors import SpoolFullError
from edge_client.lanes import id_of, is_presence
from edge_client.tallies import DELTAS, PRESENCES, RECORDS, RECORDS_ABSENT, RECORDS_DROPPED, WITHDRAWN
from hushsum.delta import DeltaId, renumbered
from hushsum.errors import ContributionError, HushsumError

NO_ID: Final = DeltaId(0, 0)  # stands in until the spool gives the real one

#: How this client stands to a window of a secure sum; stored, never reused.
TAKES_PART: Final = 1
SPENT: Final = 2  # its vector is on its way, or was
OVER: Final = 3  # unspent: the window has passed
UNPAID: Final = 4  # unspent: the device's account does not pay for it


@dataclass(frozen=True)
class Unbound:
    """A delta that has no id yet: its number of records, and its bytes once it has one."""

    records: int
    pack: Callable[[DeltaId], bytes]


@dataclass(frozen=True)
class Add:
    """A change: new deltas of one window.

    Attributes:
        window: Its index.
        deltas: In the order in which they get their ids.
        dropped: Records that were left out, to be counted.
        records_max: The most records that this client may add to one window; None without such a bound.
        attended: Only where this client's presence in the window stands; else the records are left out, and counted.
        pending: Of a plan with a secure sum: the deltas get no ids and are never sent. They wait for the window's
            round, where this client takes part in the window; else they are left out, as above.
    """

    window: int
    deltas: tuple[Unbound, ...]
    dropped: int
    records_max: int | None
    attended: bool = False
    pending: bool = False

    @property
    def records(self) -> int:
        """Usable records of all deltas."""
        return sum(delta.records for delta in self.deltas)


def packed(addition: Add) -> Add:
    """The same with its deltas packed but for their ids, so that to bind them takes a transaction no time."""
    deltas = tuple(Unbound(delta.records, partial(renumbered, delta.pack(NO_ID))) for delta in addition.deltas)
    return replace(addition, deltas=deltas)


@dataclass(frozen=True)
class Attend:
    """A change: this client takes part in these windows, where its presence in them does not stand already.

    It is bound whatever else the spool holds: its limit on bytes is for records.
    """

    windows: range
    pack: Callable[[int, DeltaId], bytes]


@dataclass(frozen=True)
class Remove:
    """A change: a delta has its definitive answer, counted under this name.

    With a presence that the service has not counted go the deltas of records of its window, unsent: they, too, would
    show that this client takes part, and whether they do would depend on its records.
    """

    sequence: int
    answer: str


@dataclass(frozen=True)
class Bound:
    """A delta's bytes under its number (``lanes``), for ever."""

    sequence: int
    data: bytes


Change = Add | Attend | Remove
#: What was bound; for a removal, what was withdrawn with it, without its bytes.
Result = tuple[Bound, ...] | HushsumError


@dataclass(frozen=True)
class Level:
    """Where a spool stands between two transactions.

    Attributes:
        stream: Its stream number.
        next_sequence: The number that the next delta gets.
        bytes: Of the deltas that it holds.
        bytes_max: That it may hold.
    """

    stream: int
    next_sequence: int
    bytes: int
    bytes_max: int


class Draft:
    """The changes of one transaction while they are put together: the file changes in :meth:`write` alone.

    Args:
        level: Where the spool stands.
        rows: What a query finds in the file.
        holdings: Where the deltas of records are in it, under public participation; unchanged before :meth:`note_in`.
    """

    def __init__(self, level: Level, rows: Rows, holdings: Holdings) -> None:
        self._level = level
        self._find = rows
        self._attendance = Attendance(rows, holdings)
        self._held: list[tuple[int, range]] = []
        self._rows: list[tuple[int, bytes]] = []
        self._removed: list[tuple[int]] = []
        self._pending: list[tuple[int, int, bytes]] = []
        self._windows: dict[int, int] = {}
        self._next = level.next_sequence
        self._bytes = level.bytes
        self.counts: Counter[str] = Counter()

    @property
    def level(self) -> Level:
        """Where the spool stands once this is written."""
        return Level(self._level.stream, self._next, self._bytes, self._level.bytes_max)

    def take(self, change: Change) -> Result:
        """Notes a change and says what it bound, or why it is refused; a refused one leaves no trace."""
        if isinstance(change, Remove):
            return self._remove(change)
        if isinstance(change, Attend):
            return self._attend(change)
        try:
            return self._add(change)
        except HushsumError as error:
            return error

    def _remove(self, change: Remove) -> tuple[Bound, ...]:
        self._take_out(change.sequence)
        self.counts[change.answer] += 1
        if not is_presence(change.sequence):
            return ()
        withdrawn = self._attendance.answered(change.sequence, change.answer)
        self._removed += [(sequence,) for sequence, _ in withdrawn]
        self._bytes -= sum(size for _, size in withdrawn)
        self.counts[WITHDRAWN] += len(withdrawn)
        return tuple(Bound(sequence, b"") for sequence, _ in withdrawn)

    def _take_out(self, sequence: int) -> None:
        self._removed.append((sequence,))
        self._bytes -= self._number("SELECT length(bytes) FROM deltas WHERE sequence = ?", sequence)

    def _attend(self, change: Attend) -> tuple[Bound, ...]:
        stream = self._level.stream
        taken = self._attendance.take(change.windows)
        bound = tuple(Bound(number, change.pack(window, id_of(number, stream))) for number, window in taken)
        self._keep(bound)
        self.counts.update({PRESENCES: len(bound), DELTAS: len(bound)})
        return bound

    def _keep(self, bound: tuple[Bound, ...]) -> None:
        self._rows += [(delta.sequence, delta.data) for delta in bound]
        self._bytes += sum(len(delta.data) for delta in bound)

    def _number(self, query: str, *values: object) -> int:
        """The number that a query finds, 0 where it finds none."""
        return next((int(number) for (number,) in self._find(query, values)), 0)

    def _add(self, change: Add) -> tuple[Bound, ...]:
        if change.pending:
            return self._pend(change)
        if change.attended and not self._attendance.stands(change.window):
            return self._leave_out(change)
        contributed = self._contributed(change)
        ids = (DeltaId(self._level.stream, self._next + offset) for offset in range(len(change.deltas)))
        bound = tuple(Bound(id.sequence, delta.pack(id)) for id, delta in zip(ids, change.deltas, strict=True))
        self._require_room(sum(len(delta.data) for delta in bound))
        self._keep(bound)
        if change.attended and bound:
            self._held.append((change.window, range(self._next, self._next + len(bound))))
        self._next += len(bound)
        if contributed is not None:
            self._windows[change.window] = contributed
        self.counts.update({RECORDS: change.records, RECORDS_DROPPED: change.dropped, DELTAS: len(bound)})
        return bound

    def _pend(self, change: Add) -> tuple[Bound, ...]:
        query = "SELECT count(*) FROM attempts WHERE window = ? AND state = ?"
        if not self._number(query, change.window, TAKES_PART):
            return self._leave_out(change)
        contributed = self._contributed(change)
        rows = [(change.window, delta.records, delta.pack(NO_ID)) for delta in change.deltas]
        size = sum(len(data) for _, _, data in rows)
        self._require_room(size)
        self._pending += rows
        self._bytes += size
        if contributed is not None:
            self._windows[change.window] = contributed
        self.counts.update({RECORDS: change.records, RECORDS_DROPPED: change.dropped, DELTAS: len(rows)})
        return tuple(Bound(0, data) for _, _, data in rows)

    def _leave_out(self, change: Add) -> tuple[Bound, ...]:
        self.counts.update({RECORDS_ABSENT: change.records, RECORDS_DROPPED: change.dropped})
        return ()

    def _require_room(self, size: int) -> None:
        if self._bytes + size > self._level.bytes_max:
            held = f"{self._bytes} unanswered bytes are in it, {size} came, {self._level.bytes_max} is the limit"
            raise SpoolFullError(f"spool: {held} (spool_bytes_max); nothing of this batch was taken")

    def _contributed(self, change: Add) -> int | None:
        """This client's records of the window after the change; None without a bound."""
        if change.records_max is None:
            return None
        before = self._windows.get(change.window)
        if before is None:
            before = self._number("SELECT records FROM contributions WHERE window = ?", change.window)
        if before + change.records > change.records_max:
            left, limit = change.records_max - before, change.records_max
            raise ContributionError(
                f"window {change.window}: got {change.records} records, expected at most {left}: the plan allows "
                f"{limit} a client, {before} were added before; nothing of this batch was taken"
            )
        return before + change.records

    def write(self, database: sqlite3.Connection) -> None:
        """Writes what was noted; the caller holds a transaction."""
        database.executemany("INSERT INTO deltas (sequence, bytes) VALUES (?, ?)", self._rows)
        database.executemany("DELETE FROM deltas WHERE sequence = ?", self._removed)
        database.executemany(
            "INSERT INTO contributions (window, records) VALUES (?, ?)"
            " ON CONFLICT (window) DO UPDATE SET records = excluded.records",
            self._windows.items(),
        )
        if self._pending:
            database.executemany("INSERT INTO pending (window, records, bytes) VALUES (?, ?, ?)", self._pending)
        write_counts(database, self.counts)
        self._attendance.write(database)
        database.execute("UPDATE next SET sequence = ?", (self._next,))

    def note_in(self, holdings: Holdings) -> None:
        """Notes what was written, once it is."""
        for window, numbers in self._held:
            holdings.note(window, numbers)
        holdings.forget(self._attendance.left)


def write_counts(database: sqlite3.Connection, counts: Counter[str]) -> None:
    """Adds counts to the tallies; the caller holds a transaction."""
    database.executemany(
        "INSERT INTO tallies (name, count) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET count = count + excluded.count",
        counts.items(),
    )
