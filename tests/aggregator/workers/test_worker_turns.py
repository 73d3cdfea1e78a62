"""How a worker divides its time: turns bounded in entries and bytes, with room for others in between."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from aggregator.fold.verdicts import Verdict
from aggregator.model import EntryBatch, NewEntry
from aggregator.workers.pool import WorkerPool
from aggregator.workers.worker import WorkerSettings
from hushsum_proto.convert import entry_to_bytes
from tests.aggregator.deltas import client_of, entry, tally, tally_plan
from tests.doubles import ManualRuntime, MemoryStore, PowerLossLog, RecordingObserver

W = 100
PLAN = tally_plan()
TURN, TURN_BYTES = WorkerSettings().turn, WorkerSettings().turn_bytes


class Turns(RecordingObserver):
    """Notes what each turn folded, and how often others had the event loop before it."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[int] = []
        self.ticks: list[int] = []
        self.tick = 0

    def folded(self, partition: int, position: int, verdicts: Sequence[Verdict]) -> None:
        super().folded(partition, position, verdicts)
        if verdicts:
            self.turns.append(len(verdicts))
            self.ticks.append(self.tick)

    async def count(self) -> None:
        while True:
            self.tick += 1
            await asyncio.sleep(0)


class LimitedLog(PowerLossLog):
    """Notes how many entries were asked for."""

    limits: tuple[int, ...] = ()

    async def read(self, partition: int, position: int, limit: int, wait_s: float) -> EntryBatch:
        self.limits += (limit,)
        return await super().read(partition, position, limit, wait_s)


class Site:
    def __init__(self) -> None:
        self.runtime, self.observer, self.store = ManualRuntime(), Turns(), MemoryStore()
        self.log = LimitedLog(1, self.runtime)

    async def fold(self, entries: list[bytes]) -> None:
        await self.log.append([NewEntry(0, W, data) for data in entries])
        await self.store.register(PLAN, 1, W)
        self.workers = WorkerPool(PLAN, self.log, self.store, self.runtime, self.observer, WorkerSettings())
        counting = asyncio.ensure_future(self.observer.count())
        await self.workers.start()
        await self.workers.passed(0, len(entries) - 1)
        counting.cancel()
        assert [verdict.position for _, verdict in self.observer.verdicts] == [*range(len(entries))]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    yield made
    await made.workers.lost([0])
    await made.runtime.settle(5)


async def test_a_turn_is_bounded_in_entries_and_others_have_theirs_in_between(site: Site) -> None:
    client = client_of(0, 1)
    await site.fold([entry_to_bytes(entry(client, tally(PLAN, n, W, 1, n))) for n in range(5 * TURN)])
    assert max(site.observer.turns) == TURN
    assert all(later > earlier for earlier, later in zip(site.observer.ticks, site.observer.ticks[1:], strict=False))
    assert {verdict.kind for _, verdict in site.observer.verdicts} == {"counted"}


async def test_a_turn_is_bounded_in_bytes(site: Site) -> None:
    size = TURN_BYTES // 5 + 1
    await site.fold([b"\xff" * size] * 50 + [b"\xff" * 3 * TURN_BYTES] * 3 + [b"\xff"] * 3)
    assert all(turn * size <= TURN_BYTES for turn in site.observer.turns[:12])
    assert site.observer.turns.count(1) >= 3  # what is larger than a turn has one of its own


async def test_many_entries_are_read_at_once_only_while_they_are_small(site: Site) -> None:
    await site.fold([b"\xff"] * 4000 + [b"\xff" * TURN_BYTES] * 1500 + [b"\xff"] * 3000)
    limits = site.log.limits
    largest = limits.index(max(limits))
    smallest = limits.index(min(limits[largest:]), largest)
    assert max(limits) == TURN
    assert limits[smallest] <= 8  # turns: so many bytes wait, whatever the entries are
    assert limits[-1] == TURN
