"""Probabilities that are functions of e⁻ˣ, known to as many binary digits as anyone asks for.

Everything is integer arithmetic with the rounding outwards: an enclosure [low, high] that certainly holds the number.
No float decides anything here. For rational x > 0 the number e⁻ˣ is transcendental (Lindemann), so none of these
probabilities is a binary fraction: a finer enclosure always settles the next digit. For x = 0 they are rational, and
their digits are those of a division.
"""

import math
from enum import Enum
from fractions import Fraction
from typing import Final

_GUARD_BITS: Final = 32  # beyond the digits asked for, so that one enclosure nearly always settles them
_ONE: Final = Fraction(1)
_SPARE_BITS: Final = 8  # of the working precision: they keep an enclosure tight, not right


class Form(Enum):
    """Which function of x a probability is."""

    DIGIT = "1/(1 + e^x)"
    TAIL = "factor * e^-x"


def exp_minus(x: Fraction, bits: int) -> tuple[int, int]:
    """Integers ``low <= e^-x * 2^bits <= high``, usually one apart.

    Args:
        x: At least 0.
        bits: At least 1.

    Raises:
        ValueError: ``x`` is negative.
    """
    if x < 0:
        raise ValueError(f"an enclosure of e^-x needs x >= 0, got {x}")
    if x >= bits:
        return 0, 1  # e^-x < 2^-x <= 2^-bits
    halvings = math.ceil(x).bit_length()
    working = bits + 2 * halvings + _SPARE_BITS
    low, high = _series(x / (1 << halvings), working)
    for _ in range(halvings):  # e^-x = (e^-(x/2))^2
        low, high = low * low >> working, _shift_up(high * high, working)
    return low >> working - bits, _shift_up(high, working - bits)


def exp_upper(x: Fraction, bits: int = 64) -> Fraction:
    """A rational that is at least e^x for x >= 0, above it by a factor of at most about 1 + 2^-bits."""
    working = bits + 2 * math.ceil(x) + 2  # e^-x > 2^-2x keeps at least ``bits`` digits
    low, _ = exp_minus(x, working)
    return Fraction(1 << working, low)


class ProbabilityThreshold:
    """A probability that a random word is compared with: U < p, where U = 0.w₁w₂w₃… in binary.

    Its digits are computed when they are first asked for, and kept; it holds nothing that depends on what is compared.

    Args:
        x: Above 0; or 0 for the tail form.
        form: Which function of x.
        factor: What a tail is multiplied by, above 0: the product must be at most 1, and 1 only where x = 0.

    Raises:
        ValueError: x or the factor is out of range.
    """

    def __init__(self, x: Fraction, form: Form, factor: Fraction = _ONE) -> None:
        if x < 0 or (x == 0 and form is not Form.TAIL):
            raise ValueError(f"a threshold needs x > 0, got {x}")
        if factor <= 0 or (factor != 1 and form is not Form.TAIL):
            raise ValueError(f"a threshold takes no factor of {factor}")
        self.x = x
        self.form = form
        self.factor = factor
        self._prefixes: dict[int, int] = {}

    def prefix(self, bits: int) -> int:
        """⌊p·2^bits⌋, exactly: the first ``bits`` binary digits of p (2^bits where p = 1)."""
        known = self._prefixes.get(bits)
        if known is None:
            known = self._prefixes[bits] = self._compute(bits)
        return known

    def _compute(self, bits: int) -> int:
        if self.x == 0:
            return (self.factor.numerator << bits) // self.factor.denominator
        extra = _GUARD_BITS + math.ceil(self.factor).bit_length()
        while True:
            low, high = self._enclosure(bits + extra)
            if low >> extra == high >> extra:
                return low >> extra
            extra *= 2

    def _enclosure(self, bits: int) -> tuple[int, int]:
        low, high = exp_minus(self.x, bits)
        if self.form is Form.TAIL:
            up, down = self.factor.numerator, self.factor.denominator
            return low * up // down, -(-high * up // down)
        one = 1 << bits  # 1/(1 + e^x) = E/(1 + E) grows with E = e^-x
        return (low << bits) // (one + low), -(-(high << bits) // (one + high))

    def __repr__(self) -> str:
        return f"Threshold({self.x!r}, {self.form}, {self.factor!r})"


def _series(y: Fraction, bits: int) -> tuple[int, int]:
    """Bounds of e^-y * 2^bits for 0 <= y < 1, from the alternating series Σ (−y)^j / j!."""
    term_low = term_high = low = high = 1 << bits
    j = 0
    while term_high > 1:
        j += 1
        divisor = y.denominator * j
        term_low = term_low * y.numerator // divisor
        term_high = -(-term_high * y.numerator // divisor)
        if j % 2:
            low, high = low - term_high, high - term_low
        else:
            low, high = low + term_low, high + term_high
        # The terms decrease, so that the rest is smaller than the last one taken: at most one unit at the end.
    return low - 1, high + 1


def _shift_up(value: int, bits: int) -> int:
    return -(-value >> bits)
