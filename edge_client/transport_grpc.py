"""Connections over gRPC: one channel each, a stream of deltas and answers, or a call for each delta."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import Final

import grpc

from edge_client.config import LARGE_BYTES, Config
from edge_client.ports import ConnectionLostError, PlanReply
from edge_client.session_events import Loss
from edge_client.transport_grpc_access import Access, Metadata
from edge_client.transport_grpc_rounds import GrpcRoundCall, directory_of
from hushsum.plan import BUNDLE_BYTES_MAX
from hushsum_proto import convert_outcomes
from hushsum_proto.answers import Answer
from hushsum_proto.convert import answer_from_wire, hello_to_wire, submission_to_wire, welcome_from_wire
from hushsum_proto.convert_chunks import delta_chunk_to_wire
from hushsum_proto.credentials import Credentials
from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.messages import PROTOCOL_VERSIONS, Hello, Welcome, chunks_of
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs

SOFTWARE: Final = "hushsum-python"
_PLAN_BYTES_MAX: Final = BUNDLE_BYTES_MAX + 2**10  # the largest plan, and its envelope; all other replies are small
_ENVELOPE_BYTES: Final = 2**12  # around a message of a round, or the sentence of its outcome
_LARGE_BYTES_S: Final = 64 * 1024
_Stream = grpc.aio.StreamStreamCall[pb.SubmitRequest, pb.SubmitReply]


class GrpcTransport:
    """Connections to one service.

    Args:
        target: ``host:port``, or another name that gRPC resolves.
        client_id: Declared with each call.
        config: ``own_connection``, ``insecure``, keepalive and time-outs.
        credentials: What is shown, and who is believed.
    """

    def __init__(self, target: str, client_id: str, config: Config, credentials: Credentials | None = None) -> None:
        self._access = Access(target, client_id, config, credentials or Credentials())
        self._timeout_s = config.call_timeout_s

    def connect(self) -> "GrpcConnection":
        """A new connection, which is made by its greeting."""
        return GrpcConnection(self._access, self._timeout_s)

    def take_part(self, message_bytes_max: int) -> GrpcRoundCall:
        """A new connection, and one call of a round on it, which replies with a longer message break."""
        return GrpcRoundCall(self._access, message_bytes_max + _ENVELOPE_BYTES)

    async def fetch_directory(self, plan_id: bytes) -> bytes:
        """The canonical bytes of the directory of clients; whoever asks checks their digest."""
        return await directory_of(self._access, _PLAN_BYTES_MAX, plan_id, self._timeout_s)


class GrpcConnection:
    """One channel to a service.

    Args:
        access: What it is made by.
        timeout_s: Of each call but the stream.
    """

    _channel: grpc.aio.Channel | None = None
    _collection: stubs.CollectionStub
    _metadata: Metadata

    def __init__(self, access: Access, timeout_s: float) -> None:
        self._access = access
        self._plan_id = b""
        self._timeout_s = timeout_s
        self._stream: _Stream | None = None
        self._replies: asyncio.Queue[Answer | Loss] = asyncio.Queue()  # of calls for each delta

    async def greet(self, plan_id: bytes) -> Welcome:
        """Says hello, first of all; the plan id is empty where none is known yet."""
        self._channel, self._metadata = self._access.open(_PLAN_BYTES_MAX)
        self._collection = stubs.CollectionStub(self._channel)
        self._plan_id = plan_id
        request = hello_to_wire(Hello(PROTOCOL_VERSIONS, plan_id, SOFTWARE))
        try:
            reply = await self._collection.Hello(request, metadata=self._metadata, timeout=self._timeout_s)
            return welcome_from_wire(reply)
        except (grpc.aio.AioRpcError, MalformedMessageError) as error:
            raise ConnectionLostError(self._access.loss_of(error)) from error

    async def fetch_plan(self, plan_id: bytes) -> PlanReply:
        """A plan as the service has it; whoever asks checks that it hashes to its id."""
        assert self._channel is not None, "greeted first"
        request = pb.GetPlanRequest(plan_id=plan_id)
        try:
            catalogue = stubs.CatalogueStub(self._channel)
            reply = await catalogue.GetPlan(request, metadata=self._metadata, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise ConnectionLostError(self._access.loss_of(error)) from error
        return PlanReply(*convert_outcomes.plan_from_wire(reply))

    def open(self, *, unary: bool) -> None:
        """Makes ready to send: one stream, or a call for each delta."""
        if not unary:
            self._stream = self._collection.Submit(metadata=self._metadata)

    async def send(self, delta: bytes) -> None:
        """Writes a packed delta; its answer comes in :meth:`answers`. What is too large for a stream goes in chunks."""
        if self._stream is None:
            await self._send_alone(delta)
            return
        try:
            await self._stream.write(submission_to_wire(self._plan_id, delta))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise ConnectionLostError(self._access.loss_of(error)) from error

    async def _send_alone(self, delta: bytes) -> None:
        try:
            answer = answer_from_wire(await self._answer_to(delta))
            self._replies.put_nowait(self._access.heard(answer))
        except ConnectionLostError as error:
            self._replies.put_nowait(error.loss)
            raise
        except (grpc.aio.AioRpcError, MalformedMessageError) as error:
            loss = self._access.loss_of(error)
            self._replies.put_nowait(loss)
            raise ConnectionLostError(loss) from error

    def _answer_to(self, delta: bytes) -> Awaitable[pb.SubmitReply]:
        timeout_s = self._timeout_s
        if len(delta) <= LARGE_BYTES:
            request = submission_to_wire(self._plan_id, delta)
            return self._collection.SubmitOne(request, metadata=self._metadata, timeout=timeout_s)
        timeout_s += large_s(len(delta))
        chunks = map(delta_chunk_to_wire, chunks_of(self._plan_id, delta))
        return self._collection.SubmitLarge(chunks, metadata=self._metadata, timeout=timeout_s)

    async def answers(self) -> AsyncGenerator[Answer, None]:
        """Answers as they come, in any order; ends when the service ends the stream."""
        if self._stream is None:
            while isinstance(reply := await self._replies.get(), Answer):
                yield reply
            raise ConnectionLostError(reply)
        try:
            while isinstance(message := await self._stream.read(), pb.SubmitReply):
                yield self._access.heard(answer_from_wire(message))
        except (grpc.aio.AioRpcError, MalformedMessageError) as error:
            raise ConnectionLostError(self._access.loss_of(error, stream=True)) from error

    async def close(self) -> None:
        """Ends everything at once; never raises."""
        if self._stream is not None:
            self._stream.cancel()
        if self._channel is not None:
            await self._channel.close()


def large_s(size: int) -> float:
    """How long so many bytes may take at the least rate that a service accepts, in seconds."""
    return size / _LARGE_BYTES_S
