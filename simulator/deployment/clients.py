"""Real clients in one event loop, that come and go, each with its token and a spool that stays."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from edge_client import Config, EdgeClient, FlushTimeoutError, RefusedError, SystemRuntime
from hushsum.delta import DeltaId
from hushsum.plan import Plan
from hushsum.privacy.guarantee import SECURE
from hushsum_proto.answers import Answer
from simulator.deployment.churn import ADDING
from simulator.deployment.journal import Added, Journal
from simulator.deployment.members import Member, fates_in, members_of
from simulator.deployment.settings import Settings
from simulator.errors import JourneyError
from simulator.fleet import policy_of
from simulator.shares import Share

_THREADS: Final = 4
_STARTING_MAX: Final = 32
_LOOK_S: Final = 0.5
_SPARE_S: Final = 1.0  # after a window takes nothing any more, in which the last are told
_CONFIG: Final = Config(backoff_first_s=0.1, backoff_longest_s=2.0, close_flush_s=0.0)


class _Listening(EdgeClient):
    """A client that writes down what it is told of each delta, in any of its lives."""

    def __init__(self, target: str, answers: dict[DeltaId, str], **options: Any) -> None:  # Any: those of a client
        super().__init__(target, **options)
        self._answers = answers

    def _note(self, answer: Answer) -> None:
        super()._note(answer)
        if answer.id is not None:
            self._answers[answer.id] = answer.status.value


class DeployedFleet:
    """All clients of a deployment.

    Args:
        settings: Of it.
        plan: What they allow.
        shares: Who adds what.
    """

    def __init__(self, settings: Settings, plan: Plan, shares: Sequence[Share]) -> None:
        self._settings, self._plan = settings, plan
        self._turns = plan.privacy.mode == SECURE or plan.privacy.is_silo
        self._spools = settings.fleet / "spools"
        self._runtime = SystemRuntime(_THREADS)
        # One that is down keeps nobody else's clients waiting.
        self._starting = {gateway: asyncio.Semaphore(_STARTING_MAX) for gateway in settings.gateways}
        self._config = replace(_CONFIG, first_contact_s=settings.deadline_s)
        self._policy = policy_of(plan)
        self._first = 0
        self._members = members_of(settings, shares)

    @property
    def progress(self) -> dict[str, object]:
        """How far it is."""
        tallies = [member.tallies for member in self._members]
        answered = (each.submissions_counted if self._turns else each.acknowledged + each.counted for each in tallies)
        return {
            "window": min(max(0, 1 + math.floor(self._position())), self._settings.windows) if self._first else 0,
            "of": self._settings.windows,
            "added": sum(each.records for each in tallies),
            "acknowledged": sum(answered),
            "deltas": sum(each.submissions_spent if self._turns else each.deltas for each in tallies),
            "online": sum(member.client is not None for member in self._members),
        }

    async def run(self) -> Journal:
        """Adds everything; returns what was told when all of it is.

        Raises:
            HushsumError: A client could not, or something has no answer when the time is over.
        """
        began, schedule = time.monotonic(), self._plan.window
        self._spools.mkdir(parents=True, exist_ok=True)
        self._first = schedule.index_at(_now_ms()) + 1
        try:
            async with asyncio.TaskGroup() as clients:
                for member in self._members:
                    clients.create_task(self._live(member))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # the others were cancelled for it
        finally:
            self._runtime.close()
        accounts = {member.share.client_id: member.account for member in self._members}
        seconds = time.monotonic() - began
        return Journal(self._plan.hex_id, self._first, self._settings.windows, seconds, accounts)

    async def _live(self, member: Member) -> None:
        for number, stay in enumerate(member.stays, start=1):
            await self._until(stay.start)
            async with self._online(member) as client:
                last = number == len(member.stays)
                await self._add(member, client, stay.end)
                await (self._settle(member, client) if last else self._until(stay.end))
        if self._turns:
            member.account.fates = await asyncio.to_thread(fates_in, self._spool(member))

    @asynccontextmanager
    async def _online(self, member: Member) -> AsyncIterator[EdgeClient]:
        """A life of a client, on the spool that stays."""
        client_id, account = member.share.client_id, member.account
        key = self._settings.fleet / "keys" / f"{client_id}.pem"
        client = _Listening(
            member.target,
            account.answers,
            spool=self._spool(member),
            client_id=client_id,
            policy=self._policy,
            config=self._config,
            runtime=self._runtime,
            key=key if self._plan.privacy.mode == SECURE else None,
            credentials=member.credentials,
        )
        async with self._starting[member.target]:
            await client.__aenter__()
        member.client, account.stream = client, client.stream
        account.lives += 1
        try:
            yield client
        finally:
            await client.__aexit__(None, None, None)
            account.tallies = member.past = member.tallies
            member.client = None

    async def _add(self, member: Member, client: EdgeClient, end: float) -> None:
        """Adds what is due until then, and what was due while the client was away."""
        share, added = member.share, member.account.added
        while len(added) < len(share.batches):
            due = max(member.moments[len(added)], self._position())
            if due - int(due) > ADDING and due < self._settings.windows - 1:
                due = int(due) + 1.0
            if due >= end and end < self._settings.windows:
                return
            await self._until(due)
            before = client.tallies
            time_ms = min(_now_ms(), self._ms(self._settings.windows) - 1)
            await client.add(share.batches[len(added)], time=time_ms)
            after, window = client.tallies, self._plan.window.index_at(time_ms)
            made = (after.deltas - before.deltas, after.records - before.records, after.reports - before.reports)
            added.append(Added(window, len(added), before.deltas, *made))

    async def _settle(self, member: Member, client: EdgeClient) -> None:
        """Returns once the client was told what became of everything."""
        name, left = member.share.client_id, self._settings.deadline_s
        if self._turns:
            await self._until(self._settings.windows, self._settings.open_s + _SPARE_S)
            deadline = time.monotonic() + left
            while client.unanswered:
                if time.monotonic() > deadline:
                    raise JourneyError(f"{name}: {client.unanswered} submissions have no answer after {left:.0f} s")
                await asyncio.sleep(_LOOK_S)
            return
        try:
            await client.flush(max(0.0, self._ms(self._settings.windows) - _now_ms()) / 1000 + left)
        except RefusedError:
            pass  # its tallies say it
        except FlushTimeoutError as error:
            raise JourneyError(f"{name}: {client.unanswered} deltas have no answer after {left:.0f} s") from error

    def _spool(self, member: Member) -> Path:
        return self._spools / f"{member.share.client_id}.spool"

    def _ms(self, windows: float) -> int:
        schedule = self._plan.window
        return schedule.start_ms(self._first) + round(windows * schedule.length_ms)

    def _position(self) -> float:
        return (_now_ms() - self._ms(0)) / self._plan.window.length_ms

    async def _until(self, windows: float, more_s: float = 0.0) -> None:
        await asyncio.sleep(max(0.0, (self._ms(windows) - _now_ms()) / 1000 + more_s))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
