"""The sections of LSQ's figures on the papers' page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.accuracy.curves import NO_NOISE, PURE, SMALL_DELTA
from benchmarks.accuracy.papers import features, figures
from benchmarks.accuracy.papers.figures import Line, Panel
from benchmarks.accuracy.papers.page_tables import errors_table, names, ratios_table
from benchmarks.accuracy.tables import markdown, matching, number
from benchmarks.report import Row

_SHOWN: Final = (NO_NOISE, 0.05, 1.0)  # of figure 1
_LINES: Final[Sequence[Line]] = (
    (features.RFF, PURE),
    (features.FOURIER, PURE),
    (features.FOURIER, SMALL_DELTA),
    (features.FGT, PURE),
    (features.HERMITE, PURE),
    (features.HERMITE, SMALL_DELTA),
)


def errors_and_times(rows: Sequence[Row], folder: Path | None) -> str:
    """Figures 1 to 3."""
    errors = matching(rows, figure=features.ERRORS)
    return "\n".join([_errors(errors, folder), _times(matching(rows, figure=features.TIMES), errors, folder)])


def _errors(rows: Sequence[Row], folder: Path | None) -> str:
    """Figures 1 and 2."""
    sizes = [
        Panel(
            f"{data}, {'without noise' if epsilon == NO_NOISE else f'ε = {epsilon:g}'}",
            [
                row
                for row in matching(rows, data=data, epsilon=epsilon)
                if (row["method"], row["delta"]) in _LINES and (epsilon or not row["delta"])
            ],
            "mean absolute error",
            x=("size", "features, pairs, or terms a column"),
        )
        for data in names(rows)
        for epsilon in _SHOWN
    ]
    figures.draw(folder, "lsq-sizes.png", sizes)
    noised = [row for row in rows if row["epsilon"] != NO_NOISE]
    shown = [row for row in noised if features.EXACT_N not in str(row["method"])]
    panels = [Panel(data, matching(shown, data=data), "mean absolute error") for data in names(rows)]
    figures.draw(folder, "lsq-errors.png", panels)
    parts = [
        """## LSQ figure 1: errors against size

Gaussian densities of taxi pick-ups (*taxi*, two columns, σ = 0.01°) and of forest cover (*covtype*, 54 columns, σ =
500), each seed asked at 100 held-out records of its own. The paper's diabetes and GloVe are not at hand.

![Errors against the number of features or terms, without noise and at two ε](papers/lsq-sizes.png)

*Lower is better. Left without noise: larger is better for all. With noise, a larger sketch of δ = 0 has more noise, so
that its line turns up. At δ = 10⁻⁶ the noise of a `fourier` answer does not depend on the number of pairs: its line
falls until the noise is reached, and stays there.*

`fourier` counts pairs, of which each is two counters; LSQ-RFF counts single features. Terms are those of one column
(`hermite` and LSQ-FGT).

## LSQ figure 2: errors against ε

![Errors of gaussian densities against ε on taxi and covtype](papers/lsq-errors.png)

*Lower is better; every method at its best size. NoisySample gives every query the same answer.*

LSQ-FGT has the exact sensitivity of its moments, which is less than the ρ^d of the paper. Both LSQ methods and the
Bernstein mechanism spend 5 % of ε on the number of records, as Hushsum does. The authors' code divides by the exact
number instead, which add/remove neighbours do not allow: those rows of the tables are marked.
"""
    ]
    for data in names(rows):
        some = matching(noised, data=data)
        parts.append(f"**{data}**, {features.ABSOLUTE}:\n\n{errors_table(some)}\n")
        peers = ((features.RFF, features.FOURIER), (features.FGT, features.HERMITE))
        for peer, ours in peers:
            if matching(some, method=peer):
                parts.append(ratios_table(some, peer, ours) + "\n")
    return "\n".join(parts)


def _times(rows: Sequence[Row], errors: Sequence[Row], folder: Path | None) -> str:
    panels, lines = [], []
    for data in names(rows):
        some = []
        for row in matching(rows, data=data):
            wanted = {key: row[key] for key in ("data", "method", "size", "epsilon", "delta")}
            for error in matching(errors, **wanted):
                some.append({**error, "seconds": row["median"]})
                lines.append(
                    [
                        data,
                        figures.label((str(row["method"]), float(row["delta"]))),
                        f"{row['size']:g}",
                        number(float(row["median"])),
                        number(float(error["median"])),
                    ]
                )
        panels.append(Panel(data, some, "mean absolute error", x=("seconds", "CPU seconds of the curator")))
    figures.draw(folder, "lsq-times.png", panels)
    header = ["data", "method", "size", "seconds", "error at ε = 0.05"]
    return f"""## LSQ figure 3: errors against the curator's time at ε = {features.TIMED:g}

![Errors against CPU seconds on taxi and covtype](papers/lsq-times.png)

*Left and low is better: one mark a size. Seconds are CPU seconds of one thread, from the records to the noised counters
(the median of three).*

{markdown(header, lines)}
"""


def maps(rows: Sequence[Row], folder: Path | None) -> str:
    """Figure 6."""
    if folder is not None:
        _draw_maps(folder, rows)
    lines = [
        [figures.label((str(row["method"]), float(row["delta"]))), f"{row['epsilon']:g}", number(float(row["median"]))]
        for row in rows
        if row["epsilon"] != NO_NOISE
    ]
    return f"""## LSQ figure 6: maps

Densities of taxi pick-ups in Manhattan and around on a grid of {features.MAP_SHAPE[1]} by {features.MAP_SHAPE[0]}
places, from the fast Gauss transform of order {features.MAP_ORDER}: as LSQ has it, and as releases of `hermite`.

![Maps of taxi pick-ups: exact, LSQ-FGT and Hushsum at three ε](papers/lsq-maps.png)

*All maps have one colour scale, the square root of the density up to the exact maximum. At ε = 0.01 the noise is as
dense as most of the map, at ε = 1 the maps look like the exact one.*

{markdown(["map", "ε", features.ABSOLUTE], lines)}
"""


def _draw_maps(folder: Path, rows: Sequence[Row]) -> None:
    from matplotlib import pyplot as plt

    lines: list[Line] = [(features.FGT, PURE), (features.HERMITE, PURE), (features.HERMITE, SMALL_DELTA)]
    exact = matching(rows, epsilon=NO_NOISE)[0]
    epsilons = features.MAP_EPSILONS
    figure, axes = plt.subplots(len(lines), len(epsilons) + 1, figsize=(9.2, 6.6), layout="constrained", squeeze=False)
    for line, row_axes in zip(lines, axes, strict=True):
        shown = [exact, *(matching(rows, method=line[0], delta=line[1], epsilon=e)[0] for e in epsilons)]
        for axis, row in zip(row_axes, shown, strict=True):
            pixels = np.frombuffer(bytes.fromhex(str(row["pixels"])), np.uint8).reshape(features.MAP_SHAPE)
            axis.imshow(pixels, cmap="viridis", vmin=0, vmax=255, aspect="auto")
            axis.set_title(f"ε = {row['epsilon']:g}" if row["epsilon"] else "exact", fontsize=9)
            axis.set_xticks([])
            axis.set_yticks([])
        row_axes[0].set_ylabel(figures.label(line), fontsize=9)
    figures.save(figure, folder / "lsq-maps.png")
