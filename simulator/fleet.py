"""Hundreds of real clients in one event loop, each with a connection and a spool of its own."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from edge_client import Config, EdgeClient, Policy, SystemRuntime, Tallies
from hushsum.delta import DeltaId
from hushsum.plan import Plan
from simulator.reconciliation import Sent
from simulator.shares import Share

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
    def of(cls, tallies: Tallies) -> Self:
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

    def __init__(self, plan: Plan, shares: Sequence[Share], *, target: str, folder: Path, time_ms: int) -> None:
        self._policy = policy_of(plan)
        self._shares = shares
        self._target = target
        self._folder = folder
        self._time_ms = time_ms
        self._clients: set[EdgeClient] = set()  # those that are online
        self._done = Totals()  # of those that are no more
        self._sent: set[Sent] = set()
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
    def sent(self) -> frozenset[Sent]:
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

    async def _contribute(self, share: Share) -> None:
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

    def _totals_of(self, tallies: Tallies) -> Totals:
        return Totals.of(tallies)

    def _answered(self, share: Share, client: EdgeClient) -> None:
        """Notes what is known of a client that has its answers."""
        self._sent |= {Sent(share.client_id, DeltaId(client.stream, n)) for n in range(client.tallies.deltas)}
