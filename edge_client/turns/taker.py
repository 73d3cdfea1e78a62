"""Takes its client's turns: once a window, as long as the client runs (the shell of ``participation``)."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Final, Protocol

from edge_client.config import SEQUENCE_WINDOW, Config
from edge_client.errors import ClientStateError, FlushTimeoutError, NotCountedError, SpoolError
from edge_client.ports import Runtime
from edge_client.turns.participation import Participation, windows_at
from edge_client.turns.turns import Look, Turns
from hushsum.entropy import Entropy
from hushsum.schedule import Schedule

_LOG: Final = logging.getLogger("edge_client")
_LOOKS_APART_S: Final = 5.0  # a wall clock may be set; this is how late it may be noticed


class Owner(Protocol):
    """Whose tasks these are (an uplink): they end when it does, and what fails in them ends it."""

    failure: Exception | None

    def spawn(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        """Starts work."""
        ...

    def spawn_whole(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        """Starts work that is short, and must not be left half done."""
        ...

    def raise_failure(self) -> None:
        """Raises what has ended it, if anything has."""
        ...


class Taker(ABC):
    """Submits for every window in which its client runs, once, whatever records there are.

    Args:
        turns: What the spool knows of them.
        schedule: The plan's.
        wait_ms: The longest wait for a cohort to fill; 0 for a silo.
        runtime: Time, tasks and threads.
        config: Waits.
        entropy: Of moments and back-off: public.
        owner: Of its tasks.
    """

    def __init__(
        self,
        turns: Turns,
        *,
        schedule: Schedule,
        wait_ms: int,
        runtime: Runtime,
        config: Config,
        entropy: Entropy,
        owner: Owner,
    ) -> None:
        self._turns = turns
        self._schedule = schedule
        self._runtime = runtime
        self._config = config
        self._entropy = entropy
        self._owner = owner
        self._participation = Participation(schedule, wait_ms, config, entropy)
        self._looking = asyncio.Lock()
        self._seen = range(0)
        self._busy: dict[int, asyncio.Task[None]] = {}
        self._reasons: dict[int, str] = {}  # of windows that are in no sum, until a flush has told them
        self._stirred = asyncio.Event()
        self._waiters: list[tuple[frozenset[int], asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def _take_part(self, window: int) -> None:
        """Takes a window's turn, which is due."""

    @abstractmethod
    def _hear(self, look: Look) -> None:
        """Hears how this client stands to the windows of this moment."""

    def _asked(self) -> frozenset[int]:
        """Windows that are spent, and of which it is still asked what became of them."""
        return frozenset()

    def _ask_for(self, window: int) -> Coroutine[object, object, None]:
        """Asks what became of such a window."""
        raise NotImplementedError

    async def begin(self) -> None:
        """Takes part in the windows of this moment, durably, and goes on from there.

        Raises:
            SpoolError: The spool cannot be written.
        """
        await self._look()
        self._task = self._owner.spawn(self._run(), "turns")

    async def caught_up(self) -> None:
        """Returns once a window that has just begun was looked at."""
        if windows_at(self._schedule, self._runtime.now_ms()) != self._seen:
            await self._look()

    async def flush(self, timeout_s: float | None) -> None:
        """Takes part now in every window of this moment, and returns once each of them is told.

        Raises:
            NotCountedError: Some are in no sum.
            FlushTimeoutError: Not within the time.
            Exception: What has ended the owner.
        """
        await self._take_all(timeout_s)
        self._tell_reasons()

    async def _take_all(self, timeout_s: float | None) -> None:
        await self._look()
        windows = [window for window in self._seen if self._participation.takes_part(window)]
        for window in windows:
            self._participation.hurry(window, self._runtime.now_ms())
        self._stirred.set()
        await self._wait_for(frozenset(windows) | self._asked(), timeout_s)

    def _tell_reasons(self) -> None:
        if self._reasons:
            reasons, self._reasons = self._reasons, {}
            raise NotCountedError(reasons)

    async def finished(self, timeout_s: float) -> None:
        """Returns once the attempts that are under way have ended.

        Raises:
            FlushTimeoutError: Not within the time.
        """
        await self._wait_for(frozenset(self._busy), timeout_s)

    async def _run(self) -> None:
        try:
            while True:
                await self._runtime.blocking(self._turns.erase)
                self._begin_what_is_due()
                await self._wait()
                try:
                    await self._look()
                except SpoolError as error:
                    _LOG.warning("this client cannot see which windows are due, it is tried again: %s", error)
        except Exception as error:
            self._fail_waiters(error)
            raise
        finally:
            self._fail_waiters(self._owner.failure or ClientStateError("this client was ended meanwhile"))

    async def _look(self, *, anew: bool = False) -> None:
        """Sees how this client stands to the windows of this moment, where they have changed, or else ``anew``."""
        async with self._looking:
            now_ms = self._runtime.now_ms()
            windows = windows_at(self._schedule, now_ms)
            if windows == self._seen and not anew:
                return
            self._seen = range(0)  # if this fails, it is tried again
            look = await self._runtime.blocking(self._turns.look, windows)
            self._seen = windows
            self._hear(look)
            over = set(self._participation.keep(look.open, now_ms))
            for window in self._busy.keys() - set(windows) - self._asked():
                self._busy[window].cancel()
                self._participation.leave(window)
                over.add(window)
            for window in over:
                self._note(window, "it is over, and was not summed")
        self._tell_waiters()

    def _begin_what_is_due(self) -> None:
        for window in self._asked():
            if window not in self._busy:
                self._start(window, self._ask_for(window))
        for window in self._participation.due(self._runtime.now_ms()):
            self._start(window, self._take_part(window))

    def _start(self, window: int, work: Coroutine[object, object, None]) -> None:
        task = self._busy[window] = self._owner.spawn(work, f"turn-{window}")
        task.add_done_callback(lambda _: self._ended(window))

    def _ended(self, window: int) -> None:
        del self._busy[window]
        self._stirred.set()
        self._tell_waiters()

    async def _wait(self) -> None:
        """Until something is due, at most a few seconds."""
        now_ms, next_ms = self._runtime.now_ms(), self._participation.next_ms()
        turn_ms = self._schedule.end_ms(self._schedule.index_at(now_ms))
        wait_s = (min(turn_ms, turn_ms if next_ms is None else next_ms) - now_ms) / 1000
        sleep = self._owner.spawn(self._runtime.sleep(min(max(wait_s, 0.0), _LOOKS_APART_S)), "turns-timer")
        stir = self._owner.spawn(self._until_stirred(), "turns-stir")
        try:
            await asyncio.wait([sleep, stir], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            stir.cancel()
        self._stirred.clear()

    async def _until_stirred(self) -> None:
        await self._stirred.wait()

    def _give_up(self, window: int, why: str) -> None:
        _LOG.warning("window %d is in no sum of this client: %s", window, why)
        self._participation.leave(window)
        self._note(window, why)

    def _note(self, window: int, why: str) -> None:
        """For the next flush: the first reason of each window, of as many windows as can be open at a time."""
        self._reasons.setdefault(window, why)
        if len(self._reasons) > SEQUENCE_WINDOW:
            del self._reasons[min(self._reasons)]

    async def _wait_for(self, windows: frozenset[int], timeout_s: float | None) -> None:
        self._owner.raise_failure()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((windows, waiter))
        timer = None if timeout_s is None else self._owner.spawn(self._expire(waiter, timeout_s), "flush-timer")
        self._tell_waiters()
        try:
            await waiter
        except Exception:
            self._owner.raise_failure()  # which notes that it was told
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._waiters.remove((windows, waiter))

    async def _expire(self, waiter: "asyncio.Future[None]", timeout_s: float) -> None:
        await self._runtime.sleep(timeout_s)
        if not waiter.done():
            what = f"what this client submits is not told after {timeout_s:g} s; it goes on"
            waiter.set_exception(FlushTimeoutError(what))

    def _fail_waiters(self, error: Exception) -> None:
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _tell_waiters(self) -> None:
        for windows, waiter in self._waiters:
            if not waiter.done() and not any(map(self._is_open, windows)):
                waiter.set_result(None)

    def _is_open(self, window: int) -> bool:
        return self._participation.takes_part(window) or window in self._asked() or window in self._busy
