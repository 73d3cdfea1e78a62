"""What every log does, in a file as on brokers; what each does in its own way stands in tests of its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from aggregator.errors import ConfigError, LogError, LogGapError
from aggregator.interfaces import Log
from aggregator.log.entries import PlainMessages
from aggregator.log.kafka.client import KafkaSettings
from aggregator.log.kafka.log import KafkaLog
from aggregator.log.sqlite import SqliteLog
from aggregator.model import NewEntry
from aggregator.runtime import SystemRuntime
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import DeltaEntry
from hushsum_simulator.testbed.kafka import KafkaBroker
from tests.brokers import fresh_prefix
from tests.doubles import RecordingObserver
from tests.plans import small_plan

PLAN = small_plan()
WAIT_S = 60.0

Open = Callable[[int], Awaitable[Log]]


@pytest.fixture(params=["sqlite", "kafka"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens the same log each time, in so many partitions."""
    runtime, logs, prefix = SystemRuntime(threads=2), list[Log](), fresh_prefix()

    async def open_log(partitions: int) -> Log:
        log: Log
        if request.param == "sqlite":
            log = await SqliteLog.open(tmp_path / "log.db", PLAN.id, partitions, runtime)
        else:
            broker: KafkaBroker = request.getfixturevalue("kafka")
            settings = KafkaSettings(broker.bootstrap, prefix)
            log = await KafkaLog.open(settings, PLAN, partitions, PlainMessages(), runtime, RecordingObserver())
        logs.append(log)
        return log

    yield open_log
    for log in logs:
        await log.close()


def entry(text: str) -> bytes:
    return entry_to_bytes(DeltaEntry("client", text.encode(), 5))


def items(partition: int, window: int, *texts: str) -> list[NewEntry]:
    return [NewEntry(partition, window, entry(text)) for text in texts]


async def all_from(log: Log, partition: int, position: int = 0) -> list[tuple[int, bytes]]:
    """Reads to the log's end, three entries at a time."""
    end, read = await log.end(partition), list[tuple[int, bytes]]()
    while position < end:
        entry_batch = await log.read(partition, position, 3, WAIT_S)
        positions = [each.position for each in entry_batch.entries]
        assert 1 <= len(positions) <= 3
        assert position <= positions[0]
        assert positions == sorted(set(positions))
        assert positions[-1] < entry_batch.end
        assert all(each.problem is None and each.signer is None for each in entry_batch.entries)
        read += [(each.position, each.data) for each in entry_batch.entries]
        position = entry_batch.end
    assert position == end
    return read


async def test_entries_are_read_at_the_positions_that_were_given_in_the_order_of_their_partition(opened: Open) -> None:
    log = await opened(2)
    mixed = [*items(0, 5, *"abcd"), *items(1, 5, "x"), *items(0, 6, "e"), *items(1, 5, "y")]
    first = await log.append(mixed)
    second = await log.append(items(0, 6, "f"))
    in_zero = [*first[:4], first[5], *second]
    assert in_zero == sorted(set(in_zero))
    assert await all_from(log, 0) == list(zip(in_zero, map(entry, "abcdef"), strict=True))
    assert await all_from(log, 1) == [(first[4], entry("x")), (first[6], entry("y"))]


async def test_reading_begins_anywhere_and_what_was_read_can_be_read_again(opened: Open) -> None:
    log = await opened(1)
    positions = await log.append(items(0, 5, *"abcdefg"))
    for start in (3, 0, 6, 1, 2):
        assert [data for _, data in await all_from(log, 0, positions[start])] == [entry(t) for t in "abcdefg"[start:]]


async def test_everything_is_there_after_reopening(opened: Open) -> None:
    log = await opened(2)
    before = await log.append(items(1, 5, "a", "b"))
    await log.close()
    again = await opened(2)
    after = await again.append(items(1, 5, "c"))
    assert await all_from(again, 1) == list(zip(before + after, map(entry, "abc"), strict=True))
    assert await again.end(0) == 0


async def test_a_reader_that_waits_is_woken_by_an_append_to_its_partition(opened: Open) -> None:
    log = await opened(2)
    waiting = asyncio.create_task(log.read(0, 0, 10, WAIT_S))
    await log.append(items(1, 5, "elsewhere"))
    assert not waiting.done()
    (position,) = await log.append(items(0, 5, "here"))
    entry_batch = await waiting
    assert [(each.position, each.data) for each in entry_batch.entries] == [(position, entry("here"))]


async def test_a_reader_that_waits_in_vain_gets_nothing_and_stays_where_it_is(opened: Open) -> None:
    log = await opened(1)
    await log.append(items(0, 5, "a"))
    end = await log.end(0)
    for wait_s in (0.0, 0.2):
        assert await log.read(0, end, 10, wait_s) == ((), end)


async def test_what_is_forgotten_cannot_be_read_and_the_gap_is_named(opened: Open) -> None:
    log = await opened(2)
    old = [position for window in (5, 5) for position in await log.append(items(0, window, "a"))]
    (kept,) = await log.append(items(0, 6, "b"))
    (elsewhere,) = await log.append(items(1, 5, "c"))
    await log.forget(5, {0: kept, 1: elsewhere})
    with pytest.raises(LogGapError, match=f"partition 0: entries 0 to {kept - 1} are missing") as caught:
        await log.read(0, old[0], 10, WAIT_S)
    assert (caught.value.partition, caught.value.position, caught.value.found) == (0, 0, kept)
    assert await all_from(log, 0, kept) == [(kept, entry("b"))]
    assert await all_from(log, 1) == [(elsewhere, entry("c"))]
    await log.forget(5, {0: kept, 1: elsewhere})


async def test_a_log_that_ends_before_the_fold_names_the_gap(opened: Open) -> None:
    log = await opened(1)
    await log.append(items(0, 5, "a"))
    end = await log.end(0)
    for position in (end + 1, end + (3 << 16), end + (3 << 16) + 2):
        with pytest.raises(LogGapError, match=f"the log ends at {end}, but the fold has processed {position - 1}"):
            await log.read(0, position, 10, WAIT_S)


async def test_a_position_is_never_given_twice(opened: Open) -> None:
    log = await opened(1)
    given = await log.append(items(0, 5, "a", "b"))
    await log.forget(5, {0: await log.end(0)})
    given += await log.append(items(0, 6, "c"))
    await log.forget(6, {0: await log.end(0)})
    await log.close()
    again = await opened(1)
    given += await again.append(items(0, 7, "d"))
    assert given == sorted(set(given))


async def test_appends_from_many_tasks_get_positions_of_their_own(opened: Open) -> None:
    log = await opened(1)
    given = await asyncio.gather(*(log.append(items(0, 5, str(number))) for number in range(20)))
    read = dict(await all_from(log, 0))
    assert [read[position] for (position,) in given] == [entry(str(number)) for number in range(20)]
    assert len(read) == 20


async def test_another_number_of_partitions_is_refused(opened: Open) -> None:
    await opened(2)
    with pytest.raises((LogError, ConfigError), match=r"2 partitions,.* 3"):
        await opened(3)
