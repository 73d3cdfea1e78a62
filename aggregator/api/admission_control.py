"""Bounds on calls, on streams, and on messages that wait to be read.

A call's task is interrupted only while it is in our own code. While gRPC writes a reply, a cancellation would be taken
for the client's own, which would then never hear why: such a call is told once the write returns, and lets go of what
it holds at once.

A caller is admitted by its headers; what it then sends comes as fast as it likes. So each name may have a share of the
calls under way, of which few messages come in at a time: the others wait, in gRPC's windows of some kilobytes (which
``grpc.http2.bdp_probe`` keeps at that). Where more messages are awaited than all names may have on their way, the
oldest call of whoever has the most of them is ended for somebody who has fewer; where nobody has more, who comes new
waits: no message that is on its way is given up for one that has not begun.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
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


class CancellableCall:
    """A call that can be ended from elsewhere.

    Attributes:
        ended: Why it may not go on; None while it may. Given once.
        due_s: When it is ended for being too slow, by the monotonic clock.
        late: Makes what it is then told.
        received_bytes: Of what came whole in a call with one message.
    """

    def __init__(self) -> None:
        self.ended: AggregatorError | None = None
        self.due_s: float | None = None
        self.late: Callable[[], AggregatorError] | None = None
        self.received_bytes = 0
        self._task: asyncio.Task[object] | None = None
        self._replies: AsyncIterator[object] | None = None

    def lapse(self) -> AggregatorError | None:
        """Why it would not be admitted again; None where it would be, or nothing has been asked yet."""
        return None

    @contextmanager
    def working(self) -> Iterator[None]:
        """The block runs in our code alone, and may be interrupted.

        Raises:
            AggregatorError: The call was ended, before or within the block.
        """
        self.check()
        around, self._task = self._task, asyncio.current_task()
        assert self._task is not None, "a handler runs in a task"
        try:
            yield
        except asyncio.CancelledError:
            if self.ended is None:
                raise  # the client is gone
            self._task.uncancel()
            raise self.ended from None
        finally:
            self._task = around

    def check(self) -> None:
        """Goes on where it may.

        Raises:
            AggregatorError: The call was ended.
        """
        if self.ended is not None:
            raise self.ended

    async def each(self, replies: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The replies; between two of them the caller writes, and the call may not be interrupted.

        Raises:
            AggregatorError: The call was ended.
        """
        self._replies = replies
        try:
            while True:
                with self.working():
                    try:
                        reply = await anext(replies)
                    except StopAsyncIteration:
                        return
                yield reply
        finally:
            await self.close()

    def end(self, error: AggregatorError) -> bool:
        """Ends it; False: it is in gRPC's hands, and :meth:`close` lets go of what it holds."""
        if self.ended is None:
            self.ended = error
            if self._task is not None:
                self._task.cancel()
        return self._task is not None

    async def close(self) -> None:
        """Lets go of what its method holds."""
        replies, self._replies = self._replies, None
        if isinstance(replies, AsyncGenerator):
            try:
                await replies.aclose()
            except Exception as error:  # noqa: BLE001  it is over, whatever happens at its end
                _journal.error("a stream did not end well", exc_info=error)


class StreamRegistry:
    """The open streams of one server, each carried by its own task.

    Attributes:
        now_s: The monotonic clock when they were looked at last; None: nobody looks at them.
    """

    def __init__(self) -> None:
        self.now_s: float | None = None
        self._calls: dict[CancellableCall, None] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._calls)

    @contextmanager
    def held(self, call: CancellableCall) -> Iterator[None]:
        """A call is open as long as the block runs, or until it was ended."""
        if call in self._calls:
            yield
            return
        self._calls[call] = None
        try:
            yield
        finally:
            self._calls.pop(call, None)

    def within(self, seconds: float, call: CancellableCall, late: Callable[[], AggregatorError]) -> None:
        """Ends the call in about so many seconds, unless its time is set anew."""
        call.due_s, call.late = None if self.now_s is None else self.now_s + RECHECK_S + seconds, late

    async def run(self, runtime: Runtime) -> None:
        """Looks at all of them again and again, for ever."""
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


UNREAD_MAX: Final = 512  # messages of all callers that are on their way
NAMELESS_MAX: Final = 128  # of those who have no name: readers, where names are only declared
_NAMELESS_MIN: Final = 8
NAMELESS_CALLS_MAX: Final = 1024  # of theirs under way: they take nothing from those who have a name
UNREAD_BYTES_MAX: Final = 16 << 20  # of one name's messages that are on their way; one fits always


class _Caller:
    """One name's calls."""

    def __init__(self, at_once: int) -> None:
        self.under_way = 0
        self.unread: dict[CancellableCall, None] = {}  # the oldest first
        self.turns = asyncio.Semaphore(at_once)


class RequestAdmission:
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
    async def unread(self, name: str, call: CancellableCall) -> AsyncIterator[None]:
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

    def _forget(self, caller: _Caller, call: CancellableCall) -> None:
        if call in caller.unread:
            del caller.unread[call]
            self._unread -= 1


# Any: the types of messages are those of each method. In quotes: generic in their typings alone.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

Q = TypeVar("Q", bound=Message)

GRACE_S: Final = 30.0  # how long a message may take, and longer by its size
BYTES_S_MIN: Final = 64 * 1024  # how fast it must come, on average
QUESTION_BYTES_MAX: Final = 4096  # of a message that carries no delta: a few numbers and short texts
_BESIDE_BYTES_MAX: Final = 4096  # of a message, beside the bytes that it carries


@dataclass(frozen=True)
class Malformed:
    """Stands where a message should: gRPC itself would answer INTERNAL, which says that we are at fault.

    Attributes:
        size: Bytes that came.
        bytes_max: How many may come, where it was not read because more did.
    """

    size: int = 0
    bytes_max: int | None = None

    def error(self) -> MalformedMessageError:
        """What its sender is told."""
        if self.bytes_max is None:
            return MalformedMessageError("bytes that are no message of this method, expected one")
        return MalformedMessageError(f"a message of {self.size} bytes, expected at most {self.bytes_max}")


def reader(
    message: type[Q], bytes_max: int, carries: Callable[[Q], int] | None = None
) -> Callable[[bytes], Q | Malformed]:
    """A deserializer that never raises.

    Args:
        message: What is expected.
        bytes_max: What is larger is no such message, and is not parsed: a few bytes on the wire (an empty id, say) may
            take a hundred in memory.
        carries: How many bytes it carries that its sender pays for; much more than these is no such message. None: any.
    """

    def read(data: bytes) -> Q | Malformed:
        if len(data) > bytes_max:
            return Malformed(len(data), bytes_max)
        try:
            read = message.FromString(data)
        except DecodeError:
            return Malformed(len(data))
        if carries is not None and len(data) - carries(read) > _BESIDE_BYTES_MAX:
            return Malformed(len(data))
        return read

    return read


class RequestReader:
    """Reads the one message of a call, once its caller is admitted.

    Args:
        calls: Those under way.
        streams: Where they are looked at again.
        message_bytes_max: Of one message.

    Attributes:
        calls: As given.
        streams: As given.
        message_bytes_max: As given.
    """

    def __init__(self, calls: RequestAdmission, streams: StreamRegistry, message_bytes_max: int) -> None:
        self.calls, self.streams, self.message_bytes_max = calls, streams, message_bytes_max
        self._seconds = GRACE_S + message_bytes_max / BYTES_S_MIN

    async def one(self, name: str, call: CancellableCall, context: Context) -> Any:  # a message, of each method's type
        """The message of a call that is under way, or that it is none.

        Raises:
            MalformedMessageError: None came, or more than one.
            RefusedError: It did not come in time, or others needed its place.
            AggregatorError: The call has lapsed meanwhile.
        """
        self.streams.within(self._seconds, call, self._late)
        with self.streams.held(call), call.working():
            async with self.calls.unread(name, call):
                message = await one_message(call, context)
        call.due_s = None
        return message

    def _late(self) -> RefusedError:
        detail = f"no whole message came in {self._seconds:.0f} s, expected one"
        return RefusedError(Refusal.of(ServiceReason.UNAVAILABLE, detail))


async def next_message(context: Context) -> Any:  # a message, of each method's type
    """The next message of a call, or EOF.

    A read that is cancelled, as it is when the connection ends, keeps what gRPC has allocated for it, 0.5 kB a call,
    for ever (grpcio 1.85). So the read itself is never cancelled; it ends with the call.
    """
    return await asyncio.shield(context.read())


async def one_message(call: CancellableCall, context: Context) -> Any:  # a message, of each method's type
    """The one message of a call, or that it is none.

    Raises:
        MalformedMessageError: None came, or more than one.
    """
    message = await next_message(context)
    if message is grpc.aio.EOF:
        raise MalformedMessageError("no message, expected one")
    call.received_bytes = _size_of(message)
    if not isinstance(message, Malformed) and (second := await next_message(context)) is not grpc.aio.EOF:
        call.received_bytes += _size_of(second)
        raise MalformedMessageError("more than one message, expected one")
    return message


def _size_of(message: Any) -> int:  # a message, of each method's type
    return message.size if isinstance(message, Malformed) else int(message.ByteSize())
