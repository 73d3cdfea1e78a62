"""``fleet``: fills the deployment's windows while its gateways and brokers are killed, and writes a journal.

Its clients are real ones in one event loop, each with its token and a durable spool. They go offline and return: the
seed alone determines when each is online, and when it adds which records.
"""

import asyncio
import itertools
import math
import sqlite3
import time
import warnings
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from edge_client import Config, Counts, EdgeClient, Event, FlushTimeoutError, NotCountedError, SystemRuntime
from hushsum import HushsumWarning
from hushsum.delta import DeltaId
from hushsum.plan import Plan
from hushsum.privacy.guarantee import SECURE
from hushsum_proto.credentials import Credentials
from hushsum_simulator.data import ClientRecords
from hushsum_simulator.demo.fleet import policy_of, together
from hushsum_simulator.demo.services import Operator
from hushsum_simulator.deployment.journal import Account, Added, FleetJournal
from hushsum_simulator.deployment.prepare import Say, dealt, prepared, source_of
from hushsum_simulator.deployment.settings import DeploymentSettings, client_credentials, write_json
from hushsum_simulator.errors import JourneyError

_PERIODS: Final = 2  # of a window: no client is offline for a whole window
#: The part of a window in which records are added, so that none is being sent when it ends.
ADDING: Final = 0.85


@dataclass(frozen=True)
class Stay:
    """A time during which a client is online, in windows since the start of the fleet's first one."""

    start: float
    end: float


def stays(groups: Sequence[Sequence[str]], *, churn: float, windows: int, seed: int) -> dict[str, list[Stay]]:
    """When each client is online.

    The share ``churn`` of each group is offline in each half of a window, other clients each time. No client is offline
    in the last half of the last window, so that everything is added. Groups are clients of the same gateway: they lose
    the same share, since cohorts form within a group.
    """
    periods = _PERIODS * windows
    rng = np.random.default_rng(seed)
    offline: dict[str, set[int]] = {name: set() for group in groups for name in group}
    for period in range(periods - 1):
        for group in groups:
            rested = [name for name in group if period - 1 not in offline[name]]
            away = min(round(churn * len(group)), len(rested))
            for place in rng.choice(len(rested), away, replace=False).tolist():
                offline[rested[place]].add(period)
    return {
        name: _joined([period for period in range(periods) if period not in away]) for name, away in offline.items()
    }


def moments(batches: int, windows: int) -> list[float]:
    """When a client adds its batches if it is online, in windows: evenly, and none at the end of a window."""
    evenly = ((number + 0.5) * windows / batches for number in range(batches))
    return [int(at) + ADDING * (at - int(at)) for at in evenly]


def _joined(periods: Sequence[int]) -> list[Stay]:
    """A stay for each run of consecutive periods."""
    runs = itertools.groupby(enumerate(periods), lambda pair: pair[1] - pair[0])
    ends = [[period for _, period in run] for _, run in runs]
    return [Stay(run[0] / _PERIODS, (run[-1] + 1) / _PERIODS) for run in ends]


@dataclass(eq=False, repr=False)  # it holds records and a token
class DeployedClient:
    """One client."""

    share: ClientRecords
    target: str
    credentials: Credentials
    stays: Sequence[Stay]
    moments: Sequence[float]
    account: Account = field(default_factory=Account)
    client: EdgeClient | None = None

    @property
    def tallies(self) -> Counts:
        """The spool's counts, and what was sent in all lives."""
        past = self.account.tallies
        if self.client is None:
            return past
        now = self.client.status().counts
        return replace(
            now,
            deltas_sent=now.deltas_sent + past.deltas_sent,
            deltas_resent=now.deltas_resent + past.deltas_resent,
            bytes_sent=now.bytes_sent + past.bytes_sent,
        )


def _members_of(settings: DeploymentSettings, shares: Sequence[ClientRecords]) -> list[DeployedClient]:
    """All clients; each keeps to one gateway."""
    credentials, gateways = client_credentials(settings), settings.gateways
    groups = [[share.client_id for share in shares[place :: len(gateways)]] for place in range(len(gateways))]
    online = stays(groups, churn=settings.churn, windows=settings.windows, seed=settings.seed)
    return [
        DeployedClient(
            share,
            gateways[place % len(gateways)],
            credentials[share.client_id],
            online[share.client_id],
            moments(len(share.batches), settings.windows),
        )
        for place, share in enumerate(shares)
    ]


def _results_in(spool: Path) -> dict[int, str]:
    """The results of the submissions of a client that is not running, by window; empty text if unknown."""
    with closing(sqlite3.connect(f"file:{spool}?mode=ro", uri=True)) as database:
        return {window: result or "" for window, result in database.execute("SELECT window, fate FROM rounds")}


_THREADS: Final = 4
_STARTING_MAX: Final = 32
_LOOK_S: Final = 0.5
_SPARE_S: Final = 1.0  # after a window closes, for the last results
_CONFIG: Final = Config(backoff_first_s=0.1, backoff_longest_s=2.0, close_flush_s=0.0)


class DeployedFleet:
    """All clients of a deployment."""

    def __init__(self, settings: DeploymentSettings, plan: Plan, shares: Sequence[ClientRecords]) -> None:
        self._settings, self._plan = settings, plan
        self._turns = plan.privacy.mode == SECURE or plan.privacy.is_silo
        self._spools = settings.fleet / "spools"
        self._runtime = SystemRuntime(_THREADS)
        # For each gateway, so that one that is down does not delay the clients of others.
        self._starting = {gateway: asyncio.Semaphore(_STARTING_MAX) for gateway in settings.gateways}
        self._config = replace(_CONFIG, first_contact_s=settings.deadline_s)
        self._policy = policy_of(plan)
        self._first = 0
        self._members = _members_of(settings, shares)

    @property
    def progress(self) -> dict[str, object]:
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

    async def run(self) -> FleetJournal:
        """Adds everything, and returns the journal once all of it is answered.

        Raises:
            HushsumError: A client failed, or a delta has no answer at the deadline.
        """
        began, schedule = time.monotonic(), self._plan.window
        self._spools.mkdir(parents=True, exist_ok=True)
        self._first = schedule.index_at(_now_ms()) + 1
        try:
            await together(self._live(member) for member in self._members)
        finally:
            self._runtime.close()
        accounts = {member.share.client_id: member.account for member in self._members}
        seconds = time.monotonic() - began
        return FleetJournal(self._plan.hex_id, self._first, self._settings.windows, seconds, accounts)

    async def _live(self, member: DeployedClient) -> None:
        for number, stay in enumerate(member.stays, start=1):
            await self._until(stay.start)
            async with self._online(member) as client:
                last = number == len(member.stays)
                await self._add(member, client, stay.end)
                await (self._settle(member, client) if last else self._until(stay.end))
        if self._turns:
            member.account.results = await asyncio.to_thread(_results_in, self._spool(member))

    @asynccontextmanager
    async def _online(self, member: DeployedClient) -> AsyncIterator[EdgeClient]:
        """One life of a client, on its spool."""
        client_id, account = member.share.client_id, member.account
        key = self._settings.fleet / "keys" / f"{client_id}.pem"
        client = EdgeClient(
            member.target,
            on_event=partial(_keep_answer, account.answers),
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
            account.tallies = member.tallies
            member.client = None

    async def _add(self, member: DeployedClient, client: EdgeClient, end: float) -> None:
        """Adds the batches that are due before ``end``, with those that were due while the client was offline."""
        share, added = member.share, member.account.added
        while len(added) < len(share.batches):
            due = max(member.moments[len(added)], self._position())
            if due - int(due) > ADDING and due < self._settings.windows - 1:
                due = int(due) + 1.0
            if due >= end and end < self._settings.windows:
                return
            await self._until(due)
            before = client.status().counts
            time_ms = min(_now_ms(), self._ms(self._settings.windows) - 1)
            await client.add(share.batches[len(added)], time=time_ms)
            after, window = client.status().counts, self._plan.window.index_at(time_ms)
            made = (after.deltas - before.deltas, after.records - before.records, after.reports - before.reports)
            added.append(Added(window, len(added), before.deltas, *made))

    async def _settle(self, member: DeployedClient, client: EdgeClient) -> None:
        """Returns once the client has an answer to everything."""
        name, left = member.share.client_id, self._settings.deadline_s
        if self._turns:
            await self._until(self._settings.windows, self._settings.open_s + _SPARE_S)
            deadline = time.monotonic() + left
            while client.status().queued:
                if time.monotonic() > deadline:
                    raise JourneyError(
                        f"{name}: {client.status().queued} submissions have no answer after {left:.0f} s"
                    )
                await asyncio.sleep(_LOOK_S)
            return
        try:
            await client.flush(max(0.0, self._ms(self._settings.windows) - _now_ms()) / 1000 + left)
        except NotCountedError:
            pass  # its counts have it
        except FlushTimeoutError as error:
            raise JourneyError(f"{name}: {client.status().queued} deltas have no answer after {left:.0f} s") from error

    def _spool(self, member: DeployedClient) -> Path:
        return self._spools / f"{member.share.client_id}.spool"

    def _ms(self, windows: float) -> int:
        schedule = self._plan.window
        return schedule.start_ms(self._first) + round(windows * schedule.length_ms)

    def _position(self) -> float:
        return (_now_ms() - self._ms(0)) / self._plan.window.length_ms

    async def _until(self, windows: float, more_s: float = 0.0) -> None:
        await asyncio.sleep(max(0.0, (self._ms(windows) - _now_ms()) / 1000 + more_s))


def _keep_answer(answers: dict[DeltaId, str], event: Event) -> None:
    """The answer to each delta, over all lives of a client."""
    if event.delta is not None:
        answers[event.delta] = event.kind.value


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def fleet(settings: DeploymentSettings, say: Say) -> None:
    """Runs the fleet; writes progress.json while it runs, and sent.json at the end.

    Raises:
        HushsumError: A client failed, or a delta has no answer at the deadline.
        OSError: A folder cannot be written.
    """
    plan = prepared(settings)
    shares = dealt(settings, plan, source_of(settings)).shares
    say(f"{len(shares)} clients with {sum(share.records for share in shares):,} records, {settings.windows} windows")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HushsumWarning)  # sent.json has what they warn of
        journal = asyncio.run(_run(settings, plan, shares, say))
    lives = sum(account.lives for account in journal.accounts.values())
    say(f"everything is answered after {journal.seconds:.0f} s; the clients were started {lives} times")


async def _run(settings: DeploymentSettings, plan: Plan, shares: Sequence[ClientRecords], say: Say) -> FleetJournal:
    await _answering(settings, plan)
    clients = DeployedFleet(settings, plan, shares)
    watch = asyncio.create_task(_watch(settings, clients, say))
    try:
        journal = await clients.run()
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    await asyncio.to_thread(journal.save, settings.sent_file)
    await asyncio.to_thread(write_json, settings.progress_file, {**clients.progress, "done": True})
    return journal


async def _answering(settings: DeploymentSettings, plan: Plan) -> None:
    """Returns once every gateway answers, so that all are there for the first window."""
    credentials = next(iter(client_credentials(settings).values()))  # the fleet has no others
    for gateway in settings.gateways:
        operator = Operator([gateway], credentials=credentials, patience_s=settings.deadline_s)
        if (collected := await operator.plan()).id != plan.id:
            raise JourneyError(f"{gateway} collects plan {collected.hex_id[:12]}, expected {plan.hex_id[:12]}")


async def _watch(settings: DeploymentSettings, clients: DeployedFleet, say: Say) -> None:
    told = 0
    while True:
        progress = clients.progress
        await asyncio.to_thread(write_json, settings.progress_file, {**progress, "done": False})
        window = progress["window"]
        assert isinstance(window, int)
        if window > told:
            told = window
            say(f"window {window} of {progress['of']}: {progress['online']} clients are online")
        await asyncio.sleep(_LOOK_S)
