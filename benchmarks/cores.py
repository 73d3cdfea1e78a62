"""Batches of more than 10^5 records on one core and on all of them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.report import Row
from benchmarks.stopwatch import Case, Rounds
from benchmarks.workloads import Keys, Workload, hashed, workloads
from hushsum.families import warm_up
from hushsum.families.parallel import RECORDS_MIN

TITLE = "One batch on one core and on all, seconds (add of accepted records; one BLAS thread each)"
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

    cases: dict[str, Case] = {"one core": one, "all cores": lambda: family.add(counters, usable)}
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
    }


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
