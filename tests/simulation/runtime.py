"""Time and tasks of one simulated process, as both sides of the wire ask for them."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final, TypeVar

from tests.simulation.loop import Process, VirtualLoop

T = TypeVar("T")

START_MS: Final = 1_750_000_000_000
_LEAST_S: Final = 1e-6
_WORK_S: Final = 0.001  # what a blocking call takes, on average


class SimRuntime:
    """The runtime of a process (see :class:`aggregator.runtime.Runtime` and :class:`edge_client.runtime.Runtime`).

    Args:
        loop: Time.
        process: Whose.
        seed: Of how long its blocking calls take.

    Attributes:
        skew_ms: How far its wall clock is ahead.
    """

    def __init__(self, loop: VirtualLoop, process: Process, seed: int) -> None:
        self.skew_ms = 0
        self._loop, self._process = loop, process
        self._random = Random(f"{process.name}/{seed}")

    def now_ms(self) -> int:
        return START_MS + self.skew_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        done = self._loop.create_future()
        # Time goes on in every sleep, so that what looks at the clock again and again gets somewhere.
        handle = self._loop.call_later(max(seconds, _LEAST_S), _finish, done)
        try:
            await done
        finally:
            handle.cancel()

    def spawn(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        return self._loop.spawn_in(self._process, work, f"{self._process.name}/{name}")

    async def blocking(self, function: Callable[..., T], *arguments: object) -> T:
        await self.sleep(self._random.expovariate(1 / _WORK_S))
        return function(*arguments)

    computing = hashing = blocking


class WorldRuntime:
    """The runtime of a server of the world: it never waits, and its clock is the world's."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return START_MS + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a server of the world never sleeps")

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        return self._loop.spawn_world(work, name)

    async def blocking(self, function: Callable[..., T], *arguments: object) -> T:
        return function(*arguments)


def _finish(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)
