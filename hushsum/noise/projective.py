"""Projective-geometry response (Feldman, Nelson, Nguyen, Talwar 2022): nearly the best variance, in few bits.

Values are the first K points of a projective space over the field of f numbers, f a prime; a report is any point u of
it, numbered as :mod:`hushsum.noise.projective_points` says. A report weighs λ = a/b where it is orthogonal to the
value's point v, and 1 elsewhere. h = (f^(t−1) − 1)/(f − 1) points are orthogonal to v, and f^(t−1) are not.

One uniform integer below N·T, T = a·h + b·f^(t−1), decides a draw, without rejection: its quotient by T is a uniform
point, the report of an unusable record; its remainder names an orthogonal point (a integers each) or another (b each).
Let l be the last coordinate of v that is not 0. An orthogonal point is a canonical vector of the other t − 1
coordinates, u_l following from <u, v> = 0: v is 0 after l, so what comes is canonical. A point that is not orthogonal
is any vector of the others: where one of them before l is not 0, the first such, g, stands for <u, v> = g and is
replaced by 1, and u_l follows; else u_l = 1. All draws take the same steps, whatever their values.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hushsum import acceleration
from hushsum.entropy import Entropy
from hushsum.noise.checks import NOTHING, check_counts, check_numbers, check_parameters, check_values
from hushsum.noise.projective_fold import orthogonal
from hushsum.noise.projective_points import dimension_of, indices_of, inverses, is_prime, numbers_of, points, steps_of
from hushsum.noise.uniform import Blocks, check_total, uniform

_AS_GOOD: Final = Fraction(102, 100)

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Projective:
    """Projective-geometry response; its dimension t is the least, from 2, whose space has K points.

    Args:
        ratio: λ, exact, above 1: no output is more than λ times as likely for one value as for another, and
            reporting once is ln λ-differentially private.
        inputs: K, at least 2.
        field: f, a prime.

    Raises:
        TypeError: The ratio is no Fraction, or another number no integer.
        ValueError: One is out of range, or the integers that decide a draw pass 2^62.
    """

    ratio: Fraction
    inputs: int
    field: int

    def __post_init__(self) -> None:
        check_parameters(self, self.ratio, "inputs", self.inputs, least=2)
        if type(self.field) is not int:
            raise TypeError(f"the field of a Projective is an integer, got {type(self.field).__name__}")
        check_total("this projective response", self.field * self.field)  # before a prime of any size is looked for
        if not is_prime(self.field):
            raise ValueError(f"the field of a Projective is a prime, got {self.field}")
        check_total("this projective response", self.outputs * self._total)

    @cached_property
    def dimension(self) -> int:
        """t, at least 2."""
        return dimension_of(self.field, self.inputs)

    @cached_property
    def outputs(self) -> int:
        """N = (f^t − 1)/(f − 1), at least K."""
        return points(self.field, self.dimension)

    @cached_property
    def _orthogonal(self) -> int:
        """h."""
        return points(self.field, self.dimension - 1)

    @cached_property
    def _total(self) -> int:
        others: int = self.field ** (self.dimension - 1)
        return self.ratio.numerator * self._orthogonal + self.ratio.denominator * others

    @property
    def hit(self) -> Fraction:
        """p* = λh/(λh + f^(t−1)): that a report supports, is orthogonal to, the value it was made of."""
        return Fraction(self.ratio.numerator * self._orthogonal, self._total)

    @property
    def miss(self) -> Fraction:
        """q*: that a report supports a certain other value: (f^(t−2) − 1)/(f − 1) points are orthogonal to both."""
        both = points(self.field, self.dimension - 2)
        weight = self.ratio.numerator * both + self.ratio.denominator * (self._orthogonal - both)
        return Fraction(weight, self._total)

    @property
    def variance_of_miss(self) -> Fraction:
        """q*(1 − q*)/(p* − q*)²: of a report's estimate for another value."""
        return self.miss * (1 - self.miss) / (self.hit - self.miss) ** 2

    def probability(self, value: int, output: int) -> Fraction:
        """Of an output, exactly; value −1: of an unusable record.

        Raises:
            ValueError: A number is out of range.
        """
        check_numbers(value, output, self.inputs, self.outputs)
        if value == NOTHING:
            return Fraction(1, self.outputs)
        u, v = numbers_of(np.array([output, value]), self.field, self.dimension).tolist()
        product = 0
        while u and v:
            (u, x), (v, y) = divmod(u, self.field), divmod(v, self.field)
            product += x * y
        weight = self.ratio.denominator if product % self.field else self.ratio.numerator
        return Fraction(weight, self._total)

    def randomise(self, values: Int64, entropy: Entropy) -> Int64:
        """A report of each value.

        Args:
            values: (n,) int64, from 0 to K − 1, or −1, which is answered uniformly.
            entropy: Private randomness.

        Returns:
            (n,) int64, from 0 to N − 1.

        Raises:
            TypeError: ``entropy`` cannot be read from, or the values are not int64.
            ValueError: A value is out of range.
            OSError: ``entropy`` gave fewer bytes than it was asked for.
        """
        check_values(values, NOTHING, self.inputs - 1)
        draws = uniform(self.outputs * self._total, len(values), entropy)
        for start in range(0, len(draws), Blocks.draws):
            block = slice(start, start + Blocks.draws)
            self._respond(values[block], draws[block])
        return draws

    def _respond(self, values: Int64, draws: Int64) -> None:
        """Replaces uniform integers below N·T by reports of the values."""
        tables = _coordinates(self.inputs, self.field, self.dimension)
        if not acceleration.enabled():
            self._respond_plain(values, draws, tables)
            return
        from hushsum.noise import responses_fast

        numbers = (self.field, self._total, self.ratio.numerator, self.ratio.denominator, self._orthogonal)
        space = steps_of(self.field, self.dimension)
        arrays = np.array(numbers, np.uint64), *(array.view(np.uint64) for array in (*tables, space))
        responses_fast.answer_projective(values, draws, *arrays)

    def _respond_plain(self, values: Int64, draws: Int64, tables: "_Coordinates") -> None:
        stand_in = draws // self._total
        rest = draws - stand_in * self._total
        named = rest - self.ratio.numerator * self._orthogonal
        hits = named < 0
        rest //= self.ratio.numerator
        np.minimum(rest, self._orthogonal - 1, out=rest)
        named //= self.ratio.denominator
        np.copyto(named, numbers_of(rest, self.field, self.dimension - 1), where=hits)
        numbers = self._joined(named, ~hits, np.maximum(values, 0), tables)
        draws[:] = indices_of(numbers, self.field, self.dimension)
        np.copyto(draws, stand_in, where=values == NOTHING)

    def _joined(self, others: Int64, misses: npt.NDArray[np.bool_], truth: Int64, tables: "_Coordinates") -> Int64:
        """Canonical vectors: those of all coordinates but l, with l: off the hyperplane of v where ``misses``, else on.

        Args:
            others: The vectors, as numbers in base f of t − 1 digits; they are written over.
            misses: Which are not to be orthogonal.
            truth: The values.
            tables: Of their points.
        """
        field, power = self.field, tables.power[truth]
        product, place, against = np.zeros_like(others), np.zeros_like(others), np.zeros_like(others)
        leading, result = np.ones_like(others), np.zeros_like(others)
        for digit in range(self.dimension - 1):
            rest = others // field if digit < self.dimension - 2 else np.zeros_like(others)
            x, y, worth = others - rest * field, tables.facing[digit][truth], field**digit
            others = rest
            product += x * y
            before = power <= worth
            result += x * np.where(before, worth * field, worth)
            found = (x != 0) & before
            np.copyto(leading, x, where=found)
            np.copyto(place, worth * field, where=found)  # of the leading digit, in the result
            np.copyto(against, y, where=found)
        more = leading - 1  # 0 where they are canonical, or all 0
        against *= more
        against -= product
        against += leading * misses
        against *= tables.inverse[truth]
        against %= field
        np.copyto(against, 1, where=(place == 0) & misses)
        more *= place
        result -= more
        result += against * power
        return result

    def support(self, counts: Int64) -> Int64:
        """(R, K) how many reports support each value, of (R, N) counts of reports.

        Raises:
            ValueError: The counts are of another type or shape.
        """
        check_counts(counts, self.outputs)
        return orthogonal(counts, self.field, self.dimension, self.inputs)


def projective_order(inputs: int, ratio: Fraction, *, rows: int, bits_max: int | None = None) -> int:
    """The prime f for reports of a row and a value.

    Of all primes whose report fits, those within 2 % of the least variance are as good; of them it is the one with the
    fewest outputs, which take the least memory to count and the least time to answer of. The variance is that of a
    report's estimate for a value drawn at random, which is what a hashed record far from a query is.

    Args:
        inputs: K, at least 2.
        ratio: λ, above 1.
        rows: R, at least 1: a report is a number below R·N.
        bits_max: Of a report; by default of ⌈log2(R·K)/8⌉ + 1 bytes.

    Raises:
        ValueError: No prime fits.
    """
    if bits_max is None:
        bits_max = 8 * (-(-(rows * inputs - 1).bit_length() // 8) + 1)
    fitting: list[tuple[Fraction, Projective]] = []
    for field in _primes(inputs, ratio):
        outputs = points(field, dimension_of(field, inputs))
        if (rows * outputs - 1).bit_length() <= bits_max:
            try:
                response = Projective(ratio, inputs, field)
            except ValueError:  # its integers are too large to be drawn
                continue
            fitting.append((_variance(response), response))
    if not fitting:
        raise ValueError(f"no field fits {rows} rows, {inputs} values and a ratio of {ratio} in {bits_max} bits")
    enough = min(variance for variance, _ in fitting) * _AS_GOOD
    return min((each.outputs, variance, each.field) for variance, each in fitting if variance <= enough)[2]


def field_end(inputs: int, ratio: Fraction) -> int:
    """What every field worth having is below: beyond a few times λ, and K, variance, memory and time only rise."""
    return min(max(inputs, 3), 16 * int(ratio) + 64) + 64


def _primes(inputs: int, ratio: Fraction) -> list[int]:
    """Ascending."""
    return [number for number in range(2, field_end(inputs, ratio)) if is_prime(number)]


def _variance(response: Projective) -> Fraction:
    """s(1 − s)/(p* − q*)², s = q* + (p* − q*)/K: of an estimate for a value drawn at random."""
    gap = response.hit - response.miss
    chance = response.miss + gap / response.inputs
    return chance * (1 - chance) / gap**2


class _Coordinates(NamedTuple):
    """Of each value's point, in t coordinates of which number l is the last that is not 0."""

    power: Int64  # (K,): f^(t − 1 − l)
    inverse: Int64  # (K,): 1/v_l
    facing: Int64  # (t − 1, K): the coordinates but l, the last first


@lru_cache(maxsize=16)
def _coordinates(inputs: int, field: int, dimension: int) -> _Coordinates:
    """8·(t + 1)·K bytes."""
    numbers = numbers_of(np.arange(inputs, dtype=np.int64), field, dimension)
    rest, power = numbers.copy(), np.ones_like(numbers)
    while len(zeros := np.flatnonzero(rest % field == 0)):
        rest[zeros] //= field
        power[zeros] *= field
    others = rest // field * power  # the coordinates after l are 0
    facing = np.stack([others // field**digit % field for digit in range(dimension - 1)])
    tables = _Coordinates(power, inverses(field)[rest % field], facing)
    for table in tables:
        table.flags.writeable = False
    return tables
