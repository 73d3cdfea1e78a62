"""A calibrated mechanism supports its claim with the least noise; the verifier refuses everything below."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushsum.errors import GuaranteeError, NotBuiltError, PlanError
from hushsum.privacy.calibration import calibrate, round_up
from hushsum.privacy.mechanism import Mechanism
from hushsum.privacy.verifier import verify
from hushsum.sensitivity import Sensitivity

ZERO = Fraction(0)

epsilons = st.fractions(min_value=Fraction(1, 10**4), max_value=50, max_denominator=10**6).filter(bool)
l1s = st.integers(1, 10**6)


def hashed(rows: int) -> Sensitivity:
    return Sensitivity(l0=rows, l1=rows, l2_squared=rows, linf=1)


def notch_below(scale: Fraction) -> Fraction:
    """The next smaller number of 6 significant digits."""
    step = Fraction(10) ** (len(str(int(scale * 10**20))) - 20 - 6)
    return scale - (step / 10 if scale / step == 10**5 else step)


def test_the_plan_of_the_readme_gets_its_known_parameters() -> None:
    mechanism = calibrate(hashed(1000), epsilon=Fraction(1), delta=ZERO, unit="record", records_per_client=None)
    assert mechanism == Mechanism(name="discrete-laplace", scale=Fraction(1053), count_scale=53)


def test_noise_grows_with_the_records_of_a_client() -> None:
    mechanism = calibrate(hashed(1000), epsilon=Fraction(1, 2), delta=ZERO, unit="client", records_per_client=5)
    assert mechanism == Mechanism(name="discrete-laplace", scale=Fraction(10530), count_scale=53)


@given(l1=l1s, epsilon=epsilons, records=st.none() | st.integers(1, 1000))
def test_every_calibrated_mechanism_verifies_and_one_notch_lower_does_not(
    l1: int, epsilon: Fraction, records: int | None
) -> None:
    unit = "record" if records is None else "client"
    mechanism = calibrate(hashed(l1), epsilon=epsilon, delta=ZERO, unit=unit, records_per_client=records)
    verify(mechanism, hashed(l1), epsilon=epsilon, delta=ZERO, unit=unit, records_per_client=records)
    lower = Mechanism(mechanism.name, notch_below(mechanism.scale), mechanism.count_scale)
    with pytest.raises(GuaranteeError):
        verify(lower, hashed(l1), epsilon=epsilon, delta=ZERO, unit=unit, records_per_client=records)


@given(l1=l1s, epsilon=epsilons)
def test_the_count_counter_gets_a_twentieth_of_epsilon_or_little_more(l1: int, epsilon: Fraction) -> None:
    mechanism = calibrate(hashed(l1), epsilon=epsilon, delta=ZERO, unit="record", records_per_client=None)
    assert Fraction(mechanism.count_scale, l1 + mechanism.count_scale) >= Fraction(1, 20)
    assert Fraction(mechanism.count_scale - 1, l1 + mechanism.count_scale - 1) < Fraction(1, 20)


@given(value=st.fractions(min_value=Fraction(1, 10**12), max_value=10**15).filter(bool))
def test_rounding_keeps_six_digits_and_never_goes_down(value: Fraction) -> None:
    rounded = round_up(value)
    assert value <= rounded < value * (1 + Fraction(1, 10**5))
    digits = rounded
    while digits.denominator != 1:
        digits *= 10
    assert len(str(digits.numerator).rstrip("0")) <= 6
    assert round_up(rounded) == rounded


@pytest.mark.parametrize(
    ("value", "rounded"),
    (
        (Fraction(1053), Fraction(1053)),
        (Fraction("1000000.1"), Fraction(1000010)),
        (Fraction("999999.5"), Fraction(10**6)),
        (Fraction("9999995"), Fraction(10**7)),
        (Fraction(1, 3), Fraction("0.333334")),
        (Fraction(1, 10), Fraction(1, 10)),
        (Fraction(10**6), Fraction(10**6)),
    ),
    ids=str,
)
def test_rounding_at_the_edges_of_a_power_of_ten(value: Fraction, rounded: Fraction) -> None:
    assert round_up(value) == rounded


def test_a_refusal_names_what_is_needed_and_what_came() -> None:
    with pytest.raises(GuaranteeError, match=r"needs scale >= 5265, got 1053.*") as refusal:
        verify(
            Mechanism("discrete-laplace", Fraction(1053), 53),
            hashed(1000),
            epsilon=Fraction(1),
            delta=ZERO,
            unit="client",
            records_per_client=5,
        )
    assert "5 x 1053 = 5265" in str(refusal.value)


def test_a_larger_count_scale_than_calibrated_needs_more_noise() -> None:
    with pytest.raises(GuaranteeError, match="needs scale >= 1054"):
        verify(
            Mechanism("discrete-laplace", Fraction(1053), 54),
            hashed(1000),
            epsilon=Fraction(1),
            delta=ZERO,
            unit="record",
            records_per_client=None,
        )


@pytest.mark.parametrize(
    ("key", "change"),
    (
        ("privacy.epsilon", {"epsilon": ZERO}),
        ("privacy.epsilon", {"epsilon": Fraction(-1)}),
        ("privacy.epsilon", {"epsilon": 1.0}),
        ("privacy.delta", {"delta": Fraction(-1)}),
        ("privacy.delta", {"delta": Fraction(1)}),
        ("privacy.unit", {"unit": "household"}),
        ("privacy.records_per_client", {"records_per_client": 5}),
        ("privacy.records_per_client", {"unit": "client"}),
        ("privacy.records_per_client", {"unit": "client", "records_per_client": 0}),
    ),
    ids=str,
)
def test_a_claim_that_makes_no_sense_is_refused_by_its_key(key: str, change: dict[str, object]) -> None:
    claim: dict[str, object] = {"epsilon": Fraction(1), "delta": ZERO, "unit": "record", "records_per_client": None}
    for refuse in (
        lambda claim: calibrate(hashed(10), **claim),
        lambda claim: verify(Mechanism("discrete-laplace", Fraction(99), 1), hashed(10), **claim),
    ):
        with pytest.raises(PlanError) as refusal:
            refuse({**claim, **change})
        assert refusal.value.key == key


def test_an_approximate_guarantee_is_refused_by_name_for_now() -> None:
    delta = Fraction(1, 10**6)
    with pytest.raises(NotBuiltError, match=r"privacy\.delta") as refusal:
        calibrate(hashed(10), epsilon=Fraction(1), delta=delta, unit="record", records_per_client=None)
    assert refusal.value.key == "privacy.delta"
    with pytest.raises(NotBuiltError, match=r"privacy\.delta"):
        verify(
            Mechanism("discrete-laplace", Fraction(99), 1),
            hashed(10),
            epsilon=Fraction(1),
            delta=delta,
            unit="record",
            records_per_client=None,
        )


def test_noise_that_no_counter_could_hold_is_refused() -> None:
    with pytest.raises(PlanError, match="2\\^48"):
        calibrate(hashed(10**8), epsilon=Fraction(1, 10**9), delta=ZERO, unit="record", records_per_client=None)
