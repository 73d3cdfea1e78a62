"""Microseconds a query in batches: every family, beside the bare work of its hash or waves and of its reads."""

from collections.abc import Sequence

import numpy as np

from benchmarks import floors, rivals, sketching
from benchmarks.report import Row
from benchmarks.stopwatch import Case, Rounds
from benchmarks.workloads import Keys, Workload, hashed, workloads
from hushsum.families import Hashed, warm_up
from hushsum.families.fourier import Fourier
from hushsum.families.hermite import Hermite
from hushsum.families.lsh.arrays import Points
from hushsum.families.partition import Partition

TITLE = (
    "Queries, µs each in batches of 2,000 on one core, R or P = 1000, W = 1024 (floor: the bare work of the family's "
    "sketching table + a bare loop that adds up ready buckets, or products with the counters)"
)
BATCH = 2000
ONE_BY_ONE = 10  # queries the authors' way
WORK: tuple[tuple[str, Keys], ...] = (
    *sketching.EUCLIDEAN,
    ("skin", hashed("manhattan", bandwidth=5)),
    ("covtype", hashed("angular", power=8, buckets=256)),
    ("skin", hashed("laplacian", bandwidth=25)),
    ("covtype", hashed("laplacian", bandwidth=1000)),
    ("slashdot", hashed("jaccard", minhash="full", buckets=8192)),
    ("skin", {"family": "fourier", "kernel": "gaussian", "bandwidth": 20, "rows": 1000, "seed": 7}),
    ("covtype", {"family": "fourier", "kernel": "gaussian", "bandwidth": 500, "rows": 1000, "seed": 7}),
    ("taxi", {"family": "hermite", "kernel": "gaussian", "bandwidth": "0.01", "order": 8}),
    ("taxi", {"family": "partition", "bandwidth": "0.01", "rows": 1000, "buckets": 1024, "seed": 7}),
)


def measure(*, quick: bool) -> list[Row]:
    """One row a workload."""
    warm_up()
    wanted = [WORK[0], *WORK[8:]] if quick else WORK
    return [_measure(workload, quick=quick) for workload in workloads(wanted)]


def _measure(workload: Workload, *, quick: bool) -> Row:
    family, n = workload.family, workload.values.shape[0]
    counters = np.zeros(family.shape, np.int64)
    family.add(counters, family.accept(workload.values[: 2048 if quick else 20_000])[0])
    queries = workload.values[np.random.default_rng(2).permutation(n)[:BATCH]]
    accepted: Points = family.accept(queries)[0]
    parts = _floor(workload, accepted, counters)
    cases: dict[str, Case] = {name: case for part in parts for name, case in part.items()}
    cases |= {
        "fast": lambda: family.answer(counters, queries),
        "alone": lambda: family.answer(counters, queries[:1]),
    }
    if workload.keys.get("kernel") == "euclidean":
        parameters = rivals.Parameters.of(workload.hashed)
        cases["authors"] = lambda: rivals.answer_one_by_one(parameters, counters, accepted[:ONE_BY_ONE])
    rounds = Rounds(cases, repeats=1 if quick else 15)
    floor = [rounds.best(part) for part in parts]
    row: Row = {
        "family": str(workload.keys["family"]),
        **workload.about,
        "rehash": isinstance(family, Hashed) and family.rehashed,
        "floor": 1e6 * rounds.seconds(*floor) / BATCH,
        "fast": 1e6 * rounds.seconds("fast") / BATCH,
        "one alone": 1e6 * rounds.seconds("alone"),
        "fast/floor": rounds.ratio(["fast"], floor),
    }
    if "authors" in cases:
        row["authors"] = 1e6 * rounds.seconds("authors") / ONE_BY_ONE
        row["authors/fast"] = rounds.ratio(["authors"], ["fast"]) * BATCH / ONE_BY_ONE
    return row


def _floor(workload: Workload, accepted: Points, counters: rivals.Int64) -> Sequence[dict[str, Case]]:
    """Groups of cases: the floor is the sum of the best of each."""
    family = workload.family
    if isinstance(family, Fourier):
        bare = floors.phases(family, accepted)
        return [_named(bare, "sgemm"), _named(bare, "waves"), _named(bare, "reads")]
    if isinstance(family, Hermite):
        return [_named(floors.moments(family, accepted), "reads")]
    if isinstance(family, Partition):
        return [_named(floors.signs(family, accepted), "reads")]
    buckets, sums = rivals.ready_buckets(workload.hashed, accepted), np.zeros(len(accepted), np.int64)
    reads: dict[str, Case] = {"reads": lambda: rivals.read(buckets, counters, sums)}
    if workload.keys["kernel"] == "laplacian":
        return [_named(floors.bins(workload.hashed, accepted), "bins"), reads]
    if workload.keys["kernel"] == "jaccard":
        return [_named(floors.permutations(workload.hashed, accepted, family.shape[0]), "multiply"), reads]
    return [_named(rivals.products(rivals.Parameters.of(workload.hashed).directions, accepted), "sgemm"), reads]


def _named(cases: dict[str, Case], start: str) -> dict[str, Case]:
    return {name: case for name, case in cases.items() if name.startswith(start)}
