"""When a client submits for its windows, in secure sums and as a silo: a schedule without clocks or tasks.

A running client takes part once in every window in which it runs, with records or without: what this module looks at is
the plan's schedule, a clock, and what became of earlier attempts; never a record (PRIVACY: relations, zero-out). It
begins after the window's end, at a moment drawn from the first quarter of the time that is left beside the longest wait
for a cohort, so that a fleet does not come all at once; what fails before anything is spent is tried again, with
back-off, until the window is over.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from edge_client.backoff import BackOff
from edge_client.config import ASKED_WAIT_MAX_MS, SEQUENCE_WINDOW, Config
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


class Participation:
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
