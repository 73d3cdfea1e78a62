"""What sums of discrete Gaussian shares guarantee: the bound is the published one, and holds exactly where it bites."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.errors import GuaranteeError
from hushsum.privacy import distributed_gaussian as module
from hushsum.privacy.distributed_gaussian import rho_of_shares


def published(sigma_squared: Fraction, honest: int, l2_squared: int, counters: int) -> Decimal:
    """½ε̃² with ε̃ the smaller of Kairouz, Liu and Steinke's two bounds, to 60 digits."""
    with localcontext() as context:
        context.prec = 60
        pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
        share = Decimal(sigma_squared.numerator) / sigma_squared.denominator / honest
        tau = 10 * sum(((-2 * pi**2 * share * k / (k + 1)).exp() for k in range(1, honest)), Decimal(0))
        ideal = l2_squared / (share * honest)
        first = ideal + tau * counters / 2
        second = (ideal.sqrt() + tau * Decimal(counters).sqrt()) ** 2
        return min(first, second) / 2


@pytest.mark.parametrize("honest", (1, 2, 7, 80, 1000))
@pytest.mark.parametrize(("l2_squared", "counters"), [(1, 1), (100, 10), (1024, 10**6), (10**8, 1)])
def test_rho_is_the_published_one_rounded_up(honest: int, l2_squared: int, counters: int) -> None:
    for share in (Fraction(4), Fraction(9, 2), Fraction(123456, 1000)):
        stated = published(share * honest, honest, l2_squared, counters)
        got = rho_of_shares(share * honest, honest, l2_squared, counters)
        assert Fraction(stated) * (1 - Fraction(1, 10**55)) <= got <= Fraction(stated) * (1 + Fraction(1, 10**14))


def test_a_single_share_is_the_discrete_gaussian_itself() -> None:
    assert rho_of_shares(Fraction(100), 1, 49, 10**6) == Fraction(49, 200)


def test_ten_thousand_shares_are_bounded_with_the_terms_that_matter() -> None:
    got = rho_of_shares(Fraction(40_000), 10_000, 4, 10**6)
    assert got == pytest.approx(Fraction(4, 80_000), rel=1e-9)
    assert got > Fraction(4, 80_000)


@pytest.mark.parametrize("share", (Fraction(399_999, 10**5), Fraction(1)))
def test_shares_that_are_too_narrow_are_refused(share: Fraction) -> None:
    with pytest.raises(GuaranteeError, match="at least 4 each: 28 in all"):
        rho_of_shares(share * 7, 7, 1, 1)


@pytest.mark.parametrize(
    "arguments", [(Fraction(0), 1, 1, 1), (Fraction(9), 0, 1, 1), (Fraction(9), 1, -1, 1), (Fraction(9), 1, 1, 0)]
)
def test_numbers_out_of_range_are_refused(arguments: tuple[Fraction, int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected above 0"):
        rho_of_shares(*arguments)


# ------------------------------------------------------------------------- the theorem, where its terms are large


def law(share: float, times: int, reach: int) -> npt.NDArray[np.float64]:
    """Of a sum of so many discrete Gaussians, |k| ≤ reach, without rounding to speak of."""
    k = np.arange(-reach, reach + 1)
    one = np.exp(-k * k / (2 * share))
    one /= one.sum()
    total: npt.NDArray[np.float64] = one
    for _ in range(times - 1):
        total = np.convolve(total, one)[reach : 3 * reach + 1]
    return total


@pytest.mark.parametrize("share", (0.25, 0.4, 0.7, 1.0))
@pytest.mark.parametrize("honest", (2, 3, 5))
def test_a_sum_of_shares_is_within_half_tau_of_the_discrete_gaussian(share: float, honest: int) -> None:
    """What the bound is derived from; shares are narrow here, so that there is something to see."""
    reach, near = 60, int(4 * math.sqrt(share * honest)) + 1
    k = np.arange(-near, near + 1)
    ideal = np.exp(-(k**2) / (2 * share * honest))
    ideal /= np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * share * honest)).sum()
    away = np.abs(np.log(law(share, honest, reach)[reach - near : reach + near + 1] / ideal)).max()
    tau = float(module._tau(Fraction(share), honest))
    assert away <= tau / 2
    assert honest > 2 or away > tau / 6  # it is no empty bound: half of tau, or a wrong exponent, would be below


@pytest.mark.parametrize("share", (0.4, 0.7, 1.0))
@pytest.mark.parametrize("shift", (1, 2, 3))
def test_the_divergence_of_shifted_sums_is_within_rho_at_every_order(share: float, shift: int) -> None:
    """Rényi divergences of orders 1.01 to 50 of one counter, added up exactly."""
    honest, reach = 3, 60
    total = law(share, honest, reach)
    here, there = total[shift:], total[:-shift]
    both = (here > 0) & (there > 0)
    tau = float(module._tau(Fraction(share), honest))
    rho = (shift / math.sqrt(share * honest) + tau) ** 2 / 2
    for order in (1.01, 1.5, 2.0, 4.0, 10.0):
        terms = np.exp(order * np.log(here[both]) + (1 - order) * np.log(there[both]))
        assert math.log(terms.sum()) / (order - 1) <= order * rho * (1 + 1e-12)


def test_the_bound_of_pi_squared_is_from_below() -> None:
    with localcontext() as context:
        context.prec = 40
        pi_squared = Decimal("3.141592653589793238462643383279502884") ** 2
        below = Decimal(module._PI_SQUARED_LOW.numerator) / module._PI_SQUARED_LOW.denominator
        assert 0 < pi_squared - below < Decimal("1e-13")
