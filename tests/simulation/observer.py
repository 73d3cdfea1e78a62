"""What a process of the service tells of itself, as far as anybody here listens."""

from collections.abc import Callable, Sequence

from aggregator.fold.verdicts import Verdict
from aggregator.model import StoredOutcome
from tests.simulation.books import Books


class Silence:
    """Metrics that nobody reads."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing


def _nothing(*_: object, **__: object) -> None:
    return


class SimObserver(Silence):
    """Tells the books what must not be, and what analysts are shown.

    Args:
        books: Are told.
        elsewhere: Whether a partition that stops is a finding: nothing of what happens here should stop one for good.
    """

    def __init__(self, books: Books, *, elsewhere: bool) -> None:
        self._books, self._elsewhere = books, elsewhere

    def folded(self, partition: int, position: int, verdicts: Sequence[Verdict]) -> None:
        """Nothing: the sums tell."""

    def partition_stopped(self, partition: int, why: str) -> None:
        """Only a store that was set back may stop one."""
        if why and self._elsewhere and not self._books.restored:
            self._books.say(f"partition {partition} has stopped: {why}")

    def released(self, release: StoredOutcome) -> None:
        """Watchers see it."""
        self._books.published(release.window, release)

    withheld = released
