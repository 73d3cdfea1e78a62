"""The service's processes: real parts around a simulated runtime, put together as the composition root does."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, cast

from aggregator.api.collection import Handshake
from aggregator.errors import AggregatorError
from aggregator.ingest.gateway import Gateway
from aggregator.ingest.group_commit import CommitLimits, GroupCommitter
from aggregator.ingest.inflight import ReceivedDelta
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.interfaces import Folds, Log, Observer, Receipts
from aggregator.observability.metrics import Metrics
from aggregator.release.leader import Leadership
from aggregator.release.releaser import Releaser
from aggregator.runtime import TaskSupervisor
from aggregator.store.store import Store
from aggregator.workers.pool import WorkerPool
from aggregator.workers.remote import RemoteFolds
from aggregator.workers.worker import WorkerSettings
from hushsum.entropy import ReplayableEntropy
from hushsum.plan import Plan
from hushsum_proto.answers import Answer
from hushsum_proto.messages import Hello, Welcome
from tests.simulation.books import Books
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.membership import Coordinator
from tests.simulation.network import Network
from tests.simulation.observer import Silence, SimObserver
from tests.simulation.runtime import SimRuntime

LEASE_S: Final = 2.5
SKEW_S: Final = 0.5
_STOP_S: Final = 5.0
_LIMITS: Final = CommitLimits(
    pending_entries_max=64, pending_bytes_max=1 << 16, group_entries_max=8, group_bytes_max=1 << 12
)
_WORKING: Final = WorkerSettings(batch=8, turn=3, checkpoint_entries=12, checkpoint_s=1.0, idle_s=5.0, revoke_s=2.0)


@dataclass
class Site:
    """What all processes share.

    Attributes:
        log_of: The log as a process sees it: where planted bugs come in; as for the store.
        store_of: The store as a process sees it.
    """

    loop: VirtualLoop
    seed: int
    plan: Plan
    log: Log
    store: Store
    receipts: Receipts
    coordinator: Coordinator
    network: Network
    books: Books
    log_of: Callable[[Log], Log] = field(default=lambda log: log)
    store_of: Callable[[Store], Store] = field(default=lambda store: store)


class Host:
    """One process of the service, and those that follow it after its deaths.

    Args:
        site: What all share.
        name: Of the host; its processes have a number behind it.
        kind: ``all``, ``gateway``, ``worker`` or ``releaser``.

    Attributes:
        skew_ms: Of its wall clock, from now on.
        releaser: What may become the releaser, once it is there.
    """

    def __init__(self, site: Site, name: str, kind: str) -> None:
        self.name, self.kind = name, kind
        self.starts = 0
        self.process: Process | None = None
        self.leadership: Leadership | None = None
        self._site = site
        self._runtime: SimRuntime | None = None
        self._skew_ms = 0
        self._stack: AsyncExitStack | None = None

    @property
    def is_up(self) -> bool:
        """Whether its process lives."""
        return self.process is not None and self.process.alive

    def set_clock(self, skew_ms: int) -> None:
        """Sets its wall clock, so far ahead of the world's."""
        self._skew_ms = skew_ms
        if self._runtime is not None:
            self._runtime.skew_ms = skew_ms

    def start(self) -> None:
        """A new process."""
        self.starts += 1
        site = self._site
        process = self.process = Process(f"{self.name}#{self.starts}")
        self._runtime = SimRuntime(site.loop, process, site.seed)
        self._runtime.skew_ms = self._skew_ms
        site.loop.spawn_in(process, self._main(process, self._runtime), f"{process.name}/main")

    def die(self) -> None:
        """Its process is no more; its connections break."""
        process = self.process
        if process is None or not process.alive:
            return
        site = self._site
        site.loop.kill(process)
        self._stack = None
        front = site.network.fronts.get(self.name)
        if front is not None and front.process is process:
            del site.network.fronts[self.name]
        site.network.lose(process.name)
        self.leadership = None

    def _gone(self, process: Process) -> None:
        if self.process is process:
            self.die()

    def stop(self) -> None:
        """Its process ends in order, as after SIGTERM."""
        process, stack = self.process, self._stack
        if process is None or not process.alive or stack is None:
            return
        self._stack = None

        self._site.loop.spawn_in(process, self._end(process, stack), f"{process.name}/stop")

    async def _end(self, process: Process, stack: AsyncExitStack) -> None:
        """Takes its parts apart; whatever they could not store, the process is gone."""
        self._site.network.fronts.pop(self.name, None)
        try:
            await stack.aclose()
        except AggregatorError:
            pass
        finally:
            self._site.loop.call_world(0.0, self._gone, process)

    async def _main(self, process: Process, runtime: SimRuntime) -> None:
        """Runs until something ends it for good: then the process is gone, and whoever supervises it starts another."""
        stack, started = AsyncExitStack(), False
        try:
            parts = _Parts(self._site, self, process, runtime, stack)
            await parts.start()
            self._stack, started = stack, True
            await parts.supervision.failed()
        except AggregatorError:
            if not started or self._stack is not None:  # else it is being stopped already
                self._stack = None
                await self._end(process, stack)


class _Parts:
    """What a process is made of."""

    def __init__(self, site: Site, host: Host, process: Process, runtime: SimRuntime, stack: AsyncExitStack) -> None:
        self.process = process
        self._site, self._host, self._runtime = site, host, runtime
        self._log, self._store = site.log_of(site.log), site.store_of(site.store)
        alone = host.kind == "all"
        self._stop_s = None if alone else _STOP_S
        self._observer = cast("Observer", SimObserver(site.books, elsewhere=not alone))
        self.supervision = TaskSupervisor(stack, runtime, self._observer.retried)

    async def start(self) -> None:
        """In the order of the composition root."""
        kind = self._host.kind
        folds: Folds | None = None
        if kind in {"all", "worker"}:
            folds = await self._start_workers()
        if kind in {"gateway", "releaser"}:
            stored = RemoteFolds(self._site.plan, self._store, self._runtime, self._observer)
            self.supervision.at_the_end("fold marks", stored.stop, self._stop_s)
            folds = stored
        assert folds is not None
        if kind in {"all", "releaser"}:
            await self._start_leadership(folds)
        if kind in {"all", "gateway"}:
            await self._start_gateway(folds)

    async def _start_workers(self) -> WorkerPool:
        alone = self._host.kind == "all"
        settings = replace(_WORKING, asks_s=None if alone else 1.0, owner=self.process.name)
        workers = WorkerPool(
            self._site.plan,
            self._log,
            self._store,
            self._runtime,
            self._observer,
            settings,
            membership=None if alone else self._site.coordinator.member(),
        )
        await workers.start()
        self.supervision.at_the_end("folds", workers.stop, self._stop_s)
        self.supervision.watch("workers", workers.ended)
        return workers

    async def _start_leadership(self, folds: Folds) -> None:
        site = self._site
        new_releaser = partial(
            Releaser,
            site.plan,
            log=self._log,
            store=self._store,
            receipts=site.receipts,
            folds=folds,
            entropy=ReplayableEntropy(f"noise/{self.process.name}/{site.seed}".encode()),
            runtime=self._runtime,
            observer=self._observer,
        )
        leadership = Leadership(
            site.plan,
            new_releaser,
            store=self._store,
            runtime=self._runtime,
            observer=self._observer,
            owner=self.process.name,
            lease_s=LEASE_S,
        )
        await leadership.start()
        self.supervision.at_the_end("releaser", leadership.stop, self._stop_s)
        self.supervision.watch("leadership", leadership.ended)
        self._host.leadership = leadership

    async def _start_gateway(self, folds: Folds) -> None:
        site, runtime = self._site, self._runtime
        metrics = cast("Metrics", Silence())
        first_window = await self._store.first_window(site.plan.id)
        window_tracker = WindowTracker(
            site.plan, self._store, runtime, skew_ms=round(1000 * SKEW_S), first_window=first_window
        )
        await window_tracker.load()
        await window_tracker.open_accepted()
        self.supervision.forever("window tracker", window_tracker.run)
        commits = GroupCommitter(self._log, window_tracker, runtime, _LIMITS, metrics)
        commits.start()
        gateway = Gateway(
            site.plan,
            window_tracker=window_tracker,
            commits=commits,
            folds=folds,
            runtime=runtime,
            metrics=metrics,
            pending_entries_max=_LIMITS.pending_entries_max,
        )
        self.supervision.at_the_end("gateway", gateway.finish, self._stop_s)
        reception = Handshake(site.plan, span=window_tracker.span, runtime=runtime, in_flight_max=16)
        site.network.fronts[self._host.name] = SimFront(self.process, gateway, reception)


class SimFront:
    """A gateway's server: what :class:`tests.simulation.network.Front` asks for."""

    def __init__(self, process: Process, gateway: Gateway, reception: Handshake) -> None:
        self.process = process
        self._gateway, self._reception = gateway, reception

    async def welcome(self, hello: Hello) -> Welcome:
        self._gateway.check_running()
        return await self._reception.welcome(hello)

    def begin(self, client_id: str, plan_id: bytes, data: bytes) -> "Answer | asyncio.Future[Answer]":
        return self._gateway.begin(ReceivedDelta(client_id, plan_id, data))

    def send(self, client_id: str, plan_id: bytes, data: bytes, tell: Callable[[Answer], None]) -> None:
        self._gateway.send(ReceivedDelta(client_id, plan_id, data), tell)


def by_hand(host: Host, loop: VirtualLoop, what: Callable[[Releaser], Awaitable[object]]) -> None:
    """An operator asks a process to seal or to release, and is content with whatever comes of it."""
    leadership, process = host.leadership, host.process
    if leadership is None or process is None or not process.alive:
        return

    async def ask() -> None:
        try:
            await leadership.do(what)
        except AggregatorError:
            return  # refused, or not the time for it

    loop.spawn_in(process, ask(), f"{process.name}/operator")
