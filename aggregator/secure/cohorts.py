"""Cohorts as they form, by size and time (pure): events in, effects out.

A cohort starts when N clients wait, or once the first of them has waited for the plan's time and at least S are there.
A client has one place in a window:

- While it waits, its newest call stands: an older one is most likely a connection that is dead and not known to be.
- From the start of its round on, the call that is in it stands, and a newer one is refused until the round is over:
  whoever comes under a client's name pushes nobody out of a round.
- A client whose vector was taken in a window never enters that window again.
- A client that has spoilt rounds, which need every member at first, comes in again only after a pause that doubles, and
  waits behind all others: it is in no cohort while enough others are there. One client could else use up the few
  rounds that each has in a window.

With ``rounds_max`` rounds under way cohorts wait, the oldest clients first: what a server holds is bounded by that.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

PAUSE_MS: Final = 1000  # after the first round that a client has spoilt in a window
PAUSE_MS_MAX: Final = 600_000


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
        spoilers: Clients because of whom it ended, at no cost, while all members were needed.
    """

    window: int
    members: tuple[Caller, ...]
    back: tuple[Caller, ...]
    spent: frozenset[str]
    now_ms: int
    spoilers: frozenset[str] = frozenset()


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


class TooSoon(NamedTuple):
    """Refused: it has spoilt a round of this window, and has to pause."""

    caller: Caller
    wait_ms: int


class Closed(NamedTuple):
    """The window closed before a cohort was there."""

    caller: Caller


Effect = Waits | Starts | Replaced | InRound | TookPart | TooSoon | Closed
_Places = dict[str, tuple[Caller, int]]  # by client, with when it came; oldest first


@dataclass
class _Forming:
    """One window."""

    waiting: _Places = field(default_factory=dict)
    behind: _Places = field(default_factory=dict)  # of those that wait, the ones that have spoilt rounds
    in_rounds: _Places = field(default_factory=dict)
    spent: set[str] = field(default_factory=set)
    spoilt: dict[str, tuple[int, int]] = field(default_factory=dict)  # by client: rounds, and when it may come again

    @property
    def present(self) -> int:
        return len(self.waiting) + len(self.behind)

    def line_of(self, client_id: str) -> _Places:
        """Where a client waits."""
        return self.behind if client_id in self.spoilt else self.waiting

    def starts_ms(self, rules: CohortRules) -> int | None:
        """When its next cohort is there; None: not before somebody comes."""
        if self.present < rules.least:
            return None
        lines = [self.waiting] if len(self.waiting) >= rules.least else [self.waiting, self.behind]
        first_ms = min(next(iter(line.values()))[1] for line in lines if line)
        return first_ms if len(self.waiting) >= rules.size else first_ms + rules.wait_ms

    def take(self, rules: CohortRules) -> list[tuple[Caller, int]]:
        """The next cohort: of those that have spoilt nothing, and of others only where those are too few."""
        taken = list(self.waiting.values())[: rules.size]
        if len(taken) < rules.least:
            behind = sorted(self.behind.values(), key=lambda place: (self.spoilt[place[0].client_id][0], place[1]))
            taken += behind[: rules.size - len(taken)]
        for caller, _ in taken:
            del self.line_of(caller.client_id)[caller.client_id]
        return taken

    def blame(self, client_id: str, now_ms: int) -> None:
        """It has spoilt a round."""
        rounds = self.spoilt.get(client_id, (0, 0))[0] + 1
        self.spoilt[client_id] = rounds, now_ms + min(PAUSE_MS << min(rounds - 1, 16), PAUSE_MS_MAX)


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
        return sum(forming.present for forming in self._windows.values())

    @property
    def wakes_ms(self) -> int | None:
        """When to say that time went on; None: not before something else happens."""
        times = [forming.starts_ms(self._rules) for forming in self._windows.values()]
        return (
            min((time for time in times if time is not None), default=None)
            if self._rounds < self._rules.rounds_max
            else None
        )

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
                return [Closed(caller) for caller, _ in [*forming.waiting.values(), *forming.behind.values()]]

    def _enter(self, event: Entered) -> Iterator[Effect]:
        client_id = event.caller.client_id
        forming = self._windows.setdefault(event.window, _Forming())
        if client_id in forming.spent:
            yield TookPart(event.caller)
            return
        if client_id in forming.in_rounds:
            yield InRound(event.caller)
            return
        _, not_before_ms = forming.spoilt.get(client_id, (0, event.now_ms))
        if event.now_ms < not_before_ms:
            yield TooSoon(event.caller, not_before_ms - event.now_ms)
            return
        line = forming.line_of(client_id)
        older = line.get(client_id)
        # It keeps the place in time that it had: coming back costs nobody anything.
        line[client_id] = (event.caller, event.now_ms if older is None else older[1])
        if older is not None:
            yield Replaced(older[0])
        yield Waits(event.caller, forming.present)

    def _leave(self, caller: Caller, window: int) -> None:
        line = self._windows.get(window, _Forming()).line_of(caller.client_id)
        if line.get(caller.client_id, (None, 0))[0] == caller:
            del line[caller.client_id]

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
        for client_id in sorted(event.spoilers):
            forming.blame(client_id, event.now_ms)
        if self._rules.least <= len(event.back):
            yield self._begin(event.window, forming, [(caller, arrived[caller.client_id]) for caller in event.back])
            return
        for caller in event.back:
            forming.line_of(caller.client_id)[caller.client_id] = (caller, arrived[caller.client_id])
        forming.waiting = dict(sorted(forming.waiting.items(), key=lambda place: place[1][1]))
        forming.behind = dict(sorted(forming.behind.items(), key=lambda place: place[1][1]))
        for caller in event.back:
            yield Waits(caller, forming.present)

    def _start(self, now_ms: int) -> Iterator[Effect]:
        """Every cohort that is there, as far as rounds may begin."""
        for window, forming in sorted(self._windows.items()):
            while self._rounds < self._rules.rounds_max and self._is_there(forming, now_ms):
                yield self._begin(window, forming, forming.take(self._rules))

    def _is_there(self, forming: _Forming, now_ms: int) -> bool:
        starts_ms = forming.starts_ms(self._rules)
        return starts_ms is not None and now_ms >= starts_ms

    def _begin(self, window: int, forming: _Forming, places: Iterable[tuple[Caller, int]]) -> Starts:
        self._rounds += 1
        taken = {caller.client_id: (caller, arrived_ms) for caller, arrived_ms in places}
        forming.in_rounds |= taken
        return Starts(window, tuple(caller for caller, _ in taken.values()))
