"""RACE figures 4 and 5: classifiers and linear models from one release, on held-out records, against ε.

:func:`measure_peers` measures diffprivlib's models on the same records, in an environment of its own.
"""

from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.accuracy.curves import DELTAS, SMALL_DELTA
from benchmarks.accuracy.data import pulsar_bounds
from benchmarks.accuracy.estimators import ada_ssp, regressions
from benchmarks.accuracy.papers.tally import HUSHSUM, Tally, seeds
from benchmarks.baselines.race import Race
from benchmarks.baselines.surrogate import SurrogateLoss
from benchmarks.data_files import columns
from benchmarks.report import Row

Floats = npt.NDArray[np.float64]

CLASSES: Final = "race-4-classes"
LINES: Final = "race-5"
ERROR: Final = "share of wrong labels"
UNEXPLAINED: Final = "1 − R²"
EPSILONS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
KERNEL_MODEL: Final = f"{HUSHSUM} KernelClassifier"
LINEAR_CLASSES: Final = f"{HUSHSUM} LinearClassifier"
LINEAR_MODEL: Final = f"{HUSHSUM} LinearRegressor"
RACE_CLASSES: Final = "RACE maximum likelihood"
RACE_LINES: Final = "RACE surrogate loss"
COMMONEST: Final = "the commonest label"
LEAST_SQUARES: Final = "least squares, without noise"
ADA_SSP: Final = "AdaSSP, δ = 10⁻⁶"
LOGISTIC: Final = "diffprivlib LogisticRegression"
FUNCTIONAL: Final = "diffprivlib LinearRegression"
_WIDTHS: Final = (0.1, 0.4)  # of the unit cube; 0.1 is the paper's of pulsar
_RACE_BUCKETS: Final = 100
_RACE_ROWS: Final = (10, 20, 50, 100, 200)
_LINE_ROWS: Final = (100, 1000)  # the paper has 1,000
_LINE_POWER: Final = 4
_HELD_OUT: Final = 0.2
_QUICK_RECORDS: Final = 2000
_MOST_RECORDS: Final = 20_000  # about as many as the paper's sets have


def measure(*, quick: bool) -> list[Row]:
    """Both figures."""
    rows: list[Row] = []
    for name, X, y, bounds in labelled(quick=quick):
        rows += classes(name, X, y, bounds, quick=quick)
        print(f"RACE figure 4: {name} measured", flush=True)
    for name, records, bounds in _linear(quick=quick):
        rows += lines(name, records, bounds, quick=quick)
        print(f"RACE figure 5: {name} measured", flush=True)
    return rows


def measure_peers(*, quick: bool) -> list[Row]:
    """diffprivlib's models on the same records; nothing where it is not installed."""
    if find_spec("diffprivlib") is None:
        print("peers: left out, diffprivlib is not installed here: see build_tools/diffprivlib.txt", flush=True)
        return []
    rows: list[Row] = []
    for name, X, y, bounds in labelled(quick=quick):
        rows += _peer_classes(name, X, y, bounds, quick=quick)
    for name, records, bounds in _linear(quick=quick):
        rows += _peer_lines(name, records, bounds, quick=quick)
    print("diffprivlib measured", flush=True)
    return rows


def labelled(*, quick: bool) -> Iterator[tuple[str, Floats, Floats, Sequence[tuple[float, float]]]]:
    """Data sets with two labels: name, records, labels and public bounds."""
    pulsars, skin = (_shuffled(columns(name))[:_MOST_RECORDS] for name in ("htru2", "skin"))
    few = slice(0, _QUICK_RECORDS if quick else None)
    yield "htru2", pulsars[few, :8], pulsars[few, 8], pulsar_bounds()
    yield "skin, 20,000 records", skin[few, :3], skin[few, 3], [(0.0, 255.0)] * 3


def classes(name: str, X: Floats, y: Floats, bounds: Sequence[tuple[float, float]], *, quick: bool) -> list[Row]:
    """Wrong labels of each method, size and ε; a seed holds out records of its own."""
    from hushsum.estimators import KernelClassifier, LinearClassifier

    tally = Tally(CLASSES, name, ERROR)
    for seed in seeds(quick=quick):
        (X_in, y_in), (X_out, y_out) = _split(X, y, seed)
        labels = np.unique(y)
        for epsilon in _epsilons(quick=quick):
            for delta, (method, kind) in product(
                DELTAS, ((KERNEL_MODEL, KernelClassifier), (LINEAR_CLASSES, LinearClassifier))
            ):
                model = kind(epsilon=epsilon, delta=delta, bounds=bounds, classes=labels.tolist(), records=len(X_in))
                wrong = 1 - model.fit(X_in, y_in).score(X_out, y_out)
                tally.add(method, wrong, epsilon=epsilon, delta=delta)
            commonest = labels[np.argmax([(y_in == label).sum() for label in labels])]
            tally.add(COMMONEST, (y_out != commonest).mean(), epsilon=epsilon)
        for width in _WIDTHS:
            method, rng = f"{RACE_CLASSES}, w = {width:g}", np.random.default_rng(seed)
            inner, outer = _unit(X_in, bounds), _unit(X_out, bounds)
            sketches = [
                Race.of(
                    inner[y_in == label],
                    np.ones((y_in == label).sum()),
                    outer,
                    bandwidth=width,
                    rows=_RACE_ROWS[-1],
                    buckets=_RACE_BUCKETS,
                    rng=rng,
                )
                for label in labels
            ]
            for epsilon in _epsilons(quick=quick):
                answers = [list(sketch.answers(_RACE_ROWS, 1 / epsilon, rng)) for sketch in sketches]
                for size, *found in zip(_RACE_ROWS, *answers, strict=True):
                    likelihoods = [sums / max(counted, 1.0) for sums, counted in found]
                    wrong = (labels[np.argmax(likelihoods, axis=0)] != y_out).mean()
                    tally.add(method, wrong, size=size, epsilon=epsilon)
    return tally.rows()


def lines(name: str, records: Floats, bounds: Sequence[tuple[float, float]], *, quick: bool) -> list[Row]:
    """The unexplained share of the held-out variance, for each method, size and ε."""
    from hushsum.estimators import LinearRegressor

    tally = Tally(LINES, name, UNEXPLAINED)
    for seed in seeds(quick=quick):
        rng, (inner, outer) = np.random.default_rng(seed), _split_lines(records, seed)
        fitted, asked = _centred(inner, bounds), _centred(outer, bounds)
        design = _with_ones(fitted)
        least = np.linalg.lstsq(design, fitted[:, -1], rcond=None)[0]
        for epsilon in _epsilons(quick=quick):
            tally.add(LEAST_SQUARES, _unexplained(_with_ones(asked) @ least, asked[:, -1]), epsilon=epsilon)
            found = ada_ssp(design, fitted[:, -1], epsilon=epsilon, delta=SMALL_DELTA, rng=rng)
            tally.add(ADA_SSP, _unexplained(_with_ones(asked) @ found, asked[:, -1]), epsilon=epsilon)
            for delta in DELTAS:
                model = LinearRegressor(
                    epsilon=epsilon,
                    delta=delta,
                    bounds=bounds[:-1],
                    target_bounds=bounds[-1],
                    records=len(inner),
                ).fit(inner[:, :-1], inner[:, -1])
                wrong = _unexplained(model.predict(outer[:, :-1]), outer[:, -1])
                tally.add(LINEAR_MODEL, wrong, epsilon=epsilon, delta=delta)
        for size in _LINE_ROWS[: 1 if quick else None]:
            loss = SurrogateLoss.of(fitted, rows=size, power=_LINE_POWER, rng=rng)
            for epsilon in _epsilons(quick=quick):
                predicted = asked[:, :-1] @ loss.noised(epsilon, rng).minimised(rng)
                tally.add(RACE_LINES, _unexplained(predicted, asked[:, -1]), size=size, epsilon=epsilon)
    return tally.rows()


def _peer_classes(name: str, X: Floats, y: Floats, bounds: Sequence[tuple[float, float]], *, quick: bool) -> list[Row]:
    models, tally = import_module("diffprivlib.models"), Tally(CLASSES, name, ERROR)
    for seed, epsilon in product(seeds(quick=quick), _epsilons(quick=quick)):
        (X_in, y_in), (X_out, y_out) = _split(X, y, seed)
        inner, outer = (2 * _unit(each, bounds) - 1 for each in (X_in, X_out))
        model = models.LogisticRegression(
            epsilon=epsilon, data_norm=float(np.sqrt(len(bounds))), C=1.0, max_iter=1000, random_state=seed
        )
        tally.add(LOGISTIC, 1 - model.fit(inner, y_in).score(outer, y_out), epsilon=epsilon)
    return tally.rows()


def _peer_lines(name: str, records: Floats, bounds: Sequence[tuple[float, float]], *, quick: bool) -> list[Row]:
    models, tally = import_module("diffprivlib.models"), Tally(LINES, name, UNEXPLAINED)
    for seed, epsilon in product(seeds(quick=quick), _epsilons(quick=quick)):
        inner, outer = (_centred(each, bounds) for each in _split_lines(records, seed))
        ends = np.ones(inner.shape[1] - 1)
        model = models.LinearRegression(epsilon=epsilon, bounds_X=(-ends, ends), bounds_y=(-1, 1), random_state=seed)
        predicted = model.fit(inner[:, :-1], inner[:, -1]).predict(outer[:, :-1])
        tally.add(FUNCTIONAL, _unexplained(predicted, outer[:, -1]), epsilon=epsilon)
    return tally.rows()


def _linear(*, quick: bool) -> Iterator[tuple[str, Floats, Sequence[tuple[float, float]]]]:
    """airfoil and naval, with bounds of three standard deviations, which are taken for public."""
    for name, records, bounds in regressions():
        if name.endswith("standardised"):
            yield name, _shuffled(records)[: _QUICK_RECORDS if quick else None], bounds


def _shuffled(records: Floats) -> Floats:
    return records[np.random.default_rng(1).permutation(len(records))]


def _split(X: Floats, y: Floats, seed: int) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    order = np.random.default_rng([seed, 9]).permutation(len(X))
    asked, kept = np.split(order, [int(_HELD_OUT * len(X))])
    return (X[kept], y[kept]), (X[asked], y[asked])


def _split_lines(records: Floats, seed: int) -> tuple[Floats, Floats]:
    (inner, _), (outer, _) = _split(records, records[:, 0], seed)
    return inner, outer


def _unit(values: Floats, bounds: Sequence[tuple[float, float]]) -> Floats:
    low, high = np.array(bounds, np.float64).T
    return np.asarray((np.clip(values, low, high) - low) / (high - low))


def _centred(values: Floats, bounds: Sequence[tuple[float, float]]) -> Floats:
    return 2 * _unit(values, bounds) - 1


def _with_ones(records: Floats) -> Floats:
    return np.column_stack([records[:, :-1], np.ones(len(records))])


def _unexplained(predicted: Floats, true: Floats) -> float:
    return float(np.square(true - predicted).sum() / np.square(true - true.mean()).sum())


def _epsilons(*, quick: bool) -> Sequence[float]:
    return EPSILONS[::3] if quick else EPSILONS
