"""The estimators of :mod:`hushsum.estimators` at ε = 1, beside the same without noise and a peer.

- **KernelClassifier**: accuracy on held-out records; beside the exact kernel classifier, with the same kernel, and
  beside private classifiers: LinearClassifier, and diffprivlib's, which :func:`measure_peers` measures.
- **KernelOutlierDetector**: ROC AUC of one label, fitted without it; beside the same kernel exactly, and
  scikit-learn's ``KernelDensity`` on at most 20,000 records, at the best of three bandwidths.
- **LinearRegressor**: R² on the records; beside least squares, and AdaSSP (Wang 2018).
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.accuracy.curves import DELTAS, SMALL_DELTA
from benchmarks.accuracy.data import covtype_bounds, pulsar_bounds
from benchmarks.data_files import AIRFOIL_LOWER, AIRFOIL_UPPER, columns
from benchmarks.report import Row

Floats = npt.NDArray[np.float64]
Bounds = Sequence[tuple[float, float]]

_EPSILON: Final = 1.0
_HELD_OUT: Final = 1000
_FITS: Final = 5
_BLOCK: Final = 2000
_PEER_RECORDS: Final = 20_000
_PEER_BANDWIDTHS: Final = (0.02, 0.05, 0.1)  # of columns that are 1 wide
_GIVEN_BANDWIDTHS: Final = (0.05, 0.1, 0.2, 0.4)  # by a user who knows the scale
_PEER_PENALTIES: Final = (0.01, 0.1, 1.0, 10.0)  # C of a logistic regression
_PEER_FITS: Final = 11
#: Public bounds of airfoil's columns: frequency, angle, chord, speed, thickness, sound pressure.
_AIRFOIL: Final = tuple(zip(AIRFOIL_LOWER, AIRFOIL_UPPER, strict=True))


def measure(*, quick: bool) -> list[Row]:
    """One row a data set, estimator and δ."""
    rows: list[Row] = []
    bounds: Bounds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of records that are clipped
        for name, X, y, bounds in _labelled():
            rows += _classes(name, X, y, bounds, quick=quick)
            rows += _linear_classes(name, X, y, bounds, quick=quick)
            print(f"classes of {name} measured", flush=True)
        for name, bounds in (("htru2", pulsar_bounds()), ("skin", [(0.0, 255.0)] * 3)):
            values = columns(name)
            rows += _outliers(name, values[:, : len(bounds)], values[:, -1] == 1, bounds, quick=quick)
            print(f"outliers of {name} measured", flush=True)
        for name, records, bounds in regressions():
            rows += _regression(name, records, bounds, quick=quick)
            print(f"linear model of {name} measured", flush=True)
    return rows


def measure_peers(*, quick: bool) -> list[Row]:
    """The accuracy of diffprivlib's classifiers on the same records, where it is installed: a row a data set and kind.

    Its columns are scaled by their bounds to ±1, so that no record is longer than √d, which is what it must be told.
    The logistic regression has the best of four penalties, as no private choice would find it.
    """
    if find_spec("diffprivlib") is None:
        print("diffprivlib is not installed here: see build_tools/diffprivlib.txt", flush=True)
        return []
    models, rows = import_module("diffprivlib.models"), list[Row]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of iterations that did not converge
        for name, records, labels, bounds in _labelled():
            (X, y), (asked, truth) = _split(records, labels, quick=quick)
            low, high = np.array(bounds, np.float64).T
            unit, points = (np.clip(2 * (each - low) / (high - low) - 1, -1, 1) for each in (X, asked))
            length, ends = float(np.sqrt(len(bounds))), (-np.ones(len(bounds)), np.ones(len(bounds)))
            found = {
                "LogisticRegression": [
                    [
                        models.LogisticRegression(epsilon=_EPSILON, data_norm=length, C=penalty, max_iter=1000)
                        .fit(unit, y)
                        .score(points, truth)
                        for _ in range(1 if quick else _PEER_FITS)
                    ]
                    for penalty in _PEER_PENALTIES
                ],
                "GaussianNB": [
                    [
                        models.GaussianNB(epsilon=_EPSILON, bounds=ends).fit(unit, y).score(points, truth)
                        for _ in range(1 if quick else _PEER_FITS)
                    ]
                ],
            }
            for kind, fits in found.items():
                best = max(fits, key=np.median)
                scores: Row = {"median": float(np.median(best)), "least": min(best), "most": max(best)}
                rows.append({"peer": kind, "data": name, "n": len(X), "epsilon": _EPSILON, **scores})
            print(f"diffprivlib's classes of {name} measured", flush=True)
    return rows


def _labelled() -> Iterator[tuple[str, Floats, Floats, Bounds]]:
    """Data sets with labels: name, records, the two commonest labels, and public bounds."""
    bounds: Bounds
    for name, bounds in (
        ("skin", [(0.0, 255.0)] * 3),
        ("htru2", pulsar_bounds()),
        ("covtype, 10 columns, 2 labels", covtype_bounds(10)),
        ("covtype, 54 columns, 2 labels", covtype_bounds(54)),
    ):
        values = columns(name.partition(",")[0])
        X, y = values[:, : len(bounds)], values[:, -1]
        some = np.isin(y, _commonest(y, 2))
        yield name, X[some], y[some], bounds


def _split(X: Floats, y: Floats, *, quick: bool) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """What is fitted, and what is asked: held-out records."""
    order = np.random.default_rng(1).permutation(len(X))[: 6 * _HELD_OUT if quick else None]
    asked, kept = order[:_HELD_OUT], order[_HELD_OUT:]
    return (X[kept], y[kept]), (X[asked], y[asked])


def ada_ssp(X: Floats, y: Floats, *, epsilon: float, delta: float, rng: np.random.Generator) -> Floats:
    """Coefficients by AdaSSP (Wang 2018, Revisiting differentially private linear regression, algorithm 2).

    Its noise is of floats, from a generator that is no secret: for comparison alone.

    Args:
        X: (n, d) within ±1.
        y: (n,) within ±1.
        epsilon: ε.
        delta: δ.
        rng: Of the noise.
    """
    dim, failure = X.shape[1], 0.05
    length, third = float(np.sqrt(dim)), epsilon / 3
    log, gram = float(np.log(6 / delta)), X.T @ X
    least = float(np.linalg.eigvalsh(gram)[0]) + (rng.normal() * np.sqrt(log) - log) * length**2 / third
    ridge = max(0.0, np.sqrt(dim * log * np.log(2 * dim**2 / failure)) * length**2 / third - max(0.0, least))
    upper = np.triu(rng.normal(size=(dim, dim)))
    noised = gram + np.sqrt(log) * length**2 / third * (upper + np.triu(upper, 1).T)
    sums = X.T @ y + np.sqrt(log) * length / third * rng.normal(size=dim)
    return np.asarray(np.linalg.solve(noised + ridge * np.eye(dim), sums), np.float64)


def _classes(name: str, X: Floats, y: Floats, bounds: Bounds, *, quick: bool) -> Iterator[Row]:
    from hushsum.estimators import KernelClassifier

    (X, y), (asked, truth) = _split(X, y, quick=quick)
    labels = np.unique(y)

    def fit(delta: float, bandwidth: float | None = None) -> Any:
        model = KernelClassifier(
            epsilon=_EPSILON, delta=delta, bounds=bounds, classes=labels.tolist(), records=len(X), bandwidth=bandwidth
        )
        return model.fit(X, y)

    def exact(model: Any) -> float:
        sums = [_kernel_sums(model.release_.plan, X[y == label], asked) for label in labels]
        return float((labels[np.argmax(sums, axis=0)] == truth).mean())

    commonest = max(float((truth == label).mean()) for label in labels)
    known: Row = {"estimator": "KernelClassifier", "data": name, "n": len(X), "measure": "accuracy"}
    peer: Row = {"peer": "the commonest label", "of the peer": commonest}
    yield from _fitted(known, peer, fit, lambda model: float(model.score(asked, truth)), exact, quick=quick)


def _linear_classes(name: str, X: Floats, y: Floats, bounds: Bounds, *, quick: bool) -> Iterator[Row]:
    from sklearn.linear_model import LogisticRegression

    from hushsum.estimators import LinearClassifier

    (X, y), (asked, truth) = _split(X, y, quick=quick)
    labels, (low, high) = np.unique(y), np.array(bounds, np.float64).T

    def fit(delta: float) -> Any:
        model = LinearClassifier(epsilon=_EPSILON, delta=delta, bounds=bounds, classes=labels.tolist(), records=len(X))
        return model.fit(X, y)

    unit, points = ((np.clip(each, low, high) - low) / (high - low) for each in (X, asked))
    exact = float(LogisticRegression(C=100, max_iter=1000).fit(unit, y).score(points, truth))
    commonest = max(float((truth == label).mean()) for label in labels)
    known: Row = {"estimator": "LinearClassifier", "data": name, "n": len(X), "measure": "accuracy"}
    peer: Row = {"peer": "the commonest label", "of the peer": commonest}
    yield from _fitted(known, peer, fit, lambda model: float(model.score(asked, truth)), lambda _: exact, quick=quick)


def _outliers(name: str, X: Floats, is_outlier: npt.NDArray[np.bool_], bounds: Bounds, *, quick: bool) -> Iterator[Row]:
    from sklearn.metrics import roc_auc_score
    from sklearn.neighbors import KernelDensity

    from hushsum.estimators import KernelOutlierDetector

    rng = np.random.default_rng(1)
    inner, outer = (values[rng.permutation(len(values))] for values in (X[~is_outlier], X[is_outlier]))
    asked = np.concatenate([inner[:_HELD_OUT], outer[:_HELD_OUT]])
    truth = np.arange(len(asked)) < _HELD_OUT
    kept = inner[_HELD_OUT : 6 * _HELD_OUT if quick else None]
    low, high = np.array(bounds).T
    unit, points = ((np.clip(values, low, high) - low) / (high - low) for values in (kept[:_PEER_RECORDS], asked))
    peers = [
        float(roc_auc_score(truth, KernelDensity(bandwidth=width).fit(unit).score_samples(points)))
        for width in _PEER_BANDWIDTHS
    ]

    def fit(delta: float, bandwidth: float | None = None) -> Any:
        return KernelOutlierDetector(
            epsilon=_EPSILON, delta=delta, bounds=bounds, records=len(kept), bandwidth=bandwidth
        ).fit(kept)

    def exact(model: Any) -> float:
        return float(roc_auc_score(truth, _kernel_sums(model.release_.plan, kept, asked)))

    known: Row = {"estimator": "KernelOutlierDetector", "data": name, "n": len(kept), "measure": "ROC AUC"}
    peer: Row = {"peer": "scikit-learn's KernelDensity, exact", "of the peer": max(peers)}
    yield from _fitted(
        known, peer, fit, lambda model: float(roc_auc_score(truth, model.score_samples(asked))), exact, quick=quick
    )


def regressions() -> Iterator[tuple[str, Floats, Bounds]]:
    """Data sets of linear models: name, records with the target last, and public bounds."""
    records = columns("airfoil")[:, :6]
    yield "airfoil, documented bounds", records, _AIRFOIL
    yield "airfoil, standardised", *_standardised(records)
    records = columns("naval")[:, :17]
    changing = records[:, np.ptp(records, axis=0) > 0]
    _, distinct = np.unique(changing, axis=1, return_index=True)
    yield "naval, standardised", *_standardised(changing[:, np.sort(distinct)])


def _standardised(records: Floats) -> tuple[Floats, Bounds]:
    """Bounds of three standard deviations about the mean, which are taken for public."""
    mean, deviation = records.mean(axis=0), records.std(axis=0)
    low, high = mean - 3 * deviation, mean + 3 * deviation
    return np.clip(records, low, high), list(zip(low.tolist(), high.tolist(), strict=True))


def _regression(name: str, records: Floats, bounds: Bounds, *, quick: bool) -> Iterator[Row]:
    from sklearn.linear_model import LinearRegression

    from hushsum.estimators import LinearRegressor

    X, y = records[:, :-1], records[:, -1]
    low, high = np.array(bounds, np.float64).T
    unit = 2 * (records - low) / (high - low) - 1
    ones = np.column_stack([unit[:, :-1], np.ones(len(unit))])

    def r_squared(coefficients: Floats) -> float:
        rest = unit[:, -1] - ones @ coefficients
        return float(1 - rest @ rest / np.square(unit[:, -1] - unit[:, -1].mean()).sum())

    rng = np.random.default_rng(1)
    fits = [ada_ssp(ones, unit[:, -1], epsilon=_EPSILON, delta=SMALL_DELTA, rng=rng) for _ in range(20)]

    def fit(delta: float) -> Any:
        return LinearRegressor(
            epsilon=_EPSILON, delta=delta, bounds=bounds[:-1], target_bounds=bounds[-1], records=len(X)
        ).fit(X, y)

    known: Row = {"estimator": "LinearRegressor", "data": name, "n": len(X), "measure": "R²"}
    peer: Row = {"peer": "AdaSSP, δ = 10⁻⁶", "of the peer": float(np.median([r_squared(each) for each in fits]))}
    exact = float(LinearRegression().fit(X, y).score(X, y))
    yield from _fitted(known, peer, fit, lambda model: float(model.score(X, y)), lambda _: exact, quick=quick)


def _fitted(
    known: Row,
    peer: Row,
    fit: Callable[..., Any],
    score: Callable[[Any], float],
    exact: Callable[[Any], float],
    *,
    quick: bool,
) -> Iterator[Row]:
    """A row for each δ: the median of several fits, the same without noise, and with the best of given bandwidths."""
    times = 1 if quick else _FITS
    for delta in DELTAS:
        models = [fit(delta) for _ in range(times)]
        scores = [score(model) for model in models]
        found: Row = {"median": float(np.median(scores)), "least": min(scores), "most": max(scores)}
        if str(known["estimator"]).startswith("Kernel"):
            given = {
                width: float(np.median([score(fit(delta, width)) for _ in range(times)]))
                for width in _GIVEN_BANDWIDTHS[: 1 if quick else None]
            }
            best = max(given, key=lambda width: given[width])
            found |= {"given bandwidth": best, "median with it": given[best]}
        yield {**known, "epsilon": _EPSILON, "delta": delta, **found, "without noise": exact(models[0]), **peer}


def _kernel_sums(plan: Any, records: Floats, queries: Floats) -> Floats:
    sums = np.zeros(len(queries))
    for start in range(0, len(records), _BLOCK):
        sums += plan.family.kernel(records[start : start + _BLOCK], queries).sum(axis=0)
    return sums


def _commonest(y: Floats, count: int) -> Floats:
    labels, counts = np.unique(y, return_counts=True)
    return np.asarray(labels[np.argsort(-counts)[:count]], np.float64)
