"""The way on for a store that was restored from an older copy: its lost outcomes stay lost, and are never drawn again.

A receipt proves that an outcome was drawn and may have been seen. Where the store has lost it, and no newer copy of the
store exists, the outcome is entered as final without its bytes, with the charge that the receipt proves. Releasing goes
on with the next window. What was counted in a lost window is in the release that analysts may have; it cannot be drawn
again.
"""

from typing import Final

from aggregator.errors import ReceiptsError
from aggregator.interfaces import Receipts
from aggregator.model import StoredOutcome
from aggregator.release.receipts import lost_outcomes, reconcile
from aggregator.store.store import Store
from hushsum.plan import Plan

_LEASE_S: Final = 60.0


async def mark_lost(plan: Plan, store: Store, receipts: Receipts) -> list[int]:
    """Marks the outcomes of a plan that its receipts prove and the store lacks; no process may release meanwhile.

    Returns:
        Their windows, in order; none if nothing is lost.

    Raises:
        ReceiptsError: The receipts are not this store's, or a releaser runs.
        StoreError: They are steps of a cumulative sequence.
    """
    lost = await lost_outcomes(plan.id, store, receipts)
    if not lost:
        return []
    fence = await store.acquire_lease(plan.id, "mark-lost", "", _LEASE_S)
    if fence is None:
        held = await store.lease(plan.id)
        left = "" if held is None else f" for {max(held.left_s, 0):.0f} s more"
        raise ReceiptsError(
            f"plan {plan.name!r}: a releaser holds the lease{left}: stop every process of the service, and wait until "
            "it ends"
        )
    try:
        await reconcile(plan.id, store, receipts, fence=fence)  # binds a store that was copied before it was bound
        marks = [  # a copy of the receipts may lack the last one; nothing is published before both have it
            await receipts.write(StoredOutcome(plan_id, kind, window, b"", sha256), spend)
            for plan_id, kind, window, sha256, spend in lost
        ]
        outcomes = [(kind, window, sha256, spend) for _, kind, window, sha256, spend in lost]
        await store.mark_lost(plan, outcomes, receipts=marks[-1], fence=fence)
    finally:
        await store.return_lease(plan.id, fence=fence)
    return [receipt.window for receipt in lost]
