"""Rounds in which one client says something else than it should, or nothing."""

from functools import cache
from typing import Any

import numpy as np

from hushsum.secure_sum.messages import Kind
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.secure_sum.server import (
    Done,
    Failed,
    Step,
)
from tests.hushsum.secure_sum.fleets import fleet, small_parameters
from tests.hushsum.secure_sum.joined import Meddle, Network, Passing

SMALL = small_parameters(5, gone=1, corrupt=1)
RING = small_parameters(10, gone=3, degree=4, threshold=2, window_survivors=1)
LIAR = "device-02"
HEAD = 74
SAYS: dict[Step, Kind | None] = {
    Step.ADVERTISE: Kind.ADVERTISEMENT,
    Step.OPEN: Kind.OPENING,
    Step.SHARE: Kind.SHARES,
    Step.UPLOAD: None,
    Step.CONSENT: Kind.CONSENT,
    Step.UNMASK: Kind.UNMASKING,
}
FREE = (Step.OPEN, Step.SHARE)


def joined(parameters: RoundParameters = SMALL, **others: Any) -> Network:
    return Network(fleet(parameters, np.random.default_rng(3)), **others)


@cache
def honest() -> Network:
    """A round in which nothing happens."""
    network = joined()
    network.run()
    return network


def altering(kind: Kind | None, change: Any, of: str = LIAR) -> Meddle:
    """One client's message of a kind becomes another; None drops it."""

    def meddle(passing: Passing) -> list[Passing]:
        if passing.to_server and passing.client_id == of and passing.kind is kind:
            data = change(passing.data)
            return [] if data is None else [Passing(of, True, data, passing.kind)]
        return [passing]

    return meddle


def exact(network: Network, end: Done | Failed) -> bool:
    """Whether the sum is that of its survivors."""
    assert isinstance(end, Done)
    counters, counts = network.fleet.parameters.words.centred(end.sum.words)
    expected = network.fleet.sum_of(end.sum.survivors)
    return bool((counters == expected[0]).all() and (counts == expected[1]).all())


def goes_on_without(network: Network, client_id: str = LIAR) -> bool:
    """The round ends well, with an exact sum, without this client."""
    end = network.run()
    return exact(network, end) and isinstance(end, Done) and client_id not in end.sum.survivors
