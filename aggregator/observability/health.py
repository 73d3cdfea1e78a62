"""Liveness and readiness of a process: two pages over plain HTTP, with one word each; and its metrics and traces.

The pages answer from threads of their own, so that a hanging event loop is noticed.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from email.message import Message
from http import HTTPStatus
from itertools import cycle, islice
from typing import Final, Protocol

from typing_extensions import override

from aggregator.config import Config
from aggregator.errors import AggregatorError
from aggregator.fold.state import FoldMark
from aggregator.interfaces import NO_TRACES, Log, Tracer
from aggregator.logs import journal
from aggregator.observability.host import HostMetrics, HostMetricsCollector
from aggregator.observability.http import HttpPage, Reply, metrics_page
from aggregator.observability.metrics import Metrics, until_step_s
from aggregator.observability.otlp import Export, otlp_exports
from aggregator.observability.tracing import OtelTracer
from aggregator.runtime import Runtime, within
from aggregator.staleness_guard import StalenessGuard
from aggregator.store.store import Store
from hushsum.plan import Plan


class HealthReporting(Protocol):
    """A gRPC server, with its health service."""

    async def tell(self, *, ready: bool) -> None:
        """Sets whether its services work."""

    async def fail(self) -> None:
        """Sets that this process cannot go on."""


class ProcessTelemetry:
    """The pages, metrics and traces of one process. They are opened before all its other parts, and closed after them.

    Attributes:
        tracer: Where spans go, or nowhere before :meth:`collect`.
        metrics_page: Where ``/metrics`` answers, ``host:port``; empty where it is off.
        health_page: Where ``/livez`` and ``/readyz`` answer; the same.
    """

    def __init__(self, config: Config, runtime: Runtime, metrics: Metrics, *, tracer: Tracer = NO_TRACES) -> None:
        self.metrics, self.tracer = metrics, tracer
        self.metrics_page = self.health_page = ""
        self._config, self._runtime = config, runtime
        metrics.registry.add_labels(role=config.role)
        self._health = Health(runtime)
        self._server: HealthReporting | None = None

    async def open(self, stack: AsyncExitStack) -> None:
        """Opens the pages; the stack closes them.

        Raises:
            ConfigError: An address or a certificate cannot be used.
        """
        config, clock = self._config, self._runtime.monotonic
        if config.health_listen:
            page = HttpPage("health_listen", config.health_listen, self._health.answer, clock)
            stack.push_async_callback(self._runtime.blocking, page.close)
            self.health_page = page.address
        if config.metrics_listen:
            page = metrics_page(self.metrics, config, clock)
            stack.push_async_callback(self._runtime.blocking, page.close)
            self.metrics_page = page.address
            gauges = HostMetrics(self.metrics.registry)
            host = HostMetricsCollector(config, self._runtime, gauges, self.metrics.retried)
            self._keep(stack, "host metrics", host.run)
        self._keep(stack, "heartbeat", self._health.beat)

    def collect(self, plan: Plan, stack: AsyncExitStack) -> None:
        """Shows the plan, and begins to send spans, log lines and metrics where that is configured.

        For a plan of reports, whose arrival times are erased, metrics are shown as of whole minutes.

        Raises:
            ConfigError: OpenTelemetry is not installed, or its environment cannot be used.
        """
        self.metrics.plan(plan, self._config.role)
        if plan.privacy.reports is not None:
            self.metrics.registry.hold()  # before the first report
            self._keep(stack, "metrics", self._step)
        if self._config.otlp and self.tracer is NO_TRACES:
            registry, clock = self.metrics.registry, self._runtime.now_ms
            exports = otlp_exports(plan, self._config.role, registry, clock, os.environ)
            stack.push_async_callback(self._close, exports)
            for export in exports:
                if isinstance(export, OtelTracer):
                    self.tracer = export
                else:
                    export.start()

    async def _close(self, exports: Sequence[Export]) -> None:
        """Sends what is left, of all at the same time: a collector that hangs delays the stop by ``stop_s``, once."""
        await asyncio.gather(*(self._runtime.blocking(each.close, self._config.stop_s) for each in exports))

    def attend(self, server: HealthReporting, failed: Callable[[], Awaitable[None]], stack: AsyncExitStack) -> None:
        """From now on the server's health service says what the pages say; the server need not answer yet.

        ``failed`` never returns; it raises what this process cannot go on after.
        """
        self._server = server

        async def watch() -> None:
            try:
                await failed()
            except Exception:  # noqa: BLE001  whatever it is, it is raised to whoever runs the process as well
                self._health.failed = True
                await server.fail()

        self._keep(stack, "health", watch)

    def serves(self) -> None:
        self._health.serves = True

    async def tell(self, is_ready: bool) -> None:  # noqa: FBT001  a fact that is told, not a switch
        """Whether what this process depends on can be reached."""
        self._health.answers = is_ready
        if self._server is not None:
            await self._server.tell(ready=is_ready)

    def drains(self) -> None:
        self._health.serves = False

    async def _step(self) -> None:
        """Shows the metrics as of each whole minute, and of no other time; never returns."""
        while True:
            await self._runtime.sleep(until_step_s(self._runtime.now_ms()))
            self.metrics.registry.hold()

    def _keep(self, stack: AsyncExitStack, name: str, work: Callable[[], Coroutine[object, object, None]]) -> None:
        task = self._runtime.spawn(work(), name)

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])

        stack.push_async_callback(end)


BEAT_S: Final = 1.0
STALLED_S: Final = 30.0


class Health:
    """Whether a process is alive and ready. Written on the event loop, read from any thread.

    Attributes:
        serves: Whether calls are answered: it has started, and is not stopping.
        answers: Whether what it depends on can be reached.
        failed: Whether it cannot go on.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.serves, self.answers, self.failed = False, True, False
        self._runtime = runtime
        self._beat_s = runtime.monotonic()

    @property
    def is_alive(self) -> bool:
        """Whether the event loop runs, and nothing has failed for good."""
        return not self.failed and self._runtime.monotonic() - self._beat_s < STALLED_S

    @property
    def is_ready(self) -> bool:
        return self.is_alive and self.serves and self.answers

    async def beat(self) -> None:
        """The event loop's heartbeat; never returns."""
        while True:
            self._beat_s = self._runtime.monotonic()
            await self._runtime.sleep(BEAT_S)

    def answer(self, path: str, _: "Message[str, str]") -> Reply | None:
        if path == "/livez":
            is_well, trouble = self.is_alive, b"stalled\n"
        elif path == "/readyz":
            is_well, trouble = self.is_ready, b"unready\n"
        else:
            return None
        return Reply(HTTPStatus.OK, b"ok\n") if is_well else Reply(HTTPStatus.SERVICE_UNAVAILABLE, trouble)


LOOK_S: Final = 2.0
SOON_S: Final = 0.5  # while a gateway waits for what it sees
#: A gateway that has not seen for so long how far the folds are takes nothing until it has.
SIGHT_S: Final = 5.0
#: What fails for less than that is retried where it fails, and nobody needs to be sent elsewhere.
PATIENCE_S: Final = 15.0
PARTITIONS_A_LOOK: Final = 32
_ANSWER_S_MAX: Final = 10.0  # whatever the log and the store themselves allow

_journal = journal("service")


class ReadinessProbe:
    """Checks every two seconds whether what this process depends on (``what``) answers, and reports changes.

    ``tell`` is called with the new state when readiness changes: whether all ``looks`` succeeded within the last 15
    seconds. Each failed check is a span of ``tracer``.
    """

    def __init__(
        self,
        what: str,
        looks: Sequence[Callable[[], Awaitable[object]]],
        runtime: Runtime,
        metrics: Metrics,
        tell: Callable[[bool], Awaitable[None]],
    ) -> None:
        self._what, self.looks = what, looks
        self._runtime, self._metrics, self._tell = runtime, metrics, tell
        self.tracer: Tracer = NO_TRACES
        self._answered_s = runtime.monotonic()
        self._answers = self._is_ready = True

    async def run(self) -> None:
        """Checks until cancelled; a failure is reported, not raised."""
        while True:
            await self.look()
            await self._runtime.sleep(self._pause_s)

    async def look(self) -> None:
        why = await self._look_once()
        now_s = self._runtime.monotonic()
        if not why:
            self._answered_s = now_s
        self._log_change(now_s - self._answered_s < PATIENCE_S, why)
        waits = self._is_waiting()  # also while nothing answers: it logs a line when that changes
        is_ready = self._answers and not waits
        self._metrics.ready(is_ready)
        if is_ready != self._is_ready:
            self._is_ready = is_ready
            await self._tell(is_ready)

    @property
    def _pause_s(self) -> float:
        return LOOK_S

    def _is_waiting(self) -> bool:
        """Whether this process is not ready although all checks succeed."""
        return False

    async def _look_once(self) -> str:
        """Why a check failed; empty if none did."""
        began_s = self._runtime.monotonic()
        try:
            await within(_ANSWER_S_MAX, self._sound(), runtime=self._runtime)
        except (AggregatorError, TimeoutError) as error:
            # Only failures are traced.
            with self.tracer.span("dependency check failed", kind=type(error).__name__) as span:
                span.note(seconds=self._runtime.monotonic() - began_s)
            return str(error) or type(error).__name__
        return ""

    async def _sound(self) -> None:
        for look in self.looks:
            await look()

    def _log_change(self, answers: bool, why: str) -> None:  # noqa: FBT001  a fact, not a switch
        if answers == self._answers:
            return
        self._answers = answers
        if answers:
            _journal.info(f"{self._what} available again")
        else:
            _journal.error(f"{self._what} unavailable: health checks fail", why=why)


class DependencyProbe(ReadinessProbe):
    """Checks log and store, reports how far the folds are, and lets the gateway here take deltas.

    The log is asked for the ends of some partitions, in turn. ``staleness`` is what the gateway here waits for, without
    which the process is not ready; None where there is no gateway, or where the folds are here.
    """

    def __init__(
        self,
        plan_id: bytes,
        log: Log,
        store: Store,
        runtime: Runtime,
        metrics: Metrics,
        tell: Callable[[bool], Awaitable[None]],
        staleness: StalenessGuard | None = None,
    ) -> None:
        super().__init__("log and store", (), runtime, metrics, tell)
        self._plan_id, self._log, self._store = plan_id, log, store
        self._staleness, self._waits = staleness, False
        self._next = cycle(range(log.partitions))

    @property
    @override
    def _pause_s(self) -> float:
        is_shut = self._staleness is not None and bool(self._staleness.why)
        return min(LOOK_S, SOON_S) if is_shut else LOOK_S

    @override
    async def _sound(self) -> None:
        marks = await self._marks()
        partitions = islice(self._next, min(PARTITIONS_A_LOOK, self._log.partitions))
        ends = {partition: await self._log.end(partition) for partition in partitions}
        self._metrics.sounded(ends, marks)
        await super()._sound()

    async def _marks(self) -> dict[int, int]:
        """How far each partition's fold has come; the gateway here hears of it."""
        if self._staleness is None:
            return _positions(await self._store.fold_marks(self._plan_id))
        try:
            asking = self._store.fold_marks(self._plan_id)
            marks = _positions(await within(SIGHT_S, asking, runtime=self._runtime))
        except (AggregatorError, TimeoutError):
            self._staleness.invalidate()
            raise
        self._staleness.update_positions(marks)
        if self._staleness.needs_targets:
            ends = {partition: await self._log.end(partition) for partition in range(self._log.partitions)}
            self._staleness.set_targets(ends)
        return marks

    @override
    def _is_waiting(self) -> bool:
        """Whether the gateway waits for the folds; one line in the log when it begins to, and one when it ends."""
        waits = self._staleness is not None and bool(self._staleness.behind)
        if waits == self._waits:
            return waits
        self._waits = waits
        if waits:
            assert self._staleness is not None
            _journal.warning("deltas are rejected: the store may be older than the log", why=self._staleness.why)
        else:
            _journal.info("deltas are accepted again: the store is up to date with the log")
        return waits


def _positions(marks: Mapping[int, FoldMark]) -> dict[int, int]:
    return {partition: mark.position for partition, mark in marks.items()}
