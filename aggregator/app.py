"""The composition root: one process with its role, put together, run until it is told to stop, taken apart in order."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

from aggregator.api.admin import Admin, AdminService
from aggregator.api.catalog import CatalogService
from aggregator.api.collection import Collection, LargeDeltas
from aggregator.api.connections import ConnectionSettings
from aggregator.api.secure_sum import SecureSumService
from aggregator.api.server import Server, Services, calls_max, streams_of
from aggregator.auth.tls import connection_options, server_credentials
from aggregator.backends import KAFKA_STEP, Backends, authenticator_of
from aggregator.config import Config
from aggregator.data_dir import DataDir, ReplacedFileCheck
from aggregator.errors import AggregatorError
from aggregator.fold.fold import warm_up
from aggregator.ingest.budget import CollectionBudget
from aggregator.ingest.gateway import Gateway
from aggregator.ingest.group_commit import CommitLimits, GroupCommitter
from aggregator.ingest.handshake import Handshake
from aggregator.ingest.inflight import VerdictResolver
from aggregator.ingest.validation import submission_policy_of
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.interfaces import NO_TRACES, Authenticator, Folds, Log, Tracer
from aggregator.logs import journal, told
from aggregator.observability.health import DependencyProbe, ProcessTelemetry
from aggregator.observability.metrics import Metrics, StoreMetrics, StoreMetricsCollector
from aggregator.observability.tracing import of_commits
from aggregator.plan_loading import check_size, client_directory_of, plan_of, shufflers_of, signature_of
from aggregator.process import (
    bound_arenas,
    check_assertions,
    check_memory,
    connections_max,
    import_modules,
    memory_limit,
    raise_file_limit,
    watch_memory,
)
from aggregator.rate_limits import (
    ClientStreams,
    DebtTable,
    RateLimits,
    SendLimits,
    call_limits_of,
    forget_paid,
    send_limits_of,
)
from aggregator.release.catalog import ReleaseCatalog
from aggregator.release.leader import Leadership
from aggregator.release.receipts import NoReceipts
from aggregator.release.releaser import Releaser
from aggregator.runtime import Runtime, SystemRuntime, TaskSupervisor
from aggregator.secure.coordinator import CohortCoordinator, SumMetrics
from aggregator.secure.round import RoundClaims, RoundSettings
from aggregator.secure.sum_submission import SumSubmitter
from aggregator.shuffler.app import running as shuffling
from aggregator.staleness_guard import StalenessGuard
from aggregator.store.store import Store
from aggregator.workers.pool import WorkerPool
from aggregator.workers.remote import RemoteFolds
from aggregator.workers.worker import WorkerSettings
from hushsum.directory import Directory
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
from hushsum.privacy.guarantee import CENTRAL


@dataclass(frozen=True)
class ProcessRole:
    """What one process does.

    Attributes:
        collects: Takes deltas.
        folds: Owns partitions, and adds up what was taken.
        releases: May become the plan's releaser.
        opens: Opens windows by its clock.
        alone: No other process shares any of it: every fold is here.
    """

    collects: bool
    folds: bool
    releases: bool
    opens: bool
    alone: bool

    @classmethod
    def of(cls, config: Config) -> Self:
        """The duties of the configured role."""
        collects = config.role in {"all", "gateway"}
        folds = config.role in {"all", "worker"}
        return cls(
            collects=collects,
            folds=folds,
            releases=config.role in {"all", "releaser"},
            # With direct producers there may be no gateway, and what nobody has opened counts for nothing.
            opens=collects or (folds and config.direct_producers),
            alone=config.store == "sqlite",
        )

    @property
    def shows(self) -> bool:
        """Whether analysts may ask here."""
        return self.collects or self.releases


def probe_of(
    plan: Plan,
    log: Log,
    store: Store,
    runtime: Runtime,
    telemetry: ProcessTelemetry,
    *,
    folder: DataDir | None,
    staleness: StalenessGuard | None,
) -> DependencyProbe:
    """Looks at log and store, and at files where log and store are such.

    Args:
        plan: What is collected.
        log: Its log.
        store: Its store.
        runtime: Time.
        telemetry: Are told.
        folder: Of the files, where there is one.
        staleness: What the gateway here waits for; None where nothing here does.
    """
    looks: list[Callable[[], Awaitable[None]]] = []
    if folder is not None:
        files = ReplacedFileCheck((folder.log, folder.store), runtime)
        looks.append(files.look)
    probe = DependencyProbe(plan.id, log, store, runtime, telemetry.metrics, telemetry.tell, staleness)
    probe.looks, probe.tracer = looks, telemetry.tracer
    return probe


def store_metrics_of(plan: Plan, store: Store, runtime: Runtime, telemetry: ProcessTelemetry) -> StoreMetricsCollector:
    """Looks at windows and ledger, for the metrics alone."""
    return StoreMetricsCollector(
        plan, store, runtime, StoreMetrics(telemetry.metrics.registry), telemetry.metrics.retried
    )


_ENVELOPE_BYTES: Final = 4096


@dataclass(frozen=True)
class IngestParts:
    """What it stands on."""

    log: Log
    store: Store
    window_tracker: WindowTracker
    folds: Folds
    runtime: Runtime
    metrics: Metrics
    tracer: Tracer = NO_TRACES


@dataclass(frozen=True)
class Ingest:
    """What takes what clients send.

    Attributes:
        gateway: Takes deltas.
        handshake: Opens sessions.
        collection: Serves both.
        sends: How much one client may send.
        limits: All that remembers who has sent how much.
        sums: Takes parts in secure sums; None where the plan is of another mode.
    """

    gateway: Gateway
    handshake: Handshake
    collection: Collection
    sends: SendLimits
    limits: tuple[DebtTable, ...]
    sums: CohortCoordinator | None


def front_of(plan: Plan, config: Config, clients: Directory | None, parts: IngestParts) -> Ingest:
    """A gateway, whose writer has been started, and what stands before and beside it.

    Args:
        plan: What is collected.
        config: Limits.
        clients: The directory of clients that the plan names, if it names one.
        parts: The rest of the process.
    """
    sends = send_limits_of(config, plan, parts.runtime)
    reports = RateLimits(config.client_rate, config.client_burst)
    commits = _commits_of(plan, config, parts)
    store, is_local = parts.store, plan.privacy.local is not None
    # A secure window is charged by its first round; until then its clients are told whether it could be.
    charges = CollectionBudget(
        lambda window: store.charge_collection(plan, window) if is_local else store.check_collection(plan, window),
        parts.runtime,
    )
    gateway = Gateway(
        plan,
        window_tracker=parts.window_tracker,
        commits=commits,
        folds=parts.folds,
        runtime=parts.runtime,
        metrics=parts.metrics,
        pending_entries_max=config.pending_entries_max,
        submissions=submission_policy_of(
            plan,
            limits=reports,
            shufflers=shufflers_of(config.shufflers, plan),
            runtime=parts.runtime,
            sends=sends,
        ),
        streams=_streams_of(config, parts),
        charges=charges if is_local else None,
    )
    handshake = Handshake(
        plan,
        span=parts.window_tracker.span,
        runtime=parts.runtime,
        in_flight_max=config.in_flight_max,
    )
    large = LargeDeltas(
        gateway,
        runtime=parts.runtime,
        delta_bytes_max=plan.upload_bytes_max,
        held_bytes_max=config.pending_bytes_max,
        metrics=parts.metrics,
        sends=sends,
    )
    collection = Collection(
        gateway,
        handshake,
        large=large,
        runtime=parts.runtime,
        metrics=parts.metrics,
        sessions_max=config.sessions_max,
        sends=sends,
    )
    sums = None if plan.privacy.cohort is None else _sums_of(plan, config, clients, commits, charges, parts)
    return Ingest(gateway, handshake, collection, sends, (sends, reports), sums)


def _streams_of(config: Config, parts: IngestParts) -> ClientStreams:
    """From what the folds here remember on: a start gives nobody a fresh allowance."""
    streams = ClientStreams(config.client_streams_max)
    streams.restore(parts.folds.stream_uses(), parts.window_tracker.is_over)
    return streams


def _commits_of(plan: Plan, config: Config, parts: IngestParts) -> GroupCommitter:
    shuffle = None if plan.privacy.reports is None else OsEntropy()
    limits, tracer = _commit_limits(plan, config), of_commits(parts.tracer, plan)
    commits = GroupCommitter(
        parts.log, parts.window_tracker, parts.runtime, limits, parts.metrics, shuffle=shuffle, tracer=tracer
    )
    commits.start()
    return commits


def _sums_of(
    plan: Plan,
    config: Config,
    clients: Directory | None,
    commits: GroupCommitter,
    charges: CollectionBudget,
    parts: IngestParts,
) -> CohortCoordinator:
    settings = RoundSettings(config.secure_step_s, config.secure_upload_s, config.manual)
    settings.check(plan)
    return CohortCoordinator(
        plan,
        SumSubmitter(parts.window_tracker, commits, VerdictResolver(plan, parts.folds, parts.runtime), parts.runtime),
        RoundClaims(plan, parts.store, parts.runtime),
        budget=charges,
        window_tracker=parts.window_tracker,
        runtime=parts.runtime,
        entropy=OsEntropy(),
        metrics=SumMetrics(parts.metrics.registry),
        settings=settings,
        directory=clients,
        tracer=parts.tracer,
    )


def _commit_limits(plan: Plan, config: Config) -> CommitLimits:
    # Were one entry larger than all that may wait, it would never get into the log.
    largest = plan.upload_bytes_max if plan.privacy.cohort is None else plan.words.bytes
    least = 0 if plan.privacy.mode == CENTRAL else 2 * largest + _ENVELOPE_BYTES
    return CommitLimits(
        pending_entries_max=config.pending_entries_max,
        pending_bytes_max=max(config.pending_bytes_max, least),
        group_entries_max=config.group_entries_max,
        group_bytes_max=config.group_bytes_max,
    )


_FORGET_ASKED_S: Final = 1.0
_Front = tuple[Collection, SecureSumService]  # what clients call

_journal = journal("service")


class Service:
    """A running service. Made by :func:`running`.

    Attributes:
        plan: What it collects.
        process_role: What this process does of it.
        grpc: Where it listens, ``host:port``.
        telemetry: What it tells the outside of itself.
        metrics_page: Where ``/metrics`` answers, ``host:port``; empty where it is off.
        metrics: Its counters.
        log: Its log.
        store: Its store.
        workers: Its folds, in a role that folds.
        gateway: Its gateway, in a role that collects.
        sums: Its secure sums, in such a role, where the plan has them.
    """

    workers: WorkerPool
    gateway: Gateway
    sums: CohortCoordinator | None = None

    def __init__(
        self, config: Config, plan: Plan, log: Log, store: Store, runtime: Runtime, telemetry: ProcessTelemetry
    ) -> None:
        self.config = config
        self.plan = plan
        self.process_role = ProcessRole.of(config)
        self.log = log
        self.store = store
        self.runtime = runtime
        self.telemetry, self.metrics, self.metrics_page = telemetry, telemetry.metrics, telemetry.metrics_page
        # Where the folds are here, the start itself waits for them.
        waits = self.process_role.collects and not self.process_role.alone
        self._staleness = StalenessGuard(log.partitions) if waits else None
        self.catalog = ReleaseCatalog(plan, store)
        self.metrics.on_published = self.catalog.announce
        self.grpc = ""

    async def failed(self) -> None:
        """Returns never; raises what the service cannot go on after.

        Raises:
            AggregatorError: A fold has stopped.
        """
        await self._supervision.failed()

    async def run(self, stack: AsyncExitStack, backends: Backends, folder: DataDir | None) -> None:
        """Starts every part of the role; the stack takes them apart again, the last one first."""
        self._supervision = TaskSupervisor(stack, self.runtime, self.metrics.retried)
        await self.runtime.blocking(warm_up)
        folds = await self._start_folds(backends)
        window_tracker = await self._start_openings()
        ingest = self._start_front(window_tracker, folds) if self.process_role.collects else None
        leadership = await self._leadership(backends, folds)
        authenticator = await authenticator_of(self.config, self.runtime, self.metrics, self._supervision)
        server = self._server(ingest, leadership, window_tracker, authenticator)
        self._supervision.forever("admissions", lambda: server.recheck(self.runtime))
        self._supervision.forever("connections", lambda: server.guard(self.runtime))
        if (limit := memory_limit(self.config)) is not None:
            self._supervision.watch("memory", lambda: watch_memory(limit, self.runtime))
        self.grpc = leadership.address = await server.bind(self.config.listen, server_credentials(self.config))
        if self.process_role.releases:
            await self._start_leadership(leadership)
        self.telemetry.attend(server, self._supervision.failed, stack)
        await self._start_looking(folder)
        await server.start()
        self.telemetry.serves()
        self._supervision.at_the_end("serving", lambda: self._stop_serving(server), None)
        if folder is not None:
            folder.announce(grpc=self.grpc, metrics=self.metrics_page, health=self.telemetry.health_page)
            stack.callback(folder.forget_listening)

    async def _start_folds(self, backends: Backends) -> Folds:
        """Begins to fold, and gives the view of the folds that gateway and releaser have."""
        if self.process_role.folds:
            await self._start_workers(backends)
        if self.process_role.alone:
            return self.workers
        stored = RemoteFolds(self.plan, self.store, self.runtime, self.metrics)
        self._supervision.at_the_end("fold marks", stored.stop, self._stop_s)
        return stored

    async def _start_workers(self, backends: Backends) -> None:
        config = self.config
        settings = WorkerSettings(
            checkpoint_entries=config.checkpoint_entries,
            checkpoint_s=config.checkpoint_s,
            retain_verdicts=config.retain_verdicts,
            asks_s=None if self.process_role.alone else _FORGET_ASKED_S,
            owner=backends.owner,
        )
        membership = backends.membership(self.plan, self.metrics)
        ports = self.log, self.store, self.runtime, self.metrics
        self.workers = WorkerPool(self.plan, *ports, settings, membership=membership, tracer=self.telemetry.tracer)
        await self.workers.start()
        self._supervision.at_the_end("folds", self.workers.stop, self._stop_s)
        self._supervision.watch("workers", self.workers.ended)
        if membership is not None:
            self._supervision.watch("membership", membership.ended)
        if self.process_role.alone:
            await self.workers.caught_up()  # what stood in the log is known before anybody is answered

    async def _start_openings(self) -> WindowTracker:
        first_window = await self.store.first_window(self.plan.id)
        skew_ms = round(1000 * self.config.skew_s)
        window_tracker = WindowTracker(
            self.plan, self.store, self.runtime, skew_ms=skew_ms, first_window=first_window, staleness=self._staleness
        )
        if self.process_role.opens:
            await window_tracker.load()
            await window_tracker.open_accepted()
            self._supervision.forever("window tracker", window_tracker.run)
        return window_tracker

    def _start_front(self, window_tracker: WindowTracker, folds: Folds) -> _Front:
        clients = client_directory_of(self.config.client_directory, self.plan)
        parts = IngestParts(
            self.log, self.store, window_tracker, folds, self.runtime, self.metrics, self.telemetry.tracer
        )
        ingest = front_of(self.plan, self.config, clients, parts)
        self.gateway, self.sums = ingest.gateway, ingest.sums
        self._supervision.forever("debts of senders", lambda: forget_paid(ingest.limits, self.runtime))
        self._supervision.at_the_end("gateway", self.gateway.finish, self._stop_s)
        if self.sums is not None:
            self._supervision.forever("secure sums", self.sums.run)
            self._supervision.at_the_end("secure sums", self.sums.finish, self.config.stop_s)
        most = streams_of(self.plan, self.config.sessions_max)
        sums = SecureSumService(self.sums, clients, runtime=self.runtime, streams_max=most, sends=ingest.sends)
        return ingest.collection, sums

    async def _leadership(self, backends: Backends, folds: Folds) -> Leadership:
        """In a role that releases nothing it is never started: it then says which process releases."""
        new_releaser = partial(
            Releaser,
            self.plan,
            log=self.log,
            store=self.store,
            receipts=await backends.receipts()
            if self.process_role.releases
            else NoReceipts("this process releases nothing"),
            folds=folds,
            entropy=OsEntropy(),
            runtime=self.runtime,
            observer=self.metrics,
            tracer=self.telemetry.tracer,
        )
        return Leadership(
            self.plan,
            new_releaser,
            store=self.store,
            runtime=self.runtime,
            observer=self.metrics,
            owner=backends.owner,
            lease_s=self.config.lease_s,
            automatic=not self.config.manual,
        )

    async def _start_leadership(self, leadership: Leadership) -> None:
        await leadership.start()
        self._supervision.at_the_end("releaser", leadership.stop, self._stop_s)
        self._supervision.watch("releaser", leadership.ended)
        if self.process_role.alone:
            await leadership.led()  # what a crash left half done is finished before anybody asks

    def _server(
        self, ingest: _Front | None, leadership: Leadership, window_tracker: WindowTracker, authenticator: Authenticator
    ) -> Server:
        administration = Admin(
            self.plan,
            self.config.role,
            log=self.log,
            store=self.store,
            metrics=self.metrics,
            leadership=leadership,
            window_tracker=window_tracker if self.process_role.collects else None,
        )
        collection, secure_sum = ingest or (None, None)
        catalog = CatalogService(self.catalog) if self.process_role.shows else None
        services = Services(collection, catalog, AdminService(administration), secure_sum)
        most = calls_max(self.plan, self.config.sessions_max)
        limits = call_limits_of(self.config, self.runtime)
        self._supervision.forever("debts of callers", lambda: forget_paid([limits], self.runtime))
        return Server(
            self.plan,
            services,
            authenticator=authenticator,
            metrics=self.metrics,
            sessions_max=self.config.sessions_max,
            limits=limits,
            connections=ConnectionSettings(connections_max(most, self.config), connection_options(self.config)),
        )

    async def _start_looking(self, folder: DataDir | None) -> None:
        """Looks at what other processes do, and at whether log and store answer; once before anybody is served."""
        probe = probe_of(
            self.plan, self.log, self.store, self.runtime, self.telemetry, folder=folder, staleness=self._staleness
        )
        await probe.look()
        self._supervision.forever("dependency probe", probe.run)
        if self.config.metrics_listen:
            self._supervision.forever(
                "store metrics", store_metrics_of(self.plan, self.store, self.runtime, self.telemetry).run
            )
        if self.process_role.shows and not self.process_role.alone:
            self._supervision.forever("watchers", lambda: self.catalog.look_out(self.runtime))

    async def _stop_serving(self, server: Server) -> None:
        """Accepts nothing more, and gives what was accepted the time to be answered."""
        self.telemetry.drains()
        if self.process_role.collects:
            self.gateway.stop_accepting()
        if self.sums is not None:
            self.sums.stop_accepting()
        self.catalog.close()
        await server.drain()
        await server.stop(self.config.stop_s)

    @property
    def _stop_s(self) -> float | None:
        """What lies in files takes no longer than the disk does; brokers and a database may not answer at all."""
        return None if not self.config.needs_network else self.config.stop_s


@asynccontextmanager
async def running(
    config: Config, runtime: Runtime, wrap_log: Callable[[Log], Log] = lambda log: log, tracer: Tracer = NO_TRACES
) -> AsyncIterator[Service]:
    """A service that runs as long as the block does, and has answered and stored what it accepted when that ends.

    Args:
        config: Its settings.
        runtime: Time and tasks.
        wrap_log: What every part gets in place of the log: for simulations that come between.
        tracer: Where spans go, in place of what ``config`` says.

    Raises:
        ConfigError: The data folder, the plan's file or an address cannot be used, brokers or database do not answer
            in time, or the plan has more counters than ``counters_max``.
        PlanError: The plan's file holds none.
        AggregatorError: Log or store cannot be used. (Receipts that cannot be used stop releasing alone.)
        BudgetError: The plan does not fit its population's ledger.
    """
    async with AsyncExitStack() as stack:
        folder = None
        if config.data is not None:
            folder = DataDir.open(config.data)
            stack.callback(folder.close)
        metrics = Metrics(step=KAFKA_STEP if config.log == "kafka" else 1)
        telemetry = ProcessTelemetry(config, runtime, metrics, tracer=tracer)
        await telemetry.open(stack)
        backends = Backends(config, folder, runtime, metrics, stack)
        store = await backends.store()
        assert config.plan is not None, "required in every role but the shuffler's"
        plan = await plan_of(config.plan, store)
        check_size(plan, config.counters_max)
        await store.register(plan, config.partitions, plan.window.index_at(runtime.now_ms()))
        if (signed := signature_of(config.plan, plan)) is not None:
            await store.keep_plan_signature(signed)
        log = await backends.log(plan)
        telemetry.collect(plan, stack)
        service = Service(config, plan, wrap_log(log), store, runtime, telemetry)
        await service.run(stack, backends, folder)
        pages = {"metrics": telemetry.metrics_page, "health": telemetry.health_page}
        _journal.info("listening", grpc=service.grpc, **pages, plan=plan.hex_id[:12], role=config.role)
        yield service
        _journal.info("stopping")
    _journal.info("stopped")


async def serve(config: Config) -> None:
    """Serves until SIGTERM or SIGINT, and stops gracefully; a second signal ends the process at once.

    Raises:
        HushsumError: It cannot start, or cannot go on.
    """
    check_assertions()
    bound_arenas()
    raise_file_limit()
    import_modules(config)
    check_memory(config)
    asked, loop, starting = asyncio.Event(), asyncio.get_running_loop(), asyncio.current_task()

    def ask() -> None:
        asked.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        if starting is not None:
            starting.cancel()  # it may wait for brokers for a long time

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    loop.set_exception_handler(_told_by_nobody)
    runtime = SystemRuntime()
    try:
        begin = shuffling if config.role == "shuffler" else running
        async with begin(config, runtime) as service:
            starting = None
            stop = runtime.spawn(_wait(asked), "signals")
            failure = runtime.spawn(service.failed(), "failure")
            await asyncio.wait([stop, failure], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if failure.done():
                failure.result()
            failure.cancel()
    except asyncio.CancelledError:
        if not asked.is_set():
            raise


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _told_by_nobody(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:  # Any: asyncio's own form
    """What failed where nobody waits for it any more: of a connection that was given up it is no news to anybody."""
    error = context.get("exception")
    if isinstance(error, OSError | EOFError | AggregatorError):
        _journal.debug("failed after it was given up", kind=type(error).__name__, error=told(error))
    else:
        _journal.error(context.get("message", "failed"), exc_info=error)
