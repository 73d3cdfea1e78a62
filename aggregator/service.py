"""The composition root: one process with nothing but a data folder, put together and taken apart in order."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from math import prod
from typing import Final

from aggregator.administration import Administration
from aggregator.auth import DeclaredName
from aggregator.catalogue import Catalogue
from aggregator.commits import CommitLimits, Commits
from aggregator.config import Config, host_and_port
from aggregator.data_folder import DataFolder
from aggregator.errors import AggregatorError, ConfigError
from aggregator.gateway import Gateway
from aggregator.journal import journal
from aggregator.log_sqlite import SqliteLog
from aggregator.metrics import Metrics, MetricsPage
from aggregator.observers import Observers
from aggregator.openings import Openings
from aggregator.plan_source import plan_of
from aggregator.ports import Log, Runtime, Store, SystemRuntime
from aggregator.receipts_file import open_receipts
from aggregator.reception import Reception
from aggregator.releaser import Releaser, ReleaserPorts
from aggregator.server import Server, Services
from aggregator.server_administration import AdministrationService
from aggregator.server_catalogue import CatalogueService
from aggregator.server_collection import Collection
from aggregator.store_sqlite import SqliteStore
from aggregator.worker import Workers, WorkerSettings
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan

_AGAIN_S: Final = 1.0

_journal = journal("service")


class Service:
    """A running service. Made by :func:`running`.

    Attributes:
        plan: What it collects.
        grpc: Where it listens, ``host:port``.
        metrics_page: Where ``/metrics`` answers, ``host:port``; empty where it is off.
        metrics: Its counters.
        log: Its log.
        store: Its store.
        workers: Its folds.
        gateway: Its gateway, from :meth:`run` on.
    """

    gateway: Gateway

    def __init__(self, config: Config, plan: Plan, log: Log, store: Store, runtime: Runtime) -> None:
        self.config = config
        self.plan = plan
        self.log = log
        self.store = store
        self.runtime = runtime
        self.metrics = Metrics()
        self.catalogue = Catalogue(plan, store)
        self.observers = Observers(self.metrics, self.catalogue)
        settings = WorkerSettings(
            checkpoint_entries=config.checkpoint_entries,
            checkpoint_s=config.checkpoint_s,
            retain_verdicts=config.retain_verdicts,
        )
        self.workers = Workers(plan, log, store, runtime, self.observers, settings)
        self.grpc = ""
        self.metrics_page = ""
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def failed(self) -> None:
        """Returns never; raises what the service cannot go on after.

        Raises:
            AggregatorError: A fold has stopped.
        """
        await asyncio.shield(self._failure)

    async def run(self, stack: AsyncExitStack, folder: DataFolder) -> None:
        """Starts every part; the stack takes them apart again, the last one first."""
        await self._start_workers(stack)
        releaser = await self._start_releaser(folder)
        openings = await self._start_openings(stack)
        if not self.config.manual:
            self._supervise(stack, "releaser", releaser.run)
        gateway = self.gateway = self._start_gateway(stack, openings)
        server = self._server(gateway, openings, releaser)
        self.grpc = await server.start(self.config.listen)
        stack.push_async_callback(self._stop_serving, server, gateway)
        self._start_metrics_page(stack)
        folder.announce(grpc=self.grpc, metrics=self.metrics_page)
        stack.callback(folder.forget_listening)

    async def _start_workers(self, stack: AsyncExitStack) -> None:
        await self.workers.start()
        stack.push_async_callback(self.workers.stop)
        self._watch(stack, "workers", self.workers.ended)

    async def _start_releaser(self, folder: DataFolder) -> Releaser:
        receipts = await open_receipts(folder.receipts, self.runtime)
        ports = ReleaserPorts(
            log=self.log,
            store=self.store,
            receipts=receipts,
            folds=self.workers,
            entropy=OsEntropy(),
            runtime=self.runtime,
            observer=self.observers,
        )
        releaser = Releaser(self.plan, ports)
        await releaser.start()
        return releaser

    async def _start_openings(self, stack: AsyncExitStack) -> Openings:
        first_window = await self.store.first_window(self.plan.id)
        skew_ms = round(1000 * self.config.skew_s)
        openings = Openings(self.plan, self.store, self.runtime, skew_ms=skew_ms, first_window=first_window)
        await openings.load()
        await openings.open_accepted()
        self._supervise(stack, "openings", openings.run)
        return openings

    def _start_gateway(self, stack: AsyncExitStack, openings: Openings) -> Gateway:
        commits = Commits(self.log, openings, self.runtime, _commit_limits(self.config), self.metrics)
        commits.start()
        gateway = Gateway(
            self.plan,
            openings=openings,
            commits=commits,
            folds=self.workers,
            runtime=self.runtime,
            metrics=self.metrics,
            pending_entries_max=self.config.pending_entries_max,
        )
        stack.push_async_callback(gateway.finish)
        return gateway

    def _server(self, gateway: Gateway, openings: Openings, releaser: Releaser) -> Server:
        config, plan, partitions = self.config, self.plan, self.log.partitions
        reception = Reception(
            plan,
            partitions,
            openings=openings,
            folds=self.workers,
            runtime=self.runtime,
            in_flight_max=config.in_flight_max,
        )
        collection = Collection(
            gateway, reception, runtime=self.runtime, metrics=self.metrics, sessions_max=config.sessions_max
        )
        administration = Administration(plan, partitions, store=self.store, releaser=releaser, openings=openings)
        services = Services(collection, CatalogueService(self.catalogue), AdministrationService(administration))
        return Server(
            plan, services, authenticator=DeclaredName(), metrics=self.metrics, sessions_max=config.sessions_max
        )

    async def _stop_serving(self, server: Server, gateway: Gateway) -> None:
        """Accepts nothing more, and gives what was accepted the time to be answered."""
        gateway.stop_accepting()
        self.catalogue.close()
        await server.drain()
        await server.stop(self.config.stop_s)

    def _start_metrics_page(self, stack: AsyncExitStack) -> None:
        listen = self.config.metrics_listen
        if not listen:
            return
        host, port = host_and_port(listen)
        try:
            page = MetricsPage(self.metrics, host, port)
        except OSError as error:
            raise ConfigError(f"metrics_listen: {listen} cannot be used: {error.strerror}") from error
        stack.push_async_callback(self.runtime.blocking, page.close)
        self.metrics_page = f"{listen.rpartition(':')[0]}:{page.port}"

    def _supervise(self, stack: AsyncExitStack, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Runs what goes on for ever, and again after an error that may pass; any other error ends the service."""

        async def again() -> None:
            while True:
                try:
                    await work()
                except AggregatorError as error:
                    _journal.error(f"{name} failed, trying again", error=str(error))
                await self.runtime.sleep(_AGAIN_S)

        self._watch(stack, name, again)

    def _watch(self, stack: AsyncExitStack, name: str, work: Callable[[], Awaitable[object]]) -> None:
        async def watched() -> None:
            try:
                await work()
            except Exception as error:  # noqa: BLE001  whatever it is, the service must not go on half
                if not self._failure.done():
                    self._failure.set_exception(error)

        task = self.runtime.spawn(watched(), name)

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])

        stack.push_async_callback(end)


def _as_it_is(log: Log) -> Log:
    return log


@asynccontextmanager
async def running(
    config: Config, runtime: Runtime, wrap_log: Callable[[Log], Log] = _as_it_is
) -> AsyncIterator[Service]:
    """A service that runs as long as the block does, and has answered and stored what it accepted when that ends.

    Args:
        config: Its settings.
        runtime: Time and tasks.
        wrap_log: What every part gets in place of the log: for simulations that come between.

    Raises:
        ConfigError: The data folder, the plan's file or an address cannot be used, or the plan has more counters than
            ``counters_max``.
        PlanError: The plan's file holds none.
        AggregatorError: Log or store cannot be used. (Receipts that cannot be used stop releasing alone.)
        BudgetError: The plan does not fit its population's ledger.
    """
    async with AsyncExitStack() as stack:
        folder = DataFolder.open(config.data)
        stack.callback(folder.close)
        store = await SqliteStore.open(folder.store, runtime)
        stack.push_async_callback(store.close)
        plan = await plan_of(config.plan, store)
        _check_size(plan, config)
        await store.register(plan, config.partitions, plan.window.index_at(runtime.now_ms()))
        log = await SqliteLog.open(folder.log, plan.id, config.partitions, runtime)
        stack.push_async_callback(log.close)
        service = Service(config, plan, wrap_log(log), store, runtime)
        await service.run(stack, folder)
        _journal.info("listening", grpc=service.grpc, metrics=service.metrics_page, plan=plan.hex_id[:12])
        yield service
        _journal.info("stopping")
    _journal.info("stopped")


async def serve(config: Config) -> None:
    """Serves until SIGTERM or SIGINT, and stops gracefully; a second signal ends the process at once.

    Raises:
        HushsumError: It cannot start, or cannot go on.
    """
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask() -> None:
        asked.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    runtime = SystemRuntime()
    async with running(config, runtime) as service:
        stop = runtime.spawn(_wait(asked), "signals")
        failure = runtime.spawn(service.failed(), "failure")
        await asyncio.wait([stop, failure], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if failure.done():
            failure.result()
        failure.cancel()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _check_size(plan: Plan, config: Config) -> None:
    if (counters := prod(plan.counters_shape)) > config.counters_max:
        came = f"plan {plan.name!r} has {counters} counters in all its classes"
        raise ConfigError(f"{came}, expected at most counters_max = {config.counters_max}, 8 bytes each")


def _commit_limits(config: Config) -> CommitLimits:
    return CommitLimits(
        pending_entries_max=config.pending_entries_max,
        pending_bytes_max=config.pending_bytes_max,
        group_entries_max=config.group_entries_max,
        group_bytes_max=config.group_bytes_max,
    )
