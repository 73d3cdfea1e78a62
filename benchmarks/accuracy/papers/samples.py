"""Density sketches: how much of the records heavy cells capture, and how far samples are from the records' density.

What is compared is the distribution over cells that samples are drawn from. A mixture of normals has a known density,
against which its integrated mean square error (IMSE) stands beside the bound of the paper's theorem 5.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

import hushsum as hs
from benchmarks.accuracy.curves import DELTAS, PURE, SMALL_DELTA
from benchmarks.accuracy.data import DataSet, data_sets, vectors
from benchmarks.accuracy.papers.tally import HUSHSUM, Tally, seeds
from benchmarks.baselines.synthetic import DensitySketch, grid_shares, heap_shares, independent_shares
from benchmarks.report import Row
from hushsum.families.partition.heavy_hitters import HeavyCells
from hushsum.synthetic import heavy_cells

Floats = npt.NDArray[np.float64]

FIGURE: Final = "density-sketch"
DISTANCE: Final = "total variation distance of the cells"
CAPTURED: Final = "capture ratio"
IMSE: Final = "IMSE"
BOUND: Final = "12 (1 − capture ratio)² + 3 IMSE of all cells"
SKETCH: Final = "density sketch"
GRID: Final = "noisy grid"
COLUMNS: Final = "independent columns"
EPSILONS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
#: Of Hushsum's cells: how many standard deviations make one heavy.
DEVIATIONS: Final = (0.5, 1.0, 2.0, 4.0)
KEPT: Final = (64, 256, 1024)
SKETCH_ROWS: Final = (1, 5)
SKETCH_BUCKETS: Final = 16_384  # more cost no error: the noise of a cell depends on K alone
MIXTURE: Final = "mixture of normals"
_RECORDS: Final = 50_000
_POINTS: Final = 4  # of a cell and column, for integrals
_LIMIT: Final = 1_000_000


@dataclass(frozen=True)
class Subject:
    """A data set and its cells.

    Attributes:
        data: Its name.
        side: Of a cell.
        buckets: W, so that cells do not collide.
    """

    data: str
    side: float
    buckets: int


SUBJECTS: Final = (
    Subject(MIXTURE, 1 / 64, 4096),
    Subject("taxi", 0.01, 4096),
    Subject("skin", 16, 4096),
)
_CENTRES: Final = ((0.3, 0.35), (0.7, 0.6), (0.45, 0.75))
_SPREADS: Final = (0.05, 0.1, 0.02)
_WEIGHTS: Final = (0.5, 0.3, 0.2)


def measure(*, quick: bool) -> list[Row]:
    """One row a data set, metric, method, size, ε and δ."""
    rows: list[Row] = []
    for subject in SUBJECTS:
        data = mixture() if subject.data == MIXTURE else next(data_sets([subject.data], quick=quick))
        rows += of_data(subject, data, quick=quick)
        print(f"density sketches: {data.name} measured", flush=True)
    return rows


def mixture() -> DataSet:
    """Records of a known density within the unit square."""
    rng = np.random.default_rng(1)
    which = rng.choice(len(_WEIGHTS), 2 * _RECORDS, p=_WEIGHTS)
    points = np.array(_CENTRES)[which] + np.array(_SPREADS)[which, None] * rng.normal(size=(len(which), 2))
    inside = points[((points >= 0) & (points < 1)).all(axis=1)][:_RECORDS]
    return vectors(MIXTURE, "a known density", [0, 0], [1, 1], (inside, inside[:1]))


def mixture_density(points: Floats) -> Floats:
    """(m,) of (m, 2) points: the spreads leave next to nothing outside the unit square."""
    total = np.zeros(len(points))
    for centre, spread, weight in zip(_CENTRES, _SPREADS, _WEIGHTS, strict=True):
        squares = np.square((points - np.array(centre)) / spread).sum(axis=1)
        total += weight * np.exp(-squares / 2) / (2 * math.pi * spread**2)
    return total


def of_data(subject: Subject, data: DataSet, *, quick: bool) -> list[Row]:
    """The rows of one data set."""
    grid = _Grid.of(subject, data)
    tallies = {name: Tally(FIGURE, data.name, name) for name in (DISTANCE, CAPTURED, IMSE, BOUND)}
    epsilons = EPSILONS[::2] if quick else EPSILONS
    for seed in seeds(quick=quick):
        for method, size, epsilon, delta, shares, ratio in _all(subject, data, grid, seed, epsilons):
            known = {"size": size, "epsilon": epsilon, "delta": delta}
            tallies[DISTANCE].add(method, float(np.abs(shares - grid.shares).sum()) / 2, **known)
            if ratio is None:
                continue
            tallies[CAPTURED].add(method, float(grid.shares[shares > 0].sum()), **known)
            if data.name == MIXTURE:
                estimated, captured = ratio
                tallies[IMSE].add(method, grid.error(shares), **known)
                bound = 12 * (1 - captured) ** 2 + 3 * grid.error(estimated)
                tallies[BOUND].add(method, bound, **known)
    return [row for tally in tallies.values() for row in tally.rows()]


@dataclass(frozen=True, eq=False)
class _Grid:
    """The exact counts of the cells, and the corner that codes count from."""

    counts: Floats
    first: npt.NDArray[np.int64]
    side: float

    @classmethod
    def of(cls, subject: Subject, data: DataSet) -> "_Grid":
        low, high = (np.array(data.record[end], np.float64) for end in ("lower", "upper"))
        first = np.floor(low / subject.side + 1e-9).astype(np.int64)
        shape = np.floor(high / subject.side + 1e-9).astype(np.int64) - first + 1
        codes = np.floor(data.records / subject.side + 1e-9).astype(np.int64) - first
        counts = np.zeros(shape)
        np.add.at(counts, tuple(codes.T), 1.0)
        return cls(counts, first, subject.side)

    @property
    def shares(self) -> Floats:
        return np.asarray(self.counts / self.counts.sum())

    def error(self, shares: Floats) -> float:
        """∫ (f − density)² with the side of a cell as the unit of length: only there does theorem 5 hold."""
        steps = (np.arange(_POINTS) + 0.5) / _POINTS
        total = 0.0
        for offset in product(steps, repeat=shares.ndim):
            corners = np.stack(np.meshgrid(*map(np.arange, shares.shape), indexing="ij"), axis=-1)
            points = (corners + self.first + np.array(offset)) * self.side
            density = mixture_density(points.reshape(-1, shares.ndim)).reshape(shares.shape)
            total += float(np.square(shares - density * self.side**shares.ndim).mean()) * shares.size
        return float(total / _POINTS**shares.ndim)


#: A method, size, ε and δ, its shares of the cells, and of what keeps heavy cells: the shares of all and the ratio.
_One = tuple[str, float, float, float, Floats, tuple[Floats, float] | None]


def _all(subject: Subject, data: DataSet, grid: _Grid, seed: int, epsilons: Sequence[float]) -> Iterator[_One]:
    rng = np.random.default_rng(seed)
    plan = hs.Plan(
        name="density-sketch",
        record=data.record,
        sketch={
            "family": "partition",
            "bandwidth": subject.side,
            "buckets": subject.buckets,
            "rows": 1,
            "seed": seed,
        },
        privacy={"epsilon": 1, "total_epsilon": _LIMIT, "total_delta": SMALL_DELTA},
    )
    sketch = hs.Sketch(plan).add(data.records)
    for epsilon, delta in product(epsilons, DELTAS):
        yield from _released(hs.release(sketch, epsilon=epsilon, delta=delta), grid, epsilon, delta)
    for rows in SKETCH_ROWS:
        published = DensitySketch.of(grid.counts, rows=rows, buckets=SKETCH_BUCKETS, rng=rng)
        for epsilon in epsilons:
            estimates = published.estimates(epsilon, rng).reshape(grid.counts.shape)
            every = np.maximum(estimates, 0.0) / max(float(np.maximum(estimates, 0.0).sum()), 1.0)
            for kept in KEPT:
                shares, ratio = heap_shares(estimates.ravel(), kept)
                yield f"{SKETCH}, K = {rows}", kept, epsilon, PURE, shares.reshape(every.shape), (every, ratio)
    for epsilon in epsilons:
        yield GRID, 0, epsilon, PURE, grid_shares(grid.counts, epsilon, rng), None
        yield COLUMNS, 0, epsilon, PURE, independent_shares(grid.counts, epsilon, rng), None


def _released(release: hs.Release, grid: _Grid, epsilon: float, delta: float) -> Iterator[_One]:
    """What :func:`hushsum.synthetic.synthetic_records` draws from."""
    every = _spread(heavy_cells(release, deviations=0.0), grid)
    total = max(float(every.sum()), 1.0)
    for deviations in DEVIATIONS:
        kept = _spread(heavy_cells(release, deviations=deviations), grid)
        shares = kept / max(float(kept.sum()), 1.0)
        yield HUSHSUM, deviations, epsilon, delta, shares, (every / total, float(kept.sum()) / total)


def _spread(cells: HeavyCells, grid: _Grid) -> Floats:
    found = np.zeros(grid.counts.shape)
    places = np.rint(cells.lower / grid.side).astype(np.int64) - grid.first
    found[tuple(places.T)] = np.maximum(cells.counts, 0.0)
    return found
