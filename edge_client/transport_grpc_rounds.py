"""The calls of a secure sum over gRPC: one stream for each part in a window, and the directory of clients."""

import asyncio
from typing import Final

import grpc

from edge_client.ports import ConnectionLostError
from edge_client.session_events import Loss
from edge_client.transport_grpc_access import Access
from hushsum.directory import DIRECTORY_BYTES_MAX
from hushsum.errors import DirectoryError
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

_ENDED: Final = Loss("the service ended the call without an outcome")


class GrpcRoundCall:
    """One stream of a round, on a channel of its own, which is made by the first request.

    Args:
        access: What it is made by.
        receive_max: No reply is longer, in bytes.
    """

    _channel: grpc.aio.Channel | None = None

    def __init__(self, access: Access, receive_max: int) -> None:
        self._access = access
        self._receive_max = receive_max
        self._stream: grpc.aio.StreamStreamCall[pb.RoundRequest, pb.RoundReply] | None = None

    async def send(self, request: RoundRequest) -> None:
        """Writes one request; returns when there is room for the next."""
        if self._stream is None:
            self._channel, metadata = self._access.open(self._receive_max)
            self._stream = stubs.SecureSumStub(self._channel).TakePart(metadata=metadata)
        try:
            await self._stream.write(request_to_wire(request))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise ConnectionLostError(self._access.loss_of(error)) from error

    async def receive(self) -> RoundReply:
        """The next reply; that the service ended the call without an outcome is a loss."""
        assert self._stream is not None, "whoever takes part enters first"
        try:
            reply = await self._stream.read()
            if isinstance(reply, pb.RoundReply):
                return reply_from_wire(reply)
        except (grpc.aio.AioRpcError, MalformedMessageError) as error:
            raise ConnectionLostError(self._access.loss_of(error)) from error
        raise ConnectionLostError(_ENDED)

    async def close(self) -> None:
        """Ends everything at once; never raises."""
        if self._stream is not None:
            self._stream.cancel()
        if self._channel is not None:
            await self._channel.close()


async def directory_of(access: Access, receive_max: int, plan_id: bytes, timeout_s: float) -> bytes:
    """The canonical bytes of the directory of clients, unread, over a channel that is closed then.

    Raises:
        ConnectionLostError: They did not come whole.
        DirectoryError: They are more than any directory has; what comes after those is not waited for.
    """
    data = bytearray()
    channel, metadata = access.open(receive_max)
    try:
        request = directory_request_to_wire(plan_id)
        async for message in stubs.SecureSumStub(channel).GetDirectory(request, metadata=metadata, timeout=timeout_s):
            chunk = directory_chunk_from_wire(message)
            if chunk.offset != len(data):
                raise ConnectionLostError(Loss(f"a directory with a part at {chunk.offset}, after {len(data)} bytes"))
            data += chunk.data
            if len(data) > DIRECTORY_BYTES_MAX:
                raise DirectoryError(f"got {len(data)} bytes or more, expected at most {DIRECTORY_BYTES_MAX}")
    except (grpc.aio.AioRpcError, MalformedMessageError) as error:
        raise ConnectionLostError(access.loss_of(error)) from error
    finally:
        await channel.close()
    return bytes(data)
