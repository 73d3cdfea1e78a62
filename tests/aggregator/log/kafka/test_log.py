import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pyarrow as pa
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.util import calc_crc32c

from aggregator.errors import ConfigError, LogError
from aggregator.log.entries import PlainMessages, SignedMessages
from aggregator.log.kafka.client import KafkaSettings
from aggregator.log.kafka.log import KafkaLog
from aggregator.model import NewEntry, PositionedEntry
from aggregator.runtime import SystemRuntime
from hushsum.errors import Reason
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey
from hushsum_proto.batches import Batch
from hushsum_proto.convert import entry_from_bytes, entry_to_bytes
from hushsum_proto.convert_batches import batch_to_bytes
from hushsum_proto.entries import DeltaEntry, SealEntry
from hushsum_simulator.testbed.kafka import KafkaBroker
from tests.aggregator.kafka_logs import PLAN, STEP, WAIT_S, delta, everything, opened_log, to_zero, until_appended
from tests.aggregator.log.kafka.test_fetch import batch, new_builder, sealed
from tests.brokers import fresh_prefix
from tests.doubles import RecordingObserver
from tests.plans import small_plan

KEY = SigningKey(bytes(range(32)))
DIRECTORY = Directory({"a": DirectoryKey("a", Role.GATEWAY, KEY.verify_key)})


@pytest.fixture
def settings(kafka: KafkaBroker) -> KafkaSettings:
    return KafkaSettings(kafka.bootstrap, fresh_prefix())


@pytest.fixture
async def log(settings: KafkaSettings) -> AsyncIterator[KafkaLog]:
    opened = await opened_log(settings)
    yield opened
    await opened.close()


def seal(window: int) -> bytes:
    return entry_to_bytes(SealEntry(PLAN.id, window, 5))


async def messages_in(log: KafkaLog, settings: KafkaSettings, partition: int = 0) -> list[list[bytes]]:
    """What every message of a partition holds, as any other consumer reads it."""
    where = TopicPartition(log.topic, partition)
    consumer = AIOKafkaConsumer(bootstrap_servers=settings.bootstrap, max_partition_fetch_bytes=2**25)
    await consumer.start()
    try:
        consumer.assign([where])
        consumer.seek(where, 0)
        end = (await consumer.end_offsets([where]))[where]
        return [list(PlainMessages().read(partition, (await consumer.getone(where)).value).entries) for _ in range(end)]
    finally:
        await consumer.stop()


async def plant(settings: KafkaSettings, log: KafkaLog, *values: bytes | None) -> None:
    """Messages of somebody else's, in partition 0."""
    producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap)
    await producer.start()
    try:
        for value in values:
            await producer.send_and_wait(log.topic, value, key=b"key", partition=0)
    finally:
        await producer.stop()


async def read(log: KafkaLog, limit: int = 100, position: int = 0) -> tuple[PositionedEntry, ...]:
    return tuple((await log.read(0, position, limit, WAIT_S)).entries)


async def test_the_entries_of_an_append_travel_in_one_message_a_partition(
    log: KafkaLog, settings: KafkaSettings
) -> None:
    mixed = [NewEntry(number % 2, 5, delta(str(number))) for number in range(6)]
    assert await log.append(mixed) == [0, 0, 1, 1, 2, 2]
    assert await log.append(mixed[:2]) == [STEP, STEP]
    assert await messages_in(log, settings) == [[delta("0"), delta("2"), delta("4")], [delta("0")]]
    assert await log.end(0) == 2 * STEP


async def test_deltas_and_seals_never_share_a_message_and_keep_their_order(
    log: KafkaLog, settings: KafkaSettings
) -> None:
    entries = [delta("a"), delta("b"), seal(5), seal(6), delta("c"), delta("d" * 300)]
    assert await log.append(to_zero(*entries)) == [0, 1, STEP, STEP + 1, 2 * STEP, 2 * STEP + 1]
    assert await messages_in(log, settings) == [entries[:2], entries[2:4], entries[4:]]
    assert [each.data for each in await read(log)] == entries


def test_the_longest_seal_is_looked_at_before_it_is_taken_for_a_delta() -> None:
    longest = entry_to_bytes(SealEntry(b"\xff" * 32, 2**62, 2**62))
    assert isinstance(entry_from_bytes(longest), SealEntry)
    assert len(longest) <= 64


async def test_an_append_is_split_where_a_message_would_grow_too_large(log: KafkaLog, settings: KafkaSettings) -> None:
    entries = [delta(text, 400_000) for text in "abcdef"]
    assert await log.append(to_zero(*entries)) == [0, 1, STEP, STEP + 1, 2 * STEP, 2 * STEP + 1]
    assert [each.data for each in await everything(log)] == entries
    assert [len(held) for held in await messages_in(log, settings)] == [2, 2, 2]


async def test_a_message_holds_no_more_entries_than_a_position_can_name(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.log.kafka.log.BATCH_ENTRIES_MAX", 3)
    assert await log.append(to_zero(*map(delta, "abcdefg"))) == [0, 1, 2, STEP, STEP + 1, STEP + 2, 2 * STEP]


async def test_the_largest_delta_of_a_plan_passes_through(settings: KafkaSettings) -> None:
    plan = small_plan(sketch={"rows": 5000, "buckets": 1024})
    assert plan.delta_bytes_max > 3 * 2**20
    data = entry_to_bytes(DeltaEntry("c" * 128, bytes(plan.delta_bytes_max), 2**40))
    log = await KafkaLog.open(settings, plan, 1, PlainMessages(), SystemRuntime(threads=1), RecordingObserver())
    assert await log.append(to_zero(data, delta("a"), data)) == [0, 1, STEP]
    assert [each.data == data for each in await everything(log)] == [True, False, True]
    await log.close()


async def test_a_reader_that_is_new_goes_on_in_the_middle_of_a_message(log: KafkaLog, settings: KafkaSettings) -> None:
    await log.append(to_zero(*map(delta, "abcde")))
    await log.append(to_zero(delta("f")))
    entry_batch = await log.read(0, 0, 2, WAIT_S)
    assert ([each.data for each in entry_batch.entries], entry_batch.end) == ([delta("a"), delta("b")], 2)
    another = await opened_log(settings)
    assert [each.data for each in await read(another, position=entry_batch.end)] == [*map(delta, "cdef")]
    with pytest.raises(LogError, match="message 0 holds 5 entries, although the fold has processed 6 of them"):
        await another.read(0, 6, 10, WAIT_S)
    await another.close()


async def test_entries_carry_the_brokers_time(log: KafkaLog) -> None:
    before = SystemRuntime(threads=1).now_ms()
    await log.append(to_zero(delta("a")))
    (entry,) = await read(log)
    assert entry.appended_ms is not None
    assert before - 1000 <= entry.appended_ms <= SystemRuntime(threads=1).now_ms() + 1000


async def test_a_message_that_is_none_of_ours_is_one_refused_entry_and_reading_goes_on(
    log: KafkaLog, settings: KafkaSettings
) -> None:
    await plant(settings, log, b"\xff not ours", None, b"", b"\x08\x01\x32\x00")  # the last holds no entry
    await log.append(to_zero(delta("a")))
    entries = await read(log)
    assert [each.position for each in entries] == [0, STEP, 2 * STEP, 3 * STEP, 4 * STEP]
    assert [each.problem for each in entries] == [Reason.MALFORMED] * 4 + [None]
    assert [each.data for each in entries] == [b""] * 4 + [delta("a")]


def as_zstd(plain: bytes) -> bytes:
    """A batch whose records are compressed in a way that no decoder here knows."""
    head, records = bytearray(plain[:61]), bytes(pa.compress(plain[61:], codec="zstd", asbytes=True))
    head[8:12] = (61 - 12 + len(records)).to_bytes(4, "big")
    head[22] |= 4
    head[17:21] = calc_crc32c(bytes(head[21:]) + records).to_bytes(4, "big")
    return bytes(head) + records


async def produce(settings: KafkaSettings, log: KafkaLog, packed: bytes) -> int:
    """The code of a broker's answer to a batch that is sent as it stands."""
    client = AIOKafkaClient(bootstrap_servers=settings.bootstrap)
    await client.bootstrap()
    await client.add_topic(log.topic)
    leader = client.cluster.leader_for_partition(TopicPartition(log.topic, 0))
    answer = await client.send(leader, ProduceRequest(None, -1, 5000, [(log.topic, [(0, packed)])]))
    await client.close()
    return int(answer.topics[0][1][0][1])


async def test_a_message_in_a_codec_that_is_not_ours_is_one_refused_entry_since_brokers_unpack_it(
    log: KafkaLog, settings: KafkaSettings
) -> None:
    assert await produce(settings, log, as_zstd(batch(b"\xff not ours" * 50, first=0))) == 0
    await log.append(to_zero(delta("a")))
    assert [(each.position, each.problem, each.data) for each in await everything(log)] == [
        (0, Reason.MALFORMED, b""),
        (STEP, None, delta("a")),
    ]


@pytest.mark.parametrize("stated", [[0, 0], [0, 10**9], [5, 0]], ids=["one twice", "one far ahead", "backwards"])
async def test_offsets_that_a_writer_states_neither_repeat_a_position_nor_skip_one(
    log: KafkaLog, settings: KafkaSettings, stated: list[int]
) -> None:
    """The broker takes them as they are."""
    values = [PlainMessages().write(0, [delta(text)], seals=False) for text in "ab"]
    assert await produce(settings, log, batch(*values, first=0, stated=stated)) == 0
    await log.append(to_zero(delta("c")))
    assert [(each.position, each.data) for each in await everything(log)] == [
        (0, delta("a")),
        (STEP, delta("b")),
        (2 * STEP, delta("c")),
    ]


async def test_records_that_a_broker_takes_and_aiokafka_cannot_read_stop_nobody(
    log: KafkaLog, settings: KafkaSettings
) -> None:
    builder = new_builder()
    entry = PlainMessages().write(0, [delta("a")], seals=False)
    builder.append(0, timestamp=5, key=b"\xff" * 9, value=entry, headers=[])
    builder.append(1, timestamp=5, key=None, value=entry, headers=[("name", b"")])
    packed = bytearray(builder.build())
    at = bytes(packed).index(b"name")
    packed[at : at + 4] = b"\xff\xfe\xff\xfe"  # no text
    at = bytes(packed).index(b"\xff" * 9) - 4
    packed[at] = 0x80  # attributes of one octet, which are no number
    assert await produce(settings, log, sealed(packed)) == 0
    await log.append(to_zero(delta("b")))
    assert [(each.position, each.problem, each.data) for each in await everything(log)] == [
        (0, None, delta("a")),
        (STEP, None, delta("a")),
        (2 * STEP, None, delta("b")),
    ]


@pytest.mark.parametrize("last", [0, 5])
async def test_a_broker_takes_no_batch_with_other_offsets_than_records(
    log: KafkaLog, settings: KafkaSettings, last: int
) -> None:
    """So a reader may take such a batch as damaged."""
    packed = bytearray(batch(b"a", b"b", first=0))
    packed[23:27] = last.to_bytes(4, "big")
    assert await produce(settings, log, sealed(packed)) != 0
    assert await log.end(0) == 0


async def test_an_unsigned_message_is_one_refused_entry_where_there_is_a_directory(
    log: KafkaLog, settings: KafkaSettings
) -> None:
    await log.append(to_zero(*map(delta, "abc")))
    messages = SignedMessages(PLAN.id, DIRECTORY, producers=True)
    checking = await KafkaLog.open(settings, PLAN, 2, messages, SystemRuntime(threads=1), RecordingObserver())
    entry_batch = await checking.read(0, 0, 10, WAIT_S)
    assert [(each.position, each.data, each.problem) for each in entry_batch.entries] == [(0, b"", Reason.UNSIGNED)]
    assert entry_batch.end == STEP
    await checking.close()


async def test_a_message_of_a_newer_format_is_not_passed(log: KafkaLog, settings: KafkaSettings) -> None:
    await log.append(to_zero(delta("a")))
    await plant(settings, log, batch_to_bytes(Batch((delta("b"),), format_version=2)))
    for _ in range(2):
        with pytest.raises(LogError, match=r"partition 0, message 1: .*2"):
            await log.read(0, STEP, 10, WAIT_S)
    assert len(await read(log, limit=1)) == 1


async def test_where_somebody_has_written_in_a_transaction_its_end_is_passed(
    log: KafkaLog, settings: KafkaSettings
) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap, transactional_id=fresh_prefix())
    await producer.start()
    async with producer.transaction():
        await producer.send_and_wait(log.topic, PlainMessages().write(0, [delta("a")], seals=False), partition=0)
    await producer.stop()
    # Its end is written after its producer was told that it is committed.
    while await log.end(0) < 2 * STEP:  # noqa: ASYNC110  what is waited for is decided by a broker
        await asyncio.sleep(0.02)
    await until_appended(log, to_zero(delta("b")))
    assert [(each.position, each.data) for each in await everything(log)] == [(0, delta("a")), (2 * STEP, delta("b"))]
    assert (await log.read(0, 0, 1, WAIT_S)).end == 2 * STEP
    assert (await log.read(0, STEP, 1, WAIT_S)).entries[0].position == 2 * STEP


async def test_another_retention_than_the_plan_needs_is_refused(settings: KafkaSettings, log: KafkaLog) -> None:
    with pytest.raises(ConfigError, match=r"kafka_retention_s: got 5000, expected at least 90300"):
        await opened_log(replace(settings, retention_s=5000.0))
    with pytest.raises(ConfigError, match=r"retention\.ms is 90300000, expected at least 190300000"):
        await opened_log(replace(settings, recovery_s=186_400.0))
    assert [warning.split(":")[0] for warning in log.warnings] == [
        f"topic {log.topic} has 1 of 3 copies",
        f"topic {log.topic} has min.insync.replicas 1 of 2",
    ]
