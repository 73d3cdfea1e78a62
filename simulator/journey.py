"""One run, from a fleet's records to an analyst's release, with a kill on the way: the steps in their order."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aggregator.store import inspect_sqlite
from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum.sketch import Sketch
from hushsum_proto.messages import Released
from simulator.console import Console
from simulator.errors import JourneyError
from simulator.fleet import Fleet, Totals
from simulator.progress import Progress
from simulator.reconciliation import Reconciliation, reconcile
from simulator.relay import Relay
from simulator.server import Server
from simulator.shares import Share

_LOOK_S: Final = 0.05
_SHOW_S: Final = 0.25
_HOLD_S: Final = 2.0
_PATIENCE_S: Final = 60.0
# The kill waits until so many deltas are durable that nobody was told of: a share of all, so that it is in mid-stream.
_UNTOLD_SHARE: Final = 0.01


@dataclass(frozen=True)
class Journey:
    """What a run leaves behind.

    Attributes:
        totals: Of the clients.
        reconciliation: Every delta by its id.
        folded: The exact counters that the service has sealed.
        untold: Deltas that were durable and not acknowledged when the server was killed.
        restarts: Starts of the server after a kill.
        release: As an analyst has loaded it.
        epsilon_spent: By the population's ledger; exact text, as is what follows.
        epsilon_left: Of its limit.
    """

    totals: Totals
    reconciliation: Reconciliation
    folded: Sketch
    untold: int
    restarts: int
    release: Release
    epsilon_spent: str
    epsilon_left: str


async def travel(plan: Plan, shares: Sequence[Share], *, folder: Path, partitions: int, progress: Progress) -> Journey:
    """Runs the whole journey on loopback.

    Args:
        plan: Of the collection.
        shares: Who has which records.
        folder: An empty one, for everything that is written on the way.
        partitions: P of the server's log.
        progress: Is told how it goes.

    Raises:
        HushsumError: A step failed; the run says nothing then.
    """
    plan_file = folder / "plan.json"
    plan_file.write_bytes(plan.bundle)
    async with Relay() as relay, Server(folder, plan_file, partitions) as server:
        relay.aim(server.address)
        window = await _open_window(server)
        fleet = _fleet(plan, shares, relay, folder, window)
        progress.step(f"{len(shares)} clients with {fleet.batches:,} deltas to send; window {window} is open")
        async with _streaming(fleet, server, progress) as stream:
            await stream.half()
            untold = await _kill_untold(stream, fleet, relay, server)
            progress.step(f"killed the server: {untold} deltas were durable, and nobody knew")
            await server.start()
            relay.aim(server.address)
            progress.step("started it again; the fleet sends what it has no answer for once more")
            await stream.end()
        folded, reconciliation, released, release = await _close(plan, window, fleet, server, progress)
        return Journey(
            totals=fleet.totals,
            reconciliation=reconciliation,
            folded=folded,
            untold=untold,
            restarts=server.starts - 1,
            release=release,
            epsilon_spent=released.epsilon_spent,
            epsilon_left=released.epsilon_left,
        )


def _fleet(plan: Plan, shares: Sequence[Share], relay: Relay, folder: Path, window: int) -> Fleet:
    spools = folder / "spools"
    spools.mkdir()
    # Every event time lies in the window that the service named: an hour that ends in mid-run does no harm.
    time_ms = plan.window.start_ms(window)
    return Fleet(plan, shares, target=relay.address, folder=spools, time_ms=time_ms)


async def _open_window(server: Server) -> int:
    async with Console(server.address) as console:
        return (await console.welcome()).window


async def _kill_untold(stream: "_Stream", fleet: Fleet, relay: Relay, server: Server) -> int:
    """Kills the server while the log holds more deltas than were acknowledged; returns how many more."""
    wanted = max(1, int(_UNTOLD_SHARE * fleet.batches))
    fleet.open_gate()
    relay.hold_replies()
    while await stream.untold(wanted) < 1:
        # Nobody had a session that was open: a new one needs the reply to its hello first.
        relay.release_replies()
        await stream.more_acknowledged()
        relay.hold_replies()
    await server.kill()
    relay.aim(None)
    relay.cut()
    relay.release_replies()
    return stream.logged() - fleet.totals.acknowledged


async def _close(
    plan: Plan, window: int, fleet: Fleet, server: Server, progress: Progress
) -> tuple[Sketch, Reconciliation, Released, Release]:
    """Seals, looks at what was folded, releases, and fetches the release as an analyst does."""
    store = server.data / "store.db"
    async with Console(server.address) as operator:
        sealing = progress.bar("fold: waiting for the seal", None)
        while await operator.seal() < window:  # an hour that ended since the server began is open too, and empty
            pass
        sealing(1)
        folded = await asyncio.to_thread(inspect_sqlite.read_sealed, store, plan, window)
        if folded is None:
            raise JourneyError(f"window {window} is sealed, and the store holds no sum of it")
        verdicts = await asyncio.to_thread(inspect_sqlite.read_verdicts, store, plan)
        reconciliation = reconcile(fleet.sent, (verdict for _, verdict in verdicts))
        released = await operator.release()
        while released.release.window < window:
            released = await operator.release()
        progress.step(f"sealed and released window {window}: ε = {released.epsilon_spent} is spent")
    async with Console(server.address) as analyst:
        listed = [info for info in await analyst.releases() if info.window == window]
        if not listed:
            raise JourneyError(f"window {window} is released, and the catalogue does not list it")
        if listed[0].withheld:
            raise JourneyError(f"window {window} is withheld, too few clients by the plan's test: nothing to compare")
        return folded, reconciliation, released, await analyst.fetch(listed[0])


class _Stream:
    """The fleet at work, and the log that it fills.

    Whatever waits here raises what has ended the fleet or the server, and a JourneyError where nothing moves any more.
    """

    def __init__(self, work: "asyncio.Task[None]", fleet: Fleet, server: Server) -> None:
        self._work = work
        self._fleet = fleet
        self._server = server
        self._seen = fleet.totals
        self._seen_at = time.monotonic()

    def logged(self) -> int:
        """Deltas that are durable in the log."""
        return inspect_sqlite.log_size(self._server.data / "log.db")

    async def untold(self, wanted: int) -> int:
        """How many deltas are durable that nobody was told of: ``wanted``, or fewer when a moment is over."""
        deadline = time.monotonic() + _HOLD_S
        while (untold := self.logged() - self._fleet.totals.acknowledged) < wanted and time.monotonic() < deadline:
            await self._look_again()
        return untold

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
            left = self._fleet.batches - totals.acknowledged
            raise JourneyError(f"nothing has moved for {_PATIENCE_S:.0f} s; {left} deltas have no answer yet")


@asynccontextmanager
async def _streaming(fleet: Fleet, server: Server, progress: Progress) -> AsyncIterator[_Stream]:
    """The fleet at work, with its bars; it is stopped where the caller leaves early."""
    work = asyncio.create_task(fleet.run())
    stream = _Stream(work, fleet, server)
    watch = asyncio.create_task(_show(fleet, stream, progress))
    try:
        yield stream
    finally:
        work.cancel()
        watch.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)


async def _show(fleet: Fleet, stream: _Stream, progress: Progress) -> None:
    spooled = progress.bar("deltas hashed on the clients", fleet.batches)
    logged = progress.bar("deltas durable in the log, copies too", fleet.batches)
    acknowledged = progress.bar("deltas acknowledged", fleet.batches)

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
