"""Packed batches to counters, beside numpy.bincount of the same reports; and counters to answers."""

import numpy as np

from benchmarks.local.settings import Setting, settings
from benchmarks.report import Row
from benchmarks.stopwatch import Rounds
from hushsum.local.estimation import kernel_sum, tally
from hushsum.local.report_batch import count_packed, unpack

TITLE = (
    "One packed batch checked and counted, nanoseconds a report on one core, beside numpy.bincount of the same reports "
    "as int64 with minlength R x outputs; and 100 answers of the counters, milliseconds: the first, and further ones"
)
QUERIES = 100


def measure(*, quick: bool) -> list[Row]:
    """One row a setting."""
    return [_measure(setting, quick=quick) for setting in settings(quick=quick)]


def _measure(setting: Setting, *, quick: bool) -> Row:
    plan, data = setting.plan, setting.packed()
    counters, counts = np.zeros(plan.counters_shape, np.int64), np.zeros(1, np.int64)
    reports = np.random.default_rng(5).permutation(unpack(data, plan).reports)
    queries, kept = setting.records[:QUERIES], tally(plan, counters)
    cases = {
        "count": lambda: count_packed(data, plan, counters, counts),
        "bincount": lambda: np.bincount(reports, minlength=counters.size),
        "answers": lambda: kernel_sum(plan, counters, queries),
        "further": lambda: kernel_sum(plan, counters, queries, tally=kept),
    }
    rounds = Rounds(cases, repeats=2 if quick else 15)
    row: Row = {**setting.about, "reports": len(reports)}
    row |= {f"{name} ns": 1e9 * rounds.seconds(name) / len(reports) for name in ("count", "bincount")}
    return row | {
        "bincount/count": rounds.ratio(["bincount"], ["count"]),
        "answers ms": 1e3 * rounds.seconds("answers"),
        "further ms": 1e3 * rounds.seconds("further"),
    }
