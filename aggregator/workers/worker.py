"""Runs one partition's fold, through every claim of it: along the log from where it was claimed, with checkpoints.

The fold is touched on the event loop alone, in turns that are bounded in entries and in bytes, so a gateway's question
never waits long and never sees half a turn.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from aggregator.errors import AggregatorError, FencedError, LogGapError, PartitionStoppedError, StoreUnavailableError
from aggregator.fold.fold import Fold
from aggregator.interfaces import NO_TRACES, Log, Observer, Tracer
from aggregator.log.entries import admit_all
from aggregator.logs import describe_error, journal
from aggregator.model import EntryBatch, PositionedEntry, sizes_of
from aggregator.runtime import TRANSIENT, Backoff, Runtime, Watermark, retry, within
from aggregator.store.store import Store
from hushsum.plan import Plan

_NOTHING: Final = EntryBatch((), 0)
_FIRST: Final = 64  # entries of the first stretch: how large they are is not known yet
_LARGE: Final = 8  # turns: when bytes of a stretch come to more, fewer entries are asked for

_journal = journal("workers")


@dataclass(frozen=True)
class WorkerSettings:
    """How a worker divides its time; none of it changes what is counted.

    Attributes:
        batch: Entries that are read at once, and that may be read ahead of the fold; fewer while they are large.
        turn: Entries that are folded before others get their turn on the event loop,
        turn_bytes: and their bytes, whichever is reached first; a single entry may be larger.
        checkpoint_entries: A checkpoint is due after so many entries,
        checkpoint_s: or so many seconds after the last one, whichever comes first. A seal makes it due at once.
        idle_s: How long to wait for entries before looking up.
        retain_verdicts: Whether one verdict for each delta is kept, with its id, for as long as the store lives.
        revoke_s: How long a partition that goes to another process may take to be stored; after that it is let go as
            it is, and the other folds again what was not stored.
        owner: A name of this process alone.
        asks_s: How often to ask the store what is to be forgotten; None: never, for this process's releaser tells.
    """

    batch: int = 512
    turn: int = 512
    turn_bytes: int = 128 * 1024
    checkpoint_entries: int = 4096
    checkpoint_s: float = 5.0
    idle_s: float = 60.0
    retain_verdicts: bool = False
    revoke_s: float = 10.0
    owner: str = ""
    asks_s: float | None = None


class Worker:
    """The fold of one partition, and what drives it: it alone applies, and it alone checkpoints.

    It serves one claim. On any failure it ends, together with its fold: if the reply to a checkpoint was lost, it is
    not known whether the checkpoint is stored, and the fold no longer lists its changes.

    Attributes:
        fold: For questions; they see it between two batches.
        passed: Entries below this position are applied.
        closed: Windows up to this one are closed in a durable checkpoint.
        forgotten: Windows up to this one are forgotten in a durable checkpoint.
        saved: The position of the latest durable checkpoint.
    """

    def __init__(  # noqa: PLR0913  each is a part of its own
        self,
        fold: Fold,
        fence: int,
        plan: Plan,
        partition: int,
        *,
        log: Log,
        store: Store,
        runtime: Runtime,
        observer: Observer,
        settings: WorkerSettings,
        tracer: Tracer = NO_TRACES,
    ) -> None:
        self.fold = fold
        self.passed = Watermark(fold.position)
        self.closed = Watermark(fold.closed_through)
        self.forgotten = Watermark(fold.forgotten_through)
        self.saved = fold.position
        self._fence = fence
        self._plan = plan
        self._partition = partition
        self._log = log
        self._store = store
        self._runtime = runtime
        self._observer = observer
        self._settings = settings
        self._tracer = tracer
        self._saved_s = runtime.monotonic()
        self._unsaved = 0  # entries
        self._stopping = False
        self._ahead = _NOTHING  # what was read last
        self._limit = _FIRST  # entries of the next stretch
        self._to_forget: tuple[int, int] | None = None  # the window, and the position from which on
        self._reading: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Folds until :meth:`stop`, and then stores where it has come to.

        Raises:
            FencedError: Another worker has claimed the partition.
            LogGapError: The log no longer holds what the fold needs next.
            LogError: The log cannot be used, or holds an entry that must not be skipped.
            StoreError: A checkpoint was not stored, or it is not known whether it was.
        """
        try:
            while not self._stopping:
                await self._step()
            await self._save()
        finally:
            self._stopping = True
            if self._reading is not None:
                self._reading.cancel()
                self._reading = None  # its cancellation holds this worker
            gone = partial(StoreUnavailableError, f"partition {self._partition} is loaded anew")
            for watermark in (self.passed, self.closed, self.forgotten):
                watermark.fail(gone)

    def stop(self) -> None:
        """Makes :meth:`run` end after the batch under way."""
        self._stopping = True
        self._look_up()

    def ask_to_forget(self, window: int, end: int) -> None:
        """Forgets windows up to this one, once it has passed all that stands before ``end``.

        So no entry that was folded before a crash is folded again with less memory than the first time.
        """
        asked = self._to_forget or (window, end)
        self._to_forget = (max(asked[0], window), max(asked[1], end))
        self._look_up()

    def _look_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _step(self) -> None:
        entry_batch = await self._next()
        if entry_batch is not None and entry_batch.end > self.fold.position:
            if not self.fold.changed:
                self._saved_s = self._runtime.monotonic()  # nothing was unsaved until now
            self._read_on(entry_batch.end, changed=True)
            await self._fold(entry_batch)
        if self._may_forget():
            assert self._to_forget is not None
            self.fold.forget(self._to_forget[0])
            self._to_forget = None
        many = self._unsaved >= self._settings.checkpoint_entries
        long = self._runtime.monotonic() - self._saved_s >= self._settings.checkpoint_s
        if self.fold.must_checkpoint or many or long:
            await self._save()

    def _may_forget(self) -> bool:
        return self._to_forget is not None and self.fold.position >= self._to_forget[1]

    async def _fold(self, entry_batch: EntryBatch) -> None:
        entries = entry_batch.entries
        sizes = sizes_of(entries)
        self._limit = _limit_after(sizes, self._limit, self._settings)
        for start, stop in _turns(sizes, self._settings):
            self._apply(entries[start:stop], entry_batch.end if stop == len(entries) else entries[stop].position)
            await self._runtime.sleep(0)
        if not entries:
            self._apply((), entry_batch.end)
        self._unsaved += len(entries)

    def _apply(self, entries: Sequence[PositionedEntry], end: int) -> None:
        verdicts = self.fold.apply(admit_all(self._plan, self._partition, entries), end)
        self.passed.reach(self.fold.position)
        self._observer.folded(self._partition, self.fold.position, verdicts)

    async def _next(self) -> EntryBatch | None:
        """Waits until something is read, a checkpoint is due, or it is to stop or to forget."""
        if self._reading is None:
            self._read_on(self.fold.position, changed=self.fold.changed)
        assert self._reading is not None
        self._wake = asyncio.get_running_loop().create_future()
        if not self._stopping and not self.fold.must_checkpoint and not self._may_forget():
            await asyncio.wait([self._reading, self._wake], return_when=asyncio.FIRST_COMPLETED)
        if not self._reading.done():
            return None
        reading, self._reading = self._reading, None
        try:
            reading.result()  # raises what the log raised
        finally:
            del reading  # the traceback of its error holds this frame: a cycle, and in it the fold
        return self._ahead

    def _read_on(self, position: int, *, changed: bool) -> None:
        """Begins to read from ``position`` on: one stretch ahead of the fold, and no more."""
        due_s = self._saved_s + self._settings.checkpoint_s - self._runtime.monotonic()
        idle_s = self._settings.idle_s
        wait_s = min(max(due_s, 0.0), idle_s) if changed else idle_s
        limit = min(self._limit, self._settings.batch)
        self._reading = self._runtime.spawn(self._read(position, limit, wait_s), f"read-{self._partition}")

    async def _read(self, position: int, limit: int, wait_s: float) -> None:
        async def read() -> EntryBatch:
            return await self._log.read(self._partition, position, limit, wait_s)

        # A read that fails for a moment changes nothing: the fold goes on from where it is.
        self._ahead = await retry("read", read, runtime=self._runtime, on_retry=self._observer.retried)

    async def _save(self) -> None:
        if not self.fold.changed:
            return
        began_s = self._runtime.monotonic()
        with self._tracer.span("checkpoint", partition=self._partition, entries=self._unsaved):
            change = self.fold.checkpoint()
            await self._store.checkpoint(self._plan, self._partition, change, fence=self._fence)
        self.saved, self._saved_s, self._unsaved = change.position, self._runtime.monotonic(), 0
        self.closed.reach(change.closed_through)
        self.forgotten.reach(change.forgotten_through)
        self._observer.checkpointed(self._partition, change.position, self._saved_s - began_s)


def _turns(sizes: Sequence[int], settings: WorkerSettings) -> Iterator[tuple[int, int]]:
    """The bounds (start, stop) of each turn over entries of these sizes; each turn is as long as the limits allow."""
    if len(sizes) <= settings.turn and sum(sizes) <= settings.turn_bytes:
        yield from ((0, len(sizes)),) if sizes else ()
        return
    start, size = 0, 0
    for place, more in enumerate(sizes):
        size += more
        if place > start and (place - start == settings.turn or size > settings.turn_bytes):
            yield start, place
            start, size = place, more
    yield start, len(sizes)


def _limit_after(sizes: Sequence[int], limit: int, settings: WorkerSettings) -> int:
    """How many entries to ask for after entries of these sizes: while they are large, not so many wait in memory."""
    size, most = sum(sizes), _LARGE * settings.turn_bytes
    if size > most:
        return max(limit // 2, 1)
    return min(2 * limit, settings.batch) if len(sizes) >= limit and 2 * size <= most else limit


# Before a partition that another process has claimed is claimed back: time to hear that it is no longer ours.
_FENCED_S: Final = 3.0
_STOPPED: Final = "it was stopped with the service"


class PartitionSupervisor:
    """Claims a partition and folds it, again and again, until it is let go or cannot go on. It begins at once.

    Args:
        claim: Takes it from the process that had it, and loads its fold.
        failed: Called with an end that only an operator can mend.
        shared: Whether other processes may claim it too.

    Attributes:
        worker: Of the present claim; None between two claims.
        stopped: Why it is not folded here any more; empty while it is, or will be.
    """

    def __init__(
        self,
        partition: int,
        claim: Callable[[], Awaitable[Worker]],
        *,
        runtime: Runtime,
        observer: Observer,
        failed: Callable[[PartitionStoppedError], None],
        shared: bool,
    ) -> None:
        self.partition = partition
        self.worker: Worker | None = None
        self.stopped = ""
        self._cause: Exception | None = None
        self._claim = claim
        self._runtime = runtime
        self._observer = observer
        self._failed = failed
        self._shared = shared
        self._stopping = False
        self._news = asyncio.Event()  # set, and replaced, whenever worker or error changes
        self._task = runtime.spawn(self._hold(), f"fold-{partition}")

    async def working(self) -> Worker:
        """The worker, at once where there is one, else once there is; PartitionStoppedError if there will be none."""
        while self.worker is None:
            if self.stopped:
                raise self._error()
            await self._news.wait()
        return self.worker

    async def gone(self, worker: Worker) -> None:
        """Returns once a worker that has ended is no longer the present one."""
        while self.worker is worker:
            await self._news.wait()

    async def release(self, seconds: float) -> None:
        """Stores where the fold has come to, if that can be done in so many seconds, and lets the partition go."""
        self._stopping = True
        if self.worker is None:
            self._task.cancel()  # nothing of it is unsaved
        else:
            self.worker.stop()
        try:
            await within(seconds, asyncio.wait([self._task]), runtime=self._runtime)
        except TimeoutError:
            self._observer.retried("revoke", f"partition {self.partition} was not stored within {seconds:g} s")
        self.drop()

    def drop(self) -> None:
        """Lets it go as it is. A checkpoint under way may still be stored, as long as there is no newer claim."""
        self._stopping = True
        self._task.cancel()
        self._now(None)
        self._end(_STOPPED)

    async def _hold(self) -> None:
        try:
            await self._claim_and_fold()
        finally:
            self._end(_STOPPED)  # whatever ended it: those that wait for it are told

    async def _claim_and_fold(self) -> None:
        backoff, gap = Backoff(), None
        while not self._stopping:
            try:
                await self._fold(backoff)
                return
            except LogGapError as error:
                # After a pause of this process, another one may have claimed the partition, and folded and forgotten
                # what is to be read next. A new claim gives the newest position; a gap before that is a real one.
                if not self._shared or error.position == gap:
                    self._fail(error)
                    return
                gap, pause_s = error.position, _FENCED_S
                self._observer.retried("fold", str(error))
            except (FencedError, *TRANSIENT) as error:
                self._observer.retried("fold", str(error))
                pause_s = _FENCED_S if isinstance(error, FencedError) else backoff.next_s()
            except Exception as error:  # noqa: BLE001  whatever it is, those who wait for this fold are told
                self._fail(error)
                return
            await self._runtime.sleep(pause_s)

    async def _fold(self, backoff: Backoff) -> None:
        worker = await self._claim()
        claimed = worker.saved
        self._now(worker)
        try:
            await worker.run()
        finally:
            if worker.saved > claimed:
                backoff.reset()
            if self.worker is worker:
                self._now(None)

    def _fail(self, cause: Exception) -> None:
        if not isinstance(cause, AggregatorError) or (self._shared and cause.__cause__ is not None):
            _journal.error("fold failed", partition=self.partition, exc_info=cause)
        if not self._shared:  # else this process goes on, and the traceback would keep the fold as long
            self._cause = cause
        self._end(describe_error(cause))
        self._observer.partition_stopped(self.partition, describe_error(cause))
        self._failed(self._error())

    def _end(self, why: str) -> None:
        self.stopped = self.stopped or why
        self._now(self.worker)

    def _error(self) -> PartitionStoppedError:
        """A new error for each caller: one that is raised again and again would keep the frames of all of them."""
        error = PartitionStoppedError(f"partition {self.partition} has stopped: {self.stopped}")
        error.__cause__ = self._cause
        return error

    def _now(self, worker: Worker | None) -> None:
        self.worker = worker
        news, self._news = self._news, asyncio.Event()
        news.set()
