"""What the secure sums of a service count of themselves; exact counts, and so the operator's alone (PRIVACY)."""

from collections.abc import Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from hushsum.secure_sum.server import Step
from hushsum_proto.rounds import Fate

AGAIN: Final = "again"  # the outcome of a round that cost nothing, and after which another one began


class SumMetrics:
    """Cohorts, rounds, and who is in which step.

    Args:
        registry: The service's.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        make: Any = {"registry": registry}  # Any: the two constructors have one keyword in common, no type
        self._cohorts = Counter("hushsum_cohorts", "Cohorts of secure sums that were formed", **make)
        self._rounds = Counter("hushsum_rounds", "Rounds of secure sums, by outcome", ["outcome"], **make)
        self._spent = Counter(
            "hushsum_submissions_spent", "Vectors that may have been sent, and are in no sum that counts", **make
        )
        self._dropped = Counter("hushsum_clients_dropped", "Clients that fell out of a round", **make)
        self._waiting = Gauge("hushsum_cohort_clients_waiting", "Clients that wait for a cohort", **make)
        self._steps = Gauge("hushsum_cohort_clients", "Clients in rounds, by step", ["step"], **make)
        # All are there from the start: an alert needs the 0 before the first one.
        for outcome in (Fate.COUNTED, Fate.ABORTED, Fate.LATE, Fate.UNKNOWN, AGAIN):
            self._rounds.labels(outcome)
        self.in_steps({})

    def cohort_formed(self) -> None:
        """A cohort begins its first round."""
        self._cohorts.inc()

    def round_over(self, outcome: str, *, lost: int, dropped: int) -> None:
        """A round has ended.

        Args:
            outcome: What became of its sum, or ``AGAIN``.
            lost: Vectors that may have been sent, and are in no sum that counts.
            dropped: Clients that fell out of it.
        """
        self._rounds.labels(outcome).inc()
        self._spent.inc(lost)
        self._dropped.inc(dropped)

    def waiting(self, clients: int) -> None:
        """So many clients wait for a cohort."""
        self._waiting.set(clients)

    def in_steps(self, clients: Mapping[Step, int]) -> None:
        """How many clients of all rounds are in which step now."""
        for step in Step:
            self._steps.labels(step.value).set(clients.get(step, 0))
