"""The laplacian kernel: nanoseconds an increment, beside a bare loop of random binning's arithmetic."""

import numpy as np

from benchmarks import floors, rivals
from benchmarks.report import Row
from benchmarks.stopwatch import Case, Rounds
from benchmarks.workloads import Keys, Workload, hashed, workloads
from hushsum.families import warm_up
from hushsum.families.lsh import numpy_engine
from hushsum.families.lsh.compiled import engine as compiled_engine

TITLE = (
    "Laplacian, ns an increment on one core, R = 1000, W = 1024 (floor: a bare loop of multiply, floor and mix in the "
    "definition's 64 bits + a bare loop over ready buckets)"
)
RECORDS = 4096
WORK: tuple[tuple[str, Keys], ...] = (
    ("skin", hashed("laplacian", bandwidth=25)),
    ("covtype", hashed("laplacian", bandwidth=1000)),
)


def measure(*, quick: bool) -> list[Row]:
    """One row a workload."""
    warm_up()
    return [_measure(workload, quick=quick) for workload in workloads(WORK)]


def _measure(workload: Workload, *, quick: bool) -> Row:
    family = workload.hashed
    records = family.accept(workload.values[:RECORDS])[0]
    rows, buckets, counters = rivals.rows_of(family), rivals.ready_buckets(family, records), np.zeros(family.shape, int)
    bare = floors.bins(family, records)
    cases: dict[str, Case] = {
        **bare,
        "increments": lambda: rivals.increment(buckets, counters),
        "fast": lambda: compiled_engine.add(rows, counters, records),
        "plain": lambda: numpy_engine.add(rows, counters, records),
    }
    rounds = Rounds(cases, repeats=1 if quick else 9)
    best, unit = rounds.best(name for name in bare if name != "32 bits"), 1e9 / (len(records) * family.rows)
    return {
        **workload.about,
        "arithmetic": rounds.seconds(best) * unit,
        "floor": rounds.seconds(best, "increments") * unit,
        "fast": rounds.seconds("fast") * unit,
        "plain": rounds.seconds("plain") * unit,
        "32-bit floor": rounds.seconds("32 bits", "increments") * unit,
        "fast/floor": rounds.ratio(["fast"], [best, "increments"]),
        "fast/32-bit floor": rounds.ratio(["fast"], ["32 bits", "increments"]),
        "plain/fast": rounds.ratio(["plain"], ["fast"]),
    }
