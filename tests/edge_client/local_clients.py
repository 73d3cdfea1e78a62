"""What the tests of a device in local mode share: plans, a clock that rushes, and answers that are lies."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from typing_extensions import override

from edge_client import Config, EdgeClient, NotCountedError, Policy
from hushsum import Plan
from hushsum.delta import DeltaId
from hushsum.errors import Reason
from hushsum_proto.answers import Answer, Refusal, ServiceReason, Status
from tests.edge_client.clocks import HOUR, START, Clock, until
from tests.edge_client.local_plans import report_plan, silo_plan
from tests.edge_client.local_service import Kept, LocalService

CONFIG = Config(backoff_first_s=0.001, backoff_longest_s=0.002, close_flush_s=0.0, first_contact_s=5.0)
WINDOW = START // HOUR
SILO = silo_plan()
REPORT = report_plan()
MEMO = report_plan(memoise=True)
EVERYTHING = Policy(memoise=True)

T = TypeVar("T")
Lie = Callable[[DeltaId, int], Answer | None]


class RushingClock(Clock):
    """Stands still for the device, and lets it wait for nothing that is short."""

    @override
    async def sleep(self, seconds: float) -> None:
        if seconds <= 4.0:
            self.seconds += seconds
            await asyncio.sleep(0)
        else:
            await super().sleep(seconds)


class WorkingClock(Clock):
    """Time passes when a test says so, and not before all that can be done now is done, however busy the machine is.

    Attributes:
        work_s: How much of this time a computation takes, in seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.work_s = 0.0
        self._calls = 0  # in threads

    @override
    async def blocking(self, function: Callable[..., T], *arguments: object) -> T:
        self._calls += 1
        try:
            return await super().blocking(function, *arguments)
        finally:
            self._calls -= 1

    @override
    async def computing(self, function: Callable[..., T], *arguments: object) -> T:
        await self.sleep(self.work_s)
        return await self.blocking(function, *arguments)

    async def settled(self) -> None:
        """Returns once no call is in a thread, and none was begun over many turns of the event loop."""
        quiet = 0
        while quiet < 100:
            await asyncio.sleep(0)
            quiet = 0 if self._calls else quiet + 1


async def started(plan: Plan, clock: Clock, kept: Kept | None = None) -> LocalService:
    service = LocalService(plan, kept)
    service.clock_ms = clock.now_ms
    await service.start()
    return service


def client_of(service: LocalService, path: Path, clock: Clock, policy: Policy | None = None) -> EdgeClient:
    return EdgeClient(
        service.target, spool=path, client_id="device", config=CONFIG, runtime=clock, policy=policy or EVERYTHING
    )


async def flushed_or_sent(client: EdgeClient, kept: Kept) -> None:
    """Flushes, and returns once that has ended, or something was sent that has no answer."""
    before = len(kept.received)
    task = asyncio.create_task(client.flush(60))
    await until(lambda: task.done() or len(kept.received) > before, "something was sent")
    if not task.done():
        await asyncio.wait([task], timeout=0.3)
    task.cancel()
    with suppress(NotCountedError, asyncio.CancelledError):
        await task


def refused(id: DeltaId, reason: Reason | ServiceReason) -> Answer:
    return Answer(id, Status.REFUSED, Refusal.of(reason, "a lie", 1))


LIES: dict[str, Lie] = {
    "late": lambda id, _: Answer(id, Status.LATE),
    "unknown": lambda id, _: Answer(id, Status.UNKNOWN),
    "refused": lambda id, _: refused(id, Reason.MALFORMED),
    "second delta": lambda id, _: refused(id, Reason.SECOND_DELTA),
    "too early": lambda id, _: refused(id, Reason.WINDOW_IN_FUTURE),
    "budget": lambda id, _: refused(id, ServiceReason.BUDGET),
    "busy at first": lambda id, before: refused(id, ServiceReason.OVERLOADED) if before < 3 else None,
    "rate at first": lambda id, before: refused(id, ServiceReason.RATE_LIMITED) if before < 3 else None,
    "no id at first": lambda _, before: Answer(None, Status.REFUSED) if before < 3 else None,
    "another's id at first": lambda id, before: (
        Answer(DeltaId(id.stream ^ 2, id.sequence), Status.ACKNOWLEDGED) if before < 1 else None
    ),
}
