"""What a fold takes of memory over a million deltas."""

import gc

from aggregator.fold.fold import Fold, warm_up
from aggregator.fold.state import FoldState
from aggregator.process import memory_used
from benchmarks.report import Row
from benchmarks.service.deltas import Deltas, plan_of
from hushsum_proto.entries import DeltaEntry

TITLE = "Memory of a process that folds, R = 100, W = 1024, 1000 live streams of 1000 clients, a checkpoint every 5000"
_CLIENTS = 1000
_BATCH = 500
_CHECKPOINT = 5000
_MARKS = (10_000, 100_000, 500_000, 1_000_000)


def measure(*, quick: bool) -> list[Row]:
    """One row at each number of deltas."""
    warm_up()
    plan = plan_of(100)
    deltas, fold = Deltas(plan, 0), Fold(plan, 0, 1, FoldState(closed_through=-1))
    rows: list[Row] = []
    for at in range(0, _MARKS[0] if quick else _MARKS[-1], _BATCH):
        sequence, first = divmod(at, _CLIENTS)
        entries = [
            (at + n, DeltaEntry(f"client-{first + n}", deltas.packed(first + n, sequence, 1)[0], 0))
            for n in range(_BATCH)
        ]
        fold.apply(entries, at + _BATCH)
        done = at + _BATCH
        if done % _CHECKPOINT == 0:
            fold.checkpoint()
        if done in _MARKS:
            gc.collect()
            rows.append({"deltas": done, "resident, MB": memory_used() / 1e6})
    base = rows[0]["resident, MB"]
    assert isinstance(base, float), "a size"
    for row in rows:
        resident = row["resident, MB"]
        assert isinstance(resident, float), "a size"
        row["over the first, MB"] = resident - base
    return rows
