"""The receipts' part of the store: which receipts it is bound to, and how far it knows them. On a transaction."""

from aggregator.errors import StoreError
from aggregator.model import ReceiptsMark
from aggregator.store.transaction import Transaction
from aggregator.store.windows import check, plan_number


async def mark(tx: Transaction) -> ReceiptsMark | None:
    """The receipts that the store is bound to, and how far it knows them; see :class:`aggregator.store.store.Store`."""
    row = await tx.fetch_row("SELECT id, lines, digest FROM receipts")
    return None if row is None else ReceiptsMark(bytes(row[0]), int(row[1]), bytes(row[2]))


async def bind(tx: Transaction, plan_id: bytes, found: ReceiptsMark, *, fence: int) -> ReceiptsMark:
    """Binds the store to these receipts, unless it is bound; what it is bound to then."""
    await check(tx, await plan_number(tx, plan_id), fence)
    assert found.id, "receipts get an id before a store is bound to them"
    await tx.execute(
        "INSERT INTO receipts (number, id, lines, digest) VALUES (1, $1, $2, $3) ON CONFLICT (number) DO UPDATE "
        "SET id = excluded.id, lines = excluded.lines, digest = excluded.digest WHERE length(receipts.id) = 0",
        found.id,
        found.lines,
        found.digest,
    )
    bound = await mark(tx)
    assert bound is not None, "it is there, or was put there"
    return bound


async def advance(tx: Transaction, reached: ReceiptsMark) -> None:
    """Keeps how far the receipts reach; releasers of several plans come in any order.

    Raises:
        StoreError: They are not those that the store is bound to.
    """
    row = await tx.fetch_row("SELECT id, lines FROM receipts WHERE number = 1", lock=True)
    if row is None or row[0] != reached.id:
        raise StoreError("store: the outcome's receipt stands among receipts that are not this store's; restore them")
    if row[1] < reached.lines:
        await tx.execute("UPDATE receipts SET lines = $1, digest = $2", reached.lines, reached.digest)
