"""A calibrated mechanism supports its claim with the least noise; the verifier refuses everything below."""

import re
import sys
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushsum.canonical import real_text
from hushsum.errors import GuaranteeError, PlanError
from hushsum.privacy.calibration import Budget, calibrate, round_up
from hushsum.privacy.claim import Claim
from hushsum.privacy.mechanisms import Mechanism
from hushsum.privacy.relations import Cost
from hushsum.privacy.verifier import rho_of, variance_needed, verify, verify_counters
from hushsum.privacy.zcdp import epsilon_of
from hushsum.sensitivity import Sensitivity

ZERO = Fraction(0)
MILLIONTH = Fraction(1, 10**6)
PURE = Claim(Fraction(1), ZERO, "record")
APPROXIMATE = Claim(Fraction(1), MILLIONTH, "record")
README_GAUSSIAN = Mechanism("discrete-gaussian", Fraction("21842.8"), 8)

epsilons = st.fractions(min_value=Fraction(1, 10**4), max_value=50, max_denominator=10**6).filter(bool)
shares = st.none() | st.sampled_from([Fraction(1, 20), Fraction(1, 3), Fraction(9, 10)])
l1s = st.integers(1, 10**6)


def hashed(rows: int) -> Sensitivity:
    return Sensitivity(l0=rows, l1=rows, l2_squared=rows, linf=1)


def claim_of(epsilon: Fraction, delta: Fraction, records: int | None, share: Fraction | None) -> Claim:
    return Claim(epsilon, delta, "record" if records is None else "client", records, share)


def notch_below(scale: Fraction) -> Fraction:
    """The next smaller number of 6 significant digits."""
    step = Fraction(10) ** (len(str(int(scale * 10**20))) - 20 - 6)
    return scale - (step / 10 if scale / step == 10**5 else step)


def test_the_plan_of_the_readme_gets_its_known_parameters() -> None:
    assert calibrate(hashed(1000), PURE) == Mechanism(name="discrete-laplace", scale=Fraction(1053), count_scale=53)
    assert calibrate(hashed(1000), APPROXIMATE) == README_GAUSSIAN


def test_noise_grows_with_the_records_of_a_client() -> None:
    claim = Claim(Fraction(1, 2), ZERO, "client", 5)
    assert calibrate(hashed(1000), claim) == Mechanism("discrete-laplace", Fraction(10530), 53)
    five = calibrate(hashed(1000), replace(APPROXIMATE, unit="client", records_per_client=5))
    assert five.count_scale == README_GAUSSIAN.count_scale
    assert five.scale == pytest.approx(25 * README_GAUSSIAN.scale, rel=1e-5), "σ grows with m, σ² with its square"


@given(l1=l1s, epsilon=epsilons, records=st.none() | st.integers(1, 1000), share=shares)
def test_every_calibrated_mechanism_verifies_and_one_notch_lower_does_not(
    l1: int, epsilon: Fraction, records: int | None, share: Fraction | None
) -> None:
    _refuses_a_notch_less(hashed(l1), claim_of(epsilon, ZERO, records, share))


@settings(max_examples=15)
@given(
    l2_squared=st.integers(1, 10**9),
    epsilon=epsilons,
    delta=st.integers(2, 15).map(lambda power: Fraction(1, 10**power)),
    records=st.none() | st.integers(1, 1000),
    share=shares,
)
def test_so_does_one_for_an_approximate_guarantee(
    l2_squared: int, epsilon: Fraction, delta: Fraction, records: int | None, share: Fraction | None
) -> None:
    moved = Sensitivity(l0=1, l1=l2_squared, l2_squared=l2_squared, linf=l2_squared)
    _refuses_a_notch_less(moved, claim_of(epsilon, delta, records, share), factor=1 - Fraction(1, 10**5))


def _refuses_a_notch_less(sensitivity: Sensitivity, claim: Claim, factor: Fraction | None = None) -> None:
    mechanism = calibrate(sensitivity, claim)
    verify(mechanism, sensitivity, claim)
    lower = notch_below(mechanism.scale) if factor is None else mechanism.scale * factor
    with pytest.raises(GuaranteeError):
        verify(replace(mechanism, scale=lower), sensitivity, claim)
    if mechanism.clients_scale is not None:
        with pytest.raises(GuaranteeError):
            verify(replace(mechanism, clients_scale=notch_below(mechanism.clients_scale)), sensitivity, claim)


@given(l1=l1s, epsilon=epsilons)
def test_the_count_counter_gets_a_twentieth_of_epsilon_or_little_more(l1: int, epsilon: Fraction) -> None:
    c = calibrate(hashed(l1), replace(PURE, epsilon=epsilon)).count_scale
    assert Fraction(c, l1 + c) >= Fraction(1, 20)
    assert Fraction(c - 1, l1 + c - 1) < Fraction(1, 20)


@settings(max_examples=25)
@given(l2_squared=st.integers(1, 10**12))
def test_the_count_counter_gets_a_twentieth_of_rho_or_little_more(l2_squared: int) -> None:
    c = calibrate(Sensitivity(1, l2_squared, l2_squared, l2_squared), APPROXIMATE).count_scale
    assert Fraction(c**2, l2_squared + c**2) >= Fraction(1, 20)
    assert Fraction((c - 1) ** 2, l2_squared + (c - 1) ** 2) < Fraction(1, 20)


def test_the_test_of_the_number_of_clients_takes_its_share_of_epsilon_and_nothing_of_delta() -> None:
    share = Fraction(1, 5)
    mechanism = calibrate(hashed(1000), replace(PURE, clients_share=share))
    assert mechanism.clients_scale == 5
    assert mechanism.scale == round_up(Fraction(1053) / (1 - share))
    gaussian = calibrate(hashed(1000), replace(APPROXIMATE, clients_share=share))
    assert gaussian.clients_scale == 5
    assert gaussian.scale == calibrate(hashed(1000), replace(APPROXIMATE, epsilon=Fraction(4, 5))).scale
    both = epsilon_of(rho_of(gaussian, hashed(1000), APPROXIMATE), MILLIONTH) + 1 / gaussian.clients_scale
    assert Fraction("0.9999") < both <= 1


def test_the_share_is_of_one_unit_however_many_records_it_has() -> None:
    client = calibrate(hashed(10), Claim(Fraction(1), ZERO, "client", 100, Fraction(1, 4)))
    assert client.clients_scale == 4


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


# ------------------------------------------------------------------------- what a population's limits decide

CLIENT = Claim(Fraction(1), ZERO, "client", 1)


def within(epsilon: int | str, delta: Fraction = MILLIONTH, *, adds: bool = True) -> Budget:
    return Budget(Cost(Fraction(epsilon), delta), adds=adds)


@pytest.mark.parametrize(
    ("budget", "count_scale"),
    (
        (within(1), 8),  # 46 windows for 14
        (within("3.1"), 8),
        (within(1, ZERO), 53),  # nothing is converted
        (within(1000, Fraction(1, 10**60)), 8),
        (within(1, Fraction(1, 10**300)), 53),  # so small a δ that ε adds up to less
        (within(1, adds=False), 53),  # a record is in one window
        (None, 53),
    ),
    ids=str,
)
def test_the_count_counter_gets_less_where_the_limits_then_pay_for_more_windows(
    budget: Budget | None, count_scale: int
) -> None:
    mechanism = calibrate(hashed(1000), CLIENT, budget)
    assert mechanism == Mechanism("discrete-laplace", Fraction(1000 + count_scale), count_scale)
    verify(mechanism, hashed(1000), CLIENT)


@pytest.mark.parametrize("rows", [1, 5, 19])
def test_few_rows_have_one_multiplier_for_both(rows: int) -> None:
    assert calibrate(hashed(rows), CLIENT, within(10)) == calibrate(hashed(rows), CLIENT)


def test_with_a_delta_few_rows_get_laplace_noise_and_many_gaussian() -> None:
    chosen = {rows: calibrate(hashed(rows), APPROXIMATE, within(1, adds=False)) for rows in (1, 5, 9, 10, 11, 100)}
    names = {rows: mechanism.name.removeprefix("discrete-") for rows, mechanism in chosen.items()}
    assert names == dict.fromkeys((1, 5, 9), "laplace") | dict.fromkeys((10, 11, 100), "gaussian")
    for rows, mechanism in chosen.items():
        verify(mechanism, hashed(rows), APPROXIMATE)
        others = [calibrate(hashed(rows), APPROXIMATE, noise=noise) for noise in ("laplace", "gaussian")]
        assert mechanism in others
        assert mechanism.noise_variance == min(other.noise_variance for other in others)


def test_laplace_noise_is_taken_only_where_the_limits_pay_for_no_fewer_windows() -> None:
    client = replace(APPROXIMATE, unit="client", records_per_client=1)
    assert calibrate(hashed(5), client, within(1)).name == "discrete-laplace", "one window, whichever it is"
    assert calibrate(hashed(5), client, within(10)).name == "discrete-gaussian", "63 windows for 18"
    assert calibrate(hashed(5), client, within(10), noise="laplace").name == "discrete-laplace"
    assert calibrate(hashed(5), client).name == "discrete-laplace"


def test_laplace_noise_that_no_counter_can_hold_is_no_choice() -> None:
    claim = replace(APPROXIMATE, epsilon=Fraction(1, 10**12), delta=Fraction(1, 10))
    assert calibrate(hashed(10), claim).name == "discrete-gaussian"


def test_gaussian_noise_with_delta_0_is_refused_and_laplace_noise_needs_no_accountant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(PlanError, match="Gaussian noise has no pure guarantee") as refusal:
        calibrate(hashed(10), PURE, noise="gaussian")
    assert refusal.value.key == "privacy.noise"
    assert calibrate(hashed(10), PURE, noise="laplace") == calibrate(hashed(10), PURE)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert calibrate(hashed(1000), APPROXIMATE, noise="laplace") == Mechanism("discrete-laplace", Fraction(1053), 53)


def test_a_refusal_names_what_is_needed_and_what_came() -> None:
    claim = Claim(Fraction(1), ZERO, "client", 5)
    with pytest.raises(GuaranteeError, match=r"so it needs scale >= 5265, got 1053.*") as refusal:
        verify(Mechanism("discrete-laplace", Fraction(1053), 53), hashed(1000), claim)
    assert "5 x 1053 = 5265" in str(refusal.value)


def test_a_refusal_of_gaussian_noise_says_what_it_gives_instead() -> None:
    weaker = replace(README_GAUSSIAN, scale=Fraction(20000))
    message = (
        r"5 x sqrt\(1064\) in L2 norm.* 0\.665-zCDP, .*gives epsilon 6\.14048: it needs scale >= 546068, got 20000"
    )
    with pytest.raises(GuaranteeError, match=message):
        verify(weaker, hashed(1000), replace(APPROXIMATE, unit="client", records_per_client=5))


@settings(max_examples=25)
@given(
    l2_squared=st.integers(1, 10**9),
    epsilon=epsilons,
    delta=st.integers(2, 15).map(lambda power: Fraction(1, 10**power)),
    share=shares,
)
def test_the_variance_that_a_refusal_names_is_the_least_of_six_digits_that_suffices(
    l2_squared: int, epsilon: Fraction, delta: Fraction, share: Fraction | None
) -> None:
    moved = Sensitivity(l0=1, l1=l2_squared, l2_squared=l2_squared, linf=l2_squared)
    claim = claim_of(epsilon, delta, 3, share)
    needed = variance_needed(moved, 8, claim)
    assert needed is not None
    assert round_up(needed) == needed
    verify_counters(Mechanism("discrete-gaussian", needed, 8), moved, claim)
    with pytest.raises(GuaranteeError, match=rf"it needs scale >= {re.escape(real_text(needed))}, got "):
        verify_counters(Mechanism("discrete-gaussian", notch_below(needed), 8), moved, claim)


def test_a_refusal_says_where_no_variance_that_can_be_drawn_suffices() -> None:
    moved = Sensitivity(1, 2**60, 2**120, 2**60)
    with pytest.raises(GuaranteeError, match=r"no scale from 2\^-16 to 2\^90 suffices, got 1000"):
        verify(Mechanism("discrete-gaussian", Fraction(1000), 8), moved, APPROXIMATE)


def test_gaussian_noise_supports_no_pure_guarantee_and_laplace_noise_any() -> None:
    huge = Mechanism("discrete-gaussian", Fraction(10**20), 53)
    with pytest.raises(GuaranteeError, match="no pure guarantee"):
        verify(huge, hashed(1000), PURE)
    verify(Mechanism("discrete-laplace", Fraction(1053), 53), hashed(1000), APPROXIMATE)


@pytest.mark.parametrize(
    ("mechanism", "claim"),
    ((Mechanism("discrete-laplace", Fraction(1053), 53), PURE), (README_GAUSSIAN, APPROXIMATE)),
    ids=("pure", "approximate"),
)
def test_a_larger_count_scale_than_calibrated_needs_more_noise(mechanism: Mechanism, claim: Claim) -> None:
    verify(mechanism, hashed(1000), claim)
    with pytest.raises(GuaranteeError, match="does not support epsilon 1"):
        verify(replace(mechanism, count_scale=mechanism.count_scale + 1), hashed(1000), claim)


def test_noise_for_the_number_of_clients_stands_exactly_where_there_is_a_test() -> None:
    tested = replace(PURE, clients_share=Fraction(1, 20))
    mechanism = calibrate(hashed(10), tested)
    with pytest.raises(GuaranteeError, match=r"needs clients_scale >= 20, got none"):
        verify(replace(mechanism, clients_scale=None), hashed(10), tested)
    with pytest.raises(GuaranteeError, match="which the plan does not have"):
        verify(mechanism, hashed(10), PURE)


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
        ("privacy.min_clients_share", {"clients_share": ZERO}),
        ("privacy.min_clients_share", {"clients_share": Fraction(1)}),
        ("privacy.min_clients_share", {"clients_share": 0.05}),
    ),
    ids=str,
)
def test_a_claim_that_makes_no_sense_is_refused_by_its_key(key: str, change: dict[str, Any]) -> None:
    with pytest.raises(PlanError) as refusal:
        replace(PURE, **change)
    assert refusal.value.key == key


@pytest.mark.parametrize(
    ("claim", "needed"),
    (
        (Claim(Fraction(1, 10**9), ZERO, "record"), r"about 2\^\d\d, .* from 2\^-48 to 2\^48"),
        (Claim(Fraction(1, 10**12), Fraction(1, 10**15), "record"), r"about 2\^1\d\d, .* from 2\^-16 to 2\^90"),
        (Claim(Fraction(1, 10**9), Fraction(1, 10**60), "client", 2**31), r"about 2\^\d+, .* from 2\^-16 to 2\^90"),
        (Claim(Fraction(1), ZERO, "record", None, Fraction(1, 10**15)), r"about 2\^\d\d, .* from 2\^-48 to 2\^48"),
    ),
    ids=str,
)
def test_noise_that_no_counter_could_hold_is_refused_with_its_size(claim: Claim, needed: str) -> None:
    with pytest.raises(PlanError, match=needed) as refusal:
        calibrate(hashed(10**8), claim)
    to_blame = "epsilon" if claim.clients_share is None else "min_clients_share"
    assert refusal.value.key == f"privacy.{to_blame}"


def test_without_the_accountant_a_refusal_names_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    claim = replace(APPROXIMATE, epsilon=Fraction("0.987654321"))  # of which no other test has kept the answer
    with pytest.raises(PlanError, match=r"hushsum plan make.*pip install 'hushsum\[analyst\]'") as refusal:
        calibrate(hashed(10), claim)
    assert refusal.value.key == "privacy.mechanism"
    verify(README_GAUSSIAN, hashed(1000), APPROXIMATE)  # a made one needs no accountant
