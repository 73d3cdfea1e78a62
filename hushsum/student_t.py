"""Quantiles and tails of Student's t distribution, for error bars and tests from few rows. Needs no scipy."""

import math
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_CONVERGED: Final = 2.0**-53
_LAST_STEP: Final = 1e-9  # Newton's steps converge quadratically: what is left after it is below a float's rounding
_STEPS_MAX: Final = 100
_TERMS_MAX: Final = 100_000
_TINY: Final = 1e-300
_TAIL_MIN: Final = 1e-100  # densities at thinner tails could vanish
_SERIES_FROM: Final = 100  # degrees from which the series of the gamma ratio is exact to 1e-14
_MANY: Final = 100_000  # degrees from which the expansion about the normal quantile is exact to 1e-12
_CENTRE: Final = 2.0  # the continued fraction converges from t² = 3 on, the series best below


@lru_cache(maxsize=256)
def student_t_quantile(probability: float, degrees: int) -> float:
    """The t with P(T ≤ t) = probability, T of Student's t distribution.

    Args:
        probability: From 10⁻¹⁰⁰ to below 1. Close to 1 its own rounding is the limit: ask for −t(1 − p) there.
        degrees: Degrees of freedom ν ≥ 1.

    Returns:
        t, within a relative 10⁻¹¹ of the exact value.

    Raises:
        ValueError: An argument is out of range.
    """
    if not _TAIL_MIN <= probability < 1.0:
        raise ValueError(f"probability: got {probability}, expected a number from {_TAIL_MIN} to below 1")
    if degrees < 1 or degrees != int(degrees):
        raise ValueError(f"degrees: got {degrees}, expected an integer from 1")
    if probability == 0.5:
        return 0.0
    tail = min(probability, 1.0 - probability)
    sign = math.copysign(1.0, probability - 0.5)
    if degrees == 1:  # t = tan(π(p − 1/2))
        return sign / math.tan(math.pi * tail) if tail < 0.25 else math.tan(math.pi * (probability - 0.5))
    if degrees == 2:  # t = (2p − 1)/√(2p(1 − p))
        return (2.0 * probability - 1.0) / math.sqrt(2.0 * tail) / math.sqrt(1.0 - tail)
    if degrees >= _MANY:
        return _from_normal(_normal_quantile(probability), degrees)
    return sign * (_from_tail(tail, degrees) if tail < 0.25 else _from_centre(abs(probability - 0.5), degrees))


def student_t_tails(t: Floats, degrees: int | None) -> Floats:
    """P(T > t) for each of (m,) numbers t ≥ 0, to (m,), T of Student's t distribution.

    The normal tails where ``degrees`` is None. Within a relative 10⁻¹¹ of the exact values, as long as those are no
    denormal numbers.

    Raises:
        ValueError: An argument is out of range.
    """
    least = float(t.min()) if t.size else 0.0
    if not least >= 0.0 or (degrees is not None and (degrees < 1 or degrees != int(degrees))):
        raise ValueError(f"t, degrees: got {least}, {degrees}, expected a number from 0, and an integer from 1 or None")
    if degrees is None:
        return np.array([0.5 * math.erfc(each / math.sqrt(2.0)) for each in t.tolist()])
    if degrees == 1:
        return np.asarray(np.arctan2(1.0, t) / math.pi, np.float64)
    found = np.zeros(len(t))
    in_centre, is_far = t < _CENTRE, (t >= _CENTRE) & np.isfinite(t)
    found[in_centre] = 0.5 - _central_areas(t[in_centre], degrees)
    found[is_far] = _tail_areas(t[is_far], degrees)
    return found


def _from_normal(z: float, degrees: int) -> float:
    """The normal quantile and three terms in 1/ν: Abramowitz and Stegun 26.7.5."""
    s = z * z
    first = (s + 1) / 4
    second = ((5 * s + 16) * s + 3) / 96
    third = (((3 * s + 19) * s + 17) * s - 15) / 384
    return z * (1.0 + (first + (second + third / degrees) / degrees) / degrees)


def _from_centre(area: float, degrees: int) -> float:
    """The t with P(0 ≤ T ≤ t) = area. The area is concave in t: Newton's steps from 0 only ever rise."""
    t = np.array([area / _highest_density(degrees)])
    for _ in range(_STEPS_MAX):
        step = (area - _central_areas(t, degrees)) / _densities(t, degrees)
        t += step
        if step <= 2.0 * _CONVERGED * t:
            break
    return float(t[0])


def _from_tail(tail: float, degrees: int) -> float:
    """The t with P(T > t) = tail < 1/4.

    ln P(T > t) is concave and falls in ln t, so Newton's steps overshoot at most once and then only ever fall; the
    normal quantile, where they begin, is below t.
    """
    t = np.array([-_normal_quantile(tail)])
    for _ in range(_STEPS_MAX):
        above = student_t_tails(t, degrees)
        step = np.log(above / tail) * above / (t * _densities(t, degrees))
        t *= np.exp(step)
        if abs(step) <= _LAST_STEP:
            break
    return float(t[0])


@lru_cache(maxsize=256)
def _highest_density(degrees: int) -> float:
    a = 0.5 * degrees
    if degrees < _SERIES_FROM:
        ratio = math.exp(math.lgamma(a + 0.5) - math.lgamma(a))
    else:  # Γ(a + 1/2)/Γ(a); logarithms of the two would cancel
        terms = (1.0, -1 / 8, 1 / 128, 5 / 1024, -21 / 32_768, -399 / 262_144)
        ratio = math.sqrt(a) * math.fsum(term / a**k for k, term in enumerate(terms))
    return ratio / math.sqrt(math.pi * degrees)


def _densities(t: Floats, degrees: int) -> Floats:
    """(m,) of Γ((ν+1)/2)/(√(νπ) Γ(ν/2)) · (1 + t²/ν)^{−(ν+1)/2}."""
    with np.errstate(over="ignore", under="ignore"):  # it is 0 there
        return np.asarray(
            _highest_density(degrees) * np.exp(-0.5 * (degrees + 1) * np.log1p(t * t / degrees)), np.float64
        )


def _central_areas(t: Floats, degrees: int) -> Floats:
    """(m,) of P(0 ≤ T ≤ t) = t·f(t)·₂F₁(1, (ν+1)/2; 3/2; t²/(ν + t²)), a series of positive terms."""
    x = t * t / (degrees + t * t)
    total, term = np.ones(len(t)), np.ones(len(t))
    for k in range(_TERMS_MAX):
        term *= (0.5 * (degrees + 1) + k) / (1.5 + k) * x
        total += term
        if (term <= _CONVERGED * total).all():
            break
    return t * _densities(t, degrees) * total


def _tail_areas(t: Floats, degrees: int) -> Floats:
    """(m,) of P(T > t), t ≥ 2: t·f(t)/ν · the continued fraction of the incomplete beta I_x(ν/2, 1/2), x = ν/(ν + t²).

    Abramowitz and Stegun 26.5.8, evaluated by Lentz's method.
    """
    with np.errstate(over="ignore"):  # then x is 0
        a, x = 0.5 * degrees, degrees / (degrees + t * t)
    fraction, numerator, denominator = np.ones(len(t)), np.ones(len(t)), np.zeros(len(t))
    left = np.arange(len(t))  # those that have not converged: further factors would only add up roundings
    found = fraction.copy()
    for k in range(1, _TERMS_MAX):
        if not len(left):
            break
        m = k // 2
        if k % 2:
            part = -(a + m) * (a + 0.5 + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            part = m * (0.5 - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        denominator = 1.0 / _none_zero(1.0 + part * denominator)
        numerator = _none_zero(1.0 + part / numerator)
        change = numerator * denominator
        fraction *= change
        if (has_converged := np.abs(change - 1.0) <= _CONVERGED).any():
            found[left[has_converged]] = fraction[has_converged]
            goes_on = ~has_converged
            left, x, fraction = left[goes_on], x[goes_on], fraction[goes_on]
            numerator, denominator = numerator[goes_on], denominator[goes_on]
    found[left] = fraction
    return t * _densities(t, degrees) / degrees / found


def _none_zero(values: Floats) -> Floats:
    return np.where(np.abs(values) > _TINY, values, _TINY)


def _normal_quantile(probability: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(probability)
