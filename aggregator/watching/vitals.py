"""What one process tells the outside about itself from its first moment to its last: health, metrics, traces."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Protocol

from aggregator.config import Config
from aggregator.ports import Runtime, Tracer
from aggregator.watching.health_page import Health, health_page
from aggregator.watching.metrics import Metrics
from aggregator.watching.metrics_page import metrics_page
from aggregator.watching.stepped import until_step_s
from aggregator.watching.tracing import NO_TRACES, otlp_tracer
from hushsum.plan import Plan


class Probed(Protocol):
    """A gRPC server, with its health service."""

    async def tell(self, *, ready: bool) -> None:
        """Whether what it serves works."""

    async def fail(self) -> None:
        """This process cannot go on."""


class Vitals:
    """Of one process. Its pages answer before anything else of it is there, and are closed after all else.

    Args:
        config: Where the pages are, and whether there are traces.
        runtime: Time, tasks and threads.
        metrics: What is counted.
        tracer: Where spans go, in place of what ``config`` says.

    Attributes:
        metrics: As above.
        tracer: Where spans go; nowhere until :meth:`trace`.
        metrics_page: Where ``/metrics`` answers, ``host:port``; empty where it is off.
        health_page: Where ``/livez`` and ``/readyz`` answer; the same.
    """

    def __init__(self, config: Config, runtime: Runtime, metrics: Metrics, *, tracer: Tracer = NO_TRACES) -> None:
        self.metrics, self.tracer = metrics, tracer
        self.metrics_page = self.health_page = ""
        self._config, self._runtime = config, runtime
        self._health = Health(runtime)
        self._server: Probed | None = None

    async def open(self, stack: AsyncExitStack) -> None:
        """Opens the pages; the stack closes them.

        Raises:
            ConfigError: An address or a certificate cannot be used.
        """
        config, clock = self._config, self._runtime.monotonic
        if config.health_listen:
            page = health_page(self._health, config.health_listen, clock)
            stack.push_async_callback(self._runtime.blocking, page.close)
            self.health_page = page.address
        if config.metrics_listen:
            page = metrics_page(self.metrics, config, clock)
            stack.push_async_callback(self._runtime.blocking, page.close)
            self.metrics_page = page.address
        self._keep(stack, "heartbeat", self._health.beat)

    def collect(self, plan: Plan, stack: AsyncExitStack) -> None:
        """What is collected here is known: shows it, and begins to trace where that is wished.

        Of a plan of reports, of which is forgotten when a batch came, metrics are shown as of whole minutes.

        Raises:
            ConfigError: OpenTelemetry is not installed, or its environment cannot be used.
        """
        self.metrics.plan(plan, self._config.role)
        if plan.privacy.reports is not None:
            self.metrics.registry.hold()  # nothing has come yet
            self._keep(stack, "metrics", self._step)
        if self._config.traces and self.tracer is NO_TRACES:
            tracer = otlp_tracer(plan, self._config.role)
            stack.push_async_callback(self._runtime.blocking, tracer.close, self._config.stop_s)
            self.tracer = tracer

    def attend(self, server: Probed, failed: Callable[[], Awaitable[None]], stack: AsyncExitStack) -> None:
        """There is a server, which answers nobody yet.

        Args:
            server: Its health service is told what the pages say.
            failed: Returns never; raises what this process cannot go on after.
            stack: Ends what this begins.
        """
        self._server = server

        async def heed() -> None:
            try:
                await failed()
            except Exception:  # noqa: BLE001  whatever it is, whoever runs the process hears of it elsewhere
                self._health.failed = True
                await server.fail()

        self._keep(stack, "health", heed)

    def serves(self) -> None:
        """Callers are answered from now on."""
        self._health.serves = True

    async def tell(self, is_ready: bool) -> None:  # noqa: FBT001  a fact that is told, not a switch
        """Whether what this process stands on can be reached."""
        self._health.answers = is_ready
        if self._server is not None:
            await self._server.tell(ready=is_ready)

    def drains(self) -> None:
        """Callers are answered no more."""
        self._health.serves = False

    async def _step(self) -> None:
        """Shows the metrics as of each whole minute, and of no other time, for ever."""
        while True:
            await self._runtime.sleep(until_step_s(self._runtime.now_ms()))
            self.metrics.registry.hold()

    def _keep(self, stack: AsyncExitStack, name: str, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await work()

        task = self._runtime.spawn(run(), name)

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])

        stack.push_async_callback(end)
