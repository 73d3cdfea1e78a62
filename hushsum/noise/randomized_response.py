"""k-ary randomised response: the value itself with weight λ = a/b, each other one with weight 1 (Kairouz et al. 2016).

One uniform integer below K·T, T = a + (K − 1)·b, decides a draw. Its quotient by T is a uniform value, the report
of an unusable record. Its remainder U keeps the value where U < a, and else names number (U − a)//b of the K − 1
others. All draws take the same steps, whatever their values; how many words are read depends on none of them.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hushsum import compiled
from hushsum.entropy import Entropy
from hushsum.noise.random_words import Blocks, check_total, uniform
from hushsum.noise.validation import NOTHING, check_counts, check_numbers, check_parameters, check_values

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KRR:
    """k-ary randomised response.

    Args:
        ratio: λ, exact, above 1: no output is more than λ times as likely for one value as for another, and
            reporting once is ln λ-differentially private.
        inputs: K, at least 2.

    Raises:
        TypeError: The ratio is no Fraction, or the number of values no integer.
        ValueError: One is out of range, or the integers that decide a draw pass 2^62.
    """

    ratio: Fraction
    inputs: int

    def __post_init__(self) -> None:
        check_parameters(self, self.ratio, "inputs", self.inputs, least=2)
        check_total("this randomised response", self.inputs * self._total)

    @property
    def outputs(self) -> int:
        """K."""
        return self.inputs

    @cached_property
    def _total(self) -> int:
        return self.ratio.numerator + (self.inputs - 1) * self.ratio.denominator

    @property
    def hit(self) -> Fraction:
        """p* = λ/(λ + K − 1): that a report supports the value it was made of."""
        return Fraction(self.ratio.numerator, self._total)

    @property
    def miss(self) -> Fraction:
        """q* = 1/(λ + K − 1): that a report supports a certain other value."""
        return Fraction(self.ratio.denominator, self._total)

    @property
    def variance_of_miss(self) -> Fraction:
        """q*(1 − q*)/(p* − q*)² = (λ + K − 2)/(λ − 1)²: of a report's estimate for another value."""
        return self.miss * (1 - self.miss) / (self.hit - self.miss) ** 2

    def probability(self, value: int, output: int) -> Fraction:
        """Of an output, exactly; value −1: of an unusable record.

        Raises:
            ValueError: A number is out of range.
        """
        check_numbers(value, output, self.inputs, self.outputs)
        if value == NOTHING:
            return Fraction(1, self.inputs)
        return self.hit if output == value else self.miss

    def randomise(self, values: Int64, entropy: Entropy) -> Int64:
        """A report of each value.

        Args:
            values: (n,) int64, from 0 to K − 1, or −1, which is answered uniformly.
            entropy: Private randomness.

        Returns:
            (n,) int64, from 0 to K − 1.

        Raises:
            TypeError: ``entropy`` cannot be read from, or the values are not int64.
            ValueError: A value is out of range.
            OSError: ``entropy`` gave fewer bytes than it was asked for.
        """
        check_values(values, NOTHING, self.inputs - 1)
        draws = uniform(self.inputs * self._total, len(values), entropy)
        for start in range(0, len(draws), Blocks.draws):
            block = slice(start, start + Blocks.draws)
            self._respond(values[block], draws[block])
        return draws

    def _respond(self, values: Int64, draws: Int64) -> None:
        """Replaces the draws by reports of the values."""
        if compiled.enabled():
            from hushsum.noise import randomiser_loops

            numbers = (self._total, self.ratio.numerator, self.ratio.denominator)
            randomiser_loops.answer_choice(values, draws, *map(np.uint64, numbers))
        else:
            self._respond_plain(values, draws)

    def _respond_plain(self, values: Int64, draws: Int64) -> None:
        stand_in = draws // self._total
        draws -= stand_in * self._total
        draws -= self.ratio.numerator
        kept = draws < 0
        draws //= self.ratio.denominator
        draws += draws >= values  # the others are numbered past the value itself
        np.copyto(draws, values, where=kept)
        np.copyto(draws, stand_in, where=values == NOTHING)

    def support(self, counts: Int64) -> Int64:
        """(R, K) how many reports support each value, of (R, K) counts of reports: the same numbers, read-only."""
        check_counts(counts, self.outputs)
        same = counts.view()
        same.flags.writeable = False
        return same
