"""Every delta by its id: what the clients sent against what the fold counted."""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from aggregator.fold.fold import Verdict, VerdictKind
from hushsum.delta import DeltaId


class Sent(NamedTuple):
    """A delta that a client has bound and sent."""

    client_id: str
    id: DeltaId


@dataclass(frozen=True)
class Reconciliation:
    """Numbers of ids, but for duplicates, which are entries.

    Attributes:
        counted: Sent, and counted.
        lost: Sent, and not counted.
        double_counted: Counted more than once, or counted and sent by nobody.
        duplicates: Entries that were dropped as copies.
    """

    counted: int
    lost: int
    double_counted: int
    duplicates: int


def reconcile(sent: AbstractSet[Sent], verdicts: Iterable[Verdict]) -> Reconciliation:
    """Compares by id.

    Args:
        sent: All deltas that were sent.
        verdicts: One for each entry that was folded.
    """
    counted: Counter[tuple[str | None, DeltaId | None]] = Counter()
    duplicates = 0
    for verdict in verdicts:
        if verdict.kind is VerdictKind.COUNTED:
            counted[verdict.client_id, verdict.id] += 1
        duplicates += verdict.kind is VerdictKind.DUPLICATE
    return Reconciliation(
        counted=sum(delta in counted for delta in sent),
        lost=sum(delta not in counted for delta in sent),
        double_counted=sum(times > 1 or delta not in sent for delta, times in counted.items()),
        duplicates=duplicates,
    )
