"""Calls with one message, from their headers to their answer: so many at once, and few whose message is on its way.

A caller is admitted by its headers; what it then sends comes as fast as it likes. So each name may have a share of the
calls under way, of which few messages come in at a time: the others wait, in gRPC's windows of some kilobytes (which
``grpc.http2.bdp_probe`` keeps at that). Where more messages are awaited than all names may have on their way, the
oldest call of whoever has the most of them is ended for somebody who has fewer; where nobody has more, who comes new
waits: no message that is on its way is given up for one that has not begun.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from aggregator.callers.client_limits import share_of
from aggregator.refusals import RefusedError, overloaded, share_taken
from aggregator.server.open_streams import Interruptible

UNREAD_MAX: Final = 512  # messages of all callers that are on their way
NAMELESS_MAX: Final = 128  # of those who have no name: readers, where names are only declared
_NAMELESS_MIN: Final = 8
NAMELESS_CALLS_MAX: Final = 1024  # of theirs under way: they take nothing from those who have a name
UNREAD_BYTES_MAX: Final = 16 << 20  # of one name's messages that are on their way; one fits always


class _Caller:
    """One name's calls."""

    def __init__(self, at_once: int) -> None:
        self.under_way = 0
        self.unread: dict[Interruptible, None] = {}  # the oldest first
        self.turns = asyncio.Semaphore(at_once)


class UnaryCalls:
    """The calls with one message of one server.

    Args:
        most: Of all names that may be under way; of one a quarter.
        message_bytes_max: Of one message.
    """

    def __init__(self, most: int, message_bytes_max: int) -> None:
        self._most = most
        self._of_one = share_of(most)
        self._at_once = max(1, UNREAD_BYTES_MAX // message_bytes_max)
        self._nameless_at_once = max(_NAMELESS_MIN, min(NAMELESS_MAX, self._at_once))
        self._callers: dict[str, _Caller] = {}
        self._under_way = 0
        self._unread = 0

    def __len__(self) -> int:
        """Calls of names that are under way."""
        return self._under_way

    @contextmanager
    def under_way(self, name: str) -> Iterator[None]:
        """A call is under way as long as the block runs.

        Raises:
            RefusedError: This name has as many as it may, or all together have.
        """
        caller = self._callers.get(name)
        if caller is not None and name and caller.under_way >= self._of_one:
            raise RefusedError(share_taken(f"{self._of_one} calls of one client may be under way"))
        if name and self._under_way >= self._most:
            raise overloaded(f"at most {self._most} calls may be under way")
        if not name and caller is not None and caller.under_way >= NAMELESS_CALLS_MAX:
            raise overloaded(f"at most {NAMELESS_CALLS_MAX} calls without a name may be under way")
        if caller is None:
            caller = self._callers[name] = _Caller(self._at_once if name else self._nameless_at_once)
        caller.under_way += 1
        self._under_way += bool(name)
        try:
            yield
        finally:
            caller.under_way -= 1
            self._under_way -= bool(name)
            if not caller.under_way:
                del self._callers[name]

    @asynccontextmanager
    async def unread(self, name: str, call: Interruptible) -> AsyncIterator[None]:
        """The message of a call that is under way comes in as long as the block runs; one that waits its turn waits.

        Raises:
            RefusedError: As many are on their way as may be, and nobody has more of them than this name.
        """
        caller = self._callers[name]
        if not name and len(caller.unread) >= self._nameless_at_once:
            self._end_oldest(caller)
        if self._unread >= UNREAD_MAX:
            most = max(self._callers.values(), key=lambda each: len(each.unread))
            if len(most.unread) <= max(1, len(caller.unread)):
                raise overloaded(f"{UNREAD_MAX} messages are on their way")
            self._end_oldest(most)
        caller.unread[call] = None
        self._unread += 1
        try:
            async with caller.turns:
                yield
        finally:
            self._forget(caller, call)

    def _end_oldest(self, caller: _Caller) -> None:
        call = next(iter(caller.unread))
        self._forget(caller, call)
        call.end(overloaded("others wait, and the message of this call has not come"))

    def _forget(self, caller: _Caller, call: Interruptible) -> None:
        if call in caller.unread:
            del caller.unread[call]
            self._unread -= 1
