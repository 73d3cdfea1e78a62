"""Who is told what the workers and the releaser did: metrics, the journal, those who watch for releases."""

from collections.abc import Callable, Collection, Sequence

from aggregator.fold.state import Verdict
from aggregator.logs import journal
from aggregator.model import StoredOutcome
from aggregator.observability.metrics import Metrics

_journal = journal("service")


class Observers:
    """Tells metrics, journal and watchers what the workers and the releaser did.

    Args:
        metrics: Count it.
        on_published: Called with each outcome that is published; None: nobody watches.

    Attributes:
        stopped: The partitions that cannot go on here, and why.
    """

    def __init__(self, metrics: Metrics, on_published: Callable[[], None] | None = None) -> None:
        self.stopped: dict[int, str] = {}
        self._metrics, self._on_published = metrics, on_published
        self._pending = ""  # why something is not forgotten yet

    def folded(self, partition: int, position: int, verdicts: Sequence[Verdict]) -> None:
        """A batch was applied."""
        self._metrics.folded(partition, position, verdicts)

    def checkpointed(self, partition: int, position: int, seconds: float) -> None:
        """A checkpoint is durable. No line of it: it comes a fixed time after an entry, whose time would be told."""
        self._metrics.checkpointed(partition, position, seconds)

    def partitions_held(self, partitions: Collection[int]) -> None:
        """These are folded here now."""
        self._metrics.partitions_held(partitions)
        self.stopped = {partition: why for partition, why in self.stopped.items() if partition in partitions}
        _journal.debug("partitions held", partitions=sorted(partitions))

    def partition_stopped(self, partition: int, why: str) -> None:
        """A fold cannot go on until an operator acts; empty: it goes on again."""
        self._metrics.partition_stopped(partition, why)
        self.stopped.pop(partition, None)
        if why:
            self.stopped[partition] = why
            _journal.error("partition stopped", partition=partition, why=why)
        else:
            _journal.info("partition goes on", partition=partition)

    def leading(self, leads: bool) -> None:  # noqa: FBT001  an Observer's form
        """Whether this process is the plan's releaser now."""
        self._metrics.leading(leads)

    def retried(self, what: str, why: str) -> None:
        """Something failed in a way that passes, and is tried again: counted, and no more than that."""
        self._metrics.retried(what, why)
        _journal.debug("trying again", what=what, why=why)

    def released(self, release: StoredOutcome) -> None:
        """A release is published."""
        self._metrics.released(release)
        self._announce()
        _journal.info("released", kind=release.kind, window=release.window)

    def withheld(self, outcome: StoredOutcome) -> None:
        """It is published that a window is withheld."""
        self._metrics.withheld(outcome)
        self._announce()
        _journal.info("withheld", kind=outcome.kind, window=outcome.window)

    def releasing_stopped(self, why: str) -> None:
        """No outcome is taken, until an operator acts or what is committed can be published."""
        self._metrics.releasing_stopped(why)
        if why:
            _journal.error("releasing stopped", why=why)
        else:
            _journal.info("releasing goes on")

    def forgetting_pending(self, why: str) -> None:
        """Something of a released window is not erased yet; it is tried again."""
        self._metrics.forgetting_pending(why)
        before, self._pending = self._pending, why
        if why:
            _journal.warning("forgetting is not done, trying again", why=why)
        elif before:
            _journal.info("nothing is left for this process to forget")

    def _announce(self) -> None:
        if self._on_published is not None:
            self._on_published()
