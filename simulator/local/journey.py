"""One run in local mode, from a fleet's records to an analyst's release, with a kill on the way."""

import asyncio
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from aggregator.fold.fold import VerdictKind
from aggregator.store import inspect_sqlite
from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum_proto.messages import Released
from simulator.console import Console
from simulator.errors import JourneyError
from simulator.fleet import Totals
from simulator.local.fleet import LocalFleet, Told
from simulator.local.names import Searched, search
from simulator.local.shuffler import Shuffler, made_key, window_to_shuffle
from simulator.progress import Progress
from simulator.relay import Relay
from simulator.secure.journey import require_one_window
from simulator.server import Server, Service
from simulator.shares import Share
from simulator.stream import kill_untold, streaming

_LOOK_S: Final = 0.1
_ASK_S: Final = 10.0
_CONTROL: Final = 256  # bytes of the plan: of a longer one SQLite keeps no more than so many in one place for sure
_FORWARD_S: Final = 15.0  # after the cut, in which the first batch is at the aggregator


@dataclass(frozen=True)
class LocalJourney:
    """What a run leaves behind.

    Attributes:
        told: What each client knows at its end.
        totals: Of the clients; of batches of reports, or of submissions.
        counted: How many of these were counted where the fleet sends them, each id once.
        double_counted: Ids that were counted more than once.
        duplicates: Entries of the server's log that it dropped as copies.
        untold: What was durable and not acknowledged when what the fleet sends to was killed.
        restarts: Starts of the server after a kill.
        shuffler_restarts: Of the shuffler.
        forwarded: Batches that left the shuffler; 0 without one.
        searched: For the clients' names: the service's files while it ran, and when it had stopped.
        release: As an analyst has loaded it.
        epsilon_spent: By the population's ledger; exact text, as is what follows.
        epsilon_left: Of its limit.
    """

    told: Mapping[str, Told]
    totals: Totals
    counted: int
    double_counted: int
    duplicates: int
    untold: int
    restarts: int
    shuffler_restarts: int
    forwarded: int
    searched: Searched
    release: Release
    epsilon_spent: str
    epsilon_left: str


async def travel_local(
    plan: Plan, shares: Sequence[Share], *, folder: Path, partitions: int, progress: Progress
) -> LocalJourney:
    """Runs the whole journey on loopback.

    Args:
        plan: Of mode ``local``; where it has ``shuffle_min``, a shuffler is started before the server.
        shares: Who has which records.
        folder: An empty one, for everything that is written on the way.
        partitions: P of the server's log.
        progress: Is told how it goes.

    Raises:
        HushsumError: A step failed; the run says nothing then.
    """
    (folder / "plan.json").write_bytes(plan.bundle)
    (folder / "spools").mkdir()
    async with AsyncExitStack() as stack:
        site = await _started(plan, stack, folder, partitions)
        window = await _window(plan, site)
        fleet = LocalFleet(
            plan,
            shares,
            target=site.relay.address,
            folder=folder / "spools",
            time_ms=plan.window.start_ms(window),
        )
        progress.step(f"{len(shares)} clients with {fleet.expected:,} {fleet.what} to send; window {window} is open")
        untold = await _contribute(fleet, site, progress)
        taken, forwarded = 0, 0
        if site.shuffler is not None:
            taken = site.shuffler.taken()
            forwarded = await _forward(site, _batch_bytes(plan, fleet), progress)
        names = [share.client_id for share in shares]
        searched = await asyncio.to_thread(_searched, site, names, plan)
        released, release = await _close(window, site.server, progress)
        verdicts = await asyncio.to_thread(inspect_sqlite.read_verdicts, site.server.data / "store.db", plan)
        searched |= await asyncio.to_thread(_searched, site, names, plan)
        for each in site.services:
            await each.stop()
        searched |= await asyncio.to_thread(_searched, site, names, plan, running=False)
    counted = Counter((verdict.client_id, verdict.id) for _, verdict in verdicts if verdict.kind is VerdictKind.COUNTED)
    journey = LocalJourney(
        told=fleet.told,
        totals=fleet.totals,
        counted=len(counted),
        double_counted=sum(times > 1 for times in counted.values()),
        duplicates=sum(verdict.kind is VerdictKind.DUPLICATE for _, verdict in verdicts),
        untold=untold,
        restarts=site.server.starts - 1,
        shuffler_restarts=0,
        forwarded=forwarded,
        searched=searched,
        release=release,
        epsilon_spent=released.epsilon_spent,
        epsilon_left=released.epsilon_left,
    )
    if site.shuffler is None:
        return journey
    return replace(journey, counted=taken, shuffler_restarts=site.shuffler.starts - 1)


@dataclass(frozen=True)
class _Site:
    """What runs.

    Attributes:
        relay: What the fleet connects to.
        server: The aggregator.
        shuffler: Between the two; or None.
        behind: Between the shuffler and the aggregator.
    """

    relay: Relay
    server: Server
    shuffler: Shuffler | None
    behind: Relay

    @property
    def front(self) -> Service:
        """What the fleet sends to."""
        return self.shuffler or self.server

    @property
    def services(self) -> list[Service]:
        """All of them, the first that is to be stopped first."""
        return [each for each in (self.shuffler, self.server) if each is not None]

    def logged(self) -> int:
        """What is durable where the fleet sends it."""
        if self.shuffler is not None:
            return self.shuffler.taken()
        return inspect_sqlite.log_size(self.server.data / "log.db")


async def _started(plan: Plan, stack: AsyncExitStack, folder: Path, partitions: int) -> _Site:
    shuffled = plan.privacy.shuffle_min > 0
    directory = made_key(folder) if shuffled else None
    settings = {} if directory is None else {"shufflers": str(directory)}
    relay, behind = await stack.enter_async_context(Relay()), await stack.enter_async_context(Relay())
    server = await stack.enter_async_context(Server(folder, folder / "plan.json", partitions, settings))
    shuffler = None
    if directory is not None:
        behind.aim(server.address)
        shuffler = await stack.enter_async_context(Shuffler(folder, directory, behind.address))
    site = _Site(relay, server, shuffler, behind)
    relay.aim(site.front.address)
    return site


async def _window(plan: Plan, site: _Site) -> int:
    """The window that all records are of."""
    now_ms = time.time_ns() // 1_000_000
    if site.shuffler is not None:
        return window_to_shuffle(plan, now_ms)
    if plan.privacy.reports is None:
        require_one_window(plan, now_ms)
    async with Console(site.server.address) as console:
        return (await console.welcome()).window


async def _contribute(fleet: LocalFleet, site: _Site, progress: Progress) -> int:
    """Everything is sent and answered, over a kill half way; how much was durable then that nobody was told of."""
    name = "server" if site.shuffler is None else "shuffler"
    async with streaming(fleet, site.front, site.logged, progress) as stream:
        await stream.half()
        untold = await kill_untold(stream, fleet, site.relay, site.front, size=fleet.large)
        progress.step(f"killed the {name}: what was durable, and nobody knew, of its {fleet.what}: {untold}")
        await site.front.start()
        site.relay.aim(site.front.address)
        progress.step("started it again; the fleet sends what it has no answer for once more")
        await stream.end()
    return untold


def _batch_bytes(plan: Plan, fleet: LocalFleet) -> int:
    """Of the reports in each batch that leaves the shuffler."""
    sizes = plan.report_sizes
    assert sizes is not None, "of reports"
    reports = sum(told.tallies.reports for told in fleet.told.values())
    return sizes.width * (reports // max(1, -(-reports // sizes.records_max)))


async def _forward(site: _Site, size: int, progress: Progress) -> int:
    """The shuffler cuts and forwards; the server dies with the first batch. How many batches it was."""
    assert site.shuffler is not None, "called for one"
    shuffler, log = site.shuffler, site.server.data / "log.db"
    progress.step("everything is at the shuffler; it waits for the window's end, and half of the lateness")
    waiting = progress.bar("the window's end", None)
    site.behind.hold_replies(size)
    while shuffler.pooled():
        site.server.check_running()
        shuffler.check_running()
        await asyncio.sleep(_LOOK_S)
    waiting(1)
    batches, deadline = shuffler.waiting(), time.monotonic() + _FORWARD_S
    while not inspect_sqlite.log_size(log):
        if time.monotonic() > deadline:
            break  # its connection was not open: it needs a reply first
        await asyncio.sleep(_LOOK_S)
    if inspect_sqlite.log_size(log):
        await site.server.kill()
        site.behind.aim(None)
        site.behind.cut()
        progress.step(
            f"the window is cut, batches: {batches}; killed the server with the first of them, and nobody was told"
        )
        await site.server.start()
        site.behind.aim(site.server.address)
    site.behind.release_replies()
    await shuffler.forwarded()
    progress.step("started it again; the shuffler has sent the same bytes once more, and is done")
    return batches


def _searched(site: _Site, names: Sequence[str], plan: Plan, *, running: bool = True) -> Searched:
    """Each service's files and output, and what its page of metrics says."""
    found = [_of_service(each, names, plan, running=running) for each in site.services]
    return found[0] if len(found) == 1 else found[0] | found[1]


def _of_service(service: Service, names: Sequence[str], plan: Plan, *, running: bool) -> Searched:
    page = b""
    if running:
        with urllib.request.urlopen(f"http://{service.metrics}/metrics", timeout=_ASK_S) as answer:
            page = answer.read()
    return search([service.data, service.output], names, plan.bundle[:_CONTROL], beside=page)


async def _close(window: int, server: Server, progress: Progress) -> tuple[Released, Release]:
    """Seals and releases, and fetches the release as an analyst does."""
    async with Console(server.address) as operator:
        await operator.seal_through(window)
        released = await operator.release_through(window)
        progress.step(f"sealed and released window {window}: ε = {released.epsilon_spent} is spent")
    async with Console(server.address) as analyst:
        listed = [info for info in await analyst.releases() if info.window == window]
        if not listed:
            raise JourneyError(f"window {window} is released, and the catalogue does not list it")
        if listed[0].withheld:
            raise JourneyError(f"window {window} is withheld, too little came by the plan's rule: nothing to compare")
        return released, await analyst.fetch(listed[0])
