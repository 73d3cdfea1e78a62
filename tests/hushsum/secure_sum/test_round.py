"""Whole rounds: the sum is exactly that of its survivors, or there is none."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hushsum.entropy import ReplayableEntropy
from hushsum.secure_sum.client import ClientRound, ClientStep
from hushsum.secure_sum.messages import SHARE_BYTES, Kind
from hushsum.secure_sum.parameters import RoundParameters, round_parameters
from hushsum.secure_sum.server import Done, Failed, Step
from tests.hushsum.secure_sum.fleets import ROUND, Fleet, NoNoise, Recorded, fleet, ids_of, small_parameters
from tests.hushsum.secure_sum.joined import Kill, Network, Passing
from tests.plans import secure_plan

ROUNDS = {
    "smallest": small_parameters(3, gone=0, corrupt=0),
    "complete": small_parameters(7, gone=2),
    "ring": small_parameters(10, gone=3, degree=4, threshold=2, window_survivors=1),
    "nobody corrupt": small_parameters(6, gone=2, corrupt=0, degree=4, threshold=2, window_survivors=1),
}
EVERY_ROUND = pytest.mark.parametrize("parameters", ROUNDS.values(), ids=ROUNDS)
HEAD = 74


def check(made: Fleet, end: Done | Failed) -> Done:
    """The sum is exactly what the survivors brought, and the noise that they drew."""
    assert isinstance(end, Done), end
    counters, counts = made.parameters.words.centred(end.sum.words)
    expected = made.sum_of(end.sum.survivors)
    assert (counters == expected[0]).all()
    assert (counts == expected[1]).all()
    assert end.sum.submissions == len(end.sum.survivors)
    return end


@EVERY_ROUND
@pytest.mark.parametrize("with_directory", [True, False])
@pytest.mark.parametrize("share", [NoNoise, Recorded])
def test_the_sum_of_an_honest_round_is_exact(
    parameters: RoundParameters, with_directory: bool, share: Callable[[], NoNoise], rng: np.random.Generator
) -> None:
    made = fleet(parameters, rng, with_directory=with_directory, share=share)
    network = Network(made, rng=rng)
    end = check(made, network.run())
    assert end.sum.survivors == ids_of(parameters.members_max)
    assert (end.sum.spent, end.sum.liars) == (parameters.members_max, ())
    assert not network.refused
    assert not network.dropped


@EVERY_ROUND
def test_a_roster_may_be_smaller_than_the_cohort(parameters: RoundParameters, rng: np.random.Generator) -> None:
    made = fleet(parameters, rng, members=parameters.members_min)
    end = check(made, Network(made, rng=rng).run())
    assert end.sum.submissions == parameters.members_min


@pytest.mark.parametrize("sketch", ({}, {"rows": 2, "buckets": 4}), ids=("counted", "no count counter"))
def test_a_round_of_a_plan_sums_what_its_clients_noised(sketch: dict[str, object], rng: np.random.Generator) -> None:
    plan = secure_plan(sketch=sketch, privacy={"epsilon": "0.01"})
    assert plan.words.classes == plan.count_counters == (0 if sketch else 1)
    parameters = round_parameters(plan, 5, ROUND)
    made = fleet(parameters, rng, share=lambda: Recorded(plan.privacy.mechanism.share()))
    end = check(made, Network(made, rng=rng, kills={"device-03": Kill(ClientStep.SENT, before=True)}).run())
    assert (parameters.members_max, end.sum.submissions) == (10, 9)
    assert (parameters.counter_max, parameters.count_max) == (None, None)  # unit record: no client is bounded
    assert all(np.abs(share.drawn[0]).max() > 0 for share in made.shares.values() if isinstance(share, Recorded))


def test_of_unit_client_alone_a_client_is_bounded() -> None:
    plan = secure_plan(privacy={"unit": "client", "records_per_client": 7})
    parameters = round_parameters(plan, 5, ROUND)
    bounds = (7 * plan.family.sensitivity.linf, 7 * plan.privacy.mechanism.count_scale)
    assert (parameters.counter_max, parameters.count_max) == bounds


def test_counters_of_any_size_wrap_around_where_no_client_is_bounded(rng: np.random.Generator) -> None:
    parameters = replace(ROUNDS["complete"], counter_max=None, count_max=None)
    words = parameters.words
    made = fleet(parameters, rng, share=Recorded)
    for number, client_id in enumerate(ids_of(7)):
        low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
        made.counters[client_id] = rng.integers(low, high, words.size, np.int64, endpoint=True)
        made.counts[client_id] = np.full(words.classes, high - number)
        made.clients[client_id] = ClientRound(
            parameters,
            client_id=client_id,
            key=made.keys[client_id],
            directory=made.directory,
            counters=made.counters[client_id],
            counts=made.counts[client_id],
            share=made.shares[client_id],
            entropy=ReplayableEntropy(rng.bytes(16)),
        )
    end = Network(made).run()
    assert isinstance(end, Done)
    assert words.pack(end.sum.words) == words.pack(words.of(*made.sum_of(end.sum.survivors)))


def test_the_noise_of_a_client_that_did_not_survive_is_not_in_the_sum(rng: np.random.Generator) -> None:
    made = fleet(ROUNDS["complete"], rng, share=Recorded)
    end = check(made, Network(made, kills={"device-03": Kill(ClientStep.SENT, before=True)}).run())
    assert "device-03" not in end.sum.survivors
    assert end.sum.spent == end.sum.submissions + 1


def test_a_client_that_is_cut_off_right_after_its_vector_is_in_the_sum(rng: np.random.Generator) -> None:
    made = fleet(ROUNDS["ring"], rng)
    end = check(made, Network(made, kills={"device-03": Kill(ClientStep.SENT, before=False)}).run())
    assert "device-03" in end.sum.survivors


@pytest.mark.parametrize("schedule", range(24))
def test_whoever_dies_whenever_the_sum_is_exact_or_there_is_none(schedule: int, rng: np.random.Generator) -> None:
    parameters = list(ROUNDS.values())[schedule % len(ROUNDS)]
    made = fleet(parameters, rng, share=Recorded)
    steps = [step for step in ClientStep if step not in (ClientStep.NEW, ClientStep.REFUSED)]
    late = [step for step in steps if steps.index(step) >= steps.index(ClientStep.READY)]
    allowed = parameters.members_max - parameters.members_min
    chosen = rng.permutation(ids_of(parameters.members_max))[: rng.integers(0, allowed + 2)]
    among = late if schedule % 3 else steps
    kills = {str(id): Kill(among[rng.integers(len(among))], bool(rng.integers(2))) for id in chosen}
    network = Network(made, rng=rng, kills=kills)
    end = network.run()
    if isinstance(end, Done):
        assert check(made, end).sum.submissions >= parameters.members_min
    else:
        assert end.spent >= len(network.spent) or end.again is False
        assert end.again is (end.spent == 0)
        assert kills
    assert not network.refused
    assert len(network.attempts) == len(set(network.attempts))


@pytest.mark.parametrize("parameters", [ROUNDS["complete"], ROUNDS["ring"]], ids=["complete", "ring"])
def test_late_dropouts_up_to_the_plans_rate_cost_nothing_but_their_data(
    parameters: RoundParameters, rng: np.random.Generator
) -> None:
    """On the ring spread, so that no two in a row are gone."""
    for _ in range(2):
        made = fleet(parameters, rng)
        network = Network(made, rng=rng)
        network.begin()
        while made.server._granted == 0:
            network.move()
        graph = made.server._members._graph
        assert graph is not None
        for member in graph.places[[0, 4]].tolist():
            network.kill(ids_of(parameters.members_max)[member])
        while network.end is None:
            if not network.move():
                network.expire()
        check(made, network.end)


def lying(liars: dict[str, Callable[[bytes], bytes]]) -> Callable[[Passing], list[Passing]]:
    """These clients reveal shares that differ from those they received."""

    def meddle(passing: Passing) -> list[Passing]:
        if passing.to_server and passing.kind is Kind.UNMASKING and passing.client_id in liars:
            body = liars[passing.client_id](passing.data[HEAD:])
            return [Passing(passing.client_id, True, passing.data[:HEAD] + body, passing.kind)]
        return [passing]

    return meddle


def garbage(body: bytes) -> bytes:
    return ReplayableEntropy(body).read(len(body))


def first_wrong(body: bytes) -> bytes:
    return bytes([body[0] ^ 1]) + body[1:]


@pytest.mark.parametrize("liar", ids_of(7))
@pytest.mark.parametrize("lie", [garbage, first_wrong])
def test_wrong_shares_of_one_client_are_found_out(
    liar: str, lie: Callable[[bytes], bytes], rng: np.random.Generator
) -> None:
    made = fleet(ROUNDS["complete"], rng)
    kills = {"device-05": Kill(ClientStep.SENT, before=True)} if liar != "device-05" else {}
    network = Network(made, rng=rng, kills=kills, meddle=lying({liar: lie}))
    end = check(made, network.run())
    assert set(end.sum.liars) <= {liar}


def test_a_liar_among_the_shares_that_are_tried_first_is_named(rng: np.random.Generator) -> None:
    made = fleet(ROUNDS["complete"], rng)
    end = check(made, Network(made, meddle=lying({"device-01": garbage})).run())
    assert end.sum.liars == ("device-01",)


def test_a_share_that_comes_late_makes_up_for_a_wrong_one_of_somebody_trusted(rng: np.random.Generator) -> None:
    """The last of the first four holders lies about one secret alone, and the fifth is slow; there is no sixth."""
    late: list[Passing] = []
    lie = lying({"device-06": first_wrong})

    def meddle(passing: Passing) -> list[Passing]:
        if passing.client_id == "device-04" and passing.kind is Kind.UNMASKING:
            late.append(passing)
            return []
        return lie(passing)

    made = fleet(ROUNDS["complete"], rng)
    network = Network(made, meddle=meddle, kills={"device-05": Kill(ClientStep.REVEALED, before=True)})
    network.begin()
    network.run_until_silent()
    assert made.server.step is Step.UNMASK
    network.send(late[0])
    network.run_until_silent()
    assert network.end is not None
    assert check(made, network.end).sum.liars == ()  # one wrong share accuses who dealt it as much


def test_where_too_few_right_shares_are_revealed_there_is_no_sum(rng: np.random.Generator) -> None:
    made = fleet(ROUNDS["complete"], rng)
    network = Network(made, rng=rng, meddle=lying(dict.fromkeys(ids_of(7)[:5], garbage)))
    assert network.run() == Failed("too few right shares were revealed", spent=7, again=False, suspects=ids_of(7))


def test_a_check_that_nothing_fits_ends_in_no_sum(rng: np.random.Generator) -> None:
    """One corrupt client can always do that: its own mask then never comes off."""

    def meddle(passing: Passing) -> list[Passing]:
        if passing.kind is Kind.SHARES and passing.client_id == "device-00":
            data = passing.data[:HEAD] + bytes(32) + passing.data[HEAD + 32 :]
            return [Passing(passing.client_id, True, data, passing.kind)]
        return [passing]

    end = Network(fleet(ROUNDS["ring"], rng), rng=rng, meddle=meddle).run()
    assert end == Failed("too few right shares were revealed", spent=10, again=False, suspects=("device-00",))


def test_a_vector_of_anything_shifts_the_sum_by_itself_and_breaks_nothing_else(rng: np.random.Generator) -> None:
    parameters = ROUNDS["complete"]
    words = parameters.words
    shift = words.of(rng.integers(-(2**17), 2**17, words.size), rng.integers(0, 2**30, words.classes))

    def meddle(passing: Passing) -> list[Passing]:
        if passing.to_server and passing.kind is None and passing.client_id == "device-02":
            moved = words.unpack(passing.data) + shift
            return [Passing(passing.client_id, True, words.pack(moved), None)]
        return [passing]

    made = fleet(parameters, rng)
    end = Network(made, meddle=meddle).run()
    assert isinstance(end, Done)
    counters, counts = made.sum_of(end.sum.survivors)
    expected = words.pack((words.of(counters, counts) + shift).astype(words.dtype))
    assert words.pack(end.sum.words) == expected


def test_revealed_shares_are_one_of_each_neighbour(rng: np.random.Generator) -> None:
    made = fleet(ROUNDS["ring"], rng)
    network = Network(made)
    check(made, network.run())
    network.run_until_silent()
    for client_id in ids_of(10):
        (data,) = network.said(client_id, Kind.UNMASKING)
        assert len(data) == HEAD + 4 * SHARE_BYTES


def test_no_vector_is_another_or_one_without_masks(rng: np.random.Generator) -> None:
    """False alarm: 2^-378 for each of the 28 pairs."""
    made = fleet(ROUNDS["complete"], rng)
    network = Network(made)
    network.run()
    vectors = [network.said(client_id, None)[0] for client_id in ids_of(7)]
    assert len(set(vectors)) == 7
    plain = {
        made.parameters.words.pack(made.parameters.words.of(made.counters[id], made.counts[id])) for id in ids_of(7)
    }
    assert not plain & set(vectors)
