"""A device's clock whose time passes when a test says so."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from typing_extensions import override

from edge_client import SystemRuntime

MINUTE = 60_000
HOUR = 60 * MINUTE
START = 480_000 * HOUR + 20 * MINUTE  # no window before this one takes deltas


class Clock(SystemRuntime):
    """A device whose time passes when a test says so; the wall clock may be set."""

    def __init__(self, now_ms: int = START) -> None:
        super().__init__(2)
        self.at_ms = now_ms
        self.seconds = 1000.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    @override
    def now_ms(self) -> int:
        return self.at_ms

    @override
    def monotonic(self) -> float:
        return self.seconds

    @override
    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            return await super().sleep(0)
        waking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.seconds + seconds, waking))
        return await waking

    def pass_time(self, seconds: float) -> None:
        self.seconds += seconds
        self.at_ms += round(seconds * 1000)
        due = [waking for at, waking in self._sleepers if at <= self.seconds]
        self._sleepers = [(at, waking) for at, waking in self._sleepers if at > self.seconds]
        for waking in due:
            if not waking.done():
                waking.set_result(None)


async def until(condition: Callable[[], bool], what: str, patience_s: float = 120.0) -> None:
    """Waits for what other tasks and threads bring about."""
    with suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            while not condition():
                await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0))])
    assert condition(), what
