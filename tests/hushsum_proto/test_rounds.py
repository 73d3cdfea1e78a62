"""Rounds of a secure sum on the wire: everything goes there and back, and what no peer writes is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushsum_proto import convert_rounds
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

ids = st.binary(min_size=32, max_size=32)
windows = st.integers(-(2**63), 2**63 - 1)
filled = st.binary(min_size=1, max_size=100)
numbers = st.integers(0, 2**32 - 1)
requests = (
    st.builds(Enter, ids, windows, st.just(b"") | ids)
    | st.builds(Message, filled)
    | st.builds(VectorChunk, st.integers(0, 2**64 - 1), filled)
)
replies = (
    st.builds(Waiting, numbers)
    | st.builds(Message, filled)
    | st.builds(
        RoundOutcome, st.just(b"") | ids, st.sampled_from(RoundResult), st.text(max_size=30), st.booleans(), numbers
    )
)


@given(requests)
def test_what_a_client_says_comes_back_from_its_bytes(request: RoundRequest) -> None:
    data = convert_rounds.request_to_wire(request).SerializeToString()

    assert convert_rounds.request_from_wire(pb.RoundRequest.FromString(data)) == request


@given(replies)
def test_what_the_service_says_comes_back_from_its_bytes(reply: RoundReply) -> None:
    data = convert_rounds.reply_to_wire(reply).SerializeToString()

    assert convert_rounds.reply_from_wire(pb.RoundReply.FromString(data)) == reply


@pytest.mark.parametrize(
    "message",
    (
        pb.RoundRequest(),
        pb.RoundRequest(message=b""),
        pb.RoundRequest(chunk=pb.VectorChunk(offset=3)),
        pb.RoundRequest(enter=pb.Enter(window=1)),
        pb.RoundRequest(enter=pb.Enter(plan_id=bytes(31), window=1)),
        pb.RoundRequest(enter=pb.Enter(plan_id=bytes(32), spent_round=bytes(33))),
        pb.RoundRequest(enter=pb.Enter(plan_id=bytes(32), signature=bytes(63))),
    ),
)
def test_what_no_client_says_is_malformed(message: pb.RoundRequest) -> None:
    with pytest.raises(MalformedMessageError):
        convert_rounds.request_from_wire(message)


@pytest.mark.parametrize(
    "message",
    (
        pb.RoundReply(),
        pb.RoundReply(message=b""),
        pb.RoundReply(outcome=pb.RoundOutcome(round=bytes(32))),
        pb.RoundReply(outcome=pb.RoundOutcome(round=bytes(31), fate=pb.FATE_COUNTED)),
        pb.RoundReply.FromString(b"\x1a\x02\x10\x63"),  # fate 99
    ),
)
def test_what_no_service_says_is_malformed(message: pb.RoundReply) -> None:
    with pytest.raises(MalformedMessageError):
        convert_rounds.reply_from_wire(message)


def test_every_number_of_a_fate_is_translated() -> None:
    names = {result: pb.Fate.Name(number) for result, number in convert_rounds.FATES.items()}
    assert names == {result: f"FATE_{result.name}" for result in RoundResult}
    assert sorted(convert_rounds.FATES.values()) == [number for number in pb.Fate.values() if number]


@given(ids, st.integers(0, 2**64 - 1), filled)
def test_a_directory_is_asked_for_and_comes_in_parts(plan_id: bytes, offset: int, data: bytes) -> None:
    chunk = DirectoryChunk(offset, data)

    assert convert_rounds.directory_request_from_wire(convert_rounds.directory_request_to_wire(plan_id)) == plan_id
    assert convert_rounds.directory_chunk_from_wire(convert_rounds.directory_chunk_to_wire(chunk)) == chunk
    with pytest.raises(MalformedMessageError, match="plan id"):
        convert_rounds.directory_request_from_wire(pb.GetDirectoryRequest())
    with pytest.raises(MalformedMessageError, match="directory"):
        convert_rounds.directory_chunk_from_wire(pb.DirectoryChunk(offset=offset))


def test_no_vector_shows_in_a_repr() -> None:
    assert "secret" not in repr([Message(b"secret"), VectorChunk(0, b"secret")])
