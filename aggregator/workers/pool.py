"""The partitions that this process folds: they come and go, and whatever fails for a moment is loaded anew.

A fold is dropped whenever what it holds can no longer be trusted (a checkpoint whose reply was lost, a fence that moved
on), and claimed again from what is stored: nothing is ever applied on top of a fold whose changes were taken.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import replace
from itertools import chain

from aggregator.errors import LogGapError, PartitionStoppedError, StoreError, StoreUnavailableError
from aggregator.fold.fold import Fold
from aggregator.fold.state import RememberedKind, StreamUse
from aggregator.interfaces import FoldPeek, Log, Membership, Observer, PartitionOwner, Tracer
from aggregator.logs import FailureLog, journal
from aggregator.observability.tracing import of_checkpoints
from aggregator.runtime import Runtime, retry
from aggregator.store.store import Store
from aggregator.workers.worker import PartitionSupervisor, Worker, WorkerPorts, WorkerSettings
from hushsum.delta import DeltaId
from hushsum.errors import Reason
from hushsum.plan import Plan

_journal = journal("workers")


class AllPartitions:
    """The membership of a process that folds the whole plan alone.

    Args:
        partitions: P.
    """

    def __init__(self, partitions: int) -> None:
        self._partitions = range(partitions)
        self._owner: PartitionOwner | None = None
        self._ended = asyncio.Event()

    async def start(self, owner: PartitionOwner) -> None:
        """Hands over every partition."""
        self._owner = owner
        await owner.assigned(self._partitions)

    async def ended(self) -> None:
        """Returns once it was stopped."""
        await self._ended.wait()

    async def stop(self) -> None:
        """Takes them back."""
        self._ended.set()
        if self._owner is not None:
            await self._owner.revoked(self._partitions)


class WorkerPool:
    """The folds of this process: what a membership hands over to it, and a view of them for gateway and releaser.

    Args:
        plan: What is collected.
        log: Where from; its number of partitions is P.
        store: Where to; the plan is registered there.
        runtime: Time and tasks.
        observer: Who counts.
        settings: How time is divided.
        membership: Which partitions; None: all of them, for ever. Then the service cannot go on without any of them.
    """

    def __init__(
        self,
        plan: Plan,
        log: Log,
        store: Store,
        runtime: Runtime,
        observer: Observer,
        settings: WorkerSettings,
        *,
        membership: Membership | None = None,
    ) -> None:
        self._plan, self._log, self._store = plan, log, store
        self._runtime, self._observer, self._settings = runtime, observer, settings
        self._ports = WorkerPorts(log, store, runtime, observer)
        self._alone = membership is None
        self._membership = membership or AllPartitions(log.partitions)
        self._held: dict[int, PartitionSupervisor] = {}
        self._ended = asyncio.Event()
        self._stopped = False
        self._failure: PartitionStoppedError | None = None
        self._asking: asyncio.Task[None] | None = None

    @property
    def held(self) -> frozenset[int]:
        """The partitions that are this process's now."""
        return frozenset(self._held)

    def trace(self, tracer: Tracer) -> None:
        """Says, before the start, who is told of checkpoints."""
        self._ports = replace(self._ports, tracer=of_checkpoints(tracer, self._plan))

    async def start(self) -> None:
        """Joins; a process that folds all partitions has loaded every fold when this returns.

        Raises:
            LogGapError: The log does not hold what a fold needs next.
            StoreError: The plan is not registered.
        """
        if self._settings.asks_s is not None:
            self._asking = self._runtime.spawn(self._ask(self._settings.asks_s), "forget-asked")
        await self._membership.start(self)
        if not self._alone:
            return
        try:
            for held in [*self._held.values()]:
                await held.working()
        except PartitionStoppedError as error:
            await self.lost(self.held)
            raise error.__cause__ or error from None

    async def ended(self) -> None:
        """Returns once the folds have been stopped.

        Raises:
            PartitionStoppedError: As soon as one has failed, where this process folds all; its cause says why.
        """
        await self._ended.wait()
        self._raise_failure()

    async def stop(self) -> None:
        """Leaves; every fold is stopped, and stores where it has come to.

        Raises:
            PartitionStoppedError: One has failed, where this process folds all; what it had not stored is folded again
                at the next start.
        """
        self._stopped = True
        if self._asking is not None:
            self._asking.cancel()
        try:
            await self._membership.stop()
            await self.revoked(self.held)
        finally:
            self._ended.set()
        self._raise_failure()

    # ------------------------------------------------------------------------------------------------ whose they are

    async def assigned(self, partitions: Collection[int]) -> None:
        """Begins to claim and to fold these; those that are held already go on as they are."""
        for partition in sorted(set(partitions) - self.held):
            self._held[partition] = PartitionSupervisor(
                partition,
                self._claims(partition),
                settings=self._settings,
                runtime=self._runtime,
                observer=self._observer,
                failed=self._failed,
                shared=not self._alone,
            )
        self._observer.partitions_held(self.held)

    async def revoked(self, partitions: Collection[int]) -> None:
        """Stores these and lets them go; what cannot be stored in the stated time is let go without."""
        leaving = self._taken(partitions)
        if leaving:
            await asyncio.gather(*(held.release(self._settings.revoke_s) for held in leaving))

    async def lost(self, partitions: Collection[int]) -> None:
        """Drops these as they are."""
        for held in self._taken(partitions):
            held.drop()

    def _taken(self, partitions: Collection[int]) -> list[PartitionSupervisor]:
        taken = [self._held.pop(partition) for partition in sorted(partitions) if partition in self._held]
        self._observer.partitions_held(self.held)
        return taken

    def _claims(self, partition: int) -> Callable[[], Awaitable[Worker]]:
        async def claim() -> Worker:
            claimed = await self._store.claim_partition(self._plan, partition, self._settings.owner)
            if claimed is None:
                raise StoreError(f"store: partition {partition} of plan {self._plan.hex_id[:12]} is not registered")
            end = await self._log.end(partition)
            if end < claimed.state.position:
                raise LogGapError(partition, claimed.state.position, end)
            retain = self._settings.retain_verdicts
            fold = Fold(self._plan, partition, self._log.partitions, claimed.state, retain_verdicts=retain)
            return Worker(fold, claimed.fence, self._plan, partition, self._ports)

        return claim

    def _failed(self, error: PartitionStoppedError) -> None:
        if self._alone:  # else the others go on, and the observer was told
            self._failure = self._failure or error
            self._ended.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # ------------------------------------------------------------------------------------------ what is asked of folds

    def peek(self, partition: int, client_id: str, id: DeltaId, digest: bytes, window: int) -> FoldPeek | None:
        """What the fold knows here and now; None while it is not here."""
        held = self._held.get(partition)
        if held is None or held.worker is None:
            return None
        fold = held.worker.fold
        kind, reason = fold.recall(client_id, id, digest, window)
        return FoldPeek(kind, reason, fold.contributed(client_id, window))

    def stream_uses(self) -> Iterator[StreamUse]:
        """Of the folds that are here now; to be read at once."""
        workers = [held.worker for held in self._held.values()]
        return chain.from_iterable(worker.fold.stream_uses() for worker in workers if worker is not None)

    async def passed(self, partition: int, position: int) -> None:
        """Returns once the fold has passed ``position``; what is asked at once after it, asks that very fold."""
        while True:
            held = self._holding(partition)
            worker = await held.working()
            try:
                await worker.passed.reached(position + 1)
            except StoreUnavailableError:
                await held.gone(worker)
                continue
            if held.worker is worker:
                return  # else it was loaded anew meanwhile, and may not have come so far again

    async def caught_up(self) -> None:
        """Returns once the folds have passed what stands in the log now: after a crash, or beside an older store.

        What its seals close is stored, too: from then on the store calls no window open whose seal stands in the log.
        """
        for partition in range(self._log.partitions):
            await self.passed(partition, await self._log.end(partition) - 1)
            await self.closed(partition, (await self._holding(partition).working()).fold.closed_through)

    async def closed(self, partition: int, window: int) -> None:
        """Returns once the partition has stored the window as sealed."""
        while True:
            held = self._holding(partition)
            worker = await held.working()
            try:
                return await worker.closed.reached(window)
            except StoreUnavailableError:
                await held.gone(worker)

    async def recall(
        self, partition: int, client_id: str, id: DeltaId, digest: bytes, window: int
    ) -> tuple[RememberedKind, Reason | None]:
        """What to tell the sender of a delta that the fold has passed, and whose window is no longer open."""
        worker = await self._holding(partition).working()  # no pause where it is there
        return worker.fold.recall(client_id, id, digest, window)

    async def forget(self, window: int, *, fence: int) -> None:  # noqa: ARG002  each fold has a fence of its own
        """Makes every fold forget windows up to this one, once it has passed all that stands in the log now."""
        for partition in range(self._log.partitions):
            await self._forget(partition, window)

    async def _forget(self, partition: int, window: int) -> None:
        while True:
            held = self._holding(partition)
            worker = await held.working()
            worker.ask_to_forget(window, await self._log.end(partition))
            try:
                return await worker.forgotten(window)
            except StoreUnavailableError:
                await held.gone(worker)

    def _holding(self, partition: int) -> PartitionSupervisor:
        held = self._held.get(partition)
        if held is not None:
            return held
        if self._stopped or self._alone:
            raise PartitionStoppedError(f"partition {partition} has stopped: it was stopped with the service")
        raise StoreUnavailableError(f"partition {partition} is folded by another process")

    async def _ask(self, pause_s: float) -> None:
        """Has the folds here forget what the releaser, wherever it runs, asks all folds to."""

        async def ask() -> None:
            window = await self._store.forget_asked(self._plan.id) if self._held else None
            for held in [] if window is None else [*self._held.values()]:
                worker = held.worker
                assert window is not None
                if worker is not None and worker.fold.forgotten_through < window <= worker.closed.value:
                    worker.ask_to_forget(window, await self._log.end(held.partition))

        trouble = FailureLog(_journal)
        while True:
            await self._runtime.sleep(pause_s)
            try:
                await retry("forget_asked", ask, runtime=self._runtime, on_retry=self._observer.retried)
            except Exception as error:  # noqa: BLE001  whatever it is, folds that forget nothing any more are seen
                now_s = self._runtime.monotonic()
                trouble.failed(now_s, "folds are not asked to forget, trying again", error)
            else:
                trouble.worked(self._runtime.monotonic(), "folds are asked to forget again")
