"""How the changes of one transaction of a spool are put together before it begins."""

import sqlite3
from collections import Counter
from dataclasses import dataclass

from edge_client.attendance import Attendance, Holdings, Rows
from edge_client.books import Books, Charges
from edge_client.changes import (
    NO_ID,
    TAKES_PART,
    Add,
    Attend,
    Bound,
    Change,
    Remove,
    Result,
    Submit,
    Unbound,
)
from edge_client.errors import SpoolFullError
from edge_client.lanes import id_of, is_presence
from edge_client.memo import REPORT_BYTES, Memo, Recalled
from edge_client.submitted import Submitted
from edge_client.tallies import DELTAS, PRESENCES, RECORDS, RECORDS_ABSENT, RECORDS_DROPPED, REPORTS, WITHDRAWN
from hushsum.delta import DeltaId
from hushsum.errors import ContributionError, HushsumError

#: Values of changes are found here, too.


@dataclass(frozen=True)
class Level:
    """Where a spool stands between two transactions.

    Attributes:
        stream: Its stream number.
        next_sequence: The number that the next delta gets.
        bytes: Of the deltas that it holds.
        bytes_max: That it may hold.
        memo: Of the reports that it memoises, for good; they count towards what it may hold.
    """

    stream: int
    next_sequence: int
    bytes: int
    bytes_max: int
    memo: int = 0


class Draft:
    """The changes of one transaction while they are put together: the file changes in :meth:`write` alone.

    Args:
        level: Where the spool stands.
        rows: What a query finds in the file.
        holdings: Where the deltas of records are in it, under public participation; unchanged before :meth:`note_in`.
        books: What this device has spent, where it keeps books; likewise unchanged.
    """

    def __init__(self, level: Level, rows: Rows, holdings: Holdings, books: Books | None = None) -> None:
        self._level = level
        self._find = rows
        self._attendance = Attendance(rows, holdings)
        self._charges = Charges(books)
        self._submitted = Submitted(rows, self._charges)
        self._memo = Memo(rows)
        self._memo_bytes = level.memo
        self._spends: list[tuple[int, bytes]] = []
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
        return Level(self._level.stream, self._next, self._bytes, self._level.bytes_max, self._memo_bytes)

    def take(self, change: Change) -> Result:
        """Notes a change and says what it bound, or why it is refused; a refused one leaves no trace."""
        if isinstance(change, Remove):
            return self._remove(change)
        if isinstance(change, Attend):
            return self._attend(change)
        try:
            return self._submit(change) if isinstance(change, Submit) else self._add(change)
        except HushsumError as error:
            return error

    def _remove(self, change: Remove) -> tuple[Bound, ...]:
        self._take_out(change.sequence)
        self.counts[change.answer] += 1
        if not is_presence(change.sequence):
            if self._charges.submits:
                self._submitted.answered(change.sequence, change.answer)
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

    def _submit(self, change: Submit) -> tuple[Bound, ...]:
        self._submitted.take(change, self._next)
        bound = (Bound(self._next, change.pack(DeltaId(self._level.stream, self._next))),)
        self._keep(bound)
        self._next += 1
        self.counts.update({DELTAS: 1})
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
        if change.charged:
            return self._report(change)
        contributed = self._contributed(change)
        bound = self._bound(change.deltas)
        self._require_room(sum(len(delta.data) for delta in bound))
        if change.attended and bound:
            self._held.append((change.window, range(self._next, self._next + len(bound))))
        self._take_in(change, bound, contributed)
        return bound

    def _bound(self, deltas: tuple[Unbound, ...]) -> tuple[Bound, ...]:
        ids = (DeltaId(self._level.stream, self._next + offset) for offset in range(len(deltas)))
        return tuple(Bound(id.sequence, delta.pack(id)) for id, delta in zip(ids, deltas, strict=True))

    def _take_in(self, change: Add, bound: tuple[Bound, ...], contributed: int | None) -> None:
        self._keep(bound)
        self._next += len(bound)
        if contributed is not None:
            self._windows[change.window] = contributed
        self.counts.update({RECORDS: change.records, RECORDS_DROPPED: change.dropped, DELTAS: len(bound)})

    def _report(self, change: Add) -> tuple[Bound, ...]:
        """Batches of reports: with the first of a window its charge, and all of it or nothing."""
        contributed = self._contributed(change)
        recalled = None if change.drawn is None else self._memo.recall(change.window, change.drawn)
        bound = self._bound(change.deltas if recalled is None else recalled.deltas)
        self._require_room(sum(len(delta.data) for delta in bound), recalled)
        if bound and not self._charges.holds(change.window):
            self._spends.append((change.window, self._charges.charge(change.window).to_bytes()))
        if recalled is not None:
            self._memo.keep(change.window, recalled)
            self._memo_bytes += REPORT_BYTES * len(recalled.fresh)
        self._take_in(change, bound, contributed)
        self.counts[REPORTS] += change.contributed
        return bound

    def _pend(self, change: Add) -> tuple[Bound, ...]:
        query = "SELECT count(*) FROM attempts WHERE window = ? AND state = ?"
        if self._submitted.holds(change.window) or not self._number(query, change.window, TAKES_PART):
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

    def _require_room(self, size: int, recalled: Recalled | None = None) -> None:
        memo = self._memo_bytes + (0 if recalled is None else REPORT_BYTES * len(recalled.fresh))
        if self._bytes + size + memo > self._level.bytes_max:
            held = f"{self._bytes} unanswered bytes are in it, {size} came, {self._level.bytes_max} is the limit"
            kept = f", {memo} are for reports that are memoised as long as the plan lives" if memo else ""
            raise SpoolFullError(f"spool: {held} (spool_bytes_max){kept}; nothing of this batch was taken")

    def _contributed(self, change: Add) -> int | None:
        """This client's records of the window after the change; None without a bound."""
        if change.records_max is None:
            return None
        before = self._windows.get(change.window)
        if before is None:
            before = self._number("SELECT records FROM contributions WHERE window = ?", change.window)
        if before + change.contributed > change.records_max:
            left, limit = change.records_max - before, change.records_max
            raise ContributionError(
                f"window {change.window}: got {change.contributed} records, expected at most {left}: the plan allows "
                f"{limit} a client, {before} were added before; nothing of this batch was taken"
            )
        return before + change.contributed

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
        if self._spends:
            query = "INSERT INTO rounds (window, round, fate, spend, upto) VALUES (?, x'', NULL, ?, 0)"
            database.executemany(query, self._spends)
        self._memo.write(database)
        self._submitted.write(database, self.counts)
        write_counts(database, self.counts)
        self._attendance.write(database)
        database.execute("UPDATE next SET sequence = ?", (self._next,))

    def note_in(self, holdings: Holdings) -> None:
        """Notes what was written, once it is."""
        self._charges.note_in()
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
