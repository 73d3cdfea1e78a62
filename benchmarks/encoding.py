"""Microseconds to encode one delta of n records into sorted increments, as an edge client does."""

from benchmarks import rivals
from benchmarks.report import Row
from benchmarks.stopwatch import Case, Rounds
from benchmarks.workloads import Floats, workloads
from hushsum.families import Hashed, warm_up
from hushsum.families.lsh import fast, plain

TITLE = "Encoding one delta of n records, µs on one core, R = 1000, W = 1024"
SIZES = (1, 10, 100, 1000, 4096)


def measure(*, quick: bool) -> list[Row]:
    """One row a workload and size."""
    warm_up()
    return [
        _measure(workload.name, workload.family, workload.values[:n], quick=quick)
        for workload in workloads(quick=quick)
        for n in SIZES
    ]


def _measure(name: str, family: Hashed, values: Floats, *, quick: bool) -> Row:
    tables, (records, _) = rivals.rows_of(family), family.accept(values)
    cases: dict[str, Case] = {
        "fast": lambda: fast.encode(tables, records),
        "plain": lambda: plain.encode(tables, records),
    }
    rounds = Rounds(cases, repeats=1 if quick else 15)
    return {
        "data": name,
        "d": family.record.dim,
        "n": len(records),
        "rehash": family.rehashed,
        "fast": 1e6 * rounds.seconds("fast"),
        "plain": 1e6 * rounds.seconds("plain"),
        "fast, ns an increment": 1e9 * rounds.seconds("fast") / (len(records) * family.rows),
    }
