"""What a shuffler adds: the smaller ε at a δ > 0 of many randomised reports that arrive as one multiset.

Feldman, McMillan and Talwar 2021 ("Hiding Among the Clones"), Theorem 3.1: n reports of one randomiser that is pure
ε₀-locally private, permuted uniformly, are (ε, δ) for replacing one record, where e^ε₀ <= n/(16 ln(2/δ)), with

    ε = ln(1 + (e^ε₀ − 1)/(e^ε₀ + 1) · (8·√(e^ε₀ ln(4/δ))/√n + 8e^ε₀/n)).

The conditions under which anybody may say so:

- n counts **honest, independent** reports: a fabricated one, or one that repeats an earlier draw (memoised), hides
  nobody. The n − 1 others may be of any records, even of records that the adversary knows.
- It holds against those who see nothing before the shuffler; against everybody else ε₀ holds, and nothing more.
- It is for one batch: windows in which a unit takes part again add.

**A unit of m reports** in the batch, each pure ln λ. Replacing all of them is m replacements, one after the other, each
in a batch of the same n reports: the unit's others are honest and independent draws like anybody's. With (ε', δ') for
one replacement, m of them give (mε', δ'·Σ_{j<m} e^(jε')), since P₀(S) <= e^ε'·P₁(S) + δ' holds of every pair in turn.
For A >= mε' the sum is at most m·(e^A − 1)/A: it is m times a mean of the rising function e^(Ax) at the left ends of m
equal parts of [0, 1], which is at most its integral. So

    A is an ε of the unit at δ   wherever   m·ε'(δ·A/(m(e^A − 1))) <= A.

The left side rises with A, so that it is such an A itself wherever A is one: from a large one on, each step is sound.
"""

from fractions import Fraction
from math import isqrt
from typing import Final

from hushsum.noise.exp_thresholds import exp_upper
from hushsum.privacy.exact_numbers import notch_of
from hushsum.privacy.zcdp import ln

_BITS: Final = 96  # of fixed point
_ONE: Final = 1 << _BITS
_EPSILON_MAX: Final = Fraction(64)  # where a unit's search begins at the latest: e^64 says nothing any more
_STEPS: Final = 8  # down from there: fewer cost digits, more change none of six wherever that was measured
_NOTCH: Final = Fraction(1, 10**12)  # what a step is rounded up to, for short numbers


def amplified(ratio: Fraction, reports: int, delta: Fraction, reports_per_unit: int = 1) -> Fraction | None:
    """The ε of one unit at a δ after shuffling, rounded up to 6 significant digits.

    Args:
        ratio: λ, the exact likelihood ratio of the randomiser of one report; above 1.
        reports: n, honest and independent ones in one batch, the unit's own among them.
        delta: Above 0 and below 1, of the unit.
        reports_per_unit: m, as many as one unit may have in the batch; at least 1.

    Returns:
        None where the theorem says nothing, or nothing better than m·ln λ, which always holds.

    Raises:
        ValueError: An argument is out of range.
    """
    if ratio <= 1 or not 0 < delta < 1:
        raise ValueError(f"amplification needs a ratio above 1 and a delta above 0 and below 1, got {ratio}, {delta}")
    if reports < 0 or reports_per_unit < 1:
        raise ValueError(f"amplification needs reports of a unit of at least 1, got {reports} of {reports_per_unit}")
    m, local = reports_per_unit, Fraction(reports_per_unit * ln(ratio, _BITS)[0], _ONE)
    epsilon = _of_one(ratio, reports, delta) if m == 1 else _of_many(ratio, reports, delta, m, min(local, _EPSILON_MAX))
    if epsilon is None:
        return None
    notch = notch_of(epsilon)
    epsilon = _up(epsilon, notch)
    return epsilon if epsilon < local else None


def reports_needed(ratio: Fraction, delta: Fraction) -> int:
    """The least n with which the theorem says anything of one report: 16·λ·ln(2/δ), rounded up."""
    return -(-16 * ratio * ln(2 / delta, _BITS)[1] // _ONE)


def _of_one(ratio: Fraction, reports: int, delta: Fraction) -> Fraction | None:
    """The theorem, from above; None where its condition is not certain to hold."""
    if reports < reports_needed(ratio, delta):
        return None
    inside = ratio * Fraction(ln(4 / delta, _BITS)[1], _ONE) / reports
    root = Fraction(isqrt(inside.numerator * _ONE * _ONE // inside.denominator) + 1, _ONE)
    excess = (ratio - 1) / (ratio + 1) * (8 * root + 8 * ratio / reports)
    return Fraction(ln(_up(1 + excess, _NOTCH), _BITS)[1], _ONE)


def _of_many(ratio: Fraction, reports: int, delta: Fraction, m: int, start: Fraction) -> Fraction | None:
    """The smallest A that the steps come to; None where the first one fails."""
    bound, found = start, None
    for _ in range(_STEPS):
        share = delta * bound / (m * (exp_upper(bound) - 1))
        one = _of_one(ratio, reports, _down(share))
        if one is None or (whole := _up(m * one, _NOTCH)) > bound:
            break
        bound = found = whole
    return found


def _up(value: Fraction, notch: Fraction) -> Fraction:
    return -(-value // notch) * notch


def _down(delta: Fraction) -> Fraction:
    """A short number that is at most a δ: an ε at a smaller one holds for it too."""
    notch = notch_of(delta) / 1000
    return delta // notch * notch
