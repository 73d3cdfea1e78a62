"""What a store promises, asked of both databases, of the same tables in memory, and of the double."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aggregator.errors import FencedError, OutcomeExistsError, StaleCheckpointError, StoreError, WindowOrderError
from aggregator.fold.fold import Fold
from aggregator.fold.state import Checkpoint, FoldState
from aggregator.observability.metrics import LedgerFigures
from aggregator.store.store import Store, open_sqlite_store, read_sealed, read_verdicts
from hushsum.errors import BudgetError
from hushsum.plan import Plan
from hushsum.privacy.events import IN_PROCESS, TUMBLING, Spend
from hushsum_proto.entries import LogEntry
from tests.aggregator.deltas import client_of, entry, tally, tally_plan
from tests.aggregator.histories import History, Partition
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
    postgres_store,
    prepared,
    reserved,
    seal,
    sealed,
    spend,
)
from tests.doubles import ManualRuntime, MemoryStore, described


async def file_store(folder: Path) -> Store:
    return await open_sqlite_store(folder / "store.db", ManualRuntime())


@pytest.fixture
async def store(empty_store: Store) -> Store:
    await prepared(empty_store)
    return empty_store


@pytest.fixture(params=["sqlite", "postgresql"])
async def sql_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "sqlite":
        opened = await file_store(tmp_path)
    else:
        opened = await postgres_store(request.getfixturevalue("postgres_dsn"))
    await prepared(opened)
    yield opened
    await opened.close()


@pytest.fixture
async def sqlite_store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await file_store(tmp_path)
    await prepared(opened)
    yield opened
    await opened.close()


# ----------------------------------------------------------------------------------------------------------- plans


async def test_a_plan_is_found_by_its_id_and_its_name(store: Store) -> None:
    for found in (await store.load_plan(PLAN.id), await store.plan_named(PLAN.name)):
        assert found is not None
        assert found.to_bytes() == PLAN.to_bytes()
    assert await store.load_plan(bytes(32)) is None
    assert await store.plan_named("another") is None


async def test_registering_again_changes_nothing(store: Store) -> None:
    await store.register(PLAN, PARTITIONS, W + 50)
    assert await store.first_window(PLAN.id) == W


async def test_another_number_of_partitions_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="partitions"):
        await store.register(PLAN, PARTITIONS + 1, W)


async def test_a_changed_plan_of_the_same_name_is_refused(sql_store: Store) -> None:
    with pytest.raises(StoreError, match="another plan named 'test'"):
        await sql_store.register(tally_plan(), 1, W)


def named(name: str, plan: Plan) -> Plan:
    fields = {key: value for key, value in plan.to_fields().items() if key != "format"}
    return Plan.from_fields({**fields, "name": name})


async def test_a_second_plan_of_the_population_may_lower_its_limits_and_never_raise_them(
    sql_store: Store,
) -> None:
    with pytest.raises(BudgetError, match="cannot be raised"):
        await sql_store.register(named("raises", tally_plan(records_per_client=3, total_epsilon=3)), 1, W)
    assert await sql_store.plan_named("raises") is None
    await sql_store.register(named("lowers", tally_plan(records_per_client=3, total_epsilon="1.5")), 1, W)
    assert (await sql_store.account("")).limits.epsilon == 1.5


async def test_a_plan_whose_spends_would_imply_nothing_for_the_population_is_refused(sql_store: Store) -> None:
    with pytest.raises(BudgetError, match="cannot be converted"):
        await sql_store.register(named("records", tally_plan(total_epsilon=2)), 1, W)


# --------------------------------------------------------------------------------------------------------- windows


async def test_windows_that_are_there_stay_as_they_are_when_they_are_opened(store: Store) -> None:
    await store.open_windows(PLAN.id, W, W + 1)
    await store.mark_closing(PLAN.id, W, fence=FENCE)
    await store.open_windows(PLAN.id, W, W + 2)
    assert await store.windows(PLAN.id) == {W: "closing", W + 1: "open", W + 2: "open"}
    assert await store.states(PLAN.id, W + 1, W + 1) == {W + 1: "open"}


async def test_nothing_opens_before_the_first_window(store: Store) -> None:
    await store.open_windows(PLAN.id, W - 3, W)
    assert await store.windows(PLAN.id) == {W: "open"}


async def test_closing_a_window_skips_what_nobody_had_open_before_it(store: Store) -> None:
    await store.open_windows(PLAN.id, W + 2, W + 2)
    await store.mark_closing(PLAN.id, W + 2, fence=FENCE)
    await store.open_windows(PLAN.id, W, W + 2)
    assert await store.windows(PLAN.id) == {W: "skipped", W + 1: "skipped", W + 2: "closing"}
    assert await store.unfinished(PLAN.id) == {W + 2: "closing"}


async def test_windows_close_in_order(store: Store) -> None:
    await store.open_windows(PLAN.id, W, W + 1)
    for window in (W + 1, W + 2):
        with pytest.raises(WindowOrderError):
            await store.mark_closing(PLAN.id, window, fence=FENCE)
    assert await store.windows(PLAN.id) == {W: "open", W + 1: "open"}
    await store.mark_closing(PLAN.id, W, fence=FENCE)
    await store.mark_closing(PLAN.id, W, fence=FENCE)


async def test_a_window_is_sealed_when_the_last_partition_has_stored_it(store: Store) -> None:
    await store.open_windows(PLAN.id, W, W)
    await store.mark_closing(PLAN.id, W, fence=FENCE)
    for partition in range(PARTITIONS):
        assert await store.sealed_window(PLAN, W) is None
        assert await store.windows(PLAN.id) == {W: "closing"}
        folding = await Folding.of(store, partition)
        await folding.apply(folding.delta(7), seal())
    assert await store.windows(PLAN.id) == {W: "sealed"}


# ----------------------------------------------------------------------------------------------------------- folds


async def test_a_fold_goes_on_where_it_was_stored(store: Store) -> None:
    folding = await Folding.of(store, 1)
    await folding.apply(folding.delta(3, records=2), folding.delta(4, W + 1, sequence=1))
    again = await Folding.of(store, 1)
    assert again.fold.position == 2
    entries = [again.delta(3, records=2), again.delta(5, sequence=2, records=2), again.delta(6, sequence=2)]
    verdicts = again.fold.apply([*enumerate(entries, 2)], 5)
    assert [verdict.reason or verdict.kind for verdict in verdicts] == ["duplicate", "too_many_records", "id_reused"]
    nothing = -(2**63)
    assert await store.fold_marks(PLAN.id) == {0: (0, W - 1, nothing), 1: (2, W - 1, nothing)}


async def test_a_new_partition_has_everything_before_the_first_window_closed(store: Store) -> None:
    claimed = await store.claim_partition(PLAN, 0, "test")
    assert claimed is not None
    assert (claimed.state.position, claimed.state.closed_through) == (0, W - 1)
    assert await store.claim_partition(PLAN, PARTITIONS, "test") is None


async def test_a_checkpoint_from_before_the_stored_one_is_stale(store: Store) -> None:
    fast = await Folding.of(store, 0)
    slow = Folding(store, 0, Fold(PLAN, 0, PARTITIONS, FoldState(closed_through=W - 1)), fast.fence)
    await fast.apply(fast.delta(1), fast.delta(2, sequence=1))
    with pytest.raises(StaleCheckpointError):
        await slow.apply(slow.delta(1))
    await unchanged_by_the_slow_one(store)


async def test_who_lost_a_partition_stores_nothing_more_of_it(store: Store) -> None:
    slow = await Folding.of(store, 0)
    await slow.apply(slow.delta(1))
    fast = await Folding.of(store, 0)
    assert fast.fence > slow.fence
    slow.take(slow.delta(9, sequence=8), slow.delta(9, sequence=9), seal())  # further on than what is stored
    with pytest.raises(FencedError):
        await slow.apply()
    await fast.apply(fast.delta(2, sequence=1))
    with pytest.raises(FencedError):
        await slow.apply(slow.delta(9, sequence=10))
    await unchanged_by_the_slow_one(store)


async def unchanged_by_the_slow_one(store: Store) -> None:
    claimed = await store.claim_partition(PLAN, 0, "test")
    assert claimed is not None
    assert (claimed.state.position, claimed.state.closed_through) == (2, W - 1)
    assert claimed.state.windows[W].counters[0, 0, :10].tolist() == [0, 1, 1, 0, 0, 0, 0, 0, 0, 0]


async def test_a_stream_is_remembered_as_its_partition_stored_it(store: Store) -> None:
    folding, client = await Folding.of(store, 1), client_of(1, PARTITIONS)
    change = await folding.apply(folding.delta(3), seal())
    ((key, (_, packed)),) = change.streams.items()
    assert await store.stream_memory(PLAN.id, 1, client, key.stream) == (packed, (2, W, -(2**63)))
    assert await store.stream_memory(PLAN.id, 1, client, 7) == (None, (2, W, -(2**63)))


async def test_the_sealed_sum_is_that_of_all_partitions(store: Store) -> None:
    await sealed(store)
    found = await store.sealed_window(PLAN, W)
    assert found is not None
    sketch = found.sketch
    assert np.flatnonzero(sketch.counters[0, 0]).tolist() == [7, 8]
    assert sketch.records == 2


async def test_an_empty_window_has_a_sum_like_any_other(store: Store) -> None:
    await sealed(store, (W, W + 1))
    found = await store.sealed_window(PLAN, W + 1)
    assert found is not None
    sketch = found.sketch
    assert not sketch.counters.any()
    assert sketch.records == 0


async def test_sealed_counters_never_change_again(store: Store) -> None:
    folding = await Folding.of(store, 0)
    await folding.apply(folding.delta(1), seal())
    late = Fold(PLAN, 0, PARTITIONS, FoldState(position=2))  # a fold that has not heard of the seal
    with pytest.raises(AssertionError):
        await Folding(store, 0, late, folding.fence).apply(folding.delta(2, sequence=1), seal())


def noting(changes: list[tuple[int, Checkpoint]], part: Partition) -> Callable[[Checkpoint], None]:
    add = part.stored.add

    def noted(change: Checkpoint) -> None:
        changes.append((part.partition, change))
        add(change)

    return noted


async def test_the_real_store_gives_back_what_the_double_gives_back(
    sql_store: Store, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole random histories: every checkpoint goes to both."""
    history = History(PLAN, PARTITIONS, seed)
    double = MemoryStore()
    await prepared(double)
    fences = {}
    for target in (sql_store, double):
        for partition in range(PARTITIONS):
            claimed = await target.claim_partition(PLAN, partition, "test")
            assert claimed is not None
            fences[target, partition] = claimed.fence
    changes: list[tuple[int, Checkpoint]] = []
    for part in history.parts:
        monkeypatch.setattr(part.stored, "add", noting(changes, part))
    history.run(400)
    for number, (partition, change) in enumerate(changes):
        for target in (sql_store, double):
            await target.checkpoint(PLAN, partition, change, fence=fences[target, partition])
        if number % 10 == 0 or number == len(changes) - 1:
            real, model = [await target.claim_partition(PLAN, partition, "test") for target in (sql_store, double)]
            assert real is not None
            assert model is not None
            fences |= {(sql_store, partition): real.fence, (double, partition): model.fence}
            assert described(real.state) == described(model.state), f"seed {seed}, checkpoint {number}"


# -------------------------------------------------------------------------------------------------------- outcomes


async def test_an_outcome_is_stored_with_its_charge_and_shown_when_it_is_published(store: Store) -> None:
    await sealed(store)
    await committed(store, W, b"the draw")
    assert await store.windows(PLAN.id) == {W: "released"}
    assert (await store.account("")).spends == (spend(W),)
    assert [release.data for release in await store.unpublished(PLAN.id)] == [b"the draw"]
    assert await store.outcome(PLAN.id, TUMBLING, W) is None
    await store.publish(PLAN.id, TUMBLING, W, receipts=MARK, fence=FENCE)
    shown = await store.outcome(PLAN.id, TUMBLING, W)
    assert shown is not None
    assert shown.data == b"the draw"
    (outcome,) = await store.outcomes(PLAN.id)
    assert (outcome.sha256, outcome.size_bytes, outcome.published) == (shown.sha256, 8, True)
    assert await store.unpublished(PLAN.id) == []


async def test_a_second_draw_is_refused_and_not_charged(store: Store) -> None:
    await sealed(store)
    await committed(store, W, b"first")
    with pytest.raises(OutcomeExistsError):
        await reserved(store)
    with pytest.raises(OutcomeExistsError):
        await store.commit_outcome(PLAN, TUMBLING, W, b"second", fence=FENCE)
    assert [release.data for release in await store.unpublished(PLAN.id)] == [b"first"]
    assert len((await store.account("")).spends) == 1


async def test_an_exhausted_budget_stores_nothing(store: Store) -> None:
    windows = (W, W + 1, W + 2)
    await sealed(store, windows)
    for window in windows[:2]:
        await committed(store, window, b"draw")
    with pytest.raises(BudgetError):
        await committed(store, W + 2, b"draw")
    assert await store.unfinished(PLAN.id) == {W + 2: "sealed"}
    assert len(await store.outcomes(PLAN.id)) == 2
    assert (await store.account("")).left.epsilon == 0


async def test_releases_that_are_removed_keep_their_outcomes_digests_and_charges(store: Store) -> None:
    windows = (W, W + 1)
    await sealed(store, windows)
    for window in windows:
        await committed(store, window, b"draw of %d" % window)
    await store.remove_releases(PLAN.id, W + 2, fence=FENCE)
    assert len(await store.unpublished(PLAN.id)) == 2, "nothing is removed before it is published"
    for window in windows:
        await store.publish(PLAN.id, TUMBLING, window, receipts=MARK, fence=FENCE)
    before = await store.outcomes(PLAN.id)
    await store.remove_releases(PLAN.id, W + 1, fence=FENCE)
    assert await store.outcomes(PLAN.id) == [replace(before[0], size_bytes=0), before[1]]
    removed, kept = [await store.outcome(PLAN.id, TUMBLING, window) for window in windows]
    assert removed is not None
    assert kept is not None
    assert (removed.data, removed.sha256) == (b"", before[0].sha256)
    assert kept.data == b"draw of %d" % (W + 1)
    assert await store.windows(PLAN.id) == dict.fromkeys(windows, "released")
    assert (await store.account("")).spends == (spend(W), spend(W + 1))
    with pytest.raises(OutcomeExistsError):
        await reserved(store, W)


async def test_a_withheld_window_is_stored_listed_and_given_back_as_withheld(store: Store) -> None:
    await sealed(store, (W, W + 1))
    charged = replace(spend(W), events=())
    await committed(store, W, b"says so", withheld=True)
    await committed(store, W + 1, b"the draw")
    assert await store.windows(PLAN.id) == {W: "withheld", W + 1: "released"}
    assert await store.unfinished(PLAN.id) == {}
    assert (await store.account("")).spends == (charged, spend(W + 1))
    assert [(each.window, each.withheld) for each in await store.unpublished(PLAN.id)] == [(W, True), (W + 1, False)]
    await store.publish(PLAN.id, TUMBLING, W, receipts=MARK, fence=FENCE)
    shown = await store.outcome(PLAN.id, TUMBLING, W)
    assert shown is not None
    assert (shown.data, shown.withheld) == (b"says so", True)
    assert [(each.window, each.withheld) for each in await store.outcomes(PLAN.id)] == [(W, True), (W + 1, False)]


async def test_spends_of_a_sort_are_counted_by_the_database(sql_store: Store) -> None:
    await sealed(sql_store)
    withheld = [replace(spend(window), events=()) for window in (-7, W, 12345)]
    others = [replace(spend(window), plan_id="f" * 64) for window in (0, 1)]
    in_process = replace(spend(W), kind=IN_PROCESS, window=None)
    every = [*(spend(window) for window in (-1000, -9, 9, 10**9)), *withheld, *others, in_process]
    for each in every:
        await sql_store.count_spend(PLAN.id, each, fence=FENCE)

    limits, alike = await sql_store.spends_alike("")
    account = await sql_store.account("")
    assert limits == account.limits
    assert [(Spend.from_bytes(fields), times) for fields, times in alike] == [
        (spend(-1000), 4),
        (withheld[0], 3),
        (others[0], 2),
        (in_process, 1),
    ]
    assert LedgerFigures.of_spends(limits, alike) == LedgerFigures.of(account)

    with pytest.raises(StoreError, match="no plan of population 'nobody'"):
        await sql_store.spends_alike("nobody")


async def test_a_withheld_window_cannot_have_another_outcome(store: Store) -> None:
    await sealed(store)
    await committed(store, W, b"says so", withheld=True)
    for withheld in (True, False):
        with pytest.raises(OutcomeExistsError):
            await store.commit_outcome(PLAN, TUMBLING, W, b"the draw", withheld=withheld, fence=FENCE)
    assert await store.windows(PLAN.id) == {W: "withheld"}
    assert len((await store.account("")).spends) == 1


async def test_what_is_not_charged_first_is_not_stored(store: Store) -> None:
    await sealed(store)
    for withheld in (True, False):
        with pytest.raises(StoreError, match="not charged before it was drawn"):
            await store.commit_outcome(PLAN, TUMBLING, W, b"draw", withheld=withheld, fence=FENCE)
    assert await store.unfinished(PLAN.id) == {W: "sealed"}
    assert await store.outcomes(PLAN.id) == []


async def test_until_an_outcome_is_stored_it_costs_what_a_release_costs(store: Store) -> None:
    await sealed(store)
    await reserved(store)
    assert (await store.account("")).spends == (spend(W),)
    assert await store.unfinished(PLAN.id) == {W: "sealed"}
    await store.commit_outcome(PLAN, TUMBLING, W, b"says so", withheld=True, fence=FENCE)
    assert (await store.account("")).spends == (replace(spend(W), events=()),)
    assert (await store.account("")).spent.epsilon == 0


async def test_a_window_that_is_charged_gives_its_first_key_to_whoever_asks_and_is_charged_once(store: Store) -> None:
    await sealed(store)
    keys = [await reserved(store, key=bytes([number]) * 32) for number in range(3)]
    assert keys == [bytes(32)] * 3
    assert (await store.account("")).spends == (spend(W),)


async def test_each_window_has_a_key_of_its_own(store: Store) -> None:
    await sealed(store, (W, W + 1))
    for window, key in ((W, b"a" * 32), (W + 1, b"b" * 32)):
        assert await reserved(store, window, key) == key
        await store.commit_outcome(PLAN, TUMBLING, window, b"draw", fence=FENCE)


async def test_counters_that_changed_after_their_charge_get_no_key(store: Store) -> None:
    await sealed(store)
    await reserved(store)
    with pytest.raises(StoreError, match="that were charged"):
        await store.reserve_outcome(
            PLAN, TUMBLING, W, b"e" * 32, Given(b"another key, of which nothing is"), fence=FENCE
        )
    assert await reserved(store) == b"k" * 32


async def test_a_budget_that_is_spent_reads_no_key(store: Store) -> None:
    await sealed(store, (W, W + 1, W + 2))
    for window in (W, W + 1):
        await committed(store, window, b"draw")
    source = Given(b"k" * 32)
    with pytest.raises(BudgetError):
        await store.reserve_outcome(PLAN, TUMBLING, W + 2, DIGEST, source, fence=FENCE)
    assert source.left
    with pytest.raises(StoreError, match="not charged"):
        await store.commit_outcome(PLAN, TUMBLING, W + 2, b"says so", withheld=True, fence=FENCE)


async def test_the_clients_of_a_sealed_window_are_those_of_all_its_partitions(store: Store) -> None:
    await store.open_windows(PLAN.id, W, W + 1)
    folds = [await Folding.of(store, partition) for partition in range(PARTITIONS)]
    for folding in folds:
        others = [entry(client_of(folding.partition, PARTITIONS, n), tally(PLAN, n, W, 1, 0)) for n in (1, 2)]
        await folding.apply(folding.delta(7), folding.delta(8, sequence=1), *others[: folding.partition + 1])
        await folding.apply(folding.delta(9, W + 1, sequence=2))
    for window, clients in ((W, 2 + 3), (W + 1, 2)):
        await store.mark_closing(PLAN.id, window, fence=FENCE)
        for folding in folds:
            await folding.apply(seal(window))
        found = await store.sealed_window(PLAN, window)
        assert found is not None
        assert found.clients == clients


async def test_an_outcome_out_of_order_is_refused(sql_store: Store) -> None:
    await sealed(sql_store, (W, W + 1))
    await sql_store.open_windows(PLAN.id, W + 2, W + 2)
    for window in (W + 1, W + 2, W + 3):
        with pytest.raises(WindowOrderError, match=f"window {W} is next"):
            await reserved(sql_store, window)
        with pytest.raises(WindowOrderError, match=f"window {W} is next"):
            await sql_store.commit_outcome(PLAN, TUMBLING, window, b"draw", fence=FENCE)
    assert (await sql_store.account("")).spends == ()


async def test_a_spend_that_a_receipt_proves_is_counted_once_whatever_the_limits(store: Store) -> None:
    for window in (W, W, W + 1, W + 2):
        await store.count_spend(PLAN.id, spend(window), fence=FENCE)
    account = await store.account("")
    assert account.spends == (spend(W), spend(W + 1), spend(W + 2))
    assert account.spent.epsilon == 3
    assert account.left.epsilon == 0


# ------------------------------------------------------------------------------------------------------ forgetting


async def test_only_what_has_its_published_outcome_is_forgotten(sql_store: Store) -> None:
    await sealed(sql_store)
    for step in (
        committed(sql_store, W, b"draw"),
        sql_store.publish(PLAN.id, TUMBLING, W, receipts=MARK, fence=FENCE),
    ):
        with pytest.raises(StoreError, match=f"window {W} cannot be erased"):
            await sql_store.forget(PLAN, W, fence=FENCE)
        await step
    await sql_store.forget(PLAN, W, fence=FENCE)


async def test_no_byte_of_forgotten_counters_streams_and_clients_is_left_in_the_file(
    sqlite_store: Store, tmp_path: Path
) -> None:
    await sqlite_store.open_windows(PLAN.id, W, W)
    await sqlite_store.mark_closing(PLAN.id, W, fence=FENCE)
    folds = [await Folding.of(sqlite_store, partition) for partition in range(PARTITIONS)]
    names = [client_of(partition, PARTITIONS).encode() for partition in range(PARTITIONS)]
    marked = [2, 3, 2, 3, 2, 1] * 2  # twelve counters in a row: bytes that stand nowhere else
    for folding in folds:
        client = client_of(folding.partition, PARTITIONS)
        for at, records in enumerate(marked):
            delta = tally(tally_plan(), 100, W, 0, 0)  # not counted: another plan
            await folding.apply(entry(client, delta), *many(folding, at, records))
        await folding.apply(seal())
    pattern = bytes(marked)
    assert pattern in files(tmp_path)
    assert all(name in files(tmp_path) for name in names)
    await committed(sqlite_store, W, b"THE DRAW")
    await sqlite_store.publish(PLAN.id, TUMBLING, W, receipts=MARK, fence=FENCE)
    for folding in folds:
        folding.fold.forget(W)
        await folding.apply()
    await sqlite_store.forget(PLAN, W, fence=FENCE)
    left = files(tmp_path)
    assert pattern not in left
    assert not any(name in left for name in names)
    assert b"THE DRAW" in left


def many(folding: Folding, at: int, records: int) -> list[LogEntry]:
    """One delta each of clients of their own, for each has a bound of 3."""
    return [
        entry(client_of(folding.partition, PARTITIONS, 3 * at + turn), tally(PLAN, 500 + at, W, 1, at))
        for turn in range(records)
    ]


def files(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.glob("store.db*"))


async def test_the_counters_of_a_forgotten_window_are_not_taken_for_an_empty_sum(store: Store) -> None:
    await sealed(store)
    await committed(store, W, b"draw")
    await store.publish(PLAN.id, TUMBLING, W, receipts=MARK, fence=FENCE)
    for partition in range(PARTITIONS):
        folding = await Folding.of(store, partition)
        folding.fold.forget(W)
        await folding.apply()
    await store.forget(PLAN, W, fence=FENCE)
    with pytest.raises(StoreError, match="erased"):
        await store.sealed_window(PLAN, W)


# --------------------------------------------------------------------------------------------------- looking inside


async def test_another_process_can_read_sealed_counters_and_verdicts_while_the_store_is_open(
    sqlite_store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "store.db"
    await sqlite_store.open_windows(PLAN.id, W, W)
    await sqlite_store.mark_closing(PLAN.id, W, fence=FENCE)
    assert read_sealed(path, PLAN, W) is None
    expected = []
    for partition in range(PARTITIONS):
        folding = await Folding.of(sqlite_store, partition, retain_verdicts=True)
        change = await folding.apply(folding.delta(7), folding.delta(7), folding.delta(8), seal())
        expected += [(partition, verdict) for verdict in change.verdicts]
    sketch = read_sealed(path, PLAN, W)
    assert sketch is not None
    assert sketch.counters[0, 0, 7] == PARTITIONS
    assert read_verdicts(path, PLAN) == expected
    assert [verdict.kind for _, verdict in expected] == ["counted", "duplicate", "refused"] * PARTITIONS
    with pytest.raises(StoreError, match="not registered"):
        read_sealed(path, tally_plan(), W)


async def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    first = await file_store(tmp_path)
    await prepared(first)
    await sealed(first)
    await committed(first, W, b"draw")
    await sealed(first, (W + 1,))
    await reserved(first, W + 1, b"1" * 32)
    await first.close()
    again = await file_store(tmp_path)
    assert await again.windows(PLAN.id) == {W: "released", W + 1: "sealed"}
    assert [release.data for release in await again.unpublished(PLAN.id)] == [b"draw"]
    assert (await again.account("")).spends == (spend(W), spend(W + 1))
    assert await reserved(again, W + 1, b"2" * 32) == b"1" * 32
    await again.close()


# ---------------------------------------------------------------------------------------------------------- receipts


async def test_a_store_is_bound_to_the_first_receipts_that_come_and_to_no_others(empty_store: Store) -> None:
    await empty_store.register(PLAN, PARTITIONS, W)
    assert await empty_store.receipts_mark() is None
    await prepared(empty_store)
    assert await empty_store.receipts_mark() == MARK
    others = replace(MARK, id=b"other receipts !", lines=9)
    assert await empty_store.bind_receipts(PLAN.id, others, fence=FENCE) == MARK
    assert await empty_store.receipts_mark() == MARK


async def test_who_has_lost_the_lease_binds_nothing(empty_store: Store) -> None:
    await empty_store.register(PLAN, PARTITIONS, W)
    fence = await empty_store.acquire_lease(PLAN.id, "first", "", 10)
    assert fence is not None
    with pytest.raises(FencedError):
        await empty_store.bind_receipts(PLAN.id, MARK, fence=fence - 1)
    assert await empty_store.receipts_mark() is None


async def test_an_operator_sets_the_receipts_only_while_nobody_else_has_taken_the_lease(sql_store: Store) -> None:
    copied = replace(MARK, copy="elsewhere")
    with pytest.raises(FencedError):
        await sql_store.set_receipts(copied, fences={PLAN.id: FENCE - 1})
    assert await sql_store.receipts_mark() == MARK
    with pytest.raises(StoreError, match="a plan was registered meanwhile"):
        await sql_store.set_receipts(copied, fences={})
    await sql_store.set_receipts(copied, fences={PLAN.id: FENCE})
    assert await sql_store.receipts_mark() == copied


async def test_an_outcome_is_published_together_with_how_far_the_receipts_reach(store: Store) -> None:
    await sealed(store, (W, W + 1))
    for window, lines in ((W, 5), (W + 1, 3)):  # another plan's releaser has been faster
        await committed(store, window, b"a draw")
        reached = replace(MARK, lines=lines, digest=bytes([lines]) * 32)
        await store.publish(PLAN.id, TUMBLING, window, receipts=reached, fence=FENCE)
        assert await store.receipts_mark() == replace(MARK, lines=5, digest=bytes([5]) * 32)


async def test_an_outcome_whose_receipt_stands_elsewhere_is_not_published(store: Store) -> None:
    await sealed(store)
    await committed(store, W, b"a draw")
    with pytest.raises(StoreError, match="the receipts belong to another store"):
        await store.publish(PLAN.id, TUMBLING, W, receipts=replace(MARK, id=b"other receipts !"), fence=FENCE)
    (waiting,) = await store.unpublished(PLAN.id)
    assert waiting.window == W
    assert await store.receipts_mark() == MARK
