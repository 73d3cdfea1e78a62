"""Partitions that come and go: whatever moves, fails or sleeps, every delta is counted once."""

import asyncio
import gc
import io
import json
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from aggregator.errors import LogGapError, LogUnavailableError, PartitionStoppedError, StoreError, StoreUnavailableError
from aggregator.fold.fold import Fold
from aggregator.fold.verdicts import RememberedKind
from aggregator.logs import write_journal
from aggregator.model import NewEntry
from hushsum.delta import DeltaId, digest
from tests.aggregator.cluster import FIRST, Cluster, Process
from tests.aggregator.deltas import client_of, tally, tally_plan
from tests.hooks import Held, Hook, reply_lost, straight, unreachable

PLAN = tally_plan()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster(PLAN)
    await made.register()
    yield made
    await made.end()


def pending(awaitable: Awaitable[Any]) -> "asyncio.Future[Any]":
    return asyncio.ensure_future(awaitable)


# ------------------------------------------------------------------------------------------------------------- fences


async def test_a_worker_paused_in_mid_checkpoint_while_its_partition_moved_writes_nothing(cluster: Cluster) -> None:
    sleeper = await cluster.process([0])
    await cluster.send(3)
    checkpoint = Held()
    sleeper.hooks.put("checkpoint", checkpoint)
    await cluster.runtime.advance(5.1)
    assert checkpoint.arrived.is_set()
    other = await cluster.process([0])
    await cluster.send(2)
    await cluster.runtime.advance(5.1)
    assert await cluster.position() == 5
    checkpoint.let_go()
    await cluster.runtime.settle()
    assert await cluster.position() == 5
    assert [what for what, _ in sleeper.observer.retries] == ["fold"]
    assert sleeper.observer.partition_stops == other.observer.partition_stops == []
    await cluster.seal()
    assert await cluster.counted() == [1] * 5


async def test_a_worker_that_slept_and_wakes_before_its_checkpoint_writes_nothing(cluster: Cluster) -> None:
    sleeper = await cluster.process([0])
    await cluster.send(3)  # folded, and not stored
    await cluster.process([0])
    claims = sleeper.hooks.calls["claim_partition"]
    await cluster.runtime.advance(5.1)
    assert [what for what, _ in sleeper.observer.retries] == ["fold"]
    await cluster.runtime.advance(1)
    assert sleeper.hooks.calls["claim_partition"] == claims, "it gives itself time to hear that it has lost it"
    await sleeper.workers.lost([0])
    await cluster.runtime.advance(10)
    assert sleeper.hooks.calls["claim_partition"] == claims
    await cluster.seal()
    assert await cluster.counted() == [1] * 3


async def test_a_worker_that_was_fenced_and_keeps_its_partition_claims_it_back(cluster: Cluster) -> None:
    first = await cluster.process([0])
    second = await cluster.process([0])
    await second.workers.lost([0])
    await cluster.send(3)
    await cluster.runtime.advance(5.1)
    await cluster.runtime.advance(5.1)
    await cluster.seal()
    assert await cluster.counted() == [1] * 3
    assert first.workers.held == {0}


# ------------------------------------------------------------------------------------------------- transient failures


@pytest.mark.parametrize("failure", [unreachable, reply_lost])
async def test_a_checkpoint_whose_fate_is_unknown_has_the_fold_loaded_anew(cluster: Cluster, failure: Hook) -> None:
    process = await cluster.process([0])
    await cluster.send(3)
    process.hooks.put("checkpoint", straight, failure, failure)
    await cluster.runtime.advance(5.1)
    for _ in range(4):
        await cluster.send(2)
        for _ in range(12):
            await cluster.runtime.advance(0.5)
    assert await cluster.position() == 11
    await cluster.seal()
    assert await cluster.counted() == [1] * 11
    assert [what for what, _ in process.observer.retries] == ["fold", "fold"]
    assert process.observer.partition_stops == []
    assert process.hooks.calls["claim_partition"] == 3


async def test_a_store_that_cannot_be_reached_at_first_is_asked_ever_more_rarely(cluster: Cluster) -> None:
    process = await cluster.process()
    process.hooks.put("claim_partition", *[unreachable] * 1000)
    await process.workers.assigned([0])
    await cluster.send(1)
    for _ in range(300):
        await cluster.runtime.advance(0.1)
    assert 8 <= process.hooks.calls["claim_partition"] <= 12
    process.hooks.clear()
    await cluster.pass_time(12)
    await cluster.seal()
    assert await cluster.counted() == [1]


async def test_a_read_that_fails_for_a_moment_loads_nothing_anew(cluster: Cluster) -> None:
    process = await cluster.process()

    async def away(_: object) -> object:
        raise LogUnavailableError("the broker is away")

    process.log_hooks.put("read", away, away)
    await process.workers.assigned([0])
    await cluster.send(2)
    for _ in range(10):
        await cluster.runtime.advance(0.1)
    assert len(process.observer.verdicts) == 2
    assert process.hooks.calls["claim_partition"] == 1
    assert process.observer.retries == [("read", "the broker is away")] * 2


async def test_what_was_passed_is_waited_for_again_when_the_fold_was_loaded_anew(cluster: Cluster) -> None:
    process = await cluster.process([0])
    (position,) = await cluster.send(1)
    await process.workers.passed(0, position)
    client, delta = client_of(0, 1), tally(PLAN, 0, FIRST, 1, 0)
    reading = Held()
    process.hooks.put("checkpoint", unreachable)
    await cluster.runtime.advance(5.05)
    assert process.workers.peek(0, client, DeltaId(1, 0), digest(delta), FIRST) is None, "no fold is here now"
    process.log_hooks.put("read", reading)
    await cluster.runtime.advance(0.1)
    passed = pending(process.workers.passed(0, position))
    await cluster.runtime.settle()
    assert not passed.done()
    reading.let_go()
    await passed
    recalled = await process.workers.recall(0, client, DeltaId(1, 0), digest(delta), FIRST)
    assert recalled == (RememberedKind.COUNTED, None)


async def test_a_fold_that_is_dropped_the_moment_it_passes_has_passed_nothing(cluster: Cluster) -> None:
    process = await cluster.process([0])
    passed = pending(process.workers.passed(0, 0))
    await cluster.runtime.settle()

    def dropped(*_: object) -> None:
        process.workers._held.pop(0).drop()

    process.observer.folded = dropped  # type: ignore[method-assign, assignment]  # called once the waiting are woken
    await cluster.send(1)
    with pytest.raises(StoreUnavailableError, match="folded by another process"):
        await passed


async def test_who_waits_for_a_window_waits_through_a_reload(cluster: Cluster) -> None:
    process = await cluster.process([0])
    await cluster.send(2)
    closed = pending(process.workers.closed(0, FIRST))
    process.hooks.put("checkpoint", reply_lost)
    await cluster.seal()
    assert not closed.done()
    await cluster.runtime.advance(1)
    await closed
    process.hooks.put("checkpoint", unreachable)
    forgotten = pending(process.workers.forget(FIRST, fence=0))
    await cluster.runtime.settle()
    assert not forgotten.done()
    await cluster.runtime.advance(1)
    await forgotten
    assert (await cluster.store.fold_marks(PLAN.id))[0].forgotten_through == FIRST


# ------------------------------------------------------------------------------------------------------------- moves


async def test_a_partition_that_moves_is_stored_before_it_is_let_go(cluster: Cluster) -> None:
    before = await cluster.process([0])
    await cluster.send(3)
    started_s = cluster.runtime.monotonic()
    await before.workers.revoked([0])
    assert cluster.runtime.monotonic() == started_s, "it does not wait for entries"
    assert await cluster.position() == 3
    after = await cluster.process([0])
    await cluster.send(2)
    await cluster.seal()
    assert await cluster.counted() == [1] * 5
    assert len(after.observer.verdicts) == 2
    assert [sorted(held) for held in before.observer.held] == [[0], []]


async def test_a_partition_that_moves_in_mid_checkpoint_is_let_go_when_that_is_stored(cluster: Cluster) -> None:
    process = await cluster.process([0])
    await cluster.send(3)
    checkpoint = Held()
    process.hooks.put("checkpoint", checkpoint)
    await cluster.runtime.advance(5.1)
    revoked = pending(process.workers.revoked([0]))
    await cluster.runtime.settle()
    assert not revoked.done()
    checkpoint.let_go()
    await revoked
    assert await cluster.position() == 3


async def test_a_checkpoint_that_hangs_does_not_hold_a_move_for_ever(cluster: Cluster) -> None:
    process = await cluster.process([0])
    await cluster.send(3)
    checkpoint = Held()
    process.hooks.put("checkpoint", checkpoint)
    revoked = pending(process.workers.revoked([0]))
    await cluster.runtime.advance(9.9)
    assert not revoked.done()
    await cluster.runtime.advance(0.2)
    await revoked
    assert process.observer.retries == [("revoke", "partition 0 was not stored within 10 s")]
    await cluster.process([0])
    await cluster.seal()
    assert await cluster.counted() == [1] * 3


async def test_a_partition_that_moves_while_it_is_claimed_is_let_go_at_once(cluster: Cluster) -> None:
    process = await cluster.process()
    process.hooks.put("claim_partition", Held())
    await process.workers.assigned([0])
    await cluster.runtime.settle()
    await process.workers.revoked([0])
    assert process.workers.held == frozenset()


async def test_a_partition_that_is_lost_is_dropped_and_nothing_of_it_is_stored(cluster: Cluster) -> None:
    process = await cluster.process([0])
    await cluster.send(3)
    await process.workers.lost([0])
    await cluster.runtime.advance(10)
    assert process.hooks.calls["checkpoint"] == 0
    assert await cluster.position() == 0


async def test_a_partition_that_is_assigned_twice_is_claimed_once(cluster: Cluster) -> None:
    process = await cluster.process([0])
    await cluster.send(1)
    await process.workers.assigned([0])
    await cluster.send(1)
    assert process.hooks.calls["claim_partition"] == 1
    await cluster.seal()
    assert await cluster.counted() == [1, 1]


async def test_what_is_folded_by_another_process_is_said_to_be(cluster: Cluster) -> None:
    process = await cluster.process()
    with pytest.raises(StoreUnavailableError, match="partition 0 is folded by another process"):
        await process.workers.passed(0, 0)


# ------------------------------------------------------------------------------------------- fatal errors, forgetting


async def test_a_partition_that_cannot_go_on_stops_alone_and_says_why() -> None:
    cluster = Cluster(PLAN, partitions=2)
    await cluster.register()
    process = await cluster.process([0, 1])
    ended = pending(process.workers.ended())
    await cluster.log.append([NewEntry(0, FIRST, b"\x08\x63")])  # of a newer format
    await cluster.send(2, partition=1)
    await cluster.runtime.advance(5.1)
    ((partition, why),) = process.observer.partition_stops
    assert partition == 0
    assert "version 99" in why
    assert await cluster.position(1) == 2, "the other one goes on"
    assert not ended.done()
    with pytest.raises(PartitionStoppedError, match="version 99"):
        await process.workers.passed(0, 5)
    ended.cancel()
    await cluster.end()


async def test_folds_forget_what_the_store_was_asked_for_once_they_have_passed_the_log_of_then(
    cluster: Cluster,
) -> None:
    process = await cluster.process([0])
    await cluster.send(2)
    fence = await cluster.release()
    reading = Held()
    process.log_hooks.put("read", reading)
    await cluster.send(1)  # the read under way gets it; the next one is held
    await cluster.send(1)
    await cluster.store.ask_to_forget(PLAN.id, FIRST, fence=fence)
    await cluster.runtime.advance(1.1)
    marks = (await cluster.store.fold_marks(PLAN.id))[0]
    assert marks.forgotten_through < FIRST, "what stood in the log when it was asked is not passed yet"
    reading.let_go()
    await cluster.runtime.advance(1.1)
    marks = (await cluster.store.fold_marks(PLAN.id))[0]
    assert (marks.position, marks.forgotten_through) == (5, FIRST)
    checkpoints = process.hooks.calls["checkpoint"]
    for _ in range(5):
        await cluster.runtime.advance(1.1)
    assert process.hooks.calls["checkpoint"] == checkpoints, "once is enough"


async def test_no_more_than_one_stretch_is_read_ahead_of_the_fold(cluster: Cluster) -> None:
    process = await cluster.process([0])
    checkpoint = Held()
    process.hooks.put("checkpoint", checkpoint)
    await cluster.send(50)
    assert checkpoint.arrived.is_set()
    reads = process.log_hooks.calls["read"]
    await cluster.send(200)
    await cluster.runtime.advance(60)
    assert process.log_hooks.calls["read"] == reads
    assert len(process.observer.verdicts) == 50
    checkpoint.let_go()
    await cluster.runtime.settle(2000)
    assert len(process.observer.verdicts) == 250


async def test_folds_are_asked_to_forget_on_and_on_whatever_goes_wrong_and_it_is_told_once(cluster: Cluster) -> None:
    lines = io.StringIO()
    write_journal("info", "json", lines)
    process = await cluster.process([0])

    async def damaged(_: object) -> object:
        raise StoreError("store: a stream state that is none")

    process.hooks.put("forget_asked", *[damaged] * 5)
    fence = await cluster.release()
    await cluster.store.ask_to_forget(PLAN.id, FIRST, fence=fence)
    await cluster.pass_time(5)
    assert (await cluster.store.fold_marks(PLAN.id))[0].forgotten_through < FIRST
    await cluster.pass_time(20)
    assert (await cluster.store.fold_marks(PLAN.id))[0].forgotten_through == FIRST
    assert [json.loads(line)["level"] for line in lines.getvalue().splitlines()] == ["error", "info"]


async def test_a_process_that_shares_its_partitions_ends_well_although_one_has_stopped(cluster: Cluster) -> None:
    process = await cluster.process([0])
    await cluster.log.append([NewEntry(0, FIRST, b"\x08\x63")])  # of a newer format
    await cluster.runtime.settle()
    assert len(process.observer.partition_stops) == 1
    await process.workers.stop()
    await process.workers.ended()


# ------------------------------------------------------------------------------------------- memory of given-up folds


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No collection of cycles: what is freed here is freed by its last reference."""
    gc.disable()
    yield
    gc.enable()


def fold_of(process: Process) -> Callable[[], Fold | None]:
    worker = process.workers._held[0].worker
    assert worker is not None
    return weakref.ref(worker.fold)


@pytest.mark.usefixtures("uncollected")
async def test_a_fold_whose_checkpoint_failed_is_freed_at_once_though_callers_waited_for_it(cluster: Cluster) -> None:
    process = await cluster.process([0])
    await cluster.send(3)
    waiting = [pending(process.workers.passed(0, 100)), pending(process.workers.closed(0, FIRST))]
    await cluster.runtime.settle()
    given_up = fold_of(process)
    process.hooks.put("checkpoint", reply_lost)
    await cluster.runtime.advance(5.1)
    await cluster.runtime.advance(0.5)
    assert fold_of(process)() is not given_up()
    assert given_up() is None
    for call in waiting:
        call.cancel()


@pytest.mark.usefixtures("uncollected")
async def test_a_fold_that_finds_a_gap_in_the_log_is_freed_at_once(cluster: Cluster) -> None:
    process = await cluster.process([0])
    given_up = fold_of(process)

    async def gap(_: Callable[[], Awaitable[object]]) -> object:
        raise LogGapError(0, 0, 5)

    process.log_hooks.put("read", gap)
    await cluster.send(1)
    await cluster.send(1)
    await cluster.pass_time(4)
    assert fold_of(process)() is not None
    assert given_up() is None


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("foreseen", [False, True])
async def test_a_stopped_partition_keeps_no_fold_and_no_frame_of_those_who_ask_for_it(
    cluster: Cluster, foreseen: bool
) -> None:
    journal = io.StringIO()
    write_journal("info", "json", journal)
    process = await cluster.process([0])
    await cluster.send(3)
    given_up = fold_of(process)

    async def break_down(_: Callable[[], Awaitable[object]]) -> object:
        if foreseen:
            raise StoreError("damaged") from ZeroDivisionError("its cause")
        raise ZeroDivisionError("unforeseen")

    process.hooks.put("checkpoint", break_down)
    await cluster.runtime.advance(5.1)
    assert given_up() is None
    assert "break_down" in journal.getvalue(), "the traceback is in the journal alone"
    lengths = set()
    for _ in range(3):
        with pytest.raises(PartitionStoppedError) as stopped:
            await process.workers.passed(0, 100)
        assert ("damaged" if foreseen else "ZeroDivisionError") in str(stopped.value)
        lengths.add(len(stopped.traceback))
    assert len(lengths) == 1, "each caller has an error of its own"


@pytest.mark.usefixtures("uncollected")
async def test_a_partition_that_went_to_another_process_leaves_no_fold_here(cluster: Cluster) -> None:
    process = await cluster.process([0])
    await cluster.send(3)
    given_up = fold_of(process)
    waiting = pending(process.workers.passed(0, 100))
    await cluster.runtime.settle()
    await process.workers.revoked([0])
    with pytest.raises(StoreUnavailableError):
        await waiting
    del waiting
    await cluster.runtime.settle()
    assert given_up() is None
