"""The store in an SQLite file, for one process, or in the memory of this one."""

from pathlib import Path

from aggregator.ports import Runtime
from aggregator.sqlite import Database
from aggregator.store.schema import STORE_FILE
from aggregator.store.sql_sqlite import SqliteDatabase
from aggregator.store.store import SqlStore


async def open_sqlite_store(path: Path, runtime: Runtime) -> SqlStore:
    """Opens the file, and makes it where it is not there. Whoever has its folder has every lease that is asked for.

    Raises:
        StoreError: Not a store, a newer format, or no durability here.
    """
    writer = Database(STORE_FILE, await runtime.blocking(STORE_FILE.open_writing, path), runtime)
    try:
        reader = Database(STORE_FILE, await runtime.blocking(STORE_FILE.open_reading, path), runtime)
    except BaseException:
        await writer.close()
        raise
    return SqlStore(SqliteDatabase(writer, reader, runtime), exclusive=True)


def memory_store(runtime: Runtime, *, exclusive: bool = False) -> SqlStore:
    """A store that is gone with its process, for tests and simulations: the same SQL, of which nothing is durable.

    Args:
        runtime: Its clock, by which leases run out.
        exclusive: Whether a lease is given to whoever asks, as by a file, or held for its time, as by PostgreSQL.
    """
    database = Database(STORE_FILE, STORE_FILE.open_in_memory(), runtime)
    return SqlStore(SqliteDatabase(database, database, runtime), exclusive=exclusive)
