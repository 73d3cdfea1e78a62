"""Several processes of one service over a log, a store and receipts in memory, in time that a test moves."""

import asyncio
import math
from collections.abc import Collection

import numpy as np

from aggregator.interfaces import PartitionOwner
from aggregator.model import NewEntry
from aggregator.store.store import memory_store
from aggregator.workers.pool import WorkerPool
from aggregator.workers.worker import WorkerSettings
from hushsum.entropy import ReplayableEntropy
from hushsum.plan import Plan
from hushsum.privacy.events import TUMBLING
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import SealEntry, partition_of
from tests.aggregator.deltas import client_of, entry, tally
from tests.doubles import ManualRuntime, MemoryReceipts, PowerLossLog, RecordingObserver
from tests.hooks import Hooks

SETTINGS = WorkerSettings(batch=10, turn=3, checkpoint_entries=50, checkpoint_s=5.0, asks_s=1.0)
FIRST = 100


class ByHand:
    """A membership whose coordinator is the test."""

    def __init__(self) -> None:
        self.owner: PartitionOwner | None = None

    async def start(self, owner: PartitionOwner) -> None:
        self.owner = owner

    async def ended(self) -> None:
        return

    async def stop(self) -> None:
        return


class Process:
    """A worker's process: it may be told late, or never, that its partitions moved."""

    def __init__(self, cluster: "Cluster", name: str, settings: WorkerSettings = SETTINGS) -> None:
        self.hooks, self.log_hooks, self.observer = Hooks(), Hooks(), RecordingObserver()
        self.store, self.log = self.hooks.around(cluster.store), self.log_hooks.around(cluster.log)
        self.workers = WorkerPool(
            cluster.plan, self.log, self.store, cluster.runtime, self.observer, settings, membership=ByHand()
        )
        self.name = name


class Cluster:
    """What the processes share.

    Attributes:
        processes: All that were started.
    """

    def __init__(self, plan: Plan, partitions: int = 1) -> None:
        self.plan, self.runtime = plan, ManualRuntime()
        self.log, self.store = PowerLossLog(partitions, self.runtime), memory_store(self.runtime)
        self.receipts = MemoryReceipts()
        self.processes: list[Process] = []
        self.sent = 0

    async def register(self, windows: int = 1) -> None:
        await self.store.register(self.plan, self.log.partitions, FIRST)
        await self.store.open_windows(self.plan.id, FIRST, FIRST + windows - 1)

    async def process(self, assigned: Collection[int] = (), settings: WorkerSettings = SETTINGS) -> Process:
        """Starts another one."""
        made = Process(self, f"process-{len(self.processes)}", settings)
        self.processes.append(made)
        await made.workers.start()
        await made.workers.assigned(assigned)
        await self.runtime.settle()
        return made

    async def send(self, count: int = 1, *, partition: int = 0, window: int = FIRST) -> list[int]:
        """Appends deltas of one client each; their positions. Delta number n adds 1 to counter n."""
        client = client_of(partition, self.log.partitions)
        positions: list[int] = []
        for _ in range(count):
            positions += await self.append(client, tally(self.plan, self.sent, window, 1, self.sent), window)
            self.sent += 1
        await self.runtime.settle()
        return positions

    async def append(self, client: str, delta: bytes, window: int = FIRST) -> list[int]:
        partition = partition_of(client, self.log.partitions)
        return await self.log.append([NewEntry(partition, window, entry_to_bytes(entry(client, delta)))])

    async def seal(self, window: int = FIRST) -> None:
        """Seals without a releaser."""
        data = entry_to_bytes(SealEntry(self.plan.id, window, 0))
        await self.log.append([NewEntry(partition, window, data) for partition in range(self.log.partitions)])
        await self.runtime.settle()

    async def release(self, window: int = FIRST) -> int:
        """Closes a window and publishes some outcome of it, without a releaser; the fence that did it."""
        fence = await self.store.acquire_lease(self.plan.id, "by hand", "", 10_000)
        assert fence is not None
        await self.store.mark_closing(self.plan.id, window, fence=fence)
        await self.seal(window)
        entropy = ReplayableEntropy(b"by hand")
        await self.store.reserve_outcome(self.plan, TUMBLING, window, bytes(32), entropy, fence=fence)
        await self.store.commit_outcome(self.plan, TUMBLING, window, b"an outcome", fence=fence)
        mark = await self.store.bind_receipts(self.plan.id, await self.receipts.begin(), fence=fence)
        await self.store.publish(self.plan.id, TUMBLING, window, receipts=mark, fence=fence)
        return fence

    async def pass_time(self, seconds: float) -> None:
        """In steps: each renewal, pause and look comes in its time."""
        for _ in range(math.ceil(seconds)):
            await self.runtime.advance(1)

    async def counted(self, window: int = FIRST) -> list[int]:
        """How often each delta was counted, in a window that every partition has closed."""
        sealed = await self.store.sealed_window(self.plan, window)
        assert sealed is not None, "not closed everywhere"
        counters = sealed.sketch.counters[0, 0]
        assert not np.any(counters[self.sent :])
        return [int(value) for value in counters[: self.sent]]

    async def position(self, partition: int = 0) -> int:
        """Of the latest checkpoint."""
        return (await self.store.fold_marks(self.plan.id))[partition].position

    async def end(self) -> None:
        """Every process is gone, without another word."""
        for process in self.processes:
            await process.workers.lost(process.workers.held)
            if process.workers._asking is not None:
                process.workers._asking.cancel()
        await asyncio.sleep(0)
        await self.store.close()
