"""Figures of the modes: error against the number of records, and against ε."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.accuracy.mode_tables import THE_MEAN, epsilons_of, modes_of, numbers_of
from benchmarks.accuracy.tables import matching
from benchmarks.report import Row

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

_MIDDLE: Final = 2.0  # ε of the panel against n
#: Okabe and Ito's, told apart without colour vision, and by their marks.
_STYLES: Final = {
    "central, δ = 0": ("#000000", "o", "--"),
    "central, δ = 10⁻⁶": ("#000000", "s", "-"),
    "secure": ("#009e73", "D", "-"),
    "local silo, 100": ("#56b4e9", "^", "-"),
    "local silo, 1,000": ("#0072b2", "v", "-"),
    "local, k-rr": ("#d55e00", "o", "-"),
    "local, projective": ("#cc79a7", "x", "--"),
    "local, one-bit": ("#d55e00", "P", "-"),
}


def draw_modes(path: Path, title: str, rows: Sequence[Row], metric: str) -> None:
    """Writes the figure of one data set as PNG: a line of panels for each sketch, both axes logarithmic.

    Args:
        path: Of the file.
        title: Above the panels.
        rows: Of :func:`benchmarks.accuracy.modes.measure_modes`, of one data set.
        metric: The column to draw.
    """
    from matplotlib import pyplot as plt
    from matplotlib.ticker import LogLocator

    sketches = list(dict.fromkeys(str(row["sketch"]) for row in rows))
    shape = (len(sketches), 2)
    size = (9.6, 3.5 * len(sketches) + 1.1)
    figure, axes = plt.subplots(*shape, figsize=size, sharey=True, squeeze=False, layout="constrained")
    most, epsilons = numbers_of(rows)[-1], epsilons_of(rows)
    middle = min(epsilons, key=lambda epsilon: abs(epsilon - _MIDDLE))
    for sketch, (left, right) in zip(sketches, axes, strict=True):
        some = matching(rows, sketch=sketch)
        constant = float(matching(some, mode=THE_MEAN, n=most)[0][metric])
        for mode in modes_of(some):
            _line(left, mode, matching(some, mode=mode, epsilon=middle), "n", metric)
            _line(right, mode, matching(some, mode=mode, n=most), "epsilon", metric)
        for panel in (left, right):
            panel.axhline(constant, color="0.55", linewidth=1.0, linestyle=":", label="answering the mean")
        left.set_title(f"{sketch}, ε = {middle:g}", fontsize=10)
        right.set_title(f"{sketch}, n = {most:,}", fontsize=10)
        left.set_ylabel({"relative error": "mean relative error"}.get(metric, "mean absolute error of densities"))
        left.set_xlabel("records n", fontsize=9)
        right.set_xlabel("ε of one record", fontsize=9)
        left.set_xticks(numbers_of(some), [f"{n:,}" for n in numbers_of(some)])
        right.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        left.minorticks_off()
        right.minorticks_off()
    axes[0, 0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes[0, 0].yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    handles: dict[str, Artist] = {}
    for panel in axes[:, 1]:
        drawn, names = panel.get_legend_handles_labels()
        handles |= dict(zip(names, drawn, strict=True))
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _line(panel: "Axes", mode: str, rows: Sequence[Row], across: str, metric: str) -> None:
    colour, mark, style = next(style for name, style in _STYLES.items() if mode.startswith(name))
    some = sorted(rows, key=lambda row: float(row[across]))
    places, errors = [float(row[across]) for row in some], [float(row[metric]) for row in some]
    panel.plot(places, errors, style, color=colour, marker=mark, markersize=4.5, linewidth=1.4, label=mode)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.tick_params(labelsize=8.5, which="both")
    panel.grid(visible=True, which="major", color="#e4e4e4", linewidth=0.7)
    panel.spines[["top", "right"]].set_visible(False)
