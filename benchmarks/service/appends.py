"""Appends to Kafka, one at a time and in groups, beside a bare aiokafka producer of messages of the same bytes."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from aiokafka import AIOKafkaProducer

from aggregator.log.entries import PlainMessages
from aggregator.log.kafka.client import KafkaSettings
from aggregator.log.kafka.log import KafkaLog
from aggregator.model import NewEntry
from aggregator.observability.metrics import Metrics
from aggregator.runtime import SystemRuntime
from benchmarks.report import Row
from benchmarks.service.deltas import Deltas, plan_of
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import DeltaEntry
from hushsum_simulator.testbed.kafka import JARS, KafkaBroker

TITLE = (
    "Appends to Kafka, acks=all, R = 100, one partition, each awaited before the next (bare: an idempotent aiokafka "
    "producer, one message of the same bytes; us: CPU of a delta)"
)
_GROUPS = (1, 64, 512)


def measure(*, quick: bool) -> list[Row]:
    """One row for each number of deltas in a group."""
    with KafkaBroker(JARS) as broker:
        rows = asyncio.run(_measure(broker.bootstrap, *((20, 1) if quick else (200, 9))))
    single = rows[0]["ours, deltas/s"]
    assert isinstance(single, float), "a rate"
    for row in rows:
        ours = row["ours, deltas/s"]
        assert isinstance(ours, float), "a rate"
        row["ours / ours of one"] = ours / single
    return rows


async def _measure(bootstrap: str, appends: int, rounds: int) -> list[Row]:
    plan, runtime = plan_of(100), SystemRuntime(threads=2)
    log, other = [
        await KafkaLog.open(KafkaSettings(bootstrap, prefix), plan, 1, PlainMessages(), runtime, Metrics())
        for prefix in ("bench", "bare")
    ]
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, max_request_size=2**22, max_batch_size=2**22
    )
    packed, rows = Deltas(plan, 0).packed(0, 0, max(_GROUPS)), list[Row]()
    async with producer:
        for group in _GROUPS:
            entries = [
                NewEntry(0, 0, entry_to_bytes(DeltaEntry(f"client-{n % 64}", packed[n], 0))) for n in range(group)
            ]
            value = PlainMessages().write(0, [entry.data for entry in entries], seals=False)

            async def ours(entries: list[NewEntry] = entries) -> object:
                return await log.append(entries)

            async def bare(value: bytes = value) -> object:
                return await producer.send_and_wait(other.topic, value, partition=0)

            rows.append(await _row(group, bare, ours, appends, rounds))
    await log.close()
    await other.close()
    return rows


async def _row(
    group: int, bare: Callable[[], Awaitable[object]], ours: Callable[[], Awaitable[object]], appends: int, rounds: int
) -> Row:
    seconds: dict[str, list[float]] = {"bare": [], "ours": []}
    cpu_s: dict[str, list[float]] = {"bare": [], "ours": []}
    for number in range(rounds + 1):
        for name, append in (("bare", bare), ("ours", ours)):
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            for _ in range(appends):
                await append()
            if number > 0:  # the first is not counted
                seconds[name].append(time.perf_counter() - began_s)
                cpu_s[name].append(time.process_time() - began_cpu_s)
    count = group * appends
    return {
        "deltas a group": group,
        "bare, deltas/s": count / statistics.median(seconds["bare"]),
        "ours, deltas/s": count / statistics.median(seconds["ours"]),
        "ours / bare": statistics.median(one / other for one, other in zip(*seconds.values(), strict=True)),
        "bare, CPU us": 1e6 * statistics.median(cpu_s["bare"]) / count,
        "ours, CPU us": 1e6 * statistics.median(cpu_s["ours"]) / count,
    }
