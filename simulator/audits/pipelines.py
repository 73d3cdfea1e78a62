"""The roads from records to published outcomes, driven as they are: in one process, and through a service."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np

import hushsum as hs
from edge_client.turns.pending import counters_of
from hushsum import outcomes
from hushsum.entropy import OsEntropy
from hushsum.errors import ContributionError
from hushsum.plan import Plan
from hushsum.privacy.event import TUMBLING
from hushsum.releases import Release
from hushsum.sketch import Sketch
from simulator.audits.cases import DataSet, Integers
from simulator.audits.service import Seen, Tell, packed_deltas, sealed_windows, windows_of

#: Independent outcomes of one data set.
Pipeline = Callable[[Plan, DataSet, int, Tell], list[Seen]]

_STEP: Final = 500  # runs between two looks at the progress bar


def added(plan: Plan, contents: Sequence[DataSet]) -> list[Sketch]:
    """The sketches of all records of each data set, one batch a client."""
    return [_added(plan, data) for data in contents]


def folded(plan: Plan, contents: Sequence[DataSet]) -> list[Sketch]:
    """The same, of the deltas that a service has folded."""
    return [sealed.sketch for sealed in sealed_windows(plan, contents)]


@dataclass(frozen=True)
class Vector:
    """What clients of mode secure add up to, before any noise.

    Attributes:
        counters: int64 (D,).
        counts: int64 (classes,): the count counters.
    """

    counters: Integers
    counts: Integers


def submitted(plan: Plan, contents: Sequence[DataSet]) -> list[Vector]:
    """The sums of what the devices of mode secure submit: each that of the deltas that it has kept for itself."""
    return [_submitted(plan, data) for data in contents]


def in_process(plan: Plan, data: DataSet, runs: int, tell: Tell) -> list[Seen]:
    """``Sketch.add`` and ``hushsum.release``: the road of an analyst."""
    (sketch,) = added(plan, [data])
    return [(hs.release(sketch), 0) for _ in _counted(runs, tell)]


def decided(plan: Plan, data: DataSet, runs: int, tell: Tell) -> list[Seen]:
    """One window of a service, folded and sealed once; its outcome is decided again and again."""
    (sealed,) = sealed_windows(plan, [data])
    seen: list[Seen] = []
    for window in _counted(runs, tell):
        outcome = outcomes.decide(
            sealed.sketch, kind=TUMBLING, window=window, clients=sealed.clients, entropy=OsEntropy()
        )
        seen.append((outcome, 0) if isinstance(outcome, Release) else (None, 1))
    return seen


def service(plan: Plan, data: DataSet, runs: int, tell: Tell) -> list[Seen]:
    """A running service of many windows: log, fold, store, ledger, receipts and catalogue."""
    return windows_of(plan, data, runs, tell)


def _added(plan: Plan, data: DataSet) -> Sketch:
    sketch = hs.Sketch(plan)
    for submission in data:
        clients = [submission.client] * len(submission.records) if plan.privacy.unit == "client" else None
        if len(submission.records):
            with suppress(ContributionError):  # one client a batch: it is refused alone, as a fold refuses its delta
                sketch.add(submission.records, clients=clients)
    return sketch


def _submitted(plan: Plan, data: DataSet) -> Vector:
    vectors = [counters_of(plan, packed_deltas(plan, each)) for each in data]
    counters, counts = (np.stack(parts) for parts in zip(*vectors, strict=True))
    return Vector(counters.sum(axis=0), counts.sum(axis=0))


def _counted(runs: int, tell: Tell) -> Iterator[int]:
    for run in range(runs):
        yield run
        if (run + 1) % _STEP == 0 or run + 1 == runs:
            tell(run + 1)
