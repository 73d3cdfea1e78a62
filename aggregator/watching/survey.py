"""How many windows wait for what, and what is left in the ledger: looked up now and then, for the metrics alone.

Nothing depends on it: what fails or takes long makes no process unready, and its gauges stay as they were last seen.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aggregator.errors import AggregatorError
from aggregator.ports import Runtime, Store
from aggregator.retries import within
from aggregator.watching.ledger_figures import LedgerFigures
from aggregator.watching.store_metrics import StoreMetrics
from hushsum.errors import HushsumError
from hushsum.plan import Plan

WINDOWS_S: Final = 5.0
LEDGER_S: Final = 60.0  # the database goes through all spends of a population for it
ANSWER_S_MAX: Final = 10.0


class Survey:
    """Looks at the store for the metrics.

    Args:
        plan: Registered there.
        store: What is asked.
        runtime: Time and threads.
        metrics: Are told.
        retried: Is told what failed and why; it is asked again when it is time for it the next time.
    """

    def __init__(
        self, plan: Plan, store: Store, runtime: Runtime, metrics: StoreMetrics, retried: Callable[[str, str], None]
    ) -> None:
        self._plan, self._store, self._runtime, self._metrics = plan, store, runtime, metrics
        self._retried = retried
        self._next_s = dict.fromkeys((self._windows, self._ledger), runtime.monotonic())

    async def run(self) -> None:
        """Looks for ever."""
        while True:
            await self.look()
            await self._runtime.sleep(max(min(self._next_s.values()) - self._runtime.monotonic(), 0.0))

    async def look(self) -> None:
        """Looks at what it is time for."""
        for ask, every_s in ((self._windows, WINDOWS_S), (self._ledger, LEDGER_S)):
            now_s = self._runtime.monotonic()
            if now_s >= self._next_s[ask]:
                self._next_s[ask] = now_s + every_s  # before it is asked, so that a failure is not asked again at once
                await self._try(ask)

    async def _try(self, ask: Callable[[], Awaitable[None]]) -> None:
        try:
            await within(ANSWER_S_MAX, ask(), runtime=self._runtime)
        except (AggregatorError, HushsumError, TimeoutError) as error:
            self._retried("survey", str(error))

    async def _windows(self) -> None:
        self._show_windows(await self._store.unfinished(self._plan.id))

    async def _ledger(self) -> None:
        limits, alike = await self._store.spends_alike(self._plan.privacy.population)
        self._metrics.ledger(await self._runtime.blocking(LedgerFigures.of_spends, limits, alike))

    def _show_windows(self, states: Mapping[int, str]) -> None:
        oldest_s = 0.0
        if states:
            ended_ms = self._plan.window.end_ms(min(states))
            oldest_s = max(self._runtime.now_ms() - ended_ms, 0) / 1000
        self._metrics.windows(Counter(states.values()), oldest_s)
