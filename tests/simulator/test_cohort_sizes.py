"""How a run's clients fit into cohorts."""

from fractions import Fraction

import numpy as np
import pytest

from hushsum.privacy.cohort import Cohort
from simulator.cohort_sizes import fit, require_room, tolerated
from simulator.errors import SettingsConflictError


@pytest.mark.parametrize(("clients", "size"), ((200, 100), (130, 130), (205, 103), (12, 12), (1000, 100)))
def test_everybody_fits_into_cohorts_of_about_a_hundred(clients: int, size: int) -> None:
    cohort = fit(clients, size=None, dropout_rate=0.05)
    assert cohort.size == size
    last = clients - (clients - 1) // size * size
    assert last >= cohort.survivors_min


def test_a_cohort_can_lose_what_may_vanish_of_it() -> None:
    assert fit(200, size=200, dropout_rate=0.1).dropout == Fraction(1, 10)
    assert fit(200, size=200, dropout_rate=0.2).survivors_min == 160
    assert fit(200, size=100, dropout_rate=0.1).survivors_min <= 100 - 18


@pytest.mark.parametrize(
    ("clients", "size", "rate", "said"),
    (
        (170, 70, 0.0, "the last 30 fill none"),
        (200, 100, 0.4, "--dropout-rate 0.4: cohorts of 100"),
        (200, 100, 0.3, "ask for fewer dropouts"),
    ),
    ids=("left over", "half of them", "no quorum"),
)
def test_what_does_not_go_together_is_one_sentence(clients: int, size: int, rate: float, said: str) -> None:
    with pytest.raises(SettingsConflictError, match=said) as caught:
        fit(clients, size=size, dropout_rate=rate)
    assert "\n" not in str(caught.value)


def test_a_plan_must_have_room_for_what_vanishes() -> None:
    cohort = Cohort(size=100, dropout=Fraction(1, 10))
    require_room(cohort, 200, 0.01)
    require_room(cohort, 100, 0.1)
    with pytest.raises(SettingsConflictError, match="can lose 10; with 200 clients"):
        require_room(cohort, 200, 0.1)
    with pytest.raises(SettingsConflictError, match="fill none"):
        require_room(cohort, 120, 0.0)


def test_a_plan_with_a_pool_leaves_clients_out_and_no_run_takes_it() -> None:
    with pytest.raises(SettingsConflictError, match="a pool of 150"):
        require_room(Cohort(size=100, fleet_corrupt=0, pool=150), 200, 0.0)


def test_a_cohort_of_all_misses_exactly_those_that_vanish() -> None:
    assert tolerated(200, 1, clients=200, vanishing=20) == 20
    assert tolerated(200, 1, clients=200, vanishing=0) == 0


def test_the_last_cohort_also_misses_what_fills_none() -> None:
    assert tolerated(103, 2, clients=205, vanishing=0) == 1


@pytest.mark.statistical
def test_a_cohort_misses_more_than_is_tolerated_less_than_once_in_a_million(rng: np.random.Generator) -> None:
    """Of 20,000 deals not one may pass it; each does with a probability below 10⁻⁶: a false alarm in 50 such tests.

    So two are allowed, which come once in 10⁶ tests or less (Poisson, mean 0.02).
    """
    most = tolerated(50, 4, clients=200, vanishing=20)
    worst = rng.multivariate_hypergeometric([50] * 4, 20, size=20_000).max(axis=1)
    assert (worst > most).sum() <= 2
    assert most < 20, "it is a bound, and no more than needed"
