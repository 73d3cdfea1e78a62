"""A TCP proxy on loopback that breaks links in the ways in which networks do, and holds replies back.

Its port outlives the server behind it. While replies are held, what clients send still flows; what the server answers
goes no further than the proxy. A server that is killed then has made durable what nobody was told of: the case that
exactly-once is about.
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

    target: tuple[str, int] | None = None
    fault: Fault | None = None
    aimed: Callable[[bytes], bool] | None = None
    left: int | None = None
    delay_s: float = 0.0
    refusing: bool = False
    silent: bool = False
    hold_after: int | None = None
    unheld: asyncio.Event = field(default_factory=asyncio.Event)
    allowance: float = math.inf
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


class TcpProxy:
    """Joins each connection to the target of that moment, and breaks it when told to.

    A connection that comes while there is no target, or whose target does not answer, is closed at once.

    Args:
        target: Where connections lead, ``host:port``; None: nowhere, until :meth:`aim`.
        port: Where to listen; 0: on a free one.
    """

    def __init__(self, target: str | None = None, port: int = 0) -> None:
        self._port = port
        self._rules = _Rules()
        self.aim(target)
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
        """``host:port``, the same for its whole life."""
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

    @property
    def is_spent(self) -> bool:
        """Whether it has carried what :meth:`carry` allowed, and has ended for it."""
        return self._rules.allowance < 0

    def aim(self, target: str | None) -> None:
        """Where connections that come from now on lead: ``host:port``, or nowhere."""
        if target is None:
            self._rules.target = None
        else:
            host, _, port = target.rpartition(":")
            self._rules.target = (host, int(port))

    def carry(self, size: int) -> None:
        """Carries so many bytes more of the clients, then nothing: every connection is cut, and no other is made."""
        self._rules.allowance = size

    def hold_replies(self, after: int = 0) -> None:
        """From now on no byte of the server reaches a client; requests flow on.

        Args:
            after: On each connection only once it has carried so many bytes more of its client: what is larger than a
                window of HTTP/2 does not come through without the server's word that there is room.
        """
        self._rules.hold_after = after
        self._rules.unheld.clear()
        for link in self._rules.links:
            link.carried = 0

    def release_replies(self) -> None:
        """Replies flow again, those held back first."""
        self._rules.hold_after = None
        self._rules.unheld.set()

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
        """Resets every connection of now; replies that are held back are lost, and stay lost."""
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
            await link.run(reader, writer)
        except asyncio.CancelledError:
            pass  # cut: the task ends here in any case
        finally:
            self._rules.links.discard(link)
            writer.transport.abort()


class _Link:
    """One client's connection and the server's beside it."""

    def __init__(self, rules: _Rules, task: "asyncio.Task[None]") -> None:
        self._rules, self.task = rules, task
        self._dropping = self._cut = False
        self.silent = False
        self.carried = 0  # of the client, since replies are to be held

    async def run(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        if self._rules.target is None:
            return
        try:
            server_in, server_out = await asyncio.open_connection(*self._rules.target)
        except OSError:
            return
        ways = [
            asyncio.ensure_future(self._requests(client_in, server_out)),
            asyncio.ensure_future(self._replies(server_in, client_out)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if self._cut:
                client_out.transport.abort()
            # What was handed over still goes out; the connection then ends.
            for writer in (client_out, server_out):
                writer.close()
            for writer in (client_out, server_out):
                with suppress(OSError):
                    await writer.wait_closed()
        finally:
            for way in ways:
                way.cancel()
            server_out.transport.abort()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _requests(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await _piece(client):
            fault = None if self._is_silent else self._rules.strikes(data)
            if fault is Fault.CUT_BEFORE_REQUEST or not self._allows(len(data)):
                self._cut = True
                return
            if fault is Fault.HALF_OPEN:
                self.silent = True
            if self._is_silent:
                continue
            if fault is Fault.CUT_BEFORE_REPLY:
                self._dropping = True
            await self._wait()
            self.carried += len(data)
            server.write(data)
            self._rules.sent += len(data)
            if not await _drained(server) or fault is Fault.CUT_AFTER_REQUEST:
                self._cut = True
                return

    async def _replies(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await _piece(server):
            if self._dropping:
                self._cut = True
                return
            await self._wait()
            while self._holds:
                await self._rules.unheld.wait()
            if self._is_silent:
                continue
            client.write(data)
            self._rules.received += len(data)
            if not await _drained(client):
                return

    def _allows(self, size: int) -> bool:
        """Whether so many bytes may still be carried; else nothing is any more."""
        self._rules.allowance -= size
        if self._rules.allowance >= 0:
            return True
        self._rules.target = None
        for link in self._rules.links - {self}:
            link.task.cancel()
        return False

    @property
    def _holds(self) -> bool:
        after = self._rules.hold_after
        return after is not None and self.carried >= after

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
