"""What a shuffler keeps: a window's reports as one multiset, what becomes of each window, and what may have left.

Nothing in its files tells whose a report is, or in which batch it came.

A window's reports are one multiset, written anew as a whole with each group that is taken, so that its bytes and their
places are a function of the multiset. Ids of batches stand in a table of their own, by their random number. What one
commit changes in both would still join them in the write-ahead log, so that is emptied after each, and at each start.

A digest of a batch would be such a joint as well, since a batch of few reports is found by trying. It is keyed by a key
that is in memory alone; after a restart a known id is therefore known whatever its bytes are.

Were two pools of one window sent, their difference would be what came in between, or what was lost: the reports of one
device, perhaps. A reports file that is put back from before a cut knows nothing of the first pool. A small file beside
it does, as long as it is not put back as well: it holds the newest window of which anything may have left. It is
written, and durable, before the first byte of a window leaves.

Against a whole folder that is put back from before a cut nothing in the folder can help. While its window is open, that
sends a second pool: such a copy must not be used.

The bytes of a pool are a function of its multiset alone: they tell nothing of what came first, or with what.

    taken ──▶ forwarding ──▶ forwarded        every batch was taken by the aggregator
          │              └─▶ lost             it took none of them any more, or not all
          └─▶ dropped                         fewer reports than the plan asks for, or found when the window was over,
                                              or in a file from before its cut: nothing of it leaves, or nothing more

A window is cut at its end plus half the plan's lateness: devices have the one half, forwarding has the other. What is
known of a window is erased at its end plus the whole lateness, if every batch has its answer by then; that it is over
is kept as one number, the newest window that was cut.
"""

import enum
import hashlib
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from aggregator.data_dir import make_private_file
from aggregator.errors import StoreError, StoreUnavailableError
from aggregator.runtime import Runtime
from aggregator.sqlite import DatabaseKind, SqliteFile
from hushsum.durable import sync_folder
from hushsum.entropy import KEY_BYTES, Entropy
from hushsum.errors import PlanError, Reason
from hushsum.plan import Plan
from hushsum.schedule import Schedule, duration_text
from hushsum_proto.answers import Answer, Status

_NONE: Final = "none"


class SentWatermark:
    """The file; its methods block.

    Args:
        path: Where it is.
        fresh: Whether the reports file beside it is about to be made: nothing has left, unless this file says so.

    Attributes:
        through: The newest window of which something may have left; None: nothing has.
        known: False where the file is not there and reports are: they were put back without it.

    Raises:
        StoreError: It holds something else, or cannot be read or written.
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
            raise StoreError(f"{path}: it holds something else than the newest window that has left") from error

    def reach(self, window: int) -> None:
        """Something of this window, and of all before it, may leave once this returns.

        Raises:
            StoreUnavailableError: It could not be written: nothing may leave.
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


Int64 = npt.NDArray[np.int64]

_VALUE: Final = np.dtype("<u4")  # a report is below 2^31
_COUNTS: Final = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
_KEY_BYTES: Final = 8


@dataclass(frozen=True, eq=False)
class ReportPool:
    """A multiset of reports.

    Attributes:
        values: Those that occur, ascending; below 2³².
        counts: How often each occurs, at least once.
    """

    values: Int64
    counts: Int64

    @classmethod
    def of(cls, reports: Int64) -> Self:
        """The pool of these reports, in any order."""
        values, counts = np.unique(reports, return_counts=True)
        return cls(values.astype(np.int64), counts.astype(np.int64))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What :meth:`to_bytes` wrote."""
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
        """How many reports are in it."""
        return int(self.counts.sum())

    def plus(self, other: "ReportPool") -> "ReportPool":
        """Both in one."""
        values = np.union1d(self.values, other.values)
        counts = np.zeros(values.size, dtype=np.int64)
        for pool in (self, other):
            counts[np.searchsorted(values, pool.values)] += pool.counts
        return ReportPool(values, counts)

    def reports(self) -> Int64:
        """Each report, ascending."""
        return np.repeat(self.values, self.counts)


def sizes_of(total: int, least: int, most: int) -> list[int]:
    """How large the batches of so many reports are: as few as fit, as equal as possible; none below ``least``.

    Args:
        total: At least ``least``.
        least: Reports of a batch, at least.
        most: Reports of a batch, at most: twice ``least`` or more, as every plan has it.
    """
    assert least <= total, "what is smaller is dropped"
    assert 2 * least <= most, "a plan's delta_records_max is at least twice its shuffle_min"
    number = -(-total // most)
    # number ≥ 2: total > (number − 1)·most ≥ 2·(number − 1)·least ≥ number·least, so that the smallest is ≥ least.
    smaller, larger = divmod(total, number)
    return [smaller + 1] * larger + [smaller] * (number - larger)


def split(pool: ReportPool, sizes: list[int], entropy: Entropy) -> list[Int64]:
    """The pool in batches of these sizes, each ascending: which report stands in which is uniformly random.

    Every assignment of the reports to places is as likely as every other: they are sorted by independent uniform keys,
    which are drawn again in the (rare) case that two are equal.

    Args:
        pool: What is split.
        sizes: They add up to the pool's.
        entropy: Where the keys come from.
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


HALF_MS_MIN: Final = 2000  # for a commit, a connection and an answer, on both sides of the cut


class CutState(enum.StrEnum):
    """What became of a window that was cut; stored under these names."""

    FORWARDING = "forwarding"
    FORWARDED = "forwarded"
    LOST = "lost"
    DROPPED = "dropped"


class ForwardResult(enum.Enum):
    """What an answer of the aggregator means for a batch."""

    DELIVERED = "delivered"
    LOST = "lost"
    AGAIN = "again"


def check_plan(plan: Plan) -> int:
    """The least number of reports in a batch, of a plan that has a shuffler.

    Raises:
        PlanError: It has none, or too little time for one.
    """
    least = plan.privacy.shuffle_min
    if least < 1:
        expected = "at least 1: the devices of this plan send to the aggregator itself, and it takes nothing else"
        raise PlanError("privacy.local.shuffle_min", least, expected)
    lateness_ms = plan.window.lateness_ms
    if lateness_ms // 2 < HALF_MS_MIN:
        shortest = duration_text(2 * HALF_MS_MIN)
        expected = f"at least '{shortest}' with a shuffler: half of it is for devices, half for what it forwards"
        raise PlanError("window.lateness", duration_text(lateness_ms), expected)
    return least


def cut_ms(schedule: Schedule, window: int) -> int:
    """When a window is cut: nothing is taken for it from then on."""
    return schedule.end_ms(window) + schedule.lateness_ms // 2


def newest_cut(schedule: Schedule, now_ms: int) -> int:
    """The newest window whose cut has come."""
    return schedule.index_at(now_ms - schedule.lateness_ms // 2) - 1


def taken_windows(schedule: Schedule, now_ms: int, *, skew_ms: int, closed_through: int | None) -> range:
    """The windows that reports are taken for.

    Args:
        schedule: The plan's windows.
        now_ms: The shuffler's clock.
        skew_ms: How far a device's clock may run ahead.
        closed_through: The newest window that was cut, ever: a clock that is set back opens none again.
    """
    oldest = newest_cut(schedule, now_ms) + 1
    if closed_through is not None:
        oldest = max(oldest, closed_through + 1)
    return range(oldest, max(schedule.index_at(now_ms + skew_ms), oldest - 1) + 1)


def is_over(schedule: Schedule, window: int, now_ms: int) -> bool:
    """Whether the aggregator takes nothing for it any more, by this clock."""
    return now_ms >= schedule.end_ms(window) + schedule.lateness_ms


def word(state: CutState | None, *, known: bool, over: bool) -> Status:
    """What a sender is told about a batch of a window that was cut.

    Args:
        state: Of the window; None: it is still being cut, had no reports, or is erased.
        known: Whether the batch was taken in its time, as far as that is remembered.
        over: :func:`is_over`.
    """
    if state is CutState.DROPPED or (state is None and over):
        return Status.UNKNOWN  # which batches were taken is forgotten
    if not known:
        return Status.LATE
    if state is CutState.LOST:
        return Status.UNKNOWN  # its reports may be in what the aggregator took, and may be in what it did not
    return Status.COUNTED if state is CutState.FORWARDED else Status.ACKNOWLEDGED


def result_for(answer: Answer, *, over: bool) -> ForwardResult:
    """What an answer means for a batch.

    A refusal that says nothing of trying again may still be an operator's to put right (a directory without this
    shuffler's key): the same bytes are sent again as long as the window is open.

    Args:
        answer: The aggregator's.
        over: :func:`is_over`.
    """
    if answer.status in {Status.ACKNOWLEDGED, Status.COUNTED}:
        return ForwardResult.DELIVERED
    if answer.refusal is None:  # late, or the aggregator has forgotten the window
        return ForwardResult.LOST
    return ForwardResult.AGAIN if answer.refusal.retry or not over else ForwardResult.LOST


class TakenBatch(NamedTuple):
    """A batch that somebody sent: what of it is still known when it comes here.

    Attributes:
        window: Its window.
        stream: Its id: random, 8 bytes.
        data: Its packed bytes, of which a keyed digest is kept.
        reports: What is in it.
    """

    window: int
    stream: bytes
    data: bytes
    reports: Int64


class ClosedWindowAnswer(NamedTuple):
    """A batch of a window that was cut.

    Attributes:
        is_open: The window was not cut yet: the batch is in its pool.
        known: Its id was taken in its time.
        state: Of a window that was cut.
    """

    is_open: bool
    known: bool
    state: CutState | None


@dataclass(frozen=True)
class OutgoingBatch:
    """A batch that is forwarded: its bytes are fixed, and so is its signature."""

    window: int
    stream: bytes
    batch: bytes
    tag: bytes


@dataclass(frozen=True)
class KeptPlan:
    """The plan of this shuffler: its bundle, with the signature that came with it (suite 0: none)."""

    bundle: bytes
    key_id: str
    suite: int
    signature: bytes


_DIGEST_BYTES: Final = 16
_DEPARTURES: Final = "shuffler.left"
_TABLES: Final = (
    (
        "CREATE TABLE plan (only INTEGER PRIMARY KEY CHECK (only = 1), bundle BLOB NOT NULL, key_id TEXT NOT NULL,"
        " suite INTEGER NOT NULL, signature BLOB NOT NULL)"
    ),
    "CREATE TABLE progress (only INTEGER PRIMARY KEY CHECK (only = 1), closed_through INTEGER NOT NULL)",
    "CREATE TABLE windows (window INTEGER PRIMARY KEY, state TEXT NOT NULL)",
    "CREATE TABLE pools (window INTEGER PRIMARY KEY, reports BLOB NOT NULL)",
    # Without row ids, which would count the batches in the order in which they came.
    "CREATE TABLE ids (stream BLOB PRIMARY KEY, window INTEGER NOT NULL, digest BLOB) WITHOUT ROWID",
    (
        "CREATE TABLE outgoing (stream BLOB PRIMARY KEY, window INTEGER NOT NULL, batch BLOB NOT NULL,"
        " tag BLOB NOT NULL) WITHOUT ROWID"
    ),
)
KIND: Final = DatabaseKind("shuffler", 0x48555353, 1, _TABLES, StoreError, unavailable=StoreUnavailableError)  # "HUSS"


class ReportsFile:
    """The shuffler's file, and the small one beside it. Made by :meth:`open`.

    Every method raises:
        StoreError: The file cannot be used, or not now (StoreUnavailableError).
    """

    def __init__(
        self, database: SqliteFile, sent_watermark: SentWatermark, runtime: Runtime, digest_key: bytes
    ) -> None:
        self._database = database
        self._departures = sent_watermark
        self._runtime = runtime
        self._digest_key = digest_key

    @classmethod
    async def open(cls, path: Path, runtime: Runtime, entropy: Entropy) -> "ReportsFile":
        """Opens the file, or makes it; what a crash left in its log is erased."""
        # First of all: once there are reports, that it is missing means that they were put back without it.
        sent_watermark = await runtime.blocking(
            lambda: SentWatermark(path.with_name(_DEPARTURES), fresh=not path.exists())
        )
        database = SqliteFile(KIND, await runtime.blocking(KIND.open_writing, path), runtime)
        file = cls(database, sent_watermark, runtime, entropy.read(KEY_BYTES))
        # Under the key of an earlier process they can be compared with nothing.
        await database.write(lambda db: db.execute("UPDATE ids SET digest = NULL WHERE digest IS NOT NULL"))
        await file.tidy()
        return file

    async def close(self) -> None:
        """Closes it."""
        await self._database.close()

    async def tidy(self) -> None:
        """Empties the write-ahead log, which tells what was committed together."""
        await self._database.truncate()

    async def plan(self) -> KeptPlan | None:
        """The plan that it belongs to; None in a new file."""
        row = await self._database.read(
            lambda db: db.execute("SELECT bundle, key_id, suite, signature FROM plan").fetchone()
        )
        return None if row is None else KeptPlan(*row)

    async def keep_plan(self, plan: KeptPlan) -> None:
        """Makes the file this plan's for ever."""
        row = plan.bundle, plan.key_id, plan.suite, plan.signature
        await self._database.write(lambda db: db.execute("INSERT INTO plan VALUES (1, ?, ?, ?, ?)", row))

    async def take(self, batches: Sequence[TakenBatch]) -> list[ClosedWindowAnswer | Reason]:
        """Adds batches to the pools of their windows; durable when it returns. What is known is not added again.

        Returns:
            For each what became of it; a reason: its id was used before, otherwise.
        """
        return await self._database.write(lambda db: self._take(db, batches))

    def _take(self, db: sqlite3.Connection, batches: Sequence[TakenBatch]) -> list[ClosedWindowAnswer | Reason]:
        closed = _closed_through(db)
        told: dict[int, ClosedWindowAnswer | Reason] = {}
        new: dict[int, list[Int64]] = {}
        # In the order of their random numbers: a page of the table keeps its rows in the order in which they came.
        for place in sorted(range(len(batches)), key=lambda place: batches[place].stream):
            taken = batches[place]
            told[place] = found = self._known(db, taken, closed)
            if isinstance(found, ClosedWindowAnswer) and found.is_open and not found.known:
                row = taken.stream, taken.window, self._digest(taken.data)
                db.execute("INSERT INTO ids VALUES (?, ?, ?)", row)
                new.setdefault(taken.window, []).append(taken.reports)
        for window, reports in new.items():
            _pool_more(db, window, reports)
        return [told[place] for place in range(len(batches))]

    def _known(self, db: sqlite3.Connection, taken: TakenBatch, closed: int | None) -> ClosedWindowAnswer | Reason:
        row = db.execute("SELECT window, digest FROM ids WHERE stream = ?", (taken.stream,)).fetchone()
        if row is not None and row[0] != taken.window:
            return Reason.ID_OF_ANOTHER_WINDOW
        if row is not None and row[1] not in {None, self._digest(taken.data)}:
            return Reason.ID_REUSED
        is_open = closed is None or taken.window > closed
        return ClosedWindowAnswer(is_open, row is not None, None if is_open else _state(db, taken.window))

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._digest_key, digest_size=_DIGEST_BYTES).digest()

    async def closed_through(self) -> int | None:
        """The newest window that was cut; None where none was."""
        return await self._database.read(_closed_through)

    async def close_through(self, window: int) -> None:
        """Takes nothing more for any window up to this one."""

        def close(db: sqlite3.Connection) -> None:
            closed = _closed_through(db)
            if closed is None or closed < window:
                db.execute("INSERT OR REPLACE INTO progress VALUES (1, ?)", (window,))

        await self._database.write(close)

    async def cut_pools(self) -> list[int]:
        """Windows that were cut, and whose reports are still one pool."""
        rows = await self._database.read(
            lambda db: db.execute(
                "SELECT window FROM pools WHERE window <= (SELECT closed_through FROM progress) ORDER BY window"
            ).fetchall()
        )
        return [window for (window,) in rows]

    async def pool(self, window: int) -> ReportPool:
        """The reports of a window that was cut."""
        data = await self._database.read(
            lambda db: db.execute("SELECT reports FROM pools WHERE window = ?", (window,)).fetchone()
        )
        return ReportPool.from_bytes(data[0])

    async def fix(self, window: int, batches: Sequence[OutgoingBatch]) -> None:
        """Puts batches in the place of a window's pool: from here on these bytes are sent, and no others."""

        def fix(db: sqlite3.Connection) -> None:
            for each in sorted(batches, key=lambda each: each.stream):
                db.execute("INSERT INTO outgoing VALUES (?, ?, ?, ?)", (each.stream, window, each.batch, each.tag))
            db.execute("DELETE FROM pools WHERE window = ?", (window,))
            _put_state(db, window, CutState.FORWARDING)

        await self._database.write(fix)
        await self.tidy()

    async def drop(self, window: int) -> None:
        """Erases the reports of a window, and which batches they came in."""

        def drop(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM pools WHERE window = ?", (window,))
            db.execute("DELETE FROM ids WHERE window = ?", (window,))
            _put_state(db, window, CutState.DROPPED)

        await self._database.write(drop)
        await self.tidy()

    @property
    def departed(self) -> int | None:
        """The newest window of which something may have left; None: nothing has."""
        return self._departures.through

    @property
    def knows_departed(self) -> bool:
        """Whether that is so; it is not where this file was put back alone."""
        return self._departures.known

    async def depart(self, window: int) -> None:
        """Notes that something of the windows up to this one may leave: to be called before it does."""
        await self._runtime.blocking(self._departures.reach, window)

    async def outgoing(self) -> list[tuple[int, bytes]]:
        """The window and the stream of each batch without an answer, the oldest windows first."""
        return await self._database.read(
            lambda db: db.execute("SELECT window, stream FROM outgoing ORDER BY window, stream").fetchall()
        )

    async def batch(self, stream: bytes) -> OutgoingBatch:
        """One batch without an answer."""
        row = await self._database.read(
            lambda db: db.execute(
                "SELECT window, stream, batch, tag FROM outgoing WHERE stream = ?", (stream,)
            ).fetchone()
        )
        return OutgoingBatch(*row)

    async def answered(self, window: int, stream: bytes, *, lost: bool) -> CutState:
        """A batch has its answer, and is erased; what the window has come to by that."""

        def answered(db: sqlite3.Connection) -> CutState:
            db.execute("DELETE FROM outgoing WHERE stream = ?", (stream,))
            left = db.execute("SELECT count(*) FROM outgoing WHERE window = ?", (window,)).fetchone()[0]
            state = CutState.LOST if lost else _state(db, window)
            if not left and state is CutState.FORWARDING:
                state = CutState.FORWARDED
            assert state is not None, "a window with a batch that is forwarded"
            _put_state(db, window, state)
            return state

        state = await self._database.write(answered)
        await self.tidy()
        return state

    async def finished(self) -> list[tuple[int, CutState]]:
        """Windows of which nothing is to be sent any more and something is still known, and what became of them."""
        rows = await self._database.read(
            lambda db: db.execute(
                "SELECT window, state FROM windows WHERE window NOT IN (SELECT window FROM outgoing) ORDER BY window"
            ).fetchall()
        )
        return [(window, CutState(state)) for window, state in rows]

    async def erase(self, window: int) -> None:
        """Erases all that is known of a window but that it is over."""

        def erase(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM ids WHERE window = ?", (window,))
            db.execute("DELETE FROM windows WHERE window = ?", (window,))

        await self._database.write(erase)
        await self.tidy()


def _closed_through(db: sqlite3.Connection) -> int | None:
    row = db.execute("SELECT closed_through FROM progress").fetchone()
    return None if row is None else int(row[0])


def _state(db: sqlite3.Connection, window: int) -> CutState | None:
    row = db.execute("SELECT state FROM windows WHERE window = ?", (window,)).fetchone()
    return None if row is None else CutState(row[0])


def _put_state(db: sqlite3.Connection, window: int, state: CutState) -> None:
    db.execute("INSERT OR REPLACE INTO windows VALUES (?, ?)", (window, state.value))


def _pool_more(db: sqlite3.Connection, window: int, reports: Sequence[Int64]) -> None:
    pool = ReportPool.of(np.concatenate(reports))
    row = db.execute("SELECT reports FROM pools WHERE window = ?", (window,)).fetchone()
    if row is not None:
        pool = ReportPool.from_bytes(row[0]).plus(pool)
    db.execute("INSERT OR REPLACE INTO pools VALUES (?, ?)", (window, pool.to_bytes()))
