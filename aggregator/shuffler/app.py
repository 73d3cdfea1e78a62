"""A shuffler as one process, put together and taken apart in order; and which plan it serves."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from aggregator.api.collection import Collection, LargeDeltas
from aggregator.api.connections import ConnectionSettings
from aggregator.api.server import Server, Services, calls_max
from aggregator.auth.tls import connection_options, server_credentials
from aggregator.backends import authenticator_of
from aggregator.config import Config
from aggregator.data_dir import DataDir, ReplacedFileCheck
from aggregator.errors import AggregatorError, ConfigError
from aggregator.interfaces import Authenticator
from aggregator.logs import journal
from aggregator.observability.health import LOOK_S, PATIENCE_S, ProcessTelemetry
from aggregator.observability.metrics import Metrics
from aggregator.plan_loading import signature_of
from aggregator.process import connections_max, memory_limit, watch_memory
from aggregator.rate_limits import RateLimits, call_limits_of, forget_paid, send_limits_of
from aggregator.runtime import Backoff, Runtime, TaskSupervisor, within
from aggregator.shuffler.forwarder import Forwarder, ShufflerMetrics, Upstream, UpstreamError
from aggregator.shuffler.intake import Intake, IntakeLimits, PlanService, ShufflerHandshake
from aggregator.shuffler.pool import KeptPlan, ReportsFile, check_plan
from hushsum.directory import Directory, DirectoryKey, Role
from hushsum.entropy import OsEntropy
from hushsum.errors import HushsumError, PlanError
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
        telemetry: What it tells the outside of itself.
        metrics_page: Where ``/metrics`` answers, ``host:port``; empty where it is off.
        file: What it keeps.
    """

    def __init__(
        self, config: Config, plan: Plan, file: ReportsFile, runtime: Runtime, telemetry: ProcessTelemetry
    ) -> None:
        self.plan = plan
        self.file = file
        self.grpc = ""
        self.telemetry, self.metrics_page = telemetry, telemetry.metrics_page
        self._config = config
        self._runtime = runtime
        self._metrics = telemetry.metrics
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
        self._supervision = TaskSupervisor(stack, runtime, self._metrics.retried)
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
        self.telemetry.attend(server, self._supervision.failed, stack)
        await self._start_looking()
        await server.start()
        self.telemetry.serves()
        stack.push_async_callback(self._stop_serving, server, intake)

    async def _start_looking(self) -> None:
        assert self._config.data is not None, "required in this role"
        same = ReplacedFileCheck((self._config.data / _FILE,), self._runtime)
        looks = (same.look, self.file.closed_through)
        probe = PoolProbe(looks, self._runtime, self._metrics, self.telemetry.tell)
        await probe.look()
        self._supervision.forever("dependency probe", probe.run)

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
        greeter = ShufflerHandshake(
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
        self.telemetry.drains()
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
        telemetry = ProcessTelemetry(config, runtime, Metrics())
        await telemetry.open(stack)
        folder = DataDir.open(config.data)
        stack.callback(folder.close)
        _check_own(folder)
        file = await ReportsFile.open(folder.path / _FILE, runtime, OsEntropy())
        stack.push_async_callback(file.close)
        upstream = Upstream(config.upstream, entry.id, credentials_of(config))
        stack.push_async_callback(upstream.close)
        plan, kept = await plan_of(config.plan, file, upstream.fetch_plan, start_s=config.start_s, runtime=runtime)
        telemetry.collect(plan, stack)
        shuffler = Shuffler(config, plan, file, runtime, telemetry)
        await shuffler.run(stack, kept, upstream, key)
        pages = {"metrics": telemetry.metrics_page, "health": telemetry.health_page}
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


def _check_own(folder: DataDir) -> None:
    """Refuses the folder of an aggregator: whoever runs both undoes what the one is there for."""
    for path in (folder.log, folder.store):
        if path.exists():
            raise ConfigError(
                f"data: {folder.path} holds an aggregator's {path.name}: a shuffler needs a folder of its own, and is "
                "to be run by somebody else than the aggregator"
            )


Fetch = Callable[[], Awaitable[KeptPlan]]


async def plan_of(
    path: Path | None, file: ReportsFile, fetch: Fetch, *, start_s: float, runtime: Runtime
) -> tuple[Plan, KeptPlan]:
    """The plan, and how it is kept.

    Args:
        path: A made ``plan.json``; None: the one that the aggregator collects.
        file: Keeps it.
        fetch: Asks the aggregator.
        start_s: How long to ask.
        runtime: Time.

    Raises:
        ConfigError: The file cannot be read, holds another plan than the one kept, or the aggregator does not answer.
        PlanError: It is no plan, or none that has a shuffler.
    """
    named = None if path is None else _read(path)
    kept = await file.plan()
    if kept is None:
        kept = named or await _fetched(fetch, start_s, runtime)
        plan = Plan.from_bytes(kept.bundle)
        check_plan(plan)
        await file.keep_plan(kept)
        return plan, kept
    plan = Plan.from_bytes(kept.bundle)
    if named is not None and Plan.from_bytes(named.bundle).id != plan.id:
        expected = f"plan {plan.name!r} ({plan.hex_id[:12]}), whose reports lie in the data folder"
        raise ConfigError(f"plan: {path} holds another one, expected {expected}; another plan needs another folder")
    check_plan(plan)
    return plan, kept


def _read(path: Path) -> KeptPlan:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"plan: {path} cannot be read: {error.strerror}") from error
    try:
        plan = Plan.from_bytes(data)
    except PlanError as error:
        expected = "expected the plan.json that the aggregator collects; leave plan out to ask the aggregator for it"
        raise ConfigError(f"plan: {path}: {error}; {expected}") from error
    signed = signature_of(path, plan)
    if signed is None:
        return KeptPlan(plan.bundle, "", 0, b"")
    return KeptPlan(plan.bundle, signed.key_id, signed.suite, signed.signature)


async def _fetched(fetch: Fetch, start_s: float, runtime: Runtime) -> KeptPlan:
    began_s, backoff = runtime.monotonic(), Backoff()
    while True:
        try:
            return await fetch()
        except UpstreamError as error:
            if runtime.monotonic() - began_s >= start_s:
                raise ConfigError(f"{error}: the first start needs its plan; or name a plan.json") from error
            await runtime.sleep(backoff.next_s())


_ANSWER_S_MAX: Final = 10.0


class PoolProbe:
    """One look every two seconds.

    Args:
        looks: What raises has not answered.
        runtime: Time.
        metrics: Are told.
        tell: Is told, once each time it changes, whether all have answered within the last 15 seconds.
    """

    def __init__(
        self,
        looks: Sequence[Callable[[], Awaitable[object]]],
        runtime: Runtime,
        metrics: Metrics,
        tell: Callable[[bool], Awaitable[None]],
    ) -> None:
        self._looks, self._runtime, self._metrics, self._tell = looks, runtime, metrics, tell
        self._answered_s, self._answers = runtime.monotonic(), True

    async def run(self) -> None:
        """Looks for ever; what cannot be used is told, not raised."""
        while True:
            await self.look()
            await self._runtime.sleep(LOOK_S)

    async def look(self) -> None:
        """Looks once."""
        why = await self._look_once()
        now_s = self._runtime.monotonic()
        if not why:
            self._answered_s = now_s
        answers = now_s - self._answered_s < PATIENCE_S
        self._metrics.ready(answers)
        if answers != self._answers:
            self._answers = answers
            if answers:
                _journal.info("the file answers again")
            else:
                _journal.error("the file has not answered for long; health checks say so", why=why)
            await self._tell(answers)

    async def _look_once(self) -> str:
        """Why it did not succeed; empty where it did."""
        try:
            for look in self._looks:
                await within(_ANSWER_S_MAX, look(), runtime=self._runtime)
        except (AggregatorError, TimeoutError) as error:
            return str(error) or type(error).__name__
        return ""
