"""What a shuffler counts of windows and batches; nothing of it is about one device."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from aggregator.shuffler.windows import WindowState


class ShufflerMetrics:
    """Counters of one shuffler.

    Args:
        registry: Where they stand.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._windows = Counter(
            "hushsum_shuffler_windows", "Windows that were cut, by what became of them", ["outcome"], registry=registry
        )
        self._waiting = Gauge(
            "hushsum_shuffler_batches_waiting", "Batches that the aggregator has not answered yet", registry=registry
        )
        # Each outcome is there from the start: an alert needs the 0 before the first one.
        for outcome in (WindowState.FORWARDED, WindowState.DROPPED, WindowState.LOST):
            self._windows.labels(outcome.value)

    def came_to(self, outcome: WindowState) -> None:
        """A window was forwarded, dropped or lost."""
        self._windows.labels(outcome.value).inc()

    def waiting(self, batches: int) -> None:
        """So many batches wait for an answer."""
        self._waiting.set(batches)
