"""What a client of a round does, in which order, what it keeps to itself, and what is its own fault."""

import gc
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hushsum.secure_sum import messages
from hushsum.secure_sum.bitmaps import flags_of
from hushsum.secure_sum.client import (
    ClientRound,
    ClientStep,
    CountAttempt,
    Effect,
    Opened,
    Revealed,
    Send,
    SendVector,
    ServerMessage,
    SpendWindow,
    Spent,
)
from hushsum.secure_sum.messages import SHARE_BYTES, Kind
from hushsum.signing import Directory, DirectoryKey, Role
from tests.hushsum.secure_sum.fleets import Recorded, directory_of, signing_keys
from tests.hushsum.secure_sum.joined import Kill
from tests.hushsum.secure_sum.stages import (
    COMPLETE,
    HEAD,
    ON_COMPLETE,
    STAGES,
    VICTIM,
    Stage,
    refuses,
    staged,
)


@STAGES
def test_an_honest_round_is_what_the_table_says(stage: Stage) -> None:
    client = stage.victim()
    effects: list[type[Effect]] = [type(effect) for effect in client.begin()]
    for step, event in stage.events():
        effects += [type(effect) for effect in client.handle(event)]
        assert client.step is step
    expected = [Send, CountAttempt, Send, Send, SpendWindow, SendVector, Send, Send, Revealed]
    assert effects == expected


@STAGES
@pytest.mark.parametrize("step", list(ClientStep))
def test_every_message_in_every_wrong_step_is_refused(stage: Stage, step: ClientStep) -> None:
    if step in (ClientStep.NEW, ClientStep.REFUSED):
        return  # it hears nothing yet, and nothing any more (below)
    right = {now: event for (now, _), (_, event) in pairwise([(ClientStep.ADVERTISED, None), *stage.events()])}
    expected = right.get(step)
    tried = 0
    for kind in Kind:
        said = stage.network.said(VICTIM, kind, to_server=False) or stage.network.said(VICTIM, kind)
        data = said[0] if said else messages.pack(stage.parameters, kind)
        if expected != ServerMessage(data):
            refuses(stage.at(step), data)
            tried += 1
    for event in (Opened(), Spent()):
        if expected != event:
            client = stage.at(step)
            with pytest.raises(ValueError, match="to a client that is"):
                client.handle(event)
            assert client.step is ClientStep.REFUSED
            tried += 1
    assert tried == len(Kind) + 2 - (expected is not None)


@STAGES
def test_a_client_that_has_not_begun_takes_nothing(stage: Stage) -> None:
    refuses(stage.victim(), stage.told(Kind.ROSTER))


def test_of_a_survivor_the_share_of_its_self_mask_is_revealed_and_of_others_that_of_their_mask_key() -> None:
    """And of nobody both: what a neighbour sealed, is compared with what the client says of it."""
    gone = "device-06"
    stage = staged(COMPLETE, kills={gone: Kill(ClientStep.SENT, before=True)})
    client = stage.at(ClientStep.CONSENTED)
    assert client._own is not None
    held = dict(zip(client._own._neighbours, client._own._held, strict=True))
    survivors = flags_of(stage.told(Kind.SURVIVORS)[HEAD:], 8)
    assert survivors.sum() == 7
    (send, _) = client.handle(ServerMessage(stage.told(Kind.QUORUM)))
    assert isinstance(send, Send)
    body = send.data[HEAD:]
    revealed = [body[at : at + SHARE_BYTES] for at in range(0, len(body), SHARE_BYTES)]
    for (neighbour, pair), share in zip(held.items(), revealed, strict=True):
        of_self, of_mask = pair[:SHARE_BYTES], pair[SHARE_BYTES:]
        assert of_self != of_mask
        assert share == (of_self if stage.roster.ids[neighbour] != gone else of_mask)


def test_noise_is_drawn_when_the_vector_is_granted_once_and_not_before() -> None:
    share = Recorded()
    client = ON_COMPLETE.victim(share=share)
    client.begin()
    for step, event in ON_COMPLETE.events():
        if step is ClientStep.SPENDING:
            assert not share.drawn
        client.handle(event)
    assert [len(drawn) for drawn in share.drawn] == [COMPLETE.words.length]


def test_no_vector_leaves_before_the_spend_is_durable() -> None:
    client = ON_COMPLETE.at(ClientStep.READY)
    assert client.handle(ServerMessage(ON_COMPLETE.told(Kind.GRANT))) == [SpendWindow()]
    (effect,) = client.handle(Spent())
    assert isinstance(effect, SendVector)
    assert len(effect.data) == COMPLETE.words.bytes


def test_no_contribution_leaves_before_the_attempt_is_counted() -> None:
    client = ON_COMPLETE.at(ClientStep.ADVERTISED)
    contribution = client._own.contribution if client._own else b""
    assert client.handle(ServerMessage(ON_COMPLETE.told(Kind.ROSTER))) == [CountAttempt()]
    (effect,) = client.handle(Opened())
    assert isinstance(effect, Send)
    assert effect.data.endswith(contribution)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"counters": np.full(21, 501)}, "counters exceed 500"),
        ({"counters": np.full(21, -501)}, "counters exceed 500"),
        ({"counters": np.full(21, np.iinfo(np.int64).min)}, "counters exceed 500"),
        ({"counts": np.array([0, 5001])}, "counts exceed 5000"),
        ({"counters": np.zeros(20, np.int64)}, "expected int64"),
        ({"counters": np.zeros(21)}, "expected int64"),
        ({"counts": np.zeros((2, 1), np.int64)}, "expected int64"),
        ({"key": signing_keys(["x"])["x"]}, "identity key of device-04"),
        ({"client_id": "device-77"}, "identity key of device-77"),
    ],
)
def test_what_a_client_must_not_bring_is_its_own_fault(changed: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ON_COMPLETE.victim(**changed)


def test_the_largest_counters_that_the_plan_allows_are_taken() -> None:
    ON_COMPLETE.victim(counters=np.full(21, -500), counts=np.full(2, 5000))


def test_a_plan_that_names_a_directory_takes_that_directory_alone() -> None:
    like = ON_COMPLETE.network.fleet
    assert like.directory is not None
    named = Stage(replace(COMPLETE, directory=like.directory.digest().hex()), ON_COMPLETE.network)
    named.victim()
    for other in (None, directory_of({VICTIM: like.keys[VICTIM]})):
        with pytest.raises(ValueError, match="the key registry of clients that the plan names"):
            named.victim(directory=other)


def test_a_key_of_another_role_is_no_clients() -> None:
    keys = {id: DirectoryKey(id, Role.GATEWAY, key.verify_key) for id, key in signing_keys([VICTIM]).items()}
    with pytest.raises(ValueError, match="not that of a client"):
        ON_COMPLETE.victim(directory=Directory(keys))


def reachable(root: object) -> list[object]:
    """Everything that hangs on an object, modules and classes left out."""
    seen: dict[int, object] = {}
    stack = [root]
    while stack:
        here = stack.pop()
        if id(here) in seen or isinstance(here, type) or type(here).__name__ in {"module", "function", "builtin"}:
            continue
        seen[id(here)] = here
        stack += gc.get_referents(here)
    return list(seen.values())


def secrets_of(client: ClientRound) -> list[bytes]:
    own = client._own
    assert own is not None
    return [own._self_seed, own._mask_seed, *own._held]


def holds(client: ClientRound, secret: bytes, counters: object) -> bool:
    there = reachable(client)
    return any(each is counters or (isinstance(each, bytes) and secret in each) for each in there)


@pytest.mark.parametrize("refused", [False, True])
def test_nothing_secret_is_left_in_a_machine_that_is_over(refused: bool) -> None:
    counters = ON_COMPLETE.network.fleet.counters[VICTIM]
    client = ON_COMPLETE.at(ClientStep.READY)
    secrets = secrets_of(client)
    assert all(holds(client, secret, counters) for secret in secrets)
    if refused:
        refuses(client, b"")
    else:
        for _, event in ON_COMPLETE.events()[4:]:
            client.handle(event)
        assert client.step is ClientStep.REVEALED
    assert not any(holds(client, secret, counters) for secret in secrets)


def test_what_a_second_vector_would_be_made_of_is_gone_with_the_first() -> None:
    counters = ON_COMPLETE.network.fleet.counters[VICTIM]
    seeds = secrets_of(ON_COMPLETE.at(ClientStep.READY))[:2]
    client = ON_COMPLETE.at(ClientStep.SPENDING)
    assert not any(holds(client, seed, counters) for seed in seeds)


@pytest.mark.parametrize("step", [step for step in ClientStep if step not in (ClientStep.NEW, ClientStep.REFUSED)])
def test_no_repr_shows_a_secret_or_a_counter(step: ClientStep) -> None:
    client = ON_COMPLETE.at(step)
    shown = repr(client) + repr(client._own) + repr(client._graph) + repr(client._roster)
    shown += (
        "".join(repr(event) for _, event in ON_COMPLETE.events()) + repr(Send(b"secret")) + repr(SendVector(b"secret"))
    )
    assert "secret" not in shown
    for hidden in (client._own._self_seed, client._own._mask_seed, client._own.contribution) if client._own else ():
        assert not hidden or (repr(hidden)[2:-1] not in shown and hidden.hex() not in shown)
    assert "array" not in shown
