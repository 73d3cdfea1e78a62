"""What figures show: the panels of a release, of two releases compared, with every value, interval and label.

matplotlib draws them (:mod:`hushsum.plots`), and altair as pages (:mod:`hushsum.plot_pages`). Nothing here costs
privacy: panels are computed from releases alone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from statistics import NormalDist
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from hushsum.canonical import real_text
from hushsum.comparison import Comparison, places_within
from hushsum.drift import Drift
from hushsum.errors import PlanError
from hushsum.families import Answer, SetRecords
from hushsum.plan import Plan
from hushsum.privacy.exact_numbers import numeral
from hushsum.privacy.relations import CLIENT
from hushsum.query import Queryable, count_std_error
from hushsum.statistics import Statistics

Floats = npt.NDArray[np.float64]
#: Densities at (m, d) points: (m,).
Density = Callable[[Floats], Floats]

#: What a figure of a release shows.
KINDS: Final = ("density", "pairs", "classes", "cdf")
# Okabe and Ito's colours are told apart without colour vision.
RELEASED_COLOUR: Final = "#d55e00"
#: Of classes, and the last of all others together.
CLASS_COLOURS: Final = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#999999")
#: Where a sketch has one row.
NO_ERROR: Final = "no standard error: the sketch has one row"
#: Places that are marked.
NAMED: Final = "more than noise explains (5 % in all)"
CONFIDENCE: Final = 0.95

_PLANE_POINTS: Final = 52  # along each side; in a cube of 255 they stand 5 apart
_LINE_POINTS: Final = 256
_STARTS: Final = 512
_SEARCH_ROUNDS: Final = 3
_TITLES: Final = {"classes": "Classes of", "cdf": "Distribution of"}
_PAIRS_MAX: Final = 5  # columns of a grid of pairs
_PAIR_POINTS: Final = 32
_CLASSES_MAX: Final = 7  # that have a colour; others are drawn as one
_CONTOURS: Final = 5
_CHANGES_MAX: Final = 3  # whose largest differences are drawn
_NOTHING: Final = np.zeros(0)


@dataclass(frozen=True)
class View:
    """Where a figure cuts through the space of records.

    Attributes:
        columns: The one or two columns that vary, the line's first.
        held: d coordinates: where the columns that do not vary are held, and where the line crosses the plane.
        is_highest: Whether that place was chosen because its answer is the highest. Such an answer is likely too high:
            intervals hold for places that were not chosen by looking at answers, and figures say so.
    """

    columns: tuple[int, ...]
    held: tuple[float, ...]
    is_highest: bool = False


@dataclass(frozen=True, eq=False)
class Curve:
    """Values along the x of a :class:`LinePanel`, with 95 % intervals.

    Attributes:
        name: For the legend.
        value: (m,); NaN where there is none.
        low: (m,) the lower ends of the intervals; NaN where they are not known.
        high: (m,) the upper ends.
        colour: As ``#rrggbb``.
    """

    name: str
    value: Floats
    low: Floats
    high: Floats
    colour: str = RELEASED_COLOUR


@dataclass(frozen=True, eq=False)
class LinePanel:
    """Curves along one axis.

    Attributes:
        title: Above.
        x_label: Name and unit of x.
        y_label: What the values are.
        x: (m,).
        points: (m, d) the records at which a release was asked; empty where it was not.
        curves: One or more.
        marked: (k,) the numbers of the x at which the first curve is marked, in ascending order.
        marked_as: What the marks mean.
        is_time: Whether x are moments, in ms since 1970 UTC.
        changes: Of each change the x where it is, and from where to where it may be.
    """

    title: str
    x_label: str
    y_label: str
    x: Floats
    points: Floats
    curves: tuple[Curve, ...]
    marked: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    marked_as: str = NAMED
    is_time: bool = False
    changes: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True, eq=False)
class PlanePanel:
    """Values over a grid of s × s points of two columns.

    Attributes:
        title: What the values are.
        where: At which values the other columns are held; empty where there are none.
        x_label: Name and unit of x.
        y_label: Name and unit of y.
        label: Of the scale of colours.
        x: (s,).
        y: (s,).
        points: (s², d) the records at which a release was asked, x first.
        value: (s²,) the values; NaN where they are blank.
        half: (s²,) half the widths of their 95 % intervals; NaN where they are not known.
        crossing: The y at which the line of the panel below crosses.
        levels: Of contours, in ascending order.
        named: (k,) the numbers of the points that are outlined.
        signed: Whether colours are those of a difference, symmetric around 0.
    """

    title: str
    where: str
    x_label: str
    y_label: str
    label: str
    x: Floats
    y: Floats
    points: Floats
    value: Floats
    half: Floats
    crossing: float
    levels: Floats = field(default_factory=lambda: _NOTHING)
    named: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    signed: bool = False


@dataclass(frozen=True, eq=False)
class BarPanel:
    """A bar for each name, with half the width of its interval.

    Attributes:
        title: Above.
        y_label: What the values are.
        names: k of them.
        value: (k,).
        half: (k,).
        colours: k, as ``#rrggbb``.
    """

    title: str
    y_label: str
    names: tuple[str, ...]
    value: Floats
    half: Floats
    colours: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class StepPanel:
    """Values of cells between edges, with 95 % intervals.

    Attributes:
        x_label: Name and unit of x.
        y_label: What the values are.
        edges: (k + 1,).
        value: (k,).
        low: (k,).
        high: (k,).
    """

    x_label: str
    y_label: str
    edges: Floats
    value: Floats
    low: Floats
    high: Floats


Panel = LinePanel | PlanePanel | BarPanel | StepPanel


@dataclass(frozen=True, eq=False)
class Panels:
    """A figure: its title, and its panels, row by row from above.

    Attributes:
        kind: Of :data:`KINDS`, ``difference`` or ``time``.
        title: One line or more.
        rows: From left to right; None is an empty place.
    """

    kind: str
    title: str
    rows: tuple[tuple[Panel | None, ...], ...]


def refuse_undrawable(plan: Plan) -> None:
    """Refuses a plan whose answers are no density over the columns of its records.

    Raises:
        PlanError: It collects sets, or is of the paired family.
    """
    if isinstance(plan.record, SetRecords):
        instead = "use hushsum query --at 3,17,29"
        raise PlanError("record.kind", "set", f"'vector': sets cannot be plotted; {instead}")
    if plan.family.name == "paired":
        instead = "use hushsum query, or hushsum.estimators.LinearRegressor.from_release(release)"
        raise PlanError("sketch.family", "paired", f"a family with densities: this one answers with losses; {instead}")


def densest_view(release: Queryable, columns: Sequence[int] = (0, 1)) -> View:
    """A view through the place where the released density is highest, found column by column.

    Args:
        release: To be shown.
        columns: One or two different columns; a plan of one column has one.

    Raises:
        PlanError: See :func:`refuse_undrawable`.
        ValueError: Columns that the plan does not have.
    """
    return _highest_view(release.plan, lambda points: release.kernel_sum(points).value, columns)


def common_view(comparison: Comparison, columns: Sequence[int] = (0, 1)) -> View:
    """A view through the place where both densities together are highest, each weighted by how well it is known.

    If nothing differs, errors of that sum and of the difference are uncorrelated: looking at the one does not choose
    places where the other is large by chance. Arguments and errors are those of :func:`densest_view`.
    """

    def both(points: Floats) -> Floats:
        found = [each.density(points) for each in (comparison.first, comparison.second)]
        weights = [1.0 / max(float(np.nanmedian(np.square(each.std_error))), 1e-300) for each in found]
        return (weights[0] * found[0].value + weights[1] * found[1].value) / sum(weights)

    return replace(_highest_view(comparison.first.plan, both, columns), is_highest=False)


def _highest_view(plan: Plan, values: Density, columns: Sequence[int]) -> View:
    refuse_undrawable(plan)
    dim = plan.vectors.dim
    chosen = tuple(columns)[:dim]
    if not 1 <= len(chosen) <= 2 or len(set(chosen)) != len(chosen) or not all(0 <= c < dim for c in chosen):
        raise ValueError(f"columns: got {tuple(columns)}, expected one or two different ones from 0 to {dim - 1}")
    lower, upper = _bounds(plan)
    # Any points will do to start from, if they are the same each time: the additive recurrence of the golden mean in d
    # dimensions (Roberts 2018), whose points spread evenly.
    steps = np.modf(_golden_mean(dim) ** -np.arange(1.0, dim + 1))[0]
    starts = lower + np.modf(0.5 + np.arange(_STARTS)[:, None] * steps)[0] * (upper - lower)
    place = starts[int(np.argmax(values(starts)))]
    for _ in range(_SEARCH_ROUNDS):
        for column in range(dim):
            at = np.repeat(place[None, :], _PLANE_POINTS, axis=0)
            at[:, column] = np.linspace(lower[column], upper[column], _PLANE_POINTS)
            place = at[int(np.argmax(values(at)))]
    return View(chosen, tuple(place.tolist()), is_highest=True)


def default_kind(release: Queryable) -> str:
    """What :func:`release_figure` draws of a release, of :data:`KINDS`.

    ``classes`` where records have labels, ``cdf`` of a histogram of one column, ``density`` of one or two columns, and
    ``pairs`` of more.

    Raises:
        PlanError: See :func:`refuse_undrawable`.
    """
    plan = release.plan
    refuse_undrawable(plan)
    if plan.classes:
        return "classes"
    if plan.vectors.dim == 1 and plan.family.name == "partition":
        try:
            Statistics(release)
        except PlanError:  # cells collide, or are of reports
            return "density"
        return "cdf"
    return "density" if plan.vectors.dim <= 2 else "pairs"


class Windows(Protocol):
    """What figures over time read of a :class:`hushsum.Series`, which uses them in turn."""

    @property
    def plan(self) -> Plan:
        """Of all its releases."""
        ...

    @property
    def windows(self) -> tuple[int, ...]:
        """Their indices, in ascending order."""
        ...

    def consecutive(self) -> Sequence[Queryable]:
        """What each release adds."""
        ...

    def between(self, t0: int, t1: int, *, skip_missing: bool = False) -> Queryable:
        """The records of the windows after ``t0`` through ``t1``."""
        ...


def release_panels(
    release: Queryable,
    *,
    kind: str | None = None,
    columns: Sequence[int | str] | None = None,
    title: str | None = None,
) -> Panels:
    """The panels of a figure of a release; arguments and errors are those of :func:`hushsum.plots.release_figure`."""
    refuse_undrawable(release.plan)
    kind = kind or default_kind(release)
    if kind not in KINDS:
        raise ValueError(f"kind: got {kind!r}, expected {', '.join(KINDS)}")
    chosen = _checked_columns(release.plan, columns)
    if kind == "density":
        chosen = chosen[:2] if columns is None else chosen
        return density_panels(release, view=densest_view(release, chosen), title=title)
    make = {"pairs": _pairs, "classes": _classes, "cdf": _distributions}[kind]
    return make(release, chosen, title or _title(release, kind))


def density_panels(release: Queryable, *, view: View, title: str | None = None) -> Panels:
    """The released density over a plane, where the view has two columns, and along a line.

    Raises:
        PlanError: See :func:`refuse_undrawable`.
    """
    refuse_undrawable(release.plan)
    line = (_density_line(release, view),)
    rows = ((_density_plane(release, view),), line) if len(view.columns) == 2 else (line,)
    return Panels("density", title or _title(release), rows)


def difference_panels(comparison: Comparison, *, view: View, title: str | None = None) -> Panels:
    """The difference of two released densities over a plane, where the view has two columns, and along a line.

    Raises:
        PlanError: See :func:`refuse_undrawable`.
        ValueError: The sketch has one row, and so no standard error.
    """
    refuse_undrawable(comparison.first.plan)
    tested = f"both are samples of one population: p = {comparison.p_value():.2g}"
    line = (_difference_line(comparison, view),)
    rows = ((_difference_plane(comparison, view),), line) if len(view.columns) == 2 else (line,)
    return Panels("difference", f"{title or _difference_title(comparison)}\n{tested}", rows)


def over_time_panels(
    series: Windows, drift: Drift | None = None, *, places: npt.ArrayLike | None = None, title: str | None = None
) -> Panels:
    """The records of each window of a series, and densities at some places, with 95 % intervals of each.

    Args:
        series: A :class:`hushsum.Series`.
        drift: Its changes, which are marked; None: none.
        places: (m, d) where; None: the densest place of all windows, and for up to three changes the place where the
            windows before and after it differ most.
        title: Instead of the plan's name, the number of windows and the changes.

    Raises:
        PlanError: See :func:`refuse_undrawable`.
        ValueError: There are more than 7 places.
    """
    spans, plan = series.consecutive(), series.plan
    refuse_undrawable(plan)
    whole = series.between(series.windows[0] - 1, series.windows[-1], skip_missing=True)
    chosen = (
        _places_over_time(series, whole, drift) if places is None else np.atleast_2d(np.asarray(places, np.float64))
    )
    if not 1 <= len(chosen) <= _CLASSES_MAX:
        raise ValueError(f"places: got {len(chosen)}, expected 1 to {_CLASSES_MAX}")
    ends = [span.period_ms or (0, 0) for span in spans]
    at = np.array([(start + end) / 2 for start, end in ends])
    # Between the window that a change is after and the next one; and from the end of the first window that is not like
    # the others to the start of the last of them.
    schedule = plan.window
    changes = tuple(
        (float(schedule.end_ms(each.after)), float(schedule.start_ms(each.first)), float(schedule.end_ms(each.last)))
        for each in (() if drift is None else drift.changes)
    )
    found = [span.density(chosen) for span in spans]
    curves = []
    for number, (place, colour) in enumerate(zip(chosen, CLASS_COLOURS[4:] + CLASS_COLOURS[:4], strict=False)):
        low, high = (np.array(each) for each in zip(*[_ends(one, number) for one in found], strict=True))
        name = _held_text(plan, View((), tuple(place.tolist())), without=())
        curves.append(Curve(name, np.array([one.value[number] for one in found]), low, high, colour))
    reach = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    counts = np.array([span.count for span in spans])
    half = reach * np.array([count_std_error(plan, draws=span.draws, counters=span.counters) for span in spans])
    records = Curve(f"released ({_promise(spans[0])})", counts, counts - half, counts + half)
    label, density = "middle of the window (UTC)", f"density: mean kernel ({_kernel(plan)})"
    looked = ", at places chosen for high answers and large changes" if places is None else ""
    title_of = f"density, with 95 % intervals of each{looked}"
    shown = (("records of each window", "records", (records,)), (title_of, density, tuple(curves)))
    rows = tuple(
        (LinePanel(name, label, values, at, _NOTHING, drawn, is_time=True, changes=changes),)
        for name, values, drawn in shown
    )
    return Panels("time", title or _over_time_title(series, whole, drift), rows)


def _ends(answer: Answer, number: int) -> tuple[float, float]:
    low, high = answer.interval(CONFIDENCE)
    return float(low[number]), float(high[number])


def _places_over_time(series: Windows, whole: Queryable, drift: Drift | None) -> Floats:
    places = [np.array(densest_view(whole, (0,)).held)]
    for change in sorted(() if drift is None else drift.changes, key=lambda each: each.p_value)[:_CHANGES_MAX]:
        before = series.between(change.first - 1, change.after, skip_missing=True)
        after = series.between(change.after, change.last, skip_missing=True)
        asked = places_within(series.plan)
        places.append(asked[int(np.argmax(np.abs(Comparison(after, before).density(asked).value)))])
    return np.unique(np.array(places), axis=0)


def _over_time_title(series: Windows, whole: Queryable, drift: Drift | None) -> str:
    told = ""
    if drift is not None:
        number = f"{len(drift)} change{'' if len(drift) == 1 else 's'}" if len(drift) else "no change"
        told = (
            f"\n{number} found; that any is false in {drift.horizon:,} windows has probability {drift.level:g} at most"
        )
    return f"{series.plan.name} over time\n{_window(whole)}{told}"


def _pairs(release: Queryable, columns: Sequence[int], title: str) -> Panels:
    plan = release.plan
    held = densest_view(release, columns[:1]).held
    through = f"through {_held_text(plan, View((), held), without=())}, chosen for its high answer"

    def panel(x: int, y: int) -> Panel:
        if x == y:
            return replace(_density_line(release, View((x,), held)), title="")
        return _density_plane(release, View((x, y), held), _PAIR_POINTS, blank=True)

    rows = tuple(
        tuple(panel(x, y) if at <= row else None for at, x in enumerate(columns)) for row, y in enumerate(columns)
    )
    blank = "blank where the density is within two standard errors of 0"
    return Panels("pairs", f"{title}\n{through}; {blank}", rows)


def _classes(release: Queryable, columns: Sequence[int], title: str) -> Panels:
    plan, column = release.plan, columns[0]
    if not plan.classes:
        raise PlanError("record.classes", "none", "a plan with classes")
    of_class = [
        (
            label,
            release.count_of(label),
            count_std_error(plan, label=label, draws=release.draws, counters=release.counters),
        )
        for label in plan.classes
    ]
    ranked = sorted(of_class, key=lambda each: -each[1])
    named, others = ranked[:_CLASSES_MAX], ranked[_CLASSES_MAX:]
    reach = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    # The largest of many are likely too large: then all of them together are within their intervals.
    bars_reach = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2 / len(plan.classes)) if others else reach
    drawn = [(label, value, error) for label, value, error in named]
    if others:
        errors = math.sqrt(math.fsum(error**2 for *_, error in others))
        drawn.append((f"{len(others)} others", math.fsum(value for _, value, _ in others), errors))
    names, values, errors_of = zip(*drawn, strict=True)
    colours = tuple([*CLASS_COLOURS[: len(named)], *CLASS_COLOURS[-1:]][: len(drawn)])
    intervals = f"{'simultaneous ' if others else ''}95 % intervals"
    bars = BarPanel(
        f"records of each class, with {intervals}",
        "records",
        names,
        np.array(values),
        bars_reach * np.array(errors_of),
        colours,
    )
    shares = _shares(release, column, [label for label, *_ in named], colours)
    return Panels("classes", title, ((bars,), (shares,)))


def _shares(release: Queryable, column: int, labels: Sequence[str], colours: Sequence[str]) -> LinePanel:
    plan, view = release.plan, densest_view(release, (column,))
    points = _line(plan, view)
    reach = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    total = release.kernel_sum(points)
    known = total.value > 2.0 * total.std_error  # elsewhere nearly all is noise, and a share of it says nothing
    curves = []
    for label, colour in zip(labels, colours, strict=False):
        part = release.kernel_sum(points, label=label)
        share = np.where(known, part.value / np.where(known, total.value, 1.0), np.nan)
        # To first order, as if the errors of a class and of the other classes were independent.
        rest_error = np.sqrt(np.maximum(np.square(total.std_error) - np.square(part.std_error), 0.0))
        error = reach * np.hypot((1.0 - share) * part.std_error, share * rest_error)
        half = (error + (0.0 if part.bias is None else part.bias)) / np.where(known, total.value, np.nan)
        curves.append(Curve(label, share, share - half, share + half, colour))
    held = _held_text(plan, view, without=(column,))
    where = f", at {held}" if held else ""
    return LinePanel(
        f"shares of the classes along {_name(plan, column)}{where}, with 95 % intervals",
        _axis_label(plan, column) + ("" if known.all() else "\nno line where nearly all is noise"),
        "share of the kernel sum",
        points[:, column],
        points,
        tuple(curves),
    )


def _distributions(release: Queryable, columns: Sequence[int], title: str) -> Panels:
    statistics = Statistics(release)
    steps, lines = [], []
    for column in columns:
        histogram, below = statistics.histogram(column), statistics.cdf(column=column)
        label = _axis_label(release.plan, column)
        interval = histogram.counts.interval(CONFIDENCE)
        steps.append(StepPanel(label, "records in a cell", histogram.edges, histogram.counts.value, *interval))
        curve = Curve("released, monotone", below.monotone(), *below.shares.interval(CONFIDENCE))
        lines.append(LinePanel("", label, "share of the records below", below.points, _NOTHING, (curve,)))
    return Panels("cdf", title, (tuple(steps), tuple(lines)))


def _density_plane(release: Queryable, view: View, side: int = _PLANE_POINTS, *, blank: bool = False) -> PlanePanel:
    """With ``blank`` without the values that are within two standard errors of 0."""
    plan = release.plan
    answer = release.density(points := _plane(plan, view, side))
    levels = answer.value.max() * np.arange(1, _CONTOURS + 1) / (_CONTOURS + 1)
    # Evenly between 0 and the highest, where that is more than two standard errors.
    levels = levels[levels > 2.0 * answer.std_error.max()]
    label = f"density: mean kernel ({_kernel(plan)})\nsquare-root colour scale"
    plane = _plane_panel(plan, view, points, answer, ("released density", label))
    seen = np.where(answer.value < 2.0 * answer.std_error, np.nan, answer.value) if blank else answer.value
    return replace(plane, levels=levels, value=seen)


def _difference_plane(comparison: Comparison, view: View) -> PlanePanel:
    plan = comparison.first.plan
    answer, named = comparison.density(points := _plane(plan, view)), comparison.regions(points).at
    texts = ("difference of the densities", "first minus second\nlinear colour scale")
    return replace(_plane_panel(plan, view, points, answer, texts), named=np.sort(named), signed=True)


def _plane_panel(plan: Plan, view: View, points: Floats, answer: Answer, texts: tuple[str, str]) -> PlanePanel:
    x, y = view.columns
    low, high = answer.interval(CONFIDENCE)
    held = _held_text(plan, view, without=view.columns)
    return PlanePanel(
        texts[0],
        f"  ({held})" if held else "",
        _axis_label(plan, x),
        _axis_label(plan, y),
        texts[1],
        np.unique(points[:, x]),
        np.unique(points[:, y]),
        points,
        answer.value,
        (high - low) / 2,
        view.held[y],
    )


def _density_line(release: Queryable, view: View) -> LinePanel:
    plan, column = release.plan, view.columns[0]
    answer = release.density(points := _line(plan, view))
    unknown = f", {NO_ERROR}" if np.isnan(answer.std_error).all() else ""
    curve = Curve(f"released ({_promise(release)}){unknown}", answer.value, *answer.interval(CONFIDENCE))
    held = _held_text(plan, view, without=(column,))
    chosen = ", chosen for its high answer, which is likely too high" if view.is_highest else ""
    title = f"along the dashed line: {held}{chosen}" if held else "density"
    return LinePanel(title, _axis_label(plan, column), "density", points[:, column], points, (curve,))


def _difference_line(comparison: Comparison, view: View) -> LinePanel:
    plan, column = comparison.first.plan, view.columns[0]
    answer = comparison.density(points := _line(plan, view))
    curve = Curve("first minus second", answer.value, *answer.interval(CONFIDENCE))
    held = _held_text(plan, view, without=(column,))
    what = "difference of the densities"
    title = "along the dashed line: " + held if held else what
    marked = np.sort(comparison.regions(points).at)
    return LinePanel(title, _axis_label(plan, column), what, points[:, column], points, (curve,), marked)


def points_drawn(view: View) -> int:
    """At how many points a figure evaluates the density, and the exact one where it is given."""
    return _LINE_POINTS + (_PLANE_POINTS**2 if len(view.columns) == 2 else 0)


def _checked_columns(plan: Plan, columns: Sequence[int | str] | None) -> tuple[int, ...]:
    dim, names = plan.vectors.dim, list(plan.collection.names)
    asked = range(min(dim, _PAIRS_MAX)) if columns is None else columns
    chosen = tuple(names.index(each) if each in names else each for each in asked)
    numbers = tuple(int(each) for each in chosen if isinstance(each, int | np.integer) and 0 <= each < dim)
    if not 1 <= len(chosen) <= _PAIRS_MAX or len(set(numbers)) < len(chosen):
        known = ", ".join(names) or f"0 to {dim - 1}"
        raise ValueError(f"columns: got {tuple(asked)}, expected 1 to {_PAIRS_MAX} different ones of {known}")
    return numbers


def _difference_title(comparison: Comparison) -> str:
    sides = (
        " ".join(part for part in (each.plan.name, _window(each), f"({_promise(each)})") if part)
        for each in (comparison.first, comparison.second)
    )
    return "\nminus ".join(sides)


def _plane(plan: Plan, view: View, side: int = _PLANE_POINTS) -> Floats:
    lower, upper = _bounds(plan)
    x, y = view.columns
    points = np.tile(np.array(view.held), (side * side, 1))
    points[:, x] = np.tile(np.linspace(lower[x], upper[x], side), side)
    points[:, y] = np.repeat(np.linspace(lower[y], upper[y], side), side)
    return points


def _line(plan: Plan, view: View) -> Floats:
    lower, upper = _bounds(plan)
    column = view.columns[0]
    points = np.tile(np.array(view.held), (_LINE_POINTS, 1))
    points[:, column] = np.linspace(lower[column], upper[column], _LINE_POINTS)
    return points


def _golden_mean(dim: int) -> float:
    """The positive root of x^(dim + 1) = x + 1, by fixed-point iteration."""
    root = 2.0
    for _ in range(64):
        root = (1.0 + root) ** (1.0 / (dim + 1))
    return root


def _bounds(plan: Plan) -> tuple[Floats, Floats]:
    return (
        np.array([float(bound) for bound in plan.vectors.lower]),
        np.array([float(bound) for bound in plan.vectors.upper]),
    )


def _name(plan: Plan, column: int) -> str:
    return plan.collection.names[column] if plan.collection.names else f"x{column}"


def _axis_label(plan: Plan, column: int) -> str:
    unit = plan.collection.units[column] if plan.collection.units else ""
    return f"{_name(plan, column)} ({unit})" if unit else _name(plan, column)


def _held_text(plan: Plan, view: View, *, without: Sequence[int]) -> str:
    held = [
        f"{_name(plan, column)} = {view.held[column]:.4g}"
        for column in range(plan.vectors.dim)
        if column not in without
    ]
    return ", ".join(held[:4]) + (f" and {len(held) - 4} more fixed" if len(held) > 4 else "")


def _kernel(plan: Plan) -> str:
    fields = plan.family.to_fields()
    name = fields.get("kernel", plan.family.name)
    return f"{name}, bandwidth {fields['bandwidth']}" if "bandwidth" in fields else str(name)


def _promise(release: Queryable) -> str:
    return f"ε = {real_text(release.guarantee.epsilon)}"


def _title(release: Queryable, kind: str = "density") -> str:
    delta = release.guarantee.delta
    spent = _promise(release) + (f", δ = {numeral(delta, up=True)}" if delta else "")
    promise = f"{spent} per {release.guarantee.unit}{_each(release)}"
    rounded = float(f"{max(release.count, 0.0):.3g}")
    parts = [f"about {rounded:,.0f} records", promise, _window(release)]
    return f"{_TITLES.get(kind, 'Density of')} {release.plan.name}\n" + "  ·  ".join(part for part in parts if part)


def _each(release: Queryable) -> str:
    """A client has records in several windows, each of which has its own ε; a record is in one."""
    alone = release.plan.window.horizon is None
    return " and window" if alone and release.windows > 1 and release.guarantee.unit == CLIENT else ""


def _window(release: Queryable) -> str:
    if release.period_ms is None:
        return ""
    start, end = (datetime.fromtimestamp(moment / 1000, UTC) for moment in release.period_ms)
    day, several = "%Y-%m-%d ", f"{release.windows:,} windows, " if release.windows > 1 else "window "
    return f"{several}{start:{day}%H:%M} to {end:{'' if start.date() == end.date() else day}%H:%M} UTC"
