"""A TCP proxy on loopback that breaks connections as networks do, and can hold replies back.

Its port outlives the server behind it. While replies are held, requests still pass, but nothing from the server reaches
the clients. A server that is killed then has made deltas durable without acknowledging them: the case that exactly-once
is about.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Final, Self

_LOOPBACK: Final = "127.0.0.1"


class Fault(Enum):
    """What happens to a connection when it carries a request that the fault applies to."""

    #: The request never reaches the server, and the connection is reset.
    CUT_BEFORE_REQUEST = "cut before request"
    #: The request reaches the server, and the connection is reset at once.
    CUT_AFTER_REQUEST = "cut after request"
    #: The server has processed the request; its reply is dropped, and the connection is reset.
    CUT_BEFORE_REPLY = "cut before reply"
    #: Nothing passes any more in either direction, without an error.
    HALF_OPEN = "half-open"


@dataclass(eq=False)
class _Link:
    """The connection of one client, joined to one of the server."""

    task: "asyncio.Task[None]"
    drops_reply: bool = False
    is_cut: bool = False
    is_silent: bool = False
    carried: int = 0  # bytes of the client since hold_replies


class TcpProxy:
    """Joins each connection to the current target, and breaks it on request.

    A connection is closed at once if there is no target, or the target does not accept it.

    Args:
        target: ``host:port`` that connections lead to; None: none until :meth:`aim`.
        port: To listen on; 0: a free one.

    Attributes:
        struck: Requests that a fault applied to.
        connections: Accepted ones, without those that were refused.
        refused: Those that were refused.
        sent: Bytes that reached the server.
        received: Bytes that reached the clients.
        turns: Times that bytes for the clients followed bytes for the server: the round trips of one client that waits.
    """

    def __init__(self, target: str | None = None, port: int = 0) -> None:
        self.struck = self.connections = self.refused = self.sent = self.received = self.turns = 0
        self._is_answered = True  # the last bytes were for a client
        self._port = port
        self._server: asyncio.Server | None = None
        self._target: tuple[str, int] | None = None
        self._links: set[_Link] = set()
        self._fault: Fault | None = None
        self._fault_left: int | None = None
        self._fault_only: Callable[[bytes], bool] | None = None
        self._delay_s = 0.0
        self._is_refusing = self._is_silent = False
        self._hold_after: int | None = None
        self._unheld = asyncio.Event()
        self._allowance = math.inf
        self.aim(target)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, _LOOPBACK, self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None, "entered first"
        self._server.close()
        tasks = [link.task for link in self._links]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        """``host:port``, the same for its whole life."""
        assert self._server is not None, "entered first"
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    @property
    def is_spent(self) -> bool:
        """Whether the bytes that :meth:`carry` allowed are used up, and everything is cut."""
        return self._allowance < 0

    def aim(self, target: str | None) -> None:
        """Sets where new connections lead: ``host:port``, or nowhere."""
        if target is None:
            self._target = None
        else:
            host, _, port = target.rpartition(":")
            self._target = (host, int(port))

    def carry(self, size: int) -> None:
        """Allows this many more bytes of the clients; then every connection is cut, and no new one is made."""
        self._allowance = size

    def hold_replies(self, after: int = 0) -> None:
        """From now on no byte of the server reaches a client; requests still pass.

        Args:
            after: Holds replies on a connection only once its client has sent this many more bytes: a request larger
                than the flow-control window of HTTP/2 needs the server's window updates.
        """
        self._hold_after = after
        self._unheld.clear()
        for link in self._links:
            link.carried = 0

    def release_replies(self) -> None:
        """Lets replies pass again, those that were held first."""
        self._hold_after = None
        self._unheld.set()

    def inject(self, fault: Fault, times: int | None = 1, only: Callable[[bytes], bool] | None = None) -> None:
        """Applies a fault to the next requests: to so many, or to all until :meth:`heal`.

        ``only`` says whether it applies to this piece of a client's bytes; by default to any.
        """
        assert times is None or times > 0, "at least one"
        self._fault, self._fault_left, self._fault_only = fault, times, only

    def delay(self, seconds: float) -> None:
        """From now on every piece takes this much longer, in both directions."""
        self._delay_s = seconds

    def refuse(self) -> None:
        """Resets every connection, and from now on each new one."""
        self._is_refusing = True
        self.cut()

    def fall_silent(self) -> None:
        """From now on connections are accepted and kept, and nothing passes on any of them."""
        self._is_silent = True

    def cut(self) -> None:
        """Resets every current connection; replies that are held are lost."""
        for link in list(self._links):
            link.task.cancel()

    def heal(self) -> None:
        """Ends all faults. Silent connections are reset, since an unknown part of their bytes is lost."""
        for link in list(self._links):
            if self._is_silent or link.is_silent:
                link.task.cancel()
        self._fault, self._delay_s = None, 0.0
        self._is_refusing = self._is_silent = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a server runs each connection in a task"
        if self._is_refusing:
            self.refused += 1
            writer.transport.abort()
            return
        self.connections += 1
        link = _Link(task)
        self._links.add(link)
        try:
            await self._join(link, reader, writer)
        except asyncio.CancelledError:
            pass  # cut: the task ends here in any case
        finally:
            self._links.discard(link)
            writer.transport.abort()

    async def _join(self, link: _Link, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        if self._target is None:
            return
        try:
            server_in, server_out = await asyncio.open_connection(*self._target)
        except OSError:
            return
        directions = [
            asyncio.ensure_future(self._requests(link, client_in, server_out)),
            asyncio.ensure_future(self._replies(link, server_in, client_out)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            if link.is_cut:
                client_out.transport.abort()
            # Bytes that were written before still go out; then the connection ends.
            for writer in (client_out, server_out):
                writer.close()
            for writer in (client_out, server_out):
                with suppress(OSError):
                    await writer.wait_closed()
        finally:
            for direction in directions:
                direction.cancel()
            server_out.transport.abort()
            await asyncio.gather(*directions, return_exceptions=True)

    async def _requests(self, link: _Link, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await _piece(client):
            fault = None if self._silences(link) else self._fault_for(data)
            if fault is Fault.CUT_BEFORE_REQUEST or not self._allows(link, len(data)):
                link.is_cut = True
                return
            if fault is Fault.HALF_OPEN:
                link.is_silent = True
            if self._silences(link):
                continue
            if fault is Fault.CUT_BEFORE_REPLY:
                link.drops_reply = True
            await self._wait()
            link.carried += len(data)
            server.write(data)
            self.sent += len(data)
            self._is_answered = False
            if not await _drained(server) or fault is Fault.CUT_AFTER_REQUEST:
                link.is_cut = True
                return

    async def _replies(self, link: _Link, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await _piece(server):
            if link.drops_reply:
                link.is_cut = True
                return
            await self._wait()
            while self._hold_after is not None and link.carried >= self._hold_after:
                await self._unheld.wait()
            if self._silences(link):
                continue
            client.write(data)
            self.received += len(data)
            self.turns += not self._is_answered
            self._is_answered = True
            if not await _drained(client):
                return

    def _fault_for(self, data: bytes) -> Fault | None:
        """The fault that applies to this request, which is counted; None if it passes."""
        if self._fault is None or (self._fault_only is not None and not self._fault_only(data)):
            return None
        fault = self._fault
        self.struck += 1
        if self._fault_left is not None:
            self._fault_left -= 1
            if self._fault_left == 0:
                self._fault = None
        return fault

    def _allows(self, link: _Link, size: int) -> bool:
        """Whether :meth:`carry` allows this many more bytes; otherwise everything is cut."""
        self._allowance -= size
        if self._allowance >= 0:
            return True
        self._target = None
        for other in self._links - {link}:
            other.task.cancel()
        return False

    def _silences(self, link: _Link) -> bool:
        return self._is_silent or link.is_silent

    async def _wait(self) -> None:
        if self._delay_s > 0.0:
            await asyncio.sleep(self._delay_s)


async def _piece(reader: asyncio.StreamReader) -> bytes:
    """The bytes that arrived; empty once the other side has ended."""
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
