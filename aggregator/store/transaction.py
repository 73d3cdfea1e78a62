"""What the store asks of a database: its logic is written once, and runs on SQLite and on PostgreSQL.

Every function of this room's other modules is a coroutine on a :class:`Transaction`. SQLite's never suspends, and runs
to its end in the writer's thread; PostgreSQL's runs on the event loop, beside those of other processes, in READ
COMMITTED.

What is read before it is changed is locked first, always in this order, so that no two transactions wait for each
other: partition, plan, lease, population, receipts. Whatever changes windows, outcomes or reservations holds the plan's
row; what a releaser writes, the lease's; what charges or counts, the population's; what publishes, that of the
receipts; a checkpoint and a claim, the partition's. SQLite has one writer, and needs none of it.

``window`` is quoted everywhere, for it is a word of PostgreSQL's own.
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
Row = tuple[Any, ...]  # its columns' types are the query's to know

#: The fence after ``fence``: at least the time, so that none is given out twice where a store was restored.
NEXT_FENCE: Final = "CASE WHEN fence + 1 > {now} THEN fence + 1 ELSE {now} END"


class Transaction(Protocol):
    """One transaction of a database. Placeholders are ``$1``, ``$2``, ..., as often and in any order as needed."""

    async def fetch(self, query: str, *arguments: object) -> list[Row]:
        """All rows."""

    async def fetch_row(self, query: str, *arguments: object, lock: bool = False) -> Row | None:
        """The first row, or None. With ``lock`` nobody else changes it, or locks it, until the transaction ends."""

    def rows(self, query: str, *arguments: object) -> AsyncIterator[Row]:
        """Rows one by one, of a result that may be large."""

    async def execute(self, query: str, *arguments: object) -> int:
        """The number of rows that were written."""

    async def execute_many(self, query: str, rows: Iterable[Sequence[object]]) -> None:
        """One statement for each row, whose placeholders stand once each, in order."""

    async def now_ms(self) -> int:
        """The clock by which leases are kept, now: not when the transaction began."""


Work = Callable[Concatenate[Transaction, P], Coroutine[Any, Any, T]]


class Database(Protocol):
    """Transactions.

    Raises:
        StoreUnavailableError: From every method: it cannot be reached now, and of a write it is not known whether it
            was done.
        StoreError: From every method: it is damaged, full, or somebody must put something right.
    """

    async def write(self, work: Work[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Runs ``work`` in a transaction that writes: durable when it returns, undone when it raises."""

    async def read(self, work: Work[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Runs ``work`` in a transaction that reads one moment, the last one committed."""

    async def look(self, work: Work[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Runs ``work``, which makes one query alone: as short as a read can be, and held up by no write."""

    async def erase(self, *tables: str, certain: bool) -> None:
        """Takes what was deleted, and committed, out of these tables, as far as the database can.

        Args:
            tables: Which.
            certain: Whether to raise where somebody prevents it now, be it by reading a moment before the deletion;
                else it is left to a later call.
        """

    async def close(self) -> None:
        """Closes it, after what is under way."""


_PLACEHOLDER: Final = re.compile(r"\$(\d+)")


class SqliteTransaction:
    """A :class:`aggregator.store.transaction.Transaction` on a connection that is in one already."""

    def __init__(self, connection: sqlite3.Connection, now_ms: Callable[[], int]) -> None:
        self._connection, self._now_ms = connection, now_ms

    async def fetch(self, query: str, *arguments: object) -> list[Row]:
        """All rows."""
        return self._run(query, arguments).fetchall()

    async def fetch_row(self, query: str, *arguments: object, lock: bool = False) -> Row | None:
        """The first row; there is one writer, so that nothing needs a lock."""
        del lock
        rows = self._run(query, arguments).fetchall()  # all, for a write that returns rows ends with the last one
        return rows[0] if rows else None

    async def rows(self, query: str, *arguments: object) -> AsyncIterator[Row]:
        """Rows one by one."""
        for row in self._run(query, arguments):
            yield row

    async def execute(self, query: str, *arguments: object) -> int:
        """The number of rows that were written."""
        return self._run(query, arguments).rowcount

    async def execute_many(self, query: str, rows: Iterable[Sequence[object]]) -> None:
        """One statement for each row."""
        text, order = _positional(query)
        assert order == tuple(range(len(order))), "placeholders of many rows are used once each, in order"
        self._connection.executemany(text, rows)

    async def now_ms(self) -> int:
        """The clock of this process."""
        return self._now_ms()

    def _run(self, query: str, arguments: Sequence[object]) -> sqlite3.Cursor:
        text, order = _positional(query)
        return self._connection.execute(text, [arguments[index] for index in order])


class SqliteDatabase:
    """A :class:`aggregator.store.transaction.Database` in a file, or in memory.

    Two connections: what writes, and what reads beside it, so that the read that an acknowledgement needs never waits
    for a checkpoint. In memory they are one.
    """

    def __init__(self, writer: SqliteFile, reader: SqliteFile, runtime: Runtime) -> None:
        self.writer, self.reader = writer, reader
        self._runtime = runtime

    async def write(self, work: Work[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Runs ``work`` in one transaction that writes."""
        return await self.writer.write(lambda db: self._run(db, work(self._on(db), *arguments, **keywords)))

    async def read(self, work: Work[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Runs ``work`` in one transaction that reads."""
        return await self.reader.read(lambda db: self._run(db, work(self._on(db), *arguments, **keywords)))

    async def look(self, work: Work[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """The same: a read waits for no write here."""
        return await self.read(work, *arguments, **keywords)

    async def erase(self, *tables: str, certain: bool) -> None:
        """Empties the write-ahead log into the file, whose freed bytes are wiped: nothing deleted is left in either."""
        del tables
        if self.writer is self.reader:
            return  # in memory: there is no file
        await (self.writer.truncate() if certain else self.writer.try_truncate())

    async def close(self) -> None:
        """Closes it, after what is under way."""
        if self.reader is not self.writer:
            await self.reader.close()
        await self.writer.close()

    def _on(self, connection: sqlite3.Connection) -> SqliteTransaction:
        return SqliteTransaction(connection, self._runtime.now_ms)

    def _run(self, connection: sqlite3.Connection, work: Coroutine[Any, Any, T]) -> T:
        assert connection.in_transaction
        return run_to_end(work)


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise AssertionError("work on SQLite waits for something else, inside a transaction")


@lru_cache(maxsize=256)
def _positional(query: str) -> tuple[str, tuple[int, ...]]:
    """The query as SQLite's ``?`` has it, and which argument goes into each."""
    return _PLACEHOLDER.sub("?", query), tuple(int(number) - 1 for number in _PLACEHOLDER.findall(query))
