"""The plans of a spool: one is current, and what the spool holds of the earlier ones stands beside it in the same file.

A change of plan is one transaction. It moves all rows of the current plan to tables of earlier plans, with the plan's
id, and brings back those of the new plan, which has some if the spool had it before. It erases nothing and spends
nothing: the change back restores every row. So a kill at any point leaves the one plan or the other, whole.

The spends of all plans stay for ever, and are one account (:class:`edge_client.spool.transaction.DeviceBudget`). With
them stay the bounds of the windows that they paid for, closed windows, memoised reports, and the windows that have
records of this client under a plan that bounds their number (``windows_per_client``). What waits under an
earlier plan is kept until its windows are over by this device's clock, for the service may go back to that plan; then
it is erased, and reported. No word of a service erases it. A plan of which nothing waits is its id and totals, beside
what stays.
"""

import logging
import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from edge_client.errors import PolicyError, SpoolError
from edge_client.policy import NEW_PLAN
from edge_client.spool.changes import Query, Unbound
from edge_client.spool.spool import HEADER_BYTES, OTHER_REPORTS, PLAN_HISTORY_FORMAT, Spool, upgrade, write_signature
from edge_client.spool.transaction import OVER, TAKES_PART, UNPAID, budget_in, tables_of
from edge_client.status import RECORDS_UNSPENT, REPORTS, SUBMISSIONS_LOST, WINDOWS_UNSPENT
from hushsum.canonical import real_text
from hushsum.delta import read_header
from hushsum.errors import BudgetError, HushsumError
from hushsum.plan import Plan, plan_id_of
from hushsum.privacy.guarantee import CENTRAL
from hushsum_proto.answers import Status

_LOG: Final = logging.getLogger("edge_client")
#: A change that failed is tried again after this time, or after that between two changes, whichever is shorter.
TRIES_APART_MS: Final = 600_000
#: Earlier plans of which something waits. A service that changes its plan for ever must not fill a disk.
PLANS_MAX: Final = 64
# What belongs to one plan, where the spool has the table.
_TABLES: Final = (
    "deltas",
    "contributions",
    "pending",
    "rounds",
    "attempts",
    "directory",
    "memo",
    "memo_windows",
    "memo_kept",
)
_CHANGE_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS plan_change (only INTEGER PRIMARY KEY CHECK (only = 1), told INTEGER NOT NULL,"
    " changed_ms INTEGER, tried_ms INTEGER, previous BLOB, other_reports INTEGER NOT NULL DEFAULT 0)"
)
# The totals are those of the plan, where the device has a budget of its own. ``reports`` counts what is memoised.
_PLANS_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS former_plans (id BLOB PRIMARY KEY, bytes BLOB NOT NULL, signature BLOB, epsilon TEXT,"
    " delta TEXT, reports INTEGER NOT NULL)"
)
# What was erased of earlier plans, and is not reported yet.
_ERASED_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS erased_plans (number INTEGER PRIMARY KEY, plan BLOB NOT NULL, deltas INTEGER NOT NULL,"
    " records INTEGER NOT NULL, windows INTEGER NOT NULL, unreported INTEGER NOT NULL)"
)
# Windows of earlier plans that are over, and count for the plan's ``windows_per_client`` if it comes back.
_COUNTED_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS counted_windows (plan BLOB NOT NULL, window INTEGER NOT NULL, records INTEGER NOT NULL,"
    " PRIMARY KEY (plan, window))"
)
_HELD: Final = "SELECT (SELECT count(*) FROM former_deltas) + (SELECT count(*) FROM former_pending)"
# Windows of an earlier plan in which this client has taken part and not submitted, and rounds of unknown result:
# windows of reports are rows there, too, under no name.
_TOOK_PART: Final = f"state IN ({TAKES_PART}, {UNPAID})"
_UNREPORTED: Final = "fate IS NULL AND length(round) > 0"
# The bound of a window that is paid for stays. So do closed windows: a clock that is set back must not open them.
_UNPAID_BOUND: Final = (
    "NOT EXISTS (SELECT 1 FROM former_rounds WHERE former_rounds.plan = former_contributions.plan"
    " AND former_rounds.window = former_contributions.window)"
)
# Which rows of a table wait, or are erased with what waits.
_WAITING: Final = {
    "deltas": "1",
    "pending": "1",
    "contributions": _UNPAID_BOUND,
    "attempts": _TOOK_PART,
    "rounds": _UNREPORTED,
    "memo": "1",
    "memo_windows": "1",
    "memo_kept": "1",
}


@dataclass(frozen=True)
class ErasedPlan:
    """What was erased of an earlier plan, because its windows are over.

    Attributes:
        plan_id: Of the plan.
        deltas: That had no answer: whether the service counted them is unknown.
        records: That waited for a submission.
        windows: In which this client took part, and for which it never submitted.
        unreported: Submissions whose result is unknown.
    """

    plan_id: bytes
    deltas: int
    records: int
    windows: int
    unreported: int

    def __str__(self) -> str:
        counted = (
            (self.deltas, "deltas without an answer"),
            (self.records, "records that were not submitted"),
            (self.windows, "windows without a submission"),
            (self.unreported, "submissions without a result"),
        )
        what = ", ".join(f"{name}: {number}" for number, name in counted if number)
        return f"the service does not collect plan {self.plan_id.hex()[:12]} any more, whose windows are over ({what})"


@dataclass(frozen=True)
class Erasure:
    """What was erased of earlier plans.

    Attributes:
        erased: All that is not reported yet, of earlier calls too, until :meth:`PlanHistory.note_reported`.
        counts: What this call added to the tallies.
        unreadable: A sentence for each plan that could not be read, and was left as it is.
        due_ms: When more is due, by this device's clock; None where nothing is left that can be read.
    """

    erased: tuple[ErasedPlan, ...]
    counts: Counter[str]
    unreadable: tuple[str, ...]
    due_ms: int | None


class PlanHistory:
    """The plans of a spool. Methods block.

    A plan is changed before the spool's first commit; :meth:`note_other_plan`, :meth:`erase` and :attr:`held` may be
    called at any time.

    Raises:
        SpoolError: The spool cannot be read or written; nothing was changed.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    @property
    def is_told(self) -> bool:
        """Whether the service has said that it collects another plan."""
        return bool(self._noted("told"))

    @property
    def held(self) -> int:
        """Deltas, and batches that wait for a submission, under earlier plans."""
        if "former_plans" not in tables_of(self._spool.rows):
            return 0
        ((held,),) = self._spool.rows(_HELD)
        return int(held)

    def note_other_plan(self, *, told: bool) -> None:
        """Notes whether the service collects another plan."""
        self._note("told", told)

    def note_try(self, now_ms: int) -> None:
        """Notes when a change was last tried."""
        self._note("tried_ms", now_ms)

    def next_change_ms(self, now_ms: int, apart_ms: int) -> int:
        """When a change may be tried, at the earliest now: some time after the last change, and after the last try.

        Where the clock was set back behind one of these, the wait begins anew.

        Args:
            now_ms: This device's clock, ms since 1970 UTC.
            apart_ms: The least time between two changes.
        """
        due_ms = now_ms
        for column, wait_ms in (("changed_ms", apart_ms), ("tried_ms", min(apart_ms, TRIES_APART_MS))):
            at_ms = self._noted(column)
            if at_ms is not None and now_ms < at_ms:
                self._note(column, now_ms)
                at_ms = now_ms
            if at_ms is not None:
                due_ms = max(due_ms, at_ms + wait_ms)
        return due_ms

    def take_up(self, plan: Plan, signature: bytes | None, now_ms: int) -> None:
        """Makes a plan the current one. :meth:`confirm` follows once it has opened, else :meth:`undo`.

        Raises:
            PolicyError: The device's account does not allow it, or the spool has had too many plans.
        """

        def change(database: sqlite3.Connection, _: Counter[str]) -> None:
            upgrade(database, PLAN_HISTORY_FORMAT)
            previous, is_known = _swap(database, plan.id, plan.bundle, signature)
            if len(_waiting(database)) > PLANS_MAX:
                allowed = f"{PLANS_MAX} earlier plans of which something waits"
                raise PolicyError(NEW_PLAN, "one more than those", allowed)
            _require_budget(database, plan, now_ms, is_known=is_known)
            _write_note(database, "previous", previous)
            _write_note(database, "tried_ms", now_ms)

        self._spool.change_plan(change)

    def confirm(self, now_ms: int) -> bool:
        """The current plan has opened: it stays. Returns whether it was new."""

        def change(database: sqlite3.Connection, _: Counter[str]) -> None:
            _write_note(database, "previous", None)
            _write_note(database, "changed_ms", now_ms)
            _write_note(database, "told", value=False)
            _forget_empty_plans(database)

        if self._noted("previous") is None:
            return False
        self._spool.change(change)
        return True

    def undo(self) -> bool:
        """Goes back to the plan before, if the current one was not confirmed; nothing was added under it.

        Returns:
            Whether there was anything to undo.
        """
        previous: bytes | None = self._noted("previous")
        if previous is None:
            return False

        def change(database: sqlite3.Connection, _: Counter[str]) -> None:
            query = "SELECT bytes, signature FROM former_plans WHERE id = ?"
            bundle, signature = database.execute(query, (previous,)).fetchone()
            _swap(database, previous, bundle, signature)
            _write_note(database, "previous", None)
            _forget_empty_plans(database)

        self._spool.change_plan(change)
        return True

    def erase(self, now_ms: int) -> Erasure:
        """Erases what waits under earlier plans, of windows that are over by this device's clock.

        Each plan is a transaction of its own, which notes what it erases until :meth:`note_reported`. One that fails,
        as on a full disk, is due again at once; the others are erased.

        Args:
            now_ms: That clock, ms since 1970 UTC.
        """
        counts: Counter[str] = Counter()
        unreadable: list[str] = []
        due_ms: list[int] = []
        for plan_id in self._earlier_plans():
            try:
                plan_counts, plan_due_ms = self._erase_plan(plan_id, now_ms)
            except SpoolError as error:
                _LOG.warning("erasure of earlier plan %s failed, retrying: %s", plan_id.hex()[:12], error)
                due_ms.append(now_ms)
            except HushsumError as error:
                unreadable.append(f"earlier plan {plan_id.hex()[:12]} in the spool cannot be read: {error}")
            else:
                counts += plan_counts
                due_ms += plan_due_ms
        return Erasure(self._unreported(), counts, tuple(unreadable), min(due_ms, default=None))

    def note_reported(self) -> None:
        """Notes that all that was erased is reported."""
        self._spool.change(lambda database, _: database.execute("DELETE FROM erased_plans"), recount=False)

    def _unreported(self) -> tuple[ErasedPlan, ...]:
        if "erased_plans" not in tables_of(self._spool.rows):
            return ()
        rows = self._spool.rows("SELECT plan, deltas, records, windows, unreported FROM erased_plans ORDER BY number")
        return tuple(ErasedPlan(*row) for row in rows)

    def _erase_plan(self, plan_id: bytes, now_ms: int) -> tuple[Counter[str], list[int]]:
        """What erasing a plan added to the tallies, and when more of it is due."""
        schedule = self._plan(plan_id).window
        changed = schedule.index_at(self._noted("changed_ms") or 0)
        waiting = self._windows(plan_id, changed)
        if not waiting:
            return Counter(), []
        oldest = schedule.index_at(now_ms - schedule.lateness_ms)
        counts: Counter[str] = Counter()
        if waiting[0] < oldest:
            is_bounded = schedule.windows_per_client is not None
            counts = self._spool.change(partial(_erase, plan_id, oldest, changed, is_bounded=is_bounded))
            self._spool.erase_answered()
        return counts, [schedule.end_ms(window) + schedule.lateness_ms for window in waiting if window >= oldest][:1]

    def _windows(self, plan_id: bytes, changed: int) -> list[int]:
        """Windows of an earlier plan of which something waits, ascending; ``changed`` as of :func:`_window_of`."""
        heads = self._spool.rows("SELECT substr(bytes, 1, ?) FROM former_deltas WHERE plan = ?", HEADER_BYTES, plan_id)
        windows = {_window_of(head, changed) for (head,) in heads}
        for table in ("pending", "contributions", "attempts", "rounds"):
            query = f"SELECT window FROM former_{table} WHERE plan = ? AND {_WAITING[table]}"  # noqa: S608  constants of this module
            windows.update(window for (window,) in self._spool.rows(query, plan_id))
        return sorted(windows)

    def _earlier_plans(self) -> list[bytes]:
        if "former_plans" not in tables_of(self._spool.rows):
            return []
        return [plan_id for (plan_id,) in self._spool.rows("SELECT id FROM former_plans")]

    def _plan(self, plan_id: bytes) -> Plan:
        ((bundle,),) = self._spool.rows("SELECT bytes FROM former_plans WHERE id = ?", plan_id)
        return Plan.from_bytes(bundle)

    def _noted(self, column: str) -> Any:
        if "plan_change" not in tables_of(self._spool.rows):
            return None
        rows = self._spool.rows(f"SELECT {column} FROM plan_change")  # noqa: S608  a name of this module
        return rows[0][0] if rows else None

    def _note(self, column: str, value: object) -> None:
        self._spool.change(lambda database, _: _write_note(database, column, value), recount=False)


def _window_of(head: bytes, changed: int) -> int:
    """The window of a packed delta, with which it is over.

    An unbound one, which may be weeks old, could be sent in any later window: it is over with the window ``changed``,
    in which the plan was last changed, or with that in which it was added if that is later.
    """
    window = read_header(head).window
    waiting = Unbound.read(window)
    return window if waiting is None else max(waiting.window, changed)


def _query(database: sqlite3.Connection) -> Query:
    return lambda query, *values: database.execute(query, values)


def _write_note(database: sqlite3.Connection, column: str, value: object) -> None:
    database.execute(_CHANGE_TABLE)
    database.execute("INSERT OR IGNORE INTO plan_change (only, told) VALUES (1, 0)")
    database.execute(f"UPDATE plan_change SET {column} = ?", (value,))  # noqa: S608  a name of this module


def _swap(database: sqlite3.Connection, id: bytes, bundle: bytes, signature: bytes | None) -> tuple[bytes, bool]:
    """Moves the rows of the current plan away and those of another back; the caller holds a transaction.

    Returns:
        The id of the plan that was current; and whether the spool had the other one before.
    """
    (data,) = database.execute("SELECT bytes FROM plan").fetchone()
    plan, previous = Plan.from_bytes(data), plan_id_of(data)
    limits = None if plan.privacy.mode == CENTRAL else plan.limits
    tables = tables_of(_query(database))
    signed = database.execute("SELECT bytes FROM plan_signature").fetchone() if "plan_signature" in tables else None
    database.execute(_PLANS_TABLE)
    database.execute(
        "INSERT INTO former_plans (id, bytes, signature, epsilon, delta, reports) VALUES (?, ?, ?, ?, ?, ?)",
        (
            previous,
            data,
            None if signed is None else signed[0],
            None if limits is None else real_text(limits.epsilon),
            None if limits is None else real_text(limits.delta),
            _own_reports(database) if plan.privacy.local is not None and plan.privacy.local.memoise else 0,
        ),
    )
    for table in _TABLES:
        if table in tables:
            _move(database, table, previous, id)
    if "counted_windows" in tables:
        # Each window once, unless older software, which does not know the table, had the plan in between.
        database.execute(
            "INSERT INTO contributions (window, records) SELECT window, records FROM counted_windows WHERE plan = ?"
            " ON CONFLICT (window) DO UPDATE SET records = records + excluded.records",
            (id,),
        )
        database.execute("DELETE FROM counted_windows WHERE plan = ?", (id,))
    database.execute("UPDATE plan SET bytes = ?", (bundle,))
    if signed is not None:
        database.execute("DELETE FROM plan_signature")
    if signature is not None:
        write_signature(database, signature)
    known = database.execute("SELECT reports FROM former_plans WHERE id = ?", (id,)).fetchone()
    database.execute("DELETE FROM former_plans WHERE id = ?", (id,))
    others = _reports(database) - (0 if known is None else known[0])
    _write_note(database, "other_reports", others)
    return previous, known is not None


def _reports(database: sqlite3.Connection) -> int:
    """Reports of all plans."""
    query = "SELECT coalesce(sum(count), 0) FROM tallies WHERE name = ?"
    return int(database.execute(query, (REPORTS,)).fetchone()[0])


def _own_reports(database: sqlite3.Connection) -> int:
    """Reports of the current plan, of which all are memoised, or none."""
    noted = database.execute(OTHER_REPORTS).fetchone() if "plan_change" in tables_of(_query(database)) else None
    return _reports(database) - (0 if noted is None else noted[0])


def _move(database: sqlite3.Connection, table: str, previous: bytes, id: bytes) -> None:
    # Its names are the spool's own. The table of earlier plans has the same columns, and the plan's id.
    columns = ", ".join(column for _, column, *_ in database.execute(f"PRAGMA table_info({table})"))
    for statement, values in (
        ("CREATE TABLE IF NOT EXISTS former_{table} AS SELECT x'' AS plan, {columns} FROM {table} LIMIT 0", ()),
        ("INSERT INTO former_{table} (plan, {columns}) SELECT ?, {columns} FROM {table}", (previous,)),
        ("DELETE FROM {table}", ()),
        ("INSERT INTO {table} ({columns}) SELECT {columns} FROM former_{table} WHERE plan = ?", (id,)),
        ("DELETE FROM former_{table} WHERE plan = ?", (id,)),
    ):
        database.execute(statement.format(table=table, columns=columns), values)


def _waiting(database: sqlite3.Connection) -> set[bytes]:
    """The ids of earlier plans of which something waits."""
    return _plans_with(database, _WAITING)


def _plans_with(database: sqlite3.Connection, conditions: Mapping[str, str]) -> set[bytes]:
    """The ids of earlier plans that have such a row in one of these tables."""
    tables = tables_of(_query(database))
    queries = [
        f"SELECT DISTINCT plan FROM former_{table} WHERE {condition}"  # noqa: S608  constants of this module
        for table, condition in conditions.items()
        if f"former_{table}" in tables
    ]
    return {plan_id for query in queries for (plan_id,) in database.execute(query)}


def _forget_empty_plans(database: sqlite3.Connection) -> None:
    """Forgets earlier plans of which nothing waits; where something stays, all but that, the id and the totals.

    A key registry is fetched again.
    """
    waiting, kept = _waiting(database), _plans_with(database, dict.fromkeys({*_TABLES} - {"directory"}, "1"))
    plans = {plan_id for (plan_id,) in database.execute("SELECT id FROM former_plans")}
    for plan_id in plans - waiting:
        if "former_directory" in tables_of(_query(database)):
            database.execute("DELETE FROM former_directory WHERE plan = ?", (plan_id,))
        if plan_id in kept:
            database.execute("UPDATE former_plans SET bytes = x'', signature = NULL WHERE id = ?", (plan_id,))
        else:
            database.execute("DELETE FROM former_plans WHERE id = ?", (plan_id,))


def _require_budget(database: sqlite3.Connection, plan: Plan, now_ms: int, *, is_known: bool) -> None:
    """Refuses a plan that the spends of earlier ones do not allow; the caller holds a transaction.

    Raises:
        PolicyError: They are of another unit or relation; or, of a plan that the spool has not had, no window of it can
            be paid for.
    """
    if plan.privacy.mode == CENTRAL:
        return
    budget = budget_in(_query(database), plan)
    spend = budget.spend_of(plan.window.index_at(now_ms))
    for spent in budget.account.spends:
        if (spent.unit, spent.relation) != (spend.unit, spend.relation):
            asked = f"unit {spend.unit!r} under {spend.relation}"
            allowed = f"unit {spent.unit!r} under {spent.relation}, in which this device has spent"
            raise PolicyError(NEW_PLAN, asked, allowed)
    if is_known:
        return  # what waits under it may be paid for already
    try:
        budget.account.charge(spend)
    except BudgetError as error:
        allowed = "plans that the account of this device, which all its plans share, can pay for"
        raise PolicyError(NEW_PLAN, f"a cost that it cannot ({error})", allowed) from error


def _erase(
    plan_id: bytes,
    oldest: int,
    changed: int,
    database: sqlite3.Connection,
    counts: Counter[str],
    *,
    is_bounded: bool,
) -> Counter[str]:
    """Erases what waits of windows before ``oldest``, notes it and counts it; the caller holds a transaction.

    ``changed`` is as of :func:`_window_of`. Where the plan bounds in how many windows a client has records
    (``is_bounded``), those windows stay known.

    Returns:
        The counts.
    """
    over = (plan_id, oldest)
    heads = database.execute(
        "SELECT rowid, substr(bytes, 1, ?) FROM former_deltas WHERE plan = ?", (HEADER_BYTES, plan_id)
    )
    deltas = [(row,) for row, head in heads.fetchall() if _window_of(head, changed) < oldest]
    database.executemany("DELETE FROM former_deltas WHERE rowid = ?", deltas)
    # What waited for a submission that was made is in it.
    ((records,),) = database.execute(
        "SELECT coalesce(sum(records), 0) FROM former_pending LEFT JOIN former_rounds USING (plan, window)"
        " WHERE plan = ? AND window < ? AND (upto IS NULL OR number > upto)",
        over,
    )
    database.execute("DELETE FROM former_pending WHERE plan = ? AND window < ?", over)
    query = f"UPDATE former_attempts SET state = {OVER} WHERE plan = ? AND window < ? AND {_TOOK_PART}"  # noqa: S608  constants of this module
    windows = database.execute(query, over).rowcount
    query = f"UPDATE former_rounds SET fate = ? WHERE plan = ? AND window < ? AND {_UNREPORTED}"  # noqa: S608  constants of this module
    unreported = database.execute(query, (Status.UNKNOWN.value, *over)).rowcount
    if is_bounded:
        database.execute(_COUNTED_TABLE)
        database.execute(
            "INSERT INTO counted_windows (plan, window, records) SELECT plan, window, records FROM former_contributions"  # noqa: S608  constants of this module
            f" WHERE plan = ? AND window < ? AND records > 0 AND {_UNPAID_BOUND}"
            " ON CONFLICT (plan, window) DO UPDATE SET records = records + excluded.records",
            over,
        )
    query = f"DELETE FROM former_contributions WHERE plan = ? AND window < ? AND {_UNPAID_BOUND}"  # noqa: S608  constants of this module
    database.execute(query, over)
    if deltas or records or windows or unreported:
        database.execute(_ERASED_TABLE)
        database.execute(
            "INSERT INTO erased_plans (plan, deltas, records, windows, unreported) VALUES (?, ?, ?, ?, ?)",
            (plan_id, len(deltas), records, windows, unreported),
        )
    _forget_empty_plans(database)
    counts[Status.UNKNOWN.value] += len(deltas)
    counts.update({RECORDS_UNSPENT: records, WINDOWS_UNSPENT: windows, SUBMISSIONS_LOST: unreported})
    return counts
