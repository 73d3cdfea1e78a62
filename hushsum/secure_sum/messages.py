"""The messages of a round as bytes, each in the one encoding that it has.

A message is its format (1), its kind, the plan's id, the window (8 bytes, signed), the round's id, and its body; all
numbers are big-endian. A receiver refuses one that is not of its plan, window and round, or has another length than its
kind has there. With n members of a roster and k neighbours of each:

    INVITATION     to a client     nothing
    ADVERTISEMENT  of a client     id (2 bytes of length, UTF-8), keys and commitment (4 times 32), signature 64
    ROSTER         to a client     n (2 bytes), and of each member, ids rising: id, keys and commitment as above
    OPENING        of a client     its contribution 32
    OPENINGS       to a client     n contributions, k signatures of its neighbours' advertisements
    SHARES         of a client     check of its self-mask seed 32, for each neighbour a sealed pair of shares 48
    INBOX          to a client     from each neighbour its sealed pair of shares
    GRANT          to a client     nothing; the masked vector follows, packed, which is no message
    SURVIVORS      to a client     bitmap over the roster
    CONSENT        of a client     signature 64
    QUORUM         to a client     bitmap of the signers, their signatures
    UNMASKING      of a client     for each neighbour one share 16

Neighbours stand in the order of the roster everywhere.
"""

import enum
import struct
from typing import Final, NamedTuple

from hushsum.errors import SecureSumError
from hushsum.secure_sum.bitmaps import bitmap_bytes
from hushsum.secure_sum.key_agreement import KEY_BYTES, SEED_BYTES, TAG_BYTES
from hushsum.secure_sum.parameters import ROUND_BYTES, RoundParameters
from hushsum.signing import SIGNATURE_BYTES

FORMAT: Final = 1
HASH_BYTES: Final = 32
CONTRIBUTION_BYTES: Final = 32
ID_BYTES_MAX: Final = 512
SHARE_BYTES: Final = SEED_BYTES
SEALED_BYTES: Final = 2 * SHARE_BYTES + TAG_BYTES
_HEAD: Final = struct.Struct(f">BB{HASH_BYTES}sq{ROUND_BYTES}s")
_LENGTH: Final = struct.Struct(">H")
KEYS_BYTES: Final = 3 * KEY_BYTES + HASH_BYTES


class Kind(enum.IntEnum):
    """What a message is; its number on the wire."""

    INVITATION = 1
    ADVERTISEMENT = 2
    ROSTER = 3
    OPENING = 4
    OPENINGS = 5
    SHARES = 6
    INBOX = 7
    GRANT = 8
    SURVIVORS = 9
    CONSENT = 10
    QUORUM = 11
    UNMASKING = 12


class Keys(NamedTuple):
    """What a member advertises.

    Attributes:
        identity: Its Ed25519 key.
        exchange: Its X25519 key of the round that shares are sealed for.
        mask: Its X25519 key of the round that pairwise masks come from.
        commitment: Hash of what it will contribute to the graph's order.
    """

    identity: bytes
    exchange: bytes
    mask: bytes
    commitment: bytes


class Advertisement(NamedTuple):
    """A client's first message, signed by its identity key."""

    client_id: str
    keys: Keys
    signature: bytes


def pack(parameters: RoundParameters, kind: Kind, *body: bytes) -> bytes:
    """A message of this round."""
    head = _HEAD.pack(FORMAT, kind, parameters.plan_id, parameters.window, parameters.round)
    return b"".join((head, *body))


def unpack(parameters: RoundParameters, data: bytes) -> tuple[Kind, bytes]:
    """Kind and body of a message of this round.

    Raises:
        SecureSumError: It is of another format, plan, window or round, or none.
    """
    kind, plan_id, window, round_id = _head(data)
    for came, expected, what in (
        (plan_id, parameters.plan_id, "plan"),
        (window, parameters.window, "window"),
        (round_id, parameters.round, "round"),
    ):
        if came != expected:
            raise SecureSumError(f"a message of another {what}")
    return kind, data[_HEAD.size :]


def round_of(data: bytes, plan_id: bytes, window: int) -> bytes:
    """The id of the round that an invitation invites to.

    Raises:
        SecureSumError: It is no invitation to a round of this plan and window.
    """
    kind, of_plan, of_window, round_id = _head(data)
    if kind is not Kind.INVITATION or (of_plan, of_window) != (plan_id, window) or len(data) != _HEAD.size:
        raise SecureSumError("expected an invitation to a round of this plan and window")
    return round_id


def message_bytes_max(parameters: RoundParameters) -> int:
    """What no message of a round is longer than."""
    n, k = parameters.members_max, parameters.degree
    member = _LENGTH.size + ID_BYTES_MAX + KEYS_BYTES
    body = (
        _LENGTH.size + n * member,
        n * CONTRIBUTION_BYTES + k * SIGNATURE_BYTES,
        HASH_BYTES + k * SEALED_BYTES,
        bitmap_bytes(n) + n * SIGNATURE_BYTES,
    )
    return _HEAD.size + max(body)


def pack_advertisement(parameters: RoundParameters, advertisement: Advertisement) -> bytes:
    """A client's first message."""
    client_id, keys, signature = advertisement
    return pack(parameters, Kind.ADVERTISEMENT, pack_member(client_id, keys), signature)


def unpack_advertisement(body: bytes) -> Advertisement:
    """Reads it.

    Raises:
        SecureSumError: It is cut, too long, or its id is no text.
    """
    client_id, keys, at = read_member(body, 0)
    if len(body) != at + SIGNATURE_BYTES:
        raise SecureSumError("an advertisement with a length that differs from the sum of its parts")
    return Advertisement(client_id, keys, body[at:])


def pack_member(client_id: str, keys: Keys) -> bytes:
    """A member's id with its length, and its keys."""
    id_bytes = client_id.encode()
    assert 1 <= len(id_bytes) <= ID_BYTES_MAX, "an id of a client"
    return b"".join((_LENGTH.pack(len(id_bytes)), id_bytes, *keys))


def read_member(data: bytes, at: int) -> tuple[str, Keys, int]:
    """The member that stands at a place, and the place behind it.

    Raises:
        SecureSumError: It is cut, or its id is no text of 1 to 512 bytes.
    """
    start = at + 2
    split = start + int.from_bytes(data[at:start], "big")
    end = split + KEYS_BYTES
    if not start < split <= start + ID_BYTES_MAX or end > len(data):
        raise SecureSumError("a truncated member, or one with an id that is not 1 to 512 bytes")
    try:
        client_id = data[start:split].decode()
    except UnicodeDecodeError as error:
        raise SecureSumError("a member with an id that is not UTF-8") from error
    fields = (data[at : at + HASH_BYTES] for at in range(split, end, HASH_BYTES))
    return client_id, Keys(*fields), end


def cut(body: bytes, kind: Kind, *sizes: tuple[int, int]) -> list[list[bytes]]:
    """A body of fixed parts.

    Args:
        body: Of a message.
        kind: Its kind, for the text of an error.
        sizes: For each list of parts how many it has, and the bytes of each.

    Raises:
        SecureSumError: It has another length.
    """
    expected = sum(count * size for count, size in sizes)
    if len(body) != expected:
        raise SecureSumError(f"a message {kind.name} of {len(body)} bytes, expected {expected}")
    parts, at = [], 0
    for count, size in sizes:
        end = at + count * size
        parts.append([body[start : start + size] for start in range(at, end, size)])
        at = end
    return parts


def _head(data: bytes) -> tuple[Kind, bytes, int, bytes]:
    if len(data) < _HEAD.size:
        raise SecureSumError(f"a message of {len(data)} bytes, expected at least {_HEAD.size}")
    version, number, plan_id, window, round_id = _HEAD.unpack_from(data)
    if version != FORMAT:
        raise SecureSumError(f"a message of format {version}, expected {FORMAT}")
    try:
        return Kind(number), plan_id, window, round_id
    except ValueError as error:
        raise SecureSumError(f"a message of unknown kind {number}") from error
