"""A shuffler as one process, put together and taken apart in order."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from aggregator.callers.auth import authenticator_of
from aggregator.callers.client_limits import call_limits_of, send_limits_of
from aggregator.callers.rate_limits import RateLimits, forget_paid
from aggregator.callers.tls import connection_options, server_credentials
from aggregator.config import Config
from aggregator.data_folder import DataFolder
from aggregator.errors import ConfigError
from aggregator.journal import journal
from aggregator.ports import Authenticator, Runtime
from aggregator.process import connections_max, memory_limit, watch_memory
from aggregator.server.collection import Collection
from aggregator.server.connections import ConnectionSettings
from aggregator.server.large import LargeDeltas
from aggregator.server.server import Server, Services, calls_max
from aggregator.shuffler.forwarder import Forwarder
from aggregator.shuffler.greeter import Greeter
from aggregator.shuffler.intake import Intake, IntakeLimits
from aggregator.shuffler.metrics import ShufflerMetrics
from aggregator.shuffler.plan_service import PlanService
from aggregator.shuffler.plan_source import plan_of
from aggregator.shuffler.reports_file import ReportsFile
from aggregator.shuffler.soundings import FileSoundings
from aggregator.shuffler.upstream import Upstream
from aggregator.shuffler.values import KeptPlan
from aggregator.supervision import Supervision
from aggregator.watching.metrics import Metrics
from aggregator.watching.same_files import SameFiles
from aggregator.watching.vitals import Vitals
from hushsum.directory import Directory, DirectoryKey, Role
from hushsum.entropy import OsEntropy
from hushsum.errors import HushsumError
from hushsum.plan import Plan
from hushsum.signatures import SigningKey
from hushsum_proto.credentials import Credentials

_FILE: Final = "shuffler.db"

_journal = journal("shuffler")


class Shuffler:
    """A running shuffler. Made by :func:`running`.

    Attributes:
        plan: What it collects.
        grpc: Where it listens, ``host:port``.
        vitals: What it tells the outside of itself.
        metrics_page: Where ``/metrics`` answers, ``host:port``; empty where it is off.
        file: What it keeps.
    """

    def __init__(self, config: Config, plan: Plan, file: ReportsFile, runtime: Runtime, vitals: Vitals) -> None:
        self.plan = plan
        self.file = file
        self.grpc = ""
        self.vitals, self.metrics_page = vitals, vitals.metrics_page
        self._config = config
        self._runtime = runtime
        self._metrics = vitals.metrics
        self._sends = send_limits_of(config, plan, runtime)
        self._calls = call_limits_of(config, runtime)
        self._reports = RateLimits(config.client_rate, config.client_burst)
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
        server = self._server(intake, kept, await authenticator_of(config, runtime, self._metrics, self._supervision))
        self._supervision.forever("admissions", lambda: server.recheck(runtime))
        self._supervision.forever("connections", lambda: server.guard(runtime))
        if (limit := memory_limit(config)) is not None:
            self._supervision.watch("memory", lambda: watch_memory(limit, runtime))
        self.grpc = await server.bind(config.listen, server_credentials(config))
        debts = self._sends, self._calls, self._reports
        self._supervision.forever("debts", lambda: forget_paid(debts, runtime))
        self._supervision.forever("cuts", forwarder.run_cuts)
        self._supervision.forever("forwarding", forwarder.run_sends)
        self.vitals.attend(server, self._supervision.failed, stack)
        await self._start_looking()
        await server.start()
        self.vitals.serves()
        stack.push_async_callback(self._stop_serving, server, intake)

    async def _start_looking(self) -> None:
        assert self._config.data is not None, "required in this role"
        same = SameFiles((self._config.data / _FILE,), self._runtime)
        looks = (same.look, self.file.closed_through)
        soundings = FileSoundings(looks, self._runtime, self._metrics, self.vitals.tell)
        await soundings.look()
        self._supervision.forever("soundings", soundings.run)

    def _intake(self) -> Intake:
        config = self._config
        limits = IntakeLimits(
            config.pending_entries_max, config.pending_bytes_max, config.group_entries_max, self._skew_ms
        )
        return Intake(
            self.plan,
            self.file,
            rates=self._reports,
            sends=self._sends,
            runtime=self._runtime,
            metrics=self._metrics,
            limits=limits,
        )

    def _server(self, intake: Intake, kept: KeptPlan, authenticator: Authenticator) -> Server:
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
            sends=self._sends,
        )
        most = config.sessions_max
        collection = Collection(
            intake,
            greeter,
            large=large,
            runtime=runtime,
            metrics=self._metrics,
            sessions_max=most,
            sends=self._sends,
        )
        services = Services(collection, PlanService(self.plan, kept), None)
        return Server(
            self.plan,
            services,
            authenticator=authenticator,
            metrics=self._metrics,
            sessions_max=most,
            limits=self._calls,
            connections=ConnectionSettings(
                connections_max(calls_max(self.plan, most), config), connection_options(config)
            ),
        )

    async def _stop_serving(self, server: Server, intake: Intake) -> None:
        """Accepts nothing more, and gives what was accepted the time to be answered."""
        self.vitals.drains()
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
        vitals = Vitals(config, runtime, Metrics())
        await vitals.open(stack)
        folder = DataFolder.open(config.data)
        stack.callback(folder.close)
        _check_own(folder)
        file = await ReportsFile.open(folder.path / _FILE, runtime, OsEntropy())
        stack.push_async_callback(file.close)
        upstream = Upstream(config.upstream, entry.id, credentials_of(config))
        stack.push_async_callback(upstream.close)
        plan, kept = await plan_of(config.plan, file, upstream.fetch_plan, start_s=config.start_s, runtime=runtime)
        vitals.collect(plan, stack)
        shuffler = Shuffler(config, plan, file, runtime, vitals)
        await shuffler.run(stack, kept, upstream, key)
        pages = {"metrics": vitals.metrics_page, "health": vitals.health_page}
        folder.announce(grpc=shuffler.grpc, **pages)
        stack.callback(folder.forget_listening)
        _journal.info("listening", grpc=shuffler.grpc, **pages, plan=plan.hex_id[:12])
        yield shuffler
        _journal.info("stopping")
    _journal.info("stopped")


def credentials_of(config: Config) -> Credentials:
    """How the aggregator is reached: a token never goes in plaintext to another machine, whatever else may."""
    return Credentials(
        token=config.upstream_token,
        ca=config.upstream_ca,
        certificate=config.upstream_cert,
        key=config.upstream_key,
        insecure=config.insecure and config.upstream_token is None,
    )


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
