"""A client of a round: messages of the server come in, and what this client is willing to say goes out.

    step         on                     does                                                    next
    NEW          begin()                advertises keys and a commitment, signed                ADVERTISED
    ADVERTISED   ROSTER                 checks everybody's keys, asks to count the attempt      COUNTING
    COUNTING     Opened                 opens its contribution                                  OPENED
    OPENED       OPENINGS               draws the graph, seals shares for its neighbours        SHARED
    SHARED       INBOX                  opens the shares of all its neighbours                  READY
    READY        GRANT                  takes its noise, masks its counters, asks to spend      SPENDING
    SPENDING     Spent                  sends the masked vector                                 SENT
    SENT         SURVIVORS              checks them on the whole graph, signs them              CONSENTED
    CONSENTED    QUORUM                 verifies every signature, reveals one share a neighbour REVEALED

Each step is answered once. Whatever does not fit kills the machine: it raises, forgets its secrets, and says nothing
more. So it never reveals both shares of one neighbour, signs a second set of survivors, sends a second vector, or
reveals before a quorum has signed what it has signed itself.

Events say what happened to the client; effects say what its shell must do.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hushsum.entropy import Entropy
from hushsum.errors import SecureSumError
from hushsum.secure_sum import messages
from hushsum.secure_sum.bitmaps import bitmap_bytes, flags_of
from hushsum.secure_sum.client_secrets import ClientSecrets, Share
from hushsum.secure_sum.messages import CONTRIBUTION_BYTES, SEALED_BYTES, Kind
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.secure_sum.roster import (
    NeighbourGraph,
    Roster,
    advertised,
    check_contributions,
    consent_parts,
    is_advertised,
    neighbour_graph_of,
    vouched_key,
)
from hushsum.signing import SIGNATURE_BYTES, Directory, SigningKey

__all__ = [
    "ClientRound",
    "ClientStep",
    "CountAttempt",
    "Effect",
    "Event",
    "Opened",
    "Revealed",
    "Send",
    "SendVector",
    "ServerMessage",
    "SpendWindow",
    "Spent",
]


@dataclass(frozen=True)
class ServerMessage:
    """The server's next message."""

    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Opened:
    """The attempt that was asked for is durably counted."""


@dataclass(frozen=True)
class Spent:
    """The window is durably charged, and its records will never be submitted again."""


@dataclass(frozen=True)
class Send:
    """A message for the server."""

    data: bytes = field(repr=False)


@dataclass(frozen=True)
class CountAttempt:
    """One more attempt of this window is to be counted, durably; if it may be made, say :class:`Opened`."""


@dataclass(frozen=True)
class SpendWindow:
    """The window is to be charged, durably; then say :class:`Spent`. Nothing of the vector has left before."""


@dataclass(frozen=True)
class SendVector:
    """The packed masked vector, whole, for the server."""

    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Revealed:
    """The client's part is done; what became of the sum is the service's to say."""


Event = ServerMessage | Opened | Spent
Effect = Send | CountAttempt | SpendWindow | SendVector | Revealed


class ClientStep(enum.Enum):
    """What a client has done last."""

    NEW = "new"
    ADVERTISED = "advertised"
    COUNTING = "counting"
    OPENED = "opened"
    SHARED = "shared"
    READY = "ready"
    SPENDING = "spending"
    SENT = "sent"
    CONSENTED = "consented"
    REVEALED = "revealed"
    REFUSED = "refused"


class ClientRound:
    """One client's part in one round.

    Args:
        parameters: Of the round.
        client_id: Its own.
        key: Its identity key.
        directory: Everybody's identity keys; None only where the plan names none.
        counters: int64 (D,): what the window's records add up to; not to be changed before the vector is sent.
        counts: int64 (classes,): the count counters, each in units of the plan's ``count_scale``; (0,) where that is 0.
        share: One client's share of the noise. It is sampled once, at the grant, and whoever grants can measure how
            long that takes: have it drawn before.
        entropy: Private randomness.

    Attributes:
        step: How far it has come, to be shown.

    Raises:
        ValueError: Counters out of shape or beyond what the plan allows a client, another directory than the plan's, or
            one that does not have this client's key.
    """

    def __init__(  # noqa: PLR0913  by name, and each is of another kind
        self,
        parameters: RoundParameters,
        *,
        client_id: str,
        key: SigningKey,
        directory: Directory | None,
        counters: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        share: Share,
        entropy: Entropy,
    ) -> None:
        if parameters.directory and (directory is None or directory.digest().hex() != parameters.directory):
            raise ValueError("expected the key registry of clients that the plan names")
        try:
            vouched_key(directory, client_id, key.verify_key.raw)
        except SecureSumError as error:
            raise ValueError(str(error)) from error
        self.step = ClientStep.NEW
        self._parameters = parameters
        self._client_id = client_id
        self._key = key
        self._directory = directory
        self._own: ClientSecrets | None = ClientSecrets(parameters, client_id, counters, counts, share, entropy)
        self._advertisement = advertised(parameters, client_id, self._own.keys(key.verify_key.raw), key)
        self._roster: Roster | None = None
        self._graph: NeighbourGraph | None = None
        self._vector: bytes | None = None
        self._survivors = b""

    @property
    def round(self) -> bytes:
        """The id of the round, to be shown."""
        return self._parameters.round

    def begin(self) -> list[Effect]:
        """Its first message, once."""
        if self.step is not ClientStep.NEW:
            raise ValueError("a round is begun once")
        self.step = ClientStep.ADVERTISED
        return [Send(messages.pack_advertisement(self._parameters, self._advertisement))]

    def handle(self, event: Event) -> list[Effect]:
        """What is to be done about an event, in this order.

        Raises:
            SecureSumError: A message that this client refuses; it says nothing more in this round.
            ValueError: An event that nobody was asked for.
        """
        try:
            if isinstance(event, ServerMessage):
                kind, body = messages.unpack(self._parameters, event.data)
                return self._move(kind, body)
            return self._move(type(event), b"")
        except BaseException:
            self.step = ClientStep.REFUSED
            self._forget()
            raise

    def _move(self, trigger: "Kind | type[Event]", body: bytes) -> list[Effect]:
        move = self._MOVES.get((self.step, trigger))
        if move is None:
            if isinstance(trigger, Kind):
                raise SecureSumError(f"a message {trigger.name} to a client that is {self.step.value}")
            raise ValueError(f"{trigger.__name__} to a client that is {self.step.value}")
        act, self.step = move
        return act(self, body)

    def _on_roster(self, body: bytes) -> list[Effect]:
        roster = Roster.unpack(body, self._directory)
        if not self._parameters.members_min <= len(roster) <= self._parameters.members_max:
            raise SecureSumError(f"a roster of {len(roster)} members, which the plan does not allow")
        mine = roster.index.get(self._client_id)
        if mine is None or roster.keys[mine] != self._advertisement.keys:
            raise SecureSumError("a roster without this client as it has advertised itself")
        self._roster = roster
        return [CountAttempt()]

    def _on_opened(self, _: bytes) -> list[Effect]:
        return [self._send(Kind.OPENING, self._secrets.contribution)]

    def _on_openings(self, body: bytes) -> list[Effect]:
        parameters, roster = self._parameters, self._members
        n, k = len(roster), parameters.neighbours(len(roster))
        contributions, signatures = messages.cut(body, Kind.OPENINGS, (n, CONTRIBUTION_BYTES), (k, SIGNATURE_BYTES))
        check_contributions(parameters, roster, contributions)
        self._graph = neighbour_graph_of(parameters, roster, contributions)
        neighbours = self._secrets.settle(roster, self._graph)
        for neighbour, signature in zip(neighbours, signatures, strict=True):
            client_id, keys = roster.ids[neighbour], roster.keys[neighbour]
            key = roster.verify_key(neighbour)
            if not is_advertised(parameters, client_id, keys, signature, key=key):
                raise SecureSumError(f"keys of {client_id} that it has not signed")
        return [self._send(Kind.SHARES, *self._secrets.sealed_shares())]

    def _on_inbox(self, body: bytes) -> list[Effect]:
        k = self._parameters.neighbours(len(self._members))
        (sealed,) = messages.cut(body, Kind.INBOX, (k, SEALED_BYTES))
        self._secrets.keep(sealed)
        return []

    def _on_grant(self, body: bytes) -> list[Effect]:
        messages.cut(body, Kind.GRANT)
        self._vector = self._secrets.masked()
        return [SpendWindow()]

    def _on_spent(self, _: bytes) -> list[Effect]:
        assert self._vector is not None, "it is masked before it is paid for"
        vector, self._vector = self._vector, None
        return [SendVector(vector)]

    def _on_survivors(self, body: bytes) -> list[Effect]:
        assert self._graph is not None, "the graph is drawn"
        survivors = flags_of(body, len(self._members))
        if not survivors[self._members.index[self._client_id]]:
            raise SecureSumError("this client is not among the survivors: the round continues without it")
        self._graph.check_survivors(self._parameters, survivors)
        self._survivors = body
        return [self._send(Kind.CONSENT, self._key.sign(*self._consented()))]

    def _on_quorum(self, body: bytes) -> list[Effect]:
        roster, n = self._members, len(self._members)
        size = bitmap_bytes(n)
        signers, survivors = flags_of(body[:size], n), flags_of(self._survivors, n)
        signing = np.flatnonzero(signers).tolist()
        _, signatures = messages.cut(body, Kind.QUORUM, (1, size), (len(signing), SIGNATURE_BYTES))
        if len(signing) < self._parameters.quorum(n):
            raise SecureSumError(f"{len(signing)} signatures, expected {self._parameters.quorum(n)}")
        label, *parts = self._consented()
        for member, signature in zip(signing, signatures, strict=True):
            if not survivors[member] or not roster.verify_key(member).verifies(signature, label, *parts):
                raise SecureSumError(f"no survivor's signature of these survivors: {roster.ids[member]}")
        revealed = self._send(Kind.UNMASKING, *self._secrets.revealed(survivors))
        self._forget()
        return [revealed, Revealed()]

    def _consented(self) -> tuple[bytes, ...]:
        assert self._graph is not None, "the graph is drawn"
        return consent_parts(self._parameters, self._graph.transcript, self._survivors)

    def _send(self, kind: Kind, *body: bytes) -> Send:
        return Send(messages.pack(self._parameters, kind, *body))

    @property
    def _secrets(self) -> ClientSecrets:
        assert self._own is not None, "a machine that is over moves no more"
        return self._own

    @property
    def _members(self) -> Roster:
        assert self._roster is not None, "the roster was told"
        return self._roster

    def _forget(self) -> None:
        self._own = self._vector = None

    def __repr__(self) -> str:
        return f"ClientRound(of {self._client_id}, {self.step.value})"

    _MOVES: ClassVar[Mapping[tuple[ClientStep, Kind | type[Event]], tuple["_Act", ClientStep]]] = MappingProxyType(
        {
            (ClientStep.ADVERTISED, Kind.ROSTER): (_on_roster, ClientStep.COUNTING),
            (ClientStep.COUNTING, Opened): (_on_opened, ClientStep.OPENED),
            (ClientStep.OPENED, Kind.OPENINGS): (_on_openings, ClientStep.SHARED),
            (ClientStep.SHARED, Kind.INBOX): (_on_inbox, ClientStep.READY),
            (ClientStep.READY, Kind.GRANT): (_on_grant, ClientStep.SPENDING),
            (ClientStep.SPENDING, Spent): (_on_spent, ClientStep.SENT),
            (ClientStep.SENT, Kind.SURVIVORS): (_on_survivors, ClientStep.CONSENTED),
            (ClientStep.CONSENTED, Kind.QUORUM): (_on_quorum, ClientStep.REVEALED),
        }
    )


_Act = Callable[[ClientRound, bytes], list[Effect]]
