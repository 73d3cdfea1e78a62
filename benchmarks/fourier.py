"""The fourier family: nanoseconds a pair of counters and record, beside SGEMM and a vectorised cosine and sine."""

import numpy as np

from benchmarks import floors
from benchmarks.report import Row
from benchmarks.stopwatch import Case, Rounds
from benchmarks.workloads import Keys, Workload, workloads
from hushsum.families import warm_up
from hushsum.families.fourier import Fourier, engine_compiled, engine_numpy

TITLE = (
    "Fourier, ns a pair and record on one core, P = 1000 (floor: bare SGEMM + NumPy's float32 cosine and sine of all "
    "products; with sums: + the sums of their rows)"
)
RECORDS = 8192
_KEYS: Keys = {"family": "fourier", "kernel": "gaussian", "rows": 1000, "seed": 7}
WORK: tuple[tuple[str, Keys], ...] = (
    ("skin", {**_KEYS, "bandwidth": 20}),
    ("taxi", {**_KEYS, "bandwidth": "0.01"}),
    ("covtype", {**_KEYS, "bandwidth": 500}),
)


def measure(*, quick: bool) -> list[Row]:
    """One row a workload."""
    warm_up()
    engine_compiled.warm_up()
    return [_measure(workload, quick=quick) for workload in workloads(WORK)]


def _measure(workload: Workload, *, quick: bool) -> Row:
    family = workload.family
    assert isinstance(family, Fourier)
    records, counters = family.accept(workload.values[:RECORDS])[0], np.zeros(family.shape, np.int64)
    pairs, every = family._pairs, slice(0, family.rows)  # noqa: SLF001  what the engines take
    bare = {name: case for name, case in floors.phases(family, records).items() if not name.startswith("reads")}
    cases: dict[str, Case] = {
        **bare,
        "fast": lambda: engine_compiled.add(pairs, counters, records, every),
        "plain": lambda: engine_numpy.add(pairs, counters, records, every),
    }
    rounds = Rounds(cases, repeats=1 if quick else 9)
    sgemm, waves, sums = (
        rounds.best(name for name in cases if name.startswith(part)) for part in ("sgemm", "waves", "sums")
    )
    unit = 1e9 / (len(records) * family.rows)
    return {
        **workload.about,
        "sgemm": rounds.seconds(sgemm) * unit,
        "cosine and sine": rounds.seconds(waves) * unit,
        "floor": rounds.seconds(sgemm, waves) * unit,
        "with sums": rounds.seconds(sgemm, waves, sums) * unit,
        "fast": rounds.seconds("fast") * unit,
        "plain": rounds.seconds("plain") * unit,
        "fast/floor": rounds.ratio(["fast"], [sgemm, waves]),
        "fast/floor with sums": rounds.ratio(["fast"], [sgemm, waves, sums]),
        "plain/fast": rounds.ratio(["plain"], ["fast"]),
        "block": waves,
    }
