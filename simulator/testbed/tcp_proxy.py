"""TCP proxies on loopback: one breaks links in the ways in which networks do, one holds replies back.

The relay between the fleet and the server is one port that outlives the server. While replies are held, what the fleet
sends still flows; what the server answers stays unread in the relay's sockets. A server that is killed then has made
durable what nobody was told of: the case that exactly-once is about.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Final, Self

_LOOPBACK: Final = "127.0.0.1"


class Fault(Enum):
    """What becomes of a connection once a request comes that the fault is for."""

    #: The request never reaches the server, and the connection is reset.
    CUT_BEFORE_REQUEST = "cut before request"
    #: The request is handed to the server, and the connection is reset at once.
    CUT_AFTER_REQUEST = "cut after request"
    #: The server has done what was asked; its answer is dropped, and the connection is reset.
    CUT_BEFORE_REPLY = "cut before reply"
    #: Nothing passes any more in either direction, and nobody is told.
    HALF_OPEN = "half-open"


@dataclass
class _Rules:
    """What every connection of a proxy goes by."""

    fault: Fault | None = None
    aimed: Callable[[bytes], bool] | None = None
    left: int | None = None
    delay_s: float = 0.0
    refusing: bool = False
    silent: bool = False
    struck: int = 0
    connections: int = 0
    sent: int = 0
    received: int = 0
    links: "set[_Link]" = field(default_factory=set)

    def strikes(self, data: bytes) -> Fault | None:
        """The fault that this request meets, counted; None where it passes."""
        if self.fault is None or (self.aimed is not None and not self.aimed(data)):
            return None
        fault = self.fault
        self.struck += 1
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.fault = None
        return fault


class FaultProxy:
    """Joins each connection to one server, and breaks it when told to.

    Args:
        target: The server's host and port.
        port: Where to listen; 0: on a free one.
    """

    def __init__(self, target: tuple[str, int], port: int = 0) -> None:
        self._target, self._port = target, port
        self._rules = _Rules()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, _LOOPBACK, self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None, "entered first"
        self._server.close()
        tasks = [link.task for link in self._rules.links]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        """``host:port``."""
        assert self._server is not None, "entered first"
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    @property
    def struck(self) -> int:
        """How many requests have met a fault."""
        return self._rules.struck

    @property
    def connections(self) -> int:
        """How many connections were accepted, those that were refused left out."""
        return self._rules.connections

    @property
    def sent(self) -> int:
        """Bytes that reached the server."""
        return self._rules.sent

    @property
    def received(self) -> int:
        """Bytes that reached the clients."""
        return self._rules.received

    def inject(self, fault: Fault, times: int | None = 1, only: Callable[[bytes], bool] | None = None) -> None:
        """From the next request on.

        Args:
            fault: What happens.
            times: To how many requests; None: to each, until :meth:`heal`.
            only: Says of what a client sent at once whether it is meant; None: whatever it is.
        """
        assert times is None or times > 0, "at least one"
        self._rules.fault, self._rules.left, self._rules.aimed = fault, times, only

    def delay(self, seconds: float) -> None:
        """From now on every piece takes this much longer, in both directions."""
        self._rules.delay_s = seconds

    def refuse(self) -> None:
        """Resets every connection, and from now on each new one as it comes."""
        self._rules.refusing = True
        self.cut()

    def fall_silent(self) -> None:
        """From now on connections are taken and kept, those that are there too, and nothing passes."""
        self._rules.silent = True

    def cut(self) -> None:
        """Resets every connection of now."""
        for link in list(self._rules.links):
            link.task.cancel()

    def heal(self) -> None:
        """No faults any more. What fell silent is reset: what was lost of it cannot be known."""
        if self._rules.silent:
            self.cut()
        for link in list(self._rules.links):
            if link.silent:
                link.task.cancel()
        self._rules.fault, self._rules.delay_s = None, 0.0
        self._rules.refusing = self._rules.silent = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a server runs each connection in a task"
        if self._rules.refusing:
            writer.transport.abort()
            return
        self._rules.connections += 1
        link = _Link(self._rules, task)
        self._rules.links.add(link)
        try:
            await link.run(reader, writer, self._target)
        except asyncio.CancelledError:
            pass  # cut: the task ends here in any case
        finally:
            self._rules.links.discard(link)
            writer.transport.abort()


class _Link:
    """One client's connection and the server's beside it."""

    def __init__(self, rules: _Rules, task: "asyncio.Task[None]") -> None:
        self._rules, self.task = rules, task
        self._dropping = False
        self.silent = False

    async def run(
        self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter, target: tuple[str, int]
    ) -> None:
        try:
            server_in, server_out = await asyncio.open_connection(*target)
        except OSError:
            return
        ways = [
            asyncio.ensure_future(self._requests(client_in, server_out)),
            asyncio.ensure_future(self._replies(server_in, client_out)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            client_out.transport.abort()
            # What was handed over still goes out; the connection then ends.
            server_out.close()
            with suppress(OSError):
                await server_out.wait_closed()
        finally:
            for way in ways:
                way.cancel()
            server_out.transport.abort()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _requests(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await _piece(client):
            fault = None if self._is_silent else self._rules.strikes(data)
            if fault is Fault.CUT_BEFORE_REQUEST:
                return
            if fault is Fault.HALF_OPEN:
                self.silent = True
            if self._is_silent:
                continue
            if fault is Fault.CUT_BEFORE_REPLY:
                self._dropping = True
            await self._wait()
            server.write(data)
            self._rules.sent += len(data)
            if not await _drained(server) or fault is Fault.CUT_AFTER_REQUEST:
                return

    async def _replies(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await _piece(server):
            if self._dropping:
                return
            await self._wait()
            if self._is_silent:
                continue
            client.write(data)
            self._rules.received += len(data)
            if not await _drained(client):
                return

    @property
    def _is_silent(self) -> bool:
        return self.silent or self._rules.silent

    async def _wait(self) -> None:
        if self._rules.delay_s > 0.0:
            await asyncio.sleep(self._rules.delay_s)


async def _piece(reader: asyncio.StreamReader) -> bytes:
    """What has come; nothing once the other side has ended."""
    try:
        return await reader.read(1 << 16)
    except OSError:
        return b""


async def _drained(writer: asyncio.StreamWriter) -> bool:
    try:
        await writer.drain()
    except OSError:
        return False
    return True


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
