"""Figures of the papers' page: one panel a data set, one line a method, from rows of the results."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.accuracy.tables import matching
from benchmarks.report import Row

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

Line = tuple[str, float]  # a method at a δ
#: Okabe and Ito's colours with a mark of each: told apart without colour vision, and in grey by the mark.
_OURS: Final = {"0": ("#0072b2", "o"), "1": ("#d55e00", "D")}
_OTHERS: Final = (
    ("#000000", "s"),
    ("#999999", "x"),
    ("#009e73", "^"),
    ("#cc79a7", "v"),
    ("#e69f00", "P"),
    ("#56b4e9", "<"),
    ("#a8a000", ">"),
)


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Attributes:
        title: Above it.
        rows: Of one data set and metric.
        y: Name of the vertical axis.
        x: The column of the horizontal axis, and its name.
        logarithmic: Whether the vertical axis is.
    """

    title: str
    rows: Sequence[Row]
    y: str
    x: tuple[str, str] = ("epsilon", "ε")
    logarithmic: bool = True


def label(line: Line) -> str:
    """As legends and tables name a method: Hushsum's with its δ."""
    method, delta = line
    return f"{method}, δ = {'10⁻⁶' if delta else '0'}" if method.startswith("Hushsum") else method


def lines_of(rows: Iterable[Row]) -> list[Line]:
    """Methods in the order of their first appearance, Hushsum's first."""
    found = list(dict.fromkeys((str(row["method"]), float(row["delta"])) for row in rows))
    return sorted(found, key=lambda line: not line[0].startswith("Hushsum"))


def best(rows: Iterable[Row], *, highest: bool = False) -> Row:
    """The row with the best median."""
    return (max if highest else min)(rows, key=lambda row: float(row["median"]))


def draw(folder: Path | None, name: str, panels: Sequence[Panel], *, highest: bool = False, columns: int = 3) -> None:
    """Writes one PNG: for each ε the median of the best size, and a band from the least to the most seed.

    Args:
        folder: None: draws nothing.
        name: Of the file.
        panels: In the order of reading.
        highest: Whether the best is the highest.
        columns: Panels beside each other.
    """
    if folder is None:
        return
    from matplotlib import pyplot as plt

    lines, styles = -(-len(panels) // columns), _styles(lines_of(row for panel in panels for row in panel.rows))
    wide = min(columns, len(panels))
    figure, axes = plt.subplots(
        lines, wide, figsize=(4.1 * wide, 3.1 * lines + 0.9), squeeze=False, layout="constrained"
    )
    drawn: dict[str, Artist] = {}
    for axis, panel in zip(axes.flat, panels, strict=False):
        _panel(axis, panel, styles, highest=highest)
        handles, labels = axis.get_legend_handles_labels()
        drawn |= dict(zip(labels, handles, strict=True))
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    figure.legend(
        list(drawn.values()),
        list(drawn),
        loc="outside lower center",
        ncols=min(3, len(drawn)),
        frameon=False,
        fontsize=8,
    )
    save(figure, folder / name)


def save(figure: object, path: Path) -> None:
    """Writes a figure, and frees it."""
    from matplotlib import pyplot as plt
    from matplotlib.figure import Figure

    assert isinstance(figure, Figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)


def _panel(axis: "Axes", panel: Panel, styles: Mapping[Line, tuple[str, str]], *, highest: bool) -> None:
    column, name = panel.x
    for line in lines_of(panel.rows):
        some = matching(panel.rows, method=line[0], delta=line[1])
        places = list(dict.fromkeys(float(row[column]) for row in some))  # seconds in the order of sizes
        chosen = [best(matching(some, **{column: place}), highest=highest) for place in places]
        colour, mark = styles[line]
        low, middle, high = ([float(row[key]) for row in chosen] for key in ("least", "median", "most"))
        axis.plot(places, middle, color=colour, marker=mark, markersize=4, linewidth=1.3, label=label(line))
        axis.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.set_xscale("log")
    if panel.logarithmic:
        axis.set_yscale("log")
    axis.set_title(panel.title, fontsize=10)
    axis.set_xlabel(name, fontsize=9)
    axis.set_ylabel(panel.y, fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(visible=True, which="major", color="#e4e4e4", linewidth=0.7)
    axis.spines[["top", "right"]].set_visible(False)


def _styles(lines: Sequence[Line]) -> dict[Line, tuple[str, str]]:
    ours = [line for line in lines if line[0].startswith("Hushsum")]
    rest = [line for line in lines if line not in ours]
    free = [*_OURS.values(), *reversed(_OTHERS)] if len(ours) > 2 else list(_OURS.values())
    first = {line: free[int(line[1] > 0)] if len(ours) <= 2 else free[place] for place, line in enumerate(ours)}
    return first | dict(zip(rest, _OTHERS, strict=False))
