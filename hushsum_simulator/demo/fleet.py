"""A fleet of real clients in one event loop, and its delivery to a service that is killed half way."""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from edge_client import Config, Counts, EdgeClient, Policy, SystemRuntime
from hushsum.delta import DeltaId
from hushsum.plan import Plan
from hushsum.privacy.accountant import Account
from hushsum_simulator.data import ClientRecords
from hushsum_simulator.demo.evaluation import SentDelta
from hushsum_simulator.demo.services import Server, Shuffler
from hushsum_simulator.errors import JourneyError
from hushsum_simulator.progress import Progress
from hushsum_simulator.testbed.tcp_proxy import TcpProxy

_ONLINE_MAX: Final = 200
_THREADS: Final = 4  # most of them wait for the disk: every add and every answer is durable before it counts
# Short waits: the server comes back within seconds, and no other clients compete for it.
_CONFIG: Final = Config(backoff_first_s=0.1, backoff_longest_s=1.0, first_contact_s=120.0, close_flush_s=0.0)
_HTTP2_WINDOW_BYTES: Final = 1 << 15  # half of the smallest flow-control window of HTTP/2


def policy_of(plan: Plan) -> Policy:
    """The policy of a device that allows this plan's ε and δ, and no more."""
    privacy = plan.privacy
    return Policy(
        max_epsilon=privacy.epsilon,
        max_delta=privacy.delta,
        max_total_delta=privacy.total_delta,
        mode=privacy.mode,
        memoise=privacy.local is not None and privacy.local.memoise,
    )


class Devices:
    """Makes the clients of a fleet: one thread pool for all, a spool for each, and ``time_ms`` for every record."""

    def __init__(self, plan: Plan, *, folder: Path, time_ms: int) -> None:
        self._policy = policy_of(plan)
        self._folder = folder
        self._time_ms = time_ms
        self.runtime = SystemRuntime(_THREADS)

    def client(self, client_id: str, target: str) -> EdgeClient:
        return EdgeClient(
            target,
            spool=self._folder / f"{client_id}.spool",
            client_id=client_id,
            policy=self._policy,
            config=_CONFIG,
            runtime=self.runtime,
        )

    async def add(self, client: EdgeClient, share: ClientRecords, batch: int) -> None:
        labels = None if share.labels is None else share.labels[batch]
        await client.add(share.batches[batch], time=self._time_ms, labels=labels)

    def close(self) -> None:
        self.runtime.close()


class Totals(NamedTuple):
    """Messages of all clients: deltas, batches of reports, or noised sums."""

    spooled: int = 0
    acknowledged: int = 0
    bytes_sent: int = 0


@dataclass(frozen=True)
class EndedClient:
    """What a client knew at its end.

    Attributes:
        account: Its own privacy account; None in central mode.
    """

    stats: Counts
    stream: int
    account: Account | None

    @property
    def is_acknowledged(self) -> bool:
        """Whether all its deltas are durable at the service."""
        return self.stats.acknowledged + self.stats.counted == self.stats.deltas


class Fleet:
    """Clients that contribute their shares to one window; at most 200 are online at a time.

    They add the first half of all batches, and the second half once the gate is open.

    Attributes:
        messages: What the clients send, for people.
        expected: How many of these there will be.
        hold_bytes: See :func:`_hold_bytes`.
        ended: Every client that has its answers, by id.
    """

    def __init__(self, plan: Plan, shares: Sequence[ClientRecords], *, target: str, folder: Path, time_ms: int) -> None:
        self._devices = Devices(plan, folder=folder, time_ms=time_ms)
        self._shares = shares
        self._target = target
        self._is_silo = plan.privacy.is_silo
        self._live: set[EdgeClient] = set()
        self._done = Totals()  # of the clients that have ended
        self._online = asyncio.Semaphore(_ONLINE_MAX)
        self._gate = asyncio.Event()
        self._batches = sum(len(share.batches) for share in shares)
        self._begun = 0
        self._added = 0
        self.messages = "submissions" if self._is_silo else "batches of reports" if plan.privacy.reports else "deltas"
        self.expected = len(shares) if self._is_silo else self._batches
        self.hold_bytes = _hold_bytes(plan, shares)
        self.ended: dict[str, EndedClient] = {}

    @property
    def at_gate(self) -> bool:
        """Whether half of the batches are added, and all messages so far are answered."""
        totals = self.totals
        return self._added >= self._batches // 2 and totals.acknowledged == totals.spooled

    @property
    def totals(self) -> Totals:
        return _sum([self._done, *(self._totals_of(client.status().counts) for client in self._live)])

    @property
    def progress(self) -> tuple[int, Totals]:
        """Changes with every batch that is added, and every message that is sent or answered."""
        return self._added, self.totals

    @property
    def sent(self) -> frozenset[SentDelta]:
        """The ids of all deltas of the clients that have ended."""
        return frozenset(
            SentDelta(client_id, DeltaId(each.stream, number))
            for client_id, each in self.ended.items()
            for number in range(each.stats.deltas)
        )

    async def run(self) -> None:
        """Contributes everything, and returns when all of it is answered.

        Raises:
            HushsumError: Of the first client that failed.
        """
        try:
            await together(self._contribute(share) for share in self._shares)
        finally:
            self._devices.close()

    def open_gate(self) -> None:
        self._gate.set()

    async def _contribute(self, share: ClientRecords) -> None:
        client = self._devices.client(share.client_id, self._target)
        async with self._online, client:
            self._live.add(client)
            for batch in range(len(share.batches)):
                if self._begun >= self._batches // 2:
                    await self._gate.wait()
                self._begun += 1
                await self._devices.add(client, share, batch)
                self._added += 1
            await client.flush()
            ended = EndedClient(client.status().counts, client.stream, client.status().account)
        self._live.remove(client)
        self.ended[share.client_id] = ended
        self._done = _sum([self._done, self._totals_of(ended.stats)])

    def _totals_of(self, stats: Counts) -> Totals:
        if self._is_silo:  # its deltas stay in its spool: only their noised sum is sent
            return Totals(stats.submissions_spent, stats.submissions_counted, stats.bytes_sent)
        # What was counted was durable, so it is acknowledged too.
        return Totals(stats.deltas, stats.acknowledged + stats.counted, stats.bytes_sent)


def _sum(each: Iterable[Totals]) -> Totals:
    return Totals(*map(sum, zip(*each, strict=True)))


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs coroutines at once; cancels the others and raises when one fails.

    Raises:
        BaseException: Of the first that failed, by itself.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the others were cancelled for it


def _hold_bytes(plan: Plan, shares: Sequence[ClientRecords]) -> int:
    """How many bytes of a client a connection must carry before its replies are held back.

    A message larger than a window of HTTP/2 arrives only if the server's window updates come back, and a submission
    follows replies to other calls; smaller messages arrive although no reply does, and 0 is the answer.
    """
    if plan.privacy.is_silo:
        return plan.words.bytes
    if plan.report_sizes is None:
        return 0
    reports = sum(share.records for share in shares) // max(1, sum(len(share.batches) for share in shares))
    size = plan.report_sizes.width * reports
    return size if size > _HTTP2_WINDOW_BYTES else 0


_LOOK_S: Final = 0.05
_SHOW_S: Final = 0.25
_HOLD_S: Final = 2.0
_HOLD_LONG_S: Final = 20.0
_PATIENCE_S: Final = 180.0
# The kill waits for so many durable and unacknowledged messages: a share of all, so that it comes in mid-stream.
_UNACKNOWLEDGED_SHARE: Final = 0.01


class Delivery:
    """Runs a fleet, and kills the service that it sends to while messages are durable and not acknowledged.

    The fleet connects to the proxy, which is aimed at the service.
    """

    def __init__(self, fleet: Fleet, service: Server | Shuffler, proxy: TcpProxy, progress: Progress) -> None:
        self._fleet = fleet
        self._service = service
        self._proxy = proxy
        self._progress = progress
        self._moved = fleet.progress
        self._moved_at = time.monotonic()

    async def run(self) -> int:
        """Returns when everything is answered: how many messages were durable and unacknowledged at the kill.

        Raises:
            HushsumError: A client or the service failed, or nothing moved for a minute.
        """
        work = asyncio.create_task(self._fleet.run())
        show = asyncio.create_task(self._show())
        try:
            while not self._fleet.at_gate:
                await self._look_again(work)
            durable = await self._kill(work)
            await self._service.start()
            # The proxy has led nowhere meanwhile: whatever has no answer by now is sent again.
            killed_with = durable - self._fleet.totals.acknowledged
            what = f"{killed_with} {self._fleet.messages}"
            self._progress.step(f"killed the {self._service.name}: {what} were durable and not acknowledged")
            self._proxy.aim(self._service.address)
            self._progress.step("restarted it; the clients resend all unacknowledged messages")
            while not work.done():
                self._check()
                await asyncio.wait([work], timeout=_SHOW_S)
            work.result()
            return killed_with
        finally:
            work.cancel()
            show.cancel()
            await asyncio.gather(work, show, return_exceptions=True)

    async def _kill(self, work: "asyncio.Task[None]") -> int:
        """Kills the service while messages are unacknowledged; returns how many are durable."""
        fleet, proxy = self._fleet, self._proxy
        fleet.open_gate()
        proxy.hold_replies(fleet.hold_bytes)
        while await self._unacknowledged(work) < 1:
            # No client had an open session, and a new session needs the reply to its hello first.
            proxy.release_replies()
            before = fleet.totals.acknowledged
            while fleet.totals.acknowledged == before:
                await self._look_again(work)
            proxy.hold_replies(fleet.hold_bytes)
        await self._service.kill()
        proxy.aim(None)
        proxy.cut()
        proxy.release_replies()
        return self._service.durable()

    async def _unacknowledged(self, work: "asyncio.Task[None]") -> int:
        """Waits a moment for enough durable and unacknowledged messages; returns how many there are.

        It looks twice: a reply may have passed the proxy before, and still be on its way to its client.
        """
        wanted = max(1, int(_UNACKNOWLEDGED_SHARE * self._fleet.expected))
        # Sessions open meanwhile where the first bytes of a connection pass.
        deadline, seen = time.monotonic() + (_HOLD_LONG_S if self._fleet.hold_bytes else _HOLD_S), False
        while time.monotonic() < deadline:
            enough = self._service.durable() - self._fleet.totals.acknowledged >= wanted
            if enough and seen:
                break
            seen = enough
            await self._look_again(work)
            if seen:
                await asyncio.sleep(_SHOW_S)
        return self._service.durable() - self._fleet.totals.acknowledged

    async def _look_again(self, work: "asyncio.Task[None]") -> None:
        self._check()
        if work.done():
            work.result()
            raise JourneyError("all answers had arrived before the server could be killed")
        await asyncio.sleep(_LOOK_S)

    def _check(self) -> None:
        """Raises the error that ended the service, or an error if nothing moves any more."""
        self._service.check_running()
        moved, now = self._fleet.progress, time.monotonic()
        if moved != self._moved:
            self._moved, self._moved_at = moved, now
        elif now - self._moved_at > _PATIENCE_S:
            left = self._fleet.expected - self._fleet.totals.acknowledged
            raise JourneyError(f"no progress for {_PATIENCE_S:.0f} s; {left} {self._fleet.messages} have no answer yet")

    async def _show(self) -> None:
        what, expected = self._fleet.messages, self._fleet.expected
        spooled = self._progress.bar(f"{what} in the clients' spools", expected)
        durable = self._progress.bar(f"{what} durable at the service, copies too", expected)
        acknowledged = self._progress.bar(f"{what} acknowledged", expected)

        def show() -> None:
            totals = self._fleet.totals
            spooled(totals.spooled)
            durable(self._service.durable())
            acknowledged(totals.acknowledged)

        try:
            while True:
                show()
                await asyncio.sleep(_SHOW_S)
        finally:
            show()
