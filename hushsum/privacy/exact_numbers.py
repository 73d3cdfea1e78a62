"""Exact numbers as people read them: as they are where that is short, else rounded against us."""

from fractions import Fraction
from typing import Final

from hushsum.canonical import real_text

_SHORT: Final = 12  # characters that are read at a glance
SIGNIFICANT_DIGITS: Final = 6
_TINY: Final = Fraction(1, 1000)  # from here on nobody counts zeros


def numeral(value: Fraction, *, up: bool) -> str:
    """A decimal or a fraction of at most about 12 characters, which :class:`~fractions.Fraction` reads.

    Args:
        value: At least 0.
        up: Whether what does not fit is rounded up (what is spent) or down (what is left), to 6 significant digits.
    """
    tiny = 0 < value < _TINY
    text = real_text(value)
    if len(text) <= _SHORT and not tiny:
        return text
    notch = notch_of(value)
    scaled = value / notch
    rounded = -(-scaled.numerator // scaled.denominator) if up else scaled.numerator // scaled.denominator
    return _scientific(rounded, notch) if tiny else real_text(rounded * notch)


def notch_of(value: Fraction) -> Fraction:
    """The power of ten that is the sixth significant digit of a value above 0."""
    exponent = len(str(value.numerator)) - len(str(value.denominator)) - SIGNIFICANT_DIGITS
    notch = Fraction(10) ** exponent  # one of the two powers of ten that may be it
    return notch * 10 if value >= 10**SIGNIFICANT_DIGITS * notch else notch


def _scientific(digits: int, notch: Fraction) -> str:
    """Such as ``1e-6``: what is tiny is read by its exponent."""
    exponent = len(str(notch.numerator)) - len(str(notch.denominator))  # notch is a power of ten
    text = str(digits)
    mantissa = f"{text[0]}.{text[1:]}".rstrip("0").rstrip(".")
    return f"{mantissa}e{exponent + len(text) - 1}"
