"""RACE figure 3 (and 7): errors of kernel sums against ε, with every method at its best size.

Hushsum's figures are releases of ``hashed`` euclidean plans. All other methods are of :mod:`benchmarks.baselines`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import hushsum as hs
from benchmarks.accuracy.curves import PURE, SMALL_DELTA, Truth
from benchmarks.accuracy.data import DataSet, data_sets
from benchmarks.accuracy.draws import DEFAULT_SETS
from benchmarks.accuracy.papers.tally import HUSHSUM, Tally, seeds
from benchmarks.accuracy.subjects import hashed
from benchmarks.accuracy.sums import exact_sums
from benchmarks.baselines.race import Race
from benchmarks.baselines.series import Bernstein, Cosines, Histogram, lattice_points
from benchmarks.report import Row
from hushsum import kernels

Floats = npt.NDArray[np.float64]

FIGURE: Final = "race-3"
EPSILONS: Final = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
RELATIVE: Final = "mean relative error"
NORM: Final = "relative L2 error"
DENSITIES: Final = "densities"
SUMS: Final = "sums"
#: Of ε, for the number of records, where a method does not estimate it: as much as Hushsum's plans spend on it.
COUNT_SHARE: Final = 0.05
RACE: Final = "RACE, Laplace R/ε"
RACE_CODE: Final = "RACE, noise of its code, R/(Nε): not ε-private"
BERNSTEIN: Final = "Bernstein mechanism"
SPECTRAL: Final = "spectral approximation"
HISTOGRAM: Final = "synthetic data from a histogram"
#: The same for RACE and for Hushsum at δ = 0. The paper has 100 to 2,000; with the noise that ε asks for, fewer are
#: often better.
ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
RACE_BUCKETS: Final = 1000
#: With δ few rows have Laplace noise, and of many the noise of an answer does not depend on their number.
_ROWS_WITH_DELTA: Final = (1, 2, 4, 8, 4096)
#: Plans of fewer rows write their mechanism: a count counter of scale 1 would take 1/(R + 1) of their ε.
_ROWS_COUNTED: Final = 16
_TERMS: Final = (2, 4, 8, 10, 20, 40, 100)
_CELLS: Final = (10, 20, 50, 100, 200)


@dataclass(frozen=True)
class Subject:
    """One data set of the figure.

    Attributes:
        data: Its name.
        bandwidth: w of the kernel, as in the paper.
        buckets: W of Hushsum's plans: a power of two that no code leaves.
        metric: Of the errors.
        unit: Of the columns of Bernstein's cube; 0: the method cannot be run.
        degrees: M of Bernstein's.
    """

    data: str
    bandwidth: float
    buckets: int
    metric: str
    unit: float = 0
    degrees: Sequence[int] = ()

    def plan(self, data: DataSet, size: int, seed: int) -> hs.Plan:
        """A plan with R rows, from Sobol sets where R is a multiple of their number."""
        keys: dict[str, object] = {"buckets": self.buckets}
        if not size % DEFAULT_SETS:
            keys["draws"] = "sobol"
        return hashed("euclidean", self.bandwidth, (size,), **keys).plan(data, size, seed)


SUBJECTS: Final = (
    Subject("pay", 5000, 1024, NORM, 250_000, _TERMS),
    Subject("skin", 5, 1024, RELATIVE, 255, (2, 4, 8, 10, 20)),
    Subject("covtype", 20, 2048, RELATIVE),
)


def measure(*, quick: bool) -> list[Row]:
    """One row a data set, method, size, ε and δ."""
    rows: list[Row] = []
    for subject in SUBJECTS:
        (data,) = data_sets([subject.data], quick=quick)
        rows += of_data(subject, data, quick=quick)
        print(f"RACE figure 3: {data.name} measured", flush=True)
    return rows


def of_data(subject: Subject, data: DataSet, *, quick: bool) -> list[Row]:
    """The rows of one data set."""
    errors = _Errors(subject, Truth(data))
    epsilons, sizes = EPSILONS[::3] if quick else EPSILONS, _few(ROWS, quick=quick)
    points, weights = kernels.merge_equal(np.asarray(data.records, np.float64))
    for seed in seeds(quick=quick):
        rng = np.random.default_rng(seed)
        sketch = Race.of(
            points,
            weights.astype(np.float64),
            data.queries,
            bandwidth=subject.bandwidth,
            rows=max(sizes),
            buckets=RACE_BUCKETS,
            rng=rng,
        )
        for epsilon in epsilons:
            for method, some, scale in ((RACE, sizes, 1 / epsilon), (RACE_CODE, sizes[-1:], 1 / (epsilon * data.size))):
                for size, (sums, records) in zip(some, sketch.answers(some, scale, rng), strict=True):
                    errors.add(method, sums, records, size=size, epsilon=epsilon)
        for size, epsilon, delta, release in _releases(subject, data, seed, epsilons, quick=quick):
            sums = release.kernel_sum(data.queries).value
            errors.add(HUSHSUM, sums, release.count, size=size, epsilon=epsilon, delta=delta)
    for method, size, others in _series(subject, data, quick=quick):
        for epsilon, seed in product(epsilons, seeds(quick=quick)):
            rng = np.random.default_rng([seed, size])
            counted = data.size + rng.laplace(scale=1 / (COUNT_SHARE * epsilon))
            errors.add(method, others.answer((1 - COUNT_SHARE) * epsilon, rng), counted, size=size, epsilon=epsilon)
    return errors.rows()


class _Errors:
    """Two errors of each answer: of densities f/N, with the method's own estimate of N, and of sums f."""

    def __init__(self, subject: Subject, truth: Truth) -> None:
        self._exact = truth.of(subject.plan(truth.data, 8, 1))
        self._records, self._error = truth.data.size, _ERRORS[subject.metric]
        self._densities, self._sums = (
            Tally(FIGURE, truth.data.name, f"{subject.metric} of {what}") for what in (DENSITIES, SUMS)
        )

    def add(self, method: str, sums: Floats, counted: float, **known: Any) -> None:
        exact = self._exact / self._records
        self._densities.add(method, self._error(sums / max(counted, 1.0), exact), **known)
        self._sums.add(method, self._error(sums / self._records, exact), **known)

    def rows(self) -> list[Row]:
        return [*self._densities.rows(), *self._sums.rows()]


def _releases(
    subject: Subject, data: DataSet, seed: int, epsilons: Sequence[float], *, quick: bool
) -> Iterator[tuple[int, float, float, hs.Release]]:
    for delta, rows in ((PURE, ROWS), (SMALL_DELTA, _ROWS_WITH_DELTA)):
        for size in _few(rows, quick=quick):
            sketch = hs.Sketch(subject.plan(data, size, seed)).add(data.records)
            for epsilon in epsilons:
                changes: dict[str, object] = {"epsilon": epsilon, "delta": delta}
                if size < _ROWS_COUNTED:
                    scale = Fraction(size) / Fraction(str(epsilon))
                    changes["mechanism"] = {"name": "discrete-laplace", "scale": scale, "count_scale": 0}
                yield size, epsilon, delta, hs.release(sketch.under(sketch.plan.replace_privacy(**changes)))


def _series(subject: Subject, data: DataSet, *, quick: bool) -> Iterator[tuple[str, int, Any]]:
    """Methods whose sums are exact before the noise, so that a seed is of the noise alone."""
    if not subject.unit:
        return
    family, unit = subject.plan(data, 8, 1).family, subject.unit

    known: dict[bytes, Floats] = {}

    def sums(points: Floats) -> Floats:
        name = points.tobytes()
        if name not in known:
            known[name] = exact_sums(family, data.records, points * unit)
        return known[name]

    def kernel(left: Floats, right: Floats) -> Floats:
        return np.asarray(family.kernel(left * unit, right * unit))

    queries = data.queries / unit
    for degree in subject.degrees[: 2 if quick else None]:
        lattice = sums(lattice_points(degree, queries.shape[1]))
        yield BERNSTEIN, degree, Bernstein.of(lattice, degree, queries)
    if queries.shape[1] == 1:
        for terms in _TERMS[: 2 if quick else None]:
            yield SPECTRAL, terms, Cosines.of(sums, kernel, terms, queries)
        for cells in _CELLS[: 2 if quick else None]:
            yield HISTOGRAM, cells, Histogram.of(data.records / unit, kernel, cells, queries)


def _few(sizes: Sequence[int], *, quick: bool) -> Sequence[int]:
    return tuple(size for size in sizes if size <= 256)[-2:] or (256,) if quick else sizes


def _relative(found: Floats, exact: Floats) -> float:
    some = exact > 0
    return float(np.mean(np.abs(found[some] - exact[some]) / exact[some]))


def _norm(found: Floats, exact: Floats) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


_ERRORS: Final = {RELATIVE: _relative, NORM: _norm}
