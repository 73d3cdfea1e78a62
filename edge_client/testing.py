"""A service in memory for tests of applications: the test determines its answers; there are no sockets or waits.

>>> from edge_client import EdgeClient
>>> from edge_client.testing import MemoryService
>>> service = MemoryService(plan)
>>> async with EdgeClient(service, spool=tmp_path / "spool.db") as client:
...     await client.add(records)
...     await client.flush()
>>> service.records
3

Pass it to a client instead of the address of a service. The client is the real one: it has a spool, hashes the records
and sends the same bytes. Secure sums are not supported, because they need the server side of the protocol.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

import numpy as np

from edge_client.runtime import wall_clock_ms
from edge_client.transport.interface import ConnectionLostError, Disconnect, PlanReply
from hushsum.delta import Delta, DeltaId, apply, read_header
from hushsum.errors import Reason
from hushsum.local import report_batch
from hushsum.plan import Plan
from hushsum.privacy.guarantee import LOCAL
from hushsum.signed_plan import SignedPlan
from hushsum.sketch import Sketch
from hushsum_proto.answers import Answer, AnyReason, Refusal, Status
from hushsum_proto.messages import PROTOCOL_VERSIONS, Welcome

_IN_FLIGHT_MAX: Final = 256
_AWAY: Final = Disconnect("the service is unavailable (edge_client.testing)")


class MemoryService:
    """Acknowledges every delta once, until a test selects another answer.

    Its methods are safe to call from any thread. Nothing is kept between processes.

    Args:
        plan: The plan that is collected.
        signed: The same plan with a signature, for devices with a policy that requires one.
        now_ms: The clock of the service, ms since 1970 UTC; None: the clock of this machine.

    Attributes:
        received: Every received delta, resends included, in packed form.
        connections: The open connections.
        is_away: Whether it currently refuses connections.
    """

    def __init__(
        self, plan: Plan, *, signed: SignedPlan | None = None, now_ms: Callable[[], int] | None = None
    ) -> None:
        self.received: list[bytes] = []
        self.plan = plan
        self.signed = signed
        self.now_ms = now_ms or wall_clock_ms
        self._answer: Callable[[DeltaId], Answer] = _acknowledge
        self._counted: dict[DeltaId, bytes] = {}
        self.is_away = False
        self.connections: set[_MemoryConnection] = set()

    def __str__(self) -> str:
        return "a service in memory"

    # ----------------------------------------------------------------------------------------------- set by the test

    def accept(self) -> None:
        """Acknowledges every delta from now on."""
        self._answer = _acknowledge

    def late(self) -> None:
        """Answers every new delta with ``late`` from now on: its window is sealed."""
        self._answer = lambda id: Answer(id, Status.LATE)

    def forget(self) -> None:
        """Answers every new delta with ``unknown`` from now on: its window is over and erased."""
        self._answer = lambda id: Answer(id, Status.UNKNOWN)

    def refuse(self, reason: AnyReason = Reason.TOO_MANY_RECORDS, detail: str = "refused by the test") -> None:
        """Refuses every new delta permanently from now on."""
        self._answer = lambda id: Answer(id, Status.REFUSED, Refusal.of(reason, detail))

    def go_away(self) -> None:
        """Ends all connections and refuses new ones until :meth:`come_back`."""
        self.is_away = True
        for connection in tuple(self.connections):
            connection.end()

    def come_back(self) -> None:
        """Accepts connections again."""
        self.is_away = False

    # ---------------------------------------------------------------------------------------------- read by the test

    @property
    def records(self) -> int:
        """The number of records in counted deltas, each delta once; 0 for silos, which do not state a number."""
        plan = self.plan
        if plan.privacy.is_silo:
            return 0
        if plan.privacy.mode == LOCAL:
            return sum(len(report_batch.unpack(data, plan).reports) for data in self._counted.values())
        return sum(Delta.unpack(data, plan).records for data in self._counted.values())

    @property
    def windows(self) -> set[int]:
        """The windows of the counted deltas."""
        return {read_header(data).window for data in self._counted.values()}

    def sketch(self) -> Sketch:
        """The exact sketch of the counted records of all windows together, under plans of mode ``central``.

        Raises:
            DeltaError: The plan has another mode, in which no service receives exact deltas.
        """
        plan = self.plan
        counters, counts = np.zeros(plan.counters_shape, np.int64), np.zeros(plan.count_counters, np.int64)
        for data in self._counted.values():
            apply(Delta.unpack(data, plan), counters, counts, plan.privacy.mechanism.count_scale)
        return Sketch.of_counters(plan, counters, counts)

    # ------------------------------------------------------------------------------------------ called by the client

    def connect(self) -> "_MemoryConnection":
        """A new connection of a client."""
        return _MemoryConnection(self)

    def _take(self, data: bytes) -> Answer:
        id = read_header(data).id
        self.received.append(data)
        counted = self._counted.get(id)
        if counted is not None:
            if counted == data:
                return Answer(id, Status.ACKNOWLEDGED)
            return Answer(id, Status.REFUSED, Refusal.of(Reason.ID_REUSED, "this id was used before with other bytes"))
        answer = self._answer(id)
        if answer.status in (Status.ACKNOWLEDGED, Status.COUNTED):
            self._counted[id] = data
        return answer


def _acknowledge(id: DeltaId) -> Answer:
    return Answer(id, Status.ACKNOWLEDGED)


class _MemoryConnection:
    """A :class:`~edge_client.transport.interface.Connection` to a service in this process."""

    def __init__(self, service: MemoryService) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._replies: asyncio.Queue[Answer | None] = asyncio.Queue()  # None: the connection has ended

    async def greet(self, plan_id: bytes) -> Welcome:
        service = self._service
        self._check()
        service.connections.add(self)
        if plan_id not in (b"", service.plan.id):
            detail = f"plan {service.plan.hex_id[:12]} is collected here"
            raise ConnectionLostError(Disconnect(detail, Refusal.of(Reason.WRONG_PLAN, detail)))
        now_ms = service.now_ms()
        window = service.plan.window.index_at(now_ms)
        return Welcome(
            protocol_version=PROTOCOL_VERSIONS[-1],
            plan_id=service.plan.id,
            window=window,
            now_ms=now_ms,
            oldest_window=window - 1,
            newest_window=window + 1,
            in_flight_max=_IN_FLIGHT_MAX,
            delta_bytes_max=service.plan.delta_bytes_max,
        )

    async def fetch_plan(self, plan_id: bytes) -> PlanReply:
        del plan_id  # the service has only one plan
        self._check()
        return PlanReply(self._service.plan.bundle, self._service.signed)

    def open(self, *, unary: bool) -> None:
        """There is nothing to open; a greeting that is refused ends before anything is sent."""

    async def send(self, delta: bytes) -> None:
        self._check()
        self._replies.put_nowait(self._service._take(delta))  # noqa: SLF001 -- one idea in two classes

    async def answers(self) -> AsyncGenerator[Answer, None]:
        while (answer := await self._replies.get()) is not None:
            yield answer
        raise ConnectionLostError(_AWAY)

    async def close(self) -> None:
        self._service.connections.discard(self)

    def end(self) -> None:
        """Ends the connection like the service, from any thread."""
        self._loop.call_soon_threadsafe(self._replies.put_nowait, None)

    def _check(self) -> None:
        if self._service.is_away:
            raise ConnectionLostError(_AWAY)
