"""The calls of a secure sum over gRPC: one stream for each part in a window, and the directory of clients."""

import asyncio
from typing import Final

import grpc

from edge_client.losses import loss_of
from edge_client.ports import ConnectionLostError
from edge_client.session_events import Loss
from hushsum_proto.convert_rounds import (
    directory_chunk_from_wire,
    directory_request_to_wire,
    reply_from_wire,
    request_to_wire,
)
from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.rounds import RoundReply, RoundRequest
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs

_DIRECTORY_BYTES_MAX: Final = 8 * 2**20  # the longest directory of clients has half of it
_ENDED: Final = Loss("the service ended the call without an outcome")

_Metadata = tuple[tuple[str, str], ...]


class GrpcRoundCall:
    """One stream of a round, on a channel that it closes.

    Args:
        channel: Its own.
        metadata: Who takes part.
    """

    def __init__(self, channel: grpc.aio.Channel, metadata: _Metadata) -> None:
        self._channel = channel
        self._metadata = metadata
        self._stream: grpc.aio.StreamStreamCall[pb.RoundRequest, pb.RoundReply] | None = None

    async def send(self, request: RoundRequest) -> None:
        """Writes one request; returns when there is room for the next."""
        if self._stream is None:
            self._stream = stubs.SecureSumStub(self._channel).TakePart(metadata=self._metadata)
        try:
            await self._stream.write(request_to_wire(request))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise ConnectionLostError(loss_of(error)) from error

    async def receive(self) -> RoundReply:
        """The next reply; that the service ended the call without an outcome is a loss."""
        assert self._stream is not None, "whoever takes part enters first"
        try:
            reply = await self._stream.read()
            if isinstance(reply, pb.RoundReply):
                return reply_from_wire(reply)
        except (grpc.aio.AioRpcError, MalformedMessageError) as error:
            raise ConnectionLostError(loss_of(error)) from error
        raise ConnectionLostError(_ENDED)

    async def close(self) -> None:
        """Ends everything at once; never raises."""
        if self._stream is not None:
            self._stream.cancel()
        await self._channel.close()


async def directory_of(channel: grpc.aio.Channel, metadata: _Metadata, plan_id: bytes, timeout_s: float) -> bytes:
    """The directory of clients in TOML, over a channel that is closed then.

    Raises:
        ConnectionLostError: It did not come whole, or is longer than any directory.
    """
    data = bytearray()
    try:
        request = directory_request_to_wire(plan_id)
        async for message in stubs.SecureSumStub(channel).GetDirectory(request, metadata=metadata, timeout=timeout_s):
            chunk = directory_chunk_from_wire(message)
            if chunk.offset != len(data) or len(data) + len(chunk.data) > _DIRECTORY_BYTES_MAX:
                raise ConnectionLostError(Loss(f"a directory with a part at {chunk.offset}, after {len(data)} bytes"))
            data += chunk.data
    except (grpc.aio.AioRpcError, MalformedMessageError) as error:
        raise ConnectionLostError(loss_of(error)) from error
    finally:
        await channel.close()
    return bytes(data)
