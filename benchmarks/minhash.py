"""The jaccard kernel on a real graph: seconds for every set, beside bare loops, and memory beside the counters."""

import numpy as np

from benchmarks import floors, rivals
from benchmarks.memory import batch_bytes
from benchmarks.report import Row
from benchmarks.rivals_loops import LANES
from benchmarks.stopwatch import Case, Rounds
from benchmarks.workloads import Workload, hashed, workloads
from hushsum.families import warm_up
from hushsum.families.lsh.compiled import engine as compiled_engine

TITLE = (
    "Jaccard, seconds for the neighbour sets of slashdot0902 on one core, W = 100,000 (floor: a bare loop of "
    "ids x R multiply-and-min steps; increments: a bare loop over ready buckets)"
)
ROWS, ROWS_QUICK, READY = 2000, 128, 64


def measure(*, quick: bool) -> list[Row]:
    """One row: full MinHash."""
    warm_up()
    wanted = hashed("jaccard", minhash="full", rows=ROWS_QUICK if quick else ROWS, buckets=100_000)
    return [_measure(workload, quick=quick) for workload in workloads([("slashdot", wanted)])]


def _measure(workload: Workload, *, quick: bool) -> Row:
    family = workload.hashed
    sets, counters = family.accept(workload.values)[0], np.zeros(family.shape, np.int64)
    rows, ready = rivals.rows_of(family), rivals.ready_buckets(family, sets, slice(0, READY))

    def increments() -> None:
        for row in range(0, family.rows, READY):
            some = counters[row : row + READY]
            rivals.increment(ready[: len(some)], some)

    bare = floors.permutations(family, sets, family.rows)
    cases: dict[str, Case] = {
        **bare,
        "increments": increments,
        "fast": lambda: compiled_engine.add(rows, counters, sets),
    }
    rounds = Rounds(cases, repeats=1 if quick else 5)
    steps = len(sets.ids) * (family.rows - family.rows % LANES)
    return {
        **workload.about,
        "sets": len(sets),
        "ids": len(sets.ids),
        "R": family.rows,
        "floor s": rounds.seconds("multiply and min"),
        "increments s": rounds.seconds("increments"),
        "whole permutation s": rounds.seconds("whole permutation"),
        "fast s": rounds.seconds("fast"),
        "floor, ns a step": 1e9 * rounds.seconds("multiply and min") / steps,
        "fast/floor": rounds.ratio(["fast"], ["multiply and min"]),
        "fast/(floor + increments)": rounds.ratio(["fast"], ["multiply and min", "increments"]),
        "fast/(whole permutation + increments)": rounds.ratio(["fast"], ["whole permutation", "increments"]),
        "counters MB": counters.nbytes / 1e6,
        "beside them MB": batch_bytes(workload.keys, workload.name, len(sets)) / 1e6,
    }
