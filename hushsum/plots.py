"""Figures of a release: densities with error bands, pairs of columns, classes, distributions (extra ``analyst``).

Nothing here costs privacy: every figure is drawn from the release alone, unless its caller hands in exact values too.
What they show is in :mod:`hushsum.panels`. matplotlib is imported by the functions that draw, never by
``import hushsum``.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.comparison import Comparison
from hushsum.panels import (
    NAMED,
    NO_ERROR,
    RELEASED_COLOUR,
    BarPanel,
    Density,
    LinePanel,
    Panels,
    PlanePanel,
    StepPanel,
    View,
    common_view,
    densest_view,
    density_panels,
    difference_panels,
    release_panels,
)
from hushsum.query import Queryable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec
    from matplotlib.image import AxesImage

Floats = npt.NDArray[np.float64]

_LABELS_MAX: Final = 60  # characters of all labels, beside each other
_MAP: Final = "viridis"  # readable without colour vision, and in grey
_DIFFERENCE_MAP: Final = "PuOr_r"  # orange above 0, purple below: told apart without colour vision


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
        kind: Of :data:`hushsum.panels.KINDS`; None: :func:`hushsum.panels.default_kind`.
        columns: Which to draw, by names or numbers; None: the first two, or for ``pairs`` and ``cdf`` the first five.
        dark: Light lines on a dark ground.
        title: Instead of the plan's name and its guarantee.

    Raises:
        PlanError: See :func:`hushsum.panels.refuse_undrawable`; or the plan has no classes, or no cells of a grid.
        ValueError: There is no such kind, or no such columns.
    """
    with theme(dark=dark):
        return draw(release_panels(release, kind=kind, columns=columns, title=title))


def draw(panels: Panels) -> "Figure":
    """A figure of panels, as the context's :func:`theme` has it."""
    if panels.kind == "pairs":
        return _pairs_figure(panels)
    if panels.kind == "classes":
        return _classes_figure(panels)
    if panels.kind == "cdf":
        return _cdf_figure(panels)
    if panels.kind == "time":
        return _time_figure(panels)
    figure, planes, line = _areas(panels)
    if planes is not None:
        _draw_planes(figure, planes, panels, None)
    _draw_line(figure.add_subplot(line), panels, None)
    return figure


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
        title: Instead of the plan's name and its guarantee.

    Returns:
        A matplotlib figure; ``figure.savefig(path)`` writes it.

    Raises:
        PlanError: See :func:`hushsum.panels.refuse_undrawable`.
    """
    panels = density_panels(release, view=view or densest_view(release), title=title)
    if exact is None:
        return draw(panels)
    figure, planes, line = _areas(panels)
    if planes is not None:
        _draw_planes(figure, planes, panels, exact)
    _draw_line(figure.add_subplot(line), panels, exact)
    return figure


def difference_figure(comparison: Comparison, *, view: View | None = None, title: str | None = None) -> "Figure":
    """What differs between two released densities: over a plane of two columns, and along a line with its 95 % band.

    Places where the difference is larger than noise explains are outlined in the plane, and marked on the line: the
    probability that any is shown where nothing differs is at most 5 % in each panel
    (:meth:`hushsum.comparison.Comparison.regions`).

    Args:
        comparison: To be drawn: the first release minus the second.
        view: Where to cut; by default columns 0 and 1, through the densest place of both
            (:func:`hushsum.panels.common_view`). A view that was chosen by looking at either release breaks the 5 %.
        title: Instead of the plans' names, windows and guarantees; the p-value of the test stands below it.

    Returns:
        A matplotlib figure; ``figure.savefig(path)`` writes it.

    Raises:
        PlanError: See :func:`hushsum.panels.refuse_undrawable`.
        ValueError: The sketch has one row, and so no standard error.
    """
    return draw(difference_panels(comparison, view=view or common_view(comparison), title=title))


def _areas(panels: Panels) -> "tuple[Figure, tuple[Axes, Axes] | None, SubplotSpec]":
    """A figure with two planes, where there is one of the panels; and where the line goes, which is drawn last."""
    plane = len(panels.rows) == 2
    figure = new_figure((11.0, 9.0 if plane else 5.0))
    figure.suptitle(panels.title, fontsize=13)
    if not plane:
        return figure, None, figure.add_gridspec(1, 1)[0]
    grid = figure.add_gridspec(2, 2, height_ratios=(1.25, 1.0))
    return figure, (figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])), grid[1, :]


def _draw_planes(figure: "Figure", axes: "tuple[Axes, Axes]", panels: Panels, exact: Density | None) -> None:
    panel = panels.rows[0][0]
    assert isinstance(panel, PlanePanel), "the first of two rows"
    if exact is not None:
        truth = exact(panel.points)
        scale = _scale(min(truth.min(), panel.value.min()), max(truth.max(), panel.value.max()))
        first = _heat_map(axes[0], panel, truth, "exact density")
        second = _heat_map(axes[1], panel, panel.value, panel.title)
        first.set_norm(scale)
        second.set_norm(scale)
        figure.colorbar(second, ax=list(axes), label=panel.label)
        return
    drawn = _heat_map(axes[0], panel, panel.value, panel.title)
    if panel.signed:
        most = float(np.abs(panel.value).max()) or 1.0
        drawn.set_cmap(_DIFFERENCE_MAP)
        drawn.set_clim(-most, most)
    else:
        drawn.set_norm(_scale(panel.value.min(), panel.value.max()))
    side = len(panel.y), len(panel.x)
    if len(panel.levels):
        shape = panel.value.reshape(side)
        axes[0].contour(panel.x, panel.y, shape, levels=panel.levels, colors="white", linewidths=0.7, alpha=0.7)
    figure.colorbar(drawn, ax=axes[0], label=panel.label)
    if len(panel.named):
        named = np.zeros(len(panel.value))
        named[panel.named] = 1.0
        axes[0].contour(panel.x, panel.y, named.reshape(side), levels=[0.5], colors="black", linewidths=1.2)
        axes[0].set_xlabel(f"{panel.x_label}\noutlined: {NAMED}")
    if np.isnan(panel.half).all():
        axes[1].set_axis_off()
        axes[1].text(0.5, 0.5, NO_ERROR, ha="center", va="center", transform=axes[1].transAxes)
        return
    widths = _heat_map(axes[1], panel, panel.half, "half width of the 95 % interval")
    widths.set_clim(vmin=0.0)  # from the least to the most, nearly equal widths would look different
    figure.colorbar(widths, ax=axes[1], label="density\nlinear colour scale")


def _draw_line(axis: "Axes", panels: Panels, exact: Density | None) -> None:
    panel = panels.rows[-1][0]
    assert isinstance(panel, LinePanel), "the last row"
    _curves(axis, panel)
    if exact is not None:
        truth = exact(panel.points)
        axis.plot(panel.x, truth, color=_ink(), linewidth=1.4, linestyle=(0, (5, 2)), label="exact")
    _zero(axis)
    axis.set_title(panel.title, fontsize=11)
    axis.legend(loc="best", frameon=False)


def _curves(axis: "Axes", panel: LinePanel) -> None:
    """One with its band in the legend, or several whose titles say what their bands are."""
    for curve in panel.curves:
        if not np.isnan(curve.low).all():
            label = "95 % interval" if len(panel.curves) == 1 else ""
            axis.fill_between(panel.x, curve.low, curve.high, color=curve.colour, alpha=0.25, linewidth=0, label=label)
        axis.plot(panel.x, curve.value, color=curve.colour, linewidth=1.6, label=curve.name)
    if len(panel.marked):
        marked = panel.curves[0].value[panel.marked]
        axis.plot(panel.x[panel.marked], marked, ".", color=_ink(), markersize=4, label=panel.marked_as)
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)
    if not panel.is_time:
        axis.set_xlim(panel.x[0], panel.x[-1])


def _time_figure(panels: Panels) -> "Figure":
    figure = new_figure((11.0, 4.5 * len(panels.rows)))
    figure.suptitle(panels.title, fontsize=13)
    axes = figure.subplots(len(panels.rows), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (panel,) in zip(axes, panels.rows, strict=True):
        assert isinstance(panel, LinePanel), "values along time"
        _curves(axis, replace(panel, x=_moments(panel.x)))
        for at, first, last in panel.changes:
            (drawn, start, end) = _moments(np.array([at, first, last]))
            axis.axvspan(start, end, color="0.5", alpha=0.15, linewidth=0)
            axis.axvline(drawn, color=_ink(), linewidth=1.0, linestyle=(0, (4, 3)))
        _zero(axis)
        axis.set_title(panel.title, fontsize=11)
        if panel.changes:
            axis.set_xlabel(f"{panel.x_label}\ndashed: a change; shaded: the windows that are not all alike")
        axis.legend(loc="best", frameon=False)
    return figure


def _moments(milliseconds: Floats) -> Any:
    """As matplotlib draws dates."""
    return milliseconds.astype(np.int64).astype("datetime64[ms]")


def _zero(axis: "Axes") -> None:
    axis.axhline(0.0, color="0.6", linewidth=0.8, zorder=0)


def _heat_map(axis: "Axes", panel: PlanePanel, values: Floats, what: str) -> "AxesImage":
    x, y = panel.x, panel.y
    half_x, half_y = (x[1] - x[0]) / 2, (y[1] - y[0]) / 2  # a pixel is centred on its point
    image = axis.imshow(
        values.reshape(len(y), len(x)),
        origin="lower",
        extent=(x[0] - half_x, x[-1] + half_x, y[0] - half_y, y[-1] + half_y),
        aspect="auto",
        cmap=_MAP,
        interpolation="bilinear",
    )
    line = "black" if panel.signed and values is panel.value else "white"
    axis.axhline(panel.crossing, color=line, linewidth=1.0, linestyle=(0, (4, 3)))
    axis.locator_params(axis="x", nbins=6)
    axis.set_title(what + panel.where, fontsize=11)
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)
    return image


def _pairs_figure(panels: Panels) -> "Figure":
    number = len(panels.rows)
    figure = new_figure((2.6 * number + 1.5, 2.5 * number + 1.0))
    figure.suptitle(panels.title, fontsize=12)
    axes = figure.subplots(number, number, squeeze=False)
    maps, label = [], ""
    for row, places in enumerate(panels.rows):
        for at, panel in enumerate(places):
            axis = axes[row, at]
            if isinstance(panel, LinePanel):
                _curves(axis, panel)
                _zero(axis)
            elif isinstance(panel, PlanePanel):
                maps.append(_heat_map(axis, panel, panel.value, ""))
                axis.set_title("")
                label = panel.label
            else:
                axis.set_axis_off()
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
        figure.colorbar(maps[0], ax=axes.ravel().tolist(), label=label.replace("\n", ", "), shrink=0.8)
    return figure


def _classes_figure(panels: Panels) -> "Figure":
    (bars,), (shares,) = panels.rows
    assert isinstance(bars, BarPanel), "the first row"
    assert isinstance(shares, LinePanel), "the second row"
    figure = new_figure((11.0, 8.5))
    figure.suptitle(panels.title, fontsize=13)
    grid = figure.add_gridspec(2, 1, height_ratios=(1.0, 1.3))
    top, bottom = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    top.bar(range(len(bars.names)), bars.value, yerr=bars.half, color=bars.colours, capsize=3, ecolor="0.5")
    top.set_xticks(range(len(bars.names)), bars.names)
    if sum(map(len, bars.names)) > _LABELS_MAX:
        top.tick_params(axis="x", labelrotation=20)
    _zero(top)
    top.set_ylabel(bars.y_label)
    top.set_title(bars.title, fontsize=11)
    _curves(bottom, shares)
    bottom.set_ylim(min(-0.05, bottom.get_ylim()[0]), max(1.05, bottom.get_ylim()[1]))
    bottom.set_title(shares.title, fontsize=11)
    bottom.legend(loc="best", frameon=False)
    return figure


def _cdf_figure(panels: Panels) -> "Figure":
    columns = len(panels.rows[0])
    figure = new_figure((max(6.5, 4.6 * columns), 7.0))
    figure.suptitle(panels.title, fontsize=13)
    axes = figure.subplots(2, columns, squeeze=False)
    for at, (steps, below) in enumerate(zip(*panels.rows, strict=True)):
        assert isinstance(steps, StepPanel), "the first row"
        assert isinstance(below, LinePanel), "the second row"
        top, bottom = axes[0, at], axes[1, at]
        top.stairs(
            steps.high,
            steps.edges,
            baseline=steps.low,
            fill=True,
            color=RELEASED_COLOUR,
            alpha=0.25,
            label="95 % interval",
        )
        top.stairs(steps.value, steps.edges, color=RELEASED_COLOUR, linewidth=1.4, label="released")
        _zero(top)
        top.set_xlabel(steps.x_label)
        _curves(bottom, below)
        bottom.set_ylim(-0.05, 1.05)
        for axis in (top, bottom):
            axis.set_xlim(steps.edges[0], steps.edges[-1])
            axis.set_ylabel((steps if axis is top else below).y_label if at == 0 else "")
            if at == 0:
                axis.legend(loc="best", frameon=False)
    return figure


def _scale(least: float, most: float) -> "PowerNorm":
    """Equal steps of colour for equal steps of the square root: the slopes show beside the peaks."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, least, most)


def _ink() -> str:
    """Black, or white on a dark ground."""
    from matplotlib import rcParams

    return str(rcParams["text.color"])
