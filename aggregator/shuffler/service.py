"""A shuffler as one process, put together and taken apart in order."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from aggregator.auth import DeclaredName
from aggregator.config import Config
from aggregator.data_folder import DataFolder
from aggregator.errors import ConfigError
from aggregator.journal import journal
from aggregator.metrics import Metrics, MetricsPage
from aggregator.ports import Runtime
from aggregator.rate_limits import RateLimits
from aggregator.server.collection import Collection
from aggregator.server.large import LargeDeltas
from aggregator.server.server import Server, Services
from aggregator.shuffler.forwarder import Forwarder
from aggregator.shuffler.greeter import Greeter
from aggregator.shuffler.intake import Intake, IntakeLimits
from aggregator.shuffler.metrics import ShufflerMetrics
from aggregator.shuffler.plan_service import PlanService
from aggregator.shuffler.plan_source import plan_of
from aggregator.shuffler.reports_file import ReportsFile
from aggregator.shuffler.upstream import Upstream
from aggregator.shuffler.values import KeptPlan
from aggregator.supervision import Supervision
from hushsum.directory import Directory, DirectoryKey, Role
from hushsum.entropy import OsEntropy
from hushsum.errors import HushsumError
from hushsum.plan import Plan
from hushsum.signatures import SigningKey

_FILE: Final = "shuffler.db"

_journal = journal("shuffler")


class Shuffler:
    """A running shuffler. Made by :func:`running`.

    Attributes:
        plan: What it collects.
        grpc: Where it listens, ``host:port``.
        metrics_page: Where ``/metrics`` answers, ``host:port``; empty where it is off.
        file: What it keeps.
    """

    def __init__(self, config: Config, plan: Plan, file: ReportsFile, runtime: Runtime) -> None:
        self.plan = plan
        self.file = file
        self.grpc = ""
        self.metrics_page = ""
        self._config = config
        self._runtime = runtime
        self._metrics = Metrics()
        self._skew_ms = round(1000 * config.skew_s)

    async def failed(self) -> None:
        """Returns never; raises what it cannot go on after.

        Raises:
            AggregatorError: A task of it has ended.
        """
        await self._supervision.failed()

    async def run(self, stack: AsyncExitStack, kept: KeptPlan, upstream: Upstream, key: SigningKey) -> None:
        """Starts every part; the stack takes them apart again, the last one first."""
        config, runtime = self._config, self._runtime
        self._supervision = Supervision(stack, runtime, self._metrics)
        forwarder = Forwarder(
            self.plan,
            self.file,
            upstream,
            key=key,
            entropy=OsEntropy(),
            runtime=runtime,
            counters=ShufflerMetrics(self._metrics.registry),
        )
        await forwarder.cut()  # what is over is over before anybody is greeted
        intake = self._intake()
        intake.start()
        stack.push_async_callback(intake.finish)
        server = self._server(intake, kept)
        self.grpc = await server.bind(config.listen)
        self._supervision.forever("cuts", forwarder.run_cuts)
        self._supervision.forever("forwarding", forwarder.run_sends)
        await server.start()
        stack.push_async_callback(self._stop_serving, server, intake)
        if config.metrics_listen:
            page = MetricsPage(self._metrics, config.metrics_listen)
            stack.push_async_callback(runtime.blocking, page.close)
            self.metrics_page = page.address

    def _intake(self) -> Intake:
        config = self._config
        limits = IntakeLimits(
            config.pending_entries_max, config.pending_bytes_max, config.group_entries_max, self._skew_ms
        )
        rates = RateLimits(config.client_rate, config.client_burst)
        return Intake(self.plan, self.file, rates=rates, runtime=self._runtime, metrics=self._metrics, limits=limits)

    def _server(self, intake: Intake, kept: KeptPlan) -> Server:
        config, runtime = self._config, self._runtime
        greeter = Greeter(
            self.plan, self.file, runtime=runtime, skew_ms=self._skew_ms, in_flight_max=config.in_flight_max
        )
        large = LargeDeltas(
            intake,
            runtime=runtime,
            delta_bytes_max=self.plan.upload_bytes_max,
            held_bytes_max=config.pending_bytes_max,
            metrics=self._metrics,
        )
        most = config.sessions_max
        collection = Collection(intake, greeter, large=large, runtime=runtime, metrics=self._metrics, sessions_max=most)
        services = Services(collection, PlanService(self.plan, kept), None)
        return Server(self.plan, services, authenticator=DeclaredName(), metrics=self._metrics, sessions_max=most)

    async def _stop_serving(self, server: Server, intake: Intake) -> None:
        """Accepts nothing more, and gives what was accepted the time to be answered."""
        intake.stop_accepting()
        await server.drain()
        await server.stop(self._config.stop_s)


@asynccontextmanager
async def running(config: Config, runtime: Runtime) -> AsyncIterator[Shuffler]:
    """A shuffler that runs as long as the block does, and has answered and kept what it accepted when that ends.

    Args:
        config: Its settings.
        runtime: Time and tasks.

    Raises:
        ConfigError: The data folder, a key, an address or the plan's file cannot be used, or the aggregator does not
            answer at the first start.
        PlanError: The plan is none for a shuffler.
        AggregatorError: Its file cannot be used.
    """
    async with AsyncExitStack() as stack:
        assert config.data is not None, "required in this role"
        assert config.upstream is not None, "as well"
        key, entry = _key_of(config)
        folder = DataFolder.open(config.data, receipts=False)
        stack.callback(folder.close)
        _check_own(folder)
        file = await ReportsFile.open(folder.path / _FILE, runtime, OsEntropy())
        stack.push_async_callback(file.close)
        upstream = Upstream(config.upstream, entry.id)
        stack.push_async_callback(upstream.close)
        plan, kept = await plan_of(config.plan, file, upstream.fetch_plan, start_s=config.start_s, runtime=runtime)
        shuffler = Shuffler(config, plan, file, runtime)
        await shuffler.run(stack, kept, upstream, key)
        folder.announce(grpc=shuffler.grpc, metrics=shuffler.metrics_page)
        stack.callback(folder.forget_listening)
        _journal.info("listening", grpc=shuffler.grpc, metrics=shuffler.metrics_page, plan=plan.hex_id[:12])
        yield shuffler
        _journal.info("stopping")
    _journal.info("stopped")


def _key_of(config: Config) -> tuple[SigningKey, DirectoryKey]:
    """The shuffler's key, and its entry in the directory of shufflers."""
    assert config.shuffler_key is not None, "required in this role"
    assert config.shufflers is not None, "as well"
    try:
        key = SigningKey.load(config.shuffler_key)
    except HushsumError as error:
        raise ConfigError(f"shuffler_key: {error}") from error
    try:
        directory = Directory.from_toml(config.shufflers.read_text(encoding="utf-8"))
        return key, directory.expect(key.verify_key, Role.SHUFFLER)
    except (OSError, UnicodeDecodeError, HushsumError) as error:
        raise ConfigError(f"shufflers: {config.shufflers}: {error}") from error


def _check_own(folder: DataFolder) -> None:
    """Refuses the folder of an aggregator: whoever runs both undoes what the one is there for."""
    for path in (folder.log, folder.store):
        if path.exists():
            raise ConfigError(
                f"data: {folder.path} holds an aggregator's {path.name}: a shuffler needs a folder of its own, and is "
                "to be run by somebody else than the aggregator"
            )
