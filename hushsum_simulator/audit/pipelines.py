"""The real pipelines from records to published outcomes: in one process, and through a service.

All windows of the service hold the same submissions, so that each is an independent trial. They run as in production,
with files, the clock and the operating system's randomness; the published outcomes are collected.

For mode local it is the output of a device: the batches that its own code makes of records and keeps in its spool.
"""

import asyncio
import tempfile
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

import hushsum as hs
from aggregator.errors import StoreError
from aggregator.fold.verdicts import Verdict
from aggregator.interfaces import Log, Receipts
from aggregator.log.sqlite import SqliteLog
from aggregator.model import NewEntry, SealedWindow, StoredOutcome
from aggregator.release.receipts import ReceiptsFile
from aggregator.release.releaser import Releaser
from aggregator.runtime import Runtime, SystemRuntime
from aggregator.store.store import Store, open_sqlite_store
from aggregator.workers.pool import WorkerPool
from aggregator.workers.worker import WorkerSettings
from edge_client.encoding import ReportEncoder, counters_of, reports_max
from edge_client.spool.changes import NO_ID
from edge_client.spool.spool import Spool
from edge_client.spool.transaction import ReportTransaction
from hushsum import outcomes
from hushsum.delta import Delta, DeltaId, encode_all
from hushsum.entropy import Entropy, OsEntropy
from hushsum.errors import ContributionError, DroppedRecordsWarning, RecordError
from hushsum.local.report_batch import unpack
from hushsum.plan import Plan
from hushsum.privacy.events import TUMBLING
from hushsum.releases import Release
from hushsum.sketch import Sketch
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import DeltaEntry
from hushsum_simulator.audit.cases import CLIENT, DataSet, Submission, column, plan_of
from hushsum_simulator.audit.report import Check, Integers

_ASKED: Final = 3  # how often an operator requests the outcome of a window that is withheld, or fails
_STREAM: Final = 1
_ID: Final = DeltaId(_STREAM, 0)  # until each delta gets its own id
_DELTAS_MAX: Final = 8  # of a client in a window
_FIRST: Final = 0
_THREADS: Final = 2
_OPEN: Final = 8  # windows at once: with more, the log that is rewritten after each outcome is longer

#: A final release, or None for a withheld window; and how often the window was reported as withheld before.
Seen = tuple[Release | None, int]
Tell = Callable[[int], None]


@dataclass(frozen=True)
class Durable:
    """The durable parts of a service."""

    log: Log
    store: Store
    receipts: Receipts


Opened = Callable[[Plan, Runtime], AbstractAsyncContextManager[Durable]]


def service(
    plan: Plan, data: DataSet, runs: int, tell: Tell, *, opened: Opened | None = None, runtime: Runtime | None = None
) -> list[Seen]:
    """Windows of a running service: log, fold, store, ledger, receipts and catalogue.

    Each of ``runs`` windows has the submissions ``data``; ``tell`` is called with the number that are done. By default
    the durable parts are SQLite files, and time is real.
    """

    async def run() -> list[Seen]:
        seen: list[Seen] = []
        async with _running(plan, opened or on_files, runtime or SystemRuntime(_THREADS)) as (durable, releaser):
            for start in range(_FIRST, _FIRST + runs, _OPEN):
                windows = range(start, min(start + _OPEN, _FIRST + runs))
                await _collect(plan, durable, data, windows)
                for window in windows:
                    seen.append(await _outcome(releaser, window))
                    tell(len(seen))
        return seen

    return asyncio.run(run())


def sealed_windows(plan: Plan, contents: Sequence[DataSet]) -> list[SealedWindow]:
    """The exact sums and numbers of clients that the folds of a service compute, each data set in its own window."""

    async def run() -> list[SealedWindow]:
        found = []
        async with _running(plan, on_files, SystemRuntime(_THREADS)) as (durable, releaser):
            for window, data in enumerate(contents, _FIRST):
                found.append(await _sealed(plan, durable, releaser, data, window))
        return found

    return asyncio.run(run())


def sequence(plan: Plan, contents: Sequence[DataSet], tell: Tell) -> list[tuple[Release, np.ndarray[Any, Any]]]:
    """Releases of a service, window by window, each with the exact counters of its window alone.

    Each data set has its own window; ``tell`` is called with the number that are done.
    """

    async def run() -> list[tuple[Release, np.ndarray[Any, Any]]]:
        found: list[tuple[Release, np.ndarray[Any, Any]]] = []
        async with _running(plan, on_files, SystemRuntime(_THREADS)) as (durable, releaser):
            for window, data in enumerate(contents, _FIRST):
                sealed = await _sealed(plan, durable, releaser, data, window)
                exact = sealed.sketch.counters.copy()
                stored = await releaser.release(window)
                found.append((Release.from_bytes(stored.data), exact))
                tell(len(found))
        return found

    return asyncio.run(run())


async def _collect(plan: Plan, durable: Durable, data: DataSet, windows: range) -> None:
    """Opens these windows, and appends the deltas of every submission for each of them."""
    await durable.store.open_windows(plan.id, windows[0], windows[-1])
    batches = [(each.client, _encoded(plan, each)) for each in data]
    entries = [
        NewEntry(0, window, entry_to_bytes(DeltaEntry(client, delta, 0)))
        for window in windows
        for client, delta in _deltas(plan, batches, window)
    ]
    await durable.log.append(entries)


async def _sealed(plan: Plan, durable: Durable, releaser: Releaser, data: DataSet, window: int) -> SealedWindow:
    """A window with these submissions alone, as the folds have summed it."""
    await _collect(plan, durable, data, range(window, window + 1))
    await releaser.seal(window)
    sealed = await durable.store.sealed_window(plan, window)
    assert sealed is not None, "it was sealed above"
    return sealed


async def _outcome(releaser: Releaser, window: int) -> Seen:
    """Seals a window and requests its outcome, again if it is withheld or fails: that must change nothing.

    Raises:
        StoreError: Every request failed.
    """
    await releaser.seal(window, early=True)
    withheld, failure = 0, None
    for _ in range(_ASKED):
        try:
            stored = await releaser.release(window)
        except StoreError as error:
            failure = error
            continue
        if not stored.withheld:
            return Release.from_bytes(stored.data), withheld
        withheld += 1
    if failure is not None and not withheld:
        raise failure
    return None, withheld


def packed_deltas(plan: Plan, submission: Submission) -> list[bytes]:
    """The packed deltas of a submission, as a device makes them; none without a usable record."""
    return [delta.pack(plan) for delta in _encoded(plan, submission)]


def _encoded(plan: Plan, submission: Submission) -> list[Delta]:
    """The deltas of a submission, without their windows and ids; none without a usable record."""
    return encode_all(plan, submission.records, window=_FIRST, id=_ID)[0]


def _deltas(plan: Plan, batches: Sequence[tuple[str, Sequence[Delta]]], window: int) -> Iterator[tuple[str, bytes]]:
    """(client, packed delta) of each delta of a window."""
    sent: Counter[str] = Counter()
    for client, encoded in batches:
        for delta in encoded:
            assert sent[client] < _DELTAS_MAX, "the next window's ids begin there"
            id = DeltaId(_STREAM, window * _DELTAS_MAX + sent[client])
            sent[client] += 1
            yield client, replace(delta, window=window, id=id).pack(plan)


class _Unwatched:
    """An observer that ignores everything."""

    def folded(self, partition: int, position: int, verdicts: Sequence[Verdict]) -> None: ...
    def checkpointed(self, partition: int, position: int, seconds: float) -> None: ...
    def released(self, release: StoredOutcome) -> None: ...
    def withheld(self, outcome: StoredOutcome) -> None: ...
    def releasing_stopped(self, why: str) -> None: ...
    def seal_refused(self, window: int, ahead_ms: int) -> None: ...
    def forgetting_pending(self, why: str) -> None: ...
    def partitions_held(self, partitions: Collection[int]) -> None: ...
    def partition_stopped(self, partition: int, why: str) -> None: ...
    def leading(self, leads: bool) -> None: ...  # noqa: FBT001  the form of any Observer
    def retried(self, what: str, why: str) -> None: ...


@asynccontextmanager
async def on_files(plan: Plan, runtime: Runtime) -> AsyncIterator[Durable]:
    """The durable parts in files of a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="hushsum-audit-") as name:
        folder = Path(name)
        store = await open_sqlite_store(folder / "store.db", runtime)
        log = await SqliteLog.open(folder / "log.db", plan.id, 1, runtime)
        try:
            yield Durable(log, store, await ReceiptsFile.open(folder / "receipts.jsonl", runtime, OsEntropy()))
        finally:
            await log.close()
            await store.close()


@asynccontextmanager
async def _running(plan: Plan, opened: Opened, runtime: Runtime) -> AsyncIterator[tuple[Durable, Releaser]]:
    """The inner half of a service, from the log to the outcome."""
    observer = _Unwatched()
    async with opened(plan, runtime) as durable:
        await durable.store.register(plan, 1, _FIRST)
        workers = WorkerPool(plan, durable.log, durable.store, runtime, observer, WorkerSettings())
        fence = await durable.store.acquire_lease(plan.id, "audit", "", 3600)
        assert fence is not None, "no other process releases"
        releaser = Releaser(
            plan,
            fence,
            log=durable.log,
            store=durable.store,
            receipts=durable.receipts,
            folds=workers,
            entropy=OsEntropy(),
            runtime=runtime,
            observer=observer,
        )
        await workers.start()
        await releaser.start()
        try:
            yield durable, releaser
        finally:
            await workers.stop()


#: Gives independent outcomes of one data set.
Pipeline = Callable[[Plan, DataSet, int, Tell], list[Seen]]

_STEP: Final = 500  # runs between two updates of the progress bar


def added(plan: Plan, contents: Sequence[DataSet]) -> list[Sketch]:
    """The sketches of all records of each data set, one batch for each submission."""
    sketches = []
    for data in contents:
        sketch = hs.Sketch(plan)
        for submission in data:
            clients = [submission.client] * len(submission.records) if plan.privacy.unit == "client" else None
            if len(submission.records):
                with suppress(ContributionError, RecordError), warnings.catch_warnings():
                    # This batch alone is refused, as a fold refuses its delta, or has no usable record.
                    warnings.simplefilter("ignore", DroppedRecordsWarning)
                    sketch.add(submission.records, clients=clients)
        sketches.append(sketch)
    return sketches


def folded(plan: Plan, contents: Sequence[DataSet]) -> list[Sketch]:
    """The sketches of each data set that a service folds from deltas."""
    return [sealed.sketch for sealed in sealed_windows(plan, contents)]


@dataclass(frozen=True)
class Vector:
    """Counters and count counters of devices before any noise."""

    counters: Integers
    counts: Integers


def submitted(plan: Plan, contents: Sequence[DataSet]) -> list[Vector]:
    """The sums of the vectors of devices of mode secure: each device sums the deltas in its spool."""
    sums = []
    for data in contents:
        vectors = [counters_of(plan, packed_deltas(plan, each)) for each in data]
        counters, counts = (np.stack(parts) for parts in zip(*vectors, strict=True))
        sums.append(Vector(counters.sum(axis=0), counts.sum(axis=0)))
    return sums


def in_process(plan: Plan, data: DataSet, runs: int, tell: Tell) -> list[Seen]:
    """``Sketch.add`` and ``hushsum.release``, as an analyst calls them."""
    (sketch,) = added(plan, [data])
    return [(hs.release(sketch), 0) for _ in _counted(runs, tell)]


def decided(plan: Plan, data: DataSet, runs: int, tell: Tell) -> list[Seen]:
    """One window of a service, folded and sealed once, whose outcome is decided again and again."""
    (sealed,) = sealed_windows(plan, [data])
    seen: list[Seen] = []
    for window in _counted(runs, tell):
        outcome = outcomes.decide(
            sealed.sketch, kind=TUMBLING, window=window, clients=sealed.clients, entropy=OsEntropy()
        )
        seen.append((outcome, 0) if isinstance(outcome, Release) else (None, 1))
    return seen


def _counted(runs: int, tell: Tell) -> Iterator[int]:
    for run in range(runs):
        yield run
        if (run + 1) % _STEP == 0 or run + 1 == runs:
            tell(run + 1)


_USUAL, _UNUSABLE = 5.0, float("nan")
#: The calls with which one device adds records to a window.
_CALLS: Final[Sequence[Sequence[Sequence[float]]]] = (
    ([_USUAL], [_USUAL], [_USUAL]),
    ([_USUAL, _UNUSABLE], [_USUAL]),
    ([_UNUSABLE], [_UNUSABLE], [_UNUSABLE]),
    ([_USUAL, _USUAL, _USUAL], [_USUAL]),
)
_BYTES_MAX: Final = 2**20


def sent(plan: Plan, records: Any, labels: object, entropy: Entropy) -> Integers:
    """(n,) the reports of these records, in the (random) order in which a device sends them.

    Raises:
        OSError: ``entropy`` gave fewer bytes than requested.
    """
    addition = ReportEncoder(plan, entropy=entropy).encode(records, 0, labels)
    found = [unpack(unbound.pack(NO_ID), plan).reports for unbound in addition.deltas]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def streams(plan: Plan, reports: int) -> int:
    """How many words a device reads in addition to those of its reports: one for each batch."""
    return -(-reports // reports_max(plan))


def bound_checks() -> Iterator[Check]:
    """No client sends more reports in a window than its plan allows, however many records it adds."""
    for memoise in (False, True):
        local = {"randomiser": "k-rr", "memoise": memoise}
        yield bound_check(plan_of(mode="local", local=local, sketch={"buckets": 4}, **CLIENT))


def bound_check(plan: Plan) -> Check:
    """Counts the reports in the spool of a device, for one plan of unit client, memoised or not."""
    most, local = plan.privacy.records_per_client, plan.privacy.local
    assert most is not None, "a plan of clients"
    assert local is not None, "a plan of reports"
    with TemporaryDirectory() as folder:
        spool = Spool(Path(folder) / "spool.db", client_id=None, entropy=OsEntropy(), bytes_max=_BYTES_MAX)
        spool.keep_budget(plan, ReportTransaction)
        encoder = ReportEncoder(plan, spool.keep_memo(OsEntropy()) if local.memoise else None)
        for window, calls in enumerate(_CALLS):
            for values in calls:
                spool.commit([encoder.encode(column(*values), window)])
        held = [unpack(bound.data, plan) for bound in spool.load(0, 100, _BYTES_MAX)]
        spool.close()
    reports: Counter[int] = Counter()
    for batch in held:
        reports[batch.window] += len(batch.reports)
    found = [reports[window] for window in range(len(_CALLS))]
    what = f"a device that {'memoises' if local.memoise else 'draws anew'} sends at most its {most} reports of a window"
    return Check(what, max(found) == most, ", ".join(map(str, found)))
