"""RACE table 3: CPU seconds to release the density of skin, and of one query of it."""

import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

import hushsum as hs
from benchmarks.accuracy.curves import DELTAS
from benchmarks.accuracy.data import DataSet, data_sets
from benchmarks.accuracy.papers.density import BERNSTEIN, RACE_BUCKETS, SUBJECTS, Subject
from benchmarks.accuracy.papers.tally import HUSHSUM, Tally
from benchmarks.accuracy.sums import exact_sums
from benchmarks.baselines.race import Race
from benchmarks.baselines.series import Bernstein, lattice_points
from benchmarks.report import Row
from benchmarks.rivals import Parameters, add_one_by_one, answer_one_by_one
from hushsum.families import Hashed

_T = TypeVar("_T")

FIGURE: Final = "race-table-3"
RELEASE: Final = "seconds of a release"
QUERY: Final = "milliseconds of a query"
ONE_BY_ONE: Final = "RACE as its authors' code: one record at a time (500 records, scaled)"
VECTORISED: Final = "RACE in NumPy"
_ROWS: Final = 1000
_DEGREE: Final = 20
_SOME: Final = 500
_ASKED: Final = 100
_REPEATS: Final = 3


def measure(*, quick: bool) -> list[Row]:
    """One row a method, for the release and for a query."""
    (data,) = data_sets(["skin"], quick=quick)
    (subject,) = (each for each in SUBJECTS if each.data == "skin")
    return of_data(subject, data, quick=quick)


def of_data(subject: Subject, data: DataSet, *, quick: bool) -> list[Row]:
    """CPU seconds of one thread: medians of three."""
    releasing, asking = (Tally(FIGURE, data.name, metric) for metric in (RELEASE, QUERY))
    rows, degree = (64, 4) if quick else (_ROWS, _DEGREE)
    plan, rng = subject.plan(data, rows, 1), np.random.default_rng(1)
    asked = data.queries[:_ASKED]
    assert isinstance(plan.family, Hashed)
    parameters, few = Parameters.of(plan.family), data.records[:_SOME].astype(np.float32)
    for _ in range(1 if quick else _REPEATS):
        for delta in DELTAS:
            release, seconds = _timed(partial(_release, plan, data, delta))
            releasing.add(HUSHSUM, seconds, size=rows, epsilon=1, delta=delta)
            _, seconds = _timed(partial(release.kernel_sum, data.queries))
            asking.add(HUSHSUM, 1e3 * seconds / len(data.queries), size=rows, epsilon=1, delta=delta)
        counters, seconds = _timed(partial(add_one_by_one, parameters, few))
        releasing.add(ONE_BY_ONE, seconds * data.size / len(few), size=rows, epsilon=1)
        _, seconds = _timed(partial(answer_one_by_one, parameters, counters, asked.astype(np.float32)))
        asking.add(ONE_BY_ONE, 1e3 * seconds / len(asked), size=rows, epsilon=1)
        _, seconds = _timed(partial(_race, subject, data, rows, rng))
        releasing.add(VECTORISED, seconds, size=rows, epsilon=1)
    lattice, seconds = _timed(lambda: _lattice(subject, data, degree))
    releasing.add(BERNSTEIN, seconds, size=degree, epsilon=1)
    _, seconds = _timed(lambda: Bernstein.of(lattice, degree, asked / subject.unit).answer(1.0, rng))
    asking.add(BERNSTEIN, 1e3 * seconds / len(asked), size=degree, epsilon=1)
    return [*releasing.rows(), *asking.rows()]


def _release(plan: hs.Plan, data: DataSet, delta: float) -> hs.Release:
    return hs.release(hs.Sketch(plan).add(data.records), epsilon=1, delta=delta)


def _race(subject: Subject, data: DataSet, rows: int, rng: np.random.Generator) -> object:
    sketch = Race.of(
        np.asarray(data.records),
        np.ones(data.size),
        data.queries[:1],
        bandwidth=subject.bandwidth,
        rows=rows,
        buckets=RACE_BUCKETS,
        rng=rng,
    )
    return list(sketch.answers([rows], 1.0, rng))


def _lattice(subject: Subject, data: DataSet, degree: int) -> npt.NDArray[np.float64]:
    points = lattice_points(degree, data.queries.shape[1]) * subject.unit
    return exact_sums(subject.plan(data, 8, 1).family, data.records, points)


def _timed(work: Callable[[], _T]) -> tuple[_T, float]:
    started = time.process_time()
    found = work()
    return found, time.process_time() - started
