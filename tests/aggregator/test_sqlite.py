import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from aggregator import sqlite
from aggregator.errors import LogError, StoreError, StoreUnavailableError
from aggregator.log.sqlite import LOG_FILE, SqliteLog
from aggregator.runtime import SystemRuntime
from aggregator.sqlite import DatabaseKind, SqliteFile
from aggregator.store.schema import STORE_FILE
from aggregator.store.store import open_sqlite_store
from aggregator.store.transaction import Transaction, run_to_end
from tests.aggregator.deltas import tally_plan
from tests.aggregator.stores import sqlite_of
from tests.doubles import ManualRuntime

KINDS = pytest.mark.parametrize("kind", [LOG_FILE, STORE_FILE], ids=lambda kind: kind.what)
PLAN_ID = bytes(32)


def settings(connection: sqlite3.Connection) -> dict[str, object]:
    names = ("journal_mode", "synchronous", "secure_delete", "fullfsync", "checkpoint_fullfsync")
    return {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names}


async def test_every_writing_connection_of_log_and_store_waits_for_the_disk_and_wipes_what_it_deletes(
    tmp_path: Path,
) -> None:
    log = await SqliteLog.open(tmp_path / "log.db", PLAN_ID, 1, ManualRuntime())
    store = await open_sqlite_store(tmp_path / "store.db", ManualRuntime())
    for database in (log._writer, sqlite_of(store).writer):
        came = settings(database._connection)
        assert came == {
            "journal_mode": "wal",
            "synchronous": 2,  # FULL
            "secure_delete": 1,
            "fullfsync": 1,
            "checkpoint_fullfsync": 1,
        }
    await log.close()
    await store.close()


@KINDS
@pytest.mark.parametrize(
    ("name", "planted"),
    [("synchronous", "NORMAL"), ("synchronous", "OFF"), ("journal_mode", "DELETE"), ("secure_delete", "FAST")],
)
def test_a_planted_weaker_setting_is_found_when_it_is_read_back(
    kind: DatabaseKind, name: str, planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weaker = tuple((key, planted if key == name else value) for key, value in sqlite.SETTINGS)
    monkeypatch.setattr(sqlite, "SETTINGS", weaker)
    with pytest.raises(kind.error, match=f"{name} is .* would not survive power loss"):
        kind.open_writing(tmp_path / "file.db")


@KINDS
def test_a_reading_connection_cannot_write(kind: DatabaseKind, tmp_path: Path) -> None:
    kind.open_writing(tmp_path / "file.db").close()
    reader = kind.open_reading(tmp_path / "file.db")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("CREATE TABLE t (a)")
    reader.close()


@KINDS
def test_a_newer_format_is_refused_by_writers_and_readers_and_left_alone(kind: DatabaseKind, tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    connection = kind.open_writing(path)
    connection.execute(f"PRAGMA user_version={kind.version + 1}")
    connection.close()
    before = path.read_bytes()
    for opens in (kind.open_writing, kind.open_reading):
        with pytest.raises(kind.error, match=f"has format {kind.version + 1}; this version reads up to {kind.version}"):
            opens(path)
    assert path.read_bytes() == before


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    LOG_FILE.open_writing(tmp_path / "log.db").close()
    with pytest.raises(StoreError, match="not a file of this kind"):
        STORE_FILE.open_writing(tmp_path / "log.db")
    (tmp_path / "text").write_text("no database, but long enough to be looked into" * 20)
    with pytest.raises(LogError, match="cannot be opened"):
        LOG_FILE.open_writing(tmp_path / "text")
    with pytest.raises(StoreError, match="cannot be opened"):
        STORE_FILE.open_reading(tmp_path / "missing.db")


async def test_a_transaction_that_raises_leaves_nothing(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    database = SqliteFile(LOG_FILE, LOG_FILE.open_writing(tmp_path / "log.db"), runtime)

    def half(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO ends VALUES (1, 0, 7)")
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        await database.write(half)
    assert await database.read(lambda db: db.execute("SELECT count(*) FROM ends").fetchone()[0]) == 0
    await database.close()


async def test_what_sqlite_says_comes_as_the_files_own_error(tmp_path: Path) -> None:
    database = SqliteFile(LOG_FILE, LOG_FILE.open_writing(tmp_path / "log.db"), ManualRuntime())
    with pytest.raises(LogError, match="no such table"):
        await database.read(lambda db: db.execute("SELECT * FROM missing"))
    await database.close()
    with pytest.raises(LogError, match="closed"):
        await database.read(lambda db: db.execute("SELECT 1"))


async def test_a_cancelled_write_is_whole(tmp_path: Path) -> None:
    """Its caller cannot know, but the file never holds half of it."""
    database = SqliteFile(LOG_FILE, LOG_FILE.open_writing(tmp_path / "log.db"), SystemRuntime())
    begun, cancelled = threading.Event(), threading.Event()

    def both(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO ends VALUES (1, 0, 7)")
        begun.set()
        assert cancelled.wait(60)
        db.execute("INSERT INTO ends VALUES (1, 1, 7)")

    writing = asyncio.create_task(database.write(both))
    assert await asyncio.to_thread(begun.wait, 60)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    cancelled.set()
    count = await database.read(lambda db: db.execute("SELECT count(*) FROM ends").fetchone()[0])
    assert count == 2
    await database.close()


async def test_truncating_waits_for_a_reader_and_says_so_when_it_stays(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    database = SqliteFile(LOG_FILE, LOG_FILE.open_writing(tmp_path / "log.db"), runtime)
    await database.write(lambda db: db.execute("INSERT INTO ends VALUES (1, 0, 7)"))
    reader = LOG_FILE.open_reading(tmp_path / "log.db")
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM ends").fetchall()
    await database.write(lambda db: db.execute("INSERT INTO ends VALUES (1, 1, 7)"))
    truncating = asyncio.create_task(database.truncate())
    await runtime.settle(20)
    assert not truncating.done()
    reader.execute("COMMIT")
    await runtime.advance(1)
    await truncating
    assert (tmp_path / "log.db-wal").stat().st_size == 0
    reader.close()
    await database.close()


async def test_a_statement_alone_is_refused_where_it_would_join_a_transaction_that_was_left_open(
    tmp_path: Path,
) -> None:
    """It would not be durable when it returns."""
    database = SqliteFile(LOG_FILE, LOG_FILE.open_writing(tmp_path / "log.db"), ManualRuntime())
    database._connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(LogError, match="a transaction is open that could not be ended"):
        await database.alone(lambda db: db.execute("SELECT 1"))
    await database.close()


# ------------------------------------------------------------------------------------------------- the store's SQL


async def test_placeholders_stand_in_any_order_and_as_often_as_needed(tmp_path: Path) -> None:
    store = await open_sqlite_store(tmp_path / "store.db", ManualRuntime())

    async def asked(tx: Transaction) -> list[tuple[object, ...]]:
        return await tx.fetch("SELECT $2, $1, $2 || $3", "a", "b", "c")

    assert await store.database.read(asked) == [("b", "a", "bc")]
    await store.close()


async def test_a_store_that_another_process_keeps_busy_is_unavailable_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_MS", 10)
    store = await open_sqlite_store(tmp_path / "store.db", ManualRuntime())
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="locked"):
        await store.register(tally_plan(), 1, 0)
    other.close()
    await store.register(tally_plan(), 1, 0)
    await store.close()


def test_work_that_waits_inside_a_transaction_is_found() -> None:
    with pytest.raises(AssertionError, match="waits for something else"):
        run_to_end(asyncio.sleep(0))
