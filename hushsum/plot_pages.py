"""Figures as interactive pages: one HTML file each, which loads nothing (extra ``interactive``).

A page shows the panels that :mod:`hushsum.plots` draws, each value with its interval under the pointer. It holds all of
its scripts: its content security policy names them by their digests, and forbids every other script and every
connection. altair and vl_convert are imported by the functions that make a page, never by ``import hushsum``.
"""

import json
import math
from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from html import escape
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from hushsum.panels import NAMED, RELEASED_COLOUR, BarPanel, LinePanel, Panels, PlanePanel, StepPanel

if TYPE_CHECKING:
    from altair import Color, HConcatChart, LayerChart, NamedData, Tooltip

Row = dict[str, float | str | None]

_WIDTH: Final = 1040  # pixels of a row, axes and legends apart
_GAP: Final = 60
_LABEL: Final = 260
_PLANE: Final = (360, 340)
_LINE_HEIGHT: Final = 280
_UNSEEN: Final = 0.001  # opacity: what has none does not answer the pointer
_CELL: Final = 0.53
_DARK: Final = "#333"  # the ground of vega's theme
_HEIGHTS: Final = {"pairs": 180, "cdf": 260}
_DIFFERENCE: Final = ("#5e3c99", "#f7f7f7", "#e66101")  # as matplotlib's PuOr_r: told apart without colour vision
_PAGE: Final = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; \
script-src {digests}">
<title>{title}</title>
</head>
<body style="background:{ground}">
<div id="figure"></div>
<script>{library}</script>
<script>{drawing}</script>
</body>
</html>
"""
#: No link to an editor at another address; pictures can be saved.
_OPTIONS: Final = {
    "ast": True,
    "renderer": "canvas",
    "actions": {"export": True, "source": False, "compiled": False, "editor": False},
}


@dataclass(frozen=True)
class _DataSets:
    """The values of a page's charts, by name. altair would check each value of data inside a chart: for seconds."""

    rows: dict[str, list[Row]]

    def add(self, rows: list[Row]) -> "NamedData":
        from altair import NamedData

        name = f"values_{len(self.rows)}"
        self.rows[name] = rows
        return NamedData(name=name)


def page(panels: Panels, *, dark: bool = False) -> str:
    """The HTML of a page that shows panels, such as those of :func:`hushsum.panels.release_panels`.

    Args:
        panels: To be shown.
        dark: Light lines on a dark ground.
    """
    options = {**_OPTIONS, "theme": "dark"} if dark else _OPTIONS
    library = _library()
    drawing = f'vegaEmbed("#figure", {_json(_specification(panels))}, {_json(options)});'
    digests = " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in (library, drawing))
    title = escape(panels.title.replace("\n", ", "))
    return _PAGE.format(
        ground=_DARK if dark else "white", digests=digests, title=title, library=library, drawing=drawing
    )


@cache
def _library() -> str:
    """vega, vega-lite and vega-embed, in a second or two."""
    from vl_convert import javascript_bundle

    return javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")


def _json(value: object) -> str:
    """As JavaScript inside HTML: no text of a plan ends the script."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def _specification(panels: Panels) -> dict[str, Any]:
    import altair as alt

    planes = [panel.value for row in panels.rows for panel in row if isinstance(panel, PlanePanel)]
    values = np.concatenate(planes) if planes else np.zeros(0)
    values = values[~np.isnan(values)]
    domain = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    rows: list[HConcatChart] = []
    sets = _DataSets({})
    for places in panels.rows:
        charts = []
        for panel in places:
            if isinstance(panel, PlanePanel) and panels.kind == "pairs":
                charts.append(_heat_map(panel, sets, domain, "bottom" if panel is panels.rows[-1][0] else None))
            elif isinstance(panel, PlanePanel):
                charts.append(_heat_map(panel, sets, domain, "right"))
                if not np.isnan(panel.half).all():
                    charts.append(_half_widths(panel, sets))
            elif isinstance(panel, BarPanel):
                charts.append(_bars(panel, sets))
            elif panel is not None:
                curves = _curves(panel, sets) if isinstance(panel, LinePanel) else _steps(panel, sets)
                charts.append(curves.interactive(name=f"zoom_{len(rows)}_{len(charts)}"))
        width = _WIDTH // len(panels.rows if panels.kind == "pairs" else charts) - _GAP
        height = _HEIGHTS.get(panels.kind, _LINE_HEIGHT)
        if panels.kind != "pairs" and isinstance(places[0], PlanePanel):
            width, height = _PLANE
        sized = [chart.properties(width=width, height=height) for chart in charts]
        rows.append(alt.hconcat(*sized).resolve_scale(color="independent"))
    whole = alt.vconcat(*rows).resolve_scale(color="independent")
    titled = whole.properties(title=alt.TitleParams(text=panels.title.split("\n"), anchor="start", fontSize=15))
    return {**titled.to_dict(), "datasets": sets.rows}


def _curves(panel: LinePanel, sets: _DataSets) -> "LayerChart":
    import altair as alt

    rows: list[Row] = [
        {"x": float(x), **_values(value, low, high), "name": curve.name}
        for curve in panel.curves
        for x, value, low, high in zip(panel.x, curve.value, curve.low, curve.high, strict=True)
    ]
    size, names = len(panel.x), [curve.name for curve in panel.curves]
    places: list[Row] = [
        {
            "x": row["x"],
            **_moment(row, panel),
            **{f"shown{at}": rows[at * size + number]["shown"] for at in range(len(names))},
        }
        for number, row in enumerate(rows[:size])
    ]
    colour = alt.Color(
        "name:N",
        scale=alt.Scale(domain=names, range=[curve.colour for curve in panel.curves]),
        legend=alt.Legend(title=None, orient="top", labelLimit=_WIDTH, symbolOpacity=1.0),
    )
    if panel.is_time:
        x = alt.X("x:T", title=panel.x_label, scale=alt.Scale(type="utc"))
        where = alt.Tooltip("moment:N", title=panel.x_label)
    else:
        x = alt.X("x:Q", title=panel.x_label.split("\n"), scale=alt.Scale(nice=False, zero=False))
        where = _number("x", panel.x_label)
    base = alt.Chart(sets.add(rows)).encode(x=x)
    tooltip = [
        where,
        *(
            alt.Tooltip(f"shown{at}:N", title=f"{name if len(names) > 1 else panel.y_label}, 95 %")
            for at, name in enumerate(names)
        ),
    ]
    y = alt.Y("value:Q", title=panel.y_label)
    layers = [
        base.mark_area(opacity=0.25).encode(alt.Y("low:Q", title=panel.y_label), alt.Y2("high:Q"), colour),
        base.mark_line(strokeWidth=1.6).encode(y, colour),
    ]
    if len(panel.marked):
        marks = alt.Chart(sets.add([rows[at] for at in panel.marked.tolist()]))
        layers.append(marks.mark_point(size=12, filled=True, color="#777777", opacity=1.0).encode(x, y))
    if panel.changes:
        changes: list[Row] = [{"x": at, "from": first, "to": last} for at, first, last in panel.changes]
        base = alt.Chart(sets.add(changes))
        shade = base.mark_rect(color="#999999", opacity=0.2)
        layers.append(shade.encode(alt.X("from:T", title=panel.x_label), alt.X2("to:T")))
        layers.append(base.mark_rule(color="#777777", strokeDash=[4, 3]).encode(x))
    # Lines from bottom to top that answer the pointer wherever it is.
    pointed = alt.Chart(sets.add(places)).mark_rule(opacity=_UNSEEN, strokeWidth=max(3, _WIDTH / size))
    layers.append(pointed.encode(x, tooltip=tooltip))
    changed = "dashed: a change; shaded: the windows that are not all alike" if panel.changes else ""
    title = [part for part in (panel.title, f"dots: {panel.marked_as}" if len(panel.marked) else "", changed) if part]
    return alt.LayerChart(layer=layers).properties(title=title or "")


def _moment(row: Row, panel: LinePanel) -> Row:
    """When that is, as text: a browser would show the time of its own place."""
    if not panel.is_time:
        return {}
    return {"moment": datetime.fromtimestamp(float(row["x"] or 0.0) / 1000, UTC).strftime("%Y-%m-%d %H:%M")}


def _heat_map(
    panel: PlanePanel, sets: _DataSets, domain: tuple[float, float], side: Literal["right", "bottom"] | None
) -> "LayerChart":
    import altair as alt

    if panel.signed:
        most = max(map(abs, domain)) or 1.0
        scale = alt.Scale(domain=[-most, 0, most], range=list(_DIFFERENCE))
    else:
        scale = alt.Scale(type="sqrt", scheme="viridis", domain=list(domain), nice=False)
    legend = alt.Legend(title=panel.label.split("\n"), titleLimit=_LABEL, orient=side) if side else None
    return _plane(panel, sets, panel.title, "value", alt.Color("value:Q", scale=scale, legend=legend))


def _half_widths(panel: PlanePanel, sets: _DataSets) -> "LayerChart":
    import altair as alt

    scale = alt.Scale(scheme="viridis", domain=[0.0, float(np.nanmax(panel.half)) or 1.0], nice=False)
    legend = alt.Legend(title=["density", "linear colour scale"], titleLimit=_LABEL)
    return _plane(
        panel, sets, "half width of the 95 % interval", "half", alt.Color("half:Q", scale=scale, legend=legend)
    )


def _plane(panel: PlanePanel, sets: _DataSets, title: str, field: str, colour: "Color") -> "LayerChart":
    import altair as alt

    # A little more than half a cell: the ground would show between them.
    across, up = (_CELL * float(axis[1] - axis[0]) for axis in (panel.x, panel.y))
    rows: list[Row] = []
    for number, (value, half) in enumerate(zip(panel.value, panel.half, strict=True)):
        x, y = float(panel.x[number % len(panel.x)]), float(panel.y[number // len(panel.x)])
        sides: Row = {"x": x, "y": y, "left": x - across, "right": x + across, "below": y - up, "above": y + up}
        row = {**sides, **_values(value, value - half, value + half), "half": _finite(half)}
        if row[field] is not None:
            rows.append(row)
    x_axis = alt.X("left:Q", title=panel.x_label, scale=alt.Scale(nice=False, zero=False))
    y_axis = alt.Y("below:Q", title=panel.y_label, scale=alt.Scale(nice=False, zero=False))
    tooltip = [
        _number("x", panel.x_label),
        _number("y", panel.y_label),
        alt.Tooltip("shown:N", title=f"{panel.title}, 95 %"),
    ]
    cells = (
        alt.Chart(sets.add(rows))
        .mark_rect()
        .encode(x_axis, y_axis, alt.X2("right:Q"), alt.Y2("above:Q"), colour, tooltip=tooltip)
    )
    line = "black" if panel.signed and field == "value" else "white"
    layers = [
        cells,
        alt.Chart(sets.add([{"below": panel.crossing}])).mark_rule(color=line, strokeDash=[4, 3]).encode(y_axis),
    ]
    texts = [title + panel.where]
    if len(panel.named) and field == "value":
        of_named = [rows[at] for at in panel.named.tolist()]
        dots = alt.Chart(sets.add(of_named)).mark_point(size=4, filled=True, color="black", opacity=1.0)
        layers.append(
            dots.encode(alt.X("x:Q", title=panel.x_label), alt.Y("y:Q", title=panel.y_label), tooltip=tooltip)
        )
        texts.append(f"dots: {NAMED}")
    return alt.LayerChart(layer=layers).properties(title=texts)


def _bars(panel: BarPanel, sets: _DataSets) -> "LayerChart":
    import altair as alt

    rows: list[Row] = [
        {"name": name, **_values(value, value - half, value + half)}
        for name, value, half in zip(panel.names, panel.value, panel.half, strict=True)
    ]
    x = alt.X("name:N", title=None, sort=list(panel.names), axis=alt.Axis(labelAngle=0))
    colour = alt.Color("name:N", scale=alt.Scale(domain=list(panel.names), range=list(panel.colours)), legend=None)
    base = alt.Chart(sets.add(rows)).encode(x=x)
    tooltip = [alt.Tooltip("name:N", title="class"), alt.Tooltip("shown:N", title=f"{panel.y_label}, 95 %")]
    bars = base.mark_bar().encode(alt.Y("value:Q", title=panel.y_label), colour, tooltip=tooltip)
    errors = base.mark_rule(color="#777777", strokeWidth=1.5).encode(alt.Y("low:Q"), alt.Y2("high:Q"), tooltip=tooltip)
    return alt.LayerChart(layer=[bars, errors]).properties(title=panel.title)


def _steps(panel: StepPanel, sets: _DataSets) -> "LayerChart":
    import altair as alt

    cells = zip(panel.edges[:-1], panel.edges[1:], panel.value, panel.low, panel.high, strict=True)
    rows: list[Row] = [
        {"left": float(left), "right": float(right), **_values(*values)} for left, right, *values in cells
    ]
    x = alt.X("left:Q", title=panel.x_label, scale=alt.Scale(nice=False, zero=False))
    base = alt.Chart(sets.add(rows)).encode(x, alt.X2("right:Q"))
    tooltip = [
        _number("left", f"{panel.x_label} from"),
        _number("right", "to"),
        alt.Tooltip("shown:N", title=f"{panel.y_label}, 95 %"),
    ]
    low = alt.Y("low:Q", title=panel.y_label)
    band = base.mark_rect(opacity=0.25, color=RELEASED_COLOUR).encode(low, alt.Y2("high:Q"), tooltip=tooltip)
    line = base.mark_rule(color=RELEASED_COLOUR, strokeWidth=1.6).encode(
        alt.Y("value:Q", title=panel.y_label), tooltip=tooltip
    )
    return alt.LayerChart(layer=[band, line])


def _number(field: str, label: str) -> "Tooltip":
    from altair import Tooltip

    return Tooltip(f"{field}:Q", title=label.split("\n", maxsplit=1)[0], format=".5~g")


def _values(value: float, low: float, high: float) -> Row:
    """A value, the ends of its interval, and both as text; None in place of NaN."""
    if math.isnan(value):
        shown = "nearly all is noise"
    elif math.isnan(low):
        shown = f"{value:.4g}"
    elif math.isclose(high - value, value - low, rel_tol=1e-6, abs_tol=1e-12):
        shown = f"{value:.4g} ± {(high - low) / 2:.2g}"
    else:
        shown = f"{value:.4g} ({low:.4g} to {high:.4g})"
    return {"value": _finite(value), "low": _finite(low), "high": _finite(high), "shown": shown}


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None
