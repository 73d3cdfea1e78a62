"""Central mode: clients send exact deltas to a server that is killed half way, and that draws the noise at the end."""

import asyncio
from pathlib import Path

import numpy as np
from typing_extensions import override

from aggregator import offline
from hushsum.sketch import Sketch
from hushsum_simulator.data import Floats
from hushsum_simulator.demo.evaluation import Accuracy, in_bulk, measure, reconcile
from hushsum_simulator.demo.mode import Mode, Numbers, Outcome, delivery_numbers
from hushsum_simulator.demo.services import Server, open_window, release_window, seal_window
from hushsum_simulator.demo.summary import Summary
from hushsum_simulator.errors import JourneyError
from hushsum_simulator.scenario import Material
from hushsum_simulator.testbed.tcp_proxy import TcpProxy


class Central(Mode):
    """A run in which every delta is followed by its id, and every counter is compared."""

    summary = Summary
    _folded: Sketch  # the exact counters that the server has sealed

    @override
    async def run(self, folder: Path) -> Outcome:
        plan, progress = self.plan, self.progress
        async with (
            Server(folder, folder / "plan.json", self.settings.partitions) as server,
            TcpProxy(server.address) as proxy,
        ):
            window = await open_window(server.address)
            fleet, unacknowledged = await self.deliver(server, proxy, folder=folder, window=window)
            await seal_window(window, server.address, progress)
            # The release erases the exact counters.
            folded = await asyncio.to_thread(offline.read_sealed, server.data / "store.db", plan, window)
            if folded is None:
                raise JourneyError(f"window {window} is sealed, and the store holds no sum of it")
            verdicts = await server.verdicts(plan)
            withheld = "too few clients by the plan's test"
            released, release = await release_window(window, server.address, progress, withheld=withheld)
        self._folded = folded
        found, stats = reconcile(fleet.sent, verdicts), [each.stats for each in fleet.ended.values()]
        return Outcome(release, released, stats, delivery_numbers(fleet, unacknowledged, found, server.starts - 1))

    @override
    def compare(self, outcome: Outcome, counted: Material, queries: Floats, exact: Floats) -> tuple[Accuracy, Numbers]:
        bulk, folded = in_bulk(counted), self._folded
        equal = np.array_equal(folded.counters, bulk.counters) and np.array_equal(folded.counts, bulk.counts)
        return measure(outcome.release, bulk, queries, exact), {"counters_equal": equal}
