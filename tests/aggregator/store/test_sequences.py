"""Steps of a cumulative sequence in every store: one charge, one key and one set of counters a step, one state."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import pytest

from aggregator.errors import FencedError, OutcomeExistsError, StoreError, WindowOrderError
from aggregator.model import HeldState, ReservedStep
from aggregator.store import outcomes as store_outcomes
from aggregator.store.postgres import PostgresTransaction
from aggregator.store.store import Store
from aggregator.store.transaction import SqliteTransaction, Transaction
from hushsum.errors import BudgetError
from hushsum.privacy.events import CUMULATIVE
from hushsum.releases import spend_of
from tests.aggregator.deltas import cumulative_plan
from tests.aggregator.stores import MARK, Given

PLAN = cumulative_plan(horizon=3, total_epsilon=1)
W = 1000
DIGEST = b"d" * 32
STATE = b"state after step %d"
ROW = store_outcomes._PART_BYTES


#: The double has no tables, which these tests look into.
pytestmark = pytest.mark.parametrize("empty_store", ["memory", "sqlite", "postgresql"], indirect=True)


@pytest.fixture
async def store(empty_store: Store) -> Store:
    await empty_store.register(PLAN, 1, W)
    return empty_store


async def lease(store: Store) -> int:
    fence = await store.acquire_lease(PLAN.id, "test", "", 10)
    assert fence is not None
    await store.bind_receipts(PLAN.id, MARK, fence=fence)
    return fence


async def close(tx: Transaction, window: int) -> None:
    """A window is sealed by its only fold."""
    await tx.execute("INSERT INTO windows (plan, \"window\", state) SELECT number, $1, 'sealed' FROM plans", window)


async def sealed(store: Store, *windows: int) -> None:
    for window in windows:
        await store.database.write(close, window)


async def reserve(store: Store, window: int, key: bytes = b"k", digest: bytes = DIGEST, *, fence: int) -> ReservedStep:
    return await store.reserve_step(PLAN, window, digest, Given(key * 32), fence=fence)


async def step(store: Store, window: int, number: int, *, fence: int) -> None:
    reserved = await reserve(store, window, fence=fence)
    assert reserved.step == number
    await store.commit_step(PLAN, window, b"release", STATE % number, step=number, fence=fence)


async def rows(store: Store, table: str) -> list[tuple[Any, ...]]:
    return await store.database.read(_rows, table)


async def _rows(tx: Transaction, table: str) -> list[tuple[Any, ...]]:
    return await tx.fetch(f"SELECT * FROM {table}")


async def test_the_first_reservation_charges_the_sequence_and_later_steps_charge_nothing(store: Store) -> None:
    fence = await lease(store)
    await sealed(store, W, W + 1)
    spend = spend_of(PLAN, kind=CUMULATIVE, window=None)
    assert (await store.account("")).spends == ()
    assert (await reserve(store, W, fence=fence)).state is None
    assert (await store.account("")).spends == (spend,)
    await store.commit_step(PLAN, W, b"release", STATE % 1, step=1, fence=fence)
    await step(store, W + 1, 2, fence=fence)
    account = await store.account("")
    assert account.spends == (spend,)
    assert account.spent.epsilon == 1
    # A receipt proves the same spend with each outcome: NULL is found again, and counts once.
    for _ in range(2):
        await store.count_spend(PLAN.id, spend, fence=fence)
    assert (await store.account("")).spends == (spend,)
    assert (await store.spends_alike(""))[1] == [(spend.to_bytes(), 1)]


async def test_a_second_spend_of_a_sequence_is_refused_by_the_database(store: Store) -> None:
    fence = await lease(store)
    await sealed(store, W)
    await reserve(store, W, fence=fence)

    async def again(tx: Transaction) -> None:
        columns = 'population, plan_id, kind, "window", fields'
        await tx.execute(f"INSERT INTO spends ({columns}) SELECT {columns} FROM spends")

    with pytest.raises(StoreError, match=r"(?i)unique"):
        await store.database.write(again)


async def test_a_large_state_is_written_in_commands_of_8_mib(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL and its driver have a time limit for each."""
    fence = await lease(store)
    await sealed(store, W, W + 1)
    sent: list[int] = []

    def counting(real: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def execute_many(tx: Transaction, query: str, rows: Iterable[Sequence[object]]) -> None:
            listed = list(rows)
            sent.append(sum(len(value) for row in listed for value in row if isinstance(value, bytes)))
            await real(tx, query, listed)

        return execute_many

    for kind in (SqliteTransaction, PostgresTransaction):
        monkeypatch.setattr(kind, "execute_many", counting(kind.execute_many))
    state = bytes(range(256)) * (66 * ROW // 256) + b"end"
    await reserve(store, W, fence=fence)
    await store.commit_step(PLAN, W, b"release", state, step=1, fence=fence)
    assert sent == [1 << 23, 1 << 23, ROW + 3]
    assert (await reserve(store, W + 1, fence=fence)).state == state


async def test_a_reserved_step_is_given_again_as_it_is_and_for_other_counters_never(store: Store) -> None:
    fence = await lease(store)
    await sealed(store, W, W + 1)
    first = await reserve(store, W, b"a", fence=fence)
    assert await reserve(store, W, b"b", fence=fence) == first
    with pytest.raises(StoreError, match="counters of window 1000 differ from those that its step was reserved for"):
        await reserve(store, W, digest=b"e" * 32, fence=fence)
    await store.commit_step(PLAN, W, b"release", STATE % 1, step=1, fence=fence)
    for digest in (DIGEST, b"e" * 32):  # nor ever after
        with pytest.raises(OutcomeExistsError):
            await reserve(store, W, digest=digest, fence=fence)
    second = await reserve(store, W + 1, b"a", fence=fence)
    assert (second.step, second.state) == (2, STATE % 1)
    assert first.sealed == second.sealed  # one key, and the same counters: they are chained to other ones

    async def set_back(tx: Transaction) -> None:
        await tx.execute("UPDATE sequences SET digest = $1", b"o" * 32)

    await store.database.write(set_back)  # another sequence before it, as from an older copy of one table
    with pytest.raises(StoreError, match="differ"):
        await reserve(store, W + 1, fence=fence)


async def test_no_outcome_before_the_last_step_is_drawn_even_if_its_row_is_gone(store: Store) -> None:
    fence = await lease(store)
    await sealed(store, W, W + 1)
    await step(store, W, 1, fence=fence)
    await step(store, W + 1, 2, fence=fence)

    async def lose(tx: Transaction) -> None:
        await tx.execute("DELETE FROM outcomes")
        await tx.execute("UPDATE windows SET state = 'sealed'")

    await store.database.write(lose)
    for window in (W, W + 1):
        with pytest.raises(OutcomeExistsError, match="is not after window 1001"):
            await reserve(store, window, fence=fence)


async def test_a_commit_replaces_key_and_state_and_needs_its_reservation(store: Store) -> None:
    fence = await lease(store)
    await sealed(store, W, W + 1)
    with pytest.raises(StoreError, match="was not reserved"):
        await store.commit_step(PLAN, W, b"release", STATE % 1, step=1, fence=fence)
    await reserve(store, W, fence=fence)
    with pytest.raises(StoreError, match="was not reserved"):
        await store.commit_step(PLAN, W, b"release", STATE % 1, step=2, fence=fence)
    await store.commit_step(PLAN, W, b"release", STATE % 1, step=1, fence=fence)
    await step(store, W + 1, 2, fence=fence)
    assert await rows(store, "reservations") == []
    ((_, number, window, _, state),) = await rows(store, "sequences")
    assert (number, window, state) == (2, W + 1, STATE % 2)
    with pytest.raises(OutcomeExistsError):
        await store.commit_step(PLAN, W + 1, b"other", STATE % 9, step=3, fence=fence)


async def test_a_state_of_many_rows_is_replaced_as_a_whole_and_none_is_left_at_the_horizon(store: Store) -> None:
    fence = await lease(store)
    await sealed(store, *range(W, W + 3))
    states = [bytes([number]) * size for number, size in enumerate((ROW + 1, 3 * ROW, 5), 1)]
    for number, state in enumerate(states, 1):
        window = W + number - 1
        assert (await reserve(store, window, fence=fence)).state == (states[number - 2] if number > 1 else None)
        await store.commit_step(PLAN, window, b"release", state, step=number, fence=fence)
        if number < len(states):
            assert (await whole(store)) == state
    assert [await rows(store, "sequence_parts"), (await rows(store, "sequences"))[0][-1]] == [[], b""]


async def whole(store: Store) -> bytes:
    ((*_, first),) = await rows(store, "sequences")
    return b"".join([first, *(data for _, _, data in sorted(await rows(store, "sequence_parts")))])


async def test_the_state_that_an_older_version_stored_in_one_row_is_gone_on_from(store: Store) -> None:
    fence = await lease(store)
    await sealed(store, W, W + 1)
    await step(store, W, 1, fence=fence)

    async def in_one_row(tx: Transaction) -> None:
        await tx.execute("UPDATE sequences SET state = $1", b"o" * 3 * ROW)

    await store.database.write(in_one_row)
    assert (await reserve(store, W + 1, fence=fence)).state == b"o" * 3 * ROW
    await store.commit_step(PLAN, W + 1, b"release", b"n" * 2 * ROW, step=2, fence=fence)
    assert await whole(store) == b"n" * 2 * ROW


async def test_a_held_state_stands_for_the_stored_one_only_under_its_digest(store: Store) -> None:
    fence = await lease(store)
    await sealed(store, *range(W, W + 3))
    first = await reserve(store, W, fence=fence)
    await store.commit_step(PLAN, W, b"release", STATE % 1, step=1, fence=fence)
    held = HeldState(first.digest, b"the same bytes, from memory")
    second = await store.reserve_step(PLAN, W + 1, DIGEST, Given(b"k" * 32), fence=fence, held=held)
    assert second.state == held.state
    for other in (None, HeldState(second.digest, b"of a later step"), HeldState(PLAN.id, b"of no step")):
        again = await store.reserve_step(PLAN, W + 1, DIGEST, Given(b"k" * 32), fence=fence, held=other)
        assert again == second._replace(state=STATE % 1)
    await store.commit_step(PLAN, W + 1, b"release", STATE % 2, step=2, fence=fence)
    third = await store.reserve_step(PLAN, W + 2, DIGEST, Given(b"k" * 32), fence=fence, held=held)
    assert third.state == STATE % 2  # what is held is that of an earlier step


async def test_steps_follow_the_order_of_windows_the_fence_and_the_horizon(store: Store) -> None:
    fence = await lease(store)
    await sealed(store, *range(W, W + 5))
    with pytest.raises(WindowOrderError):
        await reserve(store, W + 1, fence=fence)
    with pytest.raises(FencedError):
        await reserve(store, W, fence=fence + 1)
    for number in range(1, 4):
        await step(store, W + number - 1, number, fence=fence)
    ((_, number, window, _, state),) = await rows(store, "sequences")
    assert (number, window, state) == (3, W + 2, b"")
    with pytest.raises(BudgetError, match=r"window 1003 is beyond the horizon: the plan pays for 3 outcomes"):
        await reserve(store, W + 3, fence=fence)


async def test_a_sequence_that_the_limits_do_not_pay_for_fixes_nothing(store: Store) -> None:
    fence = await lease(store)
    other = cumulative_plan(name="other", total_epsilon=1)
    await store.register(other, 1, W)
    await store.count_spend(PLAN.id, spend_of(other, kind=CUMULATIVE, window=None), fence=fence)
    await sealed(store, W)
    with pytest.raises(BudgetError):
        await reserve(store, W, fence=fence)
    assert await rows(store, "reservations") == []


async def test_a_later_step_needs_the_charge_of_the_first(store: Store) -> None:
    fence = await lease(store)
    await sealed(store, W, W + 1)
    await step(store, W, 1, fence=fence)

    async def lose(tx: Transaction) -> None:
        await tx.execute("DELETE FROM spends")

    await store.database.write(lose)
    with pytest.raises(StoreError, match="charge of the cumulative sequence is missing"):
        await reserve(store, W + 1, fence=fence)


async def test_a_charged_sequence_that_has_lost_its_steps_begins_no_other_one(store: Store) -> None:
    fence = await lease(store)
    await sealed(store, W)
    await store.count_spend(PLAN.id, spend_of(PLAN, kind=CUMULATIVE, window=None), fence=fence)
    with pytest.raises(StoreError, match="is charged, and its steps are missing"):
        await reserve(store, W, fence=fence)
