"""Connections over gRPC: one channel each, a stream of deltas and answers, or a call for each delta."""

import asyncio
import ipaddress
import re
from collections.abc import AsyncGenerator, Awaitable
from typing import Final

import grpc

from edge_client.config import LARGE_BYTES, Config
from edge_client.errors import SettingsError
from edge_client.losses import loss_of
from edge_client.ports import ConnectionLostError, PlanReply
from edge_client.session_events import Loss
from edge_client.transport_grpc_rounds import GrpcRoundCall, directory_of
from hushsum.plan import BUNDLE_BYTES_MAX
from hushsum_proto import convert_outcomes
from hushsum_proto.answers import Answer
from hushsum_proto.convert import answer_from_wire, hello_to_wire, submission_to_wire, welcome_from_wire
from hushsum_proto.convert_chunks import delta_chunk_to_wire
from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.messages import PROTOCOL_VERSIONS, Hello, Welcome, chunks_of
from hushsum_proto.metadata import CLIENT_ID, client_id_to_metadata
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs

SOFTWARE: Final = "hushsum-python"
_PLAN_BYTES_MAX: Final = BUNDLE_BYTES_MAX + 2**10  # the largest plan, and its envelope; all other replies are small
_ENVELOPE_BYTES: Final = 2**12  # around a message of a round, or the sentence of its outcome
_LARGE_BYTES_S: Final = 64 * 1024
_HOST: Final = re.compile(
    r"(?:(?:dns|ipv4|ipv6):(?://[^/]*/)?)?(?:\[(?P<literal>[^\]]+)\]|(?P<name>[^\[\]:/]+))(?::\d+)?"
)
_Stream = grpc.aio.StreamStreamCall[pb.SubmitRequest, pb.SubmitReply]


class GrpcTransport:
    """Connections to one service.

    Args:
        target: ``host:port``, or another name that gRPC resolves.
        client_id: Declared with each call.
        config: ``own_connection``, keepalive and time-outs.
    """

    def __init__(self, target: str, client_id: str, config: Config) -> None:
        self._target = target
        self._metadata = ((CLIENT_ID, client_id_to_metadata(client_id)),)
        self._timeout_s = config.call_timeout_s
        keepalive_ms = int(config.keepalive_s * 1000)
        self._options = (
            ("grpc.use_local_subchannel_pool", int(config.own_connection)),
            ("grpc.keepalive_time_ms", keepalive_ms),
            ("grpc.keepalive_timeout_ms", min(keepalive_ms, 20_000)),
            ("grpc.http2.max_pings_without_data", 0),  # the stream may be silent for long
            ("grpc.enable_retries", 0),  # the session decides what is sent again, and when
            ("grpc.enable_http_proxy", int(not is_loopback(target))),
            # A channel that is shared must not wait longer than the session does before it connects anew.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
        )

    def connect(self) -> "GrpcConnection":
        """A new channel; it connects at its first call."""
        return GrpcConnection(self._channel(), self._metadata, self._timeout_s)

    def take_part(self, message_bytes_max: int) -> GrpcRoundCall:
        """A new channel, and one call of a round on it, which replies with a longer message break."""
        return GrpcRoundCall(self._channel(message_bytes_max + _ENVELOPE_BYTES), self._metadata)

    async def fetch_directory(self, plan_id: bytes) -> bytes:
        """The directory of clients in TOML; whoever asks checks its digest."""
        return await directory_of(self._channel(), self._metadata, plan_id, self._timeout_s)

    def _channel(self, receive_max: int = _PLAN_BYTES_MAX) -> grpc.aio.Channel:
        options = (*self._options, ("grpc.max_receive_message_length", receive_max))
        return grpc.aio.insecure_channel(self._target, options=options)


class GrpcConnection:
    """One channel to a service."""

    def __init__(self, channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...], timeout_s: float) -> None:
        self._channel = channel
        self._collection = stubs.CollectionStub(channel)
        self._metadata = metadata
        self._plan_id = b""
        self._timeout_s = timeout_s
        self._stream: _Stream | None = None
        self._replies: asyncio.Queue[Answer | Loss] = asyncio.Queue()  # of calls for each delta

    async def greet(self, plan_id: bytes) -> Welcome:
        """Says hello; the plan id is empty where none is known yet."""
        self._plan_id = plan_id
        request = hello_to_wire(Hello(PROTOCOL_VERSIONS, plan_id, SOFTWARE))
        try:
            reply = await self._collection.Hello(request, metadata=self._metadata, timeout=self._timeout_s)
            return welcome_from_wire(reply)
        except (grpc.aio.AioRpcError, MalformedMessageError) as error:
            raise ConnectionLostError(loss_of(error)) from error

    async def fetch_plan(self, plan_id: bytes) -> PlanReply:
        """A plan as the service has it; whoever asks checks that it hashes to its id."""
        request = pb.GetPlanRequest(plan_id=plan_id)
        try:
            catalogue = stubs.CatalogueStub(self._channel)
            reply = await catalogue.GetPlan(request, metadata=self._metadata, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise ConnectionLostError(loss_of(error)) from error
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
            raise ConnectionLostError(loss_of(error)) from error

    async def _send_alone(self, delta: bytes) -> None:
        try:
            self._replies.put_nowait(answer_from_wire(await self._answer_to(delta)))
        except (grpc.aio.AioRpcError, MalformedMessageError) as error:
            loss = loss_of(error)
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
                yield answer_from_wire(message)
        except (grpc.aio.AioRpcError, MalformedMessageError) as error:
            raise ConnectionLostError(loss_of(error, stream=True)) from error

    async def close(self) -> None:
        """Ends everything at once; never raises."""
        if self._stream is not None:
            self._stream.cancel()
        await self._channel.close()


def large_s(size: int) -> float:
    """How long so many bytes may take at the least rate that a service accepts, in seconds."""
    return size / _LARGE_BYTES_S


def require_private(target: str, config: Config) -> None:
    """Refuses plaintext that would leave this machine.

    Raises:
        SettingsError: The target is not on this machine for certain, and ``insecure`` is not set.
    """
    if not (config.insecure or is_loopback(target)):
        raise SettingsError(
            f"target: got {target!r}, expected one on this machine: TLS is not built yet, and plaintext to another "
            "machine shows every delta to the network; Config(insecure=True) allows it"
        )


def is_loopback(target: str) -> bool:
    """Whether a gRPC target names this machine for certain: ``localhost``, an address of loopback, or ``unix:``."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    match = _HOST.fullmatch(target)
    host = (match["literal"] or match["name"]) if match else ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
