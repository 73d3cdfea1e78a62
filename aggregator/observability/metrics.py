"""Metrics of one process, and the log lines of its state changes.

These are exact counts of what was received: they are the operator's, never an analyst's.

Nothing depends on the gauges that are read from the store: a read that fails or takes long makes no process unready,
and the gauges keep their last values.
"""

import copy
import math
from collections import Counter as Counts
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import chain, repeat
from typing import Final, NoReturn

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, PlatformCollector, ProcessCollector

from aggregator.fold.verdicts import Verdict, Verdicts
from aggregator.logs import journal
from aggregator.model import StoredOutcome
from aggregator.runtime import Runtime, within
from aggregator.store.store import Store
from aggregator.windows import UNFINISHED, due_ms
from hushsum import __version__
from hushsum.errors import HushsumError, Reason
from hushsum.plan import Plan
from hushsum.privacy.accountant import Account, Limits
from hushsum.privacy.events import Spend
from hushsum_proto.answers import Answer, AnyReason, ServiceReason, Status

_GROUP_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

_journal = journal("service")


class Metrics:
    """The metrics of one process. The Observer of its workers and releaser, whose state changes it logs as well.

    Positions grow by ``step`` from one log entry to the next: by 1 in a file, by 65,536 from one Kafka message (of many
    entries) to the next.

    Attributes:
        registry: Of this service alone, so that two of them in one process share nothing. Every sample of its page has
            the labels ``plan`` and ``role``. For a plan of reports it shows whole minutes only: see
            :class:`ProcessRegistry`.
        stopped: The partitions whose fold cannot go on here, and why.
        on_published: Called after each outcome that this process publishes.
    """

    def __init__(self, *, step: int = 1) -> None:
        self.registry = ProcessRegistry()
        self.stopped: dict[int, str] = {}
        self.on_published: Callable[[], None] = lambda: None
        self._step = step
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self._deltas = counter("hushsum_deltas", "Sketch deltas answered, by status", ["status"])
        self._refusals = counter("hushsum_refusals", "Sketch deltas and calls refused, by reason", ["reason"])
        self._sessions = gauge("hushsum_sessions", "Open sessions")
        self._appended_bytes = counter("hushsum_appended_bytes", "Bytes appended durably to the log")
        self._group_entries = histogram("hushsum_group_entries", "Entries per group commit", buckets=_GROUP_SIZES)
        self._commit_seconds = histogram(
            "hushsum_commit_seconds", "Duration of a group commit, in seconds", buckets=_SECONDS
        )
        self._commit_failures = counter(
            "hushsum_commit_failures", "Failed log appends, including failed reads after an append"
        )
        self._folded = counter("hushsum_folded", "Entries folded, by verdict", ["partition", "verdict"])
        self._fold_position = gauge("hushsum_fold_position", "Next log position to fold", ["partition"])
        self._log_end = gauge("hushsum_log_end", "Next log position to append, as last observed", ["partition"])
        self._fold_lag = gauge(
            "hushsum_fold_lag", "Entries (Kafka: messages) appended but not yet folded", ["partition"]
        )
        stored = "Entries (Kafka: messages) appended but not yet in a checkpoint of any process"
        self._stored_lag = gauge("hushsum_stored_fold_lag", stored, ["partition"])
        self._partitions_held = gauge("hushsum_partitions_held", "Partitions folded by this process")
        self._partition_stopped = gauge(
            "hushsum_partition_stopped",
            "1 if the fold of the partition has stopped and needs an operator",
            ["partition"],
        )
        self._leading = gauge("hushsum_leading", "1 if this process holds the releaser lease")
        self._ready = gauge("hushsum_ready", "1 if ready; 0 while the log or store is unavailable or folds are behind")
        self._retries = counter("hushsum_retries", "Transient failures that were retried, by operation", ["what"])
        self._checkpoint_seconds = histogram(
            "hushsum_checkpoint_seconds", "Duration of a checkpoint, in seconds", buckets=_SECONDS
        )
        self._outcomes = counter("hushsum_outcomes", "Outcomes published", ["kind"])
        self._withheld = counter("hushsum_outcomes_withheld", "Outcomes published as withheld", ["kind"])
        self._releasing_stopped = gauge("hushsum_releasing_stopped", "1 if releasing has stopped and needs an operator")
        self._seals_refused = counter(
            "hushsum_seals_refused", "Windows that were over by this process's clock and not by the store's"
        )
        self._forgetting_pending = gauge(
            "hushsum_forgetting_pending", "1 while data of a released window is not yet erased"
        )
        self._drift = gauge(
            "hushsum_drift_p_value", "p-value of the test that the two newest released windows are of one population"
        )
        self._drift.set(math.nan)
        self._copies = counter("hushsum_release_copies", "Copies of releases written to the folder, store or topic")
        self._copy_pending = gauge(
            "hushsum_release_copy_pending", "1 while a copy of a published release cannot be written"
        )
        self._plan_info = gauge("hushsum_plan_info", "Constant 1; labels: id and mode of the plan", ["plan_id", "mode"])
        _show_process(self.registry)
        # Every reason is there from the start: an alert needs the 0 before the first one.
        reasons = (*Reason, *ServiceReason)
        self._by_reason: dict[AnyReason | None, Counter] = {each: self._refusals.labels(each.value) for each in reasons}
        self._by_status = {status: self._deltas.labels(status.value) for status in Status}
        self._gauges: dict[tuple[Gauge, int], Gauge] = {}  # by partition: a look-up of labels takes a lock and a text
        self._ends: dict[int, int] = {}
        self._positions: dict[int, int] = {}
        self._pending = ""  # why something is not erased yet
        self._uncopied: dict[str, str] = {}  # by destination, why a copy is missing

    def plan(self, plan: Plan, role: str) -> None:
        """The plan that this process serves, and its role: labels of every sample from now on."""
        self.registry.add_labels(plan=plan.name, role=role)
        self._plan_info.labels(plan.hex_id, plan.privacy.mode).set(1)

    # --------------------------------------------------------------------------------------------------- gateway

    def answered(self, answer: Answer) -> None:
        self._by_status[answer.status].inc()
        if answer.refusal is not None:
            self.refused(answer.refusal.reason)

    def refused(self, reason: AnyReason | None) -> None:
        counter = self._by_reason.get(reason)
        if counter is not None:
            counter.inc()

    def session_opened(self) -> None:
        self._sessions.inc()

    def session_closed(self) -> None:
        self._sessions.dec()

    def committed(self, entries: int, size_bytes: int, seconds: float) -> None:
        self._group_entries.observe(entries)
        self._appended_bytes.inc(size_bytes)
        self._commit_seconds.observe(seconds)

    def appended(self, partition: int, end: int) -> None:
        self._ends[partition] = max(end, self._ends.get(partition, 0))
        self._of(self._log_end, partition).set(self._ends[partition])
        self._show_lag(partition)

    def commit_failed(self) -> None:
        self._commit_failures.inc()

    # ------------------------------------------------------------------------------------------ dependency probe

    def ready(self, is_ready: bool) -> None:  # noqa: FBT001  a fact that is told, not a switch
        """Whether log and store can be reached, and the gateway here takes deltas."""
        self._ready.set(is_ready)

    def sounded(self, ends: Mapping[int, int], stored: Mapping[int, int]) -> None:
        """Where partitions end, and how far their latest checkpoints are."""
        for partition, end in ends.items():
            self.appended(partition, end)
            if partition in stored:
                self._stored_lag.labels(partition).set(self.lag(stored[partition], end))

    # --------------------------------------------------------------------------------------- workers and releaser

    def folded(self, partition: int, position: int, verdicts: Sequence[Verdict]) -> None:
        """A batch was applied; ``position`` is the next one."""
        kinds = verdicts.kinds() if isinstance(verdicts, Verdicts) else Counts(verdict.kind for verdict in verdicts)
        for kind, count in kinds.items():
            self._folded.labels(partition, kind.value).inc(count)
        self._positions[partition] = position
        self._of(self._fold_position, partition).set(position)
        self._show_lag(partition)

    def checkpointed(self, partition: int, position: int, seconds: float) -> None:  # noqa: ARG002  an Observer's form
        """A checkpoint is durable. It is not logged: it follows an entry by a fixed time, and would tell that time."""
        self._checkpoint_seconds.observe(seconds)

    def partitions_held(self, partitions: Collection[int]) -> None:
        """These are folded here now; nothing is shown any more of those that went elsewhere."""
        self._partitions_held.set(len(partitions))
        for partition in self._positions.keys() - set(partitions):
            del self._positions[partition]
            for gauge in (self._fold_position, self._fold_lag):
                gauge.remove(partition)
                self._gauges.pop((gauge, partition), None)
        for partition in self.stopped.keys() - set(partitions):
            del self.stopped[partition]  # the process that folds it now reports it, if it is still stopped
            self._partition_stopped.labels(partition).set(0)
        _journal.debug("partitions held", partitions=sorted(partitions))

    def partition_stopped(self, partition: int, why: str) -> None:
        """A fold cannot go on until an operator acts; empty: it goes on again."""
        self._partition_stopped.labels(partition).set(1 if why else 0)
        self.stopped.pop(partition, None)
        if why:
            self.stopped[partition] = why
            _journal.error("partition stopped", partition=partition, why=why)
        else:
            _journal.info("partition resumed", partition=partition)

    def leading(self, leads: bool) -> None:  # noqa: FBT001  an Observer's form
        self._leading.set(leads)

    def retried(self, what: str, why: str) -> None:
        self._retries.labels(what).inc()
        _journal.debug("retrying", what=what, why=why)

    def released(self, release: StoredOutcome) -> None:
        self._published("released", release)

    def withheld(self, outcome: StoredOutcome) -> None:
        self._withheld.labels(outcome.kind).inc()
        self._published("withheld", outcome)

    def _published(self, event: str, outcome: StoredOutcome) -> None:
        self._outcomes.labels(outcome.kind).inc()
        self.on_published()
        _journal.info(event, plan=outcome.plan_id.hex()[:12], kind=outcome.kind, window=outcome.window)

    def releasing_stopped(self, why: str) -> None:
        """No outcome is taken until an operator acts, or what is committed can be published; empty: it goes on."""
        self._releasing_stopped.set(1 if why else 0)
        if why:
            _journal.error("releasing stopped", why=why)
        else:
            _journal.info("releasing resumed")

    def seal_refused(self, window: int, ahead_ms: int) -> None:
        """A window is over by this process's clock alone, and is not sealed."""
        self._seals_refused.inc()
        _journal.warning("window not sealed: this process's clock is ahead", window=window, ahead_s=ahead_ms / 1000)

    def forgetting_pending(self, why: str) -> None:
        """Something of a released window is not erased yet, and is tried again; empty: all of it is erased."""
        self._forgetting_pending.set(1 if why else 0)
        before, self._pending = self._pending, why
        if why:
            _journal.warning("erasure of released data failed, retrying", why=why)
        elif before:
            _journal.info("erasure of released data completed")

    # ------------------------------------------------------------------------------------------ copies of releases

    def release_copied(self, where: str, window: int) -> None:
        self._copies.inc()
        _journal.info("release copied", where=where, window=window)

    def drift_tested(self, p_value: float) -> None:
        self._drift.set(p_value)

    def copy_pending(self, where: str, why: str) -> None:
        """A copy of a release cannot be written there, and is tried again; empty: it is written."""
        before = self._uncopied.pop(where, "")
        if why:
            self._uncopied[where] = why
            if why != before:
                _journal.error("copy of a release failed, retrying", where=where, why=why)
        elif before:
            _journal.info("copies of releases completed", where=where)
        self._copy_pending.set(1 if self._uncopied else 0)

    def _show_lag(self, partition: int) -> None:
        if partition in self._positions:
            lag = self.lag(self._positions[partition], self._ends.get(partition, 0))
            self._of(self._fold_lag, partition).set(lag)

    def _of(self, gauge: Gauge, partition: int) -> Gauge:
        found = self._gauges.get((gauge, partition))
        if found is None:
            found = self._gauges[gauge, partition] = gauge.labels(partition)
        return found

    def lag(self, position: int, end: int) -> int:
        """How many entries (Kafka: messages) there are from one position up to another."""
        return max(-((position - end) // self._step), 0)


def _show_process(registry: CollectorRegistry) -> None:
    Gauge("hushsum_build_info", "Constant 1; label: version of the service", ["version"], registry=registry).labels(
        __version__
    ).set(1)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)


@dataclass(frozen=True)
class LedgerFigures:
    """A population's ledger as floating-point numbers, rounded against us; NaN where its total reads "none"."""

    population: str
    unit: str
    epsilon_total: float
    epsilon_spent: float
    epsilon_left: float
    delta_total: float
    delta_spent: float
    delta_left: float

    @classmethod
    def of_spends(cls, limits: Limits, alike: Sequence[tuple[bytes, int]]) -> "LedgerFigures":
        """The figures of a population's limits, and of each distinct spend with the number of times it occurs.

        Raises:
            CanonicalError, PlanError, GuaranteeError: The bytes are not a spend.
        """
        distinct = [(Spend.from_bytes(fields), times) for fields, times in alike]
        return cls.of(Account(limits).recorded(*chain.from_iterable(repeat(*each) for each in distinct)))

    @classmethod
    def of(cls, account: Account) -> "LedgerFigures":
        """The figures of an account. Call it in a worker thread: conversions take their time."""
        limits, is_none = account.limits, account.cost is None
        return cls(
            limits.population,
            limits.unit,
            epsilon_total=_down(limits.epsilon),
            epsilon_spent=math.nan if is_none else _up(account.spent.epsilon),
            epsilon_left=math.nan if is_none else _down(account.left.epsilon),
            delta_total=_down(limits.delta),
            delta_spent=math.nan if is_none else _up(account.spent.delta),
            delta_left=math.nan if is_none else _down(account.left.delta),
        )


def _up(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


def _down(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) <= value else math.nextafter(near, -math.inf)


class StoreMetrics:
    """Gauges of windows and of the ledger, as last seen in the store."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, registry=registry)
        self._windows = gauge(
            "hushsum_windows", "Windows without an outcome, by state, as last seen in the store", ["state"]
        )
        self._oldest_unfinished = gauge(
            "hushsum_window_oldest_unfinished_seconds",
            "Seconds since the end of the oldest window without an outcome; 0 if none has ended",
        )
        self._outcome_due = gauge(
            "hushsum_outcome_due_timestamp_seconds",
            "When the next outcome is due, in seconds since 1970 UTC; NaN if no window is open, or with `manual`",
        )
        self._ledger = {}
        for cost in ("epsilon", "delta"):
            for what, words in (("total", "Limit"), ("spent", "Spent"), ("left", "Remaining")):
                name, text = (
                    f"{cost}_{what}",
                    f"{words} {cost} of the population, rounded conservatively; NaN if there is no total",
                )
                self._ledger[name] = gauge(f"hushsum_ledger_{name}", text, ["population", "unit"])

    def windows(self, states: Mapping[str, int], oldest_s: float, due_s: float) -> None:
        """Shows the number of unfinished windows by state, how long ago the oldest ended, and when its outcome is due.

        ``due_s`` is in seconds since 1970 UTC, NaN: none is due.
        """
        for state in UNFINISHED:
            self._windows.labels(state.value).set(states.get(state.value, 0))
        self._oldest_unfinished.set(oldest_s)
        self._outcome_due.set(due_s)

    def ledger(self, figures: LedgerFigures) -> None:
        for name, gauge in self._ledger.items():
            gauge.labels(figures.population, figures.unit).set(getattr(figures, name))


STEP_MS: Final = 60_000

_SUFFIX: Final = " (as of the last whole minute)"


class ProcessRegistry(CollectorRegistry):
    """The metrics of one process: each sample of a page has the labels of the process.

    It shows current values until it is first held, and from then on those of the time when it was last held. Reading
    it more often, or at other times, tells nothing more: a number that grew tells in which minute a report arrived, and
    the sizes of batches no more precisely than that.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: tuple[Metric, ...] | None = None
        self._shared: dict[str, str] = {}

    def add_labels(self, **labels: str) -> None:
        """Adds labels to every sample that pages show; to those of metrics that are registered later as well."""
        self._shared = {**self._shared, **labels}

    def hold(self) -> None:
        """Shows the values of this moment until it is called again."""
        self._held = tuple(_kept(metric, self._shared) for metric in super().collect())

    def collect(self) -> Iterable[Metric]:
        """Every metric, for a page; from any thread."""
        if self._held is not None:
            return iter(self._held)
        shared = self._shared
        return (_labelled(metric, shared) for metric in super().collect())

    def restricted_registry(self, names: Iterable[str]) -> NoReturn:
        """Not supported: a part of the registry would show current values."""
        raise NotImplementedError(f"a part of the page, {list(names)}")

    def get_sample_value(self, name: str, labels: dict[str, str] | None = None) -> float | None:
        """A current value, for this process itself: without the labels of the process."""
        wanted = labels or {}
        samples = (sample for metric in super().collect() for sample in metric.samples)
        return next((sample.value for sample in samples if (sample.name, sample.labels) == (name, wanted)), None)


def _labelled(metric: Metric, shared: Mapping[str, str]) -> Metric:
    """A copy whose samples have these labels, too."""
    labelled = copy.copy(metric)
    labelled.samples = [sample._replace(labels={**sample.labels, **shared}) for sample in metric.samples]
    return labelled


def _kept(metric: Metric, shared: Mapping[str, str]) -> Metric:
    """A copy that says its time, without the times at which series began: those are times of first arrivals."""
    kept = _labelled(metric, shared)
    kept.documentation = metric.documentation + _SUFFIX
    kept.samples = [sample for sample in kept.samples if not sample.name.endswith("_created")]
    return kept


def until_step_s(now_ms: int) -> float:
    """Seconds until the next whole minute; 60 at the start of one."""
    return (STEP_MS - now_ms % STEP_MS) / 1000


WINDOWS_S: Final = 5.0
LEDGER_S: Final = 60.0  # the database reads all spends of a population for it
ANSWER_S_MAX: Final = 10.0


class StoreMetricsCollector:
    """Reads the store for its metrics; what fails is reported to ``retried``, and read again at its next time.

    ``manual``: an operator takes the outcomes, so that none is ever due.
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        runtime: Runtime,
        metrics: StoreMetrics,
        retried: Callable[[str, str], None],
        *,
        manual: bool = False,
    ) -> None:
        self._plan, self._store, self._runtime, self._metrics = plan, store, runtime, metrics
        self._manual = manual
        self._retried = retried
        self._next_s = dict.fromkeys((self._windows, self._ledger), runtime.monotonic())

    async def run(self) -> None:
        while True:
            await self.look()
            await self._runtime.sleep(max(min(self._next_s.values()) - self._runtime.monotonic(), 0.0))

    async def look(self) -> None:
        for read, every_s in ((self._windows, WINDOWS_S), (self._ledger, LEDGER_S)):
            now_s = self._runtime.monotonic()
            if now_s < self._next_s[read]:
                continue
            self._next_s[read] = now_s + every_s  # before it is read, so that a failure is not tried again at once
            try:
                await within(ANSWER_S_MAX, read(), runtime=self._runtime)
            except (HushsumError, TimeoutError) as error:
                self._retried("store metrics", str(error))

    async def _windows(self) -> None:
        states, oldest_s, due_s = await self._store.unfinished(self._plan.id), 0.0, math.nan
        if states:
            schedule, oldest = self._plan.window, min(states)
            oldest_s = max(self._runtime.now_ms() - schedule.end_ms(oldest), 0) / 1000
            due_s = math.nan if self._manual else due_ms(schedule, oldest) / 1000
        self._metrics.windows(Counts(states.values()), oldest_s, due_s)

    async def _ledger(self) -> None:
        limits, alike = await self._store.spends_alike(self._plan.privacy.population)
        self._metrics.ledger(await self._runtime.blocking(LedgerFigures.of_spends, limits, alike))
