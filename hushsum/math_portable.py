"""Elementary functions of float64 arrays, the same bits on every platform.

Those of C libraries differ between platforms. Here every step is one NumPy ufunc over an array, and is exact or a
correctly rounded float64 operation (+ − × ÷ √), so that no compiler may fuse two of them or change their order.
Accuracies are relative to the true value; 1 ulp is at most 2⁻⁵² of it.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: :func:`exp` takes arguments of at most this absolute value; a farther one is taken for the nearer end.
EXP_LIMIT: Final = 700.0

_LN2_HIGH: Final = float.fromhex("0x1.62e42fee00000p-1")  # ln 2 to 32 bits: its product with an exponent is exact
_LN2_LOW: Final = float.fromhex("0x1.a39ef35793c76p-33")
_INVERSE_LN2: Final = float.fromhex("0x1.71547652b82fep+0")
_SQRT_HALF: Final = float.fromhex("0x1.6a09e667f3bcdp-1")
_TWO_PI: Final = float.fromhex("0x1.921fb54442d18p+2")
_LN_TERMS: Final = 12  # of atanh: (3 − 2√2)²⁴/25 < 2⁻⁶⁵, far below the rounding of the sum
# Quotients of integers below 2⁵³ (18! < 2⁵³): one correctly rounded division each.
_EXP_SERIES: Final = tuple(1 / math.factorial(k) for k in range(14, 1, -1))  # (½ ln 2)¹⁴/15! < 2⁻⁶¹
_SIN_SERIES: Final = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(8, 0, -1))  # (π/4)¹⁸/19! < 2⁻⁶²
_COS_SERIES: Final = tuple((-1) ** k / math.factorial(2 * k) for k in range(9, 1, -1))  # (π/4)²⁰/20! < 2⁻⁶⁷

# Wichura's PPND16, highest powers first: |u − ½| ≤ 0.425; then r = √(−ln min(u, 1 − u)) ≤ 5; then r > 5.
_CENTRE: Final = (
    (
        2.5090809287301226727e3,
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3,
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    ),
)
_NEAR_TAIL: Final = (
    (
        7.74545014278341407640e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e0,
        3.64784832476320460504e0,
        5.76949722146069140550e0,
        4.63033784615654529590e0,
        1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e0,
        2.05319162663775882187e0,
        1.0,
    ),
)
_FAR_TAIL: Final = (
    (
        2.01033439929228813265e-7,
        2.71155556874348757815e-5,
        1.24266094738807843860e-3,
        2.65321895265761230930e-2,
        2.96560571828504891230e-1,
        1.78482653991729133580e0,
        5.46378491116411436990e0,
        6.65790464350110377720e0,
    ),
    (
        2.04426310338993978564e-15,
        1.42151175831644588870e-7,
        1.84631831751005468180e-5,
        7.86869131145613259100e-4,
        1.48753612908506148525e-2,
        1.36929880922735805310e-1,
        5.99832206555887937690e-1,
        1.0,
    ),
)


def ln(x: Floats) -> Floats:
    """The natural logarithm of normal float64 above 0, within about 1 ulp.

    x = m·2ᵉ with m in [√½, √2), ln x = e·ln 2 + 2·atanh(f), f = (m − 1)/(m + 1), by Horner's rule on the odd series.
    """
    mantissa, exponent = np.frexp(x)
    low = mantissa < _SQRT_HALF
    mantissa = np.where(low, 2.0 * mantissa, mantissa)
    e = np.where(low, exponent - 1, exponent).astype(np.float64)
    f = (mantissa - 1.0) / (mantissa + 1.0)
    square = f * f
    series = np.full_like(x, 1.0 / (2 * _LN_TERMS + 1))
    for k in range(_LN_TERMS - 1, 0, -1):
        series = series * square + 1.0 / (2 * k + 1)
    tail = 2.0 * (f * (series * square))
    return e * _LN2_HIGH + (2.0 * f + (tail + e * _LN2_LOW))


def exp(x: Floats) -> Floats:
    """e to the power of x, x in [−700, 700] (what lies beyond is taken for the nearer end), within about 1 ulp.

    x = k·ln 2 + r with k whole and |r| ≤ ½ ln 2 and a little; e^r by Horner's rule on its series.
    """
    x = np.minimum(np.maximum(x, -EXP_LIMIT), EXP_LIMIT)
    k = np.rint(x * _INVERSE_LN2)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    return np.ldexp(1.0 + (r + r * r * _horner(_EXP_SERIES, r)), k.astype(np.int32))


def sin_cos_turns(t: Floats) -> tuple[Floats, Floats]:
    """(sin 2πt, cos 2πt) for any finite t, each within about 2 ulp, and exact where t is a multiple of ¼.

    t is brought into [−⅛, ⅛] without rounding, so small values of either function keep their relative accuracy.
    """
    part = t - np.rint(t)
    quarters = np.rint(4.0 * part)
    x = _TWO_PI * (part - 0.25 * quarters)
    square = x * x
    sine = x + x * square * _horner(_SIN_SERIES, square)
    cosine = 1.0 + square * (-0.5 + square * _horner(_COS_SERIES, square))
    odd, back, negative = np.abs(quarters) == 1.0, np.abs(quarters) == 2.0, quarters < 0.0
    sign = np.where(odd & negative | back, -1.0, 1.0)
    return sign * np.where(odd, cosine, sine), np.where(back | odd & ~negative, -1.0, 1.0) * np.where(odd, sine, cosine)


def power(x: Floats, y: float | Floats) -> Floats:
    """x to the power of y for normal x above 0, |y·ln x| ≤ 700, within a relative 2⁻⁵²·(2 + 2·|y·ln x|)."""
    return exp(y * ln(x))


def normal_quantile(u: Floats) -> Floats:
    """Φ⁻¹(u), the quantile of the standard normal, for u in (0, 1), within a relative 10⁻¹⁵ or so.

    Wichura, Algorithm AS 241: The percentage points of the normal distribution, Applied Statistics 37, 1988 (PPND16).
    """
    q = u - 0.5
    nearer = np.minimum(u, 1.0 - u)
    central = np.abs(q) <= 0.425
    r = np.sqrt(-ln(np.where(central, 0.25, nearer)))
    far = r > 5.0
    centre = q * _ratio(_CENTRE, 0.180625 - np.where(central, q * q, 0.0))
    tail = np.where(far, _ratio(_FAR_TAIL, r - 5.0), _ratio(_NEAR_TAIL, r - 1.6))
    return np.where(central, centre, np.where(q < 0.0, -tail, tail))


def _horner(coefficients: tuple[float, ...], x: Floats) -> Floats:
    """The polynomial of these coefficients, highest power first."""
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def _ratio(pair: tuple[tuple[float, ...], tuple[float, ...]], x: Floats) -> Floats:
    above, below = pair
    return _horner(above, x) / _horner(below, x)
