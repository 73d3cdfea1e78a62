"""From ρ to (ε, δ): valid to the last digit, within half a percent of the best that is known, everywhere the same."""

import math
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from dp_accounting import ZCDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from hushsum.privacy.zcdp import ALPHAS, DELTA_NOTCH, EPSILON_NOTCH, delta_of, epsilon_of, ln, supports

RHOS = [Fraction(text) for text in ("0.000000001", "0.00001", "0.001", "0.02", "0.3", "2", "11")]
DELTAS = [Fraction(1, 10**power) for power in (2, 4, 6, 9, 12, 15)]

rhos = st.fractions(min_value=Fraction(1, 10**12), max_value=100, max_denominator=10**12).filter(bool)
deltas = st.integers(1, 40).flatmap(lambda power: st.integers(1, 9).map(lambda digit: Fraction(digit, 10**power)))


def infimum(rho: float, delta: float) -> float:
    """The least ε of Proposition 12 over all real orders, in floats."""

    def epsilon(log_t: float) -> float:
        t = math.exp(log_t)
        return rho * (1 + t) - math.log1p(1 / t) + (-math.log(delta) - math.log1p(t)) / t

    return float(minimize_scalar(epsilon, bounds=(-12, 35), method="bounded", options={"xatol": 1e-10}).fun)


def test_it_is_never_below_the_infimum_over_all_orders_and_costs_less_than_half_a_percent_of_rho() -> None:
    for delta in DELTAS:
        for rho in RHOS:
            least = max(0.0, infimum(float(rho), float(delta)))
            assert epsilon_of(rho, delta) >= least * (1 - 1e-12)
            assert epsilon_of(rho * Fraction("0.995"), delta) <= least + float(EPSILON_NOTCH)


def test_it_agrees_with_the_accountant_that_calibrates() -> None:
    for delta in DELTAS:
        for rho in RHOS[1:]:
            accountant = RdpAccountant([float(alpha) for alpha in ALPHAS])
            accountant.compose(ZCDpEvent(float(rho)))
            theirs = accountant.get_epsilon(float(delta))
            assert float(epsilon_of(rho, delta)) == pytest.approx(theirs, rel=1e-9, abs=1e-15)


def decimal_ln_delta(alpha: Fraction, rho: Fraction, epsilon: Fraction) -> Decimal:
    """ln δ of Proposition 12 to about 60 digits."""
    a, r, e = (Decimal(x.numerator) / Decimal(x.denominator) for x in (alpha, rho, epsilon))
    return (a - 1) * (a * r - e) - (a - 1).ln() + a * (1 - 1 / a).ln()


@pytest.mark.parametrize(("rho", "delta"), ((RHOS[2], DELTAS[2]), (RHOS[4], DELTAS[5])), ids=str)
def test_it_is_the_best_of_the_grid_to_the_last_digit(rho: Fraction, delta: Fraction) -> None:
    epsilon = epsilon_of(rho, delta)
    with localcontext() as context:
        context.prec = 70
        wanted = (Decimal(delta.numerator) / Decimal(delta.denominator)).ln()
        assert min(decimal_ln_delta(alpha, rho, epsilon) for alpha in ALPHAS) <= wanted
        assert min(decimal_ln_delta(alpha, rho, epsilon - EPSILON_NOTCH) for alpha in ALPHAS) > wanted


@pytest.mark.parametrize(("rho", "epsilon"), ((RHOS[2], Fraction(1, 4)), (RHOS[4], Fraction(5))), ids=str)
def test_delta_is_the_best_of_the_grid_to_the_last_digit(rho: Fraction, epsilon: Fraction) -> None:
    delta = delta_of(rho, epsilon)
    with localcontext() as context:
        context.prec = 70
        least = min(decimal_ln_delta(alpha, rho, epsilon) for alpha in ALPHAS)
        assert least <= (Decimal(delta.numerator) / Decimal(delta.denominator)).ln()
        below = delta - 2 * DELTA_NOTCH  # one for the enclosure, one for the rounding
        assert least > (Decimal(below.numerator) / Decimal(below.denominator)).ln()


def exact_delta_of_one_counter(variance: float, epsilon: float) -> float:
    """Σ max(0, P(k) − e^ε·P(k − 1)) of a discrete Gaussian: what neighbours one apart can be told by."""
    reach = math.ceil(40 * math.sqrt(variance))
    total = math.fsum(math.exp(-k * k / (2 * variance)) for k in range(-reach, reach + 1))
    apart = (
        math.exp(-k * k / (2 * variance)) - math.exp(epsilon - (k - 1) ** 2 / (2 * variance))
        for k in range(-reach, reach + 1)
    )
    return math.fsum(max(0.0, difference) for difference in apart) / total


@pytest.mark.parametrize("delta", DELTAS[:4], ids=float)
@pytest.mark.parametrize("variance", ("0.25", "1", "9", "100", "400"))
def test_a_counter_with_discrete_gaussian_noise_keeps_what_is_said_of_it(variance: str, delta: Fraction) -> None:
    rho = 1 / (2 * Fraction(variance))
    epsilon = float(epsilon_of(rho, delta))
    assert exact_delta_of_one_counter(float(variance), epsilon) <= delta
    half = float(epsilon_of(rho / 2, delta))  # a mistake in ρ would show
    assert exact_delta_of_one_counter(float(variance), half) > delta


@settings(max_examples=40)
@given(rho=rhos, delta=deltas)
def test_more_rho_costs_more_and_more_delta_saves(rho: Fraction, delta: Fraction) -> None:
    epsilon = epsilon_of(rho, delta)
    assert epsilon >= 0
    assert epsilon <= epsilon_of(rho * Fraction(11, 10), delta)
    assert epsilon >= epsilon_of(rho, min(delta * 2, Fraction(99, 100)))


@settings(max_examples=40)
@given(rho=rhos, delta=deltas)
def test_the_two_directions_agree(rho: Fraction, delta: Fraction) -> None:
    epsilon = epsilon_of(rho, delta)
    assert delta_of(rho, epsilon) <= delta + DELTA_NOTCH
    assert supports(rho, epsilon=epsilon, delta=delta)
    assume(epsilon > 0)
    assert not supports(rho, epsilon=epsilon - EPSILON_NOTCH, delta=delta)


def test_nothing_costs_nothing_and_a_large_delta_needs_no_epsilon() -> None:
    assert epsilon_of(Fraction(0), Fraction(0)) == epsilon_of(Fraction(0), Fraction(1, 10)) == 0
    assert delta_of(Fraction(0), Fraction(0)) == 0
    assert epsilon_of(Fraction(1, 10**6), Fraction(1, 100)) == 0
    assert delta_of(Fraction(10**6), Fraction(0)) == 1
    assert delta_of(Fraction(1, 100), Fraction(100)) == DELTA_NOTCH  # never 0


def test_every_machine_gives_these_numbers() -> None:
    assert epsilon_of(Fraction(1, 50), Fraction(1, 10**6)) == Fraction("0.899938504173218354")
    assert delta_of(Fraction(1, 50), Fraction(1)) == Fraction("0.00000008864604962883778258968977912362483325650164")


@pytest.mark.parametrize(
    "refused",
    (
        lambda: epsilon_of(Fraction(-1), Fraction(1, 2)),
        lambda: epsilon_of(Fraction(1), Fraction(0)),
        lambda: epsilon_of(Fraction(1), Fraction(1)),
        lambda: delta_of(Fraction(-1), Fraction(1)),
        lambda: delta_of(Fraction(1), Fraction(-1)),
        lambda: ln(Fraction(0), 64),
    ),
)
def test_a_parameter_out_of_range_is_refused(refused: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="got "):
        refused()


@given(
    x=st.fractions(min_value=Fraction(1, 10**9), max_value=10**9).filter(bool) | deltas, bits=st.sampled_from((8, 160))
)
def test_logarithms_are_enclosed_tightly(x: Fraction, bits: int) -> None:
    low, high = ln(x, bits)
    assert 0 <= high - low <= 2
    with localcontext() as context:
        context.prec = 80
        exact = (Decimal(x.numerator) / Decimal(x.denominator)).ln() * 2**bits
        slack = Decimal(10) ** -20  # of 80 digits: ln 1 is 0 on both sides
        assert low - slack <= exact <= high + slack


def test_verifying_needs_nothing_heavy() -> None:
    program = """
import sys
from fractions import Fraction
from hushsum.privacy.claim import Claim
from hushsum.privacy.mechanisms import Mechanism
from hushsum.privacy.verifier import verify
from hushsum.sensitivity import Sensitivity
claim = Claim(Fraction(1), Fraction(1, 10**6), "record")
verify(Mechanism("discrete-gaussian", Fraction("21842.8"), 8), Sensitivity(1000, 1000, 1000, 1), claim)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "hushsum" in loaded
    assert not {"dp_accounting", "scipy", "numba", "absl", "mpmath", "matplotlib"} & set(loaded)
