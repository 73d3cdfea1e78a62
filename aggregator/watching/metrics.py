"""What a service counts of itself, in a registry of its own.

These are exact counts of what came: they are the operator's, never an analyst's (PRIVACY: who sees what).
"""

from collections import Counter as Counts
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector

from aggregator.fold.verdicts import Verdict, Verdicts
from aggregator.ports import StoredOutcome
from aggregator.watching.stepped import SteppedRegistry
from hushsum import __version__
from hushsum.errors import Reason
from hushsum.plan import Plan
from hushsum_proto.answers import Answer, AnyReason, ServiceReason, Status

_GROUP_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_PLAN_LABELS: Final = ("plan", "name", "mode", "role")
_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """The counters of one service; also the Observer of its workers.

    Args:
        step: By how much a position grows from one thing that is read to the next, for lags: an entry of a file has
            the next number, a message of Kafka has 65,536 for all that it holds.

    Attributes:
        registry: Of this service alone, so that two in one process do not meet. Of a plan of reports it shows whole
            minutes alone: see :class:`aggregator.watching.stepped.SteppedRegistry`.
    """

    def __init__(self, *, step: int = 1) -> None:
        self.registry = SteppedRegistry()
        self._step = step
        make: Any = {"registry": self.registry}  # Any: the three constructors have one keyword in common, no type
        self._deltas = Counter("hushsum_deltas", "Deltas by answer", ["status"], **make)
        self._refusals = Counter("hushsum_refusals", "Refused deltas and calls, by reason", ["reason"], **make)
        self._sessions = Gauge("hushsum_sessions", "Open submission streams", **make)
        self._appended_bytes = Counter("hushsum_appended_bytes", "Bytes of entries made durable", **make)
        self._group_entries = Histogram(
            "hushsum_group_entries", "Entries of a group commit", buckets=_GROUP_SIZES, **make
        )
        self._commit_seconds = Histogram(
            "hushsum_commit_seconds", "Until a group was durable", buckets=_SECONDS, **make
        )
        self._commit_failures = Counter("hushsum_commit_failures", "Appends, or reads after them, that failed", **make)
        self._folded = Counter("hushsum_folded", "Entries folded, by verdict", ["partition", "verdict"], **make)
        self._fold_position = Gauge("hushsum_fold_position", "The next position to fold", ["partition"], **make)
        self._log_end = Gauge("hushsum_log_end", "The next position to append, as last seen", ["partition"], **make)
        self._fold_lag = Gauge(
            "hushsum_fold_lag", "Entries (Kafka: messages) that are appended and not folded yet", ["partition"], **make
        )
        stored = "Those that no checkpoint has passed yet, wherever it is folded"
        self._stored_lag = Gauge("hushsum_stored_fold_lag", stored, ["partition"], **make)
        self._partitions_held = Gauge("hushsum_partitions_held", "Partitions that are folded here", **make)
        self._partition_stopped = Gauge(
            "hushsum_partition_stopped", "1 where a fold has stopped and an operator must act", ["partition"], **make
        )
        self._leading = Gauge("hushsum_leading", "1 where this process is the plan's releaser", **make)
        self._ready = Gauge("hushsum_ready", "0 while log or store is away for long, or folds are waited for", **make)
        self._retries = Counter("hushsum_retries", "What failed for a moment and was tried again", ["what"], **make)
        self._checkpoint_seconds = Histogram("hushsum_checkpoint_seconds", "Of a checkpoint", buckets=_SECONDS, **make)
        self._outcomes = Counter("hushsum_outcomes", "Published outcomes", ["kind"], **make)
        self._withheld = Counter("hushsum_outcomes_withheld", "Those of them that were withheld", ["kind"], **make)
        self._releasing_stopped = Gauge("hushsum_releasing_stopped", "1 where an operator must act", **make)
        self._forgetting_pending = Gauge(
            "hushsum_forgetting_pending", "1 while something of a released window is not erased yet", **make
        )
        self._plan_info = Gauge("hushsum_plan_info", "1; the plan, and this process's role", _PLAN_LABELS, **make)
        _show_process(self.registry)
        # Every reason is there from the start: an alert needs the 0 before the first one.
        reasons = (*Reason, *ServiceReason)
        self._by_reason: dict[AnyReason | None, Counter] = {each: self._refusals.labels(each.value) for each in reasons}
        self._by_status = {status: self._deltas.labels(status.value) for status in Status}
        self._ends: dict[int, int] = {}
        self._positions: dict[int, int] = {}
        self._stopped: set[int] = set()

    # --------------------------------------------------------------------------------------------------- gateway

    def answered(self, answer: Answer) -> None:
        """A delta got its answer."""
        self._by_status[answer.status].inc()
        if answer.refusal is not None:
            self.refused(answer.refusal.reason)

    def refused(self, reason: AnyReason | None) -> None:
        """A delta or a call was refused."""
        counter = self._by_reason.get(reason)
        if counter is not None:
            counter.inc()

    def session_opened(self) -> None:
        """A submission stream began."""
        self._sessions.inc()

    def session_closed(self) -> None:
        """A submission stream ended."""
        self._sessions.dec()

    def committed(self, entries: int, size_bytes: int, seconds: float) -> None:
        """A group is durable."""
        self._group_entries.observe(entries)
        self._appended_bytes.inc(size_bytes)
        self._commit_seconds.observe(seconds)

    def appended(self, partition: int, end: int) -> None:
        """A partition's log ends here now."""
        self._ends[partition] = max(end, self._ends.get(partition, 0))
        self._log_end.labels(partition).set(self._ends[partition])
        self._lag(partition)

    def commit_failed(self) -> None:
        """An append, or the read after it, failed."""
        self._commit_failures.inc()

    # --------------------------------------------------------------------------------------- workers and releaser

    def folded(self, partition: int, position: int, verdicts: Sequence[Verdict]) -> None:
        """A batch was applied; ``position`` is the next one."""
        kinds = verdicts.kinds() if isinstance(verdicts, Verdicts) else Counts(verdict.kind for verdict in verdicts)
        for kind, count in kinds.items():
            self._folded.labels(partition, kind.value).inc(count)
        self._positions[partition] = position
        self._fold_position.labels(partition).set(position)
        self._lag(partition)

    def checkpointed(self, partition: int, position: int, seconds: float) -> None:  # noqa: ARG002  an Observer's form
        """A checkpoint is durable."""
        self._checkpoint_seconds.observe(seconds)

    def partitions_held(self, partitions: Collection[int]) -> None:
        """These are folded here now; of what went elsewhere nothing is shown any more."""
        self._partitions_held.set(len(partitions))
        for partition in self._positions.keys() - set(partitions):
            del self._positions[partition]
            for gauge in (self._fold_position, self._fold_lag):
                gauge.remove(partition)
        for partition in self._stopped - set(partitions):
            self.partition_stopped(partition, "")  # whoever folds it now says so, if it still is

    def partition_stopped(self, partition: int, why: str) -> None:
        """A fold cannot go on; empty: it goes on again."""
        self._partition_stopped.labels(partition).set(1 if why else 0)  # the text goes to the journal
        (self._stopped.add if why else self._stopped.discard)(partition)

    def leading(self, leads: bool) -> None:  # noqa: FBT001  an Observer's form
        """Whether this process is the plan's releaser now."""
        self._leading.set(leads)

    def retried(self, what: str, why: str) -> None:  # noqa: ARG002  an Observer's form
        """Something failed in a way that passes."""
        self._retries.labels(what).inc()

    def ready(self, is_ready: bool) -> None:  # noqa: FBT001  a fact that is told, not a switch
        """Whether log and store can be reached."""
        self._ready.set(is_ready)

    def sounded(self, ends: Mapping[int, int], stored: Mapping[int, int]) -> None:
        """Where partitions end, and how far their latest checkpoints have come."""
        for partition, end in ends.items():
            self.appended(partition, end)
            if partition in stored:
                self._stored_lag.labels(partition).set(self.between(stored[partition], end))

    def plan(self, plan: Plan, role: str) -> None:
        """What this process collects, and which part of that it does."""
        self._plan_info.labels(plan.hex_id, plan.name, plan.privacy.mode, role).set(1)

    def released(self, release: StoredOutcome) -> None:
        """A release is published."""
        self._outcomes.labels(release.kind).inc()

    def withheld(self, outcome: StoredOutcome) -> None:
        """It is published that a window is withheld."""
        self._outcomes.labels(outcome.kind).inc()
        self._withheld.labels(outcome.kind).inc()

    def releasing_stopped(self, why: str) -> None:
        """No outcome is taken; empty: it goes on again."""
        self._releasing_stopped.set(1 if why else 0)  # the text goes to the journal, a gauge holds none

    def forgetting_pending(self, why: str) -> None:
        """Something of a released window is not erased yet; empty: all of it is."""
        self._forgetting_pending.set(1 if why else 0)

    def _lag(self, partition: int) -> None:
        if partition in self._positions:
            lag = self.between(self._positions[partition], self._ends.get(partition, 0))
            self._fold_lag.labels(partition).set(lag)

    def between(self, position: int, end: int) -> int:
        """How many entries (Kafka: messages) stand from one position up to another."""
        return max(-((position - end) // self._step), 0)


def _show_process(registry: CollectorRegistry) -> None:
    Gauge("hushsum_build_info", "1; the version that runs", ["version"], registry=registry).labels(__version__).set(1)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
