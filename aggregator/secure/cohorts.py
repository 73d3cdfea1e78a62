"""Cohorts as they form, by size and time (pure): events in, effects out.

A cohort starts when N clients wait, or once the first of them has waited for the plan's time and at least S are there.
A client has one place in a window:

- While it waits, its newest call stands: an older one is most likely a connection that is dead and not known to be.
- From the start of its round on, the call that is in it stands, and a newer one is refused until the round is over:
  whoever comes under a client's name pushes nobody out of a round.
- A client whose vector was taken in a window never enters that window again.

With ``rounds_max`` rounds under way cohorts wait, the oldest clients first: what a server holds is bounded by that.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class Caller(NamedTuple):
    """One call of one client: the number tells it from the client's others."""

    client_id: str
    number: int


@dataclass(frozen=True)
class CohortRules:
    """When a cohort starts.

    Attributes:
        size: N clients at most.
        least: S of them at least.
        wait_ms: How long the first one waits before fewer than N are enough.
        rounds_max: Rounds that may be under way at once.
    """

    size: int
    least: int
    wait_ms: int
    rounds_max: int


class Entered(NamedTuple):
    """A client wants to take part in a window."""

    caller: Caller
    window: int
    now_ms: int


class Left(NamedTuple):
    """A call has ended."""

    caller: Caller
    window: int


class Woke(NamedTuple):
    """Time went on."""

    now_ms: int


class RoundOver(NamedTuple):
    """A round has ended.

    Attributes:
        window: Its window.
        members: All that were in it.
        back: Those of them that are still there and take part again; nothing of them was spent.
        spent: Clients whose vector was taken.
        now_ms: The clock.
    """

    window: int
    members: tuple[Caller, ...]
    back: tuple[Caller, ...]
    spent: frozenset[str]
    now_ms: int


class WindowOver(NamedTuple):
    """A window takes no sums any more."""

    window: int


Event = Entered | Left | Woke | RoundOver | WindowOver


class Waits(NamedTuple):
    """It waits, with so many others."""

    caller: Caller
    present: int


class Starts(NamedTuple):
    """A cohort: its round begins now."""

    window: int
    callers: tuple[Caller, ...]


class Replaced(NamedTuple):
    """A newer call of the same client has taken its place."""

    caller: Caller


class InRound(NamedTuple):
    """Refused: a round of this client is under way."""

    caller: Caller


class TookPart(NamedTuple):
    """Refused: this client's vector was taken in this window."""

    caller: Caller


class Closed(NamedTuple):
    """The window closed before a cohort was there."""

    caller: Caller


Effect = Waits | Starts | Replaced | InRound | TookPart | Closed


@dataclass
class _Forming:
    """One window."""

    waiting: dict[str, tuple[Caller, int]] = field(default_factory=dict)  # by client, with when it came; oldest first
    in_rounds: dict[str, tuple[Caller, int]] = field(default_factory=dict)
    spent: set[str] = field(default_factory=set)


class Cohorts:
    """Forms the cohorts of one plan in one process.

    Args:
        rules: When a cohort starts.
    """

    def __init__(self, rules: CohortRules) -> None:
        self._rules = rules
        self._windows: dict[int, _Forming] = {}
        self._rounds = 0

    @property
    def windows(self) -> tuple[int, ...]:
        """Those of which anything is remembered."""
        return tuple(self._windows)

    @property
    def waiting(self) -> int:
        """Clients that wait."""
        return sum(len(forming.waiting) for forming in self._windows.values())

    @property
    def wakes_ms(self) -> int | None:
        """When to say that time went on; None: not before something else happens."""
        times = [
            next(iter(forming.waiting.values()))[1] + self._rules.wait_ms
            for forming in self._windows.values()
            if len(forming.waiting) >= self._rules.least
        ]
        return min(times, default=None) if self._rounds < self._rules.rounds_max else None

    def handle(self, event: Event) -> list[Effect]:
        """What is to be done now."""
        match event:
            case Entered():
                return [*self._enter(event), *self._start(event.now_ms)]
            case Left(caller, window):
                self._leave(caller, window)
                return []
            case Woke(now_ms):
                return list(self._start(now_ms))
            case RoundOver():
                return [*self._end(event), *self._start(event.now_ms)]
            case WindowOver(window):
                forming = self._windows.pop(window, _Forming())
                return [Closed(caller) for caller, _ in forming.waiting.values()]

    def _enter(self, event: Entered) -> Iterator[Effect]:
        client_id = event.caller.client_id
        forming = self._windows.setdefault(event.window, _Forming())
        if client_id in forming.spent:
            yield TookPart(event.caller)
            return
        if client_id in forming.in_rounds:
            yield InRound(event.caller)
            return
        older = forming.waiting.get(client_id)
        # It keeps the place in time that it had: coming back costs nobody anything.
        forming.waiting[client_id] = (event.caller, event.now_ms if older is None else older[1])
        if older is not None:
            yield Replaced(older[0])
        yield Waits(event.caller, len(forming.waiting))

    def _leave(self, caller: Caller, window: int) -> None:
        forming = self._windows.get(window)
        if forming is not None and forming.waiting.get(caller.client_id, (None, 0))[0] == caller:
            del forming.waiting[caller.client_id]

    def _end(self, event: RoundOver) -> Iterator[Effect]:
        self._rounds -= 1
        forming = self._windows.get(event.window)
        if forming is None:  # it closed meanwhile
            yield from map(Closed, event.back)
            return
        arrived = {}
        for caller in event.members:
            arrived[caller.client_id] = forming.in_rounds.pop(caller.client_id, (caller, event.now_ms))[1]
        forming.spent |= event.spent
        if self._rules.least <= len(event.back):
            yield self._begin(event.window, forming, [(caller, arrived[caller.client_id]) for caller in event.back])
            return
        back = {caller.client_id: (caller, arrived[caller.client_id]) for caller in event.back}
        places = {**forming.waiting, **back}
        forming.waiting = dict(sorted(places.items(), key=lambda place: place[1][1]))
        for caller in event.back:
            yield Waits(caller, len(forming.waiting))

    def _start(self, now_ms: int) -> Iterator[Effect]:
        """Every cohort that is there, as far as rounds may begin."""
        for window, forming in sorted(self._windows.items()):
            while self._rounds < self._rules.rounds_max and self._is_there(forming, now_ms):
                taken = list(forming.waiting.values())[: self._rules.size]
                for caller, _ in taken:
                    del forming.waiting[caller.client_id]
                yield self._begin(window, forming, taken)

    def _is_there(self, forming: _Forming, now_ms: int) -> bool:
        present = len(forming.waiting)
        if present >= self._rules.size:
            return True
        if present < self._rules.least:
            return False
        return now_ms - next(iter(forming.waiting.values()))[1] >= self._rules.wait_ms

    def _begin(self, window: int, forming: _Forming, places: Iterable[tuple[Caller, int]]) -> Starts:
        self._rounds += 1
        taken = {caller.client_id: (caller, arrived_ms) for caller, arrived_ms in places}
        forming.in_rounds |= taken
        return Starts(window, tuple(caller for caller, _ in taken.values()))
