"""One run in secure mode, from a fleet's records to an analyst's release, with clients that vanish."""

import asyncio
import re
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_client.turns.participation import windows_at
from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum_proto.messages import Released
from simulator.board import Stage
from simulator.console import Console
from simulator.errors import JourneyError
from simulator.progress import Progress
from simulator.relay import Relay
from simulator.secure.fleet import CohortFleet, Member
from simulator.server import Server
from simulator.shares import Share

_SHOW_S: Final = 0.2
_PATIENCE_S: Final = 60.0
_ASK_S: Final = 10.0
_RUN_MS: Final = 300_000
_ROUNDS: Final = re.compile(r'^hushsum_rounds_total\{outcome="(\w+)"\} ([0-9.e+]+)$', re.MULTILINE)


@dataclass(frozen=True)
class SecureJourney:
    """What a run leaves behind.

    Attributes:
        members: Every client, with its tallies.
        rounds: How many rounds the server has ended, by their outcome.
        release: As an analyst has loaded it.
        epsilon_spent: By the population's ledger; exact text, as is what follows.
        epsilon_left: Of its limit.
        rounds_s: From the first client that entered to the last that was told, in seconds.
    """

    members: tuple[Member, ...]
    rounds: Mapping[str, int]
    release: Release
    epsilon_spent: str
    epsilon_left: str
    rounds_s: float


async def take_part(
    plan: Plan,
    shares: Sequence[Share],
    leaving: Mapping[str, Stage],
    *,
    folder: Path,
    partitions: int,
    progress: Progress,
) -> SecureJourney:
    """Runs the whole journey on loopback.

    Args:
        plan: Of the collection; of mode ``secure``.
        shares: Who has which records.
        leaving: Who vanishes, and at which step.
        folder: An empty one, for everything that is written on the way.
        partitions: P of the server's log.
        progress: Is told how it goes.

    Raises:
        HushsumError: A step failed; the run says nothing then.
    """
    require_one_window(plan, time.time_ns() // 1_000_000)
    plan_file, spools = folder / "plan.json", folder / "spools"
    plan_file.write_bytes(plan.bundle)
    spools.mkdir()
    async with Relay() as relay, Server(folder, plan_file, partitions) as server:
        relay.aim(server.address)
        async with Console(server.address) as console:
            window = (await console.welcome()).window
        time_ms = plan.window.start_ms(window)
        fleet = CohortFleet(plan, shares, leaving, relay=relay, target=server.address, folder=spools, time_ms=time_ms)
        try:
            await _add(fleet, progress)
            began = time.monotonic()
            await _rounds(fleet, server, progress)
            rounds_s = time.monotonic() - began
            await _ask(fleet, progress)
        finally:
            await fleet.close()
        rounds = await asyncio.to_thread(_ended_rounds, server.metrics)
        released, release = await _close(window, server, progress)
        return SecureJourney(
            members=fleet.members,
            rounds=rounds,
            release=release,
            epsilon_spent=released.epsilon_spent,
            epsilon_left=released.epsilon_left,
            rounds_s=rounds_s,
        )


def require_one_window(plan: Plan, now_ms: int) -> None:
    """Refuses a moment at which clients take part in two windows, or soon would: a run is about one.

    Args:
        plan: Of the collection.
        now_ms: The time, in ms since 1970 UTC.

    Raises:
        JourneyError: It is one.
    """
    windows = {*windows_at(plan.window, now_ms), *windows_at(plan.window, now_ms + _RUN_MS)}
    if len(windows) > 1:
        raise JourneyError(
            f"windows {min(windows)} and {max(windows)} are open in the next {_RUN_MS // 60_000} minutes, and "
            "clients take part in all that are: try again later, or with a plan of longer windows"
        )


async def _add(fleet: CohortFleet, progress: Progress) -> None:
    bar = progress.bar("clients whose records are hashed, and in their spools", len(fleet.members))
    work = asyncio.create_task(fleet.add())
    while not work.done():
        await asyncio.wait([work], timeout=_SHOW_S)
        bar(fleet.added)
    await _result(work)
    progress.step(f"{fleet.added} clients hold their records; now all of them take part, and some vanish")


async def _rounds(fleet: CohortFleet, server: Server, progress: Progress) -> None:
    """Everybody takes part; shown as it goes, and ended where nothing moves any more."""
    board = progress.board()
    work = asyncio.create_task(fleet.take_part())
    rows, moved = fleet.look(), time.monotonic()
    try:
        while not work.done():
            await asyncio.wait([work], timeout=_SHOW_S)
            server.check_running()
            if (now := fleet.look()) != rows:
                rows, moved = now, time.monotonic()
                board(rows)
            elif time.monotonic() - moved > _PATIENCE_S:
                if fleet.only_waiting:
                    return  # too few are left for another cohort: they would try until their window is over
                where = "; ".join(map(str, rows))
                raise JourneyError(f"nothing has moved for {_PATIENCE_S:.0f} s: {where}")
        await _result(work)
        board(fleet.look())
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def _ask(fleet: CohortFleet, progress: Progress) -> None:
    """What the release will hold is known exactly before it is drawn."""
    await _result(asyncio.create_task(fleet.ask()))
    if asked := [member.tallies for member in fleet.members if member.asked]:
        counted = sum(tallies.submissions_counted for tallies in asked)
        progress.step(f"{len(asked)} clients that vanished untold have asked afterwards: {counted} of them are counted")


async def _result(work: "asyncio.Task[None]") -> None:
    try:
        await work
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None  # the others were cancelled for it


def _ended_rounds(metrics: str) -> dict[str, int]:
    """What the server counts of its rounds."""
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=_ASK_S) as page:
        text = page.read().decode("utf-8")
    return {outcome: int(float(count)) for outcome, count in _ROUNDS.findall(text)}


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
        release = await analyst.fetch(listed[0])
    if not release.submissions:
        raise JourneyError(f"window {window} is released with no submission in it: no round came to its end")
    return released, release
