"""Zero-concentrated differential privacy (zCDP), and the (ε, δ) that it implies.

ρ-zCDP bounds the Rényi divergence of every order α > 1 by αρ. Whatever the order, it follows (Canonne, Kamath and
Steinke 2020, Proposition 12) that (ε, δ) holds for every ε >= 0 with

    δ = e^((α−1)(αρ−ε)) / (α−1) · (1 − 1/α)^α,

so that a fixed grid of orders gives bounds that are valid and, where it is dense, tight. Everything is integer
arithmetic with the rounding against us: every machine comes to the same verdict, and no float decides anything.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Final

from hushsum.noise.exp_thresholds import exp_minus

_OCTAVES: Final = (-16, 48)  # of α − 1: the best order is near 1 + √(ln(1/δ)/ρ)
_STEPS: Final = 16  # orders an octave: a sixteenth between neighbours costs at most 0.12 % of ρ

_ONE: Final = _STEPS << -_OCTAVES[0]

#: The orders, rising.
ALPHAS: Final[tuple[Fraction, ...]] = tuple(
    Fraction(_ONE + (_STEPS + step << octave), _ONE)
    for octave in range(_OCTAVES[1] - _OCTAVES[0])
    for step in range(_STEPS)
)
EPSILON_NOTCH: Final = Fraction(1, 10**18)  # ε is rounded up to a multiple of it
DELTA_NOTCH: Final = Fraction(1, 10**50)  # and so is δ

_BITS: Final = 192  # of fixed point: α − 1 up to 2^49 takes as many of them from δ
_DELTA_BITS: Final = 176  # finer than DELTA_NOTCH


def epsilon_of(rho: Fraction, delta: Fraction) -> Fraction:
    """The ε that ρ-zCDP gives at a δ, rounded up to a multiple of 10⁻¹⁸; 0 for ρ = 0.

    Args:
        rho: At least 0.
        delta: Above 0 and below 1; 0 too, where ρ is 0.

    Raises:
        ValueError: ρ or δ is out of range.
    """
    _check(rho)
    if rho == 0:
        return Fraction(0)
    if not 0 < delta < 1:
        raise ValueError(f"rho-zCDP with rho > 0 gives an epsilon at a delta above 0 and below 1, got {delta}")
    surprise = ln(1 / delta, _BITS)[1]  # L = ln(1/δ)

    # ε(t) = (1+t)ρ + ln(t/(1+t)) + (L − ln(1+t))/t at t = α−1 falls as long as ρt² + ln(1+t) < L, and rises from there.
    def rises(order: _Order) -> bool:
        up, down = order.t.as_integer_ratio()  # ρt² without the common divisors that fractions look for
        square = -((-rho.numerator * up * up << _BITS) // (rho.denominator * down * down))
        return square + order.ln_alpha_low >= surprise

    least = min(order.epsilon(rho, surprise) for order in _best(rises))
    return _rounded_up(Fraction(max(0, least), 1 << _BITS), EPSILON_NOTCH)


def delta_of(rho: Fraction, epsilon: Fraction) -> Fraction:
    """The δ that ρ-zCDP gives at an ε, rounded up to a multiple of 10⁻⁵⁰; at most 1, and 0 for ρ = 0.

    Args:
        rho: At least 0.
        epsilon: At least 0.

    Raises:
        ValueError: ρ or ε is below 0.
    """
    _check(rho)
    if epsilon < 0:
        raise ValueError(f"a guarantee's epsilon is at least 0, got {epsilon}")
    if rho == 0:
        return Fraction(0)

    # ln δ(t) = t((1+t)ρ − ε + ln(t/(1+t))) − ln(1+t) falls as long as (1+2t)ρ + ln(t/(1+t)) < ε, and rises from there.
    def rises(order: _Order) -> bool:
        return _scaled_up((1 + 2 * order.t) * rho - epsilon) + order.ln_share_high >= 0

    least = min(order.ln_delta(rho, epsilon) for order in _best(rises))
    if least >= 0:
        return Fraction(1)
    high = exp_minus(Fraction(-least, 1 << _BITS), _DELTA_BITS)[1]
    return min(Fraction(1), _rounded_up(Fraction(high, 1 << _DELTA_BITS), DELTA_NOTCH))


def supports(rho: Fraction, *, epsilon: Fraction, delta: Fraction) -> bool:
    """Whether ρ-zCDP implies (ε, δ), as far as these bounds know.

    Raises:
        ValueError: A parameter is out of range.
    """
    return epsilon_of(rho, delta) <= epsilon


@lru_cache(maxsize=256)  # a count of releases asks for one δ again and again
def ln(x: Fraction, bits: int) -> tuple[int, int]:
    """Bounds of the natural logarithm: integers ``low <= ln x · 2^bits <= high``, a few apart.

    Args:
        x: Above 0.
        bits: At least 1.

    Raises:
        ValueError: ``x`` is not above 0.
    """
    if x <= 0:
        raise ValueError(f"an enclosure of ln x needs x > 0, got {x}")
    power = x.numerator.bit_length() - x.denominator.bit_length()
    y = x / Fraction(2) ** power  # from 1/2 to 2
    for limit, step in ((Fraction(4, 3), 1), (Fraction(2, 3), -1)):
        if (y - limit) * step > 0:
            y, power = y / Fraction(2) ** step, power + step
    spare = abs(power).bit_length() + 8
    low, high = _twice_artanh((y - 1) / (y + 1), bits + spare)
    two_low, two_high = _twice_artanh(Fraction(1, 3), bits + spare)  # ln 2
    low += power * (two_low if power >= 0 else two_high)
    high += power * (two_high if power >= 0 else two_low)
    return low >> spare, -(-high >> spare)


@dataclass(frozen=True)
class _Order:
    """One order α = 1 + t of the grid, with bounds of its logarithms in fixed point."""

    t: Fraction
    ln_alpha_low: int
    ln_share_high: int  # of ln(t/(1 + t)) = ln(1 − 1/α)

    def epsilon(self, rho: Fraction, surprise: int) -> int:
        """An upper bound of ε in fixed point; maybe below 0, where δ alone is more than enough."""
        rest = surprise - self.ln_alpha_low
        return _scaled_up((1 + self.t) * rho) + self.ln_share_high - (-rest * self.t.denominator // self.t.numerator)

    def ln_delta(self, rho: Fraction, epsilon: Fraction) -> int:
        """An upper bound of ln δ in fixed point."""
        rate = _scaled_up((1 + self.t) * rho - epsilon) + self.ln_share_high
        return -(-rate * self.t.numerator // self.t.denominator) - self.ln_alpha_low


@cache
def _order(index: int) -> _Order:
    alpha = ALPHAS[index]
    return _Order(alpha - 1, ln(alpha, _BITS)[0], ln(1 - 1 / alpha, _BITS)[1])


def _best(rises: Callable[[_Order], bool]) -> tuple[_Order, ...]:
    """The orders on both sides of where a bound turns from falling to rising: one of them is the best of the grid."""
    turn = bisect_left(range(len(ALPHAS)), 1, key=lambda index: int(rises(_order(index))))
    return tuple(_order(index) for index in (turn - 1, turn) if 0 <= index < len(ALPHAS))


def _twice_artanh(z: Fraction, bits: int) -> tuple[int, int]:
    """Bounds of 2·artanh(z)·2^bits = 2·Σ z^(2j+1)/(2j+1)·2^bits for |z| <= 1/3: that is ln((1 + z)/(1 − z))."""
    p, q = abs(z.numerator), z.denominator
    power_low, power_high = (p << bits) // q, -(-(p << bits) // q)
    low = high = 0
    odd = 1
    while power_high > 1:
        low, high = low + power_low // odd, high - (-power_high // odd)
        power_low, power_high = power_low * p * p // (q * q), -(-power_high * p * p // (q * q))
        odd += 2
    high += 2  # the rest is at most the first power left out times 1/(1 − z²) <= 9/8
    return (2 * low, 2 * high) if z >= 0 else (-2 * high, -2 * low)


def _scaled_up(value: Fraction) -> int:
    return -((-value.numerator << _BITS) // value.denominator)


def _rounded_up(value: Fraction, notch: Fraction) -> Fraction:
    return -(-value // notch) * notch


def _check(rho: Fraction) -> None:
    if rho < 0:
        raise ValueError(f"rho of zCDP is at least 0, got {rho}")
