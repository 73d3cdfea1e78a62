"""Acknowledged means durable: a gateway over a log that loses power forgets nothing that it has acknowledged."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from aggregator.ingest.gateway import Gateway
from aggregator.ingest.group_commit import CommitLimits, GroupCommitter
from aggregator.ingest.inflight import InflightTable, ReceivedDelta
from aggregator.ingest.validation import ExactDeltas
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.model import NewEntry
from aggregator.observability.metrics import Metrics
from aggregator.rate_limits import QuotaReservation, SendLimits
from aggregator.workers.pool import WorkerPool
from aggregator.workers.worker import WorkerSettings
from hushsum.delta import DeltaId, read_header
from hushsum.errors import Reason
from hushsum_proto.answers import Answer, ServiceReason, Status
from hushsum_proto.convert import entry_from_bytes
from hushsum_proto.entries import DeltaEntry
from tests.doubles import ManualRuntime, MemoryStore, PowerLossLog, RecordingObserver
from tests.plans import small_plan
from tests.services import HOUR_MS, NOW_MS, Contributor

PLAN = small_plan(sketch={"rows": 2, "buckets": 8})
PARTITIONS = 3


class HastyLog(PowerLossLog):
    """The planted fault: it returns before the sync does."""

    async def append(self, entries: Sequence[NewEntry]) -> list[int]:
        positions = [await self.end(entry.partition) for entry in entries]
        self._unsynced += entries
        return positions


class CountingStore(MemoryStore):
    """Counts the reads that acknowledgements are made by."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    async def states(self, plan_id: bytes, first: int, last: int) -> dict[int, str]:
        self.reads += 1
        return await super().states(plan_id, first, last)


class World:
    """A gateway and its folds over doubles."""

    def __init__(self, log: PowerLossLog, *, skew_ms: int = 0, **limits: int) -> None:
        self.runtime = ManualRuntime(NOW_MS)
        self.sends = SendLimits(10.0**6, 10**6, 10**6, self.runtime)
        self.log = log
        self.store = CountingStore()
        self.metrics = Metrics()
        window = PLAN.window.index_at(NOW_MS)
        self.window_tracker = WindowTracker(PLAN, self.store, self.runtime, skew_ms=skew_ms, first_window=window)
        sizes = {
            "pending_entries_max": 1000,
            "pending_bytes_max": 10**6,
            "group_entries_max": 16,
            "group_bytes_max": 10**5,
        }
        self.commits = GroupCommitter(
            log, self.window_tracker, self.runtime, CommitLimits(**{**sizes, **limits}), self.metrics
        )
        self.workers = WorkerPool(PLAN, log, self.store, self.runtime, RecordingObserver(), WorkerSettings())
        self.gateway = Gateway(
            PLAN,
            window_tracker=self.window_tracker,
            commits=self.commits,
            folds=self.workers,
            runtime=self.runtime,
            metrics=self.metrics,
            pending_entries_max=1000,
            policy=ExactDeltas(PLAN, self.sends),
        )

    async def start(self) -> "World":
        await self.store.register(PLAN, self.log.partitions, self.window_tracker.first_window)
        await self.window_tracker.load()
        await self.window_tracker.open_accepted()
        await self.workers.start()
        self.commits.start()
        return self

    async def stop(self) -> None:
        self.log.let_go()
        self.gateway.stop_accepting()
        await self.workers.stop()  # first: over a faulty log, the folds never pass what the gateway waits for
        await self.gateway.finish()


async def durable_ids(log: PowerLossLog) -> set[tuple[str, DeltaId]]:
    """What is found after power came back."""
    after = log.lose_power()
    found = set()
    for partition in range(after.partitions):
        for positioned in (await after.read(partition, 0, 10**6, 0.0)).entries:
            entry = entry_from_bytes(positioned.data)
            assert isinstance(entry, DeltaEntry)
            found.add((entry.client_id, read_header(entry.delta).id))
    return found


async def acknowledged_and_lost(log: PowerLossLog, seed: int) -> set[tuple[str, DeltaId]]:
    """Sends deltas while syncs stall and go on at random, then cuts the power at a random moment."""
    choice = random.Random(seed)
    world = await World(log).start()
    contributors = {f"client-{n}": Contributor(PLAN, n) for n in range(5)}
    answers: dict[tuple[str, DeltaId], asyncio.Future[Answer] | Answer] = {}
    for _ in range(choice.randrange(1, 60)):
        log.held = choice.random() < 0.3
        if not log.held:
            log.let_go()
        client_id = choice.choice(list(contributors))
        delta_id, data = contributors[client_id].delta()
        answers[client_id, delta_id] = world.gateway.begin(ReceivedDelta(client_id, PLAN.id, data))
        for _ in range(choice.choice([0, 0, 1, 3, 20])):
            await asyncio.sleep(0)
    acknowledged = {
        key
        for key, answer in answers.items()
        if not isinstance(answer, Answer) and answer.done() and answer.result().status is Status.ACKNOWLEDGED
    }
    durable = await durable_ids(log)
    await world.stop()
    return acknowledged - durable


async def test_what_was_acknowledged_is_there_after_power_is_lost(seed: int) -> None:
    for schedule in range(25):
        assert not await acknowledged_and_lost(PowerLossLog(PARTITIONS), seed + schedule), f"schedule {schedule}"


async def test_a_log_that_returns_before_its_sync_is_found_out(seed: int) -> None:
    assert await acknowledged_and_lost(HastyLog(PARTITIONS), seed)


async def test_one_read_of_the_store_serves_a_group_and_begins_after_its_append(seed: int) -> None:
    log = PowerLossLog(PARTITIONS)
    world = await World(log).start()
    contributor = Contributor(PLAN, 1)
    log.held = True
    first = world.gateway.begin(ReceivedDelta("alice", PLAN.id, contributor.delta()[1]))
    await world.runtime.settle()
    others = [world.gateway.begin(ReceivedDelta("alice", PLAN.id, contributor.delta()[1])) for _ in range(10)]
    reads = world.store.reads
    await world.runtime.settle()
    assert world.store.reads == reads, "nothing is read while the append is not durable"

    log.let_go()
    await world.runtime.settle()

    assert log.syncs == 2
    assert world.store.reads == reads + 2
    for answer in (first, *others):
        assert isinstance(answer, asyncio.Future)
        assert answer.result().status is Status.ACKNOWLEDGED
    await world.stop()


async def test_an_error_after_the_commit_answers_its_delta_and_the_next_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> bool:
        raise RuntimeError("planted")

    world = await World(PowerLossLog(PARTITIONS)).start()
    data = Contributor(PLAN, 1).delta()[1]
    with monkeypatch.context() as patch:
        patch.setattr(InflightTable, "appended", failing)
        first = world.gateway.begin(ReceivedDelta("alice", PLAN.id, data))
        await world.runtime.settle()
    again = world.gateway.begin(ReceivedDelta("alice", PLAN.id, data))
    await world.runtime.settle()
    for given in (first, again):
        answer = given.result() if isinstance(given, asyncio.Future) else given
        assert answer.refusal is not None
        assert (answer.refusal.reason, answer.refusal.retry) == (ServiceReason.UNAVAILABLE, True)
    await world.stop()


async def test_an_id_in_flight_is_refused_with_other_bytes_and_for_another_window() -> None:
    log = PowerLossLog(PARTITIONS)
    world = await World(log, skew_ms=HOUR_MS).start()
    window = world.window_tracker.first_window
    log.held = True
    id, data = Contributor(PLAN, 1, window).delta()
    first = world.gateway.begin(ReceivedDelta("alice", PLAN.id, data))
    await world.runtime.settle()

    others = [Contributor(PLAN, 1, window).delta(2)[1], Contributor(PLAN, 1, window + 1).delta()[1]]
    answers = [world.gateway.begin(ReceivedDelta("alice", PLAN.id, other)) for other in others]
    again = world.gateway.begin(ReceivedDelta("alice", PLAN.id, data))

    assert [
        (answer.id, answer.refusal and answer.refusal.reason) for answer in answers if isinstance(answer, Answer)
    ] == [
        (id, Reason.ID_REUSED),
        (id, Reason.ID_OF_ANOTHER_WINDOW),
    ]
    log.let_go()
    await world.runtime.settle()
    for answer in (first, again):
        assert isinstance(answer, asyncio.Future)
        assert answer.result().status is Status.ACKNOWLEDGED
    assert await durable_ids(log) == {("alice", id)}
    await world.stop()


@pytest.mark.parametrize(
    ("limits", "groups"),
    (({"group_entries_max": 4}, [1, 4, 4, 2]), ({"group_bytes_max": 1}, [1] * 11)),
)
async def test_groups_are_bounded_in_entries_and_in_bytes(limits: Mapping[str, int], groups: list[int]) -> None:
    log = PowerLossLog(PARTITIONS)
    world = await World(log, **limits).start()
    contributor = Contributor(PLAN, 1)
    log.held = True
    world.gateway.begin(ReceivedDelta("alice", PLAN.id, contributor.delta()[1]))
    await world.runtime.settle()
    for _ in range(10):
        world.gateway.begin(ReceivedDelta("alice", PLAN.id, contributor.delta()[1]))
    log.let_go()
    await world.runtime.settle()

    assert log.syncs == len(groups)
    assert world.metrics.registry.get_sample_value("hushsum_group_entries_sum") == sum(groups)
    await world.stop()


async def test_a_gateway_forgets_a_delta_once_the_fold_has_passed_it() -> None:
    world = await World(PowerLossLog(PARTITIONS)).start()
    contributor = Contributor(PLAN, 1)
    for n in range(60):
        world.gateway.begin(ReceivedDelta(f"client-{n % 7}", PLAN.id, contributor.delta()[1]))
    await world.runtime.settle()

    assert world.gateway.waiting == 0
    assert world.metrics.registry.get_sample_value("hushsum_deltas_total", {"status": "acknowledged"}) == 60
    await world.stop()


async def test_what_a_stopped_fold_cannot_say_is_unavailable() -> None:
    log = PowerLossLog(PARTITIONS)
    world = await World(log).start()
    log.held = True
    answer = world.gateway.begin(ReceivedDelta("alice", PLAN.id, Contributor(PLAN, 1).delta()[1]))
    await world.runtime.settle()
    await world.store.mark_closing(PLAN.id, world.window_tracker.first_window, fence=0)
    await world.workers.stop()
    log.let_go()
    await world.runtime.settle()

    assert isinstance(answer, asyncio.Future)
    refusal = answer.result().refusal
    assert refusal is not None
    assert (refusal.reason, refusal.retry) == (ServiceReason.UNAVAILABLE, True)
    await world.gateway.finish()


async def test_of_deltas_that_come_in_one_turn_each_gets_its_own_answer() -> None:
    world = await World(PowerLossLog(PARTITIONS)).start()
    contributor = Contributor(PLAN, 1)
    sent = [contributor.delta() for _ in range(6)]
    answers: list[list[Answer]] = [[] for _ in range(9)]
    for n, (_, data) in enumerate(sent):
        world.gateway.send(ReceivedDelta(f"client-{n % 2}", PLAN.id, data), answers[n].append)
    world.gateway.send(ReceivedDelta("client-0", PLAN.id, sent[0][1]), answers[6].append)  # the same once more
    world.gateway.send(ReceivedDelta("client-0", PLAN.id, sent[1][1][:-1]), answers[7].append)
    world.gateway.send(ReceivedDelta("client-0", bytes(32), sent[2][1]), answers[8].append)
    assert not any(answers), "nothing is told before the caller goes on"
    await world.runtime.settle()

    assert [[(each.id, each.status) for each in some] for some in answers[:6]] == [
        [(id, Status.ACKNOWLEDGED)] for id, _ in sent
    ]
    assert answers[6] == answers[0]
    refusals = [(each.id, each.refusal and each.refusal.reason) for some in answers[7:] for each in some]
    assert refusals == [(sent[1][0], Reason.MALFORMED), (sent[2][0], Reason.WRONG_PLAN)]
    assert len(await durable_ids(world.log)) == 6
    count = world.metrics.registry.get_sample_value
    assert count("hushsum_deltas_total", {"status": "acknowledged"}) == 7
    await world.stop()


async def test_an_empty_delta_after_a_refused_one_of_its_client_leaves_the_others_of_its_turn_their_answers() -> None:
    world = await World(PowerLossLog(PARTITIONS)).start()
    answers: list[list[Answer]] = [[] for _ in range(4)]
    id, good = Contributor(PLAN, 1).delta()
    for n, (client, data) in enumerate((("a", b"junk"), ("a", b""), ("b", b"other junk"), ("b", good))):
        world.gateway.send(ReceivedDelta(client, PLAN.id, data), answers[n].append)
    await world.runtime.settle()

    assert [answer.status for (answer,) in answers] == [*[Status.REFUSED] * 3, Status.ACKNOWLEDGED]
    assert answers[3][0].id == id
    assert len(world.sends) == 0, "nothing is held any more"
    await world.stop()


@pytest.mark.parametrize("broken", ("release", "caller"))
async def test_an_error_while_one_delta_is_answered_fails_that_delta_alone(
    monkeypatch: pytest.MonkeyPatch, *, broken: str
) -> None:
    world = await World(PowerLossLog(PARTITIONS)).start()
    answers: list[list[Answer]] = [[] for _ in range(6)]

    def on_answer(n: int, answer: Answer) -> None:
        answers[n].append(answer)
        if broken == "caller" and n in {0, 3}:
            raise RuntimeError("planted")

    def answered(reservation: QuotaReservation, answer: Answer) -> None:
        reservation.release()
        if broken == "release" and reservation.owner == "broken":
            raise RuntimeError("planted")

    monkeypatch.setattr(QuotaReservation, "answered", answered)
    contributor = Contributor(PLAN, 1)
    for n in range(6):  # the first three are refused at once, the others are answered after one append
        data = b"junk" if n < 3 else contributor.delta()[1]
        world.gateway.send(ReceivedDelta("broken" if n % 3 == 0 else "alice", PLAN.id, data), partial(on_answer, n))
    await world.runtime.settle()

    good = [Status.REFUSED] * 3 + [Status.ACKNOWLEDGED] * 3
    failed = [Status.REFUSED] * 4 + [Status.ACKNOWLEDGED] * 2
    assert [answer.status for (answer,) in answers] == (failed if broken == "release" else good)
    if broken == "release":
        for (answer,) in (answers[0], answers[3]):
            assert answer.refusal is not None
            assert answer.refusal.reason is ServiceReason.UNAVAILABLE, "it may be sent again"
    assert len(world.sends) == 0, "nothing is held any more"
    answer = await world.gateway.submit(ReceivedDelta("alice", PLAN.id, contributor.delta()[1]))
    assert answer.status is Status.ACKNOWLEDGED, "later groups are still written"
    await world.stop()


async def test_deltas_that_cannot_be_parsed_together_are_parsed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ExactDeltas, deltas: Sequence[bytes]) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(ExactDeltas, "parse_many", broken)
    world = await World(PowerLossLog(PARTITIONS)).start()
    contributor, answers = Contributor(PLAN, 1), list[Answer]()
    for data in (contributor.delta()[1], b"junk", contributor.delta()[1]):
        world.gateway.send(ReceivedDelta("alice", PLAN.id, data), answers.append)
    await world.runtime.settle()
    assert [answer.status for answer in answers] == [Status.REFUSED, *[Status.ACKNOWLEDGED] * 2]
    await world.stop()


async def test_what_came_just_before_the_end_is_still_answered() -> None:
    world = await World(PowerLossLog(PARTITIONS)).start()
    answers: list[Answer] = []
    world.gateway.send(ReceivedDelta("alice", PLAN.id, Contributor(PLAN, 1).delta()[1]), answers.append)
    await world.gateway.finish()
    assert [answer.status for answer in answers] == [Status.ACKNOWLEDGED]
    await world.workers.stop()
