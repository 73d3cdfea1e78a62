"""The jaccard kernel on a real graph: seconds for every set, beside bare loops, and memory beside the counters."""

import numpy as np

from benchmarks import floors, rivals
from benchmarks.memory import batch_bytes
from benchmarks.report import Row
from benchmarks.stopwatch import Case, Rounds
from benchmarks.workloads import Workload, hashed, workloads
from hushsum.families import warm_up
from hushsum.families.lsh import fast

TITLE = (
    "Jaccard, seconds for the neighbour sets of slashdot0902 on one core, W = 100,000 (floor: a bare loop of "
    "ids x R multiply-and-min steps; increments: a bare loop over ready buckets)"
)
ROWS, ROWS_QUICK, READY = 2000, 128, 64


def measure(*, quick: bool) -> list[Row]:
    """Full MinHash, and one-permutation hashing where it is of use."""
    warm_up()
    rows = ROWS_QUICK if quick else ROWS
    wanted = [
        ("slashdot", hashed("jaccard", minhash=way, rows=rows, buckets=100_000)) for way in ("full", "one-permutation")
    ]
    both = [*workloads(wanted)]
    return [_measure(*both, quick=quick)] if len(both) == 2 else []


def _measure(full: Workload, sparse: Workload, *, quick: bool) -> Row:
    family, other = full.hashed, sparse.hashed
    sets, counters = family.accept(full.values)[0], np.zeros(family.shape, np.int64)
    ready = rivals.ready_buckets(family, sets, slice(0, READY))

    def increments() -> None:
        for row in range(0, family.rows, READY):
            some = counters[row : row + READY]
            rivals.increment(ready[: len(some)], some)

    bare = floors.permutations(family, sets, family.rows)
    cases: dict[str, Case] = {
        **bare,
        "increments": increments,
        "fast": lambda: fast.add(rivals.rows_of(family), counters, sets),
        "one permutation": lambda: fast.add(rivals.rows_of(other), counters, sets),
    }
    rounds = Rounds(cases, repeats=1 if quick else 5)
    steps = len(sets.ids) * (family.rows - family.rows % 32)
    return {
        **full.about,
        "sets": len(sets),
        "ids": len(sets.ids),
        "R": family.rows,
        "floor s": rounds.seconds("multiply and min"),
        "increments s": rounds.seconds("increments"),
        "whole permutation s": rounds.seconds("whole permutation"),
        "fast s": rounds.seconds("fast"),
        "one permutation s": rounds.seconds("one permutation"),
        "floor, ns a step": 1e9 * rounds.seconds("multiply and min") / steps,
        "fast/floor": rounds.ratio(["fast"], ["multiply and min"]),
        "fast/(floor + increments)": rounds.ratio(["fast"], ["multiply and min", "increments"]),
        "fast/(whole permutation + increments)": rounds.ratio(["fast"], ["whole permutation", "increments"]),
        "counters MB": counters.nbytes / 1e6,
        "beside them MB": batch_bytes(full.keys, full.name, full.values.shape[0]) / 1e6,
    }
