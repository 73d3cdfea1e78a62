"""Who holds which records: cut in their own order into uneven parts, so that clients differ as devices do."""

import itertools
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
    """

    client_id: str
    batches: tuple[Floats, ...]

    @property
    def records(self) -> int:
        """How many records the client holds."""
        return sum(map(len, self.batches))


def deal(values: Floats, *, clients: int, deltas: int, seed: int, records_per_client: int | None) -> list[Share]:
    """Cuts the records into consecutive parts of uneven size, and each part into batches.

    Args:
        values: (n, d); a client's records stand beside each other, as one photographer's pixels do.
        clients: How many parts; no more than there are records.
        deltas: At least so many batches in all, or one a record where there are fewer.
        seed: Of which client gets a large part.
        records_per_client: At most so many of each client are dealt out, the first of its part; None for all.

    Returns:
        The parts, each with at least one record.
    """
    clients = min(clients, len(values))
    weights = np.arange(1, clients + 1) ** -_ZIPF_EXPONENT
    np.random.default_rng(seed).shuffle(weights)
    spare = len(values) - clients  # one record for everybody first
    edges = np.arange(clients + 1) + np.rint(np.concatenate([[0], np.cumsum(weights)]) / weights.sum() * spare)
    parts = [values[int(first) : int(last)] for first, last in itertools.pairwise(edges)]
    if records_per_client is not None:
        parts = [part[:records_per_client] for part in parts]
    size = max(1, sum(map(len, parts)) // deltas)
    digits = len(str(clients))
    return [
        Share(f"client-{index + 1:0{digits}}", tuple(part[at : at + size] for at in range(0, len(part), size)))
        for index, part in enumerate(parts)
    ]
