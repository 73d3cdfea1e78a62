"""Clients in local mode: the ordinary fleet, with what its devices' own accounts say at the end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final

from typing_extensions import override

from edge_client import EdgeClient, Tallies
from hushsum.plan import Plan
from hushsum.privacy.relation import Cost
from simulator.fleet import Fleet, Totals
from simulator.shares import Share

_WINDOW_BYTES: Final = 1 << 15  # half of the least that HTTP/2 has
_NOTHING: Final = Cost(Fraction(0), Fraction(0))


@dataclass(frozen=True)
class Told:
    """What a client knows at its end.

    Attributes:
        tallies: What became of everything.
        spent: By its own account.
        left: Of its limit.
    """

    tallies: Tallies
    spent: Cost
    left: Cost

    @property
    def acknowledged(self) -> bool:
        """Whether all that it has sent is durable at the service."""
        return self.tallies.acknowledged + self.tallies.counted == self.tallies.deltas


class LocalFleet(Fleet):
    """Clients that contribute their shares to one window, each randomised or noised by itself.

    Args:
        plan: Of mode ``local``.
        shares: Who has which records.
        target: Where they connect.
        folder: For their spools.
        time_ms: The event time of every record.

    Attributes:
        told: By client.
    """

    def __init__(self, plan: Plan, shares: Sequence[Share], *, target: str, folder: Path, time_ms: int) -> None:
        super().__init__(plan, shares, target=target, folder=folder, time_ms=time_ms)
        self.told: dict[str, Told] = {}
        self._silos = len(shares) if plan.privacy.reports is None else 0
        width = 0 if plan.report_sizes is None else plan.report_sizes.width
        reports = sum(share.records for share in shares) // max(1, self.batches)
        self._size = plan.words.bytes if self._silos else width * reports

    @property
    @override
    def what(self) -> str:
        return "submissions" if self._silos else "batches of reports"

    @property
    @override
    def expected(self) -> int:
        return self._silos or self.batches

    @property
    def large(self) -> int:
        """Bytes of what is sent at a time: of silos, and of batches too large to go through unanswered; else 0."""
        return self._size if self._silos or self._size > _WINDOW_BYTES else 0

    @override
    def _totals_of(self, tallies: Tallies) -> Totals:
        totals = Totals.of(tallies)
        if not self._silos:
            return totals
        # Its other deltas wait at home, and never leave it.
        return replace(totals, deltas=tallies.submissions_spent, acknowledged=tallies.submissions_counted)

    @override
    def _answered(self, share: Share, client: EdgeClient) -> None:
        account = client.account
        spent, left = (_NOTHING, _NOTHING) if account is None else (account.spent, account.left)
        self.told[share.client_id] = Told(client.tallies, spent, left)
