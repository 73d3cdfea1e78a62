"""The spool: an SQLite file in which every delta is bound to its id before it is sent, and kept until it is answered.

What a commit returned survives power loss (WAL with ``synchronous=FULL``, read back before each transaction). One
client at a time has the file, under a lock that the operating system takes back when the process ends, however it ends.
A copy of the file must never be used beside it, or after it: it would give the same ids to other bytes.
"""

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from edge_client.errors import SettingsError, SpoolError, SpoolInUseError
from edge_client.spool import memoization
from edge_client.spool.changes import Change, Result, StoredDelta
from edge_client.spool.transaction import (
    ROOM,
    BudgetTransaction,
    DeviceBudget,
    SpoolState,
    SpoolTransaction,
    budget_in,
    tables_of,
    write_counts,
)
from edge_client.status import REPORTS
from hushsum.delta import read_header
from hushsum.entropy import Entropy
from hushsum.plan import Plan
from hushsum_proto.client_ids import CLIENT_ID_FORM, flaw_of

SPOOL_FORMAT: Final = 4  # the newest that this version reads
PLAN_HISTORY_FORMAT: Final = 4  # once a spool's plan has changed (edge_client.spool.plan_history)
_BUDGET_FORMAT: Final = 3
_WITHOUT_ROUNDS: Final = 1  # until the spool belongs to a plan whose device has a budget
_APPLICATION_ID: Final = 0x48555348  # "HUSH"
_FULL: Final = 2  # SQLite's number for synchronous=FULL
_LOCKED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

# What a flash card wears by: a record and its answer change five pages, however small they are. A file that is there
# already keeps its page size.
_PAGE_BYTES: Final = 512
_LOG_BYTES: Final = 2**22  # the log is folded into the file at this size; SQLite counts it in pages
# EXCLUSIVE before the first access: the lock is then kept until the file is closed or the process is gone.
_PRAGMAS: Final = (
    f"page_size = {_PAGE_BYTES}",
    "locking_mode = EXCLUSIVE",
    "journal_mode = WAL",
    "synchronous = FULL",
    "fullfsync = ON",  # macOS: fsync alone does not reach the disk there
    "checkpoint_fullfsync = ON",
    "secure_delete = ON",
    "cache_size = -256",  # KiB: a fleet in one process has hundreds of these, and each delta is read once at most
)
# The tables that every change writes come first: their pages share one block of 4 KiB, and are written with it.
TABLES: Final = (
    "CREATE TABLE next (only INTEGER PRIMARY KEY CHECK (only = 1), sequence INTEGER NOT NULL)",
    "CREATE TABLE deltas (sequence INTEGER PRIMARY KEY, bytes BLOB NOT NULL, room INTEGER)",
    "CREATE TABLE tallies (name TEXT PRIMARY KEY, count INTEGER NOT NULL)",
    "CREATE TABLE contributions (window INTEGER PRIMARY KEY, records INTEGER NOT NULL)",
    "CREATE TABLE identity (only INTEGER PRIMARY KEY CHECK (only = 1), stream BLOB NOT NULL, client_id TEXT NOT NULL)",
    "CREATE TABLE plan (only INTEGER PRIMARY KEY CHECK (only = 1), bytes BLOB NOT NULL)",
)

_ROOM_COLUMN: Final = "ALTER TABLE {table} ADD COLUMN room INTEGER"
# What format 2 adds, for plans whose device has a budget (secure and local), which no software of format 1 can read.
# A silo's submissions are rows of rounds, too, under the number of their delta; so are windows of reports, under no
# name.
_ROUND_TABLES: Final = (
    # AUTOINCREMENT: no number is given twice, which tells records that came after a round's vector was summed.
    (
        "CREATE TABLE pending (number INTEGER PRIMARY KEY AUTOINCREMENT, window INTEGER NOT NULL,"
        " records INTEGER NOT NULL, bytes BLOB NOT NULL, room INTEGER)"
    ),
    "CREATE INDEX pending_by_window ON pending (window)",
    (
        "CREATE TABLE rounds (window INTEGER PRIMARY KEY, round BLOB NOT NULL, fate TEXT, spend BLOB NOT NULL,"
        " upto INTEGER NOT NULL)"
    ),
    "CREATE TABLE attempts (window INTEGER PRIMARY KEY, count INTEGER NOT NULL, state INTEGER NOT NULL)",
    "CREATE TABLE identity_key (only INTEGER PRIMARY KEY CHECK (only = 1), seed BLOB NOT NULL)",
    "CREATE TABLE directory (only INTEGER PRIMARY KEY CHECK (only = 1), bytes BLOB NOT NULL)",
)
# Made when a plan comes with a signature.
_SIGNATURE_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS plan_signature (only INTEGER PRIMARY KEY CHECK (only = 1), bytes BLOB NOT NULL)"
)


def _open_locked(path: Path) -> sqlite3.Connection:
    """A connection that holds the file alone and whose commits are durable."""
    try:
        # Readable by its owner alone: until they are added up, deltas tell what is in the records.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise SpoolError(f"spool {path}: cannot be opened: {error}") from error
    try:
        for pragma in _PRAGMAS:
            database.execute(f"PRAGMA {pragma}")
        (page_bytes,) = database.execute("PRAGMA page_size").fetchone()
        database.execute(f"PRAGMA wal_autocheckpoint = {_LOG_BYTES // page_bytes}")
        require_durable(database, path)
        _check_format(database, path)
        return database
    except sqlite3.Error as error:
        database.close()
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _LOCKED:  # the primary code of an extended one
            raise SpoolInUseError(f"spool {path}: in use by another process or client; each needs its own") from error
        raise SpoolError(f"spool {path}: {error}") from error
    except BaseException:
        database.close()
        raise


def require_durable(database: sqlite3.Connection, path: Path) -> None:
    """Reads back the settings on which the durability of a commit, and the erasure of deleted rows, depend."""
    expected = {
        "journal_mode": "wal",
        "synchronous": _FULL,
        "secure_delete": 1,
        "fullfsync": 1,
        "checkpoint_fullfsync": 1,
    }
    for name, value in expected.items():
        came = database.execute(f"PRAGMA {name}").fetchone()[0]
        if came != value:
            raise SpoolError(f"spool {path}: {name} is {came!r}, expected {value!r}: nothing is written")


def _identify(database: sqlite3.Connection, client_id: str | None, entropy: Entropy) -> tuple[int, str, int]:
    """(stream, client id, next sequence number) of the file, drawn at its first use; the caller holds a transaction."""
    if client_id is not None and (flaw := flaw_of(client_id)):
        raise SettingsError(f"client_id: got {client_id!r:.60}: {flaw}; expected {CLIENT_ID_FORM}")
    row = database.execute("SELECT stream, client_id, sequence FROM identity JOIN next USING (only)").fetchone()
    if row is None:
        row = (entropy.read(8), client_id or f"device-{entropy.read(16).hex()}", 0)
        database.execute("INSERT INTO identity (only, stream, client_id) VALUES (1, ?, ?)", row[:2])
        database.execute("INSERT INTO next (only, sequence) VALUES (1, ?)", row[2:])
    stream, owner, next_sequence = row
    is_bound = database.execute("SELECT 1 FROM plan").fetchone() is not None  # to the client that the service knows
    if client_id not in (None, owner) and not is_bound:
        database.execute("UPDATE identity SET client_id = ?", (client_id,))
        owner = client_id
    if client_id not in (None, owner):
        # A delta that was sent under one id and is sent again under another would count twice.
        raise SpoolError(f"spool: belongs to client {owner!r}, got client_id={client_id!r}; each client needs its own")
    return int.from_bytes(stream, "big"), str(owner), int(next_sequence)


def upgrade(database: sqlite3.Connection, version: int) -> None:
    """Takes a spool to a format of at least 3, where it is not there yet; the caller holds a transaction.

    Format 3 may hold rows of ``pending`` without records, for unusable ones, whose bytes older software would read.
    Format 4 has the same tables, and others of earlier plans, whose spends older software would not count.
    """
    before = database.execute("PRAGMA user_version").fetchone()[0]
    if before >= version:
        return
    if before < _BUDGET_FORMAT:
        for statement in _ROUND_TABLES if before == _WITHOUT_ROUNDS else (_ROOM_COLUMN.format(table="pending"),):
            database.execute(statement)
    database.execute(f"PRAGMA user_version = {version}")


def write_signature(database: sqlite3.Connection, signature: bytes) -> None:
    """Writes the signature of the spool's plan; the caller holds a transaction."""
    database.execute(_SIGNATURE_TABLE)
    database.execute("INSERT OR REPLACE INTO plan_signature (only, bytes) VALUES (1, ?)", (signature,))


def _check_format(database: sqlite3.Connection, path: Path) -> None:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    application = database.execute("PRAGMA application_id").fetchone()[0]
    tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not (version or application or tables):
        database.execute("BEGIN EXCLUSIVE")
        for table in TABLES:
            database.execute(table)
        database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {_WITHOUT_ROUNDS}")
        database.execute("COMMIT")
        return
    if application != _APPLICATION_ID:
        raise SpoolError(f"spool {path}: not a spool file")
    if version > SPOOL_FORMAT:
        known = f"this version knows up to {SPOOL_FORMAT}"
        raise SpoolError(f"spool {path}: it has format {version}, {known}: update this software")
    if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'presences'").fetchone():
        raise SpoolError(
            f"spool {path}: belongs to a plan with participation 'public', which was removed: its deltas can no longer "
            "be sent. Collect under a new plan with a new spool; this spool was not changed"
        )
    # A lock for good also where nothing is written: EXCLUSIVE keeps whatever lock was taken once.
    database.execute("BEGIN EXCLUSIVE")
    if "room" not in [column[1] for column in database.execute("PRAGMA table_info(deltas)")]:
        database.execute(_ROOM_COLUMN.format(table="deltas"))  # which older software leaves alone
    database.execute("COMMIT")


T = TypeVar("T")
#: Of the reports that are counted, those of other plans than the current one.
OTHER_REPORTS: Final = "SELECT other_reports FROM plan_change"
HEADER_BYTES: Final = 64  # no delta's header is longer
_WINDOWS: Final = "SELECT count(*) FROM contributions WHERE records > 0"
_RESERVED: Final = f"SELECT coalesce(sum({ROOM}), 0) FROM {{table}}"  # noqa: S608  the constant ROOM alone


class Spool:
    """An open spool. Its methods block; they may be called from any thread.

    Args:
        path: The file; it is made at its first use.
        client_id: The client that owns the file. None: the one that the file names; at its first use, a random one.
        entropy: Of the stream number and of a random client id.
        bytes_max: Bytes that may be set aside for what is unanswered (:class:`edge_client.spool.changes.Add`).

    Raises:
        SpoolInUseError: Another process or client has it open.
        SpoolError: It is damaged, newer, no spool, or belongs to another client.
        SettingsError: A client id that no service accepts.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, client_id: str | None, entropy: Entropy, bytes_max: int
    ) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._transaction_of: Callable[[sqlite3.Connection, SpoolState], SpoolTransaction] = SpoolTransaction
        self._database = _open_locked(self._path)
        try:
            with self._using(), self._transaction():
                stream, self.client_id, next_sequence = _identify(self._database, client_id, entropy)
                reserved, held = self._reserved()
                self._tallies = Counter(dict(self._database.execute("SELECT name, count FROM tallies")))
                windows = self._number(_WINDOWS)
        except BaseException:
            self._database.close()
            raise
        self._state = SpoolState(stream, next_sequence, reserved, bytes_max, held=held, windows=windows)

    @property
    def stream(self) -> int:
        """The stream number of all its deltas, 0 to 2⁶⁴ − 1, drawn once."""
        return self._state.stream

    @property
    def tallies(self) -> Mapping[str, int]:
        """Counts by name over the spool's whole life; a new mapping after each change."""
        return self._tallies

    @property
    def plan(self) -> bytes | None:
        """The canonical bytes of the plan that the spool belongs to."""
        return next((data for (data,) in self.rows("SELECT bytes FROM plan")), None)

    @property
    def signature(self) -> bytes | None:
        """The signature that the plan came with; None where it had none."""
        if "plan_signature" not in tables_of(self.rows):
            return None
        return next((data for (data,) in self.rows("SELECT bytes FROM plan_signature")), None)

    @property
    def windows(self) -> int:
        """The number of windows that have records of this client, where the plan bounds the records of one."""
        return self._state.windows

    @property
    def is_empty(self) -> bool:
        """Whether every delta has its answer."""
        return self._state.bytes == 0

    def keep_plan(self, plan: bytes, signature: bytes | None = None, client_id: str = "") -> None:
        """Binds the spool to a plan, once and for ever, to the signature that it came with, and to a client.

        Args:
            plan: Its bundle.
            signature: Of the plan.
            client_id: Who this is to the service; empty: the name that the spool has.
        """
        with self._using(), self._transaction():
            self._database.execute("INSERT INTO plan (only, bytes) VALUES (1, ?)", (plan,))
            if client_id:
                self._database.execute("UPDATE identity SET client_id = ?", (client_id,))
            if signature is not None:
                write_signature(self._database, signature)
        self.client_id = client_id or self.client_id

    def keep_signature(self, signature: bytes) -> None:
        """Keeps a signature of the plan that the spool is bound to, in place of an older one."""
        with self._using(), self._transaction():
            write_signature(self._database, signature)

    def keep_budget(self, plan: Plan, kind: type[BudgetTransaction]) -> DeviceBudget:
        """What this device has spent, which its transactions of this kind charge from now on.

        Takes the file to format 3 at least, and counts what waits in it. To be called before the first commit.

        Raises:
            SpoolError: A spend cannot be read.
        """
        self.change(lambda database, _: upgrade(database, _BUDGET_FORMAT))
        budget = budget_in(self.rows, plan)
        self._transaction_of = partial(kind, budget=budget)
        return budget

    def keep_memo(self, entropy: Entropy) -> bytes:
        """For a plan that memoises: the secret that the keys of reports are made with. Before the first commit, too."""
        drawn = entropy.read(memoization.KEY_BYTES)
        with self._using(), self._transaction():
            for table in memoization.TABLES:
                self._database.execute(table)
            self._database.execute("INSERT OR IGNORE INTO memo_key (only, secret) VALUES (1, ?)", (drawn,))
            (secret,) = self._database.execute("SELECT secret FROM memo_key").fetchone()
        # Each report as if its record had been a new one: how many were is the records' to say.
        others = self.rows(OTHER_REPORTS) if "plan_change" in tables_of(self.rows) else []
        self._state.memo = memoization.REPORT_BYTES * (self._tallies[REPORTS] - sum(number for (number,) in others))
        return bytes(secret)

    def change(self, work: Callable[[sqlite3.Connection, Counter[str]], T], *, recount: bool = True) -> T:
        """Makes one change to :mod:`edge_client.spool.window_submissions`; durable when it returns.

        Args:
            work: Gets the database inside a transaction, and the counts to add to the tallies.
            recount: Whether to count the reserved bytes anew. Counting takes a time that depends on the records.

        Raises:
            SpoolError: The file cannot be written; nothing was changed.
        """
        counts: Counter[str] = Counter()
        with self._using():
            with self._transaction():
                result = work(self._database, counts)
                write_counts(self._database, counts)
                reserved, held = self._reserved() if recount else (self._state.bytes, self._state.held)
            self._state.bytes, self._state.held = reserved, held
            self._tallies = self._tallies + counts
        return result

    def change_plan(self, work: Callable[[sqlite3.Connection, Counter[str]], T]) -> T:
        """Makes one change of plan (:mod:`edge_client.spool.plan_history`); until :meth:`keep_budget` none is charged.

        Raises:
            SpoolError: The file cannot be written; nothing was changed.
        """
        result = self.change(work)
        self._transaction_of = SpoolTransaction
        self._state.memo = 0
        with self._using():
            self._state.windows = self._number(_WINDOWS)
        return result

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What a query finds. Any: the columns of a row are those of the query."""
        with self._using():
            return self._database.execute(query, values).fetchall()

    def unanswered(self) -> tuple[int, ...]:
        """The numbers of all deltas in the spool, ascending."""
        return tuple(sequence for (sequence,) in self.rows("SELECT sequence FROM deltas ORDER BY sequence"))

    def streams(self) -> dict[int, int]:
        """The stream of each delta in the spool, by its number: of batches of reports, which have one each."""
        rows = self.rows("SELECT sequence, substr(bytes, 1, ?) FROM deltas", HEADER_BYTES)
        return {number: read_header(head).id.stream for number, head in rows}

    def load(self, first: int, limit: int, bytes_max: int) -> tuple[StoredDelta, ...]:
        """At most so many deltas from a number on, ascending; no more once they have so many bytes."""
        query = "SELECT sequence, bytes FROM deltas WHERE sequence >= ? ORDER BY sequence LIMIT ?"
        loaded: list[StoredDelta] = []
        with self._using():
            for sequence, data in self._database.execute(query, (first, limit)):
                loaded.append(StoredDelta(sequence, bytes(data)))
                bytes_max -= len(data)
                if bytes_max <= 0:
                    break
        return tuple(loaded)

    def commit(self, changes: Sequence[Change]) -> list[Result]:
        """Makes all changes in one transaction; durable when it returns.

        Returns:
            For each change what was bound (nothing for a removal), or the error that refused it alone: it has then
            changed nothing.

        Raises:
            SpoolError: The file cannot be written; nothing was changed.
        """
        with self._using():
            transaction = self._transaction_of(self._database, self._state)
            results = [transaction.take(change) for change in changes]
            with self._transaction():
                transaction.write()
            transaction.on_committed()
            self._state = transaction.state
            self._tallies = self._tallies + transaction.counts
        return results

    def erase_answered(self) -> bool:
        """Folds the write-ahead log, where answered deltas still are, into the file, and empties it.

        Returns:
            Whether that was done; it fails on a full disk, and may be tried again.
        """
        with self._lock:
            return self._fold_log()

    def close(self) -> None:
        """Folds the write-ahead log into the file, erases it, and gives the file back."""
        with self._lock:
            self._fold_log()  # a full disk: the log then stays beside the file, and the next opening reads it
            self._database.close()

    def _fold_log(self) -> bool:
        with suppress(sqlite3.Error):
            busy, _, _ = self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return not busy
        return False

    def _reserved(self) -> tuple[int, int]:
        """Bytes that are reserved under the current plan, and under earlier ones."""
        sizes = Counter({"deltas": 0, "pending": 0, "former_deltas": 0, "former_pending": 0})
        for table in sizes.keys() & tables_of(self._database.execute):
            sizes[table] = self._number(_RESERVED.format(table=table))
        held = sizes["former_deltas"] + sizes["former_pending"]
        if "former_plans" in tables_of(self._database.execute):
            held += memoization.REPORT_BYTES * self._number("SELECT coalesce(sum(reports), 0) FROM former_plans")
        return sizes["deltas"] + sizes["pending"], held

    def _number(self, query: str, *values: object) -> int:
        row = self._database.execute(query, values).fetchone()
        return 0 if row is None else int(row[0])

    @contextmanager
    def _using(self) -> Iterator[None]:
        """One caller at a time; SQLite's errors are raised as the spool's."""
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise SpoolError(f"spool {self._path}: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        require_durable(self._database, self._path)
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
