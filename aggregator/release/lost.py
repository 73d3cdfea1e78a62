"""The way on for a store that was restored from an older copy: its lost outcomes stay lost, and are never drawn again.

A receipt proves that an outcome was drawn and may have been seen. Where the store has lost it, and no newer copy of the
store exists, the outcome is entered as final without its bytes, with the charge that the receipt proves. Releasing goes
on with the next window. What was counted in a lost window is in the release that analysts may have; it cannot be drawn
again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aggregator.interfaces import Receipts
from aggregator.model import StoredOutcome
from aggregator.release.lease import operators_lease
from aggregator.release.receipts import lost_outcomes, reconcile
from aggregator.runtime import Runtime
from aggregator.store.store import Store
from hushsum.plan import Plan

_ID_SHOWN: Final = 12  # characters of a plan's id


@dataclass(frozen=True)
class LostOutcomes:
    """Outcomes that receipts prove and a store lacks: their windows, in order.

    Attributes:
        windows: By the name of their plan.
        unknown: By the id of a plan that the store does not have (hexadecimal): it is older than the plan's first
            start, and these outcomes cannot be marked before another start has registered the plan.
        gaps: By the name of a plan, why its log cannot be folded any further.
    """

    windows: Mapping[str, Sequence[int]]
    unknown: Mapping[str, Sequence[int]]
    gaps: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The plans and their windows."""
        known = [f"plan {name!r}, {numbered(windows)}" for name, windows in self.windows.items()]
        later = [
            f"plan {plan_id[:_ID_SHOWN]}, registered later, {numbered(windows)}"
            for plan_id, windows in self.unknown.items()
        ]
        return "; ".join([*known, *later])


def numbered(windows: Sequence[int]) -> str:
    """Windows in words."""
    return f"{'window' if len(windows) == 1 else 'windows'} {', '.join(map(str, windows))}"


async def find_lost(store: Store, receipts: Receipts) -> LostOutcomes:
    """What a store lacks; nothing is changed.

    Raises:
        ReceiptsError: The receipts are not this store's, or contradict it.
    """
    plans, unknown = await store.plans(), dict[str, list[int]]()
    windows = {
        plan.name: [receipt.window for receipt in lost]
        for plan in plans
        if (lost := await lost_outcomes(plan.plan_id, store, receipts))
    }
    known = {plan.plan_id for plan in plans}
    for plan_id, _, window, *_ in await receipts.read():
        if plan_id not in known:
            unknown.setdefault(plan_id.hex(), []).append(window)
    return LostOutcomes(windows, {plan_id: sorted(lost) for plan_id, lost in unknown.items()})


async def mark_every_lost(store: Store, receipts: Receipts, runtime: Runtime, *, owner: str) -> LostOutcomes:
    """As :func:`mark_lost`, of every plan that the store has, while this command, ``owner``, holds its lease.

    Returns:
        What was lost. Outcomes of unknown plans are not marked.

    Raises:
        ReceiptsError: As :func:`mark_lost`, or a releaser or another command runs.
    """
    lost = await find_lost(store, receipts)
    for registered in await store.plans():
        if registered.name not in lost.windows:
            continue
        plan = await store.load_plan(registered.plan_id)
        assert plan is not None, "it is registered"
        async with operators_lease(plan.id, plan.name, store, runtime, owner=owner) as fence:
            await mark_lost(plan, store, receipts, fence=fence)
    return lost


async def mark_lost(plan: Plan, store: Store, receipts: Receipts, *, fence: int) -> list[int]:
    """Marks the outcomes of a plan that its receipts prove and the store lacks; ``fence`` is that of the plan's lease.

    Returns:
        Their windows, in order; none if nothing is lost.

    Raises:
        FencedError: Another process has taken the lease.
        ReceiptsError: The receipts are not this store's.
        StoreError: They are steps of a cumulative sequence.
    """
    lost = await lost_outcomes(plan.id, store, receipts)
    if not lost:
        return []
    await reconcile(plan.id, store, receipts, fence=fence)  # binds a store that was copied before it was bound
    marks = [  # a copy of the receipts may lack the last one; nothing is published before both have it
        await receipts.write(StoredOutcome(plan_id, kind, window, b"", sha256), spend)
        for plan_id, kind, window, sha256, spend in lost
    ]
    outcomes = [(kind, window, sha256, spend) for _, kind, window, sha256, spend in lost]
    await store.mark_lost(plan, outcomes, receipts=marks[-1], fence=fence)
    return [receipt.window for receipt in lost]
