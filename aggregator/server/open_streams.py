"""Calls that last, or wait for a message: looked at again while they are open, and ended once they may not go on.

A call's task is interrupted only while it is in our own code. While gRPC writes a reply, a cancellation would be taken
for the client's own, which would then never hear why: such a call is told once the write returns, and lets go of what
it holds at once.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from aggregator.errors import AggregatorError
from aggregator.journal import journal
from aggregator.ports import Runtime

RECHECK_S: Final = 1.0
_AT_ONCE: Final = 256  # are looked at before others have their turn
_REST: Final = 10  # pauses last so many times as long as looking does: at 10^5 streams, some seconds

_journal = journal("streams")


class Interruptible:
    """A call that can be ended from elsewhere.

    Attributes:
        ended: Why it may not go on; None while it may. Given once.
        due_s: When it is ended for being too slow, by the monotonic clock.
        late: Makes what it is then told.
        received_bytes: Of what came whole in a call with one message.
    """

    def __init__(self) -> None:
        self.ended: AggregatorError | None = None
        self.due_s: float | None = None
        self.late: Callable[[], AggregatorError] | None = None
        self.received_bytes = 0
        self._task: asyncio.Task[object] | None = None
        self._replies: AsyncIterator[object] | None = None

    def lapse(self) -> AggregatorError | None:
        """Why it would not be admitted again; None where it would be, or nothing has been asked yet."""
        return None

    @contextmanager
    def working(self) -> Iterator[None]:
        """The block runs in our code alone, and may be interrupted.

        Raises:
            AggregatorError: The call was ended, before or within the block.
        """
        self.check()
        around, self._task = self._task, asyncio.current_task()
        assert self._task is not None, "a handler runs in a task"
        try:
            yield
        except asyncio.CancelledError:
            if self.ended is None:
                raise  # the client is gone
            self._task.uncancel()
            raise self.ended from None
        finally:
            self._task = around

    def check(self) -> None:
        """Goes on where it may.

        Raises:
            AggregatorError: The call was ended.
        """
        if self.ended is not None:
            raise self.ended

    async def each(self, replies: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The replies; between two of them the caller writes, and the call may not be interrupted.

        Raises:
            AggregatorError: The call was ended.
        """
        self._replies = replies
        try:
            while True:
                with self.working():
                    try:
                        reply = await anext(replies)
                    except StopAsyncIteration:
                        return
                yield reply
        finally:
            await self.close()

    def end(self, error: AggregatorError) -> bool:
        """Ends it; False: it is in gRPC's hands, and :meth:`close` lets go of what it holds."""
        if self.ended is None:
            self.ended = error
            if self._task is not None:
                self._task.cancel()
        return self._task is not None

    async def close(self) -> None:
        """Lets go of what its method holds."""
        replies, self._replies = self._replies, None
        if isinstance(replies, AsyncGenerator):
            try:
                await replies.aclose()
            except Exception as error:  # noqa: BLE001  it is over, whatever happens at its end
                _journal.error("a stream did not end well", exc_info=error)


class OpenStreams:
    """The open streams of one server, each carried by its own task.

    Attributes:
        now_s: The monotonic clock when they were looked at last; None: nobody looks at them.
    """

    def __init__(self) -> None:
        self.now_s: float | None = None
        self._calls: dict[Interruptible, None] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._calls)

    @contextmanager
    def held(self, call: Interruptible) -> Iterator[None]:
        """A call is open as long as the block runs, or until it was ended."""
        if call in self._calls:
            yield
            return
        self._calls[call] = None
        try:
            yield
        finally:
            self._calls.pop(call, None)

    def within(self, seconds: float, call: Interruptible, late: Callable[[], AggregatorError]) -> None:
        """Ends the call in about so many seconds, unless its time is set anew."""
        call.due_s, call.late = None if self.now_s is None else self.now_s + RECHECK_S + seconds, late

    async def run(self, runtime: Runtime) -> None:
        """Looks at all of them again and again, for ever."""
        looked_s = 0.0
        self.now_s = runtime.monotonic()
        while True:
            await runtime.sleep(max(RECHECK_S, _REST * looked_s))
            began_s = runtime.monotonic()
            await self.recheck(runtime)
            looked_s = runtime.monotonic() - began_s

    async def recheck(self, runtime: Runtime) -> None:
        """Ends those that have lapsed, and those that are too slow."""
        self.now_s = runtime.monotonic()
        for number, call in enumerate(list(self._calls), 1):
            if call in self._calls:
                self._look(call, self.now_s, runtime)
            if number % _AT_ONCE == 0:
                await runtime.sleep(0)

    def _look(self, call: Interruptible, now_s: float, runtime: Runtime) -> None:
        why = call.lapse()
        if why is None and call.late is not None and call.due_s is not None and call.due_s <= now_s:
            why = call.late()
        if why is None or call.end(why):
            return
        del self._calls[call]
        task = runtime.spawn(call.close(), "lapsed")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
