"""The lease's part of the store: which process releases a plan, and what it asks of the folds. On a transaction."""

from aggregator.errors import FencedError, StoreError
from aggregator.records import Lease
from aggregator.store.sql import NEXT_FENCE, Transaction
from aggregator.store.windows import check_forgettable, plan_number


async def acquire(
    tx: Transaction, plan_id: bytes, owner: str, address: str, seconds: float, *, exclusive: bool
) -> int | None:
    """Gives the lease to who asks, with its next fence; None while another's holds.

    Args:
        tx: The transaction.
        plan_id: Of what.
        owner: Who asks.
        address: Where its administration listens.
        seconds: How long it holds.
        exclusive: Whether the store has one process alone, so that any other that had it is gone.
    """
    plan = await plan_number(tx, plan_id)
    found = "SELECT owner, until_ms FROM leases WHERE plan = $1"
    row = await tx.fetch_row(found, plan, lock=True)
    if row is None:
        await tx.execute(
            "INSERT INTO leases (plan, fence, owner, address, note, until_ms) VALUES ($1, 0, '', '', '', 0) "
            "ON CONFLICT DO NOTHING",
            plan,
        )
        row = await tx.fetch_row(found, plan, lock=True)
    assert row is not None
    now_ms = await tx.now_ms()
    if not exclusive and row[0] != owner and row[1] > now_ms:
        return None
    taken = await tx.fetch_row(
        f"UPDATE leases SET fence = {NEXT_FENCE.format(now='$5')}, "  # noqa: S608  nothing but a constant is put in
        "owner = $2, address = $3, note = '', until_ms = $4 WHERE plan = $1 RETURNING fence",
        plan,
        owner,
        address,
        now_ms + _milliseconds(seconds),
        now_ms,
    )
    assert taken is not None
    return int(taken[0])


async def renew(tx: Transaction, plan_id: bytes, seconds: float, note: str, *, fence: int) -> None:
    """Holds it for longer."""
    plan = await plan_number(tx, plan_id)
    until_ms = await tx.now_ms() + _milliseconds(seconds)
    renewed = await tx.execute(
        "UPDATE leases SET until_ms = $3, note = $4 WHERE plan = $1 AND fence = $2", plan, fence, until_ms, note
    )
    if renewed != 1:
        raise _fenced(fence)


async def give_back(tx: Transaction, plan_id: bytes, *, fence: int) -> None:
    """Ends it at once, where it is still this one."""
    plan = await plan_number(tx, plan_id)
    await tx.execute("UPDATE leases SET until_ms = 0 WHERE plan = $1 AND fence = $2", plan, fence)


async def lease(tx: Transaction, plan_id: bytes) -> Lease | None:
    """Who releases, as last heard."""
    row = await tx.fetch_row(
        "SELECT owner, address, note, until_ms FROM leases WHERE plan = (SELECT number FROM plans WHERE id = $1)",
        plan_id,
    )
    if row is None:
        return None
    owner, address, note, until_ms = row
    return Lease(owner, address, note, (until_ms - await tx.now_ms()) / 1000)


async def check(tx: Transaction, plan: int, fence: int) -> None:
    """Lets a write of a releaser through, and lets nobody take the lease until its transaction ends.

    Raises:
        FencedError: Another process has had the lease since.
    """
    row = await tx.fetch_row("SELECT fence FROM leases WHERE plan = $1", plan, lock=True)
    if row is None or row[0] != fence:
        raise _fenced(fence)


async def ask_to_forget(tx: Transaction, plan_id: bytes, window: int, *, fence: int) -> None:
    """Tells the folds to forget windows up to this one; never fewer than before."""
    plan = await plan_number(tx, plan_id, lock=True)
    await check(tx, plan, fence)
    await check_forgettable(tx, plan, window)
    await tx.execute(
        "UPDATE leases SET forget_asked = $2 WHERE plan = $1 AND (forget_asked IS NULL OR forget_asked < $2)",
        plan,
        window,
    )


async def forget_asked(tx: Transaction, plan_id: bytes) -> int | None:
    """The last window that folds were asked to forget."""
    row = await tx.fetch_row(
        "SELECT forget_asked FROM leases WHERE plan = (SELECT number FROM plans WHERE id = $1)", plan_id
    )
    return None if row is None or row[0] is None else int(row[0])


def _milliseconds(seconds: float) -> int:
    if not seconds >= 0:
        raise StoreError(f"store: a lease of {seconds} s, expected 0 or more")
    return round(seconds * 1000)


def _fenced(fence: int) -> FencedError:
    return FencedError(f"store: another process has taken the releaser's lease over (this one's was {fence})")
