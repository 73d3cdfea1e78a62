"""RACE figure 6 and table 4: kernel sums of the neighbour sets of social graphs, and seconds to sketch them."""

import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

import hushsum as hs
from benchmarks.accuracy.curves import PURE, SMALL_DELTA, Curve, Truth
from benchmarks.accuracy.data import DataSet, data_sets
from benchmarks.accuracy.papers.density import RACE, RACE_CODE
from benchmarks.accuracy.papers.tally import HUSHSUM, Tally, seeds
from benchmarks.accuracy.subjects import jaccard
from benchmarks.baselines.race import RaceOfSets
from benchmarks.report import Row

Floats = npt.NDArray[np.float64]

ERRORS: Final = "race-6"
TIMES: Final = "race-4"
ABSOLUTE: Final = "mean absolute error of sums"
SKETCH: Final = "seconds of a sketch"
QUERY: Final = "microseconds of a query"
CONSTANT: Final = "the mean of all exact sums: not private"
EPSILONS: Final = (0.1, 0.3, 1.0, 3.0, 10.0)
ROWS: Final = (1, 2, 8, 32, 128, 512)
RACE_ROWS: Final = (*ROWS, 2000)
RACE_BUCKETS: Final = 100_000
_ROWS_WITH_DELTA: Final = (1024,)
_TIMED_ROWS: Final = 2000
_DATA: Final = ("slashdot", "ego_facebook")


def measure(*, quick: bool) -> list[Row]:
    """Errors and seconds of each graph."""
    rows: list[Row] = []
    for data in data_sets(_DATA, quick=quick):
        rows += of_data(data, quick=quick) + times(data, quick=quick)
        print(f"RACE figure 6: {data.name} measured", flush=True)
    return rows


def of_data(data: DataSet, *, quick: bool) -> list[Row]:
    """Errors of one graph, for each method, size and ε."""
    tally, curve = Tally(ERRORS, data.name, ABSOLUTE), jaccard("full")
    exact = Truth(data).of(curve.plan(data, 8, 1))
    epsilons, sizes = (EPSILONS[::2], ROWS[2:4]) if quick else (EPSILONS, RACE_ROWS)

    def add(method: str, sums: Floats, size: int, epsilon: float, delta: float = PURE) -> None:
        tally.add(method, float(np.mean(np.abs(sums - exact))), size=size, epsilon=epsilon, delta=delta)

    for seed in seeds(quick=quick):
        rng = np.random.default_rng(seed)
        sketch = RaceOfSets.of(data.records, data.queries, rows=sizes[-1], buckets=RACE_BUCKETS, rng=rng)
        for epsilon in epsilons:
            for size, sums in zip(sizes, sketch.answers(sizes, 1 / epsilon, rng), strict=True):
                add(RACE, sums, size, epsilon)
            (sums,) = sketch.answers(sizes[-1:], 1 / (epsilon * data.size), rng)
            add(RACE_CODE, sums, sizes[-1], epsilon)
            add(CONSTANT, np.full(1, exact.mean()), 0, epsilon)
        for delta, some in ((PURE, ROWS), (SMALL_DELTA, _ROWS_WITH_DELTA)):
            for size in (ROWS[3],) if quick else some:
                _add_releases(add, curve, data, seed, size, epsilons, delta)
    return tally.rows()


def times(data: DataSet, *, quick: bool) -> list[Row]:
    """CPU seconds of one thread for all sets at R = 2,000, and microseconds of a query."""
    rows = 64 if quick else _TIMED_ROWS
    sketching, asking = (Tally(TIMES, data.name, metric) for metric in (SKETCH, QUERY))
    plan = jaccard("full").plan(data, rows, 1)
    release = hs.release(hs.Sketch(plan).add(data.records), epsilon=1)
    for _ in range(1 if quick else 3):
        sketching.add(HUSHSUM, _seconds(lambda: hs.Sketch(plan).add(data.records)), size=rows)
        asking.add(HUSHSUM, 1e6 * _seconds(lambda: release.kernel_sum(data.queries)) / data.queries.shape[0], size=rows)
    few = min(rows, 64)
    seconds = _seconds(
        lambda: RaceOfSets.of(
            data.records, data.queries[:1], rows=few, buckets=RACE_BUCKETS, rng=np.random.default_rng(1)
        )
    )
    sketching.add(f"RACE in NumPy, {few} rows scaled to all", seconds * rows / few, size=rows)
    return [*sketching.rows(), *asking.rows()]


def _add_releases(
    add: Callable[[str, Floats, int, float, float], None],
    curve: Curve,
    data: DataSet,
    seed: int,
    size: int,
    epsilons: Sequence[float],
    delta: float,
) -> None:
    sketch = hs.Sketch(curve.plan(data, size, seed)).add(data.records)
    for epsilon in epsilons:
        release = hs.release(sketch, epsilon=epsilon, delta=delta)
        add(HUSHSUM, release.kernel_sum(data.queries).value, size, epsilon, delta)


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
