"""A TCP relay between the fleet and the server: one port that outlives the server, and replies that can be held back.

While replies are held, what the fleet sends still flows; what the server answers stays unread in the relay's sockets.
A server that is killed then has made durable what nobody was told of: the case that exactly-once is about.
"""

import asyncio
import math
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

_LOOPBACK = "127.0.0.1"


class Relay:
    """Listens on a free port of loopback and joins each connection to the target of that moment.

    A connection that comes while there is no target, or whose target does not answer, is closed at once.
    """

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._state = _State()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(lambda: _Fleet(self._state), _LOOPBACK, 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None, "entered first"
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        """``host:port``, the same for the relay's whole life."""
        assert self._server is not None, "entered first"
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    @property
    def is_spent(self) -> bool:
        """Whether it has carried what :meth:`carry` allowed, and has ended for it."""
        return self._state.left < 0

    def carry(self, size: int) -> None:
        """Carries so many bytes more of the fleet, then nothing: every connection is cut, and no other is made."""
        self._state.left = size

    def aim(self, target: str | None) -> None:
        """Where connections that come from now on lead: ``host:port``, or nowhere."""
        if target is None:
            self._state.target = None
        else:
            host, _, port = target.rpartition(":")
            self._state.target = (host, int(port))

    def hold_replies(self, after: int = 0) -> None:
        """From now on no byte of the server reaches the fleet; requests flow on.

        Args:
            after: On each connection only once it has carried so many bytes more of the fleet: what is larger than a
                window of HTTP/2 does not come through without the server's word that there is room.
        """
        self._state.hold_after = after
        for link in self._state.links:
            link.hold()

    def release_replies(self) -> None:
        """Replies flow again, those held back first."""
        self._state.hold_after = None
        for link in self._state.links:
            link.resume_replies()

    def cut(self) -> None:
        """Ends every connection; replies that are held back are lost, and stay lost."""
        for link in list(self._state.links):
            link.abort()


@dataclass
class _State:
    """What every connection of a relay goes by."""

    target: tuple[str, int] | None = None
    hold_after: int | None = None
    left: float = math.inf
    links: "set[_Fleet]" = field(default_factory=set)


class _Fleet(asyncio.Protocol):
    """A client's side of one connection."""

    def __init__(self, state: _State) -> None:
        self._state = state
        self._transport: asyncio.Transport | None = None
        self._server: _Server | None = None
        self._joining: asyncio.Task[None] | None = None
        self._carried = 0  # since replies are to be held

    @property
    def holds(self) -> bool:
        """Whether replies are held here."""
        after = self._state.hold_after
        return after is not None and self._carried >= after

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a server of TCP makes no others"
        self._transport = transport
        transport.pause_reading()  # until there is somebody to pass it on to
        self._state.links.add(self)
        self._joining = asyncio.get_running_loop().create_task(self._join(transport))

    async def _join(self, fleet: asyncio.Transport) -> None:
        if self._state.target is None:
            fleet.abort()
            return
        try:
            _, server = await asyncio.get_running_loop().create_connection(
                lambda: _Server(fleet, self), *self._state.target
            )
        except OSError:
            fleet.abort()
            return
        if fleet.is_closing():
            server.transport.abort()
            return
        self._server = server
        fleet.resume_reading()

    def data_received(self, data: bytes) -> None:
        assert self._server is not None, "reading starts when joined"
        self._state.left -= len(data)
        if self._state.left < 0:
            self._state.target = None
            self.abort()
            return
        self._carried += len(data)
        if self.holds:
            self.pause_replies()
        self._server.transport.write(data)

    def pause_writing(self) -> None:
        self.pause_replies()

    def resume_writing(self) -> None:
        if not self.holds:
            self.resume_replies()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio calls it so
        self._state.links.discard(self)
        if self._server is not None:
            self._server.transport.close()

    def hold(self) -> None:
        self._carried = 0
        if self.holds:
            self.pause_replies()

    def pause_replies(self) -> None:
        if self._server is not None:
            self._server.transport.pause_reading()

    def resume_replies(self) -> None:
        if self._server is not None:
            self._server.transport.resume_reading()

    def abort(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
        if self._server is not None:
            self._server.transport.abort()
        if self._transport is not None:
            self._transport.abort()


class _Server(asyncio.Protocol):
    """The server's side of one connection."""

    transport: asyncio.Transport

    def __init__(self, fleet: asyncio.Transport, link: _Fleet) -> None:
        self._fleet = fleet
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a connection of TCP makes no others"
        self.transport = transport
        if self._link.holds:
            transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self._fleet.write(data)

    def pause_writing(self) -> None:
        self._fleet.pause_reading()

    def resume_writing(self) -> None:
        self._fleet.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio calls it so
        self._fleet.close()
