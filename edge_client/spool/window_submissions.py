"""What a spool knows of a window's submission: whether this client takes part, what waits for it, and what is spent.

A window is *spent* from the transaction on that charges it to this device's own budget, before a silo's sum or a masked
vector leaves. No later word of anybody makes it unspent; what waited for it is never given out again, and a second
vector for it cannot be had from here (PRIVACY: secure sum; stability).

Whoever hears of a submission can measure how long a client takes for it. So what is done here between
:meth:`WindowSubmissions.enter` and :meth:`WindowSubmissions.leave` takes a time that no record changes: what waits is
read before, and erased after.
"""

import logging
import sqlite3
import threading
from collections import Counter
from dataclasses import dataclass
from functools import partial, reduce
from typing import Final

from edge_client.errors import NoPartError, SpoolError
from edge_client.spool.budget import DeviceBudget
from edge_client.spool.changes import OVER, TAKES_PART, UNPAID
from edge_client.spool.spool import Spool
from edge_client.spool.window_tables import (
    CLOSED_WAITS,
    bytes_of,
    count_attempt,
    draw_key,
    erase_closed,
    integer,
    require_part,
    write_fate,
    write_spend,
)
from edge_client.stats import WINDOWS_UNSPENT
from hushsum.entropy import Entropy
from hushsum.errors import BudgetError
from hushsum.plan import Plan
from hushsum.privacy.account import Account
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum.privacy.event import TUMBLING, Spend
from hushsum.privacy.spending import spend_of
from hushsum.signatures import KEY_BYTES, SigningKey
from hushsum_proto.rounds import RoundResult

_LOG: Final = logging.getLogger("edge_client")
_UNSPENT: Final = (TAKES_PART, UNPAID)


@dataclass(frozen=True)
class WindowStatus:
    """How this client stands to the windows of a moment.

    Attributes:
        open: Those in which it takes part and has not yet.
        unreported: Window and round of those that are spent, and of which nobody has said what became of them.
        unpaid: Those for which this device's account does not pay.
    """

    open: tuple[int, ...]
    unreported: tuple[tuple[int, bytes], ...]
    unpaid: tuple[int, ...] = ()


@dataclass(frozen=True)
class PendingRecords:
    """What waits for a window's turn.

    Attributes:
        upto: The highest number of anything that waits in the spool.
        deltas: Packed, of this window.
    """

    upto: int
    deltas: tuple[bytes, ...]


class WindowSubmissions:
    """The turns of a spool. Its methods block; they may be called from any thread.

    Args:
        spool: Of a plan with a secure sum, or of a silo; it is taken to format 3.
        plan: That plan.
        budget: What the spool knows of spends; None: they are read.

    Raises:
        SpoolError: The spool cannot be written, or what it holds of turns cannot be read.
    """

    def __init__(self, spool: Spool, plan: Plan, budget: DeviceBudget | None = None) -> None:
        self._spool = spool
        self._plan = plan
        self._lock = threading.Lock()
        self._entered: dict[int, Spend | None] = {}  # windows under way, with what they may cost yet
        self._unerased = True  # as a kill may have left it
        if budget is None:
            spool.keep_rounds()
            budget = spool.keep_books(plan)
        self._budget = budget

    @property
    def account(self) -> Account:
        """What this device has spent under its plan, and may still spend."""
        return self._budget.account

    def look(self, windows: range) -> WindowStatus:
        """Takes part in these windows from now on, and in none before them any more.

        What waits for a window that has passed unspent is erased; a submission of which nobody has told by then is
        lost.

        Args:
            windows: In which a client takes part that runs at this moment.
        """
        with self._lock:
            if self._is_news(windows):
                self._unerased = True
                self._entered = {each: spend for each, spend in self._entered.items() if each in windows}
                self._spool.change(partial(self._turn, windows), weigh=not self._entered)
        within = (windows.start, windows.stop, TAKES_PART, ATTEMPTS_MAX)
        still = (
            "SELECT window FROM attempts WHERE window >= ? AND window < ? AND state = ? AND count < ? ORDER BY window"
        )
        unpaid = "SELECT window FROM attempts WHERE window >= ? AND window < ? AND state = ? ORDER BY window"
        unreported = "SELECT window, round FROM rounds WHERE fate IS NULL ORDER BY window"
        return WindowStatus(
            tuple(integer(window) for (window,) in self._spool.rows(still, *within)),
            tuple((integer(window), bytes_of(round_id)) for window, round_id in self._spool.rows(unreported)),
            tuple(integer(window) for (window,) in self._spool.rows(unpaid, windows.start, windows.stop, UNPAID)),
        )

    def enter(self, window: int) -> PendingRecords:
        """What is submitted for the window. To be called before the service is; :meth:`leave` at the end.

        Raises:
            NoPartError: As by :meth:`require_part`.
        """
        with self._lock:
            if not self._entered:
                self._unerased = True  # so that the log is empty: a spend never has to fold in what was added
                self._erase()
            self._require_part(window)
        return self.pending(window)

    def leave(self, window: int) -> None:
        """Nobody waits for anything of this client in this window any more."""
        self._entered.pop(window, None)

    def require_part(self, window: int) -> None:
        """Checks that a turn of this window would not end for want of anything here.

        Raises:
            NoPartError: It is spent or over, no attempt is left, or this device's account does not pay for it beside
                the windows that are under way.
        """
        with self._lock:
            self._require_part(window)

    def _require_part(self, window: int) -> None:
        require_part(self._spool.rows, window, attempts=1)
        spend = spend_of(self._plan, kind=TUMBLING, window=window)
        entered = self._entered.copy()
        others = [entered[other] for other in entered if other != window]
        try:
            reduce(Account.charge, filter(None, [*others, spend]), self._budget.account)
        except BudgetError as error:
            raise NoPartError(window, str(error)) from error
        self._entered[window] = spend

    def pending(self, window: int) -> PendingRecords:
        """What waits for a window's turn now; nothing once it is spent."""
        if self.is_spent(window):
            return PendingRecords(0, ())
        upto = "SELECT coalesce(max(number), 0) FROM pending"
        ((highest,),) = self._spool.rows(upto)  # before the rest: what comes in between is left out, never miscounted
        query = "SELECT bytes FROM pending WHERE window = ? AND number <= ? AND records > 0 ORDER BY number"
        rows = self._spool.rows(query, window, highest)
        return PendingRecords(integer(highest), tuple(bytes_of(data) for (data,) in rows))

    def erase(self) -> bool:
        """Erases the records of windows that are spent or over, from the file and from the log beside it.

        Returns:
            Whether nothing of them is left; else a turn is under way or the disk refuses: it is to be tried again.
        """
        with self._lock:
            if self._unerased and not self._entered:
                self._erase()
            return not self._unerased

    def _erase(self) -> None:
        try:
            if self._spool.rows(*CLOSED_WAITS):
                self._spool.change(erase_closed)
        except SpoolError as error:
            _LOG.warning("records of windows that are closed cannot be erased, it is tried again: %s", error)
        else:
            self._unerased = not self._spool.erase_answered()

    def is_spent(self, window: int) -> bool:
        """Whether what this client submits for the window is on its way, or was."""
        return bool(self._spool.rows("SELECT 1 FROM rounds WHERE window = ?", window))

    def _is_news(self, windows: range) -> bool:
        ((known,),) = self._spool.rows(
            "SELECT count(*) FROM attempts WHERE window >= ? AND window < ?", windows.start, windows.stop
        )
        late = "SELECT 1 FROM attempts WHERE window < ? AND state IN (?, ?) LIMIT 1"
        return known != len(windows) or bool(self._spool.rows(late, windows.start, *_UNSPENT))

    def _turn(self, windows: range, database: sqlite3.Connection, counts: Counter[str]) -> None:
        rows = [(window, TAKES_PART if self._pays(window) else UNPAID) for window in windows]
        database.executemany("INSERT OR IGNORE INTO attempts (window, count, state) VALUES (?, 0, ?)", rows)
        over = database.execute(
            "UPDATE attempts SET state = ? WHERE window < ? AND state IN (?, ?)", (OVER, windows.start, *_UNSPENT)
        )
        counts[WINDOWS_UNSPENT] += over.rowcount
        if not self._entered:
            erase_closed(database, counts)
        self._give_up_before(windows.start, database, counts)

    def _give_up_before(self, window: int, database: sqlite3.Connection, counts: Counter[str]) -> None:
        """Submissions for windows before this one of which nobody has told: a silo's are still asked for, and sent."""

    def _pays(self, window: int) -> bool:
        try:
            self._budget.account.charge(spend_of(self._plan, kind=TUMBLING, window=window))
        except BudgetError:
            return False
        return True


class SecureSubmissions(WindowSubmissions):
    """The turns of a spool whose plan has a secure sum: a turn is a round."""

    def identity_key(self, entropy: Entropy) -> SigningKey:
        """The key that the spool holds for this client, drawn at its first use."""
        self._spool.change(partial(draw_key, entropy.read(KEY_BYTES)))
        ((seed,),) = self._spool.rows("SELECT seed FROM identity_key")
        return SigningKey(bytes_of(seed))

    @property
    def directory(self) -> bytes | None:
        """The bytes of the directory of clients, once they were fetched. Versions before kept TOML."""
        return next((bytes_of(data) for (data,) in self._spool.rows("SELECT bytes FROM directory")), None)

    def keep_directory(self, directory: bytes) -> None:
        """Keeps the canonical bytes of the directory, which the plan names by their digest."""
        self._spool.change(
            lambda database, _: database.execute("INSERT OR REPLACE INTO directory VALUES (1, ?)", (directory,))
        )

    def count_attempt(self, window: int) -> int:
        """Counts one more round in which this client opens its contribution, durably; returns how many there were.

        Raises:
            NoPartError: There were as many as a window may have, or it is spent or over.
            SpoolError: The spool cannot be written; nothing was counted.
        """
        return self._spool.change(partial(count_attempt, window), weigh=False)

    def spend(self, window: int, round_id: bytes, upto: int) -> None:
        """Spends a window, durably. To be called before the vector leaves; :meth:`erase` once it has.

        Args:
            window: Its index.
            round_id: 32 bytes: of the round that takes the vector.
            upto: What the vector holds of what waits; the rest came too late for it and is left out for ever.

        Raises:
            NoPartError: The window is spent or over, or this device's account does not pay for it, whatever the service
                says. Nothing was changed.
            SpoolError: The spool cannot be written; nothing was changed, as far as it can be told.
        """
        with self._lock:
            spend = spend_of(self._plan, kind=TUMBLING, window=window)
            try:
                charged = self._budget.account.charge(spend)
            except BudgetError as error:
                raise NoPartError(window, str(error)) from error
            self._spool.change(partial(write_spend, window, round_id, spend.to_bytes(), upto), weigh=False)
            self._budget.note(charged, (window,))
            self._unerased = True
            if window in self._entered:
                self._entered[window] = None

    def settle(self, window: int, result: RoundResult) -> bool:
        """Keeps what became of a submission; the first word stands.

        Returns:
            Whether this is it.
        """
        return self._spool.change(partial(write_fate, window, result), weigh=False)

    def _is_news(self, windows: range) -> bool:
        unreported = "SELECT 1 FROM rounds WHERE window < ? AND fate IS NULL LIMIT 1"
        return super()._is_news(windows) or bool(self._spool.rows(unreported, windows.start))

    def _give_up_before(self, window: int, database: sqlite3.Connection, counts: Counter[str]) -> None:
        unreported = database.execute("SELECT window FROM rounds WHERE window < ? AND fate IS NULL", (window,))
        for (each,) in unreported.fetchall():
            write_fate(each, RoundResult.UNKNOWN, database, counts)
