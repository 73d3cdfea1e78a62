"""How much one caller may send and hold: rates, places, streams, and waiting in turn.

What is counted is the caller's: bytes of deltas, calls, reports. A client owes what it has sent, and pays it off at the
rate. What comes while it owes no more than the burst is taken whole, so that nothing is too large to be ever taken;
what comes while it owes more is refused, and costs nothing. In any time t a client thus gets at most burst + rate·t
units and one thing more through.

What the service then could not take for reasons of its own is given back.

What decides about a client is its own sends alone. A client that owes nothing is forgotten soon, which changes nothing
for it. A debt is never forgotten before it is paid: where so many clients owe something that no more are remembered,
those that come new are refused as overload, and nobody's debt is flushed out by others.

What is remembered of a client is a hash under a key of this process, which no other one knows, and the time when it has
paid: from that time on it is kept for :data:`FORGET_S` at most.

A client is a name: where names are only declared, a liar takes another one, and with it another burst. So a rate holds
mistakes and single names; of all names together it bounds nothing.

How many streams a client may have in a window is bounded, too: what decides about a delta is which of them its own
client has used, and nothing that others sent. What is nobody's has no client to be counted under; its sender has a
rate.

Everybody shares the log's queue, the memory of deltas that come in, and the calls that one process can answer. A client
has a rate of each and a share of what is held, so that no single one fills what all share. What decides about a client
is its own doing alone. Who has no name (a reader, or the operator, where names are only declared) is not limited here.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

from aggregator.config import Config
from aggregator.errors import AggregatorError, RefusedError, overloaded, rate_limited, share_taken
from aggregator.fold.fold import NOBODY
from aggregator.fold.state import StreamUse
from aggregator.runtime import Runtime
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
from hushsum_proto.answers import Answer, ServiceReason

CLIENTS_MAX: Final = 1 << 18  # some 50 MB
#: What a batch costs at least, in reports: whatever its size, it takes an entry of the log, a row of the store and its
#: id in the fold until its window is forgotten, some 450 bytes. At 1,000 reports a second that is 16 batches.
BATCH_COST_MIN: Final = 64
#: How often those are forgotten that owe nothing any more.
FORGET_S: Final = 5.0
_FULL_S: Final = 1.0  # where there is no more room: looking through all that owe something takes some 20 ms
_NAME_BYTES: Final = 16
_WAIT_MS_MAX: Final = 2**31 - 1  # the most that is told
_KEY_BYTES: Final = 32


class DebtTable(Protocol):
    """What remembers debts."""

    def forget_paid(self, now_s: float) -> None:
        """Forgets who owes nothing any more."""


async def forget_paid(limits: Iterable[DebtTable], runtime: Runtime) -> None:
    """Forgets again and again, for ever."""
    every = [*limits]
    while True:
        await runtime.sleep(FORGET_S)
        for each in every:
            each.forget_paid(runtime.monotonic())


class RateLimits:
    """What each client owes.

    Args:
        rate: Units a second that a client may send.
        burst: Units that it may be ahead of that.
        clients_max: Clients that are remembered because they owe something.
        key: Of the hash of their names, 16 to 64 random bytes; None: of the operating system's.
    """

    def __init__(self, rate: float, burst: int, clients_max: int = CLIENTS_MAX, *, key: bytes | None = None) -> None:
        self._rate = rate
        self._burst_s = burst / rate
        self._clients_max = clients_max
        self._key = OsEntropy().read(_KEY_BYTES) if key is None else key
        self._free_s: dict[bytes, float] = {}  # when a client owes nothing any more
        self._looked_s = -math.inf

    def __len__(self) -> int:
        return len(self._free_s)

    def wait_ms(self, client_id: str, units: int, now_s: float) -> int | None:
        """Takes so many units of a client, if it may send them now.

        Args:
            client_id: Whose.
            units: 1 or more.
            now_s: A monotonic clock.

        Returns:
            0: they are taken. Above 0: so many milliseconds later they would be. None: nobody new is remembered now.
        """
        name = self._hashed(client_id)
        known_s = self._free_s.get(name)
        free_s = now_s if known_s is None else max(known_s, now_s)
        if wait_ms := self._over_ms(free_s, now_s):
            return wait_ms
        if known_s is None and not self._has_room(now_s):
            return None
        self._free_s[name] = free_s + units / self._rate
        return 0

    def charge(self, client_id: str, units: int, now_s: float) -> bool:
        """Takes so many units of a client, however much it owes; False: nobody new is remembered now."""
        name = self._hashed(client_id)
        known_s = self._free_s.get(name)
        if known_s is None and not self._has_room(now_s):
            return False
        self._free_s[name] = (now_s if known_s is None else max(known_s, now_s)) + units / self._rate
        return True

    def owed_ms(self, client_id: str, now_s: float) -> int:
        """How long a client would have to wait now, in milliseconds; nothing is taken."""
        return self._over_ms(self._free_s.get(self._hashed(client_id), now_s), now_s)

    def _over_ms(self, free_s: float, now_s: float) -> int:
        over_s = free_s - now_s - self._burst_s
        return min(math.ceil(1000 * over_s) + 1, _WAIT_MS_MAX) if over_s > 0 else 0  # one more, for what rounding took

    def give_back(self, client_id: str, units: int) -> None:
        """Undoes what :meth:`wait_ms` took, once: nothing was done with it, and that was not its client's doing.

        Args:
            client_id: Whose.
            units: As many as were taken.
        """
        name = self._hashed(client_id)
        if name in self._free_s:  # else it is paid off and forgotten; time that has gone by is no credit
            self._free_s[name] -= units / self._rate

    def forget_paid(self, now_s: float) -> None:
        """Forgets who owes nothing any more; called every :data:`FORGET_S`."""
        self._looked_s = now_s
        self._free_s = {name: free_s for name, free_s in self._free_s.items() if free_s > now_s}

    def _has_room(self, now_s: float) -> bool:
        if len(self._free_s) >= self._clients_max and now_s >= self._looked_s + _FULL_S:
            self.forget_paid(now_s)
        return len(self._free_s) < self._clients_max

    def _hashed(self, client_id: str) -> bytes:
        """Of a fixed size, whatever a client calls itself."""
        return hashlib.blake2b(client_id.encode(), digest_size=_NAME_BYTES, key=self._key).digest()


class Endable(Protocol):
    """A call that can be ended from elsewhere."""

    def end(self, error: AggregatorError) -> bool:
        """Ends it, with what its caller is told; False: it waits for its reply to be read."""


class ConcurrencyLimit:
    """A number of places.

    Args:
        most: How many there are.
        what: Who takes them, for the refusal.
    """

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self._taken = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Holds one place as long as the block runs.

        Raises:
            RefusedError: All are taken.
        """
        if self._taken >= self._most:
            raise overloaded(f"at most {self._most} {self._what} at once")
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


class SharedConcurrencyLimit:
    """A number of places for calls of nobody in particular, of which one is found for somebody who comes new.

    Where all are taken, the oldest call of the caller that has the most of them is ended; a caller is known by its
    address alone. What has been ended keeps its place until it is over, and a call that waits for its reply to be read
    is not over before that. So where twice as many places are taken, who comes new is refused, and the connections of
    those that were ended and are still there are closed.

    Args:
        most: How many there are.
        what: Who takes them, for what an ended call is told.
        does_not_read: Closes a connection, soon; given its peer.
    """

    def __init__(self, most: int, what: str, does_not_read: Callable[[str], None]) -> None:
        self._most = most
        self._what = what
        self._does_not_read = does_not_read
        self._open: dict[Endable, tuple[str, str]] = {}  # with peer and caller; the oldest first, none that was ended
        self._of_caller: Counter[str] = Counter()
        self._ended: dict[Endable, str] = {}  # with peer, until they are over

    @contextmanager
    def taken(self, peer: str, caller: str, call: Endable) -> Iterator[None]:
        """Holds one place for a call, until the block ends.

        Args:
            peer: gRPC's name of its connection.
            caller: Whose call it is, as far as its address tells.
            call: Is ended where another call needs the place.

        Raises:
            RefusedError: There is none, and none can be had now.
        """
        if len(self._open) + len(self._ended) >= 2 * self._most:
            for unread in set(self._ended.values()):
                self._does_not_read(unread)
            raise overloaded(f"at most {self._most} {self._what} at once")
        self._of_caller[caller] += 1
        if len(self._open) >= self._most:
            self._make_room(caller)
        self._open[call] = peer, caller
        try:
            yield
        finally:
            self._forget(call)
            self._ended.pop(call, None)

    def _make_room(self, newcomer: str) -> None:
        most = max(self._of_caller.values())
        is_newcomers = self._of_caller[newcomer] == most > 1  # of several that have as many, the newcomer gives one up
        oldest = next(
            call
            for call, (_, caller) in self._open.items()
            if (caller == newcomer if is_newcomers else self._of_caller[caller] == most)
        )
        self._ended[oldest], _ = self._open[oldest]
        self._forget(oldest)
        oldest.end(overloaded(f"at most {self._most} {self._what} at once, and others came"))

    def _forget(self, call: Endable) -> None:
        if call in self._open:
            _, caller = self._open.pop(call)
            self._of_caller[caller] -= 1
            if not self._of_caller[caller]:
                del self._of_caller[caller]


class ClientStreams:
    """The streams of each client that have deltas in a window; some 150 bytes a client of one stream.

    Args:
        most: Streams of one client in one window; None: any number, and none is remembered.

    Attributes:
        most: As it came.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        # Most clients have one stream, and a number takes less memory than a set of one.
        self._windows: dict[int, dict[str, int | set[int]]] = {}

    def restore(self, uses: Iterable[StreamUse], is_over: Callable[[int], bool]) -> None:
        """Counts what was there before this process, beyond the bound too.

        Args:
            uses: What the folds remember.
            is_over: Whether nothing of a window counts any more.
        """
        for use in uses:
            if not is_over(use.window):
                self.add(*use)

    def of(self, client_id: str, window: int) -> int:
        """How many of a client are counted in a window."""
        known = self._known(client_id, window)
        return len(known) if isinstance(known, set) else int(known is not None)

    def clients(self, window: int) -> int:
        """How many clients are counted in a window."""
        return len(self._windows.get(window, ()))

    def is_known(self, client_id: str, stream: int, window: int) -> bool:
        """Whether it is counted already, or needs not be."""
        if self.most is None or client_id == NOBODY:
            return True
        known = self._known(client_id, window)
        return stream in known if isinstance(known, set) else known == stream

    def has_room(self, client_id: str, window: int) -> bool:
        """Whether the client may use one that is not known yet."""
        return self.most is None or self.of(client_id, window) < self.most

    def add(self, client_id: str, stream: int, window: int) -> None:
        """Counts one; what is counted already, or needs not be, changes nothing."""
        if self.is_known(client_id, stream, window):
            return
        known = self._known(client_id, window)
        if known is None:
            self._windows.setdefault(window, {})[client_id] = stream
        elif isinstance(known, set):
            known.add(stream)
        else:
            self._windows[window][client_id] = {known, stream}

    def forget(self, is_over: Callable[[int], bool]) -> None:
        """Forgets windows that are over."""
        for window in [window for window in self._windows if is_over(window)]:
            del self._windows[window]

    def _known(self, client_id: str, window: int) -> int | set[int] | None:
        clients = self._windows.get(window)
        return None if clients is None else clients.get(client_id)


#: What a delta costs at least, in bytes: whatever its size, it takes an entry of the log, a row of the store and its id
#: in the fold's memory.
DELTA_COST_MIN: Final = 1024
_SHARES: Final = 4  # of what all may hold together one client gets such a part


def share_of(most: int, least: int = 1) -> int:
    """How much of what all share one client may hold.

    Args:
        most: What all may hold.
        least: One thing of the largest size: that always fits.
    """
    return max(most // _SHARES, least)


class PrepaidBytes(Protocol):
    """What a delta has paid before it was whole."""

    def give_back(self) -> None:
        """All of it."""


class RateReservation:
    """What one delta has taken of its client's limits.

    It lives no longer than the answer to the delta is waited for.
    """

    __slots__ = ("_client_id", "_cost", "_limits", "_paid", "_size")

    def __init__(self, limits: "SendLimits", client_id: str, size: int, cost: int, paid: "PrepaidBytes | None") -> None:
        self._limits = limits
        self._client_id = client_id
        self._size = size
        self._cost = cost
        self._paid = paid

    def let_go(self) -> None:
        """It is answered, and holds nothing any more; called once."""
        self._limits.let_go(self._client_id, self._size)

    def give_back(self) -> None:
        """Nothing was done with it, and that was not its client's doing; called once at most."""
        if self._paid is None:
            self._limits.give_back(self._client_id, self._cost)
        else:
            self._paid.give_back()


class SendLimits:
    """How many bytes of deltas each client may send, and hold while they are unanswered.

    Args:
        rate: Bytes a second; a delta costs ``DELTA_COST_MIN`` at least.
        burst: Bytes that a client may be ahead of that.
        held_bytes_max: Bytes of its deltas that may be unanswered: the largest fits.
        runtime: The clock.
        delta_bytes_max: Of the largest delta; by default all that may be unanswered.

    Attributes:
        prepaid: What was taken as it came, by the client that sends it now: it is not taken again.
    """

    def __init__(
        self, rate: float, burst: int, held_bytes_max: int, runtime: Runtime, delta_bytes_max: int | None = None
    ) -> None:
        self._delta_bytes_max = held_bytes_max if delta_bytes_max is None else delta_bytes_max
        self.prepaid: dict[str, PrepaidBytes] = {}
        self._rates = RateLimits(rate, burst)
        self._held_bytes_max = held_bytes_max
        self._runtime = runtime
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        """Clients that hold something."""
        return len(self._held)

    def take(self, client_id: str, size: int) -> RateReservation:
        """Takes what came as a delta of so many bytes, of which nothing was looked at yet; all of them are paid for.

        Raises:
            RefusedError: Its client has to wait.
        """
        holds = min(size, self._delta_bytes_max)  # what is larger is refused for that, and not for what it would hold
        held = self._held[client_id] + holds if client_id in self._held else holds
        if held > self._held_bytes_max:
            raise RefusedError(share_taken(f"{self._held_bytes_max} bytes of deltas of one client may be unanswered"))
        paid, cost = self.prepaid.pop(client_id, None), max(DELTA_COST_MIN, size)
        if paid is None:
            self.pay(client_id, cost)
        self._held[client_id] = held
        return RateReservation(self, client_id, holds, cost, paid)

    def pay(self, client_id: str, size: int) -> None:
        """Takes so many bytes of the rate, which hold nothing: of what is no delta, too.

        Raises:
            RefusedError: Its client has to wait.
        """
        wait_ms = self._rates.wait_ms(client_id, max(DELTA_COST_MIN, size), self._runtime.monotonic())
        if wait_ms != 0:
            raise RefusedError(rate_limited(wait_ms, "bytes"))

    def charge(self, client_id: str, cost: int) -> None:
        """Takes so many bytes, however much is owed.

        Raises:
            RefusedError: Nobody new is remembered now.
        """
        if not self._rates.charge(client_id, cost, self._runtime.monotonic()):
            raise RefusedError(rate_limited(None))

    def check(self, client_id: str) -> None:
        """Refuses what would have to wait, before anything of it is read.

        Raises:
            RefusedError: Its client has to wait.
        """
        if wait_ms := self._rates.owed_ms(client_id, self._runtime.monotonic()):
            raise RefusedError(rate_limited(wait_ms, "bytes"))

    async def pace(self, client_id: str, size: int) -> None:
        """Takes so many bytes of who must not be refused, and returns when they may go on.

        Where nobody new is remembered they go on at once: that others are ahead must not end a client's round.
        """
        while wait_ms := self._rates.wait_ms(client_id, max(1, size), self._runtime.monotonic()):
            await self._runtime.sleep(wait_ms / 1000)

    def forget_paid(self, now_s: float) -> None:
        """Forgets who owes nothing any more."""
        self._rates.forget_paid(now_s)

    def let_go(self, client_id: str, size: int) -> None:
        """What was held is answered."""
        self._held[client_id] -= size
        if self._held[client_id] <= 0:
            del self._held[client_id]

    def give_back(self, client_id: str, cost: int) -> None:
        """What was taken of the rate costs nothing after all."""
        self._rates.give_back(client_id, cost)


class CallLimits:
    """How many calls each client may make, and how many that last it may have open.

    Args:
        rate: Calls a second.
        burst: Calls that a client may be ahead of that.
        open_max: Calls that last, of one client.
        runtime: The clock.
    """

    def __init__(self, rate: float, burst: int, open_max: int, runtime: Runtime) -> None:
        self._rates = RateLimits(rate, burst)
        self._open_max = open_max
        self._runtime = runtime
        self._open: Counter[str] = Counter()

    def __len__(self) -> int:
        """Clients with a call that lasts."""
        return len(self._open)

    def forget_paid(self, now_s: float) -> None:
        """Forgets who owes nothing any more."""
        self._rates.forget_paid(now_s)

    def call(self, name: str) -> None:
        """Takes one call.

        Raises:
            RefusedError: This caller has to wait.
        """
        wait_ms = self._rates.wait_ms(name, 1, self._runtime.monotonic()) if name else 0
        if wait_ms != 0:
            raise RefusedError(rate_limited(wait_ms, "calls"))

    def begin(self, name: str) -> None:
        """Takes one call that lasts, until :meth:`end`.

        Raises:
            RefusedError: This caller has to wait, or has as many as it may.
        """
        if not name:
            return
        if name in self._open and self._open[name] >= self._open_max:
            raise RefusedError(share_taken(f"{self._open_max} streams of one client may be open"))
        self.call(name)
        self._open[name] += 1

    def end(self, name: str) -> None:
        """A call that lasted is over."""
        if name:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]


class CallReservation:
    """What one call takes of its caller's limits, from when that is known; a context, for one that lasts.

    Args:
        limits: Those of all callers; None: none.
        lasts: Whether it is a stream, of which one caller may have few open.
    """

    def __init__(self, limits: CallLimits | None, *, lasts: bool = False) -> None:
        self._limits = limits
        self._lasts = lasts
        self._name = ""  # who has one more open
        self._taken = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """It holds no place any more; once it is over, nothing happens."""
        if self._limits is not None:
            self._limits.end(self._name)
        self._name = ""

    def take(self, name: str) -> None:
        """Takes it, once, however often it is asked who it is.

        Raises:
            RefusedError: This caller has to wait, or has as many streams open as it may.
        """
        if self._limits is None or self._taken:
            return
        if self._lasts:
            self._limits.begin(name)
            self._name = name
        else:
            self._limits.call(name)
        self._taken = True


def send_limits_of(config: Config, plan: Plan, runtime: Runtime) -> SendLimits:
    """What a process takes of one client's bytes."""
    held = share_of(config.pending_bytes_max, plan.upload_bytes_max)
    largest = plan.upload_bytes_max
    return SendLimits(config.client_bytes_rate, config.client_bytes_burst, held, runtime, largest)


def call_limits_of(config: Config, runtime: Runtime) -> CallLimits:
    """How much one caller may call here."""
    return CallLimits(config.client_calls_rate, config.client_calls_burst, config.client_sessions_max, runtime)


class ChunkReservations:
    """What a delta that comes in pieces has paid, as they came.

    Args:
        limits: How much its client may send.
        client_id: Whose it is.
    """

    def __init__(self, limits: SendLimits, client_id: str) -> None:
        self._limits = limits
        self._client_id = client_id
        self._size = self._paid = 0

    def pay(self, size: int) -> None:
        """Takes a piece. One that has begun goes on, however much its client owes by now.

        Raises:
            RefusedError: Nobody new is remembered now.
        """
        cost = max(DELTA_COST_MIN, size)
        self._limits.charge(self._client_id, cost)
        self._size += size
        self._paid += cost

    def keep(self) -> None:
        """It is paid for in any case: its client was ahead of its rates before it came, and sent it all the same."""
        if not self._paid and self._size:
            self.pay(self._size)

    def give_back(self) -> None:
        """All of it: nothing was done with the delta, and that was not its client's doing."""
        self._limits.give_back(self._client_id, self._paid)
        self._paid = 0

    @contextmanager
    def settled(self) -> Iterator[None]:
        """The delta that its client sends within the block is paid for, and given back like any other."""
        self._limits.prepaid[self._client_id] = self
        try:
            yield
        finally:
            self._limits.prepaid.pop(self._client_id, None)


#: What refuses a delta that its sender could not have sent better. Of one that is ``unavailable`` it is not known
#: whether the log has it: the same again is found there, and counts once.
NOT_ITS_SENDERS: Final = frozenset(
    {ServiceReason.OVERLOADED, ServiceReason.UNAVAILABLE, ServiceReason.BUDGET, ServiceReason.SHUTTING_DOWN}
)


class LimitReservation(Protocol):
    """What a delta has taken of a limit of its client."""

    def let_go(self) -> None:
        """It is answered."""

    def give_back(self) -> None:
        """It costs nothing after all."""


class _Reports(NamedTuple):
    """So many reports of a client's rate."""

    limits: RateLimits
    client_id: str
    reports: int

    def let_go(self) -> None:
        """Nothing is held."""

    def give_back(self) -> None:
        """They cost nothing."""
        self.limits.give_back(self.client_id, self.reports)


class QuotaReservation:
    """Under whose name something goes on, and what it took of the one who sent it.

    Args:
        name: A client's id, or nobody's.
        taken: What it has taken; that lives no longer than the answer is waited for.

    Attributes:
        name: As it came.
    """

    __slots__ = ("_taken", "name")

    def __init__(self, name: str, *taken: LimitReservation) -> None:
        self.name = name
        self._taken = taken

    def costs_nothing(self) -> None:
        """It is not looked at, or the same is on its way already: that was paid for, and is held."""
        taken, self._taken = self._taken, ()
        for each in taken:
            each.let_go()
            each.give_back()

    def answered(self, answer: Answer) -> None:
        """Lets go of what was held, and gives back what is refused for the service's own reasons."""
        refusal, taken, self._taken = answer.refusal, self._taken, ()
        for each in taken:
            each.let_go()
            if refusal is not None and refusal.reason in NOT_ITS_SENDERS:
                each.give_back()


def anonymous(
    client_id: str, size: int, reports: int, *, rates: RateLimits, sends: SendLimits | None, runtime: Runtime
) -> QuotaReservation:
    """Nobody, once a batch is paid for by the one who sent it.

    Args:
        client_id: Who sent it.
        size: Its bytes.
        reports: What it costs of the rate of reports.
        rates: That rate.
        sends: How many bytes each client may send; None: any.
        runtime: The clock.

    Raises:
        RefusedError: Its sender has to wait; then it has cost nothing.
    """
    taken: tuple[LimitReservation, ...] = () if sends is None else (sends.take(client_id, size),)
    wait_ms = rates.wait_ms(client_id, reports, runtime.monotonic())
    if wait_ms != 0:
        QuotaReservation(NOBODY, *taken).costs_nothing()
        raise RefusedError(rate_limited(wait_ms))
    return QuotaReservation(NOBODY, *taken, _Reports(rates, client_id, reports))
