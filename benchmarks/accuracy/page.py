"""The page ``docs/accuracy.md``: tables and figures from the rows of a run."""

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.accuracy import conclusions, findings, histogram, mode_page, plots, postprocessing_page, quantiles
from benchmarks.accuracy.curves import DELTAS, NO_NOISE, PURE, SMALL_DELTA
from benchmarks.accuracy.subjects import ABSOLUTE, RELATIVE, SUBJECTS
from benchmarks.accuracy.tables import (
    at_delta,
    classifiers_table,
    coverage_table,
    draws_table,
    errors_table,
    estimators_table,
    matching,
    regression_table,
)
from benchmarks.report import Row

_OPENING: Final = """# Accuracy

This page compares private answers with exact kernel sums over real data. `make bench-accuracy` repeats all measurements
and writes this page, its figures and `benchmarks/results/accuracy.json`. It takes at most twenty minutes on two cores;
`ARGS=--quick` is a short test run. Data is read from `../shared/data`.

Every noised figure is a real release: a plan, a sketch, and `hs.release(sketch, epsilon=..., delta=...)` with exact
discrete Laplace noise at δ = 0. At δ = 10⁻⁶ the noise is exact discrete Gaussian, or Laplace where that has the smaller
variance (few rows, cells, low orders). The unit is `record`, and the noisy count is included. The noise
is real, so the figures change a little from run to run.

- **Mean relative error**, |f̂ − f|/f averaged over queries, as in RACE: skin, covtype, pay.
- **Mean absolute error of densities**, |f̂/n̂ − f/n| averaged over queries, as in LSQ (n̂ is the noisy count; LSQ's code
  divides by the exact one): taxi, slashdot.

Each is averaged over several sketches with different public seeds (the JSON has their number and the standard error).
All queries of one sketch share its hash functions, so their errors are correlated, and one sketch says little.

The tables show the least error over all sizes that were tried (R rows, P frequency pairs, or the order), with that
size. **A size that is chosen from exact sums is not a private choice.** The figures show the error of other sizes. The
star is R\\* of `hushsum plan advise` for pure ε: the number of rows with the least sum of the predicted variance of
hashing and the variance of the noise. The variance of hashing is predicted from the kernel's collision probabilities at
made-up records. R\\* uses the number of records and their mean kernel, as a public guess would, and nothing else of the
data.
*The mean* is the error of answering every query with the mean of all exact answers. A sketch with a larger error says
nothing about where the records are.
"""


def write(path: Path, rows: Sequence[Row]) -> None:
    """Writes the page, and its figures into the folder ``accuracy`` beside it."""
    for subject in SUBJECTS:
        some = matching(rows, part="curve", data=subject.data)
        if some:
            stars = matching(rows, part="best rows", data=subject.data)
            best = {(str(row["sketch"]), float(row["epsilon"])): int(row["rows"]) for row in stars}
            for delta in DELTAS:
                figure = path.parent / "accuracy" / _figure(subject.data, delta)
                title = f"{subject.data}: {_METRICS[subject.metric]}, {_at(delta)}"
                plots.draw(figure, title, at_delta(some, delta), subject.metric, {} if delta else best)
    mode_page.draw(path.parent / "accuracy", rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(rows), "utf-8")


def text(rows: Sequence[Row]) -> str:
    """The page in Markdown."""
    parts = [_OPENING]
    parts += [_subject(index, rows) for index in range(len(SUBJECTS))]
    for title, part, render in _PARTS:
        some = matching(rows, part=part)
        if some:
            parts.append(f"## {title}\n\n{render(some)}\n")
    parts += [_estimators(rows), histogram.section(matching(rows, part="histogram"))]
    parts += [postprocessing_page.section(rows), quantiles.section(matching(rows, part="quantiles"))]
    parts += [mode_page.section(rows), findings.closing(rows)]
    return "\n\n".join(wrapped(one) for one in "\n".join(filter(None, parts)).split("\n\n")) + "\n"


def wrapped(paragraph: str) -> str:
    """Prose in lines of equal length; tables, figures, headings and lists as they are."""
    paragraph = paragraph.strip("\n")
    if paragraph.startswith(("|", "!", "#", "- ")):
        return paragraph
    return textwrap.fill(paragraph, 118, break_long_words=False, break_on_hyphens=False)


def _subject(index: int, rows: Sequence[Row]) -> str:
    subject = SUBJECTS[index]
    some = matching(rows, part="curve", data=subject.data)
    if not some:
        return ""
    about = matching(rows, part="about", data=subject.data)[0]
    constants = {
        str(row["sketch"]): float(row[subject.metric]) for row in matching(rows, part="kernel", data=subject.data)
    }
    pure, small = (errors_table(subject.data, subject.metric, some, constants, delta) for delta in DELTAS)
    metric = _METRICS[subject.metric]
    found = findings.of_subject(subject.data, rows)
    return f"""## {subject.data}

{about["text"]}. Public parameters: {about["setting"]}.

![{subject.data}: {metric} against rows, pure ε](accuracy/{_figure(subject.data, PURE)})

*{metric.capitalize()} against rows, pairs or order at δ = 0, for ε from 0.01 (light) to 1 (dark) and without noise
(black, broken); the star is R\\*, if it is within the figure.*

![{subject.data}: {metric} against rows, δ = 10⁻⁶](accuracy/{_figure(subject.data, SMALL_DELTA)})

*The same at δ = 10⁻⁶.*

{metric.capitalize()} at **δ = 0**: the least of all sizes, and in brackets that size:

{pure}

The same at **δ = 10⁻⁶**:

{small}
{found}"""


def _figure(data: str, delta: float) -> str:
    return f"{data}-delta.png" if delta else f"{data}.png"


def _at(delta: float) -> str:
    return "δ = 10⁻⁶" if delta else "pure ε"


def _draws(rows: Sequence[Row]) -> str:
    return f"""Mean relative error without noise, ± its standard error over 12 to 32 sketches. `sobol` is the default of
plans, with 8 independently scrambled sets. With fewer sets each set is larger, and error bars have fewer degrees of
freedom.

{draws_table(matching(rows, epsilon=NO_NOISE))}
{conclusions.of_draws(rows)}"""


def _coverage(rows: Sequence[Row]) -> str:
    return f"""The share of queries with the exact sum inside the stated 95 % interval, over the same sketches, without
noise and with ε = 0.1.

{coverage_table([row for row in rows if row["draws"] != "orthogonal"])}
{conclusions.of_coverage(rows)}"""


def _regression(rows: Sequence[Row]) -> str:
    return f"""Least squares from one released sketch of the paired family (`hushsum.estimators.LinearRegressor`, power
4): the median R² on the records over five sketches, at the best number of rows. `slope` is y = x/2 plus noise of the
same strength. Columns are standardised and clipped at ± 3 with constants that count as public.

{regression_table(rows)}
{conclusions.of_regression(rows)}"""


def _estimators(rows: Sequence[Row]) -> str:
    some, peers = matching(rows, part="estimators"), matching(rows, part="peers")
    if not some:
        return ""
    return f"""## Estimators at ε = 1

`hushsum.estimators`, each with the plan proposed from public bounds: the median of five fits (and
their range). Classifiers are asked at 1,000 held-out records; *without noise* is the same kernel summed exactly over
the same records, for the plans of both δ where they differ, and of LinearClassifier a logistic regression. Detectors
are fitted without one label and asked at 1,000 held-out records and 1,000 of that label; scikit-learn's density has the
best of three bandwidths, on at most 20,000 records. *Bandwidth given* is the best of 0.05, 0.1, 0.2 and 0.4 of the
bounds, at δ = 0 and 10⁻⁶: what a user gets who knows the scale. It was chosen by these answers, which is not private.
Linear models are scored on the records themselves, beside least squares and AdaSSP (Wang 2018) at the same ε,
δ = 10⁻⁶ and the same bounds. *Standardised* bounds are three standard deviations, taken for public.
`make bench-accuracy ARGS=--estimators` measures this section alone.

{estimators_table(some)}
{conclusions.of_estimators(some)}{_classifiers(some, peers) if peers else ""}
"""


def _classifiers(rows: Sequence[Row], peers: Sequence[Row]) -> str:
    return f"""
Beside diffprivlib's classifiers at ε = 1 (δ = 0) on the same records: medians of 11 fits, and their range; the logistic
regression has the best of four penalties. The package's figures are at δ = 0 and 10⁻⁶. diffprivlib 0.6.6 needs
scikit-learn below 1.8: `build_tools/diffprivlib.txt` makes an environment for it.

{classifiers_table(rows, peers)}
{conclusions.of_classifiers(rows, peers)}"""


_METRICS: Final = {RELATIVE: "mean relative error", ABSOLUTE: "mean absolute error of densities"}
_PARTS: Final[tuple[tuple[str, str, Callable[[Sequence[Row]], str]], ...]] = (
    ("Independent rows, or Sobol rows", "draws", _draws),
    ("Coverage of the error bars", "draws", _coverage),
    ("Linear regression", "regression", _regression),
)
