"""How many windows wait for what, and what is left in the ledger: looked up now and then, for the metrics."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Final

from aggregator.ports import Runtime, Store
from aggregator.watching.ledger_figures import LedgerFigures
from aggregator.watching.store_metrics import StoreMetrics
from hushsum.plan import Plan

WINDOWS_S: Final = 5.0
LEDGER_S: Final = 30.0  # all spends of a population are read for it


class Survey:
    """Looks at the store for the metrics.

    Args:
        plan: Registered there.
        store: What is asked.
        runtime: Time and threads.
        metrics: Are told.
    """

    def __init__(self, plan: Plan, store: Store, runtime: Runtime, metrics: StoreMetrics) -> None:
        self._plan, self._store, self._runtime, self._metrics = plan, store, runtime, metrics
        self._windows_s = self._ledger_s = -math.inf

    async def look(self) -> None:
        """Looks at what it is time for.

        Raises:
            AggregatorError: The store cannot be used.
        """
        now_s = self._runtime.monotonic()
        if now_s - self._windows_s >= WINDOWS_S:
            self._show_windows(await self._store.unfinished(self._plan.id))
            self._windows_s = now_s
        if now_s - self._ledger_s >= LEDGER_S:
            account = await self._store.account(self._plan.privacy.population)
            figures = await self._runtime.blocking(LedgerFigures.of, account)
            self._metrics.ledger(figures)
            self._ledger_s = now_s

    def _show_windows(self, states: Mapping[int, str]) -> None:
        oldest_s = 0.0
        if states:
            ended_ms = self._plan.window.end_ms(min(states))
            oldest_s = max(self._runtime.now_ms() - ended_ms, 0) / 1000
        self._metrics.windows(Counter(states.values()), oldest_s)
