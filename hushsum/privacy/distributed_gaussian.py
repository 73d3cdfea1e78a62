"""What a sum of discrete Gaussian shares guarantees (Kairouz, Liu, Steinke 2021: the distributed discrete Gaussian).

h shares of variance parameter s = σ²/h do not sum to a discrete Gaussian of σ², but nearly: adding the (k + 1)-th moves
no probability by a factor beyond e^±η_k, η_k = 5·e^(−2π²·s·k/(k+1)) (their theorem on convolutions). So each counter of
a release is within e^±τ/2 of the ideal one, τ = 10·Σ e^(−2π²·s·k/(k+1)), k = 1 to h − 1, and so is its neighbour.

Pure (τ/2) is ½(τ/2)²-zCDP, which is over D counters ½(τ√D/2)²; from a release to the ideal one, to its neighbour, to
that release are three steps, whose √(2ρ) add (Bun, Steinke 2016): √(2ρ) = Δ2/σ + τ√D. Their other bound, Δ2²/σ² + τD/2
for 2ρ, is smaller only where Δ2/σ > √D/4, and then by less than a relative 8τ < 10⁻¹⁵: it is left out.
"""

import math
from fractions import Fraction
from functools import lru_cache
from typing import Final

from hushsum.canonical import real_text
from hushsum.errors import GuaranteeError
from hushsum.noise.exp_thresholds import exp_minus

SHARE_MIN: Final = 4  # of σ²/h: τ is then below 10⁻¹⁶ at any h that a cohort has
_PI_SQUARED_LOW: Final = Fraction(98_696_044_010_893, 10**13)  # π² = 9.86960440108935…
_BITS: Final = 320
_TERMS: Final = 32  # that are added one by one; no later one is greater


def rho_of_shares(sigma_squared: Fraction, honest: int, l2_squared: Fraction | int, counters: int) -> Fraction:
    """An upper bound of ρ for counters with the noise of ``honest`` shares, rounded up.

    More shares only add independent noise, which is post-processing.

    Args:
        sigma_squared: σ² of the whole noise; a share has σ²/h.
        honest: h, the least number of honest shares, at least 1.
        l2_squared: Δ2², by which two neighbours differ at most, in squared L2 norm.
        counters: D, all that are released together, the count counters included; at least 1.

    Raises:
        GuaranteeError: σ²/h is below 4: a share is too narrow for the sum to be nearly Gaussian.
        ValueError: A number is out of range.
    """
    if honest < 1 or counters < 1 or l2_squared < 0 or sigma_squared <= 0:
        raise ValueError(
            f"shares of sigma^2 {sigma_squared}, h {honest}, L2^2 {l2_squared}, {counters} counters: expected above 0"
        )
    if sigma_squared < SHARE_MIN * honest:
        raise GuaranteeError(
            f"discrete Gaussian shares of sigma^2 {real_text(sigma_squared)} over {honest} honest clients, expected at "
            f"least {SHARE_MIN} each: {SHARE_MIN * honest} in all"
        )
    tau = _tau(sigma_squared / honest, honest)
    ideal = l2_squared / sigma_squared
    return (ideal + 2 * tau * _root_up(ideal * counters) + tau * tau * counters) / 2


@lru_cache(maxsize=256)
def _tau(share: Fraction, honest: int) -> Fraction:
    """At least 10·Σ e^(−2π²·share·k/(k+1)) over k = 1 to h − 1, of which the first are the largest."""
    exponent = 2 * _PI_SQUARED_LOW * share
    one_by_one = min(honest - 1, _TERMS)
    total = sum(exp_minus(exponent * k / (k + 1), _BITS)[1] for k in range(1, one_by_one + 1))
    if rest := honest - 1 - one_by_one:
        total += rest * exp_minus(exponent * (_TERMS + 1) / (_TERMS + 2), _BITS)[1]
    return Fraction(10 * total, 1 << _BITS)


def _root_up(value: Fraction) -> Fraction:
    """At least √value, above it by less than 2^−128."""
    scaled = -(-value.numerator << 256) // value.denominator
    return Fraction(math.isqrt(scaled) + 1, 1 << 128)
