"""Which windows a gateway takes deltas for: opened by its clock, never by data, and known from the store."""

import math
from collections.abc import Collection, Mapping
from typing import Final

from aggregator.errors import RefusedError
from aggregator.runtime import Runtime
from aggregator.staleness_guard import StalenessGuard
from aggregator.store.store import Store
from aggregator.windows import UNSEALED, WindowState, accepted_windows
from hushsum.errors import Reason
from hushsum.plan import Plan
from hushsum_proto.answers import Refusal, ServiceReason

_ORDER: Final = tuple(WindowState)
_NEVER_OPEN: Final = frozenset({None, WindowState.SKIPPED})
_SPAN_AGE_S_MAX: Final = 0.25  # of what a client is told when its session opens; every answer reads the store anew
_SLEEP_S_MAX: Final = 5.0  # a wall clock may be set; this is how late a gateway may notice


class WindowTracker:
    """The windows of one plan by the latest read of the store. It starts with :meth:`load`.

    States only move on, so a window that is known not to be open stays so; one that is known as open may no longer be.
    A device's clock may be ``skew_ms`` ahead of this one. ``staleness`` says whether the store lags behind the log;
    None where the folds are here, and it does not.
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        runtime: Runtime,
        *,
        skew_ms: int,
        first_window: int,
        staleness: StalenessGuard | None = None,
    ) -> None:
        self._plan = plan
        self._store = store
        self._runtime = runtime
        self._skew_ms = skew_ms
        self.first_window = first_window
        self._staleness = staleness
        self._known: dict[int, WindowState] = {}
        self._read_s = -math.inf  # when the latest read of all open windows began
        self._beyond: int | None = None  # the first window that the store did not open because of the plan's horizon

    def state(self, window: int) -> WindowState | None:
        """The window's state as of the latest read of the store; None where no gateway had opened it."""
        return self._known.get(window)

    def confirmed_state(self, window: int) -> WindowState | None:
        """Like :meth:`state`, for an acknowledgement: None, too, while the store may lag behind the log.

        A seal may then have been appended that the store has not recorded.
        """
        state = self.state(window)
        is_doubtful = state is WindowState.OPEN and self._staleness is not None and bool(self._staleness.why)
        return None if is_doubtful else state

    def is_over(self, window: int) -> bool:
        """Whether nothing that is appended for it from now on can count: every fold has closed it, or it was skipped.

        That includes a window that was never open here and that the clock no longer allows.
        """
        state = self.state(window)
        return window < self.accepted().start if state is None else state not in UNSEALED

    def check_store(self) -> None:
        """Raises RefusedError while the store may be behind the log; a probe is under way."""
        if self._staleness is not None:
            self._staleness.check()

    def accepted(self) -> range:
        """The windows that the clock and the stated skew allow now."""
        return accepted_windows(
            self._plan.window, self._runtime.now_ms(), skew_ms=self._skew_ms, first_window=self.first_window
        )

    async def span(self) -> tuple[int, int]:
        """The oldest and the newest window that take deltas now, by a read of the store of the last quarter second."""
        await self.open_accepted()  # the clock may have been set since the task below looked
        if self._runtime.monotonic() - self._read_s > _SPAN_AGE_S_MAX:
            await self.refresh()
        accepted = self.accepted()
        return min([*self._open(), accepted.start]), max(accepted.stop - 1, self.first_window)

    def check(self, window: int) -> None:
        """Checks that a window takes deltas, or did.

        Raises:
            RefusedError: The window is before the plan's first, beyond the clock and the skew or the plan's horizon, or
                was never open.
        """
        if window < self.first_window:
            detail = f"window {window}, expected {self.first_window} or later, the first window of the plan here"
            raise RefusedError(Refusal.of(Reason.WINDOW_IN_PAST, detail))
        state = self.state(window)
        if state is WindowState.OPEN:
            return
        if state is None and self._beyond is not None and window >= self._beyond:
            horizon = self._plan.window.horizon
            detail = f"window {window}: the horizon of the plan is {horizon} outcomes, all of them of earlier windows"
            raise RefusedError(Refusal.of(Reason.WINDOW_BEYOND_HORIZON, detail))
        accepted = self.accepted()
        if state is None and window >= accepted.stop:
            detail = f"window {window}, expected at most {accepted.stop - 1} by this clock and skew_s"
            raise RefusedError(Refusal.of(Reason.WINDOW_IN_FUTURE, detail))
        if state is WindowState.SKIPPED or (state is None and window < accepted.start):
            detail = f"window {window} was never opened by a gateway"
            raise RefusedError(Refusal.of(ServiceReason.WINDOW_NOT_OPEN, detail))

    async def load(self) -> None:
        self._learn(await self._store.windows(self._plan.id))

    async def refresh(self, windows: Collection[int] = ()) -> None:
        """Reads again the states of these windows, and of all that are known as open or as closing."""
        began_s, was_open = self._runtime.monotonic(), self._open()
        wanted = [*windows, *(window for window, state in self._known.items() if state in UNSEALED)]
        if wanted:
            states = await self._store.states(self._plan.id, min(wanted), max(wanted))
            self._learn(states)
            # A store that went back to an older moment may have lost a window: nothing is acknowledged for it any more.
            for window in was_open:
                if window not in states and self._known.get(window) is WindowState.OPEN:
                    del self._known[window]
        self._read_s = max(self._read_s, began_s)

    async def open_accepted(self) -> None:
        """Records that the windows that the clock allows are open here, where nothing is known of them yet."""
        horizon = self._plan.window.horizon
        below = self.accepted().stop if self._beyond is None else self._beyond
        missing = [window for window in self.accepted() if window not in self._known and window < below]
        if missing:
            first, last = min(missing), max(missing)
            beyond = await self._store.open_windows(
                self._plan.id, first, last, horizon=horizon, latest=self._latest_window
            )
            await self.refresh(missing)
            if beyond is not None:
                self._beyond = beyond

    def _latest_window(self, now_ms: int) -> int:
        """The last window that devices may send for at this time."""
        return self._plan.window.index_at(now_ms + self._skew_ms)

    async def ensure(self, windows: Collection[int]) -> None:
        """Makes sure that these windows are known, as far as the clock opens them: data opens none."""
        if any(window not in self._known for window in windows):
            await self.open_accepted()

    async def never_open(self, windows: Collection[int]) -> Collection[int]:
        """Those that nothing may be appended for: skipped ones, and those that the clock has not opened.

        A window that is not known after :meth:`ensure` was never open: its time went by, or the clock was set back.
        """
        await self.ensure(windows)
        return [window for window in windows if self.state(window) in _NEVER_OPEN]

    async def read_confirmed(self, windows: Collection[int]) -> Mapping[int, WindowState | None]:
        """The states of windows by a read of the store that begins now; None as of :meth:`confirmed_state`."""
        await self.refresh(windows)
        return {window: self.confirmed_state(window) for window in windows}

    async def run(self) -> None:
        """Opens each window when the clock reaches it, until cancelled."""
        while True:
            await self.open_accepted()
            opens_next_ms = self._plan.window.start_ms(self.accepted().stop) - self._skew_ms
            wait_s = (opens_next_ms - self._runtime.now_ms()) / 1000
            await self._runtime.sleep(min(max(wait_s, 0.001), _SLEEP_S_MAX))

    def _learn(self, states: Mapping[int, str]) -> None:
        for window, name in states.items():
            state, known = WindowState(name), self._known.get(window)
            # Two reads may end in another order than they began in; a state never goes back.
            if known is None or _ORDER.index(state) > _ORDER.index(known):
                self._known[window] = state

    def _open(self) -> list[int]:
        return [window for window, state in self._known.items() if state is WindowState.OPEN]
