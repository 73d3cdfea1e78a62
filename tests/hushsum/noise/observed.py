"""What the samplers really do, read off by driving them with crafted words instead of random ones.

A draw of the discrete Laplace sampler reads ``columns`` words of 16 bits for each of its two geometrics, lowest digit
first, the last word standing for all that lies above; then 8 bytes for every tie. So feeding it every first word, and
bisecting over what follows a tie, gives the exact binary digits of the probability with which each digit comes out 1:
of the code, not of the formula. The discrete Gaussian one is in ``observed_gaussian``.
"""

from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hushsum.noise import DiscreteGaussian, DiscreteLaplace, Sampler
from hushsum.noise.discrete_laplace import GROUP_DRAWS
from hushsum.noise.geometric_digits import digits
from tests.hushsum.noise import observed_gaussian

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
    groups = (words[start : start + GROUP_DRAWS] for start in range(0, len(words), GROUP_DRAWS))
    firsts = b"".join(group.transpose(2, 1, 0).astype("<u2").tobytes() for group in groups)
    tape = Tape(firsts + b"".join(tie.to_bytes(8, "little") for tie in ties))
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
    tied = no_digits(scale, 1)
    tied[0, side, column] = hits

    def comes_out(tie: int) -> bool:
        return bool(draw(scale, tied, *found[1:], tie)[0])

    for level in range(1, ties + 1):
        guess = digits(scale).thresholds[column].prefix(16 + 64 * level) % 2**64
        found.append(observed_gaussian.count(2**64, comes_out, guess))
    result = found[0]
    for word in found[1:]:
        result = result << 64 | word
    return result


def true_prefix(x: Fraction, bits: int, *, tail: bool) -> int:
    """⌊p·2^bits⌋ of p = 1/(1 + e^x), or of e^-x, by another road than the sampler's: correctly rounded decimals."""
    with localcontext() as context:
        context.prec = 60 + bits  # decimal digits: far more than the binary ones need
        decimal = Decimal(x.numerator) / Decimal(x.denominator)
        scaled = ((-decimal).exp() if tail else 1 / (1 + decimal.exp())) * Decimal(2) ** bits
        nearest = scaled.to_integral_value()
        assert nearest == 0 or abs(scaled - nearest) > Decimal(10) ** -30, "too near an integer for this precision"
        return int(scaled.to_integral_value(ROUND_FLOOR))


def pmf(sampler: Sampler, reach: int, *, ties: int = 2) -> dict[int, tuple[Fraction, Fraction]]:
    """Rigorous bounds of P(k), |k| <= reach, of what a sampler draws: from its observed decisions, not its formula.

    Args:
        sampler: A discrete Laplace one of scale up to 10 (its time grows with the scale), or a discrete Gaussian one of
            σ up to 32 (below that its strips hold one value each).
        reach: Of k, on either side.
        ties: How many words of 64 bits to look at behind the first bits of each threshold.
    """
    if isinstance(sampler, DiscreteGaussian):
        return observed_gaussian.pmf(sampler, reach, ties=ties)
    assert isinstance(sampler, DiscreteLaplace)
    assert sampler.scale <= 10
    return _laplace_pmf(sampler.scale, reach, ties)


def _laplace_pmf(scale: Fraction, reach: int, ties: int) -> dict[int, tuple[Fraction, Fraction]]:
    added, subtracted = (_geometric(scale, side, ties) for side in (0, 1))
    bounds = {}
    fine = 1 << 1024  # bounds are rounded outwards to multiples of 2^-1024, which keeps what follows fast
    for k in range(-reach, reach + 1):
        ends = [
            sum(p * q for p, q in zip(one[max(k, 0) :], other[max(-k, 0) :], strict=False))
            for one, other in zip(added.ends, subtracted.ends, strict=True)
        ]
        high = ends[1] + added.beyond * subtracted.unit + subtracted.beyond * added.unit
        whole = added.unit * subtracted.unit
        bounds[k] = Fraction(ends[0] * fine // whole, fine), Fraction(-(-high * fine // whole), fine)
    return bounds


class _Geometric(NamedTuple):
    """Lower and upper ends of P(value) from 0 on, and an upper end of all that is left out, in shares of ``unit``."""

    ends: tuple[list[int], list[int]]
    beyond: int
    unit: int


def _geometric(scale: Fraction, side: int, ties: int) -> _Geometric:
    """Of one of the two geometrics: its digits, and the part above them up to 3 times."""
    columns, one = columns_of(scale), 1 << 16 + 64 * ties
    thresholds = [prefix(scale, column, side=side, ties=ties) for column in range(columns)]
    ends = []
    for end in (0, 1):
        digits = [1]
        for threshold in thresholds[:-1]:  # digit after digit: all values below 2^digits, in units of one^-digits
            digits = [p * (one - threshold - (1 - end)) for p in digits] + [p * (threshold + end) for p in digits]
        top = thresholds[-1] + end
        rest = one - thresholds[-1] - (1 - end)
        ends.append([p * rest * top**times * one ** (3 - times) for times in range(4) for p in digits])
    unit = one ** (columns - 1 + 4)
    return _Geometric((ends[0], ends[1]), (thresholds[-1] + 1) ** 4 * one ** (columns - 1), unit)
