"""Gauges of what the store says of windows and of the ledger; exact, and the operator's."""

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from aggregator.watching.ledger_figures import LedgerFigures
from aggregator.windows import UNFINISHED

_LEDGER: Final = {
    f"{cost}_{what}": f"{text} of {cost}, rounded against us; NaN: it has no total"
    for cost in ("epsilon", "delta")
    for what, text in (("total", "The limit"), ("spent", "What is spent"), ("left", "What is left"))
}


class StoreMetrics:
    """Shown in a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._windows = Gauge(
            "hushsum_windows",
            "Windows without an outcome, by state, as last seen in the store",
            ["state"],
            registry=registry,
        )
        self._oldest_unfinished = Gauge(
            "hushsum_window_oldest_unfinished_seconds",
            "How long ago the oldest window without an outcome ended; 0: none has ended",
            registry=registry,
        )
        self._ledger = {
            name: Gauge(f"hushsum_ledger_{name}", text, ["population", "unit"], registry=registry)
            for name, text in _LEDGER.items()
        }

    def windows(self, states: Mapping[str, int], oldest_s: float) -> None:
        """How many windows without an outcome are in which state, and how long ago the oldest ended."""
        for state in UNFINISHED:
            self._windows.labels(state.value).set(states.get(state.value, 0))
        self._oldest_unfinished.set(oldest_s)

    def ledger(self, figures: LedgerFigures) -> None:
        """What a population has spent, and may still spend."""
        for name, gauge in self._ledger.items():
            gauge.labels(figures.population, figures.unit).set(getattr(figures, name))
