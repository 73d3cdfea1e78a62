import math
from fractions import Fraction

import pytest

from hushsum.noise import DiscreteGaussian, DiscreteLaplace
from simulator.audits.laws import GAUSSIAN, LAPLACE, disagreements, stated, tail, worst_loss
from tests.hushsum.noise.observed import pmf

SCALES = (Fraction(1, 3), Fraction(2), Fraction(17, 10))


@pytest.mark.parametrize("name", [LAPLACE, GAUSSIAN])
@pytest.mark.parametrize("scale", SCALES)
def test_a_stated_law_is_a_distribution_between_tight_bounds(name: str, scale: Fraction) -> None:
    law = stated(name, scale, 400 if name == LAPLACE else 40)
    low, high = (sum(bounds[end] for bounds in law.values()) for end in (0, 1))
    assert low <= 1 <= high + Fraction(1, 10**50)
    assert high - low < Fraction(1, 10**60)
    assert all(law[k] == law[-k] for k in law)


@pytest.mark.parametrize(("scale", "change"), [(Fraction(2), 1), (Fraction(2), -3), (Fraction(1, 3), 2)])
def test_laplace_noise_hides_a_change_up_to_its_share_of_the_scale(scale: Fraction, change: int) -> None:
    low, high = worst_loss(stated(LAPLACE, scale, 64), change)
    assert low == pytest.approx(high, abs=1e-15) == pytest.approx(abs(change) / float(scale), abs=1e-14)


def test_the_loss_of_gaussian_noise_grows_with_the_outcome() -> None:
    law = stated(GAUSSIAN, Fraction(2), 40)
    assert worst_loss(law, 1)[1] == pytest.approx((2 * 40 - 1) / 4)


def test_an_outcome_that_only_one_neighbour_shows_is_an_infinite_loss() -> None:
    law = dict(stated(LAPLACE, Fraction(2), 10))
    law[7] = (Fraction(0), Fraction(0))
    assert worst_loss(law, 1) == (math.inf, math.inf)


@pytest.mark.parametrize("least", [-9, -1, 0, 1, 2, 30])
def test_the_tail_is_the_sum_of_what_lies_there(least: int) -> None:
    law = stated(LAPLACE, Fraction(2), 300)
    summed = sum(law[k][0] for k in law if k >= least)
    low, high = tail(Fraction(2), least)
    assert low <= summed + Fraction(1, 10**50)
    assert summed - Fraction(1, 10**50) <= high
    assert high - low < Fraction(1, 10**60)


def test_the_laplace_sampler_that_runs_draws_from_the_stated_law() -> None:
    assert disagreements(pmf(DiscreteLaplace(Fraction(2)), 260), stated(LAPLACE, Fraction(2), 260)) == []


def test_the_gaussian_sampler_that_runs_draws_from_the_stated_law() -> None:
    scale = Fraction(3, 10)
    assert disagreements(pmf(DiscreteGaussian(scale), 12), stated(GAUSSIAN, scale, 12)) == []


def test_laws_of_other_parameters_disagree_nearly_everywhere() -> None:
    other = stated(LAPLACE, Fraction(2) + Fraction(1, 10**12), 50)
    assert len(disagreements(stated(LAPLACE, Fraction(2), 50), other)) > 90
