import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition

from aggregator.errors import LogUnavailableError
from aggregator.log.kafka.client import KafkaSettings, Security, administration
from aggregator.log.kafka.internals import PartitionClient
from aggregator.log.kafka.log import KafkaLog
from aggregator.model import PositionedEntry
from hushsum_simulator.testbed.kafka import KafkaBroker
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


async def test_whoever_sends_while_brokers_are_away_leaves_no_error_that_nobody_is_told_of(
    kafka_behind_proxy: ProxiedKafka,
) -> None:
    untold: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: untold.append(context))
    log = await opened_log(KafkaSettings(kafka_behind_proxy.bootstrap, fresh_prefix(), request_s=0.7))
    await until_appended(log, to_zero(delta("a")))
    kafka_behind_proxy.proxy.refuse()
    kafka_behind_proxy.proxy.cut()
    for _ in range(2):
        with pytest.raises(LogUnavailableError):
            await log.append(to_zero(delta("b")))
    kafka_behind_proxy.proxy.heal()
    await until_appended(log, to_zero(delta("c")))
    await log.close()
    gc.collect()
    await asyncio.sleep(0)
    assert not untold


async def test_a_broker_that_is_silent_is_passed_over_for_one_that_answers(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.log.kafka.client.CONNECT_S", 0.2)
    async with AsyncExitStack() as stack:
        hole = await stack.enter_async_context(await asyncio.start_server(_say_nothing, "127.0.0.1", 0))
        port = hole.sockets[0].getsockname()[1]
        behind = replace(settings, bootstrap=f"127.0.0.1:{port}, {settings.bootstrap}", request_s=400.0)
        async with asyncio.timeout(120):  # else it is as long as a request may take, for each connection
            log = await opened_log(behind)
            await log.append(to_zero(delta("a")))
            assert [*await asyncio.gather(log.end(0), log.end(1))] == [STEP, 0]
            assert len(await everything(log)) == 1
            await log.close()


async def _say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@pytest.mark.parametrize("security", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
async def test_security_that_is_not_the_listeners_is_told_by_its_key(
    settings: KafkaSettings, security: Security, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("word\n", encoding="utf-8")
    other = replace(settings, security=security, user="somebody", password_file=password, request_s=5.0)
    with pytest.raises(LogUnavailableError, match="kafka_security"):
        async with administration(other):
            pass


async def test_a_partition_whose_connection_hangs_holds_up_no_other(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = PartitionClient.connect

    async def hang(arguments: dict[str, Any], where: TopicPartition) -> PartitionClient:
        if where.partition == 1:
            await asyncio.Event().wait()
        return await connect(arguments, where)

    monkeypatch.setattr(PartitionClient, "connect", hang)
    hanging = [asyncio.create_task(log.end(1)), asyncio.create_task(log.read(1, 0, 1, 300.0))]
    await asyncio.sleep(0)
    async with asyncio.timeout(120):
        assert await log.end(0) == 0
        assert (await log.read(0, 0, 1, 0.0)).end == 0
    for each in hanging:
        assert not each.done()
        each.cancel()
    await asyncio.wait(hanging)


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
    seen: list[PositionedEntry] = []
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
            entry_batch = await log.read(0, position, 7, 1.0)
            seen.extend(entry_batch.entries)
            position = entry_batch.end

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
