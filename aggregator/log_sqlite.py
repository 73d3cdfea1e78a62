"""The log in an SQLite file: P partitions of consecutive positions, for one process.

It is a file apart from the store, so that a checkpoint never holds up an acknowledgement. SQLite shows a transaction to
readers only after its fsync, so nothing is ever folded that power loss could take back.
"""

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Self

from aggregator.errors import LogError, LogGapError
from aggregator.milestone import Milestone
from aggregator.ports import Appended, Runtime, Stretch
from aggregator.records import Logged
from aggregator.sqlite import Database, DatabaseKind

LOG_FORMAT: Final = 1
_FORGET_STEP: Final = 250  # positions a transaction: appends wait behind it

LOG_FILE: Final = DatabaseKind(
    what="log",
    application_id=0x48754C6F,  # "HuLo"
    version=LOG_FORMAT,
    schema=(
        """CREATE TABLE plans (
            number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, partitions INTEGER NOT NULL)""",
        # Apart from the entries, so that a position is never given twice when all entries are forgotten.
        """CREATE TABLE ends (
            plan INTEGER NOT NULL, partition INTEGER NOT NULL, position INTEGER NOT NULL,
            PRIMARY KEY (plan, partition)) WITHOUT ROWID""",
        """CREATE TABLE entries (
            plan INTEGER NOT NULL, partition INTEGER NOT NULL, position INTEGER NOT NULL,
            window INTEGER NOT NULL, data BLOB NOT NULL,
            PRIMARY KEY (plan, partition, position))""",
    ),
    error=LogError,
)


class SqliteLog:
    """The log of one plan (see :class:`aggregator.ports.Log`). Made by :meth:`open`."""

    def __init__(self, plan: int, ends: list[int], writer: Database, reader: Database, runtime: Runtime) -> None:
        self._plan, self._runtime = plan, runtime
        self._writer, self._reader = writer, reader
        self._ends = [Milestone(end) for end in ends]
        self._deleted: tuple[int, dict[int, int]] | None = None  # by the last :meth:`forget`

    @classmethod
    async def open(cls, path: Path, plan_id: bytes, partitions: int, runtime: Runtime) -> Self:
        """Opens the file, and makes it where it is not there.

        Raises:
            LogError: Not a log, a newer format, another number of partitions, or no durability here.
        """
        writer = Database(LOG_FILE, await runtime.blocking(LOG_FILE.open_writing, path), runtime)
        try:
            plan, ends = await writer.write(lambda db: _register(db, plan_id, partitions))
            reader = Database(LOG_FILE, await runtime.blocking(LOG_FILE.open_reading, path), runtime)
        except BaseException:
            await writer.close()
            raise
        return cls(plan, ends, writer, reader, runtime)

    @property
    def partitions(self) -> int:
        """P."""
        return len(self._ends)

    async def append(self, entries: Sequence[Appended]) -> list[int]:
        """Appends all entries or none, in one transaction; durable when it returns."""
        positions = await self._writer.write(lambda db: _append(db, self._plan, entries))
        for entry, position in zip(entries, positions, strict=True):
            self._ends[entry.partition].reach(position + 1)
        return positions

    async def read(self, partition: int, position: int, limit: int, wait_s: float) -> Stretch:
        """At most ``limit`` entries from ``position`` on; waits for the first. Its end follows its last."""
        end = self._ends[partition]
        if position > end.value:
            raise LogGapError(partition, position, end.value)
        if not await end.reached_within(position + 1, self._runtime, wait_s):
            return Stretch((), position)
        # The file may be ahead of the end that is known here: an append is committed before its task goes on.
        known = min(limit, end.value - position)
        entries = await self._reader.read(lambda db: _read(db, self._plan, partition, position, known))
        return Stretch(entries, position + len(entries))

    async def end(self, partition: int) -> int:
        """The position that the next entry will get."""
        return self._ends[partition].value

    async def forget(self, window: int, below: Mapping[int, int]) -> None:
        """Erases entries of windows up to ``window`` that stand below each partition's position.

        Raises:
            LogError: A reader keeps erased bytes in the write-ahead log. Asked for the same again, it does no more than
                what is left to do.
        """
        scope = (window, dict(below))
        if self._deleted != scope:
            await self._delete(window, below)
            self._deleted = scope
        await self._writer.truncate()

    async def _delete(self, window: int, below: Mapping[int, int]) -> None:
        for partition, stop in below.items():
            start = await self._reader.read(partial(_first, plan=self._plan, partition=partition))
            for step in range(start, stop, _FORGET_STEP):
                scope = (self._plan, partition, step, min(step + _FORGET_STEP, stop), window)
                await self._writer.write(partial(_forget, scope=scope))

    async def close(self) -> None:
        """Closes the file, after what is under way."""
        await self._reader.close()
        await self._writer.close()


def _register(db: sqlite3.Connection, plan_id: bytes, partitions: int) -> tuple[int, list[int]]:
    row = db.execute("SELECT number, partitions FROM plans WHERE id = ?", (plan_id,)).fetchone()
    if row is None:
        plan = db.execute("INSERT INTO plans (id, partitions) VALUES (?, ?)", (plan_id, partitions)).lastrowid
        assert plan is not None  # an INSERT has one
        db.executemany("INSERT INTO ends VALUES (?, ?, 0)", [(plan, partition) for partition in range(partitions)])
        return plan, [0] * partitions
    plan, stored = row
    if stored != partitions:
        raise LogError(f"log: this plan's entries are in {stored} partitions, not {partitions}; it stays as it began")
    rows = db.execute("SELECT position FROM ends WHERE plan = ? ORDER BY partition", (plan,)).fetchall()
    return plan, [end for (end,) in rows]


def _append(db: sqlite3.Connection, plan: int, entries: Sequence[Appended]) -> list[int]:
    added = Counter(entry.partition for entry in entries)
    following: dict[int, int] = {}
    for partition, count in added.items():
        row = db.execute(
            "UPDATE ends SET position = position + ? WHERE plan = ? AND partition = ? RETURNING position",
            (count, plan, partition),
        ).fetchone()
        assert row is not None, f"partition {partition} does not exist"
        following[partition] = row[0] - count
    positions = []
    for entry in entries:
        positions.append(following[entry.partition])
        following[entry.partition] += 1
    db.executemany(
        "INSERT INTO entries VALUES (?, ?, ?, ?, ?)",
        [
            (plan, entry.partition, position, entry.window, entry.data)
            for entry, position in zip(entries, positions, strict=True)
        ],
    )
    return positions


def _read(db: sqlite3.Connection, plan: int, partition: int, position: int, limit: int) -> tuple[Logged, ...]:
    """Entries up to the first gap; a gap at the start is an error."""
    rows: list[tuple[int, bytes]] = db.execute(
        "SELECT position, data FROM entries WHERE plan = ? AND partition = ? AND position >= ? "
        "ORDER BY position LIMIT ?",
        (plan, partition, position, limit),
    ).fetchall()
    if not rows or rows[0][0] != position:
        end = db.execute("SELECT position FROM ends WHERE plan = ? AND partition = ?", (plan, partition)).fetchone()[0]
        raise LogGapError(partition, position, rows[0][0] if rows else end)
    return tuple(Logged(*row) for count, row in enumerate(rows) if row[0] == position + count)


def _first(db: sqlite3.Connection, plan: int, partition: int) -> int:
    row = db.execute("SELECT min(position) FROM entries WHERE plan = ? AND partition = ?", (plan, partition)).fetchone()
    return 0 if row[0] is None else int(row[0])


def _forget(db: sqlite3.Connection, scope: tuple[int, int, int, int, int]) -> None:
    db.execute(
        "DELETE FROM entries WHERE plan = ? AND partition = ? AND position >= ? AND position < ? AND window <= ?", scope
    )
