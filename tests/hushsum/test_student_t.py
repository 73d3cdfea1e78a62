"""Student's t quantiles against scipy, against integrals of the density, and against the cases that have a formula."""

import math
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

from hushsum.student_t import student_t_quantile

DEGREES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 30, 31, 99, 100, 101, 500, 999, 1000)
TAILS = (1e-9, 1e-7, 1e-5, 0.001, 0.005, 0.025, 0.05, 0.1, 0.2, 0.2499, 0.25, 0.2501, 0.3, 0.4, 0.49)


@pytest.mark.parametrize("degrees", DEGREES)
def test_it_is_the_quantile_of_scipy_on_both_sides(degrees: int) -> None:
    for tail in TAILS:
        expected = float(stats.t.isf(tail, degrees))
        assert student_t_quantile(tail, degrees) == pytest.approx(-expected, rel=1e-10, abs=0)
        upper = float(stats.t.isf(1 - (1 - tail), degrees))  # of the probability as it was rounded
        assert student_t_quantile(1 - tail, degrees) == pytest.approx(upper, rel=1e-10, abs=0)


@given(st.integers(1, 1000), st.floats(1e-9, 0.49))
def test_it_is_the_quantile_of_scipy_for_any_argument(degrees: int, tail: float) -> None:
    assert float(stats.t.cdf(student_t_quantile(tail, degrees), degrees)) == pytest.approx(tail, rel=1e-10, abs=0)


@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize("area", (2.0**-40, 1e-6, 1e-3, 0.2))
def test_near_the_middle_the_density_integrates_to_what_was_asked(degrees: int, area: float) -> None:
    t = student_t_quantile(0.5 + area, degrees)
    constant = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)

    def density(u: float) -> float:
        return constant * math.pow(1 + (t * u) ** 2 / degrees, -(degrees + 1) / 2)

    assert t * quad(density, 0, 1, epsrel=1e-13)[0] == pytest.approx((0.5 + area) - 0.5, rel=1e-11, abs=0)
    assert student_t_quantile(0.5 - area, degrees) == pytest.approx(-t, rel=1e-9)


@pytest.mark.parametrize("p", (1e-9, 0.01, 0.3, 0.5001, 0.8, 0.999999))
def test_four_degrees_are_their_formula(p: float) -> None:
    # t = 2·sign·√(q − 1), q = cos(arccos(√a)/3)/√a, a = 4p(1 − p): Shaw 2006, section 3.
    root = math.sqrt(4 * p * (1 - p))
    angle = math.atan2(abs(2 * p - 1), root)  # arccos √a without its cancellation
    expected = 2 * math.sqrt(math.cos(angle / 3) / root - 1)
    assert student_t_quantile(p, 4) == pytest.approx(math.copysign(expected, p - 0.5), rel=1e-7)


@pytest.mark.parametrize("p", (1e-100, 1e-9, 0.025, 0.4, 0.4999, 0.6, 0.975))
def test_where_the_way_of_computing_changes_the_quantile_does_not(p: float) -> None:
    step = student_t_quantile(p, 99_998) - student_t_quantile(p, 99_999)  # both iterated
    next_step = student_t_quantile(p, 99_999) - student_t_quantile(p, 100_000)  # iterated, and expanded
    assert next_step == pytest.approx(step, rel=1e-3, abs=2e-11 * abs(student_t_quantile(p, 100_000)))


@pytest.mark.parametrize("p", (1e-9, 0.025, 0.4, 0.6, 0.975))
def test_with_many_degrees_it_is_that_of_the_normal_distribution(p: float) -> None:
    assert student_t_quantile(p, 2**40) == pytest.approx(NormalDist().inv_cdf(p), rel=1e-9)


def test_it_is_nothing_in_the_middle_and_grows_with_the_probability() -> None:
    for degrees in (1, 2, 3, 1000):
        assert student_t_quantile(0.5, degrees) == 0.0
        values = [student_t_quantile(p / 250, degrees) for p in range(1, 250)]
        assert values == sorted(set(values))


@pytest.mark.parametrize("degrees", (1, 2, 3, 100, 2**20))
def test_the_thinnest_tail_that_is_answered_is_answered(degrees: int) -> None:
    t = student_t_quantile(1e-100, degrees)
    assert float(stats.t.logcdf(t, degrees)) == pytest.approx(math.log(1e-100), rel=1e-9)


@pytest.mark.parametrize("p", (0.0, 1.0, -0.1, 1e-101, math.nan))
def test_a_probability_out_of_range_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match=r"probability: got .*, expected a number from 1e-100 to below 1"):
        student_t_quantile(p, 3)


@pytest.mark.parametrize("degrees", (0, -1))
def test_degrees_below_one_are_refused(degrees: int) -> None:
    with pytest.raises(ValueError, match=r"degrees: got .*, expected an integer from 1"):
        student_t_quantile(0.9, degrees)
