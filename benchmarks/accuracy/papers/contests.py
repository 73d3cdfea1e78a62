"""Which methods the papers' page compares and with which aim, the marks, and the tables that open the page."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Final

from benchmarks.accuracy.curves import DELTAS, NO_NOISE
from benchmarks.accuracy.papers import density, features, graphs, models, samples
from benchmarks.accuracy.papers.figures import best, label
from benchmarks.accuracy.papers.tally import HUSHSUM
from benchmarks.accuracy.tables import markdown, matching
from benchmarks.report import Row

#: Ratios of errors within this of 1 are a tie.
TIE: Final = 0.05
#: The aim at the small δ up to this ε is half of the paper's error.
HALF_UP_TO: Final = 0.1
_NOT_PRIVATE: Final = "not ε-private"


class Mark(StrEnum):
    """What a ratio of errors is, as tables write it; a win has no mark."""

    LOSS = "**loss**"
    TIE = "tie"
    SHORT = "**short**"
    WIN = ""


@dataclass(frozen=True)
class Contest:
    """Two methods that are compared on each data set, at each δ and ε of both.

    Attributes:
        figure: Of a paper.
        what: Is compared.
        ours: The method of Hushsum.
        peer: The other method, by its name or the name before its parameters.
        advice: What to use where Hushsum loses.
        advice_with_delta: The same at the small δ, where it differs.
        metric: The end of the metric's name; empty: any.
        is_paper: Whether the other method is the paper's own: the aims are set against those.
        half: Whether half of the other method's error is an aim at the small δ up to :data:`HALF_UP_TO`.
        is_floor: Whether the other method ignores the attributes, so that a tie with it is of no use either.
    """

    figure: str
    what: str
    ours: str
    peer: str
    advice: str
    metric: str = ""
    advice_with_delta: str = ""
    is_paper: bool = False
    half: bool = False
    is_floor: bool = False


@dataclass(frozen=True)
class Comparison:
    """Hushsum's error over another method's, both at their best size.

    Attributes:
        data: The data set.
        delta: Of Hushsum.
        epsilon: Of both.
        ratio: Of the medians.
        aim: The largest ratio that reaches the aim.
    """

    data: str
    delta: float
    epsilon: float
    ratio: float
    aim: float

    @property
    def mark(self) -> Mark:
        """A loss errs more by over 5 %, a tie is within 5 %, and short is a win by less than the aim asks."""
        if self.ratio > 1 + TIE:
            return Mark.LOSS
        if self.ratio >= 1 - TIE:
            return Mark.TIE
        return Mark.SHORT if self.ratio > self.aim else Mark.WIN


_ONE_COLUMN: Final = "in one column a histogram: `partition`; `hermite` where a Gaussian kernel and ε ≥ 0.1 will do"
_MORE: Final = "a larger ε, a wider kernel or more records"
_FEW_RECORDS: Final = f"δ = 10⁻⁶ where it is not listed too; else {_MORE}"
_ONE_MODEL: Final = "diffprivlib, where one curator holds all records and wants this one model"
_NO_MODEL: Final = "a larger ε, or no model"
_CLASSES: Final = (models.CLASSES, "labels")
_LINES: Final = (models.LINES, "regression")
_GRAPHS: Final = (graphs.ERRORS, "graph sums")
_FEATURES: Final = (features.ERRORS, "densities")
_SAMPLES: Final = (samples.FIGURE, "samples")
_DENSITY: Final = (density.FIGURE, density.DENSITIES, HUSHSUM)

CONTESTS: Final = (
    Contest(*_DENSITY, density.RACE, _FEW_RECORDS, density.DENSITIES, _MORE, is_paper=True, half=True),
    Contest(
        density.FIGURE, density.SUMS, HUSHSUM, density.RACE, _FEW_RECORDS, density.SUMS, _MORE, is_paper=True, half=True
    ),
    *(
        Contest(*_DENSITY, peer, _ONE_COLUMN, density.DENSITIES)
        for peer in (density.SPECTRAL, density.HISTOGRAM, density.BERNSTEIN)
    ),
    Contest(*_CLASSES, models.KERNEL_MODEL, models.RACE_CLASSES, "δ = 10⁻⁶", is_paper=True),
    Contest(*_CLASSES, models.KERNEL_MODEL, models.LOGISTIC, _ONE_MODEL),
    Contest(*_CLASSES, models.KERNEL_MODEL, models.COMMONEST, _NO_MODEL, is_floor=True),
    Contest(*_CLASSES, models.LINEAR_CLASSES, models.RACE_CLASSES, "`KernelClassifier`"),
    Contest(*_CLASSES, models.LINEAR_CLASSES, models.LOGISTIC, f"`KernelClassifier`, or {_ONE_MODEL}"),
    Contest(*_CLASSES, models.LINEAR_CLASSES, models.COMMONEST, f"`KernelClassifier`, {_NO_MODEL}", is_floor=True),
    Contest(*_LINES, models.LINEAR_MODEL, models.RACE_LINES, "δ = 10⁻⁶", is_paper=True),
    Contest(
        *_LINES,
        models.LINEAR_MODEL,
        models.ADA_SSP,
        "AdaSSP, where one curator holds all records and its 1 − R² is well below 1; else no model",
    ),
    Contest(
        *_GRAPHS,
        HUSHSUM,
        density.RACE,
        "nothing: both are the same method, and the seeds differ; a larger ε with δ = 10⁻⁶",
        advice_with_delta="a larger ε",
        is_paper=True,
        half=True,
    ),
    Contest(
        *_GRAPHS, HUSHSUM, graphs.CONSTANT, "a larger ε: no method here tells nodes apart at this one", is_floor=True
    ),
    Contest(
        *_FEATURES,
        features.FOURIER,
        features.RFF,
        "δ = 10⁻⁶, or `hermite` in few columns",
        is_paper=True,
        half=True,
    ),
    Contest(*_FEATURES, features.HERMITE, features.FGT, "`fourier` at δ = 10⁻⁶", is_paper=True, half=True),
    Contest(*_SAMPLES, HUSHSUM, samples.SKETCH, "larger cells, or a larger ε", samples.DISTANCE, is_paper=True),
    Contest(*_SAMPLES, HUSHSUM, samples.GRID, "larger cells, or a larger ε", samples.DISTANCE),
    Contest(
        *_SAMPLES,
        HUSHSUM,
        samples.COLUMNS,
        "a histogram of each column, where their dependence does not matter; else larger cells or a larger ε",
        samples.DISTANCE,
    ),
)


def compared(rows: Iterable[Row], ours: str, peer: str, *, half: bool) -> list[Comparison]:
    """Two methods on every data set, at every δ and ε that both have."""
    found, rows = [], list(rows)
    theirs = [row for row in rows if _is_of(str(row["method"]), peer)]
    epsilons = sorted({float(row["epsilon"]) for row in theirs} - {NO_NOISE})
    for data, delta, epsilon in product(dict.fromkeys(str(row["data"]) for row in rows), DELTAS, epsilons):
        over = matching(rows, method=ours, data=data, delta=delta, epsilon=epsilon)
        under = matching(theirs, data=data, epsilon=epsilon)
        if over and under:
            ratio = float(best(over)["median"]) / float(best(under)["median"])
            aim = 0.5 if half and delta and epsilon <= HALF_UP_TO else 1.0
            found.append(Comparison(data, delta, epsilon, ratio, aim))
    return found


def comparisons(rows: Iterable[Row]) -> list[tuple[Contest, list[Comparison]]]:
    """Every contest that these rows have, with its comparisons."""
    rows = list(rows)
    tried = [
        (
            contest,
            compared(
                [row for row in matching(rows, figure=contest.figure) if str(row["metric"]).endswith(contest.metric)],
                contest.ours,
                contest.peer,
                half=contest.half,
            ),
        )
        for contest in CONTESTS
    ]
    return [(contest, found) for contest, found in tried if found]


def opening(rows: Iterable[Row]) -> str:
    """How many comparisons have which mark, where Hushsum loses, and which aims are reached."""
    held = comparisons(rows)
    if not held:
        return ""
    counts = Counter(one.mark for _, found in held for one in found)
    return f"""Of {counts.total()} comparisons below (a data set, an ε, and a method of Hushsum at one δ beside
another method), Hushsum errs less in {counts[Mark.WIN]} as it should. It loses {counts[Mark.LOSS]}:
it errs more by over 5 %. {counts[Mark.TIE]} are ties within 5 %, and {counts[Mark.SHORT]} fall short: Hushsum errs
less, but more than half as much, where half is the aim.

## Where Hushsum loses

{_losses(held)}

## Against the aims

{_aims(held)}
"""


def _losses(held: Sequence[tuple[Contest, list[Comparison]]]) -> str:
    lines: list[tuple[float, list[str]]] = []
    for contest, found in held:
        lost = (Mark.LOSS, Mark.TIE) if contest.is_floor else (Mark.LOSS,)
        for data, delta in dict.fromkeys((one.data, one.delta) for one in found):
            some = [one for one in found if (one.data, one.delta) == (data, delta) and one.mark in lost]
            if some:
                ratios = sorted(one.ratio for one in some)
                factor = " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (ratios[0], ratios[-1])))
                advice = (delta and contest.advice_with_delta) or contest.advice
                cells = [f"{data}, {contest.what}", label((contest.ours, delta)), contest.peer]
                lines.append((-ratios[-1], [*cells, ", ".join(f"{one.epsilon:g}" for one in some), factor, advice]))
    if not lines:
        return "Nowhere in these comparisons."
    table = [cells for _, cells in sorted(lines, key=lambda line: line[0])]
    header = ["data", "method of Hushsum", "method that errs less", "at ε", "error ratio", "use instead"]
    return f"""The largest losses first. Against a method that ignores the attributes (the commonest label, the mean
of all sums) ties are listed too: there a model is of no use. An ε that is not listed is no loss.

{markdown(header, table)}"""


def _aims(held: Sequence[tuple[Contest, list[Comparison]]]) -> str:
    lines = []
    for contest, found in held:
        if contest.is_paper:
            limits = (*((delta, 1.0, found) for delta in DELTAS), (DELTAS[-1], 0.5, halved(found)))
            cells = [_reached([one for one in some if one.delta == delta], limit) for delta, limit, some in limits]
            lines.append([f"{contest.what}, against {contest.peer}", *cells])
    header = ["aim", "δ = 0: never above it", "δ = 10⁻⁶: never above it", "δ = 10⁻⁶, ε ≤ 0.1: at most half"]
    return f"""Two aims were set against the methods of the papers: never to err more, not even within the 5 % of a
tie; and at δ = 10⁻⁶ to err at most half as much in densities and sums for ε ≤ {HALF_UP_TO:g}.

{markdown(header, lines)}"""


def halved(found: Iterable[Comparison]) -> list[Comparison]:
    """Those whose aim is half of the other error."""
    return [one for one in found if one.aim < 1]


def _reached(some: Sequence[Comparison], limit: float) -> str:
    above = [one.ratio for one in some if one.ratio > limit]
    if not some:
        return "no aim"
    return f"**not reached** at {len(above)} of {len(some)}, up to {max(above):.2f}" if above else "reached"


def _is_of(method: str, peer: str) -> bool:
    return method == peer or (method.startswith(f"{peer}, ") and _NOT_PRIVATE not in method)


def against(rows: Iterable[Row], peers: Sequence[str]) -> str:
    """One line a data set, δ and method: at which ε Hushsum loses, ties or falls short."""
    said = []
    for contest, found in comparisons(rows):
        if contest.peer not in peers:
            continue
        for data, delta in dict.fromkeys((one.data, one.delta) for one in found):
            some = [one for one in found if (one.data, one.delta) == (data, delta)]
            marked = {mark: [one for one in some if one.mark == mark] for mark in Mark if mark}
            where = [
                f"{mark} at ε = {', '.join(f'{one.epsilon:g} ({one.ratio:.2f})' for one in ones)}"
                for mark, ones in marked.items()
                if ones
            ]
            name = label((contest.ours, delta))
            said.append(f"- {data}: {name}, against {contest.peer}: {'; '.join(where) or 'less at every ε'}.")
    return "\n".join(said)
