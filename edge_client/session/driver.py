"""Runs the session on connections and the spool: sends, timers and durable answers, all of it on one loop."""

import asyncio
import logging
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from edge_client.config import SEQUENCE_WINDOW
from edge_client.errors import ClientStateError, ClockWarning, FlushTimeoutError, SpoolError
from edge_client.runtime import Runtime, Tasks, Waiters
from edge_client.session.session import (
    Answered,
    Begun,
    Close,
    Connect,
    Connected,
    ConnectionNeeded,
    Deferred,
    Disconnected,
    Effect,
    Event,
    Open,
    Send,
    Session,
    SetTimer,
    Settle,
    Settled,
    Spooled,
    State,
    Stop,
    TimerFired,
    WarnOfClock,
    limited_s,
)
from edge_client.spool.changes import Add, Bind, Rebind, Remove, StoredDelta, Submit, Unbound
from edge_client.spool.spool import Spool
from edge_client.spool.write_queue import SpoolWriter
from edge_client.status import Event as StatusEvent
from edge_client.status import EventKind, OnEvent, SendStats, answer_name
from edge_client.transport.interface import Connection, ConnectionLostError, Disconnect, Transport
from hushsum.delta import read_header
from hushsum.errors import ContributionError, DeltaError, HushsumError, Reason
from hushsum_proto.answers import Answer, Refusal, Status

_LOG: Final = logging.getLogger("edge_client")
_ENDED: Final = Disconnect("the service ended the stream")
# Little, for there may be hundreds of clients in a process, and the spool gives the rest quickly.
_CACHE_BYTES: Final = 2**18
_RETRY_S: Final = 5.0  # after a delta's window could not be written
_Binding = Callable[[int, bytes, int], Bind | None]


class PayloadCache:
    """Gives a delta's bytes, from memory where they are at hand and else from the spool."""

    def __init__(self, spool: Spool, runtime: Runtime) -> None:
        self._spool = spool
        self._runtime = runtime
        self._cached: dict[int, bytes] = {}  # not sent yet
        self._size = 0
        self._sent: set[int] = set()  # unanswered ones that were sent at least once
        self.sends = SendStats()

    def keep(self, bound: Iterable[StoredDelta]) -> None:
        """Keeps new deltas, as many as there is room for, so that they need not be read from the disk."""
        for delta in bound:
            if self._size < _CACHE_BYTES:
                self._cached[delta.sequence] = delta.data
                self._size += len(delta.data)

    async def data(self, sequence: int) -> bytes:
        """A delta's bytes; some of those after it are read from the disk with it.

        Raises:
            SpoolError: The spool does not hold it.
        """
        if sequence not in self._cached:
            near = await self._runtime.blocking(self._spool.load, sequence, SEQUENCE_WINDOW, _CACHE_BYTES)
            self._cached = {delta.sequence: delta.data for delta in near}
            self._size = sum(map(len, self._cached.values()))
        if sequence not in self._cached:
            raise SpoolError(
                f"spool: delta {sequence} is unanswered but missing: the file was changed by another program"
            )
        return self._cached[sequence]

    def replace(self, bound: StoredDelta) -> None:
        """Keeps the bytes of a delta that has its window now."""
        self.forget(bound.sequence)
        self.keep((bound,))

    def forget(self, sequence: int) -> None:
        """The next use reads it from the disk."""
        self._size -= len(self._cached.pop(sequence, b""))

    def sent(self, sequence: int, size: int) -> None:
        self.forget(sequence)
        again = sequence in self._sent
        self._sent.add(sequence)
        before = self.sends
        self.sends = SendStats(before.first + (not again), before.again + again, before.bytes + size)

    def drop(self, sequence: int) -> None:
        self._sent.discard(sequence)


@dataclass
class _Connection:
    """A connection of the session.

    Attributes:
        number: The session's.
        wire: What it is made of.
        outbox: Numbers of deltas to send, lower ones first.
        tasks: What runs it, and what sends once the session has opened it.
    """

    number: int
    wire: Connection
    outbox: "asyncio.PriorityQueue[int]" = field(default_factory=asyncio.PriorityQueue)
    tasks: "list[asyncio.Task[None]]" = field(default_factory=list)

    def send(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self.outbox.put_nowait(sequence)

    def cancel(self) -> None:
        for task in self.tasks:
            task.cancel()


class SessionDriver:
    """Runs a session, in which nothing has happened yet, on real connections.

    ``writer`` alone changes the spool. ``on_answer`` is called with each definitive answer once it is durable.

    Attributes:
        failure: What has ended the session for good; None while it runs.
        last_error: Why the last connection, attempt or submission ended, or what has ended the session.
        bind: Makes the change that gives a delta of the spool its window, from its number, its bytes and the service's
            clock; it gives None for one that has its window. None where all deltas have theirs from the start.
        move: Makes a late delta's addition to a later window from its bytes and the service's clock, in ms since 1970
            UTC; None: what is late counts nowhere.
        earlier: Answers to deltas that were in the spool already, by name.
        oldest_window: The oldest window that the service took deltas for when it last welcomed this client.
        newest_window: The newest one then.
        tasks: Of the same client: they end when the session does, and what fails in them ends the session.
        waiters: Flushes of the same client: what ends the session, or that it is closed, is raised for them.
    """

    def __init__(
        self,
        session: Session,
        *,
        spool: Spool,
        writer: SpoolWriter,
        transport: Transport,
        runtime: Runtime,
        on_answer: Callable[[Answer], None],
        on_event: OnEvent,
    ) -> None:
        self.failure: Exception | None = None
        self.last_error: str | None = None
        self.bind: _Binding | None = None
        self.move: Callable[[bytes, int], Add] | None = None
        self.writer = writer
        self.tasks = Tasks(runtime, self._fail)
        self.waiters = Waiters(self.tasks, runtime)
        self.earlier: Counter[str] = Counter()
        self.oldest_window = self.newest_window = 0
        self._connected = asyncio.Event()  # a connection came about since it was cleared
        self._needs = 0  # how many need one with nothing to send
        self._new_from = session.send_window.end
        self._session = session
        self._transport = transport
        self._runtime = runtime
        self._on_answer = on_answer
        self._on_event = on_event
        self._first_numbers: dict[int, int] = {}  # of unanswered deltas that were moved
        self._windows: dict[int, int] = {}  # of unanswered deltas that were sent, where late ones move
        self._payloads = PayloadCache(spool, runtime)
        self._connection: _Connection | None = None
        self._timer: asyncio.Task[None] | None = None
        self._closed = False
        self._is_reported = False  # the failure was raised
        self._has_unsent = False

    @property
    def sends(self) -> SendStats:
        return self._payloads.sends

    @property
    def is_connected(self) -> bool:
        return self._session.state is State.OPEN

    @property
    def next_attempt_ms(self) -> int | None:
        """When it connects again, ms since 1970 UTC; None where it is connected or has nothing to send."""
        at = self._session.next_attempt_at
        if at is None or self._closed or self.failure is not None:
            return None
        return self._runtime.now_ms() + round(1000 * max(0.0, at - self._runtime.monotonic()))

    @property
    def unanswered(self) -> int:
        """Deltas without a durable definitive answer."""
        return len(self._session.send_window)

    @property
    def waiting(self) -> int:
        """Of those: deltas that wait for a window that has begun, or has room for them."""
        return self._session.send_window.deferred

    def begin(self) -> None:
        """Connects at once, if only to hear early that another plan is collected there."""
        self._tell(Begun(self._runtime.monotonic()))

    def submit(self, change: Add | Submit) -> "asyncio.Future[tuple[StoredDelta, ...]]":
        """Puts deltas into the spool, and sends them once they are durable, even if the future is not awaited."""
        stored = self.writer.put(change)
        stored.add_done_callback(self._on_stored)
        return stored

    def _on_stored(self, stored: "asyncio.Future[tuple[StoredDelta, ...]]") -> None:
        if stored.cancelled() or stored.exception() is not None or not stored.result():
            return
        if self._closed or self.failure is not None:  # they stay in the spool, and the session never hears of them
            self._has_unsent = True
            return
        deltas = stored.result()
        self._payloads.keep(deltas)
        numbers = tuple(delta.sequence for delta in deltas)
        streams = tuple((delta.sequence, delta.stream) for delta in deltas if delta.stream is not None)
        self._tell(Spooled(self._runtime.monotonic(), numbers, streams))

    @property
    def service_ms(self) -> int:
        """The service's clock, as its last welcome told it, in ms since 1970 UTC."""
        return self._session.service_ms(self._runtime.monotonic())

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Begins once this client is connected; until it ends, it connects again and stays so with nothing to send."""
        self._needs += 1
        self._tell(ConnectionNeeded(self._runtime.monotonic(), is_needed=True))
        try:
            while not self.is_connected:
                self._connected.clear()
                await self._connected.wait()
            yield
        finally:
            self._needs -= 1
            self._tell(ConnectionNeeded(self._runtime.monotonic(), is_needed=self._needs > 0))

    async def answered(self, timeout_s: float | None) -> None:
        """Returns once everything that is spooled now has a durable definitive answer.

        Raises:
            FlushTimeoutError: Not within the time; nothing is given up.
            Exception: What has ended the session, where something is unanswered; or that it was closed.
        """
        send_window = self._session.send_window
        end = send_window.end

        def is_answered() -> bool:
            moved = any(first < end for first in self._first_numbers.values())
            return not moved and send_window.is_answered(end)

        if self._has_unsent or not is_answered():
            self.raise_failure()
            await self.waiters.wait(is_answered, timeout_s, self._timeout_error)

    def raise_failure(self) -> None:
        """Raises what has ended the session, or that it is closed, if it is no longer running."""
        if self.failure is not None:
            self._is_reported = True
            raise self.failure
        if self._closed:
            raise _closed_error()

    def raise_unreported(self) -> None:
        """Raises what has ended the session, unless that was raised before."""
        if self.failure is not None and not self._is_reported:
            self.raise_failure()

    async def close(self) -> None:
        """Ends the connection and every task, and writes what was put; what is unanswered stays in the spool.

        A flush that waits returns if the last answers become durable with that; otherwise it raises.
        """
        self._closed = True
        await self.tasks.close()
        await self.writer.close()
        self.waiters.fail(_closed_error())

    # ------------------------------------------------------------------------------------------- events and effects

    def _tell(self, event: Event) -> None:
        if self.failure is not None:
            return
        effects = self._session.handle(event)
        if isinstance(event, Settled):
            self.waiters.check()
        if not self._closed:
            for effect in effects:
                self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Connect():
                connection = self._connection = _Connection(effect.connection, self._transport.connect())
                connection.tasks.append(self.tasks.spawn(self._run(connection), "connection"))
            case Open():
                self._open(self._current, unary=effect.unary)
            case Send():
                self._send_bound(self._current, effect.sequences)
            case Close():
                self._close(self._current, is_idle=effect.is_idle)
            case Settle():
                self._settle(effect)
            case SetTimer():
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = self.tasks.spawn(self._wake_at(effect.at), "timer")
            case WarnOfClock():
                self._warn_of_clock(effect.ahead_ms)
            case Stop():
                self._fail(effect.error)

    @property
    def _current(self) -> _Connection:
        assert self._connection is not None, "the session connects first"
        return self._connection

    def _settle(self, effect: Settle) -> None:
        name, move = answer_name(effect.answer), self.move
        change = Remove(effect.sequence, name)
        if move is not None and effect.answer.status is Status.LATE:
            change = Rebind(effect.sequence, name, lambda data: move(data, effect.service_ms))
        removed = self.writer.put(change)
        removed.add_done_callback(lambda done: self._settled(effect, done))

    def _settled(self, effect: Settle, done: "asyncio.Future[tuple[StoredDelta, ...]]") -> None:
        if done.cancelled():
            return  # it could not be kept before the end: the delta is sent again at the next start
        error = done.exception()
        if error is not None:  # the delta is still in the spool, and no other answer to it is coming
            self._fail(SpoolError(f"spool: the answer to delta {effect.sequence} cannot be stored: {error}"))
            return
        self._payloads.drop(effect.sequence)
        self._windows.pop(effect.sequence, None)
        first = self._first_numbers.pop(effect.sequence, effect.sequence)
        moved = done.result()
        self._first_numbers.update({delta.sequence: first for delta in moved})
        if moved:
            detail = "a delta came late, and is bound to a later window"
            self._on_event(StatusEvent(EventKind.MOVED, detail, delta=effect.answer.id))
        else:
            if first < self._new_from:
                self.earlier[answer_name(effect.answer)] += 1
            self._on_answer(effect.answer)
        self._tell(Settled(self._runtime.monotonic(), effect.sequence))
        self._on_stored(done)

    def _warn_of_clock(self, ahead_ms: int) -> None:
        way = "ahead of" if ahead_ms > 0 else "behind"
        message = (
            f"this device's clock is {abs(ahead_ms) / 1000:.0f} s {way} the service's, more than the plan's lateness: "
            "records that are dated by it may fall into a window that is closed, or not open yet; set the clock, or "
            "give the time of each batch"
        )
        _LOG.warning("%s: %s", self._transport, message)
        self._on_event(StatusEvent(EventKind.CLOCK_OFF, message))
        with suppress(ClockWarning):  # raised as an error here it would end the client, and reach no caller
            warnings.warn(message, ClockWarning, stacklevel=2)

    async def _wake_at(self, at: float) -> None:
        await self._runtime.sleep(max(0.0, at - self._runtime.monotonic()))
        self._timer = None
        self._tell(TimerFired(self._runtime.monotonic()))

    def _timeout_error(self, timeout_s: float) -> FlushTimeoutError:
        loss = self._session.last_loss
        last = "" if loss is None else f"; the last connection ended with: {loss.detail}"
        what = f"{self.unanswered} deltas have no answer after {timeout_s:g} s: they remain in the spool"
        waiting = f"; {self.waiting} of them wait for a later window" if self.waiting else ""
        return FlushTimeoutError(f"{what}, and sending continues{waiting}{last}")

    def _fail(self, error: Exception) -> None:
        """Ends the session; every add and flush that waits, or comes later, raises the error."""
        if self.failure is None:
            self.failure = error
            self.last_error = str(error)
            _LOG.error("%s: the session has ended: %s", self._transport, error)
            self._on_event(StatusEvent(EventKind.STOPPED, str(error), error=error))
        if self.waiters.fail(self.failure):
            self._is_reported = True
        self.tasks.cancel()

    # -------------------------------------------------------------------------------------------------- a connection

    async def _run(self, connection: _Connection) -> None:
        loss = _ENDED
        try:
            welcome = await connection.wire.greet(self._session.plan_id)
            self.oldest_window, self.newest_window = welcome.oldest_window, welcome.newest_window
            self._tell(Connected(self._runtime.monotonic(), connection.number, welcome, self._runtime.now_ms()))
            if self.is_connected:  # else the session does not want it any more
                self._connected.set()
                _LOG.info("%s: connected", self._transport)
                self._on_event(StatusEvent(EventKind.CONNECTED, f"connected to {self._transport}"))
                await self._hear(connection)
        except ConnectionLostError as error:
            loss = error.loss
        finally:
            for task in connection.tasks[1:]:
                task.cancel()
            # A task of its own: this one may be cancelled already, and the connection must be closed all the same.
            self.tasks.spawn(connection.wire.close(), "close", whole=True)
        self.last_error = loss.detail
        self._tell(Disconnected(self._runtime.monotonic(), connection.number, loss))
        self._report_loss(loss)

    def _report_loss(self, loss: Disconnect) -> None:
        if self.failure is not None:
            return
        attempt, next_ms = self._session.failures, self.next_attempt_ms
        when = "" if next_ms is None else f", next attempt in {(next_ms - self._runtime.now_ms()) / 1000:.1f} s"
        _LOG.info("%s: connection ended (%s); failed attempts: %d%s", self._transport, loss.detail, attempt, when)
        kind = EventKind.DISCONNECTED
        self._on_event(StatusEvent(kind, loss.detail, attempt=attempt, next_attempt_ms=next_ms))

    def _open(self, connection: _Connection, *, unary: bool) -> None:
        connection.wire.open(unary=unary)
        connection.tasks.append(self.tasks.spawn(self._send(connection), "sender"))

    def _close(self, connection: _Connection, *, is_idle: bool) -> None:
        connection.cancel()
        if is_idle:
            detail = "nothing to send: it connects again with the next delta"
            _LOG.info("%s: connection closed (%s)", self._transport, detail)
            self._on_event(StatusEvent(EventKind.DISCONNECTED, detail))

    async def _hear(self, connection: _Connection) -> None:
        async with aclosing(connection.wire.answers()) as answers:
            async for answer in answers:
                window = None if answer.id is None else self._windows.get(answer.id.sequence)
                self._tell(Answered(self._runtime.monotonic(), connection.number, answer, window))

    def _send_bound(self, connection: _Connection, sequences: Iterable[int]) -> None:
        """Sends deltas; those that have no window get theirs first."""
        if self.bind is None:
            connection.send(sequences)
        else:
            self.tasks.spawn(self._bind(connection, sequences, self.bind), "binding")

    async def _bind(self, connection: _Connection, sequences: Iterable[int], bind: _Binding) -> None:
        """Gives deltas their windows where they have none, durably, and sends them; or defers them."""
        changes: list[tuple[Bind, bytes, asyncio.Future[tuple[StoredDelta, ...]]]] = []
        for sequence in sequences:
            try:
                data = await self._payloads.data(sequence)
            except SpoolError:
                if connection is self._connection:
                    raise
                break
            if connection is not self._connection:
                break  # it is over: the next one gives what is left its window, and may have had answers already
            change, now = None, self._runtime.monotonic()
            with suppress(HushsumError):  # damaged bytes: the service refuses them
                change = bind(sequence, data, self._session.service_ms(now))
            if change is None:
                connection.send((sequence,))
            elif (wait_s := self._session.until_begun_s(change.window, now)) > 0:
                self._tell(Deferred(now, connection.number, sequence, limited_s(round(1000 * wait_s))))
            else:
                changes.append((change, data, self.writer.put(change)))
        for change, data, done in changes:
            try:
                self._bound(connection, change, await asyncio.shield(done))
            except (ContributionError, DeltaError) as error:  # it never can be sent
                # Damaged bytes are refused as the service would refuse them: nobody can tell how many records they are.
                reason = Reason.MALFORMED if isinstance(error, DeltaError) else Reason.TOO_MANY_WINDOWS
                answer = Answer(read_header(data).id, Status.REFUSED, Refusal.of(reason, str(error)))
                self._tell(Answered(self._runtime.monotonic(), connection.number, answer))
            except HushsumError as error:  # a full disk, perhaps
                _LOG.warning("delta %d has no window yet, retrying: %s", change.sequence, error)
                self._tell(Deferred(self._runtime.monotonic(), connection.number, change.sequence, _RETRY_S))

    def _bound(self, connection: _Connection, change: Bind, stored: tuple[StoredDelta, ...]) -> None:
        """Sends a delta that has its window now; one for which its window has no room waits for the next."""
        if stored:
            self._payloads.replace(*stored)
            connection.send((change.sequence,))
            return
        now = self._runtime.monotonic()
        wait_s = max(0.0, self._session.until_begun_s(change.window + 1, now))
        self._tell(Deferred(now, connection.number, change.sequence, limited_s(round(1000 * wait_s))))

    async def _send(self, connection: _Connection) -> None:
        while True:
            sequence = await connection.outbox.get()
            data = await self._payloads.data(sequence)
            if self.move is not None:
                with suppress(HushsumError):  # damaged bytes: the service refuses them
                    self._windows[sequence] = read_header(data).window
            if self.bind is not None and Unbound.read(self._windows.get(sequence, 0)) is not None:
                # It was read from the disk while its window was written: it is read again.
                self._payloads.forget(sequence)
                self._send_bound(connection, (sequence,))
                continue
            self._payloads.sent(sequence, len(data))  # also if the connection breaks before this returns
            try:
                await connection.wire.send(data)
            except ConnectionLostError:
                return  # the reader of its answers reports the loss to the session


def _closed_error() -> ClientStateError:
    return ClientStateError("this client was closed; unanswered deltas stay in the spool")
