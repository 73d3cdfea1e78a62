"""How a client contributes under its plan's trust mode: one interface, and the modes that send what is added at once.

A mode is chosen once, when the client starts. Its transactions of the spool are chosen with it
(:mod:`edge_client.spool.transaction`).
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from edge_client.config import Config
from edge_client.encoding import ReportEncoder, binding, moved, split
from edge_client.errors import SettingsError
from edge_client.plan_fetch import RetryPolicy
from edge_client.session.driver import SessionDriver
from edge_client.session.session import Session
from edge_client.spool.changes import Add, StoredDelta
from edge_client.spool.spool import Spool
from edge_client.spool.transaction import DeviceBudget, ReportTransaction
from edge_client.spool.write_queue import SpoolWriter
from edge_client.status import OnEvent, RoundProgress, SendStats
from edge_client.transport.grpc import GrpcTransport
from edge_client.transport.interface import Transport
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
from hushsum.privacy.accountant import Account
from hushsum.schedule import ARRIVAL, NEXT
from hushsum.signing import SigningKey
from hushsum_proto.answers import Answer


@dataclass(frozen=True)
class ClientContext:
    """What a mode is made from.

    ``on_answer`` is called with each definitive answer once it is durable, ``on_event`` with what else happens.
    """

    spool: Spool
    plan: Plan
    transport: Transport
    retry: RetryPolicy
    key: SigningKey | None = field(repr=False)  # the client's own, of secure sums, where one was given
    on_answer: Callable[[Answer], None]
    on_event: OnEvent

    @property
    def rounds(self) -> GrpcTransport:
        """The transport, where it carries the rounds of a secure sum.

        Raises:
            SettingsError: It does not.
        """
        if not isinstance(self.transport, GrpcTransport):
            raise SettingsError(f"target: {self.transport} has no secure sums, expected the address of a service")
        return self.transport

    async def driver(
        self,
        *,
        config: Config | None = None,
        batches: Mapping[int, int] | None = None,
        sends_early: bool = False,
    ) -> SessionDriver:
        """What sends the spool's deltas; ``config`` replaces the client's, the others are as of :class:`Session`."""
        runtime = self.retry.runtime
        config = config or self.retry.config
        session = Session(
            config=config,
            plan_id=self.plan.id,
            stream=self.spool.stream,
            schedule=self.plan.window,
            unanswered=await runtime.blocking(self.spool.unanswered),
            entropy=self.retry.entropy,
            batches=batches,
        )
        session.sends_early = sends_early
        return SessionDriver(
            session,
            spool=self.spool,
            writer=SpoolWriter(self.spool, runtime, config.commits_max),
            transport=self.transport,
            runtime=runtime,
            on_answer=self.on_answer,
            on_event=self.on_event,
        )


class Mode:
    """What a plan's trust mode decides on the device. Its driver sends deltas, and owns the client's tasks."""

    def __init__(self, context: ClientContext, driver: SessionDriver) -> None:
        self.spool = context.spool
        self.plan = context.plan
        self.driver = driver
        self.on_event = context.on_event

    @classmethod
    async def open(cls, context: ClientContext) -> Self:
        """The mode of a client that starts; nothing has begun."""
        return cls(context, await context.driver())

    def encode(self, records: Any, window: int, labels: object) -> Add:
        """Hashes records, or one record; arguments and errors as of :func:`edge_client.encoding.split`."""
        return split(self.plan, records, window, labels)

    @property
    def account(self) -> Account | None:
        """What this device has spent; None where the service spends."""
        return None

    @property
    def sends(self) -> SendStats:
        return self.driver.sends

    @property
    def earlier(self) -> Mapping[str, int]:
        """Counts of answers to what was in the spool before this start, by their names in the spool's tallies."""
        return self.driver.earlier

    @property
    def progress(self) -> RoundProgress | None:
        """How far this client has come in a round; None where it is in none."""
        return None

    async def begin(self, *, connect: bool) -> None:
        """Begins to contribute; connects at once if asked to, to learn early that another plan is collected.

        Raises:
            SpoolError: The spool cannot be written.
        """
        if connect:
            self.driver.begin()

    async def caught_up(self) -> None:
        """Returns once the spool knows of the windows of this moment."""

    def put(self, addition: Add) -> "asyncio.Future[tuple[StoredDelta, ...]]":
        """Puts an addition into the spool; the future has what was stored, once it is durable."""
        return self.driver.submit(addition)

    def on_answer(self, answer: Answer) -> None:
        """Handles a definitive answer that is durable."""

    async def flush(self, timeout_s: float | None) -> None:
        """Returns once everything has a definitive answer (see :meth:`edge_client.EdgeClient.flush`)."""
        await self.driver.answered(timeout_s)

    def take_uncounted(self) -> Mapping[int, str]:
        """Why windows are in no sum that is known of, by index: each is told once."""
        return {}

    async def finish(self, timeout_s: float) -> None:
        """Returns once what is under way has its answer; nothing new is begun.

        Raises:
            FlushTimeoutError: Not within the time.
        """
        await self.driver.answered(timeout_s)


class CentralMode(Mode):
    """Sends exact deltas; the service adds the noise, and spends the budget."""

    def __init__(self, context: ClientContext, driver: SessionDriver) -> None:
        super().__init__(context, driver)
        if self.plan.window.late == NEXT:
            driver.move = self._moved
        if self.plan.window.time == ARRIVAL:
            driver.bind = partial(binding, self.plan)

    @classmethod
    async def open(cls, context: ClientContext) -> Self:
        # A delta without a window waits for the service's clock, which comes with its welcome.
        return cls(context, await context.driver(sends_early=context.plan.window.time != ARRIVAL))

    def _moved(self, data: bytes, service_ms: int) -> Add:
        return moved(self.plan, data, self.plan.window.index_at(service_ms))


class ReportMode(Mode):
    """Sends one randomised report for each record; this device spends its own budget."""

    def __init__(
        self, context: ClientContext, driver: SessionDriver, encoder: ReportEncoder, budget: DeviceBudget
    ) -> None:
        super().__init__(context, driver)
        self._encoder = encoder
        self._budget = budget

    @classmethod
    async def open(cls, context: ClientContext) -> Self:
        plan, spool, blocking = context.plan, context.spool, context.retry.runtime.blocking
        local = plan.privacy.local
        assert local is not None, "mode 'local' has a form"
        budget = await blocking(spool.keep_budget, plan, ReportTransaction)
        # Reports, their streams and the memo's secret are the operating system's, whatever the jitter is drawn from.
        secret = await blocking(spool.keep_memo, OsEntropy()) if local.memoise else None
        driver = await context.driver(batches=await blocking(spool.streams))
        return cls(context, driver, ReportEncoder(plan, secret), budget)

    @property
    def account(self) -> Account:
        return self._budget.account

    def encode(self, records: Any, window: int, labels: object) -> Add:
        return self._encoder.encode(records, window, labels)
