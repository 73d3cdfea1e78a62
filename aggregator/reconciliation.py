"""Do the receipts and the store belong together? Asked at every start, before any outcome is taken: pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from aggregator.ports import Outcome
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
        return (
            f"{len(published)} outcomes are published, but window {missing[0]} has no receipt: the receipts are not "
            "those of this store; restore them"
        )
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
