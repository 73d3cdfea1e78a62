"""Do the receipts and the store belong together? Asked at every start, before any outcome is taken."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aggregator.errors import ForeignReceiptsError, ReceiptsError
from aggregator.ports import Outcome, Receipts, Store
from hushsum.privacy.event import Spend


@dataclass(frozen=True)
class Reconciliation:
    """What a start has to do.

    Attributes:
        problem: Why no outcome may be taken until an operator has restored something; empty where all is well.
        spends: Of the receipts: to be counted, whatever the problem.
    """

    problem: str
    spends: tuple[Spend, ...]


async def reconciled(plan_id: bytes, store: Store, receipts: Receipts, *, fence: int) -> Reconciliation:
    """Compares a plan's store with its receipts; a store that never had receipts is bound to them first.

    Raises:
        ReceiptsError: They cannot be read, or are not this store's: no outcome may be taken.
    """
    problem = ""
    try:
        await _bound(plan_id, store, receipts, fence=fence)
    except ForeignReceiptsError:
        raise  # what they say was spent was spent of other data
    except ReceiptsError as error:
        problem = str(error)
    outcomes = await store.outcomes(plan_id)
    found = reconcile(plan_id, outcomes, await receipts.read())
    return replace(found, problem=problem or found.problem)


async def _bound(plan_id: bytes, store: Store, receipts: Receipts, *, fence: int) -> None:
    """Binds store and receipts to each other, once, and compares them.

    The header is written before the store knows it: a crash in between leaves receipts that no store knows, and a store
    that takes them for its own. The other way round a store would miss receipts that nobody has lost.
    """
    bound = await store.receipts_mark()  # before the receipts are read: they may be ahead of it, never behind
    if bound is not None:
        await receipts.check(bound)
    if bound is None or not bound.id:
        await _check_unbound(store, receipts)
        bound = await store.bind_receipts(plan_id, await receipts.begin(), fence=fence)
        await receipts.check(bound)


async def _check_unbound(store: Store, receipts: Receipts) -> None:
    """Compares receipts with a store that is not bound to any: the wrong ones would be its own for ever.

    Raises:
        ForeignReceiptsError: They lack an outcome that a plan of the store has published.
    """
    published = [
        (plan.plan_id, outcome.kind, outcome.window)
        for plan in await store.plans()
        for outcome in await store.outcomes(plan.plan_id)
        if outcome.published
    ]
    proved = {receipt[:3] for receipt in await receipts.read()}
    unproved = [window for *key, window in published if (*key, window) not in proved]
    if unproved:
        raise ForeignReceiptsError(_unproved(len(published), min(unproved)))


def reconcile(
    plan_id: bytes, outcomes: Sequence[Outcome], receipts: Sequence[tuple[bytes, str, int, bytes, Spend]]
) -> Reconciliation:
    """Compares a plan's outcomes with its receipts (PRIVACY: receipts).

    An outcome that is not published may lack its receipt: the crash came in between, and nobody has seen it. A
    published one never may, and a receipt says that its outcome may have been shown: where the store does not hold that
    very outcome, it was restored from an older copy, and drawing again would show a second draw.
    """
    spends = tuple(receipt[4] for receipt in receipts)
    proved = {(kind, window): digest for plan, kind, window, digest, _ in receipts if plan == plan_id}
    stored = {(outcome.kind, outcome.window): outcome for outcome in outcomes}
    return Reconciliation(_problem(proved, stored), spends)


def _problem(proved: dict[tuple[str, int], bytes], stored: dict[tuple[str, int], Outcome]) -> str:
    published = {key for key, outcome in stored.items() if outcome.published}
    missing = sorted(window for _, window in published - proved.keys())
    if missing:
        return _unproved(len(published), missing[0])
    lost = sorted(window for _, window in proved.keys() - stored.keys())
    if lost:
        return (
            f"there is a receipt for window {lost[0]}, but the store does not hold its outcome: the store is older "
            "than its receipts; restore a newer copy of it"
        )
    other = sorted(key[1] for key, digest in proved.items() if stored[key].sha256 != digest)
    if other:
        return f"the receipt of window {other[0]} is for another outcome than the store holds; restore the store"
    return ""


def _unproved(published: int, window: int) -> str:
    return (
        f"{published} outcomes are published, but window {window} has no receipt: the receipts are not those of this "
        "store; restore them"
    )
