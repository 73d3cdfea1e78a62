"""Figures of the accuracy run: error against rows, one panel a sketch, one figure a data set."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from benchmarks.accuracy.curves import NO_NOISE
from benchmarks.accuracy.tables import number, size_name
from benchmarks.report import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]

_COLUMNS: Final = 3
_SIZES: Final = {"R": "rows R", "P": "pairs P", "order": "order"}
#: Without noise black and broken; ε from light to dark: told apart in grey, and by their marks.
_STYLES: Final = {
    0.01: ("#c6c6c6", "o"),
    0.02: ("#b9a3c9", "<"),
    0.05: ("#a6b7d8", "s"),
    0.1: ("#7d9cc9", "^"),
    0.2: ("#6a8fbd", ">"),
    0.5: ("#4a74ad", "D"),
    1.0: ("#1f3f77", "v"),
    NO_NOISE: ("#000000", "x"),
}
_FIGURE_EPSILONS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, NO_NOISE)


def draw(path: Path, title: str, rows: Sequence[Row], metric: str, best: dict[tuple[str, float], int]) -> None:
    """Writes the figure of one data set as PNG.

    Args:
        path: Of the file.
        title: Above the panels.
        rows: Of :func:`benchmarks.accuracy.curves.measure`, of all its sketches.
        metric: The column to draw.
        best: R* by label and ε, where there is one.
    """
    from matplotlib import pyplot as plt

    labels = list(dict.fromkeys(str(row["sketch"]) for row in rows))
    columns = _columns(len(labels))
    lines = -(-len(labels) // columns)
    size = (max(8.0, 3.6 * columns), 3.0 * lines + 0.9)
    figure, axes = plt.subplots(lines, columns, figsize=size, sharey=True, squeeze=False, layout="constrained")
    panels = list(axes.flat)
    panels[0].set_yscale("log")
    panels[0].set_ylim(*_limits(rows, metric))
    for panel, label in zip(panels, labels, strict=False):
        _panel(panel, label, [row for row in rows if row["sketch"] == label], metric, best)
    for panel in panels[len(labels) :]:
        panel.set_visible(False)
    for line in axes:
        line[0].set_ylabel({"relative error": "mean relative error"}.get(metric, "mean absolute error of densities"))
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False, handlelength=2.2)
    figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _panel(panel: "Axes", label: str, rows: Sequence[Row], metric: str, best: dict[tuple[str, float], int]) -> None:
    for epsilon in _FIGURE_EPSILONS:
        some = [row for row in rows if row["epsilon"] == epsilon]
        if not some:
            continue
        sizes = np.array([float(row["size"]) for row in some])
        errors = np.array([float(row[metric]) for row in some])
        colour, mark = _STYLES[epsilon]
        name = "no noise" if epsilon == NO_NOISE else f"ε = {epsilon:g}"
        style = "--" if epsilon == NO_NOISE else "-"
        panel.plot(sizes, errors, style, color=colour, marker=mark, markersize=4, linewidth=1.4, label=name)
        if epsilon == NO_NOISE and errors.min() < panel.get_ylim()[0]:
            note = f"without noise down to {number(float(errors.min()))}"
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            panel.text(0.97, 0.04, note, transform=panel.transAxes, ha="right", fontsize=8, bbox=box)
        star = best.get((label, epsilon))
        if star is not None and sizes[0] <= star <= sizes[-1]:
            height = np.exp(np.interp(np.log(star), np.log(sizes), np.log(errors)))
            panel.plot([star], [height], "*", color="#d55e00", markeredgecolor="white", markersize=13, zorder=5)
    if rows[0]["axis"] == "rows":
        panel.set_xscale("log", base=2)
    panel.set_title(label, fontsize=10)
    panel.set_xlabel(_SIZES[size_name(rows[0])], fontsize=9)
    panel.set_xticks(*_ticks([int(row["size"]) for row in rows]))
    panel.tick_params(labelsize=8.5)
    panel.grid(visible=True, which="major", color="#e4e4e4", linewidth=0.7)
    panel.spines[["top", "right"]].set_visible(False)


def _columns(panels: int) -> int:
    """Few lines, and few places left empty."""
    return panels if panels <= _COLUMNS + 1 else _COLUMNS if panels <= 2 * _COLUMNS else _COLUMNS + 1


def _limits(rows: Sequence[Row], metric: str) -> tuple[float, float]:
    """Of the errors; what errs by its noise alone would flatten all the rest, so that far below noise the axis ends."""
    noised = [float(row[metric]) for row in rows if row["epsilon"] != NO_NOISE]
    lowest = min(float(row[metric]) for row in rows)
    return max(lowest / 1.5, min(noised) / 20), 2 * max(noised)


def _ticks(sizes: Sequence[int]) -> tuple[list[int], list[str]]:
    values = sorted(set(sizes))
    some = values if len(values) <= 6 else values[::2]
    return some, [f"{value:,}" for value in some]
