"""A reader before a broker that answers from memory: what it hands out, and when it asks for more."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiokafka import TopicPartition
from aiokafka.errors import NotLeaderForPartitionError, OffsetOutOfRangeError
from aiokafka.protocol.offset import OffsetRequest

from aggregator.errors import LogError, LogGapError, LogUnavailableError
from aggregator.log.entries import PlainMessages
from aggregator.log.kafka.internals import EARLIEST, PartitionClient
from aggregator.log.kafka.reader import PartitionReader
from aggregator.model import PositionedEntry
from aggregator.runtime import SystemRuntime
from hushsum.errors import Reason
from tests.aggregator.log.kafka.test_fetch import batch, sealed

WHERE = TopicPartition("topic", 3)
STEP = 1 << 16
PLAIN = PlainMessages()


class Broker:
    """Answers fetches with the batch that holds the offset, and as many of the next ones as it sends at once.

    Attributes:
        asked: Offset and longest wait of each fetch, in order.
        broken: Whether fetches are refused.
        refusal: The code of whatever else they are refused with.
    """

    def __init__(self, batches: list[tuple[int, bytes]], at_once: int) -> None:
        self.asked: list[tuple[int, int]] = []
        self.broken = False
        self.refusal = 0
        self.cluster = SimpleNamespace(leader_for_partition=lambda where: 1 if where == WHERE else None)
        self._batches, self._at_once = batches, at_once

    async def send(self, node: int, request: Any) -> object:
        assert node == 1
        if isinstance(request, OffsetRequest):
            ((_, ((_, when),)),) = request._topics
            offset = 0 if when == EARLIEST else self._batches[-1][0]
            return SimpleNamespace(topics=[("topic", [(WHERE.partition, 0, -1, offset)])])
        ((_, (asked,)),) = request.topics
        self.asked.append((asked[1], request._max_wait_ms))
        await asyncio.sleep(0)
        later = [data for end, data in self._batches if end > asked[1]]
        code = NotLeaderForPartitionError.errno if self.broken else self.refusal
        return SimpleNamespace(topics=[("topic", [(WHERE.partition, code, 100, b"".join(later[: self._at_once]))])])

    async def close(self) -> None:
        return


def reader_of(values: list[bytes], batch_size: int, at_once: int) -> tuple[PartitionReader, Broker]:
    parts = [(at, values[at : at + batch_size]) for at in range(0, len(values), batch_size)]
    batches = [(at + len(part), batch(*part, first=at)) for at, part in parts]
    broker = Broker(batches, at_once)
    return PartitionReader(PartitionClient(broker, WHERE), PLAIN, SystemRuntime(threads=1)), broker


def held(values: list[bytes]) -> list[PositionedEntry]:
    """What is read, one message after another."""
    found = []
    for offset, value in enumerate(values):
        opened = PLAIN.read(3, value)
        found += [PositionedEntry(offset * STEP + index, data) for index, data in enumerate(opened.entries)]
        if opened.problem is not None:
            found.append(PositionedEntry(offset * STEP, b"", None, None, Reason.MALFORMED))
    return found


def some_values(rng: np.random.Generator, count: int) -> list[bytes]:
    """Messages of one entry in long runs, among some of many and some of none."""
    values: list[bytes] = []
    while len(values) < count:
        values += [PLAIN.write(3, [rng.bytes(9)], seals=False) for _ in range(rng.integers(0, 20))]
        sizes = rng.choice([1, 2, 3, 7, 30], rng.integers(0, 4))
        values += [PLAIN.write(3, [rng.bytes(3) for _ in range(size)], seals=False) for size in sizes]
        if rng.random() < 0.3:
            values.append(b"\xff no message")
    return values[:count]


async def test_whatever_limits_and_batches_every_entry_is_handed_out_once_in_order(
    seed: int, rng: np.random.Generator
) -> None:
    for _ in range(40):
        values = some_values(rng, 120)
        expected = held(values)
        reader, _ = reader_of(values, int(rng.integers(1, 50)), int(rng.integers(1, 4)))
        position, found = 0, list[PositionedEntry]()
        while len(found) < len(expected):
            if rng.random() < 0.1:  # as another reader would go on
                await reader._seek(position)
                reader._next = position
            limit = int(rng.choice([1, 2, 10, 64, 500]))
            entry_batch = await reader.read(position, limit, 5.0)
            assert 1 <= len(entry_batch.entries) <= limit
            found += entry_batch.entries
            position = entry_batch.end
        assert found == expected, f"seed {seed}"
        assert position == len(values) * STEP
        await reader.close()


LARGE = [PLAIN.write(3, [bytes([n]) * 300_000], seals=False) for n in range(8)]


async def test_the_next_fetch_is_under_way_while_one_is_handed_out_and_none_beyond_it() -> None:
    reader, broker = reader_of(LARGE, 2, 1)
    first = await reader.read(0, 1, 5.0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert broker.asked == [(0, 500), (2, 0)]  # the one ahead waits for nothing
    second = await reader.read(first.end, 1, 5.0)
    third = await reader.read(second.end, 1, 5.0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert [offset for offset, _ in broker.asked] == [0, 2, 4]
    assert [each.entries[0].data[0] for each in (first, second, third)] == [0, 1, 2]
    await reader.close()


async def test_after_a_small_fetch_nothing_is_asked_for_ahead() -> None:
    reader, broker = reader_of([PLAIN.write(3, [b"a"], seals=False)] * 8, 2, 1)
    await reader.read(0, 1, 5.0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert broker.asked == [(0, 500)]
    await reader.close()


async def test_where_a_reader_is_sent_elsewhere_what_was_fetched_ahead_is_dropped() -> None:
    reader, broker = reader_of(LARGE, 2, 1)
    await reader.read(0, 2, 5.0)
    entry_batch = await reader.read(5 * STEP, 2, 5.0)
    assert [positioned.data[0] for positioned in entry_batch.entries] == [5]
    assert [offset for offset, _ in broker.asked][-1] != 2
    await reader.close()


async def test_a_fetch_ahead_that_fails_is_told_to_the_read_that_needs_it() -> None:
    reader, broker = reader_of(LARGE, 2, 1)
    first = await reader.read(0, 2, 5.0)
    broker.broken = True
    for _ in range(20):
        await asyncio.sleep(0)
    with pytest.raises(LogUnavailableError, match="NotLeaderForPartition"):
        await reader.read(first.end, 2, 5.0)
    broker.broken = False
    again = await reader.read(first.end, 2, 5.0)
    assert [positioned.data[0] for positioned in again.entries] == [2, 3]
    await reader.close()


async def test_a_fetch_ahead_that_failed_leaves_nothing_behind_when_its_reader_ends() -> None:
    reader, broker = reader_of(LARGE, 2, 1)
    await reader.read(0, 2, 5.0)
    broker.broken = True
    for _ in range(20):
        await asyncio.sleep(0)
    await reader.close()
    assert len(broker.asked) == 2


async def test_an_offset_that_was_out_of_range_and_is_the_end_now_is_asked_for_again() -> None:
    reader, broker = reader_of([PLAIN.write(3, [b"a"], seals=False)], 1, 1)
    broker.refusal = OffsetOutOfRangeError.errno
    for position in (0, STEP):
        with pytest.raises(LogUnavailableError, match="offset out of range, but now in range"):
            await reader.read(position, 1, 0.0)
    with pytest.raises(LogGapError, match=f"the log ends at {STEP}, but the fold has processed"):
        await reader.read(2 * STEP, 1, 0.0)


@pytest.mark.parametrize("position", [0, STEP, STEP + 1])
async def test_a_hole_in_the_log_is_told_wherever_a_reader_begins(position: int) -> None:
    two = PLAIN.write(3, [b"a", b"b"], seals=False)
    reader, broker = reader_of([two, two, two], 1, 3)
    broker._batches = broker._batches[:1] + broker._batches[2:]
    if position == 0:
        position = (await reader.read(position, 2, 5.0)).end
    with pytest.raises(LogError, match="the batch at offset 1 cannot be read: offsets 2 to 2 come in its place"):
        await reader.read(position, 2, 5.0)
    await reader.close()


async def test_where_the_end_of_a_transaction_stands_for_a_message_the_gap_is_told() -> None:
    two = PLAIN.write(3, [b"a", b"b"], seals=False)
    reader, broker = reader_of([two, two, two], 1, 1)
    end, data = broker._batches[1]
    control = bytearray(data)
    control[22] |= 0x20
    broker._batches[1] = (end, sealed(control))
    for wait_s in (0.0, 5.0):
        if not wait_s:
            assert (await reader.read(STEP + 1, 2, wait_s)).end == STEP + 1, "nothing yet"
            continue
        with pytest.raises(LogGapError, match=f"entries {STEP + 1} to {2 * STEP - 1} are missing and not yet folded"):
            await reader.read(STEP + 1, 2, wait_s)
    await reader.close()
