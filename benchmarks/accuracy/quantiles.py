"""Quantiles of one release of cells beside those of OpenDP and of diffprivlib, which pay for each quantile.

Each quantile of theirs has its share of ε; a release has all of ε once. diffprivlib needs an older scikit-learn than
this environment has: it is measured where it is installed, and left out elsewhere.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import hushsum as hs
from benchmarks.accuracy.data import DataSet, data_sets
from benchmarks.accuracy.postprocessing import UNSEEN
from benchmarks.accuracy.tables import markdown, matching, number
from benchmarks.report import Row
from hushsum.statistics import Statistics

Floats = npt.NDArray[np.float64]
Ask = Callable[[float], float]  # from a probability to a quantile, with noise of its own

#: With the number of cells of a release at that ε: fewer have less noise, more are narrower.
EPSILONS: Final[Mapping[float, int]] = {0.05: 512, 0.1: 512, 1.0: 4096}
QUESTIONS: Final[Mapping[str, tuple[float, ...]]] = {
    "median": (0.5,),
    "quartiles": (0.25, 0.5, 0.75),
    "deciles": tuple(tenth / 10 for tenth in range(1, 10)),
}
OURS: Final = "Hushsum"
_LEVELS: Final = 8
_CANDIDATES: Final = 4097  # of OpenDP, evenly between the bounds
_ASKED: Final = 40  # times, each with noise of its own
_PEERS_ASKED: Final = 24  # divided by the number of quantiles, but at least 4 times
_WANTED: Final = 1.5


def measure(*, quick: bool) -> list[Row]:
    """One row a data set, ε, question and library: errors in records and in the unit of the column."""
    rows: list[Row] = []
    for name in ("pay", "taxi", "covtype-2"):
        for data in data_sets([name], quick=quick):
            rows += _of(data, quick=quick)
            print(f"quantiles of {data.name}: measured", flush=True)
    return rows


def _of(data: DataSet, *, quick: bool) -> Iterator[Row]:
    values, bounds = np.sort(np.asarray(data.records[:, 0], np.float64)), _bounds(data)
    for epsilon, cells in EPSILONS.items():
        releases = _releases(values, bounds, epsilon, cells, 2 if quick else _ASKED)
        for question, probabilities in QUESTIONS.items():
            known: Row = {"data": data.name, "records": len(values), "epsilon": epsilon, "question": question}
            asked = [each.quantiles(probabilities).value.tolist() for each in releases]
            yield {**known, "library": OURS, **errors(values, probabilities, asked)}
            for library, peer in PEERS.items():
                if find_spec(library.lower()) is None:
                    continue
                ask = peer(values, bounds, epsilon / len(probabilities))
                times = 1 if quick else max(4, _PEERS_ASKED // len(probabilities))
                asked = [[ask(probability) for probability in probabilities] for _ in range(times)]
                yield {**known, "library": library, **errors(values, probabilities, asked)}


def errors(values: Floats, probabilities: tuple[float, ...], asked: list[list[float]]) -> Row:
    """Mean absolute errors of quantiles of sorted values: in records, and in the unit of the values.

    A quantile has no error in records where the wanted number of records is between those below and those up to it.
    """
    found, n = np.array(asked), len(values)
    wanted = np.array(probabilities) * n
    below, up_to = (np.searchsorted(values, found, side) for side in ("left", "right"))
    ranks = np.maximum(0.0, np.maximum(below - wanted, wanted - up_to))
    truth = np.quantile(values, probabilities, method="inverted_cdf")
    return {"rank error": float(ranks.mean()), "error": float(np.abs(found - truth).mean())}


def _bounds(data: DataSet) -> tuple[float, float]:
    low, high = (np.array(data.record[end], np.float64)[0] for end in ("lower", "upper"))
    return float(low), float(high)


def _releases(values: Floats, bounds: tuple[float, float], epsilon: float, cells: int, times: int) -> list[Statistics]:
    low, high = bounds
    side = (high - low) / cells * 1.000001  # the bounds are rounded to float32
    sketch = {"family": "partition", "bandwidth": side, "rows": 1, "buckets": cells, "levels": _LEVELS}
    record, privacy = {"dim": 1, "lower": [low], "upper": [high]}, {"epsilon": epsilon, "total_epsilon": epsilon}
    made = hs.Sketch(hs.Plan(name="quantiles", record=record, sketch=sketch, privacy=privacy)).add(values[:, None])
    return [Statistics(hs.release(made)) for _ in range(times)]


def _of_opendp(values: Floats, bounds: tuple[float, float], epsilon: float) -> Ask:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
    candidates, records = np.linspace(*bounds, _CANDIDATES).tolist(), values.tolist()

    @cache
    def measurement(probability: float) -> Any:
        def scaled(scale: float) -> Any:
            return dp.m.make_private_quantile(*space, dp.max_divergence(), candidates, probability, scale)

        return dp.binary_search_chain(scaled, d_in=1, d_out=epsilon)

    return lambda probability: float(measurement(probability)(records))


def _of_diffprivlib(values: Floats, bounds: tuple[float, float], epsilon: float) -> Ask:
    tools = import_module("diffprivlib.tools")
    return lambda probability: float(tools.quantile(values, probability, epsilon=epsilon, bounds=bounds))


PEERS: Final[Mapping[str, Callable[[Floats, tuple[float, float], float], Ask]]] = {
    "OpenDP": _of_opendp,
    "diffprivlib": _of_diffprivlib,
}


def section(rows: list[Row]) -> str:
    """All of it, or nothing where nothing was measured."""
    if not rows:
        return ""
    libraries = [OURS, *PEERS]
    header = ["data", "quantiles", "ε", *(f"{library}" for library in libraries), "over the best"]
    lines, ratios = [], dict[str, list[float]]()
    for row in matching(rows, library=OURS):
        some = {key: row[key] for key in ("data", "question", "epsilon")}
        each = {str(one["library"]): one for one in matching(rows, **some)}
        best = min((float(one["rank error"]) for name, one in each.items() if name != OURS), default=float("nan"))
        ratio = float(row["rank error"]) / best if best else math.inf  # the best found each quantile exactly
        ratios.setdefault(str(row["question"]), []).append(ratio)
        cells = [_cell(each[library]) if library in each else "not installed" for library in libraries]
        lines.append([*map(str, (row["data"], row["question"])), f"{row['epsilon']:g}", *cells, f"{ratio:.2f}"])
    within = {question: sum(ratio <= _WANTED for ratio in found) for question, found in ratios.items()}
    said = "; ".join(
        f"{question} {min(found):.2f} to {max(found):.2f} ({within[question]} of {len(found)} within {_WANTED})"
        for question, found in ratios.items()
    )
    return f"""## Quantiles

`Statistics(release).quantiles(…)` of the first column at δ = 0, from one release of 512 cells (at ε = 1 4,096) with
{_LEVELS} levels, beside OpenDP's `make_private_quantile` with {_CANDIDATES:,} evenly spaced candidates and
diffprivlib's `tools.quantile`, both the exponential mechanism. They pay for each quantile: the ε of each is that of the
table over their number. A release answers all of them, and whatever else is asked later, at one ε. Figures are mean
absolute errors in records (how many lie between the answer and the quantile), in brackets in the unit of the column:
dollars, degrees, metres. `make bench-accuracy ARGS=--quantiles` measures this section alone. diffprivlib 0.6.6 needs
scikit-learn below 1.8, so that it was measured in an environment of its own, by the same command.

{markdown(header, lines)}

Errors over those of the best of both: {said}. The aim was {_WANTED}. A mechanism
for one quantile spends ε on nothing else, so that it is better for one or three of them; the more quantiles are asked,
the less ε each of theirs has. The numbers of cells and levels were chosen on pay and taxi; {UNSEEN} had no part in
it. At ε = 1 the error of OpenDP is mostly the distance of its candidates.

Other designs do not reach the aim for a median. Of 256 to 4,096 cells at ε = 0.05 and 1,024 to 65,536 at ε = 1, each
with 2 to 12 levels, none had an error for the median of pay below 130 records at ε = 0.05 and 14 at ε = 1, or of
taxi below 100 and 10. At ε = 0.05, from 256 to 512 cells and from 5 to 9 levels, errors differ by
little more than the noise of the measurement. A mechanism for one quantile draws the answer itself; the
noise of a release is spread over all cells, because any quantile may be asked later.
"""


def _cell(row: Row) -> str:
    return f"{number(float(row['rank error']))} ({number(float(row['error']))})"
