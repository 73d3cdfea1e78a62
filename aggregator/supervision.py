"""Tasks that run as long as a service does: what may pass is tried again, what cannot ends the service as a whole."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

from aggregator.errors import AggregatorError
from aggregator.journal import journal
from aggregator.ports import NO_MORE_FILES, Observer, Runtime
from aggregator.retries import TRANSIENT, Backoff, within

_AGAIN_S: Final = 1.0
_STEP_S_MIN: Final = 2.0

_journal = journal("service")


class Supervision:
    """The tasks of one service, and the order in which it is taken apart.

    Args:
        stack: What is started is ended with it, the last one first.
        runtime: Time and tasks.
        observer: Is told of what is tried again.
    """

    def __init__(self, stack: AsyncExitStack, runtime: Runtime, observer: Observer) -> None:
        self._stack, self._runtime, self._observer = stack, runtime, observer
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop_at_s: float | None = None

    async def failed(self) -> None:
        """Returns never; raises what the service cannot go on after.

        Raises:
            AggregatorError: Of the first task that has ended by an error.
        """
        await asyncio.shield(self._failure)

    def forever(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Runs what goes on for ever, and again after an error that may pass; any other error ends the service."""

        async def again() -> None:
            backoff = Backoff()
            while True:
                try:
                    await work()
                    backoff.reset()
                except TRANSIENT as error:
                    self._observer.retried(name, str(error))
                    await self._runtime.sleep(backoff.next_s())
                except AggregatorError as error:
                    _journal.error(f"{name} failed, trying again", error=str(error))
                except OSError as error:  # of the event loop itself: Runtime.blocking raises OpenFilesError
                    if error.errno not in NO_MORE_FILES:
                        raise
                    self._observer.retried(name, str(error))
                await self._runtime.sleep(_AGAIN_S)

        self.watch(name, again)

    def watch(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Runs something whose error ends the service."""

        async def watched() -> None:
            try:
                await work()
            except Exception as error:  # noqa: BLE001  whatever it is, the service must not go on half
                if not self._failure.done():
                    self._failure.set_exception(error)

        task = self._runtime.spawn(watched(), name)

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])

        self._stack.push_async_callback(end)

    def at_the_end(self, what: str, work: Callable[[], Awaitable[object]], seconds: float | None) -> None:
        """Does something when the service is taken apart.

        Args:
            what: Its name.
            work: What.
            seconds: All that is done at the end may take so long, counted from the first of it; each gets two seconds
                at least. None: as long as it takes.
        """

        async def end() -> None:
            if seconds is None:
                await work()
                return
            now_s = self._runtime.monotonic()
            if self._stop_at_s is None:
                self._stop_at_s = now_s + seconds
            try:
                await within(max(self._stop_at_s - now_s, _STEP_S_MIN), work(), runtime=self._runtime)
            except TimeoutError:
                _journal.warning("could not be stopped in time, and was left", what=what)
            except TRANSIENT as error:
                _journal.warning("could not be finished", what=what, why=str(error))

        self._stack.push_async_callback(end)
