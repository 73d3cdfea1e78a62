import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import norm

from hushsum.privacy.zcdp import epsilon_of
from simulator.audits.losses import gaussian_losses

REACH = 60


def summed(changes: tuple[int, ...], variance: float, epsilon: float) -> float:
    """δ by the definition: Σ max(0, P − e^ε·P') over all outcomes of all counters."""
    k = np.arange(-REACH, REACH + 1)
    weights = np.exp(-np.square(np.arange(-REACH - 9, REACH + 10)) / (2 * variance))
    total = weights.sum()
    first, second = np.ones(1), np.ones(1)
    for change in changes:
        first = np.multiply.outer(first, weights[9:-9] / total).reshape(-1)
        second = np.multiply.outer(second, np.exp(-np.square(k - change) / (2 * variance)) / total).reshape(-1)
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


@pytest.mark.parametrize("changes", [(1,), (2,), (1, 1), (3, -1), (0, 2)])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.5])
def test_delta_is_the_sum_of_its_definition(changes: tuple[int, ...], epsilon: float) -> None:
    losses = gaussian_losses(changes, Fraction(13, 2))
    assert losses.delta(epsilon) == pytest.approx(summed(changes, 6.5, epsilon), rel=1e-9, abs=1e-14)


def test_the_masses_are_those_of_a_distribution_and_what_is_missing_is_negligible() -> None:
    losses = gaussian_losses((2, 1, 1), Fraction(40))
    assert losses.masses.sum() == pytest.approx(1, abs=1e-12)
    assert losses.missing < 1e-28


def test_epsilon_is_where_delta_is_reached() -> None:
    losses = gaussian_losses((1, 1), Fraction(50))
    epsilon = losses.epsilon(1e-6)
    assert losses.delta(epsilon) <= 1e-6 < losses.delta(epsilon * (1 - 1e-9))
    assert losses.epsilon(0.9) == 0


def test_for_large_noise_it_is_the_curve_of_the_continuous_gaussian() -> None:
    # Balle and Wang 2018, theorem 8.
    change, sigma, epsilon = 3, 30.0, 0.1
    ratio = change / sigma
    curve = norm.cdf(ratio / 2 - epsilon / ratio) - math.exp(epsilon) * norm.cdf(-ratio / 2 - epsilon / ratio)
    assert gaussian_losses((change,), Fraction(900)).delta(epsilon) == pytest.approx(curve, rel=1e-3)


@pytest.mark.parametrize("delta", ["0.01", "1e-6", "1e-10"])
def test_what_zcdp_promises_is_never_below_and_hardly_above_the_exact_epsilon(delta: str) -> None:
    rho = Fraction(3, 2 * 40)  # three counters change by one
    exact, promised = gaussian_losses((1, 1, 1), Fraction(40)).epsilon(float(delta)), epsilon_of(rho, Fraction(delta))
    assert exact <= promised <= exact * 1.5
