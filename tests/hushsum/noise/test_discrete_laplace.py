"""The discrete Laplace sampler draws exactly what it states; each planted mistake is caught by a check."""

import math
from collections.abc import Iterator
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.entropy import Entropy, OsEntropy, ReplayableEntropy
from hushsum.noise import discrete_laplace
from hushsum.noise.discrete_laplace import GROUP_DRAWS, DiscreteLaplace
from hushsum.noise.exp_thresholds import Form, ProbabilityThreshold
from hushsum.noise.geometric_digits import digits
from hushsum.noise.random_words import below_tied, wrapped
from hushsum.public_random import PublicSeed
from tests.hushsum.noise.goodness import FALSE_ALARM, p_value
from tests.hushsum.noise.observed import Tape, columns_of, draw, no_digits, pmf, prefix, true_prefix

SCALES = (Fraction(3, 10), Fraction(1), Fraction(15, 2), Fraction(1053), Fraction(10**5))
DRAWS = 200_000  # a scale wrong by 5 % then fails by far: see the planted mistakes


@pytest.fixture
def entropy(seed: int) -> ReplayableEntropy:
    return ReplayableEntropy(seed.to_bytes(8, "big"))


@pytest.fixture
def fresh_thresholds() -> Iterator[None]:
    """For tests that plant mistakes in thresholds, which the sampler keeps."""
    digits.cache_clear()
    yield
    digits.cache_clear()


def check_digits(scale: Fraction) -> None:
    """Every digit of both geometrics is 1 with exactly the stated probability, to 144 bits and two ties deep."""
    columns = columns_of(scale)
    for column in range(columns):
        expected = true_prefix(2**column / scale, 144, tail=column == columns - 1)
        for side in (0, 1):
            assert prefix(scale, column, side=side, ties=2) == expected, f"digit {column}, side {side}"


def check_top(scale: Fraction) -> None:
    """What lies above the digits is drawn: a word of zeros, and then as many more as its probability begins with."""
    column = columns_of(scale) - 1
    words = no_digits(scale, 2)
    words[:, 0, column] = 0
    bits = 2**column / float(scale) * math.log2(math.e)  # the probability is 2^-bits, below 2^-64
    assert bits > 64
    assert draw(scale, words, *[0] * (math.floor((bits - 16) / 64) + 1)).tolist() == [2**column, 0]


# ------------------------------------------------------------------------------------------- exact probabilities


@pytest.mark.parametrize("scale", SCALES[:4], ids=str)
def test_every_digit_has_exactly_its_probability_to_144_bits(scale: Fraction) -> None:
    check_digits(scale)


@pytest.mark.parametrize("scale", (Fraction(3, 10), Fraction(1), Fraction(2)), ids=str)
def test_the_drawn_distribution_is_the_stated_one_to_a_hundred_bits(scale: Fraction) -> None:
    drawn = pmf(DiscreteLaplace(scale), 24, ties=3)
    with localcontext() as context:
        context.prec = 100
        ratio = (-Decimal(scale.denominator) / Decimal(scale.numerator)).exp()
        peak = Fraction((1 - ratio) / (1 + ratio))
        for k, (low, high) in drawn.items():
            stated = peak * Fraction(ratio ** abs(k))
            assert low <= stated * (1 + Fraction(1, 2**100)), k
            assert stated * (1 - Fraction(1, 2**100)) <= high, k
            assert high - low < stated / 2**100, k


@pytest.mark.parametrize("scale", (Fraction(3, 10), Fraction(1053)), ids=str)
def test_the_stated_float_probabilities_are_those_of_the_distribution(scale: Fraction) -> None:
    k = np.array([0, 1, -1, 2, 5000])
    q = math.exp(-1 / scale)
    stated = np.exp(DiscreteLaplace(scale).log_probability(k))
    assert stated == pytest.approx((1 - q) / (1 + q) * q ** np.abs(k), rel=1e-9)


@pytest.mark.parametrize("scale", (Fraction(1, 10), Fraction(3, 10), Fraction(15, 2), Fraction(1053)), ids=str)
def test_the_stated_variance_is_that_of_the_stated_probabilities(scale: Fraction) -> None:
    sampler = DiscreteLaplace(scale)
    k = np.arange(-60_000, 60_001)
    assert sampler.variance == pytest.approx(float((k**2 * np.exp(sampler.log_probability(k))).sum()), rel=1e-9)
    assert sampler.std == pytest.approx(math.sqrt(sampler.variance))


# -------------------------------------------------------------------------------------------------- statistics


@pytest.mark.statistical
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_draws_fit_the_stated_distribution(scale: Fraction, entropy: Entropy) -> None:
    """χ², false alarm 1e-6."""
    sampler = DiscreteLaplace(scale)
    assert p_value(sampler, sampler.sample(DRAWS, entropy)) > FALSE_ALARM


@pytest.mark.statistical
def test_draws_from_the_operating_system_fit_too() -> None:
    """χ², false alarm 1e-7 and certainly below 1e-6, for χ² is an approximation here; no seed can repeat it."""
    sampler = DiscreteLaplace(Fraction(1053))
    assert p_value(sampler, sampler.sample(DRAWS, OsEntropy())) > FALSE_ALARM / 10


@pytest.mark.statistical
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_neighbouring_draws_are_uncorrelated(scale: Fraction, entropy: Entropy) -> None:
    """|correlation|·√n is standard normal, to within n's central limit: false alarm below 1e-6 at 5.5."""
    draws = DiscreteLaplace(scale).sample(DRAWS, entropy).astype(np.float64)
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) * math.sqrt(DRAWS) < 5.5


# -------------------------------------------------------------------------------------------------------- ties


@pytest.mark.parametrize("depth", (1, 2, 3, 6))
@pytest.mark.parametrize("side", (0, 1))
def test_a_tie_at_any_depth_is_decided_by_the_first_word_that_differs(depth: int, side: int) -> None:
    scale, column = Fraction(1053), 9
    bits = 16 + 64 * depth
    digits = true_prefix(2**column / scale, bits, tail=False)
    tied = [digits >> 64 * (depth - level) & (2**64 - 1) for level in range(1, depth + 1)]
    words = no_digits(scale, 1)
    words[0, side, column] = digits >> 64 * depth
    value = (-1 if side else 1) << column
    assert draw(scale, words, *tied[:-1], tied[-1] - 1)[0] == value
    assert draw(scale, words, *tied[:-1], tied[-1] + 1)[0] == 0


def test_several_ties_of_one_draw_are_decided_in_order_and_add_up() -> None:
    scale = Fraction(15, 2)
    words = no_digits(scale, 3)
    firsts = [true_prefix(2**column / scale, 16, tail=False) for column in (0, 1, 2)]
    words[0, 0, 0], words[0, 1, 2], words[2, 0, 1] = firsts[0], firsts[2], firsts[1]
    assert draw(scale, words, 0, 0, 0).tolist() == [1 - 4, 0, 2]
    assert draw(scale, words, 0, 2**64 - 1, 0).tolist() == [1 - 4, 0, 0]
    assert draw(scale, words, 2**64 - 1, 0, 2**64 - 1).tolist() == [0, 0, 2]


def test_ties_in_any_group_belong_to_their_own_draw() -> None:
    scale, draws = Fraction(15, 2), GROUP_DRAWS + 5
    words = no_digits(scale, draws)
    where = (0, GROUP_DRAWS - 1, GROUP_DRAWS, draws - 1)
    for place in where:
        words[place, place % 2, 1] = true_prefix(2 / scale, 16, tail=False)
    drawn = draw(scale, words, 0, 0, 0, 0)
    assert np.flatnonzero(drawn).tolist() == list(where)
    assert drawn[list(where)].tolist() == [2, -2, 2, 2]


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_what_lies_above_the_digits_is_drawn(scale: Fraction) -> None:
    check_top(scale)


@pytest.mark.parametrize("times", (1, 2, 5))
@pytest.mark.parametrize("side", (0, 1))
def test_the_part_above_the_digits_is_unbounded(times: int, side: int) -> None:
    scale = Fraction(2)  # e^-64 = 2^-92.3: a tail word of zeros, and one below it
    tail = true_prefix(Fraction(128) / scale, 16 + 128, tail=True)
    assert tail >> 64 == 0
    words = no_digits(scale, 1)
    words[0, side, 7] = 0
    hit, miss = [0, 0], [2**64 - 1]
    drawn = draw(scale, words, *hit, *(hit * (times - 1)), *miss)
    assert drawn[0] == (-1 if side else 1) * times * 128


def test_a_value_beyond_int64_wraps_as_post_processing_may() -> None:
    assert wrapped(2**63) == -(2**63)
    assert wrapped(-(2**63) - 1) == 2**63 - 1
    assert wrapped(-5) == -5


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("scale", (Fraction(0), Fraction(-1), Fraction(2**48 + 1), Fraction(1, 2**49)), ids=str)
def test_a_scale_that_int64_or_the_error_bars_cannot_hold_is_refused(scale: Fraction) -> None:
    with pytest.raises(ValueError, match="2\\^-48 to 2\\^48"):
        DiscreteLaplace(scale)


@pytest.mark.parametrize("scale", (Fraction(2**48), Fraction(1, 2**48)), ids=str)
def test_the_extreme_scales_are_drawn(scale: Fraction, entropy: Entropy) -> None:
    draws = DiscreteLaplace(scale).sample(1000, entropy)
    assert np.abs(draws).max() <= 60 * scale  # e^-60 a draw
    assert np.abs(draws).mean() >= scale / 2 - 1


def test_a_float_is_no_scale() -> None:
    with pytest.raises(TypeError, match="Fraction"):
        DiscreteLaplace(1.5)  # type: ignore[arg-type]  # of the wrong type on purpose


@pytest.mark.parametrize("source", (PublicSeed(7), 7, np.random.default_rng(7), None), ids=lambda s: type(s).__name__)
def test_what_is_no_private_source_is_refused(source: object) -> None:
    with pytest.raises(TypeError, match="Entropy"):
        DiscreteLaplace(Fraction(1)).sample(1, source)  # type: ignore[arg-type]  # of the wrong type on purpose


def test_a_source_that_gives_too_little_is_refused() -> None:
    class Short:
        def read(self, size: int) -> bytes:
            return bytes(size // 2)

    with pytest.raises(OSError, match="14 bytes of 28"):
        DiscreteLaplace(Fraction(1)).sample(1, Short())


def test_a_negative_number_of_draws_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        DiscreteLaplace(Fraction(1)).sample(-1, Tape(b""))


# -------------------------------------------------------------------------------------------- planted mistakes


class HalfScale(DiscreteLaplace):
    def sample(self, size: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        return DiscreteLaplace(self.scale / 2).sample(size, entropy)


class FivePercentWide(DiscreteLaplace):
    def sample(self, size: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        return DiscreteLaplace(self.scale * Fraction(21, 20)).sample(size, entropy)


class RoundedFloat(DiscreteLaplace):
    def sample(self, size: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        generator = np.random.default_rng(list(entropy.read(16)))
        return np.rint(generator.laplace(scale=float(self.scale), size=size)).astype(np.int64)


@pytest.mark.statistical
@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("mistake", (HalfScale, FivePercentWide))
def test_a_wrong_scale_fails_the_fit(mistake: type[DiscreteLaplace], scale: Fraction, entropy: Entropy) -> None:
    sampler = mistake(scale)
    assert p_value(sampler, sampler.sample(DRAWS, entropy)) < FALSE_ALARM


@pytest.mark.statistical
@pytest.mark.parametrize("scale", (Fraction(3, 10), Fraction(1)), ids=str)
def test_rounded_float_noise_fails_the_fit(scale: Fraction, entropy: Entropy) -> None:
    sampler = RoundedFloat(scale)
    assert p_value(sampler, sampler.sample(DRAWS, entropy)) < FALSE_ALARM


@pytest.mark.usefixtures("fresh_thresholds")
@pytest.mark.parametrize("bits", (16, 80, 144))
def test_a_threshold_rounded_up_at_any_depth_fails_the_exact_check(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    true = ProbabilityThreshold.prefix
    monkeypatch.setattr(ProbabilityThreshold, "prefix", lambda self, asked: true(self, asked) + (asked == bits))
    with pytest.raises(AssertionError):
        check_digits(Fraction(1))


@pytest.mark.usefixtures("fresh_thresholds")
def test_a_missing_top_part_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf_to_the_tail(threshold: ProbabilityThreshold, bits: int, entropy: Entropy) -> bool:
        return threshold.form is not Form.TAIL and below_tied(threshold, bits, entropy)

    monkeypatch.setattr(discrete_laplace, "below_tied", deaf_to_the_tail)
    with pytest.raises(AssertionError):
        check_top(Fraction(1))
