"""Batches of more than 10^5 records on one core and on all of them."""

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from benchmarks.report import Row
from benchmarks.stopwatch import Case, Rounds
from benchmarks.workloads import Keys, Workload, hashed, workloads
from hushsum.families import threads, warm_up
from hushsum.families.threads import RECORDS_MIN

TITLE = (
    "One batch on one core and on all, seconds (add of accepted records; one BLAS thread each; by CPU time: what is to "
    "be gained where cores are free; bare loops: what loops that share nothing gained in the same rounds)"
)
UInt64 = npt.NDArray[np.uint64]
_STEPS, _TURNS = 4096, 30_000
_FOURIER: Keys = {"family": "fourier", "kernel": "gaussian", "bandwidth": 20, "rows": 1000}
WORK: tuple[tuple[str, Keys], ...] = (
    ("skin", hashed("euclidean", bandwidth=5)),
    ("covtype", hashed("euclidean", bandwidth=50)),
    ("skin", hashed("laplacian", bandwidth=25)),
    ("skin", _FOURIER),
    ("slashdot", hashed("jaccard", minhash="full", buckets=8192)),
    ("slashdot", hashed("jaccard", minhash="one-permutation", rows=64, buckets=8192)),
    ("taxi", {"family": "hermite", "kernel": "gaussian", "bandwidth": "0.01"}),
    ("taxi", {"family": "partition", "bandwidth": "0.01", "rows": 1000, "buckets": 1024}),
)


def measure(*, quick: bool) -> list[Row]:
    """One row a workload; none where a process cannot be kept on one core."""
    if not hasattr(os, "sched_setaffinity"):
        print("cores: skipped, this system does not let a process choose its cores")
        return []
    warm_up()
    return [_measure(workload, quick=quick) for workload in workloads(WORK[:1] if quick else WORK)]


def _measure(workload: Workload, *, quick: bool) -> Row:
    family = workload.family
    usable, counters = family.accept(_enough(workload.values))[0], np.zeros(family.shape, np.int64)

    def one() -> None:
        with _one_core():
            family.add(counters, usable)

    parts = [np.zeros(_STEPS, np.uint64) for _ in os.sched_getaffinity(0)]
    cases: dict[str, Case] = {
        "one core": one,
        "all cores": lambda: family.add(counters, usable),
        "loops in turn": lambda: [_spin(part) for part in parts],
        "loops abreast": lambda: threads.spread(lambda some: _spin(parts[some.start]), _ones(len(parts)), 0),
    }
    rounds = Rounds(cases, repeats=1 if quick else 5)
    return {
        "family": str(workload.keys["family"]),
        **workload.about,
        **({"minhash": str(workload.keys["minhash"])} if "minhash" in workload.keys else {}),
        "records": len(usable),
        "cores": len(os.sched_getaffinity(0)),
        "one core s": rounds.seconds("one core"),
        "all cores s": rounds.seconds("all cores"),
        "one/all": rounds.ratio(["one core"], ["all cores"]),
        "by CPU time": _by_cpu_time(one, cases["all cores"], repeats=1 if quick else 5),
        "bare loops": rounds.ratio(["loops in turn"], ["loops abreast"]),
    }


def _by_cpu_time(one: Case, every: Case, *, repeats: int) -> float:
    """What the calling thread's own CPU time shrinks by: its share of the work, and all that no other thread does."""

    def seconds(case: Case) -> float:
        start = time.thread_time()
        case()
        return time.thread_time() - start

    return statistics.median(seconds(one) / seconds(every) for _ in range(repeats))


@numba.njit(nogil=True, cache=True)
def _spin(words: UInt64) -> None:
    """Arithmetic that no two cores share anything of."""
    for turn in range(_TURNS):
        for i in range(len(words)):
            words[i] = (words[i] ^ np.uint64(turn)) * np.uint64(0x9E3779B97F4A7C15)


def _ones(count: int) -> list[slice]:
    return [slice(i, i + 1) for i in range(count)]


def _enough(values: Any) -> Any:
    """More records than a batch that one core does alone."""
    n = values.shape[0]
    return values[np.arange(max(n, RECORDS_MIN + 50_000)) % n]


@contextmanager
def _one_core() -> Iterator[None]:
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(every)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)
