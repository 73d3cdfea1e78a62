"""The clients of a deployed fleet: whom each connects to, when it is online, and what it has done so far."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from edge_client import EdgeClient, Tallies
from hushsum_proto.credentials import Credentials
from simulator.deployment import access
from simulator.deployment.churn import Stay, moments, stays
from simulator.deployment.journal import Account
from simulator.deployment.settings import Settings
from simulator.shares import Share


@dataclass(eq=False, repr=False)  # it holds records and a token
class Member:
    """One client.

    Attributes:
        share: Its records.
        target: Its gateway.
        credentials: Its token.
        stays: When it is online.
        moments: When it adds each batch.
        account: What it has done, and was told.
        client: The real one, while it is online.
        past: What its earlier lives have sent.
    """

    share: Share
    target: str
    credentials: Credentials
    stays: Sequence[Stay]
    moments: Sequence[float]
    account: Account = field(default_factory=Account)
    client: EdgeClient | None = None
    past: Tallies = field(default_factory=Tallies)

    @property
    def tallies(self) -> Tallies:
        """So far: what the spool counts for its whole life, and what was sent, of all lives."""
        if self.client is None:
            return self.account.tallies
        now, past = self.client.tallies, self.past
        return replace(
            now,
            deltas_sent=now.deltas_sent + past.deltas_sent,
            deltas_resent=now.deltas_resent + past.deltas_resent,
            bytes_sent=now.bytes_sent + past.bytes_sent,
        )


def members_of(settings: Settings, shares: Sequence[Share]) -> list[Member]:
    """All of them, each for one gateway for good.

    Raises:
        JourneyError: Their tokens are not there.
    """
    credentials, gateways = access.clients(settings), settings.gateways
    groups = [[share.client_id for share in shares[place :: len(gateways)]] for place in range(len(gateways))]
    online = stays(groups, churn=settings.churn, windows=settings.windows, seed=settings.seed)
    return [
        Member(
            share,
            gateways[place % len(gateways)],
            credentials[share.client_id],
            online[share.client_id],
            moments(len(share.batches), settings.windows),
        )
        for place, share in enumerate(shares)
    ]


def fates_in(spool: Path) -> dict[int, str]:
    """What a client that is not running was told of its submissions, by window; empty text where nothing."""
    with closing(sqlite3.connect(f"file:{spool}?mode=ro", uri=True)) as database:
        return {window: fate or "" for window, fate in database.execute("SELECT window, fate FROM rounds")}
