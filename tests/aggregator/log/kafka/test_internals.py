"""The contract of :mod:`aggregator.log.kafka.internals` with the installed aiokafka, and why each part is needed.

A test of the first kind fails if a private part has changed, one of the second kind if the public interface has become
good enough to be used instead.
"""

import asyncio
import gc
import inspect
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaClient, AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import CorruptRecordException, KafkaStorageError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.memory_records import MemoryRecords

from aggregator.errors import LogUnavailableError
from aggregator.log.kafka.client import KafkaSettings, administration
from aggregator.log.kafka.internals import (
    PartitionClient,
    abandon,
    end_client,
    has_lost_session,
    on_heartbeat,
    topic_id,
    without_transactions,
)
from aggregator.log.kafka.topic import entries_topic, prepare_topic
from aggregator.runtime import SystemRuntime
from hushsum_simulator.testbed.kafka import KafkaBroker
from tests.aggregator.kafka_logs import PLAN, until
from tests.aggregator.log.kafka.test_fetch import batch
from tests.brokers import ProxiedKafka, fresh_prefix
from tests.doubles import RecordingObserver

FETCH = 1  # the API key of a fetch


@pytest.fixture
async def where(kafka: KafkaBroker) -> TopicPartition:
    """A partition of an empty topic."""
    settings = KafkaSettings(kafka.bootstrap, fresh_prefix())
    needs = entries_topic(settings, PLAN, 1)
    await prepare_topic(settings, needs, SystemRuntime(threads=1), RecordingObserver())
    return TopicPartition(needs.name, 0)


@pytest.fixture
async def consumer(kafka: KafkaBroker, where: TopicPartition) -> AsyncIterator[AIOKafkaConsumer]:
    """Reads the partition from its beginning through the public interface."""
    arguments = {"group_id": None, "enable_auto_commit": False, "auto_offset_reset": "none"}
    opened = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, fetch_max_wait_ms=50, **arguments)
    await opened.start()
    yield opened
    await opened.stop()


def tasks_of_library() -> list[str]:
    """The library's tasks that have not ended."""
    coroutines: list[Any] = [task.get_coro() for task in asyncio.all_tasks()]
    return [each.__qualname__ for each in coroutines if "aiokafka" in each.cr_code.co_filename]


def answer_fetches(consumer: AIOKafkaConsumer, code: int, data: bytes) -> list[int]:
    """Has every fetch answered so, as by a broker; the offsets that are asked for."""
    asked: list[int] = []
    send = consumer._client.send

    async def answer(node: int, request: Any, **options: Any) -> object:
        if request.API_KEY != FETCH:
            return await send(node, request, **options)
        ((topic, ((number, offset, _),)),) = request.topics
        asked.append(offset)
        partition: tuple[object, ...] = (number, code, 100, 100, 0, [], data)
        return SimpleNamespace(API_VERSION=5, topics=[(topic, [partition])])

    consumer._client.send = answer
    return asked


async def test_the_consumer_only_logs_a_refused_fetch_and_the_reader_reports_it(
    kafka: KafkaBroker, consumer: AIOKafkaConsumer, where: TopicPartition
) -> None:
    asked = answer_fetches(consumer, KafkaStorageError.errno, b"")
    consumer.assign([where])
    consumer.seek(where, 0)
    assert await consumer.getmany(where, timeout_ms=1000) == {}, "a disk that fails looks like an empty partition"
    assert len(asked) > 1
    client = await PartitionClient.connect(KafkaSettings(kafka.bootstrap).client("test"), where)
    refusal = SimpleNamespace(topics=[(where.topic, [(0, KafkaStorageError.errno, -1, b"")])])

    async def refuse(*_: object) -> object:
        return refusal

    client._client.send = refuse
    with pytest.raises(LogUnavailableError, match="KafkaStorageError"):
        await client.fetch(0.0)
    await client.close()


async def test_the_consumer_never_returns_the_messages_that_come_with_a_damaged_batch(
    consumer: AIOKafkaConsumer, where: TopicPartition
) -> None:
    damaged = bytearray(batch(b"b", first=11))
    damaged[-1] ^= 1
    answer_fetches(consumer, 0, batch(b"a", first=10) + bytes(damaged))
    consumer.assign([where])
    consumer.seek(where, 10)
    for _ in range(3):
        with pytest.raises(CorruptRecordException):
            await consumer.getmany(where, timeout_ms=1000)


async def test_the_public_interface_gives_no_topic_id(kafka: KafkaBroker, where: TopicPartition) -> None:
    settings = KafkaSettings(kafka.bootstrap)
    async with administration(settings) as admin:
        (found,) = await admin.describe_topics([where.topic])
        assert "topic_id" not in found
    client = await PartitionClient.connect(settings.client("test"), where)
    found_id = await client.topic_id()
    assert found_id is not None
    assert len(found_id) == 16
    assert await topic_id(client._client, client._client.get_random_node(), where.topic) == found_id
    await client.close()
    versions = [form.API_VERSION for form in MetadataRequest._CLASSES]
    assert max(versions) < 10, "the library knows the version with the id: use its request"


async def test_a_member_reports_its_heartbeats_and_its_session(kafka: KafkaBroker, where: TopicPartition) -> None:
    beats = list[None]()
    member = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap, group_id=where.topic, session_timeout_ms=30_000, heartbeat_interval_ms=100
    )
    await member.start()
    on_heartbeat(member, lambda: beats.append(None))
    member.subscribe([where.topic])
    await until(lambda: len(beats) > 1)
    assert not has_lost_session(member)
    await member.stop()


async def test_a_bootstrap_that_is_cancelled_leaves_no_connection_open() -> None:
    ended = asyncio.Event()

    async def answer_versions_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4))
        request = await reader.readexactly(size)
        versions = struct.pack(">hihhh", 0, 1, MetadataRequest._CLASSES[0].API_KEY, 0, 5)
        writer.write(struct.pack(">i", 4 + len(versions)) + request[4:8] + versions)
        await reader.read(4)  # of the next request, which is not answered
        asked.set()
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        ended.set()

    asked = asyncio.Event()
    server = await asyncio.start_server(answer_versions_only, "127.0.0.1", 0)
    async with server:
        address = "{}:{}".format(*server.sockets[0].getsockname())
        client = AIOKafkaClient(bootstrap_servers=address)
        starting = asyncio.create_task(client.bootstrap())
        await asyncio.wait_for(asked.wait(), 120)
        starting.cancel()
        gc.disable()  # it would close the connection, with a warning
        try:
            with pytest.raises(asyncio.CancelledError):
                await starting
            await asyncio.wait_for(ended.wait(), 120)
        finally:
            gc.enable()
        await client.close()


@pytest.mark.parametrize("retries", [False, True])
async def test_an_abandoned_producer_fails_its_messages_and_nothing_else(
    kafka: KafkaBroker, where: TopicPartition, retries: bool
) -> None:
    unhandled: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, linger_ms=60_000)
    await producer.start()
    delivery = await producer.send(where.topic, b"held", partition=0)
    if retries:
        accumulator = producer._message_accumulator
        accumulator.reenqueue(accumulator._pop_batch(where))
    await abandon(producer, SystemRuntime(threads=1))
    assert delivery.exception() is not None
    assert not unhandled


@pytest.mark.parametrize("fault", ["refuse", "fall_silent"])
@pytest.mark.parametrize("kind", ["member", "reader", "producer"])
async def test_a_client_that_ends_while_brokers_are_away_leaves_no_task_and_no_connection(
    kafka_behind_proxy: ProxiedKafka, where: TopicPartition, kind: str, fault: str
) -> None:
    arguments = KafkaSettings(kafka_behind_proxy.bootstrap, request_s=1).client(kind)
    client: AIOKafkaConsumer | AIOKafkaProducer
    runtime = SystemRuntime(threads=1)
    if kind == "producer":
        client = AIOKafkaProducer(**arguments, enable_idempotence=True)
        await client.start()
        await (await client.send(where.topic, b"a", partition=0))
    else:
        group = where.topic if kind == "member" else None
        client = AIOKafkaConsumer(**arguments, group_id=group, session_timeout_ms=3000, heartbeat_interval_ms=200)
        await client.start()
        client.subscribe([where.topic])
        await until(lambda: client.assignment() == {where})
    getattr(kafka_behind_proxy.proxy, fault)()
    if isinstance(client, AIOKafkaProducer):
        unsent = await client.send(where.topic, b"b", partition=0)
        await abandon(client, runtime)
        assert unsent.exception() is not None
        connections = client.client._conns
    else:
        await end_client(client, runtime)
        connections = client._client._conns
    assert not tasks_of_library()
    assert not any(connection.connected() for connection in connections.values())


async def test_the_librarys_handler_of_fatal_errors_needs_a_transaction(kafka: KafkaBroker) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, enable_idempotence=True)
    await producer.start()
    with pytest.raises(AttributeError):
        producer._txn_manager.fatal_error(KafkaStorageError())
    without_transactions(producer)
    producer._txn_manager.fatal_error(KafkaStorageError())
    await producer.stop()


def test_requests_and_batches_have_the_form_that_is_relied_on() -> None:
    assert list(inspect.signature(FetchRequest).parameters) == [
        *("max_wait_time", "min_bytes", "max_bytes", "isolation_level", "topics", "rack_id")
    ]
    assert list(inspect.signature(OffsetRequest).parameters) == ["replica_id", "isolation_level", "topics"]
    records = MemoryRecords(batch(b"a", b"b", first=10))
    assert records.has_next()
    held = records.next_batch()
    assert (held.base_offset, held.next_offset, held.is_control_batch, held.validate_crc()) == (10, 12, False, True)
    assert [(record.offset, record.value) for record in held] == [(10, b"a"), (11, b"b")]
    assert for_code(KafkaStorageError.errno) is KafkaStorageError
