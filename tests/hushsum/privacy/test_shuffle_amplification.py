"""Amplification by shuffling: the claim is the exact divergence of the dominating pair, and above what is true.

The dominating pair is enumerated by code of its own: as exact fractions for few reports, as a convolution in floats for
1,000. The shuffled output of n binary reports is the number of ones, whose law is a convolution of two binomials; that
of three-valued ones is a pair of counts. Their hockey-stick divergences are sums over every output.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, multinomial

from hushsum.privacy import shuffle_amplification
from hushsum.privacy.shuffle_amplification import amplified, is_amplified_to

Floats = npt.NDArray[np.float64]

#: λ, n, δ: where the closed form of the theorem says anything, and where it does not.
CASES = [(2.0, 465, 1e-6), (1.5, 400, 1e-6), (4.0, 1000, 1e-6), (4.0, 400, 1e-2), (8.0, 3000, 1e-8), (8.0, 200, 1e-3)]
MILLIONTH = Fraction(1, 10**6)


def exact(number: float) -> Fraction:
    return Fraction(repr(number)) if number >= 1 else Fraction(1, round(1 / number))


def epsilon_of(ratio: float, reports: int, delta: float, per_unit: int = 1) -> float:
    found = amplified(exact(ratio), reports, exact(delta), per_unit)
    assert found is not None
    return float(found)


def closed_form(ratio: float, reports: int, delta: float) -> float:
    """Theorem 3.1 as it is printed, in floats; it holds where λ ≤ n/(16 ln(2/δ))."""
    root = 8 * math.sqrt(ratio * math.log(4 / delta)) / math.sqrt(reports)
    return math.log(1 + (ratio - 1) / (ratio + 1) * (root + 8 * ratio / reports))


def hockey_stick(law: Floats, other: Floats, epsilon: float) -> float:
    """The least δ with which ε holds between two laws, both ways."""
    ways = ((law, other), (other, law))
    return max(float(np.maximum(one - math.exp(epsilon) * two, 0).sum()) for one, two in ways)


def dominating_pair(ratio: float, reports: int) -> tuple[Floats, Floats]:
    """Laws of both counts, as (reports + 1, reports + 1): the clones' by one binomial after the other, then the one."""
    clones = binom.pmf(np.arange(reports), reports - 1, 1 / ratio)
    rest = np.zeros((reports + 1, reports + 1))
    for c, weight in enumerate(clones):
        at = np.arange(c + 1)
        rest[at, c - at] = weight * binom.pmf(at, c, 0.5)
    first, second = np.roll(rest, 1, axis=0), np.roll(rest, 1, axis=1)
    keep = ratio / (ratio + 1)
    return keep * first + (1 - keep) * second, keep * second + (1 - keep) * first


def exact_delta(ratio: Fraction, reports: int, factor: Fraction) -> Fraction:
    """δ of the dominating pair at E = e^ε, over every pair of counts, in fractions."""
    share, keep, total = 1 / ratio, ratio / (ratio + 1), Fraction(0)
    rest: dict[tuple[int, int], Fraction] = {}
    for c in range(reports):
        weight = math.comb(reports - 1, c) * share**c * (1 - share) ** (reports - 1 - c)
        for a in range(c + 1):
            rest[a, c - a] = weight * Fraction(math.comb(c, a), 2**c)
    for a in range(reports + 1):
        for b in range(reports + 1 - a):
            first, second = rest.get((a - 1, b), Fraction(0)), rest.get((a, b - 1), Fraction(0))
            one, two = keep * first + (1 - keep) * second, keep * second + (1 - keep) * first
            total += max(Fraction(0), one - factor * two)
    return total


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


@pytest.mark.parametrize(("ratio", "delta"), [(2.0, 1e-6), (54.5981, 1e-6), (1.1, 1e-9), (20.0, 1e-2)])
def test_of_a_thousand_reports_it_is_what_the_convolution_gives(ratio: float, delta: float) -> None:
    laws = dominating_pair(ratio, 1000)
    brute = brentq(lambda epsilon: math.log(hockey_stick(*laws, epsilon) / delta), 1e-3, math.log(ratio) - 1e-6)
    assert epsilon_of(ratio, 1000, delta) == pytest.approx(brute, rel=1e-4)


def is_exact(ratio: Fraction, reports: int, factor: Fraction) -> bool:
    """The audit of one value: above the enumerated divergence, by no more than what may be left out."""
    found = shuffle_amplification._divergence(ratio, reports - 1, factor, Fraction(1, 10**12))
    return 0 <= found - exact_delta(ratio, reports, factor) <= Fraction(2, 10**12)


VALUES = [
    (Fraction(2), 2, Fraction("1.5")),
    (Fraction("1.1"), 7, Fraction("1.01")),
    (Fraction("54.5981"), 12, Fraction(3)),
    (Fraction(3), 25, Fraction("1.0001")),
    (Fraction(3), 25, Fraction("2.9999")),
]


@pytest.mark.parametrize(("ratio", "reports", "factor"), VALUES)
def test_of_few_reports_it_is_what_exact_fractions_give_rounded_up(
    ratio: Fraction, reports: int, factor: Fraction
) -> None:
    assert is_exact(ratio, reports, factor)


Clones = Callable[[Fraction, int, Fraction, int], tuple[int, list[int], int]]


@pytest.mark.parametrize(
    "planted",
    [
        lambda clones: lambda ratio, others, *rest: clones(ratio, others + 1, *rest),
        lambda clones: lambda ratio, others, *rest: clones((ratio + 1) / 2, others, *rest),
        lambda clones: lambda ratio, others, *rest: clones(ratio * ratio, others, *rest),
    ],
    ids=["n for n - 1", "clones of probability 2/(λ + 1)", "clones of probability λ⁻²"],
)
def test_a_planted_mistake_is_found(planted: Callable[[Clones], Clones], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle_amplification, "_clones", planted(shuffle_amplification._clones))
    assert not any(is_exact(*value) for value in VALUES)


@pytest.mark.parametrize(("ratio", "reports", "delta"), CASES)
def test_what_is_claimed_holds_of_every_shuffled_output_of_binary_reports(
    ratio: float, reports: int, delta: float
) -> None:
    epsilon = epsilon_of(ratio, reports, delta)
    assert epsilon < math.log(ratio)
    assert binary_delta(ratio, reports, epsilon) <= delta


@pytest.mark.parametrize(("ratio", "reports", "delta"), CASES)
def test_four_tenths_of_it_would_be_false(ratio: float, reports: int, delta: float) -> None:
    assert binary_delta(ratio, reports, 0.4 * epsilon_of(ratio, reports, delta)) > delta


def test_it_holds_where_nobody_else_has_either_value() -> None:
    assert ternary_delta(4.0, 400, epsilon_of(4.0, 400, 1e-2)) <= 1e-2
    assert ternary_delta(4.0, 400, 0.01) > 1e-2  # the enumeration is no formality


@pytest.mark.parametrize(
    ("ratio", "reports", "delta", "gain"),
    [(54.5981, 10**5, 1e-6, 3.1), (2.71828, 10**6, 1e-6, 3.0), (20.0, 2**21, 1e-12, 2.5), (2.0, 465, 1e-6, 3.2)],
)
def test_it_is_several_times_below_the_closed_form(ratio: float, reports: int, delta: float, gain: float) -> None:
    assert closed_form(ratio, reports, delta) / epsilon_of(ratio, reports, delta) > gain


def test_of_one_report_or_none_nothing_is_amplified() -> None:
    assert amplified(Fraction(2), 2, MILLIONTH) is not None
    assert amplified(Fraction(2), 1, MILLIONTH) is None
    assert amplified(Fraction(2), 0, MILLIONTH) is None


def test_where_it_is_no_less_than_the_local_guarantee_there_is_none() -> None:
    """Of two reports nobody hides the one with probability 1 - 1/λ."""
    assert amplified(Fraction(10**6), 2, Fraction(1, 10**40)) is None


@pytest.mark.parametrize(("ratio", "reports", "delta", "per_unit"), [(1.1, 2000, 1e-7, 2), (1.2, 4000, 1e-6, 4)])
def test_what_is_claimed_of_all_of_a_clients_reports_holds(
    ratio: float, reports: int, delta: float, per_unit: int
) -> None:
    epsilon = epsilon_of(ratio, reports, delta, per_unit)
    assert epsilon < per_unit * math.log(ratio)
    assert binary_delta(ratio, reports, epsilon, moved=per_unit) <= delta
    assert binary_delta(ratio, reports, epsilon / 4, moved=per_unit) > delta


@pytest.mark.parametrize(("ratio", "per_unit"), [(1.10517, 10), (1.01, 100), (1.5, 1000)])
def test_a_clients_replacements_come_one_after_the_other(ratio: float, per_unit: int) -> None:
    """(mε', Σ_j e^(jε')·δ'), with the δ' that it takes: recomputed from what is claimed, in floats."""
    reports, delta = 2**21, 1e-6
    epsilon = epsilon_of(ratio, reports, delta, per_unit)
    one = epsilon / per_unit
    share = delta / sum(math.exp(j * one) for j in range(per_unit))  # what each replacement may fail with
    single = amplified(exact(ratio), reports, Fraction(repr(share)))
    assert single is not None
    assert one == pytest.approx(float(single), rel=1e-5)
    assert epsilon > per_unit * epsilon_of(ratio, reports, delta)  # who forgets δ' claims too little


def test_more_reports_a_larger_delta_or_fewer_of_a_unit_never_give_a_larger_epsilon() -> None:
    ratio = Fraction("1.2")
    for found in (
        [amplified(ratio, n, MILLIONTH, 4) for n in (10**6, 10**5, 10**4)],
        [amplified(ratio, 10**5, delta, 4) for delta in (Fraction(1, 100), MILLIONTH, Fraction(1, 10**9))],
        [amplified(ratio, 10**5, MILLIONTH, m) for m in (1, 2, 3, 10, 100)],
    ):
        assert all(one is not None and two is not None and one < two for one, two in pairwise(found))


def test_one_more_report_never_gives_a_larger_epsilon() -> None:
    ratio = Fraction("54.5981")
    found = [amplified(ratio, n, MILLIONTH) for n in (*range(2, 60), *range(5000, 5020), *range(10**5, 10**5 + 5))]
    assert all(more is None or (fewer if fewer is not None else ratio) >= more for fewer, more in pairwise(found)), (
        found
    )


#: λ, n, 1/δ and m, and the ε that releases and plans state.
FROZEN = {
    ("54.5981", 100000, 1000000, 1): "16977/100000",
    ("2.71828", 10000, 1000000, 1): "530053/10000000",
    ("1.5", 1000, 100000000, 1): "699949/10000000",
    ("403.428", 2000000, 1000000000, 1): "72077/500000",
    ("2", 50, 100, 1): "18247/125000",
    ("1.2", 100000, 1000000, 10): "8173/400000",
    ("2.71828", 1000000, 1000000, 3): "36079/2500000",
}


def test_every_machine_computes_the_same_number() -> None:
    for (ratio, reports, failure, per_unit), epsilon in FROZEN.items():
        assert amplified(Fraction(ratio), reports, Fraction(1, failure), per_unit) == Fraction(epsilon)


def test_an_epsilon_is_tried_without_a_search() -> None:
    ratio = Fraction("54.5981")
    assert is_amplified_to(ratio, 10**5, Fraction("0.16977"), MILLIONTH)
    assert not is_amplified_to(ratio, 10**5, Fraction("0.169769"), MILLIONTH)
    assert not is_amplified_to(ratio, 1, Fraction("0.16977"), MILLIONTH)


def test_a_unit_of_very_many_reports_is_answered_quickly_and_soundly() -> None:
    many = amplified(1 + Fraction(1, 2**31), 2**21, MILLIONTH, 2**31)
    assert many is not None
    assert many < 1
    assert amplified(Fraction(3), 2**21, MILLIONTH, 2**31) is None


@pytest.mark.parametrize(
    "wrong",
    [(1, 10, "0.1", 1), (2, 10, "0", 1), (2, 10, "1", 1), (2, -1, "0.1", 1), (2, 10, "0.1", 0)],
)
def test_what_is_out_of_range_is_refused(wrong: tuple[int, int, str, int]) -> None:
    ratio, reports, delta, per_unit = wrong
    with pytest.raises(ValueError, match="amplification needs"):
        amplified(Fraction(ratio), reports, Fraction(delta), per_unit)
