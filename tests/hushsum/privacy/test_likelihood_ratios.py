"""Likelihood ratios of reports: rounded down from e^ε, checked without floats, and refused one notch above."""

from fractions import Fraction
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushsum.errors import GuaranteeError, PlanError
from hushsum.noise.exp_thresholds import exp_minus
from hushsum.privacy.calibration import calibrate
from hushsum.privacy.claim import Claim
from hushsum.privacy.exact_numbers import notch_of
from hushsum.privacy.likelihood_ratios import ratio_within, supports_ratio
from hushsum.privacy.local_mode import Reports
from hushsum.privacy.mechanisms import RATIO_MAX, RATIO_MIN, Mechanism, is_ratio
from hushsum.privacy.verifier import verify
from hushsum.sensitivity import Sensitivity

ONE = Sensitivity(20, 20, 20, 1)
K_RR = Reports("k-rr", 20, 64)
EPSILONS = st.fractions(Fraction(1, 50_000), 20, max_denominator=10**9)


def claim(epsilon: int | str, records: int | None = None, reports: Reports = K_RR) -> Claim:
    unit = "record" if records is None else "client"
    return Claim(Fraction(epsilon), Fraction(0), unit, records, reports=reports)


@given(EPSILONS)
def test_a_ratio_is_the_largest_of_six_digits_below_e_to_the_epsilon(epsilon: Fraction) -> None:
    ratio = ratio_within(epsilon)
    assert ratio is not None
    assert is_ratio(ratio)
    above = ratio + notch_of(ratio)
    low, high = exp_minus(epsilon, 400)
    assert ratio * high <= 1 << 400  # at most e^ε
    assert above * low > 1 << 400  # and the next is above it
    assert supports_ratio(ratio, epsilon)
    assert not supports_ratio(above, epsilon)


def test_known_ratios() -> None:
    assert ratio_within(Fraction(1)) == Fraction("2.71828")
    assert ratio_within(Fraction(4)) == Fraction("54.5981")
    assert ratio_within(Fraction(20)) == RATIO_MAX == Fraction(485_165_000)
    assert ratio_within(Fraction(1, 99_999)) == RATIO_MIN
    assert ratio_within(Fraction(1, 200_000)) is None


@pytest.mark.parametrize("records", [None, 1, 3, 1000])
def test_a_ratio_one_notch_too_large_is_refused(records: int | None) -> None:
    asked = claim(4, records)
    made = calibrate(ONE, asked)
    verify(made, ONE, asked)
    assert float(made.scale) ** (records or 1) <= exp(4)
    planted = Mechanism("k-rr", made.scale + notch_of(made.scale), 1)
    with pytest.raises(GuaranteeError) as refusal:
        verify(planted, ONE, asked)
    came, needed = (f"{float(mechanism.scale):.9g}" for mechanism in (planted, made))
    assert f"got {came}" in str(refusal.value)
    assert f"scale <= {needed}" in str(refusal.value)


def test_m_reports_compose() -> None:
    one, of_three = calibrate(ONE, claim(1)), claim(3, 3)
    assert calibrate(ONE, of_three) == one
    verify(one, ONE, of_three)
    with pytest.raises(GuaranteeError, match=r"at most 4, so each may have epsilon 0\.75"):
        verify(one, ONE, claim(3, 4))


@pytest.mark.parametrize(
    ("epsilon", "records", "expected"),
    [
        ("20.1", None, "at most 20: reports above it"),
        (100, 4, "at most 20 of one report .epsilon / records_per_client, here 25."),
        (1, 10**6, "at least 0.00001 of one report .epsilon / records_per_client, here 1e-6."),
        ("0.000001", None, "at least 0.00001: smaller values"),
    ],
)  # fmt: skip
def test_an_epsilon_that_leaves_a_report_nothing_or_everything_is_refused(
    epsilon: int | str, records: int | None, expected: str
) -> None:
    with pytest.raises(PlanError, match=expected) as refusal:
        calibrate(ONE, claim(epsilon, records))
    assert refusal.value.key == "privacy.epsilon"


@pytest.mark.parametrize("scale", ["1", "0.5", "1.000001", "2.718281", "5/3", "485166000"])
def test_what_is_no_ratio_of_six_digits_is_refused(scale: str) -> None:
    with pytest.raises(PlanError, match="likelihood ratio") as refusal:
        Mechanism("k-rr", Fraction(scale), 1)
    assert refusal.value.key == "privacy.mechanism.scale"


def test_noise_and_reports_never_stand_for_each_other() -> None:
    laplace, k_rr = Mechanism("discrete-laplace", Fraction(100), 1), Mechanism("k-rr", Fraction(2), 1)
    with pytest.raises(GuaranteeError, match="adds no noise to counters"):
        verify(k_rr, ONE, Claim(Fraction(1), Fraction(0), "record"))
    with pytest.raises(GuaranteeError, match="randomised by 'k-rr', got 'discrete-laplace'"):
        verify(laplace, ONE, claim(1))
    with pytest.raises(GuaranteeError, match="randomised by 'one-bit', got 'k-rr'"):
        verify(k_rr, ONE, claim(1, reports=Reports("one-bit", 20, 2)))
    with pytest.raises(GuaranteeError, match="no noise to add"):
        k_rr.noise()
    with pytest.raises(PlanError, match=r"privacy\.delta"):
        Claim(Fraction(1), Fraction(1, 10), "record", reports=K_RR)


@pytest.mark.parametrize(
    ("key", "name", "values"),
    [
        ("count_scale", "k-rr", {"count_scale": 2}),
        ("clients_scale", "one-bit", {"clients_scale": Fraction(20)}),
        ("honest_survivors", "k-rr", {"honest_survivors": 5}),
        ("field", "k-rr", {"field": 5}),
        ("field", "discrete-laplace", {"field": 5}),
        ("field", "projective", {}),
        ("field", "projective", {"field": 1}),
        ("field", "projective", {"field": True}),
    ],
)  # fmt: skip
def test_a_randomiser_has_its_own_keys_alone(key: str, name: str, values: dict[str, object]) -> None:
    with pytest.raises(PlanError) as refusal:
        Mechanism(name, Fraction(2), **{"count_scale": 1, **values})  # type: ignore[arg-type]  # wrong on purpose
    assert refusal.value.key == f"privacy.mechanism.{key}"


def test_a_projective_field_is_prime_and_its_reports_fit() -> None:
    projective = Reports("projective", 20, 64)
    asked = claim(4, reports=projective)
    made = calibrate(ONE, asked)
    verify(made, ONE, asked)
    assert made.field is not None
    outputs = projective.outputs(made.field)
    assert outputs >= 64
    assert 20 * outputs <= 1 << 8 * projective.bytes_max
    with pytest.raises(GuaranteeError, match="prime order, got field = 9"):
        verify(Mechanism("projective", made.scale, 1, field=9), ONE, asked)
    large = Reports("projective", 2**15, 2**15)
    with pytest.raises(GuaranteeError, match="more than the 31 bits"):
        verify(Mechanism("projective", made.scale, 1, field=331), ONE, claim(4, reports=large))


def test_draws_that_pass_the_integers_of_a_device_are_refused() -> None:
    huge = claim(20, reports=Reports("k-rr", 1, 2**31))
    ratio = Mechanism("k-rr", Fraction("1.00001"), 1)
    with pytest.raises(GuaranteeError, match="cannot be drawn"):
        verify(ratio, ONE, huge)
    with pytest.raises(PlanError, match="fewer, or another") as refusal:
        calibrate(ONE, claim("0.00002", reports=Reports("k-rr", 1, 2**31)))
    assert refusal.value.key == "sketch.buckets"
