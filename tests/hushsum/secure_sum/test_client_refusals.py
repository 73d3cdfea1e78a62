"""What a client of a round refuses: every way in which a server, or a member through it, may lie."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hushsum.errors import SecureSumError
from hushsum.labels import CONSENT
from hushsum.secure_sum import messages
from hushsum.secure_sum.bitmaps import bitmap_of
from hushsum.secure_sum.client import (
    ClientStep,
    CountAttempt,
    Event,
    Opened,
    Revealed,
    Send,
    ServerMessage,
)
from hushsum.secure_sum.key_agreement import KeyPair
from hushsum.secure_sum.messages import Keys, Kind
from hushsum.secure_sum.neighbour_graph import order
from hushsum.secure_sum.roster import NeighbourGraph
from tests.hushsum.secure_sum.fleets import signing_keys
from tests.hushsum.secure_sum.joined import Kill
from tests.hushsum.secure_sum.stages import (
    COMPLETE,
    HEAD,
    ON_COMPLETE,
    ON_RING,
    OTHER,
    RING,
    STAGES,
    VICTIM,
    Stage,
    refuses,
    staged,
)


@STAGES
@pytest.mark.parametrize("kind", [Kind.ROSTER, Kind.OPENINGS, Kind.INBOX, Kind.GRANT, Kind.SURVIVORS, Kind.QUORUM])
def test_a_message_of_another_length_plan_window_or_round_is_refused(stage: Stage, kind: Kind) -> None:
    for change in ["longer", "shorter", "plan", "window", "round", "format"]:
        step = next(now for now, event in before(stage) if event == ServerMessage(stage.told(kind)))
        data = bytearray(stage.told(kind))
        at = {"format": 0, "plan": 2, "window": 41, "round": 50}.get(change)
        if at is None:
            data = data + b"\0" if change == "longer" else data[:-1]
        else:
            data[at] ^= 1
        refuses(stage.at(step), bytes(data))


def before(stage: Stage) -> list[tuple[ClientStep, Event]]:
    """Every event with the step in which it is right."""
    steps = [ClientStep.ADVERTISED, *(step for step, _ in stage.events())]
    return list(zip(steps, (event for _, event in stage.events()), strict=False))


def repacked(stage: Stage, change: Callable[[dict[str, Keys]], None]) -> bytes:
    """The roster, changed."""
    members = dict(zip(stage.roster.ids, stage.roster.keys, strict=True))
    change(members)
    packed = b"".join(messages.pack_member(*member) for member in members.items())
    return messages.pack(stage.parameters, Kind.ROSTER, len(members).to_bytes(2, "big") + packed)


FOREIGN = KeyPair(bytes([9]) * 32).public


@STAGES
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda members: members.pop(VICTIM), "without this client"),
        (lambda members: members.update({VICTIM: members[VICTIM]._replace(mask=FOREIGN)}), "as it has advertised"),
        (lambda members: members.update({VICTIM: members[VICTIM]._replace(exchange=FOREIGN)}), "as it has advertised"),
        (lambda members: members.update({VICTIM: members[VICTIM]._replace(commitment=FOREIGN)}), "as it has adv"),
        (lambda members: members.update({OTHER: members[OTHER]._replace(identity=FOREIGN)}), "key registry"),
        (lambda members: members.update({OTHER: members[VICTIM]}), "key or commitment twice"),
        (
            lambda members: members.update({OTHER: members[OTHER]._replace(mask=members[VICTIM].mask)}),
            "key or commitment twice",
        ),
        (lambda members: members.update({OTHER: members.pop(OTHER)}), "not in ascending order"),
        (lambda members: [members.pop(f"device-{n:02}") for n in (0, 1, 2, 3)], "does not allow"),
        (
            lambda members: members.update({"device-99": members[OTHER]._replace(mask=FOREIGN)}),
            "key or commitment twice|key registry",
        ),
    ],
)
def test_such_a_roster_is_refused_before_anything_is_opened(stage: Stage, change: Any, match: str) -> None:
    refuses(stage.at(ClientStep.ADVERTISED), repacked(stage, change), match)


def test_a_roster_with_more_members_than_the_plan_has_is_refused() -> None:
    fewer = replace(COMPLETE, members_max=7, members_min=6, degree=6)
    client = Stage(fewer, ON_COMPLETE.network).at(ClientStep.ADVERTISED)
    refuses(client, ON_COMPLETE.told(Kind.ROSTER), "does not allow")


@STAGES
def test_another_contribution_than_was_committed_to_is_refused(stage: Stage) -> None:
    for member in range(len(stage.roster)):
        data = bytearray(stage.told(Kind.OPENINGS))
        data[HEAD + 32 * member] ^= 1
        refuses(stage.at(ClientStep.OPENED), bytes(data), "not committed")


def altered_neighbour(stage: Stage, part: str) -> tuple[bytes, bytes]:
    """A roster in which the server has put a key of its own for a neighbour of the victim's, and right openings."""
    roster, openings = stage.roster, stage.told(Kind.OPENINGS)
    n, k = len(roster), stage.parameters.neighbours(len(roster))
    data = repacked(stage, lambda members: members.update({OTHER: members[OTHER]._replace(**{part: FOREIGN})}))
    return data, openings[: HEAD + 32 * n + 64 * k]


@pytest.mark.parametrize("part", ["exchange", "mask"])
def test_a_swapped_key_of_a_neighbour_is_refused_before_any_share_is_sealed(part: str) -> None:
    roster, openings = altered_neighbour(ON_COMPLETE, part)
    client = ON_COMPLETE.at(ClientStep.ADVERTISED)
    client.handle(ServerMessage(roster))
    client.handle(Opened())
    refuses(client, openings, "that it has not signed")


def test_without_a_directory_a_swapped_identity_is_taken_for_the_clients_own() -> None:
    foreign = signing_keys(["nobody"])["nobody"].verify_key.raw
    data = repacked(ON_COMPLETE, lambda members: members.update({OTHER: members[OTHER]._replace(identity=foreign)}))
    client = ON_COMPLETE.victim(directory=None)
    client.begin()
    assert client.handle(ServerMessage(data)) == [CountAttempt()]


@STAGES
def test_a_forged_signature_of_any_neighbours_keys_is_refused(stage: Stage) -> None:
    n = len(stage.roster)
    for neighbour in range(stage.parameters.neighbours(n)):
        data = bytearray(stage.told(Kind.OPENINGS))
        data[HEAD + 32 * n + 64 * neighbour + 5] ^= 1
        refuses(stage.at(ClientStep.OPENED), bytes(data), "not signed")


@STAGES
def test_altered_or_exchanged_shares_are_refused(stage: Stage) -> None:
    inbox = stage.told(Kind.INBOX)
    for neighbour in range(stage.parameters.neighbours(len(stage.roster))):
        for at in (0, 40):
            data = bytearray(inbox)
            data[HEAD + 48 * neighbour + at] ^= 1
            refuses(stage.at(ClientStep.SHARED), bytes(data), "sealed shares")
    body = inbox[HEAD:]
    refuses(stage.at(ClientStep.SHARED), inbox[:HEAD] + body[48:96] + body[:48] + body[96:], "sealed shares")
    (own,) = stage.network.said(VICTIM, Kind.SHARES)
    refuses(stage.at(ClientStep.SHARED), inbox[:HEAD] + own[HEAD + 32 :], "sealed shares")


@STAGES
def test_survivors_without_the_client_or_too_few_are_refused(stage: Stage) -> None:
    n, parameters = len(stage.roster), stage.parameters
    me = stage.roster.index[VICTIM]
    everybody = set(range(n))
    few = {me, *sorted(everybody - {me})[: parameters.honest + parameters.corrupt - 2]}
    for survivors, match in ((everybody - {me}, "not among the survivors"), (few, "too few of them")):
        data = messages.pack(parameters, Kind.SURVIVORS, bitmap_of(survivors, n))
        refuses(stage.at(ClientStep.SENT), data, match)


def test_survivors_with_members_beyond_the_roster_are_refused() -> None:
    data = messages.pack(RING, Kind.SURVIVORS, b"\xff\xff")
    refuses(ON_RING.at(ClientStep.SENT), data, "beyond")


def test_survivors_with_a_gap_on_the_circle_are_refused_wherever_it_is() -> None:
    """The server drops all neighbours on one side of two clients: what is between would be a sum of its own."""
    transcript = bytes(range(32))
    n, reach = RING.members_max, RING.degree // 2
    graph = NeighbourGraph(transcript, order(transcript, n))
    for start in range(n):
        survivors = np.ones(n, np.bool_)
        survivors[graph.places[(start + np.arange(reach)) % n]] = False
        with pytest.raises(SecureSumError, match="in a row"):
            graph.check_survivors(RING, survivors)
        survivors[graph.places[start]] = True
        graph.check_survivors(RING, survivors)


def test_the_client_looks_at_the_circle_before_it_signs() -> None:
    def survivors_of(start: int) -> bytes:
        gone = {int(places[(start + step) % n]) for step in range(RING.degree // 2)}
        return messages.pack(RING, Kind.SURVIVORS, bitmap_of(set(range(n)) - gone, n))

    client = ON_RING.at(ClientStep.SENT)
    assert client._graph is not None
    n, places = RING.members_max, client._graph.places
    place = int(np.flatnonzero(places == ON_RING.roster.index[VICTIM])[0])
    refuses(client, survivors_of(place + 1), "in a row")
    refuses(ON_RING.at(ClientStep.SENT), survivors_of(place + 5), "in a row")


def quorum_of(stage: Stage, signers: dict[str, bytes]) -> bytes:
    roster = stage.roster
    chosen = sorted(roster.index[client_id] for client_id in signers)
    signatures = [signers[roster.ids[member]] for member in chosen]
    return messages.pack(stage.parameters, Kind.QUORUM, bitmap_of(chosen, len(roster)), *signatures)


def consents(stage: Stage) -> dict[str, bytes]:
    return {client_id: stage.network.said(client_id, Kind.CONSENT)[0][HEAD:] for client_id in stage.roster.ids}


@STAGES
def test_a_quorum_that_is_just_enough_is_taken_and_one_less_is_refused(stage: Stage) -> None:
    need = stage.parameters.quorum(len(stage.roster))
    signed = list(consents(stage).items())[-need:]
    effects = stage.at(ClientStep.CONSENTED).handle(ServerMessage(quorum_of(stage, dict(signed))))
    assert [type(effect) for effect in effects] == [Send, Revealed]
    refuses(stage.at(ClientStep.CONSENTED), quorum_of(stage, dict(signed[1:])), "signatures, expected")


@STAGES
def test_one_forged_signature_spoils_a_quorum(stage: Stage) -> None:
    for forged in stage.roster.ids:
        signed = consents(stage)
        signed[forged] = signed[forged][:10] + bytes([signed[forged][10] ^ 1]) + signed[forged][11:]
        refuses(stage.at(ClientStep.CONSENTED), quorum_of(stage, signed), "no survivor's signature")


@STAGES
@pytest.mark.parametrize("part", ["survivors", "transcript", "round"])
def test_a_signature_of_anything_else_is_no_consent(stage: Stage, part: str) -> None:
    client = stage.at(ClientStep.CONSENTED)
    label, plan_id, window, round_id, transcript, survivors = client._consented()
    changed = {
        "survivors": (plan_id, window, round_id, transcript, bytes([survivors[0] ^ 1]) + survivors[1:]),
        "transcript": (plan_id, window, round_id, bytes(32), survivors),
        "round": (plan_id, window, bytes(32), transcript, survivors),
    }[part]
    assert label == CONSENT
    signed = consents(stage)
    signed[OTHER] = stage.network.fleet.keys[OTHER].sign(label, *changed)
    refuses(client, quorum_of(stage, signed), "no survivor's signature")


def test_a_signature_of_somebody_who_did_not_survive_does_not_count() -> None:
    stage = staged(COMPLETE, kills={"device-06": Kill(ClientStep.SENT, before=True)})
    client = stage.at(ClientStep.CONSENTED)
    signed = {id: stage.network.said(id, Kind.CONSENT)[0][HEAD:] for id in stage.roster.ids if id != "device-06"}
    signed["device-06"] = stage.network.fleet.keys["device-06"].sign(*client._consented())
    refuses(client, quorum_of(stage, signed), "no survivor's signature of these survivors: device-06")
