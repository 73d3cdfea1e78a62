import asyncio
from collections.abc import AsyncIterator

import pytest
from aiokafka import TopicPartition

from aggregator.errors import LogUnavailableError
from aggregator.kafka.log import KafkaLog
from aggregator.kafka.settings import KafkaSettings
from aggregator.records import Logged
from simulator.backends.kafka import KafkaBroker
from tests.aggregator.kafka_logs import STEP, delta, everything, opened_log, to_zero, until, until_appended
from tests.brokers import ProxiedKafka, fresh_prefix
from tests.doubles import RecordingObserver


@pytest.fixture
def settings(kafka: KafkaBroker) -> KafkaSettings:
    return KafkaSettings(kafka.bootstrap, fresh_prefix())


@pytest.fixture
async def log(settings: KafkaSettings) -> AsyncIterator[KafkaLog]:
    opened = await opened_log(settings)
    yield opened
    await opened.close()


async def test_an_append_that_no_broker_answers_fails_in_bounded_time_and_the_next_one_works(
    kafka_behind_proxy: ProxiedKafka,
) -> None:
    log = await opened_log(KafkaSettings(kafka_behind_proxy.bootstrap, fresh_prefix(), request_s=1.5))
    await log.append(to_zero(delta("a")))
    kafka_behind_proxy.proxy.fall_silent()
    for _ in range(2):  # the producer that has waited, and a new one
        with pytest.raises(LogUnavailableError, match="appending"):
            await log.append(to_zero(delta("b")))
    with pytest.raises(LogUnavailableError):
        await log.end(0)
    kafka_behind_proxy.proxy.heal()
    await until_appended(log, to_zero(delta("c")))
    found = [each.data for each in await everything(log)]
    assert [data for data in found if data != delta("b")] == [delta("a"), delta("c")]
    await log.close()


async def test_a_producer_whose_sequence_is_broken_is_replaced(log: KafkaLog) -> None:
    await log.append(to_zero(delta("a")))
    producer = log._writer._producer
    assert producer is not None
    producer._txn_manager.increment_sequence_number(TopicPartition(log.topic, 0), 7)
    with pytest.raises(LogUnavailableError, match="OutOfOrderSequence"):
        await log.append(to_zero(delta("b")))
    assert await log.append(to_zero(delta("c"))) == [STEP]
    assert [each.data for each in await everything(log)] == [delta("a"), delta("c")]


async def test_a_log_whose_broker_is_not_there_yet_is_opened_once_it_is(kafka_behind_proxy: ProxiedKafka) -> None:
    observer = RecordingObserver()
    kafka_behind_proxy.proxy.refuse()
    opening = asyncio.create_task(opened_log(KafkaSettings(kafka_behind_proxy.bootstrap, fresh_prefix()), observer))
    await until(lambda: len(observer.retries) >= 2)
    kafka_behind_proxy.proxy.heal()
    log = await opening
    assert {what for what, _ in observer.retries} == {"kafka"}
    await log.close()


async def test_nothing_is_lost_while_the_broker_is_killed_and_started_under_appends_and_reads(
    kafka: KafkaBroker, settings: KafkaSettings
) -> None:
    log = await opened_log(settings)
    acknowledged: list[bytes] = []
    seen: list[Logged] = []
    over = asyncio.Event()

    async def append() -> None:
        number = 0
        while not over.is_set():
            number += 1
            await until_appended(log, to_zero(delta(f"entry {number}")))
            acknowledged.append(delta(f"entry {number}"))

    async def follow() -> None:
        position = 0
        while not (over.is_set() and position == await log.end(0)):
            stretch = await log.read(0, position, 7, 1.0)
            seen.extend(stretch.entries)
            position = stretch.end

    working = asyncio.gather(append(), follow())
    await until(lambda: len(acknowledged) >= 20)
    kafka.kill()
    await asyncio.to_thread(kafka.start)
    many = len(acknowledged) + 20
    await until(lambda: len(acknowledged) >= many)
    over.set()
    await working
    assert [each.position for each in seen] == sorted({each.position for each in seen})
    # Repeated after a lost answer, an entry may stand there twice; in its order, and none is missing.
    first = list(dict.fromkeys(each.data for each in seen))
    assert first == acknowledged
    await log.close()
