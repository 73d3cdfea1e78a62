"""Bounds on calls, on streams, and on messages that wait to be read.

A call's task is interrupted only while it runs our own code. While gRPC writes a reply, it would take a cancellation
for the client's own, and the client would never learn the reason: such a call gets its error once the write returns,
and releases what it holds at once.

A caller is admitted by its headers; what it then sends arrives as fast as it likes. So each name may have a share of
the calls under way, and few of their messages are read at a time: the others wait, in gRPC's windows of some kilobytes
(which ``grpc.http2.bdp_probe`` keeps at that). Where more messages are awaited than all names may have on their way,
the oldest call of the name with the most of them is ended for a name that has fewer; where no name has more, the new
call is refused: no message that is on its way is given up for one that has not begun.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import grpc.aio
from google.protobuf.message import DecodeError, Message

from aggregator.errors import AggregatorError, RefusedError, overloaded, share_taken
from aggregator.logs import journal
from aggregator.rate_limits import share_of
from aggregator.runtime import Runtime
from hushsum_proto.answers import Refusal, ServiceReason
from hushsum_proto.errors import MalformedMessageError

RECHECK_S: Final = 1.0
_AT_ONCE: Final = 256  # are looked at before others have their turn
_REST: Final = 10  # pauses last so many times as long as looking does: at 10^5 streams, some seconds

_journal = journal("streams")


# Any: the types of messages are those of each method. In quotes: generic in their typings alone.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

Q = TypeVar("Q", bound=Message)

GRACE_S: Final = 30.0  # how long a message may take, and longer by its size
BYTES_S_MIN: Final = 64 * 1024  # how fast it must come, on average
QUESTION_BYTES_MAX: Final = 4096  # of a message that carries no delta: a few numbers and short texts
_BESIDE_BYTES_MAX: Final = 4096  # of a message, beside the bytes that it carries


class CancellableCall:
    """A call that other tasks can end."""

    __slots__ = ("_replies", "_task", "due_s", "ended", "late", "received_bytes")

    def __init__(self) -> None:
        self.ended: AggregatorError | None = None  # why it may not go on; set once
        self.due_s: float | None = None  # when it is ended for being too slow, by the monotonic clock
        self.late: Callable[[], AggregatorError] | None = None  # makes the error for that
        self.received_bytes = 0  # of whole messages, in a call with one message
        self._task: asyncio.Task[object] | None = None
        self._replies: AsyncIterator[object] | None = None

    def lapse(self) -> AggregatorError | None:
        """Why its caller would not be admitted again; None where it would be, or was not yet."""
        return None

    @contextmanager
    def working(self) -> Iterator[None]:
        """The block runs in our code alone, and may be interrupted; raises the error that ended the call."""
        self.check()
        around, self._task = self._task, asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            self._raise_ended(self._task)
            raise
        finally:
            self._task = around

    def _raise_ended(self, task: "asyncio.Task[object] | None") -> None:
        """Turns a cancellation of the call's task into the error that ended it; else the client is gone."""
        if self.ended is not None:
            assert task is not None, "a handler runs in a task"
            task.uncancel()
            raise self.ended from None

    def check(self) -> None:
        if self.ended is not None:
            raise self.ended

    async def each(self, replies: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The replies; between two of them gRPC writes, and the call may not be interrupted."""
        self._replies = replies
        try:
            while True:
                # As `working` does it, without a context for each reply of a stream.
                self.check()
                task = self._task = asyncio.current_task()
                try:
                    reply = await anext(replies)
                except StopAsyncIteration:
                    return
                except asyncio.CancelledError:
                    self._raise_ended(task)
                    raise
                finally:
                    self._task = None
                yield reply
        finally:
            await self.close()

    async def write_each(self, replies: AsyncIterator[Any], write: Callable[[Any], Awaitable[None]]) -> None:
        """Writes the replies; as :meth:`each`, without a generator for each open stream."""
        self._replies, task = replies, asyncio.current_task()
        try:
            while True:
                self.check()
                self._task = task
                try:
                    reply = await anext(replies)
                except StopAsyncIteration:
                    return
                except asyncio.CancelledError:
                    self._raise_ended(task)
                    raise
                finally:
                    self._task = None
                await write(reply)
                del reply  # an idle session would keep its last one
        finally:
            await self.close()

    def end(self, error: AggregatorError) -> bool:
        """Ends it; False: gRPC is writing, and :meth:`close` has to release what the call holds."""
        if self.ended is None:
            self.ended = error
            if self._task is not None:
                self._task.cancel()
        return self._task is not None

    async def close(self) -> None:
        """Releases what its method holds."""
        replies, self._replies = self._replies, None
        if isinstance(replies, AsyncGenerator):
            try:
                await replies.aclose()
            except Exception as error:  # noqa: BLE001  it is over, whatever happens at its end
                _journal.error("stream handler failed", exc_info=error)


class OpenCalls:
    """The calls of one server that are under way, which are rechecked periodically."""

    def __init__(self) -> None:
        self.now_s: float | None = None  # of the last recheck, by the monotonic clock; None: :meth:`run` does not run
        self._calls: dict[CancellableCall, None] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._calls)

    @contextmanager
    def held(self, call: CancellableCall) -> Iterator[None]:
        """Registers a call for the duration of the block, or until it is ended."""
        if call in self._calls:
            yield
            return
        self.hold(call)
        try:
            yield
        finally:
            self.release(call)

    def hold(self, call: CancellableCall) -> None:
        """Registers a call until :meth:`release`, or until it is ended."""
        self._calls[call] = None

    def release(self, call: CancellableCall) -> None:
        self._calls.pop(call, None)

    def within(self, seconds: float, call: CancellableCall, late: Callable[[], AggregatorError]) -> None:
        """Ends the call in about so many seconds, unless its deadline is set again."""
        call.due_s, call.late = None if self.now_s is None else self.now_s + RECHECK_S + seconds, late

    async def run(self, runtime: Runtime) -> None:
        """Rechecks all of them periodically; never returns."""
        looked_s = 0.0
        self.now_s = runtime.monotonic()
        while True:
            await runtime.sleep(max(RECHECK_S, _REST * looked_s))
            began_s = runtime.monotonic()
            await self.recheck(runtime)
            looked_s = runtime.monotonic() - began_s

    async def recheck(self, runtime: Runtime) -> None:
        """Ends those that have lapsed, and those that are too slow."""
        self.now_s = runtime.monotonic()
        for number, call in enumerate(list(self._calls), 1):
            if call in self._calls:
                self._look(call, self.now_s, runtime)
            if number % _AT_ONCE == 0:
                await runtime.sleep(0)

    def _look(self, call: CancellableCall, now_s: float, runtime: Runtime) -> None:
        why = call.lapse()
        if why is None and call.late is not None and call.due_s is not None and call.due_s <= now_s:
            why = call.late()
        if why is None or call.end(why):
            return
        del self._calls[call]
        task = runtime.spawn(call.close(), "lapsed")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class SharedConcurrencyLimit:
    """A bound on calls of unauthenticated callers, in which a new call finds a place.

    While all places are taken, a new call ends the oldest call of the caller with the most of them; a caller is known
    by its address alone. An ended call keeps its place until it is over, and one that waits for its reply to be read is
    not over before that. So while twice as many places are taken, a new call is refused, and the connections of the
    ended calls that are still there are closed (``does_not_read``, by their peer).
    """

    def __init__(self, most: int, what: str, does_not_read: Callable[[str], None]) -> None:
        self._most = most
        self._what = what
        self._does_not_read = does_not_read
        self._open: dict[
            CancellableCall, tuple[str, str]
        ] = {}  # with peer and caller; the oldest first, none that was ended
        self._of_caller: Counter[str] = Counter()
        self._ended: dict[CancellableCall, str] = {}  # with peer, until they are over

    @contextmanager
    def taken(self, peer: str, caller: str, call: CancellableCall) -> Iterator[None]:
        """Takes one place for a call, for the duration of the block; another call that needs the place ends it.

        ``peer`` is gRPC's name of its connection, ``caller`` its address or network.

        Raises:
            RefusedError: No place can be had now.
        """
        if len(self._open) + len(self._ended) >= 2 * self._most:
            for unread in set(self._ended.values()):
                self._does_not_read(unread)
            raise overloaded(f"at most {self._most} {self._what} at once")
        self._of_caller[caller] += 1
        if len(self._open) >= self._most:
            self._make_room(caller)
        self._open[call] = peer, caller
        try:
            yield
        finally:
            self._forget(call)
            self._ended.pop(call, None)

    def _make_room(self, newcomer: str) -> None:
        most = max(self._of_caller.values())
        is_newcomers = self._of_caller[newcomer] == most > 1  # of several that have as many, the newcomer gives one up
        oldest = next(
            call
            for call, (_, caller) in self._open.items()
            if (caller == newcomer if is_newcomers else self._of_caller[caller] == most)
        )
        self._ended[oldest], _ = self._open[oldest]
        self._forget(oldest)
        oldest.end(overloaded(f"at most {self._most} {self._what} at once, and newer ones were accepted"))

    def _forget(self, call: CancellableCall) -> None:
        if call in self._open:
            _, caller = self._open.pop(call)
            self._of_caller[caller] -= 1
            if not self._of_caller[caller]:
                del self._of_caller[caller]


UNREAD_MAX: Final = 512  # messages of all callers that are on their way
NAMELESS_MAX: Final = 128  # of those who have no name: readers, where names are only declared
_NAMELESS_MIN: Final = 8
NAMELESS_CALLS_MAX: Final = 1024  # of theirs under way: they take nothing from those who have a name
UNREAD_BYTES_MAX: Final = 16 << 20  # of one name's messages that are on their way; one fits always


class _Caller:
    def __init__(self, at_once: int) -> None:
        self.under_way = 0
        self.unread: dict[CancellableCall, None] = {}  # the oldest first
        self.turns = asyncio.Semaphore(at_once)


class RequestAdmission:
    """Admits the calls with one message of one server, and reads the messages.

    There are ``most`` calls at once, of one name a quarter.
    """

    def __init__(self, most: int, message_bytes_max: int, streams: OpenCalls | None = None) -> None:
        self.message_bytes_max = message_bytes_max
        self.streams = OpenCalls() if streams is None else streams
        self._message_s_max = GRACE_S + message_bytes_max / BYTES_S_MIN
        self._most = most
        self._of_one = share_of(most)
        self._at_once = max(1, UNREAD_BYTES_MAX // message_bytes_max)
        self._nameless_at_once = max(_NAMELESS_MIN, min(NAMELESS_MAX, self._at_once))
        self._callers: dict[str, _Caller] = {}
        self._under_way = 0
        self._unread = 0

    def __len__(self) -> int:
        """The number of calls under way whose callers have a name."""
        return self._under_way

    @contextmanager
    def under_way(self, name: str) -> Iterator[None]:
        """Counts a call for the duration of the block.

        Raises:
            RefusedError: This name has as many as it may, or all together have.
        """
        caller = self._callers.get(name)
        if caller is not None and name and caller.under_way >= self._of_one:
            raise RefusedError(share_taken(f"{self._of_one} concurrent calls per client"))
        if name and self._under_way >= self._most:
            raise overloaded(f"at most {self._most} concurrent calls")
        if not name and caller is not None and caller.under_way >= NAMELESS_CALLS_MAX:
            raise overloaded(f"at most {NAMELESS_CALLS_MAX} concurrent calls without a client id")
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
    async def unread(self, name: str, call: CancellableCall) -> AsyncIterator[None]:
        """The block reads the message of a call that is under way, when it is the name's turn.

        Raises:
            RefusedError: As many are on their way as may be, and no name has more of them than this one.
        """
        caller = self._callers[name]
        if not name and len(caller.unread) >= self._nameless_at_once:
            self._end_oldest(caller)
        if self._unread >= UNREAD_MAX:
            most = max(self._callers.values(), key=lambda each: len(each.unread))
            if len(most.unread) <= max(1, len(caller.unread)):
                raise overloaded(f"{UNREAD_MAX} unread messages")
            self._end_oldest(most)
        caller.unread[call] = None
        self._unread += 1
        try:
            async with caller.turns:
                yield
        finally:
            self._forget(caller, call)

    async def read(self, name: str, call: CancellableCall, context: Context) -> Any:  # of each method's type
        """The message of a call that is under way, or :class:`Malformed`.

        Raises:
            MalformedMessageError: None arrived, or more than one.
            RefusedError: It did not arrive in time, or others needed its place.
            AggregatorError: The call has lapsed meanwhile.
        """
        self.streams.within(self._message_s_max, call, self._late)
        with self.streams.held(call), call.working():
            async with self.unread(name, call):
                message = await one_message(call, context)
        call.due_s = None
        return message

    def _late(self) -> RefusedError:
        detail = f"no complete message received within {self._message_s_max:.0f} s"
        return RefusedError(Refusal.of(ServiceReason.UNAVAILABLE, detail))

    def _end_oldest(self, caller: _Caller) -> None:
        call = next(iter(caller.unread))
        self._forget(caller, call)
        call.end(overloaded("other calls are waiting, and the message of this call has not arrived"))

    def _forget(self, caller: _Caller, call: CancellableCall) -> None:
        if call in caller.unread:
            del caller.unread[call]
            self._unread -= 1


@dataclass(frozen=True)
class Malformed:
    """Takes the place of a message: gRPC itself would answer INTERNAL, which says that we are at fault."""

    size: int = 0  # bytes that arrived
    bytes_max: int | None = None  # the bound, where they were too many to be parsed

    def error(self) -> MalformedMessageError:
        if self.bytes_max is None:
            return MalformedMessageError("the bytes received are not a valid message of this method")
        return MalformedMessageError(f"message of {self.size} bytes, expected at most {self.bytes_max}")


def reader(message: type[Q], bytes_max: int, payload: str = "") -> Callable[[bytes], Q | Malformed]:
    """A deserializer that never raises.

    What is larger than ``bytes_max`` is no message of this kind, and is not parsed: a few bytes on the wire (an empty
    id, say) may take a hundred in memory. ``payload`` is the field whose bytes its sender pays for; much more than
    these is no such message. Empty: any.
    """
    parse = message.FromString

    def read(data: bytes) -> Q | Malformed:
        if len(data) > bytes_max:
            return Malformed(len(data), bytes_max)
        try:
            parsed = parse(data)
        except DecodeError:
            return Malformed(len(data))
        if payload and len(data) - len(getattr(parsed, payload)) > _BESIDE_BYTES_MAX:
            return Malformed(len(data))
        return parsed

    return read


async def next_message(context: Context) -> Any:  # a message, of each method's type
    """The next message of a call, or EOF.

    A read that is cancelled, as it is when the connection ends, keeps what gRPC has allocated for it, 0.5 kB a call,
    for ever (grpcio 1.85). So the read itself is never cancelled; it ends with the call.
    """
    return await asyncio.shield(context.read())


async def one_message(call: CancellableCall, context: Context) -> Any:  # a message, of each method's type
    """The one message of a call, or :class:`Malformed`; neither of its two reads is cancelled with the call.

    Raises:
        MalformedMessageError: None arrived, or more than one.
    """
    return await asyncio.shield(_one_message(call, context))


async def _one_message(call: CancellableCall, context: Context) -> Any:  # a message, of each method's type
    message = await context.read()
    if message is grpc.aio.EOF:
        raise MalformedMessageError("no message received, expected one")
    call.received_bytes = _size_of(message)
    if not isinstance(message, Malformed) and (second := await context.read()) is not grpc.aio.EOF:
        call.received_bytes += _size_of(second)
        raise MalformedMessageError("more than one message received, expected one")
    return message


def _size_of(message: Any) -> int:  # a message, of each method's type
    return message.size if isinstance(message, Malformed) else int(message.ByteSize())
