"""The durable state of a shuffler: the pool of reports of each window, the state of each closed window, the sent mark.

Its files link no report to a client, to an address or to the batch that it arrived in.

The reports of a window are one multiset, rewritten as a whole with each group of batches: the bytes and their places
in the file depend on the multiset alone, not on the order of arrival. Batch ids are in a table of their own, ordered by
their random number. The write-ahead log would still show which ids and reports were committed together, so it is
emptied after each commit and at each start.

A plain digest of a batch would link them too, because a batch of few reports can be found by trying. The digest is
therefore keyed with a key that is only in memory; after a restart a known id is accepted whatever its bytes are.

If two pools of one window were sent, their difference would be the reports that arrived in between, perhaps those of
one device. A reports file restored from before a close does not know the first pool. A small file next to it does,
unless it is restored as well: it holds the newest window of which anything may have been sent, and is durable before
the first byte of a window is sent.

Nothing in the folder protects against a restore of the whole folder from before a close: while its window is open, that
sends a second pool. Such a copy must not be used.

    taken ──▶ forwarding ──▶ forwarded        every batch was taken by the aggregator
          │              └─▶ lost             it no longer took all of them
          └─▶ dropped                         fewer reports than the plan asks for, or still a pool when the window was
                                              over, or from a file older than its close: nothing (more) of it is sent

A window is closed at its end plus half of the plan's lateness: one half is for devices, the other for forwarding. The
data of a window is erased at its end plus the whole lateness, once every batch has its answer. That the window is over
is kept as one number, the newest window that was closed.
"""

import enum
import hashlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from aggregator.data_dir import make_private_file
from aggregator.errors import StoreError, StoreUnavailableError
from aggregator.runtime import Runtime
from aggregator.sqlite import DatabaseKind, SqliteFile
from aggregator.windows import accepted_windows, due_ms
from hushsum.entropy import KEY_BYTES, Entropy
from hushsum.errors import PlanError, Reason
from hushsum.fsync import sync_folder
from hushsum.plan import Plan
from hushsum.schedule import Schedule, duration_text
from hushsum_proto.answers import Answer, Status

STREAM_BYTES: Final = 8  # of a batch's id
_NONE: Final = "none"


class SentWatermark:
    """The newest window of which anything may have been sent, in a file of its own; its methods block.

    If the reports file is about to be created (``fresh``), nothing was sent unless this file says so.

    Attributes:
        through: That window; None: nothing was sent.
        known: False if this file is missing although there are reports: they were restored without it.

    Raises:
        StoreError: The file holds something else, or cannot be read or written.
    """

    def __init__(self, path: Path, *, fresh: bool) -> None:
        self._path = path
        self.through: int | None = None
        self.known = True
        try:
            self.through = _number(path)
        except FileNotFoundError:
            self.known = fresh
            if fresh:
                self._write(_NONE)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise StoreError(f"{path}: invalid content, expected the newest forwarded window") from error

    def reach(self, window: int) -> None:
        """Makes it durable that reports of this window and of all before it may be sent; call this before sending.

        Raises:
            StoreUnavailableError: It could not be written: nothing may be sent.
        """
        if self.known and self.through is not None and self.through >= window:
            return
        newest = window if self.through is None else max(self.through, window)
        self._write(str(newest))
        self.through, self.known = newest, True

    def _write(self, text: str) -> None:
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            make_private_file(new)
            with new.open("w", encoding="ascii") as file:
                file.write(f"{text}\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
            sync_folder(self._path.parent)
        except OSError as error:
            raise StoreUnavailableError(f"{self._path}: {error.strerror}") from error


def _number(path: Path) -> int | None:
    text = path.read_text(encoding="ascii").strip()
    return None if text == _NONE else int(text)


T = TypeVar("T")
Int64 = npt.NDArray[np.int64]

_VALUE: Final = np.dtype("<u4")  # a report is below 2^31
_COUNTS: Final = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
_KEY_BYTES: Final = 8


@dataclass(frozen=True, eq=False)
class ReportPool:
    """A multiset of reports: the distinct ones, ascending and below 2³², and how often each occurs."""

    values: Int64
    counts: Int64

    @classmethod
    def of(cls, reports: Int64) -> Self:
        values, counts = np.unique(reports, return_counts=True)
        return cls(values.astype(np.int64), counts.astype(np.int64))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        width = data[0]
        number = (len(data) - 1) // (_VALUE.itemsize + width)
        values = np.frombuffer(data, _VALUE, number, 1)
        counts = np.frombuffer(data, _COUNTS[width], number, 1 + values.nbytes)
        return cls(values.astype(np.int64), counts.astype(np.int64))

    def to_bytes(self) -> bytes:
        """The width of a count (1 byte), the values (4 bytes each), the counts; little-endian."""
        most = int(self.counts.max(initial=0))
        width = next(width for width in _COUNTS if most < 1 << 8 * width)
        return bytes([width]) + self.values.astype(_VALUE).tobytes() + self.counts.astype(_COUNTS[width]).tobytes()

    @property
    def size(self) -> int:
        return int(self.counts.sum())

    def plus(self, other: "ReportPool") -> "ReportPool":
        values = np.union1d(self.values, other.values)
        counts = np.zeros(values.size, dtype=np.int64)
        for pool in (self, other):
            counts[np.searchsorted(values, pool.values)] += pool.counts
        return ReportPool(values, counts)

    def reports(self) -> Int64:
        return np.repeat(self.values, self.counts)


def sizes_of(total: int, least: int, most: int) -> list[int]:
    """Sizes of the batches of ``total`` reports: as few batches as fit, as equal as possible.

    Each has ``least`` to ``most`` reports; ``total`` is at least ``least``, and ``most`` twice that, as in every plan.
    """
    assert least <= total, "what is smaller is dropped"
    assert 2 * least <= most, "a plan's delta_records_max is at least twice its shuffle_min"
    number = -(-total // most)
    # number ≥ 2: total > (number − 1)·most ≥ 2·(number − 1)·least ≥ number·least, so that the smallest is ≥ least.
    smaller, larger = divmod(total, number)
    return [smaller + 1] * larger + [smaller] * (number - larger)


def split(pool: ReportPool, sizes: list[int], entropy: Entropy) -> list[Int64]:
    """Splits the pool into batches of these sizes, uniformly at random; each batch is ascending.

    Every assignment of reports to places is equally likely: the reports are sorted by independent uniform keys, which
    are drawn again in the (rare) case that two are equal.
    """
    reports = pool.reports()
    assert sum(sizes) == reports.size
    if len(sizes) == 1:
        return [reports]
    while True:
        keys = np.frombuffer(entropy.read(_KEY_BYTES * reports.size), dtype=np.uint64)
        order = np.argsort(keys)
        ranked = keys[order]
        if not np.any(ranked[1:] == ranked[:-1]):
            break
    shuffled = reports[order]
    return [np.sort(part) for part in np.split(shuffled, np.cumsum(sizes)[:-1])]


HALF_MS_MIN: Final = 2000  # for a commit, a connection and an answer, on both sides of the close


class ClosedState(enum.StrEnum):
    """The state of a closed window; stored under these names."""

    FORWARDING = "forwarding"
    FORWARDED = "forwarded"
    LOST = "lost"
    DROPPED = "dropped"


class ForwardResult(enum.Enum):
    """The meaning of the aggregator's answer for a batch."""

    DELIVERED = "delivered"
    LOST = "lost"
    AGAIN = "again"


def check_plan(plan: Plan) -> int:
    """The fewest reports of a batch (``shuffle_min``).

    Raises:
        PlanError: The plan has no shuffler, or too little lateness for one.
    """
    least = plan.privacy.shuffle_min
    if least < 1:
        expected = "at least 1: this plan has no shuffler"
        raise PlanError("privacy.local.shuffle_min", least, expected)
    lateness_ms = plan.window.lateness_ms
    if lateness_ms // 2 < HALF_MS_MIN:
        shortest = duration_text(2 * HALF_MS_MIN)
        expected = (
            f"at least '{shortest}' with a shuffler: half for devices, and half for the shuffler to forward reports"
        )
        raise PlanError("window.lateness", duration_text(lateness_ms), expected)
    return least


def device_schedule(schedule: Schedule) -> Schedule:
    """The schedule that devices see: the shuffler takes their reports for half of the lateness."""
    return replace(schedule, lateness_ms=schedule.lateness_ms // 2)


def close_ms(schedule: Schedule, window: int) -> int:
    """When a window closes: nothing is taken for it from then on."""
    return due_ms(device_schedule(schedule), window)


def newest_due(schedule: Schedule, now_ms: int) -> int:
    """The newest window that is due to be closed."""
    return schedule.index_at(now_ms - schedule.lateness_ms // 2) - 1


def taken_windows(schedule: Schedule, now_ms: int, *, skew_ms: int, closed_through: int | None) -> range:
    """The windows that reports are taken for, if a device's clock may run ``skew_ms`` ahead.

    ``closed_through`` is the newest window that was ever closed: a clock that is set back reopens none.
    """
    closed = newest_due(schedule, now_ms) if closed_through is None else closed_through
    return accepted_windows(device_schedule(schedule), now_ms, skew_ms=skew_ms, first_window=closed + 1)


def is_over(schedule: Schedule, window: int, now_ms: int) -> bool:
    """Whether, by this clock, the aggregator takes nothing for the window any more."""
    return now_ms >= due_ms(schedule, window)


def status_after_close(state: ClosedState | None, *, known: bool, over: bool) -> Status:
    """The answer to a batch of a closed window.

    ``state`` is None if the window is being closed, had no reports, or is erased; ``known`` says whether the batch was
    taken in time, as far as that is still known; ``over``: :func:`is_over`.
    """
    if state is ClosedState.DROPPED or (state is None and over):
        return Status.UNKNOWN  # which batches were taken is erased
    if not known:
        return Status.LATE
    if state is ClosedState.LOST:
        return Status.UNKNOWN  # the aggregator took some of the window's batches and not others
    return Status.COUNTED if state is ClosedState.FORWARDED else Status.ACKNOWLEDGED


def result_for(answer: Answer, *, over: bool) -> ForwardResult:
    """The meaning of the aggregator's answer for a batch.

    An operator may still be able to fix a refusal that does not ask for a retry (a directory without this shuffler's
    key): the same bytes are sent again until the window is over (``over``: :func:`is_over`).
    """
    if answer.status in {Status.ACKNOWLEDGED, Status.COUNTED}:
        return ForwardResult.DELIVERED
    if answer.refusal is None:  # late, or the aggregator has forgotten the window
        return ForwardResult.LOST
    return ForwardResult.AGAIN if answer.refusal.retry or not over else ForwardResult.LOST


class TakenBatch(NamedTuple):
    """A batch from a device, without its sender: its id (``stream``) is 8 random bytes.

    Of the packed bytes (``data``) a keyed digest is stored.
    """

    window: int
    stream: bytes
    data: bytes
    reports: Int64


class PoolAnswer(NamedTuple):
    """What the file knows of a batch: whether its window is open, and else its state; whether its id is known."""

    is_open: bool
    known: bool
    state: ClosedState | None


class OutgoingBatch(NamedTuple):
    """A batch to forward, with fixed bytes and signature (tag)."""

    window: int
    stream: bytes
    batch: bytes
    tag: bytes


class KeptPlan(NamedTuple):
    """The bundle of this shuffler's plan, with the signature that came with it (suite 0: none)."""

    bundle: bytes
    key_id: str
    suite: int
    signature: bytes


_DIGEST_BYTES: Final = 16
_SENT: Final = "shuffler.left"
_TABLES: Final = (
    (
        "CREATE TABLE plan (only INTEGER PRIMARY KEY CHECK (only = 1), bundle BLOB NOT NULL, key_id TEXT NOT NULL,"
        " suite INTEGER NOT NULL, signature BLOB NOT NULL)"
    ),
    "CREATE TABLE progress (only INTEGER PRIMARY KEY CHECK (only = 1), closed_through INTEGER NOT NULL)",
    "CREATE TABLE windows (window INTEGER PRIMARY KEY, state TEXT NOT NULL)",
    "CREATE TABLE pools (window INTEGER PRIMARY KEY, reports BLOB NOT NULL)",
    # Without row ids, which would number the batches in the order of arrival.
    "CREATE TABLE ids (stream BLOB PRIMARY KEY, window INTEGER NOT NULL, digest BLOB) WITHOUT ROWID",
    (
        "CREATE TABLE outgoing (stream BLOB PRIMARY KEY, window INTEGER NOT NULL, batch BLOB NOT NULL,"
        " tag BLOB NOT NULL) WITHOUT ROWID"
    ),
)
KIND: Final = DatabaseKind("shuffler", 0x48555353, 1, _TABLES, StoreError, unavailable=StoreUnavailableError)  # "HUSS"


class ReportsFile:
    """The shuffler's database and its sent watermark. Made by :meth:`open`.

    Every method raises:
        StoreError: The file cannot be used, or not now (StoreUnavailableError).
    """

    def __init__(
        self, database: SqliteFile, sent_watermark: SentWatermark, runtime: Runtime, digest_key: bytes
    ) -> None:
        self._database = database
        self.sent = sent_watermark
        self._runtime = runtime
        self._digest_key = digest_key

    @classmethod
    async def open(cls, path: Path, runtime: Runtime, entropy: Entropy) -> "ReportsFile":
        """Opens or creates the file, and erases what a crash left in its write-ahead log."""
        # First: once there are reports, a missing watermark means that they were restored without it.
        sent_watermark = await runtime.blocking(lambda: SentWatermark(path.with_name(_SENT), fresh=not path.exists()))
        database = SqliteFile(KIND, await runtime.blocking(KIND.open_writing, path), runtime)
        file = cls(database, sent_watermark, runtime, entropy.read(KEY_BYTES))
        # Digests under the key of an earlier process cannot be compared with anything.
        await database.write(lambda db: db.execute("UPDATE ids SET digest = NULL WHERE digest IS NOT NULL"))
        await file.tidy()
        return file

    async def close(self) -> None:
        await self._database.close()

    async def tidy(self) -> None:
        """Empties the write-ahead log, which shows what was committed together."""
        await self._database.truncate()

    async def plan(self) -> KeptPlan | None:
        """The plan that the file belongs to; None in a new file."""
        rows = await self._rows("SELECT bundle, key_id, suite, signature FROM plan")
        return KeptPlan(*rows[0]) if rows else None

    async def keep_plan(self, plan: KeptPlan) -> None:
        await self._database.write(lambda db: db.execute("INSERT INTO plan VALUES (1, ?, ?, ?, ?)", plan))

    async def take(self, batches: Sequence[TakenBatch]) -> list[PoolAnswer | Reason]:
        """Adds the batches with new ids to the pools of their windows; durable when it returns.

        Returns:
            One answer a batch; a reason if its id was used before with another window or other bytes.
        """
        return await self._database.write(lambda db: self._take(db, batches))

    def _take(self, db: sqlite3.Connection, batches: Sequence[TakenBatch]) -> list[PoolAnswer | Reason]:
        closed = _closed_through(db)
        answers: dict[int, PoolAnswer | Reason] = {}
        new: dict[int, list[Int64]] = {}
        # In the order of their random numbers: a page of the table keeps its rows in the order of insertion.
        for place in sorted(range(len(batches)), key=lambda place: batches[place].stream):
            taken = batches[place]
            answers[place] = found = self._known(db, taken, closed)
            if isinstance(found, PoolAnswer) and found.is_open and not found.known:
                row = taken.stream, taken.window, self._digest(taken.data)
                db.execute("INSERT INTO ids VALUES (?, ?, ?)", row)
                new.setdefault(taken.window, []).append(taken.reports)
        for window, reports in new.items():
            _pool_more(db, window, reports)
        return [answers[place] for place in range(len(batches))]

    def _known(self, db: sqlite3.Connection, taken: TakenBatch, closed: int | None) -> PoolAnswer | Reason:
        row = db.execute("SELECT window, digest FROM ids WHERE stream = ?", (taken.stream,)).fetchone()
        if row is not None and row[0] != taken.window:
            return Reason.ID_OF_ANOTHER_WINDOW
        if row is not None and row[1] not in {None, self._digest(taken.data)}:
            return Reason.ID_REUSED
        is_open = closed is None or taken.window > closed
        return PoolAnswer(is_open, row is not None, None if is_open else _state(db, taken.window))

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._digest_key, digest_size=_DIGEST_BYTES).digest()

    async def closed_through(self) -> int | None:
        """The newest closed window; None if there is none."""
        return await self._database.read(_closed_through)

    async def close_through(self, window: int) -> None:
        """Closes all windows up to this one: no more reports are taken for them."""

        def close(db: sqlite3.Connection) -> None:
            closed = _closed_through(db)
            if closed is None or closed < window:
                db.execute("INSERT OR REPLACE INTO progress VALUES (1, ?)", (window,))

        await self._database.write(close)

    async def closed_pools(self) -> list[int]:
        """The closed windows whose reports are still one pool."""
        rows = await self._rows(
            "SELECT window FROM pools WHERE window <= (SELECT closed_through FROM progress) ORDER BY window"
        )
        return [window for (window,) in rows]

    async def pool(self, window: int) -> ReportPool:
        ((data,),) = await self._rows("SELECT reports FROM pools WHERE window = ?", window)
        return ReportPool.from_bytes(data)

    async def fix(self, window: int, batches: Sequence[OutgoingBatch]) -> None:
        """Replaces the pool of a window by batches: from now on exactly these bytes are sent."""

        def fix(db: sqlite3.Connection) -> None:
            for each in sorted(batches, key=lambda each: each.stream):
                db.execute("INSERT INTO outgoing VALUES (?, ?, ?, ?)", (each.stream, window, each.batch, each.tag))
            db.execute("DELETE FROM pools WHERE window = ?", (window,))
            _put_state(db, window, ClosedState.FORWARDING)

        await self._erase(fix)

    async def drop(self, window: int) -> None:
        def drop(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM pools WHERE window = ?", (window,))
            db.execute("DELETE FROM ids WHERE window = ?", (window,))
            _put_state(db, window, ClosedState.DROPPED)

        await self._erase(drop)

    async def mark_sent(self, window: int) -> None:
        """Makes it durable that reports of the windows up to this one may be sent; call this before sending."""
        await self._runtime.blocking(self.sent.reach, window)

    async def outgoing(self) -> list[tuple[int, bytes]]:
        """(window, stream) of each batch without an answer, the oldest windows first."""
        return await self._rows("SELECT window, stream FROM outgoing ORDER BY window, stream")

    async def batch(self, stream: bytes) -> OutgoingBatch:
        (row,) = await self._rows("SELECT window, stream, batch, tag FROM outgoing WHERE stream = ?", stream)
        return OutgoingBatch(*row)

    async def answered(self, window: int, stream: bytes, *, lost: bool) -> ClosedState:
        """Erases a batch that has its answer; returns the new state of its window."""

        def answered(db: sqlite3.Connection) -> ClosedState:
            db.execute("DELETE FROM outgoing WHERE stream = ?", (stream,))
            left = db.execute("SELECT count(*) FROM outgoing WHERE window = ?", (window,)).fetchone()[0]
            state = ClosedState.LOST if lost else _state(db, window)
            if not left and state is ClosedState.FORWARDING:
                state = ClosedState.FORWARDED
            assert state is not None, "a window with a batch that is forwarded"
            _put_state(db, window, state)
            return state

        return await self._erase(answered)

    async def finished(self) -> list[tuple[int, ClosedState]]:
        """The windows with nothing left to send that are not erased yet, and their states."""
        rows = await self._rows(
            "SELECT window, state FROM windows WHERE window NOT IN (SELECT window FROM outgoing) ORDER BY window"
        )
        return [(window, ClosedState(state)) for window, state in rows]

    async def erase(self, window: int) -> None:
        def erase(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM ids WHERE window = ?", (window,))
            db.execute("DELETE FROM windows WHERE window = ?", (window,))

        await self._erase(erase)

    async def _rows(self, query: str, *values: object) -> list[Any]:  # Any: rows of different columns
        return await self._database.read(lambda db: db.execute(query, values).fetchall())

    async def _erase(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs a transaction that erases, and empties the write-ahead log of what was erased."""
        result = await self._database.write(work)
        await self.tidy()
        return result


def _closed_through(db: sqlite3.Connection) -> int | None:
    row = db.execute("SELECT closed_through FROM progress").fetchone()
    return None if row is None else int(row[0])


def _state(db: sqlite3.Connection, window: int) -> ClosedState | None:
    row = db.execute("SELECT state FROM windows WHERE window = ?", (window,)).fetchone()
    return None if row is None else ClosedState(row[0])


def _put_state(db: sqlite3.Connection, window: int, state: ClosedState) -> None:
    db.execute("INSERT OR REPLACE INTO windows VALUES (?, ?)", (window, state.value))


def _pool_more(db: sqlite3.Connection, window: int, reports: Sequence[Int64]) -> None:
    pool = ReportPool.of(np.concatenate(reports))
    row = db.execute("SELECT reports FROM pools WHERE window = ?", (window,)).fetchone()
    if row is not None:
        pool = ReportPool.from_bytes(row[0]).plus(pool)
    db.execute("INSERT OR REPLACE INTO pools VALUES (?, ?)", (window, pool.to_bytes()))
