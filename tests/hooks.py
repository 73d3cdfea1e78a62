"""A port of which a test may hold, fail, or lose the reply of single calls."""

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aggregator.errors import StoreUnavailableError

T = TypeVar("T")
Hook = Callable[[Callable[[], Awaitable[object]]], Awaitable[object]]


class Hooks:
    """What becomes of the next calls of a port, by method; one hook a call, and then it goes straight through.

    Attributes:
        calls: How often each method was called.
    """

    def __init__(self) -> None:
        self.calls: defaultdict[str, int] = defaultdict(int)
        self._next: defaultdict[str, list[Hook]] = defaultdict(list)

    def put(self, method: str, *hooks: Hook) -> None:
        """The next calls of a method go through these, one each."""
        self._next[method] += hooks

    def clear(self) -> None:
        """From here on every call goes straight through."""
        self._next.clear()

    def around(self, port: T) -> T:
        """The port, with its calls on their way through here."""
        hooks = self

        class Hooked:
            def __getattr__(self, name: str) -> object:
                found = getattr(port, name)
                if not inspect.iscoroutinefunction(found):
                    return found

                async def call(*arguments: object, **keywords: object) -> object:
                    hooks.calls[name] += 1
                    waiting = hooks._next[name]
                    if not waiting:
                        return await found(*arguments, **keywords)
                    return await waiting.pop(0)(lambda: found(*arguments, **keywords))

                return call

        return Hooked()  # type: ignore[return-value]  # it has all that the port has


class Held:
    """Holds a call up, before it takes effect, until the test lets it go on."""

    def __init__(self) -> None:
        self.arrived, self._go = asyncio.Event(), asyncio.Event()

    def let_go(self) -> None:
        self._go.set()

    async def __call__(self, call: Callable[[], Awaitable[object]]) -> object:
        self.arrived.set()
        await self._go.wait()
        return await call()


async def straight(call: Callable[[], Awaitable[object]]) -> object:
    """Nothing happens to this call."""
    return await call()


async def unreachable(call: Callable[[], Awaitable[object]]) -> object:
    """It fails, and nothing was done."""
    del call
    raise StoreUnavailableError("no connection")


async def reply_lost(call: Callable[[], Awaitable[object]]) -> object:
    """It is done, and fails."""
    await call()
    raise StoreUnavailableError("connection lost")
