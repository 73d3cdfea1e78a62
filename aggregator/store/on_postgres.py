"""The store in PostgreSQL, for many processes at once."""

from aggregator.ports import Runtime
from aggregator.store.postgres import PostgresDatabase, PostgresSettings
from aggregator.store.store import SqlStore


async def open_postgres_store(dsn: str, runtime: Runtime, *, pool: int = 10, schema: str = "hushsum") -> SqlStore:
    """Connects; makes or upgrades the tables where that is needed.

    Args:
        dsn: ``postgresql://user:password@host:port/database?sslmode=verify-full``; a secret.
        runtime: Time, to wait for a server that is starting.
        pool: The most connections.
        schema: Of the tables; made where it is not there.

    Raises:
        StoreUnavailableError: It cannot be reached.
        StoreError: It refuses, does not keep what it commits, only reads, or has tables of a newer version.
    """
    settings = PostgresSettings(dsn, schema=schema, pool=pool)
    return SqlStore(await PostgresDatabase.open(settings, runtime))
