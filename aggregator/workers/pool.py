"""The partitions that this process folds: they are assigned and revoked, and claimed again after a passing failure.

A fold is dropped when its state can no longer be trusted: the reply to a checkpoint was lost, or another process has a
newer fence. Then its partition is claimed again and loaded from the store. Nothing is ever applied to a fold after a
checkpoint took its changes and failed.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import chain

from aggregator.errors import LogGapError, PartitionStoppedError, StoreError, StoreUnavailableError
from aggregator.fold.fold import Fold
from aggregator.fold.state import StreamUse
from aggregator.fold.verdicts import RememberedKind
from aggregator.interfaces import NO_TRACES, FoldPeek, Log, Membership, Observer, Tracer
from aggregator.logs import FailureLog, journal
from aggregator.observability.tracing import of_checkpoints
from aggregator.runtime import Runtime, Watermark, retry
from aggregator.store.store import Store
from aggregator.workers.worker import PartitionSupervisor, Worker, WorkerSettings
from hushsum.delta import DeltaId
from hushsum.errors import Reason
from hushsum.plan import Plan

_journal = journal("workers")


class WorkerPool:
    """The folds of this process: what a membership hands over to it, and a view of them for gateway and releaser.

    Without a membership it folds all partitions, and the service cannot go on without any of them.
    """

    def __init__(  # noqa: PLR0913  each is a part of its own
        self,
        plan: Plan,
        log: Log,
        store: Store,
        runtime: Runtime,
        observer: Observer,
        settings: WorkerSettings,
        *,
        membership: Membership | None = None,
        tracer: Tracer = NO_TRACES,
    ) -> None:
        self._plan = plan
        self._log = log
        self._store = store
        self._runtime = runtime
        self._observer = observer
        self._settings = settings
        self._membership = membership
        self._tracer = of_checkpoints(tracer, plan)
        self._held: dict[int, PartitionSupervisor] = {}
        self._ended = asyncio.Event()
        self._stopped = False
        self._failure: PartitionStoppedError | None = None
        self._asking: asyncio.Task[None] | None = None

    @property
    def held(self) -> frozenset[int]:
        return frozenset(self._held)

    async def start(self) -> None:
        """Joins; a process that folds all partitions has loaded every fold when this returns.

        Raises:
            LogGapError: The log does not hold what a fold needs next.
            StoreError: The plan is not registered.
        """
        if self._settings.asks_s is not None:
            self._asking = self._runtime.spawn(self._ask(self._settings.asks_s), "forget-asked")
        if self._membership is not None:
            await self._membership.start(self)
            return
        await self.assigned(range(self._log.partitions))
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
            if self._membership is not None:
                await self._membership.stop()
            await self.revoked(self.held)
        finally:
            self._ended.set()
        self._raise_failure()

    # -------------------------------------------------------------------------------------------------- assignment

    async def assigned(self, partitions: Collection[int]) -> None:
        """Begins to claim and to fold partitions; those that are held already go on as they are."""
        for partition in sorted(set(partitions) - self.held):
            self._held[partition] = PartitionSupervisor(
                partition,
                partial(self._claim, partition),
                runtime=self._runtime,
                observer=self._observer,
                failed=self._failed,
                shared=self._membership is not None,
            )
        self._observer.partitions_held(self.held)

    async def revoked(self, partitions: Collection[int]) -> None:
        """Stores partitions and lets them go; what cannot be stored in the stated time is let go without."""
        leaving = self._taken(partitions)
        if leaving:
            await asyncio.gather(*(held.release(self._settings.revoke_s) for held in leaving))

    async def lost(self, partitions: Collection[int]) -> None:
        for held in self._taken(partitions):
            held.drop()

    def _taken(self, partitions: Collection[int]) -> list[PartitionSupervisor]:
        taken = [self._held.pop(partition) for partition in sorted(partitions) if partition in self._held]
        self._observer.partitions_held(self.held)
        return taken

    async def _claim(self, partition: int) -> Worker:
        """Takes a partition from the process that had it, and loads its fold."""
        claimed = await self._store.claim_partition(self._plan, partition, self._settings.owner)
        if claimed is None:
            raise StoreError(f"store: partition {partition} of plan {self._plan.hex_id[:12]} is not registered")
        end = await self._log.end(partition)
        if end < claimed.state.position:
            raise LogGapError(partition, claimed.state.position, end)
        retain = self._settings.retain_verdicts
        fold = Fold(self._plan, partition, self._log.partitions, claimed.state, retain_verdicts=retain)
        return Worker(
            fold,
            claimed.fence,
            self._plan,
            partition,
            log=self._log,
            store=self._store,
            runtime=self._runtime,
            observer=self._observer,
            settings=self._settings,
            tracer=self._tracer,
        )

    def _failed(self, error: PartitionStoppedError) -> None:
        if self._membership is None:  # else the others go on, and the observer was told
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
        barred = fold.is_barred(client_id, window)
        return FoldPeek(kind, reason, fold.contributed(client_id, window), barred)

    def stream_uses(self) -> Iterator[StreamUse]:
        """Of the folds that are here now; to be read at once."""
        workers = [held.worker for held in self._held.values()]
        return chain.from_iterable(worker.fold.stream_uses() for worker in workers if worker is not None)

    async def passed(self, partition: int, position: int) -> None:
        """Returns once the fold has passed ``position``; what is asked at once after it, asks that very fold."""
        while True:
            held, worker = await self._reached(partition, lambda worker: worker.passed, position + 1)
            if held.worker is worker:
                return  # else it was loaded anew meanwhile, and may not have come so far again

    async def caught_up(self) -> None:
        """Returns once the folds have passed what stands in the log now: after a crash, or with an older store.

        What its seals close is stored, too: from then on the store calls no window open whose seal stands in the log.
        """
        for partition in range(self._log.partitions):
            await self.passed(partition, await self._log.end(partition) - 1)
            await self.closed(partition, (await self._holding(partition).working()).fold.closed_through)

    async def closed(self, partition: int, window: int) -> None:
        await self._reached(partition, lambda worker: worker.closed, window)

    async def recall(
        self, partition: int, client_id: str, id: DeltaId, digest: bytes, window: int
    ) -> tuple[RememberedKind, Reason | None]:
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
                return await worker.forgotten.reached(window)
            except StoreUnavailableError:
                await held.gone(worker)

    async def _reached(
        self, partition: int, watermark: Callable[[Worker], Watermark], value: int
    ) -> tuple[PartitionSupervisor, Worker]:
        """Returns once a watermark of the partition's worker is at ``value``, through every claim of it."""
        while True:
            held = self._holding(partition)
            worker = await held.working()
            try:
                await watermark(worker).reached(value)
            except StoreUnavailableError:
                await held.gone(worker)
            else:
                return held, worker

    def _holding(self, partition: int) -> PartitionSupervisor:
        held = self._held.get(partition)
        if held is not None:
            return held
        if self._stopped or self._membership is None:
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
                trouble.failed(now_s, "erasure request to folds failed, retrying", error)
            else:
                trouble.worked(self._runtime.monotonic(), "erasure requests to folds work again")
