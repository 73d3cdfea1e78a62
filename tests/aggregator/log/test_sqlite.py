import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aggregator.errors import LogError, LogGapError
from aggregator.log import sqlite
from aggregator.log.sqlite import SqliteLog, log_size
from aggregator.model import EntryBatch, NewEntry, PositionedEntry
from aggregator.runtime import SystemRuntime
from tests.doubles import ManualRuntime

PLAN_ID = bytes(range(32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def runtime() -> ManualRuntime:
    return ManualRuntime()


@pytest.fixture
async def log(path: Path, runtime: ManualRuntime) -> AsyncIterator[SqliteLog]:
    opened = await SqliteLog.open(path, PLAN_ID, 2, runtime)
    yield opened
    await opened.close()


def items(partition: int, window: int, *texts: str) -> list[NewEntry]:
    return [NewEntry(partition, window, text.encode()) for text in texts]


async def everything(log: SqliteLog, partition: int, position: int = 0) -> list[tuple[int, bytes]]:
    return pairs(await log.read(partition, position, 1000, 0))


def pairs(entry_batch: EntryBatch) -> list[tuple[int, bytes]]:
    """Positions and bytes, of a stretch that is as this log's are: unsigned, and without holes."""
    positions = [entry.position for entry in entry_batch.entries]
    assert positions == list(range(entry_batch.end - len(positions), entry_batch.end))
    assert all(entry == PositionedEntry(entry.position, entry.data) for entry in entry_batch.entries)
    return [(entry.position, entry.data) for entry in entry_batch.entries]


async def test_positions_are_consecutive_in_each_partition(log: SqliteLog) -> None:
    mixed = [*items(0, 5, "a"), *items(1, 5, "b"), *items(0, 5, "c")]
    assert await log.append(mixed) == [0, 0, 1]
    assert await log.append(items(1, 5, "d")) == [1]
    assert await everything(log, 0) == [(0, b"a"), (1, b"c")]
    assert await everything(log, 1, 1) == [(1, b"d")]
    assert [await log.end(0), await log.end(1)] == [2, 2]


async def test_reading_is_limited_and_goes_on_where_it_stopped(log: SqliteLog) -> None:
    await log.append(items(0, 5, *"abcde"))
    assert await log.read(0, 1, 2, 0) == EntryBatch((PositionedEntry(1, b"b"), PositionedEntry(2, b"c")), 3)
    assert await log.read(0, 5, 2, 0) == EntryBatch((), 5)


async def test_everything_is_there_after_reopening(path: Path, runtime: ManualRuntime) -> None:
    log = await SqliteLog.open(path, PLAN_ID, 2, runtime)
    await log.append(items(1, 5, "a", "b"))
    await log.close()
    again = await SqliteLog.open(path, PLAN_ID, 2, runtime)
    assert await everything(again, 1) == [(0, b"a"), (1, b"b")]
    assert await again.append(items(1, 5, "c")) == [2]
    await again.close()


async def test_nothing_is_read_beyond_the_end_that_is_known_while_an_append_is_on_its_way_back(
    log: SqliteLog, path: Path, runtime: ManualRuntime
) -> None:
    await log.append(items(0, 5, "a"))
    ahead = await SqliteLog.open(path, PLAN_ID, 2, runtime)  # its commits are in the file before the first one knows
    await ahead.append(items(0, 5, "b", "c"))
    await ahead.close()
    assert await everything(log, 0) == [(0, b"a")]
    assert await log.read(0, 1, 10, 0) == EntryBatch((), 1)
    await log.append(items(0, 5, "d"))
    assert await everything(log, 0) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]


async def test_a_reader_that_waits_is_woken_by_an_append(log: SqliteLog, runtime: ManualRuntime) -> None:
    waiting = asyncio.create_task(log.read(0, 0, 10, 60.0))
    await runtime.settle()
    await log.append(items(1, 5, "elsewhere"))
    await runtime.settle()
    assert not waiting.done()
    await log.append(items(0, 5, "here"))
    assert pairs(await waiting) == [(0, b"here")]


async def test_a_reader_that_waits_in_vain_gets_nothing(log: SqliteLog, runtime: ManualRuntime) -> None:
    waiting = asyncio.create_task(log.read(0, 0, 10, 2.0))
    await runtime.advance(1.9)
    assert not waiting.done()
    await runtime.advance(0.2)
    assert await waiting == EntryBatch((), 0)


async def test_forgetting_erases_old_windows_below_the_given_positions_alone(log: SqliteLog) -> None:
    await log.append([*items(0, 5, "a"), *items(0, 6, "b"), *items(0, 5, "c"), *items(0, 5, "d"), *items(1, 5, "e")])
    await log.forget(5, {0: 3, 1: 0})
    with pytest.raises(LogGapError):
        await everything(log, 0)
    assert await everything(log, 0, 1) == [(1, b"b")]
    assert await everything(log, 0, 3) == [(3, b"d")]
    assert await everything(log, 1) == [(0, b"e")]


async def test_a_position_that_is_gone_names_the_gap(log: SqliteLog) -> None:
    await log.append([*items(0, 5, "a", "b"), *items(0, 6, "c")])
    await log.forget(5, {0: 2})
    with pytest.raises(LogGapError, match="partition 0: entries 0 to 1 are missing") as caught:
        await everything(log, 0)
    assert (caught.value.partition, caught.value.position, caught.value.found) == (0, 0, 2)


async def test_a_log_that_ends_before_the_fold_names_the_gap(log: SqliteLog) -> None:
    await log.append(items(0, 5, "a"))
    with pytest.raises(LogGapError, match="the log ends at 1, but the fold has processed 4"):
        await everything(log, 0, 5)


async def test_a_position_is_never_given_twice(path: Path, log: SqliteLog, runtime: ManualRuntime) -> None:
    await log.append(items(0, 5, "a", "b"))
    await log.forget(5, {0: 2})
    assert await log.append(items(0, 6, "c")) == [2]
    await log.forget(6, {0: 3})
    await log.close()
    again = await SqliteLog.open(path, PLAN_ID, 2, runtime)
    assert await again.append(items(0, 7, "d")) == [3]
    await again.close()


async def test_many_entries_are_forgotten_in_steps(log: SqliteLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aggregator.log.sqlite._FORGET_STEP", 7)
    await log.append([NewEntry(0, 5 + number % 2, b"%d" % number) for number in range(50)])
    await log.forget(5, {0: 41})
    kept = [position for position in range(50) if position % 2 == 1 or position >= 41]
    assert [entry.position for start in kept for entry in (await log.read(0, start, 1, 0)).entries] == kept


async def test_no_byte_of_a_forgotten_entry_is_left_in_the_files(path: Path, log: SqliteLog) -> None:
    secret, kept = b"SECRET-of-a-client " * 400, b"KEPT-for-the-next-window " * 400  # several pages each
    await log.append([NewEntry(0, 5, secret), NewEntry(0, 6, kept), NewEntry(0, 5, b"SECRET-short")])
    assert b"SECRET" in files(path)
    await log.forget(5, {0: 3})
    assert b"SECRET" not in files(path)
    assert b"KEPT" in files(path)


def files(path: Path) -> bytes:
    return b"".join(each.read_bytes() for each in path.parent.glob(path.name + "*"))


async def test_another_number_of_partitions_is_refused(path: Path, log: SqliteLog, runtime: ManualRuntime) -> None:
    with pytest.raises(LogError, match="has 2 partitions, got 3"):
        await SqliteLog.open(path, PLAN_ID, 3, runtime)


async def test_two_plans_in_one_file_do_not_meet(path: Path, log: SqliteLog, runtime: ManualRuntime) -> None:
    other = await SqliteLog.open(path, bytes(32), 1, runtime)
    await log.append(items(0, 5, "a"))
    assert await other.append(items(0, 5, "b")) == [0]
    assert await everything(other, 0) == [(0, b"b")]
    await other.close()


async def test_the_size_counts_all_that_was_ever_appended_while_the_log_is_open(path: Path, log: SqliteLog) -> None:
    assert log_size(path) == 0
    await log.append([*items(0, 5, "a", "b"), *items(1, 5, "c")])
    await log.forget(5, {0: 2, 1: 1})
    assert log_size(path) == 3


async def test_appends_from_many_tasks_in_real_threads_get_positions_of_their_own(path: Path) -> None:
    log = await SqliteLog.open(path, PLAN_ID, 1, SystemRuntime())
    given = await asyncio.gather(*(log.append(items(0, 5, str(number))) for number in range(20)))
    assert sorted(position for (position,) in given) == list(range(20))
    read = dict(pairs(await log.read(0, 0, 100, 0)))
    assert all(read[position] == str(number).encode() for number, (position,) in enumerate(given))
    await log.close()


@pytest.mark.parametrize("count", (1, 255, 256, 257, 1000))
async def test_groups_of_every_size_are_found_again_in_the_file(path: Path, runtime: ManualRuntime, count: int) -> None:
    entries = [NewEntry(n % 3, 5, b"%d" % n) for n in range(count)]
    log = await SqliteLog.open(path, PLAN_ID, 3, runtime)
    assert await log.append(items(1, 5, "before")) == [0]
    positions = await log.append(entries)
    assert await log.append([]) == []
    await log.close()

    again = await SqliteLog.open(path, PLAN_ID, 3, runtime)
    found = [dict(await everything(again, partition)) for partition in range(3)]
    await again.close()
    assert found[1].pop(0) == b"before"
    expected: list[dict[int, bytes]] = [{}, {}, {}]
    for entry, position in zip(entries, positions, strict=True):
        expected[entry.partition][position] = entry.data
    assert found == expected


async def test_the_newest_entries_are_read_without_the_file_and_others_from_it(
    log: SqliteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counted(
        db: sqlite3.Connection, plan: int, partition: int, position: int, limit: int
    ) -> tuple[PositionedEntry, ...]:
        asked.append(position)
        return file_read(db, plan, partition, position, limit)

    file_read = sqlite._read
    monkeypatch.setattr(sqlite, "_read", counted)
    await log.append(items(0, 5, *"abcd"))
    assert await everything(log, 0) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
    assert await everything(log, 0, 2) == [(2, b"c"), (3, b"d")]
    assert not asked
    assert await everything(log, 0, 1) == [(1, b"b"), (2, b"c"), (3, b"d")]
    assert asked == [1], "what somebody has read on from is not kept"


async def test_what_nobody_reads_is_not_kept_in_memory_beyond_its_bound(
    path: Path, runtime: ManualRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_TAIL_BYTES", 100)
    monkeypatch.setattr(sqlite, "_TAIL_BYTES_MIN", 1)
    log = await SqliteLog.open(path, PLAN_ID, 1, runtime)
    for n in range(20):
        await log.append([NewEntry(0, 5, bytes([n]) * 30)])
    assert [entry.position for entry in log._tails[0].read(17, 100)] == [17, 18, 19]
    assert await everything(log, 0) == [(n, bytes([n]) * 30) for n in range(20)]
    await log.append([NewEntry(0, 5, bytes(101))])
    assert log._tails[0].read(20, 100) == ()
    assert await everything(log, 0, 20) == [(20, bytes(101))]
    await log.close()


async def test_nothing_of_a_forgotten_entry_is_left_in_memory(log: SqliteLog) -> None:
    await log.append(items(0, 5, "a", "b"))
    await log.forget(5, {0: 1})
    with pytest.raises(LogGapError):
        await log.read(0, 0, 10, 0)
    assert await everything(log, 0, 1) == [(1, b"b")]


def test_a_tail_never_puts_an_entry_where_another_belongs() -> None:
    tail = sqlite._Tail(1000)
    for position in (3, 4, 7, 5, 8):  # the task of 5 and 6 went on after that of 7
        tail.add(PositionedEntry(position, b"%d" % position))
    assert tail.read(3, 10) == ()
    assert [entry.position for entry in tail.read(7, 10)] == [7, 8]


async def test_groups_of_any_size_follow_each_other(log: SqliteLog) -> None:
    """Small groups are one statement, large ones many: both go by the same ends."""
    sizes = (1, sqlite._ALONE_MAX, sqlite._ALONE_MAX + 1, 3, 3 * sqlite._ROWS_MAX + 7, 2)
    first = 0
    for size in sizes:
        group = items(0, 5, *map(str, range(first, first + size)))
        assert await log.append([*group, *items(1, 5, "beside")]) == [*range(first, first + size), sizes.index(size)]
        first += size
    assert await everything(log, 0) == [(position, b"%d" % position) for position in range(first)]


async def test_a_position_is_never_given_twice_by_a_log_that_missed_an_append(
    log: SqliteLog, path: Path, runtime: ManualRuntime
) -> None:
    """Not even where the entry that it missed is erased: the file knows the end of each partition."""
    await log.append(items(0, 5, "a"))
    ahead = await SqliteLog.open(path, PLAN_ID, 2, runtime)
    await ahead.append(items(0, 5, "b"))
    await ahead.forget(5, {0: 2})
    await ahead.close()
    assert await log.append([*items(1, 6, "d"), *items(0, 6, "c")]) == [0, 2]
    assert log_size(path) == 4


@pytest.mark.parametrize("size", (2, 2 * sqlite._ALONE_MAX), ids=("one statement", "many"))
async def test_an_append_that_fails_leaves_nothing_and_the_next_one_takes_its_place(log: SqliteLog, size: int) -> None:
    await log.append(items(0, 5, "a"))
    broken = NewEntry(0, 5, None)  # type: ignore[arg-type]  # what the table refuses
    with pytest.raises(LogError, match="NOT NULL constraint failed"):
        await log.append([*items(0, 5, *("b" * size)), broken])
    assert await log.append(items(0, 5, "b")) == [1]
    assert await everything(log, 0) == [(0, b"a"), (1, b"b")]
