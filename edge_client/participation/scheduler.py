"""When a client submits for its windows, in secure sums and as a silo.

A running client submits once for every window in which it runs, with records or without: the schedule depends on the
plan, a clock, and the results of earlier attempts; never on a record (docs/explanation/proofs/zero-out.md).
A submission begins after the window's end, at a moment drawn from the first quarter of the time that is left beside the
longest wait for a cohort, so that a fleet does not come all at once. What fails before anything is spent is tried
again, with back-off, until the window is over. The schedule is pure; the mode that runs it has the clock and the tasks.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from edge_client.config import ASKED_WAIT_MAX_MS, SEQUENCE_WINDOW, Config
from edge_client.errors import FlushTimeoutError, SpoolError
from edge_client.participation.mode import ClientContext, Mode
from edge_client.runtime import BackOff
from edge_client.session.driver import SessionDriver
from edge_client.spool.changes import Add, StoredDelta
from edge_client.spool.window_submissions import WindowStatus, WindowSubmissions
from edge_client.status import Event, EventKind
from hushsum.entropy import Entropy
from hushsum.privacy.accountant import Account
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
class _Scheduled:
    due_ms: int
    backoff: BackOff
    expedited: bool = False
    under_way: bool = False


class WindowSchedule:
    """Which windows are due.

    ``wait_ms`` is the longest wait for a cohort to fill, 0 for a silo. ``entropy`` decides the moments at which
    submissions begin, and the back-off's jitter; both are public.
    """

    def __init__(self, schedule: Schedule, wait_ms: int, config: Config, entropy: Entropy) -> None:
        self._schedule = schedule
        self._wait_ms = wait_ms
        self._config = config
        self._entropy = entropy
        self._windows: dict[int, _Scheduled] = {}
        self._left: set[int] = set()

    def keep(self, windows: Iterable[int], now_ms: int) -> list[int]:
        """Takes part in these windows, and in no others any more; those that are known keep their state.

        Returns:
            The windows that were to come, and never will. Those that are under way are none of them.
        """
        wanted = set(windows)
        self._left &= wanted
        under_way = {window: each for window, each in self._windows.items() if each.under_way}
        kept = {each: self._windows.get(each) or self._first(each, now_ms) for each in sorted(wanted - self._left)}
        gone = sorted(self._windows.keys() - under_way.keys() - kept.keys())
        self._windows = {**under_way, **kept}
        return gone

    def due(self, now_ms: int) -> list[int]:
        """The windows to begin now, oldest first; each is under way from here on."""
        due = [window for window, each in self._windows.items() if each.due_ms <= now_ms and not each.under_way]
        for window in due:
            self._windows[window].under_way = True
        return sorted(due)

    def next_ms(self) -> int | None:
        """When the next one is due; None where none is."""
        return min((each.due_ms for each in self._windows.values() if not each.under_way), default=None)

    def expedite(self, window: int, now_ms: int) -> None:
        """Makes a window due now, before its end, because of a flush."""
        scheduled = self._windows[window]
        if not scheduled.expedited:
            scheduled.expedited = True
            scheduled.due_ms = min(scheduled.due_ms, now_ms)

    def failed(self, window: int, now_ms: int, least_ms: int = 0) -> None:
        """An attempt has cost nothing: the window is due again after a while, of at least so long."""
        scheduled = self._windows.get(window)
        if scheduled is not None:
            asked_ms = min(max(least_ms, 0), ASKED_WAIT_MAX_MS)
            scheduled.due_ms = now_ms + asked_ms + round(1000 * scheduled.backoff.next_s())
            scheduled.under_way = False

    def leave(self, window: int) -> None:
        """This client takes no part in the window any more: it is spent, or the service wants none of it."""
        self._windows.pop(window, None)
        self._left.add(window)

    def takes_part(self, window: int) -> bool:
        """Whether the window is still to come, or under way."""
        return window in self._windows

    def _first(self, window: int, now_ms: int) -> _Scheduled:
        begin_ms = max(now_ms, self._schedule.end_ms(window))
        left_ms = self._schedule.end_ms(window) + self._schedule.lateness_ms - self._wait_ms - begin_ms
        part = int.from_bytes(self._entropy.read(4), "big")
        due_ms = begin_ms + max(left_ms, 0) * part // (_SPREAD << 32)
        return _Scheduled(due_ms, BackOff(self._config.backoff_first_s, self._config.backoff_longest_s, self._entropy))


_LOG: Final = logging.getLogger("edge_client")
_UPDATES_APART_S: Final = 5.0  # a wall clock may be set; this is how late it may be noticed


class WindowMode(Mode):
    """Submits for every window in which its client runs, once, whatever records there are."""

    def __init__(
        self, context: ClientContext, driver: SessionDriver, submissions: WindowSubmissions, *, wait_ms: int
    ) -> None:
        super().__init__(context, driver)
        retry = context.retry
        self._retry = retry
        self.runtime = retry.runtime
        self.submissions = submissions
        self._schedule = WindowSchedule(self.plan.window, wait_ms, retry.config, retry.entropy)
        self._updating = asyncio.Lock()
        self._windows = range(0)
        self._busy: dict[int, asyncio.Task[None]] = {}
        self._unreported: dict[int, bytes] = {}  # rounds of spent windows whose result is unknown
        self._reasons: dict[int, str] = {}  # of windows that are in no sum, until a flush has raised them
        self._woken = asyncio.Event()
        self._has_begun = False

    @abstractmethod
    async def _submit(self, window: int) -> None:
        """Submits for a window, which is due, or gives it up, or has it tried again."""

    @abstractmethod
    def _on_status(self, status: WindowStatus) -> None:
        """Handles this client's state in the windows of this moment."""

    async def _ask(self, window: int, round_id: bytes) -> None:
        """Asks for the result of a spent window, in a mode that fills ``_unreported``."""
        raise NotImplementedError

    @property
    def account(self) -> Account:
        return self.submissions.account

    def put(self, addition: Add) -> "asyncio.Future[tuple[StoredDelta, ...]]":
        """Puts an addition into the spool, where it waits for its window's submission."""
        return self.driver.writer.put(addition)

    async def begin(self, *, connect: bool) -> None:
        """Takes part in the windows of this moment, durably, and goes on from there."""
        await self._update()
        self.driver.tasks.spawn(self._run(), "windows")
        await super().begin(connect=connect)

    async def caught_up(self) -> None:
        if windows_at(self.plan.window, self.runtime.now_ms()) != self._windows:
            await self._update_open()

    async def flush(self, timeout_s: float | None) -> None:
        """Submits now for every window of this moment, and returns once the result of each is known.

        Raises:
            FlushTimeoutError: Not within the time.
            Exception: What has ended the session, or that it was closed.
        """
        await super().flush(timeout_s)
        self.driver.raise_failure()
        await self._update_open()
        windows = [window for window in self._windows if self._schedule.takes_part(window)]
        for window in windows:
            self._schedule.expedite(window, self.runtime.now_ms())
        self._woken.set()
        await self._wait_for({*windows, *self._unreported}, timeout_s)
        await super().flush(timeout_s)  # what a silo has submitted has its answer

    def take_uncounted(self) -> Mapping[int, str]:
        reasons, self._reasons = self._reasons, {}
        return reasons

    async def finish(self, timeout_s: float) -> None:
        await super().finish(timeout_s)
        await self._wait_for(set(self._busy), timeout_s)

    async def _run(self) -> None:
        while True:
            await self.runtime.blocking(self.submissions.erase)
            self._begin_what_is_due()
            await self._wait()
            try:
                await self._update()
            except SpoolError as error:
                _LOG.warning("window status unavailable, retrying: %s", error)

    async def _update_open(self) -> None:
        """:meth:`_update` for a caller outside of this client's tasks, during whose call the client may close.

        Raises:
            ClientStateError: It was closed.
            SpoolError: The spool cannot be written.
        """
        try:
            await self._update()
        except SpoolError:
            self.driver.raise_failure()  # the spool is closed with the client
            raise

    async def _update(self, *, anew: bool = False) -> None:
        """Updates this client's state in the windows of this moment, if they have changed, or if asked to."""
        async with self._updating:
            now_ms = self.runtime.now_ms()
            windows = windows_at(self.plan.window, now_ms)
            if windows == self._windows and not anew:
                return
            self._windows = range(0)  # if this fails, it is tried again
            status = await self.runtime.blocking(self.submissions.update, windows)
            self._windows = windows
            self._on_status(status)
            over = set(self._schedule.keep(status.open, now_ms))
            for window in self._busy.keys() - set(windows) - self._unreported.keys():
                self._busy[window].cancel()
                self._schedule.leave(window)
                over.add(window)
            for window in over:
                self._keep_reason(window, "it ended without a sum")
            if not self._has_begun:  # later on, each window that is given up has its reason already
                self._has_begun = True
                for window in status.passed:
                    self._keep_reason(window, "it ended while this client did not run, without a sum")
        self.driver.waiters.check()

    def _begin_what_is_due(self) -> None:
        for window, round_id in self._unreported.items():
            if window not in self._busy:
                self._start(window, self._ask(window, round_id))
        for window in self._schedule.due(self.runtime.now_ms()):
            self._start(window, self._submit(window))

    def _start(self, window: int, work: Coroutine[object, object, None]) -> None:
        task = self._busy[window] = self.driver.tasks.spawn(work, f"window-{window}")
        task.add_done_callback(lambda _: self._ended(window, task))

    def _ended(self, window: int, task: "asyncio.Task[None]") -> None:
        if self._busy.get(window) is task:
            del self._busy[window]
        self._woken.set()
        self.driver.waiters.check()

    async def _wait(self) -> None:
        """Until something is due, at most a few seconds."""
        now_ms = self.runtime.now_ms()
        next_ms = self._schedule.next_ms()
        end_ms = self.plan.window.end_ms(self.plan.window.index_at(now_ms))
        wait_s = (min(end_ms, end_ms if next_ms is None else next_ms) - now_ms) / 1000
        timer = self.driver.tasks.spawn(self._wake_after(min(max(wait_s, 0.0), _UPDATES_APART_S)), "windows-timer")
        try:
            await self._woken.wait()
        finally:
            timer.cancel()
        self._woken.clear()

    async def _wake_after(self, seconds: float) -> None:
        await self.runtime.sleep(seconds)
        self._woken.set()

    def _give_up(self, window: int, why: str) -> None:
        _LOG.warning("window %d: not counted: %s", window, why)
        self._schedule.leave(window)
        self._keep_reason(window, why)

    def _keep_reason(self, window: int, why: str) -> None:
        """For the next flush: the first reason of each window, of as many windows as can be open at a time."""
        if window not in self._reasons:
            self._reasons[window] = why
            self.on_event(Event(EventKind.NOT_COUNTED, f"window {window}: {why}", window=window))
        if len(self._reasons) > SEQUENCE_WINDOW:
            del self._reasons[min(self._reasons)]

    async def _wait_for(self, windows: set[int], timeout_s: float | None) -> None:
        self.driver.raise_failure()
        await self.driver.waiters.wait(lambda: not any(map(self._is_open, windows)), timeout_s, _timeout_error)

    def _is_open(self, window: int) -> bool:
        return self._schedule.takes_part(window) or window in self._unreported or window in self._busy


def _timeout_error(timeout_s: float) -> FlushTimeoutError:
    return FlushTimeoutError(f"the result of the submission is not known after {timeout_s:g} s; it continues")
