"""Linear regression from released sketches of the paired family: how much of least squares is kept."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

import hushsum as hs
from benchmarks.accuracy.curves import DELTAS, NO_NOISE, PURE, SMALL_DELTA, Price
from benchmarks.accuracy.data import SOURCES_REGRESSION
from benchmarks.data_files import columns
from benchmarks.report import Row
from hushsum.families import FAMILIES

Floats = npt.NDArray[np.float64]

_EPSILONS: Final = (0.1, 1.0, 10.0)
_REACH: Final = 3  # of standardised columns
_ROWS: Final = {"slope": (100,), "airfoil": (30, 100, 300, 1000), "naval": (100, 300, 1000)}
_POWER: Final = 4
_SEEDS: Final = 5
_LIMIT: Final = 1_000_000


def measure(*, quick: bool) -> list[Row]:
    """One row a data set, form, number of rows, ε and δ; none where this version has no paired family."""
    if "paired" not in FAMILIES:
        print("regression: skipped, this version does not offer the paired family", flush=True)
        return []
    rows: list[Row] = []
    for name, records in _data():
        sizes = _ROWS[name][:1] if quick else _ROWS[name]
        forms: tuple[str, ...] = ("inner", "orthogonal")
        for form in forms:
            for size in sizes:
                rows += _measure(name, records, form, size, seeds=1 if quick else _SEEDS)
        print(f"regression on {name}: {len(sizes) * len(forms)} sketches measured", flush=True)
    return rows


def sloped(n: int, rng: np.random.Generator) -> Floats:
    """Records [x, y], y = x/2 and noise as strong as that: orthogonal regression finds another slope."""
    x = rng.uniform(-1, 1, n)
    return np.stack([x, 0.5 * x + rng.normal(0, 0.29, n)], axis=1)


def standardised(values: Floats) -> Floats:
    """Columns with mean 0 and variance 1, clipped to ± 3; those that never change, or repeat another, are left out."""
    values = values[:, np.ptp(values, axis=0) > 0]
    scaled = (values - values.mean(axis=0)) / values.std(axis=0)
    kept = [j for j in range(scaled.shape[1]) if not any(np.allclose(scaled[:, j], scaled[:, i]) for i in range(j))]
    return np.asarray(np.clip(scaled[:, kept], -_REACH, _REACH), np.float64)


def r_squared(records: Floats, coefficients: Floats) -> float:
    """The share of the variance of the last column that a linear model of the others explains."""
    x, y = records[:, :-1], records[:, -1]
    return float(1.0 - np.sum(np.square(y - x @ coefficients)) / np.sum(np.square(y - y.mean())))


def _data() -> Iterator[tuple[str, Floats]]:
    yield "slope", sloped(10_000, np.random.default_rng(1))
    for name, kept in SOURCES_REGRESSION.items():
        yield name, standardised(columns(name)[:, kept])


def _measure(name: str, records: Floats, form: str, size: int, *, seeds: int) -> list[Row]:
    from hushsum.estimators import LinearRegressor

    least = np.asarray(np.linalg.lstsq(records[:, :-1], records[:, -1], rcond=None)[0], np.float64)
    found: dict[Price, list[tuple[float, float]]] = {}
    for seed in range(1, seeds + 1):
        sketch = hs.Sketch(_plan(name, records, form, size, seed))
        sketch.add(records)
        released = {price: hs.release(sketch, epsilon=price[0], delta=price[1]) for price in product(_EPSILONS, DELTAS)}
        exact = replace(next(iter(released.values())), counters=sketch.counters)
        for price, release in {(NO_NOISE, PURE): exact, **released}.items():
            coefficients = LinearRegressor.from_release(release).coef_
            found.setdefault(price, []).append((r_squared(records, coefficients), float(coefficients[0])))
    return [
        {
            "data": name,
            "n": len(records),
            "features": records.shape[1] - 1,
            "form": form,
            "rows": size,
            "epsilon": epsilon,
            "delta": delta,
            "R²": float(np.median([one[0] for one in each])),
            "R² of least squares": r_squared(records, least),
            "first coefficient": float(np.median([one[1] for one in each])),
            "that of least squares": float(least[0]),
        }
        for (epsilon, delta), each in found.items()
    ]


def _plan(name: str, records: Floats, form: str, size: int, seed: int) -> hs.Plan:
    dim = records.shape[1]
    record = {"dim": dim, "lower": [-_REACH] * dim, "upper": [_REACH] * dim}
    typical = float(np.round(1.5 * np.sqrt(dim) if name != "slope" else 1.0, 2))
    inner = {"radius": typical, "norm_bound": 4} if form == "inner" else {}
    sketch = {"family": "paired", "form": form, "power": _POWER, "rows": size, "seed": seed, **inner}
    privacy = {"epsilon": 1, "total_epsilon": _LIMIT, "total_delta": SMALL_DELTA}
    return hs.Plan(name=f"accuracy-{name}", record=record, sketch=sketch, privacy=privacy)
