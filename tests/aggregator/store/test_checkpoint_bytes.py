"""How much a checkpoint writes: the blocks that were touched, and little beside them."""

from pathlib import Path

import asyncpg
import pytest

from aggregator.fold.fold import Fold
from aggregator.fold.state import BLOCK
from aggregator.store.store import Store, open_sqlite_store
from hushsum_simulator.testbed.postgres import Postgres
from tests.aggregator.deltas import client_of, entry, tally, tally_plan
from tests.aggregator.stores import W, postgres_store, sqlite_of
from tests.doubles import ManualRuntime

BLOCKS = 64
TOUCHED = 8
MOST = 1.5  # times the touched blocks, of 8 bytes a counter
PLAN = tally_plan(counters=BLOCKS * BLOCK)


class Written:
    """Bytes that a database has written to its write-ahead log, since it was made."""

    def __init__(self, path: Path | None, dsn: str) -> None:
        self._path, self._dsn = path, dsn

    async def total(self) -> int:
        if self._path is not None:
            return self._path.with_name("store.db-wal").stat().st_size
        connection = await asyncpg.connect(self._dsn)
        size = await connection.fetchval("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")
        await connection.close()
        return int(size)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_a_checkpoint_writes_at_most_half_as_much_again_as_the_blocks_it_touches(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store: Store
    if database == "sqlite":
        store, written = (
            await open_sqlite_store(tmp_path / "store.db", ManualRuntime()),
            Written(tmp_path / "store.db", ""),
        )
        sqlite_of(store).writer._connection.execute("PRAGMA wal_autocheckpoint = 0")
    else:
        server: Postgres = request.getfixturevalue("postgres")
        dsn = server.fresh_database()
        store, written = await postgres_store(dsn), Written(None, dsn)
    await store.register(PLAN, 1, W)
    claimed = await store.claim_partition(PLAN, 0, "test")
    assert claimed is not None
    fold = Fold(PLAN, 0, 1, claimed.state)

    async def stored(blocks: range, sequence: int) -> int:
        deltas = [tally(PLAN, block * BLOCK, W, 5, sequence + number) for number, block in enumerate(blocks)]
        entries = [entry(client_of(0, 1), delta) for delta in deltas]
        fold.apply([*enumerate(entries, fold.position)], fold.position + len(entries))
        change = fold.checkpoint()
        assert len(change.blocks) == len(blocks)
        before = await written.total()
        await store.checkpoint(PLAN, 0, change, fence=claimed.fence)
        return await written.total() - before

    everything = await stored(range(BLOCKS), 0)  # so that there is something that could be written again
    some = await stored(range(TOUCHED), BLOCKS)
    limit = MOST * TOUCHED * BLOCK * 8
    assert some <= limit
    assert some <= everything / 2, "what was not touched is left alone"
    await store.close()
