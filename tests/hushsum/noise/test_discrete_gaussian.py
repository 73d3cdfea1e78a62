"""The discrete Gaussian sampler draws exactly what it states; each planted mistake is caught by a check."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushsum.entropy import Entropy, OsEntropy, ReplayableEntropy
from hushsum.noise import DiscreteGaussian, discrete_gaussian, gaussian_envelope, gaussian_envelope_loops
from hushsum.noise.exp_thresholds import ProbabilityThreshold
from hushsum.noise.gaussian_envelope import DOUBT, Strips, acceptance, strips
from hushsum.public_random import PublicSeed
from tests.hushsum.noise.goodness import FALSE_ALARM, p_value
from tests.hushsum.noise.observed import pmf
from tests.hushsum.noise.observed_gaussian import NEGATIVE, Observed, check_places, draw, zero

SCALES = tuple(Fraction(sigma) ** 2 for sigma in (Fraction(3, 10), 1, Fraction(5, 2), 40, 1000, 10**5))
NARROW, WIDE = SCALES[:3], SCALES[3:]
EXTREME = (discrete_gaussian.SCALE_MIN, Fraction(1024), Fraction(2**40, 3), Fraction(discrete_gaussian.SCALE_MAX))
DRAWS = 200_000
CLOSE = Fraction(1, 2**60)


@pytest.fixture
def entropy(seed: int) -> ReplayableEntropy:
    return ReplayableEntropy(seed.to_bytes(8, "big"))


def relative(scale: Fraction, x: int) -> Fraction:
    """e^(−x²/2σ²), by another road than the sampler's: 100 decimal digits."""
    with localcontext() as context:
        context.prec = 100
        return Fraction((-Decimal(x * x * scale.denominator) / Decimal(2 * scale.numerator)).exp())


def points(observed: Observed) -> list[int]:
    """Values of some strips, first and last places among them, and of some pieces of the tail."""
    width, start, piece = observed.width, observed.tail_start, observed.tail_width
    last = start // width - 1
    within = [
        strip * width + place for strip in (0, 1, last // 7, last // 2, last) for place in (0, width // 3, width - 1)
    ]
    tail = [start, start + piece - 1, start + piece, start + 3 * piece + piece // 2]
    seen = Fraction(1, 2**95)  # smaller chances have no sixty digits among those that are looked at
    return sorted({x for x in (*within, *tail) if x and relative(observed.sampler.scale, x) > seen})


def check_law(scale: Fraction) -> None:
    """The chance of each value is that of zero times e^(−x²/2σ²), to 60 bits and more, tail and signs included."""
    observed = Observed(DiscreteGaussian(scale))
    low, high = zero(observed)
    for x in points(observed):
        for sign in (1, -1):
            least, most = observed.mass(sign * x)
            stated = relative(scale, x)
            assert least <= stated * high * (1 + CLOSE), sign * x
            assert stated * low * (1 - CLOSE) <= most, sign * x
            assert most - least <= stated * high * CLOSE, sign * x


def check_doubts(scale: Fraction) -> None:
    """Two words behind the first bits of U still decide, by the digits of the probability and nothing else."""
    sampler, table = DiscreteGaussian(scale), strips(scale)
    strip, place = 37, (1 << table.shift) - 1
    choice, x = int(table.ends[strip]) - 1, (37 << table.shift) + place
    digits = table.acceptance(strip, x).prefix(32 + 128)
    first, second, third = digits >> 128, digits >> 64 & 2**64 - 1, digits & 2**64 - 1
    assert draw(sampler, choice, first, place, second, third - 1) == x
    assert draw(sampler, choice, first, place, second, third + 1) is None
    assert draw(sampler, choice, first - 1, place) == x
    assert draw(sampler, choice, first + 1, place) is None


# ------------------------------------------------------------------------------------------- exact probabilities


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_every_value_has_exactly_its_chance_to_sixty_bits(scale: Fraction) -> None:
    check_law(scale)


@pytest.mark.parametrize("scale", (Fraction(1), Fraction(40**2)), ids=str)
def test_so_it_has_in_compiled_loops(scale: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discrete_gaussian, "_loop", lambda _: gaussian_envelope_loops.settle)
    check_law(scale)


@pytest.mark.parametrize("scale", NARROW, ids=str)
def test_the_drawn_distribution_is_the_stated_one_to_fifty_bits(scale: Fraction) -> None:
    weights = [relative(scale, k) for k in range(60)]
    total = weights[0] + 2 * sum(weights[1:])
    for k, (low, high) in pmf(DiscreteGaussian(scale), 3).items():
        assert low <= weights[abs(k)] / total <= high, k
        assert high - low <= low / 2**50, k


@pytest.mark.parametrize("scale", (*SCALES, *EXTREME[1:]), ids=str)
def test_places_and_signs_are_bits_of_the_second_word(scale: Fraction, rng: np.random.Generator) -> None:
    check_places(Observed(DiscreteGaussian(scale)), rng)


@pytest.mark.parametrize("scale", WIDE, ids=str)
def test_pieces_of_the_tail_lie_side_by_side(scale: Fraction) -> None:
    observed = Observed(DiscreteGaussian(scale))
    assert observed.tail_start % observed.width == 0
    for piece in (0, 1, 2, 7):
        start = observed.tail_start + piece * observed.tail_width
        assert observed.tail_place(piece, 0) == start
        assert observed.tail_place(piece, 2**64 - 1) == start + observed.tail_width - 1


def test_coins_go_on_behind_a_word_that_is_all_ones() -> None:
    observed = Observed(DiscreteGaussian(Fraction(10**10)))
    start, width = observed.tail_start, observed.tail_width
    assert observed.value_of(observed.tail_from, 0, 2**64 - 1, 2**64 - 1, 0b111, 5) == start + 131 * width + 5


@pytest.mark.parametrize("scale", (*SCALES, *EXTREME), ids=str)
def test_the_envelope_lies_above_the_distribution_and_sums_to_a_word(scale: Fraction) -> None:
    table = strips(scale)
    assert sum(table.weights) == 2**32
    assert min(table.weights) >= 0
    for strip in range(table.count):
        whole = relative(scale, strip << table.shift) * table.peak
        assert table.weights[strip] >= (whole / 2 if strip == table.shift == 0 else whole)
    start, piece = table.count << table.shift, 1 << table.tail_shift
    assert relative(scale, start) * table.peak * 2 * piece <= table.weights[table.tail] << table.shift
    assert math.exp(-min(700.0, float(start * piece / scale))) <= 0.5  # a coin falls more slowly than the distribution
    assert table.weights[-1] < 2**10  # nearly nothing is void


@settings(max_examples=150)
@given(data=st.data())
@pytest.mark.parametrize("scale", (*WIDE, *EXTREME[1:]), ids=str)
def test_fixed_point_acceptances_and_squeezes_are_on_the_safe_side(scale: Fraction, data: st.DataObject) -> None:
    table = strips(scale)
    strip = data.draw(st.integers(0, table.count - 1))
    place = data.draw(st.integers(0, (1 << table.shift) - 1))
    x = (strip << table.shift) + place
    exact = table.acceptance(strip, x).prefix(64)
    found = int(acceptance(table, np.array([strip], np.uint64), np.array([place], np.uint64))[0])
    assert abs((found << 32) - exact) < (DOUBT - 1) << 32
    assert int(table.squeezes[strip]) << 32 <= exact


@pytest.mark.parametrize("scale", WIDE, ids=str)
def test_what_the_first_bits_leave_in_doubt_reads_on_until_it_is_told(scale: Fraction) -> None:
    check_doubts(scale)


def test_zero_counts_once() -> None:
    for scale in SCALES:
        observed = Observed(DiscreteGaussian(scale))
        signs = [draw(observed.sampler, 0, 0, sign) for sign in (0, NEGATIVE)]
        assert signs == ([0, 0] if observed.width == 1 else [0, None])


# -------------------------------------------------------------------------------------------------- statistics


@pytest.mark.parametrize("scale", (*SCALES, Fraction(1, 100), Fraction(7, 2), Fraction(9, 2)), ids=str)
def test_the_stated_variance_is_that_of_the_stated_probabilities(scale: Fraction) -> None:
    sampler = DiscreteGaussian(scale)
    k = np.arange(
        -min(10**6, 12 * math.isqrt(math.ceil(scale)) + 20), min(10**6, 12 * math.isqrt(math.ceil(scale)) + 20) + 1
    )
    chances = np.exp(sampler.log_probability(k))
    assert float(chances.sum()) == pytest.approx(1, rel=1e-9)
    assert sampler.variance == pytest.approx(float((k.astype(np.float64) ** 2 * chances).sum()), rel=1e-9)
    assert sampler.std == pytest.approx(math.sqrt(sampler.variance))


@pytest.mark.statistical
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_draws_fit_the_stated_distribution(scale: Fraction, entropy: Entropy) -> None:
    """χ², false alarm 1e-6."""
    sampler = DiscreteGaussian(scale)
    assert p_value(sampler, sampler.sample(DRAWS, entropy)) > FALSE_ALARM


@pytest.mark.statistical
def test_draws_from_the_operating_system_fit_too() -> None:
    """χ², false alarm 1e-7 and certainly below 1e-6, for χ² is an approximation here; no seed can repeat it."""
    sampler = DiscreteGaussian(Fraction(1053))
    assert p_value(sampler, sampler.sample(DRAWS, OsEntropy())) > FALSE_ALARM / 10


@pytest.mark.statistical
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_neighbouring_draws_are_uncorrelated(scale: Fraction, entropy: Entropy) -> None:
    """|correlation|·√n is standard normal, to within n's central limit: false alarm below 1e-6 at 5.5."""
    draws = DiscreteGaussian(scale).sample(DRAWS, entropy).astype(np.float64)
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) * math.sqrt(DRAWS) < 5.5


@pytest.mark.parametrize("scale", EXTREME, ids=str)
def test_the_extreme_scales_are_drawn(scale: Fraction, entropy: Entropy) -> None:
    draws = DiscreteGaussian(scale).sample(10_000, entropy)
    std = math.sqrt(scale)
    assert np.abs(draws).max() <= 9 * std  # e^-40 a draw
    assert std < 1 or np.abs(draws).mean() == pytest.approx(std * math.sqrt(2 / math.pi), rel=0.05)


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("scale", (Fraction(0), Fraction(-1), Fraction(2**90 + 1), Fraction(1, 2**17)), ids=str)
def test_a_scale_out_of_range_is_refused(scale: Fraction) -> None:
    with pytest.raises(ValueError, match="2\\^-16 to 2\\^90"):
        DiscreteGaussian(scale)


def test_a_float_is_no_scale() -> None:
    with pytest.raises(TypeError, match="Fraction"):
        DiscreteGaussian(1.5)  # type: ignore[arg-type]  # of the wrong type on purpose


@pytest.mark.parametrize("source", (PublicSeed(7), 7, np.random.default_rng(7), None), ids=lambda s: type(s).__name__)
def test_what_is_no_private_source_is_refused(source: object) -> None:
    with pytest.raises(TypeError, match="Entropy"):
        DiscreteGaussian(Fraction(1)).sample(1, source)  # type: ignore[arg-type]  # of the wrong type on purpose


def test_a_source_that_gives_too_little_is_refused() -> None:
    class Short:
        def read(self, size: int) -> bytes:
            return bytes(size // 2)

    with pytest.raises(OSError, match="8 bytes of 16"):
        DiscreteGaussian(Fraction(1)).sample(1, Short())


def test_a_negative_number_of_draws_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        DiscreteGaussian(Fraction(1)).sample(-1, OsEntropy())


# -------------------------------------------------------------------------------------------- planted mistakes


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """For mistakes in tables, which the sampler keeps."""
    strips.cache_clear()
    yield monkeypatch
    strips.cache_clear()


def with_tables(plant: pytest.MonkeyPatch, **changed: Callable[[Strips], object]) -> None:
    """Every envelope that is drawn from has these changes, callables of the right one."""

    def wrong(scale: Fraction) -> Strips:
        right = strips(scale)
        wanted: dict[str, Any] = {name: change(right) for name, change in changed.items()}
        return replace(right, **wanted)

    plant.setattr(discrete_gaussian, "strips", wrong)


class FivePercentWide(DiscreteGaussian):
    def sample(self, size: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        return DiscreteGaussian(self.scale * Fraction(21, 20) ** 2).sample(size, entropy)


class RoundedFloat(DiscreteGaussian):
    def sample(self, size: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        generator = np.random.default_rng(list(entropy.read(16)))
        return np.rint(generator.normal(scale=math.sqrt(self.scale), size=size)).astype(np.int64)


@pytest.mark.statistical
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_a_scale_five_percent_off_fails_the_fit(scale: Fraction, entropy: Entropy) -> None:
    sampler = FivePercentWide(scale)
    assert p_value(sampler, sampler.sample(DRAWS, entropy)) < FALSE_ALARM


@pytest.mark.statistical
@pytest.mark.parametrize("scale", SCALES[:2], ids=str)
def test_rounded_float_noise_fails_the_fit(scale: Fraction, entropy: Entropy) -> None:
    sampler = RoundedFloat(scale)
    assert p_value(sampler, sampler.sample(DRAWS, entropy)) < FALSE_ALARM


def test_a_dropped_tail_fails_the_exact_check(plant: pytest.MonkeyPatch) -> None:
    def without_tail(right: Strips) -> npt.NDArray[np.uint64]:
        ends = right.ends.copy()
        ends[-2] = ends[-3]
        return ends

    with_tables(plant, ends=without_tail)
    with pytest.raises(AssertionError):
        check_law(Fraction(1600))


def test_a_squeeze_too_large_fails_the_exact_check(plant: pytest.MonkeyPatch) -> None:
    with_tables(plant, squeezes=lambda right: right.squeezes + (right.squeezes > 0) * np.uint64(2**22))
    with pytest.raises(AssertionError):
        check_law(Fraction(10**6))


def test_a_minus_zero_that_is_kept_fails_the_exact_check(plant: pytest.MonkeyPatch) -> None:
    def both_signs(table: Strips, words: npt.NDArray[np.uint64], values: npt.NDArray[np.int64]) -> object:
        rejected, undecided = gaussian_envelope.settle(table, words, values)
        zeros = np.flatnonzero((words[:, 0] >> np.uint64(32) < table.ends[0]) & (values == 0))
        return np.setdiff1d(rejected, zeros), undecided

    plant.setattr(discrete_gaussian, "_loop", lambda _: both_signs)
    with pytest.raises(AssertionError, match=r"^\d+\b"):
        check_law(Fraction(10**6))


def test_a_zero_that_weighs_double_fails_the_exact_check(plant: pytest.MonkeyPatch) -> None:
    def doubled(right: Strips) -> npt.NDArray[np.uint64]:  # strip 0 as it is, all others halved
        ends = (right.ends + np.uint64(right.weights[0])) // np.uint64(2)
        ends[-2], ends[-1] = ends[-3] + np.uint64(1), 2**32
        return ends

    with_tables(plant, ends=doubled, guide=lambda right: np.zeros_like(right.guide))
    with pytest.raises(AssertionError, match=r"^\d+\b"):
        check_law(Fraction(1))


@pytest.mark.parametrize("bits", (32, 96))
def test_a_doubt_resolved_without_more_bits_fails_its_check(bits: int, plant: pytest.MonkeyPatch) -> None:
    def hasty(threshold: ProbabilityThreshold, digits: int, known: int, entropy: Entropy) -> bool:
        while known < bits:
            digits, known = digits << 64 | int.from_bytes(entropy.read(8), "little"), known + 64
        return digits < threshold.prefix(known)

    plant.setattr(discrete_gaussian, "below", hasty)
    with pytest.raises(AssertionError):
        check_doubts(Fraction(10**6))
    if bits == 32:
        with pytest.raises(AssertionError):
            check_law(Fraction(1600))


def test_a_doubt_that_is_taken_for_clear_fails_the_exact_check(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(gaussian_envelope, "DOUBT", 0)
    with pytest.raises(AssertionError):
        check_law(Fraction(10**6))
