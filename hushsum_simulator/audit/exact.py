"""Exact audits: the ε that neighbours' real counters and the mechanism's law come to, over all outcomes.

Nothing is taken from the plan but the noise that it draws: by how much the counters differ is counted on real sketches
of every neighbour, and what that is worth under the law is added up, not looked up.

A law is P(k) for |k| <= reach, each between two fractions. It is either stated (the formula, in decimals of 80 digits)
or read off a running sampler; whatever tells two laws apart tells their losses apart.

For discrete Gaussian noise of parameter σ² and a change c, an outcome x + k tells the neighbours apart by the loss
ln(P(k)/P(k − c)) = (‖c‖² − 2c·k)/(2σ²): it depends on the integer c·k alone. Its law is the convolution of the
counters' laws, done here in integers; δ(ε) = Σ P(c·k)·max(0, 1 − e^(ε − loss)) (Balle and Wang 2018, theorem 5).

Report noisy max is audited by the exact chances of every winner. They are the stated ones
(:func:`hushsum.privacy.noisy_max.win_probabilities`). Neighbouring data sets move every utility by one sensitivity at
most, each its own way.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import chain, product
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
from hushsum.privacy.noisy_max import report_noisy_max, scale_for, win_probabilities
from hushsum_simulator.audit.cases import TARGET, Case, DataSet, Integers, Submission, contents, others

Bounds = Mapping[int, tuple[Fraction, Fraction]]

LAPLACE: Final = "discrete-laplace"
GAUSSIAN: Final = "discrete-gaussian"

_DIGITS: Final = 80
_SLACK: Final = Fraction(1, 10**70)  # of the decimals, relative: far more than their rounding
_TAIL: Final = 100  # terms of the normaliser are left out below e^-100 of the largest


def stated(name: str, scale: Fraction, reach: int) -> Bounds:
    """The law that a mechanism's documents state.

    Args:
        name: ``discrete-laplace``: P(k) ∝ e^(−|k|/scale); ``discrete-gaussian``: P(k) ∝ e^(−k²/(2·scale)).
        scale: b or σ², exact.
        reach: Of k, on either side.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        exact = Decimal(scale.numerator) / Decimal(scale.denominator)
        if name == LAPLACE:
            ratio = (-1 / exact).exp()
            weights = [(-Decimal(k) / exact).exp() for k in range(reach + 1)]
            total, rest = (1 + ratio) / (1 - ratio), Decimal(0)
        else:
            terms = max(reach, math.isqrt(2 * _TAIL * math.ceil(scale)) + 1)
            weights = [(-Decimal(k * k) / (2 * exact)).exp() for k in range(terms + 1)]
            total = 1 + 2 * sum(weights[1:], Decimal(0))
            # Behind the last term the next one is smaller by more than this factor, and so on.
            ratio = (-Decimal(2 * terms + 1) / (2 * exact)).exp()
            rest = 2 * weights[-1] * ratio / (1 - ratio)
        ends = [[Fraction(weight / each) for weight in weights[: reach + 1]] for each in (total + rest, total)]
    masses = [(low * (1 - _SLACK), high * (1 + _SLACK)) for low, high in zip(*ends, strict=True)]
    return {sign * k: masses[k] for k in range(reach + 1) for sign in (1, -1)}


def worst_loss(law: Bounds, change: int) -> tuple[float, float]:
    """Bounds of the largest ln(P(k)/P(k − change)) over all k within reach; infinite where one alone can be."""
    low, high = -math.inf, -math.inf
    for k in law:
        if k - change in law:
            (p_low, p_high), (q_low, q_high) = law[k], law[k - change]
            low = max(low, _logarithm(p_low, q_high))
            high = max(high, _logarithm(p_high, q_low))
    return low, high


def disagreements(first: Bounds, second: Bounds) -> list[int]:
    """Where two laws certainly differ: their bounds have nothing in common."""
    return sorted(k for k in first.keys() & second.keys() if first[k][1] < second[k][0] or second[k][1] < first[k][0])


def tail(scale: Fraction, least: int) -> tuple[Fraction, Fraction]:
    """Bounds of P(Z >= least): what a threshold sees of discrete Laplace noise."""
    with localcontext() as context:
        context.prec = _DIGITS
        exact = Decimal(scale.numerator) / Decimal(scale.denominator)
        ratio = (-1 / exact).exp()
        above = (-Decimal(abs(least) + (least <= 0)) / exact).exp() / (1 + ratio)  # P(Z >= j) = q^j/(1 + q), j > 0
        value = Fraction(above if least > 0 else 1 - above)
    return value * (1 - _SLACK), value * (1 + _SLACK)


def _logarithm(p: Fraction, q: Fraction) -> float:
    """ln(p/q), within a float's rounding."""
    if p <= 0:
        return -math.inf
    if q <= 0:
        return math.inf
    with localcontext() as context:
        context.prec = 40
        p_decimal, q_decimal = (Decimal(x.numerator) / Decimal(x.denominator) for x in (p, q))
        return float((p_decimal / q_decimal).ln())


Floats = npt.NDArray[np.float64]

_BITS: Final = 160  # of a weight in fixed point
_ROUNDING: Final = 1e-12  # relative, of the sums of floats below
_STEPS: Final = 100  # of a bisection


@dataclass(frozen=True)
class Losses:
    """The law of the privacy loss of one pair of neighbours.

    Attributes:
        values: The losses that can be.
        masses: The probability of each under the first neighbour.
        missing: At most so much probability is in neither.
    """

    values: Floats
    masses: Floats
    missing: float

    def delta(self, epsilon: float) -> float:
        """An upper bound of the least δ for which (ε, δ) holds, from the first neighbour to the second."""
        above = self.values > epsilon
        excess = -np.expm1(epsilon - self.values[above]) * self.masses[above]
        return float(excess.sum()) * (1 + _ROUNDING) + self.missing

    def epsilon(self, delta: float) -> float:
        """The least ε, within 1e-12, that holds at this δ; infinite where none does."""
        return least_epsilon(self.delta, delta, high=float(self.values.max()))


def least_epsilon(delta_at: Callable[[float], float], delta: float, *, high: float) -> float:
    """The least ε from 0 on at which a falling δ(ε) is at most this δ, rounded up; infinite where none does.

    Args:
        delta_at: δ of ε.
        delta: What is claimed.
        high: From this ε on it falls no more.
    """
    low, high = 0.0, max(0.0, high)
    if delta_at(low) <= delta:
        return low
    if delta_at(high) > delta:
        return math.inf
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_at(middle) <= delta else (middle, high)
    return high


def gaussian_losses(changes: Sequence[int], scale: Fraction) -> Losses:
    """The losses of discrete Gaussian noise of parameter σ² on counters that differ by these changes.

    The law is symmetric: the losses from the second neighbour to the first are the same.
    """
    squared, moved = sum(change**2 for change in changes), sorted(abs(change) for change in changes if change)
    one_counter, missing = weights(scale)
    reach = len(one_counter) // 2
    products, one = [1], 1
    for change in moved:
        products = convolved(products, _stretched(one_counter, change))
        one *= sum(one_counter)
    sums = np.arange(len(products), dtype=np.float64) - sum(moved) * reach
    values: Floats = (squared - 2.0 * sums) / (2.0 * float(scale))
    masses = np.array([float(Fraction(product, one)) for product in products])
    return Losses(values, masses, missing * len(moved))


def weights(scale: Fraction) -> tuple[list[int], float]:
    """e^(−k²/2σ²) in fixed point for k from −reach to reach, and a bound of the share that is left out."""
    reach = math.isqrt(math.ceil(2 * scale * 80)) + 2  # e^-80 is left out
    with localcontext() as context:
        context.prec = 80
        double = 2 * Decimal(scale.numerator) / Decimal(scale.denominator)
        one = Decimal(2**_BITS)
        half = [int((-Decimal(k * k) / double).exp() * one) for k in range(reach + 1)]
    missing = 2 * math.exp(-80) * (1 + float(scale)) + 2.0**-100  # the tail's sum is below its first term · (1 + σ²)
    return half[:0:-1] + half, missing


def _stretched(weights: list[int], change: int) -> list[int]:
    """The weights of change·k."""
    result = [0] * ((len(weights) - 1) * change + 1)
    result[::change] = weights
    return result


def convolved(first: list[int], second: list[int]) -> list[int]:
    """The products of two polynomials with coefficients of at least 0: of two large integers that hold them."""
    bits = max(first).bit_length() + max(second).bit_length() + min(len(first), len(second)).bit_length()
    size = -(-bits // 8)
    packed = [int.from_bytes(b"".join(x.to_bytes(size, "little") for x in each), "little") for each in (first, second)]
    terms = len(first) + len(second) - 1
    data = (packed[0] * packed[1]).to_bytes(terms * size, "little")
    return [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]


def cut(law: list[int], terms: int, bits: int) -> list[int]:
    """The middle terms of a product of two laws in fixed point of so many bits, as such a law."""
    start = (len(law) - terms) // 2
    return [each >> bits for each in law[start : start + terms]]


def summed(law: list[int], number: int, bits: int) -> list[int]:
    """The law of the sum of so many, in fixed point, its middle 0; what lies beyond the reach of one is cut off."""
    total = [0] * len(law)
    total[len(law) // 2] = 1 << bits
    for binary in f"{number:b}":
        total = cut(convolved(total, total), len(law), bits)
        if binary == "1":
            total = cut(convolved(total, law), len(law), bits)
    return total


Change = tuple[int, ...]  # of all counters, the count counters last
Law = Callable[[str, Fraction, int], Bounds]


class Counted(Protocol):
    """What a data set adds up to, before any noise: a sketch, or what a device submits."""

    @property
    def counters(self) -> Integers:
        """Of any shape."""
        ...

    @property
    def counts(self) -> Integers:
        """The count counters."""
        ...


Summed = Callable[[Plan, Sequence[DataSet]], Sequence[Counted]]

_REACH: Final = 64  # beyond a change: from there on discrete Laplace noise repeats the same ratio
_CLIENTS_REACH: Final = 10  # around the threshold, in scales
_PRECISION: Final = 1e-9  # of an ε that is found by bisection


def changes(plan: Plan, summed: Summed, *, replace: bool = False) -> frozenset[Change]:
    """By how much all counters differ between neighbours, for everything that one unit can hold.

    Args:
        plan: What is collected.
        summed: How data sets become sketches: the real code of one road.
        replace: One unit's content against another's, instead of against none.
    """
    rest = others(2)
    without, *holding = summed(plan, [rest, *((*rest, Submission(TARGET, held)) for held in contents(plan))])
    moved = {_difference(_flat(without), _flat(sketch)) for sketch in holding}
    if replace:
        return frozenset(_difference(*pair) for pair in product(moved, repeat=2))
    return frozenset(moved)


def change(case: Case, summed: Summed) -> Change:
    """By how much all counters differ between the two data sets of a case."""
    first, second = summed(case.plan, [case.first, case.second])
    return _difference(_flat(first), _flat(second))


def epsilon(plan: Plan, moved: Iterable[Change], delta: float, law: Law = stated) -> float:
    """The least ε that holds at δ between any of these neighbours, for one outcome of the plan.

    Args:
        plan: Its mechanism, and whether a noised test of the number of clients decides about the release.
        moved: How the counters of neighbours differ.
        delta: The δ that is claimed; 0 for pure ε.
        law: What discrete Laplace noise follows: as stated, or as read off the running sampler.
    """
    mechanism, changed = plan.privacy.mechanism, distinct(moved)
    name, scale, test = mechanism.name, mechanism.noise().scale, mechanism.clients_noise()
    tests = [] if test is None else [*_tests(test.scale)]
    if name == GAUSSIAN:
        return max(_joint_epsilon(gaussian_losses(change, scale), tests, delta) for change in changed)
    losses = {each: _pure_loss(law, name, scale, each) for each in {*chain(*changed)}}
    counters = max(sum(losses[each] for each in change) for change in changed)
    return max(counters, *(max(each.withheld, each.released + counters) for each in tests), 0.0)


@dataclass(frozen=True)
class _Test:
    """Whether a window is released, on two data sets that differ by one client.

    Attributes:
        probability: Of a release on the first.
        released: ln of the ratio of the probabilities of a release.
        withheld: The same of withholding.
    """

    probability: float
    released: float
    withheld: float


def _tests(scale: Fraction) -> Iterator[_Test]:
    """For every number of clients around the threshold, in both directions.

    Far below it the ratio of a release stays what it is, and its probability falls; far above both ratios vanish that
    a release could add to: nothing worse is out there.
    """
    reach = math.ceil(_CLIENTS_REACH * scale)
    for missing in range(-reach, reach + 1):  # min_clients less the number of clients
        released = [float(tail(scale, at)[1]) for at in (missing, missing - 1)]
        withheld = [float(tail(scale, 1 - at)[1]) for at in (missing, missing - 1)]  # Z < at, by symmetry
        for first, second in ((0, 1), (1, 0)):
            yield _Test(
                released[first],
                math.log(released[first] / released[second]),
                math.log(withheld[first] / withheld[second]),
            )


def _joint_epsilon(losses: Losses, tests: Sequence[_Test], delta: float) -> float:
    """The least ε at δ where an outcome is either withheld, or a release with these losses."""
    low, high = 0.0, losses.epsilon(delta)
    if not tests or not math.isfinite(high):
        return high
    low, high = high, high + max(max(test.released, test.withheld) for test in tests)
    while high - low > _PRECISION:
        middle = (low + high) / 2
        holds = all(_joint_delta(losses, test, middle) <= delta for test in tests)
        low, high = (low, middle) if holds else (middle, high)
    return high


def _joint_delta(losses: Losses, test: _Test, epsilon: float) -> float:
    withheld = (1.0 - test.probability) * max(0.0, -math.expm1(epsilon - test.withheld))
    return withheld + test.probability * losses.delta(epsilon - test.released)


def distinct(moved: Iterable[Change]) -> set[Change]:
    """Changes without the counters that stay, whose order and sign no symmetric law tells apart."""
    return {tuple(sorted(abs(each) for each in change if each)) for change in moved}


def _pure_loss(law: Law, name: str, scale: Fraction, change: int) -> float:
    return worst_loss(law(name, scale, _REACH + 2 * abs(change)), change)[1]


def _difference(first: Change, second: Change) -> Change:
    return tuple(b - a for a, b in zip(first, second, strict=True))


def _flat(sketch: Counted) -> Change:
    return (*map(int, sketch.counters.reshape(-1)), *map(int, sketch.counts))


CANDIDATES: Final = 3
_SPREAD: Final = 4  # utilities are audited from 0 to this, in sensitivities: beyond, gaps change no ratio


def selection_epsilon(sensitivity: int, epsilon: Fraction) -> float:
    """The largest ln of a ratio of chances over all winners and all neighbouring utilities."""
    scale = scale_for(sensitivity, epsilon)
    pairs = [*neighbours(sensitivity)]
    known = {utilities: win_probabilities(utilities, scale) for utilities in {*chain(*pairs)}}
    return max(math.log(p / q) for first, second in pairs for p, q in zip(known[first], known[second], strict=True))


def neighbours(sensitivity: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Utilities that one unit may turn into each other, the worst cases among them."""
    levels = range(0, _SPREAD * sensitivity + 1, sensitivity)
    for utilities in product(levels, repeat=CANDIDATES):
        for moves in product((-sensitivity, 0, sensitivity), repeat=CANDIDATES):
            yield utilities, tuple(utility + move for utility, move in zip(utilities, moves, strict=True))


def winners(utilities: Sequence[int], sensitivity: int, epsilon: Fraction, runs: int) -> list[list[float]]:
    """Rows of one number, the winner, of so many choices."""
    entropy = OsEntropy()
    return [
        [float(report_noisy_max(utilities, sensitivity=sensitivity, epsilon=epsilon, entropy=entropy))]
        for _ in range(runs)
    ]
