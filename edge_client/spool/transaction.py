"""Applies changes to a spool in one transaction: all are decided first, in memory, and then written together.

Which changes share a transaction is the group commit's to say (:mod:`edge_client.spool.write_queue`).

Each trust mode has a transaction of its own, which builds and writes what the mode needs: deltas (central), pending
records (secure), pending records and submissions (silo), batches of reports with their charge and memo (reports).
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from edge_client.errors import AccountError, NoPartError, SpoolError, SpoolFullError
from edge_client.spool.changes import (
    NO_ID,
    Add,
    AddReports,
    Bind,
    Change,
    PackedDelta,
    Query,
    Rebind,
    Remove,
    Result,
    StoredDelta,
    Submit,
    Unbound,
)
from edge_client.spool.memoization import REPORT_BYTES, ReportMemo
from edge_client.status import (
    DELTAS,
    DELTAS_MOVED,
    RECORDS,
    RECORDS_ABSENT,
    RECORDS_CLIPPED,
    RECORDS_DROPPED,
    RECORDS_REFUSED,
    REPORTS,
    SUBMISSIONS_SPENT,
    submission_count_of,
)
from hushsum.canonical import real
from hushsum.delta import DeltaId, read_header, rebound
from hushsum.errors import BudgetError, ContributionError, HushsumError
from hushsum.plan import Plan
from hushsum.privacy.accountant import Account
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum.privacy.events import TUMBLING, Spend
from hushsum.privacy.relations import Cost
from hushsum.privacy.spending import spend_of

#: What is reserved for a delta (:class:`edge_client.spool.changes.Add`). It is stored beside the bytes, which do not
#: tell how many records were given with theirs and could not be used.
ROOM: Final = "coalesce(room, length(bytes))"

#: A client's state in a window of a secure sum, or as a silo; stored, never reused.
TAKES_PART: Final = 1
SPENT: Final = 2  # its submission is on its way, or was
OVER: Final = 3  # unspent: the window has passed
UNPAID: Final = 4  # unspent: the device's account does not pay for it

_NAME_BYTES: Final = 8


@dataclass
class SpoolState:
    """What a spool keeps in memory between two transactions.

    Attributes:
        stream: Its stream number.
        next_sequence: The number that the next delta gets.
        bytes: Reserved for the deltas that it holds, none of which is larger than its share.
        bytes_max: That may be reserved.
        memo: Bytes reserved for memoised reports, for good, each as if its record were a new one.
        held: Bytes reserved for what earlier plans keep (:mod:`edge_client.spool.plan_history`).
        windows: That have records of this client, where the plan bounds the records of one.
    """

    stream: int
    next_sequence: int
    bytes: int
    bytes_max: int
    memo: int = 0
    held: int = 0
    windows: int = 0


class SpoolTransaction:
    """Adds deltas and removes answered ones. Nothing changes in the file before :meth:`write`.

    Attributes:
        state: The spool's state once this is written.
        counts: Added to the tallies.
    """

    def __init__(self, database: sqlite3.Connection, state: SpoolState) -> None:
        self.state = replace(state)
        self.counts: Counter[str] = Counter()
        self._database = database
        self._deltas: list[tuple[int, bytes, int | None]] = []
        self._removed: list[tuple[int]] = []
        self._bound: dict[int, tuple[bytes, int]] = {}  # bytes and room by number
        self._contributions: dict[int, int] = {}

    def take(self, change: Change) -> Result:
        """Takes a change and returns what it stores, or why it is refused; a refused one leaves no trace."""
        try:
            return self._take(change)
        except HushsumError as error:
            return error

    def write(self) -> None:
        """Writes what was taken; the caller holds a transaction of the database."""
        database = self._database
        database.executemany("INSERT INTO deltas (sequence, bytes, room) VALUES (?, ?, ?)", self._deltas)
        bound = [(*each, sequence) for sequence, each in self._bound.items()]
        database.executemany("UPDATE deltas SET bytes = ?, room = ? WHERE sequence = ?", bound)
        database.executemany("DELETE FROM deltas WHERE sequence = ?", self._removed)
        database.executemany(
            "INSERT INTO contributions (window, records) VALUES (?, ?)"
            " ON CONFLICT (window) DO UPDATE SET records = excluded.records",
            self._contributions.items(),
        )
        write_counts(database, self.counts)
        database.execute("UPDATE next SET sequence = ?", (self.state.next_sequence,))

    def on_committed(self) -> None:
        """Takes over in memory what is durable now."""

    def _take(self, change: Change) -> tuple[StoredDelta, ...]:
        if isinstance(change, Rebind):
            return self._rebind(change)
        if isinstance(change, Remove):
            self._remove(change)
            return ()
        if isinstance(change, Bind):
            return self._bind(change)
        assert isinstance(change, Add), "a silo alone submits"
        return self._add(change)

    def _remove(self, change: Remove) -> None:
        query = f"SELECT {ROOM} FROM deltas WHERE sequence = ?"  # noqa: S608  the constant ROOM alone
        self.state.bytes -= self._number(query, change.sequence)
        self._removed.append((change.sequence,))
        self.counts[change.answer] += 1

    def _rebind(self, change: Rebind) -> tuple[StoredDelta, ...]:
        """What is stored in the place of a late delta, in the room that it had; nothing where it is given up."""
        found = next(iter(self._query(f"SELECT bytes, {ROOM} FROM deltas WHERE sequence = ?", change.sequence)), None)  # noqa: S608  the constant ROOM alone
        self._remove(change)
        if found is None:
            return ()
        try:
            late, addition = read_header(found[0]).window, change.addition(found[0])
            stored = self._numbered(addition.deltas)  # before it is counted as moved: packing may fail, too
        except HushsumError:
            return ()  # its bytes are damaged
        if addition.records_max is not None:
            self._contribute(late, -addition.contributed)
            try:
                if self._fitting(addition) is not addition:
                    return ()
            except ContributionError:
                return ()
            self._contribute(addition.window, addition.contributed)
        self.counts.update({change.answer: -1, DELTAS_MOVED: 1})
        self._store(stored, found[1])
        return stored

    def _bind(self, change: Bind) -> tuple[StoredDelta, ...]:
        """The delta in its window, in the room that it had; nothing where it has to wait."""
        found = self._bound.get(change.sequence)  # a lost connection's and the next one's may share a transaction
        if found is None:
            query = f"SELECT bytes, {ROOM} FROM deltas WHERE sequence = ?"  # noqa: S608  the constant ROOM alone
            found = next(iter(self._query(query, change.sequence)), None)
        if found is None:
            return ()  # it has its answer, and is gone
        data, room = found
        header = read_header(data)
        if Unbound.read(header.window) is None:
            return (StoredDelta(change.sequence, bytes(data)),)
        if change.records_max is not None:
            records = change.records(data)
            self._check_windows(change.window, change.windows_max, "its records are left out")
            if self._contributed(change.window) + records > change.records_max:
                return ()
            self._contribute(change.window, records)
        bound = rebound(data, header.id, change.window)
        self._bound[change.sequence] = bound, room
        return (StoredDelta(change.sequence, bound),)

    def _add(self, change: Add) -> tuple[StoredDelta, ...]:
        change = self._fitting(change)
        stored = self._numbered(change.deltas)
        self._require_room(_size(change, stored))
        self._store(stored, change.price)
        self._count(change, len(stored))
        return stored

    def _numbered(self, deltas: tuple[PackedDelta, ...]) -> tuple[StoredDelta, ...]:
        ids = (DeltaId(self.state.stream, self.state.next_sequence + offset) for offset in range(len(deltas)))
        pairs = zip(ids, deltas, strict=True)
        return tuple(StoredDelta(id.sequence, delta.pack(id), delta.records, delta.stream) for id, delta in pairs)

    def _store(self, stored: tuple[StoredDelta, ...], price: int | None = None) -> None:
        rooms = _rooms(price, len(stored))
        self._deltas += [(delta.sequence, delta.data, room) for delta, room in zip(stored, rooms, strict=True)]
        self.state.next_sequence += len(stored)
        if stored:
            self.state.bytes += sum(len(delta.data) for delta in stored) if price is None else price

    def _count(self, change: Add, deltas: int) -> None:
        if change.records_max is not None:
            self._contribute(change.window, change.contributed)
        self.counts.update({RECORDS: change.records, RECORDS_DROPPED: change.dropped, DELTAS: deltas})
        if change.problems.clipped:
            self.counts[RECORDS_CLIPPED] += change.problems.clipped
        self.counts[RECORDS_REFUSED] += change.refused

    def _require_room(self, size: int, memoised: int = 0) -> None:
        state = self.state
        memo = state.memo + memoised
        if state.bytes + state.held + size + memo > state.bytes_max:
            held = f"{state.bytes} bytes are in use by unanswered deltas, this batch needs up to {size}"
            held += f", {state.held} by deltas and memoised reports of earlier plans" if state.held else ""
            kept = f", {memo} by memoised reports, which are kept for the life of the plan" if memo else ""
            limit = f"the limit is {state.bytes_max} (spool_bytes_max)"
            raise SpoolFullError(f"spool: {held}{kept}, {limit}; this batch was not added")

    def _fitting(self, change: Add) -> Add:
        """The change, or if it has more records than this client has left in the window, that of its first ones.

        Making it anew takes as long as hashing them; it happens once a window, for nothing is left after that.
        """
        if change.records_max is None or Unbound.read(change.window) is not None:
            return change
        before = self._contributed(change.window)
        self._check_windows(change.window, change.windows_max, "this batch was not added")
        left = max(0, change.records_max - before)
        if change.contributed <= left:
            return change
        if left and change.first is not None:
            return change.first(left)
        raise ContributionError(
            f"window {change.window}: got {change.contributed} records, expected at most {left}: the plan allows "
            f"{change.records_max} a client, {before} were added before; this batch was not added"
        )

    def _check_windows(self, window: int, most: int | None, outcome: str) -> None:
        """Raises ContributionError where the window would be one more than the plan allows this client for its life."""
        if most is not None and not self._contributed(window) and self.state.windows >= most:
            raise ContributionError(
                f"window {window}: this client has added records to {self.state.windows} windows, the plan "
                f"allows {most} a client (windows_per_client), and none to others for its life; {outcome}"
            )

    def _contribute(self, window: int, records: int) -> None:
        """Counts so many more records of this client in a window, or fewer; nothing where there is no window yet."""
        if Unbound.read(window) is not None:
            return
        before = self._contributed(window)
        self._contributions[window] = after = max(0, before + records)
        self.state.windows += (after > 0) - (before > 0)

    def _contributed(self, window: int) -> int:
        """This client's records of the window so far."""
        taken = self._contributions.get(window)
        return self._number("SELECT records FROM contributions WHERE window = ?", window) if taken is None else taken

    def _query(self, query: str, *values: object) -> Iterable[tuple[Any, ...]]:
        return self._database.execute(query, values)

    def _number(self, query: str, *values: object) -> int:
        """The number that a query finds, 0 where it finds none."""
        return next((int(number) for (number,) in self._query(query, *values)), 0)


class DeviceBudget:
    """The device's own privacy budget: what it has spent under all plans that it has had, and may still spend.

    It is authoritative for the device: whatever a service says, what it does not pay for never
    leaves the device. It is read from the spool (``spends``, in the order in which they were written), and changes with
    it, in one transaction with what is spent.

    All plans of a spool share one account, whatever population they name: a device cannot know whether populations are
    disjoint, and its own records are the same. Its limits are the lowest total ε and the lowest total δ of the plans
    under which it has spent, and of this plan: a later plan lowers them, and none raises them.

    Args:
        plan: The current one.
        spends: Of all plans.
        totals: (ε, δ) of earlier plans under which something was spent.

    Raises:
        SpoolError: A spend cannot be read.
    """

    def __init__(self, plan: Plan, spends: Iterable[bytes], totals: Iterable[Cost] = ()) -> None:
        try:
            read = [Spend.from_bytes(data) for data in spends]
        except HushsumError as error:
            raise SpoolError(f"spool: a spend in it cannot be read: {error}") from error
        declared = [plan.limits.cost, *totals]
        lowest = Cost(min(cost.epsilon for cost in declared), min(cost.delta for cost in declared))
        limits = replace(plan.limits, epsilon=lowest.epsilon, delta=lowest.delta)
        # What was spent is counted, whatever the limits say now: the account refuses what is new alone.
        self.account = Account(limits).recorded(*read)
        self._plan = plan
        self._windows = {spend.window for spend in read if spend.plan_id == plan.hex_id}

    def is_charged(self, window: int) -> bool:
        return window in self._windows

    def spend_of(self, window: int) -> Spend:
        """What a window costs; nothing is charged."""
        return spend_of(self._plan, kind=TUMBLING, window=window)

    def on_charged(self, account: Account, windows: Iterable[int]) -> None:
        """Takes over an account in which these windows are charged, once that is durable."""
        self.account = account
        self._windows.update(windows)


def tables_of(query: Query) -> set[str]:
    """The names of the tables of a spool."""
    return {str(name) for (name,) in query("SELECT name FROM sqlite_master WHERE type = 'table'")}


def budget_in(query: Query, plan: Plan) -> DeviceBudget:
    """What the device whose spool this is has spent, for a plan of it.

    Raises:
        SpoolError: A spend cannot be read.
    """
    spends = "SELECT spend FROM rounds ORDER BY window"
    if "former_rounds" not in tables_of(query):
        return DeviceBudget(plan, [data for (data,) in query(spends)])
    earlier = [data for (data,) in query("SELECT spend FROM former_rounds ORDER BY rowid")]
    totals = query(
        "SELECT epsilon, delta FROM former_plans WHERE epsilon IS NOT NULL AND id IN (SELECT plan FROM former_rounds)"
    )
    read = [Cost(real(epsilon), real(delta)) for epsilon, delta in totals]
    return DeviceBudget(plan, [*earlier, *(data for (data,) in query(spends))], read)


class BudgetTransaction(SpoolTransaction):
    """A transaction that may charge windows to the device's budget, which changes once it is durable."""

    def __init__(self, database: sqlite3.Connection, state: SpoolState, budget: DeviceBudget) -> None:
        super().__init__(database, state)
        self._budget = budget
        self._account = budget.account
        self._spends: dict[int, Spend] = {}

    def on_committed(self) -> None:
        if self._spends:
            self._budget.on_charged(self._account, self._spends)

    def _charge(self, window: int) -> Spend:
        """Charges a window.

        Raises:
            AccountError: The account does not pay for it; nothing was charged.
        """
        spend = self._budget.spend_of(window)
        try:
            self._account = self._account.charge(spend)
        except BudgetError as error:
            raise AccountError(window, self._left(), str(error)) from error
        self._spends[window] = spend
        return spend

    def _left(self) -> Cost:
        """What the account still allows; nothing where its spends have no total."""
        try:
            return self._account.left
        except BudgetError:
            return Cost(Fraction(0), Fraction(0))


class ReportTransaction(BudgetTransaction):
    """Adds batches of reports: with the first of a window its charge, and all of it or nothing."""

    _memo: ReportMemo | None = None

    def write(self) -> None:
        if self._spends:
            query = "INSERT INTO rounds (window, round, fate, spend, upto) VALUES (?, x'', NULL, ?, 0)"
            self._database.executemany(query, [(window, spend.to_bytes()) for window, spend in self._spends.items()])
        if self._memo is not None:
            self._memo.write(self._database)
        super().write()

    def _add(self, change: Add) -> tuple[StoredDelta, ...]:
        change = self._fitting(change)
        assert isinstance(change, AddReports)
        recalled, deltas, memoised = None, change.deltas, 0
        if change.drawn is not None:
            self._memo = self._memo or ReportMemo(self._query)
            recalled = self._memo.recall(change.window, change.drawn)
            deltas = recalled.deltas
            # As if every record were new: whether one comes again must not decide whether there is room for others.
            memoised = REPORT_BYTES * change.contributed
        stored = self._numbered(deltas)
        self._require_room(_size(change, stored), memoised)
        if stored and change.window not in self._spends and not self._budget.is_charged(change.window):
            self._charge(change.window)
        if self._memo is not None and recalled is not None:
            self._memo.keep(change.window, recalled)
            self.state.memo += memoised
        self._store(stored)
        self._count(change, len(stored))
        self.counts[REPORTS] += change.contributed
        return stored


class SecureTransaction(BudgetTransaction):
    """Adds records that wait for their window's submission. What is spent is written by ``SecureSubmissions``."""

    def __init__(self, database: sqlite3.Connection, state: SpoolState, budget: DeviceBudget) -> None:
        super().__init__(database, state, budget)
        self._pending: list[tuple[int, int, bytes, int | None]] = []

    def write(self) -> None:
        query = "INSERT INTO pending (window, records, bytes, room) VALUES (?, ?, ?, ?)"
        self._database.executemany(query, self._pending)
        super().write()

    def _add(self, change: Add) -> tuple[StoredDelta, ...]:
        if not self._takes_part(change.window):
            self.counts.update({RECORDS_ABSENT: change.records, RECORDS_DROPPED: change.dropped})
            return ()
        change = self._fitting(change)
        stored = tuple(StoredDelta(0, delta.pack(NO_ID), delta.records) for delta in change.deltas)
        size = _size(change, stored)
        self._require_room(size)
        # Of unusable records alone there is nothing to keep but the room that others in their place would take.
        kept = stored or ((StoredDelta(0, b""),) if size else ())
        rows = zip(kept, _rooms(change.price, len(kept)), strict=True)
        self._pending += [(change.window, delta.records, delta.data, room) for delta, room in rows]
        self.state.bytes += size
        self._count(change, len(stored))
        return stored

    def _takes_part(self, window: int) -> bool:
        query = "SELECT count(*) FROM attempts WHERE window = ? AND state = ?"
        return self._number(query, window, TAKES_PART) > 0


class SiloTransaction(SecureTransaction):
    """Adds records that wait, and submissions: each is stored, charged, and closes its window, or none of the three."""

    def __init__(self, database: sqlite3.Connection, state: SpoolState, budget: DeviceBudget) -> None:
        super().__init__(database, state, budget)
        self._submissions: dict[int, tuple[bytes, bytes, int]] = {}
        self._answers: list[tuple[str, bytes]] = []

    def write(self) -> None:
        for window, (name, spend, upto) in self._submissions.items():
            write_spend(window, name, spend, upto, self._database, self.counts)
        query = "UPDATE rounds SET fate = ? WHERE round = ? AND fate IS NULL"
        for answer, name in self._answers:
            first = self._database.execute(query, (answer, name)).rowcount == 1
            self.counts[submission_count_of(answer)] += first
        super().write()

    def _take(self, change: Change) -> tuple[StoredDelta, ...]:
        return self._submit(change) if isinstance(change, Submit) else super()._take(change)

    def _remove(self, change: Remove) -> None:
        super()._remove(change)
        self._answers.append((change.answer, name_of(change.sequence)))

    def _submit(self, change: Submit) -> tuple[StoredDelta, ...]:
        """Stores a submission.

        Raises:
            NoPartError: This device does not take part in the window, or not any more, or its account does not pay.
        """
        require_part(self._query, change.window)
        if change.window in self._submissions:
            raise NoPartError(change.window, "it is spent")
        try:
            spend = self._charge(change.window)
        except AccountError as error:
            raise NoPartError(change.window, str(error)) from error
        number = self.state.next_sequence
        self._submissions[change.window] = (name_of(number), spend.to_bytes(), change.upto)
        stored = (StoredDelta(number, change.pack(DeltaId(self.state.stream, number))),)
        self._store(stored)
        self.counts.update({DELTAS: 1})
        return stored

    def _takes_part(self, window: int) -> bool:
        return window not in self._submissions and super()._takes_part(window)


def name_of(number: int) -> bytes:
    """The name in the table of spends of a silo's delta."""
    return number.to_bytes(_NAME_BYTES, "big")


def number_in(name: bytes) -> int:
    """The number of the silo's delta that has this name."""
    return int.from_bytes(name, "big")


def _size(change: Add, stored: tuple[StoredDelta, ...]) -> int:
    """Bytes to reserve for an addition."""
    return sum(len(delta.data) for delta in stored) if change.price is None else change.price


def _rooms(price: int | None, deltas: int) -> list[int | None]:
    """The share of the price for each of some deltas; None: as much as it has."""
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


def require_part(query: Query, window: int, attempts: int = 0) -> int:
    """The number of attempts that a window has had.

    Raises:
        NoPartError: The window may not be spent (any more), or has not so many attempts left.
    """
    row = next(iter(query("SELECT state, count FROM attempts WHERE window = ?", window)), None)
    why = {
        SPENT: "already submitted, or about to be",
        OVER: "it is over",
        UNPAID: "this device's ledger has no budget for it",
    }
    state, count = (0, 0) if row is None else map(int, row)
    if any(query("SELECT 1 FROM rounds WHERE window = ?", window)):
        state = SPENT
    if state != TAKES_PART:
        raise NoPartError(window, why.get(state, "this client was not running during it"))
    if count + attempts > ATTEMPTS_MAX:
        raise NoPartError(window, f"{count} rounds failed, the maximum for one window")
    return count


def write_spend(
    window: int, name: bytes, spend: bytes, upto: int, database: sqlite3.Connection, counts: Counter[str]
) -> None:
    """Writes a spend, and closes its window; the caller holds a transaction.

    ``name`` is the round's that takes the vector, or that of a silo's delta; ``upto`` is the highest number in
    ``pending`` that is submitted. Pending records stay, because erasing them takes a time that depends on them.
    """
    require_part(lambda query, *values: database.execute(query, values), window)
    database.execute(
        "INSERT INTO rounds (window, round, fate, spend, upto) VALUES (?, ?, NULL, ?, ?)", (window, name, spend, upto)
    )
    database.execute("UPDATE attempts SET state = ? WHERE window = ?", (SPENT, window))
    counts[SUBMISSIONS_SPENT] += 1
