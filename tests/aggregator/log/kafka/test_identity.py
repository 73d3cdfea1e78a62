"""A topic that is gone, made anew, or an older copy: nothing is acknowledged that no fold will ever see."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from aggregator.errors import LogError, LogGapError, LogUnavailableError
from aggregator.log.entries import PlainMessages
from aggregator.log.kafka.client import KafkaSettings
from aggregator.log.kafka.log import KafkaLog
from aggregator.runtime import SystemRuntime
from hushsum_simulator.testbed.kafka import KafkaBroker
from tests.aggregator.kafka_logs import PLAN, STEP, delta, opened_log, to_zero, until_appended
from tests.brokers import fresh_prefix
from tests.doubles import RecordingObserver
from tests.services import Contributor, RawClient, config_of, folded_all, service_of


@pytest.fixture
def settings(kafka: KafkaBroker) -> KafkaSettings:
    return KafkaSettings(kafka.bootstrap, fresh_prefix(), request_s=5.0)


@pytest.fixture
async def log(settings: KafkaSettings) -> AsyncIterator[KafkaLog]:
    """Holds three messages in partition 0."""
    opened = await opened_log(settings)
    for text in "abc":
        await opened.append(to_zero(delta(text)))
    yield opened
    await opened.close()


async def opened_beyond(settings: KafkaSettings, position: int) -> KafkaLog:
    observer, runtime = RecordingObserver(), SystemRuntime(threads=1)
    return await KafkaLog.open(settings, PLAN, 2, PlainMessages(), runtime, observer, {0: position, 1: 0})


async def delete(log: KafkaLog, settings: KafkaSettings) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    await admin.delete_topics([log.topic])
    while (await admin.describe_topics([log.topic]))[0]["error_code"] == 0:  # noqa: ASYNC110  what is waited for is decided by a broker
        await asyncio.sleep(0.02)
    await admin.close()


async def make_anew(log: KafkaLog, settings: KafkaSettings, messages: int) -> None:
    """Deletes the topic; another process, which knows nothing, makes it and appends to it."""
    await delete(log, settings)
    another = await opened_log(settings)
    for number in range(messages):
        await until_appended(another, to_zero(delta(str(number))))
    await another.close()


async def refused(work: Callable[[], Awaitable[object]]) -> str:
    """Why it fails for good; it may fail for a moment before, and must never work."""
    async with asyncio.timeout(120):
        while True:
            try:
                done = await work()
            except LogUnavailableError:
                await asyncio.sleep(0.05)
            except LogError as error:
                return str(error)
            else:
                pytest.fail(f"it worked: {done}")


async def test_a_topic_that_is_gone_is_not_made_where_some_of_it_was_folded(
    log: KafkaLog, settings: KafkaSettings
) -> None:
    await delete(log, settings)
    for _ in range(2):
        with pytest.raises(
            LogError, match=rf"topic {log.topic} is missing, although 3 of its messages were folded: restore it"
        ):
            await opened_beyond(settings, 2 * STEP + 1)
    await (await opened_beyond(settings, 0)).close()


async def test_a_topic_that_ends_before_what_was_folded_is_not_opened(log: KafkaLog, settings: KafkaSettings) -> None:
    await (await opened_beyond(settings, 3 * STEP)).close()
    await make_anew(log, settings, 2)
    with pytest.raises(LogGapError, match=f"partition 0: the log ends at {2 * STEP}, but the fold has processed"):
        await opened_beyond(settings, 3 * STEP)


async def test_an_append_that_stands_lower_than_an_earlier_one_is_not_acknowledged_and_none_is_after_it(
    log: KafkaLog, settings: KafkaSettings
) -> None:
    log._identity._id = None  # as of brokers that give topics no ids
    await make_anew(log, settings, 1)
    why = "partition 0 appended at 1, although it had reached 3: the topic is another or an older copy; restore it"
    assert why in await refused(lambda: log.append(to_zero(delta("d"))))
    for work in (lambda: log.append(to_zero(*map(delta, "efgh"))), lambda: log.end(1), lambda: log.read(1, 0, 1, 0.0)):
        with pytest.raises(LogError, match="although it had reached 3"):
            await work()


@pytest.mark.parametrize("asked", ["append", "read", "end"])
async def test_a_topic_made_anew_under_a_running_process_is_known_by_its_id_however_far_it_has_come(
    log: KafkaLog, settings: KafkaSettings, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.log.kafka.topic._CONFIRM_S", 0.0)
    assert len((await log.read(0, 0, 3, 5.0)).entries) == 3
    await make_anew(log, settings, 5)
    work: dict[str, Callable[[], Awaitable[object]]] = {
        "append": lambda: log.append(to_zero(delta("d"))),
        "read": lambda: log.read(0, 3 * STEP, 1, 5.0),
        "end": lambda: log.end(0),
    }
    assert "it was deleted and recreated: the topic is another" in await refused(work[asked])


async def test_an_end_that_is_lower_than_it_was_is_doubted_for_a_moment_and_refused_then(
    log: KafkaLog, settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.log.kafka.topic._SUSPECT_S", 0.2)
    log._identity._id = None
    assert await log.end(0) == 3 * STEP
    log._identity.ended(0, 3)
    with pytest.raises(LogUnavailableError, match="partition 0 ends at 2, although it had reached 3"):
        log._identity.ended(0, 2)
    log._identity.ended(0, 3)  # the leader has caught up
    await make_anew(log, settings, 0)
    assert "partition 0 ends at 0, although it had reached 3" in await refused(lambda: log.end(0))


async def test_a_service_does_not_start_on_a_topic_that_is_gone(kafka: KafkaBroker, tmp_path: Path) -> None:
    settings = {"log": "kafka", "kafka_bootstrap": kafka.bootstrap, "kafka_prefix": fresh_prefix()}
    config = config_of(tmp_path, PLAN, **settings)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await client.submit_one(PLAN.id, Contributor(PLAN, 3).delta()[1])
        await folded_all(service)
        log = service.log
    assert isinstance(log, KafkaLog)
    await delete(log, KafkaSettings(kafka.bootstrap))
    with pytest.raises(LogError, match="is missing, although 1 of its messages were folded: restore it"):
        async with service_of(config):
            pass
