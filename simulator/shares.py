"""Who holds which records: cut in their own order into uneven parts, so that clients differ as devices do."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.records import Floats

# Shares fall as 1/rank^0.7: of 200 clients the largest holds 7 % of all records, the smallest a sixth of a percent.
_ZIPF_EXPONENT: Final = 0.7


@dataclass(frozen=True, eq=False)
class Share:
    """One client's records.

    Attributes:
        client_id: Its name.
        batches: What it adds, one delta each: each (k, d).
        labels: Of each batch: k of them; None where records have none.
    """

    client_id: str
    batches: tuple[Floats, ...]
    labels: tuple[tuple[str | None, ...], ...] | None = None

    @property
    def records(self) -> int:
        """How many records the client holds."""
        return sum(map(len, self.batches))

    def parts(self, places: Sequence[int]) -> "Share":
        """The same with these batches alone."""
        labels = None if self.labels is None else tuple(self.labels[place] for place in places)
        return Share(self.client_id, tuple(self.batches[place] for place in places), labels)


def deal(
    values: Floats,
    *,
    clients: int,
    deltas: int,
    seed: int,
    records_per_client: int | None,
    labels: Sequence[str | None] | None = None,
) -> list[Share]:
    """Cuts the records into consecutive parts of uneven size, and each part into batches.

    Args:
        values: (n, d); a client's records stand beside each other, as one photographer's pixels do.
        clients: How many parts; no more than there are records.
        deltas: At least so many batches in all, or one a record where there are fewer.
        seed: Of which client gets a large part.
        records_per_client: At most so many of each client are dealt out, the first of its part; None for all.
        labels: n of them, dealt out with their records.

    Returns:
        The parts, each with at least one record.
    """
    clients = min(clients, len(values))
    weights = np.arange(1, clients + 1) ** -_ZIPF_EXPONENT
    np.random.default_rng(seed).shuffle(weights)
    spare = len(values) - clients  # one record for everybody first
    edges = np.arange(clients + 1) + np.rint(np.concatenate([[0], np.cumsum(weights)]) / weights.sum() * spare)
    parts = [range(int(first), int(last))[:records_per_client] for first, last in itertools.pairwise(edges)]
    size = max(1, sum(map(len, parts)) // deltas)
    digits = len(str(clients))
    shares = []
    for index, part in enumerate(parts):
        cuts = [slice(at, min(at + size, part.stop)) for at in range(part.start, part.stop, size)]
        mine = None if labels is None else tuple(tuple(labels[cut]) for cut in cuts)
        shares.append(Share(f"client-{index + 1:0{digits}}", tuple(values[cut] for cut in cuts), mine))
    return shares
