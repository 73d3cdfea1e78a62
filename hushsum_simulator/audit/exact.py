"""Exact audits: ε over all outcomes, from the neighbours' real counters and the law of the mechanism.

Only the noise is taken from the plan: the change of the counters is counted on real sketches of every neighbour, and
its loss under the law is summed, not looked up.

A law is P(k) for |k| <= reach, each between two fractions. It is either stated (the formula, in decimals of 80 digits)
or measured on a running sampler.

For discrete Gaussian noise of parameter σ² and a change c, the privacy loss of an outcome x + k is lnP(k)/P(k − c)) =
(‖c‖² − 2c·k)/(2σ²): it depends on the integer c·k alone. Its law is the convolution of the
counters' laws, done here in integers; δ(ε) = Σ P(c·k)·max(0, 1 − e^(ε − loss)) (Balle and Wang 2018, theorem 5).

Report noisy max is audited by the stated chances of every winner (:func:`hushsum.privacy.noisy_max.win_probabilities`).
Neighbouring data sets change every utility by one sensitivity at most, in either direction.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import chain, product
from typing import Final

import numpy as np

from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
from hushsum.privacy.noisy_max import report_noisy_max, scale_for, win_probabilities
from hushsum_simulator.audit.cases import TARGET, Case, Counted, DataSet, Submission, contents, flat, others
from hushsum_simulator.audit.report import Floats

Bounds = Mapping[int, tuple[Fraction, Fraction]]

LAPLACE: Final = "discrete-laplace"
GAUSSIAN: Final = "discrete-gaussian"

_DIGITS: Final = 80
_SLACK: Final = Fraction(1, 10**70)  # of the decimals, relative: far more than their rounding
_TAIL: Final = 100  # terms of the normaliser below e^-100 of the largest are omitted


def stated(name: str, scale: Fraction, reach: int) -> Bounds:
    """The documented law: ``discrete-laplace``: P(k) ∝ e^(−|k|/b); ``discrete-gaussian``: P(k) ∝ e^(−k²/(2σ²)).

    The scale is b or σ², exact.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        exact = _decimal(scale)
        if name == LAPLACE:
            ratio = (-1 / exact).exp()
            weights = [(-Decimal(k) / exact).exp() for k in range(reach + 1)]
            total, rest = (1 + ratio) / (1 - ratio), Decimal(0)
        else:
            terms = max(reach, math.isqrt(2 * _TAIL * math.ceil(scale)) + 1)
            weights = [(-Decimal(k * k) / (2 * exact)).exp() for k in range(terms + 1)]
            total = 1 + 2 * sum(weights[1:], Decimal(0))
            # Each further term is smaller than the one before by more than this factor.
            ratio = (-Decimal(2 * terms + 1) / (2 * exact)).exp()
            rest = 2 * weights[-1] * ratio / (1 - ratio)
        ends = [[Fraction(weight / each) for weight in weights[: reach + 1]] for each in (total + rest, total)]
    masses = [(low * (1 - _SLACK), high * (1 + _SLACK)) for low, high in zip(*ends, strict=True)]
    return {sign * k: masses[k] for k in range(reach + 1) for sign in (1, -1)}


def worst_loss(law: Bounds, change: int) -> tuple[float, float]:
    """Bounds of the largest ln(P(k)/P(k − change)) over all k within reach; infinite if only one is possible."""
    low, high = -math.inf, -math.inf
    for k in law:
        if k - change in law:
            (p_low, p_high), (q_low, q_high) = law[k], law[k - change]
            low = max(low, _logarithm(p_low, q_high))
            high = max(high, _logarithm(p_high, q_low))
    return low, high


def disagreements(first: Bounds, second: Bounds) -> list[int]:
    """Where two laws certainly differ: their bounds do not overlap."""
    return sorted(k for k in first.keys() & second.keys() if first[k][1] < second[k][0] or second[k][1] < first[k][0])


def tail(scale: Fraction, least: int) -> tuple[Fraction, Fraction]:
    """Bounds of P(Z >= least) for discrete Laplace noise Z."""
    with localcontext() as context:
        context.prec = _DIGITS
        exact = _decimal(scale)
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
        return float((_decimal(p) / _decimal(q)).ln())


def _decimal(fraction: Fraction) -> Decimal:
    return Decimal(fraction.numerator) / Decimal(fraction.denominator)


_BITS: Final = 160  # of a weight in fixed point
_ROUNDING: Final = 1e-12  # relative, of the sums of floats below
_STEPS: Final = 100  # of a bisection


@dataclass(frozen=True)
class Losses:
    """The law of the privacy loss of a pair of neighbours.

    Attributes:
        masses: Their probabilities under the first neighbour.
        missing: Upper bound of the probability that is omitted.
    """

    values: Floats
    masses: Floats
    missing: float

    def delta(self, epsilon: float) -> float:
        """An upper bound of the least δ for which (ε, δ) holds from the first neighbour to the second."""
        above = self.values > epsilon
        excess = -np.expm1(epsilon - self.values[above]) * self.masses[above]
        return float(excess.sum()) * (1 + _ROUNDING) + self.missing

    def epsilon(self, delta: float) -> float:
        """The least ε, within 1e-12, that holds at this δ; infinite if none does."""
        return least_epsilon(self.delta, delta, high=float(self.values.max()))


def least_epsilon(delta_at: Callable[[float], float], delta: float, *, high: float) -> float:
    """The least ε >= 0 at which a falling δ(ε) is at most ``delta``, rounded up; infinite if there is none.

    From ``high`` on δ(ε) is constant.
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

    The law is symmetric, so that the losses in the other direction are the same.
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


def laplace_losses(changes: Sequence[int], scale: Fraction, times: int) -> Losses:
    """The losses of discrete Laplace noise of scale b on counters that differ by these changes, drawn so many times.

    A counter that differs by a > 0 loses (|k − a| − |k|)/b where its noise is k: one of a, a − 2, …, −a, over b. The
    law is symmetric. Laws are multiplied as polynomials of floats that are all at least 0, so that nothing cancels.
    """
    law, reach = np.ones(1), 0
    for change in {abs(change) for change in changes if change}:
        number = sum(abs(each) == change for each in changes) * times
        law, reach = np.convolve(law, _power(_one_loss(change, scale), number)), reach + change * number
    values: Floats = np.arange(-reach, reach + 1, 2, dtype=np.float64) / float(scale)
    return Losses(values, law, _ROUNDING * len(law))


def _one_loss(change: int, scale: Fraction) -> Floats:
    """P of each loss of one counter, the least (−a/b) first."""
    law = stated(LAPLACE, scale, change)
    end = float(tail(scale, change)[1])  # the noise is at least a, or at most 0 with what is left
    middle = [float(law[k][1]) for k in range(change - 1, 0, -1)]
    return np.array([end, *middle, float(tail(scale, 0)[1])])


def _power(law: Floats, exponent: int) -> Floats:
    power = np.ones(1)
    for binary in f"{exponent:b}":
        power = np.convolve(power, power)
        power = np.convolve(power, law) if binary == "1" else power
    return power


def weights(scale: Fraction) -> tuple[list[int], float]:
    """e^(−k²/2σ²) in fixed point for k from −reach to reach, and a bound of the share that is omitted."""
    reach = math.isqrt(math.ceil(2 * scale * 80)) + 2  # below e^-80 is omitted
    with localcontext() as context:
        context.prec = 80
        double = 2 * _decimal(scale)
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
    """The product of two polynomials with coefficients >= 0, as a product of two large integers that hold them."""
    bits = max(first).bit_length() + max(second).bit_length() + min(len(first), len(second)).bit_length()
    size = -(-bits // 8)
    packed = [int.from_bytes(b"".join(x.to_bytes(size, "little") for x in each), "little") for each in (first, second)]
    terms = len(first) + len(second) - 1
    data = (packed[0] * packed[1]).to_bytes(terms * size, "little")
    return [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]


def cut(law: list[int], terms: int, bits: int) -> list[int]:
    """The middle terms of a product of two laws in fixed point, as a law in fixed point of these bits."""
    start = (len(law) - terms) // 2
    return [each >> bits for each in law[start : start + terms]]


def summed(law: list[int], number: int, bits: int) -> list[int]:
    """The law of a sum of independent draws, in fixed point, its middle 0, cut to the reach of one draw."""
    total = [0] * len(law)
    total[len(law) // 2] = 1 << bits
    for binary in f"{number:b}":
        total = cut(convolved(total, total), len(law), bits)
        if binary == "1":
            total = cut(convolved(total, law), len(law), bits)
    return total


Change = tuple[int, ...]  # of all counters, the count counters last
Law = Callable[[str, Fraction, int], Bounds]


Summed = Callable[[Plan, Sequence[DataSet]], Sequence[Counted]]

_REACH: Final = 64  # beyond a change, where the ratio of discrete Laplace noise is constant
_CLIENTS_REACH: Final = 10  # around the threshold, in scales
_PRECISION: Final = 1e-9  # of an ε by bisection


def changes(plan: Plan, summed: Summed, *, replace: bool = False) -> frozenset[Change]:
    """By how much all counters differ between neighbours, for everything that one unit can hold.

    ``summed`` is the real code of a pipeline, which turns data sets into counters. ``replace`` compares one unit's
    content with another's, instead of with none.
    """
    rest = others(2)
    without, *holding = summed(plan, [rest, *((*rest, Submission(TARGET, held)) for held in contents(plan))])
    moved = frozenset(difference(without, sketch) for sketch in holding)
    if not replace:
        return moved
    return frozenset(tuple(b - a for a, b in zip(*pair, strict=True)) for pair in product(moved, repeat=2))


def change(case: Case, summed: Summed) -> Change:
    """By how much all counters differ between the two data sets of a case."""
    return difference(*summed(case.plan, [case.first, case.second]))


def difference(first: Counted, second: Counted) -> Change:
    """By how much all counters differ."""
    return tuple(map(int, flat(second) - flat(first)))


def epsilon(plan: Plan, moved: Iterable[Change], delta: float, law: Law = stated) -> float:
    """The least ε that holds at δ between any of these neighbours, for one outcome of the plan.

    Args:
        plan: Its mechanism, and possibly a noised test of the number of clients.
        moved: Differences between the counters of neighbours.
        delta: The claimed δ; 0 for pure ε.
        law: Of discrete Laplace noise: as stated, or as measured on the running sampler.
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
    """The test whether a window is released, on two data sets that differ by one client.

    Attributes:
        probability: Of a release on the first data set.
        released: ln of the ratio of the probabilities of a release.
        withheld: ln of the ratio of the probabilities of withholding.
    """

    probability: float
    released: float
    withheld: float


def _tests(scale: Fraction) -> Iterator[_Test]:
    """A test for every number of clients around the threshold, in both directions.

    Far below the threshold the ratio of a release is constant and its probability falls; far above it both logarithms
    vanish: no worse case exists there.
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
    """The least ε at δ of an outcome that is either withheld, or a release with these losses."""
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
    """Changes without zeros, order and sign, which make no difference under a symmetric law."""
    return {tuple(sorted(abs(each) for each in change if each)) for change in moved}


def _pure_loss(law: Law, name: str, scale: Fraction, change: int) -> float:
    return worst_loss(law(name, scale, _REACH + 2 * abs(change)), change)[1]


CANDIDATES: Final = 3
_SPREAD: Final = 4  # utilities are audited from 0 to this, in sensitivities: larger gaps change no ratio


def selection_epsilon(sensitivity: int, epsilon: Fraction) -> float:
    """The largest ln of a ratio of chances over all winners and all neighbouring utilities."""
    scale = scale_for(sensitivity, epsilon)
    pairs = [*neighbours(sensitivity)]
    known = {utilities: win_probabilities(utilities, scale) for utilities in {*chain(*pairs)}}
    return max(math.log(p / q) for first, second in pairs for p, q in zip(known[first], known[second], strict=True))


def neighbours(sensitivity: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Pairs of utilities that one unit can turn into each other, with the worst cases."""
    levels = range(0, _SPREAD * sensitivity + 1, sensitivity)
    for utilities in product(levels, repeat=CANDIDATES):
        for moves in product((-sensitivity, 0, sensitivity), repeat=CANDIDATES):
            yield utilities, tuple(utility + move for utility, move in zip(utilities, moves, strict=True))


def winners(utilities: Sequence[int], sensitivity: int, epsilon: Fraction, runs: int) -> list[list[float]]:
    """The winner of each of these runs, as a row of one number."""
    entropy = OsEntropy()
    return [
        [float(report_noisy_max(utilities, sensitivity=sensitivity, epsilon=epsilon, entropy=entropy))]
        for _ in range(runs)
    ]
