"""Figures of a release: densities with error bands, pairs of columns, classes, distributions (extra ``analyst``).

Nothing here costs privacy: every figure is drawn from the release alone, unless its caller hands in exact values too.
matplotlib is imported by the functions that draw, never by ``import hushsum``.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from io import BytesIO
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.canonical import real_text
from hushsum.comparison import Comparison
from hushsum.errors import PlanError
from hushsum.families import Answer, SetRecords
from hushsum.plan import Plan
from hushsum.privacy.exact_numbers import numeral
from hushsum.query import Queryable, count_std_error
from hushsum.statistics import Statistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec
    from matplotlib.image import AxesImage

Floats = npt.NDArray[np.float64]
#: Densities at (m, d) points: (m,).
Density = Callable[[Floats], Floats]

_PLANE_POINTS: Final = 52  # along each side; in a cube of 255 they stand 5 apart
_LINE_POINTS: Final = 256
_STARTS: Final = 512
_SEARCH_ROUNDS: Final = 3
_CONFIDENCE: Final = 0.95
#: What :func:`release_figure` draws.
KINDS: Final = ("density", "pairs", "classes", "cdf")
_TITLES: Final = {"classes": "Classes of", "cdf": "Distribution of"}
_PAIRS_MAX: Final = 5  # columns of a grid of pairs
_PAIR_POINTS: Final = 32
_LABELS_MAX: Final = 60  # characters of all labels, beside each other
_CLASSES_MAX: Final = 7  # that have a colour; others are drawn as one
_CONTOURS: Final = 5
_MAP: Final = "viridis"  # readable without colour vision, and in grey
# Okabe and Ito's, without black and with a grey for all others: told apart without colour vision.
_CLASS_COLOURS: Final = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#999999")
_DIFFERENCE_MAP: Final = "PuOr_r"  # orange above 0, purple below: told apart without colour vision
_NO_ERROR: Final = "no standard error: the sketch has one row"
_NAMED: Final = "more than noise explains (5 % in all)"
_RELEASED: Final = "#d55e00"  # Okabe and Ito's vermilion: told from black without colour vision


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


def release_figure(
    release: Queryable,
    *,
    kind: str | None = None,
    columns: Sequence[int | str] | None = None,
    dark: bool = False,
    title: str | None = None,
) -> "Figure":
    """A figure of a release: what :meth:`hushsum.Release.plot` gives.

    * ``density``: along a line with its 95 % band, and over a plane of two columns as a heat map with contours beside
      the half width of the interval (:func:`density_figure`).
    * ``pairs``: of up to five columns, the density along each, and over each pair, through the densest place.
    * ``classes``: the number of records of each class with its 95 % interval, and the share of each class along a
      column: its kernel sum over that of all, with intervals as if the errors of classes were independent.
    * ``cdf``: of cells of a grid, each column's histogram and the share of records below, with 95 % intervals.

    Args:
        release: To be drawn.
        kind: Of :data:`KINDS`; None: :func:`default_kind`.
        columns: Which to draw, by names or numbers; None: the first two, or for ``pairs`` and ``cdf`` the first five.
        dark: Light lines on a dark ground.
        title: Instead of the plan's name and its promise.

    Raises:
        PlanError: See :func:`refuse_undrawable`; or the plan has no classes, or no cells of a grid.
        ValueError: There is no such kind, or no such columns.
    """
    refuse_undrawable(release.plan)
    kind = kind or default_kind(release)
    if kind not in KINDS:
        raise ValueError(f"kind: got {kind!r}, expected {', '.join(KINDS)}")
    with theme(dark=dark):
        chosen = _checked_columns(release.plan, columns)
        if kind == "density":
            chosen = chosen[:2] if columns is None else chosen
            return density_figure(release, view=densest_view(release, chosen), title=title)
        draw = {"pairs": _pairs_figure, "classes": _classes_figure, "cdf": _cdf_figure}[kind]
        return draw(release, chosen, title or _title(release, kind))


@contextmanager
def theme(*, dark: bool) -> Iterator[None]:
    """In this context figures are made with dark lines on a light ground, or with light lines on a dark one."""
    from matplotlib.style import context

    with context("dark_background" if dark else "default"):
        yield


def new_figure(size: tuple[float, float]) -> "Figure":
    """An empty figure of this size, in inches, which notebooks show as a picture.

    IPython shows matplotlib's own figures as pictures only where pyplot has been imported, and as text otherwise.
    """
    return _notebook_figure()(figsize=size, dpi=120, layout="constrained")


@cache
def _notebook_figure() -> "type[Figure]":
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            """The picture: IPython calls this for the value of a cell."""
            picture = BytesIO()
            self.savefig(picture, format="png")
            return picture.getvalue()

        def __reduce__(self) -> tuple[Any, ...]:
            """A copy and a pickle are matplotlib's own figure: a class of a function has no address."""
            return Figure.__new__, (Figure,), self.__getstate__()

    return NotebookFigure


def _checked_columns(plan: Plan, columns: Sequence[int | str] | None) -> tuple[int, ...]:
    dim, names = plan.vectors.dim, list(plan.collection.names)
    asked = range(min(dim, _PAIRS_MAX)) if columns is None else columns
    chosen = tuple(names.index(each) if each in names else each for each in asked)
    numbers = tuple(int(each) for each in chosen if isinstance(each, int | np.integer) and 0 <= each < dim)
    if not 1 <= len(chosen) <= _PAIRS_MAX or len(set(numbers)) < len(chosen):
        known = ", ".join(names) or f"0 to {dim - 1}"
        raise ValueError(f"columns: got {tuple(asked)}, expected 1 to {_PAIRS_MAX} different ones of {known}")
    return numbers


def _pairs_figure(release: Queryable, columns: Sequence[int], title: str) -> "Figure":
    plan, number = release.plan, len(columns)
    held = densest_view(release, columns[:1]).held
    figure = new_figure((2.6 * number + 1.5, 2.5 * number + 1.0))
    through = f"through {_held_text(plan, View((), held), without=())}, chosen for its high answer"
    figure.suptitle(f"{title}\n{through}; blank where the density is within two standard errors of 0", fontsize=12)
    axes = figure.subplots(number, number, squeeze=False)
    maps = []
    for row, y in enumerate(columns):
        for at, x in enumerate(columns):
            axis = axes[row, at]
            if at > row:
                axis.set_axis_off()
            elif at == row:
                _draw_line(axis, release, None, View((x,), held))
                axis.legend().remove()
                axis.set_title("")
            else:
                view = View((x, y), held)
                answer = release.density(_plane(plan, view, _PAIR_POINTS))
                seen = np.where(answer.value < 2.0 * answer.std_error, np.nan, answer.value)
                maps.append(_heat_map(axis, seen, plan, view, ""))
            if row < number - 1:
                axis.set_xlabel("")
            if 0 < at < row:
                axis.set_ylabel("")
    if maps:
        values = np.concatenate([np.ma.filled(np.ma.asarray(drawn.get_array()), np.nan).ravel() for drawn in maps])
        values = values[~np.isnan(values)] if not np.isnan(values).all() else np.zeros(1)
        scale = _scale(float(values.min()), float(values.max()))
        for drawn in maps:
            drawn.set_norm(scale)
        label = f"density: mean kernel ({_kernel(plan)}), square-root colour scale"
        figure.colorbar(maps[0], ax=axes.ravel().tolist(), label=label, shrink=0.8)
    return figure


def _classes_figure(release: Queryable, columns: Sequence[int], title: str) -> "Figure":
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
    figure = new_figure((11.0, 8.5))
    figure.suptitle(title, fontsize=13)
    grid = figure.add_gridspec(2, 1, height_ratios=(1.0, 1.3))
    bars, shares = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    reach = NormalDist().inv_cdf(0.5 + _CONFIDENCE / 2)
    # The largest of many are likely too large: then all of them together are within their intervals.
    bars_reach = NormalDist().inv_cdf(1 - (1 - _CONFIDENCE) / 2 / len(plan.classes)) if others else reach
    drawn = [(label, value, error) for label, value, error in named]
    if others:
        errors = math.sqrt(math.fsum(error**2 for *_, error in others))
        drawn.append((f"{len(others)} others", math.fsum(value for _, value, _ in others), errors))
    names, values, errors_of = zip(*drawn, strict=True)
    colours = [*_CLASS_COLOURS[: len(named)], *_CLASS_COLOURS[-1:]][: len(drawn)]
    bars.bar(
        range(len(drawn)),
        values,
        yerr=[bars_reach * error for error in errors_of],
        color=colours,
        capsize=3,
        ecolor="0.5",
    )
    bars.set_xticks(range(len(drawn)), names)
    if sum(map(len, names)) > _LABELS_MAX:
        bars.tick_params(axis="x", labelrotation=20)
    bars.axhline(0.0, color="0.6", linewidth=0.8)
    bars.set_ylabel("records")
    intervals = f"{'simultaneous ' if others else ''}95 % intervals"
    bars.set_title(f"records of each class, with {intervals}", fontsize=11)
    view = densest_view(release, (column,))
    points = _line(plan, view)
    along, total = points[:, column], release.kernel_sum(points)
    known = total.value > 2.0 * total.std_error  # elsewhere nearly all is noise, and a share of it says nothing
    for (label, *_), colour in zip(named, colours, strict=False):
        part = release.kernel_sum(points, label=label)
        share = np.where(known, part.value / np.where(known, total.value, 1.0), np.nan)
        # To first order, as if the errors of a class and of the other classes were independent.
        rest_error = np.sqrt(np.maximum(np.square(total.std_error) - np.square(part.std_error), 0.0))
        error = reach * np.hypot((1.0 - share) * part.std_error, share * rest_error)
        half = (error + (0.0 if part.bias is None else part.bias)) / np.where(known, total.value, np.nan)
        shares.fill_between(along, share - half, share + half, color=colour, alpha=0.25, linewidth=0)
        shares.plot(along, share, color=colour, linewidth=1.6, label=label)
    shares.set_ylim(min(-0.05, shares.get_ylim()[0]), max(1.05, shares.get_ylim()[1]))
    shares.set_xlim(along[0], along[-1])
    shares.set_xlabel(_axis_label(plan, column))
    shares.set_ylabel("share of the kernel sum")
    held = _held_text(plan, view, without=(column,))
    where = f", at {held}" if held else ""
    shares.set_title(f"shares of the classes along {_name(plan, column)}{where}, with 95 % intervals", fontsize=11)
    if not known.all():
        shares.set_xlabel(shares.get_xlabel() + "\nno line where nearly all is noise")
    shares.legend(loc="best", frameon=False)
    return figure


def _cdf_figure(release: Queryable, columns: Sequence[int], title: str) -> "Figure":
    statistics = Statistics(release)
    figure = new_figure((max(6.5, 4.6 * len(columns)), 7.0))
    figure.suptitle(title, fontsize=13)
    axes = figure.subplots(2, len(columns), squeeze=False)
    for at, column in enumerate(columns):
        histogram, below = statistics.histogram(column), statistics.cdf(column=column)
        counts, edges = histogram.counts, histogram.edges
        low, high = counts.interval(_CONFIDENCE)
        top, bottom = axes[0, at], axes[1, at]
        top.stairs(high, edges, baseline=low, fill=True, color=_RELEASED, alpha=0.25, label="95 % interval")
        top.stairs(counts.value, edges, color=_RELEASED, linewidth=1.4, label="released")
        top.axhline(0.0, color="0.6", linewidth=0.8, zorder=0)
        low, high = below.shares.interval(_CONFIDENCE)
        bottom.fill_between(below.points, low, high, color=_RELEASED, alpha=0.25, linewidth=0, label="95 % interval")
        bottom.plot(below.points, below.monotone(), color=_RELEASED, linewidth=1.6, label="released, monotone")
        bottom.set_ylim(-0.05, 1.05)
        for axis in (top, bottom):
            axis.set_xlim(edges[0], edges[-1])
            axis.set_xlabel(_axis_label(release.plan, column))
    axes[0, 0].set_ylabel("records in a cell")
    axes[1, 0].set_ylabel("share of the records below")
    axes[0, 0].legend(loc="best", frameon=False)
    axes[1, 0].legend(loc="best", frameon=False)
    return figure


def density_figure(
    release: Queryable, *, exact: Density | None = None, view: View | None = None, title: str | None = None
) -> "Figure":
    """The released density over a plane of two columns as a heat map, and along a line with its 95 % band below.

    With ``exact``, the exact density stands beside it on the same colour scale, and in the line's panel; without, the
    half width of the 95 % interval stands there.

    Args:
        release: To be drawn.
        exact: Exact densities at (m, d) points. They are not private: for those who hold the records.
        view: Where to cut; by default columns 0 and 1, through the densest place.
        title: Instead of the plan's name and its promise.

    Returns:
        A matplotlib figure; ``figure.savefig(path)`` writes it.

    Raises:
        PlanError: See :func:`refuse_undrawable`.
    """
    refuse_undrawable(release.plan)
    view = view or densest_view(release)
    figure, planes, line = _panels(view, title or _title(release))
    if planes is not None:
        _draw_planes(figure, planes, release, exact, view)
    _draw_line(figure.add_subplot(line), release, exact, view)
    return figure


def _panels(view: View, title: str) -> "tuple[Figure, tuple[Axes, Axes] | None, SubplotSpec]":
    """A figure with two planes, of a view of two columns; and where the line goes, which is drawn last."""
    plane = len(view.columns) == 2
    figure = new_figure((11.0, 9.0 if plane else 5.0))
    figure.suptitle(title, fontsize=13)
    if not plane:
        return figure, None, figure.add_gridspec(1, 1)[0]
    grid = figure.add_gridspec(2, 2, height_ratios=(1.25, 1.0))
    return figure, (figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])), grid[1, :]


def difference_figure(comparison: Comparison, *, view: View | None = None, title: str | None = None) -> "Figure":
    """What differs between two released densities: over a plane of two columns, and along a line with its 95 % band.

    Places where the difference is larger than noise explains are outlined in the plane, and marked on the line: the
    probability that any is shown where nothing differs is at most 5 % in each panel
    (:meth:`hushsum.comparison.Comparison.regions`).

    Args:
        comparison: To be drawn: the first release minus the second.
        view: Where to cut; by default columns 0 and 1, through the densest place of both (:func:`common_view`). A view
            that was chosen by looking at either release breaks the 5 %.
        title: Instead of the plans' names, windows and promises; the p-value of the test stands below it.

    Returns:
        A matplotlib figure; ``figure.savefig(path)`` writes it.

    Raises:
        PlanError: See :func:`refuse_undrawable`.
        ValueError: The sketch has one row, and so no standard error.
    """
    refuse_undrawable(comparison.first.plan)
    view = view or common_view(comparison)
    tested = f"both are samples of one population: p = {comparison.p_value():.2g}"
    figure, planes, line = _panels(view, f"{title or _difference_title(comparison)}\n{tested}")
    if planes is not None:
        _draw_difference_planes(figure, planes, comparison, view)
    _draw_difference_line(figure.add_subplot(line), comparison, view)
    return figure


def _draw_difference_planes(figure: "Figure", axes: "tuple[Axes, Axes]", comparison: Comparison, view: View) -> None:
    plan = comparison.first.plan
    points = _plane(plan, view)
    answer = comparison.density(points)
    held = _held_text(plan, view, without=view.columns)
    where = f"  ({held})" if held else ""
    drawn = _heat_map(axes[0], answer.value, plan, view, "difference of the densities" + where, line="black")
    most = float(np.abs(answer.value).max()) or 1.0
    drawn.set_cmap(_DIFFERENCE_MAP)
    drawn.set_clim(-most, most)
    figure.colorbar(drawn, ax=axes[0], label="first minus second\nlinear colour scale")
    found = comparison.regions(points)
    if len(found):
        named = np.zeros(len(points))
        named[found.at] = 1.0
        side = (np.unique(points[:, column]) for column in view.columns)
        axes[0].contour(
            *side, named.reshape(_PLANE_POINTS, _PLANE_POINTS), levels=[0.5], colors="black", linewidths=1.2
        )
    axes[0].set_xlabel(_axis_label(plan, view.columns[0]) + f"\noutlined: {_NAMED}" * bool(len(found)))
    _draw_half_widths(figure, axes[1], answer, plan, view, where)


def _draw_difference_line(axis: "Axes", comparison: Comparison, view: View) -> None:
    plan, column = comparison.first.plan, view.columns[0]
    points = _line(plan, view)
    along, answer = points[:, column], comparison.density(points)
    low, high = answer.interval(_CONFIDENCE)
    axis.fill_between(along, low, high, color=_RELEASED, alpha=0.25, linewidth=0, label="95 % interval")
    axis.plot(along, answer.value, color=_RELEASED, linewidth=1.6, label="first minus second")
    at = np.sort(comparison.regions(points).at)
    if len(at):
        axis.plot(along[at], answer.value[at], ".", color=_ink(), markersize=4, label=_NAMED)
    axis.axhline(0.0, color="0.5", linewidth=0.8, zorder=0)
    axis.set_xlim(along[0], along[-1])
    axis.set_xlabel(_axis_label(plan, column))
    axis.set_ylabel("difference of the densities")
    held = _held_text(plan, view, without=(column,))
    axis.set_title("along the dashed line: " + held if held else "difference of the densities", fontsize=11)
    axis.legend(loc="best", frameon=False)


def _difference_title(comparison: Comparison) -> str:
    sides = (
        " ".join(part for part in (each.plan.name, _window(each), f"({_promise(each)})") if part)
        for each in (comparison.first, comparison.second)
    )
    return "\nminus ".join(sides)


def points_drawn(view: View) -> int:
    """At how many points a figure evaluates the density, and the exact one where it is given."""
    return _LINE_POINTS + (_PLANE_POINTS**2 if len(view.columns) == 2 else 0)


def _draw_planes(
    figure: "Figure", axes: "tuple[Axes, Axes]", release: Queryable, exact: Density | None, view: View
) -> None:
    points = _plane(release.plan, view)
    answer = release.density(points)
    label = f"density: mean kernel ({_kernel(release.plan)})\nsquare-root colour scale"
    held = _held_text(release.plan, view, without=view.columns)
    where = f"  ({held})" if held else ""
    if exact is None:
        released = _heat_map(axes[0], answer.value, release.plan, view, "released density" + where)
        released.set_norm(_scale(answer.value.min(), answer.value.max()))
        _contours(axes[0], answer, points, view)
        figure.colorbar(released, ax=axes[0], label=label)
        if np.isnan(answer.std_error).all():
            axes[1].set_axis_off()
            axes[1].text(0.5, 0.5, _NO_ERROR, ha="center", va="center", transform=axes[1].transAxes)
            return
        _draw_half_widths(figure, axes[1], answer, release.plan, view, where)
        return
    truth = exact(points)
    scale = _scale(min(truth.min(), answer.value.min()), max(truth.max(), answer.value.max()))
    first = _heat_map(axes[0], truth, release.plan, view, f"exact density{where}")
    second = _heat_map(axes[1], answer.value, release.plan, view, f"released density{where}")
    first.set_norm(scale)
    second.set_norm(scale)
    figure.colorbar(second, ax=list(axes), label=label)


def _draw_half_widths(figure: "Figure", axis: "Axes", answer: Answer, plan: Plan, view: View, where: str) -> None:
    low, high = answer.interval(_CONFIDENCE)
    drawn = _heat_map(axis, (high - low) / 2, plan, view, "half width of the 95 % interval" + where)
    drawn.set_clim(vmin=0.0)  # from the least to the most, nearly equal widths would look different
    figure.colorbar(drawn, ax=axis, label="density\nlinear colour scale")


def _contours(axis: "Axes", answer: Answer, points: Floats, view: View) -> None:
    """Lines of equal density, evenly between 0 and the highest, where that is more than two standard errors."""
    values = answer.value
    levels = values.max() * np.arange(1, _CONTOURS + 1) / (_CONTOURS + 1)
    levels = levels[levels > 2.0 * answer.std_error.max()]
    if len(levels):
        x, y = (np.unique(points[:, column]) for column in view.columns)
        axis.contour(x, y, values.reshape(len(y), len(x)), levels=levels, colors="white", linewidths=0.7, alpha=0.7)


def _heat_map(axis: "Axes", values: Floats, plan: Plan, view: View, what: str, *, line: str = "white") -> "AxesImage":
    lower, upper = _bounds(plan)
    x, y = view.columns
    side = math.isqrt(len(values))
    step = (upper - lower) / (side - 1) / 2  # a pixel is centred on its point
    extent = (lower[x] - step[x], upper[x] + step[x], lower[y] - step[y], upper[y] + step[y])
    image = axis.imshow(
        values.reshape(side, side),
        origin="lower",
        extent=extent,
        aspect="auto",
        cmap=_MAP,
        interpolation="bilinear",
    )
    axis.axhline(view.held[y], color=line, linewidth=1.0, linestyle=(0, (4, 3)))
    axis.locator_params(axis="x", nbins=6)
    axis.set_title(what, fontsize=11)
    axis.set_xlabel(_axis_label(plan, x))
    axis.set_ylabel(_axis_label(plan, y))
    return image


def _scale(least: float, most: float) -> "PowerNorm":
    """Equal steps of colour for equal steps of the square root: the slopes show beside the peaks."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, least, most)


def _draw_line(axis: "Axes", release: Queryable, exact: Density | None, view: View) -> None:
    column = view.columns[0]
    points = _line(release.plan, view)
    along = points[:, column]
    answer = release.density(points)
    low, high = answer.interval(_CONFIDENCE)
    known = not np.isnan(answer.std_error).all()
    if known:
        axis.fill_between(along, low, high, color=_RELEASED, alpha=0.25, linewidth=0, label="95 % interval")
    label = f"released ({_promise(release)}){'' if known else ', ' + _NO_ERROR}"
    axis.plot(along, answer.value, color=_RELEASED, linewidth=1.6, label=label)
    if exact is not None:
        axis.plot(along, exact(points), color=_ink(), linewidth=1.4, linestyle=(0, (5, 2)), label="exact")
    axis.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
    axis.set_xlim(along[0], along[-1])
    axis.set_xlabel(_axis_label(release.plan, column))
    axis.set_ylabel("density")
    held = _held_text(release.plan, view, without=(column,))
    chosen = ", chosen for its high answer, which is likely too high" if view.is_highest else ""
    axis.set_title(f"along the dashed line: {held}{chosen}" if held else "density", fontsize=11)
    axis.legend(loc="best", frameon=False)


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


def _ink() -> str:
    """Black, or white on a dark ground."""
    from matplotlib import rcParams

    return str(rcParams["text.color"])


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
    promise = f"{spent} per {release.guarantee.unit}"
    rounded = float(f"{max(release.count, 0.0):.3g}")
    parts = [f"about {rounded:,.0f} records", promise, _window(release)]
    return f"{_TITLES.get(kind, 'Density of')} {release.plan.name}\n" + "  ·  ".join(part for part in parts if part)


def _window(release: Queryable) -> str:
    if release.window is None:
        return ""
    schedule = release.plan.window
    start, end = (
        datetime.fromtimestamp(moment / 1000, UTC)
        for moment in (schedule.start_ms(release.window), schedule.end_ms(release.window))
    )
    day = "%Y-%m-%d "
    return f"window {start:{day}%H:%M} to {end:{'' if start.date() == end.date() else day}%H:%M} UTC"
