"""The composition root: the parts of one process by its role, wired, run until a signal, and taken apart in order."""

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

from aggregator.api.admin import Admin
from aggregator.api.catalog import CatalogService
from aggregator.api.collection import Collection, Handshake
from aggregator.api.secure_sum import SecureSumService
from aggregator.api.server import Server, Services, streams_of
from aggregator.auth.tokens import TokenFile
from aggregator.backends import KAFKA_STEP, Backends
from aggregator.config import Config
from aggregator.data_dir import DataDir, ReplacedFileCheck
from aggregator.errors import AggregatorError, ConfigError
from aggregator.fold.fold import warm_up
from aggregator.ingest.collection_budget import CollectionBudget
from aggregator.ingest.gateway import Gateway
from aggregator.ingest.group_commit import GroupCommitter, commit_limits_of
from aggregator.ingest.inflight import VerdictResolver
from aggregator.ingest.validation import submission_policy_of
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.interfaces import NO_TRACES, Folds, Log, Tracer
from aggregator.logs import describe_error, journal
from aggregator.observability.health import DependencyProbe, ProcessTelemetry
from aggregator.observability.metrics import Metrics, StoreMetrics, StoreMetricsCollector
from aggregator.observability.tracing import of_commits
from aggregator.plan_loading import check_size, client_directory_of, plan_of, shufflers_of, signature_of
from aggregator.process import bound_arenas, check_assertions, check_memory, import_modules, raise_file_limit
from aggregator.rate_limits import DeltaStreamQuota, RateLimits, forget_paid, send_limits_of
from aggregator.release.catalog import ReleaseCatalog
from aggregator.release.copies import ReleaseCopier
from aggregator.release.drift import DriftMonitor
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
from hushsum import __version__
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
from hushsum.signing import Directory

_FORGET_ASKED_S: Final = 1.0

_journal = journal("service")


@dataclass(frozen=True)
class ProcessRole:
    """The duties of one process."""

    collects: bool  # it takes deltas
    folds: bool  # it owns partitions, and folds their entries
    releases: bool  # it may become the plan's releaser
    opens: bool  # it opens windows by its clock
    alone: bool  # there is no other process: every fold is here

    @classmethod
    def of(cls, config: Config) -> Self:
        collects = config.role in {"all", "gateway"}
        folds = config.role in {"all", "worker"}
        return cls(
            collects=collects,
            folds=folds,
            releases=config.role in {"all", "releaser"},
            # With direct producers there may be no gateway, and nothing counts in a window that was not opened.
            opens=collects or (folds and config.direct_producers),
            alone=config.store == "sqlite",
        )

    @property
    def shows(self) -> bool:
        """Whether it serves releases."""
        return self.collects or self.releases


class Service:
    """A running service. Made by :func:`running`.

    Attributes:
        grpc: Where it listens, ``host:port``.
        metrics_page: Where ``/metrics`` answers, ``host:port``; empty if it is off.
        page: Where the web page listens, ``host:port``; empty if it is off.
        tokens: Who may sign in there.
        workers: In a role that folds.
        gateway: In a role that collects.
        sums: In a role that collects, of a secure plan.
    """

    grpc: str
    workers: WorkerPool
    gateway: Gateway
    sums: CohortCoordinator | None = None
    page: str = ""
    tokens: TokenFile | None = None

    def __init__(
        self, config: Config, plan: Plan, log: Log, store: Store, runtime: Runtime, telemetry: ProcessTelemetry
    ) -> None:
        self.config, self.process_role = config, ProcessRole.of(config)
        self.plan = plan
        self.log = log
        self.store = store
        self.runtime = runtime
        self.telemetry, self.metrics, self.metrics_page = telemetry, telemetry.metrics, telemetry.metrics_page
        self.catalog = ReleaseCatalog(plan, store)
        self.metrics.on_published = self.catalog.announce

    async def failed(self) -> None:
        """Never returns; raises the error of a task that the service cannot go on without, such as a stopped fold's."""
        await self._supervisor.failed()

    async def run(self, stack: AsyncExitStack, backends: Backends, folder: DataDir | None) -> None:
        """Starts every part of the role; the stack takes them apart again, the last one first."""
        config, role, runtime = self.config, self.process_role, self.runtime
        supervisor = self._supervisor = TaskSupervisor(stack, runtime, self.metrics.retried)
        await runtime.blocking(warm_up)
        _journal.info("loops loaded")
        folds = await self._folds(backends)
        # Where the folds are here, the start itself waits for them.
        staleness = StalenessGuard(self.log.partitions) if role.collects and not role.alone else None
        tracker = await self._window_tracker(staleness)
        collection, secure_sum = self._ingest(tracker, folds) if role.collects else (None, None)
        leadership = await self._leadership(backends, folds)
        admin = Admin(
            self.plan,
            config.role,
            log=self.log,
            store=self.store,
            metrics=self.metrics,
            leadership=leadership,
            window_tracker=tracker if role.collects else None,
        )
        catalog = CatalogService(self.catalog) if role.shows else None
        services = Services(collection, catalog, admin, secure_sum)
        server = await Server.bound(self.plan, config, runtime, self.metrics, services, supervisor)
        self.grpc = server.address
        leadership.address = self.grpc
        if role.releases:
            await self._start_releasing(leadership)
            await self._start_followers(backends)
        if config.page_listen:
            self._start_page(server, admin)
        self.telemetry.attend(server, supervisor.failed, stack)
        await self._start_probes(folder, staleness)
        await server.start()
        self.telemetry.serves()
        supervisor.at_the_end("serving", lambda: self._stop_serving(server), None)
        if folder is not None:
            folder.announce(grpc=self.grpc, metrics=self.metrics_page, health=self.telemetry.health_page)
            stack.callback(folder.forget_listening)

    def _start_page(self, server: Server, admin: Admin) -> None:
        from aggregator.operations import ServiceOperations
        from aggregator.page import ServicePage  # it needs the extra page, which is for this alone

        operations = ServiceOperations(
            self.plan,
            self.config,
            admin,
            tokens=server.tokens,
            metrics=self.metrics,
            runtime=self.runtime,
            entropy=OsEntropy(),
            addresses=self._addresses,
            loop=asyncio.get_running_loop(),
        )
        page = ServicePage(self.config, self.catalog, server.tokens, self.runtime, operations, self.metrics)
        self.page, self.tokens = page.address, server.tokens
        page.start()
        self._supervisor.at_the_end("page", lambda: self.runtime.blocking(page.stop), self._stop_s)

    def _addresses(self) -> list[tuple[str, str]]:
        """What this process answers, and where; empty where it does not."""
        health = self.telemetry.health_page
        return [("gRPC", self.grpc), ("web page", self.page), ("metrics", self.metrics_page), ("health", health)]

    async def _folds(self, backends: Backends) -> Folds:
        """The folds of this process; or all folds by their stored marks, where other processes fold, too."""
        if self.process_role.folds:
            await self._start_workers(backends)
        if self.process_role.alone:
            return self.workers
        remote = RemoteFolds(self.plan, self.store, self.runtime, self.metrics)
        self._supervisor.at_the_end("fold marks", remote.stop, self._stop_s)
        return remote

    async def _start_workers(self, backends: Backends) -> None:
        config, alone = self.config, self.process_role.alone
        settings = WorkerSettings(
            checkpoint_entries=config.checkpoint_entries,
            checkpoint_s=config.checkpoint_s,
            retain_verdicts=config.retain_verdicts,
            asks_s=None if alone else _FORGET_ASKED_S,
            owner=backends.owner,
        )
        membership = backends.membership(self.plan, self.metrics)
        ports = self.log, self.store, self.runtime, self.metrics
        self.workers = WorkerPool(self.plan, *ports, settings, membership=membership, tracer=self.telemetry.tracer)
        await self.workers.start()
        self._supervisor.at_the_end("folds", self.workers.stop, self._stop_s)
        self._supervisor.watch("workers", self.workers.ended)
        if membership is not None:
            self._supervisor.watch("membership", membership.ended)
        if alone:
            await self.workers.caught_up()  # everything in the log is known before any caller gets an answer
        _journal.info("folds started", caught_up=alone)

    async def _window_tracker(self, staleness: StalenessGuard | None) -> WindowTracker:
        first_window = await self.store.first_window(self.plan.id)
        skew_ms = round(1000 * self.config.skew_s)
        tracker = WindowTracker(
            self.plan, self.store, self.runtime, skew_ms=skew_ms, first_window=first_window, staleness=staleness
        )
        if self.process_role.opens:
            await tracker.load()
            await tracker.open_accepted()
            _journal.info("windows loaded")
            self._supervisor.forever("window tracker", tracker.run)
        return tracker

    def _ingest(self, tracker: WindowTracker, folds: Folds) -> tuple[Collection, SecureSumService]:
        """The services that take what clients send."""
        plan, config, runtime = self.plan, self.config, self.runtime
        clients = client_directory_of(config.client_directory, plan)
        sends = send_limits_of(config, plan, runtime)
        reports = RateLimits(config.client_rate, config.client_burst)
        commits = GroupCommitter(
            self.log,
            tracker,
            runtime,
            commit_limits_of(config, plan),
            self.metrics,
            shuffle=None if plan.privacy.reports is None else OsEntropy(),
            tracer=of_commits(self.telemetry.tracer, plan),
        )
        commits.start()
        store, is_local = self.store, plan.privacy.local is not None
        # A secure window is charged by its first round; until then clients only learn whether it could be.
        budget = CollectionBudget(
            lambda window: store.charge_collection(plan, window) if is_local else store.check_collection(plan, window),
            runtime,
        )
        streams = DeltaStreamQuota(config.client_streams_max)
        streams.restore(folds.stream_uses(), tracker.is_over)  # a start gives no client a fresh allowance
        self.gateway = Gateway(
            plan,
            window_tracker=tracker,
            commits=commits,
            folds=folds,
            runtime=runtime,
            metrics=self.metrics,
            pending_entries_max=config.pending_entries_max,
            policy=submission_policy_of(
                plan,
                limits=reports,
                shufflers=shufflers_of(config.shufflers, plan),
                runtime=runtime,
                sends=sends,
            ),
            streams=streams,
            budget=budget if is_local else None,
        )
        handshake = Handshake(plan, span=tracker.span, runtime=runtime, in_flight_max=config.in_flight_max)
        collection = Collection(
            plan, config, runtime, self.metrics, receiver=self.gateway, handshake=handshake, sends=sends
        )
        self._supervisor.forever("debts of senders", lambda: forget_paid((sends.rates, reports), runtime))
        self._supervisor.at_the_end("gateway", self.gateway.finish, self._stop_s)
        if plan.privacy.cohort is not None:
            submitter = SumSubmitter(tracker, commits, VerdictResolver(plan, folds, runtime), runtime)
            self.sums = self._secure_sums(tracker, submitter, budget, clients)
            self._supervisor.forever("secure sums", self.sums.run)
            self._supervisor.at_the_end("secure sums", self.sums.finish, config.stop_s)
        most = streams_of(plan, config.sessions_max)
        return collection, SecureSumService(plan, self.sums, clients, runtime=runtime, streams_max=most, sends=sends)

    def _secure_sums(
        self, tracker: WindowTracker, submitter: SumSubmitter, budget: CollectionBudget, clients: Directory | None
    ) -> CohortCoordinator:
        settings = RoundSettings(self.config.secure_step_s, self.config.secure_upload_s, self.config.manual)
        settings.check(self.plan)
        return CohortCoordinator(
            self.plan,
            submitter,
            RoundClaims(self.plan, self.store, self.runtime),
            budget=budget,
            window_tracker=tracker,
            runtime=self.runtime,
            entropy=OsEntropy(),
            metrics=SumMetrics(self.metrics.registry),
            settings=settings,
            directory=clients,
            tracer=self.telemetry.tracer,
        )

    async def _leadership(self, backends: Backends, folds: Folds) -> Leadership:
        """In a role that does not release it is never started, and only says which process releases."""
        releases = self.process_role.releases
        new_releaser = partial(
            Releaser,
            self.plan,
            log=self.log,
            store=self.store,
            receipts=await backends.receipts() if releases else NoReceipts("this process releases nothing"),
            folds=folds,
            entropy=OsEntropy(),
            runtime=self.runtime,
            observer=self.metrics,
            tracer=self.telemetry.tracer,
            keep=self.config.keep_releases,
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

    async def _start_releasing(self, leadership: Leadership) -> None:
        await leadership.start()
        self._supervisor.at_the_end("releaser", leadership.stop, self._stop_s)
        self._supervisor.watch("releaser", leadership.ended)
        if self.process_role.alone:
            await leadership.led()  # what a crash left half done is finished before any caller gets an answer
        _journal.info("releaser started", manual=self.config.manual)

    async def _start_followers(self, backends: Backends) -> None:
        """What reads releases once they are published: releasing never waits for it."""
        for destination in await backends.copies(self.plan):
            copier = ReleaseCopier(
                self.catalog,
                destination,
                self.runtime,
                on_pending=self.metrics.copy_pending,
                on_copied=self.metrics.release_copied,
            )
            self._supervisor.forever("release copies", copier.run)
        if self.config.metrics_listen:
            monitor = DriftMonitor(self.catalog, self.runtime, on_tested=self.metrics.drift_tested)
            self._supervisor.forever("drift", monitor.run)

    async def _start_probes(self, folder: DataDir | None, staleness: StalenessGuard | None) -> None:
        """Probes log and store once before callers get answers, and then again and again."""
        runtime, telemetry = self.runtime, self.telemetry
        probe = DependencyProbe(self.plan.id, self.log, self.store, runtime, self.metrics, telemetry.tell, staleness)
        probe.tracer = telemetry.tracer
        if folder is not None:
            probe.looks = (ReplacedFileCheck((folder.log, folder.store), runtime).look,)
        await probe.look()
        _journal.info("log and store probed")
        self._supervisor.forever("dependency probe", probe.run)
        if self.config.metrics_listen:
            figures = StoreMetrics(self.metrics.registry)
            collector = StoreMetricsCollector(
                self.plan, self.store, runtime, figures, self.metrics.retried, manual=self.config.manual
            )
            self._supervisor.forever("store metrics", collector.run)
        if self.process_role.shows and not self.process_role.alone:
            self._supervisor.forever("watchers", lambda: self.catalog.look_out(runtime))

    async def _stop_serving(self, server: Server) -> None:
        """Accepts nothing more, and leaves what was accepted time for its answers."""
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
        """Files take no longer than the disk; brokers and a database may not answer at all."""
        return self.config.stop_s if self.config.needs_network else None


@asynccontextmanager
async def running(
    config: Config, runtime: Runtime, wrap_log: Callable[[Log], Log] = lambda log: log, tracer: Tracer = NO_TRACES
) -> AsyncIterator[Service]:
    """A service that runs as long as the block does, and has answered and stored what it accepted when that ends.

    ``wrap_log`` wraps the log for every part, in simulations; ``tracer`` receives spans instead of the one that
    ``config`` names.

    Raises:
        ConfigError: The data folder, the plan's file or an address cannot be used, brokers or database do not answer
            in time, or the plan has more counters than ``counters_max``.
        PlanError: The plan's file holds no plan.
        AggregatorError: Log or store cannot be used. (Receipts that cannot be used only stop releasing.)
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
        _journal.info("store opened", store=config.store)
        assert config.plan is not None, "required in every role but the shuffler's"
        plan = await plan_of(config.plan, store)
        if config.processes > 1 and plan.privacy.cohort is not None:
            raise ConfigError(
                "processes: more than one is not allowed with secure sums: a round is held by one process"
            )
        check_size(plan, config.counters_max)
        await store.register(plan, config.partitions, plan.window.index_at(runtime.now_ms()))
        if (signed := signature_of(config.plan, plan)) is not None:
            await store.keep_plan_signature(signed)
        _journal.info("plan registered", plan=plan.hex_id[:12], name=plan.name, mode=plan.privacy.mode)
        log = await backends.log(plan)
        _journal.info("log opened", log=config.log, partitions=log.partitions)
        telemetry.collect(plan, stack)
        service = Service(config, plan, wrap_log(log), store, runtime, telemetry)
        await service.run(stack, backends, folder)
        pages = {"metrics": telemetry.metrics_page, "health": telemetry.health_page}
        if service.page:
            pages["page"] = service.page
        _journal.info("listening", grpc=service.grpc, **pages, plan=plan.hex_id[:12], role=config.role)
        yield service
        _journal.info("stopping")
    _journal.info("stopped")


async def serve(config: Config, on_listening: Callable[[], object] = lambda: None) -> None:
    """Serves until SIGTERM or SIGINT, and stops gracefully; a second signal ends the process at once.

    ``on_listening`` is called once callers get answers.

    Raises:
        HushsumError: It cannot start, or cannot go on.
    """
    _journal.info("starting", version=__version__, role=config.role)
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
    loop.set_exception_handler(_log_unawaited)
    # Modules and compiled loops stay: looking for garbage in them again and again takes a gateway's time. Nothing that
    # holds clients' data exists yet: frozen, a fold that is loaded anew would never be freed.
    gc.collect()
    gc.freeze()
    runtime = SystemRuntime()
    try:
        begin = shuffling if config.role == "shuffler" else running
        async with begin(config, runtime) as service:
            starting = None
            on_listening()
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


def _log_unawaited(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:  # Any: asyncio's own form
    """Logs an error that no task awaits; those of connections that were given up are expected."""
    error = context.get("exception")
    if isinstance(error, OSError | EOFError | AggregatorError):
        _journal.debug("abandoned operation failed", kind=type(error).__name__, error=describe_error(error))
    else:
        _journal.error(context.get("message", "failed"), exc_info=error)
