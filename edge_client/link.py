"""The life of one connection: hello, sends and answers, loss."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from edge_client.cargo import Cargo
from edge_client.ports import Connection, ConnectionLostError, Runtime, Transport
from edge_client.session_events import Answered, Event, Greeted, Loss, Lost
from edge_client.tasks import Tasks

_LOG: Final = logging.getLogger("edge_client")
_ENDED: Final = Loss("the service ended the stream")


class Link:
    """One connection of a session, from its first byte on.

    Args:
        number: The session's number for it.
        plan_id: What Hello names.
        runtime: Its clock.
        tasks: Where it runs.
        cargo: The bytes to send.
        tell: The session.
    """

    def __init__(
        self,
        number: int,
        *,
        plan_id: bytes,
        runtime: Runtime,
        tasks: Tasks,
        cargo: Cargo,
        tell: Callable[[Event], None],
    ) -> None:
        self._number = number
        self._plan_id = plan_id
        self._runtime = runtime
        self._tasks = tasks
        self._cargo = cargo
        self._tell = tell
        self._outbox: asyncio.PriorityQueue[int] = asyncio.PriorityQueue()
        self._unary: bool | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, transport: Transport) -> None:
        """Connects, and tells the session whatever comes of it."""
        self._task = self._tasks.spawn(self._run(transport.connect()), "connection")

    def open(self, *, unary: bool) -> None:
        """The session wants to send on it."""
        self._unary = unary

    def send(self, sequences: tuple[int, ...]) -> None:
        """Sends these deltas, those with lower numbers first."""
        for sequence in sequences:
            self._outbox.put_nowait(sequence)

    def close(self) -> None:
        """Ends it at once; the session hears no more of it."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self, connection: Connection) -> None:
        loss = _ENDED
        try:
            welcome = await connection.greet(self._plan_id)
            self._tell(Greeted(self._runtime.monotonic(), self._number, welcome, self._runtime.now_ms()))
            if self._unary is not None:  # else the session does not want it any more
                connection.open(unary=self._unary)
                await self._converse(connection)
        except ConnectionLostError as error:
            loss = error.loss
        finally:
            # A task of its own: this one may be cancelled already, and the connection must be closed all the same.
            self._tasks.spawn_whole(connection.close(), "close")
        _LOG.info("connection lost: %s", loss.detail)
        self._tell(Lost(self._runtime.monotonic(), self._number, loss))

    async def _converse(self, connection: Connection) -> None:
        sender = self._tasks.spawn(self._write(connection), "sender")
        try:
            async with aclosing(connection.answers()) as answers:
                async for answer in answers:
                    self._tell(Answered(self._runtime.monotonic(), self._number, answer))
        finally:
            sender.cancel()

    async def _write(self, connection: Connection) -> None:
        while True:
            sequence = await self._outbox.get()
            data = await self._cargo.data(sequence)
            try:
                await connection.send(data)
            except ConnectionLostError:
                return  # whoever reads its answers tells the session
            self._cargo.sent(sequence, len(data))
