"""What a spool knows of secure sums: in which windows this client takes part, what waits for them, and what is spent.

A window is *spent* from the transaction on that :meth:`Rounds.spend` makes, before the masked vector leaves: it holds
the spend, charged to this device's own account, and the window's records are gone with it. No later word of anybody
makes the window unspent, and a second vector for it cannot be had from here (PRIVACY: secure sum).
"""

import sqlite3
import threading
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Final

from edge_client.draft import OVER, SPENT, TAKES_PART, UNPAID
from edge_client.errors import NoPartError, SpoolError
from edge_client.spool import Spool
from edge_client.tallies import (
    RECORDS_UNSPENT,
    SUBMISSIONS_COUNTED,
    SUBMISSIONS_LOST,
    SUBMISSIONS_SPENT,
    WINDOWS_UNSPENT,
)
from hushsum.entropy import Entropy
from hushsum.errors import BudgetError, HushsumError
from hushsum.plan import Plan
from hushsum.privacy.account import Account
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum.privacy.event import TUMBLING, Spend
from hushsum.releases import spend_of
from hushsum.signatures import KEY_BYTES, SigningKey
from hushsum_proto.rounds import Fate

_UNSPENT: Final = (TAKES_PART, UNPAID)


@dataclass(frozen=True)
class Look:
    """How this client stands to the windows of a moment.

    Attributes:
        open: Those in which it takes part and has not yet.
        untold: Window and round of those that are spent, and of which nobody has said what became of them.
    """

    open: tuple[int, ...]
    untold: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True)
class Pending:
    """What waits for a window's round.

    Attributes:
        upto: The highest number of anything that waits in the spool.
        deltas: Packed, of this window.
    """

    upto: int
    deltas: tuple[bytes, ...]


class Rounds:
    """The rounds of a spool. Its methods block; they may be called from any thread.

    Args:
        spool: Of a plan with a secure sum; it is taken to format 2.
        plan: That plan.

    Raises:
        SpoolError: The spool cannot be written, or what it holds of rounds cannot be read.
    """

    def __init__(self, spool: Spool, plan: Plan) -> None:
        self._spool = spool
        self._plan = plan
        self._lock = threading.Lock()
        spool.keep_rounds()
        rows = spool.rows("SELECT spend FROM rounds ORDER BY rowid")
        try:
            spends = [Spend.from_bytes(_bytes(data)) for (data,) in rows]
        except HushsumError as error:
            raise SpoolError(f"spool: a spend in it cannot be read: {error}") from error
        # What was spent is counted, whatever the limits say now: the account refuses what is new alone.
        self._account = Account(plan.limits).recorded(*spends)

    @property
    def account(self) -> Account:
        """What this device has spent under its plan, and may still spend."""
        return self._account

    def identity_key(self, entropy: Entropy) -> SigningKey:
        """The key that the spool holds for this client, drawn at its first use."""
        self._spool.change(partial(_draw_key, entropy.read(KEY_BYTES)))
        ((seed,),) = self._spool.rows("SELECT seed FROM identity_key")
        return SigningKey(_bytes(seed))

    @property
    def directory(self) -> bytes | None:
        """The directory of clients in TOML, once it was fetched."""
        return next((_bytes(data) for (data,) in self._spool.rows("SELECT bytes FROM directory")), None)

    def keep_directory(self, directory: bytes) -> None:
        """Keeps the directory, once and for ever: the plan names it by its digest."""
        self._spool.change(lambda database, _: database.execute("INSERT INTO directory VALUES (1, ?)", (directory,)))

    def look(self, windows: range) -> Look:
        """Takes part in these windows from now on, and in none before them any more.

        What waits for a window that has passed unspent is erased; a submission of which nobody has told by then is
        lost.

        Args:
            windows: In which a client takes part that runs at this moment.
        """
        with self._lock:
            if self._is_news(windows):
                self._spool.change(partial(self._turn, windows))
        within = (windows.start, windows.stop, TAKES_PART, ATTEMPTS_MAX)
        still = (
            "SELECT window FROM attempts WHERE window >= ? AND window < ? AND state = ? AND count < ? ORDER BY window"
        )
        untold = "SELECT window, round FROM rounds WHERE fate IS NULL ORDER BY window"
        return Look(
            tuple(_integer(window) for (window,) in self._spool.rows(still, *within)),
            tuple((_integer(window), _bytes(round_id)) for window, round_id in self._spool.rows(untold)),
        )

    def count_attempt(self, window: int) -> int:
        """Counts one more round in which this client opens its contribution, durably; returns how many there were.

        Raises:
            NoPartError: There were as many as a window may have, or it is spent or over.
            SpoolError: The spool cannot be written; nothing was counted.
        """
        return self._spool.change(partial(_count_attempt, window))

    def pending(self, window: int) -> Pending:
        """What waits for a window's round now."""
        upto = "SELECT coalesce(max(number), 0) FROM pending"
        ((highest,),) = self._spool.rows(upto)  # before the rest: what comes in between is left out, never miscounted
        query = "SELECT bytes FROM pending WHERE window = ? AND number <= ? ORDER BY number"
        rows = self._spool.rows(query, window, highest)
        return Pending(_integer(highest), tuple(_bytes(data) for (data,) in rows))

    def spend(self, window: int, round_id: bytes, upto: int) -> None:
        """Spends a window, durably, and erases what waits for it. To be called before the vector leaves.

        Args:
            window: Its index.
            round_id: 32 bytes: of the round that takes the vector.
            upto: What the vector holds of what waits; the rest came too late for it and is left out.

        Raises:
            NoPartError: The window is spent or over, or this device's account does not pay for it, whatever the service
                says. Nothing was changed.
            SpoolError: The spool cannot be written; nothing was changed, as far as it can be told.
        """
        with self._lock:
            spend = spend_of(self._plan, kind=TUMBLING, window=window)
            try:
                charged = self._account.charge(spend)
            except BudgetError as error:
                raise NoPartError(window, str(error)) from error
            self._spool.change(partial(_spend, window, round_id, spend.to_bytes(), upto))
            self._account = charged

    def settle(self, window: int, fate: Fate) -> bool:
        """Keeps what became of a submission; the first word stands.

        Returns:
            Whether this is it.
        """
        return self._spool.change(partial(_settle, window, fate))

    def erase(self) -> bool:
        """Erases what a spend has deleted from the log beside the file, too; False where the disk refuses for now."""
        return self._spool.erase_answered()

    def is_spent(self, window: int) -> bool:
        """Whether this window's vector is on its way, or was."""
        return bool(self._spool.rows("SELECT 1 FROM rounds WHERE window = ?", window))

    def _is_news(self, windows: range) -> bool:
        ((known,),) = self._spool.rows(
            "SELECT count(*) FROM attempts WHERE window >= ? AND window < ?", windows.start, windows.stop
        )
        late = "SELECT 1 FROM attempts WHERE window < ? AND state IN (?, ?) LIMIT 1"
        untold = "SELECT 1 FROM rounds WHERE window < ? AND fate IS NULL LIMIT 1"
        rows = self._spool.rows(late, windows.start, *_UNSPENT) or self._spool.rows(untold, windows.start)
        return known != len(windows) or bool(rows)

    def _turn(self, windows: range, database: sqlite3.Connection, counts: Counter[str]) -> None:
        rows = [(window, TAKES_PART if self._pays(window) else UNPAID) for window in windows]
        database.executemany("INSERT OR IGNORE INTO attempts (window, count, state) VALUES (?, 0, ?)", rows)
        over = database.execute(
            "UPDATE attempts SET state = ? WHERE window < ? AND state IN (?, ?)", (OVER, windows.start, *_UNSPENT)
        )
        counts[WINDOWS_UNSPENT] += over.rowcount
        counts[RECORDS_UNSPENT] += _erase(database, "window < ?", windows.start)
        untold = database.execute("SELECT window FROM rounds WHERE window < ? AND fate IS NULL", (windows.start,))
        for (window,) in untold.fetchall():
            _settle(window, Fate.UNKNOWN, database, counts)

    def _pays(self, window: int) -> bool:
        try:
            self._account.charge(spend_of(self._plan, kind=TUMBLING, window=window))
        except BudgetError:
            return False
        return True


def _count_attempt(window: int, database: sqlite3.Connection, _: Counter[str]) -> int:
    _require_part(database, window)
    ((count,),) = database.execute("SELECT count FROM attempts WHERE window = ?", (window,))
    if count >= ATTEMPTS_MAX:
        raise NoPartError(window, f"{count} rounds of it have failed, and no window may have more")
    database.execute("UPDATE attempts SET count = count + 1 WHERE window = ?", (window,))
    return int(count) + 1


def _spend(
    window: int, round_id: bytes, spend: bytes, upto: int, database: sqlite3.Connection, counts: Counter[str]
) -> None:
    _require_part(database, window)
    database.execute(
        "INSERT INTO rounds (window, round, fate, spend) VALUES (?, ?, NULL, ?)", (window, round_id, spend)
    )
    database.execute("UPDATE attempts SET state = ? WHERE window = ?", (SPENT, window))
    counts[SUBMISSIONS_SPENT] += 1
    counts[RECORDS_UNSPENT] += _erase(database, "window = ? AND number > ?", window, upto)
    _erase(database, "window = ?", window)


def _settle(window: int, fate: Fate, database: sqlite3.Connection, counts: Counter[str]) -> bool:
    query = "UPDATE rounds SET fate = ? WHERE window = ? AND fate IS NULL"
    first = database.execute(query, (fate.value, window)).rowcount == 1
    counts[SUBMISSIONS_COUNTED if fate is Fate.COUNTED else SUBMISSIONS_LOST] += first
    return first


def _require_part(database: sqlite3.Connection, window: int) -> None:
    row = database.execute("SELECT state FROM attempts WHERE window = ?", (window,)).fetchone()
    why = {
        SPENT: "it is spent: its vector was sent, or was about to be",
        OVER: "it is over",
        UNPAID: "this device's account does not pay for it",
    }
    state = 0 if row is None else int(row[0])
    if database.execute("SELECT 1 FROM rounds WHERE window = ?", (window,)).fetchone():
        state = SPENT
    if state != TAKES_PART:
        raise NoPartError(window, why.get(state, "this client did not run in it"))


def _draw_key(seed: bytes, database: sqlite3.Connection, _: Counter[str]) -> None:
    database.execute("INSERT OR IGNORE INTO identity_key (only, seed) VALUES (1, ?)", (seed,))


def _erase(database: sqlite3.Connection, which: str, *values: int) -> int:
    """Erases what waits, and returns how many records it had."""
    query = f"SELECT coalesce(sum(records), 0) FROM pending WHERE {which}"  # noqa: S608  the conditions above alone
    ((records,),) = database.execute(query, values)
    database.execute(f"DELETE FROM pending WHERE {which}", values)  # noqa: S608  the same ones
    return int(records)


def _integer(value: object) -> int:
    assert isinstance(value, int)
    return value


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value
