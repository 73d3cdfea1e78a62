"""SQLite files whose commits survive power loss and whose deleted bytes are wiped.

Write-ahead log, ``synchronous=FULL`` (every commit waits for fsync), ``secure_delete=ON`` (freed bytes are wiped).
SQLite ignores a setting that it cannot apply, so every writing connection reads them back before it is used.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from aggregator.data_dir import make_private_file
from aggregator.errors import AggregatorError
from aggregator.logs import journal
from aggregator.runtime import Runtime, within
from hushsum.fsync import sync_folder

T = TypeVar("T")

SETTINGS: Final = (
    ("journal_mode", "WAL"),
    ("synchronous", "FULL"),
    ("secure_delete", "ON"),
    ("fullfsync", "ON"),  # macOS: fsync alone does not reach the disk
    ("checkpoint_fullfsync", "ON"),
)
#: The values to read back: declared apart from those that are set, so that a mistake in one of the two is found.
_EXPECTED: Final[tuple[tuple[str, object], ...]] = (("journal_mode", "wal"), ("synchronous", 2), ("secure_delete", 1))
_BUSY_MS: Final = 10_000
#: Errors that pass: another process has locked the file, or too many files are open to open a side file.
_PASSING_CODES: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN)
_PAGES_S: Final = 10.0
_TRUNCATE_BUSY_MS: Final = 50
_TRUNCATE_PAUSE_S: Final = 0.05
_TRUNCATE_TRIES: Final = 10  # about a second: no release waits longer for a reader

_journal = journal("sqlite")


@dataclass(frozen=True)
class DatabaseKind:
    """A kind of database file: its mark, its format, its tables and its errors."""

    what: str  # its name in errors
    application_id: int  # its mark in SQLite's header
    version: int  # the format that this version writes; a newer one is refused
    schema: Sequence[str]  # statements that create its tables
    error: type[AggregatorError]
    #: By format, the statements that upgrade it to the next one; none if only the content of rows differs.
    upgrades: Mapping[int, Sequence[str]] = field(default_factory=dict)
    #: Of errors that pass: another process has locked the file, or too many files are open. None: ``error``.
    unavailable: type[AggregatorError] | None = None

    def open_writing(self, path: Path) -> sqlite3.Connection:
        """A connection that may write; creates the file if it is missing.

        Raises:
            AggregatorError: Of class ``error``: not such a file, a newer format, or no durability here.
        """
        try:
            make_private_file(path)  # SQLite gives its side files the mode of the file
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except (sqlite3.Error, OSError) as error:
            raise self.error(f"{self.what} {path} cannot be opened: {error}") from error
        with self._whole_or_closed(path, connection):
            connection.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
            self._check(path, connection, empty=True)
            for name, value in SETTINGS:
                connection.execute(f"PRAGMA {name}={value}")
            self.assert_durable(path, connection)
            self._make(connection)
            # The folder's entry of a new file must be durable, too.
            sync_folder(path.parent)
            return connection

    def open_in_memory(self) -> sqlite3.Connection:
        """A connection to tables in memory, which vanish when it is closed."""
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._make(connection)
        return connection

    def translated(self, error: sqlite3.Error) -> AggregatorError:
        """The file's own error for one of SQLite."""
        passes = getattr(error, "sqlite_errorcode", None) in _PASSING_CODES
        return (self.unavailable or self.error if passes else self.error)(f"{self.what}: {error}")

    def open_reading(self, path: Path) -> sqlite3.Connection:
        """A connection that cannot write, to an existing file; a service may be using it.

        Raises:
            AggregatorError: Of class ``error``: the file is missing, not such a file, or of a newer format.
        """
        return self._open_reading(path, "mode=ro")

    def open_alone(self, path: Path) -> sqlite3.Connection:
        """As :meth:`open_reading`, while no other process writes the file: no side file is created.

        A write-ahead log that a killed process left has to be read: SQLite then writes the ``-shm`` file beside it.
        """
        log = path.with_name(f"{path.name}-wal")
        return self._open_reading(path, "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1")

    def is_current(self, connection: sqlite3.Connection) -> bool:
        """Whether a file that was opened for reading has the format of this version, and needs no upgrade."""
        return _pragma(connection, "user_version") == self.version

    def _open_reading(self, path: Path, how: str) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?{how}", uri=True, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self.error(f"{self.what} {path} cannot be opened: {error}") from error
        with self._whole_or_closed(path, connection):
            connection.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
            self._check(path, connection, empty=False)
            return connection

    @contextmanager
    def looked_at(self, path: Path) -> Iterator[sqlite3.Connection]:
        """A connection to an existing file, in a transaction that reads one state; a service may be using it.

        Raises:
            AggregatorError: Of class ``error``: as :meth:`open_reading`, or the file is damaged.
        """
        connection = self.open_reading(path)
        try:
            connection.execute("BEGIN")
            yield connection
        except sqlite3.Error as error:
            raise self.error(f"{self.what} {path}: {error}") from error
        finally:
            connection.close()

    @contextmanager
    def _whole_or_closed(self, path: Path, connection: sqlite3.Connection) -> Iterator[None]:
        """Closes the connection if opening fails, and translates SQLite's errors."""
        try:
            yield
        except sqlite3.Error as error:
            connection.close()
            raise self.error(f"{self.what} {path} cannot be opened: {error}") from error
        except BaseException:
            connection.close()
            raise

    def assert_durable(self, path: Path, connection: sqlite3.Connection) -> None:
        """Reads the settings back; raises the file's own error with a setting that does not hold."""
        for name, expected in _EXPECTED:
            came = _pragma(connection, name)
            if came != expected:
                raise self.error(
                    f"{self.what} {path}: {name} is {came!r} after it was set, expected {expected!r}: "
                    "acknowledged data would not survive power loss"
                )

    def _check(self, path: Path, connection: sqlite3.Connection, *, empty: bool) -> None:
        """Refuses another kind of file before changing anything in it."""
        came, version = _pragma(connection, "application_id"), _pragma(connection, "user_version")
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if empty and (came, version, tables) == (0, 0, 0):
            return
        if came != self.application_id or not isinstance(version, int):
            raise self.error(f"{self.what} {path} is not a file of this kind")
        if version > self.version:
            raise self.error(
                f"{self.what} {path} has format {version}; this version reads up to {self.version}: update the service"
            )

    def _make(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            for statement in self.schema:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={self.application_id}")
        elif version < self.version:
            for older in range(version, self.version):
                for statement in self.upgrades.get(older, ()):
                    connection.execute(statement)
        if version != self.version:
            connection.execute(f"PRAGMA user_version={self.version}")
        connection.execute("COMMIT")


class SqliteFile:
    """A connection that is used outside the event loop, by one call at a time.

    A cancelled call runs to its end in its thread: a transaction is never left half done, and its caller does not know
    whether it was committed.
    """

    def __init__(self, kind: DatabaseKind, connection: sqlite3.Connection, runtime: Runtime) -> None:
        self._kind, self._connection, self._runtime = kind, connection, runtime
        self._guard = threading.Lock()

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs ``work`` in one transaction that writes: durable when it returns, rolled back when it raises."""
        return await self._runtime.blocking(self._transaction, "BEGIN IMMEDIATE", work)

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs ``work`` in one transaction that reads one moment, the last one committed."""
        return await self._runtime.blocking(self._transaction, "BEGIN", work)

    async def alone(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs ``work``, which makes one statement alone, and reads or writes; SQLite makes it a transaction.

        For each statement the thread gives the interpreter up and waits for it: BEGIN and COMMIT would be two more.
        """
        return await self._runtime.blocking(self._statement, work)

    async def check_pages(self) -> None:
        """Checks the structure of every page, for some seconds at most; logs a warning if they are too few.

        Raises:
            AggregatorError: The file's own error: a page is damaged.
        """
        check = self.read(lambda db: str(db.execute("PRAGMA quick_check(1)").fetchone()[0]))
        try:
            found = await within(_PAGES_S, check, runtime=self._runtime)
        except TimeoutError:
            self._connection.interrupt()
            _journal.warning("file checked in part: it is too large", file=self._kind.what, after_s=_PAGES_S)
            return
        if found != "ok":
            raise self._kind.error(f"{self._kind.what}: damaged: {found}; restore it")

    async def truncate(self) -> None:
        """Moves the write-ahead log into the file, so that no deleted bytes are left in it.

        Raises:
            AggregatorError: The file's own error: an old reading transaction is open. Try again later.
        """
        for _ in range(_TRUNCATE_TRIES):
            if await self._runtime.blocking(self._truncate):
                return
            await self._runtime.sleep(_TRUNCATE_PAUSE_S)
        raise self._kind.error(f"{self._kind.what}: an open reader prevents erasure of deleted data; close it")

    async def try_truncate(self) -> None:
        """The same if no reader prevents it now; a later :meth:`truncate` makes sure."""
        await self._runtime.blocking(self._truncate)

    async def close(self) -> None:
        await self._runtime.blocking(self._close)

    def _transaction(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._guard:
            try:
                self._connection.execute(begin)
                try:
                    result = work(self._connection)
                    self._connection.execute("COMMIT")
                    return result
                except BaseException:
                    # A failed COMMIT (a full disk) may have rolled back by itself.
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self._kind.translated(error) from error

    def _statement(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._guard:
            if self._connection.in_transaction:  # a rollback has failed: nothing would be durable
                raise self._kind.error(f"{self._kind.what}: a transaction is open that could not be ended; restart")
            try:
                return work(self._connection)
            except sqlite3.Error as error:
                raise self._kind.translated(error) from error

    def _truncate(self) -> bool:
        with self._guard:
            try:
                # Short, because writers wait behind this; the caller retries.
                self._connection.execute(f"PRAGMA busy_timeout={_TRUNCATE_BUSY_MS}")
                try:
                    busy: int = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
                finally:
                    self._connection.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
            except sqlite3.OperationalError:
                return False
            except sqlite3.Error as error:
                raise self._kind.translated(error) from error
            return busy == 0

    def _close(self) -> None:
        with self._guard:
            self._connection.close()


def _pragma(connection: sqlite3.Connection, name: str) -> object:
    value: object = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value
