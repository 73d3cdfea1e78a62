"""gRPC methods around plain coroutines: bytes that are no message, who calls, errors translated to a status once."""

import enum
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from aggregator.catalogue import NotFoundError
from aggregator.errors import (
    AggregatorError,
    ForbiddenError,
    ReleasingStoppedError,
    UnauthenticatedError,
    WindowOrderError,
)
from aggregator.journal import journal
from aggregator.metrics import Metrics
from aggregator.ports import Authenticator, Peer, Scope
from aggregator.refusals import FAILED, RefusedError
from hushsum.errors import BudgetError, Reason
from hushsum_proto import metadata
from hushsum_proto.answers import AnyReason, Refusal, ServiceReason
from hushsum_proto.errors import MalformedMessageError

Q = TypeVar("Q", bound=Message)
# Any: the types of messages are those of each method. In quotes: generic in their typings alone.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = grpc.GenericRpcHandler

_journal = journal("grpc")

_FAILED_RETRY_AFTER_MS: Final = 1000
_FOLDERS: Final = re.compile(r"(?<![^\s'\"(=:])/(?!/)(?:[^\s/]+/)*")

_CODES: Final[dict[AnyReason | None, grpc.StatusCode]] = {
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
_OTHERS: Final[tuple[tuple[type[Exception], grpc.StatusCode, str], ...]] = (
    (NotFoundError, grpc.StatusCode.NOT_FOUND, "not_found"),
    (WindowOrderError, grpc.StatusCode.FAILED_PRECONDITION, "window_order"),
    (ReleasingStoppedError, grpc.StatusCode.FAILED_PRECONDITION, "releasing_stopped"),
    (BudgetError, grpc.StatusCode.FAILED_PRECONDITION, "budget"),
)


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
    """Who calls."""

    def __init__(self, context: Context, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        self._peer = Peer(context.peer() or "", metadata, _certificate(context))

    def admit(self, *scopes: Scope) -> str:
        """The name of a caller that may do what any of these scopes stands for (see :class:`Authenticator`).

        Raises:
            UnauthenticatedError: Nobody that this service accepts.
            ForbiddenError: Somebody that it knows, who may not.
        """
        return self._authenticator.admit(self._peer, *scopes)

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
    """

    def __init__(
        self, service: str, authenticator: Authenticator, metrics: Metrics, *, for_operator: bool = False
    ) -> None:
        self._service = service
        self._authenticator = authenticator
        self._metrics = metrics
        self._for_operator = for_operator
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}  # Any: one dictionary for all messages

    def unary(self, name: str, request: type[Q], method: Callable[[Call, Q], Awaitable[Message]]) -> None:
        """Adds a method with one request and one reply."""

        async def handle(message: Q | Malformed, context: Context) -> Message:
            try:
                return await method(self._call(context), _checked(message))
            except Exception as error:  # noqa: BLE001  this is where every error becomes a status
                await self._abort(context, error)

        self._handlers[name] = grpc.unary_unary_rpc_method_handler(
            handle, request_deserializer=reader(request), response_serializer=_bytes_of
        )

    def replies(self, name: str, request: type[Q], method: Callable[[Call, Q], AsyncIterator[Message]]) -> None:
        """Adds a method with one request and a stream of replies."""

        async def handle(message: Q | Malformed, context: Context) -> AsyncIterator[Message]:
            try:
                async for reply in method(self._call(context), _checked(message)):
                    yield reply
            except Exception as error:  # noqa: BLE001  this is where every error becomes a status
                await self._abort(context, error)

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
            try:
                async for reply in method(self._call(context), messages):
                    yield reply
            except Exception as error:  # noqa: BLE001  this is where every error becomes a status
                await self._abort(context, error)

        self._handlers[name] = grpc.stream_stream_rpc_method_handler(
            handle, request_deserializer=reader(request), response_serializer=_bytes_of
        )

    def takes(
        self, name: str, request: type[Q], method: Callable[[Call, AsyncIterator[Q | Malformed]], Awaitable[Message]]
    ) -> None:
        """Adds a method with a stream of requests and one reply."""

        async def handle(messages: AsyncIterator[Q | Malformed], context: Context) -> Message:
            try:
                return await method(self._call(context), messages)
            except Exception as error:  # noqa: BLE001  this is where every error becomes a status
                await self._abort(context, error)

        self._handlers[name] = grpc.stream_unary_rpc_method_handler(
            handle, request_deserializer=reader(request), response_serializer=_bytes_of
        )

    def handler(self, expected: Iterable[str]) -> Handler:
        """What a server is given; every method of the protocol is there, and no other."""
        assert set(expected) == set(self._handlers), f"{self._service}: {set(expected) ^ set(self._handlers)}"
        return grpc.method_handlers_generic_handler(self._service, self._handlers)

    def _call(self, context: Context) -> Call:
        return Call(context, self._authenticator)

    async def _abort(self, context: Context, error: Exception) -> NoReturn:
        """Ends a call with the status of an error; the reason's stable name goes with it."""
        if isinstance(error, grpc.aio.AbortError):
            raise error
        for kind, code, name in _OTHERS:
            if isinstance(error, kind):
                await context.abort(code, _without_folders(str(error)), ((metadata.REASON, name),))
        refusal = _refusal_of(error)
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
        code = _CODES.get(refusal.reason, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(code, refusal.detail, tuple(trailing))


def _refusal_of(error: Exception) -> Refusal | None:
    if isinstance(error, RefusedError):
        return error.refusal
    if isinstance(error, UnauthenticatedError):
        return Refusal.of(ServiceReason.UNAUTHENTICATED, str(error))
    if isinstance(error, ForbiddenError):
        return Refusal.of(ServiceReason.FORBIDDEN, str(error))
    if isinstance(error, MalformedMessageError):
        return Refusal.of(Reason.MALFORMED, str(error))
    return None


def _certificate(context: Context) -> bytes:
    """The leaf that the transport has verified; empty where it has asked for none."""
    return b"".join(context.auth_context().get("x509_pem_cert", ()))


def _without_folders(text: str) -> str:
    """The text with files' names in place of their paths: where files lie is nothing for the wire."""
    return _FOLDERS.sub("", text)


def _checked(message: Q | Malformed) -> Q:
    if isinstance(message, Malformed):
        raise MalformedMessageError("bytes that are no message of this method, expected one")
    return message


def _bytes_of(message: Message) -> bytes:
    return message.SerializeToString()
