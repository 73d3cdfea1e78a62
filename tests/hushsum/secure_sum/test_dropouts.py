"""Rounds under random schedules: the exact sum or a clean failure, and planted mistakes that the schedules find."""

import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from hushsum.secure_sum.client import ClientStep
from hushsum.secure_sum.server import Done, Failed
from tests.hushsum.secure_sum import planted
from tests.hushsum.secure_sum.fleets import Recorded, fleet, small_parameters
from tests.hushsum.secure_sum.joined import Kill, Network
from tests.hushsum.secure_sum.schedules import Disturbance, check, main, remembered, run

SECONDS = 8
AT_LEAST = 20


def ends_wrongly(schedule: int) -> str:
    """What is wrong with how it ends; empty: nothing."""
    try:
        run(schedule)
    except AssertionError as error:
        return str(error)
    return ""


def test_every_schedule_ends_in_the_exact_sum_or_fails_cleanly(seed: int) -> None:
    """As many as the time allows; which one fails is said, for ``schedules.run`` to repeat."""
    until, done = time.monotonic() + SECONDS, 0
    while done < AT_LEAST or time.monotonic() < until:
        schedule = (seed + done) % 2**63
        try:
            with remembered():
                run(schedule)
        except AssertionError as error:
            error.add_note(f"schedule {schedule}")
            raise
        done += 1


def test_a_server_whose_search_for_right_shares_succeeds_late_comes_to_an_end() -> None:
    """Secrets that came out meanwhile once left the search past its own end, for ever."""
    with remembered():
        assert isinstance(run(7_000_006_005).end, Done)


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (planted.masks_of_dropouts_left_in, "another sum"),
        (planted.a_survivor_counted_twice, "another sum"),
        (planted.a_failure_that_hides_what_was_spent, "spent is not what was granted"),
        (planted.noise_drawn_again, "not one share of noise each"),
    ],
)
def test_a_planted_mistake_is_found_by_some_schedule(
    mistake: Callable[[pytest.MonkeyPatch], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    with remembered():
        assert any(said in ends_wrongly(schedule) for schedule in range(60))


def test_the_same_schedule_ends_the_same() -> None:
    with remembered():
        for schedule in range(3):
            once, again = run(schedule), run(schedule)
            assert (once.text, once.rounds, once.died) == (again.text, again.rounds, again.died)


def test_schedules_can_be_run_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schedules", "4", "--seed", "3"]) == 0
    told = capsys.readouterr().out
    assert "4 schedules" in told


def test_a_schedule_that_ends_wrongly_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted.a_survivor_counted_twice(monkeypatch)
    assert main(["--schedules", "50", "--seed", "3"]) == 1
    assert "schedule 30000000" in capsys.readouterr().err


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("step", [ClientStep.SPENDING, ClientStep.SENT, ClientStep.CONSENTED, ClientStep.REVEALED])
def test_as_many_as_the_plan_allows_may_die_from_the_grant_on(
    step: ClientStep, before: bool, rng: np.random.Generator
) -> None:
    """Whatever step it is, before or after its message: the sum is there, and is exact."""
    parameters = small_parameters(10, gone=2, corrupt=1, threshold=5)
    made = fleet(parameters, rng, share=Recorded)
    kills = dict.fromkeys(["device-03", "device-08"], Kill(step, before))
    disturbance = Disturbance(rng)
    network = Network(made, rng=rng, kills=kills, meddle=disturbance)
    end = network.run()
    assert isinstance(end, Done)
    check(network, end, disturbance, honest=True)
    sent = step in (ClientStep.CONSENTED, ClientStep.REVEALED) or (step is ClientStep.SENT and not before)
    assert end.sum.submissions == (10 if sent else 8)


@pytest.mark.parametrize("step", [ClientStep.COUNTING, ClientStep.OPENED, ClientStep.SHARED])
def test_one_that_dies_before_all_have_sent_shares_costs_nobody_anything(
    step: ClientStep, rng: np.random.Generator
) -> None:
    made = fleet(small_parameters(10, gone=2, corrupt=1), rng)
    network = Network(made, rng=rng, kills={"device-03": Kill(step, before=True)})
    end = network.run()
    assert isinstance(end, Failed)
    assert (end.spent, end.again) == (0, True)
    assert not network.spent


def test_one_more_than_the_plan_allows_fails_and_says_what_was_spent(rng: np.random.Generator) -> None:
    made = fleet(small_parameters(10, gone=2, corrupt=1), rng)
    kills = dict.fromkeys(["device-03", "device-05", "device-08"], Kill(ClientStep.SENT, before=True))
    disturbance = Disturbance(rng)
    network = Network(made, rng=rng, kills=kills, meddle=disturbance)
    end = network.run()
    assert isinstance(end, Failed)
    assert end == Failed("7 survivors are left, expected at least 8", spent=len(disturbance.granted), again=False)
    assert set(kills) <= set(network.spent) <= set(disturbance.granted)


def test_schedules_reach_every_way_that_a_round_can_end() -> None:
    """Else they would not look at it."""
    seen = Counter[str]()
    with remembered():
        for schedule in range(120):
            seen[run(schedule).text.split(":")[0]] += 1
            if len(seen) == 3 and min(seen.values()) >= 3:
                break
    assert set(seen) == {"exact sum", "free", "spent"}
