"""A service with a whole cohort, that stops in the middle of what it does with the sum until it is killed.

``python -m tests.aggregator.secure_victim FOLDER before|after``: it prints the round that its clients have spent once
their sum is there, and holds still before the sum is appended, or after that and before anybody is told.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aggregator.model import NewEntry
from tests.aggregator.secure_clients import fleet_of, stub_of
from tests.aggregator.secure_site import SIZE, SumLog, plan_of, site_config
from tests.services import WINDOW, service_of


class Stuck(SumLog):
    """A log that goes no further than ``when``."""

    when = "before"
    spent = asyncio.Event()

    async def append(self, entries: Sequence[NewEntry]) -> list[int]:
        if self.when == "before" and self.sums_in(entries):
            self.spent.set()
            await asyncio.Event().wait()
        positions = await super().append(entries)
        if self.sums:
            self.spent.set()
            await asyncio.Event().wait()
        return positions


async def live(folder: Path) -> None:
    plan = plan_of()
    async with service_of(site_config(folder, plan), wrap_log=Stuck) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(plan, SIZE, np.random.default_rng(0))
        parts = asyncio.gather(*(client.take_part(stub, WINDOW) for client in fleet))
        await Stuck.spent.wait()
        assert len({client.spent for client in fleet}) == 1
        print("spent", fleet[0].spent.hex(), flush=True)  # noqa: T201  the parent reads this
        await parts


if __name__ == "__main__":
    Stuck.when = sys.argv[2]
    asyncio.run(live(Path(sys.argv[1])))
