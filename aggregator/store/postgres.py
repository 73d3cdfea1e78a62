"""The store's SQL on PostgreSQL, through a pool of connections (asyncpg).

READ COMMITTED for what writes, with the rows locked that :mod:`aggregator.store.sql` names; one moment (REPEATABLE
READ) for what reads. Every wait is bounded here and in the server, so that neither a connection that is silently cut
nor a process that was stopped inside a transaction holds anybody up for longer than :attr:`PostgresSettings.timeout_s`.

What is deleted is vacuumed, once no session reads an older moment: its rows leave tables and indexes. PostgreSQL does
not wipe what it frees: bytes of it stay in free space of its files until that is used again, in its write-ahead log
until that is recycled, and in every replica and backup. Who must not keep them encrypts the disk, and ends backups in
time.

Of the pool's connections one is left to queries that answer somebody, and one to erasing: work waits for the others.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, ParamSpec, Self, TypeVar

import asyncpg

from aggregator.errors import StoreUnavailableError
from aggregator.ports import Runtime
from aggregator.retries import Backoff
from aggregator.store.postgres_erasing import moment, older_reader, vacuum
from aggregator.store.postgres_errors import DATABASE_ERRORS, address_error, translated
from aggregator.store.postgres_schema import migrate, quoted
from aggregator.store.postgres_server import check_files, check_server, keep_alive, promises_lost
from aggregator.store.sql import Row, Work

T = TypeVar("T")
P = ParamSpec("P")

_ROWS: Final = 1000  # in one command, so that its time is bounded whatever a checkpoint holds
_CONNECT_S: Final = 5.0
_LEFT_ALONE: Final = 2  # connections that no transaction takes
_POLL_S: Final = 0.1


@dataclass(frozen=True)
class PostgresSettings:
    """How to reach the database.

    Attributes:
        dsn: Its address, ``postgresql://user:password@host:port/database?sslmode=verify-full``; a secret.
        schema: Of our tables.
        pool: The most connections.
        timeout_s: The longest that a command, a lock or a pause inside a transaction may take.
        patience_s: How long to try at the start.
        older_s: How long erasing waits for sessions that read an older moment.
    """

    dsn: str
    schema: str = "hushsum"
    pool: int = 10
    timeout_s: float = 15.0
    patience_s: float = 60.0
    older_s: float = 3.0

    def __repr__(self) -> str:
        return f"PostgresSettings(schema={self.schema!r}, pool={self.pool})"


class PostgresTransaction:
    """A :class:`aggregator.store.sql.Transaction` on a connection; outside a transaction each query is its own."""

    def __init__(self, connection: Any) -> None:  # asyncpg ships no types
        self._connection = connection

    async def fetch(self, query: str, *arguments: object) -> list[Row]:
        """All rows."""
        return [tuple(row) for row in await self._connection.fetch(query, *arguments)]

    async def fetch_row(self, query: str, *arguments: object, lock: bool = False) -> Row | None:
        """The first row; with ``lock``, held until the transaction ends, as it is once whoever held it has ended."""
        row = await self._connection.fetchrow(f"{query} FOR UPDATE" if lock else query, *arguments)
        return None if row is None else tuple(row)

    async def rows(self, query: str, *arguments: object) -> AsyncIterator[Row]:
        """Rows one by one."""
        async for row in self._connection.cursor(query, *arguments, prefetch=_ROWS):
            yield tuple(row)

    async def execute(self, query: str, *arguments: object) -> int:
        """The number of rows that were written."""
        tag: str = await self._connection.execute(query, *arguments)
        return int(tag.rpartition(" ")[2])

    async def execute_many(self, query: str, rows: Iterable[Sequence[object]]) -> None:
        """One statement for each row, sent without waiting for each."""
        left = iter(rows)
        while some := list(islice(left, _ROWS)):
            await self._connection.executemany(query, some)

    async def now_ms(self) -> int:
        """The server's clock."""
        query = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        now_ms: int = await self._connection.fetchval(query)
        return now_ms


class PostgresDatabase:
    """A :class:`aggregator.store.sql.Database` in PostgreSQL. Made by :meth:`open`.

    Attributes:
        warnings: The promises that the server cannot keep, for the operator; a sentence each.
    """

    def __init__(self, settings: PostgresSettings, runtime: Runtime) -> None:
        self.warnings: tuple[str, ...] = ()
        self._settings, self._runtime = settings, runtime
        self._working = asyncio.Semaphore(max(1, settings.pool - _LEFT_ALONE))
        self._erasing = asyncio.Lock()
        self._pool: Any = None  # asyncpg ships no types
        self._is_open = False

    @classmethod
    async def open(cls, settings: PostgresSettings, runtime: Runtime) -> Self:
        """Connects, and makes or upgrades the tables; tries again while the server cannot be reached.

        Raises:
            StoreUnavailableError: It cannot be reached in ``patience_s``.
            StoreError: It refuses, does not keep what it commits, only reads, or has tables of a newer version.
        """
        backoff, began_s = Backoff(), runtime.monotonic()
        while True:
            database = cls(settings, runtime)
            try:
                await database._open()
            except BaseException as error:
                if database._pool is not None:
                    database._pool.terminate()
                late = runtime.monotonic() - began_s >= settings.patience_s
                if not isinstance(error, StoreUnavailableError) or late:
                    raise
            else:
                return database
            await runtime.sleep(backoff.next_s())

    async def write(self, work: Work[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Runs ``work`` in one transaction that writes."""
        async with self._turn(), self._transaction(isolation="read_committed") as tx:
            return await work(tx, *arguments, **keywords)

    async def read(self, work: Work[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Runs ``work`` in one transaction that reads one moment."""
        async with self._turn(), self._transaction(isolation="repeatable_read", readonly=True) as tx:
            return await work(tx, *arguments, **keywords)

    async def look(self, work: Work[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Runs ``work`` without a transaction: one query, one round trip."""
        async with self._connection() as connection:
            return await work(PostgresTransaction(connection), *arguments, **keywords)

    async def erase(self, *tables: str, certain: bool) -> None:
        """Vacuums the tables and their indexes; see the top for what that leaves.

        Raises:
            StoreUnavailableError: Somebody may still read what was deleted, or holds a table, and ``certain`` was
                asked for.
        """
        if self._erasing.locked() and not certain:
            return
        try:
            async with self._erasing:
                if certain:
                    await self._outlast_older_readers()
                async with self._connection() as connection:
                    await vacuum(connection, tables, certain=certain)
        except StoreUnavailableError:
            if certain:
                raise

    async def close(self) -> None:
        """Closes the pool, after what is under way."""
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await self._pool.close()
        except DATABASE_ERRORS:
            self._pool.terminate()

    async def _open(self) -> None:
        check_files(self._settings.dsn)
        limit_ms = round(self._settings.timeout_s * 1000)
        try:
            self._pool = await asyncpg.create_pool(
                self._settings.dsn,
                min_size=0,  # asyncpg would log a stack trace for each of these that it cannot replace
                max_size=self._settings.pool,
                timeout=_CONNECT_S,
                command_timeout=self._settings.timeout_s,
                init=self._check,
                connection_class=_Connection,
                server_settings={
                    "application_name": "hushsum",
                    "search_path": quoted(self._settings.schema),
                    "jit": "off",
                    "statement_timeout": str(limit_ms),
                    "lock_timeout": str(limit_ms),
                    # A process that was stopped inside a transaction must not keep its locks.
                    "idle_in_transaction_session_timeout": str(limit_ms),
                    "tcp_keepalives_idle": "5",
                    "tcp_keepalives_interval": "2",
                    "tcp_keepalives_count": "3",
                },
            )
        except DATABASE_ERRORS as error:
            raise translated(error) from None  # what it came from may show the address
        async with self._connection() as connection:
            await migrate(connection, self._settings.schema)
            self.warnings = await promises_lost(connection)
        self._is_open = True

    async def _check(self, connection: Any) -> None:  # asyncpg ships no types
        keep_alive(connection)
        await check_server(connection, known=self._is_open)

    async def _outlast_older_readers(self) -> None:
        until_s, deleted = self._runtime.monotonic() + self._settings.older_s, await self.look(moment)
        while (reader := await self.look(older_reader, deleted)) is not None:
            if self._runtime.monotonic() >= until_s:
                raise StoreUnavailableError(
                    f"store: another session reads an older moment ({reader}): what was deleted stays until it ends"
                )
            await self._runtime.sleep(_POLL_S)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Keeps transactions, however many and slow, from taking the connections that others need at once."""
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await self._working.acquire()
        except TimeoutError:
            raise StoreUnavailableError(
                f"store: {self._settings.pool} connections are too few, or too slow (postgres_pool)"
            ) from None
        try:
            yield
        finally:
            self._working.release()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        """A connection of the pool; one that failed is never used again."""
        try:
            connection = await self._pool.acquire(timeout=self._settings.timeout_s)
        except (asyncpg.exceptions.ClientConfigurationError, *DATABASE_ERRORS, ValueError) as error:
            if (told := address_error(error, self._settings.dsn)) is not None:
                raise told from None
            raise translated(error) from error
        try:
            yield connection
        except BaseException as error:
            if _is_lost(error):
                with contextlib.suppress(asyncpg.InterfaceError):  # it has ended already
                    connection.terminate()
            if isinstance(error, DATABASE_ERRORS):
                raise translated(error) from error
            raise
        finally:
            with contextlib.suppress(*DATABASE_ERRORS):
                await self._pool.release(connection)

    @asynccontextmanager
    async def _transaction(self, **options: object) -> AsyncIterator[PostgresTransaction]:
        async with self._connection() as connection:
            transaction = connection.transaction(**options)
            await transaction.start()
            try:
                yield PostgresTransaction(connection)
            except BaseException as error:
                if not _is_lost(error):  # who would wait for an answer from a lost one, would wait in vain
                    with contextlib.suppress(*DATABASE_ERRORS):
                        await transaction.rollback()
                raise
            await transaction.commit()


class _Connection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg ships no types
    """Nothing of a session is changed that would have to be reset when it goes back to the pool."""

    def get_reset_query(self) -> str:
        """None, which saves a round trip for every read."""
        return ""


def _is_lost(error: BaseException) -> bool:
    """Whether it is not known what the connection's other end does: cancelled, too late, or cut."""
    if isinstance(error, asyncpg.PostgresError):
        return False
    return isinstance(error, DATABASE_ERRORS) or not isinstance(error, Exception)
