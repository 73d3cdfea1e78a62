"""Trying again: what a broker, a database or another process refuses for a moment is retried quietly, and counted."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from aggregator.errors import LogUnavailableError, StoreUnavailableError
from aggregator.ports import Observer, Runtime

T = TypeVar("T")

#: What passes by itself.
TRANSIENT: Final = (LogUnavailableError, StoreUnavailableError)
FIRST_S: Final = 0.1
MOST_S: Final = 5.0


class Backoff:
    """Pauses that double, from ``first_s`` to ``most_s`` seconds."""

    def __init__(self, first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._next_s = first_s

    def next_s(self) -> float:
        """The next pause."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._most_s)
        return pause_s

    def reset(self) -> None:
        """It worked: the next failure is the first again."""
        self._next_s = self._first_s


async def until_it_works(
    what: str,
    work: Callable[[], Awaitable[T]],
    *,
    runtime: Runtime,
    observer: Observer,
    patience_s: float | None = None,
) -> T:
    """Repeats ``work`` while it fails in a way that passes.

    Args:
        what: Its name, for the counter of retries.
        work: What can be repeated.
        runtime: Time.
        observer: Is told of each failure.
        patience_s: How long to go on; None: for ever.

    Raises:
        LogUnavailableError: As ``work``, once patience is at its end.
        StoreUnavailableError: As ``work``, once patience is at its end.
    """
    backoff, began_s = Backoff(), runtime.monotonic()
    while True:
        try:
            return await work()
        except TRANSIENT as error:
            if patience_s is not None and runtime.monotonic() - began_s >= patience_s:
                raise
            observer.retried(what, str(error))
            await runtime.sleep(backoff.next_s())


async def within(seconds: float, work: Awaitable[T], *, runtime: Runtime) -> T:
    """What ``work`` comes to, if it does so in time; else it is cancelled, and not waited for.

    A broker or a database that answers nothing may hold up its own cancellation as well.

    Raises:
        TimeoutError: It took longer.
    """
    result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def carry() -> None:
        try:
            value = await work
        except Exception as error:  # noqa: BLE001  whatever it is, it is raised where it is waited for
            if not result.done():
                result.set_exception(error)
        else:
            if not result.done():
                result.set_result(value)

    async def ring() -> None:
        await runtime.sleep(seconds)
        if not result.done():
            result.set_exception(TimeoutError(f"more than {seconds:g} s"))

    def carried(task: "asyncio.Task[None]") -> None:
        if not result.done():  # it was cancelled, or died of what no `except` should survive
            result.cancel() if task.cancelled() else result.set_exception(task.exception() or AssertionError())

    carrying, ringing = runtime.spawn(carry(), "within"), runtime.spawn(ring(), "within-alarm")
    carrying.add_done_callback(carried)
    try:
        return await result
    finally:
        carrying.cancel()
        ringing.cancel()
