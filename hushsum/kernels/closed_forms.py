"""Kernels in closed form: exactly 1 where nothing differs, in [0, 1], and without a warning at any distance."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.kernels.distances import differences, matrix

Floats = npt.NDArray[np.float64]

_ROOT_HALF: Final = math.sqrt(0.5)
_ROOT_2_OVER_PI: Final = math.sqrt(2.0 / math.pi)


def euclidean(distance: npt.ArrayLike, width: float, power: int = 1) -> Floats:
    """The probability that ⌊(a·x + b)/w⌋, a normal, is the same for two points at this distance, to a power.

    k = 1 − 2Φ(−w/c) − (2c/(√(2π) w)) (1 − e^{−w²/(2c²)}), Datar, Immorlica, Indyk and Mirrokni 2004, section 3.2; the
    kernel of RACE, section 2.

    Args:
        distance: c = ‖x − y‖₂ ≥ 0, any shape; infinity gives 0.
        width: w, above 0.
        power: Number of concatenated hashes.

    Returns:
        float64 of the same shape, in [0, 1]; exactly 1 where c = 0.
    """
    c = np.asarray(distance, np.float64)
    z = _ratio(width, c, 1e300)
    # 1 − 2Φ(−z) = erf(z/√2); where z is tiny both parts vanish together and their difference is √(2/π)·z/2.
    small = z < 1e-7
    safe = np.where(small, 1.0, z)
    with np.errstate(over="ignore"):
        value = _erf(safe * _ROOT_HALF) + _ROOT_2_OVER_PI / safe * np.expm1(-0.5 * safe * safe)
    value = np.where(small, 0.5 * _ROOT_2_OVER_PI * z, value)
    value = np.where(c == 0.0, 1.0, np.clip(value, 0.0, 1.0))
    return _raised(value, power)


def manhattan(distance: npt.ArrayLike, width: float, power: int = 1) -> Floats:
    """The probability that ⌊(a·x + b)/w⌋, a Cauchy, is the same for two points at this distance, to a power.

    k = (2/π) arctan(w/c) − (c/(πw)) ln(1 + (w/c)²), Datar, Immorlica, Indyk and Mirrokni 2004, section 3.2.

    Args:
        distance: c = ‖x − y‖₁ ≥ 0, any shape; infinity gives 0.
        width: w, above 0.
        power: Number of concatenated hashes.

    Returns:
        float64 of the same shape, in [0, 1]; exactly 1 where c = 0.
    """
    c = np.asarray(distance, np.float64)
    z = _ratio(width, c, 1e150)  # whose square is still finite
    # Where z is tiny its square is lost: 2z/π − z/π, with the next term −z³/(6π).
    small = z < 1e-8
    safe = np.where(small, 1.0, z)
    value = (2.0 * np.arctan(safe) - np.log1p(safe * safe) / safe) / math.pi
    value = np.where(small, z / math.pi, value)
    value = np.where(c == 0.0, 1.0, np.clip(value, 0.0, 1.0))
    return _raised(value, power)


def laplacian(distance: npt.ArrayLike, scale: float, power: int = 1) -> Floats:
    """exp(−c/σ) to a power: the collision probability of random binning (Rahimi and Recht 2007, section 4).

    Args:
        distance: c = ‖x − y‖₁ ≥ 0, any shape; infinity gives 0.
        scale: σ, above 0.
        power: Number of concatenated hashes.

    Returns:
        float64 of the same shape, in [0, 1]; exactly 1 where c = 0.
    """
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(-power * (np.asarray(distance, np.float64) / scale)), np.float64)


def angular(angle: npt.ArrayLike, power: int = 1) -> Floats:
    """(1 − θ/π)^p: the probability that p random hyperplanes leave both on one side (Charikar 2002, section 3).

    Args:
        angle: θ in [0, π], any shape.
        power: p, number of concatenated hashes.

    Returns:
        float64 of the same shape, in [0, 1]; exactly 1 where θ = 0 and exactly 0 where θ = π.
    """
    return _raised(np.clip(1.0 - np.asarray(angle, np.float64) / math.pi, 0.0, 1.0), power)


def gaussian(distance: npt.ArrayLike, scale: float) -> Floats:
    """exp(−c²/σ²), the Gaussian kernel of LSQ, section 1.2 (no 2 in the denominator).

    Args:
        distance: c = ‖x − y‖₂ ≥ 0, any shape; infinity gives 0.
        scale: σ, above 0.

    Returns:
        float64 of the same shape, in [0, 1]; exactly 1 where c = 0.
    """
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(-np.square(np.asarray(distance, np.float64) / scale)), np.float64)


def cauchy(x: npt.ArrayLike, y: npt.ArrayLike, scale: float) -> Floats:
    """Π_j 1/(1 + (x_j − y_j)²/σ²) of every pair. LSQ, appendix D.1, prints a 2 above the bar: k(x, x) would be 2^d.

    Args:
        x: (n, d).
        y: (m, d).
        scale: σ, above 0.

    Returns:
        (n, m) float64 in [0, 1]; exactly 1 for equal points.
    """
    x, y = matrix(x), matrix(y)
    value = np.ones((len(x), len(y)))
    with np.errstate(over="ignore"):
        for difference in differences(x, y):
            value /= 1.0 + np.square(np.divide(difference, scale, out=difference), out=difference)
    return value


def exponential_p(x: npt.ArrayLike, y: npt.ArrayLike, scale: float, p: float) -> Floats:
    """exp(−Σ_j |(x_j − y_j)/σ|^p) of every pair (LSQ, appendix D.1): p = 1 is laplacian, p = 2 gaussian.

    Args:
        x: (n, d).
        y: (m, d).
        scale: σ, above 0.
        p: From 1 to 2.

    Returns:
        (n, m) float64 in [0, 1]; exactly 1 for equal points.

    Raises:
        ValueError: p is out of range.
    """
    if not 1.0 <= p <= 2.0:
        raise ValueError(f"p: got {p}, expected a number from 1 to 2: no stable distribution exists outside")
    x, y = matrix(x), matrix(y)
    total = np.zeros((len(x), len(y)))
    with np.errstate(over="ignore"):
        for difference in differences(x, y):
            total += np.power(np.abs(np.divide(difference, scale, out=difference), out=difference), p, out=difference)
        return np.asarray(np.exp(np.negative(total, out=total)), np.float64)


def _ratio(width: float, distance: Floats, largest: float) -> Floats:
    with np.errstate(divide="ignore", over="ignore"):
        return np.minimum(width / np.maximum(distance, 0.0), largest)


def _raised(value: Floats, power: int) -> Floats:
    return np.asarray(value if power == 1 else value**power, np.float64)


def _erf(x: Floats) -> Floats:
    try:
        from scipy.special import erf
    except ImportError:  # scipy is never needed on a device; this is slower, and the same to 1e-15
        return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)
    return np.asarray(erf(x), np.float64)
