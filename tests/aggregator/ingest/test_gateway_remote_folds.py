"""A gateway whose folds run in other processes: its answers, its memory, and what it says when it cannot know."""

import asyncio
import io
import json
from collections.abc import AsyncIterator

import pytest

from aggregator.errors import LogUnavailableError
from aggregator.ingest.gateway import Gateway
from aggregator.ingest.group_commit import CommitLimits, GroupCommitter
from aggregator.ingest.inflight import ReceivedDelta
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.interfaces import VERDICT_S
from aggregator.logs import write_journal
from aggregator.observability.metrics import Metrics
from aggregator.rate_limits import DeltaStreamQuota
from aggregator.workers.remote import RemoteFolds
from hushsum_proto.answers import Answer, ServiceReason, Status
from tests.aggregator.cluster import FIRST, Cluster
from tests.aggregator.deltas import tally, tally_plan
from tests.doubles import RecordingObserver
from tests.hooks import Held, Hooks, reply_lost, unreachable

PLAN = tally_plan(records_per_client=3)
PENDING = 40


class Front:
    """A gateway's process."""

    def __init__(self, cluster: Cluster, *, streams: DeltaStreamQuota | None = None, **limits: int) -> None:
        self.hooks, self.runtime = Hooks(), cluster.runtime
        store, log = self.hooks.around(cluster.store), self.hooks.around(cluster.log)
        self.folds = RemoteFolds(PLAN, store, cluster.runtime, RecordingObserver())
        self.window_tracker = WindowTracker(PLAN, store, cluster.runtime, skew_ms=0, first_window=FIRST)
        sizes = {
            "pending_entries_max": 1000,
            "pending_bytes_max": 10**6,
            "group_entries_max": 16,
            "group_bytes_max": 10**5,
        }
        metrics = Metrics()
        self.commits = GroupCommitter(
            log, self.window_tracker, cluster.runtime, CommitLimits(**{**sizes, **limits}), metrics
        )
        self.gateway = Gateway(
            PLAN,
            window_tracker=self.window_tracker,
            commits=self.commits,
            folds=self.folds,
            runtime=cluster.runtime,
            metrics=metrics,
            pending_entries_max=PENDING,
            streams=streams,
        )
        self.cluster = cluster

    async def start(self) -> None:
        await self.window_tracker.load()
        self.commits.start()

    async def end(self) -> None:
        self.gateway.stop_accepting()
        finished = asyncio.ensure_future(self.gateway.finish())
        await self.cluster.pass_time(VERDICT_S + 1)
        await finished
        await self.folds.stop()

    def begin(self, number: int, client: str = "alice") -> Answer | asyncio.Future[Answer]:
        return self.gateway.begin(ReceivedDelta(client, PLAN.id, tally(PLAN, number, FIRST, 1, number)))

    async def answer(self, number: int, client: str = "alice", within_s: float = 3) -> Answer:
        answer = self.begin(number, client)
        if isinstance(answer, Answer):
            return answer
        await self.cluster.pass_time(within_s)
        return answer.result()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster(PLAN)
    made.runtime._now_ms = PLAN.window.start_ms(FIRST) + 1
    await made.register()
    made.sent = 100
    yield made
    await made.end()


@pytest.fixture
async def front(cluster: Cluster) -> AsyncIterator[Front]:
    made = Front(cluster)
    await made.start()
    yield made
    await made.end()


def refusal(answer: Answer) -> tuple[object, bool]:
    assert answer.refusal is not None
    return answer.refusal.reason, answer.refusal.retry


async def test_a_slow_fold_makes_nothing_grow(cluster: Cluster, front: Front) -> None:
    for number in range(10 * PENDING):
        answer = front.begin(number, f"client-{number}")
        await cluster.runtime.settle(30)
        assert isinstance(answer, asyncio.Future)
        assert answer.result().status is Status.ACKNOWLEDGED
        assert front.gateway.waiting == 0


async def test_a_resend_is_appended_again_and_counted_once(cluster: Cluster, front: Front) -> None:
    await cluster.process([0])
    for _ in range(3):
        assert (await front.answer(1)).status is Status.ACKNOWLEDGED
    await cluster.seal()
    assert await cluster.log.end(0) == 4
    assert sum(await cluster.counted()) == 1


async def test_once_a_window_is_over_the_answer_is_what_the_fold_has_stored(cluster: Cluster, front: Front) -> None:
    await cluster.process([0])
    for number in range(4):  # the last one is beyond the bound
        assert (await front.answer(number)).status is Status.ACKNOWLEDGED
    await cluster.release()
    await front.window_tracker.refresh([FIRST])
    ends = await cluster.log.end(0)
    assert (await front.answer(0)).status is Status.COUNTED
    assert refusal(await front.answer(3))[0] == "too_many_records"
    assert (await front.answer(4)).status is Status.LATE
    assert await cluster.log.end(0) == ends, "nothing of a closed window need be written"


@pytest.mark.parametrize("copies", [1, 2])
async def test_while_a_window_closes_the_answer_waits_for_the_folds_checkpoint(
    cluster: Cluster, front: Front, copies: int
) -> None:
    await cluster.process([0])
    for _ in range(copies - 1):
        await front.answer(7)
    held = Held()
    front.hooks.put("append", held)
    answer = front.begin(7)
    await cluster.runtime.settle()
    fence = await cluster.store.acquire_lease(PLAN.id, "by hand", "", 10_000)
    assert fence is not None
    await cluster.store.mark_closing(PLAN.id, FIRST, fence=fence)
    await cluster.seal()
    held.let_go()
    await cluster.runtime.settle()
    assert isinstance(answer, asyncio.Future)
    assert not answer.done(), "the fold has not stored that it passed it"
    await cluster.pass_time(7)
    assert answer.result().status is (Status.LATE if copies == 1 else Status.COUNTED)
    assert front.gateway.waiting == 0


async def test_what_the_fold_does_not_say_in_time_is_unavailable_and_the_resend_gets_the_truth(
    cluster: Cluster, front: Front
) -> None:
    fence = await cluster.store.acquire_lease(PLAN.id, "by hand", "", 10_000)
    assert fence is not None
    await cluster.store.mark_closing(PLAN.id, FIRST, fence=fence)
    answer = front.begin(7)
    assert isinstance(answer, asyncio.Future)
    await cluster.pass_time(VERDICT_S - 2)
    assert not answer.done()
    resent = front.begin(7)
    assert isinstance(resent, asyncio.Future)
    assert front.gateway.waiting == 1, "a resend meanwhile waits for the same"
    await cluster.pass_time(3)
    assert refusal(answer.result()) == (ServiceReason.UNAVAILABLE, True)
    assert resent.result() is answer.result()
    assert front.gateway.waiting == 0
    await cluster.process([0])
    assert (await front.answer(7, within_s=8)).status is Status.COUNTED


async def test_no_more_than_so_many_wait_for_folds_that_lag(cluster: Cluster, front: Front) -> None:
    fence = await cluster.store.acquire_lease(PLAN.id, "by hand", "", 10_000)
    assert fence is not None
    await cluster.store.mark_closing(PLAN.id, FIRST, fence=fence)
    answers = [front.begin(number, f"client-{number}") for number in range(PENDING + 5)]
    await cluster.pass_time(2)
    assert front.gateway.waiting == PENDING
    turned_away = [answer for answer in answers if isinstance(answer, Answer)]
    assert [refusal(answer) for answer in turned_away] == [(ServiceReason.OVERLOADED, True)] * 5


@pytest.mark.parametrize("lost", [unreachable, reply_lost])
@pytest.mark.parametrize("step", ["append", "states", "stream_memory"])
async def test_what_fails_for_a_moment_is_unavailable_and_the_resend_gets_the_truth(
    cluster: Cluster, front: Front, step: str, lost: object
) -> None:
    await cluster.process([0])
    if step == "stream_memory":
        await front.answer(1)
        await cluster.release()
        await front.window_tracker.refresh([FIRST])
    front.hooks.put(step, lost)  # type: ignore[arg-type]  # one of the two above
    assert refusal(await front.answer(1)) == (ServiceReason.UNAVAILABLE, True)
    expected = Status.COUNTED if step == "stream_memory" else Status.ACKNOWLEDGED
    assert (await front.answer(1)).status is expected
    if step != "stream_memory":
        await cluster.seal()
    assert sum(await cluster.counted()) == 1


async def test_every_sender_of_a_group_that_failed_is_told(cluster: Cluster, front: Front) -> None:
    async def away(_: object) -> object:
        raise LogUnavailableError("the brokers are away")

    front.hooks.put("append", away)
    answers = [front.begin(number) for number in range(5)]
    await cluster.runtime.settle()
    said = [answer.result() for answer in answers if isinstance(answer, asyncio.Future)]
    assert [refusal(answer) for answer in said] == [(ServiceReason.UNAVAILABLE, True)] * 5


async def test_one_group_is_on_its_way_at_a_time_and_is_read_for_after_its_own_append(cluster: Cluster) -> None:
    front = Front(cluster, group_entries_max=2)
    await front.start()
    append, read = Held(), Held()
    front.hooks.put("append", append)
    answers = [front.begin(number) for number in range(4)]
    await cluster.runtime.settle()
    assert front.hooks.calls["append"] == 1
    before = front.hooks.calls["states"]
    front.hooks.put("states", read)
    append.let_go()
    await cluster.runtime.settle()
    assert (front.hooks.calls["append"], front.hooks.calls["states"]) == (1, before + 1)
    assert not any(answer.done() for answer in answers if isinstance(answer, asyncio.Future))
    read.let_go()
    await cluster.runtime.settle()
    assert front.hooks.calls["append"] == 2
    assert all(answer.done() for answer in answers if isinstance(answer, asyncio.Future))
    await front.end()


async def test_while_a_database_is_away_the_journal_has_one_line_and_the_metrics_count(
    cluster: Cluster, front: Front
) -> None:
    lines = io.StringIO()
    write_journal("info", "json", lines)
    front.hooks.put("states", *[unreachable] * 50)
    for number in range(50):
        assert refusal(await front.answer(number, within_s=0.01)) == (ServiceReason.UNAVAILABLE, True)
    assert [json.loads(line)["level"] for line in lines.getvalue().splitlines()] == ["warning"]
    await cluster.pass_time(11)
    await front.answer(51)
    assert [json.loads(line)["level"] for line in lines.getvalue().splitlines()] == ["warning", "info"]


async def test_folds_that_do_not_answer_are_one_line_of_the_journal(cluster: Cluster, front: Front) -> None:
    await cluster.process([0])
    await front.answer(1)
    await cluster.release()
    await front.window_tracker.refresh([FIRST])
    lines = io.StringIO()
    write_journal("info", "json", lines)
    front.hooks.put("stream_memory", *[unreachable] * 20)
    for _ in range(20):
        assert refusal(await front.answer(1, within_s=0.01)) == (ServiceReason.UNAVAILABLE, True)
    await cluster.pass_time(11)
    assert (await front.answer(1)).status is Status.COUNTED
    assert [json.loads(line)["level"] for line in lines.getvalue().splitlines()] == ["warning", "info"]


async def test_what_the_log_has_no_room_for_uses_no_stream_up(cluster: Cluster) -> None:
    front = Front(cluster, streams=DeltaStreamQuota(3), pending_entries_max=1)
    await front.start()
    first, *others = [
        front.gateway.begin(ReceivedDelta("alice", PLAN.id, tally(PLAN, 0, FIRST, stream, 0))) for stream in range(9)
    ]
    assert {refusal(answer) for answer in others if isinstance(answer, Answer)} == {(ServiceReason.OVERLOADED, True)}
    assert front.gateway.streams.of("alice", FIRST) == 1
    await cluster.runtime.settle()
    assert isinstance(first, asyncio.Future)
    assert first.result().status is Status.ACKNOWLEDGED
    await front.end()


async def test_each_gateway_bounds_the_streams_of_a_client_by_what_came_to_it(cluster: Cluster) -> None:
    reasons: list[object] = []
    for _ in range(2):  # another gateway, or the same after a start
        front = Front(cluster, streams=DeltaStreamQuota(3))
        await front.start()
        for stream in range(5):
            answer = front.gateway.begin(ReceivedDelta("alice", PLAN.id, tally(PLAN, 0, FIRST, stream, 0)))
            await cluster.runtime.settle()
            told = answer if isinstance(answer, Answer) else answer.result()
            reasons.append(told.status if told.refusal is None else told.refusal.reason)
        await front.end()
    assert reasons == 2 * [*[Status.ACKNOWLEDGED] * 3, *[ServiceReason.TOO_MANY_STREAMS] * 2]
