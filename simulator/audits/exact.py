"""Exact audits: the ε that neighbours' real counters and the mechanism's law come to, over all outcomes.

Nothing is taken from the plan but the noise that it draws: by how much the counters differ is counted on real sketches
of every neighbour, and what that is worth under the law is added up, not looked up.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, product
from typing import Final, Protocol

from hushsum.plan import Plan
from simulator.audits.cases import TARGET, Case, DataSet, Integers, Submission, contents, others
from simulator.audits.laws import GAUSSIAN, Bounds, stated, tail, worst_loss
from simulator.audits.losses import Losses, gaussian_losses

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
