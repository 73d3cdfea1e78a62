"""Deltas in parts on the wire: as :mod:`hushsum_proto.convert`, for :class:`hushsum_proto.messages.DeltaChunk`."""

from typing import Final

from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.messages import CHUNK_BYTES, DeltaChunk
from hushsum_proto.v1 import wire_pb2 as pb

_ID_BYTES: Final = 32  # of a plan


def delta_chunk_to_wire(chunk: DeltaChunk) -> pb.DeltaChunk:
    """A part of a delta."""
    return pb.DeltaChunk(plan_id=chunk.plan_id, size=chunk.size, offset=chunk.offset, data=chunk.data)


def delta_chunk_from_wire(message: pb.DeltaChunk) -> DeltaChunk:
    """A part of a delta. Whether it follows the one before it is for who puts them together.

    Raises:
        MalformedMessageError: No bytes, or more than a chunk has; a first one without a plan's id, or of a smaller
            delta than itself; a later one that names plan or size.
    """
    if not 1 <= len(message.data) <= CHUNK_BYTES:
        raise MalformedMessageError(f"delta chunk: expected 1 to {CHUNK_BYTES} bytes, got {len(message.data)}")
    if message.offset == 0:
        if len(message.plan_id) != _ID_BYTES:
            raise MalformedMessageError(f"plan id: expected {_ID_BYTES} bytes, got {len(message.plan_id)}")
        if message.size < len(message.data):
            raise MalformedMessageError(f"delta chunk: {len(message.data)} bytes of a delta of {message.size}")
    elif message.plan_id or message.size:
        raise MalformedMessageError("delta chunk: expected plan and size only in the first chunk")
    return DeltaChunk(message.offset, message.data, message.plan_id, message.size)
