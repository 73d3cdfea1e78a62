"""Straight into a real broker's log, and from there through admission into a fold."""

import asyncio
import re
import runpy
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from aggregator.fold.fold import Fold
from aggregator.log.entries import SignedMessages, admit
from aggregator.model import PositionedEntry
from edge_client.errors import ClientStateError, SettingsError, UnreachableError
from edge_client.runtime import SystemRuntime
from edge_client.transport.kafka import DirectProducer, KafkaSecurity, OutboxSettings, ProducerConfig
from hushsum import Plan
from hushsum.errors import DeltaError, Reason
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey
from hushsum_proto.batches import topic_of
from hushsum_simulator.testbed.kafka import KafkaBroker
from hushsum_simulator.testbed.process import free_port
from hushsum_simulator.testbed.tcp_proxy import Fault
from tests.aggregator.deltas import tally, tally_plan
from tests.brokers import ProxiedKafka, fresh_prefix
from tests.edge_client.secure_plans import secure_plan

PLAN = tally_plan(counters=500)
KEY = SigningKey(b"\5" * 32)
DIRECTORY = Directory({"billing": DirectoryKey("billing", Role.PRODUCER, KEY.verify_key)})
PARTITIONS = 3
EXAMPLE = Path(__file__).parents[3] / "examples" / "direct_producer.py"


def window_now() -> int:
    return PLAN.window.index_at(SystemRuntime().now_ms())


def deltas_of(numbers: range, window: int) -> list[tuple[str, bytes]]:
    """Number i adds 1 to counter i: each of a client of its own."""
    return [(f"client-{number}", tally(PLAN, number, window, number, 0)) for number in numbers]


@asynccontextmanager
async def topic(kafka: KafkaBroker, prefix: str, plan: Plan = PLAN) -> AsyncIterator[str]:
    """A plan's topic as a service would make it."""
    name = topic_of(prefix, plan.id)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        configs = {"message.timestamp.type": "LogAppendTime"}
        await admin.create_topics([NewTopic(name, PARTITIONS, 1, topic_configs=configs)])
        while name not in await admin.list_topics():  # noqa: ASYNC110  its broker hears of it from the controller, later
            await asyncio.sleep(0.02)
        yield name
        await admin.delete_topics([name])
    finally:
        await admin.close()


async def folded(kafka: KafkaBroker, name: str, plan: Plan = PLAN) -> tuple[list[str], int, np.ndarray]:
    """What the folds say of everything in a topic, the number of messages, and the sum over all windows."""
    messages, said, total = (
        SignedMessages(plan.id, DIRECTORY, producers=True),
        list[str](),
        np.zeros(plan.counters_shape, np.int64),
    )
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    await consumer.start()
    number = 0
    try:
        tops = [TopicPartition(name, partition) for partition in range(PARTITIONS)]
        ends = await consumer.end_offsets(tops)
        for top in tops:
            fold = Fold(plan, top.partition, PARTITIONS)
            consumer.assign([top])
            consumer.seek(top, 0)
            while fold.position < ends[top] << 16:
                record = await consumer.getone()
                opened = messages.read(top.partition, record.value)
                start = record.offset << 16
                stretch = [
                    PositionedEntry(start + index, data, opened.signer, record.timestamp)
                    for index, data in enumerate(opened.entries)
                ] or [PositionedEntry(start, b"", problem=opened.problem)]
                entries = [(each.position, admit(plan, top.partition, each)) for each in stretch]
                verdicts = fold.apply(entries, (record.offset + 1) << 16)
                said += [(verdict.reason or verdict.kind).value for verdict in verdicts]
                number += 1
            for block in fold.checkpoint().blocks:
                at = block.number * 4096
                total[block.class_index].reshape(-1)[at : at + block.values.size] += block.values
    finally:
        await consumer.stop()
    return said, number, total


def test_a_plan_whose_service_must_not_see_single_deltas_has_no_direct_producer() -> None:
    with pytest.raises(DeltaError, match="mode 'secure', expected 'central'") as refused:
        DirectProducer("localhost:9092", secure_plan(), "billing", KEY)
    assert refused.value.reason is Reason.WRONG_MODE


def producer_of(bootstrap: str, prefix: str, **settings: object) -> DirectProducer:
    config = ProducerConfig(prefix, outbox=OutboxSettings(**settings))  # type: ignore[arg-type]  # numbers by name
    return DirectProducer(bootstrap, PLAN, "billing", KEY, config=config)


async def test_what_is_submitted_is_counted_once_in_few_messages(kafka: KafkaBroker) -> None:
    prefix, window = fresh_prefix(), window_now()
    async with topic(kafka, prefix) as name:
        async with producer_of(kafka.bootstrap, prefix) as producer:
            assert producer.partitions == PARTITIONS
            await producer.submit(*deltas_of(range(1), window)[0])
            await producer.submit_many(deltas_of(range(1, 400), window))
        said, messages, total = await folded(kafka, name)
    assert said == ["counted"] * 400
    assert messages <= 1 + PARTITIONS
    assert total.ravel().tolist() == [1] * 400 + [0] * 100


async def test_what_is_submitted_again_counts_once(kafka: KafkaBroker) -> None:
    prefix, window = fresh_prefix(), window_now()
    async with topic(kafka, prefix) as name:
        for _ in range(2):
            async with producer_of(kafka.bootstrap, prefix) as producer:
                await producer.submit_many(deltas_of(range(50), window))
        said, _, total = await folded(kafka, name)
    assert sorted(said) == ["counted"] * 50 + ["duplicate"] * 50
    assert total.sum() == 50


async def test_a_key_that_the_directory_does_not_have_is_believed_nothing(kafka: KafkaBroker) -> None:
    prefix, window = fresh_prefix(), window_now()
    async with topic(kafka, prefix) as name:
        config = ProducerConfig(prefix)
        async with DirectProducer(kafka.bootstrap, PLAN, "billing", SigningKey(bytes(32)), config=config) as stranger:
            await stranger.submit_many(deltas_of(range(50), window))
        said, messages, total = await folded(kafka, name)
    assert said == ["unsigned"] * messages
    assert total.sum() == 0


async def test_cuts_between_producer_and_broker_lose_and_double_nothing(
    kafka: KafkaBroker, kafka_behind_proxy: ProxiedKafka
) -> None:
    prefix, window, proxy = fresh_prefix(), window_now(), kafka_behind_proxy.proxy
    async with topic(kafka, prefix) as name:
        async with producer_of(kafka_behind_proxy.bootstrap, prefix, batch_bytes=1000) as producer:
            faults = (Fault.CUT_BEFORE_REQUEST, Fault.CUT_AFTER_REQUEST, Fault.CUT_BEFORE_REPLY)
            for number, fault in enumerate(faults, 1):
                proxy.inject(fault, times=2, only=lambda data: b"billing" in data)
                await producer.submit_many(deltas_of(range(100 * number, 100 * number + 100), window))
            assert proxy.struck == 2 * len(faults)
        said, _, total = await folded(kafka, name)
    assert said.count("counted") == 300
    assert set(said) == {"counted", "duplicate"}
    assert total.ravel().tolist() == [0] * 100 + [1] * 300 + [0] * 100


async def test_what_is_no_delta_of_the_plan_is_refused_before_anything_is_sent(kafka: KafkaBroker) -> None:
    prefix, window = fresh_prefix(), window_now()
    good = deltas_of(range(1), window)
    other = tally_plan(counters=400)
    async with topic(kafka, prefix) as name:
        async with producer_of(kafka.bootstrap, prefix) as producer:
            for bad, message in (
                (("alice", b""), "malformed"),
                (("alice", b"\1" + bytes(PLAN.delta_bytes_max)), "too_large"),
                (("alice", tally(other, 0, window, 0, 0)), "wrong_plan: plan .{12}, expected .{12}"),
            ):
                with pytest.raises(DeltaError, match=message):
                    await producer.submit_many([*good, bad])
            for client_id, came in (("", "0 characters"), ("a" * 129, "129 characters"), ("\n", "not printable")):
                with pytest.raises(SettingsError, match=f"expected a client id of 1 to 128 .* got .*{came}"):
                    await producer.submit_many([*good, (client_id, good[0][1])])
        assert (await folded(kafka, name))[0] == []


async def test_another_number_of_partitions_and_no_topic_are_refused(kafka: KafkaBroker) -> None:
    prefix = fresh_prefix()
    missing = re.escape(f"topic {topic_of(prefix, PLAN.id)} does not exist: the service creates it")
    with pytest.raises(SettingsError, match=missing):
        await producer_of(kafka.bootstrap, prefix).__aenter__()
    with pytest.raises(SettingsError, match=missing):  # asking has not made it
        await producer_of(kafka.bootstrap, prefix).__aenter__()
    async with topic(kafka, prefix):
        config = ProducerConfig(prefix)
        for partitions, fits in ((PARTITIONS, True), (PARTITIONS + 1, False)):
            producer = DirectProducer(kafka.bootstrap, PLAN, "billing", KEY, partitions=partitions, config=config)
            if fits:
                async with producer:
                    pass
            else:
                with pytest.raises(SettingsError, match=f"{PARTITIONS} partitions, expected {PARTITIONS + 1}"):
                    await producer.__aenter__()


async def test_where_no_broker_answers_that_is_said_by_its_address() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(UnreachableError, match=re.escape(address)):
        await producer_of(address, "hushsum").__aenter__()


async def test_a_producer_is_used_inside_its_block() -> None:
    with pytest.raises(ClientStateError, match="inside `async with`"):
        await producer_of("127.0.0.1:1", "hushsum").submit("alice", b"")


async def test_without_aiokafka_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiokafka", None)
    with pytest.raises(SettingsError, match=re.escape("pip install 'hushsum[server]'")):
        await producer_of("127.0.0.1:1", "hushsum").__aenter__()


def test_no_password_is_shown() -> None:
    assert "secret" not in repr(ProducerConfig(security=KafkaSecurity("SASL_SSL", user="me", password="secret")))


async def test_the_example_writes_the_deltas_of_its_clients(
    kafka: KafkaBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = "hushsum"
    plan = Plan.from_toml(EXAMPLE.with_name("plan.toml"))
    KEY.save(tmp_path / "billing.pem")
    async with topic(kafka, prefix, plan) as name:
        example = runpy.run_path(str(EXAMPLE))
        await example["produce"](kafka.bootstrap, "billing", tmp_path / "billing.pem", 30)
        said, _, total = await folded(kafka, name, plan)
    assert said == ["counted"] * 30
    assert total.sum() == 30 * 10 * plan.family.shape[0]
    assert "30 deltas are stored" in capsys.readouterr().out
