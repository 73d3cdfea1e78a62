"""Whether the shuffler's file can be used: looked at for ever."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from aggregator.errors import AggregatorError
from aggregator.journal import journal
from aggregator.ports import Runtime
from aggregator.retries import within
from aggregator.watching.metrics import Metrics
from aggregator.watching.soundings import LOOK_S, PATIENCE_S

_ANSWER_S_MAX: Final = 10.0

_journal = journal("shuffler")


class FileSoundings:
    """One look every two seconds.

    Args:
        looks: What raises has not answered.
        runtime: Time.
        metrics: Are told.
        tell: Is told, once each time it changes, whether all have answered within the last 15 seconds.
    """

    def __init__(
        self,
        looks: Sequence[Callable[[], Awaitable[object]]],
        runtime: Runtime,
        metrics: Metrics,
        tell: Callable[[bool], Awaitable[None]],
    ) -> None:
        self._looks, self._runtime, self._metrics, self._tell = looks, runtime, metrics, tell
        self._answered_s, self._answers = runtime.monotonic(), True

    async def run(self) -> None:
        """Looks for ever; what cannot be used is told, not raised."""
        while True:
            await self.look()
            await self._runtime.sleep(LOOK_S)

    async def look(self) -> None:
        """Looks once."""
        why = await self._look_once()
        now_s = self._runtime.monotonic()
        if not why:
            self._answered_s = now_s
        answers = now_s - self._answered_s < PATIENCE_S
        self._metrics.ready(answers)
        if answers != self._answers:
            self._answers = answers
            if answers:
                _journal.info("the file answers again")
            else:
                _journal.error("the file has not answered for long; health checks say so", why=why)
            await self._tell(answers)

    async def _look_once(self) -> str:
        """Why it did not succeed; empty where it did."""
        try:
            for look in self._looks:
                await within(_ANSWER_S_MAX, look(), runtime=self._runtime)
        except (AggregatorError, TimeoutError) as error:
            return str(error) or type(error).__name__
        return ""
