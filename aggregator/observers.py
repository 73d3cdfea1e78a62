"""Who is told what the workers and the releaser did: metrics, the journal, those who watch for releases."""

from collections.abc import Sequence

from aggregator.catalogue import Catalogue
from aggregator.fold import Verdict
from aggregator.journal import journal
from aggregator.metrics import Metrics
from aggregator.ports import StoredOutcome

_journal = journal("service")


class Observers:
    """Tells metrics, journal and watchers what the workers and the releaser did."""

    def __init__(self, metrics: Metrics, catalogue: Catalogue) -> None:
        self._metrics, self._catalogue = metrics, catalogue

    def folded(self, partition: int, position: int, verdicts: Sequence[Verdict]) -> None:
        """A batch was applied."""
        self._metrics.folded(partition, position, verdicts)

    def checkpointed(self, partition: int, position: int, seconds: float) -> None:
        """A checkpoint is durable."""
        self._metrics.checkpointed(partition, position, seconds)
        _journal.debug("checkpointed", partition=partition, seconds=round(seconds, 4))

    def released(self, release: StoredOutcome) -> None:
        """A release is published."""
        self._metrics.released(release)
        self._catalogue.announce()
        _journal.info("released", kind=release.kind, window=release.window)

    def withheld(self, outcome: StoredOutcome) -> None:
        """It is published that a window is withheld."""
        self._metrics.withheld(outcome)
        self._catalogue.announce()
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
        if why:
            _journal.warning("forgetting is not done, trying again", why=why)
        else:
            _journal.info("forgotten")
