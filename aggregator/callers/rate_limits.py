"""How much one client may send, or ask: a rate and a burst of each, with the clock as an argument.

What is counted is the caller's: bytes of deltas, calls, reports. A client owes what it has sent, and pays it off at the
rate. What comes while it owes no more than the burst is taken whole, so that nothing is too large to be ever taken;
what comes while it owes more is refused, and costs nothing. In any time t a client thus gets at most burst + rate·t
units and one thing more through.

What the service then could not take for reasons of its own is given back.

What decides about a client is its own sends alone. A client that owes nothing is forgotten, which changes nothing for
it. A debt is never forgotten before it is paid: where so many clients owe something that no more are remembered, those
that come new are refused as overload, and nobody's debt is flushed out by others.

A client is a name: where names are only declared, a liar takes another one, and with it another burst. So a rate holds
mistakes and single names; of all names together it bounds nothing.
"""

import hashlib
import heapq
import math
from typing import Final

CLIENTS_MAX: Final = 1 << 18  # some 50 MB
#: What a batch costs at least, in reports: whatever its size, it takes an entry of the log, a row of the store and its
#: id in the fold until its window is forgotten, some 450 bytes. At 1,000 reports a second that is 16 batches.
BATCH_COST_MIN: Final = 64
_KEY_BYTES: Final = 16


class RateLimits:
    """What each client owes.

    Args:
        rate: Units a second that a client may send.
        burst: Units that it may be ahead of that.
        clients_max: Clients that are remembered because they owe something.
    """

    def __init__(self, rate: float, burst: int, clients_max: int = CLIENTS_MAX) -> None:
        self._rate = rate
        self._burst_s = burst / rate
        self._clients_max = clients_max
        self._free_s: dict[bytes, float] = {}  # when a client owes nothing any more
        self._order: list[tuple[float, bytes]] = []  # a heap: each client once, at that time or an earlier one

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
        key = _key(client_id)
        self._forget_paid(now_s)
        known_s = self._free_s.get(key)
        free_s = now_s if known_s is None else max(known_s, now_s)
        if wait_ms := self._over_ms(free_s, now_s):
            return wait_ms
        if known_s is None:
            if len(self._free_s) >= self._clients_max:
                return None
            heapq.heappush(self._order, (free_s, key))
        self._free_s[key] = free_s + units / self._rate
        return 0

    def owed_ms(self, client_id: str, now_s: float) -> int:
        """How long a client would have to wait now, in milliseconds; nothing is taken."""
        return self._over_ms(self._free_s.get(_key(client_id), now_s), now_s)

    def _over_ms(self, free_s: float, now_s: float) -> int:
        over_s = free_s - now_s - self._burst_s
        return math.ceil(1000 * over_s) + 1 if over_s > 0 else 0  # one more, for what rounding took

    def give_back(self, client_id: str, units: int) -> None:
        """Undoes what :meth:`wait_ms` took, once: nothing was done with it, and that was not its client's doing.

        Args:
            client_id: Whose.
            units: As many as were taken.
        """
        key = _key(client_id)
        if key in self._free_s:  # else it is paid off and forgotten; time that has gone by is no credit
            self._free_s[key] -= units / self._rate

    def _forget_paid(self, now_s: float) -> None:
        """Forgets who owes nothing any more, some at a time: as many as come new, and those that wait to be looked at.

        A place in the heap is looked at again only after its client has sent since: each send is paid for once. One
        that was given something back may keep its place until the time when it would have paid that.
        """
        looks = 2 if len(self._free_s) < self._clients_max else len(self._order)
        while looks and self._order and self._order[0][0] <= now_s:
            _, key = self._order[0]
            free_s = self._free_s[key]
            if free_s <= now_s:
                heapq.heappop(self._order)
                del self._free_s[key]
            else:
                heapq.heapreplace(self._order, (free_s, key))
            looks -= 1


def _key(client_id: str) -> bytes:
    """Of a fixed size, whatever a client calls itself."""
    return hashlib.blake2b(client_id.encode(), digest_size=_KEY_BYTES).digest()
