"""A process that does all that the inner half of a service does, as fast as it can, until it is killed.

``python -m tests.aggregator.victim FOLDER FIRST_NUMBER``: each line that it prints is a promise.
"""

import asyncio
import sys
from itertools import count
from pathlib import Path

from aggregator.ports import SystemRuntime
from tests.aggregator.deltas import tally_plan
from tests.aggregator.disk_site import DiskSite

PLAN = tally_plan(counters=3000)
DELTAS = 7  # a window


def promise(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201  the parent reads this


async def live(folder: Path, first_number: int) -> None:
    numbers = count(first_number)
    site = await DiskSite.open(folder, PLAN, SystemRuntime())
    await site.start()
    for window in count(site.window):
        await site.store.open_windows(PLAN.id, window, window)
        for _ in range(DELTAS):
            number = next(numbers)
            await site.send(number, window=window)
            if await state_of(site, window) == "open":
                promise("acknowledged", number)
        if await state_of(site, window) != "released":
            await site.releaser.seal(window)
            release = await site.releaser.release(window)
            promise("released", window, release.sha256.hex())


async def state_of(site: DiskSite, window: int) -> str:
    return (await site.store.states(PLAN.id, window, window))[window]


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1]), int(sys.argv[2])))
