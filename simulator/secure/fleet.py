"""Hundreds of real clients of a secure plan in one event loop: all add their records, all take part, some vanish."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from edge_client import Config, EdgeClient, Policy, SystemRuntime, Tallies
from edge_client.errors import FlushTimeoutError, NotCountedError, RefusedError
from hushsum.plan import Plan
from hushsum.secure_sum.client import ClientStep
from simulator.board import Row, Stage
from simulator.relay import Relay
from simulator.shares import Share

_THREADS: Final = 4  # two that compute are enough for two cores; the others wait for the disk
_LOOK_S: Final = 0.005
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
_CONFIG: Final = Config(backoff_first_s=0.1, backoff_longest_s=1.0, first_contact_s=120.0, close_flush_s=0.0)


@dataclass(eq=False, repr=False)  # it holds all records
class Member:
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

    share: Share
    leaves: Stage | None
    relay: Relay
    client: EdgeClient | None = None
    stage: Stage = Stage.ADDING
    cohort: int = 0
    vanished: bool = False
    asked: bool = False
    tallies: Tallies = field(default_factory=Tallies)

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
        shares: Sequence[Share],
        leaving: Mapping[str, Stage],
        *,
        relay: Relay,
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
            Member(share, leaves, relay if leaves is None else Relay())
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

    def look(self) -> list[Row]:
        """Where everybody is, a row a cohort."""
        for member in self.members:
            self._place(member)
        numbers = sorted({member.cohort for member in self.members})
        rows = []
        for number in numbers:
            inside = Counter(member.stage for member in self.members if member.cohort == number)
            rows.append(Row(f"cohort {number}" if number else "none yet", inside))
        return rows

    async def _add(self, member: Member) -> None:
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

    def _client(self, member: Member, target: str) -> EdgeClient:
        return EdgeClient(
            target,
            spool=self._folder / f"{member.share.client_id}.spool",
            client_id=member.share.client_id,
            policy=self._policy,
            config=_CONFIG,
            runtime=self._runtime,
        )

    async def _take_part(self, member: Member) -> None:
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

    async def _vanish(self, member: Member, at: Stage, work: "asyncio.Task[None]") -> None:
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
            await asyncio.sleep(_LOOK_S)

    async def _ask(self, member: Member) -> None:
        async with self._starting, self._client(member, self._target) as client:
            with suppress(NotCountedError, FlushTimeoutError):  # its tallies say it
                await client.flush(_TOLD_S)
        member.tallies = replace(client.tallies, bytes_sent=member.tallies.bytes_sent)
        member.asked = True

    async def _end(self, member: Member) -> None:
        if member.client is not None:
            client, member.client = member.client, None
            await client.__aexit__(None, None, None)
            member.tallies = client.tallies

    def _place(self, member: Member) -> None:
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
