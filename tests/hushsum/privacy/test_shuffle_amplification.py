"""Amplification by shuffling: what is claimed lies above what is true, exactly where that can be enumerated.

The shuffled output of n binary reports is the number of ones, whose law is a convolution of two binomials; that of
three-valued ones is a pair of counts. Their hockey-stick divergences are sums over every output.
"""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom, multinomial

from hushsum.privacy.shuffle_amplification import amplified

Floats = npt.NDArray[np.float64]

#: λ, n, δ: each only just within the condition of the theorem, where ε is largest, or well within.
CASES = [(2.0, 465, 1e-6), (1.5, 400, 1e-6), (4.0, 1000, 1e-6), (4.0, 400, 1e-2), (8.0, 3000, 1e-8)]


def exact(number: float) -> Fraction:
    return Fraction(repr(number)) if number >= 1 else Fraction(1, round(1 / number))


def epsilon_of(ratio: float, reports: int, delta: float, per_unit: int = 1) -> float:
    found = amplified(exact(ratio), reports, exact(delta), per_unit)
    assert found is not None
    return float(found)


def formula(ratio: float, reports: int, delta: float) -> float:
    """Theorem 3.1 as it is printed, in floats."""
    root = 8 * math.sqrt(ratio * math.log(4 / delta)) / math.sqrt(reports)
    return math.log(1 + (ratio - 1) / (ratio + 1) * (root + 8 * ratio / reports))


def hockey_stick(law: Floats, other: Floats, epsilon: float) -> float:
    """The least δ with which ε holds between two laws, both ways."""
    ways = ((law, other), (other, law))
    return max(float(np.maximum(one - math.exp(epsilon) * two, 0).sum()) for one, two in ways)


def ones(ratio: float, reports: int, true_ones: int) -> Floats:
    """The law of the number of ones among shuffled binary reports, so many of which are of a one."""
    keep, number = ratio / (1 + ratio), np.arange(reports + 1)
    of_zeros = binom.pmf(number, reports - true_ones, 1 - keep)
    return np.convolve(binom.pmf(number, true_ones, keep), of_zeros)[: reports + 1]


def binary_delta(ratio: float, reports: int, epsilon: float, moved: int = 1) -> float:
    """The worst over others that are all zeros, all ones, and half of each."""
    others = reports - moved
    laws = [(ones(ratio, reports, k), ones(ratio, reports, k + moved)) for k in (0, others // 2, others)]
    return max(hockey_stick(*pair, epsilon) for pair in laws)


def ternary_delta(ratio: float, reports: int, epsilon: float) -> float:
    """Of three-valued response, one record 0 or 1 and all others 2: the blanket is as thin as it can be."""
    hit, miss, others = ratio / (ratio + 2), 1 / (ratio + 2), reports - 1
    zeros, at_ones = np.meshgrid(np.arange(others + 1), np.arange(others + 1), indexing="ij")
    inside = zeros + at_ones <= others
    counts = np.stack([zeros, at_ones, np.maximum(0, others - zeros - at_ones)], axis=-1)
    rest = np.zeros((reports + 1, reports + 1))
    rest[:-1, :-1][inside] = multinomial.pmf(counts[inside], others, [miss, miss, hit])
    more_zeros, more_ones = np.roll(rest, 1, axis=0), np.roll(rest, 1, axis=1)
    law = hit * more_zeros + miss * (more_ones + rest)
    return hockey_stick(law, hit * more_ones + miss * (more_zeros + rest), epsilon)


@pytest.mark.parametrize(("ratio", "reports", "delta"), CASES)
def test_what_is_claimed_holds_of_every_shuffled_output_of_binary_reports(
    ratio: float, reports: int, delta: float
) -> None:
    epsilon = epsilon_of(ratio, reports, delta)
    assert epsilon < math.log(ratio)
    assert binary_delta(ratio, reports, epsilon) <= delta


@pytest.mark.parametrize(("ratio", "reports", "delta"), [case for case in CASES if case[2] < 1e-3])
def test_an_eighth_of_it_would_be_false(ratio: float, reports: int, delta: float) -> None:
    """The constant 8 as a 1, or 64 times as many reports as there are: the enumeration tells."""
    eighth = math.log1p(math.expm1(epsilon_of(ratio, reports, delta)) / 8)
    assert binary_delta(ratio, reports, eighth) > 10 * delta


def test_it_holds_where_nobody_else_has_either_value() -> None:
    assert ternary_delta(4.0, 400, epsilon_of(4.0, 400, 1e-2)) <= 1e-2
    assert ternary_delta(4.0, 400, 0.01) > 1e-2  # the enumeration is no formality


@pytest.mark.parametrize(("ratio", "reports", "delta"), [*CASES, (2.71828, 10**6, 1e-6), (20.0, 2**21, 1e-12)])
def test_it_is_the_theorem_rounded_up(ratio: float, reports: int, delta: float) -> None:
    """Four times as many reports, or another constant, is far outside."""
    epsilon, printed = epsilon_of(ratio, reports, delta), formula(ratio, reports, delta)
    assert printed * (1 - 1e-12) <= epsilon <= printed * (1 + 2e-5)


def test_one_report_too_few_and_the_theorem_says_nothing() -> None:
    """λ ≤ n/(16 ln(2/δ)): 16·2·ln(2·10⁶) is 464.3."""
    assert amplified(Fraction(2), 465, Fraction(1, 10**6)) is not None
    assert amplified(Fraction(2), 464, Fraction(1, 10**6)) is None
    assert amplified(Fraction(2), 0, Fraction(1, 10**6)) is None


def test_where_it_is_no_less_than_the_local_guarantee_there_is_none() -> None:
    """Just within the condition with a small λ: ln(1 + (λ − 1)/(λ + 1)·2.0…) is hardly below ln λ, or above."""
    reports = math.ceil(16 * 1.1 * math.log(2 / 0.5))
    assert formula(1.1, reports, 0.5) > math.log(1.1)
    assert amplified(Fraction("1.1"), reports, Fraction(1, 2)) is None


@pytest.mark.parametrize(("ratio", "reports", "delta", "per_unit"), [(1.1, 2000, 1e-7, 2), (1.2, 4000, 1e-6, 4)])
def test_what_is_claimed_of_all_of_a_clients_reports_holds(
    ratio: float, reports: int, delta: float, per_unit: int
) -> None:
    epsilon = epsilon_of(ratio, reports, delta, per_unit)
    assert epsilon < per_unit * math.log(ratio)
    assert binary_delta(ratio, reports, epsilon, moved=per_unit) <= delta
    eighth = math.log1p(math.expm1(epsilon) / 8)
    assert binary_delta(ratio, reports, eighth, moved=per_unit) > delta


@pytest.mark.parametrize(("ratio", "per_unit"), [(1.10517, 10), (1.01, 100), (1.5, 1000)])
def test_a_clients_replacements_come_one_after_the_other(ratio: float, per_unit: int) -> None:
    """(mε', Σ_j e^(jε')·δ'), with the δ' that it takes: recomputed from what is claimed, in floats."""
    reports, delta = 2**21, 1e-6
    epsilon = epsilon_of(ratio, reports, delta, per_unit)
    one = epsilon / per_unit
    sums = sum(math.exp(j * one) for j in range(per_unit))
    share = delta / sums  # what each replacement may fail with
    assert per_unit * formula(ratio, reports, share) <= epsilon * (1 + 1e-6)
    slack = per_unit * math.expm1(epsilon) / epsilon / sums
    assert 1 <= slack < 1.2  # the bound of the sum, as an integral
    assert epsilon > per_unit * formula(ratio, reports, delta)  # who forgets δ' claims too little


def test_more_reports_a_larger_delta_or_fewer_of_a_unit_never_give_a_larger_epsilon() -> None:
    ratio = Fraction("1.2")
    for found in (
        [amplified(ratio, n, Fraction(1, 10**6), 4) for n in (10**6, 10**5, 10**4)],
        [amplified(ratio, 10**5, delta, 4) for delta in (Fraction(1, 100), Fraction(1, 10**6), Fraction(1, 10**9))],
        [amplified(ratio, 10**5, Fraction(1, 10**6), m) for m in (1, 2, 3, 10, 100)],
    ):
        assert all(one is not None and two is not None and one < two for one, two in pairwise(found))


def test_a_unit_of_very_many_reports_is_answered_quickly_and_soundly() -> None:
    many = amplified(1 + Fraction(1, 2**31), 2**21, Fraction(1, 10**6), 2**31)
    assert many is not None
    assert many < 1
    assert amplified(Fraction(3), 2**21, Fraction(1, 10**6), 2**31) is None


@pytest.mark.parametrize(
    "wrong",
    [(1, 10, "0.1", 1), (2, 10, "0", 1), (2, 10, "1", 1), (2, -1, "0.1", 1), (2, 10, "0.1", 0)],
)
def test_what_is_out_of_range_is_refused(wrong: tuple[int, int, str, int]) -> None:
    ratio, reports, delta, per_unit = wrong
    with pytest.raises(ValueError, match="amplification needs"):
        amplified(Fraction(ratio), reports, Fraction(delta), per_unit)
