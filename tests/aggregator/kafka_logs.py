"""A log on a real broker, what is put into it, how it is read to its end, and what the broker keeps of it."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from aggregator.errors import LogUnavailableError
from aggregator.log.entries import PlainMessages
from aggregator.log.kafka.client import KafkaSettings
from aggregator.log.kafka.log import KafkaLog
from aggregator.model import NewEntry, PositionedEntry
from aggregator.runtime import SystemRuntime
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import DeltaEntry
from hushsum_simulator.testbed.kafka import KafkaBroker
from tests.doubles import RecordingObserver
from tests.plans import small_plan

PLAN = small_plan()
WAIT_S = 60.0
STEP = 1 << 16  # between the positions of one message and the next


async def opened_log(settings: KafkaSettings, observer: RecordingObserver | None = None) -> KafkaLog:
    watching = observer or RecordingObserver()
    return await KafkaLog.open(settings, PLAN, 2, PlainMessages(), SystemRuntime(threads=1), watching)


def delta(text: str, repeat: int = 1) -> bytes:
    return entry_to_bytes(DeltaEntry("client", text.encode() * repeat, 5))


def to_zero(*entries: bytes) -> list[NewEntry]:
    return [NewEntry(0, 5, data) for data in entries]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  what is waited for is decided by a broker
        await asyncio.sleep(0.02)


async def until_appended(log: KafkaLog, entries: Sequence[NewEntry]) -> None:
    """As a gateway's client does: an append whose fate is open is repeated."""
    while True:
        try:
            await log.append(entries)
        except LogUnavailableError:
            await asyncio.sleep(0.05)
        else:
            return


async def everything(log: KafkaLog) -> list[PositionedEntry]:
    position, found = 0, list[PositionedEntry]()
    while position < await log.end(0):
        entry_batch = await log.read(0, position, 100, WAIT_S)
        found += entry_batch.entries
        position = entry_batch.end
    return found


async def records_in(kafka: KafkaBroker, topic: str, partitions: int) -> list[ConsumerRecord]:
    """Every record of a topic, with all that any consumer is told of it."""
    return [
        record for number in range(partitions) for record in await _records_in(kafka, TopicPartition(topic, number))
    ]


async def _records_in(kafka: KafkaBroker, where: TopicPartition) -> list[ConsumerRecord]:
    settings = {"group_id": None, "auto_offset_reset": "none", "max_partition_fetch_bytes": 2**25}
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, **settings)
    await consumer.start()
    found: list[ConsumerRecord] = []
    try:
        consumer.assign([where])
        first = (await consumer.beginning_offsets([where]))[where]
        end = (await consumer.end_offsets([where]))[where]
        consumer.seek(where, first)
        while len(found) < end - first:
            found += (await consumer.getmany(where, timeout_ms=500)).get(where, ())
    finally:
        await consumer.stop()
    return found


def files_of(kafka: KafkaBroker, topic: str) -> list[Path]:
    """All that the broker keeps of a topic: its messages, their indexes, what it knows of those who wrote them."""
    return sorted(path for path in kafka.data.glob(f"{topic}-*/*") if path.is_file())


def times_in(path: Path, first_ms: int, last_ms: int) -> Iterator[str]:
    """Every time between these two that a file of the broker's holds, as the broker writes times."""
    data = path.read_bytes().rstrip(b"\0") + bytes(8)  # indexes are as long as they may become
    for start in range(8):
        whole = len(data[start:]) // 8 * 8
        numbers = np.frombuffer(data[start : start + whole], ">i8")
        found = numbers[(numbers >= first_ms) & (numbers <= last_ms)].tolist()
        yield from (f"{number} in {path.name}" for number in found)
    for digits in re.findall(rb"\d{13,}", data):
        if first_ms <= int(digits) <= last_ms:
            yield f"{digits.decode()} in {path.name}"
