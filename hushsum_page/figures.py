"""Figures of the page: what an address asks to see of a release, its pictures, its tables, its files and its code."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from io import BytesIO, StringIO
from threading import Lock
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.comparison import Comparison
from hushsum.drift import Drift
from hushsum.errors import PlanError
from hushsum.families import SetRecords
from hushsum.panels import (
    BarPanel,
    LinePanel,
    Panel,
    Panels,
    PlanePanel,
    StepPanel,
    View,
    common_view,
    default_kind,
    densest_view,
    density_panels,
    difference_panels,
    over_time_panels,
    release_panels,
)
from hushsum.plan import Plan
from hushsum.query import Queryable
from hushsum.releases import Series
from hushsum.statistics import Statistics
from hushsum_page.pictures import Picture, pictures
from hushsum_page.questions import QuestionError

Floats = npt.NDArray[np.float64]

#: What kinds of figures are called, in the order in which they are offered.
KIND_NAMES: Final = {
    "density": "density",
    "pairs": "pairs of columns",
    "classes": "classes",
    "cdf": "distribution and quantiles",
}
_ROWS_MAX: Final = 26  # of a table beside a picture; the CSV file has all
_SIDE_MAX: Final = 9  # points along each side of a table of a plane
_QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
_COLUMNS_MAX: Final = 200  # that are offered
_DRAWING: Final = Lock()  # matplotlib's theme is one for all threads


@dataclass(frozen=True)
class Choice:
    """What an address asks to see.

    Attributes:
        kind: Of :data:`KIND_NAMES`; None: what suits the plan.
        columns: Numbers of the columns of a density or of shares; empty: the first ones.
        held: Numbers of columns and the values at which they are held, in ascending order.
    """

    kind: str | None = None
    columns: tuple[int, ...] = ()
    held: tuple[tuple[int, float], ...] = ()


class Table:
    """Numbers beside a picture.

    Args:
        caption: What they are.
        heads: Of the columns.
        rows: Texts.
        is_part: Whether it has only some of the picture's values.
    """

    def __init__(self, caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, is_part: bool) -> None:
        self.caption, self.heads, self.rows, self.is_part = caption, heads, rows, is_part


@dataclass(frozen=True)
class Drawn:
    """A figure as the page shows it.

    Attributes:
        kind: Of :class:`hushsum.panels.Panels`.
        title: Its first line.
        notes: The other lines of its title.
        rows: Its pictures, row by row.
        tables: The same as numbers.
        held: Of a density, the columns that are held and where, by their numbers.
        columns: Of a density, the columns that vary.
    """

    kind: str
    title: str
    notes: tuple[str, ...]
    rows: list[list[Picture]]
    tables: list[Table]
    held: tuple[tuple[int, float], ...] = ()
    columns: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return 2000 + sum(len(each.svg) for row in self.rows for each in row)


def is_drawable(plan: Plan) -> bool:
    """Whether there are pictures of its releases: not of sets, and not of models."""
    return not isinstance(plan.record, SetRecords) and plan.family.name != "paired"


def kinds_of(release: Queryable) -> tuple[str, ...]:
    """The kinds of figures that a release has; none of sets and models."""
    plan = release.plan
    if not is_drawable(plan):
        return ()
    has_cells = plan.family.name == "partition"
    if has_cells:
        try:
            Statistics(release)
        except PlanError:  # cells collide, or are of reports
            has_cells = False
    offered = {"density": True, "pairs": plan.vectors.dim > 1, "classes": bool(plan.classes), "cdf": has_cells}
    return tuple(kind for kind in KIND_NAMES if offered[kind])


def column_names(plan: Plan) -> list[str]:
    """The names of the columns of a plan of vectors."""
    dim = min(plan.vectors.dim, _COLUMNS_MAX)
    return list(plan.collection.names[:dim]) or [f"x{column}" for column in range(dim)]


def choice_of(plan: Plan, parameters: Mapping[str, str]) -> Choice:
    """What the parameters of an address ask to see; those that are empty are left out.

    Raises:
        QuestionError: There is no such kind or column, or a value is no number.
    """
    if not is_drawable(plan):
        return Choice()
    dim = plan.vectors.dim
    kind = parameters.get("kind") or None
    if kind is not None and kind not in KIND_NAMES:
        raise QuestionError(f"kind: expected {', '.join(KIND_NAMES)}")
    columns = [_column(parameters[key], dim) for key in ("x", "y") if parameters.get(key)]
    if len(set(columns)) < len(columns):
        raise QuestionError("columns: expected two different ones")
    held = {
        _column(key.removeprefix("hold"), dim): _value(text)
        for key, text in parameters.items()
        if key.startswith("hold") and text.strip()
    }
    return Choice(kind, tuple(columns), tuple(sorted(held.items())))


def _column(text: str, dim: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) < dim):
        raise QuestionError(f"column: expected a number from 0 to {dim - 1}")
    return int(text)


def _value(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise QuestionError(f"a column is held at a number, got {text.strip()[:40]!r}")
    return value


def _cut(view: View, choice: Choice) -> View:
    """The same, at the values that were chosen."""
    if not choice.held:
        return view
    held = list(view.held)
    for column, value in choice.held:
        held[column] = value
    return replace(view, held=tuple(held), is_highest=False)


def _columns(plan: Plan, choice: Choice) -> tuple[int, ...]:
    """One or two columns that vary: those that were chosen, and others where one of two is missing."""
    chosen = list(choice.columns)
    wanted = min(plan.vectors.dim, 2)
    others = (column for column in range(plan.vectors.dim) if column not in chosen)
    while len(chosen) < wanted:
        chosen.append(next(others))
    return tuple(chosen[:wanted])


def panels_of(release: Queryable, choice: Choice) -> tuple[Panels, View | None]:
    """The panels of a figure of a release; of a density where it cuts.

    Raises:
        PlanError: The plan has no such figure.
        ValueError: It has no such columns.
    """
    kind = choice.kind or ("density" if choice.held else default_kind(release))
    if kind == "density":
        view = _cut(densest_view(release, _columns(release.plan, choice)), choice)
        return density_panels(release, view=view), view
    return release_panels(release, kind=kind, columns=choice.columns or None), None


def drawn_release(release: Queryable, choice: Choice, *, asks: str) -> Drawn:
    """A figure of a release; errors are those of :func:`panels_of`."""
    panels, view = panels_of(release, choice)
    drawn = _drawn(panels, asks)
    if panels.kind == "cdf":
        drawn.tables.insert(0, _quantiles(release))
    if view is None:
        return replace(drawn, columns=choice.columns)
    return replace(drawn, held=tuple(enumerate(view.held)), columns=view.columns)


def drawn_difference(comparison: Comparison, choice: Choice) -> Drawn:
    """A figure of a difference.

    Raises:
        PlanError: The plan has no such figure.
        ValueError: It has no such columns, or too few rows for a test.
    """
    panels, view = difference_of(comparison, choice)
    return replace(_drawn(panels, ""), held=tuple(enumerate(view.held)), columns=view.columns)


def difference_of(comparison: Comparison, choice: Choice) -> tuple[Panels, View]:
    """The panels of a difference and where it cuts; errors are those of :func:`drawn_difference`."""
    view = _cut(common_view(comparison, _columns(comparison.first.plan, choice)), choice)
    return difference_panels(comparison, view=view), view


def drawn_series(series: Series, drift: Drift | None) -> Drawn:
    """A figure over time.

    Raises:
        PlanError: The plan has no densities.
    """
    return _drawn(over_time_panels(series, drift), "")


def _drawn(panels: Panels, asks: str) -> Drawn:
    title, *notes = panels.title.split("\n")
    tables = [_table(panel) for row in panels.rows for panel in row if panel is not None]
    if panels.kind == "pairs":
        tables = [each for each in tables if len(each.heads) == 4]
    return Drawn(panels.kind, title, tuple(notes), pictures(panels, asks=asks), tables)


# -------------------------------------------------------------------------------------------------------------- tables


def _text(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def _some(number: int, most: int) -> list[int]:
    """At most so many of the numbers below ``number``, with equal steps, the first and the last among them."""
    if number <= most:
        return list(range(number))
    return sorted({round(each) for each in np.linspace(0, number - 1, most).tolist()})


def _moment(milliseconds: float) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M}"


def _one_line(text: str) -> str:
    return text.partition("\n")[0]


def _table(panel: Panel) -> Table:
    if isinstance(panel, PlanePanel):
        across, down = _some(len(panel.x), _SIDE_MAX), _some(len(panel.y), _SIDE_MAX)
        grid, half = (each.reshape(len(panel.y), len(panel.x)) for each in (panel.value, panel.half))
        rows = [
            [_text(panel.y[row]), *(f"{_text(grid[row, at])} ± {_text(half[row, at])}" for at in across)]
            for row in reversed(down)
        ]
        heads = [f"{panel.y_label} ↓  {panel.x_label} →", *(_text(panel.x[at]) for at in across)]
        return Table(f"{panel.title}{panel.where}, ± half the 95 % interval", heads, rows, is_part=True)
    if isinstance(panel, BarPanel):
        rows = [
            [name, _text(value), _text(value - half), _text(value + half)]
            for name, value, half in zip(panel.names, panel.value.tolist(), panel.half.tolist(), strict=True)
        ]
        return Table(panel.title, ["class", panel.y_label, "from", "to"], rows, is_part=False)
    if isinstance(panel, StepPanel):
        chosen = _some(len(panel.value), _ROWS_MAX)
        rows = [
            [
                f"{_text(panel.edges[at])} to {_text(panel.edges[at + 1])}",
                *(_text(each[at]) for each in (panel.value, panel.low, panel.high)),
            ]
            for at in chosen
        ]
        is_part = len(chosen) < len(panel.value)
        caption = f"{panel.y_label}, 95 % interval"
        return Table(caption, [panel.x_label, panel.y_label, "from", "to"], rows, is_part=is_part)
    return _line_table(panel)


def _line_table(panel: LinePanel) -> Table:
    chosen = _some(len(panel.x), 200 if panel.is_time else _ROWS_MAX)
    many = len(panel.curves) > 1
    heads = [_one_line(panel.x_label)]
    for curve in panel.curves:
        heads += [f"{curve.name}, 95 % interval"] if many else [panel.y_label, "from", "to"]
    rows = []
    for at in chosen:
        row = [_moment(panel.x[at]) if panel.is_time else _text(panel.x[at])]
        for curve in panel.curves:
            value, low, high = (_text(float(each[at])) for each in (curve.value, curve.low, curve.high))
            row += [f"{value} ({low} to {high})"] if many else [value, low, high]
        rows.append(row)
    title = _one_line(panel.title) or f"{panel.y_label} along {_one_line(panel.x_label)}"
    return Table(title, heads, rows, is_part=len(chosen) < len(panel.x))


def _quantiles(release: Queryable) -> Table:
    statistics, names = Statistics(release), column_names(release.plan)
    rows = []
    for column, name in list(enumerate(names))[:5]:
        found = statistics.quantiles(_QUANTILES, column=column)
        for at, share in enumerate(_QUANTILES):
            numbers = (_text(float(each[at])) for each in (found.value, found.low, found.high))
            rows.append([name, f"{100 * share:g} %", *numbers])
    return Table(
        "Quantiles, with 95 % intervals", ["column", "share below", "value", "from", "to"], rows, is_part=False
    )


# --------------------------------------------------------------------------------------------------------------- files


def csv_of(panels: Panels) -> str:
    """All values of a figure as CSV: one block for each panel, with a line of names before it."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    for number, panel in enumerate(each for row in panels.rows for each in row if each is not None):
        if number:
            writer.writerow([])
        heads, rows = _values(panel)
        writer.writerow([_cell(head) for head in heads])
        writer.writerows([_cell(each) if isinstance(each, str) else each for each in row] for row in rows)
    return file.getvalue()


def _values(panel: Panel) -> tuple[list[str], Iterable[list[float | str]]]:
    if isinstance(panel, PlanePanel):
        x, y = (np.tile(panel.x, len(panel.y)), np.repeat(panel.y, len(panel.x)))
        heads = [panel.x_label, panel.y_label, panel.title, "half width of the 95 % interval"]
        return heads, (
            list(row) for row in zip(*(each.tolist() for each in (x, y, panel.value, panel.half)), strict=True)
        )
    if isinstance(panel, BarPanel):
        columns = (panel.names, panel.value.tolist(), panel.half.tolist())
        return ["class", panel.y_label, "half width of the interval"], (list(row) for row in zip(*columns, strict=True))
    if isinstance(panel, StepPanel):
        steps = (panel.edges[:-1], panel.edges[1:], panel.value, panel.low, panel.high)
        heads = [f"{panel.x_label} from", "to", panel.y_label, "low", "high"]
        return heads, (list(row) for row in zip(*(each.tolist() for each in steps), strict=True))
    heads, columns_of = [_one_line(panel.x_label)], [panel.x]
    for curve in panel.curves:
        heads += [curve.name, "low", "high"]
        columns_of += [curve.value, curve.low, curve.high]
    at: list[list[float | str]] = [list(each.tolist()) for each in columns_of]
    if panel.is_time:
        at[0] = [_moment(float(each)) for each in panel.x]
    return heads, (list(row) for row in zip(*at, strict=True))


def _cell(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    one_line = " ".join(text.split())
    return f"'{one_line}" if one_line[:1] in set("=+-@") else one_line


def png_of(panels: Panels, *, dark: bool) -> bytes:
    """A figure as PNG, drawn by :mod:`hushsum.plots`: hundreds of milliseconds."""
    from hushsum import plots  # matplotlib takes a second to load, and only pictures for downloading need it

    file = BytesIO()
    with _DRAWING, plots.theme(dark=dark):
        plots.draw(panels).savefig(file, format="png")
    return file.getvalue()


# ---------------------------------------------------------------------------------------------------------------- code


def code_of_figure(file: str, drawn: Drawn) -> str:
    """The lines of Python that draw the same figure of a release."""
    if drawn.kind != "density":
        columns = f", columns={list(drawn.columns)}" if drawn.columns else ""
        return "\n".join(
            [
                "import hushsum as hs",
                "",
                f"release = hs.load({file!r})",
                f'release.plot({drawn.kind!r}{columns}).savefig("figure.png")',
            ]
        )
    held = tuple(value for _, value in drawn.held)
    return "\n".join(
        [
            "import hushsum as hs",
            "from hushsum import panels, plots",
            "",
            f"release = hs.load({file!r})",
            f"view = panels.View({drawn.columns}, {held})",
            'plots.density_figure(release, view=view).savefig("figure.png")',
        ]
    )


def code_of_question(file: str, plan: Plan, point: Sequence[float], label: str | None) -> str:
    """The lines of Python that give the same answer."""
    of_class = "" if label is None else f", label={label!r}"
    numbers = [int(each) for each in point] if isinstance(plan.record, SetRecords) else [float(each) for each in point]
    return "\n".join(
        [
            "import hushsum as hs",
            "",
            f"release = hs.load({file!r})",
            f"answer = release.kernel_sum([{numbers!r}]{of_class})",
            "print(answer.value, answer.std_error, answer.interval(0.95))",
        ]
    )


def safe_name(text: str) -> str:
    """A name of a file without anything that a system or a header could misread."""
    kept = "".join(each if each.isascii() and (each.isalnum() or each in "-_") else "-" for each in text)
    return kept.strip("-")[:60] or "release"
