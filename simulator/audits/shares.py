"""Exact audits of what the server of a secure sum sees: counters with the noise of h honest shares, over all outcomes.

How many shares those are is asked of the check that every client makes of the survivors; what one share is, of the
sampler that a client draws. The law of their sum is added up here, share by share: no theorem on it is relied on.
:mod:`simulator.audits.drawn_shares` takes a share's law from the running sampler instead of its parameters.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import chain, product
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from hushsum.entropy import Entropy
from hushsum.errors import SecureSumError
from hushsum.plan import Plan
from hushsum.privacy.cohort import Cohort
from hushsum.secure_sum.parameters import ROUND_BYTES, RoundParameters, round_parameters
from hushsum.secure_sum.roster import Circle
from simulator.audits.confidence import Integers
from simulator.audits.exact import Change, distinct
from simulator.audits.laws import GAUSSIAN, Bounds, worst_loss
from simulator.audits.losses import Floats, convolved, least_epsilon, summed, weights


class Share(Protocol):
    """The sampler of one client's share of the noise: its law follows from these."""

    @property
    def scale(self) -> Fraction:
        """σ² of a discrete Gaussian share; b of the whole noise of Pólya shares, of which ``shares`` are the whole."""
        ...

    def sample(self, size: int, entropy: Entropy) -> Integers:
        """(size,) independent draws."""
        ...


Flags = npt.NDArray[np.bool_]

#: The law of the sum of so many shares, |k| up to a reach.
SumLaw = Callable[[Share, int, int], Bounds]

_REACH: Final = 64  # beyond a change: fewer shares than the scale is divided by lose most around 0
_DIGITS: Final = 60
_BITS: Final = 320  # of a probability of Pólya shares in fixed point
_BEYOND: Final = 50  # scales that are looked at beyond the reach: what is left out is below 10^-40 of what is there
_SLACK: Final = Fraction(1, 10**30)  # relative: more than that, and more than all rounding
_EXPONENT: Final = 40  # outcomes of Gaussian noise below e^-40 of the likeliest count as lost
_CUT: Final = 80  # e^-80 of the tails of a sum of discrete Gaussian shares is cut off
_SUM_BITS: Final = 192  # of a probability of such a sum in fixed point
_EVERY_SET: Final = 12  # members at most, of whom every set of survivors is shown to a client
_ROUNDING: Final = 1e-13  # of a δ in floats, absolute


def honest_shares(plan: Plan) -> int:
    """The fewest honest clients of all sets of survivors that a client of the plan signs; 0 where none need be.

    Of a large cohort the sets are one of each size, its survivors spread evenly over the circle: none of that size is
    more surely signed, for what else a client demands is that no part of the circle holds too few of them.
    Of the survivors ⌈γN⌉ may be corrupt, and their shares are worth nothing.
    """
    cohort = _cohort(plan)
    parameters = round_parameters(plan, 0, bytes(ROUND_BYTES))
    signed = (
        int(survivors.sum())
        for members in _members(cohort)
        for survivors in _survivor_sets(members)
        if _signs(parameters, survivors)
    )
    return max(0, min(signed) - math.ceil(cohort.corrupt * cohort.size))


def sum_epsilon(plan: Plan, moved: Iterable[Change], law: SumLaw | None = None) -> float:
    """The least ε that holds between any of these neighbours for the sum of one cohort, at the δ left to the noise.

    Args:
        plan: Of mode secure: its cohort, and what its clients draw.
        moved: How the counters of neighbours differ.
        law: Of the sum of Pólya shares; by default what their parameters state.
    """
    honest, share, changed = honest_shares(plan), plan.privacy.mechanism.share(), distinct(moved)
    if honest == 0:
        return math.inf
    if plan.privacy.mechanism.name == GAUSSIAN:
        delta = float(plan.privacy.claim.noise_delta)
        return max(_gaussian_epsilon(share.scale, honest, change, delta) for change in changed)
    largest = max(chain(*changed))
    summed = (law or polya_sum)(share, honest, _REACH + 2 * largest)
    losses = {each: worst_loss(summed, each)[1] for each in chain(*changed)}
    return max(sum(losses[each] for each in change) for change in changed)


def polya_sum(share: Share, number: int, reach: int) -> Bounds:
    """The law of so many Pólya shares together, NB(1/h, q) − NB(1/h, q) each, between tight bounds."""
    shares: int = getattr(share, "shares", 1)  # whole discrete Laplace noise is a share of one
    return _polya_sum(share.scale, shares, number, reach)


@lru_cache(maxsize=32)
def _polya_sum(scale: Fraction, shares: int, number: int, reach: int) -> Bounds:
    with localcontext() as context:
        context.prec = _DIGITS
        ratio = (-Decimal(scale.denominator) / Decimal(scale.numerator)).exp()
        terms = reach + math.ceil(_BEYOND * scale) + 1
        one = [Decimal(2**_BITS)]
        for k in range(1, terms):  # Γ(k + r)/(Γ(r)·k!)·q^k, r = 1/h
            one.append(one[-1] * ratio * ((k - 1) * shares + 1) / (k * shares))
        never = (1 - ratio) ** (Decimal(2 * number) / shares)  # all of them at 0
        fixed = [int(each) for each in one]
        share = [each >> _BITS for each in convolved(fixed, fixed[::-1])]  # of which P(0) is not yet a factor
        law = summed(share, number, _BITS)
        masses = [Fraction(never) * Fraction(law[terms - 1 + k], 2**_BITS) for k in range(reach + 1)]
    return {s * k: (mass * (1 - _SLACK), mass * (1 + _SLACK)) for k, mass in enumerate(masses) for s in (1, -1)}


def gaussian_sum(scale: Fraction, number: int) -> tuple[Floats, float]:
    """The law of so many discrete Gaussian shares together, its middle at k = 0, and a bound of what is not in it."""
    share, missing = weights(scale)
    reach = min(number * (len(share) // 2), math.isqrt(math.ceil(2 * number * scale * _CUT)) + 2)
    around = [0] * (reach - len(share) // 2)
    law = summed([*around, *((each << _SUM_BITS) // sum(share) for each in share), *around], number, _SUM_BITS)
    # A sum of m shares is cut number/m times, where its tails weigh 2e^-80: over all powers of two, 4·number·2e^-80.
    missing = number * (missing + 8 * math.exp(-_CUT))
    return np.array([float(Fraction(each, 1 << _SUM_BITS)) for each in law]), missing


def sum_law(name: str, share: Share, number: int, reach: int) -> Floats:
    """The chances (2·reach + 1,) of what so many shares come to together, its middle 0; what is beyond is not in it."""
    if name == GAUSSIAN:
        law = gaussian_sum(share.scale, number)[0]
        middle = len(law) // 2
        return np.pad(law, max(0, reach - middle))[max(0, middle - reach) :][: 2 * reach + 1]
    bounds = polya_sum(share, number, reach)
    return np.array([float(bounds[k][0]) for k in range(-reach, reach + 1)])


def _gaussian_epsilon(scale: Fraction, number: int, change: Change, delta: float) -> float:
    """Of counters that differ by this change, each with the sum of its own shares.

    An outcome's loss is the sum of its counters' losses; here they are not linear in the outcome. So the last counter
    is kept apart: δ(ε) = Σ_k P(k)·δ_rest(ε − loss(k)), where δ_rest(x) = Σ P·max(0, 1 − e^(x − loss)) over the others
    is looked up in the sums over all losses above x.
    """
    law, missing = gaussian_sum(scale, number)
    middle, reach = len(law) // 2, math.isqrt(math.ceil(2 * number * scale * _EXPONENT)) + max(change)
    assert reach + max(change) <= middle, "the shares reach further than what is looked at"
    at = np.arange(middle - reach, middle + reach + 1)
    masses = law[at]
    lost = len(change) * (missing + float(law[: at[0]].sum()) * 2)
    losses = [np.log(masses / law[at - each]) for each in change]
    rest, others = np.zeros(1), np.ones(1)
    for each in losses[:-1]:
        rest, others = np.add.outer(rest, each).reshape(-1), np.multiply.outer(others, masses).reshape(-1)
    order = np.argsort(rest)
    rest, others = rest[order], others[order]
    first = np.append(np.cumsum(others[::-1])[::-1], 0.0)  # of all losses from here on, on one data set
    second = np.append(np.cumsum((others * np.exp(-rest))[::-1])[::-1], 0.0)  # and on its neighbour

    def delta_at(epsilon: float) -> float:
        left = epsilon - losses[-1]
        above = np.searchsorted(rest, left, side="right")
        excess = np.maximum(first[above] - np.exp(left) * second[above], 0.0)
        return float((masses * excess).sum()) + _ROUNDING + lost

    return least_epsilon(delta_at, delta, high=float(rest[-1] + losses[-1].max()))


def _members(cohort: Cohort) -> Iterable[int]:
    """How many clients the roster of a round may have; of a large cohort the fewest and the most."""
    every = range(cohort.survivors_min, cohort.size + 1)
    return every if cohort.size <= _EVERY_SET else {every[0], every[-1]}


def _survivor_sets(members: int) -> Iterator[Flags]:
    if members <= _EVERY_SET:
        yield from map(np.array, product((False, True), repeat=members))
        return
    places = np.arange(members + 1)
    for alive in range(members + 1):
        yield np.diff(places * alive // members) == 1


def _signs(parameters: RoundParameters, survivors: Flags) -> bool:
    circle = Circle(bytes(32), np.arange(len(survivors)))
    try:
        circle.check_survivors(parameters, survivors)
    except SecureSumError:
        return False
    return True


def _cohort(plan: Plan) -> Cohort:
    assert plan.privacy.cohort is not None, "a plan of mode secure"
    return plan.privacy.cohort
