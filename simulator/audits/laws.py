"""The exact law of a mechanism's noise, and how far it hides a change: over all outcomes, with rigorous bounds.

A law is P(k) for |k| <= reach, each between two fractions. It is either stated (the formula, in decimals of 80 digits)
or read off a running sampler; whatever tells two laws apart tells their losses apart.
"""

import math
from collections.abc import Mapping
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Final

Bounds = Mapping[int, tuple[Fraction, Fraction]]

LAPLACE: Final = "discrete-laplace"
GAUSSIAN: Final = "discrete-gaussian"

_DIGITS: Final = 80
_SLACK: Final = Fraction(1, 10**70)  # of the decimals, relative: far more than their rounding
_TAIL: Final = 100  # terms of the normaliser are left out below e^-100 of the largest


def stated(name: str, scale: Fraction, reach: int) -> Bounds:
    """The law that a mechanism's documents state.

    Args:
        name: ``discrete-laplace``: P(k) ∝ e^(−|k|/scale); ``discrete-gaussian``: P(k) ∝ e^(−k²/(2·scale)).
        scale: b or σ², exact.
        reach: Of k, on either side.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        exact = Decimal(scale.numerator) / Decimal(scale.denominator)
        if name == LAPLACE:
            ratio = (-1 / exact).exp()
            weights = [(-Decimal(k) / exact).exp() for k in range(reach + 1)]
            total, rest = (1 + ratio) / (1 - ratio), Decimal(0)
        else:
            terms = max(reach, math.isqrt(2 * _TAIL * math.ceil(scale)) + 1)
            weights = [(-Decimal(k * k) / (2 * exact)).exp() for k in range(terms + 1)]
            total = 1 + 2 * sum(weights[1:], Decimal(0))
            # Behind the last term the next one is smaller by more than this factor, and so on.
            ratio = (-Decimal(2 * terms + 1) / (2 * exact)).exp()
            rest = 2 * weights[-1] * ratio / (1 - ratio)
        ends = [[Fraction(weight / each) for weight in weights[: reach + 1]] for each in (total + rest, total)]
    masses = [(low * (1 - _SLACK), high * (1 + _SLACK)) for low, high in zip(*ends, strict=True)]
    return {sign * k: masses[k] for k in range(reach + 1) for sign in (1, -1)}


def worst_loss(law: Bounds, change: int) -> tuple[float, float]:
    """Bounds of the largest ln(P(k)/P(k − change)) over all k within reach; infinite where one alone can be."""
    low, high = -math.inf, -math.inf
    for k in law:
        if k - change in law:
            (p_low, p_high), (q_low, q_high) = law[k], law[k - change]
            low = max(low, _logarithm(p_low, q_high))
            high = max(high, _logarithm(p_high, q_low))
    return low, high


def disagreements(first: Bounds, second: Bounds) -> list[int]:
    """Where two laws certainly differ: their bounds have nothing in common."""
    return sorted(k for k in first.keys() & second.keys() if first[k][1] < second[k][0] or second[k][1] < first[k][0])


def tail(scale: Fraction, least: int) -> tuple[Fraction, Fraction]:
    """Bounds of P(Z >= least): what a threshold sees of discrete Laplace noise."""
    with localcontext() as context:
        context.prec = _DIGITS
        exact = Decimal(scale.numerator) / Decimal(scale.denominator)
        ratio = (-1 / exact).exp()
        above = (-Decimal(abs(least) + (least <= 0)) / exact).exp() / (1 + ratio)  # P(Z >= j) = q^j/(1 + q), j > 0
        value = Fraction(above if least > 0 else 1 - above)
    return value * (1 - _SLACK), value * (1 + _SLACK)


def _logarithm(p: Fraction, q: Fraction) -> float:
    """ln(p/q), within a float's rounding."""
    if p <= 0:
        return -math.inf
    if q <= 0:
        return math.inf
    with localcontext() as context:
        context.prec = 40
        p_decimal, q_decimal = (Decimal(x.numerator) / Decimal(x.denominator) for x in (p, q))
        return float((p_decimal / q_decimal).ln())
