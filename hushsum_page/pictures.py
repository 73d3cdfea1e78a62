"""Pictures as SVG inside a page: one for each panel of :mod:`hushsum.panels`, in the colours of the page's theme.

Lines and texts have classes, which the page's style sheet colours, so that one picture serves light and dark. There is
no style attribute, which the page's content security policy would block; heat maps have presentation attributes.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

from hushsum.panels import (
    CLASS_COLOURS,
    NO_ERROR,
    RELEASED_COLOUR,
    BarPanel,
    Curve,
    LinePanel,
    Panel,
    Panels,
    PlanePanel,
    StepPanel,
)
from hushsum_page.axes import COLOURS, ColourScale, Tick, ticks, time_ticks

Floats = npt.NDArray[np.float64]

_FINER: Final = 2  # a heat map has so many cells along each side for one point: colours change in smaller steps
_DOTS_MAX: Final = 130  # of a curve over time, whose windows are marked up to that number


class Picture(NamedTuple):
    """One picture: its SVG, what it shows, and how wide it stands in the page."""

    svg: Markup
    caption: str
    is_wide: bool


class _Box(NamedTuple):
    """The area between the axes, inside a picture of ``width`` × ``height``."""

    width: int
    height: int
    left: int = 64
    right: int = 14
    top: int = 10
    bottom: int = 46

    @property
    def x(self) -> tuple[float, float]:
        return float(self.left), float(self.width - self.right)

    @property
    def y(self) -> tuple[float, float]:
        """From the lower end to the upper one."""
        return float(self.height - self.bottom), float(self.top)


_SMALL: Final = _Box(250, 210, 50, 14, 8, 42)
_LEGEND_HEIGHT: Final = 20
_LETTER: Final = 6.6  # the usual width of a letter


class _Axis(NamedTuple):
    """From values to places in a picture."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        if self.high == self.low:
            return (self.start + self.end) / 2
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def all(self, values: Floats) -> Floats:
        if self.high == self.low:
            return np.full(len(values), (self.start + self.end) / 2)
        return self.start + (values - self.low) / (self.high - self.low) * (self.end - self.start)


def pictures(panels: Panels, *, asks: str = "") -> list[list[Picture]]:
    """The pictures of a figure, row by row.

    Args:
        panels: What they show.
        asks: The address that answers for a place under the pointer; empty: pictures do not ask.
    """
    small = panels.kind == "pairs"
    planes = [each for row in panels.rows for each in row if isinstance(each, PlanePanel)]
    shared = _scale_of(planes) if small and planes else None
    rows = []
    for row in panels.rows:
        made: list[Picture] = []
        for panel in row:
            if panel is None:
                continue
            made.extend(_pictures_of(panel, small=small, shared=shared, asks=asks, columns=len(row)))
        rows.append(made)
    return rows


def _pictures_of(panel: Panel, *, small: bool, shared: ColourScale | None, asks: str, columns: int) -> list[Picture]:
    if isinstance(panel, PlanePanel):
        if small:
            return [_plane(panel, panel.value, "", shared or _scale_of([panel]), _SMALL, asks)]
        drawn = [_plane(panel, panel.value, panel.label, _scale_of([panel]), _Box(520, 400, right=96), asks)]
        if np.isnan(panel.half).all():
            drawn.append(Picture(Markup(""), NO_ERROR, is_wide=False))
        else:
            width = ColourScale(0.0, float(np.nanmax(panel.half)))
            drawn.append(
                _plane(panel, panel.half, "half width of the 95 % interval", width, _Box(520, 400, right=96), asks)
            )
        return drawn
    if isinstance(panel, BarPanel):
        return [_bars(panel)]
    if isinstance(panel, StepPanel):
        return [_steps(panel, _Box(520, 280) if columns > 1 else _Box(1040, 300))]
    box = _SMALL if small else _Box(520, 280) if columns > 1 else _Box(1040, 300)
    return [_line(panel, box, asks, small=small)]


# ------------------------------------------------------------------------------------------------------------ elements


def _element(name: str, content: Markup | str = "", /, **attributes: object) -> Markup:
    """An element with escaped attributes; numbers have one decimal, ``_`` stands for ``-``, None leaves one out."""
    texts = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value) if isinstance(value, float) else value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = escape(content)
    return Markup(f"<{name}{texts}>{inner}</{name}>" if inner else f"<{name}{texts}/>")  # noqa: S704  every text in it is escaped above


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _joined(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def _svg(box: _Box, parts: Iterable[Markup], label: str, **data: object) -> Markup:
    return _element(
        "svg",
        _joined([_element("title", label), *parts]),
        viewBox=f"0 0 {box.width} {box.height}",
        role="img",
        aria_label=label,
        class_="picture",
        **data,
    )


def _text(x: float, y: float, text: str, class_: str = "", **attributes: object) -> Markup:
    return _element("text", text, x=x, y=y, class_=class_ or None, **attributes)


def _axes(
    box: _Box, x: _Axis, y: _Axis, labels: tuple[str, str], at: tuple[Sequence[Tick], Sequence[Tick]], *, grid: bool
) -> list[Markup]:
    (left, right), (low, high) = box.x, box.y
    parts = []
    for tick in at[0]:
        place = x(tick.at)
        if grid:
            parts.append(_element("path", d=f"M{_number(place)} {_number(low)}V{_number(high)}", class_="grid"))
        parts.append(_text(place, low + 16, tick.text, text_anchor="middle"))
    for tick in at[1]:
        place = y(tick.at)
        if grid:
            parts.append(_element("path", d=f"M{_number(left)} {_number(place)}H{_number(right)}", class_="grid"))
        parts.append(_text(left - 6, place + 4, tick.text, text_anchor="end"))
    parts.append(
        _element("path", d=f"M{_number(left)} {_number(high)}V{_number(low)}H{_number(right)}", class_="frame")
    )
    parts.append(_text((left + right) / 2, box.height - 8, labels[0], "label", text_anchor="middle"))
    middle, upright = (low + high) / 2, labels[1]
    if len(upright) * _LETTER > low - high:
        upright = upright.partition(":")[0]  # the caption or the table has the rest
    parts.append(
        _text(14, middle, upright, "label", text_anchor="middle", transform=f"rotate(-90 14 {_number(middle)})")
    )
    return parts


def _first(text: str) -> str:
    return text.partition("\n")[0]


def _colour_class(colour: str) -> str:
    """The class of a curve's colour: ``c0`` to ``c7``."""
    known = colour if colour in CLASS_COLOURS else RELEASED_COLOUR
    return f"c{CLASS_COLOURS.index(known)}"


# --------------------------------------------------------------------------------------------------------------- lines


def _range(values: Iterable[Floats], *, zero: bool) -> tuple[float, float]:
    found = [each[np.isfinite(each)] for each in values]
    joined = np.concatenate(found) if found else np.zeros(0)
    low, high = (float(joined.min()), float(joined.max())) if len(joined) else (0.0, 1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high <= low:
        return low - 0.5, high + 0.5
    margin = 0.04 * (high - low)
    return low - margin if low < 0 or not zero else low, high + margin


def _line(panel: LinePanel, box: _Box, asks: str, *, small: bool) -> Picture:
    named = [] if small else _named(panel)
    if named:
        box = box._replace(height=box.height + _LEGEND_HEIGHT, top=box.top + _LEGEND_HEIGHT)
    curves = [each for curve in panel.curves for each in (curve.value, curve.low, curve.high)]
    low, high = _range(curves, zero=True)
    first, last = float(panel.x[0]), float(panel.x[-1])
    if panel.is_time:
        edges = [moment for change in panel.changes for moment in change]
        first, last = min([first, *edges]), max([last, *edges])
        if first == last:
            first, last = first - 1.0, last + 1.0
    x, y = _Axis(first, last, *box.x), _Axis(low, high, *box.y)
    places = box.width // 110 if small or box.width < 600 else 9
    across = time_ticks(first, last, 7) if panel.is_time else ticks(first, last, places)
    labels = (_first(panel.x_label), "" if small else panel.y_label)
    parts = _axes(box, x, y, labels, (across, ticks(low, high, 4 if small else 6)), grid=not small)
    parts.extend(_changes(panel, x, box))
    if low < 0 < high:
        parts.append(_element("path", d=f"M{_number(box.x[0])} {_number(y(0.0))}H{_number(box.x[1])}", class_="zero"))
    for curve in panel.curves:
        parts.extend(_curve(curve, panel.x, x, y, dots=panel.is_time and len(panel.x) <= _DOTS_MAX))
    parts.extend(
        _element("circle", cx=float(x(panel.x[at])), cy=float(y(panel.curves[0].value[at])), r=2.5, class_="mark")
        for at in panel.marked.tolist()
    )
    parts.extend(_legend(named, box))
    hover: dict[str, object] = {}
    if asks and len(panel.points):
        hover = _hover(asks, box, panel.points[0], (_varying(panel.points),), (first, last), None)
    caption = _first(panel.title)
    return Picture(_svg(box, parts, caption or _first(panel.x_label), **hover), caption, is_wide=box.width > 600)


def _changes(panel: LinePanel, x: _Axis, box: _Box) -> list[Markup]:
    low, high = box.y
    parts = []
    for at, start, end in panel.changes:
        left, right = x(start), x(end)
        if right > left:
            parts.append(
                _element("rect", x=left, y=high, width=right - left, height=low - high, class_="span"),
            )
        parts.append(_element("path", d=f"M{_number(x(at))} {_number(low)}V{_number(high)}", class_="change"))
    return parts


def _curve(curve: Curve, at: Floats, x: _Axis, y: _Axis, *, dots: bool) -> list[Markup]:
    colour, across = _colour_class(curve.colour), x.all(at)
    parts = []
    known = np.isfinite(curve.low) & np.isfinite(curve.high)
    for run in _runs(known):
        upper, lower = y.all(curve.high[run]), y.all(curve.low[run])
        there, back = _points(across[run], upper), _points(across[run][::-1], lower[::-1])
        if run.stop - run.start == 1:
            place = _number(float(across[run][0]))
            path = f"M{place} {_number(float(upper[0]))}V{_number(float(lower[0]))}"
            parts.append(_element("path", d=path, class_=f"whisker {colour}"))
        else:
            parts.append(_element("path", d=f"M{there}L{back}Z", class_=f"band {colour}"))
    for run in _runs(np.isfinite(curve.value)):
        height = y.all(curve.value[run])
        parts.append(_element("path", d=f"M{_points(across[run], height)}", class_=f"curve {colour}"))
        if dots:
            parts.extend(
                _element("circle", cx=float(each), cy=float(there), r=2.5, class_=f"dot {colour}")
                for each, there in zip(across[run], height, strict=True)
            )
    return parts


def _runs(known: npt.NDArray[np.bool_]) -> list[slice]:
    """Where values follow each other without a gap."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], known.astype(np.int8), [0]])))
    return [slice(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def _points(x: Floats, y: Floats) -> str:
    return "L".join(f"{_number(each)} {_number(there)}" for each, there in zip(x.tolist(), y.tolist(), strict=True))


def _named(panel: LinePanel) -> list[tuple[str, str]]:
    """Colours and names for the legend; none where one curve says nothing that its axis does not."""
    named = [(_colour_class(curve.colour), curve.name) for curve in panel.curves]
    if len(panel.marked):
        named.append(("mark", panel.marked_as))
    return named if len(named) > 1 or panel.is_time else []


def _legend(named: Sequence[tuple[str, str]], box: _Box) -> list[Markup]:
    """Names beside each other above the plot; they share its width."""
    parts: list[Markup] = []
    if not named:
        return parts
    letters = max(6, int((box.x[1] - box.x[0]) / len(named) / _LETTER) - 4)
    place = box.x[0]
    for colour, name in named:
        short = name if len(name) <= letters else f"{name[: letters - 1]}…"
        parts.append(_element("rect", x=place, y=8.0, width=12.0, height=8.0, class_=f"key {colour}"))
        parts.append(_text(place + 17, 16.5, short, "legend"))
        place += 17 + _LETTER * len(short) + 16
    return parts


# ---------------------------------------------------------------------------------------------------------- heat maps


def _scale_of(panels: Sequence[PlanePanel]) -> ColourScale:
    values = np.concatenate([each.value for each in panels])
    values = values[np.isfinite(values)]
    if not len(values):
        return ColourScale(0.0, 1.0, is_root=True)
    if panels[0].signed:
        most = float(np.abs(values).max()) or 1.0
        return ColourScale(-most, most, is_signed=True)
    return ColourScale(float(values.min()), float(values.max()), is_root=True)


def _plane(panel: PlanePanel, values: Floats, label: str, scale: ColourScale, box: _Box, asks: str) -> Picture:
    half_x, half_y = (panel.x[1] - panel.x[0]) / 2, (panel.y[1] - panel.y[0]) / 2  # a cell is centred on its point
    x = _Axis(float(panel.x[0] - half_x), float(panel.x[-1] + half_x), *box.x)
    y = _Axis(float(panel.y[0] - half_y), float(panel.y[-1] + half_y), *box.y)
    side = len(panel.y), len(panel.x)
    grid = values.reshape(side)
    # Of a heat map of levels the first is the ground, so that nothing shines through between cells.
    parts = [*_cells(_finer(grid), scale, x, y)]
    is_value = values is panel.value
    if is_value and len(panel.levels):
        parts.extend(_contours(panel, grid, panel.levels, x, y, "contour"))
    if is_value and len(panel.named):
        named = np.zeros(grid.size)
        named[panel.named] = 1.0
        parts.extend(_contours(panel, named.reshape(side), np.array([0.5]), x, y, "outline"))
    small = not label
    if not small:
        crossing = _number(y(panel.crossing))
        parts.append(_element("path", d=f"M{_number(box.x[0])} {crossing}H{_number(box.x[1])}", class_="crossing"))
    number = 4 if small else 6
    at = ticks(float(panel.x[0]), float(panel.x[-1]), number), ticks(float(panel.y[0]), float(panel.y[-1]), number)
    parts.extend(_axes(box, x, y, (panel.x_label, panel.y_label), at, grid=False))
    if not small:
        parts.extend(_colour_bar(scale, box))
    title = _first(panel.title) if is_value else label
    hover: dict[str, object] = {}
    if asks:
        columns = _varying(panel.points[:2]), _varying(panel.points[:: len(panel.x)])
        hover = _hover(asks, box, panel.points[0], columns, (x.low, x.high), (y.low, y.high))
    unit = label.replace("\n", ", ") if is_value else "linear colour scale"
    caption = (
        ""
        if small
        else f"{title}{panel.where}; {unit}"
        + ("; outlined: more than noise explains (5 % in all)" if is_value and len(panel.named) else "")
    )
    return Picture(_svg(box, parts, caption or f"{panel.x_label} and {panel.y_label}", **hover), caption, is_wide=False)


def _finer(grid: Floats) -> Floats:
    """A grid with more points between its own, interpolated linearly; NaN stays where a neighbour has none."""
    for axis in (0, 1):
        number = grid.shape[axis]
        at = (np.arange(number * _FINER) + 0.5) / _FINER - 0.5
        at = np.clip(at, 0.0, number - 1.0)
        first = np.minimum(at.astype(np.int64), number - 2) if number > 1 else np.zeros(len(at), np.int64)
        part = at - first
        shape = (-1, 1) if axis == 0 else (1, -1)
        low, high = np.take(grid, first, axis), np.take(grid, np.minimum(first + 1, number - 1), axis)
        grid = low + (high - low) * part.reshape(shape)
    return grid


def _cells(grid: Floats, scale: ColourScale, x: _Axis, y: _Axis) -> list[Markup]:
    """One path for each colour, of runs of cells that follow each other in a row."""
    rows, columns = grid.shape
    level = scale.level(grid.reshape(-1)).reshape(rows, columns)
    # In tenths of a unit. Runs are strokes as high as a row and a little more, so that no seam shows between rows.
    across = np.round(10 * np.linspace(x.start, x.end, columns + 1)).astype(np.int64)
    step = (y.end - y.start) / rows
    down = np.round(10 * (y.start + step * (np.arange(rows) + 0.5))).astype(np.int64)
    begins = np.ones(level.shape, np.bool_)
    begins[:, 1:] = np.diff(level, axis=1) != 0
    row, start = np.nonzero(begins)
    stop = np.where(np.append(np.diff(row), 1) == 0, np.append(start[1:], 0), columns)
    runs = zip(
        *(each.tolist() for each in (level[begins], across[start], down[row], across[stop] - across[start])),
        strict=True,
    )
    paths: dict[int, list[str]] = {}
    for colour, left, height, width in runs:
        if colour >= 0:
            paths.setdefault(colour, []).append(f"M{left} {height}h{width}")
    drawn = [_element("path", d="".join(paths[colour]), stroke=scale.colour(colour)) for colour in sorted(paths)]
    wide = f"{10 * abs(step) + 1.5:.0f}"
    return [_element("g", _joined(drawn), transform="scale(.1)", stroke_width=wide, shape_rendering="crispEdges")]


def _contours(panel: PlanePanel, grid: Floats, levels: Floats, x: _Axis, y: _Axis, class_: str) -> list[Markup]:
    import contourpy

    found = contourpy.contour_generator(panel.x, panel.y, grid)
    path = []
    for level in levels.tolist():
        for line in found.lines(level):
            points = np.asarray(line, np.float64)
            path.append(f"M{_points(x.all(points[:, 0]), y.all(points[:, 1]))}")
    return [_element("path", d="".join(path), class_=class_)] if path else []


def _colour_bar(scale: ColourScale, box: _Box) -> list[Markup]:
    left, width = box.x[1] + 14, 14
    low, high = box.y
    step = (low - high) / COLOURS
    parts = [
        _element("rect", x=left, y=low - (level + 1) * step, width=width, height=step + 0.5, fill=scale.colour(level))
        for level in range(COLOURS)
    ]
    for tick in ticks(scale.low, scale.high, 6):
        share = float(scale.share(np.array([tick.at]))[0])
        place = low - share * (low - high)
        parts.append(_text(left + width + 5, place + 4, tick.text))
    return parts


# ------------------------------------------------------------------------------------------------------ bars and steps


def _bars(panel: BarPanel) -> Picture:
    box = _Box(1040, 300)
    low, high = _range([panel.value, panel.value - panel.half, panel.value + panel.half], zero=True)
    y = _Axis(low, high, *box.y)
    left, right = box.x
    each = (right - left) / len(panel.names)
    x = _Axis(0.0, 1.0, left, right)
    parts = _axes(box, x, y, ("", panel.y_label), ([], ticks(low, high)), grid=True)
    letters = max(int(each / 8), 3)
    for number, (name, value, half, colour) in enumerate(
        zip(panel.names, panel.value.tolist(), panel.half.tolist(), panel.colours, strict=True)
    ):
        middle, width = left + (number + 0.5) * each, min(0.6 * each, 90.0)
        top, bottom = y(max(value, 0.0)), y(min(value, 0.0))
        bar = {"x": middle - width / 2, "y": top, "width": width, "height": max(bottom - top, 0.5)}
        parts.append(_element("rect", class_=f"bar {_colour_class(colour)}", **bar))
        ends = (y(value - half), y(value + half))
        for end in ends:
            path = f"M{_number(middle - 6)} {_number(end)}h12"
            parts.append(_element("path", d=path, class_="error"))
        parts.append(_element("path", d=f"M{_number(middle)} {_number(ends[0])}V{_number(ends[1])}", class_="error"))
        short = name if len(name) <= letters else f"{name[: letters - 1]}…"
        parts.append(_text(middle, box.y[0] + 18, short, text_anchor="middle"))
    if low < 0:
        parts.append(_element("path", d=f"M{_number(left)} {_number(y(0.0))}H{_number(right)}", class_="zero"))
    return Picture(_svg(box, parts, panel.title), panel.title, is_wide=True)


def _steps(panel: StepPanel, box: _Box) -> Picture:
    low, high = _range([panel.value, panel.low, panel.high], zero=True)
    first, last = float(panel.edges[0]), float(panel.edges[-1])
    x, y = _Axis(first, last, *box.x), _Axis(low, high, *box.y)
    at = ticks(first, last, 6 if box.width < 600 else 9), ticks(low, high)
    parts = _axes(box, x, y, (panel.x_label, panel.y_label), at, grid=True)
    colour = _colour_class(RELEASED_COLOUR)
    across = np.repeat(x.all(panel.edges), 2)[1:-1]
    outline: Callable[[Floats], Floats] = lambda values: np.repeat(y.all(values), 2)  # noqa: E731  used three times here
    upper, lower = outline(panel.high), outline(panel.low)
    if np.isfinite(upper).all() and np.isfinite(lower).all():
        path = f"M{_points(across, upper)}L{_points(across[::-1], lower[::-1])}Z"
        parts.append(_element("path", d=path, class_=f"band {colour}"))
    parts.append(_element("path", d=f"M{_points(across, outline(panel.value))}", class_=f"curve {colour}"))
    if low < 0:
        parts.append(_element("path", d=f"M{_number(box.x[0])} {_number(y(0.0))}H{_number(box.x[1])}", class_="zero"))
    caption = f"{panel.y_label}, by {panel.x_label}, with 95 % intervals"
    return Picture(_svg(box, parts, caption), caption, is_wide=box.width > 600)


# ------------------------------------------------------------------------------------------------------------- spending


def spending(at_ms: Sequence[int], spent: Sequence[float], total: float, ends_ms: int | None) -> Picture:
    """What is spent of a total over time, in steps; and the straight line to its end, where that is known.

    Args:
        at_ms: (m,) moments in ms since 1970 UTC, in ascending order; m is at least 1.
        spent: (m,) what is spent from each moment on.
        total: The limit, above 0.
        ends_ms: When it is spent at this pace; None: not known, or never.
    """
    box = _Box(1040, 300)
    times, values = np.asarray(at_ms, np.float64), np.asarray(spent, np.float64)
    first, last = float(times[0]), float(times[-1])
    # An end that is far away would press what was spent against the axis.
    reach = last + 4 * max(last - first, 1.0)
    end = min(float(ends_ms), reach) if ends_ms is not None and ends_ms > last else last
    right = end if end > first else first + 3_600_000.0
    x, y = _Axis(first, right, *box.x), _Axis(0.0, 1.08 * max(total, float(values.max())), *box.y)
    labels = ("end of the window (UTC)", "ε spent")
    parts = _axes(box, x, y, labels, (time_ticks(first, right, 7), ticks(0.0, y.high)), grid=True)
    place = float(y(total))
    parts.append(_element("path", d=f"M{_number(box.x[0])} {_number(place)}H{_number(box.x[1])}", class_="limit"))
    parts.append(_text(box.x[0] + 6, place - 5, f"total ε = {total:.6g}", "label"))
    across = np.repeat(x.all(times), 2)[1:]
    height = np.repeat(y.all(values), 2)[:-1]
    parts.append(_element("path", d=f"M{_points(across, height)}", class_=f"curve {_colour_class(RELEASED_COLOUR)}"))
    if len(times) <= _DOTS_MAX:
        dot = f"dot {_colour_class(RELEASED_COLOUR)}"
        parts.extend(
            _element("circle", cx=float(each), cy=float(there), r=2.5, class_=dot)
            for each, there in zip(x.all(times), y.all(values), strict=True)
        )
    caption = "What is spent of the ledger, after each window"
    if ends_ms is not None and ends_ms > last:
        share = (end - last) / (ends_ms - last)
        reached = float(values[-1]) + share * (total - float(values[-1]))
        path = f"M{_number(x(last))} {_number(y(float(values[-1])))}L{_number(x(end))} {_number(y(reached))}"
        parts.append(_element("path", d=path, class_="pace"))
        caption += "; dashed: towards its end, if each window is charged"
    return Picture(_svg(box, parts, caption), caption, is_wide=True)


# ------------------------------------------------------------------------------------------------------------- pointer


def _varying(points: Floats) -> int:
    """The one column in which points differ."""
    return int(np.argmax(np.ptp(points, axis=0)))


def _hover(
    asks: str,
    box: _Box,
    held: Floats,
    columns: tuple[int, ...],
    x: tuple[float, float],
    y: tuple[float, float] | None,
) -> dict[str, object]:
    """What the page's script needs to ask for the place under the pointer."""
    area = [box.x[0] / box.width, box.x[1] / box.width, box.y[1] / box.height, box.y[0] / box.height]
    about = {"held": held.tolist(), "columns": columns, "area": area, "x": x, "y": y}
    assert all(map(math.isfinite, held.tolist())), "inside the bounds"
    return {"data_asks": asks, "data_about": json.dumps(about)}
