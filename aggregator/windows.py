"""The life cycle of windows, and the order of seals and outcomes: a pure state machine.

    open ──▶ closing ──▶ sealed ──▶ released, or withheld
    (never opened) ──▶ skipped

A window is *open* once a gateway has recorded it, with or without submissions: a fact about the service and its clock,
never about data. It is *closing* before the first seal is appended, *sealed* once every partition has stored its sealed
counters, *released* or *withheld* once the outcome is stored: both are final. Seals and outcomes follow the order of
the windows; a window that no gateway had open is skipped, at the latest when a later one closes.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from aggregator.errors import WindowOrderError
from hushsum.schedule import Schedule


class WindowState(enum.StrEnum):
    """The state of a window; stored under these names."""

    OPEN = "open"
    CLOSING = "closing"
    SEALED = "sealed"
    RELEASED = "released"
    WITHHELD = "withheld"
    SKIPPED = "skipped"


#: The transitions; no others happen.
MOVES: Final[Mapping[WindowState | None, frozenset[WindowState]]] = {
    None: frozenset({WindowState.OPEN, WindowState.SKIPPED}),
    WindowState.OPEN: frozenset({WindowState.CLOSING}),
    WindowState.CLOSING: frozenset({WindowState.SEALED}),
    WindowState.SEALED: frozenset({WindowState.RELEASED, WindowState.WITHHELD}),
    WindowState.RELEASED: frozenset(),
    WindowState.WITHHELD: frozenset(),
    WindowState.SKIPPED: frozenset(),
}
#: An entry appended for such a window may still count.
UNSEALED: Final = frozenset({WindowState.OPEN, WindowState.CLOSING})
#: Every fold has closed such a window: no entry appended for it can count. (While it is *closing*, a delta is still
#: appended: another copy of it may be on its way, and only the fold's verdict after both is final.)
OVER: Final = frozenset({WindowState.SEALED, WindowState.RELEASED, WindowState.WITHHELD})
#: Without an outcome, in the order of the life cycle.
UNFINISHED: Final = (WindowState.OPEN, WindowState.CLOSING, WindowState.SEALED)
_DECIDED: Final = frozenset({WindowState.RELEASED, WindowState.WITHHELD})
_FINISHED: Final = _DECIDED | {WindowState.SKIPPED}


def accepted_windows(schedule: Schedule, now_ms: int, *, skew_ms: int, first_window: int) -> range:
    """The windows that a gateway has open: from the one that held now − lateness to the one that holds now + skew.

    ``skew_ms`` is how far a device's clock may be ahead; windows before the plan's first one in this store are never
    accepted.
    """
    oldest = schedule.index_at(now_ms - schedule.lateness_ms)
    newest = schedule.index_at(now_ms + skew_ms)
    return range(max(oldest, first_window), max(newest, first_window - 1) + 1)


def due_ms(schedule: Schedule, window: int) -> int:
    """When a window's seal is due: from then on no gateway accepts submissions for it by its own clock."""
    return schedule.end_ms(window) + schedule.lateness_ms


def _utc(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


@dataclass(frozen=True)
class WindowBook:
    """State by window, and the next steps; finished windows may be left out, windows that were never open are."""

    states: Mapping[int, WindowState]

    def next_to_seal(self) -> int | None:
        """The oldest window that is not sealed yet."""
        return min((window for window, state in self.states.items() if state in UNSEALED), default=None)

    def due_to_seal(self, schedule: Schedule, now_ms: int) -> int | None:
        """The oldest window that is not sealed yet, if its seal is due or was begun."""
        window = self.next_to_seal()
        if window is None:
            return None
        begun = self.states[window] is WindowState.CLOSING
        return window if begun or now_ms >= due_ms(schedule, window) else None

    def next_outcome(self) -> int | None:
        """The oldest window without an outcome, if it is sealed."""
        oldest = min((window for window, state in self.states.items() if state not in _FINISHED), default=None)
        return oldest if oldest is not None and self.states[oldest] is WindowState.SEALED else None

    def check_seal(self, window: int) -> None:
        """Checks that a window is sealed already, or the next to be sealed.

        Raises:
            WindowOrderError: No gateway had it open, or an older one comes first.
        """
        state = self.states.get(window)
        if state is None or state is WindowState.SKIPPED:
            raise WindowOrderError(f"window {window} cannot be sealed: it was never opened by a gateway")
        first = self.next_to_seal()
        if state in UNSEALED and first is not None and first < window:
            raise WindowOrderError(f"window {window} cannot be sealed yet: window {first} is {self.states[first]}")

    def check_over(self, window: int, schedule: Schedule, now_ms: int) -> None:
        """Checks that a window that is still open is past its end and lateness.

        Raises:
            WindowOrderError: It is not: what is on its way to it would be late.
        """
        if self.states.get(window) is WindowState.OPEN and now_ms < due_ms(schedule, window):
            ends, due = (_utc(time_ms) for time_ms in (schedule.end_ms(window), due_ms(schedule, window)))
            raise WindowOrderError(
                f"window {window} is not over: it ends at {ends} and accepts late deltas until {due} (UTC); "
                "to seal it earlier and lose later deltas, use --window with --early"
            )

    def check_outcome(self, window: int) -> None:
        """Checks that a window has its outcome already, or is the next for it.

        Raises:
            WindowOrderError: It is not sealed, or an older one comes first.
        """
        state = self.states.get(window)
        if state in _DECIDED:
            return
        if state is not WindowState.SEALED:
            raise WindowOrderError(f"window {window} cannot be released: it is {state or 'unknown'}, not sealed")
        oldest = min(w for w, s in self.states.items() if s not in _FINISHED)
        if oldest < window:
            raise WindowOrderError(f"window {window} cannot be released yet: window {oldest} is {self.states[oldest]}")
