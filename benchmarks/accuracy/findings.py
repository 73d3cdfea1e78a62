"""What the measured numbers say about each data set and about the peers, in words that change with them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from benchmarks.accuracy.curves import NO_NOISE, PURE, SMALL_DELTA
from benchmarks.accuracy.peers import PEERS, Peer
from benchmarks.accuracy.subjects import ABSOLUTE, RELATIVE
from benchmarks.accuracy.tables import at_delta, best, matching, number
from benchmarks.report import Row

_INDEPENDENT: Final = "hashed euclidean, independent"
_SOBOL: Final = "hashed euclidean, sobol"
_LSQ_METRIC: Final = ("taxi", "slashdot")
_SMALL_EPSILON: Final = 0.1
_HALF: Final = 0.5


def of_subject(data: str, rows: Sequence[Row]) -> str:
    """Below the table of one data set; empty where there is nothing to say."""
    measured, stars = matching(rows, part="curve", data=data), matching(rows, part="best rows", data=data)
    some = at_delta(measured, PURE)
    said = [say(some) for say in _SAID.get(data, ())] + [_median(matching(rows, part="kernel", data=data))]
    metric = ABSOLUTE if data in _LSQ_METRIC else RELATIVE
    said += [_best_rows(some, stars, metric), _gain(measured, metric), _weights(measured, metric)]
    return "".join(f"\n{one}\n" for one in said if one)


def closing(rows: Sequence[Row]) -> str:
    """Where results miss the peers, and why."""
    listed = "\n".join(f"- {one}" for one in _missed(rows)) or "- Nowhere at equal ε in this run."
    halves = "\n".join(f"- {one}" for one in _above_half(rows)) or "- Nowhere in this run."
    return f"""## Where this misses its peers

{listed}

The peers are pure, and so are the figures that are compared with them. At δ = 10⁻⁶ a prototype had about 0.06, 0.02 and
0.02 on skin at ε = 0.01, 0.1 and 1, and 0.0042, 0.0019 and 0.0010 on taxi at ε = 0.02, 0.05 and 0.2 (fourier);
{_beside_the_prototype(rows)} The count counter takes 5 % of every ε or ρ; the figures of the peers have no such part.

## Where δ = 10⁻⁶ does not halve the error

The target was at most half the error of pure ε, for ε ≤ 0.1 on skin, taxi and covtype. These miss it, with the ratio of
errors:

{halves}

With cells or a low order a record changes few counters. Then its L1 norm is not much larger than its L2 norm, and pure
noise is smaller: use δ = 0. Where hashed rows miss the target, the noise is a large part of an answer.
"""


def least(rows: Sequence[Row], sketch: str, epsilon: float, metric: str) -> float | None:
    """The least error of a sketch for one ε."""
    row = best(matching(rows, sketch=sketch, epsilon=epsilon), metric)
    return None if row is None else float(row[metric])


def listed(rows: Sequence[Row], sketch: str, epsilons: Sequence[float], metric: str) -> str:
    """The least errors of a sketch, one an ε; empty where one is not there."""
    errors = [least(rows, sketch, epsilon, metric) for epsilon in epsilons]
    return "" if None in errors else " / ".join(number(error) for error in errors if error is not None)


def _weights(rows: Sequence[Row], metric: str) -> str:
    """Weights of moments beside equal ones: the ratio of errors at each order, where noise is most of them."""
    weighted, equal = (matching(rows, sketch=name) for name in ("hermite gaussian", "hermite gaussian, equal weights"))
    if not weighted or not equal:
        return ""
    orders = [size for size in dict.fromkeys(int(row["size"]) for row in weighted) if size >= _NOISY_ORDER]

    def mean(some: Sequence[Row], order: int, delta: float) -> float:
        """Geometric, over small ε."""
        errors = [
            float(row[metric])
            for row in matching(some, size=order, delta=delta)
            if 0 < float(row["epsilon"]) <= _SMALL_EPSILON
        ]
        return float(np.exp(np.mean(np.log(errors))))

    said = []
    for name, delta in (("0", PURE), ("10⁻⁶", SMALL_DELTA)):
        ratios = [mean(weighted, order, delta) / mean(equal, order, delta) for order in orders]
        said.append(f"at δ = {name} {' / '.join(f'{ratio:.2f}' for ratio in ratios)}")
    return (
        "**Weights of moments**: errors of hermite with the weights of `auto` over those with equal ones, of order "
        f"{_slashed(orders)}, the geometric mean over ε up to 0.1: {'; '.join(said)}. At low orders and larger ε the "
        "bias is a part of the error, which weights do not change."
    )


def _gain(rows: Sequence[Row], metric: str) -> str:
    """What δ > 0 buys: for each sketch the ratio of the least errors for small ε."""
    epsilons: list[float] = []
    said = []
    for sketch in dict.fromkeys(str(row["sketch"]) for row in rows):
        if found := dict(_ratios(rows, sketch, metric)):
            epsilons = list(found)
            said.append(f"{sketch} {' / '.join(f'{ratio:.2f}' for ratio in found.values())}")
    if not said:
        return ""
    return (
        f"**Error at δ = 10⁻⁶ over error at δ = 0**, each at its best size, at ε = {_slashed(epsilons)}: "
        f"{'; '.join(said)}. Pure noise in an answer grows as √R, so every size is a compromise. Gaussian noise in an "
        "answer does not grow with R, so more rows cost no accuracy. If an answer uses few counters (cells of few "
        "rows, a low order), pure noise is smaller."
    )


def _beside_the_prototype(rows: Sequence[Row]) -> str:
    some = at_delta(matching(rows, part="curve"), SMALL_DELTA)
    skin = listed(matching(some, data="skin"), _SOBOL, (0.01, 0.1, 1.0), RELATIVE)
    taxi = listed(matching(some, data="taxi"), "fourier gaussian, independent", (0.02, 0.05, 0.2), ABSOLUTE)
    return f"here it is {skin} and {taxi}." if skin and taxi else "not measured in this run."


def _skin(rows: Sequence[Row]) -> str:
    peer = next(peer for peer in PEERS if peer.data == "skin")
    epsilons = list(peer.errors)
    return (
        f"At ε = {_slashed(epsilons)} RACE with honest noise, best of R = 100, 300 and 1,000, had "
        f"{_slashed(peer.errors.values())}. Independent rows have {listed(rows, _INDEPENDENT, epsilons, RELATIVE)}, "
        f"Sobol rows {listed(rows, _SOBOL, epsilons, RELATIVE)}. The other kernels and the cells answer other "
        "questions. Where their sums are smaller, the relative error is mostly noise." + _at_the_peers_rows(rows)
    )


def _at_the_peers_rows(rows: Sequence[Row]) -> str:
    """What independent rows come to with no more of them than the peer had, where that is more than its figure."""
    few = [row for row in matching(rows, sketch=_INDEPENDENT) if int(row["size"]) <= 1024]
    quiet, loud = least(few, _INDEPENDENT, NO_NOISE, RELATIVE), least(few, _INDEPENDENT, 1.0, RELATIVE)
    if quiet is None or loud is None or quiet < 0.019:
        return ""
    return (
        f" With at most 1,024 independent rows the error here is {number(loud)} at ε = 1 and {number(quiet)} without "
        "noise. So the peer's 0.019 is less than its average hashing error: it is the error of one lucky sketch."
    )


def _cells(rows: Sequence[Row]) -> str:
    mean, median = (least(rows, name, 1.0, RELATIVE) for name in ("partition, grid", "partition, median of rows"))
    if mean is None or median is None:
        return ""
    return (
        f"For the cells the median of the rows (`groups` = R) is better than their mean: {number(median)} and "
        f"{number(mean)} at ε = 1. Few rows collide, but a collision adds a whole cell, and the mean spreads this "
        "error over all answers."
    )


def _best_rows(rows: Sequence[Row], stars: Sequence[Row], metric: str) -> str:
    """Of each hashed sketch: predicted rows, the best size tried, and what the prediction costs, where it was tried."""
    said = []
    for sketch in dict.fromkeys(str(star["sketch"]) for star in stars):
        ones = [_beside_the_best(rows, star, metric) for star in matching(stars, sketch=sketch)]
        said.append(f"{sketch} {' / '.join(ones)}")
    if not said:
        return ""
    epsilons = " / ".join(f"{float(e):g}" for e in dict.fromkeys(str(star["epsilon"]) for star in stars))
    return (
        f"R\\* of pure ε = {epsilons}, with the best size tried, and how much more than there answers err at R\\* "
        f"(between sizes, interpolated; – beyond all of them): {'; '.join(said)}."
    )


def _beside_the_best(rows: Sequence[Row], star: Row, metric: str) -> str:
    tried, rows_there = matching(rows, sketch=star["sketch"], epsilon=star["epsilon"]), int(star["rows"])
    found, sizes = best(tried, metric), [int(row["size"]) for row in tried]
    if found is None:
        return f"{rows_there:,}"
    if not sizes[0] <= rows_there <= sizes[-1]:
        return f"{rows_there:,} ({int(found['size']):,}, –)"
    errors = np.log([float(row[metric]) for row in tried])
    more = float(np.exp(np.interp(np.log(rows_there), np.log(sizes), errors))) / float(found[metric]) - 1
    return f"{rows_there:,} ({int(found['size']):,}, {100 * max(0.0, more):.0f} %)"


def _taxi(rows: Sequence[Row]) -> str:
    said = []
    for sketch, name in (("fourier gaussian, independent", "LSQ-RFF"), ("hermite gaussian", "LSQ-FGT")):
        peer = next(peer for peer in PEERS if name in peer.label)
        if ours := listed(rows, sketch, list(peer.errors), ABSOLUTE):
            said.append(f"{sketch} {ours}, {name} {_slashed(peer.errors.values())}")
    if not said:
        return ""
    return (
        f"The mean absolute error of the KDE at ε = 0.02 / 0.05 / 0.2: {'; '.join(said)}. For d ≤ 3 and a gaussian "
        "kernel use hermite. For small ε use a low order, down to 1, which is a histogram with cells smoothed by the "
        "kernel."
    )


def _pay(rows: Sequence[Row]) -> str:
    hermite, fourier = (least(rows, name, 0.1, RELATIVE) for name in ("hermite gaussian", "fourier gaussian, sobol"))
    if hermite is None or fourier is None:
        return ""
    return (
        f"In one dimension the error of hermite is {number(hermite)} at ε = 0.1, and that of the same kernel from "
        f"frequencies {number(fourier)}. High pay is rare, and the error of the fourier family is the same everywhere. "
        "RACE shows this task only as a plot of another year's pay, without numbers to compare."
    )


def _covtype(rows: Sequence[Row]) -> str:
    found = listed(rows, "fourier gaussian, independent", (1.0, 0.1), ABSOLUTE)
    if not found:
        return ""
    return (
        f"In LSQ's metric, the mean absolute error of densities, the fourier family has {found} at ε = 1 / 0.1 (the "
        "mean density is 0.02; LSQ shows its figures for the whole data set only as curves)."
    )


def _median(kernels: Sequence[Row]) -> str:
    """For slashdot, whose sums are small."""
    if not kernels or kernels[0]["data"] != "slashdot" or "median density" not in kernels[0]:
        return ""
    records = int(kernels[0]["records"])
    median = records * float(kernels[0]["median density"])
    return (
        f"Half of the nodes have a kernel sum below {median:.0f} of {records:,}, but the noise alone is √(2R)/ε, which "
        "is 8 at R = 32 and ε = 1. So only dense nodes, with sums of hundreds, can be distinguished, and only at ε "
        "near 1. RACE plots this task without numbers, at R = 2,000, where honest noise is 63/ε."
    )


def _above_half(rows: Sequence[Row]) -> Iterator[str]:
    for data in ("skin", "taxi", "covtype"):
        metric = ABSOLUTE if data in _LSQ_METRIC else RELATIVE
        measured = matching(rows, part="curve", data=data)
        for sketch in dict.fromkeys(str(row["sketch"]) for row in measured):
            ratios = {epsilon: ratio for epsilon, ratio in _ratios(measured, sketch, metric) if ratio > _HALF}
            if ratios:
                listed = ", ".join(f"{ratio:.2f} at ε = {epsilon:g}" for epsilon, ratio in ratios.items())
                yield f"{data}, {sketch}: {listed}"


def _ratios(rows: Sequence[Row], sketch: str, metric: str) -> Iterator[tuple[float, float]]:
    """Least error at the small δ over the least at δ = 0, for each small ε that has both."""
    for epsilon in sorted({float(row["epsilon"]) for row in rows if 0 < float(row["epsilon"]) <= _SMALL_EPSILON}):
        small, pure = (least(at_delta(rows, delta), sketch, epsilon, metric) for delta in (SMALL_DELTA, PURE))
        if small and pure:
            yield epsilon, small / pure


def _missed(rows: Sequence[Row]) -> Iterator[str]:
    for peer in PEERS:
        metric = RELATIVE if peer.data == "skin" else ABSOLUTE
        some = at_delta(matching(rows, part="curve", data=peer.data), PURE)
        for sketch in dict.fromkeys(str(row["sketch"]) for row in some):
            for epsilon, theirs in peer.errors.items():
                ours = best(matching(some, sketch=sketch, epsilon=epsilon), metric)
                if sketch.startswith(_RIVALS[peer.label]) and ours is not None and float(ours[metric]) > theirs:
                    found = f"{number(float(ours[metric]))} ± {number(float(ours[_SPREADS[metric]]))}"
                    yield f"{_miss(peer, sketch, epsilon)}: {found}, not {theirs:g}."


def _miss(peer: Peer, sketch: str, epsilon: float) -> str:
    return f"{peer.data}, ε = {epsilon:g}, {sketch}, beside {peer.label.removeprefix('peer: ')}"


def _slashed(values: Iterable[float]) -> str:
    return " / ".join(f"{value:g}" for value in values)


_NOISY_ORDER: Final = 4  # of hermite: from it on noise is most of the error at small ε
_SPREADS: Final = {RELATIVE: "its standard error", ABSOLUTE: "that one's standard error"}
_RIVALS: Final = {
    "peer: RACE with honest noise": "hashed euclidean",
    "peer: LSQ-RFF, its code": "fourier gaussian",
    "peer: LSQ-FGT, its code": "hermite gaussian",
}
_SAID: Final[dict[str, tuple[Callable[[Sequence[Row]], str], ...]]] = {
    "skin": (_skin, _cells),
    "covtype": (_covtype,),
    "taxi": (_taxi,),
    "pay": (_pay,),
}
