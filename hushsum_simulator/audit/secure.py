"""Exact audits of the view of a secure-sum server: counters with the noise of h honest shares, over all outcomes.

The number of shares comes from the check that every client makes of the survivors, and the law of one share from the
sampler that a client draws from. The law of their sum is computed here, share by share, without a theorem on it.

The law of a sum of Pólya shares is also measured on the running sampler, independently of its tables. The sampler is
fed crafted words instead of random ones. A draw reads 16 bits that determine its number of events, 8 more bytes if they
do not decide it, and then 16 bytes for each event. Zeros follow the crafted words: with them every comparison gives
"below", and an event of zeros is +1. So bisection finds the digits of every probability of the code, not of the
formula, and the largest cohort costs as much as the smallest. All places of a block and both signs are assumed to be
equally likely: they are bits of a uniform word.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import chain, pairwise, product
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from hushsum.entropy import Entropy
from hushsum.errors import SecureSumError
from hushsum.plan import Plan
from hushsum.privacy.cohort import Cohort
from hushsum.secure_sum.parameters import ROUND_BYTES, RoundParameters, round_parameters
from hushsum.secure_sum.roster import NeighbourGraph
from hushsum_simulator.audit.exact import (
    GAUSSIAN,
    Bounds,
    Change,
    convolved,
    cut,
    distinct,
    least_epsilon,
    summed,
    weights,
    worst_loss,
)
from hushsum_simulator.audit.report import Floats, Integers


class NoiseShare(Protocol):
    """The sampler of one client's share of the noise."""

    @property
    def scale(self) -> Fraction:
        """σ² of a discrete Gaussian share; b of the whole noise, which ``shares`` Pólya shares sum to."""
        ...

    def sample(self, size: int, entropy: Entropy) -> Integers: ...


Flags = npt.NDArray[np.bool_]

#: The law of the sum of a number of shares, |k| up to a reach.
SumLaw = Callable[[NoiseShare, int, int], Bounds]

_REACH: Final = 64  # beyond a change: with too few shares the loss is largest around 0
_DIGITS: Final = 60
_BITS: Final = 320  # of a probability of Pólya shares in fixed point
_BEYOND: Final = 50  # scales that are computed beyond the reach: the rest is below 10^-40 of it
_SLACK: Final = Fraction(1, 10**30)  # relative: more than that, and more than all rounding
_EXPONENT: Final = 40  # outcomes of Gaussian noise below e^-40 of the likeliest count as lost
_CUT: Final = 80  # e^-80 of the tails of a sum of discrete Gaussian shares is cut off
_SUM_BITS: Final = 192  # of a probability of such a sum in fixed point
_EVERY_SET: Final = 12  # members at most, of whom every set of survivors is shown to a client
_ROUNDING: Final = 1e-13  # of a δ in floats, absolute


def honest_shares(plan: Plan) -> int:
    """The fewest honest clients of all sets of survivors that a client of the plan signs; 0 if it signs any.

    Of a large cohort one set of each size is tried, with survivors spread evenly over the circle. No other set of that
    size is more likely to be signed: a client also demands that no part of the circle holds too few of them.
    Of the survivors ⌈γN⌉ may be corrupt, and their shares do not count.
    """
    cohort = plan.privacy.cohort
    assert cohort is not None, "a plan of mode secure"
    parameters = round_parameters(plan, 0, bytes(ROUND_BYTES))
    signed = (
        int(survivors.sum())
        for members in _members(cohort)
        for survivors in _survivor_sets(members)
        if _signs(parameters, survivors)
    )
    return max(0, min(signed) - math.ceil(cohort.corrupt * cohort.size))


def sum_epsilon(plan: Plan, moved: Iterable[Change], law: SumLaw | None = None) -> float:
    """The least ε that holds between any of these neighbours for the sum of one cohort, at the noise's part of δ.

    ``moved`` are differences between the counters of neighbours; by default the law of the sum of Pólya shares is
    computed from their parameters.
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


def polya_sum(share: NoiseShare, number: int, reach: int) -> Bounds:
    """The law of a sum of Pólya shares, NB(1/h, q) − NB(1/h, q) each, between tight bounds."""
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
    """The law of a sum of discrete Gaussian shares, its middle at k = 0, and a bound of the omitted probability."""
    share, missing = weights(scale)
    reach = min(number * (len(share) // 2), math.isqrt(math.ceil(2 * number * scale * _CUT)) + 2)
    around = [0] * (reach - len(share) // 2)
    law = summed([*around, *((each << _SUM_BITS) // sum(share) for each in share), *around], number, _SUM_BITS)
    # A sum of m shares is cut number/m times, where its tails weigh 2e^-80: over all powers of two, 4·number·2e^-80.
    missing = number * (missing + 8 * math.exp(-_CUT))
    return np.array([float(Fraction(each, 1 << _SUM_BITS)) for each in law]), missing


def sum_law(name: str, share: NoiseShare, number: int, reach: int) -> Floats:
    """The chances (2·reach + 1,) of a sum of shares, its middle 0; the rest is omitted."""
    if name == GAUSSIAN:
        law = gaussian_sum(share.scale, number)[0]
        middle = len(law) // 2
        return np.pad(law, max(0, reach - middle))[max(0, middle - reach) :][: 2 * reach + 1]
    bounds = polya_sum(share, number, reach)
    return np.array([float(bounds[k][0]) for k in range(-reach, reach + 1)])


def _gaussian_epsilon(scale: Fraction, number: int, change: Change, delta: float) -> float:
    """The least ε of counters that differ by this change, each with the sum of its own shares.

    An outcome's loss is the sum of its counters' losses, which are not linear in the outcome here. So the last counter
    is treated separately: δ(ε) = Σ_k P(k)·δ_rest(ε − loss(k)), where δ_rest(x) = Σ P·max(0, 1 − e^(x − loss)) over the
    other counters is looked up in the sums over all losses above x.
    """
    law, missing = gaussian_sum(scale, number)
    middle, reach = len(law) // 2, math.isqrt(math.ceil(2 * number * scale * _EXPONENT)) + max(change)
    assert reach + max(change) <= middle, "the shares reach further than the law"
    at = np.arange(middle - reach, middle + reach + 1)
    masses = law[at]
    lost = len(change) * (missing + float(law[: at[0]].sum()) * 2)
    losses = [np.log(masses / law[at - each]) for each in change]
    rest, others = np.zeros(1), np.ones(1)
    for each in losses[:-1]:
        rest, others = np.add.outer(rest, each).reshape(-1), np.multiply.outer(others, masses).reshape(-1)
    order = np.argsort(rest)
    rest, others = rest[order], others[order]
    first = np.append(np.cumsum(others[::-1])[::-1], 0.0)  # over all losses from here on, on one data set
    second = np.append(np.cumsum((others * np.exp(-rest))[::-1])[::-1], 0.0)  # and on its neighbour

    def delta_at(epsilon: float) -> float:
        left = epsilon - losses[-1]
        above = np.searchsorted(rest, left, side="right")
        excess = np.maximum(first[above] - np.exp(left) * second[above], 0.0)
        return float((masses * excess).sum()) + _ROUNDING + lost

    return least_epsilon(delta_at, delta, high=float(rest[-1] + losses[-1].max()))


def _members(cohort: Cohort) -> Iterable[int]:
    """The sizes that the roster of a round may have; of a large cohort the smallest and the largest."""
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
    graph = NeighbourGraph(bytes(32), np.arange(len(survivors)))
    try:
        graph.check_survivors(parameters, survivors)
    except SecureSumError:
        return False
    return True


_COUNT_BITS: Final = 16  # of the word that determines the number of events of a draw
_CHOICE_BITS: Final = 32  # of an event's first word that choose its block; the other half is the start of U
_TIE_BITS: Final = 64  # of a further word, if a comparison is not decided
_TIE_DIGITS: Final = 40  # of them that are read
_SCALES: Final = 23  # sizes below this many scales lie in ordinary blocks, not in the tail

# Outcomes are computed up to the largest size over this; the cut changes none by more than 10^-13 of it.
_DRAWN_BEYOND: Final = 3
_DRAWN_SLACK: Final = Fraction(1, 10**11)  # relative: more than the cut and the unread digits

ComesOut = Callable[[Integers], Flags]


def drawn_sum(share: NoiseShare, number: int, reach: int) -> Bounds:
    """The law of a sum of drawn shares without events of the tail (all but 10^-11 of the sums).

    ``share`` samples Pólya shares of a scale of at most about 100: every size is tried. Outcomes end at ``reach``, or
    before the sizes that are not tried would matter.
    """
    one = _law(share)
    whole, middle = summed(one, number, _BITS), len(one) // 2
    reach = min(reach, middle // _DRAWN_BEYOND)
    masses = {k: Fraction(whole[middle + k], 1 << _BITS) for k in range(-reach, reach + 1)}
    return {k: (mass * (1 - _DRAWN_SLACK), mass * (1 + _DRAWN_SLACK)) for k, mass in masses.items()}


def _law(share: NoiseShare) -> list[int]:
    """P(k) of one drawn share in fixed point, its middle 0, up to the largest size of the ordinary blocks."""
    counts = _counts(share)
    event = _Events(share, (counts[0] >> _TIE_DIGITS) + 1).law()
    total, events = [0] * len(event), summed(event, 0, _BITS)
    for before, up_to in pairwise([0, *counts]):
        chance = up_to - before << _BITS - _COUNT_BITS - _TIE_DIGITS
        total = [a + (chance * b >> _BITS) for a, b in zip(total, events, strict=True)]
        events = cut(convolved(events, event), len(event), _BITS)
    return total


def _counts(share: NoiseShare) -> list[int]:
    """The first 56 binary digits of P(at most n events) for n = 0, 1, … until they are all ones."""

    def number(first: int, tied: int) -> int:
        words = first.to_bytes(2, "little") + (tied << _TIE_BITS - _TIE_DIGITS).to_bytes(8, "little")
        return int(share.sample(1, _Tape(words))[0])  # each event is +1

    def at_most(n: int) -> int:
        first = _last(_COUNT_BITS, 1, lambda digits: np.array([number(int(digits[0]), 0) <= n]))[0]
        tied = _last(_TIE_DIGITS, 1, lambda digits: np.array([number(int(first), int(digits[0])) <= n]))[0]
        return int(first) << _TIE_DIGITS | int(tied)

    found = [at_most(0)]
    while found[-1] + 1 < 1 << _COUNT_BITS + _TIE_DIGITS:
        found.append(at_most(len(found)))
    return found


class _Events:
    """Crafted draws of just one event, all of which begin with the word ``single``."""

    def __init__(self, share: NoiseShare, single: int) -> None:
        self._share = share
        self._single = single
        self._blocks = (math.ceil(_SCALES * share.scale) - 1).bit_length()

    def law(self) -> list[int]:
        """The chance in fixed point of each signed size; in the middle, at 0, that the event is rejected."""
        ends = [0]
        for block in range(self._blocks):
            ends.append(ends[-1] + self._length(ends[-1], 1 << block))
        sizes = np.arange(1, 1 << self._blocks)
        blocks = np.repeat(np.arange(self._blocks), 1 << np.arange(self._blocks))
        kept = self._kept(np.array(ends)[blocks], sizes, sizes - (1 << blocks))
        weights = [(end - start) << _BITS - 2 * _CHOICE_BITS - _TIE_DIGITS - 1 for start, end in pairwise(ends)]
        side = [weights[block] * digits >> block for block, digits in zip(blocks.tolist(), kept, strict=True)]
        return [*side[::-1], (1 << _BITS) - 2 * sum(side), *side]

    def _length(self, start: int, size: int) -> int:
        """How many choosing words from this one on give this size, if its place is the first and U is 0."""

        def gives_it(more: Integers) -> Flags:
            zero, inside = np.zeros_like(more), start + more < 1 << _CHOICE_BITS
            given: Flags = self._drawn(np.where(inside, start + more, 0), zero, zero) == size
            return inside & given

        return int(_last(_CHOICE_BITS, 1, gives_it)[0]) + 1

    def _kept(self, choices: Integers, sizes: Integers, places: Integers) -> list[int]:
        """The first 72 binary digits of the probability that each of these sizes is kept."""
        first = _last(_CHOICE_BITS, len(sizes), lambda u: self._drawn(choices, u, places) == sizes)
        u = np.maximum(first, 0)
        tied = _last(_TIE_DIGITS, len(sizes), lambda ties: self._drawn(choices, u, places, ties) == sizes)
        return [
            a << _TIE_DIGITS | max(b, 0) if a >= 0 else 0 for a, b in zip(first.tolist(), tied.tolist(), strict=True)
        ]

    def _drawn(self, choices: Integers, u: Integers, places: Integers, ties: Integers | None = None) -> Integers:
        """The result of each of these events; ties are further digits of U, of events that are all tied."""
        words = np.stack([choices << _CHOICE_BITS | u, places], axis=1)
        tape = np.full(len(u), self._single, dtype="<u2").tobytes() + words.astype("<i8").tobytes()
        if ties is not None:
            tape += (ties.astype("<u8") << np.uint64(_TIE_BITS - _TIE_DIGITS)).tobytes()
        return self._share.sample(len(u), _Tape(tape))


class _Tape:
    """Crafted entropy, followed by zeros."""

    def __init__(self, data: bytes) -> None:
        self._left = memoryview(data)

    def read(self, size: int) -> bytes:
        taken, self._left = self._left[:size], self._left[size:]
        return bytes(taken).ljust(size, b"\0")


def _last(bits: int, many: int, comes_out: ComesOut) -> Integers:
    """By bisection the largest integer below 2^bits for which ``comes_out``, for each of many; −1 if there is none."""
    low, high = np.full(many, -1, dtype=np.int64), np.full(many, 1 << bits, dtype=np.int64)
    while (high - low > 1).any():
        middle = np.maximum((low + high) // 2, 0)
        out = comes_out(middle)
        open_ = high - low > 1
        low, high = np.where(open_ & out, middle, low), np.where(open_ & ~out, middle, high)
    return low
