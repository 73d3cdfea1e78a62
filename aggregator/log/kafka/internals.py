"""Every use of aiokafka beyond its documented interface, each with the promise that would be lost without it.

`tests/aggregator/log/kafka/test_internals.py` pins all of it against the installed version, and shows the fault.

- The topic's id (:func:`topic_id`). Only Metadata version 10 has it; the library's requests end at version 5. Without
  it, an append to a topic that was deleted and created again is acknowledged and never folded.
- Fetches, offsets and batches (:class:`PartitionClient`). The library's consumer retries a refused fetch for ever and
  only logs it, so that a failing disk looks like an empty partition; it never returns the intact messages that precede
  a damaged batch in a fetch; and it makes three objects of each record, which costs a third more time. Its decoder of
  records takes their offsets from what the writer stated, and fails where brokers do not: a writer could stop all
  readers. So records are read here. Its offset queries share one connection lock, so that a silent broker would delay
  all partitions.
- The end of a producer (:func:`abandon`). An idempotent producer repeats a message for ever while brokers are away, and
  its `stop` waits for that: each replaced producer would live on.
- The failure of a producer (:func:`without_transactions`). The library's handler of fatal errors needs a transaction;
  without one it raises in a task that nobody awaits.
- Heartbeats and sessions (:func:`on_heartbeat`, :func:`has_lost_session`). The consumer reports neither. A member that
  is cut off would fold on although the group has given its partitions to others.
- The connections and tasks of a client (:func:`end_client`). `stop` may fail or hang when brokers are away, and leaves
  them: heartbeats and fetches would be tried for ever, several times a second.
- The first connection of every client (:func:`close_cancelled_bootstraps`). A `bootstrap` that is cancelled, as one is
  that a broker does not answer in time, leaves it open until the garbage collector finds it: a service that tries again
  every few seconds would collect file descriptors.
"""

import asyncio
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from typing import Any, Final, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np
from aiokafka import AIOKafkaClient, AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka import client as library
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
    NodeNotReadyError,
    NoError,
    OffsetOutOfRangeError,
    for_code,
)
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields
from aiokafka.record.memory_records import MemoryRecords

from aggregator.errors import LogError
from aggregator.fold.state import Int64
from aggregator.log.kafka.client import CONNECT_S, translated_errors, via_reachable_broker
from aggregator.logs import journal
from aggregator.runtime import Runtime
from hushsum import compiled

# ------------------------------------------------------------------------------------------------------ a partition

#: The bytes that a broker sends at once; a larger single batch comes whole.
FETCH_BYTES: Final = 2**20
EARLIEST: Final = -2
LATEST: Final = -1
_CONSUMER: Final = -1  # not a replica
_NO_LEADER: Final = -1
_UNCOMMITTED: Final = 0  # no transactions are used here
_LOG_APPEND_TIME: Final = 1

# A batch of format 2, which brokers of this age send: its first offset and its size after these 12 bytes, and the
# distance of its last offset from its first.
_FORMAT: Final = 2
_FORMAT_AT: Final = 16
_SIZE: Final = struct.Struct(">qi")
_LAST_OFFSET: Final = struct.Struct(">i")
_LAST_OFFSET_AT: Final = 23
_COUNT: Final = struct.Struct(">i")  # of records
_COUNT_AT: Final = 57
_HEAD_BYTES: Final = 61
_RECORD_BYTES_MIN: Final = 7
_OCTETS_MAX: Final = 10  # of a number
_FULL_BYTES: Final = FETCH_BYTES // 2  # after so many bytes, more are likely to be available at once

#: Offset, the brokers' time if the topic has it, and value.
Message = tuple[int, int | None, bytes]


class FetchedMessages(NamedTuple):
    """Consecutive messages of a fetch.

    Attributes:
        offsets: (n,).
        times_ms: (n,) by the brokers' clock; negative where the topic keeps the sender's.
        data: What the values lie in, among other bytes.
        spans: (n, 2) where each value begins and ends.
        end: The offset after them, and after what follows and is no message.
    """

    offsets: Int64
    times_ms: Int64
    data: bytes
    spans: Int64
    end: int

    def each(self) -> Iterator[Message]:
        columns = zip(self.offsets.tolist(), self.times_ms.tolist(), self.spans.tolist(), strict=True)
        for offset, time_ms, (first, last) in columns:
            yield offset, None if time_ms < 0 else time_ms, self.data[first:last]


_NO_TIME: Final = -1


class OutOfRangeError(Exception):
    """The partition does not hold the offset."""


class PartitionClient:
    """One partition, and a connection of its own to its leader. Made by :meth:`connect`.

    Attributes:
        next_offset: Where the next fetch begins; set it to seek. It advances as the messages of a fetch are consumed.
        more_from: The offset after those of the latest fetch, if more are likely to be available; else None.
    """

    def __init__(self, client: AIOKafkaClient, where: TopicPartition) -> None:
        self._client, self._where = client, where
        self.next_offset = 0
        self.more_from: int | None = None

    @classmethod
    async def connect(cls, arguments: dict[str, Any], where: TopicPartition) -> Self:
        """Connects to the leader, with the ``arguments`` of every client; LogUnavailableError if none answers."""
        client = AIOKafkaClient(**await via_reachable_broker(arguments))
        try:
            with translated_errors(f"partition {where.partition}"):
                await client.bootstrap()
                await client.add_topic(where.topic)
                leader = client.cluster.leader_for_partition(where)
                if leader is not None and leader != _NO_LEADER:
                    async with asyncio.timeout(CONNECT_S):
                        if not await client.ready(leader):
                            raise NodeNotReadyError(f"broker {leader} cannot be connected to")
        except BaseException:
            await client.close()
            raise
        return cls(client, where)

    @property
    def partition(self) -> int:
        return int(self._where.partition)

    async def fetch(self, wait_s: float, offset: int | None = None) -> Iterator[FetchedMessages]:
        """As many messages from ``offset`` (or else ``next_offset``) on as a broker sends at once.

        None if none came in ``wait_s`` seconds. Those before a damaged batch come before its LogError.

        Raises:
            OutOfRangeError: The partition does not hold the offset.
            LogUnavailableError: Its leader does not answer, or has changed.
        """
        offset = self.next_offset if offset is None else offset
        self.more_from = None
        partition = (self.partition, offset, FETCH_BYTES)
        request = FetchRequest(
            round(1000 * wait_s), 1, FETCH_BYTES, _UNCOMMITTED, [(self._where.topic, [partition])], rack_id=""
        )
        *_, batches = await self._ask(request)
        self.more_from = _end_of(batches) if batches and len(batches) >= _FULL_BYTES else None
        return self._unpack(batches or b"", offset)

    async def offset_at(self, when: int) -> int:
        """The first offset (:data:`EARLIEST`), or the one that follows the last durable one (:data:`LATEST`).

        Raises:
            LogUnavailableError: Its leader does not answer.
        """
        request = OffsetRequest(_CONSUMER, _UNCOMMITTED, [(self._where.topic, [(self.partition, when)])])
        *_, offset = await self._ask(request)
        return int(offset)

    async def topic_id(self) -> bytes | None:
        """The topic's id, as the partition's leader knows it; None if brokers give none.

        Raises:
            LogUnavailableError: The leader does not answer, or there is no such topic now.
        """
        with translated_errors(f"partition {self.partition}"):
            leader = self._client.cluster.leader_for_partition(self._where)
            return await topic_id(self._client, leader, self._where.topic)

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, request: Any) -> tuple[Any, ...]:
        """The leader's answer for this partition: the fields after the error code."""
        with translated_errors(f"partition {self.partition}"):
            leader = self._client.cluster.leader_for_partition(self._where)
            if leader is None or leader == _NO_LEADER:
                raise LeaderNotAvailableError
            response = await self._client.send(leader, request)
            ((_, (answer,)),) = response.topics
            _, code, *fields = answer
            error = for_code(code)
            if error is not NoError and error is not OffsetOutOfRangeError:
                raise error
        if error is OffsetOutOfRangeError:
            raise OutOfRangeError
        return tuple(fields)

    def _unpack(self, data: bytes, offset: int) -> Iterator[FetchedMessages]:
        intact, problem = _intact_batches(data, offset)
        if intact:
            messages = _messages_of(data, intact, offset)
            if len(messages.offsets):
                yield messages
            self.next_offset = messages.end
        if problem is not None:
            raise self._damaged(*problem)

    def _damaged(self, offset: int, why: str) -> LogError:
        what = f"the batch at offset {offset} cannot be read: {why}"
        return LogError(f"kafka, topic {self._where.topic}, partition {self.partition}: {what}; restore it")


class _LocatedBatch(NamedTuple):
    """A batch, where its bytes begin and end, and the number of its records."""

    begin: int
    end: int
    records: int
    batch: Any


def _intact_batches(data: bytes, offset: int) -> tuple[list[_LocatedBatch], tuple[int, str] | None]:
    """The batches before the first damaged one; and the offset of that one, and what is wrong with it."""
    found: list[_LocatedBatch] = []
    at, begin = offset, 0
    try:
        batches = MemoryRecords(data)
        while batches.has_next():
            batch = batches.next_batch()
            if data[begin + _FORMAT_AT] != _FORMAT:
                return found, (at, f"its format is {data[begin + _FORMAT_AT]}, expected {_FORMAT}")
            if not batch.validate_crc():
                return found, (at, "its checksum does not match")
            end = begin + _SIZE.size + _SIZE.unpack_from(data, begin)[1]
            (records,) = _COUNT.unpack_from(data, begin + _COUNT_AT)
            if why := _unexpected(batch, at, records, end - begin, is_first=not found):
                return found, (at, why)
            found.append(_LocatedBatch(begin, end, records, batch))
            at, begin = int(batch.next_offset), end
    except Exception as error:  # noqa: BLE001  the decoder raises many kinds on damaged bytes
        return found, (at, f"{type(error).__name__}: {error}".removesuffix(": "))
    return found, None


def _unexpected(batch: Any, at: int, records: int, size: int, *, is_first: bool) -> str:
    """What is wrong with a batch where ``at`` comes next: brokers store none of these, and compact no such topic.

    The first batch may begin before that, for it comes whole.
    """
    first, after = batch.base_offset, batch.next_offset
    if first > at or (first < at and not is_first):
        return f"offsets {first} to {after - 1} come in its place"
    if batch.compression_type:
        return "it is compressed, although its topic stores what is not"
    if not 1 <= records == after - first <= size // _RECORD_BYTES_MIN:
        return f"it has {records} records in {size} bytes, and offsets {first} to {after - 1}"
    return ""


def _messages_of(data: bytes, located: Sequence[_LocatedBatch], offset: int) -> FetchedMessages:
    """The messages of batches from ``offset`` on: a batch comes whole.

    Brokers give a batch its first offset, and its records follow one after another: the offset of a record is its place
    in the batch. What a record says of its own is the writer's, and not compared with anything by brokers. A batch
    whose records cannot be found, although its checksum is right, is the writer's too: its messages are empty.
    """
    # A transaction's end takes an offset, but is no message.
    batches = [each for each in located if not each.batch.is_control_batch]
    rows = [(each.begin, each.end, each.batch.base_offset, _time_of(each.batch), each.records) for each in batches]
    end = max(offset, int(located[-1].batch.next_offset))
    if compiled.enabled():
        from aggregator.log.kafka import record_loops as loops

        found = np.empty((sum(each.records for each in batches), loops.COLUMNS), np.int64)
        count = loops.find_records(
            np.frombuffer(data, np.uint8), np.array(rows, np.int64).reshape(-1, 5), offset, found
        )
        found = found[:count]
    else:
        read = [
            (first + place, time_ms, *span)
            for begin, batch_end, first, time_ms, records in rows
            for place, span in enumerate(_find_records(data, begin, batch_end, records))
            if first + place >= offset
        ]
        found = np.array(read, np.int64).reshape(-1, 4)
    return FetchedMessages(found[:, 0], found[:, 1], data, found[:, 2:], end)


def _time_of(batch: Any) -> int:
    """When the broker took a batch; a negative number if the topic keeps the sender's times."""
    return int(batch.max_timestamp) if batch.timestamp_type == _LOG_APPEND_TIME else _NO_TIME


def _find_records(data: bytes, begin: int, end: int, records: int) -> list[tuple[int, int]]:
    """Where the value of each record of a batch begins and ends, as the compiled loop finds it."""
    at, spans = begin + _HEAD_BYTES, list[tuple[int, int]]()
    try:
        for _ in range(records):
            span, at = _record(data, at, end)
            spans.append(span)
        if at != end:
            raise ValueError(f"{end - at} bytes follow the last record")
    except ValueError:
        return [(begin, begin)] * records
    return spans


def _record(data: bytes, at: int, end: int) -> tuple[tuple[int, int], int]:
    """Where the value of a record begins and ends, and where the record does; ValueError if it has another form."""
    size, at = _number(data, at, end)
    if not 1 <= size <= end - at:
        raise ValueError(f"a record of {size} bytes, where {end - at} are left")
    end = at + size
    at += 1  # the attributes, which brokers do not look at
    for _ in range(2):  # the time, and what the record says of its offset
        _, at = _number(data, at, end)
    _, at = _field(data, at, end)
    span = _, at = _field(data, at, end)
    headers, at = _number(data, at, end)
    while headers > 0 and at < end:
        name, at = _number(data, at, end)
        if not 0 <= name <= end - at:
            raise ValueError(f"a header's name of {name} bytes, where {end - at} are left")
        _, at = _field(data, at + name, end)
        headers -= 1
    if headers or at != end:
        raise ValueError(f"{headers} headers are missing, or {end - at} bytes follow them")
    return span, end


def _field(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Where the bytes of a field begin and end: none, if there is no value."""
    size, at = _number(data, at, end)
    if size > end - at:
        raise ValueError(f"a field of {size} bytes, where {end - at} are left")
    return at, at + max(size, 0)


def _number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A signed number of 64 bits, and where it ends."""
    value = 0
    for place in range(_OCTETS_MAX):
        if at >= end:
            break
        octet = data[at]
        at += 1
        value |= (octet & 0x7F) << (7 * place)
        if octet < 0x80:
            value &= 2**64 - 1
            return (value >> 1) ^ -(value & 1), at
    raise ValueError("a number without an end")


def warm_up() -> None:
    """Compiles the loop over records, or loads what was compiled before, where compiled loops run."""
    if compiled.enabled():
        from aggregator.log.kafka import record_loops as loops

        nothing = np.frombuffer(bytes(1), np.uint8), np.zeros((0, 5), np.int64)
        loops.find_records(*nothing, 0, np.zeros((0, loops.COLUMNS), np.int64))


def _end_of(data: bytes) -> int | None:
    """The offset after the last complete batch; None if one of another format comes before."""
    at, after = 0, None
    while at + _HEAD_BYTES <= len(data):
        first, size = _SIZE.unpack_from(data, at)
        end = at + _SIZE.size + size
        if end > len(data):
            break
        if data[at + _FORMAT_AT] != _FORMAT or size < 0:
            return None
        after = first + _LAST_OFFSET.unpack_from(data, at + _LAST_OFFSET_AT)[0] + 1
        at = end
    return after


# -------------------------------------------------------------------------------------------------- a topic's id

_ID_BYTES: Final = 16
_NO_ID: Final = bytes(_ID_BYTES)


async def topic_id(client: AIOKafkaClient, node: int | None, topic: str) -> bytes | None:
    """The id that brokers gave to a topic when it was created; None if they are too old for it.

    Raises:
        KafkaError: There is no such topic now, or the broker ``node`` does not answer.
    """
    if node is None or node < 0:
        raise NodeNotReadyError(f"topic {topic} has no leader")
    try:
        response = await client.send(node, _TopicIdRequest(topic))
    except NotImplementedError:  # the library's, if both sides share no version
        return None
    ((code, _, found, *_),) = response.topics
    error = for_code(code)
    if error is not NoError:
        raise error(f"topic {topic}")
    return None if found == _NO_ID else bytes(found)


class _Uuid:
    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(_ID_BYTES)


_TEXT: Final = CompactString("utf-8")
_NODES: Final = CompactArray(Int32)
_TAGS: Final = ("tags", TaggedFields)
_BROKERS: Final = CompactArray(("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), _TAGS)
_PARTITIONS: Final = CompactArray(
    ("error_code", Int16),
    ("partition", Int32),
    ("leader", Int32),
    ("leader_epoch", Int32),
    ("replicas", _NODES),
    ("isr", _NODES),
    ("offline_replicas", _NODES),
    _TAGS,
)
_TOPICS: Final = CompactArray(
    ("error_code", Int16),
    ("topic", _TEXT),
    ("topic_id", _Uuid),
    ("is_internal", Boolean),
    ("partitions", _PARTITIONS),
    ("authorized_operations", Int32),
    _TAGS,
)


class _Metadata(Response):  # type: ignore[misc]  # aiokafka ships no types
    API_KEY, API_VERSION = 3, 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", _BROKERS),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        ("topics", _TOPICS),
        ("cluster_authorized_operations", Int32),
        _TAGS,
    )


class _MetadataRequest(RequestStruct):  # type: ignore[misc]  # aiokafka ships no types
    API_KEY, API_VERSION = 3, 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _Metadata
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("topic", _TEXT), _TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        _TAGS,
    )


class _TopicIdRequest(Request[_MetadataRequest]):  # type: ignore[misc]  # aiokafka ships no types
    API_KEY = 3

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: Any) -> Any:
        create = cluster_operations = topic_operations = False
        return request_struct_class([(_NO_ID, self._topic, {})], create, cluster_operations, topic_operations, {})


# --------------------------------------------------------------------------------------------- the first connection

_bootstrapping: Final = WeakKeyDictionary[asyncio.Task[Any], list[AIOKafkaConnection]]()


def close_cancelled_bootstraps() -> None:
    """Makes every client of this process close the connections of a `bootstrap` that fails or is cancelled."""
    create_conn, bootstrap = library.create_conn, AIOKafkaClient.bootstrap

    async def create_and_note(*args: Any, **options: Any) -> AIOKafkaConnection:
        connection = await create_conn(*args, **options)
        task = asyncio.current_task()
        if task is not None and task in _bootstrapping:
            _bootstrapping[task].append(connection)
        return connection

    async def bootstrap_or_close(client: AIOKafkaClient) -> None:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        opened = _bootstrapping[task] = []
        try:
            await bootstrap(client)
        except BaseException:
            for connection in opened:
                connection.close()
            raise
        finally:
            del _bootstrapping[task]

    library.create_conn, AIOKafkaClient.bootstrap = create_and_note, bootstrap_or_close


close_cancelled_bootstraps()


# ------------------------------------------------------------------------------------------ producers and consumers

_STOP_S: Final = 5.0


def without_transactions(producer: AIOKafkaProducer) -> None:
    """Makes a fatal error of an idempotent producer fail its messages only."""
    producer._txn_manager.fatal_error = _ignore  # noqa: SLF001  no public way, see above


def _ignore(error: BaseException) -> None:
    """All messages have failed with it."""


async def abandon(producer: AIOKafkaProducer, runtime: Runtime) -> None:
    """Fails the messages that a producer has not delivered, and ends it."""
    accumulator = producer._message_accumulator  # noqa: SLF001  no public way, see above
    # Batches that wait for a retry must be listed as pending, or the library's callback for their end raises.
    accumulator._pending_batches.update(*accumulator._batches.values())  # noqa: SLF001  no public way
    accumulator.fail_all(KafkaConnectionError("given up"))
    await end_client(producer, runtime)


async def end_client(client: AIOKafkaConsumer | AIOKafkaProducer, runtime: Runtime) -> None:
    """Stops a consumer or a producer in any state, in bounded time; raises nothing.

    `stop` can raise, cancel its caller, or wait for brokers that are away: so it runs in a task of its own, and the
    connections are closed in any case.
    """
    stopping = runtime.spawn(client.stop(), "kafka-stop")
    await asyncio.wait([stopping], timeout=_STOP_S)
    if not stopping.done():
        stopping.cancel()
        await asyncio.wait([stopping], timeout=_STOP_S)
    if not stopping.cancelled() and stopping.done() and (error := stopping.exception()) is not None:
        journal("kafka").debug("Kafka client did not stop cleanly", error=repr(error))
    tasks, connections = _parts_of(client)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_STOP_S)
    with suppress(KafkaError, OSError):
        await connections.close()


def _parts_of(client: AIOKafkaConsumer | AIOKafkaProducer) -> tuple[list[asyncio.Task[Any]], AIOKafkaClient]:
    """The tasks of a client, but for those of its connections, and its connections."""
    if isinstance(client, AIOKafkaProducer):
        return _running(client._sender, "_sender_task"), client.client  # noqa: SLF001  no public way
    coordinator, fetcher = client._coordinator, client._fetcher  # noqa: SLF001  no public way
    tasks = _running(coordinator, "_coordination_task", "_heartbeat_task", "_commit_refresh_task")
    tasks += _running(fetcher, "_fetch_task")
    if fetcher is not None:
        tasks += fetcher._pending_tasks  # noqa: SLF001  no public way
    return tasks, client._client  # noqa: SLF001  no public way


def _running(part: object, *names: str) -> list[asyncio.Task[Any]]:
    """Those of the tasks that a part has begun; one of no group has fewer."""
    return [task for task in (getattr(part, name, None) for name in names) if task is not None]


def on_heartbeat(consumer: AIOKafkaConsumer, answered: Callable[[], None]) -> None:
    """Calls ``answered`` whenever the group answers a heartbeat of this started member."""
    coordinator = consumer._coordinator  # noqa: SLF001  no public way, see above
    beat = coordinator._do_heartbeat  # noqa: SLF001  no public way

    async def beat_and_report() -> bool:
        succeeded: bool = await beat()
        if succeeded:
            answered()
        return succeeded

    coordinator._do_heartbeat = beat_and_report  # noqa: SLF001  no public way


def has_lost_session(consumer: AIOKafkaConsumer) -> bool:
    """Whether the group has removed this member, so that others may have its partitions already."""
    return bool(consumer._coordinator.member_id == "")  # noqa: SLF001  no public way, see above
