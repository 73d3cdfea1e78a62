"""The file of a spool: how it is opened, locked, made durable, and whose it is."""

import os
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from edge_client.errors import SettingsError, SpoolError, SpoolInUseError
from hushsum.entropy import Entropy
from hushsum_proto.client_ids import CLIENT_ID_FORM, flaw_of

#: Rows that a query finds. Any: the values of a row are those of its query.
Rows = Callable[[str, tuple[object, ...]], Iterable[Any]]

SPOOL_FORMAT: Final = 3  # the newest that this version reads
_WITHOUT_ROUNDS: Final = 1  # a spool stays at it until it belongs to a plan whose device keeps books
_APPLICATION_ID: Final = 0x48555348  # "HUSH"
_FULL: Final = 2  # SQLite's number for synchronous=FULL
_LOCKED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

# EXCLUSIVE before the first access: the lock is then kept until the file is closed or the process is gone.
_PRAGMAS: Final = (
    "locking_mode = EXCLUSIVE",
    "journal_mode = WAL",
    "synchronous = FULL",
    "fullfsync = ON",  # macOS: fsync alone does not reach the disk there
    "checkpoint_fullfsync = ON",
    "secure_delete = ON",
    "cache_size = -256",  # KiB: a fleet in one process has hundreds of these, and each delta is read once at most
)
_TABLES: Final = (
    "CREATE TABLE identity (only INTEGER PRIMARY KEY CHECK (only = 1), stream BLOB NOT NULL, client_id TEXT NOT NULL)",
    "CREATE TABLE next (only INTEGER PRIMARY KEY CHECK (only = 1), sequence INTEGER NOT NULL)",
    "CREATE TABLE plan (only INTEGER PRIMARY KEY CHECK (only = 1), bytes BLOB NOT NULL)",
    "CREATE TABLE deltas (sequence INTEGER PRIMARY KEY, bytes BLOB NOT NULL, room INTEGER)",
    "CREATE TABLE contributions (window INTEGER PRIMARY KEY, records INTEGER NOT NULL)",
    "CREATE TABLE tallies (name TEXT PRIMARY KEY, count INTEGER NOT NULL)",
)
#: What is set aside for a delta (:class:`edge_client.changes.Add`). It stands beside the bytes, which do not tell how
#: many records were given with theirs and could not be used.
ROOM: Final = "coalesce(room, length(bytes))"
_ROOM_COLUMN: Final = "ALTER TABLE {table} ADD COLUMN room INTEGER"
# What format 2 adds: it is for plans whose device keeps books, secure and local ones, which no software of format 1
# can read. A silo's submissions stand among the rounds, under the number of their delta; so do the windows of reports,
# under no name.
_ROUND_TABLES: Final = (
    # AUTOINCREMENT: no number is given twice, so that what came after a round's vector was summed is told apart.
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


def open_locked(path: Path) -> sqlite3.Connection:
    """A connection that holds the file alone and whose commits are durable.

    Raises:
        SpoolInUseError: Somebody else has it open.
        SpoolError: It cannot be opened, is no spool, or is newer than this version.
    """
    try:
        # Readable by its owner alone: until they are added up, deltas tell what is in the records.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise SpoolError(f"spool {path}: cannot be opened: {error}") from error
    try:
        for pragma in _PRAGMAS:
            database.execute(f"PRAGMA {pragma}")
        require_durable(database, path)
        _check_format(database, path)
        return database
    except sqlite3.Error as error:
        database.close()
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _LOCKED:  # the primary code of an extended one
            raise SpoolInUseError(f"spool {path}: another process or client has it open; each needs its own") from error
        raise SpoolError(f"spool {path}: {error}") from error
    except BaseException:
        database.close()
        raise


def require_durable(database: sqlite3.Connection, path: Path) -> None:
    """Reads back what a commit's durability, and the erasure of what is deleted, rest on.

    Raises:
        SpoolError: A setting is not what it must be.
    """
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
            raise SpoolError(f"spool {path}: {name} is {came!r}, expected {value!r}; nothing is written like this")


def identify(database: sqlite3.Connection, client_id: str | None, entropy: Entropy) -> tuple[int, str, int]:
    """(stream, client id, next sequence number) of the file, drawn at its first use; the caller holds a transaction.

    Raises:
        SettingsError: A client id that no service accepts.
        SpoolError: The file belongs to another client.
    """
    if client_id is not None:
        _check_client_id(client_id)
    row = database.execute("SELECT stream, client_id, sequence FROM identity JOIN next USING (only)").fetchone()
    if row is None:
        row = (entropy.read(8), client_id or f"device-{entropy.read(16).hex()}", 0)
        database.execute("INSERT INTO identity (only, stream, client_id) VALUES (1, ?, ?)", row[:2])
        database.execute("INSERT INTO next (only, sequence) VALUES (1, ?)", row[2:])
    stream, owner, next_sequence = row
    if client_id not in (None, owner):
        # A delta that was sent under one id and is sent again under another would count twice.
        raise SpoolError(f"spool: it belongs to client {owner!r}, got client_id={client_id!r}; each needs its own")
    return int.from_bytes(stream, "big"), str(owner), int(next_sequence)


def make_room_for_rounds(database: sqlite3.Connection) -> None:
    """Takes a spool to the newest format, where it is not there yet; the caller holds a transaction.

    Format 3 may hold rows of ``pending`` without records, for unusable ones, whose bytes older software would read.
    """
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version >= SPOOL_FORMAT:
        return
    for statement in _ROUND_TABLES if version == _WITHOUT_ROUNDS else (_ROOM_COLUMN.format(table="pending"),):
        database.execute(statement)
    database.execute(f"PRAGMA user_version = {SPOOL_FORMAT}")


def keep_signature(database: sqlite3.Connection, signature: bytes) -> None:
    """Keeps the plan's signature, in place of an older one; the caller holds a transaction."""
    database.execute(_SIGNATURE_TABLE)
    database.execute("INSERT OR REPLACE INTO plan_signature (only, bytes) VALUES (1, ?)", (signature,))


def signature_in(database: sqlite3.Connection) -> bytes | None:
    """The plan's signature; None where there is none."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'plan_signature'").fetchone():
        return None
    row = database.execute("SELECT bytes FROM plan_signature").fetchone()
    return None if row is None else bytes(row[0])


def _check_format(database: sqlite3.Connection, path: Path) -> None:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    application = database.execute("PRAGMA application_id").fetchone()[0]
    tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not (version or application or tables):
        database.execute("BEGIN EXCLUSIVE")
        for table in _TABLES:
            database.execute(table)
        database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {_WITHOUT_ROUNDS}")
        database.execute("COMMIT")
        return
    if application != _APPLICATION_ID:
        raise SpoolError(f"spool {path}: this is another program's database")
    if version > SPOOL_FORMAT:
        known = f"this version knows up to {SPOOL_FORMAT}"
        raise SpoolError(f"spool {path}: it has format {version}, {known}: update this software")
    if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'presences'").fetchone():
        raise SpoolError(
            f"spool {path}: it belongs to a plan with participation 'public', which was removed: its deltas cannot be "
            "sent any more. Collect under a new plan, and use a new spool for it; nothing in this one was changed"
        )
    # A lock for good also where nothing is written: EXCLUSIVE keeps whatever lock was taken once.
    database.execute("BEGIN EXCLUSIVE")
    if "room" not in [column[1] for column in database.execute("PRAGMA table_info(deltas)")]:
        database.execute(_ROOM_COLUMN.format(table="deltas"))  # which older software leaves alone
    database.execute("COMMIT")


def _check_client_id(client_id: str) -> None:
    if flaw := flaw_of(client_id):
        raise SettingsError(f"client_id: got {client_id!r:.60}: {flaw}; expected {CLIENT_ID_FORM}")
