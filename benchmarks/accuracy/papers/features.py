"""LSQ figures 1 to 3 and 6: errors of gaussian densities against the size, ε and the time of the curator, and maps."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from math import inf
from typing import Final

import numpy as np
import numpy.typing as npt

import hushsum as hs
from benchmarks.accuracy.curves import DELTAS, NO_NOISE, PURE, Curve, Truth
from benchmarks.accuracy.data import DataSet, data_sets
from benchmarks.accuracy.papers.density import BERNSTEIN, COUNT_SHARE
from benchmarks.accuracy.papers.tally import HUSHSUM, Tally, seeds
from benchmarks.accuracy.subjects import fourier, hermite
from benchmarks.accuracy.sums import exact_sums
from benchmarks.baselines.lsq import FastGauss, FourierFeatures
from benchmarks.baselines.series import Bernstein, lattice_points
from benchmarks.data_files import shown
from benchmarks.report import Row

Floats = npt.NDArray[np.float64]

ERRORS: Final = "lsq-2"
TIMES: Final = "lsq-3"
MAPS: Final = "lsq-6"
ABSOLUTE: Final = "mean absolute error of densities"
SECONDS: Final = "seconds of the curator"
TIMED: Final = 0.05
EPSILONS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
RFF: Final = "LSQ-RFF"
FGT: Final = "LSQ-FGT"
EXACT_N: Final = ", exact n as its code: not ε-private"
SAMPLE: Final = "NoisySample: not private for its sample"
FOURIER: Final = f"{HUSHSUM} fourier"
HERMITE: Final = f"{HUSHSUM} hermite"
#: Of the maps, with the sizes that are best on taxi at about these ε.
MAP_EPSILONS: Final = (0.01, 0.05, 1.0)
MAP_ORDER: Final = 3
MAP_SHAPE: Final = (48, 64)
MAP_BOX: Final = ((-74.03, 40.68), (-73.85, 40.82))
FEATURES: Final = (64, 256, 1024, 4096)
TERMS: Final = (1, 2, 3, 4, 6, 8)
_QUERIES: Final = 100  # of a seed
_SAMPLED: Final = 100
_DEGREES: Final = (5, 10, 20, 40)


@dataclass(frozen=True)
class Subject:
    """One data set of the figures.

    Attributes:
        data: Its name.
        bandwidth: σ, as in the paper.
        plane: Whether it has two columns, for which FGT and Bernstein can be run.
    """

    data: str
    bandwidth: float
    plane: bool


SUBJECTS: Final = (Subject("taxi", 0.01, plane=True), Subject("covtype", 500, plane=False))


def measure(*, quick: bool) -> list[Row]:
    """Errors and seconds of each data set, and the maps of the first."""
    rows: list[Row] = []
    for subject in SUBJECTS:
        (data,) = data_sets([subject.data], quick=quick)
        rows += of_data(subject, data, quick=quick)
        rows += times(subject, data, quick=quick)
        if subject.plane:
            rows += maps(subject, data)
        print(f"LSQ: {data.name} measured", flush=True)
    return rows


def of_data(subject: Subject, data: DataSet, *, quick: bool) -> list[Row]:
    """Errors of one data set, for each method, size and ε."""
    tally, truth = Tally(ERRORS, data.name, ABSOLUTE), Truth(data)
    exact = truth.of(_family_plan(subject, data)) / data.size
    for seed in seeds(quick=quick):
        some = slice(_QUERIES * (seed - 1), _QUERIES * seed)
        one = _Seed(subject, data, tally, seed, data.queries[some], exact[some], quick=quick)
        one.add_releases()
        one.add_features()
        one.add_sampled()
        if subject.plane:
            one.add_moments()
            one.add_lattices()
    return tally.rows()


@dataclass(frozen=True)
class _Seed:
    """What one seed adds to the errors: every method, asked at queries of this seed."""

    subject: Subject
    data: DataSet
    tally: Tally
    seed: int
    asked: Floats
    exact: Floats
    quick: bool = field(kw_only=True)

    def add_releases(self) -> None:
        for label, curve in _curves(self.subject, quick=self.quick):
            for size in curve.sizes:
                self._add_releases_of(label, curve, size)

    def _add_releases_of(self, label: str, curve: Curve, size: int) -> None:
        plan = curve.plan(self.data, size, self.seed)
        sketch = hs.Sketch(plan).add(self.data.records)
        exact = plan.family.answer(sketch.counters[0], self.asked).value
        for delta, epsilon in product(DELTAS, _epsilons(quick=self.quick)):
            if curve.family == "hermite":  # the weights of moments depend on the price
                sketch = hs.Sketch(curve.plan(self.data, size, self.seed, (epsilon, delta))).add(self.data.records)
            release = hs.release(sketch, epsilon=epsilon, delta=delta)
            self._add(label, release.kernel_sum(self.asked).value, release.count, size, epsilon, delta)
        self._add(label, exact, self.data.size, size)

    def add_features(self) -> None:
        rng, sizes = self._rng(1), _sizes(quick=self.quick)
        features = FourierFeatures.of(
            self.data.records, self.asked, bandwidth=self.subject.bandwidth, features=sizes[-1], rng=rng
        )
        for size, sums in zip(sizes, features.answers(sizes, inf, rng), strict=True):
            self._add(RFF, sums, self.data.size, size)
        for epsilon in _epsilons(quick=self.quick):
            counted = _counted(self.data, epsilon, rng)
            for size, sums in zip(sizes, features.answers(sizes, (1 - COUNT_SHARE) * epsilon, rng), strict=True):
                self._add(RFF, sums, counted, size, epsilon)
            for size, sums in zip(sizes, features.answers(sizes, epsilon, rng), strict=True):
                self._add(RFF + EXACT_N, sums, self.data.size, size, epsilon)

    def add_sampled(self) -> None:
        """The same answer for every query: the mean density at 100 records, with noise."""
        rng = self._rng(2)
        picked = rng.choice(self.data.size, _SAMPLED, replace=False)
        family = _family_plan(self.subject, self.data).family
        sums = exact_sums(family, self.data.records, self.data.records[picked]).mean()
        for epsilon in _epsilons(quick=self.quick):
            self._add(SAMPLE, np.full(1, sums + rng.laplace(scale=1 / epsilon)), self.data.size, 0, epsilon)

    def add_moments(self) -> None:
        rng = self._rng(3)
        for size in _terms(quick=self.quick):
            moments = _fast_gauss(self.subject, self.data, self.asked, size)
            self._add(FGT, moments.answer(inf, rng), self.data.size, size)
            for epsilon in _epsilons(quick=self.quick):
                sums = moments.answer((1 - COUNT_SHARE) * epsilon, rng)
                self._add(FGT, sums, _counted(self.data, epsilon, rng), size, epsilon)
                self._add(FGT + EXACT_N, moments.answer(epsilon, rng), self.data.size, size, epsilon)

    def add_lattices(self) -> None:
        rng, (low, high) = self._rng(4), _bounds(self.data)
        for degree in _DEGREES[: 2 if self.quick else None]:
            sums = _lattice(self.subject, self.data, degree)
            lattice = Bernstein.of(sums, degree, (self.asked - low) / (high - low))
            for epsilon in _epsilons(quick=self.quick):
                found = lattice.answer((1 - COUNT_SHARE) * epsilon, rng)
                self._add(BERNSTEIN, found, _counted(self.data, epsilon, rng), degree, epsilon)

    def _rng(self, method: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, method])

    def _add(
        self, method: str, sums: Floats, counted: float, size: int, epsilon: float = NO_NOISE, delta: float = PURE
    ) -> None:
        error = float(np.mean(np.abs(sums / max(counted, 1.0) - self.exact)))
        self.tally.add(method, error, size=size, epsilon=epsilon, delta=delta)


def times(subject: Subject, data: DataSet, *, quick: bool) -> list[Row]:
    """CPU seconds of one thread, from the records to what is released at ε = 0.05, for each size."""
    tally = Tally(TIMES, data.name, SECONDS)
    few, rng = data.queries[:1], np.random.default_rng(1)

    def release(curve: Curve, size: int, delta: float) -> None:
        sketch = hs.Sketch(curve.plan(data, size, 1, (TIMED, delta))).add(data.records)
        hs.release(sketch, epsilon=TIMED, delta=delta)

    def features(size: int) -> None:
        made = FourierFeatures.of(data.records, few, bandwidth=subject.bandwidth, features=size, rng=rng)
        list(made.answers([size], TIMED, rng))

    def moments(size: int) -> None:
        _fast_gauss(subject, data, few, size).answer(TIMED, rng)

    for _ in range(1 if quick else 3):
        for (label, curve), delta in product(_curves(subject, quick=quick), DELTAS):
            for size in curve.sizes:
                seconds = _seconds(partial(release, curve, size, delta))
                tally.add(label, seconds, size=size, epsilon=TIMED, delta=delta)
        for size in _sizes(quick=quick):
            tally.add(RFF, _seconds(partial(features, size)), size=size, epsilon=TIMED)
        for size in _terms(quick=quick) if subject.plane else ():
            tally.add(FGT, _seconds(partial(moments, size)), size=size, epsilon=TIMED)
    return tally.rows()


def maps(subject: Subject, data: DataSet) -> list[Row]:
    """Densities on a grid, as bytes on a square-root scale up to the exact maximum: exact, LSQ-FGT and releases."""
    (west, south), (east, north) = MAP_BOX
    down, across = MAP_SHAPE
    across_places, down_places = np.linspace(west, east, across), np.linspace(north, south, down)
    grid = np.stack(np.meshgrid(across_places, down_places), axis=-1).reshape(-1, 2)
    curve = hermite(subject.bandwidth, (MAP_ORDER,), cutoff=3)
    exact = exact_sums(curve.plan(data, MAP_ORDER, 1).family, data.records, grid) / data.size
    drawn = [("exact", NO_NOISE, PURE, exact)]
    published = _fast_gauss(subject, data, grid, MAP_ORDER)
    rng = np.random.default_rng(1)
    for epsilon in MAP_EPSILONS:
        sums = published.answer((1 - COUNT_SHARE) * epsilon, rng)
        drawn.append((FGT, epsilon, PURE, sums / max(_counted(data, epsilon, rng), 1.0)))
        for delta in DELTAS:
            sketch = hs.Sketch(curve.plan(data, MAP_ORDER, 1, (epsilon, delta))).add(data.records)
            release = hs.release(sketch, epsilon=epsilon, delta=delta)
            drawn.append((HERMITE, epsilon, delta, release.density(grid).value))
    top = float(exact.max())
    return [
        {
            "figure": MAPS,
            "data": shown(data.name),
            "metric": ABSOLUTE,
            "method": method,
            "size": MAP_ORDER,
            "epsilon": epsilon,
            "delta": delta,
            "median": float(np.mean(np.abs(values - exact))),
            "seeds": 1,
            "pixels": (255 * np.sqrt(np.clip(values / top, 0, 1))).round().astype(np.uint8).tobytes().hex(),
        }
        for method, epsilon, delta, values in drawn
    ]


def _curves(subject: Subject, *, quick: bool) -> list[tuple[str, Curve]]:
    draws = "sobol" if subject.plane else "independent"
    found = [(FOURIER, fourier(subject.bandwidth, draws, _sizes(quick=quick)))]
    if subject.plane:
        found.append((HERMITE, hermite(subject.bandwidth, _terms(quick=quick), cutoff=3)))
    return found


def _epsilons(*, quick: bool) -> Sequence[float]:
    return EPSILONS[2::2] if quick else EPSILONS


def _sizes(*, quick: bool) -> tuple[int, ...]:
    return FEATURES[:2] if quick else FEATURES


def _terms(*, quick: bool) -> tuple[int, ...]:
    return TERMS[:3] if quick else TERMS


def _family_plan(subject: Subject, data: DataSet) -> hs.Plan:
    return fourier(subject.bandwidth, "independent").plan(data, FEATURES[0], 1)


@cache
def _lattice(subject: Subject, data: DataSet, degree: int) -> Floats:
    """Exact sums on the lattice of the unit square, once for all seeds."""
    low, high = _bounds(data)
    points = low + lattice_points(degree, len(low)) * (high - low)
    return exact_sums(_family_plan(subject, data).family, data.records, points)


def _fast_gauss(subject: Subject, data: DataSet, asked: Floats, terms: int) -> FastGauss:
    low, high = _bounds(data)
    return FastGauss.of(data.records, asked, bandwidth=subject.bandwidth, terms=terms, lower=low, upper=high)


def _bounds(data: DataSet) -> tuple[Floats, Floats]:
    low, high = (np.array(data.record[end], np.float64) for end in ("lower", "upper"))
    return low, high


def _counted(data: DataSet, epsilon: float, rng: np.random.Generator) -> float:
    return float(data.size + rng.laplace(scale=1 / (COUNT_SHARE * epsilon)))


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
