"""A process that does all that the inner half of a service does, as fast as it can, until it is killed.

``python -m tests.aggregator.victim FOLDER FIRST_NUMBER``: each line that it prints is a promise.
``python -m tests.aggregator.victim FOLDER drawing``: it tells what it has drawn of one window, and never stores it.
"""

import asyncio
import hashlib
import sys
from itertools import count
from pathlib import Path

from aggregator.runtime import SystemRuntime
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
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
            await site.releaser.seal(window, early=True)
            release = await site.releaser.release(window)
            promise("released", window, release.sha256.hex())


async def draw_alone(folder: Path) -> None:
    site = await DiskSite.open(folder, PLAN, SystemRuntime(), entropy=OsEntropy())
    await site.store.open_windows(PLAN.id, site.window, site.window)
    await site.start()
    await site.releaser.seal(site.window, early=True)

    async def held(plan: Plan, kind: str, window: int, data: bytes, **_: bool) -> None:
        promise("drawn", window, hashlib.sha256(data).hexdigest())
        await asyncio.Event().wait()

    site.releaser._store.commit_outcome = held  # type: ignore[method-assign,assignment]  # it comes no further
    await site.releaser.release(site.window)


async def state_of(site: DiskSite, window: int) -> str:
    return (await site.store.states(PLAN.id, window, window))[window]


if __name__ == "__main__":
    folder, what = Path(sys.argv[1]), sys.argv[2]
    asyncio.run(draw_alone(folder) if what == "drawing" else live(folder, int(what)))
