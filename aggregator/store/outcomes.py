"""The releaser's part of the store: charges, keys, outcomes. Functions on a transaction."""

import hashlib

from aggregator.errors import OutcomeExistsError, StoreError
from aggregator.model import Outcome, ReceiptsMark, StoredOutcome
from aggregator.store import receipts as store_receipts
from aggregator.store.plans import account, forget_unspent, insert_spend, is_spent, spend_fields
from aggregator.store.schema import unpack
from aggregator.store.transaction import Transaction
from aggregator.store.windows import check, check_next_outcome, move, plan_number
from aggregator.store.windows import mark_closing as _mark_closing
from aggregator.windows import WindowState
from hushsum.entropy import KEY_BYTES, Entropy
from hushsum.plan import Plan
from hushsum.privacy.event import Spend
from hushsum.privacy.guarantee import CENTRAL, SECURE
from hushsum.releases import spend_of


async def mark_closing(tx: Transaction, plan_id: bytes, window: int, *, fence: int) -> None:
    """From here on no gateway acknowledges for the window."""
    await _mark_closing(tx, await locked(tx, plan_id, fence), window)


async def reserve_outcome(
    tx: Transaction, plan: Plan, kind: str, window: int, digest: bytes, entropy: Entropy, *, fence: int
) -> bytes:
    """Charges an outcome and fixes its key; gives back the key that is fixed already, where one is."""
    number = await locked(tx, plan.id, fence)
    await _refuse_second(tx, number, kind, window)
    found = await tx.fetch_row(
        'SELECT key, digest FROM reservations WHERE plan = $1 AND kind = $2 AND "window" = $3', number, kind, window
    )
    if found is not None:
        if found[1] != digest:
            raise StoreError(
                f"store: the counters of window {window} are not those that its outcome was charged for: it is damaged"
            )
        return bytes(found[0])
    await check_next_outcome(tx, number, window)
    spend = await _spend_at_outcome(tx, number, plan, kind, window)
    key = entropy.read(KEY_BYTES)
    if plan.privacy.mode == CENTRAL or not await is_spent(tx, spend):
        await insert_spend(tx, spend)
    await tx.execute(
        'INSERT INTO reservations (plan, kind, "window", key, digest) VALUES ($1, $2, $3, $4, $5)',
        number,
        kind,
        window,
        key,
        digest,
    )
    return key


async def commit_outcome(
    tx: Transaction, plan: Plan, kind: str, window: int, data: bytes, *, fence: int, withheld: bool
) -> None:
    """Stores an outcome in place of its key; what was charged too much for a withheld one is given back.

    Nothing is, of a local plan: its window was charged for submissions, and those were accepted.
    """
    assert not (withheld and plan.privacy.mode == SECURE), "a secure plan asks for no number of clients"
    number = await locked(tx, plan.id, fence)
    await _refuse_second(tx, number, kind, window)
    await check_next_outcome(tx, number, window)
    reserved = 'DELETE FROM reservations WHERE plan = $1 AND kind = $2 AND "window" = $3'
    if await tx.execute(reserved, number, kind, window) != 1:
        raise StoreError(f"store: the outcome of window {window} was not charged before it was drawn")
    if withheld and plan.privacy.mode == CENTRAL:
        spend = spend_of(plan, kind=kind, window=window, withheld=True)
        await tx.fetch_row("SELECT name FROM populations WHERE name = $1", spend.population, lock=True)
        changed = await tx.execute(
            'UPDATE spends SET fields = $4 WHERE plan_id = $1 AND kind = $2 AND "window" = $3',
            spend.plan_id,
            kind,
            window,
            spend_fields(spend),
        )
        if changed != 1:
            raise StoreError(f"store: the charge of window {window} is gone: it is damaged")
    await tx.execute(
        'INSERT INTO outcomes (plan, kind, "window", published, sha256, data) VALUES ($1, $2, $3, 0, $4, $5)',
        number,
        kind,
        window,
        hashlib.sha256(data).digest(),
        data,
    )
    await move(tx, number, window, WindowState.WITHHELD if withheld else WindowState.RELEASED)


async def publish(
    tx: Transaction, plan_id: bytes, kind: str, window: int, *, receipts: ReceiptsMark, fence: int
) -> None:
    """Lets everybody see an outcome, and keeps how far the receipts reach."""
    changed = await tx.execute(
        'UPDATE outcomes SET published = 1 WHERE plan = $1 AND kind = $2 AND "window" = $3',
        await locked(tx, plan_id, fence),
        kind,
        window,
    )
    if changed != 1:
        raise StoreError(f"store: window {window} has no outcome to publish")
    await store_receipts.advance(tx, receipts)


async def outcomes(tx: Transaction, plan_id: bytes) -> list[Outcome]:
    """All outcomes of a plan, in the order of their windows, without their bytes."""
    rows = await tx.fetch(
        'SELECT kind, "window", length(data), sha256, published, state FROM outcomes JOIN windows '
        'USING (plan, "window") WHERE plan = $1 ORDER BY "window", kind',
        await plan_number(tx, plan_id),
    )
    return [
        Outcome(plan_id, kind, window, size, digest, bool(published), state == WindowState.WITHHELD)
        for kind, window, size, digest, published, state in rows
    ]


async def unpublished(tx: Transaction, plan_id: bytes) -> list[StoredOutcome]:
    """Outcomes that nobody may see yet, with their bytes, in the order of their windows."""
    rows = await tx.fetch(
        'SELECT kind, "window", data, sha256, state FROM outcomes JOIN windows USING (plan, "window") '
        'WHERE plan = $1 AND published = 0 ORDER BY "window", kind',
        await plan_number(tx, plan_id),
    )
    return [
        StoredOutcome(plan_id, kind, window, data, digest, state == WindowState.WITHHELD)
        for kind, window, data, digest, state in rows
    ]


async def outcome(tx: Transaction, plan_id: bytes, kind: str, window: int) -> StoredOutcome | None:
    """One published outcome with its bytes."""
    row = await tx.fetch_row(
        'SELECT data, sha256, state FROM outcomes JOIN windows USING (plan, "window") '
        'WHERE plan = $1 AND kind = $2 AND "window" = $3 AND published = 1',
        await plan_number(tx, plan_id),
        kind,
        window,
    )
    return None if row is None else StoredOutcome(plan_id, kind, window, row[0], row[1], row[2] == WindowState.WITHHELD)


async def _spend_at_outcome(tx: Transaction, number: int, plan: Plan, kind: str, window: int) -> Spend:
    """What a window has spent by the time of its outcome. The population is locked from here on."""
    # What a release costs, whatever will be drawn: to refuse the dearer outcome alone would tell which it was.
    spend = spend_of(plan, kind=kind, window=window)
    held = await account(tx, spend.population, lock=True)
    if plan.privacy.mode == CENTRAL:
        held.charge(spend)
        return spend
    unspent = spend_of(plan, kind=kind, window=window, entered=False)
    if not await _holds_any(tx, number, window):
        return unspent  # or it is charged: somebody may have come, and nothing is left of it
    # Charged before its first submission, but for a store that is older than its log. Devices have spent it, whatever
    # the limits say: the ledger shows it, beyond them if need be.
    await forget_unspent(tx, unspent)
    return spend


async def _holds_any(tx: Transaction, number: int, window: int) -> bool:
    """Whether anything is counted in a window of a secure or local plan, by numbers that its release makes public."""
    by_name = 'SELECT 1 FROM contributions WHERE plan = $1 AND "window" = $2 LIMIT 1'
    if await tx.fetch_row(by_name, number, window) is not None:
        return True  # clients' deltas, or cohorts' sums
    rows = await tx.fetch('SELECT data FROM counts WHERE plan = $1 AND "window" = $2', number, window)
    return any(unpack(data).any() for (data,) in rows)  # reports, which are nobody's


async def locked(tx: Transaction, plan_id: bytes, fence: int) -> int:
    """The plan's number, once its windows are held still and the releaser's fence has let the write through."""
    plan = await plan_number(tx, plan_id, lock=True)
    await check(tx, plan, fence)
    return plan


async def _refuse_second(tx: Transaction, plan: int, kind: str, window: int) -> None:
    query = 'SELECT 1 FROM outcomes WHERE plan = $1 AND kind = $2 AND "window" = $3'
    if await tx.fetch_row(query, plan, kind, window) is not None:
        raise OutcomeExistsError(f"window {window} has its outcome already")
