"""Hundreds of real clients in one event loop, each with a connection and a spool of its own, in every mode.

In central and local mode the server is killed in the middle, with what it has taken and told nobody of; in secure mode
all clients add their records, all take part, and some vanish.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Final, Self

from typing_extensions import override

from edge_client import Config, EdgeClient, Policy, Stats, SystemRuntime
from edge_client.errors import FlushTimeoutError, NotCountedError, RefusedError
from hushsum.delta import DeltaId
from hushsum.plan import Plan
from hushsum.privacy.relation import Cost
from hushsum.secure_sum.client import ClientStep
from hushsum_simulator.data import ClientRecords
from hushsum_simulator.demo.evaluation import SentDelta
from hushsum_simulator.demo.services import Service
from hushsum_simulator.errors import JourneyError
from hushsum_simulator.progress import Progress, ProgressRow, Stage
from hushsum_simulator.testbed.tcp_proxy import TcpProxy

_ONLINE_MAX: Final = 200
_THREADS: Final = 4  # most of them wait for the disk: every add and every answer is durable before it counts
# Impatient: the server comes back within seconds, and nobody else is in its way.
_CONFIG: Final = Config(backoff_first_s=0.1, backoff_longest_s=1.0, first_contact_s=120.0, close_flush_s=0.0)


@dataclass(frozen=True)
class Totals:
    """Sums over all clients, while they run and afterwards."""

    records: int = 0
    records_dropped: int = 0
    deltas: int = 0
    resent: int = 0
    bytes_sent: int = 0
    acknowledged: int = 0

    @classmethod
    def of(cls, tallies: Stats) -> Self:
        """One client's; what was counted was durable, so it is acknowledged too."""
        return cls(
            records=tallies.records,
            records_dropped=tallies.records_dropped,
            deltas=tallies.deltas,
            resent=tallies.deltas_resent,
            bytes_sent=tallies.bytes_sent,
            acknowledged=tallies.acknowledged + tallies.counted,
        )

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(
            records=self.records + other.records,
            records_dropped=self.records_dropped + other.records_dropped,
            deltas=self.deltas + other.deltas,
            resent=self.resent + other.resent,
            bytes_sent=self.bytes_sent + other.bytes_sent,
            acknowledged=self.acknowledged + other.acknowledged,
        )


def policy_of(plan: Plan) -> Policy:
    """Of a device that allows this plan's ε and δ, and no more."""
    privacy = plan.privacy
    return Policy(
        max_epsilon=privacy.epsilon,
        max_delta=privacy.delta,
        max_total_delta=privacy.total_delta,
        mode=privacy.mode,
        memoise=privacy.local is not None and privacy.local.memoise,
    )


class Fleet:
    """Clients that contribute their shares to one window; at most 200 are online at a time.

    Args:
        plan: What they allow: its ε and δ, and no more.
        shares: Who has which records.
        target: Where they connect.
        folder: For their spools.
        time_ms: The event time of every record.
    """

    def __init__(self, plan: Plan, shares: Sequence[ClientRecords], *, target: str, folder: Path, time_ms: int) -> None:
        self._policy = policy_of(plan)
        self._shares = shares
        self._target = target
        self._folder = folder
        self._time_ms = time_ms
        self._clients: set[EdgeClient] = set()  # those that are online
        self._done = Totals()  # of those that are no more
        self._sent: set[SentDelta] = set()
        self._runtime = SystemRuntime(_THREADS)
        self._online = asyncio.Semaphore(_ONLINE_MAX)
        self._gate = asyncio.Event()
        self.batches = sum(len(share.batches) for share in shares)
        self._begun = 0
        self._added = 0

    @property
    def what(self) -> str:
        """What the clients send, for people."""
        return "deltas"

    @property
    def expected(self) -> int:
        """How many of these there will be."""
        return self.batches

    @property
    def at_gate(self) -> bool:
        """Whether half of the batches are added, and everything so far is answered: the rest waits for the gate."""
        totals = self.totals
        return self._added >= self.batches // 2 and totals.acknowledged == totals.deltas

    @property
    def totals(self) -> Totals:
        """What became of everything so far."""
        return sum((self._totals_of(client.tallies) for client in self._clients), self._done)

    @property
    def sent(self) -> frozenset[SentDelta]:
        """The ids of all deltas of the clients that are done."""
        return frozenset(self._sent)

    async def run(self) -> None:
        """Contributes everything, and returns when all of it is answered.

        Raises:
            HushsumError: A client could not.
        """
        try:
            async with asyncio.TaskGroup() as clients:
                for share in self._shares:
                    clients.create_task(self._contribute(share))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # the others were cancelled for it
        finally:
            self._runtime.close()

    def open_gate(self) -> None:
        """Lets the second half be added."""
        self._gate.set()

    async def _contribute(self, share: ClientRecords) -> None:
        client = EdgeClient(
            self._target,
            spool=self._folder / f"{share.client_id}.spool",
            client_id=share.client_id,
            policy=self._policy,
            config=_CONFIG,
            runtime=self._runtime,
        )
        async with self._online, client:
            self._clients.add(client)
            for batch, labels in zip(share.batches, share.labels or [None] * len(share.batches), strict=True):
                if self._begun >= self.batches // 2:
                    await self._gate.wait()
                self._begun += 1
                await client.add(batch, time=self._time_ms, labels=labels)
                self._added += 1
            await client.flush()
            self._answered(share, client)
        self._clients.remove(client)
        self._done += self._totals_of(client.tallies)

    def _totals_of(self, tallies: Stats) -> Totals:
        return Totals.of(tallies)

    def _answered(self, share: ClientRecords, client: EdgeClient) -> None:
        """Notes what is known of a client that has its answers."""
        self._sent |= {SentDelta(share.client_id, DeltaId(client.stream, n)) for n in range(client.tallies.deltas)}


_WINDOW_BYTES: Final = 1 << 15  # half of the least that HTTP/2 has
_NOTHING: Final = Cost(Fraction(0), Fraction(0))


@dataclass(frozen=True)
class Told:
    """What a client knows at its end.

    Attributes:
        tallies: What became of everything.
        spent: By its own account.
        left: Of its limit.
    """

    tallies: Stats
    spent: Cost
    left: Cost

    @property
    def acknowledged(self) -> bool:
        """Whether all that it has sent is durable at the service."""
        return self.tallies.acknowledged + self.tallies.counted == self.tallies.deltas


class LocalFleet(Fleet):
    """Clients that contribute their shares to one window, each randomised or noised by itself.

    Args:
        plan: Of mode ``local``.
        shares: Who has which records.
        target: Where they connect.
        folder: For their spools.
        time_ms: The event time of every record.

    Attributes:
        told: By client.
    """

    def __init__(self, plan: Plan, shares: Sequence[ClientRecords], *, target: str, folder: Path, time_ms: int) -> None:
        super().__init__(plan, shares, target=target, folder=folder, time_ms=time_ms)
        self.told: dict[str, Told] = {}
        self._silos = len(shares) if plan.privacy.reports is None else 0
        width = 0 if plan.report_sizes is None else plan.report_sizes.width
        reports = sum(share.records for share in shares) // max(1, self.batches)
        self._size = plan.words.bytes if self._silos else width * reports

    @property
    @override
    def what(self) -> str:
        return "submissions" if self._silos else "batches of reports"

    @property
    @override
    def expected(self) -> int:
        return self._silos or self.batches

    @property
    def large(self) -> int:
        """Bytes of what is sent at a time: of silos, and of batches too large to go through unanswered; else 0."""
        return self._size if self._silos or self._size > _WINDOW_BYTES else 0

    @override
    def _totals_of(self, tallies: Stats) -> Totals:
        totals = Totals.of(tallies)
        if not self._silos:
            return totals
        # Its other deltas wait at home, and never leave it.
        return replace(totals, deltas=tallies.submissions_spent, acknowledged=tallies.submissions_counted)

    @override
    def _answered(self, share: ClientRecords, client: EdgeClient) -> None:
        account = client.account
        spent, left = (_NOTHING, _NOTHING) if account is None else (account.spent, account.left)
        self.told[share.client_id] = Told(client.tallies, spent, left)


_STAGES_LOOK_S: Final = 0.005
_STARTING_MAX: Final = 32  # each fetches the plan
_TOLD_S: Final = 30.0  # the rounds are over when it is asked, so that an answer is there
_STAGES: Final = {
    ClientStep.NEW: Stage.WAITING,
    ClientStep.ADVERTISED: Stage.KEYS,
    ClientStep.COUNTING: Stage.GRAPH,
    ClientStep.OPENED: Stage.GRAPH,
    ClientStep.SHARED: Stage.SHARES,
    ClientStep.READY: Stage.SHARES,
    ClientStep.SPENDING: Stage.SHARES,  # not durable yet
    ClientStep.SENT: Stage.UPLOAD,
    ClientStep.CONSENTED: Stage.CONSENT,
    ClientStep.REVEALED: Stage.REVEAL,
    ClientStep.REFUSED: Stage.WAITING,
}


@dataclass(eq=False, repr=False)  # it holds all records
class FleetClient:
    """One client of the fleet.

    Attributes:
        share: Its records.
        leaves: The step on reaching which it vanishes; None: it stays.
        relay: What its connection goes through; of its own where it vanishes.
        client: The real one, once it is started.
        stage: Where it was seen last.
        cohort: The number of its cohort, from 1; 0 until it is in one.
        vanished: Whether its connection was cut before anybody told it what became of its part.
        asked: Whether it came back when all rounds were over, and asked what had become of its vector.
        tallies: At its end; bytes are those of its first life.
    """

    share: ClientRecords
    leaves: Stage | None
    relay: TcpProxy
    client: EdgeClient | None = None
    stage: Stage = Stage.ADDING
    cohort: int = 0
    vanished: bool = False
    asked: bool = False
    tallies: Stats = field(default_factory=Stats)

    @property
    def untold(self) -> bool:
        """Whether its window is spent, and nobody has told what became of its vector."""
        told = self.tallies.submissions_counted + self.tallies.submissions_lost
        return self.tallies.submissions_spent > told


class CohortFleet:
    """Clients that take part in one window.

    Args:
        plan: What they allow: its ε and δ, and no more.
        shares: Who has which records.
        leaving: Client ids of those that vanish, and when.
        relay: What the connections of all others go through.
        target: Where the server listens.
        folder: For their spools.
        time_ms: The event time of every record.
    """

    def __init__(
        self,
        plan: Plan,
        shares: Sequence[ClientRecords],
        leaving: Mapping[str, Stage],
        *,
        relay: TcpProxy,
        target: str,
        folder: Path,
        time_ms: int,
    ) -> None:
        self._policy = Policy(max_epsilon=plan.privacy.epsilon, max_delta=plan.privacy.delta)
        self._half_vector = plan.words.bytes // 2
        self._target = target
        self._folder = folder
        self._time_ms = time_ms
        self._relay = relay
        self._runtime = SystemRuntime(_THREADS)
        self._starting = asyncio.Semaphore(_STARTING_MAX)
        self._cohorts: dict[bytes, int] = {}  # by the id of a round: one that starts again is the same cohort's
        self.members = tuple(
            FleetClient(share, leaves, relay if leaves is None else TcpProxy())
            for share in shares
            for leaves in (leaving.get(share.client_id),)
        )
        self.added = 0

    @property
    def only_waiting(self) -> bool:
        """Whether all that are left wait for a cohort."""
        left = [member.stage for member in self.members if member.stage < Stage.DONE]
        return bool(left) and set(left) == {Stage.WAITING}

    async def add(self) -> None:
        """Starts every client, and adds all of its records."""
        async with asyncio.TaskGroup() as clients:
            for member in self.members:
                clients.create_task(self._add(member))

    async def take_part(self) -> None:
        """Returns when every client that stays was told what became of its part, and the others have vanished."""
        async with asyncio.TaskGroup() as clients:
            for member in self.members:
                clients.create_task(self._take_part(member))

    async def ask(self) -> None:
        """Starts again, on their spools, those that nobody has told what became of their vectors: they then ask.

        The service knows it exactly, and tells it as long as their window is open.
        """
        async with asyncio.TaskGroup() as clients:
            for member in self.members:
                if member.untold:
                    clients.create_task(self._ask(member))

    async def close(self) -> None:
        """Ends every client; what they were told stays in their spools."""
        for member in self.members:
            await self._end(member)
            if member.relay is not self._relay:
                with suppress(AssertionError):  # one that was never entered
                    await member.relay.__aexit__(None, None, None)
        self._runtime.close()

    def look(self) -> list[ProgressRow]:
        """Where everybody is, a row a cohort."""
        for member in self.members:
            self._place(member)
        numbers = sorted({member.cohort for member in self.members})
        rows = []
        for number in numbers:
            inside = Counter(member.stage for member in self.members if member.cohort == number)
            rows.append(ProgressRow(f"cohort {number}" if number else "none yet", inside))
        return rows

    async def _add(self, member: FleetClient) -> None:
        share = member.share
        if member.relay is not self._relay:
            await member.relay.__aenter__()
            member.relay.aim(self._target)
        client = self._client(member, member.relay.address)
        async with self._starting:
            await client.__aenter__()
            member.client = client
            for batch, labels in zip(share.batches, share.labels or [None] * len(share.batches), strict=True):
                await client.add(batch, time=self._time_ms, labels=labels)
        self.added += 1

    def _client(self, member: FleetClient, target: str) -> EdgeClient:
        return EdgeClient(
            target,
            spool=self._folder / f"{member.share.client_id}.spool",
            client_id=member.share.client_id,
            policy=self._policy,
            config=_CONFIG,
            runtime=self._runtime,
        )

    async def _take_part(self, member: FleetClient) -> None:
        assert member.client is not None, "added before"
        work = asyncio.create_task(self._flush(member.client))
        try:
            if member.leaves is not None:
                await self._vanish(member, member.leaves, work)
            else:
                await work
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
        await self._end(member)
        member.stage = Stage.DROPPED if member.vanished else Stage.DONE

    async def _flush(self, client: EdgeClient) -> None:
        with suppress(NotCountedError, RefusedError):  # its tallies say what became of it
            await client.flush()

    async def _vanish(self, member: FleetClient, at: Stage, work: "asyncio.Task[None]") -> None:
        """Cuts the connection as soon as the client is seen at the step, or past it; an upload, in the middle."""
        carries = False
        while not work.done():
            self._place(member)
            if at is Stage.UPLOAD and member.stage < Stage.CONSENT:
                if member.stage >= Stage.SHARES and not carries:
                    carries = True
                    member.relay.carry(self._half_vector)
                member.vanished = member.relay.is_spent
            elif at <= member.stage < Stage.DONE:
                member.relay.aim(None)
                member.relay.cut()
                member.vanished = True
            if member.vanished:
                return
            await asyncio.sleep(_STAGES_LOOK_S)

    async def _ask(self, member: FleetClient) -> None:
        async with self._starting, self._client(member, self._target) as client:
            with suppress(NotCountedError, FlushTimeoutError):  # its tallies say it
                await client.flush(_TOLD_S)
        member.tallies = replace(client.tallies, bytes_sent=member.tallies.bytes_sent)
        member.asked = True

    async def _end(self, member: FleetClient) -> None:
        if member.client is not None:
            client, member.client = member.client, None
            await client.__aexit__(None, None, None)
            member.tallies = client.tallies

    def _place(self, member: FleetClient) -> None:
        if member.client is None or member.stage >= Stage.DONE:
            return
        standing = member.client.standing
        if standing is None:
            if member.stage < Stage.UPLOAD:  # from then on it is in no other round, and soon told
                member.stage = Stage.WAITING
            return
        member.stage = _STAGES[standing.step]
        if standing.round not in self._cohorts:
            self._cohorts[standing.round] = member.cohort or max(self._cohorts.values(), default=0) + 1
        member.cohort = self._cohorts[standing.round]


_LOOK_S: Final = 0.05
_SHOW_S: Final = 0.25
_HOLD_S: Final = 2.0
_HOLD_LONG_S: Final = 20.0
_PATIENCE_S: Final = 60.0
# The kill waits until so many deltas are durable that nobody was told of: a share of all, so that it is in mid-stream.
_UNTOLD_SHARE: Final = 0.01


class Stream:
    """The fleet at work, and the log that it fills.

    Whatever waits here raises what has ended the fleet or the server, and a JourneyError where nothing moves any more.
    """

    def __init__(self, work: "asyncio.Task[None]", fleet: Fleet, server: Service, logged: Callable[[], int]) -> None:
        self._work = work
        self._fleet = fleet
        self._server = server
        self._logged = logged
        self._seen = fleet.totals
        self._seen_at = time.monotonic()

    def logged(self) -> int:
        """Deltas that are durable where the fleet sends them, copies too."""
        return self._logged()

    async def untold(self, wanted: int, hold_s: float = _HOLD_S) -> int:
        """How many deltas are durable that nobody was told of: ``wanted``, or fewer when a moment is over.

        It is looked at twice: an answer may have passed the relay before, and only be on its way to its client.
        """
        deadline, seen = time.monotonic() + hold_s, False
        while time.monotonic() < deadline:
            enough = self.logged() - self._fleet.totals.acknowledged >= wanted
            if enough and seen:
                break
            seen = enough
            await self._look_again()
            if seen:
                await asyncio.sleep(_SHOW_S)
        return self.logged() - self._fleet.totals.acknowledged

    async def half(self) -> None:
        """Returns once half of the batches are added, and answered."""
        while not self._fleet.at_gate:
            await self._look_again()

    async def more_acknowledged(self) -> None:
        """Returns once something more is acknowledged."""
        told = self._fleet.totals.acknowledged
        while self._fleet.totals.acknowledged == told:
            await self._look_again()

    async def end(self) -> None:
        """Returns when everything is answered."""
        while not self._work.done():
            self._check()
            await asyncio.wait([self._work], timeout=_SHOW_S)
        self._work.result()

    async def _look_again(self) -> None:
        self._check()
        if self._work.done():
            self._work.result()
            raise JourneyError("the fleet was done before the server could be killed")
        await asyncio.sleep(_LOOK_S)

    def _check(self) -> None:
        """Raises what has ended the server, or that nothing moves any more."""
        self._server.check_running()
        totals, now = self._fleet.totals, time.monotonic()
        if totals != self._seen:
            self._seen, self._seen_at = totals, now
        elif now - self._seen_at > _PATIENCE_S:
            left = self._fleet.expected - totals.acknowledged
            raise JourneyError(f"nothing has moved for {_PATIENCE_S:.0f} s; {left} deltas have no answer yet")


async def kill_untold(stream: Stream, fleet: Fleet, relay: TcpProxy, server: Service, *, size: int = 0) -> int:
    """Kills what the fleet sends to while it has taken more deltas than were acknowledged; returns how many more.

    Args:
        stream: Half of the fleet's batches are added.
        fleet: Whose gate is closed.
        relay: Between the two; it is aimed at nothing when this returns.
        server: To be killed.
        size: Of what each client sends, in bytes, where its connection carries nothing else, or more than goes through
            without a word of the server; else 0.
    """
    wanted = max(1, int(_UNTOLD_SHARE * fleet.expected))
    fleet.open_gate()
    relay.hold_replies(size)
    hold_s = _HOLD_LONG_S if size else _HOLD_S  # sessions are opened then, whatever is held
    while await stream.untold(wanted, hold_s) < 1:
        # Nobody had a session that was open: a new one needs the reply to its hello first.
        relay.release_replies()
        await stream.more_acknowledged()
        relay.hold_replies(size)
    await server.kill()
    relay.aim(None)
    relay.cut()
    relay.release_replies()
    return stream.logged() - fleet.totals.acknowledged


@asynccontextmanager
async def streaming(
    fleet: Fleet, server: Service, logged: Callable[[], int], progress: Progress
) -> AsyncIterator[Stream]:
    """The fleet at work, with its bars; it is stopped where the caller leaves early.

    Args:
        fleet: To be run.
        server: What it sends to.
        logged: How many deltas are durable there, copies too.
        progress: Is told how it goes.
    """
    work = asyncio.create_task(fleet.run())
    stream = Stream(work, fleet, server, logged)
    watch = asyncio.create_task(_show(fleet, stream, progress))
    try:
        yield stream
    finally:
        work.cancel()
        watch.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)


async def _show(fleet: Fleet, stream: Stream, progress: Progress) -> None:
    what = fleet.what
    spooled = progress.bar(f"{what} bound on the clients", fleet.expected)
    logged = progress.bar(f"{what} durable at the service, copies too", fleet.expected)
    acknowledged = progress.bar(f"{what} acknowledged", fleet.expected)

    def show() -> None:
        totals = fleet.totals
        spooled(totals.deltas)
        logged(stream.logged())
        acknowledged(totals.acknowledged)

    try:
        while True:
            show()
            await asyncio.sleep(_SHOW_S)
    finally:
        show()
