"""Calls that last: looked at again while they are open, and ended once their caller is no longer admitted."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from aggregator.errors import AggregatorError
from aggregator.ports import Runtime

RECHECK_S: Final = 1.0
_AT_ONCE: Final = 256  # are looked at before others have their turn
_REST: Final = 10  # pauses last so many times as long as looking does: at 10^5 streams, some seconds


class Recheckable(Protocol):
    """A call that was admitted, or will be."""

    def lapse(self) -> AggregatorError | None:
        """Why it would not be admitted again; None where it would be, or nothing has been asked yet.

        What is given once is kept by the call, which ends with it.
        """


class OpenStreams:
    """The open streams of one server, each carried by its own task."""

    def __init__(self) -> None:
        self._tasks: dict[Recheckable, asyncio.Task[object]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    @contextmanager
    def held(self, call: Recheckable) -> Iterator[None]:
        """A stream is open as long as the block runs, in the task that runs it.

        Raises:
            asyncio.CancelledError: In the block, once the call has lapsed; or because its client is gone.
        """
        task = asyncio.current_task()
        assert task is not None, "a handler runs in a task"
        self._tasks[call] = task
        try:
            yield
        finally:
            del self._tasks[call]

    async def run(self, runtime: Runtime) -> None:
        """Looks at all of them again and again, for ever."""
        looked_s = 0.0
        while True:
            await runtime.sleep(max(RECHECK_S, _REST * looked_s))
            began_s = runtime.monotonic()
            await self.recheck(runtime)
            looked_s = runtime.monotonic() - began_s

    async def recheck(self, runtime: Runtime) -> None:
        """Ends those that have lapsed."""
        for number, call in enumerate(list(self._tasks), 1):
            if call in self._tasks and call.lapse() is not None:
                self._tasks[call].cancel()
            if number % _AT_ONCE == 0:
                await runtime.sleep(0)
