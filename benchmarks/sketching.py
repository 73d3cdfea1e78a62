"""Nanoseconds an increment: fast and plain, beside the floor, the best vectorised NumPy and the authors' way."""

from collections.abc import Callable

import numpy as np

from benchmarks import rivals
from benchmarks.report import Row
from benchmarks.stopwatch import medians
from benchmarks.workloads import Workload, workloads
from hushsum.families import Hashed, warm_up
from hushsum.families.lsh import fast, plain

TITLE = (
    "Sketching, ns an increment on one core, R = 1000, W = 1024 (floor: bare SGEMM + a bare loop over ready buckets)"
)
BATCHES = ((64, 1000), (256, 1000), (1024, 64), (1024, 1000), (4096, 16), (4096, 64), (4096, 1000))


def measure(*, quick: bool) -> list[Row]:
    """One row a workload."""
    warm_up()
    return [_measure(workload, quick=quick) for workload in workloads(quick=quick)]


def _measure(workload: Workload, *, quick: bool) -> Row:
    family, repeats = workload.family, 1 if quick else 7
    records, _ = family.accept(workload.values)
    few = records[: 2048 if quick else 16_384]
    ours = medians(_engines(family, few), repeats=repeats)
    others = medians(_numpy(family, few[:4096]), repeats=1 if quick else 3)
    increments = len(few) * family.rows
    one_by_one = medians({"": lambda: rivals.add_one_by_one(rivals.Parameters.of(family), few[:20])}, repeats=repeats)
    sgemm = min(seconds for name, seconds in ours.items() if name.startswith("sgemm"))
    floor = (sgemm + ours["increments"]) / increments
    best = min(others, key=lambda name: others[name])
    numpy = others[best] / (len(few[:4096]) * family.rows)
    authors = one_by_one[""] / (20 * family.rows)
    row: Row = {
        "data": workload.name,
        "d": family.record.dim,
        "w": workload.bandwidth,
        "rehash": family.rehashed,
        "sgemm": 1e9 * sgemm / increments,
        "floor": 1e9 * floor,
        "fast": 1e9 * ours["fast"] / increments,
        "plain": 1e9 * ours["plain"] / increments,
        "numpy": 1e9 * numpy,
        "numpy batch": best,
        "authors": 1e9 * authors,
        "fast/floor": ours["fast"] / increments / floor,
        "numpy/fast": numpy * increments / ours["fast"],
        "plain/numpy": ours["plain"] / increments / numpy,
        "authors/fast": authors * increments / ours["fast"],
        "recomputed %": 100 * rivals.recomputed_share(family, few),
    }
    if workload.name == "skin" and not quick:
        row |= _whole(family, workload, authors)
    return row


def _engines(family: Hashed, records: rivals.Float32) -> dict[str, Callable[[], object]]:
    rows, parameters = rivals.rows_of(family), rivals.Parameters.of(family)
    buckets, counters = rivals.ready_buckets(family, records), np.zeros(family.shape, np.int64)
    return {
        **rivals.products(parameters, records),
        "increments": lambda: rivals.increment(buckets, counters),
        "fast": lambda: fast.add(rows, counters, records),
        "plain": lambda: plain.add(rows, counters, records),
    }


def _numpy(family: Hashed, records: rivals.Float32) -> dict[str, Callable[[], object]]:
    parameters = rivals.Parameters.of(family)

    def case(batch: int, chunk: int) -> Callable[[], object]:
        return lambda: rivals.vectorised(parameters, records, batch, chunk)

    return {f"{batch}x{chunk}": case(batch, chunk) for batch, chunk in BATCHES}


def _whole(family: Hashed, workload: Workload, authors: float) -> Row:
    """Seconds for the whole set, from the caller's float64 array to counters."""

    def sketch() -> None:
        counters = np.zeros(family.shape, np.int64)
        family.add(counters, family.accept(workload.values)[0])

    seconds = medians({"": sketch}, repeats=5)[""]
    return {"whole set s": seconds, "authors s": authors * len(workload.values) * family.rows}
