"""The families of cells, hermite and partition: nanoseconds a record and row, beside bare loops of the same."""

import numpy as np

from benchmarks import floors
from benchmarks.report import Row
from benchmarks.stopwatch import Rounds
from benchmarks.workloads import Keys, Workload, workloads
from hushsum.families import warm_up
from hushsum.families.hermite import Hermite
from hushsum.families.partition import Partition

TITLE = (
    "Cells, ns on one core: hermite a record, partition a record and row of a level (floor: a bare loop of the same "
    "arithmetic, from float32 records to counters)"
)
RECORDS = 65_536
HERMITE: tuple[tuple[str, Keys], ...] = tuple(
    ("taxi", {"family": "hermite", "kernel": "gaussian", "bandwidth": "0.01", "order": order}) for order in (4, 8)
)
_GRID: Keys = {"family": "partition", "rows": 64, "seed": 7}
PARTITION: tuple[tuple[str, Keys], ...] = (
    ("taxi", {**_GRID, "bandwidth": "0.01", "buckets": 1024}),
    ("skin", {**_GRID, "bandwidth": 8, "buckets": 16384}),
    ("skin", {**_GRID, "bandwidth": 2, "levels": 4, "buckets": 16384}),
)


def measure(*, quick: bool) -> list[Row]:
    """One row a workload."""
    warm_up()
    return [_measure(workload, quick=quick) for workload in workloads(HERMITE + PARTITION)]


def _measure(workload: Workload, *, quick: bool) -> Row:
    family = workload.family
    records, counters = workload.vectors(RECORDS), np.zeros(family.shape, np.int64)
    if isinstance(family, Hermite):
        bare, rows = floors.moments(family, records), 1
        about: Row = {"family": "hermite", "order": family.order, "counters a record": family.order**2}
    else:
        assert isinstance(family, Partition)
        bare, rows = floors.signs(family, records), family.rows * family.levels
        about = {"family": "partition", "W": family.buckets, "levels": family.levels, "R": family.rows}
    rounds = Rounds({"floor": bare["adds"], "fast": lambda: family.add(counters, records)}, repeats=1 if quick else 9)
    unit = 1e9 / (len(records) * rows)
    return {
        **workload.about,
        **about,
        "floor": rounds.seconds("floor") * unit,
        "fast": rounds.seconds("fast") * unit,
        "fast/floor": rounds.ratio(["fast"], ["floor"]),
    }
