"""What was said in one round, said again in another round, window or plan: as it was, or under a new head."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from hushsum.entropy import ReplayableEntropy
from hushsum.secure_sum import messages
from hushsum.secure_sum.messages import Kind
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.secure_sum.server import Done, Failed
from tests.hushsum.secure_sum.fleets import fleet, small_parameters
from tests.hushsum.secure_sum.joined import Network, Passing

SMALL = small_parameters(5, gone=1, corrupt=1)
VICTIM = "device-03"
HEAD = 74
OTHERS = {
    "round": replace(SMALL, round=bytes(range(50, 82))),
    "window": replace(SMALL, window=SMALL.window + 1),
    "plan": replace(SMALL, plan_id=bytes(range(60, 92))),
}
TO_CLIENT = (Kind.ROSTER, Kind.OPENINGS, Kind.INBOX, Kind.GRANT, Kind.SURVIVORS, Kind.QUORUM)
OF_CLIENT = (Kind.ADVERTISEMENT, Kind.OPENING, Kind.SHARES, Kind.CONSENT, Kind.UNMASKING)
ANOTHER = pytest.mark.parametrize("other", OTHERS)


@cache
def before(other: str, repeating: bool = False) -> Network:
    """The honest round that is replayed from; its clients may draw the very randomness that they draw again."""
    made = joined(OTHERS[other], 1 if repeating else 2)
    made.run()
    return made


def joined(parameters: RoundParameters, drawn: int, **others: object) -> Network:
    entropies = {number: f"drawn {number} ".encode() for number in (1, 2)}
    made = fleet(
        parameters,
        np.random.default_rng(drawn),
        entropy=lambda client_id: ReplayableEntropy(entropies[drawn] + client_id.encode()),
    )
    return Network(made, **others)  # type: ignore[arg-type]  # passed on as they came


def replaying(other: str, kind: Kind, *, to_server: bool, under_new_head: bool, repeating: bool = False) -> Network:
    """A round in which the victim is told, or the server is told by it, what was said in another one."""
    (old,) = before(other, repeating).said(VICTIM, kind, to_server=to_server)
    data = messages.pack(SMALL, kind, old[HEAD:]) if under_new_head else old

    def meddle(each: Passing) -> list[Passing]:
        replayed = (each.client_id, each.kind, each.to_server) == (VICTIM, kind, to_server)
        return [replace(each, data=data)] if replayed else [each]

    network = joined(SMALL, 1, meddle=meddle)
    network.run()
    return network


@ANOTHER
@pytest.mark.parametrize("kind", TO_CLIENT, ids=lambda kind: kind.name)
def test_a_client_refuses_what_was_said_in_another(other: str, kind: Kind) -> None:
    network = replaying(other, kind, to_server=False, under_new_head=False)
    assert str(network.refused[VICTIM]) == f"a message of another {other}"


@ANOTHER
@pytest.mark.parametrize("kind", [Kind.ROSTER, Kind.OPENINGS, Kind.INBOX, Kind.QUORUM], ids=lambda kind: kind.name)
@pytest.mark.parametrize("repeating", [False, True], ids=["new randomness", "the same randomness"])
def test_a_client_refuses_it_under_a_new_head_too(other: str, kind: Kind, repeating: bool) -> None:
    """Keys, commitments and signatures are bound to the occasion, even where a device draws the same bytes again.

    A grant has no body, and a bitmap of survivors is the same in any round: what is signed of it is not.
    """
    network = replaying(other, kind, to_server=False, under_new_head=True, repeating=repeating)
    assert VICTIM in network.refused
    assert not network.said(VICTIM, Kind.UNMASKING)


@ANOTHER
@pytest.mark.parametrize("kind", OF_CLIENT, ids=lambda kind: kind.name)
def test_the_server_refuses_what_a_client_said_in_another(other: str, kind: Kind) -> None:
    network = replaying(other, kind, to_server=True, under_new_head=False)
    assert network.dropped[VICTIM] == f"a message of another {other}"


@ANOTHER
@pytest.mark.parametrize("kind", OF_CLIENT, ids=lambda kind: kind.name)
def test_under_a_new_head_it_is_refused_or_of_no_use(other: str, kind: Kind) -> None:
    """Sealed shares are refused by who opens them; shares of other seeds are found out, and the sum is exact."""
    network = replaying(other, kind, to_server=True, under_new_head=True)
    if kind is Kind.SHARES:
        assert set(network.refused) >= set(network.fleet.clients) - {VICTIM}
        assert isinstance(network.end, Failed)
    elif kind is Kind.UNMASKING:
        assert isinstance(network.end, Done)
        counters, _ = SMALL.words.centred(network.end.sum.words)
        assert (counters == network.fleet.sum_of(network.end.sum.survivors)[0]).all()
    else:
        assert VICTIM in network.dropped
    assert not network.said(VICTIM, Kind.QUORUM, to_server=False) or kind in (Kind.CONSENT, Kind.UNMASKING)


def test_masks_of_two_rounds_have_nothing_in_common_even_of_the_same_randomness() -> None:
    """What a mistaken derivation would give away: the difference of two vectors of one client."""
    first, again = joined(SMALL, 1), before("round", repeating=True)
    first.run()
    one, other = (SMALL.words.unpack(network.said(VICTIM, None)[0]) for network in (first, again))
    counters = [network.fleet.counters[VICTIM] for network in (first, again)]
    assert (counters[0] == counters[1]).all()
    size = SMALL.words.size
    assert (one[:size] == other[:size]).sum() <= 2
