"""Time, tasks and threads of the service; retries, time-outs, and the supervisor of its tasks."""

import asyncio
import errno
import heapq
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from typing import Final, Protocol, TypeVar

from aggregator.errors import AggregatorError, LogUnavailableError, OpenFilesError, StoreUnavailableError
from aggregator.logs import journal

T = TypeVar("T")

#: Called with the name of what failed for now, and why.
OnRetry = Callable[[str, str], None]


class Runtime(Protocol):
    """Time and tasks."""

    def now_ms(self) -> int:
        """The wall clock, ms since 1970-01-01T00:00:00Z."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back, only for measuring."""

    async def sleep(self, seconds: float) -> None: ...

    def spawn(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        """Starts a task; its owner awaits or cancels it."""

    async def blocking(self, function: Callable[..., T], *arguments: object) -> T:
        """Runs a blocking call (a database, an fsync) off the event loop.

        Raises:
            OpenFilesError: It needed a file, and no more can be opened now.
            Exception: Whatever else it raises.
        """


async def next_turns(turns: int) -> None:
    """Lets the event loop run everything that is ready, this many times."""
    for _ in range(turns):
        await asyncio.sleep(0)


class Watermark:
    """A position that only grows and can be awaited. Only for use on the event loop."""

    def __init__(self, value: int) -> None:
        self.value = value
        self._error: Callable[[], Exception] | None = None
        self._order = count()  # keeps the heap from comparing futures
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    def reach(self, value: int) -> None:
        """Moves to ``value``, unless it is further already, and wakes the waiters for it."""
        self.value = max(self.value, value)
        while self._waiting and self._waiting[0][0] <= self.value:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)

    def fail(self, error: Callable[[], Exception]) -> None:
        """Never moves again: every waiter, now or later, gets an error that ``error`` makes.

        Each gets one of its own: the traceback of a shared one would keep the frames of all waiters, and in them this
        watermark and its worker's fold, until a collection of cycles.
        """
        self._error = error
        for _, _, future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def reached(self, value: int) -> None:
        """Returns once it is at ``value`` or beyond."""
        if self.value < value and self._error is None:
            future = self._future(value)
            try:
                await future
            except asyncio.CancelledError:
                self._discard(future)
                raise
        self._check(value)

    async def reached_within(self, value: int, runtime: Runtime, seconds: float) -> bool:
        """Whether it reached ``value`` within some seconds."""
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
        self._check(value)
        return self.value >= value

    def _check(self, value: int) -> None:
        if self.value < value and self._error is not None:
            raise self._error()

    def _future(self, value: int) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (value, next(self._order), future))
        return future

    def _discard(self, future: "asyncio.Future[None]") -> None:
        """Removes a waiter, so that cancelled waits do not accumulate."""
        self._waiting = [waiting for waiting in self._waiting if waiting[2] is not future]
        heapq.heapify(self._waiting)


async def _ring(future: "asyncio.Future[None]", runtime: Runtime, seconds: float) -> None:
    await runtime.sleep(seconds)
    if not future.done():
        future.set_result(None)


#: Errors that pass by themselves.
TRANSIENT: Final = (LogUnavailableError, StoreUnavailableError)
FIRST_S: Final = 0.1
MOST_S: Final = 5.0


class Backoff:
    """Pauses that double, from ``first_s`` to ``most_s`` seconds."""

    def __init__(self, first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._next_s = first_s

    def next_s(self) -> float:
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._most_s)
        return pause_s

    def reset(self) -> None:
        """Begins with the shortest pause again, after a success."""
        self._next_s = self._first_s


async def retry(
    what: str,
    work: Callable[[], Awaitable[T]],
    *,
    runtime: Runtime,
    on_retry: OnRetry,
    patience_s: float | None = None,
) -> T:
    """Repeats ``work`` while it fails with a :data:`TRANSIENT` error, for ``patience_s`` seconds (None: for ever).

    Raises:
        LogUnavailableError: As ``work``, after that time.
        StoreUnavailableError: As ``work``, after that time.
    """
    backoff, began_s = Backoff(), runtime.monotonic()
    while True:
        try:
            return await work()
        except TRANSIENT as error:
            if patience_s is not None and runtime.monotonic() - began_s >= patience_s:
                raise
            on_retry(what, str(error))
            await runtime.sleep(backoff.next_s())


async def within(seconds: float, work: Awaitable[T], *, runtime: Runtime) -> T:
    """The result of ``work`` if it is ready in time; otherwise it is cancelled, and the cancellation is not awaited.

    A call to a broker or a database that does not answer may block its own cancellation as well.

    Raises:
        TimeoutError: It took longer.
    """
    result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def carry() -> None:
        try:
            value = await work
        except Exception as error:  # noqa: BLE001  any error is raised where the result is awaited
            if not result.done():
                result.set_exception(error)
        else:
            if not result.done():
                result.set_result(value)

    async def ring() -> None:
        await runtime.sleep(seconds)
        if not result.done():
            result.set_exception(TimeoutError(f"no response within {seconds:g} s"))

    def carried(task: "asyncio.Task[None]") -> None:
        if not result.done():  # cancelled, or ended by an error that no `except` catches
            result.cancel() if task.cancelled() else result.set_exception(task.exception() or AssertionError())

    carrying, ringing = runtime.spawn(carry(), "within"), runtime.spawn(ring(), "within-alarm")
    carrying.add_done_callback(carried)
    try:
        return await result
    finally:
        carrying.cancel()
        ringing.cancel()
        _close_unbegun(work)


def _close_unbegun(work: object) -> None:
    """Work that never begins is closed: otherwise Python warns that it was never awaited."""
    if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        work.close()


_AGAIN_S: Final = 1.0
_STEP_S_MIN: Final = 2.0

_journal = journal("service")


class TaskSupervisor:
    """The tasks of one service, and the steps of its stop; ``stack`` ends them, the last one first."""

    def __init__(self, stack: AsyncExitStack, runtime: Runtime, on_retry: OnRetry) -> None:
        self._stack, self._runtime, self._on_retry = stack, runtime, on_retry
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop_at_s: float | None = None

    async def failed(self) -> None:
        """Never returns; raises the error of the first task that has ended by one."""
        await asyncio.shield(self._failure)

    def forever(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Runs an endless task, and restarts it after an error of the service; any other error ends the service."""

        async def again() -> None:
            backoff = Backoff()
            while True:
                try:
                    await work()
                    backoff.reset()
                except TRANSIENT as error:
                    self._on_retry(name, str(error))
                    await self._runtime.sleep(backoff.next_s())
                except AggregatorError as error:
                    _journal.error(f"{name} failed, retrying", error=str(error))
                except OSError as error:  # of the event loop itself: Runtime.blocking raises OpenFilesError
                    if error.errno not in NO_MORE_FILES:
                        raise
                    self._on_retry(name, str(error))
                await self._runtime.sleep(_AGAIN_S)

        self.watch(name, again)

    def watch(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Runs a task whose error ends the service."""

        async def watched() -> None:
            try:
                await work()
            except Exception as error:  # noqa: BLE001  the service must not go on without a part of it
                if not self._failure.done():
                    self._failure.set_exception(error)

        task = self._runtime.spawn(watched(), name)

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])

        self._stack.push_async_callback(end)

    def at_the_end(self, what: str, work: Callable[[], Awaitable[object]], seconds: float | None) -> None:
        """Adds a step to the stop of the service.

        ``seconds`` is the time of the whole stop, counted from its first step; each step gets two seconds at least, and
        with None as long as it takes.
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
                _journal.warning("not stopped in time: abandoned", what=what)
            except TRANSIENT as error:
                _journal.warning("shutdown step failed", what=what, why=str(error))

        self._stack.push_async_callback(end)


#: Codes of an OSError that pass by themselves when files and connections are closed.
NO_MORE_FILES: Final = (errno.EMFILE, errno.ENFILE)


class SystemRuntime:
    """The real clock, event loop and threads."""

    def __init__(self, threads: int = 8) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="hushsum")

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def spawn(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        return asyncio.create_task(work, name=name)

    async def blocking(self, function: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        # run_in_executor would take each result through one more future.
        done = self._threads.submit(function, *arguments)
        done.add_done_callback(partial(_tell, loop, result))
        try:
            return await result
        except asyncio.CancelledError:
            done.cancel()
            raise
        except OSError as error:
            if error.errno in NO_MORE_FILES:
                raise OpenFilesError(f"too many open files: {error.strerror}") from error
            raise
        finally:  # else an error, its traceback and its future would keep each other, and the arguments
            del result, done


def _tell(loop: asyncio.AbstractEventLoop, result: "asyncio.Future[T]", done: Future[T]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(_settle, result, done)


def _settle(result: "asyncio.Future[T]", done: Future[T]) -> None:
    if result.done():  # its caller was cancelled
        return
    if done.cancelled():  # the threads have ended
        result.cancel()
    elif (error := done.exception()) is None:
        result.set_result(done.result())
    else:
        result.set_exception(error)
