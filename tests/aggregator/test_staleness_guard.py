"""A store that went back to an older moment: no gateway takes its word before the folds have passed the log again."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aggregator.errors import RefusedError
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.observability.health import LOOK_S, SIGHT_S, SOON_S, DependencyProbe
from aggregator.observability.metrics import Metrics
from aggregator.staleness_guard import StalenessGuard
from aggregator.workers.pool import WorkerPool
from aggregator.workers.worker import WorkerSettings
from hushsum_proto.answers import Answer, ServiceReason, Status
from tests.aggregator.cluster import FIRST, Cluster
from tests.aggregator.deltas import client_of, tally
from tests.aggregator.ingest.test_gateway_remote_folds import PLAN, Front
from tests.doubles import RecordingObserver
from tests.hooks import Held, Hooks, reply_lost, unreachable

PARTITIONS = 2

# --------------------------------------------------------------------------------------------------------- what is seen


def staleness(ends: dict[int, int], marks: dict[int, int]) -> StalenessGuard:
    seen = StalenessGuard(PARTITIONS)
    seen.update_positions(marks)
    seen.set_targets(ends)
    return seen


def test_nothing_is_taken_before_anything_was_seen() -> None:
    seen = StalenessGuard(PARTITIONS)
    with pytest.raises(RefusedError) as caught:
        seen.check()
    assert (caught.value.refusal.reason, caught.value.refusal.retry) == (ServiceReason.UNAVAILABLE, True)
    seen.update_positions({0: 5, 1: 5})
    assert seen.why, "where the log ends is not known"
    assert seen.needs_targets


@pytest.mark.parametrize(
    ("ends", "marks", "behind"),
    [
        ({0: 0, 1: 0}, {}, ()),
        ({0: 0, 1: 0}, {0: 0, 1: 0}, ()),
        ({0: 7, 1: 9}, {0: 7, 1: 9}, ()),
        ({0: 7, 1: 9}, {0: 8, 1: 8}, (1,)),
        ({0: 7, 1: 9}, {1: 9}, (0,)),
        ({0: 7, 1: 9}, {0: 6, 1: 0}, (0, 1)),
    ],
)
def test_every_mark_has_to_pass_the_end(ends: dict[int, int], marks: dict[int, int], behind: tuple[int, ...]) -> None:
    seen = staleness(ends, marks)
    assert seen.behind == behind
    assert bool(seen.why) is bool(behind)
    seen.update_positions({0: 10, 1: 10})
    seen.check()


def test_what_is_appended_later_need_not_be_passed() -> None:
    seen = staleness({0: 7, 1: 9}, {0: 7, 1: 9})
    seen.update_positions({0: 7, 1: 9})
    assert not seen.needs_targets
    seen.check()


@pytest.mark.parametrize("marks", [{0: 6, 1: 20}, {1: 20}])
def test_a_mark_that_went_back_shuts_it_until_the_end_of_then_is_passed(marks: dict[int, int]) -> None:
    seen = staleness({0: 7, 1: 9}, {0: 7, 1: 9})
    seen.update_positions(marks)
    assert seen.needs_targets
    assert [*seen.behind] == [0, 1]
    seen.set_targets({0: 30, 1: 20})
    assert [*seen.behind] == [0]
    seen.update_positions({0: 29, 1: 25})
    assert seen.why
    seen.update_positions({0: 30, 1: 25})
    seen.check()


def test_out_of_sight_nothing_is_taken_and_nothing_is_forgotten() -> None:
    seen = staleness({0: 7, 1: 9}, {0: 7, 1: 9})
    seen.invalidate()
    assert seen.why
    assert not seen.behind
    seen.update_positions({0: 7, 1: 9})
    seen.check()
    seen.invalidate()
    seen.update_positions({0: 6, 1: 9})
    assert seen.needs_targets, "it went back meanwhile"


# ------------------------------------------------------------------------------------------------------ from end to end


class Watched(Front):
    """A gateway's process, with what looks at the marks for it."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.seen, self.told = StalenessGuard(cluster.log.partitions), list[bool]()
        self.window_tracker._staleness = self.seen

        async def tell(is_ready: bool) -> None:
            self.told.append(is_ready)

        store, log = self.hooks.around(cluster.store), self.hooks.around(cluster.log)
        self.probe = DependencyProbe(PLAN.id, log, store, cluster.runtime, Metrics(), tell, staleness=self.seen)

    async def start(self) -> None:
        await self.probe.look()
        await super().start()
        self.looking = asyncio.create_task(self.probe.run())
        await self.cluster.runtime.settle()

    async def end(self) -> None:
        self.looking.cancel()
        await asyncio.wait([self.looking])
        await super().end()

    async def send(self, number: int) -> Answer:
        """The answer to a delta of partition 0."""
        return await self.answer(number, client_of(0, PARTITIONS), within_s=1)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster(PLAN, partitions=PARTITIONS)
    made.runtime._now_ms = PLAN.window.start_ms(FIRST) + 1
    await made.register()
    made.sent = 100
    yield made
    await made.end()


def connection(cluster: Cluster) -> sqlite3.Connection:
    database: Any = cluster.store.database  # Any: a backup is taken behind the back of all that uses it
    found: sqlite3.Connection = database.writer._connection
    return found


def is_unavailable(answer: Answer) -> bool:
    refusal = answer.refusal
    return refusal is not None and (refusal.reason, refusal.retry) == (ServiceReason.UNAVAILABLE, True)


async def sealed_and_backed_up(cluster: Cluster) -> bytes:
    """A window with a delta that is folded, then closed; the store as it was before its end."""
    process = await cluster.process(range(PARTITIONS))
    await cluster.append(client_of(0, PARTITIONS), tally(PLAN, 0, FIRST, 1, 0))
    await cluster.pass_time(6)
    assert await cluster.position() == 1
    copy = connection(cluster).serialize()
    await cluster.release()
    await process.workers.lost(range(PARTITIONS))
    return copy


async def test_an_empty_log_and_one_that_is_stored_are_open_at_once(cluster: Cluster) -> None:
    first = Watched(cluster)
    await first.start()
    assert (await first.send(1)).status is Status.ACKNOWLEDGED
    await cluster.process(range(PARTITIONS))
    await cluster.pass_time(6)
    second = Watched(cluster)
    await second.start()
    assert second.told == []
    assert (await second.send(2)).status is Status.ACKNOWLEDGED
    for front in (first, second):
        await front.end()


async def test_over_an_older_store_a_gateway_that_is_first_acknowledges_nothing_that_is_late(cluster: Cluster) -> None:
    copy = await sealed_and_backed_up(cluster)
    connection(cluster).deserialize(copy)
    assert await cluster.store.states(PLAN.id, FIRST, FIRST) == {FIRST: "open"}, "its seal stands in the log"

    front = Watched(cluster)
    await front.start()
    assert front.told == [False]
    ends = await cluster.log.end(0)
    assert [is_unavailable(await front.send(number)) for number in range(1, 9)] == [True] * 8
    assert await cluster.log.end(0) == ends, "nothing was appended"

    await cluster.process(range(PARTITIONS))
    await cluster.pass_time(8)
    assert front.told == [False, True]
    late = [(await front.answer(number, client_of(0, PARTITIONS), within_s=8)).status for number in range(1, 4)]
    assert late == [Status.LATE] * 3
    assert (await front.answer(0, client_of(0, PARTITIONS), within_s=8)).status is Status.COUNTED
    await front.end()


async def test_a_store_that_goes_back_under_a_gateway_shuts_it_at_the_next_look(cluster: Cluster) -> None:
    front = Watched(cluster)
    await front.start()
    copy = connection(cluster).serialize()
    workers = await cluster.process(range(PARTITIONS))
    assert (await front.send(1)).status is Status.ACKNOWLEDGED
    await cluster.pass_time(8)
    await cluster.release()
    await workers.workers.lost(range(PARTITIONS))
    # As a primary that is replaced by a standby that lagged.
    connection(cluster).deserialize(copy)
    await cluster.runtime.advance(LOOK_S + 0.1)
    assert front.told == [False]
    assert is_unavailable(await front.send(2))
    await cluster.process(range(PARTITIONS))
    await cluster.pass_time(8)
    assert front.told == [False, True]
    assert (await front.answer(2, client_of(0, PARTITIONS), within_s=8)).status is Status.LATE
    await front.end()


async def test_what_is_under_way_when_the_store_goes_back_is_not_acknowledged(cluster: Cluster) -> None:
    front = Watched(cluster)
    await front.start()
    held = Held()
    front.hooks.put("append", held)
    answer = front.begin(3, client_of(0, PARTITIONS))
    await cluster.runtime.settle()
    front.seen.update_positions({0: 9})
    front.seen.update_positions({0: 8})
    held.let_go()
    await cluster.runtime.settle()
    assert isinstance(answer, asyncio.Future)
    assert is_unavailable(answer.result())
    await front.end()


async def test_a_store_that_was_away_is_looked_at_before_its_word_is_taken_again(cluster: Cluster) -> None:
    front = Watched(cluster)
    await front.start()
    front.hooks.put("fold_marks", unreachable)
    await cluster.runtime.advance(LOOK_S + 0.01)
    assert is_unavailable(await front.send(1))
    await cluster.runtime.advance(SOON_S)
    assert (await front.send(1)).status is Status.ACKNOWLEDGED
    silent = Held()
    front.hooks.put("fold_marks", silent)
    await cluster.runtime.advance(LOOK_S)
    await cluster.runtime.advance(SIGHT_S)
    assert is_unavailable(front.begin(2))  # type: ignore[arg-type]  # known at once
    assert front.told == [], "for a moment nobody is sent elsewhere"
    await front.end()


async def test_where_the_log_ends_is_asked_until_it_is_known(cluster: Cluster) -> None:
    front = Watched(cluster)
    front.hooks.put("end", reply_lost)
    await front.start()
    assert (await front.send(1)).status is Status.ACKNOWLEDGED
    await front.end()


# ---------------------------------------------------------------------------------------------------- one process alone


async def test_one_process_has_stored_what_the_seals_of_its_log_close_before_it_answers(cluster: Cluster) -> None:
    """Found with a large checkpoint: the folds had passed the seal, and the store still called its window open."""
    await cluster.append(client_of(0, PARTITIONS), tally(PLAN, 0, FIRST, 1, 0))
    await cluster.seal()
    hooks, checkpoint = Hooks(), Held()
    hooks.put("checkpoint", checkpoint)
    store = hooks.around(cluster.store)
    workers = WorkerPool(PLAN, cluster.log, store, cluster.runtime, RecordingObserver(), WorkerSettings())
    await workers.start()
    ready = asyncio.create_task(workers.caught_up())
    await cluster.runtime.settle()
    assert checkpoint.arrived.is_set()
    assert not ready.done(), "its folds have passed the log, and have not stored it"
    checkpoint.let_go()
    await ready
    assert FIRST not in [window for window, state in (await cluster.store.windows(PLAN.id)).items() if state == "open"]
    await workers.stop()


# ----------------------------------------------------------------------------------------------------- a window is lost


async def lose_windows(cluster: Cluster) -> None:
    connection(cluster).execute("DELETE FROM windows")


async def test_a_window_that_the_store_has_lost_is_forgotten(cluster: Cluster) -> None:
    window_tracker = WindowTracker(PLAN, cluster.store, cluster.runtime, skew_ms=0, first_window=FIRST)
    await window_tracker.load()
    assert window_tracker.state(FIRST) == "open"
    await lose_windows(cluster)
    await window_tracker.refresh([FIRST])
    assert window_tracker.state(FIRST) is None
    await window_tracker.open_accepted()
    assert window_tracker.state(FIRST) == "open", "its time has not gone by: it is opened anew"


@pytest.mark.parametrize("here", [False, True])
async def test_who_sent_for_a_window_that_was_lost_meanwhile_is_told_to_send_again(
    cluster: Cluster, *, here: bool
) -> None:
    process = await cluster.process(range(PARTITIONS))
    front = Front(cluster)
    if here:
        front.gateway._folds = process.workers
        front.gateway._inflight._folds = front.gateway._resolver._folds = process.workers
    await front.start()
    held = Held()
    front.hooks.put("states", held)
    answer = front.begin(1, client_of(0, PARTITIONS))
    await cluster.runtime.settle()
    assert held.arrived.is_set()
    await lose_windows(cluster)
    held.let_go()
    await cluster.pass_time(8)
    assert isinstance(answer, asyncio.Future)
    assert is_unavailable(answer.result())
    again = await front.answer(1, client_of(0, PARTITIONS))
    assert again.status is Status.ACKNOWLEDGED, "the clock has opened it anew"
    await front.end()
