"""Which event tells two neighbouring data sets apart best: learned on one half of the runs, tested on the other.

An event that was chosen and counted on the same runs would prove too much. What an attacker sees of one run is a row of
numbers (see ``views``); the events are half-lines of one of them: at least, or at most, so much.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.audits.confidence import ERROR, Hits, at_least, at_most, epsilon_at_least

Floats = npt.NDArray[np.float64]

_THRESHOLDS: Final = 64  # of a number, at most
_LEARNING_ERROR: Final = 1e-3  # of the limits by which events are compared


@dataclass(frozen=True)
class Event:
    """What is counted.

    Attributes:
        column: Which of the numbers.
        sign: 1: it is at least the threshold; −1: at most. A number that was not seen (NaN) is neither.
        threshold: Which value.
        likelier: On which data set the event is the likelier one: 0 for the first, 1 for the second.
    """

    column: int
    sign: int
    threshold: float
    likelier: int

    def hits(self, seen: Floats) -> Hits:
        """How often it happened in runs (n, columns)."""
        return Hits(int((self.sign * seen[:, self.column] >= self.sign * self.threshold).sum()), len(seen))


@dataclass(frozen=True)
class Bound:
    """What the runs prove.

    Attributes:
        epsilon: ε is at least this, but for a probability of the stated error.
        event: By which event; in words.
        likelier: How often it was seen where it is the likelier,
        rarer: and where it is the rarer.
    """

    epsilon: float
    event: str
    likelier: Hits
    rarer: Hits


def audited(
    first: Floats, second: Floats, columns: Sequence[str], *, delta: float = 0.0, error: float = ERROR
) -> Bound:
    """The largest lower limit of ε that these runs prove.

    Args:
        first: (n, columns) what was seen of n independent runs on one data set.
        second: The same of its neighbour.
        columns: Names of the numbers.
        delta: The δ that is claimed.
        error: How likely the limit may be above the true ε, over all events together (Bonferroni).
    """
    learned = [_best(first[0::2], second[0::2], column, delta=delta) for column in range(len(columns))]
    tested = [_tested(event, first[1::2], second[1::2], columns, delta, error / len(learned)) for event in learned]
    return max(tested, key=lambda bound: bound.epsilon)


def _tested(event: Event, first: Floats, second: Floats, columns: Sequence[str], delta: float, error: float) -> Bound:
    worlds = (first, second)
    likelier, rarer = event.hits(worlds[event.likelier]), event.hits(worlds[1 - event.likelier])
    words = f"{columns[event.column]} {'>=' if event.sign > 0 else '<='} {event.threshold:.6g}"
    return Bound(epsilon_at_least(likelier, rarer, delta=delta, error=error), words, likelier, rarer)


def _best(first: Floats, second: Floats, column: int, *, delta: float) -> Event:
    """The event of one number that promises most on these runs."""
    seen = np.concatenate([first[:, column], second[:, column]])
    values = np.unique(seen[~np.isnan(seen)])
    if len(values) > _THRESHOLDS:
        values = values[np.linspace(0, len(values) - 1, _THRESHOLDS).round().astype(np.int64)]
    best = Event(column, 1, float(values[0]) if len(values) else 0.0, 0)
    most = -np.inf
    for sign in (1, -1):
        counts = [(sign * runs[:, [column]] >= sign * values).sum(axis=0) for runs in (first, second)]
        for likelier in (0, 1):
            p = at_least(counts[likelier], len(first if likelier == 0 else second), _LEARNING_ERROR)
            q = at_most(counts[1 - likelier], len(second if likelier == 0 else first), _LEARNING_ERROR)
            promise = np.maximum(p - delta, 0.0) / q
            if promise.size and promise.max() > most:
                most = float(promise.max())
                best = Event(column, sign, float(values[promise.argmax()]), likelier)
    return best
