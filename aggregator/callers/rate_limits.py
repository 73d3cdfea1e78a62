"""How much one client may send, or ask: a rate and a burst of each, with the clock as an argument.

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
"""

import hashlib
import math
from collections.abc import Iterable
from typing import Final, Protocol

from aggregator.ports import Runtime
from hushsum.entropy import OsEntropy

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


class Forgetting(Protocol):
    """What remembers debts."""

    def forget_paid(self, now_s: float) -> None:
        """Forgets who owes nothing any more."""


async def forget_paid(limits: Iterable[Forgetting], runtime: Runtime) -> None:
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
