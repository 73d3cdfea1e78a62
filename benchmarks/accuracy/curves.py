"""Error curves: a family's error against its rows (or its order), without noise and after real releases.

Noise comes from :func:`hushsum.release` alone, and so from the mechanism that a plan names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import hushsum as hs
from benchmarks.accuracy.data import DataSet
from benchmarks.accuracy.sums import exact_sums
from benchmarks.report import Row
from hushsum.advice.costs import Guesses, stand_in
from hushsum.advice.forecast import Hashing, optimal_rows
from hushsum.errors import NotBuiltError
from hushsum.families import FAMILIES
from hushsum.families.partition import Partition

Floats = npt.NDArray[np.float64]
Price = tuple[float, float]
Errors = tuple[float, float, float, float]

#: ε of a row without noise.
NO_NOISE: Final = 0.0
EPSILONS: Final = (0.01, 0.05, 0.1, 0.5, 1.0)
#: δ of the releases: pure ε with discrete Laplace noise, and δ > 0 with that or discrete Gaussian noise.
PURE: Final = 0.0
SMALL_DELTA: Final = 1e-6
DELTAS: Final = (PURE, SMALL_DELTA)
CONFIDENCE: Final = 0.95
_LIMIT: Final = 1_000_000  # of ε: these are no releases of anybody's
_MADE_UP: Final = 4096  # records that a prediction is made from


@dataclass(frozen=True)
class Curve:
    """A sketch in several sizes.

    Attributes:
        label: What a table calls it.
        sketch: ``[sketch]`` without its seed and its size.
        sizes: What ``axis`` takes.
        axis: ``rows``, or ``order`` (hermite).
        seeds: Fewest and most sketches of a size, each with a public seed and noise of its own.
        rows: Of all sketches of a size together, within those limits.
        epsilons: Of the releases.
        deltas: Of the releases, each with every ε.
        queries_each: Queries of a seed, each seed its own; 0: all of them for every seed.
        median: Whether answers are the median of the rows instead of their mean.
    """

    label: str
    sketch: Mapping[str, object]
    sizes: Sequence[int]
    axis: str = "rows"
    seeds: tuple[int, int] = (3, 32)
    rows: int = 8192
    epsilons: Sequence[float] = EPSILONS
    deltas: Sequence[float] = DELTAS
    queries_each: int = 0
    median: bool = False

    @property
    def family(self) -> str:
        """Its name in ``FAMILIES``."""
        return str(self.sketch["family"])

    def sketches(self, size: int) -> int:
        """How many sketches of this size."""
        least, most = self.seeds
        return most if self.axis == "order" else min(most, max(least, self.rows // size))

    def plan(self, data: DataSet, size: int, seed: int, price: Price = (1.0, PURE)) -> hs.Plan:
        """The plan of one sketch, for a release at this price: weights of moments depend on it.

        Raises:
            PlanError: The data cannot be sketched so.
        """
        more = {"weights": "auto"} if self.family == "hermite" else {"seed": seed}
        keys = {**more, **self.sketch, self.axis: size}
        privacy = {"epsilon": price[0], "delta": price[1], "total_epsilon": _LIMIT, "total_delta": SMALL_DELTA}
        return hs.Plan(name=f"accuracy-{data.name}", record=data.record, sketch=keys, privacy=privacy)

    def built(self, data: DataSet) -> bool:
        """Whether this version offers it; one line says when it does not."""
        if self.family in FAMILIES:
            try:
                self.plan(data, self.sizes[0], 1)
                return True
            except NotBuiltError:
                pass
        print(f"{data.name}: {self.label} skipped, this version does not offer it", flush=True)
        return False


@dataclass
class Truth:
    """Exact sums of one data set, each kernel's made once.

    Attributes:
        data: The records.
    """

    data: DataSet
    _sums: dict[str, Floats] = field(default_factory=dict)

    def of(self, plan: hs.Plan) -> Floats:
        """Σ k(x, q) of a plan's kernel, at each query."""
        fields = plan.family.to_fields()
        keys = ("kernel", "bandwidth", "power", "exponent", "cells", "transforms")
        name = repr([fields.get(key) for key in keys])
        if name not in self._sums:
            self._sums[name] = exact_sums(plan.family, self.data.records, self.data.queries)
        return self._sums[name]


def measure(curve: Curve, truth: Truth) -> list[Row]:
    """One row a size, ε and δ, averaged over seeds and queries: relative error, error of densities, coverage."""
    rows: list[Row] = []
    for size in curve.sizes:
        errors: dict[Price, list[Errors]] = {}
        for seed in range(1, curve.sketches(size) + 1):
            for price, error in _one(curve, truth, size, seed).items():
                errors.setdefault(price, []).append(error)
        rows += [_row(curve, truth, size, price, each) for price, each in errors.items()]
    return rows


def best_rows(curve: Curve, truth: Truth) -> dict[float, int]:
    """R* of each ε, predicted from the plan, the number of records and their mean kernel: nothing else of them."""
    plan, records = curve.plan(truth.data, curve.sizes[-1], 1), truth.data.size
    guesses = Guesses.checked(plan, records, float(truth.of(plan).mean()) / records, None)
    hashing = Hashing(plan, stand_in(plan, guesses.density, min(records, _MADE_UP)))
    found = {
        epsilon: optimal_rows(plan.replace_privacy(epsilon=f"{epsilon:g}"), guesses, hashing)
        for epsilon in curve.epsilons
    }
    return {epsilon: rows for epsilon, rows in found.items() if rows is not None}


def errors_of(answer: hs.Answer, density: Floats, exact: Floats, records: int) -> Errors:
    """Mean relative error, mean absolute error of densities, coverage of the stated interval, its mean half width / f.

    Args:
        answer: Of kernel sums.
        density: The same, divided by the (noisy) number of records.
        exact: (m,) kernel sums; relative figures leave out those that are 0.
        records: n.
    """
    positive = exact > 0
    off = np.abs(answer.value - exact)
    low, high = answer.interval(CONFIDENCE)
    covered = (low <= exact) & (exact <= high)
    half = (high - low) / 2
    return (
        float(np.mean(off[positive] / exact[positive])),
        float(np.mean(np.abs(density - exact / records))),
        float(np.mean(covered)) if np.isfinite(half).all() else float("nan"),
        float(np.mean(half[positive] / exact[positive])),
    )


def _one(curve: Curve, truth: Truth, size: int, seed: int) -> dict[Price, Errors]:
    data = truth.data
    plan = curve.plan(data, size, seed)
    each = curve.queries_each
    some = slice(each * (seed - 1), each * seed) if each else slice(None)
    exact, queries = truth.of(plan)[some], data.queries[some]
    sketches: dict[str, hs.Sketch] = {}
    groups = size if curve.median else None
    answer = _without_noise(plan, _sketched(plan, data, sketches).counters[0], queries, groups)
    errors = {(NO_NOISE, PURE): errors_of(answer, answer.value / data.size, exact, data.size)}
    for epsilon, delta in product(curve.epsilons, curve.deltas):
        priced = curve.plan(data, size, seed, (epsilon, delta)) if curve.family == "hermite" else plan
        release = hs.release(_sketched(priced, data, sketches), epsilon=epsilon, delta=delta)
        answer, density = release.kernel_sum(queries, groups=groups), release.density(queries, groups=groups)
        errors[epsilon, delta] = errors_of(answer, density.value, exact, data.size)
    return errors


def _sketched(plan: hs.Plan, data: DataSet, sketches: dict[str, hs.Sketch]) -> hs.Sketch:
    """All records, sketched once for each family."""
    weights = str(plan.family.to_fields().get("weights"))
    if weights not in sketches:
        sketches[weights] = hs.Sketch(plan)
        sketches[weights].add(data.records)
        assert sketches[weights].records == data.records.shape[0], "every record counts in the exact sums"
    return sketches[weights]


def _without_noise(plan: hs.Plan, counters: npt.NDArray[np.int64], queries: Any, groups: int | None) -> hs.Answer:
    """As a release answers, from exact counters."""
    family = plan.family
    if isinstance(family, Partition) and groups is None:
        found = family.estimates(counters, noise_variance=0.0).answer(queries)
        if found is not None:
            return found
    return family.answer(counters, queries, groups=groups)


def _row(curve: Curve, truth: Truth, size: int, price: Price, each: Sequence[Errors]) -> Row:
    relative, absolute, coverage, half = (float(np.mean(one)) for one in zip(*each, strict=True))
    bars: Row = {} if np.isnan(coverage) else {"coverage": coverage, "half width": half}
    spread = np.std(np.array(each), axis=0, ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.zeros(4)
    return {
        "data": truth.data.name,
        "sketch": curve.label,
        "axis": curve.axis,
        "size": size,
        "epsilon": price[0],
        "delta": price[1],
        "relative error": relative,
        "its standard error": float(spread[0]),
        "density error": absolute,
        "that one's standard error": float(spread[1]),
        **bars,
        "sketches": len(each),
    }


def keys(family: str, kernel: str, bandwidth: float, **more: Any) -> dict[str, object]:
    """``[sketch]`` of a family with a kernel."""
    return {"family": family, "kernel": kernel, "bandwidth": bandwidth, **more}
