"""The composition root: one process with its role, put together and taken apart in order."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from aggregator.administration import Administration
from aggregator.backends import KAFKA_STEP, Backends
from aggregator.callers.auth import authenticator_of
from aggregator.callers.client_limits import call_limits_of
from aggregator.callers.rate_limits import forget_paid
from aggregator.callers.tls import connection_options, server_credentials
from aggregator.catalogue import Catalogue
from aggregator.caught_up import CaughtUp
from aggregator.config import Config
from aggregator.data_folder import DataFolder
from aggregator.fold.fold import warm_up
from aggregator.fold_view import Folds
from aggregator.front import FrontParts, front_of
from aggregator.gateway import Gateway
from aggregator.journal import journal
from aggregator.leadership import Leadership, LeaseSettings
from aggregator.openings import Openings
from aggregator.plan_source import check_size, plan_of, signature_of
from aggregator.ports import Authenticator, Log, Runtime, Store, Tracer
from aggregator.process import connections_max, memory_limit, watch_memory
from aggregator.receipts_file import NoReceipts
from aggregator.releaser_ports import ReleaserPorts
from aggregator.roles import Duties
from aggregator.secure.client_directory import client_directory_of
from aggregator.secure.sums import SecureSums
from aggregator.server.administration import AdministrationService
from aggregator.server.catalogue import CatalogueService
from aggregator.server.collection import Collection
from aggregator.server.connections import ConnectionSettings
from aggregator.server.secure_sum import SecureSumService
from aggregator.server.server import Server, Services, calls_max, streams_of
from aggregator.stored_folds import StoredFolds
from aggregator.supervision import Supervision
from aggregator.watching.looking import soundings_of, survey_of
from aggregator.watching.metrics import Metrics
from aggregator.watching.observers import Observers
from aggregator.watching.standing import Standing
from aggregator.watching.tracing import NO_TRACES
from aggregator.watching.vitals import Vitals
from aggregator.worker import WorkerSettings
from aggregator.workers import Workers
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan

_FORGET_ASKED_S: Final = 1.0
_Front = tuple[Collection, SecureSumService]  # what clients call

_journal = journal("service")


class Service:
    """A running service. Made by :func:`running`.

    Attributes:
        plan: What it collects.
        duties: What this process does of it.
        grpc: Where it listens, ``host:port``.
        vitals: What it tells the outside of itself.
        metrics_page: Where ``/metrics`` answers, ``host:port``; empty where it is off.
        metrics: Its counters.
        log: Its log.
        store: Its store.
        workers: Its folds, in a role that folds.
        gateway: Its gateway, in a role that collects.
        sums: Its secure sums, in such a role, where the plan has them.
    """

    workers: Workers
    gateway: Gateway
    sums: SecureSums | None = None

    def __init__(self, config: Config, plan: Plan, log: Log, store: Store, runtime: Runtime, vitals: Vitals) -> None:
        self.config = config
        self.plan = plan
        self.duties = Duties.of(config)
        self.log = log
        self.store = store
        self.runtime = runtime
        self.vitals, self.metrics, self.metrics_page = vitals, vitals.metrics, vitals.metrics_page
        # Where the folds are here, the start itself waits for them.
        waits = self.duties.collects and not self.duties.alone
        self._caught_up = CaughtUp(log.partitions) if waits else None
        self.catalogue = Catalogue(plan, store)
        self.observers = Observers(self.metrics, self.catalogue)
        self.grpc = ""

    async def failed(self) -> None:
        """Returns never; raises what the service cannot go on after.

        Raises:
            AggregatorError: A fold has stopped.
        """
        await self._supervision.failed()

    async def run(self, stack: AsyncExitStack, backends: Backends, folder: DataFolder | None) -> None:
        """Starts every part of the role; the stack takes them apart again, the last one first."""
        self._supervision = Supervision(stack, self.runtime, self.observers)
        await self.runtime.blocking(warm_up)
        folds = await self._start_folds(backends)
        openings = await self._start_openings()
        front = self._start_front(openings, folds) if self.duties.collects else None
        leadership = await self._leadership(backends, folds)
        authenticator = await authenticator_of(self.config, self.runtime, self.metrics, self._supervision)
        server = self._server(front, leadership, openings, authenticator)
        self._supervision.forever("admissions", lambda: server.recheck(self.runtime))
        self._supervision.forever("connections", lambda: server.guard(self.runtime))
        if (limit := memory_limit(self.config)) is not None:
            self._supervision.watch("memory", lambda: watch_memory(limit, self.runtime))
        self.grpc = leadership.address = await server.bind(self.config.listen, server_credentials(self.config))
        if self.duties.releases:
            await self._start_leadership(leadership)
        self.vitals.attend(server, self._supervision.failed, stack)
        await self._start_looking(folder)
        await server.start()
        self.vitals.serves()
        self._supervision.at_the_end("serving", lambda: self._stop_serving(server), None)
        if folder is not None:
            folder.announce(grpc=self.grpc, metrics=self.metrics_page, health=self.vitals.health_page)
            stack.callback(folder.forget_listening)

    async def _start_folds(self, backends: Backends) -> Folds:
        """Begins to fold, and gives the view of the folds that gateway and releaser have."""
        if self.duties.folds:
            await self._start_workers(backends)
        if self.duties.alone:
            return self.workers
        stored = StoredFolds(self.plan, self.store, self.runtime, self.observers)
        self._supervision.at_the_end("fold marks", stored.stop, self._stop_s)
        return stored

    async def _start_workers(self, backends: Backends) -> None:
        config = self.config
        settings = WorkerSettings(
            checkpoint_entries=config.checkpoint_entries,
            checkpoint_s=config.checkpoint_s,
            retain_verdicts=config.retain_verdicts,
            asks_s=None if self.duties.alone else _FORGET_ASKED_S,
            owner=backends.owner,
        )
        membership = backends.membership(self.plan, self.observers)
        ports = self.log, self.store, self.runtime, self.observers
        self.workers = Workers(self.plan, *ports, settings, membership=membership)
        self.workers.trace(self.vitals.tracer)
        await self.workers.start()
        self._supervision.at_the_end("folds", self.workers.stop, self._stop_s)
        self._supervision.watch("workers", self.workers.ended)
        if membership is not None:
            self._supervision.watch("membership", membership.ended)
        if self.duties.alone:
            await self.workers.caught_up()  # what stood in the log is known before anybody is answered

    async def _start_openings(self) -> Openings:
        first_window = await self.store.first_window(self.plan.id)
        skew_ms = round(1000 * self.config.skew_s)
        openings = Openings(
            self.plan, self.store, self.runtime, skew_ms=skew_ms, first_window=first_window, caught_up=self._caught_up
        )
        if self.duties.opens:
            await openings.load()
            await openings.open_accepted()
            self._supervision.forever("openings", openings.run)
        return openings

    def _start_front(self, openings: Openings, folds: Folds) -> _Front:
        clients = client_directory_of(self.config.client_directory, self.plan)
        parts = FrontParts(self.log, self.store, openings, folds, self.runtime, self.metrics, self.vitals.tracer)
        front = front_of(self.plan, self.config, clients, parts)
        self.gateway, self.sums = front.gateway, front.sums
        self._supervision.forever("debts of senders", lambda: forget_paid(front.limits, self.runtime))
        self._supervision.at_the_end("gateway", self.gateway.finish, self._stop_s)
        if self.sums is not None:
            self._supervision.forever("secure sums", self.sums.run)
            self._supervision.at_the_end("secure sums", self.sums.finish, self.config.stop_s)
        most = streams_of(self.plan, self.config.sessions_max)
        sums = SecureSumService(self.sums, clients, runtime=self.runtime, streams_max=most, sends=front.sends)
        return front.collection, sums

    async def _leadership(self, backends: Backends, folds: Folds) -> Leadership:
        """In a role that releases nothing it is never started: it then says which process releases."""
        ports = ReleaserPorts(
            log=self.log,
            store=self.store,
            receipts=await backends.receipts() if self.duties.releases else NoReceipts("this process releases nothing"),
            folds=folds,
            entropy=OsEntropy(),
            runtime=self.runtime,
            observer=self.observers,
            tracer=self.vitals.tracer,
        )
        settings = LeaseSettings(backends.owner, self.config.lease_s, automatic=not self.config.manual)
        return Leadership(self.plan, ports, settings)

    async def _start_leadership(self, leadership: Leadership) -> None:
        await leadership.start()
        self._supervision.at_the_end("releaser", leadership.stop, self._stop_s)
        self._supervision.watch("releaser", leadership.ended)
        if self.duties.alone:
            await leadership.led()  # what a crash left half done is finished before anybody asks

    def _server(
        self, front: _Front | None, leadership: Leadership, openings: Openings, authenticator: Authenticator
    ) -> Server:
        administration = Administration(
            self.plan,
            self.log.partitions,
            store=self.store,
            leadership=leadership,
            openings=openings if self.duties.collects else None,
            standing=Standing(self.config.role, self.plan.id, self.log, self.store, self.observers, self.metrics),
        )
        collection, secure_sum = front or (None, None)
        catalogue = CatalogueService(self.catalogue) if self.duties.shows else None
        services = Services(collection, catalogue, AdministrationService(administration), secure_sum)
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

    async def _start_looking(self, folder: DataFolder | None) -> None:
        """Looks at what other processes do, and at whether log and store answer; once before anybody is served."""
        soundings = soundings_of(
            self.plan, self.log, self.store, self.runtime, self.vitals, folder=folder, caught_up=self._caught_up
        )
        await soundings.look()
        self._supervision.forever("soundings", soundings.run)
        if self.config.metrics_listen:
            self._supervision.forever("survey", survey_of(self.plan, self.store, self.runtime, self.vitals).run)
        if self.duties.shows and not self.duties.alone:
            self._supervision.forever("watchers", lambda: self.catalogue.look_out(self.runtime))

    async def _stop_serving(self, server: Server) -> None:
        """Accepts nothing more, and gives what was accepted the time to be answered."""
        self.vitals.drains()
        if self.duties.collects:
            self.gateway.stop_accepting()
        if self.sums is not None:
            self.sums.stop_accepting()
        self.catalogue.close()
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
            folder = DataFolder.open(config.data)
            stack.callback(folder.close)
        metrics = Metrics(step=KAFKA_STEP if config.log == "kafka" else 1)
        vitals = Vitals(config, runtime, metrics, tracer=tracer)
        await vitals.open(stack)
        backends = Backends(config, folder, runtime, metrics, stack)
        store = await backends.store()
        assert config.plan is not None, "required in every role but the shuffler's"
        plan = await plan_of(config.plan, store)
        check_size(plan, config.counters_max)
        await store.register(plan, config.partitions, plan.window.index_at(runtime.now_ms()))
        if (signed := signature_of(config.plan, plan)) is not None:
            await store.keep_plan_signature(signed)
        log = await backends.log(plan)
        vitals.collect(plan, stack)
        service = Service(config, plan, wrap_log(log), store, runtime, vitals)
        await service.run(stack, backends, folder)
        pages = {"metrics": vitals.metrics_page, "health": vitals.health_page}
        _journal.info("listening", grpc=service.grpc, **pages, plan=plan.hex_id[:12], role=config.role)
        yield service
        _journal.info("stopping")
    _journal.info("stopped")
