"""Nanoseconds an increment where codes are projections: fast and plain, beside the floor and others' ways."""

import numpy as np

from benchmarks import rivals
from benchmarks.report import Row
from benchmarks.stopwatch import Case, Rounds
from benchmarks.workloads import Keys, Workload, hashed, workloads
from hushsum.families import Hashed, warm_up
from hushsum.families.lsh import numpy_engine
from hushsum.families.lsh.compiled import engine as compiled_engine

TITLE = (
    "Sketching, ns an increment on one core, R = 1000, W = 1024 (floor: bare SGEMM + a bare loop over ready buckets; "
    "where d <= 8 also with a bare loop for the products)"
)
RECORDS = 8192
BATCHES = ((64, 1000), (256, 1000), (1024, 64), (1024, 1000), (4096, 16), (4096, 64), (4096, 1000))
ONE_BY_ONE = 5  # records the authors' way

#: w = 50 gives covtype a mean kernel of 0.012; 20 is what the RACE paper takes, and needs the rehash. With
#: power 8 an angular row has 8 codes and 256 buckets.
EUCLIDEAN: tuple[tuple[str, Keys], ...] = (
    ("skin", hashed("euclidean", bandwidth=5)),
    ("random 3", hashed("euclidean", bandwidth=5)),
    ("covtype", hashed("euclidean", bandwidth=50)),
    ("covtype", hashed("euclidean", bandwidth=20)),
    ("random 55", hashed("euclidean", bandwidth=2)),
    ("random 128", hashed("euclidean", bandwidth=2)),
)
OTHERS: tuple[tuple[str, Keys], ...] = (
    ("skin", hashed("manhattan", bandwidth=5)),
    ("covtype", hashed("manhattan", bandwidth=50)),
    ("skin", hashed("angular", power=8, buckets=256)),
    ("covtype", hashed("angular", power=8, buckets=256)),
    ("random 128", hashed("angular", power=8, buckets=256)),
)
QUICK = (EUCLIDEAN[0], EUCLIDEAN[2], OTHERS[0], OTHERS[2])


def measure(*, quick: bool) -> list[Row]:
    """One row a workload."""
    warm_up()
    return [_measure(workload, quick=quick) for workload in workloads(QUICK if quick else EUCLIDEAN + OTHERS)]


def _measure(workload: Workload, *, quick: bool) -> Row:
    family = workload.hashed
    power = rivals.rows_of(family).power
    records = family.accept(workload.values[: RECORDS // power])[0]
    cases, numpy = _engines(family, records), "none"
    if power == 1:
        candidates = _vectorised(family, records)
        numpy = Rounds(candidates, repeats=1 if quick else 3).best(candidates)
        cases |= {"numpy": candidates[numpy], "authors": _authors(family, records)}
    rounds = Rounds(cases, repeats=1 if quick else 15)
    sgemm = rounds.best(name for name in cases if name.startswith("sgemm"))
    unit = 1e9 / (len(records) * family.rows)
    row: Row = {
        **workload.about,
        "rehash": family.rehashed,
        "sgemm": rounds.seconds(sgemm) * unit,
        "floor": rounds.seconds(sgemm, "increments") * unit,
        "fast": rounds.seconds("fast") * unit,
        "plain": rounds.seconds("plain") * unit,
        "fast/floor": rounds.ratio(["fast"], [sgemm, "increments"]),
        "recomputed %": 100 * rivals.recomputed_share(family, records),
    }
    if "loop" in cases:
        row["fast/floor by loop"] = rounds.ratio(["fast"], ["loop", "increments"])
    return row | (_beside_others(workload, rounds, numpy, len(records), quick=quick) if power == 1 else {})


def _beside_others(workload: Workload, rounds: Rounds, numpy: str, records: int, *, quick: bool) -> Row:
    family, unit = workload.hashed, 1e9 / (records * workload.hashed.rows)
    authors = rounds.seconds("authors") * records / ONE_BY_ONE
    return {
        "numpy": rounds.seconds("numpy") * unit,
        "numpy batch": numpy,
        "authors": authors * unit,
        "numpy/fast": rounds.ratio(["numpy"], ["fast"]),
        "plain/numpy": rounds.ratio(["plain"], ["numpy"]),
        "authors/fast": rounds.ratio(["authors"], ["fast"]) * records / ONE_BY_ONE,
        **(_whole(family, workload, authors / records) if workload.keys == EUCLIDEAN[0][1] and not quick else {}),
    }


def _engines(family: Hashed, records: rivals.Float32) -> dict[str, Case]:
    rows, parameters = rivals.rows_of(family), rivals.Parameters.of(family)
    buckets, counters = rivals.ready_buckets(family, records), np.zeros(family.shape, np.int64)
    return {
        **rivals.products(parameters.directions, records),
        "increments": lambda: rivals.increment(buckets, counters),
        "fast": lambda: compiled_engine.add(rows, counters, records),
        "plain": lambda: numpy_engine.add(rows, counters, records),
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
