"""One bit of a bounded number: an unbiased coin whose law follows the number, rounded and randomised in one draw.

P(1) = 1/2 + (v/peak)·(λ − 1)/(2(λ + 1)) for an integer v of absolute value at most ``peak``: randomised rounding of v
to ±peak, and binary randomised response with ratio λ = a/b of the sign (Duchi, Jordan, Wainwright 2018, for one
coordinate). One uniform integer U below 2·peak·(a + b) decides it: the bit is 1 where U < peak·(a + b) + v·(a − b).
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hushsum.entropy import Entropy
from hushsum.noise.random_words import Blocks, check_total, uniform
from hushsum.noise.validation import check_parameters, check_values

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OneBit:
    """One-bit response to a number in [−peak, peak].

    Args:
        ratio: λ, exact, above 1: a bit is at most λ times as likely for one number as for another, and at ±peak it is.
        peak: At least 1.

    Raises:
        TypeError: The ratio is no Fraction, or the peak no integer.
        ValueError: One is out of range, or the integers that decide a draw pass 2^62.
    """

    ratio: Fraction
    peak: int

    def __post_init__(self) -> None:
        check_parameters(self, self.ratio, "peak", self.peak, least=1)
        check_total("this one-bit response", 2 * self._half)

    @property
    def outputs(self) -> int:
        """2: a bit."""
        return 2

    @cached_property
    def _half(self) -> int:
        """The integers below which the bit of 0 is 1."""
        return self.peak * (self.ratio.numerator + self.ratio.denominator)

    @property
    def factor(self) -> Fraction:
        """peak·(λ + 1)/(λ − 1): the number is what (2·bit − 1)·factor is on average."""
        return self.peak * (self.ratio + 1) / (self.ratio - 1)

    def probability(self, entry: int, bit: int) -> Fraction:
        """Of a bit, exactly; the response to an unusable record is that to 0.

        Raises:
            ValueError: A number is out of range.
        """
        if abs(entry) > self.peak or bit not in (0, 1):
            raise ValueError(f"entry {entry} and bit {bit}, expected at most {self.peak} in absolute value, and 0 or 1")
        one = Fraction(1, 2) + Fraction(entry, self.peak) * (self.ratio - 1) / (2 * (self.ratio + 1))
        return one if bit else 1 - one

    def randomise(self, entries: Int64, entropy: Entropy, nothing: npt.NDArray[np.bool_] | None = None) -> Int64:
        """A bit of each number.

        Args:
            entries: (n,) int64, from −peak to peak.
            entropy: Private randomness.
            nothing: (n,) where a record was unusable: its bit is a fair one.

        Returns:
            (n,) int64 of 0 and 1.

        Raises:
            TypeError: ``entropy`` cannot be read from, or the numbers are not int64.
            ValueError: A number is out of range, or the mask of another shape.
            OSError: ``entropy`` gave fewer bytes than it was asked for.
        """
        check_values(entries, -self.peak, self.peak)
        if nothing is not None and (nothing.shape != entries.shape or nothing.dtype != np.bool_):
            raise ValueError(
                f"a mask {nothing.dtype} {nothing.shape} for {len(entries)} numbers, expected one bool each"
            )
        draws = uniform(2 * self._half, len(entries), entropy)
        step = self.ratio.numerator - self.ratio.denominator
        for start in range(0, len(draws), Blocks.draws):
            block = slice(start, start + Blocks.draws)
            below = entries[block] * step
            if nothing is not None:
                below *= ~nothing[block]
            below += self._half
            np.less(draws[block], below, out=draws[block], casting="unsafe")
        return draws
