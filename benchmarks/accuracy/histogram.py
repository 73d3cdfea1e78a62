"""Cells of a histogram beside bare noise: what a sketch of cells that do not collide costs over the best of its kind.

Root mean square errors of real releases, of cells and of the number of records, with the count counter that plans had
before and as plans are made now. Records are made up: errors do not depend on them.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

import numpy as np

import hushsum as hs
from benchmarks.accuracy.curves import PURE, SMALL_DELTA
from benchmarks.accuracy.tables import markdown, number
from benchmarks.report import Row
from hushsum.noise import DiscreteLaplace
from hushsum_simulator.audit.cases import with_count_counter

_CELLS: Final = (16, 256, 4096)
_EPSILONS: Final = (0.1, 1.0)
_CELLS_MEASURED: Final = 1 << 18
_RELEASES: Final = 400  # at least, for the number of records
_RECORDS: Final = 10_000


def measure(*, quick: bool) -> list[Row]:
    """One row for each number of cells, ε and δ."""
    return [
        row
        for cells, epsilon, delta in product(_CELLS, _EPSILONS, (PURE, SMALL_DELTA))
        for row in _measured(cells, epsilon, delta, quick=quick)
    ]


def _measured(cells: int, epsilon: float, delta: float, *, quick: bool) -> Iterator[Row]:
    sketch = {"family": "partition", "bandwidth": 1, "rows": 1, "buckets": cells}
    record = {"dim": 1, "lower": [0], "upper": [cells]}
    privacy = {"epsilon": epsilon, "delta": delta, "total_epsilon": epsilon, "total_delta": delta}
    now = hs.Plan(name="histogram", record=record, sketch=sketch, privacy=privacy)
    before = with_count_counter(now)
    places = np.random.default_rng(cells).integers(0, cells, _RECORDS)
    exact = np.bincount(places, minlength=cells)
    found: Row = {"cells": cells, "epsilon": epsilon, "delta": delta}
    found["bare"] = math.sqrt(DiscreteLaplace(1 / now.privacy.epsilon).variance)
    for name, plan in (("before", before), ("now", now)):
        counted = hs.Sketch(plan).add(places[:, None] + 0.5)
        asked = np.arange(cells)[:, None] + 0.5
        squares, of_count = [], []
        for _ in range(2 if quick else max(_RELEASES, _CELLS_MEASURED // cells)):
            release = hs.release(counted)
            squares.append(float(np.square(release.kernel_sum(asked).value - exact).mean()))
            of_count.append((release.count - _RECORDS) ** 2)
        found[name] = math.sqrt(np.mean(squares))
        found[f"count {name}"] = math.sqrt(np.mean(of_count))
    yield found


def section(rows: Sequence[Row]) -> str:
    """The table and what it says; nothing where nothing was measured."""
    if not rows:
        return ""
    header = ["cells", "ε", "δ", "bare Laplace", "before", "now", "over bare", "n̂ before", "n̂ now"]
    lines = [
        [
            f"{int(row['cells']):,}",
            f"{float(row['epsilon']):g}",
            "10⁻⁶" if row["delta"] else "0",
            *(number(float(row[name])) for name in ("bare", "before", "now")),
            f"{_over(row, 'before'):.2f} → {_over(row, 'now'):.2f}",
            *(number(float(row[f"count {name}"])) for name in ("before", "now")),
        ]
        for row in rows
    ]
    most = max(abs(_over(row, "now") - 1) for row in rows)
    return f"""## A histogram against bare Laplace

Root mean square errors in records: of the cells of one row that holds each cell, and of the number of records n̂.
*Bare Laplace* is discrete Laplace noise of scale 1/ε, the least that one count of each record can have at δ = 0.
*Before*, a count counter of its own took half of ε; *now* there is none, and n̂ is the sum of the cells.
`make bench-accuracy ARGS=--histogram` measures this section alone.

{markdown(header, lines)}

The error of cells now is that of bare noise, here within {100 * most:.1f} %: {_CELLS_MEASURED:,} cells are measured.
n̂ errs by √cells times the error of a cell, so that shares of crowded cells may err more than before: on taxi, 3,840
cells asked at a mean share of 0.03, densities of one row err up to 1.6 times as much, and sums half as much. With
`levels` up to few cells n̂ errs far less. A written `[privacy.mechanism]` with `count_scale` 1 keeps the counter, and
compiled plans keep theirs.
"""


def _over(row: Row, name: str) -> float:
    return float(row[name]) / float(row["bare"])
