"""A server that lies, what it can compute from what it is told, and mistakes that would let it: planted to be found."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from hushsum.errors import SecureSumError
from hushsum.secure_sum import key_agreement, messages, shamir
from hushsum.secure_sum.bitmaps import Flags, bitmap_of
from hushsum.secure_sum.client import (
    ClientStep,
    CountAttempt,
    Opened,
    Send,
    SendVector,
    ServerMessage,
    SpendWindow,
    Spent,
)
from hushsum.secure_sum.client_secrets import ClientSecrets
from hushsum.secure_sum.messages import SHARE_BYTES, Kind
from hushsum.secure_sum.neighbour_graph import neighbours
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.secure_sum.roster import NeighbourGraph, Roster, consent_parts, neighbour_graph_of
from hushsum.secure_sum.server import Failed, ServerRound
from hushsum.secure_sum.unmasking import Unmasking
from hushsum.signing import SigningKey
from tests.hushsum.secure_sum.fleets import Fleet
from tests.hushsum.secure_sum.joined import Network, Passing

HEAD = 74
Masked = npt.NDArray[Any]


class LyingServer:
    """It keeps to the protocol up to some message, and then tells each client what it likes.

    Args:
        fleet: Whose clients; the fleet's own server is the part that keeps to the protocol.
        instead_of: The first message that it tells no client.

    Attributes:
        vectors: What clients have sent.
        refused: What each client that refused something said of it, at first.
    """

    def __init__(self, fleet: Fleet, instead_of: Kind = Kind.GRANT) -> None:
        self.parameters = fleet.parameters
        self.clients = fleet.clients
        self.vectors: dict[str, bytes] = {}
        self.refused: dict[str, str] = {}
        network = Network(fleet, meddle=lambda each: [each] if each.to_server or _before(each, instead_of) else [])
        network.begin()
        network.run_until_silent()
        first = next(iter(fleet.clients))
        self.roster = Roster.unpack(network.said(first, Kind.ROSTER, to_server=False)[0][HEAD:], None)
        opened = [network.said(client_id, Kind.OPENING) for client_id in self.roster.ids]
        self.network = network
        self.graph: NeighbourGraph = neighbour_graph_of(
            self.parameters, self.roster, [data[HEAD:] for (data,) in opened]
        )
        self.near = neighbours(self.graph.transcript, len(self.roster), self.parameters.degree)

    @property
    def ids(self) -> tuple[str, ...]:
        return self.roster.ids

    def tell(self, client_id: str, kind: Kind, *body: bytes) -> bytes | None:
        """The body of what a client answers; None if it refuses."""
        client = self.clients[client_id]
        try:
            effects = client.handle(ServerMessage(messages.pack(self.parameters, kind, *body)))
            if effects and isinstance(effects[0], CountAttempt | SpendWindow):
                effects = client.handle(Opened() if isinstance(effects[0], CountAttempt) else Spent())
        except SecureSumError as error:
            self.refused.setdefault(client_id, str(error))
            assert client.step is ClientStep.REFUSED
            return None
        for effect in effects:
            if isinstance(effect, Send):
                return effect.data[HEAD:]
            if isinstance(effect, SendVector):
                return effect.data
        return b""

    def grant(self) -> None:
        """Asks everybody for its vector."""
        for client_id in self.ids:
            vector = self.tell(client_id, Kind.GRANT)
            assert vector, "an honest round so far"
            self.vectors[client_id] = vector

    def bitmap(self, ids: Iterable[str]) -> bytes:
        return bitmap_of([self.roster.index[client_id] for client_id in ids], len(self.roster))

    def consents(self, asked: Iterable[str], survivors: Iterable[str]) -> dict[str, bytes]:
        """The signatures that these clients give of such survivors."""
        data = self.bitmap(survivors)
        answers = {client_id: self.tell(client_id, Kind.SURVIVORS, data) for client_id in sorted(asked)}
        return {client_id: answer for client_id, answer in answers.items() if answer}

    def signed(self, key: SigningKey, survivors: Iterable[str]) -> bytes:
        """What a corrupt client signs for it."""
        label, *parts = consent_parts(self.parameters, self.graph.transcript, self.bitmap(survivors))
        return key.sign(label, *parts)

    def shares(self, asked: Iterable[str], consents: Mapping[str, bytes]) -> dict[str, list[bytes]]:
        """What these clients reveal when they are shown such signatures: for each neighbour, rising, one share."""
        quorum = (self.bitmap(consents), *(consents[client_id] for client_id in sorted(consents)))
        answers = {client_id: self.tell(client_id, Kind.QUORUM, *quorum) for client_id in asked}
        return {client_id: cut(answer) for client_id, answer in answers.items() if answer}

    def seed(self, of: str, revealed: Mapping[str, list[bytes]]) -> bytes | None:
        """The seed of a client that revealed shares come to; None: too few."""
        member, threshold = self.roster.index[of], self.parameters.threshold
        held = [
            (place + 1, revealed[self.ids[holder]][self.near[holder].index(member)])
            for place, holder in enumerate(self.near[member])
            if self.ids[holder] in revealed
        ][:threshold]
        if len(held) < threshold:
            return None
        indices = np.array([[place for place, _ in held]], np.uint8)
        octets = np.frombuffer(b"".join(share for _, share in held), np.uint8).reshape(1, threshold, SHARE_BYTES)
        seed: bytes = shamir.combine_many(indices, octets, threshold)[0].tobytes()
        return seed

    def without_self_mask(self, words: Masked, of: str, seed: bytes) -> None:
        """Takes it off in place."""
        key_agreement.apply(words, subtracted=[key_agreement.self_mask_key(seed, self._drawn, of)])

    def without_pair_masks(self, words: Masked, of: str, seed: bytes, others: Iterable[str]) -> None:
        """Takes off in place what the vectors of others have of the pairwise masks with one whose seed is known."""
        pair = key_agreement.mask_key_pair(seed, self.parameters.occasion, of)
        index = self.roster.index
        for other in others:
            if index[other] in self.near[index[of]]:
                public = self.roster.keys[index[other]].mask
                key = [key_agreement.pair_mask_key(pair, public, self._drawn, of, other)]
                key_agreement.apply(words, *((), key) if index[other] < index[of] else (key, ()))

    def without_own_pair_masks(self, words: Masked, of: str, seed: bytes) -> None:
        """Takes off in place all pairwise masks of a client's own vector, whose seed is known."""
        pair = key_agreement.mask_key_pair(seed, self.parameters.occasion, of)
        me = self.roster.index[of]
        for other in self.near[me]:
            key = [key_agreement.pair_mask_key(pair, self.roster.keys[other].mask, self._drawn, of, self.ids[other])]
            key_agreement.apply(words, *((), key) if me < other else (key, ()))

    @property
    def _drawn(self) -> key_agreement.Occasion:
        return self.parameters.occasion.drawn(self.graph.transcript)


def _before(each: Passing, kind: Kind) -> bool:
    return each.kind is not None and each.kind < kind


def cut(shares: bytes) -> list[bytes]:
    """The shares that a message reveals."""
    return [shares[at : at + SHARE_BYTES] for at in range(0, len(shares), SHARE_BYTES)]


def any_quorum(patch: pytest.MonkeyPatch) -> None:
    """Planted: a client reveals its shares whoever has signed."""
    patch.setattr(RoundParameters, "quorum", lambda _self, _members: 1)


def any_survivors(patch: pytest.MonkeyPatch) -> None:
    """Planted: clients count survivors, and do not look where on the circle they stand."""

    def check(_graph: NeighbourGraph, parameters: RoundParameters, survivors: Flags) -> None:
        if int(survivors.sum()) - parameters.corrupt < parameters.honest:
            raise SecureSumError("too few survivors")

    patch.setattr(NeighbourGraph, "check_survivors", check)


def any_number_of_survivors(patch: pytest.MonkeyPatch) -> None:
    """Planted: the survivors are whoever the server says."""
    patch.setattr(NeighbourGraph, "check_survivors", lambda *_: None)


def keys_that_nobody_signed(patch: pytest.MonkeyPatch) -> None:
    """Planted: the neighbours' advertisements are not looked at."""
    patch.setattr("hushsum.secure_sum.client.is_advertised", lambda *_, **__: True)


def uncommitted(patch: pytest.MonkeyPatch) -> None:
    """Planted: contributions are not compared with their commitments."""
    patch.setattr("hushsum.secure_sum.client.check_contributions", lambda *_: None)


def tags_dropped(patch: pytest.MonkeyPatch) -> None:
    """Planted: shares are taken whoever sealed them, and whatever for."""

    def lenient(key: bytes, sealed: bytes, _associated: bytes = b"") -> bytes:
        # GCM enciphers in counter mode, from block 2 on behind the nonce of 12 bytes.
        stream = Cipher(algorithms.AES(key), modes.CTR(bytes(15) + b"\2")).encryptor()
        return stream.update(sealed[: -key_agreement.TAG_BYTES])

    patch.setattr(key_agreement, "unseal", lenient)


def masks_of_dropouts_left_in(patch: pytest.MonkeyPatch) -> None:
    """Planted: the server does not take off what survivors have in common with those who dropped."""
    remove = Unmasking.remove

    def only_self_masks(self: Unmasking, words: Masked) -> None:
        self._seeds = {member: seed for member, seed in self._seeds.items() if self._survivors[member]}
        remove(self, words)

    patch.setattr(Unmasking, "remove", only_self_masks)


def a_survivor_counted_twice(patch: pytest.MonkeyPatch) -> None:
    """Planted: the first vector is added again when the second comes."""
    on_vector = ServerRound._on_vector
    first: dict[ServerRound, Masked] = {}

    def twice(self: ServerRound, client_id: str, data: bytes) -> None:
        on_vector(self, client_id, data)
        assert self._sum is not None
        if self not in first:
            first[self] = self._sum.copy()
        elif len(self._members.uploaded) == 2:
            self._sum += first[self]

    patch.setattr(ServerRound, "_on_vector", twice)


def a_failure_that_hides_what_was_spent(patch: pytest.MonkeyPatch) -> None:
    """Planted: a round that fails once vectors were asked for claims that it may begin again."""

    def fail(self: ServerRound, reason: str) -> None:
        self._out.append(Failed(reason, spent=0, again=True))
        self._end()

    patch.setattr(ServerRound, "_fail", fail)


def noise_drawn_again(patch: pytest.MonkeyPatch) -> None:
    """Planted: a client draws its noise before the vector is granted, and again when it is."""
    masked = ClientSecrets.masked

    def twice(self: ClientSecrets) -> bytes:
        self._share.sample(self._parameters.words.length, self._entropy)
        return masked(self)

    patch.setattr(ClientSecrets, "masked", twice)


def masks_of_31_bits(patch: pytest.MonkeyPatch) -> None:
    """Planted: the highest bit of each mask is lost."""
    apply = key_agreement.apply

    def narrow(words: Masked, added: Sequence[bytes] = (), subtracted: Sequence[bytes] = ()) -> None:
        for keys, sign in ((added, np.add), (subtracted, np.subtract)):
            for key in keys:
                mask = np.zeros_like(words)
                apply(mask, added=[key])
                sign(words, mask & words.dtype.type(2**31 - 1), out=words)

    patch.setattr(key_agreement, "apply", narrow)


def masks_of_the_clients_alone(patch: pytest.MonkeyPatch) -> None:
    """Planted: no round and no transcript in the derivation of masks, and mask keys that a device keeps."""
    occasion = key_agreement.Occasion(bytes(32), 0, bytes(32), bytes(32))
    pair_key, own_key, key_pair = key_agreement.pair_mask_key, key_agreement.self_mask_key, key_agreement.mask_key_pair
    patch.setattr(
        key_agreement, "pair_mask_key", lambda pair, public, _, one, other: pair_key(pair, public, occasion, one, other)
    )
    patch.setattr(key_agreement, "self_mask_key", lambda seed, _, client_id: own_key(seed, occasion, client_id))
    patch.setattr(key_agreement, "mask_key_pair", lambda seed, _, client_id: key_pair(seed, occasion, client_id))


def no_self_masks(patch: pytest.MonkeyPatch) -> None:
    """Planted: pairwise masks alone."""
    _unapplied(patch, "self_mask_key")


def no_pairwise_masks(patch: pytest.MonkeyPatch) -> None:
    """Planted: self masks alone, which the server is meant to open."""
    _unapplied(patch, "pair_mask_key")


def _unapplied(patch: pytest.MonkeyPatch, derivation: str) -> None:
    """Masks of the keys that come of this are neither added nor taken off."""
    derive, apply = getattr(key_agreement, derivation), key_agreement.apply
    ignored: set[bytes] = set()

    def noted(*of: Any) -> bytes:
        key: bytes = derive(*of)
        ignored.add(key)
        return key

    def rest(words: Masked, added: Sequence[bytes] = (), subtracted: Sequence[bytes] = ()) -> None:
        apply(words, [key for key in added if key not in ignored], [key for key in subtracted if key not in ignored])

    patch.setattr(key_agreement, derivation, noted)
    patch.setattr(key_agreement, "apply", rest)
