"""Drift: when what a series of releases is of changes, at a stated rate of false alarms and at no cost in privacy.

Each test compares s windows with the s windows after them (:meth:`hushsum.comparison.Comparison.p_value`: are both
samples of one population?), for s = 1, 2, 4, … and every place in between. All tests of the whole horizon are one
family (Holm 1979), which holds however they depend on each other: tests share windows, and releases of a cumulative
sequence share noise. Tests that are still to come count as made, so that a series may be tested anew after each window:
all alarms together are false with at most the stated probability. Of the tests that show a change the narrowest are
reported, none of whose windows overlap (narrowest over threshold: Baranowski, Chen and Fryzlewicz 2019). The rate is as
exact as each test is: noise and samples are bounded, hashing error is taken to have the tail of Student's t.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hushsum.comparison import Comparison
from hushsum.notebook import table_html
from hushsum.query import Queryable


@dataclass(frozen=True)
class Change:
    """A change of what is collected.

    Attributes:
        after: Index of the last window before it, where the data show it best.
        first: Index of the first of the windows that are not all alike: the change is not before it.
        last: Index of the last of them.
        p_value: Adjusted for all tests of the horizon (Holm); at most the level.
    """

    after: int
    first: int
    last: int
    p_value: float


@dataclass(frozen=True)
class Drift:
    """The changes of a series: made by :meth:`hushsum.Series.drift`.

    The probability that any of them is false, so that all windows from its first to its last are samples of one
    population, is at most ``level``, over all tests of the horizon together.

    Attributes:
        changes: In order of time.
        level: The most of that probability.
        horizon: Of how many windows it holds.
        tests: How many tests the horizon has.
        made: How many of them the series has so far.
    """

    changes: tuple[Change, ...]
    level: float
    horizon: int
    tests: int
    made: int

    def __len__(self) -> int:
        return len(self.changes)

    def __repr__(self) -> str:
        found = ", ".join(f"after window {change.after}" for change in self.changes) or "no change"
        return f"Drift({found}; any is false with probability {self.level:g} at most in {self.horizon} windows)"

    def _repr_html_(self) -> str:
        columns = ("change after window", "within windows", "p")
        rows = [(f"{c.after}", f"{c.first} to {c.last}", f"{c.p_value:.2g}") for c in self.changes]
        title = f"Changes: any is false with probability {self.level:g} at most in {self.horizon:,} windows"
        return table_html(title, columns, rows)


def comparisons_of(windows: int) -> list[tuple[int, int]]:
    """The tests of so many windows: (s, t) compares the s windows before the t-th with the s from it on."""
    return [(scale, at) for scale in _scales(windows) for at in range(scale, windows - scale + 1)]


def _scales(windows: int) -> list[int]:
    return [2**power for power in range(windows.bit_length()) if 2 ** (power + 1) <= windows]


def drift_between(
    windows: Sequence[int],
    spans: Callable[[int, int], Queryable],
    *,
    level: float,
    horizon: int | None,
    queries: Any,
    label: str | None,
) -> Drift:
    """The changes of a series.

    Args:
        windows: Their n indices, in order of time.
        spans: Of i and j: the records of windows i to j − 1 of them.
        level: See :class:`Drift`.
        horizon: See :class:`Drift`; None: n.
        queries: Where to compare; None: :func:`hushsum.comparison.places_within`.
        label: Of this class alone.

    Raises:
        ValueError: The level or the horizon is out of range, or see :meth:`hushsum.comparison.Comparison.regions`.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level: got {level!r}, expected a number between 0 and 1")
    most = len(windows) if horizon is None else horizon
    if horizon is None and most < 2:
        raise ValueError(f"drift needs releases of at least 2 windows, got {most}")
    if most < max(2, len(windows)):
        raise ValueError(f"horizon: got {most} windows, expected at least {max(2, len(windows))}: those of the series")
    made, number = comparisons_of(len(windows)), sum(most - 2 * scale + 1 for scale in _scales(most))
    alone = [
        Comparison(spans(at - scale, at), spans(at, at + scale)).p_value(queries, label=label) for scale, at in made
    ]
    adjusted, largest = [1.0] * len(made), 0.0
    for rank, index in enumerate(sorted(range(len(made)), key=alone.__getitem__)):
        largest = max(largest, min(1.0, alone[index] * (number - rank)))
        adjusted[index] = largest
    shown = sorted((made[i][0], adjusted[i], alone[i], made[i][1]) for i in range(len(made)) if adjusted[i] <= level)
    changes: list[Change] = []
    for scale, p_value, _, at in shown:
        change = Change(windows[at - 1], windows[at - scale], windows[at + scale - 1], p_value)
        if all(change.first > other.last or change.last < other.first for other in changes):
            changes.append(change)
    return Drift(tuple(sorted(changes, key=lambda each: each.after)), level, most, number, len(made))
