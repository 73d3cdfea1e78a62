"""Directions for large d: dense Gaussian rows, Walsh–Hadamard transforms with exact marginals, or plain rotations.

``fastfood`` is what the plan's ``draws`` offers (:mod:`hushsum.families.lsh.codes.fastfood`): each direction is exactly
Gaussian. A plain rotation is H·D₃·H·D₂·H·D₁, D random signs and H the normalised transform: d rows for 3·log₂d
additions each, which are not exactly Gaussian; ``worst bias`` is what that does to the euclidean collision probability.
"""

import math

import numpy as np

from benchmarks import rivals, rivals_loops
from benchmarks.report import Row
from benchmarks.stopwatch import Case, Rounds
from benchmarks.workloads import BUCKETS, ROWS, Workload, hashed
from hushsum import kernels
from hushsum.families import warm_up
from hushsum.families.lsh.compiled import engine as compiled_engine

TITLE = (
    "Directions of R = 1000 rows on one core, ns a row and record: whole sketches with dense and with fastfood rows; "
    "bare SGEMM and bare rotations (worst bias: of theirs, over pairs whose difference has 1, 2 or d coordinates)"
)
RECORDS = 4096
_BLOCK = 128
_DISTANCES = (0.5, 1.0, 2.0)


def measure(*, quick: bool) -> list[Row]:
    """One row a dimension."""
    warm_up()
    return [_measure(d, quick=quick) for d in ((128,) if quick else (16, 32, 64, 128, 256, 512, 1024))]


def _measure(d: int, *, quick: bool) -> Row:
    rng = np.random.default_rng(d)
    values = rng.normal(size=(RECORDS, d))
    dense = Workload("random", hashed("euclidean", bandwidth=2), values)
    records = dense.vectors(RECORDS)
    bare = rivals.products(rivals.Parameters.of(dense.hashed).directions, records)
    cases: dict[str, Case] = {
        **bare,
        "rotations": _rotations(rng, records),
        "dense": _sketch(dense, records),
        "fastfood": _sketch(Workload("random", {**dense.keys, "draws": "fastfood"}, values), records),
    }
    rounds = Rounds(cases, repeats=1 if quick else 7)
    best, unit = rounds.best(name for name in bare if name.startswith("sgemm")), 1e9 / (RECORDS * ROWS)
    return {
        "d": d,
        "dense sketch": rounds.seconds("dense") * unit,
        "fastfood sketch": rounds.seconds("fastfood") * unit,
        "dense/fastfood": rounds.ratio(["dense"], ["fastfood"]),
        "sgemm": rounds.seconds(best) * unit,
        "rotations": rounds.seconds("rotations") * unit,
        **_bias(d, blocks=64 if quick else 2_000_000 // d),
    }


def _sketch(workload: Workload, records: rivals.Float32) -> Case:
    rows, counters = rivals.rows_of(workload.hashed), np.zeros((ROWS, BUCKETS), np.int64)
    return lambda: compiled_engine.add(rows, counters, records)


def _rotations(rng: np.random.Generator, records: rivals.Float32) -> Case:
    d = records.shape[1]
    turns = [rng.choice(np.array([-1, 1], np.float32), (3, d)) for _ in range(-(-ROWS // d))]
    lengths = _lengths(rng, d, len(turns) * d)
    columns, some = np.empty((d, _BLOCK), np.float32), np.empty((d, _BLOCK), np.float32)

    def rotate() -> None:
        for start in range(0, len(records), _BLOCK):
            columns[...] = records[start : start + _BLOCK].T
            for block, signs in enumerate(turns):
                some[...] = columns
                rivals_loops.rotate(some, signs)
                np.multiply(some, lengths[block * d : (block + 1) * d, None], out=some)

    return rotate


def _lengths(rng: np.random.Generator, d: int, count: int) -> rivals.Float32:
    """Of Gaussian vectors, over what three transforms multiply by."""
    return (np.sqrt(rng.chisquare(d, count)) / math.sqrt(d) ** 3).astype(np.float32)


def _bias(d: int, *, blocks: int) -> Row:
    """The largest |share − kernel| of many rows, w = 1, and the standard error of a share."""
    rng, worst = np.random.default_rng(d), 0.0
    total = {(kind, distance): 0.0 for kind in (1, 2, d) for distance in _DISTANCES}
    for _ in range(blocks):
        signs, lengths = rng.choice(np.array([-1, 1], np.float32), (3, d)), _lengths(rng, d, d)
        columns = np.zeros((d, 3), np.float32)
        columns[0, 0], columns[:2, 1], columns[:, 2] = 1.0, math.sqrt(0.5), math.sqrt(1.0 / d)
        rivals_loops.rotate(columns, signs)
        columns *= lengths[:, None]
        for place, kind in enumerate((1, 2, d)):
            for (
                distance
            ) in _DISTANCES:  # a uniform offset: both codes agree with probability 1 − |a·(x − y)|, if above 0
                total[kind, distance] += float(np.maximum(0.0, 1.0 - np.abs(columns[:, place]) * distance).sum())
    for (_, distance), share in total.items():
        exact = float(kernels.euclidean(np.array([distance]), 1.0, 1)[0])
        worst = max(worst, abs(share / (blocks * d) - exact))
    return {"worst bias": worst, "chance alone": 0.4 / math.sqrt(blocks * d)}
