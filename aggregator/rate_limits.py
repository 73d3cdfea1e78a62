"""Limits of one caller: rates, concurrency, streams, and what one delta has reserved of them.

A rate counts units (bytes of deltas, calls, reports). A client owes what it has sent, and pays it off at the rate.
While it owes no more than the burst, the next thing is accepted whole, so that nothing is too large to be ever
accepted; while it owes more, it is refused, and a refusal costs nothing. In any time t a client thus gets at most
burst + rate·t units and one thing more through. What the service could not take for reasons of its own is given back.

Only its own sends decide about a client. A client that owes nothing is soon forgotten, which changes nothing for it. A
debt is never forgotten before it is paid: where so many clients owe something that the table is full, new clients are
refused as overload, and no debt is evicted by others.

What is remembered of a client is a hash under a key of this process, which no other one knows, and the time when it has
paid: from that time on it is kept for :data:`FORGET_S` at most.

A client is a name: where names are only declared, a liar takes another one, and with it another burst. So a rate stops
mistakes and single names; it does not bound the sum over all names.

The number of streams that a client may have in a window is bounded, too; only the client's own streams are counted.
Anonymous reports have no client to be counted under; their sender has a rate.

All clients share the log's queue, the memory of incoming deltas, and the calls that one process can answer. A client
has a rate of each and a share of what is held, so that no single one fills what all share. Callers without a name
(readers, or the operator, where names are only declared) are not limited here.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from aggregator.config import Config
from aggregator.errors import RefusedError, overloaded, rate_limited, share_taken
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
#: How often clients without a debt are forgotten.
FORGET_S: Final = 5.0
_FULL_S: Final = 1.0  # the same while the table is full: a pass over it takes some 20 ms
_NAME_BYTES: Final = 16
_WAIT_MS_MAX: Final = 2**31 - 1  # the most that is told
KEY_BYTES: Final = 32


async def forget_paid(limits: Iterable["RateLimits"], runtime: Runtime) -> None:
    """Forgets paid debts periodically; never returns."""
    every = [*limits]
    while True:
        await runtime.sleep(FORGET_S)
        for each in every:
            each.forget_paid(runtime.monotonic())


def hashed_name(name: str, key: bytes) -> bytes:
    """A keyed hash of fixed size, whatever the length of the name."""
    return hashlib.blake2b(name.encode(), digest_size=_NAME_BYTES, key=key).digest()


class RateLimits:
    """One token bucket for each client, kept as the time when its debt is paid.

    ``rate`` is in units a second, ``burst`` in units; at most ``clients_max`` clients have a debt. ``key`` is that of
    the hash of their names: 16 to 64 random bytes, by default of the operating system's.
    """

    def __init__(self, rate: float, burst: int, clients_max: int = CLIENTS_MAX, *, key: bytes | None = None) -> None:
        self._rate = rate
        self._burst_s = burst / rate
        self._clients_max = clients_max
        self._key = OsEntropy().read(KEY_BYTES) if key is None else key
        self._free_s: dict[bytes, float] = {}  # when a client owes nothing any more
        self._looked_s = -math.inf

    def __len__(self) -> int:
        return len(self._free_s)

    def wait_ms(self, client_id: str, units: int, now_s: float) -> int | None:
        """Takes 1 or more units of a client, if it may send them now, by a monotonic clock.

        Returns 0 if they are taken, else the milliseconds after which they would be; None if the table of clients is
        full.
        """
        name = hashed_name(client_id, self._key)
        known_s = self._free_s.get(name)
        free_s = now_s if known_s is None or known_s < now_s else known_s
        if free_s - now_s > self._burst_s:
            return self._over_ms(free_s, now_s)
        if known_s is None and not self._has_room(now_s):
            return None
        self._free_s[name] = free_s + units / self._rate
        return 0

    def charge(self, client_id: str, units: int, now_s: float) -> bool:
        """Takes units of a client, however much it owes; False: the table of clients is full."""
        name = hashed_name(client_id, self._key)
        known_s = self._free_s.get(name)
        if known_s is None and not self._has_room(now_s):
            return False
        self._free_s[name] = (now_s if known_s is None else max(known_s, now_s)) + units / self._rate
        return True

    def owed_ms(self, client_id: str, now_s: float) -> int:
        """The milliseconds that a client would have to wait now; nothing is taken."""
        return self._over_ms(self._free_s.get(hashed_name(client_id, self._key), now_s), now_s)

    def _over_ms(self, free_s: float, now_s: float) -> int:
        over_s = free_s - now_s - self._burst_s
        return min(math.ceil(1000 * over_s) + 1, _WAIT_MS_MAX) if over_s > 0 else 0  # one more, for what rounding took

    def give_back(self, client_id: str, units: int) -> None:
        """Undoes one taking of so many units: nothing was done with it, and that was not its client's doing."""
        name = hashed_name(client_id, self._key)
        if name in self._free_s:  # else it is paid off and forgotten; time that has gone by is no credit
            self._free_s[name] -= units / self._rate

    def forget_paid(self, now_s: float) -> None:
        """Forgets clients without a debt; called every :data:`FORGET_S`."""
        self._looked_s = now_s
        self._free_s = {name: free_s for name, free_s in self._free_s.items() if free_s > now_s}

    def _has_room(self, now_s: float) -> bool:
        if len(self._free_s) >= self._clients_max and now_s >= self._looked_s + _FULL_S:
            self.forget_paid(now_s)
        return len(self._free_s) < self._clients_max


class ConcurrencyLimit:
    """A bound on what runs at once; ``what`` names it in refusals."""

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self._taken = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Takes one place for the duration of the block; RefusedError: all are taken."""
        if self._taken >= self._most:
            raise overloaded(f"at most {self._most} {self._what} at once")
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


class DeltaStreamQuota:
    """The streams of each client that have deltas in a window; some 150 bytes a client of one stream.

    ``most`` is for one client in one window; None: any number, and none is remembered.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        # Most clients have one stream, and a number takes less memory than a set of one.
        self._windows: dict[int, dict[str, int | set[int]]] = {}

    def restore(self, uses: Iterable[StreamUse], is_over: Callable[[int], bool]) -> None:
        """Counts what the folds remember from before this process, beyond the bound too."""
        for use in uses:
            if not is_over(use.window):
                self.add(*use)

    def of(self, client_id: str, window: int) -> int:
        known = self._windows.get(window, {}).get(client_id)
        return len(known) if isinstance(known, set) else int(known is not None)

    def clients(self, window: int) -> int:
        return len(self._windows.get(window, ()))

    def is_known(self, client_id: str, stream: int, window: int) -> bool:
        """Whether it is counted already, or is not to be counted."""
        if self.most is None or client_id == NOBODY:
            return True
        known = self._windows.get(window, {}).get(client_id)
        return stream in known if isinstance(known, set) else known == stream

    def has_room(self, client_id: str, window: int) -> bool:
        return self.most is None or self.of(client_id, window) < self.most

    def add(self, client_id: str, stream: int, window: int) -> None:
        """Counts one, unless :meth:`is_known`."""
        if self.is_known(client_id, stream, window):
            return
        clients = self._windows.setdefault(window, {})
        known = clients.setdefault(client_id, stream)
        if isinstance(known, set):
            known.add(stream)
        elif known != stream:
            clients[client_id] = {known, stream}

    def forget(self, is_over: Callable[[int], bool]) -> None:
        for window in [window for window in self._windows if is_over(window)]:
            del self._windows[window]


#: What a delta costs at least, in bytes: whatever its size, it takes an entry of the log, a row of the store and its id
#: in the fold's memory.
DELTA_COST_MIN: Final = 1024
_SHARES: Final = 4  # of what all may hold together one client gets such a part
#: What refuses a delta that its sender could not have sent better. Of one that is ``unavailable`` it is not known
#: whether the log has it: the same again is found there, and counts once.
NOT_ITS_SENDERS: Final = frozenset(
    {ServiceReason.OVERLOADED, ServiceReason.UNAVAILABLE, ServiceReason.BUDGET, ServiceReason.SHUTTING_DOWN}
)


def share_of(most: int, least: int = 1) -> int:
    """The part of a shared resource of size ``most`` that one client may hold: a quarter, and at least ``least``."""
    return max(most // _SHARES, least)


class RateCharge:
    """Units that were taken from one client's rate, and can be given back once."""

    __slots__ = ("client_id", "limits", "units")

    def __init__(self, limits: RateLimits, client_id: str, units: int = 0) -> None:
        self.limits = limits
        self.client_id = client_id
        self.units = units

    def give_back(self) -> None:
        self.limits.give_back(self.client_id, self.units)
        self.units = 0


class QuotaReservation:
    """What one delta has taken of its sender's limits, from its arrival until its answer.

    ``owner`` is the client that the delta counts for, or :data:`NOBODY`; ``held`` the limits that hold its bytes until
    the answer, for which sender, and how many; ``charges`` what it has taken of rates.
    """

    __slots__ = ("_held", "charges", "owner")

    def __init__(
        self, owner: str, held: "tuple[SendLimits, str, int] | None" = None, charges: tuple[RateCharge, ...] = ()
    ) -> None:
        self.owner = owner
        self._held = held
        self.charges = charges

    def release(self) -> None:
        """Ends the holding of bytes; the charges stay."""
        if self._held is not None:
            limits, client_id, size = self._held
            self._held = None
            limits.release(client_id, size)

    def cancel(self) -> None:
        """Undoes all of it: the delta is not validated, or the same one is already on its way and has paid."""
        self.release()
        self._give_back()

    def answered(self, answer: Answer) -> None:
        """Ends it; a refusal for the service's own reasons gives the charges back."""
        self.release()
        if answer.refusal is not None and answer.refusal.reason in NOT_ITS_SENDERS:
            self._give_back()

    def _give_back(self) -> None:
        for charge in self.charges:
            charge.give_back()
        self.charges = ()


class SendLimits:
    """How many bytes of deltas each client may send, and hold while they are unanswered.

    A delta costs ``DELTA_COST_MIN`` bytes at least. Of the ``held_bytes_max`` bytes that a client may hold, the largest
    delta takes ``delta_bytes_max`` (by default all).
    """

    def __init__(
        self, rate: float, burst: int, held_bytes_max: int, runtime: Runtime, delta_bytes_max: int | None = None
    ) -> None:
        self._delta_bytes_max = held_bytes_max if delta_bytes_max is None else delta_bytes_max
        self.rates = RateLimits(rate, burst)
        self._held_bytes_max = held_bytes_max
        self._runtime = runtime
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        """The number of clients that hold bytes."""
        return len(self._held)

    def take(
        self, client_id: str, size: int, *, owner: str | None = None, prepaid: RateCharge | None = None
    ) -> QuotaReservation:
        """Reserves the bytes of a delta that nothing has validated yet; its owner is by default its sender.

        ``prepaid`` is what the sender has paid for it already, chunk by chunk.

        Raises:
            RefusedError: The client has to wait.
        """
        holds = min(size, self._delta_bytes_max)  # what is larger is refused for that, and not for what it would hold
        held = self._held[client_id] + holds
        if held > self._held_bytes_max:
            raise RefusedError(share_taken(f"{self._held_bytes_max} bytes of unanswered deltas per client"))
        charge = self.pay(client_id, size) if prepaid is None else prepaid
        self._held[client_id] = held
        return QuotaReservation(client_id if owner is None else owner, (self, client_id, holds), (charge,))

    def pay(self, client_id: str, size: int) -> RateCharge:
        """Takes bytes of the rate without holding them; bytes that are no delta are paid for, too.

        Raises:
            RefusedError: The client has to wait.
        """
        cost = max(DELTA_COST_MIN, size)
        wait_ms = self.rates.wait_ms(client_id, cost, self._runtime.monotonic())
        if wait_ms != 0:
            raise RefusedError(rate_limited(wait_ms, "bytes"))
        return RateCharge(self.rates, client_id, cost)

    def pay_chunk(self, charge: RateCharge, size: int) -> None:
        """Adds a chunk to a charge. A delta that has begun goes on, however much its client owes by now.

        Raises:
            RefusedError: The table of clients is full.
        """
        cost = max(DELTA_COST_MIN, size)
        if not self.rates.charge(charge.client_id, cost, self._runtime.monotonic()):
            raise RefusedError(rate_limited(None))
        charge.units += cost

    def check(self, client_id: str) -> None:
        """Refuses a client that has to wait (RefusedError), before any of its delta is read; takes nothing."""
        if wait_ms := self.rates.owed_ms(client_id, self._runtime.monotonic()):
            raise RefusedError(rate_limited(wait_ms, "bytes"))

    async def pace(self, client_id: str, size: int) -> None:
        """Takes bytes of a client that must not be refused, and returns when it may go on.

        Where the table of clients is full it returns at once: the debts of others must not end a client's round.
        """
        while wait_ms := self.rates.wait_ms(client_id, max(1, size), self._runtime.monotonic()):
            await self._runtime.sleep(wait_ms / 1000)

    def release(self, client_id: str, size: int) -> None:
        """Ends the holding of bytes; called by their reservation."""
        left = self._held[client_id] - size
        if left > 0:
            self._held[client_id] = left
        else:
            del self._held[client_id]


class CallLimits:
    """How many calls each client may make a second, and how many long-lived ones it may have open.

    Callers without a name (readers, or the operator, where names are only declared) are not limited.
    """

    def __init__(self, rate: float, burst: int, open_max: int, runtime: Runtime) -> None:
        self.rates = RateLimits(rate, burst)
        self._open_max = open_max
        self._runtime = runtime
        self._open: Counter[str] = Counter()

    def __len__(self) -> int:
        """The number of clients with an open long-lived call."""
        return len(self._open)

    def begin(self, name: str, *, lasts: bool) -> None:
        """Takes one call, a long-lived one until :meth:`end`.

        Raises:
            RefusedError: This caller has to wait, or has as many long-lived calls as it may.
        """
        if not name:
            return
        if lasts and self._open.get(name, 0) >= self._open_max:
            raise RefusedError(share_taken(f"{self._open_max} open streams per client"))
        wait_ms = self.rates.wait_ms(name, 1, self._runtime.monotonic())
        if wait_ms != 0:
            raise RefusedError(rate_limited(wait_ms, "calls"))
        if lasts:
            self._open[name] += 1

    def end(self, name: str) -> None:
        if name:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]


def send_limits_of(config: Config, plan: Plan, runtime: Runtime) -> SendLimits:
    """The configured limits of one client's bytes."""
    largest = plan.upload_bytes_max
    held = share_of(config.pending_bytes_max, largest)
    return SendLimits(config.client_bytes_rate, config.client_bytes_burst, held, runtime, largest)


def call_limits_of(config: Config, runtime: Runtime) -> CallLimits:
    """The configured limits of one caller's calls."""
    return CallLimits(config.client_calls_rate, config.client_calls_burst, config.client_sessions_max, runtime)
