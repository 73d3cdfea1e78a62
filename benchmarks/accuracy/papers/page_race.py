"""The sections of RACE's figures and tables on the papers' page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.accuracy.papers import density, figures, graphs, models, seconds
from benchmarks.accuracy.papers.contests import against
from benchmarks.accuracy.papers.figures import Panel, label, lines_of
from benchmarks.accuracy.papers.page_tables import errors_table, misses, names, ratios_table
from benchmarks.accuracy.tables import markdown, matching, number
from benchmarks.report import Row

#: Of the papers' tables, measured there: seconds of a sketch, and of a query.
_TABLE_3: Final = (
    ("the paper's RACE", "15", "0.4"),
    ("the paper's PrivBayes", "12", "500"),
    ("the paper's KME", "21,600", "1.2"),
    ("the paper's Bernstein mechanism", "198,720", ""),
    ("the paper's PFDA", "over 259,200", ""),
)


def densities(rows: Sequence[Row], folder: Path | None) -> str:
    """Figure 3."""
    of_densities = [row for row in rows if str(row["metric"]).endswith(density.DENSITIES)]
    metrics = {data: str(matching(of_densities, data=data)[0]["metric"]) for data in names(rows)}
    panels = [Panel(data, matching(of_densities, data=data), metrics[data]) for data in metrics]
    figures.draw(folder, "race-density.png", panels)
    parts = [
        """## RACE figure 3: densities

Kernel densities of salaries in San Francisco (*pay*: at 200 places from 10,000 to 250,000, w = 5,000), of skin tones
(*skin*: at 2,000 held-out records, w = 5) and of forest cover (*covtype*: at 2,000 held-out records, w = 20; the
paper's figure 7, here with 100,000 of its 580,000 records). The paper's NYC and codrna are not at hand. The error on
*pay* is the norm of the difference over that of the exact density, on *skin* and *covtype* the mean of |f̂ − f|/f.

![Errors of densities against ε on pay, skin and covtype](papers/race-density.png)

*Lower is better. Both axes are logarithmic. The flat grey line is the authors' code: raw counters of sensitivity R with
noise of scale R/(Nε), which is about Nε-private. It shows the error of hashing alone.*

RACE and Hushsum at δ = 0 have the same sizes: 1 to 2,048 rows, where the paper has 100 to 2,000. RACE estimates N
from its rows (algorithm 2), Hushsum from its count counter, or from its rows where they are fewer than 16. The
Bernstein mechanism, the cosine series (*spectral approximation*) and the histogram spend 5 % of ε on N. KME, PrivBayes
and PFDA are left out: they are large programs of others, of which the paper reports hours to days for the first and
the last.
"""
    ]
    for data, metric in metrics.items():
        some = matching(of_densities, data=data)
        sums = [row for row in matching(rows, data=data) if str(row["metric"]).endswith(density.SUMS)]
        parts.append(f"""**{data}**, {metric}:

{errors_table(some)}

{ratios_table(some, density.RACE)}

The same ratio of {density.SUMS}, for which neither method needs N:

{ratios_table(sums, density.RACE)}
""")
    parts.append(f"""A relative error of 1 is that of answering 0 everywhere. Where ε times the sum is
small, as on *covtype* up to ε = 0.01 (sums of about 450 records), the best sketch of both methods has one or a few
rows, its noise is of the size of the sums, and the seeds differ several times as much as the methods. At δ = 10⁻⁶ an
answer's Gaussian noise is about 5/ε records, whatever the rows: half of the error of a few rows of Laplace noise needs
larger sums.

Against the aims:

{misses(of_densities, density.RACE, "densities")}

Against the other methods:

{against(rows, (density.SPECTRAL, density.HISTOGRAM, density.BERNSTEIN))}

Rows of hashes work in any number of columns. For one column, as in *pay*, use a histogram (`partition`), or `hermite`
where a Gaussian kernel will do and ε is at least 0.1: [accuracy.md](accuracy.md) has its errors on *pay*.
""")
    return "\n".join(parts)


def times(rows: Sequence[Row], _: Path | None) -> str:
    """Table 3."""
    lines = []
    for line in lines_of(rows):
        some = {str(row["metric"]): row for row in matching(rows, method=line[0], delta=line[1])}
        cells = [
            number(float(some[metric]["median"])) if metric in some else ""
            for metric in (seconds.RELEASE, seconds.QUERY)
        ]
        lines.append([label(line), f"{float(next(iter(some.values()))['size']):g}", *cells])
    lines += [[name, "", *cells] for name, *cells in _TABLE_3]
    data = names(rows)[0]
    return f"""## RACE table 3: time

CPU seconds of one thread to release the density of *{data}*, from the records to noised counters at ε = 1, and
milliseconds of one query in a batch of 2,000 (the authors' code and the Bernstein mechanism: of 100). Medians of three.
The paper's own figures, of another machine, stand below.

{markdown(["method", "rows, or M", "release, s", "query, ms"], lines)}

Equal records are merged before the lattice of the Bernstein mechanism is summed (M = 20, 9,261 points). Its error, in
the figure above, rules it out in three columns before its time does.
"""


def classes(rows: Sequence[Row], folder: Path | None) -> str:
    """Figure 4."""
    panels = [Panel(data, matching(rows, data=data), models.ERROR) for data in names(rows)]
    figures.draw(folder, "race-classes.png", panels)
    tables = "\n".join(f"**{data}**:\n\n{errors_table(matching(rows, data=data))}\n" for data in names(rows))
    return f"""## RACE figure 4: classification

Two classes: pulsars (*htru2*, the paper's pulsar) and skin tones, as many records as the paper's sets have. The paper's
nomao and occupancy are not at hand. Each seed holds out a fifth of the records.

![Shares of wrong labels against ε on htru2 and skin](papers/race-classes.png)

*Lower is better. Both axes are logarithmic. A line above that of the commonest label is worse than no model.*

RACE has a sketch for each class, 100 buckets, 10 to 200 rows, and answers with the class of the larger density
(maximum likelihood). Its width 0.1 is the paper's for pulsars; 0.4 is wider. Hushsum's estimators have the plans that
they propose from the bounds. diffprivlib's logistic regression has objective perturbation, as the paper's.

{tables}
{against(rows, (models.RACE_CLASSES, models.LOGISTIC, models.COMMONEST))}
"""


def lines(rows: Sequence[Row], folder: Path | None) -> str:
    """Figure 5."""
    shown = [row for row in rows if row["method"] != models.FUNCTIONAL]
    panels = [Panel(data, matching(shown, data=data), models.UNEXPLAINED) for data in names(rows)]
    figures.draw(folder, "race-lines.png", panels)
    tables = "\n".join(f"**{data}**:\n\n{errors_table(matching(rows, data=data))}\n" for data in names(rows))
    return f"""## RACE figure 5: linear regression

The share of the held-out variance that a linear model leaves unexplained, 1 − R²: 1 is no model, below is better. The
paper's gas data is not at hand. Columns have bounds of three standard deviations, taken for public.

![Unexplained shares against ε on airfoil and naval](papers/race-lines.png)

*Lower is better. diffprivlib's LinearRegression (the functional mechanism) is in the tables alone: most of its values
are far above the axis.*

RACE minimises its surrogate loss with 16 buckets a row, 100 or 1,000 rows, and coefficients of length at most 1:
without that bound its steps end far outside. AdaSSP is what the paper found best, at δ = 10⁻⁶.

{tables}
{against(rows, (models.RACE_LINES, models.ADA_SSP))}
"""


def graph_errors(rows: Sequence[Row], folder: Path | None) -> str:
    """Figure 6."""
    panels = [Panel(data, matching(rows, data=data), graphs.ABSOLUTE) for data in names(rows)]
    figures.draw(folder, "race-graphs.png", panels)
    parts = [
        f"**{data}**:\n\n{errors_table(matching(rows, data=data))}\n\n"
        f"{ratios_table(matching(rows, data=data), density.RACE)}\n"
        for data in names(rows)
    ]
    tables = "\n".join(parts)
    return f"""## RACE figure 6: social graphs

Sums of the Jaccard kernel over the neighbour sets of Slashdot (82,168 nodes) and of ego-Facebook (4,039 nodes), at
2,000 held-out nodes. The paper's larger graphs are not at hand. RACE has 100,000 buckets a row, Hushsum 65,536 up to
32 rows and 8,192 beyond. Sums need no number of records: Hushsum's plans of δ = 0 have no count counter. Both methods
are then the same, independent rows of MinHash with Laplace noise R/ε: at δ = 0 a ratio other than 1 comes from the
seeds.

![Errors of Jaccard sums against ε on slashdot and ego_facebook](papers/race-graphs.png)

*Lower is better. A line above that of the mean says nothing about single nodes: sums are small here, and noise is not.*

{tables}
{misses(rows, density.RACE, "sums")}
{against(rows, (graphs.CONSTANT,))}
"""


def graph_times(rows: Sequence[Row], _: Path | None) -> str:
    """Table 4."""
    cells = [
        [str(row["data"]), str(row["method"]), str(row["metric"]), f"{row['size']:g}", number(float(row["median"]))]
        for row in rows
    ]
    return f"""## RACE table 4: time on graphs

CPU seconds of one thread for all sets, and microseconds of a query in a batch of 2,000. The paper has 25 seconds and
157 microseconds on Slashdot, with 90 threads.

{markdown(["data", "method", "measure", "rows", "value"], cells)}
"""
