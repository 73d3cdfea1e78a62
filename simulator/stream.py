"""A fleet at work, watched, and the kill in its middle: the server dies with what it has taken and told nobody of."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from simulator.errors import JourneyError
from simulator.fleet import Fleet
from simulator.progress import Progress
from simulator.relay import Relay
from simulator.server import Service

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


async def kill_untold(stream: Stream, fleet: Fleet, relay: Relay, server: Service, *, size: int = 0) -> int:
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
