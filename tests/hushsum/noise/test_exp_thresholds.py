"""Probabilities are known to every digit that is asked for, and never from the wrong side."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushsum.noise import exp_thresholds
from hushsum.noise.exp_thresholds import Form, ProbabilityThreshold, exp_minus, exp_upper
from tests.hushsum.noise.observed import true_prefix

exponents = st.fractions(min_value=Fraction(1, 10**6), max_value=40, max_denominator=10**6)


@settings(max_examples=60)
@given(x=exponents, bits=st.integers(1, 200))
def test_an_enclosure_holds_the_number_and_is_tight(x: Fraction, bits: int) -> None:
    low, high = exp_minus(x, bits)
    assert low <= true_prefix(x, bits, tail=True) < high
    assert high - low <= 2


def test_without_bits_to_spare_an_enclosure_still_holds_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exp_thresholds, "_SPARE_BITS", -2)  # below 1 there is one halving: no spare bit is left
    for denominator in range(3, 200):
        x, bits = Fraction(2, denominator), 40 + denominator % 7
        low, high = exp_minus(x, bits)
        assert low <= true_prefix(x, bits, tail=True) < high, x


@settings(max_examples=60)
@given(x=exponents, bits=st.integers(1, 200), form=st.sampled_from(Form))
def test_a_prefix_is_the_first_digits_of_the_probability(x: Fraction, bits: int, form: Form) -> None:
    assert ProbabilityThreshold(x, form).prefix(bits) == true_prefix(x, bits, tail=form is Form.TAIL)


@pytest.mark.parametrize("x", (Fraction(1, 2**48), Fraction(1, 10**30), Fraction(10**30), Fraction(2**54)))
def test_extreme_exponents_are_answered_at_once(x: Fraction) -> None:
    near_half = 2**79 + math.floor(-(2**78) * x)  # 1/(1 + e^x) = 1/2 - x/4 + x^3/48 - ...
    assert ProbabilityThreshold(x, Form.DIGIT).prefix(80) == (0 if x > 1 else near_half)


def test_a_prefix_extends_the_shorter_one() -> None:
    threshold = ProbabilityThreshold(Fraction(1, 1053), Form.DIGIT)
    assert threshold.prefix(400) >> 384 == threshold.prefix(16)


@settings(max_examples=60)
@given(x=st.fractions(min_value=0, max_value=60, max_denominator=1000))
def test_an_upper_bound_of_exp_is_above_it_and_near(x: Fraction) -> None:
    bound = exp_upper(x)
    low, _ = exp_minus(x, 300)
    _, high = exp_minus(x, 300)
    assert bound * high >= 2**300  # bound >= e^x
    assert bound * low <= 2**300 * (1 + Fraction(1, 2**60))


@pytest.mark.parametrize("x", (Fraction(0), Fraction(-1)))
def test_a_threshold_of_no_rate_is_refused(x: Fraction) -> None:
    with pytest.raises(ValueError, match="x > 0"):
        ProbabilityThreshold(x, Form.DIGIT)


def test_a_negative_exponent_has_no_enclosure() -> None:
    with pytest.raises(ValueError, match="x >= 0"):
        exp_minus(Fraction(-1, 2), 64)
