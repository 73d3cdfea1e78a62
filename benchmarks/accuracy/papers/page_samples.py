"""The section of density sketches on the papers' page."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.accuracy.curves import PURE
from benchmarks.accuracy.papers import figures, samples
from benchmarks.accuracy.papers.contests import against
from benchmarks.accuracy.papers.figures import Panel, best, label, lines_of
from benchmarks.accuracy.papers.page_tables import errors_table, names, ratios_table
from benchmarks.accuracy.tables import markdown, matching, number
from benchmarks.report import Row


def section(rows: Sequence[Row], folder: Path | None) -> str:
    """Distances, capture ratios, and errors beside their bound."""
    distances = matching(rows, metric=samples.DISTANCE)
    panels = [Panel(data, matching(distances, data=data), samples.DISTANCE) for data in names(rows)]
    figures.draw(folder, "samples.png", panels)
    chosen = [_best_sizes(matching(distances, data=data), rows) for data in names(rows)]
    captured = [Panel(str(some[0]["data"]), some, samples.CAPTURED, logarithmic=False) for some in chosen]
    figures.draw(folder, "samples-captured.png", captured, highest=True)
    tables = "\n".join(_tables(matching(distances, data=data), data) for data in names(rows))
    return f"""## Density sketches: sampling

Synthetic records are drawn from the heavy cells of a grid. The figures compare the distribution over cells that they
are drawn from with that of the records: the total variation distance is the share of the records that would have to
move. *Mixture of normals* has 50,000 records of a known density in two columns and 64 by 64 cells, *taxi* cells of
side 0.01°, *skin* 4,096 cells of side 16.

![Total variation distances against ε on three data sets](papers/samples.png)

*Lower is better. Independent columns cannot fall below what the columns' dependence is worth.*

A density sketch is a count sketch with K rows and 16,384 buckets, double geometric noise for ε, and the fullest 64,
256 or 1,024 cells. *Noisy grid* is Laplace noise on each cell with negative ones cut off. Hushsum is `partition` with
one row of cells that do not collide, without `levels`; its size is how many standard deviations make a cell heavy (4
is the default).

{tables}
{against(distances, (samples.COLUMNS, samples.SKETCH))}

![Capture ratios against ε on three data sets](papers/samples-captured.png)

*Higher is better: the share of the records that are in cells from which is drawn, at the sizes of the first figure.
Without noise it is the paper's capture ratio.*

{_bounds(rows)}
"""


def _tables(rows: Sequence[Row], data: str) -> str:
    grids = ratios_table(rows, samples.GRID, half=False)
    return f"**{data}**, {samples.DISTANCE}:\n\n{errors_table(rows)}\n\n{grids}\n"


def _best_sizes(distances: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """The capture ratios of the sizes with the least distance."""
    found = []
    for method, delta in lines_of(distances):
        some = matching(distances, method=method, delta=delta)
        for epsilon in dict.fromkeys(row["epsilon"] for row in some):
            size = best(matching(some, epsilon=epsilon))
            known = {key: size[key] for key in ("data", "method", "size", "epsilon", "delta")}
            found += matching(rows, metric=samples.CAPTURED, **known)
    return found


def _bounds(rows: Sequence[Row]) -> str:
    """The IMSE of the mixture beside the bound of theorem 5."""
    errors, bounds = (matching(rows, metric=metric) for metric in (samples.IMSE, samples.BOUND))
    lines, kept = [], 0
    for row in errors:
        known = {key: row[key] for key in ("data", "method", "size", "epsilon", "delta")}
        (bound,) = matching(bounds, **known)
        kept += float(row["most"]) <= float(bound["least"])
        if row["delta"] == PURE and row["epsilon"] in (0.1, 1.0):
            method = label((str(row["method"]), float(row["delta"])))
            values = [
                f"{row['size']:g}",
                f"{row['epsilon']:g}",
                number(float(row["median"])),
                number(float(bound["median"])),
            ]
            lines.append([method, *values])
    return f"""The paper's theorem 5 bounds the IMSE of samples by 12 (1 − capture ratio)² plus three times the
IMSE of all cells. Its proof takes ∫g² to be at most (∫|g|)², which holds only where cells have a volume of at least 1:
the bound depends on the unit of length. Here that unit is the side of a cell, and the bound holds in {kept} of
{len(errors)} settings. It is far from tight where much is left out:

{markdown(["method", "size", "ε", "IMSE", "bound"], lines)}"""
