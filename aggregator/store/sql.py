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

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

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
