"""Cohorts as they form (pure): events and random bytes in, effects out.

Corrupt clients must not choose the members of a cohort (docs/explanation/secure-sums.md, Who is in a cohort). So
members are drawn uniformly from all who wait, only when at least P different clients do, and no client is told how many
wait. A plan without P states no bound on corrupt clients: there a cohort is drawn when N wait, or once the first of
them has waited for the plan's time and at least S are there.

A client has one place in a window:

- While it waits, its newest call stands: an older one is most likely a connection that is dead and not known to be.
- From the start of its round on, the call that is in it stands, and a newer one is refused until the round is over:
  a call under a stolen name pushes no client out of a round.
- A client whose vector was taken in a window never enters that window again.
- A client that has spoilt a round, which needs every member at first, comes in again only after a pause that doubles;
  then it waits like all others.
- A client is drawn into at most 8 cohorts of a window: what a plan promises counts so many draws.

Where members end a round before a vector was asked for, those that are left go on in another one, and no client is
drawn in their place. With ``rounds_max`` rounds under way nothing is drawn: what a server holds is bounded by that.
"""

import enum
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hushsum.entropy import Entropy
from hushsum.privacy.cohort import ATTEMPTS_MAX

PAUSE_MS: Final = 1000  # after the first round that a client has spoilt in a window
_WORD: Final = 8  # bytes that decide a draw


class CallKey(NamedTuple):
    """One call of one client: the number tells it from the client's others."""

    client_id: str
    number: int


@dataclass(frozen=True)
class CohortRules:
    """When a cohort starts."""

    size: int  # N clients at most
    least: int  # S of them at least
    wait_ms: int  # without a pool: how long the first one waits before fewer than N are enough
    rounds_max: int  # rounds that may be under way at once
    pool: int = 0  # P, how many must wait before any are drawn; 0: the plan states no pool


@dataclass(frozen=True, slots=True)
class Entered:
    """A client wants to take part in a window."""

    caller: CallKey
    window: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Left:
    """A call has ended."""

    caller: CallKey
    window: int


@dataclass(frozen=True, slots=True)
class Woke:
    """Time went on."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class RoundOver:
    """A round has ended."""

    window: int
    members: tuple[CallKey, ...]
    back: tuple[CallKey, ...]  # members that are still there and take part again; nothing of them was spent
    spent: frozenset[str]  # clients whose vector was taken
    now_ms: int
    spoilers: frozenset[str] = frozenset()  # because of whom it ended, at no cost, while all members were needed


@dataclass(frozen=True, slots=True)
class WindowOver:
    """A window takes no sums any more."""

    window: int


Event = Entered | Left | Woke | RoundOver | WindowOver


@dataclass(frozen=True, slots=True)
class Waits:
    """It waits; with how many others it is not told."""

    caller: CallKey


@dataclass(frozen=True, slots=True)
class Starts:
    """A round begins now; ``is_drawn``: with a cohort that was drawn now, else with those that are left of one."""

    window: int
    callers: tuple[CallKey, ...]
    is_drawn: bool


class EndReason(enum.Enum):
    """Why a call does not take part in a window, or not any more."""

    REPLACED = "replaced by a newer call of this client"
    IN_ROUND = "a round of this client is in progress in another call"
    TOOK_PART = "a vector of this client was already accepted in this window"
    TOO_SOON = "a round failed because of this client: retry later"
    DRAWN_TOO_OFTEN = f"this client was in {ATTEMPTS_MAX} cohorts of the window"
    CLOSED = "the window closed before a cohort was formed"


@dataclass(frozen=True, slots=True)
class Ends:
    """A call ends; ``wait_ms``: how long its client has to pause, for ``TOO_SOON``."""

    caller: CallKey
    reason: EndReason
    wait_ms: int = 0


Effect = Waits | Starts | Ends
_Places = dict[str, tuple[CallKey, int]]  # by client, with when it came


@dataclass
class _Forming:
    """One window."""

    waiting: _Places = field(default_factory=dict)
    in_rounds: _Places = field(default_factory=dict)
    spent: set[str] = field(default_factory=set)
    spoilt: dict[str, tuple[int, int]] = field(default_factory=dict)  # by client: rounds, and when it may come again
    draws: Counter[str] = field(default_factory=Counter)

    def starts_ms(self, rules: CohortRules) -> int | None:
        """When its next cohort is drawn; None: not before another client comes."""
        present = len(self.waiting)
        if present < (rules.pool or rules.least):
            return None
        first_ms = min(arrived_ms for _, arrived_ms in self.waiting.values())
        return first_ms if rules.pool or present >= rules.size else first_ms + rules.wait_ms

    def draw(self, rules: CohortRules, entropy: Entropy) -> list[tuple[CallKey, int]]:
        """The next cohort: N of those that wait, or all of them, each set of so many as likely as any other."""
        places = list(self.waiting.values())
        drawn = min(rules.size, len(places))
        for first in range(drawn):  # the beginning of a Fisher-Yates shuffle
            other = first + _below(len(places) - first, entropy)
            places[first], places[other] = places[other], places[first]
        for caller, _ in places[:drawn]:
            del self.waiting[caller.client_id]
            self.draws[caller.client_id] += 1
        return places[:drawn]

    def blame(self, client_id: str, now_ms: int) -> None:
        rounds = self.spoilt.get(client_id, (0, 0))[0] + 1
        self.spoilt[client_id] = rounds, now_ms + (PAUSE_MS << (rounds - 1))


class Cohorts:
    """Forms the cohorts of one plan in one process."""

    def __init__(self, rules: CohortRules, entropy: Entropy) -> None:
        self._rules = rules
        self._entropy = entropy
        self._windows: dict[int, _Forming] = {}
        self._rounds = 0

    @property
    def windows(self) -> tuple[int, ...]:
        return tuple(self._windows)

    @property
    def waiting(self) -> int:
        return sum(len(forming.waiting) for forming in self._windows.values())

    @property
    def wakes_ms(self) -> int | None:
        """When to handle :class:`Woke`; None: not before something else happens."""
        if self._rounds >= self._rules.rounds_max:
            return None
        times = [forming.starts_ms(self._rules) for forming in self._windows.values()]
        return min((time for time in times if time is not None), default=None)

    def handle(self, event: Event) -> list[Effect]:
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
                return [Ends(caller, EndReason.CLOSED) for caller, _ in forming.waiting.values()]

    def _enter(self, event: Entered) -> Iterator[Effect]:
        client_id = event.caller.client_id
        forming = self._windows.setdefault(event.window, _Forming())
        if client_id in forming.spent:
            yield Ends(event.caller, EndReason.TOOK_PART)
            return
        if client_id in forming.in_rounds:
            yield Ends(event.caller, EndReason.IN_ROUND)
            return
        _, not_before_ms = forming.spoilt.get(client_id, (0, event.now_ms))
        if event.now_ms < not_before_ms:
            yield Ends(event.caller, EndReason.TOO_SOON, not_before_ms - event.now_ms)
            return
        older = forming.waiting.get(client_id)
        if older is not None:
            yield Ends(older[0], EndReason.REPLACED)
        yield self._wait(forming, event.caller, event.now_ms if older is None else older[1])

    def _wait(self, forming: _Forming, caller: CallKey, arrived_ms: int) -> Waits | Ends:
        if forming.draws[caller.client_id] >= ATTEMPTS_MAX:
            return Ends(caller, EndReason.DRAWN_TOO_OFTEN)
        forming.waiting[caller.client_id] = (caller, arrived_ms)
        return Waits(caller)

    def _leave(self, caller: CallKey, window: int) -> None:
        waiting = self._windows.get(window, _Forming()).waiting
        if waiting.get(caller.client_id, (None, 0))[0] == caller:
            del waiting[caller.client_id]

    def _end(self, event: RoundOver) -> Iterator[Effect]:
        self._rounds -= 1
        forming = self._windows.get(event.window)
        if forming is None:  # it closed meanwhile
            yield from (Ends(caller, EndReason.CLOSED) for caller in event.back)
            return
        arrived = {}
        for caller in event.members:
            arrived[caller.client_id] = forming.in_rounds.pop(caller.client_id, (caller, event.now_ms))[1]
        forming.spent |= event.spent
        for client_id in sorted(event.spoilers):
            forming.blame(client_id, event.now_ms)
        if self._rules.least <= len(event.back):
            left = [(caller, arrived[caller.client_id]) for caller in event.back]
            yield self._begin(event.window, forming, left, is_drawn=False)
            return
        for caller in event.back:
            yield self._wait(forming, caller, arrived[caller.client_id])

    def _start(self, now_ms: int) -> Iterator[Effect]:
        """Every cohort that is there, as far as rounds may begin."""
        for window, forming in sorted(self._windows.items()):
            while self._rounds < self._rules.rounds_max and self._is_there(forming, now_ms):
                yield self._begin(window, forming, forming.draw(self._rules, self._entropy), is_drawn=True)

    def _is_there(self, forming: _Forming, now_ms: int) -> bool:
        starts_ms = forming.starts_ms(self._rules)
        return starts_ms is not None and now_ms >= starts_ms

    def _begin(
        self, window: int, forming: _Forming, places: Iterable[tuple[CallKey, int]], *, is_drawn: bool
    ) -> Starts:
        self._rounds += 1
        taken = {caller.client_id: (caller, arrived_ms) for caller, arrived_ms in places}
        forming.in_rounds |= taken
        return Starts(window, tuple(caller for caller, _ in taken.values()), is_drawn)


def _below(count: int, entropy: Entropy) -> int:
    """A uniform integer from 0 to below ``count``; a word beyond the last whole multiple is drawn again."""
    whole = (1 << 8 * _WORD) // count * count
    while (word := int.from_bytes(entropy.read(_WORD), "big")) >= whole:
        pass
    return word % count
