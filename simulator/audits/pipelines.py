"""The roads from records to published outcomes, driven as they are: in one process, and through a service."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import hushsum as hs
from hushsum import outcomes
from hushsum.entropy import OsEntropy
from hushsum.errors import ContributionError
from hushsum.plan import Plan
from hushsum.privacy.event import TUMBLING
from hushsum.releases import Release
from hushsum.sketch import Sketch
from simulator.audits.cases import DataSet
from simulator.audits.service import Seen, Tell, sealed_windows, windows_of

#: Independent outcomes of one data set.
Pipeline = Callable[[Plan, DataSet, int, Tell], list[Seen]]

_STEP: Final = 500  # runs between two looks at the progress bar


def added(plan: Plan, contents: Sequence[DataSet]) -> list[Sketch]:
    """The sketches of all records of each data set, one batch a client."""
    return [_added(plan, data) for data in contents]


def folded(plan: Plan, contents: Sequence[DataSet]) -> list[Sketch]:
    """The same, of the deltas that a service has folded."""
    return [sealed.sketch for sealed in sealed_windows(plan, contents)]


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


def _counted(runs: int, tell: Tell) -> Iterator[int]:
    for run in range(runs):
        yield run
        if (run + 1) % _STEP == 0 or run + 1 == runs:
            tell(run + 1)
