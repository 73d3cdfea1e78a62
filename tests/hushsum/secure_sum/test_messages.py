"""Messages have one encoding, and whatever is not it is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushsum.errors import SecureSumError
from hushsum.secure_sum import messages
from hushsum.secure_sum.bitmaps import bitmap_bytes, bitmap_of, flags_of
from hushsum.secure_sum.messages import Advertisement, Keys, Kind
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.secure_sum.roster import Roster
from tests.hushsum.secure_sum.fleets import PLAN_ID, ROUND, fleet, small_parameters
from tests.hushsum.secure_sum.joined import Network

PARAMETERS = small_parameters()
HEAD = 74


def keys_of(number: int) -> Keys:
    return Keys(*(bytes([number, part]) * 16 for part in range(4)))


def test_a_message_comes_back_as_it_was() -> None:
    data = messages.pack(PARAMETERS, Kind.OPENING, b"ab", b"c")
    assert messages.unpack(PARAMETERS, data) == (Kind.OPENING, b"abc")
    assert len(data) == HEAD + 3


def test_the_bytes_of_a_message_are_these() -> None:
    data = messages.pack(PARAMETERS, Kind.SURVIVORS, b"\x05")
    assert data == b"\x01\x09" + PLAN_ID + (-3).to_bytes(8, "big", signed=True) + ROUND + b"\x05"


def test_a_message_with_any_other_byte_in_its_head_is_refused() -> None:
    for at in range(HEAD):
        data = bytearray(messages.pack(PARAMETERS, Kind.GRANT))
        data[at] ^= 0x40
        with pytest.raises(SecureSumError):
            messages.unpack(PARAMETERS, bytes(data))


def test_a_message_without_a_whole_head_is_refused() -> None:
    for size in range(0, HEAD, 7):
        with pytest.raises(SecureSumError, match="expected at least"):
            messages.unpack(PARAMETERS, messages.pack(PARAMETERS, Kind.GRANT)[:size])


def test_an_invitation_tells_the_round() -> None:
    assert messages.round_of(messages.pack(PARAMETERS, Kind.INVITATION), PLAN_ID, -3) == ROUND


@pytest.mark.parametrize(
    ("data", "plan_id", "window"),
    [
        (messages.pack(PARAMETERS, Kind.GRANT), PLAN_ID, -3),
        (messages.pack(PARAMETERS, Kind.INVITATION, b"x"), PLAN_ID, -3),
        (messages.pack(PARAMETERS, Kind.INVITATION), bytes(32), -3),
        (messages.pack(PARAMETERS, Kind.INVITATION), PLAN_ID, 3),
    ],
)
def test_nothing_else_is_taken_for_an_invitation(data: bytes, plan_id: bytes, window: int) -> None:
    with pytest.raises(SecureSumError):
        messages.round_of(data, plan_id, window)


@given(st.text(min_size=1, max_size=128), st.binary(min_size=64, max_size=64))
def test_an_advertisement_comes_back_as_it_was(client_id: str, signature: bytes) -> None:
    try:
        client_id.encode()
    except UnicodeEncodeError:
        return
    advertisement = Advertisement(client_id, keys_of(1), signature)
    body = messages.pack_advertisement(PARAMETERS, advertisement)[HEAD:]
    assert messages.unpack_advertisement(body) == advertisement


@given(st.binary(max_size=300))
def test_what_is_read_as_an_advertisement_is_packed_into_the_same_bytes(body: bytes) -> None:
    try:
        advertisement = messages.unpack_advertisement(body)
    except SecureSumError:
        return
    assert messages.pack_advertisement(PARAMETERS, advertisement)[HEAD:] == body


@pytest.mark.parametrize("id_bytes", [b"", b"\xff", b"x" * 513])
def test_an_advertisement_with_such_an_id_is_refused(id_bytes: bytes) -> None:
    body = len(id_bytes).to_bytes(2, "big") + id_bytes + bytes(192)
    with pytest.raises(SecureSumError):
        messages.unpack_advertisement(body)


def test_a_roster_comes_back_in_the_order_of_its_ids() -> None:
    roster, body = Roster.of([(f"c{n}", keys_of(n)) for n in (3, 1, 2)], None)
    assert roster.ids == ("c1", "c2", "c3")
    assert Roster.unpack(body, None) == roster


def _packed(*members: tuple[str, int]) -> bytes:
    packed = (messages.pack_member(client_id, keys_of(number)) for client_id, number in members)
    return len(members).to_bytes(2, "big") + b"".join(packed)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        _packed(("a", 1), ("b", 2))[:-1],
        _packed(("a", 1), ("b", 2)) + b"\0",
        _packed(("b", 2), ("a", 1)),
        _packed(("a", 1), ("a", 2)),
        _packed(("a", 1), ("b", 1)),
        b"\xff\xff" + _packed(("a", 1))[2:],
    ],
)
def test_such_a_roster_is_refused(body: bytes) -> None:
    with pytest.raises(SecureSumError):
        Roster.unpack(body, None)


@given(st.binary(max_size=600))
def test_what_is_read_as_a_roster_is_packed_into_the_same_bytes(body: bytes) -> None:
    try:
        roster = Roster.unpack(body, None)
    except SecureSumError:
        return
    assert Roster.of(list(zip(roster.ids, roster.keys, strict=True)), None)[1] == body


@given(st.integers(1, 70), st.data())
def test_a_bitmap_comes_back_as_it_was(members: int, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.integers(0, members - 1)))
    bitmap = bitmap_of(chosen, members)
    assert len(bitmap) == bitmap_bytes(members)
    assert set(np.flatnonzero(flags_of(bitmap, members)).tolist()) == chosen


@pytest.mark.parametrize(("bitmap", "members"), [(b"\x10", 4), (b"\xff\x01", 8), (b"", 3), (b"\x01\x80", 15)])
def test_such_a_bitmap_is_refused(bitmap: bytes, members: int) -> None:
    with pytest.raises(SecureSumError):
        flags_of(bitmap, members)


@pytest.mark.parametrize("parameters", [small_parameters(9), small_parameters(12, degree=4, threshold=3)])
def test_no_message_of_a_round_is_longer_than_is_said(parameters: RoundParameters, seed: int) -> None:
    network = Network(fleet(parameters, np.random.default_rng(seed)))
    network.run()
    sizes = {each.kind: len(each.data) for each in network.passed}
    assert sizes.pop(None) == parameters.words.bytes
    assert set(sizes) == set(Kind) - {Kind.INVITATION}
    assert max(sizes.values()) <= messages.message_bytes_max(parameters)
