"""A server that swaps keys, rosters and contributions, for everybody or for one victim; and what needs a directory."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hushsum.entropy import ReplayableEntropy
from hushsum.secure_sum import agreement, messages
from hushsum.secure_sum.agreement import KeyPair
from hushsum.secure_sum.client import ClientRound, ClientStep
from hushsum.secure_sum.messages import Advertisement, Keys, Kind
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.secure_sum.roster import Roster, advertised
from hushsum.secure_sum.server import Done, Failed, ServerRound
from tests.hushsum.secure_sum import planted
from tests.hushsum.secure_sum.fleets import (
    Fleet,
    Recorded,
    directory_of,
    fleet,
    signing_keys,
    small_parameters,
)
from tests.hushsum.secure_sum.joined import Meddle, Network, Passing

VICTIM, OTHER = "device-04", "device-02"
SMALL = small_parameters(6, gone=2, corrupt=1)
RING = small_parameters(12, gone=4, corrupt=1, degree=4, threshold=2, window_survivors=1)
HEAD = 74


def told(kind: Kind, change: Callable[[str, bytes], bytes]) -> Meddle:
    """What the server says of a kind becomes another, by whom it is for."""

    def meddle(each: Passing) -> list[Passing]:
        if each.to_server or each.kind is not kind:
            return [each]
        return [replace(each, data=each.data[:HEAD] + change(each.client_id, each.data[HEAD:]))]

    return meddle


def with_keys(body: bytes, of: str, change: Callable[[Keys], Keys]) -> bytes:
    """A roster in which one member has other keys."""
    roster = Roster.unpack(body, None)
    members = zip(roster.ids, roster.keys, strict=True)
    return Roster.of([(id, change(keys) if id == of else keys) for id, keys in members], None)[1]


def another_key(part: str) -> Callable[[Keys], Keys]:
    pair = KeyPair(b"a key pair of the server's own..".ljust(32))
    identity = signing_keys(["of the server"])["of the server"].verify_key.raw
    return lambda keys: keys._replace(**{part: identity if part == "identity" else pair.public})


def nothing_spent(network: Network) -> bool:
    return isinstance(network.end, Failed) and network.end.again and not network.spent


@pytest.mark.parametrize("with_directory", [True, False], ids=["directory", "none"])
@pytest.mark.parametrize("part", ["exchange", "mask"])
def test_a_swapped_key_is_refused_by_all_who_share_with_its_owner(
    part: str, with_directory: bool, rng: np.random.Generator
) -> None:
    """Also without a directory, as long as the identity is left: nobody else can sign for it."""
    meddle = told(Kind.ROSTER, lambda _, body: with_keys(body, OTHER, another_key(part)))
    network = Network(fleet(SMALL, rng, with_directory=with_directory), meddle=meddle)
    network.run()
    assert nothing_spent(network)
    assert set(network.refused) == set(network.fleet.clients)
    assert "without this client as it has advertised itself" in str(network.refused.pop(OTHER))
    assert all("keys of device-02 that it has not signed" in str(text) for text in network.refused.values())


def test_a_swapped_identity_is_refused_by_everybody_where_there_is_a_directory(rng: np.random.Generator) -> None:
    meddle = told(Kind.ROSTER, lambda _, body: with_keys(body, OTHER, another_key("identity")))
    network = Network(fleet(SMALL, rng), meddle=meddle)
    network.run()
    assert nothing_spent(network)
    assert not any(network.said(client_id, Kind.OPENING) for client_id in network.fleet.clients)
    assert all("not the one of a client that the directory has" in str(text) for text in network.refused.values())


def test_were_signatures_of_keys_not_looked_at_the_server_would_read_the_shares_that_are_sealed_for_another(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.keys_that_nobody_signed(monkeypatch)
    own = KeyPair(b"a key pair of the server's own..".ljust(32))
    meddle = told(
        Kind.ROSTER,
        lambda to, body: body if to == OTHER else with_keys(body, OTHER, another_key("exchange")),
    )
    network = Network(fleet(SMALL, rng), meddle=meddle)
    network.run()
    victim = network.fleet.clients[VICTIM]
    (shares,) = network.said(VICTIM, Kind.SHARES)
    (sealed,) = [shares[HEAD + 32 :][48 * place : 48 * (place + 1)] for place in (2,)]
    occasion = victim._secrets._occasion if victim._own else None
    roster = Roster.unpack(network.said(VICTIM, Kind.ROSTER, to_server=False)[0][HEAD:], None)
    assert victim._circle is not None
    occasion = SMALL.occasion.drawn(victim._circle.transcript)
    theirs = roster.keys[roster.index[VICTIM]].exchange
    pair = agreement.unseal(agreement.share_key(own, theirs, occasion, VICTIM, OTHER), sealed)
    assert len(pair) == 32


def sybils(rng: np.random.Generator, *, trusting: bool) -> tuple[Fleet, str]:
    """A cohort in which all but one client are the server's inventions."""
    made = fleet(SMALL, rng, with_directory=False, share=Recorded)
    directory = None if trusting else directory_of(signing_keys([VICTIM, "somebody", "else"]))
    made.clients[VICTIM] = ClientRound(
        SMALL,
        client_id=VICTIM,
        key=made.keys[VICTIM],
        directory=directory,
        counters=made.counters[VICTIM],
        counts=made.counts[VICTIM],
        share=made.shares[VICTIM],
        entropy=ReplayableEntropy(rng.bytes(16)),
    )
    return made, VICTIM


def test_invented_clients_are_refused_by_the_directory_before_anything_is_opened(rng: np.random.Generator) -> None:
    made, victim = sybils(rng, trusting=False)
    network = Network(made)
    network.run()
    assert "not the one of a client that the directory has" in str(network.refused[victim])
    assert victim not in network.attempts
    assert not network.said(victim, Kind.OPENING)


def test_without_a_directory_a_server_that_invents_the_cohort_reads_a_client_but_for_one_share_of_noise(
    rng: np.random.Generator,
) -> None:
    """What the plan's statement says of ``directory = ""``: nobody but the server vouches for who is there."""
    made, victim = sybils(rng, trusting=True)
    end = Network(made).run()
    assert isinstance(end, Done)
    counters, _ = SMALL.words.centred(end.sum.words)
    theirs, _ = made.sum_of(client_id for client_id in made.clients if client_id != victim)
    assert (counters - theirs == made.sum_of([victim])[0]).all()


def otherwise(ids: list[str], make: Callable[[bytes], bytes]) -> Callable[[str, bytes], bytes]:
    return lambda to, body: make(body) if to in ids else body


def test_a_victim_with_another_roster_shares_with_nobody_and_sends_nothing(rng: np.random.Generator) -> None:
    """A member who is not its neighbour has another mask key for it: the transcript is another, and so are all keys."""
    network = Network(fleet(RING, rng))
    network.run()
    circle = network.fleet.clients[VICTIM]._circle
    assert circle is not None
    results = []
    for stranger in network.fleet.clients:
        if stranger == VICTIM:
            continue
        change = otherwise([VICTIM], lambda body, of=stranger: with_keys(body, of, another_key("mask")))  # type: ignore[misc]
        again = Network(fleet(RING, np.random.default_rng(5)), meddle=told(Kind.ROSTER, change))
        again.run()
        assert VICTIM in again.refused
        assert not again.said(VICTIM, None)
        assert VICTIM not in again.spent
        results.append(str(again.refused[VICTIM]))
        if "altered" in results[-1]:
            assert sum("altered" in str(text) for text in again.refused.values()) >= 1 + RING.degree
    assert any("altered" in text for text in results), "a stranger's keys that the victim did not look at"


def test_contributions_that_differ_for_a_victim_are_refused_by_it(rng: np.random.Generator) -> None:
    """So nobody can be given another graph than the one that all have opened."""
    change = otherwise([VICTIM], lambda body: bytes(32) + body[32:])
    network = Network(fleet(SMALL, rng), meddle=told(Kind.OPENINGS, change))
    network.run()
    assert nothing_spent(network)
    assert "a contribution of device-00 that it has not committed to" in str(network.refused[VICTIM])


def drawn_by_the_server(network: Network) -> bytes | None:
    circle = network.fleet.clients[VICTIM]._circle
    return circle.transcript if circle else None


def test_were_contributions_not_committed_to_the_server_could_choose_among_graphs(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would know all others before it makes the last; and still, whoever has another view can read no shares."""
    planted.uncommitted(monkeypatch)
    graphs = set()
    for tried in range(3):
        change = otherwise(list(ids), lambda body, last=tried: bytes([last]) * 32 + body[32:])  # type: ignore[misc]
        network = Network(fleet(SMALL, np.random.default_rng(5)), meddle=told(Kind.OPENINGS, change))
        network.run()
        graphs.add(drawn_by_the_server(network))
    assert len(graphs) == 3


ids = tuple(f"device-{number:02}" for number in range(6))


def test_the_neighbours_of_a_victim_with_another_graph_cannot_read_its_shares_nor_it_theirs(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the victim took any contributions."""
    planted.uncommitted(monkeypatch)
    change = otherwise([VICTIM], lambda body: bytes(32) + body[32:])
    network = Network(fleet(SMALL, rng), meddle=told(Kind.OPENINGS, change))
    end = network.run()
    assert isinstance(end, Failed)
    assert set(network.refused) == set(network.fleet.clients)
    assert all("sealed shares were altered" in str(text) for text in network.refused.values())
    assert not network.spent


def test_a_quorum_on_another_transcript_is_refused_even_by_a_victim_that_takes_any_shares(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.uncommitted(monkeypatch)
    planted.tags_dropped(monkeypatch)
    change = otherwise([VICTIM], lambda body: bytes(32) + body[32:])
    made = fleet(SMALL, rng)
    network = Network(made, meddle=told(Kind.OPENINGS, change))
    network.run()
    assert VICTIM in network.dropped, "the server cannot use its signature"
    assert not network.said(VICTIM, Kind.UNMASKING)
    quorum = network.said(OTHER, Kind.QUORUM, to_server=False)
    if made.clients[VICTIM].step is ClientStep.CONSENTED and quorum:
        with pytest.raises(messages.SecureSumError, match="no survivor's signature"):
            made.clients[VICTIM].handle(planted.Received(quorum[0]))


def test_a_corrupt_client_that_advertises_anothers_keys_or_signs_for_another_is_out(rng: np.random.Generator) -> None:
    made = fleet(SMALL, rng)
    server = ServerRound(SMALL, ids, made.directory)
    server.begin()
    for client_id, client in made.clients.items():
        effects = client.begin()
        assert isinstance(effects[0], planted.Send)
        if client_id == OTHER:  # it comes in the victim's name, and with keys of the one before it
            taken = advertisement_with(SMALL, made, OTHER, made.clients["device-01"]._advertisement.keys)
            out = server.handle(server_event(OTHER, taken))
            assert "a key that is there already" in drop_of(out)
        else:
            assert not [each for each in server.handle(server_event(client_id, effects[0].data)) if "Drop" in str(each)]


def advertisement_with(parameters: RoundParameters, made: Fleet, of: str, keys: Keys) -> bytes:
    """Of a client that has taken all but its identity from another."""
    own = keys._replace(identity=made.keys[of].verify_key.raw)
    signed: Advertisement = advertised(parameters, of, own, made.keys[of])
    return messages.pack_advertisement(parameters, signed)


def server_event(client_id: str, data: bytes):  # type: ignore[no-untyped-def]
    from hushsum.secure_sum.server import Received

    return Received(client_id, data)


def drop_of(effects: list) -> str:  # type: ignore[type-arg]
    return next(each.text for each in effects if hasattr(each, "text"))
