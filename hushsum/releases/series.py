"""A series of releases of one plan, and any span of its windows."""

import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hushsum.drift import Drift, drift_between
from hushsum.errors import ReleaseError
from hushsum.plan import Plan
from hushsum.privacy.events import CUMULATIVE, TUMBLING
from hushsum.privacy.exact_numbers import numeral
from hushsum.privacy.guarantee import CENTRAL, Guarantee
from hushsum.query import Counters, draws_of, span_draws
from hushsum.releases.query_methods import QueryMethods
from hushsum.releases.released import Release

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMED_MAX: Final = 8  # missing windows that an error names
_MISSING_MAX: Final = 10_000_000  # missing windows that a span lists
_SUM_MAX: Final = 2.0**62  # of a counter


@dataclass(frozen=True, eq=False)
class Span(QueryMethods):
    """The records of several windows, from their releases: made by :meth:`Series.between`.

    It answers what a :class:`hushsum.Release` answers, with the noise of all its windows counted, and costs no
    privacy. Spans that share windows share noise: :meth:`compare` then states an error that may be too large.

    Attributes:
        plan: Of the releases.
        first: Index of the first window.
        last: Index of the last window.
        missing: Indices of the windows between them that are left out.
        counters: As of a release.
        counts: As of a release.
        guarantee: That of each window.
        contributions: How many windows' noise each counter holds, or in modes ``secure`` and ``local`` how many
            clients'; None for reports, and of a cumulative sequence.
        steps: Of a cumulative sequence: of which step's release it is, and minus which (0: none).
    """

    plan: Plan
    first: int
    last: int
    missing: tuple[int, ...]
    counters: Counters
    counts: Counters
    guarantee: Guarantee
    contributions: float | None
    steps: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name in ("counters", "counts"):
            view = getattr(self, name).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    @property
    def windows(self) -> int:
        """How many windows its records are of."""
        if self.steps is not None:
            return self.steps[1] - self.steps[0]
        return self.last - self.first + 1 - len(self.missing)

    @property
    def period_ms(self) -> tuple[int, int]:
        """When its first window begins and its last ends, in ms since 1970 UTC."""
        return self.plan.window.start_ms(self.first), self.plan.window.end_ms(self.last)

    @property
    def draws(self) -> float | None:
        """The variance of the noise on one counter, in variances of one draw of the plan's noise; None for reports."""
        if self.steps is not None:
            return span_draws(self.plan, *self.steps)
        if self.contributions is None or self.plan.privacy.mode == CENTRAL:
            return self.contributions
        return draws_of(self.plan, self.contributions)

    def statement(self) -> str:
        """What it is computed from, what that costs, and how much noise it has, in plain words."""
        left_out = f" Windows {_listed(self.missing)} are missing." if self.missing else ""
        return (
            f"Computed from the releases of {_windows(self.windows)} from {self.first} to {self.last}, which have been "
            f"published: it spends no further budget. {self._noise()}{left_out} "
            f"Of {'all' if self.steps else 'each'} of them: {self.guarantee.statement(accounted=True)}"
        )

    def _noise(self) -> str:
        if self.plan.privacy.reports is not None:
            return "Reports add up: it has the errors of one window with as many reports."
        if self.draws is not None and self.plan.privacy.mode == CENTRAL:
            deviation = f"{math.sqrt(self.draws):.3g}"
            of = "the releases before and at its end" if self.steps else f"{_windows(self.windows)}, which add up"
            return f"Each counter has the noise of {of}: {deviation} standard deviations of one draw."
        return f"Each counter has the noise of {self.contributions:,.0f} clients of {_windows(self.windows)}."

    def __repr__(self) -> str:
        missing = f" without {_listed(self.missing)}" if self.missing else ""
        epsilon = numeral(self.guarantee.epsilon, up=True)
        each = "" if self.steps else " each"
        return f"Span({self.plan.name!r}, windows {self.first} to {self.last}{missing}, ε={epsilon}{each})"


class Series:
    """Releases of the windows of one plan, in order of time.

    Args:
        releases: One or more, of different windows, in any order.

    Raises:
        ReleaseError: They are of different plans, of no window, or two of one window.
        TypeError: One is no release, such as the path of its file.
        ValueError: There are none.
    """

    def __init__(self, releases: Iterable[Release]) -> None:
        self._releases: dict[int, Release] = {}
        for release in releases:
            _check_release(release)
            if release.window is None or release.kind not in {TUMBLING, CUMULATIVE}:
                raise ReleaseError(
                    f"a series has releases of windows: got one of kind {release.kind!r}; releases that `hushsum "
                    "release make` or hushsum.release makes have no window, use those of a service (`hushsum release "
                    "get`)"
                )
            first = next(iter(self._releases.values()), release)
            if release.plan.id != first.plan.id:
                raise ReleaseError(
                    f"a series is of one plan: got {release.plan.name!r} ({release.plan.hex_id[:12]}) and "
                    f"{first.plan.name!r} ({first.plan.hex_id[:12]})"
                )
            if release.window in self._releases:
                raise ReleaseError(f"a series has one release of a window: got two of window {release.window}")
            if release.first_window != first.first_window:
                raise ReleaseError(
                    "a series is of one cumulative sequence: got releases that begin at windows "
                    f"{release.first_window} and {first.first_window}"
                )
            self._releases[release.window] = release
        if not self._releases:
            raise ValueError("releases: got none, expected one or more")
        for before, after in pairwise(self):
            if before.step is not None and after.step is not None and before.step >= after.step:
                raise ReleaseError(
                    f"a series is of one cumulative sequence: got step {before.step} at window {before.window} and "
                    f"step {after.step} at window {after.window}"
                )

    @cached_property
    def windows(self) -> tuple[int, ...]:
        """The indices of its windows, in ascending order."""
        return tuple(sorted(self._releases))

    @property
    def plan(self) -> Plan:
        """The plan of all its releases."""
        return self._releases[self.windows[0]].plan

    def __len__(self) -> int:
        return len(self._releases)

    def __iter__(self) -> Iterator[Release]:
        """Its releases, in order of time."""
        return (self._releases[window] for window in self.windows)

    def between(self, t0: int | datetime, t1: int | datetime, *, skip_missing: bool = False) -> Span:
        """The records of the windows after ``t0`` through ``t1``, at no cost in privacy.

        The counters of the windows are added up, and so are the variances of their noise: of T windows of mode
        ``central`` it is √T times that of one. Reports have no noise that is added, and no more error. Of a cumulative
        sequence it is the difference of the releases at both ends, whose noise is counted with its covariance; those
        between are not needed.

        Args:
            t0: The last window before the span, by its index, or the moment at which it ends.
            t1: The last window of the span, likewise. Moments have a time zone.
            skip_missing: Whether windows without a release are left out; otherwise they are an error. Of a cumulative
                sequence an end is then that of the last release until then, or the beginning of the sequence.

        Raises:
            ReleaseError: A window has no release: it was withheld, or is not in the series.
            TypeError: ``t0`` or ``t1`` is neither an integer nor a datetime.
            ValueError: ``t1`` is not after ``t0``, a moment is not the end of a window, or more than 10,000,000 windows
                would be left out.
        """
        before, last = self._window(t0), self._window(t1)
        if last <= before:
            raise ValueError(f"t1: got {t1!r}, expected a window after t0 = {t0!r}")
        if (start := self._releases[self.windows[0]].first_window) is not None:
            return self._difference(max(before, start - 1), last, skip_missing=skip_missing)
        found = [self._releases[window] for window in self.windows if before < window <= last]
        absent = (window for window in range(before + 1, last + 1) if window not in self._releases)
        number = last - before - len(found)
        if number and not (skip_missing and found):
            named = _listed(tuple(islice(absent, _NAMED_MAX)), number)
            instead = "" if skip_missing else "; skip_missing=True leaves them out"
            series = f"the series, which has windows from {self.windows[0]} to {self.windows[-1]}"
            raise ReleaseError(f"no release of windows {named}: withheld, or not in {series}{instead}")
        if number > _MISSING_MAX:
            raise ValueError(
                f"t0: got {t0!r}, expected a window with at most {_MISSING_MAX:,} windows without a release after it: "
                f"got {number:,}, the series has windows from {self.windows[0]} to {self.windows[-1]}"
            )
        return self._sum(found, before + 1, last, tuple(absent))

    def consecutive(self) -> list[Span]:
        """What each of its releases adds.

        Of each window it is that window's records; of a cumulative sequence those since the last release of the series.
        """
        return [self._units(at, at + 1) for at in range(len(self))]

    def drift(
        self, *, level: float = 0.05, horizon: int | None = None, queries: Any = None, label: str | None = None
    ) -> Drift:
        """When what is collected changes, at a stated rate of false alarms and at no cost in privacy.

        The records of each window are taken as a sample, those of one population as long as nothing changes. Windows
        without a release are passed over. It makes about n·log2(n) tests, each of some ten milliseconds to a second.

        Args:
            level: The most of the probability that there is any false change, in (0, 1), over the whole horizon.
            horizon: How many windows that holds for: a series may be tested anew after each of its windows until then.
                None: those of this series, or the plan's horizon of a cumulative sequence.
            queries: Where to compare; places that were not chosen by looking at the releases. None: within the plan's
                bounds, as :meth:`hushsum.comparison.Comparison.regions` has them.
            label: Of this class alone.

        Raises:
            PlanError: The plan's answers are no densities, or it collects sets and there are no queries.
            ValueError: The level or the horizon is out of range, or the sketch has fewer than 8 rows or sets of rows.
        """
        most = self.plan.window.horizon if horizon is None else horizon
        return drift_between(self.windows, self._units, level=level, horizon=most, queries=queries, label=label)

    def plot(
        self,
        drift: Drift | None = None,
        *,
        places: Any = None,
        dark: bool = False,
    ) -> "Figure":
        """A figure over time: the records of each window, and densities at some places, with 95 % intervals.

        Args:
            drift: Changes to mark; None: none.
            places: (m, d) where densities are drawn, at most 7; None: the densest place, and where changes are largest.
            dark: Light lines on a dark ground.

        Returns:
            A matplotlib figure, which notebooks show; ``figure.savefig(path)`` writes it (extra ``analyst``).

        Raises:
            PlanError: It collects sets or models.
            ValueError: There are too many places.
        """
        from hushsum import panels, plots  # which are not loaded otherwise

        with plots.theme(dark=dark):
            return plots.draw(panels.over_time_panels(self, drift, places=places))

    def _units(self, first: int, last: int) -> Span:
        """Of its windows number ``first`` to ``last`` − 1."""
        start = self._releases[self.windows[0]]
        before = (start.window if start.first_window is None else start.first_window) or 0
        edges = [before - 1, *self.windows]
        return self.between(edges[first], edges[last], skip_missing=True)

    def _window(self, moment: int | datetime) -> int:
        if not isinstance(moment, datetime):
            try:
                return operator.index(moment)
            except TypeError as error:
                raise TypeError(f"got {moment!r}, expected a window index or a datetime with a time zone") from error
        schedule = self.plan.window
        if moment.tzinfo is None:
            raise ValueError(f"got {moment!r}, expected a moment with a time zone, such as UTC")
        milliseconds = round(moment.timestamp() * 1000)
        window = schedule.index_at(milliseconds) - 1
        if schedule.end_ms(window) != milliseconds:
            raise ValueError(f"got {moment.isoformat()}, expected the end of a window of {schedule.length_ms} ms")
        return window

    def _sum(self, found: list[Release], first: int, last: int, missing: tuple[int, ...]) -> Span:
        contributions: float | None = len(found)
        if self.plan.privacy.reports is not None:
            contributions = None
        elif self.plan.privacy.mode != CENTRAL:
            contributions = sum(release.submissions or 0 for release in found)
        arrays = _added([(1, release) for release in found])
        return Span(self.plan, first, last, missing, *arrays, self.plan.guarantee, contributions)

    def _difference(self, before: int, last: int, *, skip_missing: bool) -> Span:
        """Of a cumulative sequence, whose first window is ``before`` + 1 at the earliest."""
        start = self._releases[self.windows[0]].first_window or 0
        ends = [last] if before < start else [before, last]
        found = [max((each for each in self.windows if each <= end), default=None) for end in ends]
        absent = tuple(end for end, at in zip(ends, found, strict=True) if at != end)
        if absent and not skip_missing:
            instead = "; skip_missing=True takes the last release until then"
            raise ReleaseError(f"no release at the end of windows {_listed(absent)}: not in the series{instead}")
        releases = [self._releases[at] for at in found if at is not None]
        if found[-1] is None or (len(found) == 2 and found[0] == found[1]):
            raise ReleaseError(f"no release from window {before} to {last} tells what came between")
        subtracted = releases[0] if len(releases) == 2 else None
        steps = (0 if subtracted is None else subtracted.step or 0), releases[-1].step or 0
        arrays = _added([(1, releases[-1]), *([] if subtracted is None else [(-1, subtracted)])])
        first = start if subtracted is None else (subtracted.window or 0) + 1
        return Span(self.plan, first, releases[-1].window or 0, (), *arrays, self.plan.guarantee, None, steps)

    def __repr__(self) -> str:
        windows = self.windows
        return f"Series({self.plan.name!r}, {_windows(len(windows))} from {windows[0]} to {windows[-1]})"


def _added(terms: list[tuple[int, Release]]) -> tuple[Counters, Counters]:
    """Counters and counts of releases, each times its sign; of one release its own, which are read-only.

    Raises:
        ReleaseError: A sum could exceed 64 bits.
    """
    if [sign for sign, _ in terms] == [1]:
        return terms[0][1].counters, terms[0][1].counts
    arrays = [(release.counters, release.counts) for _, release in terms]
    sizes = [max(max(float(each.max(initial=0)), -float(each.min(initial=0))) for each in pair) for pair in arrays]
    if sum(sizes) >= _SUM_MAX:
        raise ReleaseError("the sum of the counters of these windows exceeds 64 bits")
    (sign, first), *others = terms
    counters, counts = sign * first.counters, sign * first.counts
    for sign, release in others:
        add = np.add if sign > 0 else np.subtract
        add(counters, release.counters, out=counters)
        add(counts, release.counts, out=counts)
    return counters, counts


def _windows(number: int) -> str:
    return f"{number:,} window{'' if number == 1 else 's'}"


def _listed(windows: tuple[int, ...], number: int | None = None) -> str:
    """The first of so many windows; None: there are no others."""
    number = len(windows) if number is None else number
    shown = ", ".join(map(str, windows[:_NAMED_MAX]))
    return shown + (f" and {number - _NAMED_MAX:,} more" if number > _NAMED_MAX else "")


def _check_release(release: object) -> None:
    """Raises TypeError for anything else."""
    if not isinstance(release, Release):
        raise TypeError(f"releases: got {release!r}, expected releases; read a file with hushsum.load(path)")
