"""gRPC methods around plain coroutines: who calls, what came, and errors translated to a status once.

Every method is served as one with a stream of requests: the bytes are the same, and gRPC hands a call over at its
headers. So who is not admitted is told that before anything that it sends is read.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from aggregator.api.admission_control import (
    QUESTION_BYTES_MAX,
    CancellableCall,
    Context,
    Malformed,
    RequestAdmission,
    RequestReader,
    StreamRegistry,
    reader,
)
from aggregator.api.connections import ConnectionGuard
from aggregator.errors import (
    FAILED,
    AggregatorError,
    ForbiddenError,
    RefusedError,
    ReleasingStoppedError,
    UnauthenticatedError,
    WindowOrderError,
)
from aggregator.interfaces import Authenticator
from aggregator.logs import journal
from aggregator.model import Peer, Scope
from aggregator.observability.metrics import Metrics
from aggregator.rate_limits import CallLimits, CallReservation
from aggregator.release.catalog import NotFoundError
from aggregator.runtime import next_turns
from hushsum.errors import BudgetError, Reason
from hushsum_proto import metadata
from hushsum_proto.answers import AnyReason, Refusal, ServiceReason
from hushsum_proto.errors import MalformedMessageError

CODES: Final[dict[AnyReason | None, grpc.StatusCode]] = {
    ServiceReason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    ServiceReason.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    ServiceReason.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ServiceReason.RATE_LIMITED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ServiceReason.SHUTTING_DOWN: grpc.StatusCode.UNAVAILABLE,
    ServiceReason.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ServiceReason.PROTOCOL_VERSION: grpc.StatusCode.FAILED_PRECONDITION,
    ServiceReason.WINDOW_NOT_OPEN: grpc.StatusCode.FAILED_PRECONDITION,
    ServiceReason.BUDGET: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.WRONG_PLAN: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.WRONG_MODE: grpc.StatusCode.FAILED_PRECONDITION,
}
# What has no number on the wire: only the operator's calls and the catalogue's come to it.
OTHERS: Final[tuple[tuple[type[Exception], grpc.StatusCode, str], ...]] = (
    (NotFoundError, grpc.StatusCode.NOT_FOUND, "not_found"),
    (WindowOrderError, grpc.StatusCode.FAILED_PRECONDITION, "window_order"),
    (ReleasingStoppedError, grpc.StatusCode.FAILED_PRECONDITION, "releasing_stopped"),
    (BudgetError, grpc.StatusCode.FAILED_PRECONDITION, "budget"),
)


def refusal_of(error: Exception) -> Refusal | None:
    """The refusal that an error says; None for one that says none."""
    if isinstance(error, RefusedError):
        return error.refusal
    if isinstance(error, UnauthenticatedError):
        return Refusal.of(ServiceReason.UNAUTHENTICATED, str(error))
    if isinstance(error, ForbiddenError):
        return Refusal.of(ServiceReason.FORBIDDEN, str(error))
    if isinstance(error, MalformedMessageError):
        return Refusal.of(Reason.MALFORMED, str(error))
    return None


_journal = journal("grpc")

_FAILED_RETRY_AFTER_MS: Final = 1000
#: What says nothing of who has called.
_OURS: Final = frozenset({ServiceReason.OVERLOADED, ServiceReason.SHUTTING_DOWN, ServiceReason.UNAVAILABLE})
_FOLDERS: Final = re.compile(r"(?<![^\s'\"(=:])/(?!/)(?:[^\s/]+/)*")


class ErrorMapper:
    """Ends calls of one service.

    Args:
        metrics: Counts what is refused, by reason.
        for_operator: Whether callers are told what failed inside; others get one fixed sentence.
        guard: Is told of every call that fails; None: nobody is.
    """

    def __init__(self, metrics: Metrics, *, for_operator: bool, guard: ConnectionGuard | None = None) -> None:
        self._metrics = metrics
        self._for_operator = for_operator
        self._guard = guard

    def of(self, context: Context) -> "ErrorMapping":
        """Around a method: whatever it raises ends its call; this is where every error becomes a status."""
        return ErrorMapping(self, context)

    async def end(self, context: Context, error: BaseException | None) -> None:
        """Ends a call with the status of an error; of one that its caller has reset, only that is noted."""
        if isinstance(error, asyncio.CancelledError):
            self._failed(context)
        elif isinstance(error, Exception):
            await self._abort(context, error)

    async def _abort(self, context: Context, error: Exception) -> NoReturn:
        """The reason's stable name goes with the status."""
        if isinstance(error, grpc.aio.AbortError):
            raise error
        for kind, code, name in OTHERS:
            if isinstance(error, kind):
                self._failed(context)
                await _end(context, code, _without_folders(str(error)), ((metadata.REASON, name),))
        refusal = refusal_of(error)
        if refusal is None and isinstance(error, AggregatorError):
            _journal.error("call failed", error=str(error), kind=type(error).__name__)
            detail = _without_folders(str(error)) if self._for_operator else FAILED
            refusal = Refusal.of(ServiceReason.UNAVAILABLE, detail, _FAILED_RETRY_AFTER_MS)
        if refusal is None:
            _journal.error("call failed", exc_info=error)
            await _end(context, grpc.StatusCode.INTERNAL, FAILED, ((metadata.REASON, "internal"),))
        assert refusal.reason is not None
        if refusal.reason not in _OURS:
            self._failed(context)
        if not (isinstance(error, RefusedError) and error.counted):
            self._metrics.refused(refusal.reason)
        trailing = [(metadata.REASON, refusal.reason.value)]
        if refusal.retry:
            trailing.append((metadata.RETRY_AFTER_MS, str(refusal.retry_after_ms)))
        code = CODES.get(refusal.reason, grpc.StatusCode.INVALID_ARGUMENT)
        await _end(context, code, refusal.detail, tuple(trailing))

    def _failed(self, context: Context) -> None:
        if self._guard is not None and (peer := context.peer()):
            self._guard.failed(peer)


class ErrorMapping:
    """One call, around its method."""

    __slots__ = ("_context", "_error_mapper")

    def __init__(self, error_mapper: ErrorMapper, context: Context) -> None:
        self._error_mapper, self._context = error_mapper, context

    async def __aenter__(self) -> None:
        """It begins."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._error_mapper.end(self._context, error)


async def _end(context: Context, code: grpc.StatusCode, detail: str, trailing: tuple[tuple[str, str], ...]) -> NoReturn:
    """Sends the status that ends a call.

    Of a call that its caller has reset, the sending fails, and gRPC keeps what it has allocated for that, 0.4 kB, for
    ever (grpcio 1.85). A reset that came with the call's headers is heard of in the next turns of the event loop, and
    cancels this task: so they come first.
    """
    await next_turns(_RESET_TURNS)
    await context.abort(code, detail, trailing)
    raise AssertionError("abort raises")


def _without_folders(text: str) -> str:
    """The text with files' names in place of their paths: where files lie is nothing for the wire."""
    return _FOLDERS.sub("", text)


Q = TypeVar("Q", bound=Message)
Handler: TypeAlias = grpc.GenericRpcHandler

_CALLS_MAX: Final = 1024
_MESSAGE_BYTES_MAX: Final = 4 << 20  # gRPC's own
_RESET_TURNS: Final = 4  # in which nearly every such reset is heard of


class Call(CancellableCall):
    """Who calls.

    Attributes:
        turn: What it takes of its caller's limits.
    """

    def __init__(
        self,
        context: Context,
        authenticator: Authenticator,
        turn: CallReservation | None = None,
        guard: ConnectionGuard | None = None,
    ) -> None:
        super().__init__()
        self._guard = guard
        self.turn = CallReservation(None) if turn is None else turn
        self._authenticator = authenticator
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        self._peer = Peer(context.peer() or "", metadata, _certificate(context))
        self._admitted: tuple[str, tuple[Scope, ...]] | None = None

    def admit(self, *scopes: Scope) -> str:
        """The name of a caller that may do what any of these scopes stands for (see :class:`Authenticator`).

        Raises:
            UnauthenticatedError: Nobody that this service accepts.
            ForbiddenError: Somebody that it knows, who may not.
            RefusedError: Somebody who calls too often, or has too many streams open.
        """
        if self._admitted is not None and self._admitted[1] == scopes:
            return self._admitted[0]  # from then on it is looked at again and again, and interrupted when it has lapsed
        name = self._authenticator.admit(self._peer, *scopes)
        if self._guard is not None and self._peer.address:
            self._guard.admitted(self._peer.address, name)
        self.turn.take(name)
        self._admitted = name, scopes
        return name

    def lapse(self) -> AggregatorError | None:
        """Why it would not be admitted again as who it was; None where it would be, or was not yet."""
        if self._admitted is None or self.ended is not None:
            return self.ended
        name, scopes = self._admitted
        try:
            if self._authenticator.admit(self._peer, *scopes) != name:
                return UnauthenticatedError("this caller has another name now, expected a new call")
        except (UnauthenticatedError, ForbiddenError) as error:
            return error
        return None

    async def close(self) -> None:
        """Lets go of what its method holds, and of its place."""
        self.turn.end()
        await super().close()

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
        incoming: Reads the messages of calls that have one, and says where open calls are looked at again; its own,
            which nobody looks at, where none is given.
        guard: Is told who is admitted on which connection, and what fails there; None: nobody is.

    Attributes:
        message_bytes_max: Of a message that carries a delta.
    """

    def __init__(
        self,
        service: str,
        authenticator: Authenticator,
        metrics: Metrics,
        *,
        for_operator: bool = False,
        limits: CallLimits | None = None,
        incoming: RequestReader | None = None,
        guard: ConnectionGuard | None = None,
    ) -> None:
        self._service = service
        self._authenticator = authenticator
        self._limits = limits
        self._guard = guard
        self._error_mapper = ErrorMapper(metrics, for_operator=for_operator, guard=guard)
        if incoming is None:
            incoming = RequestReader(
                RequestAdmission(_CALLS_MAX, _MESSAGE_BYTES_MAX), StreamRegistry(), _MESSAGE_BYTES_MAX
            )
        self._incoming, self._streams = incoming, incoming.streams
        self.message_bytes_max = incoming.message_bytes_max
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}  # Any: one dictionary for all messages

    def unary(
        self,
        name: str,
        request: type[Q],
        method: Callable[[Call, Q], Awaitable[Message]],
        *,
        bytes_max: int = QUESTION_BYTES_MAX,
        scopes: tuple[Scope, ...] = tuple(Scope),
        junk: Callable[[str, int], None] | None = None,
        carries: Callable[[Q], int] | None = None,
    ) -> None:
        """Adds a method with one request and one reply.

        Args:
            name: Its name.
            request: Its request.
            method: What answers.
            bytes_max: Of the request: what is larger is refused unread.
            scopes: Who sends a message is admitted for any of these before it is read.
            junk: It is limited by its bytes, and is no call of its caller's rate: this takes the bytes of what is no
                request, or refuses them. None: it is such a call.
            carries: The bytes of a request that are limited otherwise.
        """

        async def handle(_: AsyncIterator[Q | Malformed], context: Context) -> Message:
            async with self._error_mapper.of(context):
                call = Call(
                    context, self._authenticator, CallReservation(self._limits if junk is None else None), self._guard
                )
                caller = call.admit(*scopes)
                with self._incoming.calls.under_way(caller):
                    return await method(call, await self._one(caller, call, context, junk))

        self._handlers[name] = grpc.stream_unary_rpc_method_handler(
            handle, request_deserializer=reader(request, bytes_max, carries), response_serializer=_bytes_of
        )

    def replies(
        self,
        name: str,
        request: type[Q],
        method: Callable[[Call, Q], AsyncIterator[Message]],
        *,
        bytes_max: int = QUESTION_BYTES_MAX,
        scopes: tuple[Scope, ...] = tuple(Scope),
    ) -> None:
        """Adds a method with one request and a stream of replies; its caller is admitted before that is read."""

        async def replies(call: Call, context: Context) -> AsyncIterator[Message]:
            caller = call.admit(*scopes)
            with self._incoming.calls.under_way(caller):
                message = await self._one(caller, call, context, None)
            async for reply in call.each(method(call, message)):
                yield reply

        self._handlers[name] = self._lasting(request, replies, bytes_max, None, one=True)

    def stream(
        self,
        name: str,
        request: type[Q],
        method: Callable[[Call, AsyncIterator[Q | Malformed]], AsyncIterator[Message]],
        *,
        bytes_max: int = QUESTION_BYTES_MAX,
        carries: Callable[[Q], int] | None = None,
    ) -> None:
        """Adds a method with a stream of requests and one of replies."""

        def replies(call: Call, messages: AsyncIterator[Q | Malformed]) -> AsyncIterator[Message]:
            return call.each(method(call, messages))

        self._handlers[name] = self._lasting(request, replies, bytes_max, carries, one=False)

    def takes(
        self,
        name: str,
        request: type[Q],
        method: Callable[[Call, AsyncIterator[Q | Malformed]], Awaitable[Message]],
        *,
        bytes_max: int = QUESTION_BYTES_MAX,
        carries: Callable[[Q], int] | None = None,
    ) -> None:
        """Adds a method with a stream of requests and one reply."""

        async def handle(messages: AsyncIterator[Q | Malformed], context: Context) -> Message:
            call = Call(context, self._authenticator, CallReservation(self._limits, lasts=True), self._guard)
            async with self._error_mapper.of(context):
                with self._streams.held(call), call.turn, call.working():
                    return await method(call, messages)

        self._handlers[name] = grpc.stream_unary_rpc_method_handler(
            handle, request_deserializer=reader(request, bytes_max, carries), response_serializer=_bytes_of
        )

    def handler(self, expected: Iterable[str]) -> Handler:
        """What a server is given; every method of the protocol is there, and no other."""
        assert set(expected) == set(self._handlers), f"{self._service}: {set(expected) ^ set(self._handlers)}"
        return grpc.method_handlers_generic_handler(self._service, self._handlers)

    def _lasting(
        self,
        request: type[Q],
        replies: Callable[[Call, Any], AsyncIterator[Message]],  # Any: the context, or the messages
        bytes_max: int,
        carries: Callable[[Q], int] | None,
        *,
        one: bool,
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        async def handle(messages: AsyncIterator[Q | Malformed], context: Context) -> AsyncIterator[Message]:
            call = Call(context, self._authenticator, CallReservation(self._limits, lasts=True), self._guard)
            async with self._error_mapper.of(context):
                with self._streams.held(call), call.turn:
                    async for reply in replies(call, context if one else messages):
                        yield reply

        return grpc.stream_stream_rpc_method_handler(
            handle, request_deserializer=reader(request, bytes_max, carries), response_serializer=_bytes_of
        )

    async def _one(
        self, caller: str, call: Call, context: Context, junk: Callable[[str, int], None] | None
    ) -> Any:  # Any: a message of the method's type
        """The message of a call.

        Raises:
            AggregatorError: Why there is none; it has cost its sender what it is to cost.
        """
        try:
            message = await self._incoming.one(caller, call, context)
            if isinstance(message, Malformed):
                raise message.error()
        except asyncio.CancelledError:  # its client has gone; what is ended from here ends otherwise, and costs nothing
            if junk is not None:
                with suppress(RefusedError):
                    junk(caller, call.received_bytes)
            raise
        except MalformedMessageError:
            if junk is not None:
                junk(caller, call.received_bytes)
            raise
        return message


def _certificate(context: Context) -> bytes:
    """The leaf that the transport has verified; empty where it has asked for none."""
    return b"".join(context.auth_context().get("x509_pem_cert", ()))


def _bytes_of(message: Message) -> bytes:
    return message.SerializeToString()
