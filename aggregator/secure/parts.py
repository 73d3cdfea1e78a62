"""One client's part in a window, as its call sees it: what it is told, in order, and little of it unread."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from aggregator.refusals import RefusedError, overloaded
from aggregator.secure.cohorts import Caller
from hushsum_proto.rounds import RoundOutcome, RoundReply

# A round has fewer messages for one client: whoever has so many unread does not read, and is let go.
UNREAD_MAX: Final = 16
_ROUND: Final = slice(42, 74)  # of the protocol's messages: behind format, kind, plan and window


class Part:
    """What is said to one call, until its end.

    Args:
        caller: Whose call.
        window: In which it takes part.

    Attributes:
        past_rounds: Ids of those that it was in, and that ended before anything was spent: what it still says in them
            was on its way, and is no fault of its own.
        is_there: Whether its call goes on, as far as is known.
    """

    def __init__(self, caller: Caller, window: int) -> None:
        self.caller = caller
        self.window = window
        self.past_rounds: set[bytes] = set()
        self.is_there = True
        self._unread: deque[RoundReply] = deque()
        self._ending: RoundOutcome | RefusedError | None = None
        self._wake = asyncio.Event()

    def is_of_past_round(self, data: bytes) -> bool:
        """Whether a message is of a round that it was in, and that is over."""
        return data[_ROUND] in self.past_rounds

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will be said."""
        return self._ending is not None

    def tell(self, reply: RoundReply) -> bool:
        """Says something; False where too much is unread already, and the call has been ended for that."""
        if self._ending is not None:
            return True
        if len(self._unread) >= UNREAD_MAX:
            self._unread.clear()
            self.end(overloaded(f"more than {UNREAD_MAX} messages unread"))
            return False
        self._unread.append(reply)
        self._wake.set()
        return True

    def end(self, ending: RoundOutcome | RefusedError) -> None:
        """Says the last thing; only the first end counts."""
        if self._ending is None:
            self._ending = ending
            self.is_there = False
            self._wake.set()

    async def replies(self) -> AsyncIterator[RoundReply]:
        """All that is said, in order; read by one.

        Raises:
            RefusedError: That was the end.
        """
        while True:
            while self._unread:
                yield self._unread.popleft()
            if isinstance(self._ending, RefusedError):
                raise self._ending
            if self._ending is not None:
                yield self._ending
                return
            self._wake.clear()
            await self._wake.wait()
