"""What a service counts of itself, in a registry of its own, and the HTTP page that shows it on loopback.

These are exact counts of what came: they are the operator's, never an analyst's (PRIVACY: who sees what).
"""

from collections.abc import Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from aggregator.fold import Verdict
from aggregator.ports import StoredOutcome
from hushsum.errors import Reason
from hushsum_proto.answers import Answer, AnyReason, ServiceReason, Status

_GROUP_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """The counters of one service; also the Observer of its workers.

    Attributes:
        registry: Of this service alone, so that two in one process do not meet.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
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
            "hushsum_fold_lag", "Entries that are appended and not folded yet", ["partition"], **make
        )
        self._checkpoint_seconds = Histogram("hushsum_checkpoint_seconds", "Of a checkpoint", buckets=_SECONDS, **make)
        self._outcomes = Counter("hushsum_outcomes", "Published outcomes", ["kind"], **make)
        self._withheld = Counter("hushsum_outcomes_withheld", "Those of them that were withheld", ["kind"], **make)
        self._releasing_stopped = Gauge("hushsum_releasing_stopped", "1 where an operator must act", **make)
        self._forgetting_pending = Gauge(
            "hushsum_forgetting_pending", "1 while something of a released window is not erased yet", **make
        )
        # Every reason is there from the start: an alert needs the 0 before the first one.
        self._by_reason: dict[AnyReason | None, Counter] = {
            reason: self._refusals.labels(reason.value) for reason in (*Reason, *ServiceReason)
        }
        self._by_status = {status: self._deltas.labels(status.value) for status in Status}
        self._ends: dict[int, int] = {}
        self._positions: dict[int, int] = {}

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
        for verdict in verdicts:
            self._folded.labels(partition, verdict.kind.value).inc()
        self._positions[partition] = position
        self._fold_position.labels(partition).set(position)
        self._lag(partition)

    def checkpointed(self, partition: int, position: int, seconds: float) -> None:  # noqa: ARG002  an Observer's form
        """A checkpoint is durable."""
        self._checkpoint_seconds.observe(seconds)

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
        lag = self._ends.get(partition, 0) - self._positions.get(partition, 0)
        self._fold_lag.labels(partition).set(max(lag, 0))


class MetricsPage:
    """``/metrics`` over HTTP, on one loopback address, from a thread of its own."""

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        self._server, self._thread = start_http_server(port, host, metrics.registry)

    @property
    def port(self) -> int:
        """The port that was taken."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Ends the thread and frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
