"""Pólya shares are exactly what sums to discrete Laplace noise; each planted mistake is caught by a check."""

import hashlib
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.entropy import Entropy, KeyedEntropy, OsEntropy, ReplayableEntropy
from hushsum.noise import DiscreteLaplace, PolyaShare, Sampler, polya
from hushsum.noise.exp_thresholds import ProbabilityThreshold
from hushsum.noise.polya import counts, sizes
from tests.hushsum.noise.goodness import FALSE_ALARM, p_value
from tests.hushsum.noise.observed_polya import CHOICES, Zeros, block_ends, event, events_at_most, kept, realised

SMALL = ((Fraction(1, 2), 3), (Fraction(1), 1), (Fraction(1), 7), (Fraction(2), 4))
FROZEN = "2905fe1275e44cf99c18e2954aa2dc31"  # as the draws of hushsum.noise.SAMPLERS are
DRAWS = 150_000
DRAWS_MISTAKEN = 400_000  # a number of shares wrong by 5 % then fails by far


@pytest.fixture
def entropy(seed: int) -> ReplayableEntropy:
    return ReplayableEntropy(seed.to_bytes(8, "big"))


def laplace(scale: Fraction, reach: int) -> npt.NDArray[np.float64]:
    """The closed form, |k| ≤ reach."""
    return np.exp(DiscreteLaplace(scale).log_probability(np.arange(-reach, reach + 1)))


def power(law: npt.NDArray[np.float64], times: int) -> npt.NDArray[np.float64]:
    """The law of a sum of so many, cut to the same support."""
    reach = len(law) // 2
    total = np.zeros_like(law)
    total[reach] = 1
    for _ in range(times):
        total = np.convolve(total, law)[reach : 3 * reach + 1]
    return total


def check_sum(share: PolyaShare) -> None:
    """h of what the code draws, by its observed decisions, sum to discrete Laplace noise to 1e-12."""
    reach = math.ceil(14 * share.scale) + 4
    shares = power(realised(share, 2 * reach), share.shares)[reach : 3 * reach + 1]
    assert np.abs(shares - laplace(share.scale, reach)).max() < 1e-12


def total(share: Sampler, shares: int, size: int, entropy: Entropy) -> npt.NDArray[np.int64]:
    """(size,) sums of so many drawn shares."""
    draws = np.zeros(size, dtype=np.int64)
    for _ in range(shares):
        draws += share.sample(size, entropy)
    return draws


# ------------------------------------------------------------------------------------------- exact probabilities


@pytest.mark.parametrize("shares", (1, 2, 7, 80))
def test_negative_binomial_shares_sum_to_a_geometric_in_rational_arithmetic(shares: int) -> None:
    """Of Γ(k + r)/(Γ(r)·k!)·q^k the h-fold convolution is q^k: its coefficients are all 1."""
    terms, r = 24, Fraction(1, shares)
    one = [Fraction(1)]
    for k in range(1, terms):
        one.append(one[-1] * (k - 1 + r) / k)
    whole = [Fraction(1)] + [Fraction(0)] * (terms - 1)
    for _ in range(shares):
        whole = [sum((whole[i] * one[k - i] for i in range(k + 1)), Fraction(0)) for k in range(terms)]
    assert whole == [1] * terms


@pytest.mark.parametrize(("scale", "shares"), [(Fraction(1, 2), 3), (Fraction(1), 7)], ids=str)
def test_what_the_code_draws_sums_to_discrete_laplace_noise(scale: Fraction, shares: int) -> None:
    check_sum(PolyaShare(scale, shares))


@pytest.mark.parametrize(("scale", "shares"), SMALL, ids=str)
def test_the_stated_probabilities_sum_to_discrete_laplace_noise(scale: Fraction, shares: int) -> None:
    reach = math.ceil(30 * scale) + 40
    law = np.exp(PolyaShare(scale, shares).log_probability(np.arange(-reach, reach + 1)))
    assert np.abs(power(law, shares) - laplace(scale, reach)).max() < 1e-12


@pytest.mark.parametrize(("scale", "shares"), [*SMALL, (Fraction(1053), 80)], ids=str)
def test_the_number_of_events_is_poisson_to_144_bits(scale: Fraction, shares: int) -> None:
    share = PolyaShare(scale, shares)
    rate = Fraction(2 * CHOICES, sizes(scale).peak * shares)
    with localcontext() as context:
        context.prec = 120
        term = (-Decimal(rate.numerator) / Decimal(rate.denominator)).exp()
        cumulative = Decimal(0)
        for n in range(6):
            cumulative += term
            assert events_at_most(share, n) == int(cumulative * 2**144), n
            term = term * Decimal(rate.numerator) / Decimal(rate.denominator) / (n + 1)


@pytest.mark.parametrize("scale", (Fraction(15, 2), Fraction(1053), Fraction(10**12)), ids=str)
def test_events_of_each_size_come_at_exactly_their_rate(scale: Fraction) -> None:
    """Λ·W_j/2^32·2^−j·p = 2·q^k/(h·k), to 90 bits: at both ends of blocks and within them."""
    share = PolyaShare(scale, 80)
    envelope = sizes(scale)
    ends = [0, *block_ends(share, envelope.count)]
    assert tuple(np.diff(ends)) == envelope.weights[: envelope.count]
    rate = counts(scale, 80).rate
    for block in {0, 2, envelope.count // 2, envelope.count - 1}:
        for place in {0, (1 << block) // 3, (1 << block) - 1}:
            size = (1 << block) + place
            came = rate * (ends[block + 1] - ends[block]) / (CHOICES << block) * kept(share, ends[block], size)
            with localcontext() as context:
                context.prec = 60
                stated = 2 * (-Decimal(size) * scale.denominator / scale.numerator).exp() / (80 * size)
                assert abs(Fraction(stated) / came - 1) < Fraction(1, 2**45), size  # p itself may be below 2^-40


def test_places_and_signs_are_told_apart() -> None:
    share = PolyaShare(Fraction(1053), 80)
    ends = [0, *block_ends(share, 5)]
    for block in range(5):
        drawn = {event(share, ends[block], 0, place) for place in range(1 << block)}
        assert drawn == set(range(1 << block, 2 << block))
        assert event(share, ends[block], 0, 1 << 63) == -(1 << block)
        assert event(share, ends[block], 0, (1 << 63) - 1) == (2 << block) - 1


# ---------------------------------------------------------------------------------------------------- the tail


def test_the_tail_is_unbounded_and_has_its_rate() -> None:
    """Piece i of the tail at 2^−(i+1): a size of block J + i is kept with C·2^(j+i+1)·q^k/(k·W)."""
    scale = Fraction(1, 2)
    share, envelope = PolyaShare(scale, 3), sizes(scale)
    start = int(envelope.ends[envelope.tail - 1])
    for piece in (0, 1, 3, 6):
        coins = (1 << piece) - 1
        block = envelope.count + piece
        drawn = event(share, start, 0, 5, coins)
        expected = (1 << block) + 5 % (1 << block)
        factor = Fraction(envelope.peak << block + piece + 1, expected * envelope.weights[envelope.tail])
        probability = factor * Fraction(math.exp(-float(expected / scale)))
        assert drawn == (expected if probability * 2**32 >= 1 else drawn)
        assert ProbabilityThreshold.prefix(envelope.acceptance(block, expected), 400) == pytest.approx(
            float(factor) * 2.0**400 * math.exp(-2.0 * expected), rel=1e-9
        )
    assert event(share, start, 0, 5, 0) == 1 << envelope.count | 5 % (1 << envelope.count)


def test_the_tail_of_a_large_scale_takes_more_bits_for_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = Fraction(2**48)
    share, envelope = PolyaShare(scale, 80), sizes(scale)
    start = int(envelope.ends[envelope.tail - 1])
    coins = (1 << 12) - 1  # block 53 + 12 takes 65 bits, of which 63 are there; the value wraps around
    monkeypatch.setattr(polya, "below", lambda *_: True)
    assert envelope.count == 53
    assert event(share, start, 0, 1, coins, 7) == ((1 << 65 | 1 << 64 | 7) + 2**63) % 2**64 - 2**63


def test_a_draw_may_have_any_number_of_events() -> None:
    share = PolyaShare(Fraction(1), 1)
    most = bytes([255]) * 2
    for words in range(2):
        drawn = int(share.sample(1, Zeros(most + bytes([255]) * 8 * words))[0])
        assert events_at_most(share, drawn, ties=words) == 2 ** (16 + 64 * words) - 1


# -------------------------------------------------------------------------------------------------- statistics


@pytest.mark.statistical
@pytest.mark.parametrize(("scale", "shares"), [(Fraction(3), 8), (Fraction(1053), 10)], ids=str)
def test_sums_of_drawn_shares_fit_discrete_laplace_noise(scale: Fraction, shares: int, entropy: Entropy) -> None:
    """χ², false alarm 1e-6."""
    draws = total(PolyaShare(scale, shares), shares, DRAWS, entropy)
    assert p_value(DiscreteLaplace(scale), draws) > FALSE_ALARM


@pytest.mark.statistical
@pytest.mark.parametrize(("scale", "shares"), [(Fraction(3, 10), 8), (Fraction(1053), 80), (Fraction(40), 1)], ids=str)
def test_shares_fit_their_stated_distribution(scale: Fraction, shares: int, entropy: Entropy) -> None:
    """χ², false alarm 1e-6."""
    sampler = PolyaShare(scale, shares)
    assert p_value(sampler, sampler.sample(DRAWS, entropy)) > FALSE_ALARM


@pytest.mark.statistical
def test_shares_from_the_operating_system_fit_too() -> None:
    """χ², false alarm 1e-7 and certainly below 1e-6, for χ² is an approximation here; no seed can repeat it."""
    sampler = PolyaShare(Fraction(100), 30)
    assert p_value(sampler, sampler.sample(DRAWS, OsEntropy())) > FALSE_ALARM / 10


def test_one_share_of_one_is_the_whole_noise() -> None:
    k = np.arange(-300, 301)
    one, whole = PolyaShare(Fraction(7), 1), DiscreteLaplace(Fraction(7))
    assert one.log_probability(k) == pytest.approx(whole.log_probability(k), rel=1e-12)
    assert one.variance == whole.variance


@pytest.mark.parametrize("shares", (1, 80))
def test_the_stated_variance_is_that_of_the_stated_probabilities(shares: int) -> None:
    share = PolyaShare(Fraction(300), shares)
    k = np.arange(-12_000, 12_001)
    assert share.variance == pytest.approx(float((k**2 * np.exp(share.log_probability(k))).sum()), rel=1e-9)


# ---------------------------------------------------------------------------------------------------- refusals


def test_a_scale_or_a_number_of_shares_out_of_range_is_refused() -> None:
    for scale in (Fraction(0), Fraction(2**48 + 1), Fraction(1, 2**49)):
        with pytest.raises(ValueError, match="2\\^-48 to 2\\^48"):
            PolyaShare(scale, 5)
    for shares in (0, -1, 2**16 + 1):
        with pytest.raises(ValueError, match="from 1 to 65536"):
            PolyaShare(Fraction(1), shares)


def test_what_is_no_exact_number_is_refused() -> None:
    with pytest.raises(TypeError, match="Fraction"):
        PolyaShare(1.5, 5)  # type: ignore[arg-type]  # of the wrong type on purpose
    with pytest.raises(TypeError, match="integer"):
        PolyaShare(Fraction(1), Fraction(5))  # type: ignore[arg-type]  # of the wrong type on purpose


@pytest.mark.parametrize("scale", (Fraction(2**48), Fraction(1, 2**48)), ids=str)
def test_the_extreme_scales_are_drawn(scale: Fraction, entropy: Entropy) -> None:
    draws = PolyaShare(scale, 4).sample(1000, entropy)
    assert np.abs(draws).max() <= 60 * scale  # e^-60 a draw
    assert np.abs(draws).mean() >= scale / 16 - 1


def test_a_table_of_probabilities_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        PolyaShare(Fraction(2**40), 4).log_probability(np.array([0]))


def test_a_key_draws_what_it_always_drew() -> None:
    entropy = KeyedEntropy(bytes(range(32)))
    draws = [PolyaShare(Fraction(1053), 80).sample(size, entropy) for size in (1, 5000)]
    digest = hashlib.sha256(b"".join(each.astype("<i8").tobytes() for each in draws)).hexdigest()
    assert digest[:32] == FROZEN


# -------------------------------------------------------------------------------------------- planted mistakes


class SwappedP(PolyaShare):
    """numpy's p is 1 − q."""

    def sample(self, size: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        generator = np.random.default_rng(list(entropy.read(16)))
        q = math.exp(-1 / self.scale)
        added, subtracted = generator.negative_binomial(1 / self.shares, q, (2, size))
        return np.asarray(added - subtracted, dtype=np.int64)


class OneTooMany(PolyaShare):
    """r = 1/(h + 1)."""

    def sample(self, size: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        return PolyaShare(self.scale, self.shares + 1).sample(size, entropy)


@pytest.mark.statistical
@pytest.mark.parametrize("mistake", (SwappedP, OneTooMany))
def test_a_wrong_share_fails_the_fit_of_the_sum(mistake: type[PolyaShare], entropy: Entropy) -> None:
    """One share too many of 20 is an r that is 5 % wrong."""
    scale, shares = Fraction(3), 20
    draws = total(mistake(scale, shares), shares, DRAWS if mistake is SwappedP else DRAWS_MISTAKEN, entropy)
    assert p_value(DiscreteLaplace(scale), draws) < FALSE_ALARM


def test_a_wrong_number_of_shares_fails_the_exact_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polya, "counts", lambda scale, shares: counts(scale, shares + 1))
    with pytest.raises(AssertionError):
        check_sum(PolyaShare(Fraction(1, 4), 7))


def test_sizes_that_are_all_kept_fail_the_exact_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polya, "settle", _keeping(polya.settle))
    with pytest.raises(AssertionError):
        check_sum(PolyaShare(Fraction(1, 4), 7))


def _keeping(true: Callable[..., tuple[polya.Int64, polya.Int64]]) -> Callable[..., tuple[polya.Int64, polya.Int64]]:
    return lambda envelope, words: true(envelope, words & ~np.uint64(2**32 - 1))  # U = 0
