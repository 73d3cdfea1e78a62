"""Microseconds a query in batches of 2,000: fast and plain, beside the floor and the authors' way."""

import os

import numpy as np

from benchmarks import rivals
from benchmarks.report import Row
from benchmarks.stopwatch import medians
from benchmarks.workloads import Workload, workloads
from hushsum.acceleration import VARIABLE
from hushsum.families import warm_up

TITLE = (
    "Queries, µs each in batches of 2,000 on one core, R = 1000, W = 1024 (floor: bare SGEMM + a bare gathering loop)"
)
BATCH = 2000


def measure(*, quick: bool) -> list[Row]:
    """One row a workload."""
    warm_up()
    return [_measure(workload, quick=quick) for workload in workloads(quick=quick)]


def _measure(workload: Workload, *, quick: bool) -> Row:
    family, parameters = workload.family, rivals.Parameters.of(workload.family)
    records, _ = family.accept(workload.values[: 2048 if quick else 20_000])
    counters = np.zeros(family.shape, np.int64)
    family.add(counters, records)
    queries = workload.values[np.random.default_rng(2).permutation(len(workload.values))[:BATCH]]
    centred, _ = family.accept(queries)
    buckets, sums = rivals.ready_buckets(family, centred), np.zeros(BATCH, np.int64)

    def plain() -> None:
        os.environ[VARIABLE] = "plain"
        family.answer(counters, queries)
        os.environ[VARIABLE] = "fast"

    os.environ[VARIABLE] = "fast"
    seconds = medians(
        {
            **rivals.products(parameters, centred),
            "reads": lambda: rivals.read(buckets, counters, sums),
            "fast": lambda: family.answer(counters, queries),
            "plain": plain,
            "authors": lambda: rivals.answer_one_by_one(parameters, counters, centred[:20]),
            "alone": lambda: family.answer(counters, queries[:1]),
        },
        repeats=1 if quick else 9,
    )
    sgemm = min(value for name, value in seconds.items() if name.startswith("sgemm"))
    floor, authors = sgemm + seconds["reads"], seconds["authors"] / 20
    return {
        "data": workload.name,
        "d": family.record.dim,
        "w": workload.bandwidth,
        "rehash": family.rehashed,
        "floor": 1e6 * floor / BATCH,
        "fast": 1e6 * seconds["fast"] / BATCH,
        "plain": 1e6 * seconds["plain"] / BATCH,
        "authors": 1e6 * authors,
        "one alone": 1e6 * seconds["alone"],
        "fast/floor": seconds["fast"] / floor,
        "authors/fast": authors * BATCH / seconds["fast"],
    }
