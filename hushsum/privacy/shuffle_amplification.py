"""What a shuffler adds: the smaller ε at a δ > 0 of many randomised reports that arrive as one multiset.

Feldman, McMillan and Talwar 2021 ("Hiding Among the Clones"), the reduction that proves their Theorem 3.1: n reports of
one randomiser that is pure ln λ-locally private, permuted uniformly, are post-processing of a pair of counts. With

    C ~ Bin(n − 1, 1/λ),   A ~ Bin(C, ½),   Δ ~ Bernoulli(λ/(λ + 1))

the counts are (A + Δ, C − A + 1 − Δ) for one record and (A + 1 − Δ, C − A + Δ) for the one that replaces it. Their
Theorem 3.1 bounds the divergence of this pair in closed form; here it is computed. At a factor E = e^ε

    δ(E) = Σ_c P(C = c) · D_c,   D_c = (λ − E)/(λ + 1) · P(A = k) − (E − 1) · P(A > k),

where A > k is where the first law has more than E times the weight of the second: k + 1 is the least integer that is
at least (c + 1)(λE − 1)/((λ − 1)(E + 1)). Both directions are equal by symmetry. D_c falls with c, and δ(E) with n.

Everything is integer arithmetic of fixed point with the rounding against us; what a sum leaves out is added to δ. A
value costs about 15·√(n·(λ − 1))/λ steps: below 0.2 s for n = 10⁷.

The conditions under which anybody may say so:

- n counts **honest, independent** reports: a fabricated one, or one that repeats an earlier draw (memoised), hides
  nobody. The n − 1 others may be of any records, even of records that the adversary knows.
- It holds against those who see nothing before the shuffler; against everybody else ln λ holds, and nothing more.
- It is for one batch: windows in which a unit takes part again add.

**A unit of m reports** in the batch, each pure ln λ. Replacing all of them is m replacements, one after the other, each
in a batch of the same n reports: the unit's others are honest and independent draws like anybody's. With (ln E, δ') for
one replacement, m of them give (m·ln E, δ'·Σ_{j<m} E^j), since P₀(S) <= E·P₁(S) + δ' holds of every pair in turn.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from typing import Final

from hushsum.noise.exp_thresholds import exp_minus, exp_upper
from hushsum.privacy.exact_numbers import notch_of
from hushsum.privacy.zcdp import ln

_BITS: Final = 64  # of fixed point, beyond those of what is left out
_LN_BITS: Final = 96
_FACTOR_BITS: Final = 96  # of E: a short fraction, so that the threshold of every c is exact
_LEFT_OUT_BITS: Final = 40  # all that is left out is at most δ·2⁻⁴⁰
_EPSILON_MIN: Final = Fraction(1, 10**9)
_EPSILON_MAX: Final = Fraction(64)  # of a unit: e^64 says nothing any more
_DELTA_MIN: Final = Fraction(1, 1 << 256)  # of what tells where to look
_CACHED: Final = 256


@lru_cache(_CACHED)
def amplified(ratio: Fraction, reports: int, delta: Fraction, reports_per_unit: int = 1) -> Fraction | None:
    """The ε of one unit at a δ after shuffling: the least number of 6 significant digits that the computation supports.

    It never rises with the number of reports: it holds for batches of at least so many.

    Args:
        ratio: λ, the exact likelihood ratio of the randomiser of one report; above 1.
        reports: n, honest and independent ones in one batch, the unit's own among them.
        delta: Above 0 and below 1, of the unit.
        reports_per_unit: m, as many as one unit may have in the batch; at least 1.

    Returns:
        None where nothing better is proven than m·ln λ, which always holds, and where that is above 64 and nothing up
        to 64 is proven.

    Raises:
        ValueError: An argument is out of range.
    """
    if ratio <= 1 or not 0 < delta < 1:
        raise ValueError(f"amplification needs a ratio above 1 and a delta above 0 and below 1, got {ratio}, {delta}")
    if reports < 0 or reports_per_unit < 1:
        raise ValueError(f"amplification needs reports of a unit of at least 1, got {reports} of {reports_per_unit}")
    if reports < 2:  # there is no other report
        return None
    batch = _Batch(ratio, reports, delta, reports_per_unit)
    local = Fraction(reports_per_unit * ln(ratio, _LN_BITS)[0], 1 << _LN_BITS)
    return batch.least(_short_below(local) if local <= _EPSILON_MAX else _EPSILON_MAX)


def is_amplified_to(ratio: Fraction, reports: int, epsilon: Fraction, delta: Fraction) -> bool:
    """Whether one report among so many has a computed ε of at most this at a δ; faster than :func:`amplified`.

    Args:
        ratio: λ; above 1.
        reports: n.
        epsilon: Above 0 and at most 64.
        delta: Above 0 and below 1.
    """
    return reports > 1 and _Batch(ratio, reports, delta, 1).delta_at(epsilon) <= delta


@dataclass(frozen=True)
class _Batch:
    """n reports, m of them of one unit, at the δ of the unit."""

    ratio: Fraction
    reports: int
    delta: Fraction
    per_unit: int

    def least(self, high: Fraction) -> Fraction | None:
        """The least ε of 6 significant digits that is supported, from 10⁻⁹ up to ``high``; None: there is none.

        √ln(1/δ) is nearly a linear function of ε, so that the ends of an interval tell where to look inside. Every
        third step halves the interval, which ends the search whatever the function is.
        """
        low = min(_EPSILON_MIN, high)
        least, most = self.delta_at(low), self.delta_at(high)
        if least <= self.delta:
            return low
        if most > self.delta:
            return None
        wanted, below, above = _height(self.delta), _height(least), _height(most)
        guess, step = self._guess(), 0
        while low < (last := _short_below(high)):
            middle = min(max(_short_below(guess), _short_above(low)), last)
            found = self.delta_at(middle)
            if found <= self.delta:
                high, above = middle, _height(found)
            else:
                low, below = middle, _height(found)
            step += 1
            guess = (low + high) / 2
            if step % 3 and above > below:
                guess = low + (high - low) * Fraction(wanted - below, above - below)
        return high

    def delta_at(self, epsilon: Fraction) -> Fraction:
        """An upper bound of the δ of the unit at its ε."""
        one = epsilon / self.per_unit
        factor = Fraction((1 << 2 * _FACTOR_BITS) // exp_minus(one, _FACTOR_BITS)[1], 1 << _FACTOR_BITS)
        if not 1 < factor < self.ratio:
            return Fraction(int(factor <= 1))
        # E <= e^(ε/m), so that E^j <= e^(jε/m): a geometric series.
        sums = (exp_upper(epsilon) - 1) / (factor - 1) if self.per_unit > 1 else Fraction(1)
        left_out = self.delta / sums / (1 << _LEFT_OUT_BITS)
        return sums * _divergence(self.ratio, self.reports - 1, factor, left_out)

    def _guess(self) -> Fraction:
        """About where ε is: a quarter of the closed form of Theorem 3.1."""
        square = self.ratio * Fraction(ln(4 / self.delta, _LN_BITS)[1], 1 << _LN_BITS) / self.reports
        root = isqrt((square.numerator << 2 * _LN_BITS) // square.denominator)
        return Fraction(2 * self.per_unit * root + 1, 1 << _LN_BITS)


def _divergence(ratio: Fraction, others: int, factor: Fraction, left_out: Fraction) -> Fraction:
    """An upper bound of δ(E) for so many other reports, above it by hardly more than what may be left out."""
    bits = _BITS + (left_out.denominator // left_out.numerator).bit_length()
    clones, weights, weight = _clones(ratio, others, left_out, bits)
    threshold = (ratio * factor - 1) / ((ratio - 1) * (factor + 1))  # k + 1 = ⌈(c + 1)·threshold⌉
    top, bottom = threshold.numerator, threshold.denominator
    gain, loss = -(-((ratio - factor) / (ratio + 1)) * (1 << bits) // 1), (factor - 1) * (1 << bits) // 1
    k = ((clones + 1) * top - 1) // bottom
    at_low, at_high, above = _coins(clones, k, bits)
    total = 0
    for c, each in enumerate(weights, clones):
        total += each * (gain * at_high - loss * above)
        before, k = k, ((c + 2) * top - 1) // bottom
        if k == before:  # P(A > k) grows by ½P(A = k)
            above += at_low >> 1
            less = 2 * (c + 1 - k)
        else:  # and falls by ½P(A = k + 1), where the bound k rises with c
            less = 2 * k
            above -= -(-at_high * (c - before) // less)
        at_low, at_high = at_low * (c + 1) // less, -(-at_high * (c + 1) // less)
    return Fraction(total, weight << 2 * bits) + left_out


def _clones(ratio: Fraction, others: int, left_out: Fraction, bits: int) -> tuple[int, list[int], int]:
    """The law of C ~ Bin(others, 1/λ), but for at most what may be left out.

    The mode weighs 2^bits, and away from it each is its neighbour times a ratio of at most 1: rounding down j times
    loses at most j.

    Returns:
        The first c that is not left out; weights of it and all that follow it, from above; their sum, from below.
    """
    mode = min(others, (others + 1) // ratio)
    a, b = (ratio - 1).numerator, (ratio - 1).denominator
    limit = left_out * (1 << bits) // 2  # of each side; the sum of all weights is at least 2^bits
    up = _side(limit, bits, others - mode, lambda j: ((others - mode - j) * b, (mode + j + 1) * a))
    down = _side(limit, bits, mode, lambda j: ((mode - j) * a, (others - mode + j + 1) * b))
    weights = [*reversed(down[1:]), *up]
    return mode - (len(down) - 1), weights, sum(weights) - len(down) ** 2 - len(up) ** 2


def _side(limit: int, bits: int, most: int, ratio: Callable[[int], tuple[int, int]]) -> list[int]:
    """Weights from the mode to one side, from above, until all that follow weigh at most a limit.

    Args:
        limit: Of the weight of all that is left out.
        bits: The mode weighs 2^bits.
        most: Weights beside the mode.
        ratio: Numerator and denominator of weight j + 1 to weight j; at most 1, and falling.
    """
    weight, found = 1 << bits, [1 << bits]
    for j in range(most):
        numerator, denominator = ratio(j)
        weight = weight * numerator // denominator
        # The rest is at most a geometric series of this ratio.
        if (weight + j + 1) * denominator <= limit * (denominator - numerator):
            break
        found.append(weight + j + 1)
    return found


def _coins(c: int, k: int, bits: int) -> tuple[int, int, int]:
    """Of A ~ Bin(c, ½) and k >= c/2, times 2^bits: P(A = k) from below and above, and P(A > k) from below."""
    place, weight, whole, after, at = -(-c // 2), 1 << bits, 0, 0, 0
    start = place
    while weight:
        whole += weight
        at, after = (weight, after) if place == k else (at, after + weight if place > k else after)
        weight = weight * (c - place) // (place + 1)
        place += 1
    # Rounding down loses at most j of weight j, and what follows weighs at most steps·(place + 1).
    steps = place - start
    low = 2 * whole - (1 - c % 2 << bits)  # the other half, and the middle once
    high = low + 2 * steps * (steps + place + 1)
    return (at << bits) // high, -((-at - steps << bits) // low), (after << bits) // high


def _short_below(value: Fraction) -> Fraction:
    """The largest number of 6 significant digits below a value above 0."""
    below = value - notch_of(value) / 10
    notch = notch_of(below)
    return below // notch * notch


def _short_above(value: Fraction) -> Fraction:
    """The least number of 6 significant digits above a value above 0."""
    notch = notch_of(value)
    return (value // notch + 1) * notch


def _height(delta: Fraction) -> int:
    """About √ln(1/δ), in fixed point; 0 of what is no δ below 1."""
    return isqrt(ln(1 / max(delta, _DELTA_MIN), _LN_BITS)[1] << _LN_BITS) if delta < 1 else 0
