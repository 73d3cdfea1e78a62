"""What the server of a round does about clients that vanish or are silent, and what it keeps."""

import gc
from collections import Counter
from typing import Any

import numpy as np
import pytest

from hushsum.secure_sum.client import ClientStep
from hushsum.secure_sum.messages import Kind
from hushsum.secure_sum.server import (
    Await,
    ClientMessage,
    Done,
    Effect,
    Event,
    Expired,
    Failed,
    Grant,
    ServerRound,
    Step,
    Tell,
    Uploaded,
    Vanished,
)
from tests.hushsum.secure_sum.altered import (
    FREE,
    LIAR,
    RING,
    SAYS,
    SMALL,
    altering,
    exact,
    goes_on_without,
    joined,
)
from tests.hushsum.secure_sum.fleets import fleet, ids_of
from tests.hushsum.secure_sum.joined import Kill, Network


def test_a_client_that_seals_bad_shares_costs_its_neighbours_their_place_but_not_their_window() -> None:
    network = joined(meddle=altering(Kind.SHARES, lambda data: data[:-20] + bytes(20)))
    end = network.run()
    assert [str(error) for error in network.refused.values()]
    assert not set(network.refused) & set(network.spent)
    assert exact(network, end)


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize("step", [step for step in Step if step is not Step.ENDED])
def test_a_client_that_is_silent_or_gone_at_a_step(step: Step, silent: bool) -> None:
    network = joined(meddle=altering(SAYS[step], lambda _: None))
    if not silent:  # gone before it says it
        reached = {
            Step.ADVERTISE: ClientStep.ADVERTISED,
            Step.OPEN: ClientStep.OPENED,
            Step.SHARE: ClientStep.SHARED,
            Step.UPLOAD: ClientStep.SENT,
            Step.CONSENT: ClientStep.CONSENTED,
            Step.UNMASK: ClientStep.REVEALED,
        }[step]
        network = joined(kills={LIAR: Kill(reached, before=True)})
    end = network.run()
    if step in FREE:
        assert end == Failed(end.reason if isinstance(end, Failed) else "", spent=0, again=True)
        assert not network.spent
    else:
        assert exact(network, end)
        assert isinstance(end, Done)
        assert (LIAR in end.sum.survivors) is (step in (Step.CONSENT, Step.UNMASK))
        assert end.sum.spent == (4 if step is Step.ADVERTISE else 5)


@pytest.mark.parametrize("step", [Step.ADVERTISE, Step.UPLOAD, Step.CONSENT, Step.UNMASK])
def test_too_many_that_are_gone_end_the_round_at_once(step: Step) -> None:
    server, network = None, joined()
    server = network.fleet.server
    network.begin()
    if step is Step.ADVERTISE:
        network._lines.clear()
    while server.step is not step:
        assert network.move()
    effects: list[Effect] = []
    for client_id in ids_of(5)[:4]:
        effects += server.handle(Vanished(client_id))
    failed = [effect for effect in effects if isinstance(effect, Failed)]
    assert len(failed) == 1
    assert failed[0].again is (step is Step.ADVERTISE)
    assert failed[0].spent == {Step.ADVERTISE: 0, Step.UPLOAD: 3, Step.CONSENT: 5, Step.UNMASK: 5}[step]
    assert server.step is Step.ENDED


def test_too_few_invited_are_told_at_once() -> None:
    effects = ServerRound(SMALL, ids_of(3), None).begin()
    assert Failed("3 clients are left, expected at least 4", spent=0, again=True) in effects


def test_silent_clients_are_named_where_the_round_goes_on_without_them() -> None:
    network = joined(meddle=altering(Kind.ADVERTISEMENT, lambda _: None))
    assert goes_on_without(network)
    assert network.dropped == {LIAR: "its advertisement did not come in time"}


def test_the_time_of_a_step_that_is_over_means_nothing() -> None:
    network = joined()
    network.begin()
    server = network.fleet.server
    while server.step is not Step.UPLOAD:
        network.move()
    assert [server.handle(Expired(step)) for step in (Step.ADVERTISE, Step.OPEN, Step.SHARE)] == [[], [], []]
    network.run_until_silent()
    assert network.end is not None
    assert exact(network, network.end)


@pytest.mark.parametrize("uploads_max", [1, 2, 4])
def test_no_more_uploads_than_that_are_under_way_at_a_time(uploads_max: int) -> None:
    made = fleet(RING, np.random.default_rng(3))
    made.server = ServerRound(RING, ids_of(10), made.directory, uploads_max=uploads_max)
    network = Network(made)
    assert exact(network, network.run())
    assert network.uploads_most == uploads_max
    assert Counter(network.spent) == dict.fromkeys(ids_of(10), 1)


def test_a_grant_is_told_after_its_upload_may_come() -> None:
    effects: list[Effect] = []

    class Listening(ServerRound):
        def handle(self, event: Event) -> list[Effect]:
            effects.extend(now := super().handle(event))
            return now

    network = joined()
    network.fleet.server = Listening(SMALL, ids_of(5), network.fleet.directory)
    network.run()
    grants = [at for at, effect in enumerate(effects) if isinstance(effect, Grant)]
    assert len(grants) == 5
    for at in grants:
        told, granted = effects[at + 1], effects[at]
        assert isinstance(told, Tell)
        assert isinstance(granted, Grant)
        assert told.client_id == granted.client_id
    assert [effect.step for effect in effects if isinstance(effect, Await)] == [
        Step.OPEN,
        Step.SHARE,
        Step.CONSENT,
        Step.UNMASK,
    ]


def test_what_comes_of_a_client_that_is_out_or_after_the_end_means_nothing() -> None:
    network = joined(kills={LIAR: Kill(ClientStep.SENT, before=True)})
    assert exact(network, network.run())
    server = network.fleet.server
    for event in (
        ClientMessage(LIAR, b""),
        Uploaded(LIAR, b""),
        Vanished(LIAR),
        Expired(Step.UNMASK),
        Vanished("nobody"),
    ):
        assert server.handle(event) == []
    assert server.step is Step.ENDED


def test_the_server_does_not_ask_for_signatures_of_survivors_with_a_gap() -> None:
    """Of two neighbours in a row none survives: everybody would refuse to sign."""
    network = joined(RING)
    server = network.fleet.server
    network.begin()
    while server.step is not Step.UPLOAD:
        network.move()
    graph = server._members._graph
    assert graph is not None
    for member in graph.places[4:6].tolist():
        network.kill(server._members.roster.ids[member])
    while network.end is None:
        network.move()
    assert isinstance(network.end, Failed)
    assert "in a row" in network.end.reason
    assert not network.end.again
    assert network.end.spent == len(network.spent) > 0


def test_a_server_that_is_over_holds_nothing_of_its_clients() -> None:
    network = joined()
    end = network.run()
    assert network.fleet.server._assembly is None
    assert network.fleet.server._sum is None
    assert "array" not in repr(end)
    assert "sum=" in repr(end)


def test_the_server_holds_one_sum_however_many_vectors_have_come() -> None:
    network = joined(RING)
    server = network.fleet.server
    network.begin()
    while server.step is not Step.CONSENT:
        network.move()
    own = {id(array): array for array in arrays_of(server) if array.dtype.kind == "u"}
    assert sum(array.size for array in own.values()) < 2 * RING.words.length
    assert not any(isinstance(each, bytes) and len(each) == RING.words.bytes for each in held_by(server))


def held_by(root: object) -> list[object]:
    seen: dict[int, object] = {}
    stack = [root]
    while stack:
        here = stack.pop()
        if id(here) not in seen and not isinstance(here, type) and type(here).__name__ not in {"module", "function"}:
            seen[id(here)] = here
            stack += gc.get_referents(here)
    return list(seen.values())


def arrays_of(root: object) -> list[np.ndarray[Any, Any]]:
    return [each for each in held_by(root) if isinstance(each, np.ndarray)]


def test_progress_says_how_many_are_where() -> None:
    network = joined()
    server = network.fleet.server
    network.begin()
    while server.step is not Step.UNMASK:
        network.move()
    assert server.progress.total() == 5
    assert set(server.progress) <= {Step.CONSENT, Step.UNMASK}
    while network.move():
        pass
    assert server.progress == {Step.ENDED: 5}
