"""Projective-geometry response (Feldman, Nelson, Nguyen, Talwar 2022): nearly the best variance, in few bits.

Values are the first K points of a projective space over the field of f numbers, f a prime; a report is any point u of
it, numbered as said below. A report weighs λ = a/b where it is orthogonal to the
value's point v, and 1 elsewhere. h = (f^(t−1) − 1)/(f − 1) points are orthogonal to v, and f^(t−1) are not.

One uniform integer below N·T, T = a·h + b·f^(t−1), decides a draw, without rejection: its quotient by T is a uniform
point, the report of an unusable record; its remainder names an orthogonal point (a integers each) or another (b each).
Let l be the last coordinate of v that is not 0. An orthogonal point is a canonical vector of the other t − 1
coordinates, u_l following from <u, v> = 0: v is 0 after l, so what comes is canonical. A point that is not orthogonal
is any vector of the others: where one of them before l is not 0, the first such, g, stands for <u, v> = g and is
replaced by 1, and u_l follows; else u_l = 1. All draws take the same steps, whatever their values.

**Numbering of points**, which is part of the format of reports. A point of dimension t is a vector of t coordinates,
not all zero, up to a factor; its canonical vector is the one whose first coordinate that is not 0 is 1. Read as a
number in base f, the first coordinate first, canonical vectors are numbered in ascending order: with k coordinates
after its leading 1, number n stands at n − f^k + (f^k − 1)/(f − 1). So the first (f^k − 1)/(f − 1) points are those of
dimension k, with zeros before.

**Folding** counts how many of the reported points are orthogonal to each of the first points. After Feldman, Nelson,
Nguyen, Talwar 2022, section 4: sums over points are folded one coordinate at a time, each fold replacing a coordinate
of the points by the same one of the queries, beside the value z that the inner product has so far. Here only canonical
queries are folded, and those that differ by a factor are read off them: f^t numbers are moved t − 2 times, f additions
each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hushsum import compiled
from hushsum.entropy import Entropy
from hushsum.noise.random_words import Blocks, check_total, uniform
from hushsum.noise.validation import NOTHING, check_counts, check_numbers, check_parameters, check_values

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
        if not compiled.enabled():
            self._respond_plain(values, draws, tables)
            return
        from hushsum.noise import randomiser_loops

        numbers = (self.field, self._total, self.ratio.numerator, self.ratio.denominator, self._orthogonal)
        space = steps_of(self.field, self.dimension)
        arrays = np.array(numbers, np.uint64), *(array.view(np.uint64) for array in (*tables, space))
        randomiser_loops.answer_projective(values, draws, *arrays)

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


def points(field: int, dimension: int) -> int:
    """(f^t − 1)/(f − 1): how many there are; 0 of dimension 0."""
    number: int = (field**dimension - 1) // (field - 1)
    return number


def dimension_of(field: int, least: int) -> int:
    """The least dimension, from 2, with at least so many points."""
    dimension = 2
    while points(field, dimension) < least:
        dimension += 1
    return dimension


def is_prime(number: int) -> bool:
    """Whether the number is a prime."""
    return number >= 2 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def numbers_of(indices: Int64, field: int, dimension: int) -> Int64:
    """The canonical vectors of points, as numbers in base f."""
    powers, first, steps = steps_of(field, dimension)
    result: Int64 = indices + steps[0]
    for k in range(1, len(powers)):
        result += steps[k] * (indices >= first[k])
    return result


def indices_of(numbers: Int64, field: int, dimension: int) -> Int64:
    """The points of canonical vectors, given as numbers in base f."""
    powers, _, steps = steps_of(field, dimension)
    result: Int64 = numbers - steps[0]
    for k in range(1, len(powers)):
        result -= steps[k] * (numbers >= powers[k])
    return result


@lru_cache(maxsize=64)
def inverses(field: int) -> Int64:
    """(f,) the inverse of each number of the field; 0 of 0."""
    square, result = np.arange(field, dtype=np.int64), np.ones(field, np.int64)
    for bit in reversed(f"{field - 2:b}"):  # Fermat: the inverse is the power of f − 2, and f² is below 2^62
        if bit == "1":
            result = result * square % field
        square = square * square % field
    result[0] = 0
    result.flags.writeable = False
    return result


@lru_cache(maxsize=64)
def steps_of(field: int, dimension: int) -> Int64:
    """(3, t), for k = 0 … t − 1: f^k; the first point with k coordinates after its leading 1; and a step.

    A point's number in base f is its own and the steps of all k whose first point it reaches.
    """
    powers = np.array([field**k for k in range(dimension)], np.int64)
    first = np.array([points(field, k) for k in range(dimension)], np.int64)
    result = np.stack([powers, first, np.diff(powers - first, prepend=0)])
    result.flags.writeable = False
    return result


_BLOCK: Final = 1 << 21  # numbers of a block of rows


def orthogonal(counts: Int64, field: int, dimension: int, inputs: int) -> Int64:
    """Folds counts, a block of rows at a time.

    Args:
        counts: (R, points) how often each point was counted.
        field: f, a prime.
        dimension: t, at least 2.
        inputs: K, of how many points the result is asked.

    Returns:
        (R, K) int64: sums of the counts of all points orthogonal to each of the first K.
    """
    result = np.empty((len(counts), inputs), np.int64)
    step = max(1, _BLOCK // field ** (dimension - 1))
    for start in range(0, len(counts), step):
        block = np.ascontiguousarray(counts[start : start + step].T)  # rows side by side: every step serves them all
        result[start : start + step] = _orthogonal(block, field, dimension, inputs).T
    return result


def _orthogonal(counts: Int64, field: int, dimension: int, inputs: int) -> Int64:
    """(K, rows) of (points, rows)."""
    if dimension == 1:
        return np.zeros((inputs, counts.shape[1]), np.int64)  # the one point is not orthogonal to itself
    below = points(field, dimension - 1)
    few = min(inputs, below)
    # Points (0, u) and points (1, x), against queries (0, v).
    lower = _orthogonal(counts[:below], field, dimension - 1, few)
    planes = _planes(counts[below:], field, dimension - 1, few)
    first: Int64 = lower + planes[0]
    if inputs <= below:
        return first
    # Against queries (1, w): <u, w> = 0, or <x, w> = −1, which is <x, v> = −1/g where w = g·v and v is canonical.
    w = np.arange(1, inputs - below)
    scale = inverses(field)[_leading(w, field)]
    classes = indices_of(_scaled(w, scale, field), field, dimension - 1)
    rest = planes[(-scale) % field, classes]
    rest += lower[classes]
    result: Int64 = np.concatenate([first, counts[:below].sum(axis=0, keepdims=True), rest])
    return result


def _planes(values: Int64, field: int, dimension: int, inputs: int) -> Int64:
    """(f, K, rows): for each z and each of the first K points v, the sum of the values of all x with <x, v> = z.

    Args:
        values: (f^dimension, rows), of all vectors x.
        field: f.
        dimension: At least 1.
        inputs: K.
    """
    rows = values.shape[1]
    if dimension == 1:
        return values.reshape(field, 1, rows)
    below = points(field, dimension - 1)
    parted = values.reshape(field, -1, rows)
    first = _planes(parted.sum(axis=0), field, dimension - 1, min(inputs, below))
    if inputs <= below:
        return first
    wanted = inputs - below  # queries (1, w): x of <x, (1, w)> = z has the first coordinate z − <x', w>
    state = parted
    for coordinate in range(dimension - 1):
        after = field ** (dimension - 2 - coordinate)
        most = min(field, -(-wanted // after)) if coordinate == 0 else field
        state = _fold()(state.reshape(field, -1, field, after * rows), field, most).reshape(field, -1, rows)
    return np.concatenate([first, state[:, :wanted]], axis=1)


def _fold() -> Callable[[Int64, int, int], Int64]:
    if not compiled.enabled():
        return folded
    from hushsum.noise import projective_geometry_loops

    return projective_geometry_loops.folded


def folded(state: Int64, field: int, most: int) -> Int64:
    """(z, before, w, after) of (z, before, x, after): sums over x of what stands at z − x·w; for the w below most."""
    result = np.empty((field, state.shape[1], most, state.shape[3]), np.int64)
    for w in range(most):
        out = result[:, :, w]
        out[:] = state[:, :, 0]
        for x in range(1, field):
            shift = x * w % field
            out[shift:] += state[: field - shift, :, x]
            if shift:
                out[:shift] += state[field - shift :, :, x]
    return result


def _leading(numbers: Int64, field: int) -> Int64:
    """The leading digit in base f of each number above 0."""
    leading = numbers.copy()
    while len(large := np.flatnonzero(leading >= field)):
        leading[large] //= field
    return leading


def _scaled(numbers: Int64, scale: Int64, field: int) -> Int64:
    """Every digit in base f times the scale, modulo f."""
    result, rest, power = np.zeros_like(numbers), numbers.copy(), 1
    while rest.any():
        upper = rest // field
        result += (rest - upper * field) * scale % field * power
        rest, power = upper, power * field
    return result
