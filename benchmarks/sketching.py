"""Nanoseconds an increment: fast and plain, beside the floor, the best vectorised NumPy and the authors' way."""

import numpy as np

from benchmarks import rivals
from benchmarks.report import Row
from benchmarks.stopwatch import Case, Rounds
from benchmarks.workloads import Workload, workloads
from hushsum.families import Hashed, warm_up
from hushsum.families.lsh import fast, plain

TITLE = (
    "Sketching, ns an increment on one core, R = 1000, W = 1024 (floor: bare SGEMM + a bare loop over ready buckets)"
)
RECORDS = 8192
BATCHES = ((64, 1000), (256, 1000), (1024, 64), (1024, 1000), (4096, 16), (4096, 64), (4096, 1000))
ONE_BY_ONE = 5  # records the authors' way


def measure(*, quick: bool) -> list[Row]:
    """One row a workload."""
    warm_up()
    return [_measure(workload, quick=quick) for workload in workloads(quick=quick)]


def _measure(workload: Workload, *, quick: bool) -> Row:
    family = workload.family
    records = family.accept(workload.values[:RECORDS])[0]
    candidates = _vectorised(family, records)
    numpy = Rounds(candidates, repeats=1 if quick else 3).best(candidates)
    cases = {**_engines(family, records), "numpy": candidates[numpy], "authors": _authors(family, records)}
    rounds = Rounds(cases, repeats=1 if quick else 15)
    sgemm = rounds.best(name for name in cases if name.startswith("sgemm"))
    unit = 1e9 / (len(records) * family.rows)
    authors = rounds.seconds("authors") * len(records) / ONE_BY_ONE
    return {
        "data": workload.name,
        "d": family.record.dim,
        "w": workload.bandwidth,
        "rehash": family.rehashed,
        "sgemm": rounds.seconds(sgemm) * unit,
        "floor": rounds.seconds(sgemm, "increments") * unit,
        "fast": rounds.seconds("fast") * unit,
        "plain": rounds.seconds("plain") * unit,
        "numpy": rounds.seconds("numpy") * unit,
        "numpy batch": numpy,
        "authors": authors * unit,
        "fast/floor": rounds.ratio(["fast"], [sgemm, "increments"]),
        "numpy/fast": rounds.ratio(["numpy"], ["fast"]),
        "plain/numpy": rounds.ratio(["plain"], ["numpy"]),
        "authors/fast": rounds.ratio(["authors"], ["fast"]) * len(records) / ONE_BY_ONE,
        "recomputed %": 100 * rivals.recomputed_share(family, records),
        **(_whole(family, workload, authors / len(records)) if workload.name == "skin" and not quick else {}),
    }


def _engines(family: Hashed, records: rivals.Float32) -> dict[str, Case]:
    rows, parameters = rivals.rows_of(family), rivals.Parameters.of(family)
    buckets, counters = rivals.ready_buckets(family, records), np.zeros(family.shape, np.int64)
    return {
        **rivals.products(parameters, records),
        "increments": lambda: rivals.increment(buckets, counters),
        "fast": lambda: fast.add(rows, counters, records),
        "plain": lambda: plain.add(rows, counters, records),
    }


def _vectorised(family: Hashed, records: rivals.Float32) -> dict[str, Case]:
    parameters = rivals.Parameters.of(family)

    def case(batch: int, chunk: int) -> Case:
        return lambda: rivals.vectorised(parameters, records, batch, chunk)

    return {f"{batch}x{chunk}": case(batch, chunk) for batch, chunk in BATCHES}


def _authors(family: Hashed, records: rivals.Float32) -> Case:
    parameters = rivals.Parameters.of(family)
    return lambda: rivals.add_one_by_one(parameters, records[:ONE_BY_ONE])


def _whole(family: Hashed, workload: Workload, authors: float) -> Row:
    """Seconds for the whole set, from the caller's float64 array to counters; the authors' way at its rate."""

    def sketch() -> None:
        counters = np.zeros(family.shape, np.int64)
        family.add(counters, family.accept(workload.values)[0])

    seconds = Rounds({"whole": sketch}, repeats=7).seconds("whole")
    return {"whole set s": seconds, "authors s": authors * len(workload.values)}
