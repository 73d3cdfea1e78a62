"""What a delta of a device costs behind the gateway: CPU of a worker, bytes in the log, rows of the database.

Every delta is of another device, with a stream of its own, as in a fleet whose devices visit now and then: nothing is
shared between two deltas, and every delta is a row of the checkpoint.
"""

import asyncio
import contextlib
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aggregator.fold.fold import Fold, warm_up
from aggregator.log.entries import PlainMessages
from aggregator.log.kafka.client import KafkaSettings
from aggregator.log.kafka.log import KafkaLog
from aggregator.model import ClaimedFold, NewEntry
from aggregator.observability.metrics import Metrics
from aggregator.runtime import SystemRuntime
from aggregator.store.postgres import PostgresDatabase, PostgresSettings
from aggregator.store.store import Store, open_sqlite_store
from aggregator.workers.worker import Worker, WorkerSettings
from benchmarks.report import Row
from benchmarks.service.deltas import Deltas, plan_of
from hushsum.plan import Plan
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import DeltaEntry
from hushsum_simulator.testbed.kafka import JARS, KafkaBroker
from hushsum_simulator.testbed.postgres import Postgres, PostgresServer

TITLE = (
    "A delta of a device behind the gateway, W = 1024, each of another device (log: segment files of one replica; row: "
    "table and index; CPU: of the worker's process, from Kafka into counters and into PostgreSQL; rows/s: a checkpoint)"
)
ROWS: Final = 100
_SETTINGS: Final = WorkerSettings()
_STREAM_STEP: Final = 0x9E3779B97F4A7C15  # odd: streams are spread over 64 bits, as random ones are
_AT_ONCE: Final = 64  # deltas that a gateway appends at once in a busy hour


def measure(*, quick: bool) -> list[Row]:
    """One row for each thing that is measured."""
    warm_up()
    count, rounds = (2_000, 1) if quick else (40_000, 5)
    with KafkaBroker(JARS) as broker, PostgresServer() as server:
        return asyncio.run(_measure(broker, server, count, rounds))


async def _measure(broker: KafkaBroker, server: Postgres, count: int, rounds: int) -> list[Row]:
    found: list[Row] = []
    for rows in (ROWS, 1000):
        for at_once in (1, _AT_ONCE):
            figure = await log_bytes(broker, rows=rows, count=4 * _AT_ONCE, at_once=at_once)
            found.append(_row(f"log, R = {rows}, {at_once} appended at once", figure, "bytes a delta"))
    with tempfile.TemporaryDirectory() as folder:
        found.append(_row("streams, SQLite", await sqlite_row_bytes(Path(folder), count), "bytes a row"))
    found.append(_row("streams, PostgreSQL", await postgres_row_bytes(server, count), "bytes a row"))
    for name, database in (("worker", False), ("worker with checkpoints", True)):
        seconds = [await _worker_s(broker, server, count, f"{name}-{n}", saves=database) for n in range(rounds)]
        found.append(_row(name, 1e6 * statistics.median(seconds) / count, "us of CPU a delta"))
    made, changed = await _rows_per_second(server, count, rounds)
    found.append(_row("PostgreSQL, new streams", made, "rows/s"))
    found.append(_row("PostgreSQL, changed streams", changed, "rows/s"))
    return found


def _row(what: str, figure: float, unit: str) -> Row:
    return {"what": what, "figure": figure, "unit": unit}


class DeviceEntries:
    """Entries of the log: the n-th delta of each device, in the order of the devices."""

    def __init__(self, plan: Plan, window: int) -> None:
        self._deltas, self.window = Deltas(plan, window), window

    def entries(self, count: int, number: int) -> Iterator[DeltaEntry]:
        """One delta of each of ``count`` devices, the ``number``-th of its stream."""
        for device in range(count):
            stream = device * _STREAM_STEP % 2**64
            (packed,) = self._deltas.packed(stream, number, 1)
            yield DeltaEntry(f"device-{device:08}", packed, 1_700_000_000_000 + device)


async def log_bytes(broker: KafkaBroker, *, rows: int, count: int, at_once: int) -> float:
    """Bytes of the segment files a delta, of one replica, if a gateway appends ``at_once`` deltas together."""
    plan, runtime = plan_of(rows), SystemRuntime(threads=2)
    settings = KafkaSettings(broker.bootstrap, f"bytes-{rows}-{at_once}")
    log = await KafkaLog.open(settings, plan, 1, PlainMessages(), runtime, Metrics())
    await _append(log, DeviceEntries(plan, 0), count, 0, at_once)
    topic = log.topic
    await log.close()
    return sum(path.stat().st_size for path in (broker.data / f"{topic}-0").glob("*.log")) / count


async def _append(log: KafkaLog, fleet: DeviceEntries, count: int, number: int, at_once: int) -> None:
    entries = [NewEntry(0, fleet.window, entry_to_bytes(entry)) for entry in fleet.entries(count, number)]
    for at in range(0, count, at_once):
        await log.append(entries[at : at + at_once])


async def sqlite_row_bytes(folder: Path, count: int) -> float:
    """Bytes of the table of streams a row, its index included."""
    path, runtime = folder / "store.db", SystemRuntime(threads=2)
    store = await open_sqlite_store(path, runtime)
    await _checkpoints(store, count, deltas=2)
    await store.close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        pages = "SELECT sum(pgsize) FROM dbstat WHERE name = 'streams' OR name LIKE 'sqlite_autoindex_streams%'"
        return float(database.execute(pages).fetchone()[0]) / count


async def postgres_row_bytes(server: Postgres, count: int) -> float:
    """The same in PostgreSQL, once the rows that were replaced are removed and the table is written anew."""
    import asyncpg

    dsn = server.fresh_database()
    store = Store(await PostgresDatabase.open(PostgresSettings(dsn, pool=2), SystemRuntime(threads=2)))
    await _checkpoints(store, count, deltas=2)
    await store.close()
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("VACUUM FULL hushsum.streams")
        size = await connection.fetchval("SELECT pg_total_relation_size('hushsum.streams')")
    finally:
        await connection.close()
    return float(size) / count


async def _checkpoints(store: Store, count: int, *, deltas: int) -> list[float]:
    """Checkpoints of that many deltas of each device, as often as a worker makes them; how long they took, by delta."""
    plan = plan_of(ROWS)
    claimed = await _claimed(store, plan)
    fold, fleet, at, took = Fold(plan, 0, 1, claimed.state), DeviceEntries(plan, 0), 0, list[float]()
    for number in range(deltas):
        seconds, entries = 0.0, [*fleet.entries(count, number)]
        for first in range(0, count, _SETTINGS.checkpoint_entries):
            some = entries[first : first + _SETTINGS.checkpoint_entries]
            fold.apply([*enumerate(some, at)], at + len(some))
            at += len(some)
            began_s = time.perf_counter()
            await store.checkpoint(plan, 0, fold.checkpoint(), fence=claimed.fence)
            seconds += time.perf_counter() - began_s
        took.append(seconds)
    return took


async def _claimed(store: Store, plan: Plan) -> ClaimedFold:
    """The one partition of a plan, in a window that is open."""
    await store.register(plan, 1, 0)
    await store.open_windows(plan.id, 0, 0)
    claimed = await store.claim_partition(plan, 0, "bench")
    assert claimed is not None, "registered above"
    return claimed


async def _rows_per_second(server: Postgres, count: int, rounds: int) -> tuple[float, float]:
    """New rows, and changed ones; medians."""
    made, changed = list[float](), list[float]()
    for _ in range(rounds):
        settings = PostgresSettings(server.fresh_database(), pool=2)
        store = Store(await PostgresDatabase.open(settings, SystemRuntime(threads=2)))
        first, *later = await _checkpoints(store, count, deltas=3)
        await store.close()
        made.append(count / first)
        changed += [count / seconds for seconds in later]
    return statistics.median(made), statistics.median(changed)


async def _worker_s(broker: KafkaBroker, server: Postgres, count: int, name: str, *, saves: bool) -> float:
    """CPU seconds of this process while a worker takes the second delta of each device from Kafka into the store."""
    plan, runtime, metrics = plan_of(ROWS), SystemRuntime(threads=2), Metrics()
    settings = KafkaSettings(broker.bootstrap, f"cpu-{name.replace(' ', '-')}")
    log = await KafkaLog.open(settings, plan, 1, PlainMessages(), runtime, metrics)
    store = Store(await PostgresDatabase.open(PostgresSettings(server.fresh_database(), pool=2), runtime))
    claimed = await _claimed(store, plan)
    fleet, ends = DeviceEntries(plan, 0), list[int]()
    for number in range(2):
        await _append(log, fleet, count, number, _AT_ONCE)
        ends.append(await log.end(0))
    often = _SETTINGS if saves else WorkerSettings(checkpoint_entries=10**9, checkpoint_s=1e9)
    worker = Worker(
        Fold(plan, 0, 1, claimed.state), claimed.fence, plan, 0,
        log=log, store=store, runtime=runtime, observer=metrics, settings=often,
    )  # fmt: skip
    running = asyncio.create_task(worker.run())
    await worker.passed.reached(ends[0])
    began_s = time.process_time()
    await worker.passed.reached(ends[1])
    seconds = time.process_time() - began_s
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await log.close()
    await store.close()
    return seconds
