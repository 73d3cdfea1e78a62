"""RACE figure 6 and table 4: kernel sums of the neighbour sets of social graphs, and seconds to sketch them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

import hushsum as hs
from benchmarks.accuracy.curves import PURE, SMALL_DELTA, Truth
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
_ROWS_WITH_DELTA: Final = (1, 2, 8, 1024)
#: Sums need no number of records: plans of δ = 0 write their mechanism, without a count counter, as RACE has none.
_ROWS_UNCOUNTED: Final = 512
_FEW_ROWS: Final = 32
_BUCKETS_OF_FEW: Final = 65_536
_BUCKETS: Final = 8192
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
    tally, exact = Tally(ERRORS, data.name, ABSOLUTE), Truth(data).of(_plan(data, 8, 1))
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
                _add_releases(add, data, seed, size, epsilons, delta)
    return tally.rows()


def times(data: DataSet, *, quick: bool) -> list[Row]:
    """CPU seconds of one thread for all sets at R = 2,000, and microseconds of a query."""
    rows = 64 if quick else _TIMED_ROWS
    sketching, asking = (Tally(TIMES, data.name, metric) for metric in (SKETCH, QUERY))
    plan = _plan(data, rows, 1)
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
    data: DataSet,
    seed: int,
    size: int,
    epsilons: Sequence[float],
    delta: float,
) -> None:
    sketch = hs.Sketch(_plan(data, size, seed)).add(data.records)
    for epsilon in epsilons:
        changes: dict[str, object] = {"epsilon": epsilon, "delta": delta}
        if size <= _ROWS_UNCOUNTED:
            scale = Fraction(size) / Fraction(str(epsilon))
            changes["mechanism"] = {"name": "discrete-laplace", "scale": scale, "count_scale": 0}
        release = hs.release(sketch.under(sketch.plan.replace_privacy(**changes)))
        add(HUSHSUM, release.kernel_sum(data.queries).value, size, epsilon, delta)


def _plan(data: DataSet, size: int, seed: int) -> hs.Plan:
    curve = jaccard("full")
    buckets = _BUCKETS_OF_FEW if size <= _FEW_ROWS else _BUCKETS
    return replace(curve, sketch={**curve.sketch, "buckets": buckets}).plan(data, size, seed)


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
