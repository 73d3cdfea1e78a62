"""A client of an honest round that starts anew, told the same again up to some step, and then something else."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hushsum.entropy import ReplayableEntropy
from hushsum.errors import SecureSumError
from hushsum.secure_sum import messages
from hushsum.secure_sum.client import (
    ClientRound,
    ClientStep,
    Event,
    Opened,
    ServerMessage,
    Spent,
)
from hushsum.secure_sum.messages import Kind
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.secure_sum.roster import Roster
from tests.hushsum.secure_sum.fleets import NoNoise, fleet, small_parameters
from tests.hushsum.secure_sum.joined import Kill, Network

VICTIM, OTHER = "device-04", "device-01"
RING = small_parameters(10, gone=3, degree=4, threshold=3, window_survivors=1)
COMPLETE = small_parameters(8, gone=2)
HEAD = 74


@dataclass
class Stage:
    """A client of an honest round that starts anew, and what it was sent."""

    parameters: RoundParameters
    network: Network

    def victim(self, **others: Any) -> ClientRound:
        """The victim's machine, which does again what it did in the round."""
        like = self.network.fleet
        given: dict[str, Any] = {
            "client_id": VICTIM,
            "key": like.keys[VICTIM],
            "directory": like.directory,
            "counters": like.counters[VICTIM],
            "counts": like.counts[VICTIM],
            "share": NoNoise(),
            "entropy": ReplayableEntropy(b"again" + VICTIM.encode()),
        }
        return ClientRound(self.parameters, **(given | others))

    def told(self, kind: Kind) -> bytes:
        """What the victim was sent in the round."""
        (data,) = self.network.said(VICTIM, kind, to_server=False)
        return data

    def at(self, step: ClientStep) -> ClientRound:
        """The victim at a step."""
        client = self.victim()
        client.begin()
        for known, event in self.events():
            if client.step is step:
                return client
            client.handle(event)
            assert client.step is known
        assert client.step is step
        return client

    def events(self) -> list[tuple[ClientStep, Event]]:
        """Every event of the round, and what the victim has done when it was handled."""
        return [
            (ClientStep.COUNTING, ServerMessage(self.told(Kind.ROSTER))),
            (ClientStep.OPENED, Opened()),
            (ClientStep.SHARED, ServerMessage(self.told(Kind.OPENINGS))),
            (ClientStep.READY, ServerMessage(self.told(Kind.INBOX))),
            (ClientStep.SPENDING, ServerMessage(self.told(Kind.GRANT))),
            (ClientStep.SENT, Spent()),
            (ClientStep.CONSENTED, ServerMessage(self.told(Kind.SURVIVORS))),
            (ClientStep.REVEALED, ServerMessage(self.told(Kind.QUORUM))),
        ]

    @property
    def roster(self) -> Roster:
        return Roster.unpack(self.told(Kind.ROSTER)[HEAD:], None)


def staged(parameters: RoundParameters, seed: int = 7, kills: dict[str, Kill] | None = None) -> Stage:
    made = fleet(
        parameters,
        np.random.default_rng(seed),
        entropy=lambda client_id: ReplayableEntropy(b"again" + client_id.encode()),
    )
    network = Network(made, kills=kills)
    network.run()
    return Stage(parameters, network)


def refuses(client: ClientRound, data: bytes, match: str = ".") -> None:
    """It refuses this, is dead, and has nothing to say to anything."""
    with pytest.raises(SecureSumError, match=match):
        client.handle(ServerMessage(data))
    assert client.step is ClientStep.REFUSED
    for kind in Kind:
        with pytest.raises(SecureSumError):
            client.handle(ServerMessage(messages.pack(COMPLETE, kind)))
    for event in (Opened(), Spent()):
        with pytest.raises(ValueError, match="refused"):
            client.handle(event)
    with pytest.raises(ValueError, match="once"):
        client.begin()


ON_RING, ON_COMPLETE = staged(RING), staged(COMPLETE)
STAGES = pytest.mark.parametrize("stage", [ON_RING, ON_COMPLETE], ids=["ring", "complete"])
