"""Who vanishes, when, and how many a cohort must be able to miss."""

from collections import Counter

import numpy as np
import pytest

from simulator.vanishing import Stage, tolerated, victims

CLIENTS = [f"client-{number}" for number in range(200)]


def test_the_rate_says_how_many_vanish_half_of_them_before_their_vector() -> None:
    chosen = victims(CLIENTS, 0.1, seed=3)
    spent = Counter(stage.spent for stage in chosen.values())
    assert (len(chosen), spent[True], spent[False]) == (20, 10, 10)
    assert chosen.keys() <= set(CLIENTS)
    assert not {Stage.ADDING, Stage.DONE, Stage.DROPPED} & set(chosen.values())
    assert victims(CLIENTS, 0.0, seed=3) == {}


def test_the_seed_decides_who_it_is() -> None:
    assert victims(CLIENTS, 0.1, seed=3) == victims(CLIENTS, 0.1, seed=3)
    assert victims(CLIENTS, 0.1, seed=3) != victims(CLIENTS, 0.1, seed=4)


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
