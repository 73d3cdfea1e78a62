"""From Kafka into counters, beside a bare aiokafka consumer of the same messages."""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from aggregator.fold.fold import Fold, warm_up
from aggregator.log.entries import PlainMessages
from aggregator.log.kafka.client import KafkaSettings
from aggregator.log.kafka.log import KafkaLog
from aggregator.observability.metrics import Metrics
from aggregator.runtime import SystemRuntime
from aggregator.store.store import memory_store
from aggregator.workers.worker import Worker, WorkerSettings
from benchmarks.report import Row
from benchmarks.service.deltas import Deltas, plan_of
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import DeltaEntry
from hushsum_simulator.testbed.kafka import JARS, KafkaBroker

TITLE = (
    "From Kafka into counters, R = 100, W = 1024, one partition, one process (bare: an aiokafka consumer that looks at "
    "nothing; ours: reading, decoding, every check, dedupe, folding; us: of a delta)"
)
_STREAMS = 64
_NEVER = 10**9
_ROWS = 100


def measure(*, quick: bool) -> list[Row]:
    """One row for each number of deltas in a message."""
    warm_up()
    count, rounds = (2_000, 1) if quick else (40_000, 5)
    with KafkaBroker(JARS) as broker:
        rows = [
            asyncio.run(_measure(broker.bootstrap, size, count if size == 1 else 4 * count, rounds))
            for size in (1, 64, 512)
        ]
    single = rows[0]["bare, deltas/s"]
    assert isinstance(single, float), "a rate"
    for row in rows:
        ours = row["ours, deltas/s"]
        assert isinstance(ours, float), "a rate"
        row["ours / bare of one"] = ours / single
    return rows


async def _measure(bootstrap: str, size: int, count: int, rounds: int) -> Row:
    plan, runtime = plan_of(_ROWS), SystemRuntime(threads=2)
    window = plan.window.index_at(runtime.now_ms())
    metrics, store = Metrics(), memory_store(runtime)
    settings = KafkaSettings(bootstrap, f"bench-{size}")
    log = await KafkaLog.open(settings, plan, 1, PlainMessages(), runtime, metrics)
    deltas = Deltas(plan, window)
    await _fill(bootstrap, log.topic, _messages(deltas, runtime.now_ms(), size, count))
    end, topic = await log.end(0), log.topic
    await log.close()
    await store.register(plan, 1, window)
    await store.open_windows(plan.id, window, window)

    async def ours() -> None:
        claimed = await store.claim_partition(plan, 0, "bench")
        assert claimed is not None, "registered above"
        log = await KafkaLog.open(settings, plan, 1, PlainMessages(), runtime, metrics)
        fold = Fold(plan, 0, 1, claimed.state)
        never = WorkerSettings(checkpoint_entries=_NEVER, checkpoint_s=float(_NEVER))
        worker = Worker(
            fold, claimed.fence, plan, 0, log=log, store=store, runtime=runtime, observer=metrics, settings=never
        )
        running = asyncio.create_task(worker.run())
        await worker.passed.reached(end)
        assert fold.position == end
        running.cancel()  # nothing is stored: the next round folds the same again
        await asyncio.gather(running, return_exceptions=True)
        await log.close()

    bare_s: list[float] = []
    ours_s: list[float] = []
    cpu: Counter[str] = Counter()
    for number in range(rounds + 1):
        cases: tuple[tuple[str, Callable[[], Awaitable[None]], list[float]], ...] = (
            ("bare", partial(_consume, bootstrap, topic, count // size), bare_s),
            ("ours", ours, ours_s),
        )
        for name, case, seconds in cases:
            began_s, began_cpu = time.perf_counter(), time.process_time()
            await case()
            if number > 0:  # the first is not counted
                seconds.append(time.perf_counter() - began_s)
                cpu[name] += round(1e9 * (time.process_time() - began_cpu))
    await store.close()
    row: Row = {"deltas a message": size, "bytes a delta": len(deltas.packed(0, 0, 1)[0])}
    return row | _figures(count // size * size, bare_s, ours_s, cpu)


def _figures(count: int, bare_s: Sequence[float], ours_s: Sequence[float], cpu: Mapping[str, int]) -> Row:
    return {
        "bare, deltas/s": count / statistics.median(bare_s),
        "ours, deltas/s": count / statistics.median(ours_s),
        "ours / bare": statistics.median(bare / own for bare, own in zip(bare_s, ours_s, strict=True)),
        "bare, CPU us": cpu["bare"] / (count * len(bare_s)) / 1e3,
        "ours, CPU us": cpu["ours"] / (count * len(ours_s)) / 1e3,
    }


def _messages(deltas: Deltas, now_ms: int, size: int, count: int) -> list[bytes]:
    each = count // _STREAMS
    streams = [deltas.packed(stream, 0, each + 1) for stream in range(_STREAMS)]
    entries = [
        entry_to_bytes(DeltaEntry(f"client-{n % _STREAMS}", streams[n % _STREAMS][n // _STREAMS], now_ms))
        for n in range(count // size * size)
    ]
    wrap = PlainMessages()
    return [wrap.write(0, entries[at : at + size], seals=False) for at in range(0, len(entries), size)]


async def _fill(bootstrap: str, topic: str, messages: list[bytes]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=5, max_batch_size=2**18, max_request_size=2**22)
    async with producer:
        waiting = [await producer.send(topic, value, partition=0) for value in messages]
        await asyncio.gather(*waiting)


async def _consume(bootstrap: str, topic: str, messages: int) -> None:
    where, seen = TopicPartition(topic, 0), 0
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
    async with consumer:
        consumer.assign([where])
        consumer.seek(where, 0)
        while seen < messages:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                seen += len(records)
