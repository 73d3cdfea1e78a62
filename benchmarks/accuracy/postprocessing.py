"""Errors before and after post-processing of a release: consistent cells, shrunk sums, control variates.

Each row has root mean square errors in records, over sketches with seeds and noise of their own, and over queries.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

import hushsum as hs
from benchmarks.accuracy.curves import DELTAS, Curve, keys
from benchmarks.accuracy.data import DataSet, data_sets
from benchmarks.accuracy.sums import exact_sums
from benchmarks.report import Row
from hushsum import query
from hushsum.families.partition import Partition
from hushsum.families.partition.family import CellEstimates
from hushsum_simulator.audit.cases import with_count_counter

Floats = npt.NDArray[np.float64]

EPSILONS: Final = (0.05, 0.1, 1.0)
#: No estimator was chosen on it.
UNSEEN: Final = "covtype, 2 columns"
_RANGES: Final = 200
_HELD_OUT: Final = 1000
_GRID: Final[Mapping[int, int]] = {1: 200, 2: 32, 3: 10}
_LEVELS: Final = (("pay", 2400, 256, 9), ("taxi", 0.01, 4096, 8), ("skin", 16, 4096, 5))
_SHRUNK: Final[Mapping[str, tuple[Mapping[str, object], ...]]] = {
    "skin": (
        keys("hashed", "euclidean", 5, buckets=1024, rows=512, draws="sobol"),
        keys("fourier", "gaussian", 20, rows=1024, draws="sobol"),
        {"family": "partition", "bandwidth": 8, "buckets": 32768, "rows": 1},
    ),
    "taxi": (
        keys("hashed", "euclidean", 0.005, buckets=1024, rows=512, draws="sobol"),
        keys("fourier", "gaussian", 0.01, rows=1024, draws="sobol"),
        keys("hermite", "gaussian", 0.01, cutoff=3, order=3),
        {"family": "partition", "bandwidth": 0.01, "buckets": 4096, "rows": 1},
    ),
    "pay": (
        keys("hashed", "euclidean", 5000, buckets=1024, rows=512, draws="sobol"),
        keys("fourier", "gaussian", 5000, rows=1024, draws="sobol"),
        keys("hermite", "gaussian", 5000, cutoff=3, order=3),
    ),
    UNSEEN: (
        keys("hashed", "euclidean", 40, buckets=1024, rows=512, draws="sobol"),
        keys("fourier", "gaussian", 40, rows=1024, draws="sobol"),
        keys("hermite", "gaussian", 60, cutoff=3, order=3),
        {"family": "partition", "bandwidth": 20, "buckets": 2048, "rows": 1},
    ),
}
#: Kernels that are nearly constant: bandwidths beside which the bounds are small, and half spaces.
_CONSTANT: Final[Mapping[str, float]] = {"skin": 1320, "taxi": 3}


@dataclass
class _Table:
    """Squared errors of several estimates, for each ε and δ."""

    squares: dict[tuple[float, float], dict[str, list[float]]] = field(default_factory=dict)

    def add(self, price: tuple[float, float], **errors: float) -> None:
        for name, value in errors.items():
            self.squares.setdefault(price, {}).setdefault(name, []).append(value)

    def rows(self, **known: str | int) -> Iterator[Row]:
        """Of names that end in ``coverage`` the mean, of all others its root."""
        for (epsilon, delta), errors in self.squares.items():
            means = {name: float(np.mean(values)) for name, values in errors.items()}
            shown = {name: mean if name.endswith("coverage") else mean**0.5 for name, mean in means.items()}
            yield {**known, "epsilon": epsilon, "delta": delta, **shown}


def measure(*, quick: bool) -> list[Row]:
    """One row a topic, sketch, ε and δ."""
    rows: list[Row] = []
    for name in ("pay", "taxi", "skin", "covtype-2"):
        for data in data_sets([name], quick=quick):
            rows += _of(data, 1 if quick else 4)
            print(f"post-processing on {data.name}: measured", flush=True)
    return rows


def _of(data: DataSet, seeds: int) -> Iterator[Row]:
    for name, side, buckets, number in _LEVELS:
        if name == data.name:
            yield from levels(data, side, buckets, number, seeds=seeds)
    yield from shrunk(data, _SHRUNK[data.name], seeds=seeds)
    if data.name in _CONSTANT:
        yield from control(data, _CONSTANT[data.name], seeds=10 * seeds)


def _released(
    data: DataSet, sketch: Mapping[str, object], seeds: int, draws: int = 1, *, counted: bool = False
) -> Iterator[tuple[tuple[float, float], hs.Release]]:
    """Releases of each ε and δ; ``counted``: with a count counter, whether plans of this sketch have one or not."""
    axis = "order" if "order" in sketch else "rows"
    curve = Curve("", {key: value for key, value in sketch.items() if key != axis}, (), axis=axis)
    for seed in range(1, seeds + 1):
        made = hs.Sketch(curve.plan(data, int(str(sketch[axis])), seed))
        made.add(data.records)
        for price in product(EPSILONS, DELTAS):
            plan = made.plan.replace_privacy(epsilon=price[0], delta=price[1])
            priced = made.under(with_count_counter(plan) if counted else plan)
            for _ in range(draws):
                yield price, hs.release(priced)


def _estimates(release: hs.Release) -> CellEstimates:
    found = query.ClassSums(release.plan, release.counters, release.counts).estimates(slice(0, 1))
    assert found is not None, "these are plans of the partition family"
    return found


def _partition(release: hs.Release) -> Partition:
    assert isinstance(release.plan.family, Partition)
    return release.plan.family


def levels(data: DataSet, side: float, buckets: int, number: int, *, seeds: int) -> Iterator[Row]:
    """Cells, ranges and the number of records, of levels made consistent and of level 0 and n̂ alone."""
    sketch = {"family": "partition", "bandwidth": side, "buckets": buckets, "levels": number, "rows": 1}
    table, rng = _Table(), np.random.default_rng(3)
    for price, release in _released(data, sketch, seeds, draws=10, counted=True):
        family, cells = _partition(release), _estimates(release).cells
        grid = family.tables.grid
        assert cells is not None
        assert grid is not None
        shape = cells.values[0].shape
        alone = family.tables.read(release.counters[0], np.concatenate([*grid.all_codes(0)]), 0).reshape(shape)
        codes = grid.codes(family.accept(data.records)[0])
        exact = np.bincount(np.ravel_multi_index(tuple(codes.T), shape), minlength=alone.size).reshape(shape)
        ranges = _boxes(shape, rng)
        whole, error = cells.weighted(ranges)
        axes = tuple(range(1, ranges.ndim))
        truth = (ranges * exact).sum(axis=axes)
        table.add(
            price,
            **{
                "cells before": float(np.square(alone - exact).mean()),
                "cells after": float(np.square(cells.values[0] - exact).mean()),
                "ranges before": float(np.square((ranges * alone).sum(axis=axes) - truth).mean()),
                "ranges after": float(np.square(whole - truth).mean()),
                "ranges coverage": float((np.abs(whole - truth) <= 1.96 * error).mean()),
                "count before": (query.count(release.plan, release.counts) - data.size) ** 2,
                "count after": (release.count - data.size) ** 2,
            },
        )
    yield from table.rows(topic="levels", data=data.name, sketch=f"{buckets} buckets, {number} levels")


def _boxes(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Weights of random boxes of cells."""
    found = np.zeros((_RANGES, *shape))
    for box in found:
        ends = [sorted(rng.integers(0, cells, 2).tolist()) for cells in shape]
        box[tuple(slice(low, high + 1) for low, high in ends)] = 1
    return found


def shrunk(data: DataSet, sketches: Sequence[Mapping[str, object]], *, seeds: int) -> Iterator[Row]:
    """Sums over a grid of the bounds and at held-out records: as they are, cut at 0, shrunk, and shrunk linearly."""
    lower, upper = (np.array(data.record[key], np.float64) for key in ("lower", "upper"))
    each = _GRID[len(lower)]
    axes = [low + (np.arange(each) + 0.5) * (high - low) / each for low, high in zip(lower, upper, strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(lower))
    for sketch, (where, asked) in product(sketches, (("grid", grid), ("records", data.queries[:_HELD_OUT]))):
        table, exact = _Table(), None
        for price, release in _released(data, sketch, seeds):
            if exact is None:
                exact = exact_sums(release.plan.family, data.records, asked)
            answer = release.kernel_sum(asked)
            table.add(
                price,
                before=float(np.square(answer.value - exact).mean()),
                cut=float(np.square(np.maximum(answer.value, 0) - exact).mean()),
                shrunk=float(np.square(answer.shrunk() - exact).mean()),
                linear=float(np.square(_linear(answer) - exact).mean()),
            )
        yield from table.rows(topic="shrunk", data=data.name, where=where, sketch=_label(sketch))


def _linear(answer: hs.Answer) -> Floats:
    """Empirical Bayes with a normal prior, towards the weighted mean of all answers."""
    squares = np.square(np.maximum(answer.std_error, 1e-9))
    mean = np.sum(answer.value / squares) / np.sum(1 / squares)
    prior = max(0.0, float(np.mean(np.square(answer.value - mean) - squares)))
    return np.asarray(mean + (answer.value - mean) * prior / (prior + squares), np.float64)


def control(data: DataSet, bandwidth: float, *, seeds: int) -> Iterator[Row]:
    """Nearly constant kernels: errors before and after the multiple of (row totals − n̂) that is best in hindsight."""
    sketches = (
        {"family": "hashed", "kernel": "euclidean", "buckets": 8, "rows": 128, "bandwidth": bandwidth},
        {"family": "hashed", "kernel": "euclidean", "buckets": 1024, "rows": 128, "bandwidth": bandwidth},
        {"family": "hashed", "kernel": "angular", "buckets": 2, "rows": 128},
        {**keys("hermite", "gaussian", bandwidth / 3), "cutoff": 3, "order": 3},
    )
    little = DataSet(data.name, data.about, data.record, data.records[:20_000], data.queries[:50])
    for sketch in sketches:
        errors: dict[tuple[float, float], list[Floats]] = {}
        controls: dict[tuple[float, float], list[float]] = {}
        exact = None
        for price, release in _released(little, sketch, seeds, draws=3, counted=True):
            if exact is None:
                exact = exact_sums(release.plan.family, little.records, little.queries)
            errors.setdefault(price, []).append(release.kernel_sum(little.queries).value - exact)
            controls.setdefault(price, []).append(_total(release) - release.count)
        assert exact is not None
        for price, found in errors.items():
            off, control = np.array(found), np.array(controls[price])
            shared = np.square(((off - off.mean(axis=0)) * (control - control.mean())[:, None]).mean(axis=0))
            gain = float((shared / control.var() / off.var(axis=0)).mean())
            yield {
                "topic": "control",
                "data": data.name,
                "sketch": _label(sketch),
                "epsilon": price[0],
                "delta": price[1],
                "kernel": float(exact.mean() / little.size),
                "before": float(np.sqrt(np.square(off).mean())),
                "after": float(np.sqrt(np.square(off).mean() * (1 - gain))),
            }


def _total(release: hs.Release) -> float:
    """The records that the counters of answers tell."""
    counters = release.counters[0]
    if release.plan.family.name == "hermite":
        bits = int(str(release.plan.family.to_fields()["fraction_bits"]))
        return float(counters[:, 0].sum()) / 2.0**bits
    return float(counters.sum(axis=1).mean())


def _label(sketch: Mapping[str, object]) -> str:
    words = [str(sketch["family"]), *([str(sketch["kernel"])] if "kernel" in sketch else [])]
    size = f"order {sketch['order']}" if "order" in sketch else f"{sketch['rows']} rows"
    buckets = f", {sketch['buckets']} buckets" if "buckets" in sketch else ""
    return f"{' '.join(words)}, {size}{buckets}"
