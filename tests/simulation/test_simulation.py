"""The CI share of the simulation: no schedule loses, doubles or contradicts anything, and planted bugs are found."""

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.simulation.operations import Op, Schedule, drawn
from tests.simulation.planted import PLANTED
from tests.simulation.shrink import shrunk
from tests.simulation.world import run

SEED_VARIABLE = "HUSHSUM_SIMULATION_SEED"
FIRST = int(os.environ.get(SEED_VARIABLE, "1"))
SHARE = 120  # schedules; the planted bugs are looked for among the first of them
PART = 20


@pytest.mark.parametrize("first", range(FIRST, FIRST + SHARE, PART))
def test_nothing_is_lost_or_doubled_whatever_fails(first: int) -> None:
    for seed in range(first, first + PART):
        schedule = drawn(seed)
        result = run(schedule)
        if result.failed:
            smallest = shrunk(schedule, lambda each: run(each).failed)
            raise AssertionError(f"{SEED_VARIABLE}={seed}: {result}\npin it in test_pinned.py:\n{smallest!r}")


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, record_property: Callable[[str, object], None]) -> None:
    for count in range(SHARE):
        schedule = drawn(FIRST + count)
        if run(schedule, PLANTED[bug]()).failed:
            assert not run(schedule).failed, "without the bug something else is wrong"
            record_property("schedules", count + 1)
            return
    raise AssertionError(f"{bug}: not found in {SHARE} schedules from {SEED_VARIABLE}={FIRST} on")


def test_a_seed_decides_everything() -> None:
    schedule = drawn(FIRST + 2)
    assert run(schedule) == run(schedule)
    assert run(replace(schedule, seed=schedule.seed + 2)) != run(schedule)


def test_schedules_do_real_work() -> None:
    assert sum(run(drawn(seed)).counted for seed in range(FIRST, FIRST + 5)) > 20


def test_a_failure_is_shrunk_to_what_it_needs() -> None:
    needed = (Op(2.0, "power", "", 0.5), Op(9.0, "add", "device-1", 3.0))
    noise = tuple(Op(float(number), "look") for number in range(9))
    schedule = Schedule(1, cluster=True, partitions=2, ops=(*noise[:4], needed[0], *noise[4:], needed[1]))
    smallest = shrunk(schedule, lambda each: set(needed) <= set(each.ops))
    assert smallest == replace(schedule, ops=needed)
    assert eval(repr(smallest)) == smallest
