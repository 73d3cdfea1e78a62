"""Transactions on a database: the store's logic is written once, and runs on SQLite and on PostgreSQL.

Each store operation is a coroutine on a :class:`Transaction`. On SQLite it never suspends, and runs to its end in the
writer's thread; on PostgreSQL it runs on the event loop, concurrently with other processes, in READ COMMITTED.

A row that is read before it is changed is locked first, always in this order, so that transactions cannot deadlock:
partition, plan, lease, population, receipts. A change of windows, outcomes or reservations locks the plan's row; a
releaser's write the lease's; a charge or a count the population's; a publication that of the receipts; a checkpoint and
a claim the partition's. SQLite has one writer and needs no locks.

``window`` is quoted everywhere because it is a reserved word in PostgreSQL.
"""

import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from functools import lru_cache
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from aggregator.runtime import Runtime
from aggregator.sqlite import SqliteFile

T = TypeVar("T")
P = ParamSpec("P")
Row = tuple[Any, ...]  # the types of its columns depend on the query

#: The fence after ``fence``: at least the time, so that a restored store issues none twice.
NEXT_FENCE: Final = "CASE WHEN fence + 1 > {now} THEN fence + 1 ELSE {now} END"


class Transaction(Protocol):
    """One transaction of a database. Placeholders are ``$1``, ``$2``, ..., as often and in any order as needed."""

    async def fetch(self, query: str, *arguments: object) -> list[Row]: ...

    async def fetch_row(self, query: str, *arguments: object, lock: bool = False) -> Row | None:
        """The first row, or None. ``lock`` keeps others from changing or locking it until the transaction ends."""

    def rows(self, query: str, *arguments: object) -> AsyncIterator[Row]:
        """Rows one by one, of a result that may be large."""

    async def execute(self, query: str, *arguments: object) -> int:
        """The number of rows that were written."""

    async def execute_many(self, query: str, rows: Iterable[Sequence[object]]) -> None:
        """One statement for each row, whose placeholders stand once each, in order."""

    async def now_ms(self) -> int:
        """The clock that leases are kept by: now, not when the transaction began."""


Work = Callable[Concatenate[Transaction, P], Coroutine[Any, Any, T]]


class Database(Protocol):
    """Transactions.

    Raises:
        StoreUnavailableError: From every method: it cannot be reached now; whether a write was committed is unknown.
        StoreError: From every method: it is damaged, full, or an operator must act.
    """

    async def write(self, work: Work[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Runs ``work`` in a transaction that writes: durable when it returns, undone when it raises."""

    async def read(self, work: Work[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Runs ``work`` in a transaction that reads one moment, the last one committed."""

    async def look(self, work: Work[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Runs ``work``, which makes one query alone: as short as a read can be, and never waits for a write."""

    async def erase(self, *tables: str, certain: bool) -> None:
        """Removes deleted and committed rows from the files of these tables, as far as the database can.

        If another session prevents it now, such as by reading a moment before the deletion, it is left to a later call,
        or with ``certain`` raises.
        """

    async def close(self) -> None:
        """Closes it after the calls in progress."""


_PLACEHOLDER: Final = re.compile(r"\$(\d+)")


class SqliteTransaction:
    """A :class:`Transaction` on a connection that has begun one."""

    def __init__(self, connection: sqlite3.Connection, now_ms: Callable[[], int]) -> None:
        self._connection, self._now_ms = connection, now_ms

    async def fetch(self, query: str, *arguments: object) -> list[Row]:
        return self._run(query, arguments).fetchall()

    async def fetch_row(self, query: str, *arguments: object, lock: bool = False) -> Row | None:
        del lock  # there is one writer
        rows = self._run(query, arguments).fetchall()  # all: a write that returns rows ends with the last one
        return rows[0] if rows else None

    async def rows(self, query: str, *arguments: object) -> AsyncIterator[Row]:
        for row in self._run(query, arguments):
            yield row

    async def execute(self, query: str, *arguments: object) -> int:
        return self._run(query, arguments).rowcount

    async def execute_many(self, query: str, rows: Iterable[Sequence[object]]) -> None:
        text, order = _positional(query)
        assert order == tuple(range(len(order))), "placeholders of many rows are used once each, in order"
        self._connection.executemany(text, rows)

    async def now_ms(self) -> int:
        return self._now_ms()

    def _run(self, query: str, arguments: Sequence[object]) -> sqlite3.Cursor:
        text, order = _positional(query)
        return self._connection.execute(text, [arguments[index] for index in order])


class SqliteDatabase:
    """A :class:`Database` in a file, or in memory.

    One connection writes and another reads, so that the read of an acknowledgement never waits for a checkpoint. In
    memory they are the same connection.
    """

    def __init__(self, writer: SqliteFile, reader: SqliteFile, runtime: Runtime) -> None:
        self.writer, self.reader = writer, reader
        self._runtime = runtime

    async def write(self, work: Work[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        return await self.writer.write(lambda db: run_to_end(work(self._on(db), *arguments, **keywords)))

    async def read(self, work: Work[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        return await self.reader.read(lambda db: run_to_end(work(self._on(db), *arguments, **keywords)))

    async def look(self, work: Work[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        return await self.reader.alone(lambda db: run_to_end(work(self._on(db), *arguments, **keywords)))

    async def erase(self, *tables: str, certain: bool) -> None:
        """Moves the write-ahead log into the file, whose freed bytes are wiped: nothing deleted is left in either."""
        del tables
        if self.writer is self.reader:
            return  # in memory: there is no file
        await (self.writer.truncate() if certain else self.writer.try_truncate())

    async def close(self) -> None:
        if self.reader is not self.writer:
            await self.reader.close()
        await self.writer.close()

    def _on(self, connection: sqlite3.Connection) -> SqliteTransaction:
        return SqliteTransaction(connection, self._runtime.now_ms)


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise AssertionError("work on SQLite waits for something else, inside a transaction")


@lru_cache(maxsize=256)
def _positional(query: str) -> tuple[str, tuple[int, ...]]:
    """The query with SQLite's ``?``, and the index of the argument for each."""
    return _PLACEHOLDER.sub("?", query), tuple(int(number) - 1 for number in _PLACEHOLDER.findall(query))
