"""The store's SQL on PostgreSQL, through a pool of connections (asyncpg).

Writes use READ COMMITTED and lock the rows that :mod:`aggregator.store.transaction` names; reads see one moment
(REPEATABLE READ). Every wait is bounded here and in the server, so that neither a silently cut connection nor a process
that was stopped inside a transaction blocks others for longer than :attr:`PostgresSettings.timeout_s`. Errors of the
server and the network become errors that pass by themselves, or errors that do not.

Deleted rows are vacuumed, once no session reads an older moment: they leave tables and indexes. A session that does (a
dump, a report, a reader on a replica with hot_standby_feedback) keeps the deleted rows in the tables, and VACUUM does
not report it, so erasing first waits for such sessions. PostgreSQL does not wipe freed bytes: they stay in free space
of its files until it is reused, in its write-ahead log until it is recycled, and in every replica and backup. An
operator who must not keep them encrypts the disk and deletes backups in time.

Transactions leave one of the pool's connections to single queries and one to erasing; they wait for the others.
"""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, ParamSpec, Self, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from aggregator.errors import StoreError, StoreUnavailableError
from aggregator.runtime import Backoff, Runtime
from aggregator.store.schema import POSTGRES_SCHEMA_FORMAT, migrate, quoted, stored_format
from aggregator.store.transaction import Row, Transaction, Work

T = TypeVar("T")
P = ParamSpec("P")

_ROWS: Final = 1000  # in one command, so that its time is bounded however large a checkpoint is
_CONNECT_S: Final = 5.0
_LEFT_ALONE: Final = 2  # connections that no transaction takes
_POLL_S: Final = 0.1


@dataclass(frozen=True)
class PostgresSettings:
    """How to reach the database.

    Attributes:
        dsn: Its address, ``postgresql://user:password@host:port/database?sslmode=verify-full``; a secret.
        timeout_s: The longest time of a command, a lock or a pause inside a transaction.
        patience_s: How long to retry at the start.
        older_s: How long erasing waits for sessions that read an older moment.
        migrates: Whether tables are created or upgraded; without that the database is to be read alone.
    """

    dsn: str
    schema: str = "hushsum"
    pool: int = 10
    timeout_s: float = 15.0
    patience_s: float = 60.0
    older_s: float = 3.0
    migrates: bool = True

    def __repr__(self) -> str:
        return f"PostgresSettings(schema={self.schema!r}, pool={self.pool})"


class PostgresTransaction:
    """A :class:`aggregator.store.transaction.Transaction`; outside of one, each query is its own transaction."""

    def __init__(self, connection: Any) -> None:  # asyncpg ships no types
        self._connection = connection

    async def fetch(self, query: str, *arguments: object) -> list[Row]:
        return [tuple(row) for row in await self._connection.fetch(query, *arguments)]

    async def fetch_row(self, query: str, *arguments: object, lock: bool = False) -> Row | None:
        """The first row; with ``lock``, as it is after other transactions that held it, and locked from here on."""
        row = await self._connection.fetchrow(f"{query} FOR UPDATE" if lock else query, *arguments)
        return None if row is None else tuple(row)

    async def rows(self, query: str, *arguments: object) -> AsyncIterator[Row]:
        async for row in self._connection.cursor(query, *arguments, prefetch=_ROWS):
            yield tuple(row)

    async def execute(self, query: str, *arguments: object) -> int:
        tag: str = await self._connection.execute(query, *arguments)
        return int(tag.rpartition(" ")[2])

    async def execute_many(self, query: str, rows: Iterable[Sequence[object]]) -> None:
        left = iter(rows)
        while some := list(islice(left, _ROWS)):
            await self._connection.executemany(query, some)

    async def now_ms(self) -> int:
        query = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        now_ms: int = await self._connection.fetchval(query)
        return now_ms


class PostgresDatabase:
    """A :class:`aggregator.store.transaction.Database` in PostgreSQL. Made by :meth:`open`.

    Attributes:
        warnings: The promises that the server cannot keep, for the operator; a sentence each.
        has_tables: Whether there are tables.
        is_current: Whether they are those of this version.
    """

    def __init__(self, settings: PostgresSettings, runtime: Runtime) -> None:
        self.warnings: tuple[str, ...] = ()
        self.has_tables = self.is_current = False
        self._settings, self._runtime = settings, runtime
        self._working = asyncio.Semaphore(max(1, settings.pool - _LEFT_ALONE))
        self._erasing = asyncio.Lock()
        self._pool: Any = None  # asyncpg ships no types
        self._is_open = False

    @classmethod
    async def open(cls, settings: PostgresSettings, runtime: Runtime) -> Self:
        """Connects, and creates or upgrades the tables; retries while the server cannot be reached.

        Raises:
            StoreUnavailableError: It cannot be reached in ``patience_s``.
            StoreError: It refuses, its commits are not durable, it is read-only, or its tables are of a newer version.
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
        async with self._turn(), self._transaction(isolation="read_committed") as tx:
            return await work(tx, *arguments, **keywords)

    async def read(self, work: Work[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        async with self._turn(), self._transaction(isolation="repeatable_read", readonly=True) as tx:
            return await work(tx, *arguments, **keywords)

    async def look(self, work: Work[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        # Without a transaction: one query, one round trip.
        async with self._connection() as connection:
            return await work(PostgresTransaction(connection), *arguments, **keywords)

    async def erase(self, *tables: str, certain: bool) -> None:
        """Vacuums the tables and their indexes; see the top of the file for the bytes that remain.

        Raises:
            StoreUnavailableError: With ``certain``: a session may still read deleted rows, or holds a table.
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
                min_size=0,  # asyncpg logs a stack trace for each of these that it cannot replace
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
            raise translated(error) from None  # its cause may show the address
        async with self._connection() as connection:
            if self._settings.migrates:
                await migrate(connection, self._settings.schema)
            version = await stored_format(connection, self._settings.schema)
            self.has_tables, self.is_current = bool(version), version == POSTGRES_SCHEMA_FORMAT
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
                    f"store: another session ({reader}) reads an older snapshot and prevents erasure until it ends"
                )
            await self._runtime.sleep(_POLL_S)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Keeps many or slow transactions from taking the connections that single queries and erasing need."""
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await self._working.acquire()
        except TimeoutError:
            raise StoreUnavailableError(
                f"store: {self._settings.pool} connections are too few or too slow (postgres_pool)"
            ) from None
        try:
            yield
        finally:
            self._working.release()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        """A connection of the pool; a failed one is never used again."""
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
                if not _is_lost(error):  # a lost connection would never answer
                    with contextlib.suppress(*DATABASE_ERRORS):
                        await transaction.rollback()
                raise
            await transaction.commit()


class _Connection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg ships no types
    """A connection whose session needs no reset when it goes back to the pool."""

    def get_reset_query(self) -> str:
        """Empty, which saves a round trip for every read."""
        return ""


def _is_lost(error: BaseException) -> bool:
    """Whether the state of the connection's other end is unknown: after a cancellation, a timeout or a cut."""
    if isinstance(error, asyncpg.PostgresError):
        return False
    return isinstance(error, DATABASE_ERRORS) or not isinstance(error, Exception)


#: Classes of SQLSTATE, and single ones, after which a retry makes sense.
_PASSING: Final = (
    "08",  # the connection
    "40",  # deadlock, serialization failure
    "53",  # out of disk, memory or connections
    "57P01",  # admin shutdown
    "57P02",  # crash shutdown
    "57P03",  # starting
    "57P05",  # idle session timeout
    "57014",  # statement timeout
    "55P03",  # lock timeout
    "25P03",  # idle-in-transaction timeout
    "25006",  # read-only: another server has become the primary
)
_REFUSED: Final = ("28", "3D000", "42501")  # authentication, unknown database, missing privilege
_VALUE: Final = "22"  # the error text shows the value


def translated(error: Exception) -> StoreError:
    """The store's error for one of asyncpg or of the network.

    Its text shows neither the address, which may hold the password, nor values of rows.
    """
    if isinstance(error, asyncpg.PostgresError):
        return _of_the_server(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreError(f"store: PostgreSQL's certificate is refused: {error}; see sslrootcert")
    if isinstance(error, TimeoutError):
        return StoreUnavailableError("store: PostgreSQL did not respond in time")
    assert isinstance(error, DATABASE_ERRORS), "an error of something else"
    why = f" ({error.reason})" if isinstance(error, ssl.SSLError) and error.reason else ""
    return StoreUnavailableError(f"store: PostgreSQL cannot be reached: {type(error).__name__}{why}")


def address_error(error: Exception, dsn: str) -> StoreError | None:
    """The store's error for a wrong address, without any part that may be secret; None for any other error."""
    if isinstance(error, OSError) or not isinstance(error, ValueError):
        return None
    # An error that is not asyncpg's own may quote any part of the address.
    known = isinstance(error, asyncpg.exceptions.ClientConfigurationError)
    said = str(error).partition("\n")[0] if known else "a port, or an option after the ?, cannot be read"
    if any(secret in said for secret in _secrets(dsn)):
        said = "it is not the address of a PostgreSQL database"
    return StoreError(f"store: postgres_dsn: {said}")


def _secrets(dsn: str) -> set[str]:
    """All parts that could be a password, or a piece of one that contains delimiters."""
    try:
        parts = urlsplit(dsn)
        options = parse_qs(parts.query)
    except ValueError:
        return {""}  # contained in every text
    found = {dsn, parts.netloc, *(parts.netloc.rpartition("@")[0] or parts.netloc).split(":")[1:]}
    found.update(value for key in ("password", "sslpassword") for value in options.get(key, []))
    return {each for secret in found for each in (secret, unquote(secret)) if each}


def _of_the_server(error: asyncpg.PostgresError) -> StoreError:
    said, state = str(error.args[0]), error.sqlstate or ""
    if state.startswith(_PASSING):
        return StoreUnavailableError(f"store: PostgreSQL: {said}")
    if state.startswith(_REFUSED):
        return StoreError(f"store: PostgreSQL refuses: {said}; check user, password, database and privileges")
    if state.startswith(_VALUE):
        return StoreError("store: value out of range for PostgreSQL")
    return StoreError(f"store: PostgreSQL: {said}")


#: The errors that :func:`translated` accepts.
DATABASE_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
    asyncio.IncompleteReadError,
)

_KEEPALIVE: Final = (("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 9_000))
_LOST: Final = "releases, charges and counters may not survive the loss of the database's machine or its disk"


async def check_server(connection: Any, *, known: bool) -> None:  # asyncpg ships no types
    """Refuses a server that would lose committed transactions; called for every new connection.

    ``known`` says whether this process has used the database before.

    Raises:
        StoreUnavailableError: It is read-only and ``known``: another server may just have become the primary.
        StoreError: It is read-only, or does not wait for its disk.
    """
    fsync, commit, replica = await connection.fetchrow(
        "SELECT current_setting('fsync'), current_setting('synchronous_commit'), pg_is_in_recovery()"
    )
    if replica:
        kind = StoreUnavailableError if known else StoreError
        raise kind("store: this PostgreSQL is a read-only replica; connect to the primary")
    for name, value in (("fsync", fsync), ("synchronous_commit", commit)):
        if value == "off":
            raise StoreError(
                f"store: {name} is off in PostgreSQL: stored data would not survive power loss; turn it on"
            )


async def promises_lost(connection: Any) -> tuple[str, ...]:  # asyncpg ships no types
    """The promises that the server cannot keep, a sentence each.

    ``remote_write`` suffices: the standby holds what the primary's machine loses, as the brokers of a log do.
    """
    standbys, commit = await connection.fetchrow(
        "SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit')"
    )
    if not standbys.strip():
        return (f"PostgreSQL waits for no standby (synchronous_standby_names is empty): {_LOST}",)
    if commit == "local":
        return (f"PostgreSQL waits for no standby (synchronous_commit is local; set it on): {_LOST}",)
    return ()


def check_files(dsn: str) -> None:
    """Reads the certificates and keys that an address names: later, a bad one would look like an unreachable server.

    Raises:
        StoreError: One of them cannot be used.
    """
    try:
        options = parse_qs(urlsplit(dsn).query)
    except ValueError:
        return  # asyncpg refuses it

    def named(key: str) -> str:
        return options.get(key, [os.environ.get(f"PG{key.upper()}", "")])[-1]

    key, context = "", ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        for key in ("sslrootcert", "sslcrl"):
            if named(key):
                context.load_verify_locations(cafile=named(key))
        key = "sslcert"
        if named(key):
            context.load_cert_chain(named(key), named("sslkey") or None, lambda: options.get("sslpassword", [""])[-1])
    except OSError as error:
        why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise StoreError(f"store: postgres_dsn: {key}: {named(key)} cannot be used: {why}") from None


def keep_alive(connection: Any) -> None:  # asyncpg ships no types
    """Makes a connection end within seconds after its other end has vanished."""
    found = connection._transport.get_extra_info("socket")  # noqa: SLF001  asyncpg has no setting for it
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):  # macOS has not all of them
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


_VACUUM_S: Final = 600.0

# A transaction that still writes, in any database, holds back the snapshot of even later readers; a snapshot in another
# database, or of another VACUUM, does not matter. A slot's catalog_xmin keeps no row of ours.
_OLDER: Final = """
WITH deleted AS (SELECT age($1::text::xid8::xid) AS age)
SELECT concat('session ', pid, ' ', application_name) FROM pg_stat_activity, deleted
WHERE pid <> pg_backend_pid() AND (
    age(backend_xid) > deleted.age OR age(backend_xmin) > deleted.age
    AND (datid IS NULL OR datid IN (0, (SELECT oid FROM pg_database WHERE datname = current_database())))
    AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum))
UNION ALL
SELECT concat('prepared transaction ', gid) FROM pg_prepared_xacts, deleted WHERE age(transaction) > deleted.age
UNION ALL
SELECT concat('replication slot ', slot_name) FROM pg_replication_slots, deleted
WHERE age(xmin) > deleted.age AND wal_status IS DISTINCT FROM 'lost'
LIMIT 1
"""


async def moment(tx: Transaction) -> str:
    """A transaction id after everything that is committed by now."""
    row = await tx.fetch_row("SELECT pg_current_xact_id()::text")
    assert row is not None
    return str(row[0])


async def older_reader(tx: Transaction, since: str) -> str | None:
    """A session that may still read rows deleted before a moment, in words; None if no session can, now or later."""
    row = await tx.fetch_row(_OLDER, since)
    return None if row is None else str(row[0]).strip()


async def vacuum(connection: Any, tables: tuple[str, ...], *, certain: bool) -> None:  # asyncpg ships no types
    """Vacuums tables and their indexes; meanwhile the connection has another statement timeout.

    ``certain`` includes pages that a session is reading, which VACUUM skips unless it has to freeze.

    Raises:
        StoreError: With ``certain``: another role owns a table, for which VACUUM only warns.
    """
    warned: list[str] = []

    def note(_: object, message: Any) -> None:  # asyncpg ships no types
        warned.extend([str(message)] if message.severity_en == "WARNING" else [])

    options = "FREEZE, INDEX_CLEANUP ON" if certain else "INDEX_CLEANUP ON"
    await connection.execute(f"SET statement_timeout = {round(_VACUUM_S * 1000)}")
    connection.add_log_listener(note)
    try:
        for table in tables:
            await connection.execute(f"VACUUM ({options}) {table}", timeout=_VACUUM_S)
    finally:
        connection.remove_log_listener(note)
        await connection.execute("RESET statement_timeout")
    if warned and certain:
        raise StoreError(f"store: deleted data is not erased: PostgreSQL: {warned[0]}")
