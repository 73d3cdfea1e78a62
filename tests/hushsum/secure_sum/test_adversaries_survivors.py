"""A server that lies about who survived: to some, to all, or about too few; and what it would learn unrefused."""

from itertools import product

import numpy as np
import pytest

from hushsum.errors import SecureSumError
from hushsum.privacy.cohort import Cohort
from hushsum.secure_sum.neighbour_graph import order
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.secure_sum.roster import NeighbourGraph
from tests.hushsum.secure_sum import planted
from tests.hushsum.secure_sum.fleets import Recorded, fleet, small_parameters
from tests.hushsum.secure_sum.planted import LyingServer

VICTIM = "device-04"
#: Three shares open a seed: three neighbours here and three there would be enough, as in an honest server's plan.
WEAK = small_parameters(8, gone=2, corrupt=1, threshold=3)
#: A ring on which six dropped clients part three survivors from the others.
RING = small_parameters(16, gone=6, corrupt=1, degree=6, threshold=2, window_survivors=1)


def asks_for_both_shares(server: LyingServer) -> tuple[bytes | None, bytes | None]:
    """Calls the victim a survivor to some and dropped to others; the seeds of its two masks, if they come out."""
    server.grant()
    others = [client_id for client_id in server.ids if client_id != VICTIM]
    some, rest = others[:4], others[4:]
    told = server.consents([*some, VICTIM], server.ids), server.consents(rest, others)
    of_self, of_mask = server.shares(some, told[0]), server.shares(rest, told[1])
    return server.seed(VICTIM, of_self), server.seed(VICTIM, of_mask)


def test_no_two_groups_are_told_different_survivors_and_both_reveal(rng: np.random.Generator) -> None:
    server = LyingServer(fleet(WEAK, rng))
    self_seed, mask_seed = asks_for_both_shares(server)
    assert (self_seed is None) or (mask_seed is None)
    assert set(server.refused) >= {"device-05", "device-06", "device-07"}
    assert all("signatures, expected 5" in text for text in server.refused.values())


def test_were_no_quorum_demanded_both_shares_would_open_the_victims_counters(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.any_quorum(monkeypatch)
    made = fleet(WEAK, rng, share=Recorded)
    server = LyingServer(made)
    self_seed, mask_seed = asks_for_both_shares(server)
    assert self_seed is not None
    assert mask_seed is not None
    words = WEAK.words.unpack(server.vectors[VICTIM])
    server.without_self_mask(words, VICTIM, self_seed)
    server.without_own_pair_masks(words, VICTIM, mask_seed)
    counters, counts = WEAK.words.centred(words)
    expected = made.sum_of([VICTIM])
    assert (counters == expected[0]).all()
    assert (counts == expected[1]).all()


def test_no_split_of_a_roster_gives_two_survivor_sets_a_quorum_each() -> None:
    """Every roster to 24 members, every number of corrupt ones (who sign both), every split of the honest."""
    one_less = 0
    for members, corrupt in product(range(2, 25), range(13)):
        if corrupt >= members - 1:
            continue
        quorum = small_parameters(25, gone=24 - corrupt - 2, corrupt=corrupt).quorum(members)
        for first in range(members - corrupt + 1):
            signed = sorted([first + corrupt, members - first])
            assert signed[0] < quorum
            one_less += signed[0] >= quorum - 1
    assert one_less, "the quorum is the least that does it"


SIDES = list(product((True, False), repeat=3))


def opened(sides: tuple[bool, ...], rng: np.random.Generator) -> list[bool]:
    """Whether the victim's seeds come out: five clients, of whom one signs all and shows the server all its shares.

    Two shares open a seed, one of the corrupt client and one of any other: no threshold is in the way.
    """
    made = fleet(small_parameters(5, gone=1, corrupt=1, threshold=2), rng)
    server = LyingServer(made)
    server.grant()
    held = dict(zip(server.near[0], server.clients["device-00"]._secrets._held, strict=True))[4]
    honest = {f"device-0{number}": side for number, side in enumerate(sides, 1)} | {VICTIM: True}
    seeds = []
    for side, survivors in ((True, server.ids), (False, server.ids[:4])):
        asked = [client_id for client_id, of_side in honest.items() if of_side is side]
        of_corrupt = {"device-00": server.signed(made.keys["device-00"], survivors)}
        consents = server.consents(asked, survivors) | of_corrupt
        revealed = server.shares([client_id for client_id in asked if client_id != VICTIM], consents)
        revealed["device-00"] = [held[:16] if side else held[16:]] * 4
        seeds.append(server.seed(VICTIM, revealed) is not None)
    return seeds


@pytest.mark.parametrize("sides", SIDES)
def test_however_clients_are_split_only_one_of_a_neighbours_seeds_comes_out(
    sides: tuple[bool, ...], rng: np.random.Generator
) -> None:
    assert opened(sides, rng) != [True, True]


def test_an_undivided_cohort_opens_the_one_seed_and_without_a_quorum_most_splits_would_open_both(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opened((True, True, True), rng) == [True, False]
    planted.any_quorum(monkeypatch)
    assert sum(opened(sides, rng) == [True, True] for sides in SIDES) == 6


def parts_the_sum(server: LyingServer) -> tuple[tuple[str, ...], dict[str, bytes]]:
    """Calls three dropped on either side of three that stand in a row; those three, and all seeds that come out."""
    along = [server.ids[member] for member in server.graph.places.tolist()]
    part, dropped = tuple(along[3:6]), (*along[:3], *along[6:9])
    server.grant()
    survivors = [client_id for client_id in server.ids if client_id not in dropped]
    revealed = server.shares(survivors, server.consents(survivors, survivors))
    seeds = {client_id: server.seed(client_id, revealed) for client_id in server.ids}
    return part, {client_id: seed for client_id, seed in seeds.items() if seed}


def test_survivors_that_part_a_few_clients_from_all_others_are_signed_by_nobody(rng: np.random.Generator) -> None:
    server = LyingServer(fleet(RING, rng))
    _, seeds = parts_the_sum(server)
    assert not seeds
    assert len(server.refused) == 10
    assert all("the sum might part" in text for text in server.refused.values())


def test_did_clients_only_count_survivors_a_server_would_learn_the_victims_counters(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the three in a row one is corrupt, and one had an idle window: what is left are the victim's very counters."""
    planted.any_survivors(monkeypatch)
    made = fleet(RING, rng, share=Recorded)
    server = LyingServer(made)
    victim, idle, corrupt = (server.ids[member] for member in server.graph.places[[4, 3, 5]].tolist())
    made.counters[idle][:], made.counts[idle][:] = 0, 0
    part, seeds = parts_the_sum(server)
    assert set(part) == {victim, idle, corrupt}
    words = np.zeros(RING.words.length, RING.words.dtype)
    for client_id in part:
        words += RING.words.unpack(server.vectors[client_id])
        server.without_self_mask(words, client_id, seeds[client_id])
    for dropped in server.graph.places[[0, 1, 2, 6, 7, 8]].tolist():
        server.without_pair_masks(words, server.ids[dropped], seeds[server.ids[dropped]], part)
    counters, counts = RING.words.centred(words)
    of_part, of_corrupt = made.sum_of(part), made.sum_of([corrupt])
    assert (counters == of_part[0]).all(), "with three shares of noise, where the plan promises nine"
    assert (counts == of_part[1]).all()
    of_idle = made.sum_of([idle])
    assert (counters - of_corrupt[0] - of_idle[0] == made.sum_of([victim])[0]).all(), "with its own share of noise"
    assert not made.counters[idle].any()


def graph(members: int, rng: np.random.Generator) -> NeighbourGraph:
    transcript = rng.bytes(32)
    return NeighbourGraph(transcript, order(transcript, members))


def of_cohort(cohort: Cohort) -> RoundParameters:
    """The parameters of a plan's cohort, with small vectors."""
    return small_parameters(
        cohort.size,
        gone=cohort.size - cohort.survivors_min,
        corrupt=cohort.corrupt_clients,
        honest=cohort.honest_survivors,
        degree=cohort.degree,
        threshold=cohort.threshold,
        window_survivors=cohort.window_survivors,
    )


def test_at_a_hundred_clients_who_drops_a_victims_neighbours_has_too_few_survivors(rng: np.random.Generator) -> None:
    """Ten may drop, and no ten leave a run of places with fewer survivors than the plan demands."""
    parameters, drawn = of_cohort(Cohort(size=100)), graph(100, rng)
    half = parameters.degree // 2
    for place in range(100):
        survivors = np.ones(100, np.bool_)
        survivors[drawn.places[(place + np.arange(-half, half + 1)) % 100]] = False
        survivors[drawn.places[place]] = True
        with pytest.raises(SecureSumError, match="too few of them"):
            drawn.check_survivors(parameters, survivors)
        survivors[:] = True
        survivors[drawn.places[(place + np.arange(10)) % 100]] = False
        drawn.check_survivors(parameters, survivors)
    assert half - 10 >= parameters.window_survivors


def in_parts(drawn: NeighbourGraph, survivors: "np.ndarray[tuple[int], np.dtype[np.bool_]]", degree: int) -> int:
    """Into how many parts the survivors fall that mask with each other."""
    (alive,) = np.nonzero(survivors[drawn.places])
    gaps = np.diff(np.append(alive, alive[0] + len(survivors)))
    return max(1, int((gaps > degree // 2).sum()))


@pytest.mark.parametrize("victims", [1, 5, 71, 300])
def test_at_a_thousand_clients_survivors_in_two_parts_are_refused_wherever_they_part(
    victims: int, rng: np.random.Generator
) -> None:
    """A hundred may drop, so that counting alone lets through what parts the sum."""
    parameters, drawn = of_cohort(Cohort(size=1000)), graph(1000, rng)
    half = parameters.degree // 2
    assert 2 * half <= 100
    for first in rng.integers(0, 1000, 20):
        survivors = np.ones(1000, np.bool_)
        survivors[drawn.places[(first + np.arange(half)) % 1000]] = False
        survivors[drawn.places[(first + half + victims + np.arange(half)) % 1000]] = False
        assert in_parts(drawn, survivors, parameters.degree) == 2
        with pytest.raises(SecureSumError, match="the sum might part"):
            drawn.check_survivors(parameters, survivors)


def test_at_a_thousand_clients_as_many_survivors_in_a_row_as_the_plan_demands_are_just_enough(
    rng: np.random.Generator,
) -> None:
    parameters, drawn = of_cohort(Cohort(size=1000)), graph(1000, rng)
    spared = parameters.degree // 2 - parameters.window_survivors
    for first in (0, 500, 990):
        survivors = np.ones(1000, np.bool_)
        survivors[drawn.places[(first + np.arange(spared)) % 1000]] = False
        drawn.check_survivors(parameters, survivors)
        survivors[drawn.places[(first + spared) % 1000]] = False
        with pytest.raises(SecureSumError, match="the sum might part"):
            drawn.check_survivors(parameters, survivors)


def test_one_survivor_fewer_than_honest_and_corrupt_together_is_one_too_few(rng: np.random.Generator) -> None:
    server = LyingServer(fleet(small_parameters(7, gone=2, corrupt=1), rng))
    server.grant()
    just, fewer = server.ids[:5], server.ids[:4]
    assert len(server.consents(just[:2], just)) == 2
    assert not server.consents(just[2:4], fewer)
    assert {server.refused[client_id] for client_id in just[2:4]} == {
        "4 survivors, expected 5 or more: too few of them are certainly honest"
    }


def test_were_too_few_survivors_taken_the_sum_would_have_too_little_noise_in_it(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.any_number_of_survivors(monkeypatch)
    server = LyingServer(fleet(small_parameters(7, gone=2, corrupt=1), rng))
    server.grant()
    assert server.consents(server.ids[:4], server.ids[:4])


def test_a_second_set_of_survivors_is_never_signed_whether_it_is_the_same_or_another(rng: np.random.Generator) -> None:
    server = LyingServer(fleet(small_parameters(6, gone=2, corrupt=1), rng))
    server.grant()
    assert len(server.consents(server.ids, server.ids)) == 6
    assert not server.consents(server.ids[:3], server.ids)
    assert not server.consents(server.ids[3:], server.ids[1:])


def test_a_client_that_is_left_out_signs_nothing_and_reveals_nothing(rng: np.random.Generator) -> None:
    server = LyingServer(fleet(small_parameters(6, gone=2, corrupt=1), rng))
    server.grant()
    others = server.ids[1:]
    consents = server.consents(server.ids, others)
    assert set(consents) == set(others)
    assert "this client is not among the survivors" in server.refused[server.ids[0]]
    assert not server.shares([server.ids[0]], consents)
