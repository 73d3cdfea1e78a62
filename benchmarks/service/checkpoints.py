"""What a checkpoint writes into the database's log, beside the blocks that were touched."""

import asyncio
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from aggregator.fold.fold import Fold, warm_up
from aggregator.fold.state import BLOCK, Checkpoint
from aggregator.runtime import SystemRuntime
from aggregator.store.postgres import PostgresDatabase, PostgresSettings
from aggregator.store.store import Store, open_sqlite_store
from benchmarks.report import Row
from benchmarks.service.deltas import Deltas, plan_of
from hushsum.plan import Plan
from hushsum_proto.entries import DeltaEntry
from hushsum_simulator.testbed.postgres import PostgresServer

TITLE = (
    "A checkpoint, R = 1000, W = 1024 (250 blocks of 32 KiB): bytes that the database writes to its log, beside the "
    "touched blocks at 8 bytes a counter"
)
_ROUNDS = 5
_COUNTER_BYTES = 8

Written = Callable[[], Awaitable[int]]


def measure(*, quick: bool) -> list[Row]:
    """One row for each database and number of deltas since the last checkpoint."""
    warm_up()
    return asyncio.run(_measure((20,) if quick else (1, 20, 2000)))


async def _measure(counts: tuple[int, ...]) -> list[Row]:
    plan, rows = plan_of(1000), list[Row]()
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as server:
        for count in counts:
            path, runtime = Path(folder) / f"{count}.db", SystemRuntime(threads=2)
            rows.append(await _row("SQLite", plan, await open_sqlite_store(path, runtime), _wal_of(path), count))
            dsn = server.fresh_database()
            store = Store(await PostgresDatabase.open(PostgresSettings(dsn, pool=2), runtime))
            rows.append(await _row("PostgreSQL", plan, store, _lsn_of(dsn), count))
    return rows


async def _row(name: str, plan: Plan, store: Store, written: Written, count: int) -> Row:
    await store.register(plan, 1, 0)
    await store.open_windows(plan.id, 0, 0)
    claimed = await store.claim_partition(plan, 0, "bench")
    assert claimed is not None, "registered above"
    deltas, fold = Deltas(plan, 0), Fold(plan, 0, 1, claimed.state)
    at, found, blocks = 0, list[int](), list[int]()
    for number in range(_ROUNDS + 1):
        entries = [
            (at + n, DeltaEntry(f"client-{n % 50}", delta, 0))
            for n, delta in enumerate(deltas.packed(0, number * count, count))
        ]
        # One stream a client: the number of a delta is its place in it.
        fold.apply(entries, at + count)
        at += count
        change: Checkpoint = fold.checkpoint()
        before = await written()
        await store.checkpoint(plan, 0, change, fence=claimed.fence)
        if number > 0:  # the first makes the rows that the others change
            found.append(await written() - before)
            blocks.append(len(change.blocks) * BLOCK * _COUNTER_BYTES)
    await store.close()
    return {
        "database": name,
        "deltas": count,
        "touched blocks": statistics.median(blocks) / (BLOCK * _COUNTER_BYTES),
        "blocks, KB": statistics.median(blocks) / 1e3,
        "written, KB": statistics.median(found) / 1e3,
        "written / blocks": statistics.median(some / all_ for some, all_ in zip(found, blocks, strict=True)),
    }


def _wal_of(path: Path) -> Written:
    import sqlite3

    # A reader that stands at the beginning: while there is one, the log grows, and is never written over.
    reader = sqlite3.connect(path)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()

    async def total() -> int:
        assert reader.in_transaction, "it stands where it began"
        return path.with_name(path.name + "-wal").stat().st_size

    return total


def _lsn_of(dsn: str) -> Written:
    async def total() -> int:
        import asyncpg

        connection = await asyncpg.connect(dsn)
        try:
            return int(await connection.fetchval("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))
        finally:
            await connection.close()

    return total
