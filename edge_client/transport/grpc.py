"""Connections over gRPC: channels and what is shown on them, streams of deltas and of rounds, and why a call ended."""

import asyncio
import gc
import logging
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final, TypeVar

import grpc

from edge_client.config import LARGE_BYTES, Config
from edge_client.errors import ClientStateError
from edge_client.transport.interface import ConnectionLostError, Disconnect, PlanReply
from hushsum.errors import DirectoryError, Reason
from hushsum.plan import BUNDLE_BYTES_MAX
from hushsum.signing import DIRECTORY_BYTES_MAX
from hushsum_proto import convert_outcomes
from hushsum_proto.answers import IDENTITY_REASONS, Answer, AnyReason, Refusal, ServiceReason
from hushsum_proto.convert import (
    answer_from_wire,
    answers_from_wire,
    hello_to_wire,
    submission_to_wire,
    welcome_from_wire,
)
from hushsum_proto.convert_chunks import delta_chunk_to_wire
from hushsum_proto.convert_rounds import (
    directory_chunk_from_wire,
    directory_request_to_wire,
    reply_from_wire,
    request_to_wire,
)
from hushsum_proto.credentials import Credentials
from hushsum_proto.errors import CredentialsError, MalformedMessageError
from hushsum_proto.messages import PROTOCOL_VERSIONS, Hello, Welcome, chunks_of
from hushsum_proto.metadata import CLIENT_ID, REASON, RETRY_AFTER_MS, client_id_to_metadata
from hushsum_proto.rounds import RoundReply, RoundRequest
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs

T = TypeVar("T")

_MILLISECONDS: Final = re.compile(r"[0-9]{1,10}")  # what is longer is no wait in uint32
_REASONS: Final[dict[str, AnyReason]] = {
    **{reason.value: reason for reason in Reason},
    **{reason.value: reason for reason in ServiceReason},
}
# What says no reason: something on the way, perhaps.
_BY_CODE: Final[dict[grpc.StatusCode, AnyReason]] = {
    grpc.StatusCode.UNAUTHENTICATED: ServiceReason.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED: ServiceReason.FORBIDDEN,
}


def pushed_back(metadata: Iterable[tuple[str, str | bytes]]) -> tuple[AnyReason | None, int]:
    """The reason that a service gives with a status, and how long to wait."""
    values = {key: value for key, value in metadata if isinstance(value, str)}
    after = values.get(RETRY_AFTER_MS, "")
    return _REASONS.get(values.get(REASON, "")), int(after) if _MILLISECONDS.fullmatch(after) else 0


SOFTWARE: Final = "hushsum-python"
_PLAN_BYTES_MAX: Final = BUNDLE_BYTES_MAX + 2**10  # the largest plan, and its envelope
_REPLY_BYTES_MAX: Final = 2**20  # of a session; in memory the answers of a reply take up to 30 times its bytes
_ENVELOPE_BYTES: Final = 2**12  # around a message of a round, or the sentence of its outcome
_LARGE_BYTES_S: Final = 64 * 1024
_LOG: Final = logging.getLogger("edge_client")
_ENDED: Final = Disconnect("the service ended the call without an outcome")


Metadata = tuple[tuple[str, str], ...]

# In a process that was forked the end of a gRPC object of the other one would wait for ever, in the middle of any
# garbage collection: what was there before the fork is never collected.
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=gc.freeze)


class GrpcTransport:
    """Connections to one service, with one client's credentials; ``target`` is a name that gRPC resolves.

    A service that does not admit a client does so for good where the credentials are fixed. Those in files may be
    renewed at any moment: then it is a loss like any other, after which they are read again.

    Where ``client_id`` is None, the credentials alone say who this is.

    Raises:
        CredentialsError: ``insecure`` would send a token in plaintext to another machine.
        ClientStateError: gRPC was used in this process before a fork made it: it would hang or end the process.
    """

    _process: ClassVar[int | None] = None  # the one in which gRPC was used first

    def __init__(
        self, target: str, client_id: str | None, config: Config, credentials: Credentials | None = None
    ) -> None:
        cls = type(self)
        cls._process = cls._process or os.getpid()
        if cls._process != os.getpid():
            raise ClientStateError("the process that forked this one has had a client: make the first one after forks")
        self.timeout_s = config.call_timeout_s  # for each call but a stream
        self._target = target
        declared = () if client_id is None else ((CLIENT_ID, client_id_to_metadata(client_id)),)
        self._declared: Metadata = declared
        credentials = credentials or Credentials()
        self._credentials = credentials.in_plaintext(target) if config.insecure else credentials
        keepalive_ms = int(config.keepalive_s * 1000)
        self._options = (
            ("grpc.use_local_subchannel_pool", int(config.own_connection)),
            ("grpc.keepalive_time_ms", keepalive_ms),
            ("grpc.keepalive_timeout_ms", min(keepalive_ms, 20_000)),
            ("grpc.http2.max_pings_without_data", 0),  # the stream may be silent for long
            ("grpc.enable_retries", 0),  # the session decides what is sent again, and when
            # A channel that is shared must not wait longer than the session does before it connects anew.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
        )

    def __str__(self) -> str:
        return self._target

    def connect(self) -> "GrpcConnection":
        return GrpcConnection(self)

    def take_part(self, message_bytes_max: int) -> "GrpcRoundCall":
        """A call of a secure sum; nothing is sent before it is used. A reply with a longer message breaks it."""
        return GrpcRoundCall(self, message_bytes_max + _ENVELOPE_BYTES)

    async def fetch_directory(self, plan_id: bytes) -> bytes:
        """The canonical bytes of the directory of clients; the caller checks their digest.

        Raises:
            ConnectionLostError: They did not come whole.
            DirectoryError: They are more than any directory has.
        """
        data = bytearray()
        channel, metadata = self.channel(_PLAN_BYTES_MAX)
        try:
            with self.raising_losses():
                request = directory_request_to_wire(plan_id)
                chunks = stubs.SecureSumStub(channel).GetDirectory(request, metadata=metadata, timeout=self.timeout_s)
                async for message in chunks:
                    chunk = directory_chunk_from_wire(message)
                    if chunk.offset != len(data):
                        what = f"key registry: chunk at offset {chunk.offset}, expected {len(data)}"
                        raise ConnectionLostError(Disconnect(what))
                    data += chunk.data
                    if len(data) > DIRECTORY_BYTES_MAX:
                        raise DirectoryError(f"got {len(data)} bytes or more, expected at most {DIRECTORY_BYTES_MAX}")
        finally:
            await channel.close()
        return bytes(data)

    def channel(self, receive_max: int) -> tuple[grpc.aio.Channel, Metadata]:
        """A new channel, which connects at its first call, and what goes with each call.

        Raises:
            ConnectionLostError: A file of the credentials cannot be used now.
        """
        options = (*self._options, ("grpc.max_receive_message_length", receive_max))
        try:
            shown = (*self._declared, *self._credentials.metadata())
            return self._credentials.channel(self._target, options), shown
        except CredentialsError as error:
            _LOG.warning("cannot connect to %s: %s", self._target, error)
            raise ConnectionLostError(Disconnect(str(error))) from error

    @contextmanager
    def raising_losses(self, *, stream: bool = False) -> Iterator[None]:
        """Raises a :class:`ConnectionLostError` in place of what gRPC or a malformed reply raises."""
        try:
            yield
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, MalformedMessageError) as error:
            raise ConnectionLostError(self._loss_of(error, stream=stream)) from error

    def _loss_of(self, error: Exception, *, stream: bool) -> Disconnect:
        """The loss that an error means, with the credentials in mind."""
        if not isinstance(error, grpc.aio.AioRpcError):
            return Disconnect(f"{type(error).__name__}: {error}")
        code, said = error.code(), error.details() or ""
        detail = f"{code.name}: {error.details()}"
        reason, retry_after_ms = pushed_back(error.trailing_metadata() or ())
        if reason is None:
            reason = _BY_CODE.get(code)
        refusal = None if reason is None else Refusal.of(reason, said, retry_after_ms)
        if code is grpc.StatusCode.UNAVAILABLE:
            explained = self._credentials.explained(self._target, said)
            return Disconnect(detail if explained == said else explained, refusal)
        if reason in IDENTITY_REASONS and self._credentials.renewable:
            return self._identity_refused(detail)
        return Disconnect(detail, refusal, no_stream=stream and code is grpc.StatusCode.UNIMPLEMENTED)

    def admitted(self, answer: Answer) -> Answer:
        """Returns the answer, unless it says that this client is not admitted, which its files may change.

        Raises:
            ConnectionLostError: It does.
        """
        refusal = answer.refusal
        if refusal is not None and refusal.reason in IDENTITY_REASONS and self._credentials.renewable:
            raise ConnectionLostError(self._identity_refused(refusal.detail))
        return answer

    def _identity_refused(self, detail: str) -> Disconnect:
        _LOG.warning("%s rejected the credentials, which are read again: %s", self._target, detail)
        return Disconnect(f"the service rejected the credentials of this client: {detail}", identity_refused=True)


class _Call:
    """A stream on a channel of its own."""

    _channel: grpc.aio.Channel | None = None
    _stream: grpc.aio.StreamStreamCall[Any, Any] | None = None  # Any: the messages are those of the method

    async def close(self) -> None:
        """Ends everything at once; never raises."""
        if self._stream is not None:
            self._stream.cancel()
        if self._channel is not None:
            await self._channel.close()


class GrpcRoundCall(_Call):
    """A participant's call, made by its first request; a call that breaks raises :class:`ConnectionLostError`."""

    def __init__(self, transport: GrpcTransport, receive_max: int) -> None:
        self._transport = transport
        self._receive_max = receive_max

    async def send(self, request: RoundRequest) -> None:
        """Writes one request; returns when there is room for the next."""
        if self._stream is None:
            self._channel, metadata = self._transport.channel(self._receive_max)
            self._stream = stubs.SecureSumStub(self._channel).TakePart(metadata=metadata)
        with self._transport.raising_losses():
            await self._stream.write(request_to_wire(request))

    async def receive(self) -> RoundReply:
        """The next reply; that the service ended the call without an outcome is a loss."""
        assert self._stream is not None, "a participant enters first"
        with self._transport.raising_losses():
            reply = await self._stream.read()
            if isinstance(reply, pb.RoundReply):
                return reply_from_wire(reply)
        raise ConnectionLostError(_ENDED)


class GrpcConnection(_Call):
    """A :class:`~edge_client.transport.interface.Connection` over gRPC."""

    _collection: stubs.CollectionStub
    _metadata: Metadata

    def __init__(self, transport: GrpcTransport) -> None:
        self._transport = transport
        self._plan_id = b""
        self._unary = False
        self._replies: asyncio.Queue[Answer | Disconnect] = asyncio.Queue()  # of calls for each delta

    async def greet(self, plan_id: bytes) -> Welcome:
        self._channel, self._metadata = self._transport.channel(_REPLY_BYTES_MAX)
        self._collection = stubs.CollectionStub(self._channel)
        self._plan_id = plan_id
        request = hello_to_wire(Hello(PROTOCOL_VERSIONS, plan_id, SOFTWARE))
        with self._transport.raising_losses():
            reply = await self._collection.Hello(request, metadata=self._metadata, timeout=self._transport.timeout_s)
            return welcome_from_wire(_readable(reply))

    async def fetch_plan(self, plan_id: bytes) -> PlanReply:
        request = pb.GetPlanRequest(plan_id=plan_id)
        channel, metadata = self._transport.channel(_PLAN_BYTES_MAX)  # of its own: no other reply is so large
        try:
            with self._transport.raising_losses():
                get_plan, timeout_s = stubs.CatalogueStub(channel).GetPlan, self._transport.timeout_s
                reply = _readable(await get_plan(request, metadata=metadata, timeout=timeout_s))
        finally:
            await channel.close()
        return PlanReply(*convert_outcomes.plan_from_wire(reply))

    def open(self, *, unary: bool) -> None:
        self._unary = unary

    async def send(self, delta: bytes) -> None:
        """Writes a packed delta; its answer comes in :meth:`answers`. What is too large for a stream goes in chunks."""
        if self._unary:
            await self._send_alone(delta)
            return
        with self._transport.raising_losses():
            await self._submissions().write(submission_to_wire(self._plan_id, delta))

    def _submissions(self) -> "grpc.aio.StreamStreamCall[pb.SubmitRequest, pb.SubmitReply]":
        if self._channel is None:  # greeting has failed before anything was sent
            raise ConnectionLostError(_ENDED)
        if self._stream is None:
            self._stream = self._collection.Submit(metadata=self._metadata)
        return self._stream

    async def _send_alone(self, delta: bytes) -> None:
        try:
            with self._transport.raising_losses():
                answer = answer_from_wire(_readable(await self._answer_to(delta)))
            self._replies.put_nowait(self._transport.admitted(answer))
        except ConnectionLostError as error:
            self._replies.put_nowait(error.loss)
            raise

    def _answer_to(self, delta: bytes) -> Awaitable[pb.SubmitReply]:
        timeout_s = self._transport.timeout_s
        if len(delta) <= LARGE_BYTES:
            request = submission_to_wire(self._plan_id, delta)
            return self._collection.SubmitOne(request, metadata=self._metadata, timeout=timeout_s)
        timeout_s += large_s(len(delta))
        chunks = map(delta_chunk_to_wire, chunks_of(self._plan_id, delta))
        return self._collection.SubmitLarge(chunks, metadata=self._metadata, timeout=timeout_s)

    async def answers(self) -> AsyncGenerator[Answer, None]:
        if self._unary:
            while isinstance(reply := await self._replies.get(), Answer):
                yield reply
            raise ConnectionLostError(reply)
        with self._transport.raising_losses(stream=True):
            stream = self._submissions()
            while isinstance(message := await stream.read(), pb.SubmitReply):
                for answer in answers_from_wire(message):
                    yield self._transport.admitted(answer)


def _readable(reply: T | None) -> T:
    """The reply of a call, unless it is none: grpc.aio gives that for bytes that are no message."""
    if reply is None:
        raise MalformedMessageError("the service's reply is no message")
    return reply


def large_s(size: int) -> float:
    """How long so many bytes may take at the least rate that a service accepts, in seconds."""
    return size / _LARGE_BYTES_S
