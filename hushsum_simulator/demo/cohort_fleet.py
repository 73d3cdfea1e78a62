"""A fleet of real clients that take part in secure sums, some of which drop out at a step of the round."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from edge_client import EdgeClient, Stats
from edge_client.errors import FlushTimeoutError, NotCountedError, RefusedError
from hushsum.plan import Plan
from hushsum.secure_sum.client import ClientStep
from hushsum_simulator.data import ClientRecords
from hushsum_simulator.demo.fleet import Devices, together
from hushsum_simulator.progress import ProgressRow, Stage
from hushsum_simulator.testbed.tcp_proxy import TcpProxy

_LOOK_S: Final = 0.005
_STARTING_MAX: Final = 32  # each fetches the plan
_ASK_S: Final = 30.0  # the rounds are over when a client asks, so that an answer is there
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
# A client that drops out before its vector costs the others another attempt, of few: as all that drop out at one step
# do so in one round, three such steps are three more attempts.
_BEFORE: Final = (Stage.WAITING, Stage.KEYS, Stage.GRAPH, Stage.SHARES)
_AFTER: Final = (Stage.UPLOAD, Stage.CONSENT, Stage.REVEAL)


def draw_dropouts(clients: Sequence[str], rate: float, seed: int) -> dict[str, Stage]:
    """Draws which clients drop out, and at which step: every other one before it sends its vector.

    Args:
        clients: Their ids.
        rate: The share of them that drop out, 0 to below 1; the number is rounded.
        seed: Of the choice, which is uniform.
    """
    rng = np.random.default_rng([seed, 0x5A11])
    chosen = rng.permutation(len(clients))[: round(rate * len(clients))]
    return {
        clients[index]: Stage(int(rng.choice(_BEFORE if turn % 2 else _AFTER))) for turn, index in enumerate(chosen)
    }


@dataclass(eq=False, repr=False)  # it holds all records
class CohortClient:
    """One client of the fleet.

    Attributes:
        share: Its records.
        leaves: The step at which it drops out; None if it stays.
        proxy: Its connection goes through it; a client that drops out has a proxy of its own.
        client: The running SDK client.
        stage: Where it was seen last.
        cohort: The number of its cohort, from 1; 0 until it is in one.
        dropped: Whether its connection was cut before it had an answer.
        asked: Whether it came back after all rounds, and asked for the result of its vector.
        stats: At its end; bytes are those of its first life.
    """

    share: ClientRecords
    leaves: Stage | None
    proxy: TcpProxy
    client: EdgeClient | None = None
    stage: Stage = Stage.ADDING
    cohort: int = 0
    dropped: bool = False
    asked: bool = False
    stats: Stats = field(default_factory=Stats)

    @property
    def is_unanswered(self) -> bool:
        """Whether its window is spent, and it does not know whether its vector counts."""
        answered = self.stats.submissions_counted + self.stats.submissions_lost
        return self.stats.submissions_spent > answered


class CohortFleet:
    """Clients that take part in one window; some of them drop out, see :func:`draw_dropouts`."""

    def __init__(
        self,
        plan: Plan,
        shares: Sequence[ClientRecords],
        dropouts: Mapping[str, Stage],
        *,
        target: str,
        folder: Path,
        time_ms: int,
    ) -> None:
        self._devices = Devices(plan, folder=folder, time_ms=time_ms)
        self._half_vector = plan.words.bytes // 2
        self._target = target
        self._starting = asyncio.Semaphore(_STARTING_MAX)
        self._cohorts: dict[bytes, int] = {}  # by round id: a round that starts again belongs to the same cohort
        self._proxies = AsyncExitStack()
        self._shared = TcpProxy(target)
        self.clients = [CohortClient(share, dropouts.get(share.client_id), self._shared) for share in shares]
        self.added = 0

    @property
    def only_waiting(self) -> bool:
        """Whether all clients that are left wait for a cohort."""
        left = [each.stage for each in self.clients if each.stage < Stage.DONE]
        return bool(left) and set(left) == {Stage.WAITING}

    async def add(self) -> None:
        """Starts every client, and adds all of its records."""
        await self._proxies.enter_async_context(self._shared)
        await together(self._add(each) for each in self.clients)

    async def take_part(self) -> None:
        """Returns when every client that stays has its answer, and the others have dropped out."""
        await together(self._take_part(each) for each in self.clients)

    async def ask(self) -> None:
        """Restarts the clients that have no answer, on their spools: they ask for the result of their vectors.

        The service knows it exactly, and answers as long as their window is open.
        """
        await together(self._ask(each) for each in self.clients if each.is_unanswered)

    async def close(self) -> None:
        """Ends every client; their answers stay in their spools."""
        for each in self.clients:
            await self._end(each)
        await self._proxies.aclose()
        self._devices.close()

    def look(self) -> list[ProgressRow]:
        """How many clients of each cohort are at which step, a row a cohort."""
        for each in self.clients:
            self._place(each)
        rows = []
        for number in sorted({each.cohort for each in self.clients}):
            inside = Counter(each.stage for each in self.clients if each.cohort == number)
            rows.append(ProgressRow(f"cohort {number}" if number else "none yet", inside))
        return rows

    async def _add(self, member: CohortClient) -> None:
        if member.leaves is not None:
            member.proxy = await self._proxies.enter_async_context(TcpProxy(self._target))
        client = self._devices.client(member.share.client_id, member.proxy.address)
        async with self._starting:
            await client.__aenter__()
            member.client = client
            for batch in range(len(member.share.batches)):
                await self._devices.add(client, member.share, batch)
        self.added += 1

    async def _take_part(self, member: CohortClient) -> None:
        assert member.client is not None, "added before"
        work = asyncio.create_task(_flush(member.client))
        try:
            if member.leaves is not None:
                await self._drop_out(member, member.leaves, work)
            else:
                await work
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
        await self._end(member)
        member.stage = Stage.DROPPED if member.dropped else Stage.DONE

    async def _drop_out(self, member: CohortClient, at: Stage, work: "asyncio.Task[None]") -> None:
        """Cuts the connection once the client is at the step or past it; an upload is cut in the middle."""
        limited = False
        while not work.done():
            self._place(member)
            if at is Stage.UPLOAD and member.stage < Stage.CONSENT:
                if member.stage >= Stage.SHARES and not limited:
                    limited = True
                    member.proxy.carry(self._half_vector)
                member.dropped = member.proxy.is_spent
            elif at <= member.stage < Stage.DONE:
                member.proxy.aim(None)
                member.proxy.cut()
                member.dropped = True
            if member.dropped:
                return
            await asyncio.sleep(_LOOK_S)

    async def _ask(self, member: CohortClient) -> None:
        async with self._starting, self._devices.client(member.share.client_id, self._target) as client:
            with suppress(NotCountedError, FlushTimeoutError):  # its stats show it
                await client.flush(_ASK_S)
        member.stats = replace(client.tallies, bytes_sent=member.stats.bytes_sent)
        member.asked = True

    async def _end(self, member: CohortClient) -> None:
        if member.client is not None:
            client, member.client = member.client, None
            await client.__aexit__(None, None, None)
            member.stats = client.tallies

    def _place(self, member: CohortClient) -> None:
        if member.client is None or member.stage >= Stage.DONE:
            return
        standing = member.client.standing
        if standing is None:
            if member.stage < Stage.UPLOAD:  # from then on it is in no other round, and soon has its answer
                member.stage = Stage.WAITING
            return
        member.stage = _STAGES[standing.step]
        if standing.round not in self._cohorts:
            self._cohorts[standing.round] = member.cohort or max(self._cohorts.values(), default=0) + 1
        member.cohort = self._cohorts[standing.round]


async def _flush(client: EdgeClient) -> None:
    with suppress(NotCountedError, RefusedError):  # its stats show it
        await client.flush()
