"""The log in an SQLite file: P partitions with consecutive positions, for one process.

It is a separate file from the store, so that a checkpoint never delays an acknowledgement. SQLite shows a transaction
to readers only after its fsync, so that no entry is folded that power loss could revoke.
"""

import sqlite3
from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Final, Self

from aggregator.errors import LogError, LogGapError, LogUnavailableError
from aggregator.model import EntryBatch, NewEntry, PositionedEntry
from aggregator.runtime import Runtime, Watermark
from aggregator.sqlite import DatabaseKind, SqliteFile

LOG_FORMAT: Final = 1
_FORGET_STEP: Final = 250  # positions in a transaction, behind which appends wait
_TAIL_BYTES: Final = 16 << 20  # of the newest entries of all partitions, in memory until they are read
_TAIL_BYTES_MIN: Final = 64 << 10  # of each partition
_ROWS_MAX: Final = 256  # of one statement
_ALONE_MAX: Final = 64  # entries that one statement appends, whose text is made for their number
_COLUMNS: Final = 5  # of an entry

LOG_FILE: Final = DatabaseKind(
    what="log",
    application_id=0x48754C6F,  # "HuLo"
    version=LOG_FORMAT,
    schema=(
        """CREATE TABLE plans (
            number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, partitions INTEGER NOT NULL)""",
        # In a table of its own, so that no position is used twice after all entries are forgotten.
        """CREATE TABLE ends (
            plan INTEGER NOT NULL, partition INTEGER NOT NULL, position INTEGER NOT NULL,
            PRIMARY KEY (plan, partition)) WITHOUT ROWID""",
        """CREATE TABLE entries (
            plan INTEGER NOT NULL, partition INTEGER NOT NULL, position INTEGER NOT NULL,
            window INTEGER NOT NULL, data BLOB NOT NULL,
            PRIMARY KEY (plan, partition, position))""",
    ),
    error=LogError,
    unavailable=LogUnavailableError,
)


class _Tail:
    """The newest entries of a partition, all durable, until they are read.

    A fold that keeps up reads them here: it needs no thread, and does not compete for the interpreter row by row.
    """

    def __init__(self, bytes_max: int) -> None:
        self._entries: deque[PositionedEntry] = deque()
        self._bytes, self._bytes_max = 0, bytes_max

    def add(self, entry: PositionedEntry) -> None:
        """Adds the next entry; a later one discards the others, an earlier one is left to the file."""
        if self._entries:
            last = self._entries[-1].position
            if entry.position <= last:
                return
            if entry.position > last + 1:
                self.clear()
        self._entries.append(entry)
        self._bytes += len(entry.data)
        while self._bytes > self._bytes_max:
            self._drop()

    def read(self, position: int, limit: int) -> tuple[PositionedEntry, ...]:
        """At most ``limit`` entries from ``position`` on; none if they are only in the file."""
        while self._entries and self._entries[0].position < position:
            self._drop()
        if not self._entries or self._entries[0].position != position:
            return ()
        return tuple(islice(self._entries, limit))

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0

    def _drop(self) -> None:
        self._bytes -= len(self._entries.popleft().data)


class SqliteLog:
    """The log of one plan (see :class:`aggregator.interfaces.Log`). Made by :meth:`open`."""

    def __init__(self, plan: int, ends: list[int], writer: SqliteFile, reader: SqliteFile, runtime: Runtime) -> None:
        self._plan, self._runtime = plan, runtime
        self._writer, self._reader = writer, reader
        self._ends = [Watermark(end) for end in ends]
        bytes_max = max(_TAIL_BYTES // len(ends), _TAIL_BYTES_MIN)
        self._tails = [_Tail(bytes_max) for _ in ends]
        # The end of each partition; None: the file has to be asked. For the writer's thread alone.
        self._following: list[int] | None = None
        self._deleted: tuple[int, dict[int, int]] | None = None  # by the last :meth:`forget`

    @classmethod
    async def open(cls, path: Path, plan_id: bytes, partitions: int, runtime: Runtime) -> Self:
        """Opens the file, or creates it.

        Raises:
            LogError: Not a log, a newer format, another number of partitions, or no durability here.
        """
        writer = SqliteFile(LOG_FILE, await runtime.blocking(LOG_FILE.open_writing, path), runtime)
        try:
            await writer.alone(_advance_ends)
            plan, ends = await writer.write(lambda db: _register(db, plan_id, partitions))
            reader = SqliteFile(LOG_FILE, await runtime.blocking(LOG_FILE.open_reading, path), runtime)
        except BaseException:
            await writer.close()
            raise
        return cls(plan, ends, writer, reader, runtime)

    @classmethod
    async def look(
        cls, path: Path, plan_id: bytes, partitions: int, passed: Mapping[int, int] | None, runtime: Runtime
    ) -> None:
        """Checks what a start would find, and creates nothing; no other process may be writing the file.

        Args:
            path: The file; it may not exist yet.
            plan_id: The plan's id.
            partitions: Their number.
            passed: The stored positions of the folds, by partition; the log must hold what they need next. None: they
                are not known.
            runtime: Runs what blocks.

        Raises:
            LogGapError: The log does not hold what a fold needs next.
            LogError: Damaged, or as :meth:`open`.
        """
        if not await runtime.blocking(path.exists):
            for partition, position in sorted((passed or {}).items()):
                if position:
                    raise LogGapError(partition, position, 0)
            return
        reader = SqliteFile(LOG_FILE, await runtime.blocking(LOG_FILE.open_alone, path), runtime)
        try:
            await reader.check_pages()
            await reader.read(lambda db: _check_next(db, plan_id, partitions, passed))
        finally:
            await reader.close()

    @property
    def partitions(self) -> int:
        return len(self._ends)

    async def append(self, entries: Sequence[NewEntry]) -> list[int]:
        """Appends all entries or none, in one transaction; durable when it returns."""
        if not entries:
            return []
        if len(entries) <= _ALONE_MAX:
            positions = await self._writer.alone(lambda db: self._append_few(db, entries))
        else:
            positions = await self._writer.write(lambda db: self._append_many(db, entries))
        ends: dict[int, int] = {}
        for entry, position in zip(entries, positions, strict=True):
            self._tails[entry.partition].add(PositionedEntry(position, entry.data))
            ends[entry.partition] = position + 1
        for partition, end in ends.items():
            self._ends[partition].reach(end)
        return positions

    def _append_few(self, db: sqlite3.Connection, entries: Sequence[NewEntry]) -> list[int]:
        """In one statement: after each one this thread has to reacquire the interpreter lock."""
        following, self._following = self._following, None  # until it is certain what the file holds
        if following is not None:
            try:
                return self._insert_few(db, entries, following)
            except sqlite3.IntegrityError:  # not the ends: an append whose outcome was not known was committed
                pass
        return self._insert_few(db, entries, _ends(db, self._plan))

    def _insert_few(self, db: sqlite3.Connection, entries: Sequence[NewEntry], following: list[int]) -> list[int]:
        positions, rows = _placed(self._plan, entries, following)
        db.execute(_insertion(len(entries)), rows)
        self._following = following
        return positions

    def _append_many(self, db: sqlite3.Connection, entries: Sequence[NewEntry]) -> list[int]:
        self._following = None
        positions, rows = _placed(self._plan, entries, _ends(db, self._plan))
        _insert(db, rows, len(entries))
        return positions

    async def read(self, partition: int, position: int, limit: int, wait_s: float) -> EntryBatch:
        end = self._ends[partition]
        if position > end.value:
            raise LogGapError(partition, position, end.value)
        if not await end.reached_within(position + 1, self._runtime, wait_s):
            return EntryBatch((), position)
        # The file may be ahead of the end that is known here: an append is committed before its task continues.
        known = min(limit, end.value - position)
        entries = self._tails[partition].read(position, known)
        if entries:
            return EntryBatch(entries, position + len(entries))
        entries = await self._reader.read(lambda db: _read(db, self._plan, partition, position, known))
        return EntryBatch(entries, position + len(entries))

    async def end(self, partition: int) -> int:
        return self._ends[partition].value

    async def forget(self, window: int, below: Mapping[int, int]) -> None:
        """Erases entries of windows up to ``window`` below each partition's position.

        Raises:
            LogError: A reader keeps erased bytes in the write-ahead log. A repeated call only does the rest.
        """
        scope = (window, dict(below))
        for tail in self._tails:
            tail.clear()
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
        await self._reader.close()
        await self._writer.close()


def _register(db: sqlite3.Connection, plan_id: bytes, partitions: int) -> tuple[int, list[int]]:
    known = _registered(db, plan_id, partitions)
    if known is None:
        plan = db.execute("INSERT INTO plans (id, partitions) VALUES (?, ?)", (plan_id, partitions)).lastrowid
        assert plan is not None  # an INSERT has one
        db.executemany("INSERT INTO ends VALUES (?, ?, 0)", [(plan, partition) for partition in range(partitions)])
        return plan, [0] * partitions
    return known


def _registered(db: sqlite3.Connection, plan_id: bytes, partitions: int) -> tuple[int, list[int]] | None:
    """The plan's number, and the end of each partition; None: the plan is new."""
    row = db.execute("SELECT number, partitions FROM plans WHERE id = ?", (plan_id,)).fetchone()
    if row is None:
        return None
    plan, stored = row
    if stored != partitions:
        raise LogError(f"log: this plan has {stored} partitions, got {partitions}; the number cannot be changed")
    return plan, _ends(db, plan)


def _check_next(db: sqlite3.Connection, plan_id: bytes, partitions: int, passed: Mapping[int, int] | None) -> None:
    """Raises LogGapError if the log does not hold what a fold needs next."""
    plan, ends = _registered(db, plan_id, partitions) or (None, [0] * partitions)
    if passed is None:
        return
    for partition, end in enumerate(ends):
        position = passed.get(partition, 0)
        if end < position:
            raise LogGapError(partition, position, end)
        if plan is not None and end > position:
            _read(db, plan, partition, position, 1)


def _advance_ends(db: sqlite3.Connection) -> None:
    """Makes each entry that this connection appends advance the end of its partition, and stand nowhere but there."""
    db.executescript(
        "PRAGMA temp_store = MEMORY; "
        "CREATE TEMP TRIGGER advance_ends AFTER INSERT ON main.entries BEGIN "
        "UPDATE ends SET position = NEW.position + 1 "
        "WHERE plan = NEW.plan AND partition = NEW.partition AND position = NEW.position; "
        "SELECT RAISE(ABORT, 'an entry that is not at the end of its partition') WHERE changes() <> 1; END"
    )


def _ends(db: sqlite3.Connection, plan: int) -> list[int]:
    """The end of each partition."""
    return [end for (end,) in db.execute("SELECT position FROM ends WHERE plan = ? ORDER BY partition", (plan,))]


def _placed(plan: int, entries: Sequence[NewEntry], following: list[int]) -> tuple[list[int], list[object]]:
    """Position and columns of each entry, from the ends of the partitions on, which are advanced."""
    positions: list[int] = []
    rows: list[object] = []
    for entry in entries:
        position = following[entry.partition]
        following[entry.partition] = position + 1
        positions.append(position)
        rows += (plan, entry.partition, position, entry.window, entry.data)
    return positions, rows


def _insert(db: sqlite3.Connection, values: Sequence[object], rows: int) -> None:
    """Uses statements with a power of two rows, so that few are ever compiled."""
    start, size = 0, _ROWS_MAX
    while start < rows:
        if start + size <= rows:
            db.execute(_insertion(size), values[_COLUMNS * start : _COLUMNS * (start + size)])
            start += size
        else:
            size //= 2


@lru_cache
def _insertion(rows: int) -> str:
    return f"INSERT INTO entries VALUES {', '.join(['(?, ?, ?, ?, ?)'] * rows)}"  # noqa: S608  nothing but placeholders is put in


def _read(db: sqlite3.Connection, plan: int, partition: int, position: int, limit: int) -> tuple[PositionedEntry, ...]:
    """Entries up to the first gap; a gap at the start is an error."""
    rows: list[tuple[int, bytes]] = db.execute(
        "SELECT position, data FROM entries WHERE plan = ? AND partition = ? AND position >= ? "
        "ORDER BY position LIMIT ?",
        (plan, partition, position, limit),
    ).fetchall()
    if not rows or rows[0][0] != position:
        end = db.execute("SELECT position FROM ends WHERE plan = ? AND partition = ?", (plan, partition)).fetchone()[0]
        raise LogGapError(partition, position, rows[0][0] if rows else end)
    return tuple(PositionedEntry(*row) for count, row in enumerate(rows) if row[0] == position + count)


def _first(db: sqlite3.Connection, plan: int, partition: int) -> int:
    row = db.execute("SELECT min(position) FROM entries WHERE plan = ? AND partition = ?", (plan, partition)).fetchone()
    return 0 if row[0] is None else int(row[0])


def _forget(db: sqlite3.Connection, scope: tuple[int, int, int, int, int]) -> None:
    db.execute(
        "DELETE FROM entries WHERE plan = ? AND partition = ? AND position >= ? AND position < ? AND window <= ?", scope
    )


def log_size(path: Path) -> int:
    """The number of entries ever appended to a log, seals included; for operators' tests and demos.

    Raises:
        LogError: No log, or a newer format.
    """
    with LOG_FILE.looked_at(path) as db:
        return int(db.execute("SELECT coalesce(sum(position), 0) FROM ends").fetchone()[0])
