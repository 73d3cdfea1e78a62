"""gRPC methods around plain coroutines: authentication, requests, and errors translated to a status once.

Every method is served as one with a stream of requests: the bytes are the same, and gRPC hands a call over at its
headers. So a caller that is not admitted is refused before anything that it sends is read.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from operator import methodcaller
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
    OpenCalls,
    RequestAdmission,
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
from aggregator.rate_limits import CallLimits
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
# Errors without a reason on the wire: only calls of the operator and of the catalogue raise them.
OTHERS: Final[tuple[tuple[type[Exception], grpc.StatusCode, str], ...]] = (
    (NotFoundError, grpc.StatusCode.NOT_FOUND, "not_found"),
    (WindowOrderError, grpc.StatusCode.FAILED_PRECONDITION, "window_order"),
    (ReleasingStoppedError, grpc.StatusCode.FAILED_PRECONDITION, "releasing_stopped"),
    (BudgetError, grpc.StatusCode.FAILED_PRECONDITION, "budget"),
)


def refusal_of(error: Exception) -> Refusal | None:
    """The refusal that an error stands for, if it does."""
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
#: Refusals that are not the caller's doing.
_OURS: Final = frozenset({ServiceReason.OVERLOADED, ServiceReason.SHUTTING_DOWN, ServiceReason.UNAVAILABLE})
_FOLDERS: Final = re.compile(r"(?<![^\s'\"(=:])/(?!/)(?:[^\s/]+/)*")


class ErrorMapper:
    """Ends calls of one service with the status of their error.

    Errors of the service itself are shown to callers if it is ``for_operator``; others get one fixed sentence.
    ``guard`` counts failing calls by connection.
    """

    def __init__(self, metrics: Metrics, *, for_operator: bool, guard: ConnectionGuard | None = None) -> None:
        self._metrics = metrics
        self._for_operator = for_operator
        self._guard = guard

    def of(self, context: Context) -> "_MappedErrors":
        """Around a method: whatever it raises ends its call; the only place where an error becomes a status."""
        return _MappedErrors(self, context)

    async def end(self, context: Context, error: BaseException | None) -> None:
        """Ends a call with the status of what its method has raised, if it has."""
        if isinstance(error, asyncio.CancelledError):  # its caller has reset the call
            self._failed(context)
        elif isinstance(error, Exception):
            await self._abort(context, error)

    async def _abort(self, context: Context, error: Exception) -> NoReturn:
        """The reason's stable name goes into the trailing metadata."""
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


class _MappedErrors:
    """See :meth:`ErrorMapper.of`. A generator for each open stream would take a kilobyte."""

    __slots__ = ("_context", "_mapper")

    def __init__(self, mapper: ErrorMapper, context: Context) -> None:
        self._mapper = mapper
        self._context = context

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._mapper.end(self._context, error)


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
    """The text with file names in place of paths, which the wire does not show."""
    return _FOLDERS.sub("", text)


Q = TypeVar("Q", bound=Message)
Handler: TypeAlias = grpc.GenericRpcHandler

_CALLS_MAX: Final = 1024
_MESSAGE_BYTES_MAX: Final = 4 << 20  # gRPC's own
_RESET_TURNS: Final = 4  # in which nearly every such reset is heard of


class Call(CancellableCall):
    """One call, and its caller, whom ``authenticator`` names.

    ``limits`` is charged with it, once, when its caller is known; one caller may have few calls open that last.
    """

    __slots__ = ("_admitted", "_authenticator", "_charged", "_guard", "_lasts", "_limits", "_peer")

    def __init__(
        self,
        context: Context,
        authenticator: Authenticator,
        limits: CallLimits | None = None,
        *,
        lasts: bool = False,
        guard: ConnectionGuard | None = None,
    ) -> None:
        super().__init__()
        self._limits = limits
        self._lasts = lasts
        self._charged = ""  # the name that was charged, until the call is over
        self._guard = guard
        self._authenticator = authenticator
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        certificate = _certificate(context) if authenticator.reads_certificates else b""
        self._peer = Peer(context.peer() or "", metadata, certificate)
        self._admitted: tuple[str, tuple[Scope, ...]] | None = None

    def admit(self, *scopes: Scope) -> str:
        """The name of a caller that may do what any of these scopes stands for (see :class:`Authenticator`).

        Raises:
            UnauthenticatedError: The caller is not known here.
            ForbiddenError: It is known, and may not.
            RefusedError: It calls too often, or has too many streams open.
        """
        if self._admitted is not None and self._admitted[1] == scopes:
            return self._admitted[0]  # the stream registry rechecks it, and interrupts it when it has lapsed
        name = self._authenticator.admit(self._peer, *scopes)
        if self._guard is not None and self._peer.address:
            self._guard.admitted(self._peer.address, name)
        if self._limits is not None and self._admitted is None:  # once, whatever scopes it is admitted for later
            self._limits.begin(name, lasts=self._lasts)
            self._charged = name
        self._admitted = name, scopes
        return name

    def lapse(self) -> AggregatorError | None:
        """Why its caller would not be admitted again under its name; None where it would be, or was not yet."""
        if self._admitted is None or self.ended is not None:
            return self.ended
        name, scopes = self._admitted
        try:
            if self._authenticator.admit(self._peer, *scopes) != name:
                return UnauthenticatedError("the identity of the caller has changed: start a new call")
        except (UnauthenticatedError, ForbiddenError) as error:
            return error
        return None

    def leave(self) -> None:
        """Counts a long-lived call as open no more."""
        if self._limits is not None and self._lasts and self._charged:
            self._limits.end(self._charged)
        self._charged = ""

    async def close(self) -> None:
        """Ends what its method holds, and counts it as open no more."""
        self.leave()
        await super().close()

    def client_id(self) -> str:
        """The authenticated client id; raises as :meth:`admit` does."""
        return self.admit(Scope.SUBMIT)


class Methods:
    """The methods of one service, as gRPC takes them.

    ``incoming`` admits calls and reads the messages of those that have one; by default it is this service's own.
    """

    def __init__(
        self,
        service: str,
        authenticator: Authenticator,
        metrics: Metrics,
        *,
        for_operator: bool = False,
        limits: CallLimits | None = None,
        incoming: RequestAdmission | None = None,
        guard: ConnectionGuard | None = None,
    ) -> None:
        self._service = service
        self._authenticator = authenticator
        self._limits = limits
        self._guard = guard
        self._error_mapper = ErrorMapper(metrics, for_operator=for_operator, guard=guard)
        self._incoming = RequestAdmission(_CALLS_MAX, _MESSAGE_BYTES_MAX) if incoming is None else incoming
        self.message_bytes_max = self._incoming.message_bytes_max  # of a message that carries a delta
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}  # Any: one dictionary for all messages

    def unary(
        self,
        name: str,
        request: type[Q],
        method: Callable[[Call, Q], Awaitable[Message]],
        *,
        bytes_max: int = QUESTION_BYTES_MAX,
        scopes: tuple[Scope, ...] = tuple(Scope),
        junk: Callable[[str, int], object] | None = None,
        payload: str = "",
    ) -> None:
        """Adds a method with one request and one reply.

        Args:
            name: As in the protocol.
            request: The type of its message.
            method: Answers it.
            bytes_max: Of the request: a larger one is refused unread.
            scopes: The caller is admitted for any of these before its message is read.
            junk: Charges the bytes of malformed requests to their caller, where a method is limited by bytes. None: it
                is limited by calls.
            payload: The field of a request whose bytes are limited by the method itself.
        """

        async def handle(_: AsyncIterator[Q | Malformed], context: Context) -> Message:
            async with self._error_mapper.of(context):
                limits = self._limits if junk is None else None
                call = Call(context, self._authenticator, limits, guard=self._guard)
                caller = call.admit(*scopes)
                with self._incoming.under_way(caller):
                    return await method(call, await self._one(caller, call, context, junk))

        self._add(name, grpc.stream_unary_rpc_method_handler, handle, reader(request, bytes_max, payload))

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

        async def handle(_: AsyncIterator[Q | Malformed], context: Context) -> AsyncIterator[Message]:
            async with self._open(context) as call:
                caller = call.admit(*scopes)
                with self._incoming.under_way(caller):
                    message = await self._one(caller, call, context, None)
                async for reply in call.each(method(call, message)):
                    yield reply

        self._add(name, grpc.stream_stream_rpc_method_handler, handle, reader(request, bytes_max))

    def stream(
        self,
        name: str,
        request: type[Q],
        method: Callable[[Call, AsyncIterator[Q | Malformed]], AsyncIterator[Message]],
        *,
        bytes_max: int = QUESTION_BYTES_MAX,
        payload: str = "",
    ) -> None:
        """Adds a method with a stream of requests and one of replies."""

        async def handle(messages: AsyncIterator[Q | Malformed], context: Context) -> None:
            async with self._open(context) as call:
                await call.write_each(method(call, messages), context.write)

        self._add(name, grpc.stream_stream_rpc_method_handler, handle, reader(request, bytes_max, payload))

    def takes(
        self,
        name: str,
        request: type[Q],
        method: Callable[[Call, AsyncIterator[Q | Malformed]], Awaitable[Message]],
        *,
        bytes_max: int = QUESTION_BYTES_MAX,
        payload: str = "",
    ) -> None:
        """Adds a method with a stream of requests and one reply."""

        async def handle(messages: AsyncIterator[Q | Malformed], context: Context) -> Message:
            async with self._open(context) as call:
                with call.working():
                    return await method(call, messages)

        self._add(name, grpc.stream_unary_rpc_method_handler, handle, reader(request, bytes_max, payload))

    def handler(self, expected: Iterable[str]) -> Handler:
        """The handler for the server, which has exactly the methods of the protocol."""
        assert set(expected) == set(self._handlers), f"{self._service}: {set(expected) ^ set(self._handlers)}"
        return grpc.method_handlers_generic_handler(self._service, self._handlers)

    def _add(self, name: str, form: Callable[..., Any], handle: Any, read: Callable[[bytes], Any]) -> None:
        # Any: of the types of each method
        self._handlers[name] = form(handle, request_deserializer=read, response_serializer=_bytes_of)

    def _open(self, context: Context) -> "_OpenCall":
        """A long-lived call, registered until the block ends."""
        call = Call(context, self._authenticator, self._limits, lasts=True, guard=self._guard)
        return _OpenCall(call, context, self._error_mapper, self._incoming.streams)

    async def _one(
        self, caller: str, call: Call, context: Context, junk: Callable[[str, int], object] | None
    ) -> Any:  # Any: a message of the method's type
        """The message of a call; the bytes of a malformed one are charged to their sender, and raise."""
        try:
            message = await self._incoming.read(caller, call, context)
            if isinstance(message, Malformed):
                raise message.error()
        except asyncio.CancelledError:  # its client has gone; a call that this side ends costs nothing
            if junk is not None:
                with suppress(RefusedError):
                    junk(caller, call.received_bytes)
            raise
        except MalformedMessageError:
            if junk is not None:
                junk(caller, call.received_bytes)
            raise
        return message


class _OpenCall:
    """See :meth:`Methods._open`; small, for each session has one."""

    __slots__ = ("_call", "_context", "_mapper", "_streams")

    def __init__(self, call: Call, context: Context, mapper: ErrorMapper, streams: OpenCalls) -> None:
        self._call = call
        self._context = context
        self._mapper = mapper
        self._streams = streams

    async def __aenter__(self) -> Call:
        self._streams.hold(self._call)
        return self._call

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.leave()
        self._streams.release(self._call)
        await self._mapper.end(self._context, error)


def _certificate(context: Context) -> bytes:
    """The leaf certificate that the transport has verified; empty where it asks for none."""
    return b"".join(context.auth_context().get("x509_pem_cert", ()))


_bytes_of: Final[Callable[[Message], bytes]] = methodcaller("SerializeToString")
