import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.group import LeaveGroupRequest

from aggregator.log.kafka.client import KafkaSettings
from aggregator.log.kafka.membership import KafkaMembership
from aggregator.log.kafka.topic import entries_topic, prepare_topic
from aggregator.runtime import SystemRuntime
from hushsum_simulator.testbed.kafka import KafkaBroker
from tests.brokers import ProxiedKafka, fresh_prefix
from tests.doubles import ManualRuntime, RecordingObserver
from tests.plans import small_plan

PLAN = small_plan()
PARTITIONS = 4
ALL = frozenset(range(PARTITIONS))
SESSION_S = 3.0  # a busy machine or broker may pause for some of it


class Owner:
    """Notes what it is told, in one list for all owners; holds a revocation up while ``busy`` is set.

    Attributes:
        held: What it may fold now.
    """

    def __init__(self, name: str, told: list[tuple[str, str, frozenset[int]]]) -> None:
        self.held: frozenset[int] = frozenset()
        self.free = asyncio.Event()
        self.free.set()
        self._name, self._told = name, told

    async def assigned(self, partitions: Collection[int]) -> None:
        self._note("assigned", partitions)
        assert not self.held
        self.held = frozenset(partitions)

    async def revoked(self, partitions: Collection[int]) -> None:
        self._note("revoking", partitions)
        await self.free.wait()
        assert self.held == frozenset(partitions)
        self.held = frozenset()
        self._note("revoked", partitions)

    async def lost(self, partitions: Collection[int]) -> None:
        self._note("lost", partitions)
        assert self.held == frozenset(partitions)
        self.held = frozenset()

    def _note(self, what: str, partitions: Collection[int]) -> None:
        self._told.append((self._name, what, frozenset(partitions)))


class Group:
    """Members of one plan's group, and what their owners were told, in order.

    Attributes:
        session_s: Of members that join from now on.
    """

    def __init__(self, prefix: str) -> None:
        self.told: list[tuple[str, str, frozenset[int]]] = []
        self.session_s = SESSION_S
        self.observer = RecordingObserver()
        self._prefix, self._members = prefix, dict[str, KafkaMembership]()

    async def join(self, name: str, bootstrap: str) -> Owner:
        settings = KafkaSettings(bootstrap, self._prefix, session_s=self.session_s)
        runtime, owner = SystemRuntime(threads=1), Owner(name, self.told)
        self._members[name] = KafkaMembership(settings, PLAN, PARTITIONS, runtime, self.observer)
        await self._members[name].start(owner)
        return owner

    def member(self, name: str) -> KafkaMembership:
        return self._members[name]

    async def leave(self, name: str) -> None:
        await self._members.pop(name).stop()

    async def end(self) -> None:
        for name in list(self._members):
            await self.leave(name)


@pytest.fixture
async def prefix(kafka: KafkaBroker) -> str:
    """Of a plan whose topic is there."""
    settings = KafkaSettings(kafka.bootstrap, fresh_prefix())
    needs = entries_topic(settings, PLAN, PARTITIONS)
    await prepare_topic(settings, needs, SystemRuntime(threads=1), RecordingObserver())
    return settings.prefix


@pytest.fixture
async def group(prefix: str) -> AsyncIterator[Group]:
    members = Group(prefix)
    yield members
    await members.end()


def topic_in(prefix: str) -> str:
    return entries_topic(KafkaSettings("", prefix), PLAN, PARTITIONS).name


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  what is waited for is decided by a broker
        await asyncio.sleep(0.02)


async def test_one_member_gets_all_two_share_them_and_who_leaves_hands_them_over_at_once(
    kafka: KafkaBroker, group: Group
) -> None:
    group.session_s = 300.0  # who left without a word would be waited for as long
    a = await group.join("a", kafka.bootstrap)
    await until(lambda: a.held == ALL)
    b = await group.join("b", kafka.bootstrap)
    await until(lambda: len(a.held) == len(b.held) == 2)
    assert a.held | b.held == ALL
    await group.leave("a")
    assert not a.held
    async with asyncio.timeout(120):
        await until(lambda: b.held == ALL)
    assert [what for name, what, _ in group.told if name == "a"] == ["assigned", "revoking", "revoked"] * 2
    assert "lost" not in {what for _, what, _ in group.told}


async def test_nobody_gets_a_partition_before_its_owner_has_let_it_go(kafka: KafkaBroker, group: Group) -> None:
    a = await group.join("a", kafka.bootstrap)
    await until(lambda: a.held == ALL)
    a.free.clear()
    b = await group.join("b", kafka.bootstrap)
    await until(lambda: group.told[-1] == ("a", "revoking", ALL))
    await asyncio.sleep(1.5 * SESSION_S)  # its session goes on all the while
    assert (a.held, b.held) == (ALL, frozenset())
    a.free.set()
    await until(lambda: len(a.held) == len(b.held) == 2)
    taken = [number for number, (_, what, _) in enumerate(group.told) if what == "assigned"]
    assert group.told.index(("a", "revoked", ALL)) < taken[1]


async def test_a_member_that_is_cut_off_loses_its_partitions_to_the_others_and_is_told(
    kafka_behind_proxy: ProxiedKafka, group: Group
) -> None:
    a = await group.join("a", kafka_behind_proxy.bootstrap)
    b = await group.join("b", kafka_behind_proxy.direct)
    await until(lambda: len(a.held) == len(b.held) == 2)
    kafka_behind_proxy.proxy.fall_silent()
    held = a.held
    await until(lambda: b.held == ALL)
    await until(lambda: ("a", "lost", held) in group.told)
    kafka_behind_proxy.proxy.heal()
    await until(lambda: len(a.held) == len(b.held) == 2)
    assert {what for what, _ in group.observer.retries} == {"kafka-group"}


async def test_a_member_fetches_no_entry_and_commits_no_offset(
    kafka_behind_proxy: ProxiedKafka, group: Group, prefix: str
) -> None:
    topic, direct = topic_in(prefix), kafka_behind_proxy.direct
    await fill(topic, direct, size=50_000, count=40)
    planted = {TopicPartition(topic, 0): 3}  # even where somebody has given the group a place to begin
    await plant_offsets(topic, direct, planted)
    a = await group.join("a", kafka_behind_proxy.bootstrap)
    await until(lambda: a.held == ALL)
    await asyncio.sleep(SESSION_S)
    assert kafka_behind_proxy.proxy.received < 50_000
    await group.leave("a")
    assert await offsets_of(topic, direct) == planted


async def fill(topic: str, bootstrap: str, size: int, count: int) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    for number in range(count):
        await producer.send_and_wait(topic, bytes(size), partition=number % PARTITIONS)
    await producer.stop()


async def plant_offsets(topic: str, bootstrap: str, offsets: dict[TopicPartition, int]) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=topic, enable_auto_commit=False)
    await consumer.start()
    consumer.assign(list(offsets))
    await consumer.commit(offsets)
    await consumer.stop()


async def offsets_of(topic: str, bootstrap: str) -> dict[TopicPartition, int]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    found = await admin.list_consumer_group_offsets(topic)
    await admin.close()
    return {where: committed.offset for where, committed in found.items()}


async def test_a_member_joins_once_a_broker_is_there_and_stays_through_its_restart(
    kafka: KafkaBroker, kafka_behind_proxy: ProxiedKafka, group: Group
) -> None:
    kafka_behind_proxy.proxy.refuse()
    a = await group.join("a", kafka_behind_proxy.bootstrap)
    await until(lambda: group.observer.retries)
    assert not group.told
    kafka_behind_proxy.proxy.heal()
    await until(lambda: a.held == ALL)
    kafka_behind_proxy.proxy.cut()
    await asyncio.sleep(SESSION_S)
    assert group.told == [("a", "assigned", ALL)]


async def test_a_partition_that_somebody_has_added_is_nobodys(kafka: KafkaBroker, group: Group, prefix: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    await admin.create_partitions({topic_in(prefix): NewPartitions(PARTITIONS + 2)})
    await admin.close()
    a = await group.join("a", kafka.bootstrap)
    await until(lambda: a.held)
    assert a.held == ALL


async def test_a_member_that_the_group_has_put_out_has_lost_what_it_held(
    kafka: KafkaBroker, group: Group, prefix: str
) -> None:
    a = await group.join("a", kafka.bootstrap)
    await until(lambda: a.held == ALL)
    member, topic = group.member("a")._member, topic_in(prefix)
    assert member is not None
    coordinator = member.consumer._coordinator
    client = coordinator._client
    await client.send(coordinator.coordinator_id, LeaveGroupRequest(topic, coordinator.member_id))
    await until(lambda: len(group.told) >= 3)
    assert group.told == [("a", "assigned", ALL), ("a", "lost", ALL), ("a", "assigned", ALL)]


async def test_what_nobody_foresaw_ends_the_membership_with_its_partitions_lost_and_is_told(
    kafka: KafkaBroker, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await group.join("a", kafka.bootstrap)
    await until(lambda: a.held == ALL)

    async def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr(AIOKafkaConsumer, "getmany", fail)
    with pytest.raises(ZeroDivisionError, match="unforeseen"):
        await group.member("a").ended()
    assert group.told == [("a", "assigned", ALL), ("a", "lost", ALL)]


async def test_a_membership_that_was_stopped_has_ended(kafka: KafkaBroker, group: Group) -> None:
    await group.join("a", kafka.bootstrap)
    ended = asyncio.create_task(group.member("a").ended())
    await group.leave("a")
    await ended


@pytest.mark.parametrize(("session_s", "beat_ms"), [(1.5, 500), (10.0, 3000), (120.0, 3000)])
async def test_a_long_session_is_no_reason_to_hear_late_of_a_rebalance(session_s: float, beat_ms: int) -> None:
    settings = KafkaSettings("localhost:1", session_s=session_s)
    runtime = SystemRuntime(threads=1)
    membership = KafkaMembership(settings, PLAN, PARTITIONS, runtime, RecordingObserver())
    consumer = membership._new_consumer(settings.client("member"))
    assert consumer._heartbeat_interval_ms == beat_ms
    await consumer.stop()


class _Consumer:
    """A consumer whose group is the test: no broker can be made to send a callback late.

    Attributes:
        listener: What it has subscribed.
        failure: Raised at the next look for errors.
    """

    def __init__(self) -> None:
        self.listener: Any = None  # aiokafka ships no types
        self.failure: KafkaError | None = None
        self._coordinator = SimpleNamespace(member_id="member", _do_heartbeat=self.start)
        self._client, self._fetcher = SimpleNamespace(close=self.stop), None

    async def start(self) -> bool:
        return True

    async def stop(self) -> None: ...

    def pause(self, *partitions: TopicPartition) -> None: ...

    def subscribe(self, topics: list[str], listener: ConsumerRebalanceListener) -> None:
        del topics
        self.listener = listener

    async def getmany(self, *partitions: TopicPartition, timeout_ms: int) -> None:
        del partitions, timeout_ms
        if self.failure is not None:
            raise self.failure


async def test_late_callbacks_of_a_consumer_that_was_given_up_do_not_touch_what_its_successor_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime, told = ManualRuntime(), list[tuple[str, str, frozenset[int]]]()
    settings, consumers = KafkaSettings("localhost:1", session_s=5.0), list[_Consumer]()

    def new_consumer(*_: object) -> _Consumer:
        consumers.append(_Consumer())
        return consumers[-1]

    def some(*partitions: int) -> set[TopicPartition]:
        return {TopicPartition("topic", partition) for partition in partitions}

    monkeypatch.setattr(KafkaMembership, "_new_consumer", new_consumer)
    membership, owner = KafkaMembership(settings, PLAN, PARTITIONS, runtime, RecordingObserver()), Owner("a", told)
    await membership.start(owner)
    await runtime.settle()
    await consumers[0].listener.on_partitions_assigned(some(0, 1))
    consumers[0].failure = KafkaConnectionError("gone")
    await runtime.advance(3)
    await runtime.advance(1)  # the pause before the next attempt
    assert (len(consumers), owner.held) == (2, frozenset())
    await consumers[1].listener.on_partitions_assigned(some(2, 3))
    await consumers[0].listener.on_partitions_revoked(some(0, 1))
    assert owner.held == {2, 3}
    await consumers[0].listener.on_partitions_assigned(some(0))
    assert owner.held == {2, 3}
    await runtime.advance(3)
    await consumers[0]._coordinator._do_heartbeat()  # a late answer to the old one is no sign of life of the new one
    await runtime.advance(3)
    assert not owner.held
    await membership.stop()
