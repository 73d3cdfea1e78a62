"""A server that swaps keys, rosters and contributions, for everybody or for one victim; and what needs a directory."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hushsum.entropy import ReplayableEntropy
from hushsum.errors import SecureSumError
from hushsum.secure_sum import key_agreement, messages, server_events
from hushsum.secure_sum.client import ClientRound, Send, ServerMessage
from hushsum.secure_sum.key_agreement import KeyPair
from hushsum.secure_sum.messages import Keys, Kind
from hushsum.secure_sum.neighbour_graph import neighbours_of
from hushsum.secure_sum.roster import Roster, advertised, neighbour_graph_of
from hushsum.secure_sum.server import Done, Drop, Failed, ServerRound
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
ids = tuple(f"device-{number:02}" for number in range(6))


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
    meddle = told(Kind.ROSTER, lambda to, body: body if to == OTHER else with_keys(body, OTHER, another_key(part)))
    network = Network(fleet(SMALL, rng, with_directory=with_directory), meddle=meddle)
    network.run()
    assert nothing_spent(network)
    assert set(network.refused) == set(network.fleet.clients) - {OTHER}
    assert all("keys of device-02 that it has not signed" in str(text) for text in network.refused.values())


def test_a_client_refuses_a_roster_in_which_its_own_keys_were_swapped(rng: np.random.Generator) -> None:
    for part in ("identity", "exchange", "mask"):
        change = otherwise([OTHER], lambda body, part=part: with_keys(body, OTHER, another_key(part)))  # type: ignore[misc]  # a lambda's default has no type
        network = Network(fleet(SMALL, rng, with_directory=False), meddle=told(Kind.ROSTER, change))
        network.run()
        assert nothing_spent(network)
        assert "without this client as it has advertised itself" in str(network.refused[OTHER])


def test_a_swapped_identity_is_refused_by_everybody_where_there_is_a_directory(rng: np.random.Generator) -> None:
    meddle = told(Kind.ROSTER, lambda _, body: with_keys(body, OTHER, another_key("identity")))
    network = Network(fleet(SMALL, rng), meddle=meddle)
    network.run()
    assert nothing_spent(network)
    assert not any(network.said(client_id, Kind.OPENING) for client_id in network.fleet.clients)
    assert all("not that of a client in the key registry" in str(text) for text in network.refused.values())


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
    graph = network.fleet.clients[VICTIM]._graph
    assert graph is not None
    roster = Roster.unpack(network.said(VICTIM, Kind.ROSTER, to_server=False)[0][HEAD:], None)
    theirs, occasion = roster.keys[roster.index[VICTIM]].exchange, SMALL.occasion.drawn(graph.transcript)
    at = HEAD + 32 + 2 * 48  # behind the check and what is for the two neighbours before
    sealed = network.said(VICTIM, Kind.SHARES)[0][at : at + 48]
    assert len(key_agreement.unseal(key_agreement.share_key(own, theirs, occasion, VICTIM, OTHER), sealed)) == 32


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
    assert "not that of a client in the key registry" in str(network.refused[victim])
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


def shown_another_roster(stranger: str) -> tuple[Network, bool]:
    """A round in which the victim alone is shown another mask key of somebody, and whether that is its neighbour.

    The server does it well: of the graph that the victim draws from it, the neighbours' signatures are right.
    """
    near_stranger = False

    def meddle(each: Passing) -> list[Passing]:
        nonlocal near_stranger
        if each.to_server or each.client_id != VICTIM or each.kind not in (Kind.ROSTER, Kind.OPENINGS):
            return [each]
        head, body = each.data[:HEAD], each.data[HEAD:]
        if each.kind is Kind.ROSTER:
            return [replace(each, data=head + with_keys(body, stranger, another_key("mask")))]
        roster = Roster.unpack(network.said(VICTIM, Kind.ROSTER, to_server=False)[0][HEAD:], None)
        opened = [body[at : at + 32] for at in range(0, 32 * len(roster), 32)]
        graph = neighbour_graph_of(RING, roster, opened)
        near = neighbours_of(graph.transcript, len(roster), RING.degree, roster.index[VICTIM])
        near_stranger = roster.index[stranger] in near
        signatures = (network.said(roster.ids[member], Kind.ADVERTISEMENT)[0][-64:] for member in near)
        return [replace(each, data=head + b"".join((*opened, *signatures)))]

    network = Network(fleet(RING, np.random.default_rng(5)), meddle=meddle)
    network.run()
    return network, near_stranger


def test_a_victim_with_another_roster_shares_with_nobody_and_sends_nothing() -> None:
    """The transcript is another, and so are all keys: its neighbours cannot open its shares, nor it theirs."""
    strangers = [
        client_id for client_id in signing_keys(f"device-{number:02}" for number in range(8)) if client_id != VICTIM
    ]
    met = set()
    for stranger in strangers:
        network, is_neighbour = shown_another_roster(stranger)
        met.add(is_neighbour)
        assert not network.said(VICTIM, None)
        assert VICTIM not in network.spent
        if is_neighbour:
            assert f"keys of {stranger} that it has not signed" in str(network.refused[VICTIM])
            continue
        assert "sealed shares were altered" in str(network.refused[VICTIM])
        near = [
            id for id, text in network.refused.items() if id != VICTIM and "sealed shares were altered" in str(text)
        ]
        assert len(near) == RING.degree, "those who stand near it in the order that all others have"
    assert met == {True, False}


def test_contributions_that_differ_for_a_victim_are_refused_by_it(rng: np.random.Generator) -> None:
    """So nobody can be given another graph than the one that all have opened."""
    change = otherwise([VICTIM], lambda body: bytes(32) + body[32:])
    network = Network(fleet(SMALL, rng), meddle=told(Kind.OPENINGS, change))
    network.run()
    assert nothing_spent(network)
    assert "a contribution of device-00 that it has not committed to" in str(network.refused[VICTIM])


def drawn_by_the_server(network: Network) -> bytes | None:
    graph = network.fleet.clients[VICTIM]._graph
    return graph.transcript if graph else None


def test_were_contributions_not_committed_to_the_server_could_choose_among_graphs(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would know all others before it makes the last; and still, whoever has another view can read no shares."""
    planted.uncommitted(monkeypatch)
    graphs = set()
    for tried in range(3):
        change = otherwise(list(ids), lambda body, last=tried: bytes([last]) * 32 + body[32:])  # type: ignore[misc]  # a default has no type there
        network = Network(fleet(SMALL, np.random.default_rng(5)), meddle=told(Kind.OPENINGS, change))
        network.run()
        graphs.add(drawn_by_the_server(network))
    assert len(graphs) == 3


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
    (quorum,) = network.said(OTHER, Kind.QUORUM, to_server=False)
    with pytest.raises(SecureSumError, match="no survivor's signature"):
        made.clients[VICTIM].handle(ServerMessage(quorum))


def test_a_corrupt_client_that_takes_anothers_keys_for_its_own_is_out(rng: np.random.Generator) -> None:
    """It could not use them; but two members with one key are refused by every client."""
    made = fleet(SMALL, rng)
    server = ServerRound(SMALL, ids, made.directory)
    server.begin()
    (first,) = made.clients["device-01"].begin()
    assert isinstance(first, Send)
    assert not server.handle(server_events.ClientMessage("device-01", first.data))
    taken = made.clients["device-01"]._advertisement.keys._replace(identity=made.keys[OTHER].verify_key.raw)
    data = messages.pack_advertisement(SMALL, advertised(SMALL, OTHER, taken, made.keys[OTHER]))
    assert server.handle(server_events.ClientMessage(OTHER, data)) == [
        Drop(OTHER, "an advertisement with a key that is already used")
    ]
