"""What the comparison of draws, the coverage and the regressions say, in words that change with the numbers."""

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.accuracy.curves import NO_NOISE, PURE
from benchmarks.accuracy.subjects import RELATIVE
from benchmarks.accuracy.tables import matching, number, ratio_of
from benchmarks.report import Row

#: Mean relative errors on skin without noise that a prototype saw: independent rows, one Sobol set of all rows, and
#: the ratio of their middles.
_PROTOTYPE: Final = {128: ("0.10", "0.07", 0.7), 1024: ("0.034 to 0.038", "0.020 to 0.022", 0.58)}
_SLACK: Final = 0.1
_LOW: Final = range(1, 21)
_HIGH: Final = range(21, 10_000)
_POINTS: Final = 2.0  # of accuracy or AUC that a private estimator may lose


def of_draws(rows: Sequence[Row]) -> str:
    """What the comparison of draws says about the default of new plans."""
    quiet = matching(rows, epsilon=NO_NOISE)
    few, many, beyond = (_ratios(quiet, *which) for which in ((_LOW, 128), (_LOW, 1024), (_HIGH, 1024)))
    said = [_default(few, many, beyond), _sets(quiet)]
    for size in _PROTOTYPE:
        here = {str(row["draws"]): row for row in matching(quiet, data="skin", family="hashed euclidean", size=size)}
        if {"independent", "sobol", "sobol, 2 sets"} <= here.keys():
            said.append(_beside_the_prototype(size, here))
    return "".join(f"\n{one}\n" for one in said if one)


def of_coverage(rows: Sequence[Row]) -> str:
    """How often the intervals hold, by draws."""
    said = []
    names = {"independent": "Independent rows", "sobol": "Sobol rows (8 sets, Student's t with 7 degrees)"}
    for kind, name in names.items():
        some = [row for row in matching(rows, draws=kind) if "coverage" in row]
        quiet = [float(row["coverage"]) for row in some if row["epsilon"] == NO_NOISE]
        noised = [float(row["coverage"]) for row in some if row["epsilon"] != NO_NOISE]
        if quiet and noised:
            spread = f"{min(quiet):.2f} to {max(quiet):.2f}"
            said.append(f"{name}: {_mean(quiet):.3f} on average without noise ({spread}), {_mean(noised):.3f} with it.")
    said.append(
        "The error bars of the prototype covered 0.98 to 0.996 with Sobol rows, from the variance of the rows of one "
        "set, and 0.90 to 0.91 with independent ones. Coverage below 0.95 occurs where few rows contain most of an "
        "answer: a sketch with too low an answer then states too short a bar."
    )
    return "\n" + " ".join(said) + "\n"


def of_regression(rows: Sequence[Row]) -> str:
    """What is kept of least squares, and where nothing is."""
    said = []
    slope = {str(row["form"]): row for row in matching(rows, data="slope", epsilon=1.0, delta=PURE)}
    if {"inner", "orthogonal"} <= slope.keys():
        inner, other = (float(slope[form]["first coefficient"]) for form in ("inner", "orthogonal"))
        said.append(
            f"The slope test (true slope 0.5, ε = 1) gives {inner:.2f} with the inner form and {other:.2f} with the "
            "orthogonal one, which here fits records divided by their lengths."
        )
    if naval := matching(rows, data="naval", epsilon=NO_NOISE):
        most = max(float(row["R²"]) for row in naval)
        said.append(
            f"**Naval fails**: least squares explains {float(naval[0]['R² of least squares']):.2f} of the variance, a "
            f"sketch {most:.2f} even without noise. Its columns are almost copies of each other. The predictive "
            "directions have a variance far below the hashing error of the sums."
        )
    if matching(rows, data="airfoil"):
        said.append("Airfoil has 1,503 records: at ε = 0.1 almost nothing remains, for any size.")
    return f"\n{' '.join(said)}\n" if said else ""


def of_estimators(rows: Sequence[Row]) -> str:
    """By how much the private estimators fall short of the same without noise, and where they do."""
    said = []
    for estimator, unit in (("KernelClassifier", "accuracy"), ("KernelOutlierDetector", "AUC")):
        for row in matching(rows, estimator=estimator):
            lost = 100 * (float(row["without noise"]) - float(row["median"]))
            if lost > _POINTS:
                delta = "δ = 10⁻⁶" if row["delta"] else "δ = 0"
                said.append(f"**A miss**: {estimator} on {row['data']} at {delta} loses {lost:.1f} points of {unit}.")
    even = [row for row in matching(rows, estimator="KernelClassifier") if not row["delta"]]
    same = [str(row["data"]) for row in even if float(row["without noise"]) <= float(row["of the peer"]) + 0.005]
    if same:
        said.append(
            f"On {' and on '.join(same)} the kernel of the proposed plan is too wide: even without noise it finds the "
            "commonest label alone, and a plan with a narrower one is needed."
        )
    kept = [str(row["data"]) for row in matching(rows, estimator="KernelOutlierDetector") if not row["delta"]]
    kept = [data for data in kept if _below_peer(rows, data) <= _POINTS]
    if kept:
        said.append(
            f"On {' and '.join(kept)} the detector's AUC at δ = 0 is within {_POINTS:g} points of scikit-learn's."
        )
    for row in matching(rows, estimator="KernelOutlierDetector"):
        lost = 100 * (float(row["of the peer"]) - float(row["median"]))
        if lost > _POINTS:
            delta = "δ = 10⁻⁶" if row["delta"] else "δ = 0"
            said.append(
                f"**A miss**: on {row['data']} at {delta} the detector's AUC is {lost:.1f} points below scikit-learn's."
            )
    for row in matching(rows, estimator="LinearRegressor"):
        ratio = (1 - float(row["median"])) / (1 - float(row["of the peer"]))
        delta = "δ = 10⁻⁶" if row["delta"] else "δ = 0"
        said.append(f"{row['data']} at {delta}: {ratio:.2f} times the squared error of AdaSSP.")
    return f"\n{' '.join(said)}\n" if said else ""


def of_classifiers(rows: Sequence[Row], peers: Sequence[Row]) -> str:
    """Where the kernel classifier is above diffprivlib's, of the data sets where a kernel without noise is."""
    said = []
    for row in matching(rows, estimator="KernelClassifier"):
        delta, data = "δ = 10⁻⁶" if row["delta"] else "δ = 0", row["data"]
        theirs = {str(each["peer"]): float(each["median"]) for each in matching(peers, data=data)}
        above = [kind for kind, other in theirs.items() if float(row["median"]) > other]
        below = [kind for kind, other in theirs.items() if float(row["median"]) <= other]
        text = f"{data} at {delta}: above {' and '.join(above)}" if above else f"{data} at {delta}: above neither"
        if below:
            best = max(theirs.values())
            lost = 100 * (best - float(row["median"]))
            text += f", {lost:.1f} points below {' and '.join(below) if len(below) == 1 else 'the better'}"
            text += "" if float(row["without noise"]) > best else ", as is its kernel without noise"
        said.append(f"{text}.")
    return f"\n{' '.join(said)}\n" if said else ""


def _below_peer(rows: Sequence[Row], data: str) -> float:
    row = matching(rows, estimator="KernelOutlierDetector", data=data, delta=0.0)[0]
    return 100 * (float(row["of the peer"]) - float(row["median"]))


def _default(few: Sequence[float], many: Sequence[float], beyond: Sequence[float]) -> str:
    if not few or not many:
        return ""
    pays = _mean(many) < 0.95 and _mean(few) < 1.05
    said = (
        f"**Sobol rows {'are' if pays else 'are not'} the better default for new plans with d ≤ 20.** On average their "
        f"error is {_mean(many):.2f} times that of independent rows at 1,024 rows ({min(many):.2f} to "
        f"{max(many):.2f}), and {_mean(few):.2f} times at 128 ({min(few):.2f} to {max(few):.2f})."
    )
    if beyond:
        said += (
            f" At d = 54 it is {_mean(beyond):.2f} times ({min(beyond):.2f} to {max(beyond):.2f}), but ten columns "
            "make up nearly all distances of that data, so this says little about 54 dimensions."
        )
    return said


def _sets(rows: Sequence[Row]) -> str:
    """How the number of scrambled sets trades error for the width of the bars."""
    said = []
    for kind, name in (("sobol", "8 sets"), ("sobol, 4 sets", "4 sets"), ("sobol, 2 sets", "2 sets")):
        errors = _ratios(rows, _LOW, 1024, kind=kind)
        widths = _ratios(rows, _LOW, 1024, kind=kind, column="half width")
        if errors and widths:
            said.append(f"{name}: error {_mean(errors):.2f}, width {_mean(widths):.2f}")
    return (
        "The gain grows with the rows of a set. So fewer sets have a larger gain, but wider bars (Student's t with "
        "fewer degrees). The error and the width of the 95 % bars, divided by those of independent rows, on average at "
        f"1,024 rows and d ≤ 20: {'; '.join(said)}."
    )


def _beside_the_prototype(size: int, here: Mapping[str, Row]) -> str:
    independent, one_set, expected = _PROTOTYPE[size]
    found = [number(float(here[kind][RELATIVE])) for kind in ("independent", "sobol", "sobol, 2 sets")]
    ratio = ratio_of(here["sobol, 2 sets"], here["independent"])
    assert ratio is not None, "both are there"
    verdict = "is confirmed" if ratio <= expected + _SLACK else "is not reached"
    return (
        f"On skin at R = {size:,}, a prototype with **one** Sobol set had an error of {one_set}, and of {independent} "
        f"with independent rows. Here the error is {found[1]} with 8 sets, {found[2]} with 2 sets (the minimum of a "
        f"plan), and {found[0]} with independent rows. With 2 sets the gain of the "
        f"prototype {verdict} ({ratio:.2f}, expected {expected:g})."
    )


def _ratios(rows: Sequence[Row], dims: range, size: int, *, kind: str = "sobol", column: str = RELATIVE) -> list[float]:
    """A column of one kind of draws over that of independent ones, for each data set and family of these dimensions."""
    found = []
    for data, family in dict.fromkeys((row["data"], row["family"]) for row in rows if row["d"] in dims):
        some = {str(row["draws"]): row for row in matching(rows, data=data, family=family, size=size)}
        if kind in some and "independent" in some:
            found.append(float(some[kind][column]) / float(some["independent"][column]))
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
