"""The composition root of a shuffler: one process, put together, run, and taken apart in order."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aggregator.api.collection import Collection, Handshake
from aggregator.api.server import Server, Services
from aggregator.config import Config
from aggregator.data_dir import DataDir, ReplacedFileCheck
from aggregator.errors import ConfigError
from aggregator.ingest.group_commit import CommitLimits
from aggregator.logs import journal
from aggregator.observability.health import ProcessTelemetry, ReadinessProbe
from aggregator.observability.metrics import Metrics
from aggregator.plan_loading import directory_of, plan_file_bytes, signature_of, signing_key_of
from aggregator.rate_limits import RateLimits, forget_paid, send_limits_of
from aggregator.runtime import Backoff, Runtime, TaskSupervisor
from aggregator.shuffler.forwarder import Forwarder, ShufflerMetrics, Upstream, UpstreamError
from aggregator.shuffler.intake import Intake, PlanService, PoolWriter
from aggregator.shuffler.reports_file import KeptPlan, ReportsFile, check_plan
from hushsum.entropy import OsEntropy
from hushsum.errors import DirectoryError, PlanError
from hushsum.plan import Plan
from hushsum.signing import DirectoryKey, Role, SigningKey
from hushsum_proto.credentials import Credentials

FILE: Final = "shuffler.db"

_journal = journal("shuffler")


@dataclass(frozen=True)
class Shuffler:
    """A running shuffler; ``grpc`` is where it listens, ``host:port``."""

    plan: Plan
    file: ReportsFile
    grpc: str
    telemetry: ProcessTelemetry
    supervisor: TaskSupervisor

    async def failed(self) -> None:
        """Never returns; raises the error of a task that this process cannot go on without."""
        await self.supervisor.failed()


@asynccontextmanager
async def running(config: Config, runtime: Runtime) -> AsyncIterator[Shuffler]:
    """A shuffler that runs as long as the block does, and has answered and stored what it accepted when that ends.

    Raises:
        ConfigError: The data folder, a key, an address or the plan's file cannot be used, or the aggregator does not
            answer at the first start.
        PlanError: The plan has no shuffler.
        AggregatorError: The reports file cannot be used.
    """
    assert config.upstream is not None, "required in this role"
    async with AsyncExitStack() as stack:
        key, entry = key_of(config)
        metrics = Metrics()
        telemetry = ProcessTelemetry(config, runtime, metrics)
        await telemetry.open(stack)
        folder, file = await _opened(config, runtime, stack)
        upstream = Upstream(config.upstream, entry.id, credentials_of(config))
        stack.push_async_callback(upstream.close)
        plan, kept = await plan_of(config.plan, file, upstream.fetch_plan, start_s=config.start_s, runtime=runtime)
        telemetry.collect(plan, stack)

        supervisor = TaskSupervisor(stack, runtime, metrics.retried)
        forwarder = Forwarder(
            plan,
            file,
            upstream,
            key=key,
            entropy=OsEntropy(),
            runtime=runtime,
            metrics=ShufflerMetrics(metrics.registry),
        )
        await forwarder.close_windows()  # windows that are over are closed before any device gets an answer
        sends = send_limits_of(config, plan, runtime)
        reports = RateLimits(config.client_rate, config.client_burst)
        limits = CommitLimits(
            config.pending_entries_max, config.pending_bytes_max, config.group_entries_max, config.group_bytes_max
        )
        intake = Intake(
            plan,
            PoolWriter(plan, file, runtime, metrics, limits),
            rates=reports,
            sends=sends,
            runtime=runtime,
            metrics=metrics,
            skew_ms=round(1000 * config.skew_s),
        )
        intake.start()
        stack.push_async_callback(intake.finish)
        handshake = Handshake(plan, span=intake.span, runtime=runtime, in_flight_max=config.in_flight_max)
        collection = Collection(plan, config, runtime, metrics, receiver=intake, handshake=handshake, sends=sends)
        services = Services(collection, PlanService(plan, kept), None)
        server = await Server.bound(plan, config, runtime, metrics, services, supervisor)
        grpc = server.address
        supervisor.forever("debts of senders", lambda: forget_paid((sends.rates, reports), runtime))
        supervisor.forever("cuts", forwarder.run_closing)
        supervisor.forever("forwarding", forwarder.run_sending)
        telemetry.attend(server, supervisor.failed, stack)
        same = ReplacedFileCheck((folder.path / FILE,), runtime)
        probe = ReadinessProbe("the reports file", (same.look, file.closed_through), runtime, metrics, telemetry.tell)
        await probe.look()
        supervisor.forever("dependency probe", probe.run)
        await server.start()
        telemetry.serves()

        async def stop_serving() -> None:
            """Accepts nothing more, and leaves what was accepted time for its answers."""
            telemetry.drains()
            intake.stop_accepting()
            await server.drain()
            await server.stop(config.stop_s)

        stack.push_async_callback(stop_serving)
        pages = {"metrics": telemetry.metrics_page, "health": telemetry.health_page}
        folder.announce(grpc=grpc, **pages)
        stack.callback(folder.forget_listening)
        _journal.info("listening", grpc=grpc, **pages, plan=plan.hex_id[:12])
        yield Shuffler(plan, file, grpc, telemetry, supervisor)
        _journal.info("stopping")
    _journal.info("stopped")


def credentials_of(config: Config) -> Credentials:
    """The credentials for the aggregator. A token is never sent in plaintext to another machine, even if insecure."""
    return Credentials(
        token_file=config.upstream_token,
        ca=config.upstream_ca,
        certificate=config.upstream_cert,
        key=config.upstream_key,
        insecure=config.insecure and config.upstream_token is None,
    )


def key_of(config: Config) -> tuple[SigningKey, DirectoryKey]:
    """The shuffler's key, and its entry in the directory of shufflers."""
    assert config.shuffler_key is not None, "required in this role"
    assert config.shufflers is not None, "as well"
    key = signing_key_of("shuffler_key", config.shuffler_key)
    directory = directory_of("shufflers", config.shufflers)
    try:
        return key, directory.expect(key.verify_key, Role.SHUFFLER)
    except DirectoryError as error:
        raise ConfigError(f"shufflers: {config.shufflers}: {error}") from error


async def _opened(config: Config, runtime: Runtime, stack: AsyncExitStack) -> tuple[DataDir, ReportsFile]:
    """The data folder and the reports file in it; the stack closes them."""
    folder = open_folder(config, stack)
    file = await ReportsFile.open(folder.path / FILE, runtime, OsEntropy())
    stack.push_async_callback(file.close)
    _journal.info("reports file opened")
    return folder, file


def open_folder(config: Config, stack: AsyncExitStack, *, changes: bool = True) -> DataDir:
    """The data folder, which the stack closes; ConfigError if it cannot be used, or is an aggregator's."""
    folder = DataDir.open(config.folder, changes=changes)
    stack.callback(folder.close)
    for path in (folder.log, folder.store):
        if path.exists():  # a shuffler that is run by the aggregator's operator protects nobody from them
            raise ConfigError(
                f"data: {folder.path} contains an aggregator's {path.name}: a shuffler needs its own data directory, "
                "and should be run by another party than the aggregator"
            )
    return folder


Fetch = Callable[[], Awaitable[KeptPlan]]


async def plan_of(
    path: Path | None, file: ReportsFile, fetch: Fetch, *, start_s: float, runtime: Runtime
) -> tuple[Plan, KeptPlan]:
    """The plan: the stored one; at the first start that of ``path`` or, if None, the one that the aggregator collects.

    Raises:
        ConfigError: The file cannot be read or holds another plan than the stored one, or the aggregator has not
            answered for ``start_s`` seconds.
        PlanError: It is no plan, or one without a shuffler.
    """
    named = None if path is None else read_plan(path)
    kept = await file.plan()
    is_new = kept is None
    if kept is None:
        kept = named or await _fetched(fetch, start_s, runtime)
    plan = Plan.from_bytes(kept.bundle)
    if named is not None and Plan.from_bytes(named.bundle).id != plan.id:
        expected = f"plan {plan.name!r} ({plan.hex_id[:12]}), the plan of the reports in the data directory"
        raise ConfigError(
            f"plan: {path} is another plan, expected {expected}; use another data directory for another plan"
        )
    check_plan(plan)
    if is_new:
        await file.keep_plan(kept)
    _journal.info("plan loaded", plan=plan.hex_id[:12], name=plan.name, mode=plan.privacy.mode)
    return plan, kept


def read_plan(path: Path) -> KeptPlan:
    """The plan of a ``plan.json``, with the signature beside it; ConfigError or PlanError if it is none."""
    data = plan_file_bytes(path)
    try:
        plan = Plan.from_bytes(data)
    except PlanError as error:
        expected = "expected the aggregator's plan.json; omit plan to fetch it from the aggregator"
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
                raise ConfigError(
                    f"{error}: the plan is required at the first start; or set plan to a plan.json"
                ) from error
            await runtime.sleep(backoff.next_s())
