"""Exact audit: over all outcomes, neighbours' probabilities differ by e^ε at most, for what is really drawn.

The probabilities are no formula's: they are read off the running sampler, with rigorous bounds (see ``observed``). A
row of a sketch is audited together with the count counter. The support is cut at ±260, in the third turn of the part
above the digits (128 at this scale); behind it that part's own geometric repeats the same ratio.
"""

from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import chain, product
from math import prod

import pytest

from hushsum.errors import GuaranteeError
from hushsum.noise import DiscreteLaplace
from hushsum.privacy.calibration import calibrate
from hushsum.privacy.claim import Claim
from hushsum.privacy.mechanisms import Mechanism
from hushsum.privacy.verifier import verify
from hushsum.sensitivity import Sensitivity
from tests.hushsum.noise.observed import pmf

Bounds = dict[int, tuple[Fraction, Fraction]]
REACH = 260
ONE_ROW = Sensitivity(
    l0=1, l1=1, l2_squared=1, linf=1
)  # R = 1: one record moves one bucket, and the count counter by 1
ROUNDING = Fraction(1, 2**80)  # of the bounds, which are tighter still


@pytest.fixture(scope="module")
def scale_2() -> Bounds:
    return pmf(DiscreteLaplace(Fraction(2)), reach=REACH, ties=3)


@pytest.fixture(scope="module")
def scale_1() -> Bounds:
    return pmf(DiscreteLaplace(Fraction(1)), reach=40, ties=2)


def worst_of_all(noise: Bounds, neighbours: Sequence[tuple[int, ...]]) -> tuple[Fraction, Fraction]:
    """Bounds of the largest ratio of the probabilities of one outcome under two neighbours, over all outcomes.

    Args:
        noise: Of one counter; it is independent between counters, so that the worst outcomes multiply.
        neighbours: By how much the counters of each pair of neighbours differ.
    """
    worst = {change: _worst_of_one(noise, change) for change in set(chain(*neighbours))}
    low, high = (
        max(prod((worst[change][end] for change in changes), start=Fraction(1)) for changes in neighbours)
        for end in (0, 1)
    )
    return low, high


def worst_ratio(noise: Bounds, changes: tuple[int, ...]) -> tuple[Fraction, Fraction]:
    """The same for one pair."""
    return worst_of_all(noise, [changes])


def _worst_of_one(noise: Bounds, change: int) -> tuple[Fraction, Fraction]:
    ratios = [(noise[k], noise[k - change]) for k in noise if k - change in noise]
    return max(p[0] / q[1] for p, q in ratios), max(p[1] / q[0] for p, q in ratios)


def exp(epsilon: Fraction) -> Fraction:
    with localcontext() as context:
        context.prec = 60
        return Fraction((Decimal(epsilon.numerator) / Decimal(epsilon.denominator)).exp())


def changes_of_one_record(count_scale: int) -> list[tuple[int, ...]]:
    """Added to or removed from one of two buckets, with the count counter."""
    return [(sign * (bucket == 0), sign * (bucket == 1), sign * count_scale) for sign in (1, -1) for bucket in (0, 1)]


def changes_of_one_client(records: int, count_scale: int) -> list[tuple[int, ...]]:
    """All its records, up to the bound, spread over two buckets in every way."""
    return [
        (sign * first, sign * second, sign * (first + second) * count_scale)
        for sign in (1, -1)
        for first, second in product(range(records + 1), repeat=2)
        if first + second <= records
    ]


@pytest.mark.parametrize(
    ("unit", "records", "epsilon"),
    (("record", None, Fraction(1)), ("client", 1, Fraction(1)), ("client", 3, Fraction(3))),
)
def test_a_calibrated_mechanism_keeps_epsilon_over_all_outcomes(
    unit: str, records: int | None, epsilon: Fraction, scale_2: Bounds
) -> None:
    mechanism = calibrate(ONE_ROW, Claim(epsilon, Fraction(0), unit, records))
    assert mechanism == Mechanism("discrete-laplace", Fraction(2), 1)
    changes = changes_of_one_client(records, 1) if records else changes_of_one_record(1)
    low, high = worst_of_all(scale_2, changes)
    assert high <= exp(epsilon) * (1 + ROUNDING)
    assert low >= exp(epsilon) * (1 - ROUNDING), "the worst case is reached, not less"


@pytest.mark.parametrize(("unit", "records", "epsilon"), (("record", None, Fraction(1)), ("client", 3, Fraction(3))))
def test_noise_of_half_the_scale_fails_the_audit_and_the_verifier(
    unit: str, records: int | None, epsilon: Fraction, scale_1: Bounds
) -> None:
    changes = changes_of_one_client(records, 1) if records else changes_of_one_record(1)
    assert worst_of_all(scale_1, changes)[0] > exp(epsilon) * 2
    with pytest.raises(GuaranteeError):
        verify(Mechanism("discrete-laplace", Fraction(1), 1), ONE_ROW, Claim(epsilon, Fraction(0), unit, records))


def test_a_client_of_more_records_than_the_bound_would_break_it(scale_2: Bounds) -> None:
    assert worst_ratio(scale_2, (4, 0, 4))[0] > exp(Fraction(3)) * 2


def test_a_count_counter_that_nobody_charged_would_break_it(scale_2: Bounds) -> None:
    without_it = worst_ratio(scale_2, (2,))
    assert without_it[1] <= exp(Fraction(1)) * (1 + ROUNDING)
    assert worst_ratio(scale_2, (2, 2))[0] > exp(Fraction(1)) * 2
