"""What a shuffler keeps: one file, of which nothing tells whose a report is, or in which batch it came.

A window's reports are one multiset, written anew as a whole with each group that is taken, so that its bytes and their
places are a function of the multiset. Ids of batches stand in a table of their own, by their random number. What one
commit changes in both would still join them in the write-ahead log, so that is emptied after each, and at each start.

A digest of a batch would be such a joint as well, since a batch of few reports is found by trying. It is keyed by a key
that is in memory alone; after a restart a known id is therefore known whatever its bytes are.
"""

import hashlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from aggregator.errors import StoreError, StoreUnavailableError
from aggregator.ports import Runtime
from aggregator.shuffler.departures import Departures
from aggregator.shuffler.pool import Int64, Pool
from aggregator.shuffler.values import Cut, KeptPlan, Outgoing, Taken
from aggregator.shuffler.windows import WindowState
from aggregator.sqlite import Database, DatabaseKind
from hushsum.entropy import KEY_BYTES, Entropy
from hushsum.errors import Reason

_DIGEST_BYTES: Final = 16
_DEPARTURES: Final = "shuffler.left"
_TABLES: Final = (
    (
        "CREATE TABLE plan (only INTEGER PRIMARY KEY CHECK (only = 1), bundle BLOB NOT NULL, key_id TEXT NOT NULL,"
        " suite INTEGER NOT NULL, signature BLOB NOT NULL)"
    ),
    "CREATE TABLE progress (only INTEGER PRIMARY KEY CHECK (only = 1), closed_through INTEGER NOT NULL)",
    "CREATE TABLE windows (window INTEGER PRIMARY KEY, state TEXT NOT NULL)",
    "CREATE TABLE pools (window INTEGER PRIMARY KEY, reports BLOB NOT NULL)",
    # Without row ids, which would count the batches in the order in which they came.
    "CREATE TABLE ids (stream BLOB PRIMARY KEY, window INTEGER NOT NULL, digest BLOB) WITHOUT ROWID",
    (
        "CREATE TABLE outgoing (stream BLOB PRIMARY KEY, window INTEGER NOT NULL, batch BLOB NOT NULL,"
        " tag BLOB NOT NULL) WITHOUT ROWID"
    ),
)
KIND: Final = DatabaseKind("shuffler", 0x48555353, 1, _TABLES, StoreError, unavailable=StoreUnavailableError)  # "HUSS"


class ReportsFile:
    """The shuffler's file, and the small one beside it. Made by :meth:`open`.

    Every method raises:
        StoreError: The file cannot be used, or not now (StoreUnavailableError).
    """

    def __init__(self, database: Database, departures: Departures, runtime: Runtime, digest_key: bytes) -> None:
        self._database = database
        self._departures = departures
        self._runtime = runtime
        self._digest_key = digest_key

    @classmethod
    async def open(cls, path: Path, runtime: Runtime, entropy: Entropy) -> "ReportsFile":
        """Opens the file, or makes it; what a crash left in its log is erased."""
        # First of all: once there are reports, that it is missing means that they were put back without it.
        departures = await runtime.blocking(lambda: Departures(path.with_name(_DEPARTURES), fresh=not path.exists()))
        database = Database(KIND, await runtime.blocking(KIND.open_writing, path), runtime)
        file = cls(database, departures, runtime, entropy.read(KEY_BYTES))
        # Under the key of an earlier process they can be compared with nothing.
        await database.write(lambda db: db.execute("UPDATE ids SET digest = NULL WHERE digest IS NOT NULL"))
        await file.tidy()
        return file

    async def close(self) -> None:
        """Closes it."""
        await self._database.close()

    async def tidy(self) -> None:
        """Empties the write-ahead log, which tells what was committed together."""
        await self._database.truncate()

    async def plan(self) -> KeptPlan | None:
        """The plan that it belongs to; None in a new file."""
        row = await self._database.read(
            lambda db: db.execute("SELECT bundle, key_id, suite, signature FROM plan").fetchone()
        )
        return None if row is None else KeptPlan(*row)

    async def keep_plan(self, plan: KeptPlan) -> None:
        """Makes the file this plan's for ever."""
        row = plan.bundle, plan.key_id, plan.suite, plan.signature
        await self._database.write(lambda db: db.execute("INSERT INTO plan VALUES (1, ?, ?, ?, ?)", row))

    async def take(self, batches: Sequence[Taken]) -> list[Cut | Reason]:
        """Adds batches to the pools of their windows; durable when it returns. What is known is not added again.

        Returns:
            For each what became of it; a reason: its id was used before, otherwise.
        """
        return await self._database.write(lambda db: self._take(db, batches))

    def _take(self, db: sqlite3.Connection, batches: Sequence[Taken]) -> list[Cut | Reason]:
        closed = _closed_through(db)
        told: dict[int, Cut | Reason] = {}
        new: dict[int, list[Int64]] = {}
        # In the order of their random numbers: a page of the table keeps its rows in the order in which they came.
        for place in sorted(range(len(batches)), key=lambda place: batches[place].stream):
            taken = batches[place]
            told[place] = found = self._known(db, taken, closed)
            if isinstance(found, Cut) and found.is_open and not found.known:
                row = taken.stream, taken.window, self._digest(taken.data)
                db.execute("INSERT INTO ids VALUES (?, ?, ?)", row)
                new.setdefault(taken.window, []).append(taken.reports)
        for window, reports in new.items():
            _pool_more(db, window, reports)
        return [told[place] for place in range(len(batches))]

    def _known(self, db: sqlite3.Connection, taken: Taken, closed: int | None) -> Cut | Reason:
        row = db.execute("SELECT window, digest FROM ids WHERE stream = ?", (taken.stream,)).fetchone()
        if row is not None and row[0] != taken.window:
            return Reason.ID_OF_ANOTHER_WINDOW
        if row is not None and row[1] not in {None, self._digest(taken.data)}:
            return Reason.ID_REUSED
        is_open = closed is None or taken.window > closed
        return Cut(is_open, row is not None, None if is_open else _state(db, taken.window))

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._digest_key, digest_size=_DIGEST_BYTES).digest()

    async def closed_through(self) -> int | None:
        """The newest window that was cut; None where none was."""
        return await self._database.read(_closed_through)

    async def close_through(self, window: int) -> None:
        """Takes nothing more for any window up to this one."""

        def close(db: sqlite3.Connection) -> None:
            closed = _closed_through(db)
            if closed is None or closed < window:
                db.execute("INSERT OR REPLACE INTO progress VALUES (1, ?)", (window,))

        await self._database.write(close)

    async def cut_pools(self) -> list[int]:
        """Windows that were cut, and whose reports are still one pool."""
        rows = await self._database.read(
            lambda db: db.execute(
                "SELECT window FROM pools WHERE window <= (SELECT closed_through FROM progress) ORDER BY window"
            ).fetchall()
        )
        return [window for (window,) in rows]

    async def pool(self, window: int) -> Pool:
        """The reports of a window that was cut."""
        data = await self._database.read(
            lambda db: db.execute("SELECT reports FROM pools WHERE window = ?", (window,)).fetchone()
        )
        return Pool.from_bytes(data[0])

    async def fix(self, window: int, batches: Sequence[Outgoing]) -> None:
        """Puts batches in the place of a window's pool: from here on these bytes are sent, and no others."""

        def fix(db: sqlite3.Connection) -> None:
            for each in sorted(batches, key=lambda each: each.stream):
                db.execute("INSERT INTO outgoing VALUES (?, ?, ?, ?)", (each.stream, window, each.batch, each.tag))
            db.execute("DELETE FROM pools WHERE window = ?", (window,))
            _put_state(db, window, WindowState.FORWARDING)

        await self._database.write(fix)
        await self.tidy()

    async def drop(self, window: int) -> None:
        """Erases the reports of a window, and which batches they came in."""

        def drop(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM pools WHERE window = ?", (window,))
            db.execute("DELETE FROM ids WHERE window = ?", (window,))
            _put_state(db, window, WindowState.DROPPED)

        await self._database.write(drop)
        await self.tidy()

    @property
    def departed(self) -> int | None:
        """The newest window of which something may have left; None: nothing has."""
        return self._departures.through

    @property
    def knows_departed(self) -> bool:
        """Whether that is so; it is not where this file was put back alone."""
        return self._departures.known

    async def depart(self, window: int) -> None:
        """Notes that something of the windows up to this one may leave: to be called before it does."""
        await self._runtime.blocking(self._departures.reach, window)

    async def outgoing(self) -> list[tuple[int, bytes]]:
        """The window and the stream of each batch without an answer, the oldest windows first."""
        return await self._database.read(
            lambda db: db.execute("SELECT window, stream FROM outgoing ORDER BY window, stream").fetchall()
        )

    async def batch(self, stream: bytes) -> Outgoing:
        """One batch without an answer."""
        row = await self._database.read(
            lambda db: db.execute(
                "SELECT window, stream, batch, tag FROM outgoing WHERE stream = ?", (stream,)
            ).fetchone()
        )
        return Outgoing(*row)

    async def answered(self, window: int, stream: bytes, *, lost: bool) -> WindowState:
        """A batch has its answer, and is erased; what the window has come to by that."""

        def answered(db: sqlite3.Connection) -> WindowState:
            db.execute("DELETE FROM outgoing WHERE stream = ?", (stream,))
            left = db.execute("SELECT count(*) FROM outgoing WHERE window = ?", (window,)).fetchone()[0]
            state = WindowState.LOST if lost else _state(db, window)
            if not left and state is WindowState.FORWARDING:
                state = WindowState.FORWARDED
            assert state is not None, "a window with a batch that is forwarded"
            _put_state(db, window, state)
            return state

        state = await self._database.write(answered)
        await self.tidy()
        return state

    async def finished(self) -> list[tuple[int, WindowState]]:
        """Windows of which nothing is to be sent any more and something is still known, and what became of them."""
        rows = await self._database.read(
            lambda db: db.execute(
                "SELECT window, state FROM windows WHERE window NOT IN (SELECT window FROM outgoing) ORDER BY window"
            ).fetchall()
        )
        return [(window, WindowState(state)) for window, state in rows]

    async def erase(self, window: int) -> None:
        """Erases all that is known of a window but that it is over."""

        def erase(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM ids WHERE window = ?", (window,))
            db.execute("DELETE FROM windows WHERE window = ?", (window,))

        await self._database.write(erase)
        await self.tidy()


def _closed_through(db: sqlite3.Connection) -> int | None:
    row = db.execute("SELECT closed_through FROM progress").fetchone()
    return None if row is None else int(row[0])


def _state(db: sqlite3.Connection, window: int) -> WindowState | None:
    row = db.execute("SELECT state FROM windows WHERE window = ?", (window,)).fetchone()
    return None if row is None else WindowState(row[0])


def _put_state(db: sqlite3.Connection, window: int, state: WindowState) -> None:
    db.execute("INSERT OR REPLACE INTO windows VALUES (?, ?)", (window, state.value))


def _pool_more(db: sqlite3.Connection, window: int, reports: Sequence[Int64]) -> None:
    pool = Pool.of(np.concatenate(reports))
    row = db.execute("SELECT reports FROM pools WHERE window = ?", (window,)).fetchone()
    if row is not None:
        pool = Pool.from_bytes(row[0]).plus(pool)
    db.execute("INSERT OR REPLACE INTO pools VALUES (?, ?)", (window, pool.to_bytes()))
