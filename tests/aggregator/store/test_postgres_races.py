"""Processes at once on one PostgreSQL: each test holds a transaction open, uncommitted, while another one comes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from aggregator.errors import FencedError, StoreUnavailableError, WindowOrderError
from aggregator.fold.fold import Fold
from aggregator.store import checkpoints as store_folds
from aggregator.store import outcomes as store_outcomes
from aggregator.store import windows as store_windows
from aggregator.store.store import Store
from aggregator.store.transaction import Transaction
from hushsum.errors import BudgetError
from hushsum.plan import Plan
from hushsum.privacy.events import TUMBLING
from hushsum_proto.entries import SealEntry
from tests.aggregator.stores import (
    DIGEST,
    FENCE,
    MARK,
    PARTITIONS,
    PLAN,
    Folding,
    Given,
    W,
    committed,
    fresh_schema,
    lower_fence,
    postgres_store,
    prepared,
    reserved,
    seal,
    sealed,
    spend,
)
from tests.plans import TABLES, tables

LONG_ENOUGH_S = 0.25  # for the other one to come as far as it can


@pytest.fixture
async def stores(postgres_dsn: str) -> AsyncIterator[tuple[Store, Store]]:
    """Those of two processes."""
    schema = fresh_schema()
    one, two = [await postgres_store(postgres_dsn, schema=schema) for _ in range(2)]
    await prepared(one)
    yield one, two
    await one.close()
    await two.close()


@asynccontextmanager
async def uncommitted(
    store: Store, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any, **keywords: Any
) -> AsyncIterator["asyncio.Task[Any]"]:
    """Does all of some work but its commit, which comes once the block has ended and others had the time to come."""
    done, go = asyncio.Event(), asyncio.Event()

    async def held(tx: Transaction) -> Any:
        result = await work(tx, *arguments, **keywords)
        done.set()
        await go.wait()
        return result

    task = asyncio.create_task(store.database.write(held))
    waiting = asyncio.create_task(done.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        yield task
    finally:
        await asyncio.sleep(LONG_ENOUGH_S)
        go.set()
        await asyncio.wait([task])


async def test_partitions_that_close_at_once_always_end_sealed(stores: tuple[Store, Store]) -> None:
    one, two = stores
    await one.open_windows(PLAN.id, W, W)
    await one.mark_closing(PLAN.id, W, fence=FENCE)
    folds = [await Folding.of(store, partition) for partition, store in enumerate(stores)]
    for folding in folds:
        folding.take(folding.delta(3), seal())
    changes = [folding.fold.checkpoint() for folding in folds]
    async with uncommitted(one, store_folds.checkpoint, PLAN, 0, changes[0], fence=folds[0].fence) as first:
        second = asyncio.create_task(two.checkpoint(PLAN, 1, changes[1], fence=folds[1].fence))
    await first
    await second
    assert await one.windows(PLAN.id) == {W: "sealed"}


async def test_what_opens_while_a_later_window_closes_stays_skipped(stores: tuple[Store, Store]) -> None:
    one, two = stores
    await one.open_windows(PLAN.id, W + 2, W + 2)
    async with uncommitted(one, store_windows.mark_closing, PLAN.id, W + 2, fence=FENCE) as closing:
        opening = asyncio.create_task(two.open_windows(PLAN.id, W, W + 2))
    await closing
    await opening
    assert await one.windows(PLAN.id) == {W: "skipped", W + 1: "skipped", W + 2: "closing"}


async def test_a_window_does_not_close_before_an_older_one_that_is_just_being_opened(
    stores: tuple[Store, Store],
) -> None:
    one, two = stores
    await one.open_windows(PLAN.id, W + 2, W + 2)
    async with uncommitted(one, store_windows.open_windows, PLAN.id, W, W):
        closing = asyncio.create_task(two.mark_closing(PLAN.id, W + 2, fence=FENCE))
    with pytest.raises(WindowOrderError):
        await closing
    assert await one.windows(PLAN.id) == {W: "open", W + 2: "open"}


async def test_releasers_of_two_plans_that_bind_at_once_are_bound_to_the_same_receipts(
    stores: tuple[Store, Store],
) -> None:
    one, two = stores
    other = Plan.from_fields({**tables(), "name": "other", "privacy": {**TABLES["privacy"], "population": "other"}})
    await one.register(other, 1, W)
    await one.acquire_lease(other.id, "other", "", 10)
    await one.database.write(lower_fence)
    await one.database.write(unbound)
    others = replace(MARK, id=b"other receipts !")
    async with uncommitted(one, store_outcomes.bind_receipts, PLAN.id, MARK, fence=FENCE) as first:
        second = asyncio.create_task(two.bind_receipts(other.id, others, fence=FENCE))
    assert (await first, await second) == (MARK, MARK)


async def unbound(tx: Transaction) -> None:
    await tx.execute("DELETE FROM receipts")


async def test_who_reserves_at_once_gets_one_key_for_one_charge(stores: tuple[Store, Store]) -> None:
    one, two = stores
    await sealed(one)
    asked = (PLAN, TUMBLING, W, DIGEST, Given(b"1" * 32))
    async with uncommitted(one, store_outcomes.reserve_outcome, *asked, fence=FENCE) as first:
        second = asyncio.create_task(reserved(two, W, b"2" * 32))
    assert (await first, await second) == (b"1" * 32, b"1" * 32)
    assert (await one.account("")).spends == (spend(W),)


async def test_plans_of_one_population_that_charge_at_once_keep_to_its_limit(
    stores: tuple[Store, Store],
) -> None:
    one, two = stores
    other = await other_plan(two)
    await sealed(one, (W, W + 1))
    await committed(one, W, b"draw")  # half of what the population has
    asked = (PLAN, TUMBLING, W + 1, DIGEST, Given(b"1" * 32))
    async with uncommitted(one, store_outcomes.reserve_outcome, *asked, fence=FENCE) as first:
        second = asyncio.create_task(two.reserve_outcome(other, TUMBLING, W, DIGEST, Given(b"2" * 32), fence=FENCE))
    await first
    with pytest.raises(BudgetError):
        await second
    assert (await one.account("")).spends == (spend(W), spend(W + 1))


async def other_plan(store: Store) -> Plan:
    """Another plan of the same population, with a window that waits for its outcome."""
    fields = {key: value for key, value in PLAN.to_fields().items() if key != "format"}
    plan = Plan.from_fields({**fields, "name": "other"})
    await store.register(plan, 1, W)
    assert await store.acquire_lease(plan.id, "test", "", 10) is not None
    await store.database.write(lower_fence)
    await store.open_windows(plan.id, W, W)
    await store.mark_closing(plan.id, W, fence=FENCE)
    claimed = await store.claim_partition(plan, 0, "test")
    assert claimed is not None
    fold = Fold(plan, 0, 1, claimed.state)
    fold.apply([(0, SealEntry(plan.id, W, 0))], 1)
    await store.checkpoint(plan, 0, fold.checkpoint(), fence=claimed.fence)
    return plan


async def test_a_checkpoint_of_who_is_just_losing_the_partition_changes_nothing(
    stores: tuple[Store, Store],
) -> None:
    one, two = stores
    slow = await Folding.of(one, 0)
    await slow.apply(slow.delta(1))
    slow.take(slow.delta(2, sequence=1))
    async with uncommitted(two, store_folds.claim_partition, PLAN, 0, "other") as claiming:
        storing = asyncio.create_task(slow.apply())
    with pytest.raises(FencedError, match="claimed by other"):
        await storing
    assert (await claiming).state.position == 1
    claimed = await two.claim_partition(PLAN, 0, "test")
    assert claimed is not None
    assert claimed.state.position == 1
    assert claimed.state.windows[W].counters[0, 0, :4].tolist() == [0, 1, 0, 0]


async def test_a_claim_waits_for_the_checkpoint_that_is_under_way_and_has_all_of_it(
    stores: tuple[Store, Store],
) -> None:
    one, two = stores
    slow = await Folding.of(one, 0)
    slow.take(slow.delta(1), slow.delta(2, sequence=1))
    change = slow.fold.checkpoint()
    async with uncommitted(one, store_folds.checkpoint, PLAN, 0, change, fence=slow.fence):
        claiming = asyncio.create_task(two.claim_partition(PLAN, 0, "other"))
    claimed = await claiming
    assert claimed is not None
    assert (claimed.fence > slow.fence, claimed.state.position) == (True, 2)
    assert claimed.state.windows[W].counters[0, 0, :4].tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("first_ever", [False, True])
async def test_of_two_who_ask_at_once_for_a_lease_that_nobody_holds_one_gets_it(
    stores: tuple[Store, Store],
    first_ever: bool,
) -> None:
    one, two = stores
    await one.return_lease(PLAN.id, fence=FENCE)
    if first_ever:
        await one.database.write(no_lease)
    asked = (PLAN.id, "one", "localhost:1", 10)
    async with uncommitted(one, store_windows.acquire_lease, *asked, exclusive=False) as first:
        second = asyncio.create_task(two.acquire_lease(PLAN.id, "two", "localhost:2", 10))
    assert (await first or 0) > FENCE
    assert await second is None
    lease = await two.lease(PLAN.id)
    assert lease is not None
    assert (lease.owner, lease.address) == ("one", "localhost:1")


async def no_lease(tx: Transaction) -> None:
    await tx.execute("DELETE FROM leases")


async def test_a_releaser_that_is_just_losing_its_lease_changes_nothing(stores: tuple[Store, Store]) -> None:
    one, two = stores
    await one.open_windows(PLAN.id, W, W)
    await one.return_lease(PLAN.id, fence=FENCE)
    asked = (PLAN.id, "two", "localhost:2", 10)
    async with uncommitted(two, store_windows.acquire_lease, *asked, exclusive=False):
        closing = asyncio.create_task(one.mark_closing(PLAN.id, W, fence=FENCE))
    with pytest.raises(FencedError):
        await closing
    assert await one.windows(PLAN.id) == {W: "open"}


async def test_a_lease_is_taken_over_once_it_has_run_out_by_the_databases_clock(
    stores: tuple[Store, Store],
) -> None:
    one, two = stores
    await one.renew_lease(PLAN.id, 600.0, "why it stopped", fence=FENCE)
    assert await two.acquire_lease(PLAN.id, "two", "localhost:2", 10) is None
    lease = await two.lease(PLAN.id)
    assert lease is not None
    assert (lease.owner, lease.note) == ("test", "why it stopped")
    assert 0 < lease.left_s <= 600.0
    await one.renew_lease(PLAN.id, 0.05, "", fence=FENCE)
    while (fence := await two.acquire_lease(PLAN.id, "two", "localhost:2", 600)) is None:
        pass
    assert fence > FENCE
    with pytest.raises(FencedError):
        await one.renew_lease(PLAN.id, 10, "", fence=FENCE)
    await one.return_lease(PLAN.id, fence=FENCE)  # another's: nothing
    assert await one.acquire_lease(PLAN.id, "test", "", 10) is None


async def test_a_connection_that_is_killed_in_mid_transaction_leaves_nothing_of_it(
    stores: tuple[Store, Store], postgres_dsn: str
) -> None:
    one, _ = stores
    folding = await Folding.of(one, 0)
    folding.take(folding.delta(1), folding.delta(2, sequence=1))
    change = folding.fold.checkpoint()
    killer = await asyncpg.connect(postgres_dsn)
    async with uncommitted(one, store_folds.checkpoint, PLAN, 0, change, fence=folding.fence) as storing:
        ended = await killer.fetchval(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE state = 'idle in transaction'"
        )
    await killer.close()
    assert ended == 1
    with pytest.raises(StoreUnavailableError):
        await storing
    assert (await one.fold_marks(PLAN.id))[0].position == 0
    await one.checkpoint(PLAN, 0, change, fence=folding.fence)
    claimed = await one.claim_partition(PLAN, 0, "test")
    assert claimed is not None
    assert claimed.state.windows[W].counters[0, 0, :4].tolist() == [0, 1, 1, 0]


async def test_many_processes_at_once_never_wait_for_each_other_in_a_circle(
    stores: tuple[Store, Store],
) -> None:
    """A deadlock would come as StoreUnavailableError."""
    one, two = stores
    await sealed(one, (W, W + 1))
    folds = [await Folding.of(stores[partition], partition) for partition in range(PARTITIONS)]

    async def folding(fold: Folding) -> None:
        for number in range(10):
            await fold.apply(fold.delta(number, W + 2 + number, sequence=number + 1))

    async def opening(store: Store) -> None:
        for number in range(10):
            await store.open_windows(PLAN.id, W + 2, W + 2 + number)

    async def releasing(store: Store, window: int) -> None:
        for _ in range(10):
            await store.reserve_outcome(PLAN, TUMBLING, window, DIGEST, Given(b"k" * 32), fence=FENCE)
            await store.renew_lease(PLAN.id, 10, "", fence=FENCE)
            await store.count_spend(PLAN.id, spend(window), fence=FENCE)

    await asyncio.gather(
        *(folding(fold) for fold in folds), opening(one), opening(two), releasing(one, W), releasing(two, W)
    )
    assert (await one.account("")).spends == (spend(W),)
