"""A store that went back to an older copy: what was in use before gets nothing through any more."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from aggregator.errors import FencedError
from aggregator.fold.fold import Fold
from aggregator.runtime import SystemRuntime
from aggregator.store.store import Store, open_sqlite_store
from hushsum.privacy.events import TUMBLING
from hushsum_simulator.testbed.postgres import Postgres
from tests.aggregator.stores import MARK, PARTITIONS, PLAN, Folding, W, postgres_store, spend

Copies = tuple[Store, Callable[[], Awaitable[Store]]]


@pytest.fixture(params=["sqlite", "postgresql"])
async def copies(request: pytest.FixtureRequest, tmp_path: Path) -> Copies:
    """A store, in which a partition and the lease were taken before, and what gives the same one as it was then."""
    if request.param == "sqlite":
        return await copied_file(tmp_path)
    server: Postgres = request.getfixturevalue("postgres")
    return await copied_database(server.fresh_database())


async def used(store: Store) -> None:
    await store.register(PLAN, PARTITIONS, W)
    await Folding.of(store, 0)
    fence = await store.acquire_lease(PLAN.id, "first", "", 0)
    assert fence is not None
    await store.open_windows(PLAN.id, W, W + 1)
    await store.close()


async def copied_file(folder: Path) -> Copies:
    await used(await open_sqlite_store(folder / "store.db", SystemRuntime()))
    shutil.copy(folder / "store.db", folder / "older.db")

    async def older() -> Store:
        return await open_sqlite_store(folder / "older.db", SystemRuntime())

    return await open_sqlite_store(folder / "store.db", SystemRuntime()), older


async def copied_database(dsn: str) -> Copies:
    await used(await postgres_store(dsn, schema="hushsum"))
    address, _, name = dsn.rpartition("/")
    connection = await asyncpg.connect(f"{address}/postgres")
    await connection.execute(f"CREATE DATABASE {name}_older TEMPLATE {name}")
    await connection.close()

    async def older() -> Store:
        return await postgres_store(f"{address}/{name}_older", schema="hushsum")

    return await postgres_store(dsn, schema="hushsum"), older


async def test_a_fold_of_before_cannot_checkpoint_into_an_older_copy_that_somebody_has_claimed(copies: Copies) -> None:
    store, older = copies
    zombie = await Folding.of(store, 0)
    await zombie.apply(zombie.delta(1))
    await store.close()
    zombie.store = restored = await older()
    await asyncio.sleep(0.002)
    claimed = await restored.claim_partition(PLAN, 0, "after")
    assert claimed is not None
    assert claimed.state.position == 0, "it went back"
    assert claimed.fence > zombie.fence
    with pytest.raises(FencedError):
        await zombie.apply(zombie.delta(2, sequence=1))
    fold = Fold(PLAN, 0, PARTITIONS, claimed.state)
    fold.apply([(0, zombie.delta(3))], 1)
    await restored.checkpoint(PLAN, 0, fold.checkpoint(), fence=claimed.fence)
    assert (await restored.fold_marks(PLAN.id))[0].position == 1
    await restored.close()


async def test_a_releaser_of_before_cannot_write_into_an_older_copy_whose_lease_somebody_has_taken(
    copies: Copies,
) -> None:
    store, older = copies
    zombie = await store.acquire_lease(PLAN.id, "zombie", "", 0)
    assert zombie is not None
    await store.mark_closing(PLAN.id, W, fence=zombie)
    await store.close()
    restored = await older()
    await asyncio.sleep(0.002)
    fence = await restored.acquire_lease(PLAN.id, "after", "", 10)
    assert fence is not None
    assert fence > zombie
    for work in (
        restored.renew_lease(PLAN.id, 10, "", fence=zombie),
        restored.mark_closing(PLAN.id, W, fence=zombie),
        restored.ask_to_forget(PLAN.id, W - 1, fence=zombie),
    ):
        with pytest.raises(FencedError):
            await work
    await restored.mark_closing(PLAN.id, W, fence=fence)
    await restored.close()


async def test_lost_outcomes_are_final_and_charged_and_their_windows_closed_and_forgotten(copies: Copies) -> None:
    newer, older = copies
    await newer.close()
    store = await older()
    folding = await Folding.of(store, 0)
    await folding.apply(folding.delta(0), folding.delta(1, window=W + 1))
    fence = await store.acquire_lease(PLAN.id, "operator", "", 10)
    assert fence is not None
    lost = [(TUMBLING, window, bytes([window % 256]) * 32, spend(window)) for window in (W, W + 1)]
    await store.bind_receipts(PLAN.id, MARK, fence=fence)
    await store.mark_lost(PLAN, lost, receipts=replace(MARK, lines=3), fence=fence)
    assert await store.receipts_mark() == replace(MARK, lines=3)
    assert await store.windows(PLAN.id) == {W: "released", W + 1: "released"}
    outcomes = await store.outcomes(PLAN.id)
    assert [(each.window, each.published, each.size_bytes) for each in outcomes] == [(W, True, 0), (W + 1, True, 0)]
    assert [each.sha256 for each in outcomes] == [sha256 for _, _, sha256, _ in lost]
    assert (await store.account(PLAN.privacy.population)).spends == (spend(W), spend(W + 1))
    for mark in (await store.fold_marks(PLAN.id)).values():
        assert (mark.closed_through, mark.forgotten_through) == (W + 1, W + 1)
    with pytest.raises(FencedError):
        await folding.apply(folding.delta(2))
    claimed = await store.claim_partition(PLAN, 0, "next")
    assert claimed is not None
    assert (claimed.state.windows, claimed.state.streams, claimed.state.contributions) == ({}, {}, {})
    await store.close()
