"""Messages that come in: bytes that are none, and the one message of a call that has one."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc.aio
from google.protobuf.message import DecodeError, Message

from aggregator.refusals import RefusedError
from aggregator.server.endings import Context
from aggregator.server.open_streams import Interruptible, OpenStreams
from aggregator.server.unread import UnaryCalls
from hushsum_proto.answers import Refusal, ServiceReason
from hushsum_proto.errors import MalformedMessageError

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


class Incoming:
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

    def __init__(self, calls: UnaryCalls, streams: OpenStreams, message_bytes_max: int) -> None:
        self.calls, self.streams, self.message_bytes_max = calls, streams, message_bytes_max
        self._seconds = GRACE_S + message_bytes_max / BYTES_S_MIN

    async def one(self, name: str, call: Interruptible, context: Context) -> Any:  # a message, of each method's type
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


async def one_message(call: Interruptible, context: Context) -> Any:  # a message, of each method's type
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
