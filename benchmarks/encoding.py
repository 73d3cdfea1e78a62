"""Encoding one delta of n records into sorted increments, as an edge client does: by sorting, or by counters."""

import numpy as np

from benchmarks import rivals
from benchmarks.report import Row
from benchmarks.stopwatch import Case, Rounds
from benchmarks.workloads import Keys, Workload, hashed, workloads
from hushsum.families import warm_up
from hushsum.families.lsh import numpy_engine
from hushsum.families.lsh.compiled import buckets as bucket_loops
from hushsum.families.lsh.compiled import engine as compiled_engine
from hushsum.families.lsh.compiled.engine import BucketEngine
from hushsum.families.lsh.placement import HashedRows

TITLE = "Encoding one delta of n records, µs on one core, R = 1000 (fast sorts below n = W/2, else it counts)"
SIZES = (1, 10, 100)
SHARES = (1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 1, 4)  # of W
_ROWS = 256  # whose counters are dense at once
WORK: tuple[tuple[str, Keys], ...] = (
    ("skin", hashed("euclidean", bandwidth=5)),
    ("covtype", hashed("euclidean", bandwidth=50)),
    ("covtype", hashed("euclidean", bandwidth=20)),
    ("random 128", hashed("euclidean", bandwidth=2)),
    ("skin", hashed("euclidean", bandwidth=5, buckets=8192)),
)


def measure(*, quick: bool) -> list[Row]:
    """One row a workload and size."""
    warm_up()
    rows: list[Row] = []
    for workload in workloads(WORK[:1] if quick else WORK):
        sizes = [*SIZES, *(int(share * workload.hashed.buckets) for share in SHARES)]
        rows += [_measure(workload, n, quick=quick) for n in (sizes[::4] if quick else sizes)]
    return rows


def _measure(workload: Workload, n: int, *, quick: bool) -> Row:
    family = workload.hashed
    order = np.random.default_rng(3).permutation(len(workload.values))[:n]
    tables, (records, _) = rivals.rows_of(family), family.accept(workload.values[order])
    cases: dict[str, Case] = {
        "fast": lambda: compiled_engine.encode(tables, records),
        "plain": lambda: numpy_engine.encode(tables, records),
        "by sorting": lambda: _by_sorting(tables, records),
        "by counters": lambda: _by_counters(tables, records),
    }
    rounds = Rounds(cases, repeats=1 if quick else 11)
    return {
        **workload.about,
        "W": family.buckets,
        "n": n,
        "rehash": family.rehashed,
        **{name: 1e6 * rounds.seconds(name) for name in cases},
        "sorting/counters": rounds.ratio(["by sorting"], ["by counters"]),
        "fast, ns an increment": 1e9 * rounds.seconds("fast") / (n * family.rows),
    }


def _by_sorting(rows: HashedRows, records: rivals.Float32) -> tuple[rivals.Int64, rivals.Int64]:
    engine, n = BucketEngine(rows), len(records)
    indices, values, count = np.empty(len(rows) * n + 1, np.int64), np.zeros(len(rows) * n + 1, np.int64), 0
    for chunk, buckets in engine.all_rows(engine.block(records), None, n):
        buckets.sort(axis=1)
        count += bucket_loops.runs(buckets, chunk.start * rows.buckets, rows.buckets, indices[count:], values[count:])
    return indices[:count].copy(), values[:count].copy()


def _by_counters(rows: HashedRows, records: rivals.Float32) -> tuple[rivals.Int64, rivals.Int64]:
    engine, most = BucketEngine(rows), len(rows) * min(len(records), rows.buckets) + 1
    indices, values, count = np.empty(most, np.int64), np.empty(most, np.int64), 0
    dense = np.zeros((_ROWS, rows.buckets), np.int64)
    for start in range(0, len(rows), _ROWS):
        chunk = slice(start, min(start + _ROWS, len(rows)))
        counters = dense[: chunk.stop - chunk.start]
        engine.add(chunk, counters, records)
        count += bucket_loops.compact(counters, chunk.start * rows.buckets, indices[count:], values[count:])
    return indices[:count].copy(), values[:count].copy()
