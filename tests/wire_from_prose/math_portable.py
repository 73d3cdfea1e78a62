"""Portable arithmetic, written from the sections "Conventions" and "Portable functions" of docs/reference/wire.md.

Only what `hashed` with the `euclidean` kernel and independent draws needs: ln, and rounding to float32.
"""

import math
import struct

LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
SQRT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")
ATANH_COEFFICIENTS = tuple(1 / odd for odd in range(25, 1, -2))


def horner(coefficients: tuple[float, ...], x: float) -> float:
    """Return the polynomial with these coefficients, the highest power first, one operation a step."""
    value = coefficients[0]
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def ln(x: float) -> float:
    """Return the natural logarithm of a normal float64 above 0, the same on every computer."""
    mantissa, exponent = math.frexp(x)
    if mantissa < SQRT_HALF:
        mantissa = 2 * mantissa
        exponent -= 1
    f = (mantissa - 1) / (mantissa + 1)
    q = f * f
    t = horner(ATANH_COEFFICIENTS, q)
    tail = 2 * (f * (t * q))
    return exponent * LN2_HIGH + (2 * f + (tail + exponent * LN2_LOW))


def float32(x: float) -> float:
    """Return a float64 rounded to float32; what is too large becomes infinite.

    A float32 operation is the float64 operation, then this: for + - x / and the square root, rounding twice gives
    the same number as rounding once.
    """
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)
    return rounded


def clip(x: float, lower: float, upper: float) -> float:
    """Return x, or the bound that it is beyond."""
    return min(max(x, lower), upper)
