"""gRPC methods around plain coroutines: bytes that are no message, who calls, errors translated to a status once."""

import asyncio
import enum
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from aggregator.callers.client_limits import CallLimits, Turn
from aggregator.errors import (
    AggregatorError,
    ForbiddenError,
    UnauthenticatedError,
)
from aggregator.journal import journal
from aggregator.ports import Authenticator, Peer, Scope
from aggregator.refusals import FAILED, RefusedError
from aggregator.server.open_streams import OpenStreams
from aggregator.server.statuses import CODES, OTHERS, refusal_of
from aggregator.watching.metrics import Metrics
from hushsum_proto import metadata
from hushsum_proto.answers import Refusal, ServiceReason
from hushsum_proto.errors import MalformedMessageError

Q = TypeVar("Q", bound=Message)
# Any: the types of messages are those of each method. In quotes: generic in their typings alone.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = grpc.GenericRpcHandler

_journal = journal("grpc")

_FAILED_RETRY_AFTER_MS: Final = 1000
_FOLDERS: Final = re.compile(r"(?<![^\s'\"(=:])/(?!/)(?:[^\s/]+/)*")


class Malformed(enum.Enum):
    """Stands where a message should: gRPC itself would answer INTERNAL, which says that we are at fault."""

    MESSAGE = "message"


def reader(message: type[Q]) -> Callable[[bytes], Q | Malformed]:
    """A deserializer that never raises."""

    def read(data: bytes) -> Q | Malformed:
        try:
            return message.FromString(data)
        except DecodeError:
            return Malformed.MESSAGE

    return read


class Call:
    """Who calls.

    Attributes:
        turn: What it takes of its caller's limits.
        lapsed: Why it may not go on, once :meth:`lapse` has said so.
    """

    def __init__(self, context: Context, authenticator: Authenticator, turn: Turn | None = None) -> None:
        self.turn = Turn(None) if turn is None else turn
        self._authenticator = authenticator
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        self._peer = Peer(context.peer() or "", metadata, _certificate(context))
        self._admitted: tuple[str, tuple[Scope, ...]] | None = None
        self.lapsed: AggregatorError | None = None

    def admit(self, *scopes: Scope) -> str:
        """The name of a caller that may do what any of these scopes stands for (see :class:`Authenticator`).

        Raises:
            UnauthenticatedError: Nobody that this service accepts.
            ForbiddenError: Somebody that it knows, who may not.
            RefusedError: Somebody who calls too often, or has too many streams open.
        """
        name = self._authenticator.admit(self._peer, *scopes)
        self.turn.take(name)
        self._admitted = name, scopes
        return name

    def lapse(self) -> AggregatorError | None:
        """Why it would not be admitted again as who it was; None where it would be, or was not yet."""
        if self._admitted is not None and self.lapsed is None:
            name, scopes = self._admitted
            try:
                if self._authenticator.admit(self._peer, *scopes) != name:
                    self.lapsed = UnauthenticatedError("this caller has another name now, expected a new call")
            except (UnauthenticatedError, ForbiddenError) as error:
                self.lapsed = error
        return self.lapsed

    def client_id(self) -> str:
        """The authenticated client id.

        Raises:
            UnauthenticatedError: Nobody that this service accepts.
            ForbiddenError: Somebody that it knows, who may not submit.
        """
        return self.admit(Scope.SUBMIT)


class Methods:
    """The methods of one service, as gRPC takes them.

    Args:
        service: Its full name.
        authenticator: Says who calls.
        metrics: Counts what is refused, by reason.
        for_operator: Whether callers are told what failed inside; others get one fixed sentence.
        limits: How much one caller may call; None: any.
        streams: Where calls that last are looked at again; its own, which nobody looks at, where none is given.
    """

    def __init__(
        self,
        service: str,
        authenticator: Authenticator,
        metrics: Metrics,
        *,
        for_operator: bool = False,
        limits: CallLimits | None = None,
        streams: OpenStreams | None = None,
    ) -> None:
        self._service = service
        self._authenticator = authenticator
        self._metrics = metrics
        self._for_operator = for_operator
        self._limits = limits
        self._streams = OpenStreams() if streams is None else streams
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}  # Any: one dictionary for all messages

    def unary(
        self, name: str, request: type[Q], method: Callable[[Call, Q], Awaitable[Message]], *, counted: bool = True
    ) -> None:
        """Adds a method with one request and one reply; one that is limited otherwise is not counted as a call."""

        async def handle(message: Q | Malformed, context: Context) -> Message:
            try:
                call = Call(context, self._authenticator, Turn(self._limits if counted else None))
                return await method(call, _checked(message, call))
            except Exception as error:  # noqa: BLE001  this is where every error becomes a status
                await self._abort(context, error)

        self._handlers[name] = grpc.unary_unary_rpc_method_handler(
            handle, request_deserializer=reader(request), response_serializer=_bytes_of
        )

    def replies(self, name: str, request: type[Q], method: Callable[[Call, Q], AsyncIterator[Message]]) -> None:
        """Adds a method with one request and a stream of replies."""

        async def handle(message: Q | Malformed, context: Context) -> AsyncIterator[Message]:
            call = self._lasting(context)
            try:
                with self._streams.held(call), call.turn:
                    async for reply in method(call, _checked(message, call)):
                        yield reply
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  here every error becomes a status
                await self._end(context, call, error)

        self._handlers[name] = grpc.unary_stream_rpc_method_handler(
            handle, request_deserializer=reader(request), response_serializer=_bytes_of
        )

    def stream(
        self,
        name: str,
        request: type[Q],
        method: Callable[[Call, AsyncIterator[Q | Malformed]], AsyncIterator[Message]],
    ) -> None:
        """Adds a method with a stream of requests and one of replies."""

        async def handle(messages: AsyncIterator[Q | Malformed], context: Context) -> AsyncIterator[Message]:
            call = self._lasting(context)
            try:
                with self._streams.held(call), call.turn:
                    async for reply in method(call, messages):
                        yield reply
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  here every error becomes a status
                await self._end(context, call, error)

        self._handlers[name] = grpc.stream_stream_rpc_method_handler(
            handle, request_deserializer=reader(request), response_serializer=_bytes_of
        )

    def takes(
        self, name: str, request: type[Q], method: Callable[[Call, AsyncIterator[Q | Malformed]], Awaitable[Message]]
    ) -> None:
        """Adds a method with a stream of requests and one reply."""

        async def handle(messages: AsyncIterator[Q | Malformed], context: Context) -> Message:
            call = self._lasting(context)
            try:
                with self._streams.held(call), call.turn:
                    return await method(call, messages)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  here every error becomes a status
                await self._end(context, call, error)

        self._handlers[name] = grpc.stream_unary_rpc_method_handler(
            handle, request_deserializer=reader(request), response_serializer=_bytes_of
        )

    def handler(self, expected: Iterable[str]) -> Handler:
        """What a server is given; every method of the protocol is there, and no other."""
        assert set(expected) == set(self._handlers), f"{self._service}: {set(expected) ^ set(self._handlers)}"
        return grpc.method_handlers_generic_handler(self._service, self._handlers)

    def _lasting(self, context: Context) -> Call:
        return Call(context, self._authenticator, Turn(self._limits, lasts=True))

    async def _end(self, context: Context, call: Call, error: BaseException) -> NoReturn:
        """Ends a call that lasts: by an error, or because it was cancelled: its client is gone, or it has lapsed."""
        if not isinstance(error, asyncio.CancelledError):
            assert isinstance(error, Exception), "nothing else is caught"
            await self._abort(context, error)
        task = asyncio.current_task()
        if call.lapsed is None or task is None:
            raise error
        task.uncancel()
        await self._abort(context, call.lapsed)

    async def _abort(self, context: Context, error: Exception) -> NoReturn:
        """Ends a call with the status of an error; the reason's stable name goes with it."""
        if isinstance(error, grpc.aio.AbortError):
            raise error
        for kind, code, name in OTHERS:
            if isinstance(error, kind):
                await context.abort(code, _without_folders(str(error)), ((metadata.REASON, name),))
        refusal = refusal_of(error)
        if refusal is None and isinstance(error, AggregatorError):
            _journal.error("call failed", error=str(error), kind=type(error).__name__)
            detail = _without_folders(str(error)) if self._for_operator else FAILED
            refusal = Refusal.of(ServiceReason.UNAVAILABLE, detail, _FAILED_RETRY_AFTER_MS)
        if refusal is None:
            _journal.error("call failed", exc_info=error)
            await context.abort(grpc.StatusCode.INTERNAL, FAILED, ((metadata.REASON, "internal"),))
        assert refusal.reason is not None
        if not (isinstance(error, RefusedError) and error.counted):
            self._metrics.refused(refusal.reason)
        trailing = [(metadata.REASON, refusal.reason.value)]
        if refusal.retry:
            trailing.append((metadata.RETRY_AFTER_MS, str(refusal.retry_after_ms)))
        code = CODES.get(refusal.reason, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(code, refusal.detail, tuple(trailing))


def _certificate(context: Context) -> bytes:
    """The leaf that the transport has verified; empty where it has asked for none."""
    return b"".join(context.auth_context().get("x509_pem_cert", ()))


def _without_folders(text: str) -> str:
    """The text with files' names in place of their paths: where files lie is nothing for the wire."""
    return _FOLDERS.sub("", text)


def _checked(message: Q | Malformed, call: Call) -> Q:
    if isinstance(message, Malformed):
        call.admit(*Scope)  # who is nobody here is told that, and nothing of what it sent
        raise MalformedMessageError("bytes that are no message of this method, expected one")
    return message


def _bytes_of(message: Message) -> bytes:
    return message.SerializeToString()
