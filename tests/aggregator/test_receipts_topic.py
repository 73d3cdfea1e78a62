from collections.abc import AsyncIterator
from dataclasses import replace
from fractions import Fraction

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete

from aggregator.errors import ConfigError, LogUnavailableError, ReceiptsError
from aggregator.kafka.receipts import ReceiptsTopic
from aggregator.kafka.settings import KafkaSettings
from aggregator.ports import StoredOutcome, SystemRuntime
from aggregator.receipt import Receipt
from hushsum.privacy.event import TUMBLING, ClaimedEvent, Spend
from hushsum.releases import spend_of
from simulator.backends.kafka import KafkaBroker
from tests.brokers import ProxiedKafka, fresh_prefix
from tests.doubles import RecordingObserver
from tests.plans import small_plan

PLAN = small_plan()


@pytest.fixture
def settings(kafka: KafkaBroker) -> KafkaSettings:
    return KafkaSettings(kafka.bootstrap, fresh_prefix())


@pytest.fixture
async def receipts(settings: KafkaSettings) -> AsyncIterator[ReceiptsTopic]:
    opened = await opened_receipts(settings)
    yield opened
    await opened.close()


async def opened_receipts(settings: KafkaSettings) -> ReceiptsTopic:
    return await ReceiptsTopic.open(settings, SystemRuntime(threads=1), RecordingObserver())


def release(window: int, mark: int = 0) -> StoredOutcome:
    return StoredOutcome(PLAN.id, TUMBLING, window, b"", bytes([window, mark]) * 16)


def spend(window: int) -> Spend:
    return spend_of(PLAN, kind=TUMBLING, window=window)


def receipt(window: int, mark: int = 0) -> Receipt:
    return Receipt(PLAN.id, TUMBLING, window, release(window, mark).sha256, spend(window))


def rows(*windows: int) -> list[tuple[bytes, str, int, bytes, Spend]]:
    return [receipt(window).row for window in windows]


async def write(receipts: ReceiptsTopic, *windows: int) -> None:
    for window in windows:
        await receipts.write(release(window), spend(window))


async def plant(settings: KafkaSettings, *values: bytes) -> int:
    """Messages of somebody else's; the offset of the last."""
    producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap)
    await producer.start()
    sent = [await producer.send_and_wait(f"{settings.prefix}.receipts", value) for value in values]
    await producer.stop()
    return int(sent[-1].offset)


async def test_what_is_written_is_read_back_after_reopening(receipts: ReceiptsTopic, settings: KafkaSettings) -> None:
    assert await receipts.read() == []
    await write(receipts, 1, 2, 3)
    assert await receipts.read() == rows(1, 2, 3)
    again = await opened_receipts(settings)
    assert await again.read() == rows(1, 2, 3)
    await again.close()


async def test_writing_the_same_outcome_again_changes_nothing(receipts: ReceiptsTopic, settings: KafkaSettings) -> None:
    await write(receipts, 1, 2, 1)
    again = await opened_receipts(settings)
    await write(again, 2)
    await again.close()
    assert await plant(settings, receipt(3).to_line()[0]) == 2


async def test_what_another_releaser_has_written_meanwhile_is_seen(
    receipts: ReceiptsTopic, settings: KafkaSettings
) -> None:
    await write(receipts, 1)
    await plant(settings, receipt(2).to_line()[0], receipt(1).to_line()[0])
    assert await receipts.read() == rows(1, 2)
    await plant(settings, receipt(3).to_line()[0])
    with pytest.raises(ReceiptsError, match="window 3 has a receipt for another outcome"):
        await receipts.write(release(3, mark=9), spend(3))
    assert await receipts.read() == rows(1, 2, 3)


async def test_two_receipts_for_different_releases_of_a_window_stop_everybody(
    receipts: ReceiptsTopic, settings: KafkaSettings
) -> None:
    await plant(settings, receipt(1).to_line()[0], receipt(1, mark=9).to_line()[0])
    for reading in (receipts.read, lambda: opened_receipts(settings)):
        with pytest.raises(ReceiptsError, match="window 1 has a receipt for another outcome"):
            await reading()


async def test_a_receipt_in_the_words_of_an_older_version_stands_for_the_same_outcome(
    receipts: ReceiptsTopic, settings: KafkaSettings
) -> None:
    old = replace(spend(1), events=(ClaimedEvent("discrete-laplace", Fraction(1), Fraction(0)),))
    await receipts.write(release(1), old)
    await receipts.write(release(1), spend(1))
    assert [row[4] for row in await receipts.read()] == [old]


@pytest.mark.parametrize("at", [0, 40, -3])
async def test_a_damaged_receipt_is_refused_by_its_place(
    receipts: ReceiptsTopic, settings: KafkaSettings, at: int
) -> None:
    await write(receipts, 1)
    line = bytearray(receipt(2).to_line()[0])
    line[at] ^= 1
    await plant(settings, bytes(line))
    for _ in range(2):
        with pytest.raises(ReceiptsError, match=r"message 1: .* until the topic is restored"):
            await receipts.read()
    with pytest.raises(ReceiptsError, match="message 1"):
        await write(receipts, 3)


async def test_a_newer_format_is_refused(
    receipts: ReceiptsTopic, settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.receipt.RECEIPTS_FORMAT", 3)
    line, _ = receipt(1).to_line()
    monkeypatch.undo()
    await plant(settings, line)
    with pytest.raises(ReceiptsError, match="message 0: format 3; this version reads up to 2"):
        await receipts.read()


async def test_a_topic_that_has_lost_its_first_receipts_is_refused(
    receipts: ReceiptsTopic, settings: KafkaSettings
) -> None:
    await write(receipts, 1, 2)
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    await admin.delete_records({TopicPartition(f"{settings.prefix}.receipts", 0): RecordsToDelete(1)})
    await admin.close()
    for reading in (receipts.read, lambda: opened_receipts(settings)):
        with pytest.raises(ReceiptsError, match="holds messages 1 to 1, expected all since 0"):
            await reading()


async def test_a_topic_that_does_not_keep_receipts_for_ever_is_refused(settings: KafkaSettings) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    await admin.create_topics(
        [NewTopic(f"{settings.prefix}.receipts", 1, 1, topic_configs={"retention.ms": "604800000"})]
    )
    await admin.close()
    with pytest.raises(ConfigError, match=r"retention\.ms is 604800000, expected -1: receipts are kept for ever"):
        await opened_receipts(settings)


async def test_without_a_broker_nothing_is_certified_and_it_can_be_repeated(kafka_behind_proxy: ProxiedKafka) -> None:
    receipts = await opened_receipts(KafkaSettings(kafka_behind_proxy.bootstrap, fresh_prefix(), request_s=2.0))
    await write(receipts, 1)
    kafka_behind_proxy.proxy.refuse()
    for asked in (receipts.read(), write(receipts, 2)):
        with pytest.raises(LogUnavailableError):
            await asked
    kafka_behind_proxy.proxy.heal()
    await write(receipts, 2)
    assert await receipts.read() == rows(1, 2)
    await receipts.close()
