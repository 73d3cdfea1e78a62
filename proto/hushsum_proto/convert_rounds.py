"""Rounds of a secure sum on the wire: as :mod:`hushsum_proto.convert`, for :mod:`hushsum_proto.rounds`."""

from typing import Final

from hushsum.signing import SIGNATURE_BYTES
from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.rounds import (
    DirectoryChunk,
    Enter,
    Message,
    RoundOutcome,
    RoundReply,
    RoundRequest,
    RoundResult,
    VectorChunk,
    Waiting,
)
from hushsum_proto.v1 import wire_pb2 as pb

_ID_BYTES: Final = 32  # of a plan, of a round
FATES: Final[dict[RoundResult, pb.Fate.ValueType]] = {
    RoundResult.COUNTED: pb.FATE_COUNTED,
    RoundResult.LEFT_OUT: pb.FATE_LEFT_OUT,
    RoundResult.ABORTED: pb.FATE_ABORTED,
    RoundResult.LATE: pb.FATE_LATE,
    RoundResult.UNKNOWN: pb.FATE_UNKNOWN,
}
_FATES_READ: Final = {number: result for result, number in FATES.items()}


def request_to_wire(request: RoundRequest) -> pb.RoundRequest:
    """What a client says."""
    match request:
        case Enter():
            enter = pb.Enter(
                plan_id=request.plan_id,
                window=request.window,
                spent_round=request.spent_round,
                signature=request.signature,
            )
            return pb.RoundRequest(enter=enter)
        case Message():
            return pb.RoundRequest(message=request.data)
        case VectorChunk():
            return pb.RoundRequest(chunk=pb.VectorChunk(offset=request.offset, data=request.data))


def request_from_wire(message: pb.RoundRequest) -> RoundRequest:
    """What a client says.

    Raises:
        MalformedMessageError: None of the three, ids of another length, or an empty part of a vector.
    """
    body = message.WhichOneof("body")
    if body == "enter":
        enter = message.enter
        _check_id("plan id", enter.plan_id)
        _check_id("spent round", enter.spent_round, or_none=True)
        if enter.signature and len(enter.signature) != SIGNATURE_BYTES:
            raise MalformedMessageError(f"a signature of {len(enter.signature)} bytes, expected {SIGNATURE_BYTES}")
        return Enter(enter.plan_id, enter.window, enter.spent_round, enter.signature)
    if body == "message":
        return Message(_filled("message", message.message))
    if body == "chunk":
        return VectorChunk(message.chunk.offset, _filled("chunk", message.chunk.data))
    raise MalformedMessageError("round: expected to enter, a message or a chunk, got none of them")


def reply_to_wire(reply: RoundReply) -> pb.RoundReply:
    """What the service says."""
    match reply:
        case Waiting():
            return pb.RoundReply(waiting=pb.Waiting(cohort=reply.cohort))
        case Message():
            return pb.RoundReply(message=reply.data)
        case RoundOutcome():
            outcome = pb.RoundOutcome(
                round=reply.round,
                fate=FATES[reply.result],
                detail=reply.detail,
                again=reply.again,
                retry_after_ms=reply.retry_after_ms,
            )
            return pb.RoundReply(outcome=outcome)


def reply_from_wire(message: pb.RoundReply) -> RoundReply:
    """What the service says.

    Raises:
        MalformedMessageError: None of the three, a round's id of another length, or a fate that this version does not
            know.
    """
    body = message.WhichOneof("body")
    if body == "waiting":
        return Waiting(message.waiting.cohort)
    if body == "message":
        return Message(_filled("message", message.message))
    if body == "outcome":
        outcome = message.outcome
        _check_id("round", outcome.round, or_none=True)
        result = _FATES_READ.get(outcome.fate)
        if result is None:
            raise MalformedMessageError(f"round: got fate {outcome.fate}, which this version does not know")
        return RoundOutcome(outcome.round, result, outcome.detail, outcome.again, outcome.retry_after_ms)
    raise MalformedMessageError("round: expected to wait, a message or an outcome, got none of them")


def directory_request_to_wire(plan_id: bytes) -> pb.GetDirectoryRequest:
    """The question for a plan's directory of clients."""
    return pb.GetDirectoryRequest(plan_id=plan_id)


def directory_request_from_wire(message: pb.GetDirectoryRequest) -> bytes:
    """The plan whose directory is asked for.

    Raises:
        MalformedMessageError: A plan id that is not 32 bytes.
    """
    _check_id("plan id", message.plan_id)
    return message.plan_id


def directory_chunk_to_wire(chunk: DirectoryChunk) -> pb.DirectoryChunk:
    """A part of a directory."""
    return pb.DirectoryChunk(offset=chunk.offset, data=chunk.data)


def directory_chunk_from_wire(message: pb.DirectoryChunk) -> DirectoryChunk:
    """A part of a directory.

    Raises:
        MalformedMessageError: An empty one.
    """
    return DirectoryChunk(message.offset, _filled("directory", message.data))


def _check_id(what: str, came: bytes, *, or_none: bool = False) -> None:
    if len(came) != _ID_BYTES and (came or not or_none):
        raise MalformedMessageError(f"{what}: expected {_ID_BYTES} bytes{' or none' * or_none}, got {len(came)}")


def _filled(what: str, came: bytes) -> bytes:
    if not came:
        raise MalformedMessageError(f"{what}: expected at least one byte, got none")
    return came
