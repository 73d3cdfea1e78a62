"""The page ``docs/papers.md``, and its figures in ``docs/papers``: from the saved rows and nothing else."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.accuracy.page import wrapped
from benchmarks.accuracy.papers import (
    contests,
    density,
    features,
    graphs,
    models,
    page_lsq,
    page_race,
    page_samples,
    samples,
    seconds,
)
from benchmarks.report import Row

#: From the rows of a section to its text; figures are written into the folder, if there is one.
Section = Callable[[Sequence[Row], Path | None], str]

_OPENING: Final = """# The papers' experiments

The experiments of three papers whose methods this project builds on, repeated at equal ε beside other methods:

- **RACE**: Coleman and Shrivastava, A One-Pass Distributed and Private Sketch for Kernel Sums, CCS 2021.
- **LSQ**: Wagner, Naamad and Mishra, Fast Private Kernel Density Estimation via Locality Sensitive Quantization, ICML
  2023.
- **Density sketches**: Density Sketches for Sampling and Estimation; its appendix.

"""
_READING: Final = """## How to read the figures and tables

- A value is the **median of {seeds} seeds**, with the least and the most of them in brackets and as a band; a seed has
  hash functions and noise of its own. The size follows in square brackets.
- Every method has the ε that the axis says, for adding or removing one record (δ = 0 unless the name says 10⁻⁶).
  Hushsum's figures are real releases: `hs.release(sketch, epsilon=..., delta=...)`, with the noisy number of records
  included.
- Each method is shown **at its best size** for each ε (rows, features, lattice points), as in the papers. A size that
  is chosen by these errors is not a private choice. It is the same for all methods.
- The other methods are small implementations in `benchmarks/baselines`, with noise of floats, and with the noise that
  their ε asks for. Where the authors' code adds less, that is shown too and marked. It is not private at that ε, and no
  fair comparison.
- An **error ratio** is Hushsum's median over the other method's. **loss** marks more than 1.05, tie 0.95 to 1.05, and
  **short** a ratio below that which misses the aim of half: densities and sums at δ = 10⁻⁶ for ε ≤ 0.1 against the
  paper's method. A ratio without a mark is below 0.95 and reaches its aim. Marks are of ratios before rounding.

`make paper-tables` measures, and writes this page, its figures and `benchmarks/results/papers_*.json`. `ARGS=--quick`
is a short test run, `ARGS=density` one experiment. Data is read from `../shared/data`; `python -m
benchmarks.fetch_data` fetches five of the data sets by their digests. Where a file is missing, a generated stand-in is
measured and printed, and this page is left as it is.
"""


def write(path: Path, rows: Sequence[Row]) -> None:
    """Writes the page, and its figures into the folder of its name beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(rows, path.with_suffix("")), "utf-8")


def text(rows: Sequence[Row], folder: Path | None = None) -> str:
    """The page in Markdown; its figures are written into this folder, if one is given."""
    seeds = max((int(row["seeds"]) for row in rows), default=0)
    parts = [_OPENING, contests.opening(rows), _READING.format(seeds=seeds)]
    if any("stand-in" in str(row["data"]) for row in rows):
        parts.append("**Data sets marked stand-in are generated**: their files were not there.\n")
    for shown, render in SECTIONS.items():
        if some := [row for row in rows if row["figure"] in shown]:
            parts.append(render(some, folder))
    return "\n\n".join(wrapped(one) for one in "\n".join(parts).split("\n\n")) + "\n"


#: By the figures whose rows they show.
SECTIONS: Final[Mapping[tuple[str, ...], Section]] = {
    (density.FIGURE,): page_race.densities,
    (seconds.FIGURE,): page_race.times,
    (models.CLASSES,): page_race.classes,
    (models.LINES,): page_race.lines,
    (graphs.ERRORS,): page_race.graph_errors,
    (graphs.TIMES,): page_race.graph_times,
    (features.ERRORS, features.TIMES): page_lsq.errors_and_times,
    (features.MAPS,): page_lsq.maps,
    (samples.FIGURE,): page_samples.section,
}
