"""When a client submits for its windows, in secure sums and as a silo.

A running client takes part once in every window in which it runs, with records or without: what is looked at is the
plan's schedule, a clock, and what became of earlier attempts; never a record (PRIVACY: relations, zero-out). It begins
after the window's end, at a moment drawn from the first quarter of the time that is left beside the longest wait for a
cohort, so that a fleet does not come all at once; what fails before anything is spent is tried again, with back-off,
until the window is over. The schedule is pure; its clock and its tasks are those of the class that runs it.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from edge_client.config import ASKED_WAIT_MAX_MS, SEQUENCE_WINDOW, Config
from edge_client.errors import ClientStateError, FlushTimeoutError, NotCountedError, SpoolError
from edge_client.runtime import BackOff, Runtime
from edge_client.spool.window_submissions import WindowStatus, WindowSubmissions
from hushsum.entropy import Entropy
from hushsum.schedule import Schedule

_SPREAD: Final = 4  # the begin is drawn from one part in so many of the time that is left


def windows_at(schedule: Schedule, now_ms: int) -> range:
    """The windows in which a client takes part that runs at this time (ms since 1970 UTC).

    All that take deltas, or may still be summed: from the one that holds now − lateness to the one that holds now; of
    more than 64, which is what may be sent at a time, the latest ones.
    """
    newest = schedule.index_at(now_ms)
    return range(max(schedule.index_at(now_ms - schedule.lateness_ms), newest - SEQUENCE_WINDOW + 1), newest + 1)


@dataclass
class _Turn:
    """A window's turn: when it is due next, and how often it has failed."""

    due_ms: int
    backoff: BackOff
    hurried: bool = False
    under_way: bool = False


class WindowSchedule:
    """Which windows are due.

    Args:
        schedule: The plan's.
        wait_ms: The longest wait for a cohort to fill; 0 for a silo.
        config: The waits of the back-off.
        entropy: Of the moments at which it begins, and of the back-off's jitter. Both are public.
    """

    def __init__(self, schedule: Schedule, wait_ms: int, config: Config, entropy: Entropy) -> None:
        self._schedule = schedule
        self._wait_ms = wait_ms
        self._config = config
        self._entropy = entropy
        self._turns: dict[int, _Turn] = {}
        self._left: set[int] = set()

    def keep(self, windows: Iterable[int], now_ms: int) -> list[int]:
        """Takes part in these windows, and in no others any more; those that are known stand as they stood.

        Returns:
            The windows that were to come, and never will. Those that are under way are none of them.
        """
        wanted = set(windows)
        self._left &= wanted
        under_way = {window: turn for window, turn in self._turns.items() if turn.under_way}
        kept = {each: self._turns.get(each) or self._first(each, now_ms) for each in sorted(wanted - self._left)}
        gone = sorted(self._turns.keys() - under_way.keys() - kept.keys())
        self._turns = {**under_way, **kept}
        return gone

    def due(self, now_ms: int) -> list[int]:
        """The windows to begin now, oldest first; each is under way from here on."""
        due = [window for window, turn in self._turns.items() if turn.due_ms <= now_ms and not turn.under_way]
        for window in due:
            self._turns[window].under_way = True
        return sorted(due)

    def next_ms(self) -> int | None:
        """When the next one is due; None where none is."""
        return min((turn.due_ms for turn in self._turns.values() if not turn.under_way), default=None)

    def hurry(self, window: int, now_ms: int) -> None:
        """Somebody flushes: this window is due now, before its end."""
        turn = self._turns[window]
        if not turn.hurried:
            turn.hurried = True
            turn.due_ms = min(turn.due_ms, now_ms)

    def failed(self, window: int, now_ms: int, least_ms: int = 0) -> None:
        """An attempt has cost nothing: the window is due again after a while, of at least so long."""
        turn = self._turns.get(window)
        if turn is not None:
            asked_ms = min(max(least_ms, 0), ASKED_WAIT_MAX_MS)
            turn.due_ms = now_ms + asked_ms + round(1000 * turn.backoff.next_s())
            turn.under_way = False

    def leave(self, window: int) -> None:
        """This client takes no part in the window any more: it is spent, or the service wants none of it."""
        self._turns.pop(window, None)
        self._left.add(window)

    def takes_part(self, window: int) -> bool:
        """Whether the window is still to come, or under way."""
        return window in self._turns

    def _first(self, window: int, now_ms: int) -> _Turn:
        begin_ms = max(now_ms, self._schedule.end_ms(window))
        left_ms = self._schedule.end_ms(window) + self._schedule.lateness_ms - self._wait_ms - begin_ms
        part = int.from_bytes(self._entropy.read(4), "big")
        due_ms = begin_ms + max(left_ms, 0) * part // (_SPREAD << 32)
        return _Turn(due_ms, BackOff(self._config.backoff_first_s, self._config.backoff_longest_s, self._entropy))


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


class WindowScheduler(ABC):
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
        turns: WindowSubmissions,
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
        self._participation = WindowSchedule(schedule, wait_ms, config, entropy)
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
    def _hear(self, look: WindowStatus) -> None:
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
