"""Whether log and store can be reached, and how far folds have come: looked at again and again."""

from collections.abc import Awaitable, Callable
from itertools import cycle, islice
from typing import Final

from aggregator.errors import AggregatorError
from aggregator.journal import journal
from aggregator.metrics import Metrics
from aggregator.ports import Log, Runtime, Store
from aggregator.retries import within

LOOK_S: Final = 2.0
#: What fails for less than that is retried where it fails, and nobody needs to be sent elsewhere.
PATIENCE_S: Final = 15.0
PARTITIONS_A_LOOK: Final = 32
_ANSWER_S_MAX: Final = 10.0  # whatever the log and the store themselves allow

_journal = journal("service")


class Soundings:
    """One look every two seconds, for as long as the service runs.

    Args:
        plan_id: Of what.
        log: Is asked for the ends of some partitions, in turn.
        store: Is asked how far folds have come.
        runtime: Time.
        metrics: Are told.
        tell: Is told, once each time it changes, whether both have answered within the last 15 seconds.
    """

    def __init__(
        self,
        plan_id: bytes,
        log: Log,
        store: Store,
        runtime: Runtime,
        metrics: Metrics,
        tell: Callable[[bool], Awaitable[None]],
    ) -> None:
        self._plan_id, self._log, self._store = plan_id, log, store
        self._runtime, self._metrics, self._tell = runtime, metrics, tell
        self._next = cycle(range(log.partitions))
        self._answered_s = runtime.monotonic()
        self._is_ready = True

    async def run(self) -> None:
        """Looks for ever; what cannot be reached is told, not raised."""
        self._metrics.ready(self._is_ready)
        while True:
            why = await self._look_once()
            now_s = self._runtime.monotonic()
            if not why:
                self._answered_s = now_s
            await self._say(now_s - self._answered_s < PATIENCE_S, why)
            await self._runtime.sleep(LOOK_S)

    async def _look_once(self) -> str:
        """Why it did not succeed; empty where it did."""
        try:
            await within(_ANSWER_S_MAX, self._sound(), runtime=self._runtime)
        except (AggregatorError, TimeoutError) as error:
            return str(error)
        return ""

    async def _sound(self) -> None:
        marks = await self._store.fold_marks(self._plan_id)
        partitions = islice(self._next, min(PARTITIONS_A_LOOK, self._log.partitions))
        ends = {partition: await self._log.end(partition) for partition in partitions}
        self._metrics.sounded(ends, {partition: mark.position for partition, mark in marks.items()})

    async def _say(self, is_ready: bool, why: str) -> None:  # noqa: FBT001  a fact, not a switch
        if is_ready == self._is_ready:
            return
        self._is_ready = is_ready
        self._metrics.ready(is_ready)
        if is_ready:
            _journal.info("log and store answer again")
        else:
            _journal.warning("log or store has not answered for long; health checks say so", why=why)
        await self._tell(is_ready)
