"""A server that shows clients signatures of the survivors which do not make a quorum, and asks for things twice."""

from collections.abc import Callable

import numpy as np
import pytest

from hushsum.secure_sum.client import ClientStep
from hushsum.secure_sum.messages import Kind
from tests.hushsum.secure_sum.fleets import fleet, signing_keys, small_parameters
from tests.hushsum.secure_sum.planted import LyingServer

SMALL = small_parameters(6, gone=2, corrupt=1)  # of whom four make a quorum
Consents = dict[str, bytes]


def signed(rng: np.random.Generator) -> tuple[LyingServer, Consents]:
    """All but the last survive and have signed; the last has sent its vector too."""
    server = LyingServer(fleet(SMALL, rng))
    server.grant()
    return server, server.consents(server.ids[:5], server.ids[:5])


def forged(server: LyingServer, consents: Consents) -> Consents:
    (other,) = signing_keys(["nobody"]).values()
    return consents | {"device-02": server.signed(other, server.ids[:5])}


def of_a_dropout(server: LyingServer, consents: Consents) -> Consents:
    (key,) = signing_keys(["device-05"]).values()
    return _first(consents, 3) | {"device-05": server.signed(key, server.ids[:5])}


def of_other_survivors(server: LyingServer, consents: Consents) -> Consents:
    (key,) = signing_keys(["device-02"]).values()
    return consents | {"device-02": server.signed(key, server.ids)}


def repeated(_: LyingServer, consents: Consents) -> Consents:
    return consents | {"device-02": consents["device-01"]}


def _first(consents: Consents, number: int) -> Consents:
    return dict(sorted(consents.items())[:number])


LIES: list[tuple[Callable[[LyingServer, Consents], Consents], str]] = [
    (forged, "no survivor's signature"),
    (of_a_dropout, "no survivor's signature"),
    (of_other_survivors, "no survivor's signature"),
    (repeated, "no survivor's signature"),
    (lambda _, consents: _first(consents, 3), "3 signatures, expected 4"),
    (lambda *_: {}, "0 signatures, expected 4"),
]


@pytest.mark.parametrize(("lie", "match"), LIES, ids=["forged", "dropout", "others", "repeated", "too few", "none"])
def test_signatures_that_make_no_quorum_open_nothing(
    lie: Callable[[LyingServer, Consents], Consents], match: str, rng: np.random.Generator
) -> None:
    server, consents = signed(rng)
    assert not server.shares(server.ids[:5], lie(server, consents))
    assert all(match in server.refused[client_id] for client_id in server.ids[:5])
    assert not server.shares(server.ids[:5], consents), "the right ones come too late"


def test_the_same_signature_under_two_members_of_a_longer_list_is_refused(rng: np.random.Generator) -> None:
    """Three have signed; the fourth place is filled with more of their signatures, and the bitmap with their bits."""
    server, consents = signed(rng)
    three = sorted(consents)[:3]
    signatures = [consents[client_id] for client_id in three]
    assert server.tell(server.ids[0], Kind.QUORUM, server.bitmap(three), *signatures, signatures[0]) is None
    assert "bytes, expected" in server.refused[server.ids[0]]


def test_four_signatures_are_a_quorum(rng: np.random.Generator) -> None:
    server, consents = signed(rng)
    assert len(server.shares(server.ids[:5], _first(consents, 4))) == 5


def ask(server: LyingServer, step: ClientStep, client_id: str) -> tuple[Kind, bytes]:
    """Brings a client that waits for its grant to a step, and what was asked of it last."""
    if step is ClientStep.READY:
        return Kind.INBOX, server.network.said(client_id, Kind.INBOX, to_server=False)[0][74:]
    assert server.tell(client_id, Kind.GRANT)
    if step is ClientStep.SENT:
        return Kind.GRANT, b""
    assert server.tell(client_id, Kind.SURVIVORS, server.bitmap(server.ids))
    if step is ClientStep.CONSENTED:
        return Kind.SURVIVORS, server.bitmap(server.ids)
    keys = signing_keys(server.ids)
    quorum = server.bitmap(server.ids) + b"".join(server.signed(keys[one], server.ids) for one in server.ids)
    assert server.tell(client_id, Kind.QUORUM, quorum)
    return Kind.QUORUM, quorum


@pytest.mark.parametrize("step", [ClientStep.READY, ClientStep.SENT, ClientStep.CONSENTED, ClientStep.REVEALED])
def test_what_was_asked_is_not_answered_again(step: ClientStep, rng: np.random.Generator) -> None:
    server = LyingServer(fleet(SMALL, rng))
    kind, body = ask(server, step, "device-03")
    assert server.clients["device-03"].step is step
    assert server.tell("device-03", kind, body) is None
    assert f"a message {kind.name} to a client that is {step.value}" == server.refused["device-03"]


@pytest.mark.parametrize(("kind", "step"), [(Kind.ROSTER, ClientStep.OPENED), (Kind.OPENINGS, ClientStep.SHARED)])
def test_neither_roster_nor_openings_are_taken_twice(kind: Kind, step: ClientStep, rng: np.random.Generator) -> None:
    server = LyingServer(fleet(SMALL, rng), Kind(kind + 2))
    assert server.clients["device-03"].step is step
    (told,) = server.network.said("device-03", kind, to_server=False)
    assert server.tell("device-03", kind, told[74:]) is None
    assert "to a client that is" in server.refused["device-03"]


def test_a_window_is_spent_before_its_vector_leaves_and_asking_again_gives_no_second_one(
    rng: np.random.Generator,
) -> None:
    server = LyingServer(fleet(SMALL, rng))
    server.grant()
    assert all(server.tell(client_id, Kind.GRANT) is None for client_id in server.ids)
    assert not server.consents(server.ids, server.ids), "nor a signature after that"
