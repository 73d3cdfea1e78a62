"""Time, tasks and threads of a client; and how long it waits before it tries again.

:class:`SystemRuntime` is the one place of this package that reads a clock, sleeps, or starts a task. A wait grows
exponentially, with full jitter, so that a fleet comes back spread out.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

from edge_client.errors import ClientStateError
from hushsum.entropy import Entropy

_DOUBLINGS_MAX: Final = 62


def drawn_s(longest_s: float, entropy: Entropy) -> float:
    """A wait from 0 to below ``longest_s`` seconds, each as likely as any other; it is public."""
    return longest_s * int.from_bytes(entropy.read(4), "big") / 2**32


class BackOff:
    """Waits drawn uniformly from 0 to a limit that doubles with each failure, from ``first_s`` to ``longest_s``."""

    def __init__(self, first_s: float, longest_s: float, entropy: Entropy) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._entropy = entropy
        self._failures = 0

    @property
    def failures(self) -> int:
        """Failures since the last success."""
        return self._failures

    def next_s(self) -> float:
        """The wait after one more failure, in seconds."""
        wait_s = self.jitter_s(self._failures)
        self._failures += 1
        return wait_s

    def jitter_s(self, failures: int) -> float:
        """A wait after this many earlier failures, in seconds; nothing is remembered of it."""
        limit = min(self._longest_s, self._first_s * 2.0 ** min(failures, _DOUBLINGS_MAX))
        return drawn_s(limit, self._entropy)

    def reset(self) -> None:
        """Makes the next wait a first one again."""
        self._failures = 0


T = TypeVar("T")


class Runtime(Protocol):
    """Time, tasks and threads. Many clients of one process share one."""

    def now_ms(self) -> int:
        """The wall clock, ms since 1970-01-01T00:00:00Z."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Returns after so many seconds."""

    def spawn(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        """Starts a task; its owner awaits or cancels it."""

    async def blocking(self, function: Callable[..., T], *arguments: object) -> T:
        """Runs what waits for the spool (a commit, a read) off the event loop."""

    async def hashing(self, function: Callable[..., T], *arguments: object) -> T:
        """Reads and hashes records off the event loop, in threads of its own: no other method waits for them."""

    async def computing(self, function: Callable[..., T], *arguments: object) -> T:
        """Computes what this device submits for a window, and its part in a round, off the event loop."""


def wall_clock_ms() -> int:
    """This machine's clock, ms since 1970-01-01T00:00:00Z."""
    return time.time_ns() // 1_000_000


class SystemRuntime(Runtime):
    """The real clock, event loop and threads: ``threads`` of each kind (hashing, computing, spools), when needed."""

    def __init__(self, threads: int = 2) -> None:
        self._hashing = ThreadPoolExecutor(threads, thread_name_prefix="hushsum-edge-hash")
        # A submission must not wait for records to be hashed: that would show when there are many.
        self._computing = ThreadPoolExecutor(threads, thread_name_prefix="hushsum-edge-compute")
        self._spools = ThreadPoolExecutor(threads, thread_name_prefix="hushsum-edge-spool")
        self._closed = False

    def now_ms(self) -> int:
        return wall_clock_ms()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def spawn(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        return asyncio.create_task(work, name=name)

    async def blocking(self, function: Callable[..., T], *arguments: object) -> T:
        return await self._run_in(self._spools, function, *arguments)

    async def hashing(self, function: Callable[..., T], *arguments: object) -> T:
        return await self._run_in(self._hashing, function, *arguments)

    async def computing(self, function: Callable[..., T], *arguments: object) -> T:
        return await self._run_in(self._computing, function, *arguments)

    async def _run_in(self, threads: ThreadPoolExecutor, function: Callable[..., T], *arguments: object) -> T:
        if self._closed:
            raise ClientStateError("this client was closed; unanswered deltas stay in the spool")
        try:
            running = asyncio.get_running_loop().run_in_executor(threads, lambda: function(*arguments))
        except RuntimeError:  # the interpreter is ending and starts nothing in threads: a client that closes at exit
            return function(*arguments)
        return await running

    def close(self) -> None:
        """Lets the threads end once they are idle; what is to be run from now on raises ``ClientStateError``."""
        self._closed = True
        for threads in (self._hashing, self._computing, self._spools):
            threads.shutdown(wait=False)


async def run_to_completion(runtime: Runtime, work: Coroutine[object, object, None]) -> None:
    """Runs work that must not be left half done: a cancellation is kept until it is over."""
    task = runtime.spawn(work, "hushsum-edge-whole")
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    await task


class Tasks:
    """A group of tasks; ``failed`` is called with the exception that one has ended with."""

    def __init__(self, runtime: Runtime, failed: Callable[[Exception], None]) -> None:
        self._runtime = runtime
        self._failed = failed
        self._open: set[asyncio.Task[None]] = set()
        self._whole: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[object, object, None], name: str, *, whole: bool = False) -> "asyncio.Task[None]":
        """Starts work that may be cancelled at any time; or ``whole``: short, and never left half done."""
        task = self._runtime.spawn(work, f"hushsum-edge-{name}")
        tasks = self._whole if whole else self._open
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Cancels everything that may be cancelled."""
        for task in self._open:
            task.cancel()

    async def close(self) -> None:
        """Cancels, and returns once everything has ended."""
        self.cancel()
        while self._open or self._whole:
            await asyncio.wait(self._open | self._whole)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._failed(error)


class Waiters:
    """Callers that wait until a condition is met, each for a limited time."""

    def __init__(self, tasks: Tasks, runtime: Runtime) -> None:
        self._tasks = tasks
        self._runtime = runtime
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    async def wait(
        self, is_met: Callable[[], bool], timeout_s: float | None, error: Callable[[float], Exception]
    ) -> None:
        """Returns once :meth:`check` finds the condition met.

        Raises:
            Exception: Made by ``error`` if that takes too long; or the one that :meth:`fail` was given.
        """
        met: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (is_met, met)
        self._waiting.append(waiting)
        timer = None
        if timeout_s is not None:
            timer = self._tasks.spawn(self._expire(met, timeout_s, error), "flush-timer")
        self.check()
        try:
            await met
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting.remove(waiting)

    def check(self) -> None:
        for is_met, met in self._waiting:
            if not met.done() and is_met():
                met.set_result(None)

    def fail(self, error: Exception) -> bool:
        """Raises an error for all callers that wait; returns whether there are any."""
        waiting = [met for _, met in self._waiting if not met.done()]
        for met in waiting:
            met.set_exception(error)
        return bool(waiting)

    async def _expire(self, met: "asyncio.Future[None]", timeout_s: float, error: Callable[[float], Exception]) -> None:
        await self._runtime.sleep(timeout_s)
        if not met.done():
            met.set_exception(error(timeout_s))
