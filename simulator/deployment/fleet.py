"""``fleet``: fills the deployment's windows while its gateways and brokers are killed, and writes what it was told."""

import asyncio
import warnings
from collections.abc import Sequence
from typing import Final

from edge_client import EdgeWarning
from hushsum.plan import Plan
from simulator.deployment import access, files
from simulator.deployment.clients import DeployedFleet
from simulator.deployment.journal import Journal
from simulator.deployment.material import dealt, source_of
from simulator.deployment.prepare import Say, prepared
from simulator.deployment.settings import Settings
from simulator.errors import JourneyError
from simulator.faults.operator import Operator
from simulator.shares import Share

_LOOK_S: Final = 0.5


def fleet(settings: Settings, say: Say) -> None:
    """Runs the fleet; writes progress.json as it goes, and sent.json at its end.

    Raises:
        HushsumError: A client could not, or something has no answer when the time is over.
        OSError: A folder cannot be written.
    """
    plan = prepared(settings)
    shares = dealt(settings, plan, source_of(settings)).shares
    say(f"{len(shares)} clients with {sum(share.records for share in shares):,} records, {settings.windows} windows")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)  # what they say is in sent.json
        journal = asyncio.run(_run(settings, plan, shares, say))
    lives = sum(account.lives for account in journal.accounts.values())
    say(f"everything is answered after {journal.seconds:.0f} s; the clients were started {lives} times")


async def _run(settings: Settings, plan: Plan, shares: Sequence[Share], say: Say) -> Journal:
    await _answering(settings, plan)
    clients = DeployedFleet(settings, plan, shares)
    watch = asyncio.create_task(_watch(settings, clients, say))
    try:
        journal = await clients.run()
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    await asyncio.to_thread(journal.save, settings.sent_file)
    await asyncio.to_thread(files.write_json, settings.progress_file, {**clients.progress, "done": True})
    return journal


async def _answering(settings: Settings, plan: Plan) -> None:
    """Returns once every gateway answers, so that the first window finds all of them."""
    credentials = next(iter(access.clients(settings).values()))  # the fleet has no others
    for gateway in settings.gateways:
        operator = Operator([gateway], credentials=credentials, patience_s=settings.deadline_s)
        if (collected := await operator.plan()).id != plan.id:
            raise JourneyError(f"{gateway} collects plan {collected.hex_id[:12]}, expected {plan.hex_id[:12]}")


async def _watch(settings: Settings, clients: DeployedFleet, say: Say) -> None:
    told = 0
    while True:
        progress = clients.progress
        await asyncio.to_thread(files.write_json, settings.progress_file, {**progress, "done": False})
        window = progress["window"]
        assert isinstance(window, int)
        if window > told:
            told = window
            say(f"window {window} of {progress['of']}: {progress['online']} clients are online")
        await asyncio.sleep(_LOOK_S)
