"""The spool's state of each window's submission: whether this client takes part, its pending records, what is spent.

A window is *spent* from the transaction on that charges it to this device's own budget, before a silo's sum or a masked
vector leaves. Nothing that is said later makes it unspent; what waited for it is never given out again, and a second
vector for it cannot be had from here (docs/explanation/secure-sums.md: when budget is spent).

An observer of a submission can measure how long a client takes for it. So nothing that this module does between
:meth:`WindowSubmissions.begin` and :meth:`WindowSubmissions.end` takes a time that depends on records: ``begin`` reads
the pending records before the service is called, and they are erased only after ``end``.
"""

import logging
import sqlite3
import threading
from collections import Counter
from dataclasses import dataclass
from functools import partial, reduce
from typing import ClassVar, Final

from edge_client.errors import NoPartError, SpoolError
from edge_client.spool.spool import Spool
from edge_client.spool.transaction import (
    OVER,
    TAKES_PART,
    UNPAID,
    BudgetTransaction,
    SecureTransaction,
    SiloTransaction,
    number_in,
    require_part,
    write_spend,
)
from edge_client.status import RECORDS_UNSPENT, WINDOWS_UNSPENT, submission_count_of
from hushsum.entropy import Entropy
from hushsum.errors import BudgetError
from hushsum.plan import Plan
from hushsum.privacy.accountant import Account
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum.privacy.events import Spend
from hushsum.signing import KEY_BYTES, SigningKey
from hushsum_proto.rounds import RoundResult

_LOG: Final = logging.getLogger("edge_client")
_UNSPENT: Final = (TAKES_PART, UNPAID)
_CLOSED: Final = "window NOT IN (SELECT window FROM attempts WHERE state = ?)"


@dataclass(frozen=True)
class WindowStatus:
    """This client's state in the windows of a moment.

    Attributes:
        open: Windows in which it takes part and has not submitted yet.
        unreported: Windows that are spent, with the round, and whose result is unknown.
        unpaid: Windows for which this device's account does not pay.
        passed: Windows in which this client took part, and that this update ended without a submission.
        lost: Windows that are spent, and for whose result this update ended the wait.
    """

    open: tuple[int, ...]
    unreported: tuple[tuple[int, bytes], ...]
    unpaid: tuple[int, ...] = ()
    passed: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()


@dataclass(frozen=True)
class PendingRecords:
    """The records that wait for a window's submission.

    Attributes:
        upto: The highest number in ``pending``, of any window.
        deltas: Packed, of this window.
    """

    upto: int
    deltas: tuple[bytes, ...]


class WindowSubmissions:
    """The submissions of a spool, which is taken to format 3. Methods block; they may be called from any thread.

    Raises:
        SpoolError: The spool cannot be written, or a spend in it cannot be read.
    """

    transaction: ClassVar[type[BudgetTransaction]]

    def __init__(self, spool: Spool, plan: Plan) -> None:
        self._spool = spool
        self._lock = threading.RLock()
        self._begun: dict[int, Spend | None] = {}  # windows under way, with what they may cost yet
        self._unerased = True  # as a kill may have left it
        self._passed: tuple[int, ...] = ()
        self._lost: tuple[int, ...] = ()
        self._budget = spool.keep_budget(plan, self.transaction)

    @property
    def account(self) -> Account:
        return self._budget.account

    def update(self, windows: range) -> WindowStatus:
        """Takes part in these windows from now on, in none before them any more, and returns their status.

        Pending records of a window that has passed unspent are erased; a round whose result is unknown by then is lost.
        """
        with self._lock:
            self._passed, self._lost = (), ()
            if self._has_changed(windows):
                self._unerased = True
                self._begun = {each: spend for each, spend in self._begun.items() if each in windows}
                self._spool.change(partial(self._move_to, windows), recount=not self._begun)
        within = (windows.start, windows.stop)
        still = (
            "SELECT window FROM attempts WHERE window >= ? AND window < ? AND state = ? AND count < ? ORDER BY window"
        )
        unpaid = "SELECT window FROM attempts WHERE window >= ? AND window < ? AND state = ? ORDER BY window"
        unreported = "SELECT window, round FROM rounds WHERE fate IS NULL ORDER BY window"
        return WindowStatus(
            tuple(window for (window,) in self._spool.rows(still, *within, TAKES_PART, ATTEMPTS_MAX)),
            tuple((window, round_id) for window, round_id in self._spool.rows(unreported)),
            tuple(window for (window,) in self._spool.rows(unpaid, *within, UNPAID)),
            self._passed,
            self._lost,
        )

    def begin(self, window: int) -> PendingRecords:
        """Marks the window's submission as begun, and returns the records that it submits.

        Called before the service is; :meth:`end` is called when the attempt is over, whatever its result.

        Raises:
            NoPartError: As by :meth:`require_part`.
        """
        with self._lock:
            if not self._begun:
                # Empties the write-ahead log: else the spend's commit may fold it, which takes a time that depends on
                # the records in it.
                self._unerased = True
                self._erase()
            self.require_part(window)
        return self.pending(window)

    def end(self, window: int) -> None:
        """Marks the submission as no longer under way: its records may be erased, and its cost is not held back."""
        self._begun.pop(window, None)

    def require_part(self, window: int) -> None:
        """Checks that spool and account allow a submission for this window; its cost is reserved until :meth:`end`.

        Raises:
            NoPartError: It is spent or over, no attempt is left, or this device's ledger has no budget for it beside
                the windows that are under way.
        """
        with self._lock:
            require_part(self._spool.rows, window, attempts=1)
            spend = self._budget.spend_of(window)
            begun = self._begun.copy()
            others = [begun[other] for other in begun if other != window]
            try:
                reduce(Account.charge, filter(None, [*others, spend]), self._budget.account)
            except BudgetError as error:
                raise NoPartError(window, str(error)) from error
            self._begun[window] = spend

    def pending(self, window: int) -> PendingRecords:
        """The records that wait for a window's submission now; none once it is spent."""
        if self.is_spent(window):
            return PendingRecords(0, ())
        upto = "SELECT coalesce(max(number), 0) FROM pending"
        ((highest,),) = self._spool.rows(upto)  # before the rest: what comes in between is left out, never miscounted
        query = "SELECT bytes FROM pending WHERE window = ? AND number <= ? AND records > 0 ORDER BY number"
        return PendingRecords(highest, tuple(data for (data,) in self._spool.rows(query, window, highest)))

    def erase(self) -> bool:
        """Erases the records of windows that are spent or over, from the file and from the log beside it.

        Returns:
            Whether nothing of them is left; otherwise a submission is under way or the disk refuses: try it again.
        """
        with self._lock:
            if self._unerased and not self._begun:
                self._erase()
            return not self._unerased

    def _erase(self) -> None:
        query = f"SELECT 1 FROM pending WHERE {_CLOSED} LIMIT 1"  # noqa: S608  the constant above alone
        try:
            if self._spool.rows(query, TAKES_PART):
                self._spool.change(_erase_closed)
        except SpoolError as error:
            _LOG.warning("erasure of closed windows failed, retrying: %s", error)
        else:
            self._unerased = not self._spool.erase_answered()

    def is_spent(self, window: int) -> bool:
        return bool(self._spool.rows("SELECT 1 FROM rounds WHERE window = ?", window))

    def _has_changed(self, windows: range) -> bool:
        ((known,),) = self._spool.rows(
            "SELECT count(*) FROM attempts WHERE window >= ? AND window < ?", windows.start, windows.stop
        )
        late = "SELECT 1 FROM attempts WHERE window < ? AND state IN (?, ?) LIMIT 1"
        return known != len(windows) or bool(self._spool.rows(late, windows.start, *_UNSPENT))

    def _move_to(self, windows: range, database: sqlite3.Connection, counts: Counter[str]) -> None:
        rows = [(window, TAKES_PART if self._pays(window) else UNPAID) for window in windows]
        database.executemany("INSERT OR IGNORE INTO attempts (window, count, state) VALUES (?, 0, ?)", rows)
        passed = "SELECT window FROM attempts WHERE window < ? AND state = ? ORDER BY window"
        self._passed = tuple(window for (window,) in database.execute(passed, (windows.start, TAKES_PART)))
        over = database.execute(
            "UPDATE attempts SET state = ? WHERE window < ? AND state IN (?, ?)", (OVER, windows.start, *_UNSPENT)
        )
        counts[WINDOWS_UNSPENT] += over.rowcount
        if not self._begun:
            _erase_closed(database, counts)

    def _pays(self, window: int) -> bool:
        try:
            self._budget.account.charge(self._budget.spend_of(window))
        except BudgetError:
            return False
        return True


def _erase_closed(database: sqlite3.Connection, counts: Counter[str]) -> None:
    """Erases pending records of windows that are spent or over, and counts those that were not submitted."""
    query = (
        "SELECT coalesce(sum(records), 0) FROM pending LEFT JOIN rounds USING (window)"  # noqa: S608  the constant above alone
        f" WHERE {_CLOSED} AND (upto IS NULL OR number > upto)"
    )
    ((records,),) = database.execute(query, (TAKES_PART,))
    counts[RECORDS_UNSPENT] += records
    database.execute(f"DELETE FROM pending WHERE {_CLOSED}", (TAKES_PART,))  # noqa: S608  the constant above alone


class SiloSubmissions(WindowSubmissions):
    """The submissions of a silo's spool, which :class:`~edge_client.spool.changes.Submit` stores and charges."""

    transaction = SiloTransaction

    def submitted(self, window: int) -> None:
        """The window is spent; its records may be erased (:meth:`erase`)."""
        with self._lock:
            self._begun.pop(window, None)
            self._unerased = True

    def numbers(self) -> dict[int, int]:
        """The window of each submission that has no answer yet, by the number of its delta."""
        rows = self._spool.rows("SELECT round, window FROM rounds WHERE fate IS NULL")
        return {number_in(name): window for name, window in rows}


class SecureSubmissions(WindowSubmissions):
    """The submissions of a spool whose plan has a secure sum: each is a masked vector, in one round."""

    transaction = SecureTransaction

    def identity_key(self, entropy: Entropy) -> SigningKey:
        """The key that the spool holds for this client, drawn at its first use."""
        seed = entropy.read(KEY_BYTES)
        query = "INSERT OR IGNORE INTO identity_key (only, seed) VALUES (1, ?)"
        self._spool.change(lambda database, _: database.execute(query, (seed,)))
        ((kept,),) = self._spool.rows("SELECT seed FROM identity_key")
        return SigningKey(kept)

    @property
    def directory(self) -> bytes | None:
        """The bytes of the directory of clients, once they were fetched. Versions before kept TOML."""
        return next((data for (data,) in self._spool.rows("SELECT bytes FROM directory")), None)

    def keep_directory(self, directory: bytes) -> None:
        """Keeps the canonical bytes of the directory, which the plan names by their digest."""
        query = "INSERT OR REPLACE INTO directory VALUES (1, ?)"
        self._spool.change(lambda database, _: database.execute(query, (directory,)))

    def count_attempt(self, window: int) -> int:
        """Counts one more round in which this client opens its contribution, durably; returns how many there were.

        Raises:
            NoPartError: There were as many as a window may have, or it is spent or over.
            SpoolError: The spool cannot be written; nothing was counted.
        """

        def count(database: sqlite3.Connection, _: Counter[str]) -> int:
            before = require_part(lambda query, *values: database.execute(query, values), window, attempts=1)
            database.execute("UPDATE attempts SET count = count + 1 WHERE window = ?", (window,))
            return before + 1

        return self._spool.change(count, recount=False)

    def spend(self, window: int, round_id: bytes, upto: int) -> None:
        """Spends a window, durably. To be called before the vector leaves; :meth:`erase` once it has.

        Args:
            window: Its index.
            round_id: Of the round that takes the vector, 32 bytes.
            upto: The highest number in ``pending`` that the vector includes; the rest came too late for it.

        Raises:
            NoPartError: The window is spent or over, or this device's ledger has no budget for it, whatever the service
                says. Nothing was changed.
            SpoolError: The spool cannot be written; nothing was changed, as far as it can be told.
        """
        with self._lock:
            spend = self._budget.spend_of(window)
            try:
                charged = self._budget.account.charge(spend)
            except BudgetError as error:
                raise NoPartError(window, str(error)) from error
            self._spool.change(partial(write_spend, window, round_id, spend.to_bytes(), upto), recount=False)
            self._budget.on_charged(charged, (window,))
            self._unerased = True
            if window in self._begun:
                self._begun[window] = None

    def settle(self, window: int, result: RoundResult) -> bool:
        """Keeps the result of a submission; returns whether it is the first, which alone counts."""
        return self._spool.change(partial(_write_result, window, result), recount=False)

    def _has_changed(self, windows: range) -> bool:
        unreported = "SELECT 1 FROM rounds WHERE window < ? AND fate IS NULL LIMIT 1"
        return super()._has_changed(windows) or bool(self._spool.rows(unreported, windows.start))

    def _move_to(self, windows: range, database: sqlite3.Connection, counts: Counter[str]) -> None:
        super()._move_to(windows, database, counts)
        # A silo's submissions stay: they are still sent, and answered.
        unreported = database.execute("SELECT window FROM rounds WHERE window < ? AND fate IS NULL", (windows.start,))
        self._lost = tuple(window for (window,) in unreported.fetchall())
        for window in self._lost:
            _write_result(window, RoundResult.UNKNOWN, database, counts)


def _write_result(window: int, result: RoundResult, database: sqlite3.Connection, counts: Counter[str]) -> bool:
    query = "UPDATE rounds SET fate = ? WHERE window = ? AND fate IS NULL"
    first = database.execute(query, (result.value, window)).rowcount == 1
    counts[submission_count_of(result)] += first
    return first
