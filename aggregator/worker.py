"""Runs folds: from each partition's checkpoint along the log, with checkpoints in between.

One task a partition. Folds are touched on the event loop alone, in small batches, so a gateway's question never waits
long and never sees half a batch.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from aggregator.errors import AggregatorError, LogError, LogGapError, PartitionStoppedError, StoreError
from aggregator.fold import Fold, MalformedEntry, Remembered, RememberedKind
from aggregator.milestone import Milestone
from aggregator.ports import Log, Observer, Runtime, Store
from hushsum.delta import DeltaId
from hushsum.errors import Reason
from hushsum.plan import Plan
from hushsum_proto.convert import entry_from_bytes
from hushsum_proto.entries import LogEntry
from hushsum_proto.errors import MalformedEntryError, NewerEntryError


@dataclass(frozen=True)
class WorkerSettings:
    """How a worker divides its time; none of it changes what is counted.

    Attributes:
        batch: Entries that are read at once.
        turn: Entries that are folded before others get their turn on the event loop.
        checkpoint_entries: A checkpoint is due after so many entries,
        checkpoint_s: or so many seconds after the last one, whichever comes first. A seal makes it due at once.
        idle_s: How long to wait for entries before looking up.
        retain_verdicts: Whether one verdict for each delta is kept, with its id, for as long as the store lives.
    """

    batch: int = 64
    turn: int = 8
    checkpoint_entries: int = 4096
    checkpoint_s: float = 5.0
    idle_s: float = 60.0
    retain_verdicts: bool = False


class Worker:
    """The fold of one partition, and the task that drives it: it alone applies, and it alone checkpoints.

    Attributes:
        fold: For questions; they see it between two batches.
        passed: Entries below this position are applied.
        closed: Windows up to this one are closed in a durable checkpoint.
        error: Why it has failed; None while it has not.
    """

    def __init__(
        self, fold: Fold, plan: Plan, partition: int, log: Log, store: Store, runtime: Runtime, observer: Observer
    ) -> None:
        self.fold = fold
        self.passed, self.closed = Milestone(fold.position), Milestone(fold.closed_through)
        self.error: PartitionStoppedError | None = None
        self._forgotten = Milestone(fold.forgotten_through)
        self._plan, self._partition = plan, partition
        self._log, self._store, self._runtime, self._observer = log, store, runtime, observer
        self._saved, self._saved_s = fold.position, runtime.monotonic()
        self._stopping = False
        self._entries: Sequence[tuple[int, bytes]] = ()
        self._reading: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, settings: WorkerSettings) -> "asyncio.Task[None]":
        """Begins to fold; the task ends when it is stopped or has failed, and raises nothing."""
        self._task = self._runtime.spawn(self._run(settings), f"fold-{self._partition}")
        return self._task

    async def stop(self) -> None:
        """Ends after the batch under way, and stores where it has come to; a fold that has failed stores nothing."""
        self._stopping = True
        self._look_up()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def forget(self, window: int) -> None:
        """Forgets windows up to this one; durable when it returns."""
        if self.error is not None:
            raise self.error
        self.fold.forget(window)
        self._look_up()
        await self._forgotten.reached(window)

    def _look_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _run(self, settings: WorkerSettings) -> None:
        ending: Exception = AggregatorError("it was stopped with the service")
        try:
            while not self._stopping:
                await self._step(settings)
            await self._save()
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait for this fold are told
            ending = error
            self.error = self._stopped(error)
        finally:
            if self._reading is not None:
                self._reading.cancel()
            for milestone in (self.passed, self.closed, self._forgotten):
                milestone.fail(self.error or self._stopped(ending))

    async def _step(self, settings: WorkerSettings) -> None:
        await self._next_entries(settings)
        if self._entries:
            if not self.fold.changed:
                self._saved_s = self._runtime.monotonic()  # nothing was unsaved until now
            entries, self._entries = self._entries, ()
            for start in range(0, len(entries), settings.turn):
                self._fold(entries[start : start + settings.turn])
                await self._runtime.sleep(0)
        many = self.fold.position - self._saved >= settings.checkpoint_entries
        long = self._runtime.monotonic() - self._saved_s >= settings.checkpoint_s
        if self.fold.must_checkpoint or many or long:
            await self._save()

    def _fold(self, entries: Sequence[tuple[int, bytes]]) -> None:
        batch = [(position, _decode(self._partition, position, data)) for position, data in entries]
        verdicts = self.fold.apply(batch)
        self.passed.reach(self.fold.position)
        self._observer.folded(self._partition, self.fold.position, verdicts)

    async def _next_entries(self, settings: WorkerSettings) -> None:
        """Waits until something is read, a checkpoint is due, or somebody asks it to look up."""
        if self._reading is None:
            due_s = self._saved_s + settings.checkpoint_s - self._runtime.monotonic()
            wait_s = min(max(due_s, 0.0), settings.idle_s) if self.fold.changed else settings.idle_s
            self._reading = self._runtime.spawn(self._read(settings.batch, wait_s), f"read-{self._partition}")
        self._wake = asyncio.get_running_loop().create_future()
        if not self._stopping and not self.fold.must_checkpoint:
            await asyncio.wait([self._reading, self._wake], return_when=asyncio.FIRST_COMPLETED)
        if self._reading.done():
            reading, self._reading = self._reading, None
            reading.result()  # raises what the log raised

    async def _read(self, limit: int, wait_s: float) -> None:
        self._entries = await self._log.read(self._partition, self.fold.position, limit, wait_s)

    async def _save(self) -> None:
        if not self.fold.changed:
            return
        began_s = self._runtime.monotonic()
        change = self.fold.checkpoint()
        # A failure here ends this worker: what the change held is gone from the fold's list of changes.
        await self._store.checkpoint(self._plan, self._partition, change)
        self._saved, self._saved_s = change.position, self._runtime.monotonic()
        self.closed.reach(change.closed_through)
        self._forgotten.reach(change.forgotten_through)
        self._observer.checkpointed(self._partition, change.position, self._saved_s - began_s)

    def _stopped(self, cause: Exception) -> PartitionStoppedError:
        error = PartitionStoppedError(f"partition {self._partition} has stopped: {cause}")
        error.__cause__ = cause
        return error


class Workers:
    """All partitions of a plan, in this process: the gateway's and the releaser's view of the folds.

    Args:
        plan: What is collected.
        log: Where from; its number of partitions is P.
        store: Where to; the plan is registered there.
        runtime: Time and tasks.
        observer: Who counts.
        settings: How time is divided.
    """

    def __init__(
        self, plan: Plan, log: Log, store: Store, runtime: Runtime, observer: Observer, settings: WorkerSettings
    ) -> None:
        self._plan, self._log, self._store = plan, log, store
        self._runtime, self._observer, self._settings = runtime, observer, settings
        self._workers: list[Worker] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Loads every fold from its checkpoint and begins.

        Raises:
            LogGapError: The log does not hold what a fold needs next.
            StoreError: The plan is not registered.
        """
        for partition in range(self._log.partitions):
            fold = await self._load(partition)
            self._workers.append(
                Worker(fold, self._plan, partition, self._log, self._store, self._runtime, self._observer)
            )
        self._tasks = [worker.start(self._settings) for worker in self._workers]

    async def ended(self) -> None:
        """Returns once the folds have been stopped.

        Raises:
            PartitionStoppedError: As soon as one has failed; its cause says why.
        """
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        self._raise_failure()

    async def stop(self) -> None:
        """Stops every fold, and stores where it has come to.

        Raises:
            PartitionStoppedError: One has failed; what it had not stored is folded again at the next start.
        """
        for worker in self._workers:
            await worker.stop()
        self._raise_failure()

    async def passed(self, partition: int, position: int) -> None:
        """Returns once the partition's fold has passed ``position``."""
        await self._workers[partition].passed.reached(position + 1)

    async def closed(self, partition: int, window: int) -> None:
        """Returns once the partition has stored the window as sealed."""
        await self._workers[partition].closed.reached(window)

    def remembered(self, partition: int, client_id: str, id: DeltaId) -> Remembered | None:
        """What the fold remembers of an id."""
        return self._workers[partition].fold.remembered(client_id, id)

    def recall(
        self, partition: int, client_id: str, id: DeltaId, digest: bytes, window: int
    ) -> tuple[RememberedKind, Reason | None]:
        """What to tell the sender of a delta that the fold has passed, and whose window is no longer open."""
        return self._workers[partition].fold.recall(client_id, id, digest, window)

    def contributed(self, partition: int, client_id: str, window: int) -> int:
        """Records of a client that the fold has counted in a window."""
        return self._workers[partition].fold.contributed(client_id, window)

    async def forget(self, window: int) -> None:
        """Makes every fold forget windows up to this one.

        Each forgets only when it has passed all that stands in the log now, so that no entry that was folded before a
        crash is folded again with less memory than the first time.
        """
        for partition, worker in enumerate(self._workers):
            await worker.passed.reached(await self._log.end(partition))
            await worker.forget(window)

    async def _load(self, partition: int) -> Fold:
        state = await self._store.load_fold(self._plan, partition)
        if state is None:
            raise StoreError(f"store: partition {partition} of plan {self._plan.hex_id[:12]} is not registered")
        end = await self._log.end(partition)
        if end < state.position:
            raise LogGapError(partition, state.position, end)
        retain = self._settings.retain_verdicts
        return Fold(self._plan, partition, self._log.partitions, state, retain_verdicts=retain)

    def _raise_failure(self) -> None:
        for worker in self._workers:
            if worker.error is not None:
                raise worker.error


def _decode(partition: int, position: int, data: bytes) -> LogEntry | MalformedEntry:
    try:
        return entry_from_bytes(data)
    except MalformedEntryError as error:
        return MalformedEntry(str(error))
    except NewerEntryError as error:
        raise LogError(f"partition {partition}, entry {position}: {error}") from error
