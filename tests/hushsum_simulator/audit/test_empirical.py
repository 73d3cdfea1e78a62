"""A source that repeats is caught; each mistake is planted in the process that draws, too."""

import sys

import numpy as np
import pytest

from hushsum_simulator.audit.empirical import PROGRAM, audited, fit_check, source_checks
from hushsum_simulator.audit.report import Floats
from tests.hushsum_simulator.audit import planted

COLUMNS = ("noise", "signal")


def two(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """The number beside one that says nothing."""
    return np.column_stack([np.zeros(len(first)), first]), np.column_stack([np.zeros(len(second)), second])


def test_what_is_always_different_is_told_from_the_number_that_differs() -> None:
    bound = audited(*two(np.zeros(4000), np.ones(4000)), COLUMNS)
    assert bound.epsilon > 4
    assert bound.event in ("signal >= 1", "signal <= 0")
    assert (bound.likelier.hits, bound.rarer.hits) == (2000, 0)


def test_a_rare_event_that_only_one_of_them_shows_is_found(rng: np.random.Generator) -> None:
    first, second = rng.normal(size=(2, 8000))
    second[rng.random(8000) < 0.05] = 50.0
    bound = audited(*two(first, second), COLUMNS)
    assert bound.epsilon > 2
    assert ">=" in bound.event


def test_a_number_that_is_not_seen_is_no_event_and_breaks_nothing() -> None:
    first, second = np.full(1000, np.nan), np.full(1000, np.nan)
    assert audited(*two(first, second), COLUMNS).epsilon == 0


def test_what_delta_forgives_is_not_held_against_epsilon(rng: np.random.Generator) -> None:
    first, second = np.zeros(20_000), np.zeros(20_000)
    first[rng.random(20_000) < 0.02] = 1
    assert audited(*two(first, second), COLUMNS).epsilon > 1
    assert audited(*two(first, second), COLUMNS, delta=0.03).epsilon == 0


@pytest.mark.statistical
def test_equal_data_sets_are_told_apart_as_seldom_as_stated_though_the_event_is_learned(
    rng: np.random.Generator,
) -> None:
    # At error 0.05, 60 audits of pure noise in 12 numbers: 16 or more false alarms have a probability below 1e-6
    # (binomial, 60 × 0.05). Limits at their face value would cry wolf in most of them.
    columns = tuple(f"number {index}" for index in range(12))

    def alarms(error: float) -> int:
        pairs = (rng.normal(size=(2, 200, 12)) for _ in range(60))
        return sum(audited(first, second, columns, error=error).epsilon > 0 for first, second in pairs)

    assert alarms(0.05) < 16
    assert alarms(24.0 * 0.5) > 40


PLANTED = (
    "import pytest; from tests.hushsum_simulator.audit import planted; from hushsum_simulator.audit import empirical; "
    "planted.{}(pytest.MonkeyPatch()); empirical.main()"
)


def held(*program: str) -> list[bool]:
    return [check.holds for check in source_checks(program)]


@pytest.mark.usefixtures("sources_on_path")
def test_honest_noise_never_repeats() -> None:
    assert held(*PROGRAM) == [True, True, True]


@pytest.mark.usefixtures("sources_on_path")
@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        (planted.seed_by_a_constant, [False, False, False]),
        (planted.seed_once_a_process, [True, False, False]),
        (planted.stream_across_a_fork, [True, False, False]),
    ],
)
def test_a_seeded_source_is_caught(
    mistake: planted.Plant, expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    assert held(sys.executable, "-c", PLANTED.format(mistake.__name__)) == expected


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_no_draws_at_all_fit_nothing() -> None:
    assert not fit_check("none", [(np.zeros(3, np.int64), [0.25, 0.5, 0.25])]).holds
