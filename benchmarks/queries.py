"""Microseconds a query in batches of 2,000: fast and plain, beside the floor and the authors' way."""

import os

import numpy as np

from benchmarks import rivals
from benchmarks.report import Row
from benchmarks.stopwatch import Case, Rounds
from benchmarks.workloads import Workload, workloads
from hushsum.acceleration import VARIABLE
from hushsum.families import warm_up

TITLE = (
    "Queries, µs each in batches of 2,000 on one core, R = 1000, W = 1024 (floor: bare SGEMM + a bare gathering loop)"
)
BATCH = 2000
ONE_BY_ONE = 10  # queries the authors' way


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
    cases: dict[str, Case] = {
        **rivals.products(parameters, centred),
        "reads": lambda: rivals.read(buckets, counters, sums),
        "fast": lambda: family.answer(counters, queries),
        "plain": plain,
        "authors": lambda: rivals.answer_one_by_one(parameters, counters, centred[:ONE_BY_ONE]),
        "alone": lambda: family.answer(counters, queries[:1]),
    }
    rounds = Rounds(cases, repeats=1 if quick else 25)
    sgemm = rounds.best(name for name in cases if name.startswith("sgemm"))
    return {
        "data": workload.name,
        "d": family.record.dim,
        "w": workload.bandwidth,
        "rehash": family.rehashed,
        "floor": 1e6 * rounds.seconds(sgemm, "reads") / BATCH,
        "fast": 1e6 * rounds.seconds("fast") / BATCH,
        "plain": 1e6 * rounds.seconds("plain") / BATCH,
        "authors": 1e6 * rounds.seconds("authors") / ONE_BY_ONE,
        "one alone": 1e6 * rounds.seconds("alone"),
        "fast/floor": rounds.ratio(["fast"], [sgemm, "reads"]),
        "authors/fast": rounds.ratio(["authors"], ["fast"]) * BATCH / ONE_BY_ONE,
    }
