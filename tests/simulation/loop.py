"""An event loop in virtual time: no clock, no selector, and a seed that decides everything.

Each simulated process is an event loop of its own in reality: within one, callbacks run in the order in which they were
scheduled, as asyncio promises; which process goes on next is drawn from the seed. When nobody has anything to do, time
jumps to the next timer. Whose a callback is, its context says.
"""

import asyncio
import heapq
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from itertools import count
from random import Random
from typing import Any, Final, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_TRIES: Final = 100  # awaits in the `finally` blocks of one task
STEPS_MAX: Final = 400_000  # of one run: whoever needs more turns in a circle


class StuckError(Exception):
    """Steps without end: somebody turns in a circle."""


class Process:
    """Whose callbacks these are: they can be held back, and they can be dropped for ever.

    Args:
        name: Of its host, ``#``, and a number: for reports.

    Attributes:
        host: Its name without the number.
        alive: Nothing of it runs once this is False: no callback, no ``finally``.
        paused: Nothing of it runs while this is True; its timers wait.
        cut_short: It was killed while something of it was still to run.
        steps: Callbacks that it has run.
        fuse: Callbacks until it dies; None: for ever.
    """

    def __init__(self, name: str) -> None:
        self.name, self.host = name, name.partition("#")[0]
        self.alive, self.paused, self.cut_short = True, False, False
        self.steps = 0
        self.fuse: int | None = None
        self.burnt: Callable[[], None] | None = None
        self.ready: deque[_Handle] = deque()
        self.context = Context()
        self.context.run(_PROCESS.set, self)

    def light(self, steps: int, burnt: Callable[[], None]) -> None:
        """Calls ``burnt`` before its callback number ``steps`` from now: at whatever await that happens to be."""
        self.fuse, self.burnt = steps, burnt


_PROCESS: ContextVar[Process] = ContextVar("process")


def current_process() -> Process | None:
    """Whose code is running; None: the world's."""
    return _PROCESS.get(None)


class _Handle(asyncio.Handle):
    """A callback that is scheduled."""

    __slots__ = ("arguments", "call", "place", "when_s", "whose")

    def __init__(self, call: Callable[..., object], arguments: tuple[Any, ...], place: Context, when_s: float) -> None:
        self.call: Callable[..., object] | None = call
        self.arguments, self.place, self.when_s = arguments, place, when_s
        self.whose: Process | None = place.get(_PROCESS)

    def cancel(self) -> None:
        self.call = None

    def cancelled(self) -> bool:
        return self.call is None

    def when(self) -> float:
        return self.when_s


class VirtualLoop(asyncio.AbstractEventLoop):
    """See the module.

    Args:
        seed: Of the order among processes.

    Attributes:
        steps: Callbacks so far.
        complaints: What asyncio found wrong: exceptions in callbacks, tasks that nobody looked at.
    """

    def __init__(self, seed: int) -> None:
        self.steps = 0
        self.complaints: list[str] = []
        self._random = Random(f"loop/{seed}")
        self._now_s = 0.0
        self._timers: list[tuple[float, int, _Handle]] = []
        self._order = count()
        self._world = Process("world")
        self._world_context = Context()
        self._active: list[Process] = []
        # All: what is dropped must not come to its `finally`.
        self._tasks: list[tuple[asyncio.Task[Any], Process | None]] = []
        self._closed = False

    # ------------------------------------------------------------------------------------------- what asyncio asks for

    def time(self) -> float:
        return self._now_s

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None, **_: object
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=str(name), context=context)
        self._tasks.append((task, _PROCESS.get(None) if context is None else context.get(_PROCESS)))
        return task

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> _Handle:
        handle = _Handle(callback, args, copy_context() if context is None else context, self._now_s)
        self._put(handle)
        return handle

    def call_later(  # type: ignore[override]  # it gives back no TimerHandle
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> _Handle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # it gives back no TimerHandle
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, args, copy_context() if context is None else context, when)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._closed:
            self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    # -------------------------------------------------------------------------------------------------- the world's own

    def call_world(self, delay_s: float, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Calls outside every process: nobody's death or sleep keeps it from happening."""
        self.call_at(self._now_s + delay_s, callback, *args, context=self._world_context)

    def spawn_world(self, work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        """A task of the world."""
        return self.create_task(work, name=name, context=self._world_context.copy())

    def spawn_in(self, process: Process, work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        """A task of a process."""
        return self.create_task(work, name=name, context=process.context.copy())

    def kill(self, process: Process) -> None:
        """Nothing of it runs from here on."""
        process.alive, process.fuse, process.cut_short = False, None, bool(process.ready)
        process.ready.clear()

    def pause(self, process: Process) -> None:
        """Nothing of it runs until :meth:`resume`; its time goes on."""
        process.paused = True

    def resume(self, process: Process) -> None:
        """It goes on, with all that came meanwhile."""
        process.paused = False
        if process.ready and process.alive and process not in self._active:
            self._active.append(process)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Runs until ``main``, a task of the world, has ended.

        Raises:
            StuckError: Too many steps.
        """
        asyncio._set_running_loop(self)
        try:
            task = self.spawn_world(main, "main")
            while not task.done():
                self._step()
            return task.result()
        finally:
            asyncio._set_running_loop(None)

    def close(self) -> None:
        """Ends what is still there; none of it can do anything any more."""
        self._closed = True
        asyncio._set_running_loop(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that a dead process never gets to await
                for task, _ in self._tasks:
                    _end(task)
        finally:
            asyncio._set_running_loop(None)
            self._tasks.clear()
            self._timers.clear()

    def unseen(self) -> list[str]:
        """Tasks that have ended with an exception that nobody has looked at, although there was time to."""
        found = []
        for task, process in self._tasks:
            looked_at: Any = task  # Any: asyncio's own note of whether somebody asked for the exception
            if task.done() and looked_at._log_traceback and not (process is not None and process.cut_short):
                found.append(f"{task.get_name()}: {task.exception()!r}")
        return found

    # ---------------------------------------------------------------------------------------------------- step by step

    def _put(self, handle: _Handle) -> None:
        process = handle.whose or self._world
        if not process.alive:
            return
        process.ready.append(handle)
        if len(process.ready) == 1 and not process.paused and process not in self._active:
            self._active.append(process)

    def _step(self) -> None:
        if not self._active:
            self._wait()
            return
        place = int(self._random.random() * len(self._active)) if len(self._active) > 1 else 0
        process = self._active[place]
        if process.paused or not process.ready:
            self._active[place] = self._active[-1]
            self._active.pop()
            return
        handle = process.ready.popleft()
        if handle.call is None:
            return
        if process.fuse is not None:
            process.fuse -= 1
            if process.fuse <= 0 and process.burnt is not None:
                process.fuse = None
                process.ready.appendleft(handle)  # it was to run
                self._world_context.run(process.burnt)
                return
        self.steps += 1
        process.steps += 1
        if self.steps > STEPS_MAX:
            raise StuckError(
                f"{self.steps} steps by {self._now_s:.3f} s, the last one of {process.name}: {handle.call!r}"
            )
        try:
            handle.place.run(handle.call, *handle.arguments)
        except Exception as error:  # noqa: BLE001  as in asyncio: told, and the loop goes on
            self.complaints.append(f"{process.name}: {handle.call!r} raised {error!r}")

    def _wait(self) -> None:
        """Time jumps to the next timer."""
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        if not self._timers:
            raise StuckError("everybody waits for something that never comes")
        self._now_s = max(self._now_s, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._now_s:
            handle = heapq.heappop(self._timers)[2]
            if handle.call is not None:
                self._put(handle)


def _end(task: "asyncio.Task[Any]") -> None:
    """Closes the coroutine of a task that never runs again, whatever its ``finally`` blocks try to do."""
    quiet: Any = task  # Any: asyncio's own switches for what it would complain about
    quiet._log_destroy_pending = quiet._log_traceback = False
    if task.done():
        return
    for _ in range(_TRIES):
        chain: list[Any] = [task.get_coro()]  # Any: a coroutine, and what it awaits
        while (inner := getattr(chain[-1], "cr_await", None)) is not None:
            chain.append(inner)
        if chain[0].cr_frame is None:
            return
        # The innermost first: an outer one would be ended by what its inner one makes of it, and leave it behind.
        for each in reversed(chain):
            with suppress(Exception, asyncio.CancelledError):
                if hasattr(each, "close"):
                    each.close()
            if getattr(each, "cr_frame", None) is not None:
                break  # it awaits something else now
