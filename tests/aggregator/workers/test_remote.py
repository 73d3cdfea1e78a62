"""What a gateway and a releaser are told of folds that run in other processes."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from functools import cache
from typing import Any

import pytest

from aggregator.errors import FencedError, FoldsBehindError, StoreError
from aggregator.fold.verdicts import RememberedKind
from aggregator.model import StreamMemory
from aggregator.workers.remote import RemoteFolds
from hushsum.delta import DeltaId, digest
from tests.aggregator.cluster import FIRST, Cluster, Process
from tests.aggregator.deltas import client_of, tally, tally_plan
from tests.doubles import RecordingObserver
from tests.hooks import Hooks, unreachable

PLAN = tally_plan(records_per_client=6)


@cache
def bytes_of(sequence: int, window: int, stream: int) -> bytes:
    return tally(PLAN, sequence, window, stream, sequence)


class Elsewhere:
    """A process without folds."""

    def __init__(self, cluster: Cluster) -> None:
        self.hooks, self.observer = Hooks(), RecordingObserver()
        self.folds = RemoteFolds(cluster.plan, self.hooks.around(cluster.store), cluster.runtime, self.observer)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster(PLAN)
    await made.register(windows=3)
    yield made
    await made.end()


@pytest.fixture
async def elsewhere(cluster: Cluster) -> AsyncIterator[Elsewhere]:
    made = Elsewhere(cluster)
    yield made
    await made.folds.stop()


def pending(awaitable: Awaitable[Any]) -> "asyncio.Future[Any]":
    return asyncio.ensure_future(awaitable)


# -------------------------------------------------------------------------------------------------- the fold's own word


Sending = tuple[str, int, int, int]  # client, stream, sequence number, window


async def compared(process: Process, folds: RemoteFolds, sent: list[Sending], choice: random.Random) -> set[str]:
    """Asks both of many ids, sent or not; the kinds of answers that came."""
    kinds = set()
    for number in range(60):
        sending = random_sending(choice) if number % 2 or not sent else choice.choice(sent[-60:])
        client, stream, sequence, window = sending
        delta_id = DeltaId(stream, sequence)
        window += choice.choice([-1, 0, 0, 0, 1])
        delta = bytes_of(sequence, window + choice.choice([0, 0, 1]), stream)
        said = await folds.recall(0, client, delta_id, digest(delta), window)
        assert said == await process.workers.recall(0, client, delta_id, digest(delta), window)
        kinds.add(said[1] or said[0].value)
    return kinds


def random_sending(choice: random.Random) -> Sending:
    client = client_of(0, 1, choice.randrange(3))
    return client, choice.randrange(1, 3), choice.randrange(150), FIRST + choice.randrange(3)


async def test_what_is_stored_says_what_the_fold_would_say(cluster: Cluster, elsewhere: Elsewhere, seed: int) -> None:
    choice = random.Random(seed)
    process = await cluster.process([0])
    closed, kinds = FIRST - 1, set[str]()
    sent: list[Sending] = []
    for _ in range(25):
        step = choice.randrange(8)
        if step == 0 and closed < FIRST + 2:
            closed += 1
            await cluster.seal(closed)
        elif step == 1 and closed >= FIRST:
            await process.workers.forget(closed, fence=0)
        else:
            for _ in range(choice.randrange(30)):
                sent.append(random_sending(choice))
                client, stream, sequence, window = sent[-1]
                await cluster.append(client, bytes_of(sequence, window, stream), window)
        await cluster.runtime.advance(5.1)
        kinds |= await compared(process, elsewhere.folds, sent, choice)
    wanted = {"counted", "late", "unknown", "out_of_reach", "id_reused", "id_of_another_window", "too_many_records"}
    assert wanted <= kinds, f"seed {seed}: {kinds}"


async def test_nothing_is_known_at_a_glance(elsewhere: Elsewhere) -> None:
    assert elsewhere.folds.peek(0, "alice", DeltaId(1, 1), bytes(8), FIRST) is None


# ------------------------------------------------------------------------------------------------------------ waiting


async def test_who_waits_is_woken_by_a_checkpoint_and_not_before(cluster: Cluster, elsewhere: Elsewhere) -> None:
    await cluster.process([0])
    first, last = (await cluster.send(2))[0], 1
    passed, beyond = pending(elsewhere.folds.passed(0, first)), pending(elsewhere.folds.passed(0, last + 1))
    await cluster.runtime.advance(1)
    assert not passed.done(), "folded, and not stored"
    for _ in range(10):
        await cluster.runtime.advance(0.5)
    assert passed.done()
    assert not beyond.done()
    closed = pending(elsewhere.folds.closed(0, FIRST))
    await cluster.seal()
    await cluster.runtime.advance(0.6)
    assert closed.done()
    assert beyond.done()


async def test_the_store_is_looked_at_once_for_all_who_wait_and_not_while_nobody_does(
    cluster: Cluster, elsewhere: Elsewhere
) -> None:
    waiting = [pending(elsewhere.folds.passed(0, 0)) for _ in range(100)]
    for _ in range(100):
        await cluster.runtime.advance(0.1)
    looks = elsewhere.hooks.calls["fold_marks"]
    assert 15 <= looks <= 30, "twice a second, once nothing moves"
    for each in waiting:
        each.cancel()
    for _ in range(20):
        await cluster.runtime.advance(0.5)
    assert elsewhere.hooks.calls["fold_marks"] <= looks + 1


async def test_a_store_that_is_away_for_a_moment_is_looked_at_again(cluster: Cluster, elsewhere: Elsewhere) -> None:
    await cluster.process([0])
    await cluster.send(1)
    elsewhere.hooks.put("fold_marks", unreachable, unreachable)
    passed = pending(elsewhere.folds.passed(0, 0))
    for _ in range(12):
        await cluster.runtime.advance(0.5)
    assert passed.done()
    assert [what for what, _ in elsewhere.observer.retries] == ["fold_marks"] * 2


async def test_a_store_that_is_damaged_is_told_to_all_who_wait(cluster: Cluster, elsewhere: Elsewhere) -> None:
    kept = list[StoreError]()

    async def damaged(_: object) -> object:
        raise StoreError("it is damaged")

    elsewhere.hooks.put("fold_marks", damaged)
    waiting = [pending(elsewhere.folds.passed(0, 0)) for _ in range(2)]
    await cluster.runtime.advance(0.1)
    for passed in waiting:
        with pytest.raises(StoreError, match="damaged") as caught:
            await passed
        kept.append(caught.value)
    assert kept[0] is not kept[1], "a shared error would keep the frames of all waiters"
    await cluster.process([0])
    await cluster.send(1)
    again = pending(elsewhere.folds.passed(0, 0))
    for _ in range(12):
        await cluster.runtime.advance(0.5)
    assert again.done()


async def test_a_window_that_a_fold_does_not_close_is_told(cluster: Cluster, elsewhere: Elsewhere) -> None:
    closed = pending(elsewhere.folds.closed(0, FIRST))
    await cluster.runtime.advance(61)
    with pytest.raises(FoldsBehindError, match=f"the fold of partition 0 did not close window {FIRST} within 60 s"):
        await closed


# --------------------------------------------------------------------------------------------------------- forgetting


async def test_folds_elsewhere_are_asked_to_forget_and_waited_for(cluster: Cluster, elsewhere: Elsewhere) -> None:
    await cluster.process([0])
    await cluster.send(2)
    forgotten = pending(elsewhere.folds.forget(FIRST, fence=await cluster.release()))
    await cluster.runtime.settle()
    assert not forgotten.done()
    for _ in range(6):
        await cluster.runtime.advance(0.5)
    await forgotten
    assert (await cluster.store.fold_marks(PLAN.id))[0].forgotten_through == FIRST
    delta = tally(PLAN, 0, FIRST, 1, 0)
    assert await elsewhere.folds.recall(0, client_of(0, 1), DeltaId(1, 0), digest(delta), FIRST) == (
        RememberedKind.UNKNOWN,
        None,
    )


async def test_folds_that_do_not_forget_in_time_are_named(cluster: Cluster, elsewhere: Elsewhere) -> None:
    process = await cluster.process([0])
    fence = await cluster.release()
    await process.workers.revoked([0])
    forgotten = pending(elsewhere.folds.forget(FIRST, fence=fence))
    await cluster.runtime.advance(10.1)
    with pytest.raises(FoldsBehindError, match=r"partitions \[0\] did not erase window 100 within 10 s"):
        await forgotten
    with pytest.raises(FencedError):
        await elsewhere.folds.forget(FIRST, fence=fence - 1)


async def test_a_stream_of_a_newer_format_is_not_guessed_at(cluster: Cluster, elsewhere: Elsewhere) -> None:
    mark = (await cluster.store.fold_marks(PLAN.id))[0]

    async def newer(_: object) -> object:
        return StreamMemory(b"\x7f", mark)

    elsewhere.hooks.put("stream_memory", newer)
    with pytest.raises(StoreError, match="format 127"):
        await elsewhere.folds.recall(0, "alice", DeltaId(1, 1), bytes(8), FIRST)
