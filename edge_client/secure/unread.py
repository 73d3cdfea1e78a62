"""What a service has said to a client in a round and the client has not read: bounded in number and in bytes."""

import asyncio
from typing import Final

from hushsum_proto.rounds import Message, RoundOutcome, RoundReply

_UNREAD_MAX: Final = 16  # whoever says more at a time waits


class Unread:
    """Replies, or what has ended them, that were not read yet; whoever has more waits.

    Args:
        bytes_max: That it holds beside the newest.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._queue: asyncio.Queue[RoundReply | Exception] = asyncio.Queue(_UNREAD_MAX)
        self._room = asyncio.Event()
        self._room.set()

    async def put(self, reply: RoundReply | Exception) -> None:
        """Returns once there is room for the next."""
        await self._queue.put(reply)
        self._count(_size(reply))
        await self._room.wait()

    async def get(self) -> RoundReply | Exception:
        """The oldest."""
        reply = await self._queue.get()
        self._count(-_size(reply))
        return reply

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._bytes_max:
            self._room.clear()
        else:
            self._room.set()


def _size(reply: RoundReply | Exception) -> int:
    if isinstance(reply, Message):
        return len(reply.data)
    return len(reply.detail) if isinstance(reply, RoundOutcome) else 0
