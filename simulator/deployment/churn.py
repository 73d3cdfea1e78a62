"""When each client of a deployment is online, and when it adds what: from the seed alone, before anything starts."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

_PERIODS: Final = 2  # in a window: whoever is away misses no window whole
#: The part of a window in which records are added: none is on its way when the window ends.
ADDING: Final = 0.85


@dataclass(frozen=True)
class Stay:
    """A time in which a client is online, in windows since the fleet's first one began."""

    start: float
    end: float


def stays(groups: Sequence[Sequence[str]], *, churn: float, windows: int, seed: int) -> dict[str, list[Stay]]:
    """When each client is online.

    A share of each group is offline in each half of a window, others each time; nobody in the last half of the last
    window, so that all is added.

    Args:
        groups: Clients by what they connect to: each group loses the same share, as cohorts form in it.
        churn: The share.
        windows: How many there are.
        seed: Of who it is.
    """
    periods = _PERIODS * windows
    rng = np.random.default_rng(seed)
    offline: dict[str, set[int]] = {name: set() for group in groups for name in group}
    for period in range(periods - 1):
        for group in groups:
            rested = [name for name in group if period - 1 not in offline[name]]
            away = min(round(churn * len(group)), len(rested))
            for place in rng.choice(len(rested), away, replace=False).tolist():
                offline[rested[place]].add(period)
    return {
        name: _joined([period for period in range(periods) if period not in away]) for name, away in offline.items()
    }


def moments(batches: int, windows: int) -> list[float]:
    """When a client adds its batches if it is online then, in windows: evenly, and none at a window's end."""
    evenly = ((number + 0.5) * windows / batches for number in range(batches))
    return [int(at) + ADDING * (at - int(at)) for at in evenly]


def _joined(periods: Sequence[int]) -> list[Stay]:
    """Stays of consecutive periods."""
    runs = itertools.groupby(enumerate(periods), lambda pair: pair[1] - pair[0])
    ends = [[period for _, period in run] for _, run in runs]
    return [Stay(run[0] / _PERIODS, (run[-1] + 1) / _PERIODS) for run in ends]
