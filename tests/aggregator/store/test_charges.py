"""Windows of secure and local plans in the store: charged before they are collected, once; and what is sealed."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from aggregator.errors import ClaimLostError, StoreError, WindowNotBegunError, WindowOrderError
from aggregator.fold.fold import Fold
from aggregator.model import RoundMembers, SealedWindow
from aggregator.store import charges as store_charges
from aggregator.store.store import Store, open_sqlite_store
from aggregator.store.transaction import Transaction
from hushsum.delta import read_header
from hushsum.errors import BudgetError
from hushsum.local.silo import unpack
from hushsum.plan import Plan
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum.privacy.events import TUMBLING
from hushsum.releases import spend_of
from hushsum.sketch import Sketch
from hushsum_proto.entries import (
    CohortSumEntry,
    DeltaEntry,
    LogEntry,
    ReportsEntry,
    SealEntry,
    partition_of,
    partition_of_sum,
)
from tests.aggregator.deltas import client_of, tally_plan
from tests.aggregator.reports import report_plan, reports_of, silo_of, silo_plan
from tests.aggregator.stores import DIGEST, FENCE, MARK, Given, fresh_schema, lower_fence, postgres_store
from tests.aggregator.sums import LEAST, MOST, cohort_sum, dense, secure_plan
from tests.doubles import ManualRuntime, MemoryStore

W = 100
PARTITIONS = 2
PLAN = secure_plan(counters=50, total_epsilon=2)  # enough for two windows
KEY = b"k" * 32


async def prepared(store: Store, plan: Plan = PLAN, windows: int = 3) -> None:
    """Registers the plan, takes the lease of its releaser, and opens some windows."""
    await store.register(plan, PARTITIONS, W)
    assert await store.acquire_lease(plan.id, "test", "localhost:1", 10) is not None
    if not isinstance(store, MemoryStore):
        await store.database.write(lower_fence)
    await store.open_windows(plan.id, W, W + windows - 1)


@pytest.fixture
async def store(empty_store: Store) -> Store:
    await prepared(empty_store)
    return empty_store


@pytest.fixture
async def stores(postgres_dsn: str) -> AsyncIterator[tuple[Store, Store]]:
    """Those of two processes on one PostgreSQL."""
    schema = fresh_schema()
    one, two = [await postgres_store(postgres_dsn, schema=schema) for _ in range(2)]
    await prepared(one)
    yield one, two
    await one.close()
    await two.close()


async def spent(store: Store) -> list[int | None]:
    """The windows that are charged, in the order of their charges."""
    return [spend.window for spend in (await store.account("")).spends]


async def reserved(store: Store, window: int) -> bytes:
    return await store.reserve_outcome(PLAN, TUMBLING, window, DIGEST, Given(KEY), fence=FENCE)


async def folded(store: Store, *entries: LogEntry, close: int | None = None, plan: Plan = PLAN) -> None:
    """Folds entries in every partition, each where it belongs; and seals a window."""
    if close is not None:
        await store.mark_closing(plan.id, close, fence=FENCE)
    for partition in range(PARTITIONS):
        claimed = await store.claim_partition(plan, partition, "test")
        assert claimed is not None
        fold = Fold(plan, partition, PARTITIONS, claimed.state)
        mine = [each for each in entries if fold_of(each) == partition]
        mine += [] if close is None else [SealEntry(plan.id, close, 0)]
        fold.apply([*enumerate(mine, fold.position)], fold.position + len(mine))
        await store.checkpoint(plan, partition, fold.checkpoint(), fence=claimed.fence)


def fold_of(entry: LogEntry) -> int:
    """The partition where it belongs."""
    match entry:
        case CohortSumEntry():
            return partition_of_sum(entry.id, PARTITIONS)
        case ReportsEntry():
            return partition_of_sum(read_header(entry.batch).id, PARTITIONS)
    assert isinstance(entry, DeltaEntry)
    return partition_of(entry.client_id, PARTITIONS)


# --------------------------------------------------------------------------------------------------------- charging


async def test_a_window_is_charged_once_whoever_asks_how_often(store: Store) -> None:
    for _ in range(3):
        await store.charge_collection(PLAN, W)
    assert (await store.account("")).spends == (spend_of(PLAN, kind=TUMBLING, window=W),)
    await store.charge_collection(PLAN, W + 1)
    assert await spent(store) == [W, W + 1]


async def test_what_the_ledger_does_not_pay_is_refused_and_what_it_paid_stays_paid(store: Store) -> None:
    await store.charge_collection(PLAN, W + 1)
    await store.charge_collection(PLAN, W)
    with pytest.raises(BudgetError):
        await store.charge_collection(PLAN, W + 2)
    assert await spent(store) == [W + 1, W]
    await store.charge_collection(PLAN, W)
    assert (await store.account("")).spent.epsilon == Fraction(2)


async def test_a_window_that_is_not_open_is_not_charged(store: Store) -> None:
    for never in (W - 1, W + 3):
        with pytest.raises(WindowOrderError, match=f"window {never}"):
            await store.charge_collection(PLAN, never)
    await store.mark_closing(PLAN.id, W, fence=FENCE)
    with pytest.raises(WindowOrderError, match=f"window {W}"):
        await store.charge_collection(PLAN, W)
    assert await spent(store) == []


async def test_a_window_that_was_charged_and_is_over_takes_nothing_more(store: Store) -> None:
    await store.charge_collection(PLAN, W)
    await folded(store, close=W)
    with pytest.raises(WindowOrderError):
        await store.charge_collection(PLAN, W)


async def test_no_window_of_a_central_plan_is_charged_before_its_outcome(empty_store: Store) -> None:
    central = tally_plan()
    await prepared(empty_store, central)
    with pytest.raises(StoreError, match="plan"):
        await empty_store.charge_collection(central, W)
    assert await spent(empty_store) == []


async def test_a_charge_outlives_the_process(tmp_path: Path) -> None:
    first = await open_sqlite_store(tmp_path / "store.db", ManualRuntime())
    await prepared(first)
    await first.charge_collection(PLAN, W)
    await first.close()
    again = await open_sqlite_store(tmp_path / "store.db", ManualRuntime())
    assert await spent(again) == [W]
    await again.close()


async def test_gateways_that_charge_at_once_charge_once(stores: tuple[Store, Store]) -> None:
    await asyncio.gather(*(store.charge_collection(PLAN, W) for store in stores for _ in range(4)))
    assert await spent(stores[0]) == [W]


async def test_of_two_gateways_only_one_gets_the_last_of_a_budget(stores: tuple[Store, Store]) -> None:
    one, two = stores
    await one.charge_collection(PLAN, W)
    done, go = asyncio.Event(), asyncio.Event()

    async def held(tx: Transaction) -> None:
        await store_charges.charge_collection(tx, PLAN, W + 1)
        done.set()
        await go.wait()

    first = asyncio.create_task(one.database.write(held))
    await done.wait()
    second = asyncio.create_task(two.charge_collection(PLAN, W + 2))
    await asyncio.wait([second], timeout=0.25)
    assert not second.done(), "the population's row holds it up until the other charge is committed"
    go.set()
    await first
    with pytest.raises(BudgetError):
        await second
    assert await spent(one) == [W, W + 1]


async def test_asking_whether_a_window_could_be_charged_charges_nothing(store: Store) -> None:
    for _ in range(5):
        for window in range(W, W + 3):
            await store.check_collection(PLAN, window)
    assert await spent(store) == []
    await store.charge_collection(PLAN, W)
    await store.charge_collection(PLAN, W + 1)
    await store.check_collection(PLAN, W)  # it is paid for
    with pytest.raises(BudgetError):
        await store.check_collection(PLAN, W + 2)
    with pytest.raises(WindowOrderError):
        await store.check_collection(PLAN, W - 1)
    assert await spent(store) == [W, W + 1]


@pytest.mark.parametrize("empty_store", ["double", "memory", "sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("form", ["secure", "reports"])
async def test_a_window_that_has_not_begun_by_the_stores_clock_is_not_charged(empty_store: Store, form: str) -> None:
    plan = PLAN if form == "secure" else report_plan()
    await prepared(empty_store, plan)
    later = plan.window.index_at(4_000_000_000_000)  # in 2096
    await empty_store.open_windows(plan.id, later, later)
    with pytest.raises(WindowNotBegunError) as refused:
        await empty_store.charge_collection(plan, later)
    assert refused.value.wait_ms > 0
    assert await spent(empty_store) == []


# ------------------------------------------------------------------------------------------------ members of rounds

ONE, OTHER = b"1" * 32, b"2" * 32


async def test_a_client_that_is_claimed_by_a_later_round_is_in_the_earlier_one_no_more(store: Store) -> None:
    earlier, later = RoundMembers(ONE, ("a", "b", "c")), RoundMembers(OTHER, ("c", "d"))
    assert await store.claim_clients(PLAN.id, W, earlier) == frozenset()
    assert await store.claim_clients(PLAN.id, W, later) == frozenset()
    with pytest.raises(ClaimLostError) as lost:
        await store.charge_collection(PLAN, W, earlier)
    assert lost.value.clients == {"c"}
    assert await spent(store) == [], "what is refused costs nothing"
    await store.charge_collection(PLAN, W, later)
    await store.charge_collection(PLAN, W, RoundMembers(ONE, ("a", "b")))
    assert await spent(store) == [W]


async def test_a_client_that_was_asked_for_its_vector_is_in_no_other_round_of_the_window(store: Store) -> None:
    granted = RoundMembers(ONE, ("a", "b"))
    assert await store.claim_clients(PLAN.id, W, granted) == frozenset()
    await store.charge_collection(PLAN, W, granted)
    for _ in range(2):
        assert await store.claim_clients(PLAN.id, W, RoundMembers(OTHER, ("b", "c"))) == {"b"}
    assert await store.claim_clients(PLAN.id, W + 1, RoundMembers(OTHER, ("b", "c"))) == frozenset()
    await store.charge_collection(PLAN, W, granted)  # asked again: the answer was lost
    with pytest.raises(ClaimLostError):
        await store.charge_collection(PLAN, W, RoundMembers(OTHER, ("b", "c")))


async def test_a_client_that_left_before_the_charge_may_come_in_again(store: Store) -> None:
    assert await store.claim_clients(PLAN.id, W, RoundMembers(ONE, ("a", "b"))) == frozenset()
    await store.charge_collection(PLAN, W, RoundMembers(ONE, ("a",)))
    assert await store.claim_clients(PLAN.id, W, RoundMembers(OTHER, ("a", "b"))) == {"a"}


async def test_members_that_were_never_asked_for_a_vector_may_be_released_into_another_round(store: Store) -> None:
    members = RoundMembers(ONE, ("a", "b", "c"))
    await store.claim_clients(PLAN.id, W, members)
    await store.charge_collection(PLAN, W, members)
    await store.release_clients(PLAN.id, W, RoundMembers(OTHER, ("a",)))  # not its round to release
    await store.release_clients(PLAN.id, W, RoundMembers(ONE, ("b", "c")))
    assert await store.claim_clients(PLAN.id, W, RoundMembers(OTHER, ("a", "b", "c"))) == {"a"}
    assert await spent(store) == [W], "what was charged stays"


async def test_a_client_is_drawn_so_often_whichever_gateways_draw_it(store: Store) -> None:
    for number in range(ATTEMPTS_MAX):
        drawn = RoundMembers(bytes([number]) * 32, ("a", "b"), is_drawn=True)
        for _ in range(3):  # asked again, where the answer was lost: it counts once
            assert await store.claim_clients(PLAN.id, W, drawn) == frozenset()
        assert await store.claim_clients(PLAN.id, W, RoundMembers(bytes([100 + number]) * 32, ("a",))) == frozenset()
    assert await store.claim_clients(PLAN.id, W, RoundMembers(ONE, ("a", "b", "c"), is_drawn=True)) == {"a", "b"}
    assert await store.claim_clients(PLAN.id, W + 1, RoundMembers(ONE, ("a",), is_drawn=True)) == frozenset()


async def test_two_gateways_that_claim_the_same_clients_at_once_never_both_ask_for_their_vectors(
    stores: tuple[Store, Store],
) -> None:
    clients = tuple(f"client-{number}" for number in range(50))
    rounds = RoundMembers(ONE, clients), RoundMembers(OTHER, clients[::-1])
    for window in (W, W + 1):
        claims = [store.claim_clients(PLAN.id, window, each) for store, each in zip(stores, rounds, strict=True)]
        assert await asyncio.gather(*claims) == [frozenset(), frozenset()]
        charges = [store.charge_collection(PLAN, window, each) for store, each in zip(stores, rounds, strict=True)]
        told = await asyncio.gather(*charges, return_exceptions=True)
        assert [each is None for each in told].count(True) <= 1
        assert all(isinstance(each, ClaimLostError) for each in told if each is not None)


@pytest.mark.parametrize("empty_store", ["sqlite", "postgresql"], indirect=True)
async def test_who_was_in_which_round_is_forgotten_with_the_window(empty_store: Store) -> None:
    await prepared(empty_store)
    assert not isinstance(empty_store, MemoryStore)
    for window in (W, W + 1):
        await empty_store.claim_clients(PLAN.id, window, RoundMembers(ONE, ("a", "b")))
    await folded(empty_store, close=W)
    await reserved(empty_store, W)
    await empty_store.commit_outcome(PLAN, TUMBLING, W, b"release", fence=FENCE)
    await empty_store.bind_receipts(PLAN.id, MARK, fence=FENCE)
    await empty_store.publish(PLAN.id, TUMBLING, W, receipts=MARK, fence=FENCE)
    await empty_store.forget(PLAN, W, fence=FENCE)

    async def left(tx: Transaction) -> list[tuple[int, str]]:
        rows = await tx.fetch('SELECT "window", client_id FROM round_claims ORDER BY client_id')
        return [(window, client_id) for window, client_id in rows]

    assert await empty_store.database.read(left) == [(W + 1, "a"), (W + 1, "b")]


# --------------------------------------------------------------------------------------------------------- outcomes


async def test_an_outcome_does_not_charge_again_what_its_collection_was_charged(store: Store) -> None:
    await store.charge_collection(PLAN, W)
    await folded(store, close=W)
    assert await reserved(store, W) == KEY
    assert await spent(store) == [W]
    assert await store.reserve_outcome(PLAN, TUMBLING, W, DIGEST, Given(b""), fence=FENCE) == KEY
    await store.commit_outcome(PLAN, TUMBLING, W, b"release", fence=FENCE)
    assert await spent(store) == [W]
    assert (await store.windows(PLAN.id))[W] == "released"


async def test_a_window_that_was_paid_for_has_its_outcome_although_nothing_is_left(store: Store) -> None:
    for window in (W, W + 1):
        await store.charge_collection(PLAN, window)
    await folded(store, close=W)
    assert await reserved(store, W) == KEY


async def test_a_window_that_nobody_came_to_spends_nothing_and_holds_up_none_that_was_paid_for(store: Store) -> None:
    for window in (W + 1, W + 2):
        await store.charge_collection(PLAN, window)
    await folded(store, close=W)
    for _ in range(2):
        assert await reserved(store, W) == KEY
    account = await store.account("")
    unspent = spend_of(PLAN, kind=TUMBLING, window=W, entered=False)
    assert (account.spends[2:], unspent.events) == ((unspent,), ())
    assert account.spent.epsilon == Fraction(2)
    with pytest.raises(WindowOrderError):
        await store.charge_collection(PLAN, W)


async def test_a_receipt_of_a_window_that_nobody_had_entered_pays_for_nobody_later(store: Store) -> None:
    await store.count_spend(PLAN.id, spend_of(PLAN, kind=TUMBLING, window=W, entered=False), fence=FENCE)
    await store.charge_collection(PLAN, W)  # the store was restored from a copy in which the window is open
    assert (await store.account("")).spends == (spend_of(PLAN, kind=TUMBLING, window=W),)


async def test_a_receipt_of_a_window_that_is_charged_counts_for_nothing_more(store: Store) -> None:
    await store.charge_collection(PLAN, W)
    await store.count_spend(PLAN.id, spend_of(PLAN, kind=TUMBLING, window=W), fence=FENCE)
    assert await spent(store) == [W]


LIMITED = report_plan(total_epsilon=2)
LOCAL = [report_plan(min_reports=5), silo_plan(min_clients=5, total_epsilon=2)]


@pytest.mark.parametrize("plan", LOCAL, ids=["reports", "silos"])
async def test_a_withheld_window_of_a_local_plan_stays_charged_for_what_was_accepted(
    empty_store: Store, plan: Plan
) -> None:
    await prepared(empty_store, plan)
    for _ in range(2):
        await empty_store.charge_collection(plan, W)
    await folded(empty_store, close=W, plan=plan)
    key = await empty_store.reserve_outcome(plan, TUMBLING, W, DIGEST, Given(KEY), fence=FENCE)
    assert key == KEY
    await empty_store.commit_outcome(plan, TUMBLING, W, b"withheld", fence=FENCE, withheld=True)
    assert (await empty_store.account("")).spends == (spend_of(plan, kind=TUMBLING, window=W),)
    assert (await empty_store.windows(plan.id))[W] == "withheld"
    with pytest.raises(WindowOrderError):
        await empty_store.charge_collection(plan, W)


@pytest.mark.parametrize("plan", LOCAL, ids=["reports", "silos"])
async def test_a_window_of_a_local_plan_that_nobody_came_to_spends_nothing_withheld_or_not(
    empty_store: Store, plan: Plan
) -> None:
    await prepared(empty_store, plan)
    unspent = [spend_of(plan, kind=TUMBLING, window=window, entered=False) for window in (W, W + 1)]
    for window, withheld in ((W, True), (W + 1, False)):
        await folded(empty_store, close=window, plan=plan)
        await empty_store.reserve_outcome(plan, TUMBLING, window, DIGEST, Given(KEY), fence=FENCE)
        await empty_store.commit_outcome(plan, TUMBLING, window, b"", fence=FENCE, withheld=withheld)
    account = await empty_store.account("")
    assert account.spends == (*unspent,)
    assert account.spent.epsilon == 0
    assert unspent[0].events == ()


@pytest.mark.parametrize("empty_store", ["memory", "sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("form", ["reports", "silos", "secure"])
@pytest.mark.parametrize("is_told_unspent", [False, True])
async def test_what_is_in_a_window_without_a_charge_is_charged_with_its_outcome_whatever_the_limits(
    empty_store: Store, form: str, *, is_told_unspent: bool
) -> None:
    cases: dict[str, tuple[Plan, LogEntry]] = {
        "reports": (LIMITED, reports_of(LIMITED, W, [3], stream=1)),
        "silos": (LOCAL[1], silo_of(LOCAL[1], client_of(0, PARTITIONS, 0), W, {})),
        "secure": (PLAN, cohort_sum(PLAN, W, {}, place=(1, PARTITIONS))),
    }
    plan, entry = cases[form]
    await prepared(empty_store, plan)
    unspent = spend_of(plan, kind=TUMBLING, window=W, entered=False)
    if is_told_unspent:  # a receipt of an outcome that another copy had drawn
        await empty_store.count_spend(plan.id, unspent, fence=FENCE)
    for window in (W + 1, W + 2):
        await empty_store.charge_collection(plan, window)
    await folded(empty_store, entry, close=W, plan=plan)  # the store is older than the log: it never heard of a charge
    for _ in range(2):
        assert await empty_store.reserve_outcome(plan, TUMBLING, W, DIGEST, Given(KEY), fence=FENCE) == KEY
    await empty_store.commit_outcome(plan, TUMBLING, W, b"", fence=FENCE)
    account = await empty_store.account("")
    assert account.spends == tuple(spend_of(plan, kind=TUMBLING, window=window) for window in (W + 1, W + 2, W))
    if form != "reports":  # of records, each in one window: those do not add up
        assert account.spent.epsilon == 3 > account.limits.epsilon


async def test_an_exhausted_ledger_refuses_the_windows_of_a_silo_plan(empty_store: Store) -> None:
    plan = LOCAL[1]
    await prepared(empty_store, plan)
    for window in (W, W + 1):
        await empty_store.charge_collection(plan, window)
    with pytest.raises(BudgetError):
        await empty_store.charge_collection(plan, W + 2)
    assert await spent(empty_store) == [W, W + 1]


async def test_no_window_of_a_secure_plan_is_withheld(tmp_path: Path) -> None:
    store = await open_sqlite_store(tmp_path / "store.db", ManualRuntime())
    await prepared(store)
    await folded(store, close=W)
    await reserved(store, W)
    with pytest.raises(AssertionError, match="number of clients"):
        await store.commit_outcome(PLAN, TUMBLING, W, b"", fence=FENCE, withheld=True)
    await store.close()


# ----------------------------------------------------------------------------------------------------- sealed sums


async def test_a_sealed_window_tells_its_cohorts_and_submissions_over_all_partitions(store: Store) -> None:
    sums = [
        cohort_sum(PLAN, W, {0: -5, 1: 1}, [-4], place=(0, PARTITIONS), submissions=LEAST),
        cohort_sum(PLAN, W, {0: -2, 2: 2}, [1], place=(0, PARTITIONS), number=1, submissions=MOST),
        cohort_sum(PLAN, W, {0: 3, 49: 4}, [2], place=(1, PARTITIONS), submissions=MOST - 1),
        cohort_sum(PLAN, W + 1, {5: 9}, [9], place=(1, PARTITIONS)),
    ]
    await folded(store, *sums)
    await folded(store, *sums[:2], close=W)  # once more: they are duplicates by now
    sealed = await store.sealed_window(PLAN, W)
    assert sealed is not None
    assert (sealed.cohorts, sealed.clients) == (3, LEAST + MOST + MOST - 1)
    assert (sealed.sketch.counters == dense(PLAN, {0: -4, 1: 1, 2: 2, 49: 4})).all()
    assert sealed.sketch.counts.tolist() == [-1]


async def test_a_sealed_window_of_silos_tells_how_many_clients_are_in_it_over_all_partitions(
    empty_store: Store,
) -> None:
    plan = LOCAL[1]
    await prepared(empty_store, plan)
    sent = [silo_of(plan, client_of(number % PARTITIONS, PARTITIONS, number), W, {}) for number in range(5)]
    await folded(empty_store, *sent, plan=plan)
    await folded(empty_store, *sent[:2], close=W, plan=plan)
    sealed = await empty_store.sealed_window(plan, W)
    assert sealed is not None
    assert (sealed.clients, sealed.cohorts) == (5, 0)
    parts = [unpack(each.delta, plan) for each in sent]
    assert (sealed.sketch.counters == sum(part.counters for part in parts)).all()
    assert (sealed.sketch.counts == sum(part.counts for part in parts)).all()


async def test_a_sealed_window_of_reports_is_their_exact_counts_and_knows_no_clients(empty_store: Store) -> None:
    plan = LOCAL[0]
    await prepared(empty_store, plan)
    sent = [reports_of(plan, W, [3, 64 + stream], stream=stream) for stream in range(5)]
    await folded(empty_store, *sent, plan=plan)
    await folded(empty_store, *sent[:2], close=W, plan=plan)
    sealed = await empty_store.sealed_window(plan, W)
    assert sealed is not None
    assert (sealed.clients, sealed.cohorts, sealed.sketch.counts.tolist()) == (0, 0, [10])
    flat = sealed.sketch.counters.reshape(-1)
    assert {int(at): int(flat[at]) for at in np.flatnonzero(flat)} == {3: 5, **dict.fromkeys(range(64, 69), 1)}


async def test_a_window_without_a_cohort_is_sealed_with_nothing(store: Store) -> None:
    await folded(store, close=W)
    sealed = await store.sealed_window(PLAN, W)
    assert sealed is not None
    assert (sealed.cohorts, sealed.clients, int(np.abs(sealed.sketch.counters).sum())) == (0, 0, 0)


async def test_the_verdicts_and_the_memory_of_sums_are_stored(empty_store: Store) -> None:
    await prepared(empty_store)
    sent = cohort_sum(PLAN, W, {1: 1}, place=(1, PARTITIONS))
    await folded(empty_store, sent)
    memory = await empty_store.stream_memory(PLAN.id, 1, "", sent.id.stream)
    assert memory.data is not None
    claimed = await empty_store.claim_partition(PLAN, 1, "other")
    assert claimed is not None
    fold = Fold(PLAN, 1, PARTITIONS, claimed.state, retain_verdicts=True)
    (verdict,) = fold.apply([(fold.position, sent)], fold.position + 1)
    assert verdict.kind == "duplicate"
    await empty_store.checkpoint(PLAN, 1, fold.checkpoint(), fence=claimed.fence)


def test_the_digest_of_a_sealed_window_is_of_its_cohorts_too() -> None:
    digests = {SealedWindow(Sketch(PLAN), *of).digest() for of in ((9, 0), (9, 1), (9, 2), (10, 1))}
    assert len(digests) == 4


def test_the_digest_of_a_window_without_cohorts_is_what_it_was_before_there_were_any() -> None:
    sketch = Sketch(tally_plan(counters=50))
    sketch.counters[0, 0, 7], sketch.counts[0] = 3, 6
    exact = sketch.counters.astype("<i8").tobytes() + sketch.counts.astype("<i8").tobytes()
    expected = hashlib.sha256(b"hushsum/v1/sealed-window\0" + bytes([0, 0, 0, 0, 0, 0, 0, 9]) + exact).digest()
    assert SealedWindow(sketch, 9).digest() == expected
