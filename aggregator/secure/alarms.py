"""What happens in a round when a time is over: by name, the newest of a name alone."""

import asyncio
from collections.abc import Callable, Hashable

from aggregator.ports import Runtime


class Alarms:
    """The alarms of one round.

    Args:
        runtime: Time and tasks.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}

    def __contains__(self, name: Hashable) -> bool:
        return name in self._tasks

    def set(self, name: Hashable, seconds: float, act: Callable[[], object]) -> None:
        """Does something later, in place of what was to be done under this name."""
        self.hush(name)
        self._tasks[name] = self._runtime.spawn(self._ring(name, seconds, act), "round-alarm")

    def hush(self, name: Hashable) -> None:
        """Nothing is done under this name."""
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    def hush_all(self) -> None:
        """Nothing is done any more."""
        for name in list(self._tasks):
            self.hush(name)

    async def _ring(self, name: Hashable, seconds: float, act: Callable[[], object]) -> None:
        await self._runtime.sleep(seconds)
        del self._tasks[name]
        act()
