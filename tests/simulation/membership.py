"""A consumer group: members that are not heard of lose their partitions, whether or not they know it."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from aggregator.interfaces import PartitionOwner
from tests.simulation.loop import Process, VirtualLoop, current_process

_HEARTBEAT_S: Final = 0.25
_MOVE_S: Final = 3.0  # how long a member may take to give up partitions before it is thrown out


@dataclass
class _Member:
    process: Process
    owner: PartitionOwner
    holds: set[int] = field(default_factory=set)
    heard_s: float = 0.0
    moving: "asyncio.Task[None] | None" = None
    since_s: float = 0.0


class Coordinator:
    """The one that assigns partitions.

    Args:
        loop: Time.
        partitions: P.
        session_s: Who is not heard of for so long is out.

    Attributes:
        cut: Names of hosts whose heartbeats do not arrive.
    """

    def __init__(self, loop: VirtualLoop, partitions: int, session_s: float = 2.0) -> None:
        self.cut: set[str] = set()
        self.rotation = 0
        self._loop, self._partitions, self._session_s = loop, partitions, session_s
        self._members: list[_Member] = []

    def start(self) -> None:
        """Begins to look."""
        self._loop.call_world(_HEARTBEAT_S, self._look)

    def member(self) -> "SimMembership":
        """For one process."""
        return SimMembership(self)

    def shuffle(self) -> None:
        """Assigns everything anew: a rebalance without a reason that anybody sees."""
        self.rotation += 1

    def _look(self) -> None:
        now_s = self._loop.time()
        for member in [*self._members]:
            if self._is_heard(member):
                member.heard_s = now_s
            if now_s - member.heard_s > self._session_s or self._is_slow(member, now_s):
                self._expel(member)
        self._assign()
        self._loop.call_world(_HEARTBEAT_S, self._look)

    def _is_heard(self, member: _Member) -> bool:
        process = member.process
        return process.alive and not process.paused and process.host not in self.cut

    def _is_slow(self, member: _Member, now_s: float) -> bool:
        return member.moving is not None and not member.moving.done() and now_s - member.since_s > _MOVE_S

    def _expel(self, member: _Member) -> None:
        """It is told when it wakes, or is in reach again; until then it believes to hold what it held."""
        self._members.remove(member)
        if member.process.alive:
            self._loop.spawn_in(member.process, self._tell_lost(member), "lost")

    async def _tell_lost(self, member: _Member) -> None:
        while not self._is_heard(member):  # noqa: ASYNC110  a heartbeat, as it is
            await asyncio.sleep(_HEARTBEAT_S)
        await asyncio.sleep(_HEARTBEAT_S)  # it goes on in the meantime, as if all were well
        await member.owner.lost({*member.holds})
        member.holds.clear()
        self.join(member.process, member.owner)

    def join(self, process: Process, owner: PartitionOwner) -> None:
        """A new member."""
        self._members.append(_Member(process, owner, heard_s=self._loop.time()))

    async def leave(self, process: Process) -> None:
        """Revokes what a member holds, and forgets it."""
        for member in [each for each in self._members if each.process is process]:
            self._members.remove(member)
            await member.owner.revoked({*member.holds})

    def _target(self) -> dict[int, _Member]:
        count = len(self._members)
        return {p: self._members[(p + self.rotation) % count] for p in range(self._partitions)} if count else {}

    def _assign(self) -> None:
        """One step: first what is held by the wrong member is revoked, then what nobody holds is given away."""
        target = self._target()
        for member in self._members:
            if member.moving is not None and not member.moving.done():
                continue
            wrong = {partition for partition in member.holds if target[partition] is not member}
            free = {p for p, whose in target.items() if whose is member} - {
                p for each in self._members for p in each.holds
            }
            if wrong or free:
                member.holds |= free
                member.since_s = self._loop.time()
                work = self._move(member, wrong, free)
                member.moving = self._loop.spawn_in(member.process, work, "rebalance")

    async def _move(self, member: _Member, wrong: Collection[int], free: Collection[int]) -> None:
        if wrong:
            await member.owner.revoked(wrong)
            member.holds -= {*wrong}
        if free:
            await member.owner.assigned(free)


class SimMembership:
    """See :class:`aggregator.interfaces.Membership`."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def start(self, owner: PartitionOwner) -> None:
        process = current_process()
        assert process is not None
        self._coordinator.join(process, owner)

    async def ended(self) -> None:
        return

    async def stop(self) -> None:
        process = current_process()
        assert process is not None
        await self._coordinator.leave(process)
