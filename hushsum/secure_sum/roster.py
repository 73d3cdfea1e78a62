"""The roster of a round: whose keys are whose, as every member is told and checks; and the order drawn from it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from hushsum.errors import DirectoryError, SecureSumError
from hushsum.labels import ADVERTISEMENT, CONSENT, CONTRIBUTION, GRAPH, ROSTER
from hushsum.secure_sum.bitmaps import Flags
from hushsum.secure_sum.key_agreement import KeyPair, framed
from hushsum.secure_sum.messages import KEYS_BYTES, Advertisement, Keys, pack_member, read_member
from hushsum.secure_sum.neighbour_graph import order
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.signing import Directory, Role, SigningKey, VerifyKey

_COUNT_BYTES: Final = 2
#: Whose it is does not matter: with any of them a point of small order is found out.
_PROBE: Final = KeyPair(bytes([1]) * 32)


@dataclass(frozen=True)
class Roster:
    """The members of a round.

    Attributes:
        ids: Rising, as UTF-8.
        keys: Of each member.
        directory: Where their identity keys stand; None: nobody vouches for them.
        digest: Labelled SHA-256 of the packed roster.
    """

    ids: tuple[str, ...]
    keys: tuple[Keys, ...] = field(repr=False)
    directory: Directory | None = field(repr=False)
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, members: Sequence[tuple[str, Keys]], directory: Directory | None) -> tuple[Self, bytes]:
        """The roster of some members, whatever their order, and its bytes."""
        ordered = sorted(members, key=lambda member: member[0].encode())
        body = len(ordered).to_bytes(_COUNT_BYTES, "big") + b"".join(pack_member(*member) for member in ordered)
        return cls.unpack(body, directory), body

    @classmethod
    def unpack(cls, body: bytes, directory: Directory | None) -> Self:
        """Reads a roster.

        Raises:
            SecureSumError: It is cut or too long, its ids do not rise, two keys are equal, or the directory does not
                have a member's identity key under its id.
        """
        count, at = int.from_bytes(body[:_COUNT_BYTES], "big"), _COUNT_BYTES
        if count * (3 + KEYS_BYTES) > len(body):
            raise SecureSumError(f"a roster of {len(body)} bytes, too few for {count} members")
        ids, keys = [], []
        for _ in range(count):
            client_id, of_member, at = read_member(body, at)
            ids.append(client_id)
            keys.append(of_member)
        if at != len(body):
            raise SecureSumError(f"a roster of {len(body)} bytes, expected {at}")
        if not all(one < other for one, other in pairwise(client_id.encode() for client_id in ids)):
            raise SecureSumError("a roster with ids that are not in ascending order")
        if len({key for of_member in keys for key in of_member}) != 4 * count:
            raise SecureSumError("a roster with the same key or commitment twice")
        if directory is not None:
            for client_id, of_member in zip(ids, keys, strict=True):
                vouched_key(directory, client_id, of_member.identity)
        return cls(tuple(ids), tuple(keys), directory, hashlib.sha256(ROSTER + body).digest())

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def index(self) -> dict[str, int]:
        """Place in the roster by id."""
        return {client_id: index for index, client_id in enumerate(self.ids)}

    def verify_key(self, member: int) -> VerifyKey:
        """The identity key of a member.

        Raises:
            SecureSumError: Its bytes are none.
        """
        return vouched_key(self.directory, self.ids[member], self.keys[member].identity)


@dataclass(frozen=True)
class NeighbourGraph:
    """The order of a round's members on a circle, from which their neighbours follow (:mod:`.neighbour_graph`).

    Attributes:
        transcript: 32 bytes: hash of the round, the roster and all contributions.
        places: (n,) the member at each place of the circle.
    """

    transcript: bytes = field(repr=False)
    places: npt.NDArray[np.int64] = field(repr=False)

    def check_survivors(self, parameters: RoundParameters, survivors: Flags) -> None:
        """What everybody demands of the survivors, whoever says who they are.

        The server knows the graph when it names them. So not only must enough of them be honest: any k/2 members that
        stand in a row must hold more survivors than corrupt clients can stand there, so that from one honest survivor
        to the next there is a mask that nobody opens, all around the circle. The server then learns one sum over all
        of them, and no other, whomever it calls dropped.

        Raises:
            SecureSumError: They are too few, or too few in one place.
        """
        alive, reach = int(survivors.sum()), parameters.degree // 2
        if alive - parameters.corrupt < parameters.honest:
            expected = parameters.honest + parameters.corrupt
            raise SecureSumError(
                f"{alive} survivors, expected {expected} or more: too few of them are certainly honest"
            )
        if parameters.window_survivors == 0 or parameters.degree >= len(survivors) - 1:
            return
        along = survivors[self.places].astype(np.int64)
        passed = np.concatenate([[0], np.cumsum(np.concatenate([along, along[: reach - 1]]))])
        least = int((passed[reach:] - passed[:-reach]).min())
        if least < parameters.window_survivors:
            expected = parameters.window_survivors
            raise SecureSumError(f"{least} survivors among {reach} in a row, expected {expected}: the sum might part")


def advertised(parameters: RoundParameters, client_id: str, keys: Keys, signer: SigningKey) -> Advertisement:
    """A client's keys, signed."""
    parts = (*parameters.occasion.parts[:3], client_id.encode(), *keys)
    return Advertisement(client_id, keys, signer.sign(ADVERTISEMENT, *parts))


def is_advertised(parameters: RoundParameters, client_id: str, keys: Keys, signature: bytes, *, key: VerifyKey) -> bool:
    """Whether the owner of an identity key signed these keys for this round."""
    return key.verifies(signature, ADVERTISEMENT, *parameters.occasion.parts[:3], client_id.encode(), *keys)


def refuse_unsound(keys: Keys) -> None:
    """Looks at a stranger's X25519 keys, so that no honest neighbour stumbles over them.

    Raises:
        SecureSumError: One is none, or of small order.
    """
    _PROBE.shared(keys.exchange)
    _PROBE.shared(keys.mask)


def commitment(parameters: RoundParameters, client_id: str, contribution: bytes) -> bytes:
    """What binds a client to its contribution before anybody opens one: 32 bytes."""
    parts = (*parameters.occasion.parts[:3], client_id.encode(), contribution)
    return hashlib.sha256(framed(CONTRIBUTION, *parts)).digest()


def check_contributions(parameters: RoundParameters, roster: Roster, contributions: Sequence[bytes]) -> None:
    """Compares each member's contribution with its commitment.

    Raises:
        SecureSumError: One is not what was committed to.
    """
    for client_id, keys, contribution in zip(roster.ids, roster.keys, contributions, strict=True):
        if commitment(parameters, client_id, contribution) != keys.commitment:
            raise SecureSumError(f"a contribution of {client_id} that it has not committed to")


def neighbour_graph_of(parameters: RoundParameters, roster: Roster, contributions: Sequence[bytes]) -> NeighbourGraph:
    """The order that all contributions decide together, so that whoever made one of them at random has it at random."""
    parts = (*parameters.occasion.parts[:3], roster.digest, *contributions)
    transcript = hashlib.sha256(framed(GRAPH, *parts)).digest()
    return NeighbourGraph(transcript, order(transcript, len(roster)))


def consent_parts(parameters: RoundParameters, transcript: bytes, survivors: bytes) -> tuple[bytes, ...]:
    """What a client signs, under the label CONSENT, before anybody opens a mask: the one tuple, with a bitmap."""
    return CONSENT, *parameters.occasion.parts[:3], transcript, survivors


def vouched_key(directory: Directory | None, client_id: str, identity: bytes) -> VerifyKey:
    """The identity key of a client, as the directory has it, or where there is none as it came.

    Raises:
        SecureSumError: The directory has another one, or none of a client; or these bytes are no key.
    """
    if directory is None:
        try:
            return VerifyKey(identity)
        except DirectoryError as error:
            raise SecureSumError(f"the identity key of {client_id}: {error}") from error
    entry = directory.keys.get(client_id)
    if entry is None or entry.role is not Role.CLIENT or entry.public_key.raw != identity:
        raise SecureSumError(f"the identity key of {client_id} is not that of a client in the key registry")
    return entry.public_key
