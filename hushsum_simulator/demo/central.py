"""One run in central mode, from a fleet's records to an analyst's release, with a kill on the way."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aggregator import offline
from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum.sketch import Sketch
from hushsum_proto.messages import Released
from hushsum_simulator.data import ClientRecords
from hushsum_simulator.demo.evaluation import Reconciliation, reconcile
from hushsum_simulator.demo.fleet import Fleet, Totals, kill_untold, streaming
from hushsum_simulator.demo.services import Console, Server
from hushsum_simulator.errors import JourneyError
from hushsum_simulator.progress import Progress
from hushsum_simulator.testbed.tcp_proxy import TcpProxy


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


async def travel(
    plan: Plan, shares: Sequence[ClientRecords], *, folder: Path, partitions: int, progress: Progress
) -> Journey:
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
    async with TcpProxy() as relay, Server(folder, plan_file, partitions) as server:
        relay.aim(server.address)
        window = await _open_window(server)
        fleet = _fleet(plan, shares, relay, folder, window)
        progress.step(f"{len(shares)} clients with {fleet.batches:,} deltas to send; window {window} is open")
        logged = partial(offline.log_size, server.data / "log.db")
        async with streaming(fleet, server, logged, progress) as stream:
            await stream.half()
            untold = await kill_untold(stream, fleet, relay, server)
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


def _fleet(plan: Plan, shares: Sequence[ClientRecords], relay: TcpProxy, folder: Path, window: int) -> Fleet:
    spools = folder / "spools"
    spools.mkdir()
    # Every event time lies in the window that the service named: an hour that ends in mid-run does no harm.
    time_ms = plan.window.start_ms(window)
    return Fleet(plan, shares, target=relay.address, folder=spools, time_ms=time_ms)


async def _open_window(server: Server) -> int:
    async with Console(server.address) as console:
        return (await console.welcome()).window


async def _close(
    plan: Plan, window: int, fleet: Fleet, server: Server, progress: Progress
) -> tuple[Sketch, Reconciliation, Released, Release]:
    """Seals, looks at what was folded, releases, and fetches the release as an analyst does."""
    store = server.data / "store.db"
    async with Console(server.address) as operator:
        sealing = progress.bar("fold: waiting for the seal", None)
        await operator.seal_through(window)
        sealing(1)
        folded = await asyncio.to_thread(offline.read_sealed, store, plan, window)
        if folded is None:
            raise JourneyError(f"window {window} is sealed, and the store holds no sum of it")
        verdicts = await asyncio.to_thread(offline.read_verdicts, store, plan)
        reconciliation = reconcile(fleet.sent, (verdict for _, verdict in verdicts))
        released = await operator.release_through(window)
        progress.step(f"sealed and released window {window}: ε = {released.epsilon_spent} is spent")
    async with Console(server.address) as analyst:
        release = await analyst.fetch_window(window, withheld="too few clients by the plan's test")
    return folded, reconciliation, released, release
