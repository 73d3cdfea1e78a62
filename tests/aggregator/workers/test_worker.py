import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import numpy as np
import pytest

from aggregator.errors import LogError, LogGapError, PartitionStoppedError, StoreError
from aggregator.fold.fold import Fold
from aggregator.fold.verdicts import RememberedKind, VerdictKind
from aggregator.model import NewEntry
from aggregator.workers.pool import WorkerPool
from aggregator.workers.worker import WorkerSettings
from hushsum.delta import DeltaId, digest
from hushsum.errors import Reason
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import SealEntry, partition_of
from tests.aggregator.deltas import client_of, entry, tally, tally_plan
from tests.doubles import ManualRuntime, MemoryStore, PowerLossLog, RecordingObserver

W = 100
PLAN = tally_plan()
SETTINGS = WorkerSettings(batch=10, turn=3, checkpoint_entries=50, checkpoint_s=5.0, retain_verdicts=True)


class Site:
    """Folds at work on a log that can lose power and a store in memory."""

    def __init__(self, partitions: int = 1) -> None:
        self.runtime, self.observer = ManualRuntime(), RecordingObserver()
        self.log, self.store = PowerLossLog(partitions, self.runtime), MemoryStore()
        self.workers = self._workers()
        self.sent = 0

    def _workers(self) -> WorkerPool:
        return WorkerPool(PLAN, self.log, self.store, self.runtime, self.observer, SETTINGS)

    async def start(self) -> None:
        await self.store.register(PLAN, self.log.partitions, W)
        await self.workers.start()
        await self.runtime.settle()

    async def die(self) -> None:
        """Power fails: tasks end without another word, and what was not synced is gone."""
        await self.workers.lost(range(self.log.partitions))
        await self.runtime.settle(5)
        self.log = self.log.lose_power()

    async def restart(self) -> None:
        await self.die()
        self.workers = self._workers()
        await self.start()

    async def send(self, count: int = 1, *, client: str = "alice", window: int = W) -> list[tuple[int, bytes]]:
        """Appends deltas; their sequence numbers, which are their counters too, and their bytes."""
        sent = []
        for _ in range(count):
            sent.append((self.sent, tally(PLAN, self.sent, window, 1, self.sent)))
            await self.resend(sent[-1][1], client=client, window=window)
            self.sent += 1
        return sent

    async def resend(self, delta: bytes, *, client: str = "alice", window: int = W) -> int:
        partition = partition_of(client, self.log.partitions)
        (position,) = await self.log.append([NewEntry(partition, window, entry_to_bytes(entry(client, delta)))])
        await self.runtime.settle()
        return position

    async def seal(self, window: int = W) -> list[int]:
        data = entry_to_bytes(SealEntry(PLAN.id, window, 0))
        positions = await self.log.append([NewEntry(p, window, data) for p in range(self.log.partitions)])
        await self.runtime.settle()
        return positions

    def stored(self, partition: int = 0, window: int = W) -> list[int]:
        """The counters that the store holds as 1; no other is above 0."""
        sums = self.store.folds[partition].sums
        if window not in sums:
            return []
        counters = sums[window].counters[0]
        assert counters.max() <= 1
        return [int(index) for index in np.flatnonzero(counters)]

    def kinds(self) -> list[str]:
        return [verdict.reason or verdict.kind for _, verdict in self.observer.verdicts]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    await made.start()
    yield made
    await made.die()


def pending(awaitable: Awaitable[Any]) -> "asyncio.Future[Any]":
    return asyncio.ensure_future(awaitable)


async def test_entries_are_folded_as_they_come_and_stored_when_a_checkpoint_is_due(site: Site) -> None:
    await site.send(3)
    assert site.kinds() == ["counted"] * 3
    assert site.stored() == []
    await site.runtime.advance(5.1)
    assert site.stored() == [0, 1, 2]
    assert site.store.checkpoints == 1


async def test_a_checkpoint_is_due_after_so_many_entries(site: Site) -> None:
    await site.send(49)
    assert site.store.checkpoints == 0
    await site.send(1)
    assert site.stored() == list(range(50))


async def test_an_idle_fold_writes_nothing(site: Site) -> None:
    for _ in range(20):
        await site.runtime.advance(60)
    assert site.store.checkpoints == 0


async def test_a_seal_is_stored_at_once(site: Site) -> None:
    await site.send(2)
    closed = pending(site.workers.closed(0, W))
    await site.seal()
    assert site.stored() == [0, 1]
    assert site.store.folds[0].state.closed_through == W
    assert closed.done()


async def test_a_seal_that_is_repeated_holds_nobody_up(site: Site) -> None:
    await site.seal()
    await site.restart()
    await site.seal()
    closed = pending(site.workers.closed(0, W))
    await site.runtime.settle()
    assert closed.done()


async def test_those_who_wait_for_a_position_are_woken_when_it_is_passed(site: Site) -> None:
    passed = pending(site.workers.passed(0, 1))
    await site.send(1)
    assert not passed.done()
    await site.send(1)
    assert passed.done()


async def test_an_append_that_is_delayed_past_its_seal_is_late_and_a_resend_of_a_counted_delta_is_counted(
    site: Site,
) -> None:
    ((number, counted),) = await site.send(1)
    await site.seal()
    delayed = tally(PLAN, 77, W, 1, 5)
    for delta in (delayed, counted):
        await site.workers.passed(0, await site.resend(delta))

    async def answers() -> list[object]:
        return [
            await site.workers.recall(0, "alice", DeltaId(1, sequence), digest(delta), W)
            for sequence, delta in ((number, counted), (5, delayed))
        ]

    said = await answers()
    assert said == [(RememberedKind.COUNTED, None), (RememberedKind.LATE, None)]
    await site.restart()  # nothing said is ever contradicted, although the last verdicts were not stored
    assert await answers() == said
    assert site.stored() == [number]


async def test_whatever_power_loss_comes_between_every_delta_is_counted_once(site: Site, seed: int) -> None:
    rng = np.random.default_rng(seed)
    old: list[tuple[int, bytes]] = []
    for _ in range(40):
        step = rng.integers(5)
        if step == 0:
            await site.restart()
        elif step == 1 and old:
            await site.resend(old[rng.integers(len(old))][1])
        elif step == 2:
            await site.runtime.advance(float(rng.integers(1, 8)))
        else:
            old += await site.send(int(rng.integers(1, 8)))
    await site.seal()
    assert site.stored() == [number for number, _ in old], f"seed {seed}"


async def test_entries_that_are_no_entries_are_refused_and_passed(site: Site) -> None:
    await site.log.append([NewEntry(0, W, b"\xff no entry")])
    await site.send(1)
    assert site.kinds() == [Reason.MALFORMED, "counted"]


async def test_an_entry_of_a_newer_version_stops_the_partition_and_names_its_place(site: Site) -> None:
    await site.send(2)
    newer = b"\x08\x63" + entry_to_bytes(entry("alice", b""))[2:]  # format_version = 99
    await site.log.append([NewEntry(0, W, newer)])
    with pytest.raises(PartitionStoppedError, match=r"partition 0, entry 2: .* version 99") as caught:
        await site.workers.ended()
    assert isinstance(caught.value.__cause__, LogError)
    assert site.stored() == []


async def test_those_who_wait_for_a_stopped_partition_are_told(site: Site) -> None:
    waiting = [pending(site.workers.passed(0, 5)), pending(site.workers.closed(0, W))]
    await site.runtime.settle()
    await site.log.append([NewEntry(0, W, b"\x08\x63")])
    for each in (*waiting, pending(site.workers.passed(0, 9)), pending(site.workers.forget(W, fence=0))):
        with pytest.raises(PartitionStoppedError, match="partition 0 has stopped"):
            await each


async def test_a_broken_invariant_stops_the_partition_like_any_error(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise AssertionError("an invariant")

    monkeypatch.setattr(Fold, "_admit", broken)
    await site.send(1)
    with pytest.raises(PartitionStoppedError, match="has stopped: AssertionError") as caught:
        await site.workers.ended()
    assert "an invariant" not in str(caught.value), "words of errors that nobody foresaw may hold anything"


async def test_a_checkpoint_that_fails_stops_the_partition_and_loses_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object, **__: object) -> None:
        raise StoreError("disk full")

    await site.send(2)
    monkeypatch.setattr(site.store, "checkpoint", full)
    await site.runtime.advance(5.1)
    with pytest.raises(PartitionStoppedError, match="disk full"):
        await site.workers.ended()
    monkeypatch.undo()
    with pytest.raises(PartitionStoppedError):
        await site.workers.stop()
    assert site.stored() == []  # a later checkpoint would have left out what the failed one held
    await site.restart()
    await site.seal()
    assert site.stored() == [0, 1]


async def test_a_gap_in_the_log_stops_the_partition_and_names_it(site: Site) -> None:
    await site.send(2)
    await site.runtime.advance(5.1)
    await site.die()
    await site.log.append([NewEntry(0, W, b"a"), NewEntry(0, W + 1, b"b")])
    await site.log.forget(W, {0: 3})
    site.workers = site._workers()
    await site.start()
    with pytest.raises(PartitionStoppedError, match="entries 2 to 2 are missing"):
        await site.workers.ended()


async def test_a_log_that_is_older_than_the_store_is_refused_at_the_start(site: Site) -> None:
    await site.send(2)
    await site.runtime.advance(5.1)
    await site.die()
    site.log = PowerLossLog(1, site.runtime)
    site.workers = site._workers()
    with pytest.raises(LogGapError, match="the log ends at 0, but the fold has processed 1"):
        await site.workers.start()


async def test_stopping_stores_where_it_has_come_to_without_waiting_for_entries(site: Site) -> None:
    await site.send(3)
    before = site.runtime.monotonic()
    await site.workers.stop()
    assert site.runtime.monotonic() == before
    assert site.stored() == [0, 1, 2]
    await site.workers.ended()
    with pytest.raises(PartitionStoppedError, match="stopped with the service"):
        await site.workers.passed(0, 99)


async def test_forgetting_is_stored_when_it_returns(site: Site) -> None:
    await site.send(2)
    await site.seal()
    assert site.store.folds[0].state.streams
    await site.workers.forget(W, fence=0)
    state = site.store.folds[0].state
    assert (state.forgotten_through, state.streams) == (W, {})
    assert await site.workers.recall(0, "alice", DeltaId(1, 0), bytes(8), W) == (RememberedKind.UNKNOWN, None)


async def test_a_fold_forgets_only_what_no_replay_will_ask_for(site: Site) -> None:
    """Else the same entry would be a duplicate before a crash, and late after it."""
    ((_, delta),) = await site.send(1)
    await site.seal()
    await site.resend(delta)
    assert site.kinds() == ["counted", "duplicate"]
    await site.die()  # before the duplicate was stored
    site.workers = site._workers()
    await site.store.register(PLAN, 1, W)
    await site.workers.start()
    await site.workers.forget(W, fence=0)  # at once, as a releaser does at its start
    assert [verdict.kind for verdict in site.store.folds[0].verdicts] == [VerdictKind.COUNTED, VerdictKind.DUPLICATE]


async def test_each_partition_folds_its_own_clients() -> None:
    site = Site(partitions=4)
    await site.start()
    clients = [client_of(partition, 4) for partition in range(4)]
    for client in clients:
        await site.send(2, client=client)
    await site.seal()
    assert [site.stored(partition) for partition in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert {verdict.reason for _, verdict in site.observer.verdicts} == {None}
    await site.die()


async def test_the_observer_is_told_of_every_verdict_and_every_checkpoint(site: Site) -> None:
    await site.send(2)
    await site.seal()
    assert [partition for partition, _ in site.observer.verdicts] == [0, 0]
    assert site.observer.checkpoints == [(0, 3)]
