"""How the changes of one transaction of a spool are put together before it begins."""

import sqlite3
from collections import Counter
from dataclasses import dataclass
from typing import Final

from edge_client.errors import AccountError, NoPartError, SpoolFullError
from edge_client.spool.budget import DeviceBudget, PendingSpends
from edge_client.spool.changes import (
    NO_ID,
    ROOM,
    TAKES_PART,
    Add,
    Change,
    PackedDelta,
    Remove,
    Result,
    Rows,
    StoredDelta,
    Submit,
)
from edge_client.spool.memoization import REPORT_BYTES, ReportMemo
from edge_client.spool.window_tables import require_part, write_spend
from edge_client.stats import (
    COUNTED,
    DELTAS,
    RECORDS,
    RECORDS_ABSENT,
    RECORDS_DROPPED,
    RECORDS_REFUSED,
    REPORTS,
    SUBMISSIONS_COUNTED,
    SUBMISSIONS_LOST,
)
from hushsum.delta import DeltaId
from hushsum.errors import ContributionError, HushsumError

_NAME_BYTES: Final = 8


def name_of(number: int) -> bytes:
    """How the table of spends names the delta with this number."""
    return number.to_bytes(_NAME_BYTES, "big")


def number_in(name: bytes) -> int:
    """The number of the delta with this name."""
    return int.from_bytes(name, "big")


class Submitted:
    """The submissions of one transaction.

    Args:
        rows: What a query finds in the file as it was before.
        charges: The spends of this transaction.
    """

    def __init__(self, rows: Rows, charges: PendingSpends) -> None:
        self._find = rows
        self._charges = charges
        self._spends: dict[int, tuple[bytes, bytes, int]] = {}
        self._answers: list[tuple[str, bytes]] = []

    def holds(self, window: int) -> bool:
        """Whether this transaction submits for the window."""
        return window in self._spends

    def take(self, change: Submit, number: int) -> None:
        """Notes a submission that gets this number.

        Raises:
            NoPartError: This device does not take part in the window, or not any more, or its account does not pay.
        """
        require_part(lambda query, *values: self._find(query, values), change.window)
        if self.holds(change.window):
            raise NoPartError(change.window, "it is spent")
        try:
            spend = self._charges.charge(change.window)
        except AccountError as error:
            raise NoPartError(change.window, str(error)) from error
        self._spends[change.window] = (name_of(number), spend.to_bytes(), change.upto)

    def answered(self, number: int, answer: str) -> None:
        """Notes what became of the submission with this number."""
        self._answers.append((answer, name_of(number)))

    def write(self, database: sqlite3.Connection, counts: Counter[str]) -> None:
        """Writes what was noted; the caller holds a transaction."""
        for window, (name, spend, upto) in self._spends.items():
            write_spend(window, name, spend, upto, database, counts)
        query = "UPDATE rounds SET fate = ? WHERE round = ? AND fate IS NULL"
        for answer, name in self._answers:
            first = database.execute(query, (answer, name)).rowcount == 1
            counts[SUBMISSIONS_COUNTED if answer in COUNTED else SUBMISSIONS_LOST] += first


@dataclass(frozen=True)
class SpoolState:
    """Where a spool stands between two transactions.

    Attributes:
        stream: Its stream number.
        next_sequence: The number that the next delta gets.
        bytes: That are set aside for the deltas that it holds, none of which has more.
        bytes_max: That may be set aside.
        memo: That are set aside for the reports that it memoises, for good, each as if its record were a new one.
    """

    stream: int
    next_sequence: int
    bytes: int
    bytes_max: int
    memo: int = 0


class SpoolTransaction:
    """The changes of one transaction while they are put together: the file changes in :meth:`write` alone.

    Args:
        level: Where the spool stands.
        rows: What a query finds in the file.
        budget: What this device has spent, where it keeps books; unchanged before :meth:`note_in`.
    """

    def __init__(self, level: SpoolState, rows: Rows, budget: DeviceBudget | None = None) -> None:
        self._level = level
        self._find = rows
        self._charges = PendingSpends(budget)
        self._submitted = Submitted(rows, self._charges)
        self._memo = ReportMemo(rows)
        self._memo_bytes = level.memo
        self._spends: list[tuple[int, bytes]] = []
        self._rows: list[tuple[int, bytes, int | None]] = []
        self._removed: list[tuple[int]] = []
        self._pending: list[tuple[int, int, bytes, int | None]] = []
        self._windows: dict[int, int] = {}
        self._next = level.next_sequence
        self._bytes = level.bytes
        self.counts: Counter[str] = Counter()

    @property
    def level(self) -> SpoolState:
        """Where the spool stands once this is written."""
        return SpoolState(self._level.stream, self._next, self._bytes, self._level.bytes_max, self._memo_bytes)

    def take(self, change: Change) -> Result:
        """Notes a change and says what it bound, or why it is refused; a refused one leaves no trace."""
        if isinstance(change, Remove):
            return self._remove(change)
        try:
            return self._submit(change) if isinstance(change, Submit) else self._add(change)
        except HushsumError as error:
            return error

    def _remove(self, change: Remove) -> tuple[StoredDelta, ...]:
        query = f"SELECT {ROOM} FROM deltas WHERE sequence = ?"  # noqa: S608  the constant ROOM alone
        self._bytes -= self._number(query, change.sequence)
        self._removed.append((change.sequence,))
        self.counts[change.answer] += 1
        if self._charges.submits:
            self._submitted.answered(change.sequence, change.answer)
        return ()

    def _submit(self, change: Submit) -> tuple[StoredDelta, ...]:
        self._submitted.take(change, self._next)
        bound = (StoredDelta(self._next, change.pack(DeltaId(self._level.stream, self._next))),)
        self._keep(bound)
        self._next += 1
        self.counts.update({DELTAS: 1})
        return bound

    def _keep(self, bound: tuple[StoredDelta, ...], price: int | None = None) -> None:
        rooms = _rooms(price, len(bound))
        self._rows += [(delta.sequence, delta.data, room) for delta, room in zip(bound, rooms, strict=True)]
        if bound:
            self._bytes += sum(len(delta.data) for delta in bound) if price is None else price

    def _number(self, query: str, *values: object) -> int:
        """The number that a query finds, 0 where it finds none."""
        return next((int(number) for (number,) in self._find(query, values)), 0)

    def _add(self, change: Add) -> tuple[StoredDelta, ...]:
        if change.pending:
            return self._pend(change)
        change = self._fitting(change)
        if change.charged:
            return self._report(change)
        bound = self._bound(change.deltas)
        self._require_room(_size(change, bound))
        self._take_in(change, bound)
        return bound

    def _bound(self, deltas: tuple[PackedDelta, ...]) -> tuple[StoredDelta, ...]:
        ids = (DeltaId(self._level.stream, self._next + offset) for offset in range(len(deltas)))
        pairs = zip(ids, deltas, strict=True)
        return tuple(StoredDelta(id.sequence, delta.pack(id), delta.records) for id, delta in pairs)

    def _take_in(self, change: Add, bound: tuple[StoredDelta, ...]) -> None:
        self._keep(bound, change.price)
        self._next += len(bound)
        self._count(change, len(bound))

    def _count(self, change: Add, deltas: int) -> None:
        if change.records_max is not None:
            self._windows[change.window] = self._contributed(change.window) + change.contributed
        self.counts.update({RECORDS: change.records, RECORDS_DROPPED: change.dropped, DELTAS: deltas})
        self.counts[RECORDS_REFUSED] += change.refused

    def _report(self, change: Add) -> tuple[StoredDelta, ...]:
        """Batches of reports: with the first of a window its charge, and all of it or nothing."""
        recalled = None if change.drawn is None else self._memo.recall(change.window, change.drawn)
        bound = self._bound(change.deltas if recalled is None else recalled.deltas)
        # As if every record were new: whether one comes again must not decide whether there is room for others.
        memoised = 0 if recalled is None else REPORT_BYTES * change.contributed
        self._require_room(_size(change, bound), memoised)
        if bound and not self._charges.holds(change.window):
            self._spends.append((change.window, self._charges.charge(change.window).to_bytes()))
        if recalled is not None:
            self._memo.keep(change.window, recalled)
            self._memo_bytes += memoised
        self._take_in(change, bound)
        self.counts[REPORTS] += change.contributed
        return bound

    def _pend(self, change: Add) -> tuple[StoredDelta, ...]:
        query = "SELECT count(*) FROM attempts WHERE window = ? AND state = ?"
        if self._submitted.holds(change.window) or not self._number(query, change.window, TAKES_PART):
            return self._leave_out(change)
        change = self._fitting(change)
        bound = tuple(StoredDelta(0, delta.pack(NO_ID), delta.records) for delta in change.deltas)
        size = _size(change, bound)
        self._require_room(size)
        # Of unusable records alone there is nothing to keep but the room that others in their place would take.
        kept = bound or ((StoredDelta(0, b""),) if size else ())
        rooms = _rooms(change.price, len(kept))
        rows = zip(kept, rooms, strict=True)
        self._pending += [(change.window, delta.records, delta.data, room) for delta, room in rows]
        self._bytes += size
        self._count(change, len(bound))
        return bound

    def _leave_out(self, change: Add) -> tuple[StoredDelta, ...]:
        self.counts.update({RECORDS_ABSENT: change.records, RECORDS_DROPPED: change.dropped})
        return ()

    def _require_room(self, size: int, memoised: int = 0) -> None:
        memo = self._memo_bytes + memoised
        if self._bytes + size + memo > self._level.bytes_max:
            held = f"{self._bytes} bytes are set aside for what is unanswered, this batch can take {size}"
            kept = f", {memo} are for reports that are memoised as long as the plan lives" if memo else ""
            limit = f"{self._level.bytes_max} is the limit (spool_bytes_max)"
            raise SpoolFullError(f"spool: {held}{kept}, {limit}; nothing of this batch was taken")

    def _fitting(self, change: Add) -> Add:
        """The change, or where that has more records than are left to this client, that of its first ones.

        To make it anew takes as long as to hash them; it happens once a window, for nothing is left after that.
        """
        if change.records_max is None:
            return change
        before = self._contributed(change.window)
        left = max(0, change.records_max - before)
        if change.contributed <= left:
            return change
        if left and change.first is not None:
            return change.first(left)
        raise ContributionError(
            f"window {change.window}: got {change.contributed} records, expected at most {left}: the plan allows "
            f"{change.records_max} a client, {before} were added before; nothing of this batch was taken"
        )

    def _contributed(self, window: int) -> int:
        """This client's records of the window so far."""
        noted = self._windows.get(window)
        return self._number("SELECT records FROM contributions WHERE window = ?", window) if noted is None else noted

    def write(self, database: sqlite3.Connection) -> None:
        """Writes what was noted; the caller holds a transaction."""
        database.executemany("INSERT INTO deltas (sequence, bytes, room) VALUES (?, ?, ?)", self._rows)
        database.executemany("DELETE FROM deltas WHERE sequence = ?", self._removed)
        database.executemany(
            "INSERT INTO contributions (window, records) VALUES (?, ?)"
            " ON CONFLICT (window) DO UPDATE SET records = excluded.records",
            self._windows.items(),
        )
        if self._pending:
            query = "INSERT INTO pending (window, records, bytes, room) VALUES (?, ?, ?, ?)"
            database.executemany(query, self._pending)
        if self._spends:
            query = "INSERT INTO rounds (window, round, fate, spend, upto) VALUES (?, x'', NULL, ?, 0)"
            database.executemany(query, self._spends)
        self._memo.write(database)
        self._submitted.write(database, self.counts)
        write_counts(database, self.counts)
        database.execute("UPDATE next SET sequence = ?", (self._next,))

    def note_in(self) -> None:
        """Notes what was written, once it is."""
        self._charges.note_in()


def _size(change: Add, bound: tuple[StoredDelta, ...]) -> int:
    """Bytes that an addition is taken to need."""
    return sum(len(delta.data) for delta in bound) if change.price is None else change.price


def _rooms(price: int | None, deltas: int) -> list[int | None]:
    """What is set aside for each of some deltas, together their price; None: as many as it has."""
    if price is None or not deltas:
        return [None] * deltas
    each, rest = divmod(price, deltas)
    return [each + rest, *[each] * (deltas - 1)]


def write_counts(database: sqlite3.Connection, counts: Counter[str]) -> None:
    """Adds counts to the tallies; the caller holds a transaction."""
    database.executemany(
        "INSERT INTO tallies (name, count) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET count = count + excluded.count",
        counts.items(),
    )
