"""A number that only grows, and those who wait for it: positions passed, stored, appended."""

import asyncio
import heapq
from itertools import count

from aggregator.ports import Runtime


class Milestone:
    """Where something has come to. Used on the event loop alone.

    Args:
        value: Where it stands at first.
    """

    def __init__(self, value: int) -> None:
        self.value = value
        self._error: Exception | None = None
        self._order = count()  # keeps the heap from comparing futures
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    def reach(self, value: int) -> None:
        """Moves on, and wakes those who waited for no more than this; going back is no move."""
        self.value = max(self.value, value)
        while self._waiting and self._waiting[0][0] <= self.value:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception) -> None:
        """It will never move again: everybody who waits, now or later, gets the error."""
        self._error = error
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    async def reached(self, value: int) -> None:
        """Returns once it stands at ``value`` or beyond."""
        if self.value >= value:
            return
        if self._error is not None:
            raise self._error
        future = self._future(value)
        try:
            await future
        except asyncio.CancelledError:
            self._discard(future)
            raise

    async def reached_within(self, value: int, runtime: Runtime, seconds: float) -> bool:
        """Whether it came to ``value`` within some seconds."""
        if self.value >= value or seconds <= 0:
            return self.value >= value
        future = self._future(value)
        alarm = runtime.spawn(_ring(future, runtime, seconds), "milestone-alarm")
        try:
            await future
        finally:
            alarm.cancel()
            if self.value < value:
                self._discard(future)
        return self.value >= value

    def _future(self, value: int) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (value, next(self._order), future))
        return future

    def _discard(self, future: "asyncio.Future[None]") -> None:
        """Nobody waits for it any more: what never moves must not collect those who once waited."""
        self._waiting = [waiting for waiting in self._waiting if waiting[2] is not future]
        heapq.heapify(self._waiting)


async def _ring(future: "asyncio.Future[None]", runtime: Runtime, seconds: float) -> None:
    await runtime.sleep(seconds)
    if not future.done():
        future.set_result(None)
