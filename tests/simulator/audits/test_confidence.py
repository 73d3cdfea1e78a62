"""The limits hold as often as they say, computed over all outcomes of a binomial, not sampled."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from simulator.audits.confidence import Hits, at_least, at_most, epsilon_at_least

P = np.linspace(0.001, 0.999, 333)


@pytest.mark.parametrize("error", [0.2, 0.01, 1e-6])
@pytest.mark.parametrize("runs", [1, 7, 60])
def test_a_limit_is_wrong_with_the_stated_probability_at_most_whatever_the_truth(runs: int, error: float) -> None:
    hits = np.arange(runs + 1)
    chances = binom.pmf(hits[:, np.newaxis], runs, P)
    above = at_least(hits, runs, error)[:, np.newaxis] > P
    below = at_most(hits, runs, error)[:, np.newaxis] < P
    assert (chances * above).sum(axis=0).max() <= error * (1 + 1e-9)
    assert (chances * below).sum(axis=0).max() <= error * (1 + 1e-9)


def test_the_limits_come_as_near_as_they_may() -> None:
    runs, error = 60, 0.2
    hits = np.arange(runs + 1)
    above = at_least(hits, runs, error)[:, np.newaxis] > P
    assert (binom.pmf(hits[:, np.newaxis], runs, P) * above).sum(axis=0).max() > error / 2


def test_nothing_and_everything_have_limits_too() -> None:
    assert at_least(0, 10, 0.01) == 0
    assert at_most(10, 10, 0.01) == 1
    assert at_most(0, 10, 0.01) == pytest.approx(1 - 0.01**0.1)


def test_epsilon_is_bounded_by_what_both_limits_leave() -> None:
    p, q = float(at_least(900, 1000, 5e-7)), float(at_most(100, 1000, 5e-7))
    found = epsilon_at_least(Hits(900, 1000), Hits(100, 1000), delta=0.01, error=1e-6)
    assert found == pytest.approx(math.log((p - 0.01) / q))
    assert 1.5 < found < math.log(9)


@pytest.mark.parametrize("likelier", [0, 3, 100])
def test_an_event_that_is_as_frequent_on_both_proves_nothing(likelier: int) -> None:
    assert epsilon_at_least(Hits(likelier, 1000), Hits(likelier, 1000), delta=0.0, error=1e-6) == 0


def test_the_lower_limit_of_epsilon_is_wrong_as_seldom_as_it_says() -> None:
    # All pairs of outcomes of 30 runs each, of an event of probabilities e·q and q.
    runs, error, q = 30, 0.1, 0.3
    p = q * math.e
    wrong = sum(
        binom.pmf(first, runs, p) * binom.pmf(second, runs, q)
        for first in range(runs + 1)
        for second in range(runs + 1)
        if epsilon_at_least(Hits(first, runs), Hits(second, runs), delta=0.0, error=error) > 1
    )
    assert 0 < wrong <= error
