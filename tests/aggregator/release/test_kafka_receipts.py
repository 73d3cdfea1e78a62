import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from fractions import Fraction

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete

from aggregator.errors import ConfigError, ForeignReceiptsError, LogUnavailableError, ReceiptsError
from aggregator.log.kafka.client import KafkaSettings
from aggregator.model import ReceiptsMark, StoredOutcome
from aggregator.release.kafka_receipts import ReceiptsTopic
from aggregator.release.receipts import Receipt, ReceiptsHeader
from aggregator.release.receipts_copy import CopiedReceipts
from aggregator.runtime import SystemRuntime
from hushsum.entropy import ReplayableEntropy
from hushsum.privacy.events import TUMBLING, ClaimedEvent, Spend
from hushsum.releases import spend_of
from hushsum_simulator.testbed.kafka import KafkaBroker
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


async def opened_receipts(
    settings: KafkaSettings, id_: bytes = b"topic", *, made: bool = False, name: str | None = None
) -> ReceiptsTopic:
    entropy, runtime = ReplayableEntropy(id_), SystemRuntime(threads=1)
    return await ReceiptsTopic.open(settings, runtime, entropy, RecordingObserver(), made=made, name=name)


def release(window: int, mark: int = 0) -> StoredOutcome:
    return StoredOutcome(PLAN.id, TUMBLING, window, b"", bytes([window, mark]) * 16)


def spend(window: int) -> Spend:
    return spend_of(PLAN, kind=TUMBLING, window=window)


def receipt(window: int, mark: int = 0) -> Receipt:
    return Receipt(PLAN.id, TUMBLING, window, release(window, mark).sha256, spend(window))


def rows(*windows: int) -> list[Receipt]:
    return [receipt(window) for window in windows]


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
    monkeypatch.setattr("aggregator.release.receipts.RECEIPTS_FORMAT", 4)
    line, _ = receipt(1).to_line()
    monkeypatch.undo()
    await plant(settings, line)
    with pytest.raises(ReceiptsError, match="message 0: format 4; this version reads up to 3"):
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
    with pytest.raises(ConfigError, match=r"retention\.ms is 604800000, expected -1: receipts are never deleted"):
        await opened_receipts(settings)


async def deleted(settings: KafkaSettings) -> None:
    """An operator deletes the topic; returns once it is gone."""
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    topic = f"{settings.prefix}.receipts"
    await admin.delete_topics([topic])
    while (await admin.describe_topics([topic]))[0]["error_code"] == 0:  # noqa: ASYNC110  what is waited for is decided by a broker
        await asyncio.sleep(0.02)
    await admin.close()


async def test_of_processes_that_begin_at_once_all_get_the_id_that_stands_first(settings: KafkaSettings) -> None:
    topics = [await opened_receipts(settings, bytes([number])) for number in range(3)]
    marks = await asyncio.gather(*[topic.begin() for topic in topics])
    assert len({mark.id for mark in marks}) == 1
    for topic in topics:
        for mark in marks:
            await topic.check(mark)
        await topic.close()


async def test_the_order_in_the_topic_decides_a_mark_whoever_wrote_what(settings: KafkaSettings) -> None:
    one, two = [await opened_receipts(settings, id_) for id_ in (b"one", b"two")]
    begun = await one.begin()
    assert await two.begin() == begun
    marks = [begun]
    for window, topic in enumerate((one, two, two, one)):
        await plant(settings, receipt(window).to_line()[0])  # at a hand-over two write the same one
        marks.append(await topic.write(release(window), spend(window)))
    assert [mark.lines for mark in marks] == [1, 2, 3, 4, 5]
    later = await opened_receipts(settings, b"three")
    for topic in (one, two, later):
        for mark in marks:
            await topic.check(mark)
        with pytest.raises(ReceiptsError, match="5 of the 6 lines"):
            await topic.check(replace(marks[-1], lines=6))
        await topic.close()


async def test_a_topic_of_an_older_version_gets_its_id_after_what_it_holds(settings: KafkaSettings) -> None:
    first = await opened_receipts(settings)
    await first.close()
    await plant(settings, receipt(1).to_line()[0])
    topic = await opened_receipts(settings, made=True)
    await topic.check(ReceiptsMark(b"", 0, b""))
    mark = await topic.begin()
    assert (len(mark.id), mark.lines) == (16, 2)
    assert await topic.read() == rows(1)
    await topic.close()


async def test_a_topic_that_is_gone_is_not_made_again(receipts: ReceiptsTopic, settings: KafkaSettings) -> None:
    await receipts.begin()
    await deleted(settings)
    for _ in range(2):
        with pytest.raises(ForeignReceiptsError, match=r"topic .*\.receipts: missing, although this store has"):
            await opened_receipts(settings, made=True)


async def test_another_topic_in_its_place_is_told_from_it(receipts: ReceiptsTopic, settings: KafkaSettings) -> None:
    await write(receipts, 1)
    mark = await receipts.begin()
    await deleted(settings)
    another = await opened_receipts(settings, b"another")
    with pytest.raises(ForeignReceiptsError, match="missing or empty, expected the 2 lines of receipts"):
        await another.check(mark)
    await another.begin()
    why = r"receipts [0-9a-f]{8}, expected the 2 lines of receipts [0-9a-f]{8}"
    with pytest.raises(ForeignReceiptsError, match=why):
        await another.check(mark)
    await another.close()


async def test_a_topic_that_is_restored_from_an_older_copy_is_told_from_it(
    receipts: ReceiptsTopic, settings: KafkaSettings
) -> None:
    begun = await receipts.begin()
    await write(receipts, 1)
    mark = await receipts.write(release(2), spend(2))
    await deleted(settings)
    await (await opened_receipts(settings)).close()  # makes the topic
    await plant(settings, ReceiptsHeader(begun.id).to_line()[0], receipt(1).to_line()[0])
    restored = await opened_receipts(settings)
    await restored.check(begun)
    with pytest.raises(ReceiptsError, match=r"2 of the 3 lines of receipts .*: an older copy"):
        await restored.check(mark)
    await plant(settings, receipt(2).to_line()[0])
    await restored.check(mark)
    await restored.close()


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


async def test_a_second_topic_has_the_same_lines_whoever_wrote_them_and_finds_a_topic_that_was_set_back(
    settings: KafkaSettings,
) -> None:
    name = f"{settings.prefix}.copy"
    firsts = [await opened_receipts(settings) for _ in range(3)]
    copies = [await opened_receipts(settings, name=name) for _ in range(3)]
    *both, late = map(CopiedReceipts, firsts, copies)
    marks = await asyncio.gather(*[each.begin() for each in both])
    for window in range(3):  # two releasers hand over
        marks = await asyncio.gather(*[each.write(release(window), spend(window)) for each in both])
        for each in both:
            await each.check(marks[0])
    assert (await copies[0].catch_up()).kept == (await firsts[0].catch_up()).kept
    assert len(copies[0].lines.kept) == 4
    await write(firsts[0], 3)  # a kill between the two
    await late.check(marks[0])
    await late.write(release(3), spend(3))
    assert len((await copies[0].catch_up()).kept) == 5
    await deleted(settings)
    restored = await opened_receipts(settings)
    for kept in copies[0].lines.kept[:3]:
        await restored.append(kept)
    why = r"receipts: it has 3 lines, and topic .*\.copy at 127.* has 5: the former is older"
    with pytest.raises(ReceiptsError, match=why):
        await CopiedReceipts(restored, copies[0]).check(ReceiptsMark(b"", 0, b""))
    for topic in (*firsts, *copies, restored):
        await topic.close()
