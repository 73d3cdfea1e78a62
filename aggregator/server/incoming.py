"""Messages that come in: bytes that are none, and the one message of a call that has one."""

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
_BESIDE_BYTES_MAX: Final = 4096  # of a message, beside the bytes that it carries


@dataclass(frozen=True)
class Malformed:
    """Stands where a message should: gRPC itself would answer INTERNAL, which says that we are at fault.

    Attributes:
        size: Bytes that came.
    """

    size: int = 0


def reader(
    message: type[Q], carries: Callable[[Q], int] | None = None, bytes_max: int | None = None
) -> Callable[[bytes], Q | Malformed]:
    """A deserializer that never raises.

    Args:
        message: What is expected.
        carries: How many bytes it carries that its sender pays for; much more than these is no such message. None: any.
        bytes_max: What is larger is no such message, and is not read; None: any size.
    """

    def read(data: bytes) -> Q | Malformed:
        if bytes_max is not None and len(data) > bytes_max:
            return Malformed(len(data))
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
    """

    def __init__(self, calls: UnaryCalls, streams: OpenStreams, message_bytes_max: int) -> None:
        self.calls = calls
        self._streams = streams
        self._seconds = GRACE_S + message_bytes_max / BYTES_S_MIN

    async def one(self, name: str, call: Interruptible, context: Context) -> Any:  # a message, of each method's type
        """The message of a call that is under way, or that it is none.

        Raises:
            MalformedMessageError: None came, or more than one.
            RefusedError: It did not come in time, or others needed its place.
            AggregatorError: The call has lapsed meanwhile.
        """
        self._streams.within(self._seconds, call, self._late)
        with self._streams.held(call), call.working():
            async with self.calls.unread(name, call):
                message = await context.read()
                if message is grpc.aio.EOF:
                    raise MalformedMessageError("no message, expected one")
                call.received_bytes = _size_of(message)
                if not isinstance(message, Malformed) and (second := await context.read()) is not grpc.aio.EOF:
                    call.received_bytes += _size_of(second)
                    raise MalformedMessageError("more than one message, expected one")
        call.due_s = None
        return message

    def _late(self) -> RefusedError:
        detail = f"no whole message came in {self._seconds:.0f} s, expected one"
        return RefusedError(Refusal.of(ServiceReason.UNAVAILABLE, detail))


def _size_of(message: Any) -> int:  # a message, of each method's type
    return message.size if isinstance(message, Malformed) else int(message.ByteSize())
