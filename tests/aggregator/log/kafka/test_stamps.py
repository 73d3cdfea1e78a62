"""What brokers keep of a log of anonymous reports: no time but windows' starts, and all until it is forgotten."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.errors import ConfigError, LogError, LogGapError
from aggregator.log.entries import PlainMessages
from aggregator.log.kafka import log as kafka_log
from aggregator.log.kafka.client import KafkaSettings
from aggregator.log.kafka.log import KafkaLog
from aggregator.log.kafka.topic import RequiredSetting, TopicNeeds, entries_topic
from aggregator.model import NewEntry
from aggregator.runtime import SystemRuntime
from hushsum.plan import Plan
from hushsum_proto.convert import entry_from_bytes, entry_to_bytes
from hushsum_proto.entries import ReportsEntry, SealEntry
from hushsum_simulator.testbed.kafka import KafkaBroker
from tests.aggregator.kafka_logs import STEP, WAIT_S, everything, files_of, records_in, times_in
from tests.aggregator.reports import report_plan, reports_of
from tests.brokers import fresh_prefix
from tests.doubles import RecordingObserver

PLAN = report_plan()
STARTS = PLAN.window.start_ms
RUNTIME = SystemRuntime(threads=1)
WINDOW = PLAN.window.index_at(RUNTIME.now_ms())
LONG_AGO = PLAN.window.index_at(0) + 24
DAY = 24  # windows
BROKERS_TURN_S = 3.0  # it looks each second for what may go


@pytest.fixture
def settings(kafka: KafkaBroker) -> KafkaSettings:
    return KafkaSettings(kafka.bootstrap, fresh_prefix())


@asynccontextmanager
async def opened(settings: KafkaSettings) -> AsyncIterator[KafkaLog]:
    log = await KafkaLog.open(settings, PLAN, 2, PlainMessages(), RUNTIME, RecordingObserver())
    try:
        yield log
    finally:
        await log.close()


def batch(window: int, stream: int, partition: int = 0) -> NewEntry:
    return NewEntry(partition, window, entry_to_bytes(reports_of(PLAN, window, [stream], stream=stream)))


def seal(window: int, partition: int = 0) -> NewEntry:
    return NewEntry(partition, window, entry_to_bytes(SealEntry(PLAN.id, window, STARTS(window))))


def told(data: bytes) -> list[tuple[int, int]]:
    """The window and the stream of each entry of a message; -1 for a seal."""
    entries = [entry_from_bytes(entry) for entry in PlainMessages().read(0, data).entries]
    found = []
    for entry in entries:
        if isinstance(entry, ReportsEntry):
            found.append((PLAN.window.index_at(entry.arrived_ms), int.from_bytes(entry.batch[33:41], "big")))
        else:
            assert isinstance(entry, SealEntry)
            found.append((entry.window, -1))
    return found


TURNS = (
    [batch(WINDOW - 1, 1), batch(WINDOW - 1, 2, 1)],
    [batch(WINDOW, 3), batch(WINDOW - 1, 4), batch(WINDOW, 5, 1), batch(WINDOW, 6)],
    [seal(WINDOW - 1), seal(WINDOW - 1, 1)],
)


async def finer(kafka: KafkaBroker, settings: KafkaSettings) -> list[str]:
    """Times of arrival that a broker keeps of these appends, as consumers are told and as they stand in its files."""
    began_ms = RUNTIME.now_ms()
    async with opened(settings) as log:
        for entries in TURNS:
            await log.append(entries)
        records = await records_in(kafka, log.topic, 2)
    assert {record.key for record in records} == {None}
    assert {record.headers for record in records} == {()}
    found = [f"{each.timestamp} of a record" for each in records if each.timestamp != STARTS(told(each.value)[0][0])]
    for path in files_of(kafka, log.topic):
        found += times_in(path, began_ms - 1000, RUNTIME.now_ms() + 1000)
    return found


async def test_brokers_keep_no_time_of_reports_and_seals_but_the_starts_of_their_windows(
    kafka: KafkaBroker, settings: KafkaSettings
) -> None:
    assert await finer(kafka, settings) == []


def brokers_stamp(needs: TopicNeeds) -> TopicNeeds:
    return replace(
        needs,
        settings={**needs.settings, "message.timestamp.type": RequiredSetting("LogAppendTime", "equal", "a mistake")},
    )


def gateways_forget_to(needs: TopicNeeds) -> TopicNeeds:
    return replace(needs, stamps=None)


def plant(monkeypatch: pytest.MonkeyPatch, mistake: Callable[[TopicNeeds], TopicNeeds]) -> None:
    def mistaken(settings: KafkaSettings, plan: Plan, partitions: int) -> TopicNeeds:
        return mistake(entries_topic(settings, plan, partitions))

    monkeypatch.setattr(kafka_log, "entries_topic", mistaken)


@pytest.mark.parametrize("mistake", [brokers_stamp, gateways_forget_to])
async def test_a_planted_time_of_arrival_is_found_in_records_and_in_the_brokers_files(
    kafka: KafkaBroker,
    settings: KafkaSettings,
    monkeypatch: pytest.MonkeyPatch,
    mistake: Callable[[TopicNeeds], TopicNeeds],
) -> None:
    plant(monkeypatch, mistake)
    found = await finer(kafka, settings)
    assert any(each.endswith("of a record") for each in found)
    assert any(each.endswith(".log") for each in found)


async def test_windows_that_come_by_turns_have_a_message_each_and_keep_their_order(
    kafka: KafkaBroker, settings: KafkaSettings
) -> None:
    a, b = WINDOW - 1, WINDOW
    entries = [batch(a, 1), batch(b, 2), batch(a, 3), batch(b, 4), seal(a), batch(a, 5), batch(b, 6)]
    async with opened(settings) as log:
        assert await log.append(entries) == [0, STEP, 1, STEP + 1, 2 * STEP, 3 * STEP, STEP + 2]
        entry_batch = await log.read(0, 0, 100, WAIT_S)
        records = await records_in(kafka, log.topic, 1)
    assert {each.appended_ms for each in entry_batch.entries} == {None}, "nobody takes a window's start for an arrival"
    held = [told(each.value) for each in records]
    assert held == [[(a, 1), (a, 3)], [(b, 2), (b, 4), (b, 6)], [(a, -1)], [(a, 5)]]
    assert [each.timestamp for each in records] == [STARTS(window) for window in (a, b, a, a)]


async def test_a_window_of_long_ago_keeps_its_messages_until_it_is_forgotten(
    kafka: KafkaBroker, settings: KafkaSettings
) -> None:
    async with opened(settings) as log:
        positions = [await log.append([batch(LONG_AGO + number, 1 + number)]) for number in range(3)]
        assert positions == [[0], [STEP], [2 * STEP]]
        await asyncio.sleep(BROKERS_TURN_S)
        assert len(await everything(log)) == 3
        assert len(segments(kafka, log)) == 3, "each window closes what the one before has begun"
        await log.forget(LONG_AGO + 1, {0: 2 * STEP})
        async with asyncio.timeout(WAIT_S):
            while len(segments(kafka, log)) > 1:  # noqa: ASYNC110  the broker decides when
                await asyncio.sleep(0.05)
        assert [each.position for each in (await log.read(0, 2 * STEP, 100, WAIT_S)).entries] == [2 * STEP]


def segments(kafka: KafkaBroker, log: KafkaLog) -> list[Path]:
    return [path for path in files_of(kafka, log.topic) if path.suffix == ".log" and path.parent.name.endswith("-0")]


async def test_under_a_retention_by_age_they_would_go_before_they_are_folded(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finite(needs: TopicNeeds) -> TopicNeeds:
        return replace(
            needs, settings={**needs.settings, "retention.ms": RequiredSetting("90000000", "equal", "a mistake")}
        )

    async def read_until_gone(log: KafkaLog) -> None:
        while await log.read(0, 0, 100, 0.1):
            continue

    plant(monkeypatch, finite)
    async with opened(settings) as log, asyncio.timeout(WAIT_S):
        await log.append([batch(LONG_AGO, 1)])
        with pytest.raises(LogGapError):
            await read_until_gone(log)


async def test_a_window_a_day_ahead_is_taken_and_one_of_next_week_is_an_operators_to_see_to(
    settings: KafkaSettings,
) -> None:
    async with opened(settings) as log:
        assert await log.append([batch(WINDOW + DAY, 1)]) == [0]
        with pytest.raises(LogError, match="InvalidTimestamp"):
            await log.append([batch(WINDOW + 7 * DAY, 2)])
        assert await log.append([batch(WINDOW, 3)]) == [STEP]


async def test_a_topic_that_was_made_to_keep_times_of_arrival_is_refused_by_name(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, brokers_stamp)
    async with opened(settings) as log:
        monkeypatch.undo()
        why = "message.timestamp.type is LogAppendTime, expected CreateTime: brokers would record when each anonymous"
        with pytest.raises(ConfigError, match=f"topic {log.topic}: {why}"):
            async with opened(settings):
                pass
