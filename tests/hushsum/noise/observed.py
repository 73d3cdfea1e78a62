"""What the discrete Laplace sampler really does, read off by driving it with crafted words instead of random ones.

A draw reads ``columns`` words of 16 bits for each of its two geometrics, lowest digit first, the last word standing for
all that lies above; then 8 bytes for every tie. So feeding it every first word, and bisecting over what follows a tie,
gives the exact binary digits of the probability with which each digit comes out 1: of the code, not of the formula.
"""

import math
from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from hushsum.noise.discrete_laplace import DiscreteLaplace

FAIL = 0xFFFF  # a first word above every threshold, for no digit is likelier than one half
ALL = 2**16


class Tape:
    """Entropy that was written beforehand; behind its end only ones, which decide every comparison as "not below"."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def read(self, size: int) -> bytes:
        part = self.data[self.at : self.at + size]
        self.at += size
        return part + b"\xff" * (size - len(part))


def columns_of(scale: Fraction) -> int:
    """Words of one geometric, from how much a draw reads: the top word of a draw of no ties is its last."""
    tape = Tape(b"")
    DiscreteLaplace(scale).sample(1, tape)
    return tape.at // 4


def draw(scale: Fraction, words: npt.NDArray[np.uint16], *ties: int) -> npt.NDArray[np.int64]:
    """The draws of (n, 2, columns) first words, with these 64-bit words for the ties."""
    tape = Tape(words.astype("<u2").tobytes() + b"".join(tie.to_bytes(8, "little") for tie in ties))
    return DiscreteLaplace(scale).sample(len(words), tape)


def no_digits(scale: Fraction, draws: int) -> npt.NDArray[np.uint16]:
    """(draws, 2, columns) first words that make every digit 0."""
    return np.full((draws, 2, columns_of(scale)), FAIL, dtype=np.uint16)


def prefix(scale: Fraction, column: int, *, side: int, ties: int) -> int:
    """The first 16 + 64·ties binary digits of the probability that a digit of one geometric is 1.

    Args:
        column: Which digit; the last stands for all above.
        side: 0 for the geometric that is added, 1 for the one that is subtracted.
        ties: How deep to look.
    """
    value = (-1 if side else 1) << column
    words = no_digits(scale, ALL)
    words[:, side, column] = np.arange(ALL)
    outcomes = draw(scale, words)
    hits = int((outcomes == value).sum())
    assert set(outcomes.tolist()) <= {0, value}
    assert (outcomes[:hits] == value).all(), "a larger word came out 1 where a smaller one came out 0"
    found = [hits]
    for _ in range(ties):
        found.append(_bisect(scale, column, side, found))
    result = found[0]
    for word in found[1:]:
        result = result << 64 | word
    return result


def _bisect(scale: Fraction, column: int, side: int, before: list[int]) -> int:
    words = no_digits(scale, 1)
    words[0, side, column] = before[0]
    low, high = 0, 2**64  # as many of the words that follow make the digit 1
    while low < high:
        middle = (low + high) // 2
        if draw(scale, words, *before[1:], middle)[0]:
            low = middle + 1
        else:
            high = middle
    return low


def true_prefix(x: Fraction, bits: int, *, tail: bool) -> int:
    """⌊p·2^bits⌋ of p = 1/(1 + e^x), or of e^-x, by another road than the sampler's: correctly rounded decimals."""
    with localcontext() as context:
        context.prec = 60 + bits  # decimal digits: far more than the binary ones need
        decimal = Decimal(x.numerator) / Decimal(x.denominator)
        scaled = ((-decimal).exp() if tail else 1 / (1 + decimal.exp())) * Decimal(2) ** bits
        nearest = scaled.to_integral_value()
        assert nearest == 0 or abs(scaled - nearest) > Decimal(10) ** -30, "too near an integer for this precision"
        return int(scaled.to_integral_value(ROUND_FLOOR))


def pmf(scale: Fraction, *, reach: int, ties: int = 3) -> dict[int, tuple[Fraction, Fraction]]:
    """Rigorous bounds of P(k), |k| <= reach, from the sampler's observed thresholds: what it draws, exactly.

    For scales of 8 columns: 7 digits, and the top part up to 3 times, which must hold all but a negligible part.
    """
    columns = columns_of(scale)
    assert columns == 8
    one = 1 << 16 + 64 * ties
    thresholds = [prefix(scale, column, side=0, ties=ties) for column in range(columns)]
    ends = []
    for end in (0, 1):
        geometric = [1]
        for threshold in thresholds[:-1]:  # digit after digit: all values below 2^digits, in units of one^-digits
            geometric = [p * (one - threshold - (1 - end)) for p in geometric] + [
                p * (threshold + end) for p in geometric
            ]
        top = thresholds[-1] + end
        rest = one - thresholds[-1] - (1 - end)
        parts = [p * rest * top**times * one ** (3 - times) for times in range(4) for p in geometric]
        ends.append(parts)
    unit = one ** (columns - 1 + 4)
    bounds = {}
    fine = 1 << 1024  # bounds are rounded outwards to multiples of 2^-1024, which keeps what follows fast
    for k in range(reach + 1):
        low, high = (sum(p * q for p, q in zip(parts[k:], parts, strict=False)) for parts in ends)
        slack = Fraction(2 * (thresholds[-1] + 1) ** 4, one**4)  # the top part four times or more, on either side
        high += math.ceil(slack * unit * unit)
        bounds[k] = bounds[-k] = (
            Fraction(low * fine // (unit * unit), fine),
            Fraction(-(-high * fine // (unit * unit)), fine),
        )
    return bounds
