"""What the server keeps of a round's members: what each has said, checked, and what each is to be told."""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final

import numpy.typing as npt

from hushsum.errors import SecureSumError
from hushsum.secure_sum import messages
from hushsum.secure_sum.bitmaps import bitmap_of, flags_of
from hushsum.secure_sum.key_agreement import Occasion
from hushsum.secure_sum.messages import CONTRIBUTION_BYTES, HASH_BYTES, SEALED_BYTES, SHARE_BYTES, Kind
from hushsum.secure_sum.neighbour_graph import neighbours
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.secure_sum.roster import (
    NeighbourGraph,
    Roster,
    commitment,
    consent_parts,
    is_advertised,
    neighbour_graph_of,
    refuse_unsound,
    vouched_key,
)
from hushsum.secure_sum.server_events import Step, Sum
from hushsum.secure_sum.unmasking import Unmasking
from hushsum.signing import SIGNATURE_BYTES, Directory

Told = list[tuple[str, bytes]]

#: The message that each step asks of a member; the vector of an upload is none.
ASKED: Final[Mapping[Step, Kind]] = MappingProxyType(
    {
        Step.ADVERTISE: Kind.ADVERTISEMENT,
        Step.OPEN: Kind.OPENING,
        Step.SHARE: Kind.SHARES,
        Step.CONSENT: Kind.CONSENT,
        Step.UNMASK: Kind.UNMASKING,
    }
)


class Assembly:
    """The members of one round, step by step.

    Args:
        parameters: Of the round.
        directory: Everybody's identity keys; None: nobody vouches for them.

    Attributes:
        uploaded: Whose vectors are whole.
        consents: Signatures of the survivors, by who signed.
    """

    def __init__(self, parameters: RoundParameters, directory: Directory | None) -> None:
        self._parameters = parameters
        self._directory = directory
        self._advertised: dict[str, messages.Advertisement] = {}
        self._keys: set[bytes] = set()
        self._roster: Roster | None = None
        self._contributions: dict[str, bytes] = {}
        self._graph: NeighbourGraph | None = None
        self._neighbours: tuple[tuple[int, ...], ...] = ()
        self._checks: dict[str, bytes] = {}
        self._sealed: dict[str, list[bytes]] = {}
        self.uploaded: set[str] = set()
        self._bitmap = b""
        self.consents: dict[str, bytes] = {}
        self._unmasking: Unmasking | None = None

    @property
    def roster(self) -> Roster:
        """Once it is closed."""
        assert self._roster is not None, "the roster is closed"
        return self._roster

    def take(self, kind: Kind, client_id: str, body: bytes) -> None:
        """Takes what a client was asked for.

        Raises:
            SecureSumError: It is not what the protocol says.
        """
        self._TAKE[kind](self, client_id, body)

    def _advertise(self, client_id: str, body: bytes) -> None:
        """Takes keys that a client signed."""
        advertisement = messages.unpack_advertisement(body)
        keys = advertisement.keys
        if advertisement.client_id != client_id:
            raise SecureSumError("an advertisement in another client's name")
        key = vouched_key(self._directory, client_id, keys.identity)
        if not is_advertised(self._parameters, client_id, keys, advertisement.signature, key=key):
            raise SecureSumError("an advertisement that its client has not signed")
        refuse_unsound(keys)
        if len({*keys}) < len(keys) or not self._keys.isdisjoint(keys):
            raise SecureSumError("an advertisement with a key that is already used")
        self._keys.update(keys)
        self._advertised[client_id] = advertisement

    def close(self, living: Collection[str]) -> Told:
        """Those who are there are the roster, and are told it."""
        members = [(client_id, self._advertised[client_id].keys) for client_id in living]
        self._roster, body = Roster.of(members, self._directory)
        data = messages.pack(self._parameters, Kind.ROSTER, body)
        return [(client_id, data) for client_id in self._roster.ids]

    def _open(self, client_id: str, body: bytes) -> None:
        """Takes a contribution."""
        ((contribution,),) = messages.cut(body, Kind.OPENING, (1, CONTRIBUTION_BYTES))
        if commitment(self._parameters, client_id, contribution) != self._advertised[client_id].keys.commitment:
            raise SecureSumError("a contribution that its client has not committed to")
        self._contributions[client_id] = contribution

    def draw(self) -> Told:
        """Draws the graph; everybody is told all contributions, and the signatures of its neighbours."""
        roster, parameters = self.roster, self._parameters
        contributions = [self._contributions[client_id] for client_id in roster.ids]
        self._graph = neighbour_graph_of(parameters, roster, contributions)
        self._neighbours = neighbours(self._graph.transcript, len(roster), parameters.degree)
        opened = b"".join(contributions)
        signatures = [self._advertised[client_id].signature for client_id in roster.ids]
        told = []
        for client_id, near in zip(roster.ids, self._neighbours, strict=True):
            of_near = b"".join(signatures[neighbour] for neighbour in near)
            told.append((client_id, messages.pack(parameters, Kind.OPENINGS, opened, of_near)))
        self._advertised.clear()
        self._contributions.clear()
        return told

    def _share(self, client_id: str, body: bytes) -> None:
        """Takes a client's check, and its sealed shares for its neighbours."""
        k = self._parameters.neighbours(len(self.roster))
        (check,), sealed = messages.cut(body, Kind.SHARES, (1, HASH_BYTES), (k, SEALED_BYTES))
        self._checks[client_id], self._sealed[client_id] = check, sealed

    def inboxes(self) -> Told:
        """Everybody is told the shares that its neighbours sealed for it."""
        roster = self.roster
        inboxes: list[list[bytes]] = [[] for _ in roster.ids]
        for client_id, near in zip(roster.ids, self._neighbours, strict=True):  # rising, so inboxes are in order
            for neighbour, sealed in zip(near, self._sealed[client_id], strict=True):
                inboxes[neighbour].append(sealed)
        self._sealed.clear()
        return [
            (client_id, messages.pack(self._parameters, Kind.INBOX, *inbox))
            for client_id, inbox in zip(roster.ids, inboxes, strict=True)
        ]

    def upload(self, client_id: str) -> None:
        """A client's vector is whole."""
        self.uploaded.add(client_id)

    def survivors(self, living: Collection[str]) -> Told:
        """Those whose vectors are whole are the survivors; those of them who are there are told.

        Raises:
            SecureSumError: No client would sign them.
        """
        roster = self.roster
        assert self._graph is not None, "the graph is drawn"
        self._bitmap = bitmap_of([roster.index[client_id] for client_id in self.uploaded], len(roster))
        self._graph.check_survivors(self._parameters, flags_of(self._bitmap, len(roster)))
        data = messages.pack(self._parameters, Kind.SURVIVORS, self._bitmap)
        return [(client_id, data) for client_id in living if client_id in self.uploaded]

    def _consent(self, client_id: str, body: bytes) -> None:
        """Takes a survivor's signature of the survivors."""
        roster = self.roster
        assert self._graph is not None, "the graph is drawn"
        ((signature,),) = messages.cut(body, Kind.CONSENT, (1, SIGNATURE_BYTES))
        label, *parts = consent_parts(self._parameters, self._graph.transcript, self._bitmap)
        if not roster.verify_key(roster.index[client_id]).verifies(signature, label, *parts):
            raise SecureSumError("a signature of the survivors that is none")
        self.consents[client_id] = signature

    def quorum(self, living: Collection[str]) -> Told:
        """The survivors who are there are told who signed, and what; from now on shares are taken."""
        roster, survivors = self.roster, flags_of(self._bitmap, len(self.roster))
        signers = sorted(self.consents, key=roster.index.__getitem__)[: self._parameters.quorum(len(roster))]
        bitmap = bitmap_of([roster.index[client_id] for client_id in signers], len(roster))
        signatures = (self.consents[client_id] for client_id in signers)
        data = messages.pack(self._parameters, Kind.QUORUM, bitmap, *signatures)
        self._unmasking = Unmasking(
            roster,
            self._neighbours,
            occasion=self._drawn,
            checks=[self._checks[client_id] for client_id in roster.ids],
            survivors=survivors,
            threshold=self._parameters.threshold,
            corrupt=self._parameters.corrupt,
        )
        return [(client_id, data) for client_id in living if client_id in self.uploaded]

    def _unmask(self, client_id: str, body: bytes) -> None:
        """Takes the shares that a survivor reveals."""
        assert self._unmasking is not None, "a quorum is there"
        k = self._parameters.neighbours(len(self.roster))
        (shares,) = messages.cut(body, Kind.UNMASKING, (k, SHARE_BYTES))
        self._unmasking.add(self.roster.index[client_id], shares)

    def may_unmask(self, coming: Collection[str]) -> bool:
        """Whether all masks may come off once these clients have revealed their shares."""
        assert self._unmasking is not None, "a quorum is there"
        return self._unmasking.may_solve({self.roster.index[client_id] for client_id in coming})

    def unmasked(self, words: npt.NDArray[Any]) -> bool:
        """Takes the masks off the sum in place, if enough was revealed for all of them; whether it was."""
        assert self._unmasking is not None, "a quorum is there"
        if not self._unmasking.solve():
            return False
        self._unmasking.remove(words)
        return True

    def sum_of(self, words: npt.NDArray[Any], spent: int) -> Sum:
        """What the round comes to."""
        assert self._unmasking is not None, "masks are off"
        ids = self.roster.ids
        survivors = tuple(client_id for client_id in ids if client_id in self.uploaded)
        liars = tuple(ids[member] for member in self._unmasking.liars())
        return Sum(words, len(survivors), survivors, spent, liars)

    @property
    def suspects(self) -> tuple[str, ...]:
        """Members whose secret did not come out though enough shares of it were there."""
        return () if self._unmasking is None else tuple(self.roster.ids[member] for member in self._unmasking.stuck)

    @property
    def _drawn(self) -> Occasion:
        assert self._graph is not None, "the graph is drawn"
        return self._parameters.occasion.drawn(self._graph.transcript)

    _TAKE: ClassVar[Mapping[Kind, Callable[["Assembly", str, bytes], None]]] = MappingProxyType(
        {
            Kind.ADVERTISEMENT: _advertise,
            Kind.OPENING: _open,
            Kind.SHARES: _share,
            Kind.CONSENT: _consent,
            Kind.UNMASKING: _unmask,
        }
    )
