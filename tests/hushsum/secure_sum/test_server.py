"""What the server of a round refuses of its clients."""

from typing import Any

import numpy as np
import pytest

from hushsum.entropy import ReplayableEntropy
from hushsum.labels import CONSENT
from hushsum.secure_sum import messages
from hushsum.secure_sum.key_agreement import KeyPair
from hushsum.secure_sum.messages import Advertisement, Kind
from hushsum.secure_sum.roster import advertised
from hushsum.secure_sum.server import (
    ClientMessage,
    Drop,
    Failed,
    ServerRound,
    Step,
    Tell,
    Uploaded,
)
from hushsum.signing import SigningKey
from tests.hushsum.secure_sum.altered import HEAD, LIAR, SAYS, SMALL, altering, exact, goes_on_without, honest, joined
from tests.hushsum.secure_sum.fleets import Fleet, fleet, ids_of, small_parameters
from tests.hushsum.secure_sum.joined import Network, Passing


@pytest.mark.parametrize("kind", [SAYS[step] for step in SAYS])
@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"\0", lambda data: b""])
def test_a_message_of_another_length_costs_its_sender_its_place(kind: Kind | None, change: Any) -> None:
    network = joined(meddle=altering(kind, change))
    end = network.run()
    assert LIAR in network.dropped
    if kind in (Kind.OPENING, Kind.SHARES):
        assert isinstance(end, Failed)
        assert (end.again, end.spent) == (True, 0)
    else:
        assert exact(network, end)


@pytest.mark.parametrize("kind", [SAYS[step] for step in SAYS if step is not Step.UPLOAD])
@pytest.mark.parametrize("at", [0, 2, 41, 50])
def test_a_message_of_another_format_plan_window_or_round_is_refused(kind: Kind, at: int) -> None:
    network = joined(meddle=altering(kind, lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]))
    network.run()
    assert "another" in network.dropped[LIAR] or "format" in network.dropped[LIAR]


@pytest.mark.parametrize("step", [step for step in Step if step is not Step.ENDED])
@pytest.mark.parametrize("kind", [*Kind, None])
def test_every_message_in_every_wrong_step_is_refused(step: Step, kind: Kind | None) -> None:
    if kind is SAYS[step]:
        return
    whole = honest()
    said = whole.said(LIAR, kind) or whole.said(LIAR, kind, to_server=False)
    data = said[0] if said else messages.pack(SMALL, kind or Kind.GRANT)

    def meddle(passing: Passing) -> list[Passing]:
        if (passing.client_id, passing.to_server, passing.kind) == (LIAR, True, SAYS[step]):
            return [Passing(LIAR, True, data, kind)]
        return [passing]

    network = joined(meddle=meddle)
    network.begin()
    while LIAR not in network.dropped:
        assert network.move()
    assert "unexpected" in network.dropped[LIAR]


@pytest.mark.parametrize("step", [step for step in Step if step is not Step.ENDED])
def test_a_message_that_is_sent_twice_is_refused_the_second_time(step: Step) -> None:
    def meddle(passing: Passing) -> list[Passing]:
        twice = passing.to_server and passing.client_id == LIAR and passing.kind is SAYS[step]
        return [passing, passing] if twice else [passing]

    network = joined(meddle=meddle)
    end = network.run()
    if step is Step.UNMASK and LIAR not in network.dropped:
        assert exact(network, end)  # it was the last that was needed
    else:
        assert "unexpected" in network.dropped[LIAR]


def forged(made: Fleet, **changed: Any) -> bytes:
    """An advertisement of the liar, signed by itself, with something changed."""
    parameters, key = made.parameters, changed.pop("key", made.keys[LIAR])
    own = made.clients[LIAR]._advertisement
    name = changed.pop("client_id", LIAR)
    return messages.pack_advertisement(parameters, advertised(parameters, name, own.keys._replace(**changed), key))


def no_key(_: Fleet) -> bytes:
    return bytes(32)


def key_of_another(made: Fleet) -> bytes:
    return made.clients["device-00"]._advertisement.keys.mask


def own_exchange(made: Fleet) -> bytes:
    return made.clients[LIAR]._advertisement.keys.exchange


@pytest.mark.parametrize(
    ("part", "value", "match"),
    [
        ("exchange", no_key, "small order"),
        ("mask", no_key, "small order"),
        ("mask", lambda made: b"\xff" * 32, "below"),
        ("mask", key_of_another, "already used"),
        ("mask", own_exchange, "already used"),
        ("identity", lambda made: made.keys["device-00"].verify_key.raw, "key registry"),
        ("client_id", lambda made: "device-00", "another client's name"),
        ("key", lambda made: made.keys["device-00"], "has not signed"),
    ],
)
def test_an_advertisement_that_would_hurt_others_is_refused(part: str, value: Any, match: str) -> None:
    made = fleet(SMALL, np.random.default_rng(3))
    data = forged(made, **{part: value(made)})
    network = Network(made, meddle=altering(Kind.ADVERTISEMENT, lambda _: data))
    assert goes_on_without(network)
    assert match in network.dropped[LIAR]


def test_a_signature_of_an_advertisement_for_another_round_is_refused() -> None:
    other = fleet(small_parameters(5, gone=1, round=bytes(32)), np.random.default_rng(3))
    signature = other.clients[LIAR]._advertisement.signature
    made = fleet(SMALL, np.random.default_rng(3))
    own = made.clients[LIAR]._advertisement
    data = messages.pack_advertisement(SMALL, Advertisement(LIAR, own.keys, signature))
    network = Network(made, meddle=altering(Kind.ADVERTISEMENT, lambda _: data))
    assert goes_on_without(network)


@pytest.mark.parametrize("kind", [Kind.OPENING, Kind.CONSENT])
def test_another_contribution_or_signature_than_the_right_one_is_refused(kind: Kind) -> None:
    network = joined(meddle=altering(kind, lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]))
    end = network.run()
    assert LIAR in network.dropped
    assert isinstance(end, Failed) if kind is Kind.OPENING else exact(network, end)


def test_members_beyond_the_plan_or_twice_are_our_own_fault() -> None:
    for members in (ids_of(6), ("a", "a", "b", "c")):
        with pytest.raises(ValueError, match="expected up to 5, each once"):
            ServerRound(SMALL, members, None)


def test_no_repr_shows_what_clients_said() -> None:
    shown = repr([Tell("a", b"secret"), ClientMessage("a", b"secret"), Uploaded("a", b"secret"), Drop("a", "why")])
    assert "secret" not in shown
    assert KeyPair(bytes(32)).public.hex() in repr(KeyPair(bytes(32)))
    assert "ServerRound(5 clients, advertise)" in repr(joined().fleet.server)


def test_a_consent_that_no_client_of_the_roster_signed_is_refused() -> None:
    stranger = SigningKey.generate(ReplayableEntropy(b"stranger"))
    network = joined(meddle=altering(Kind.CONSENT, lambda data: data[:HEAD] + stranger.sign(CONSENT, b"")))
    assert exact(network, network.run())
    assert "none" in network.dropped[LIAR]
