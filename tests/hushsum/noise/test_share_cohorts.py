"""Shares of large cohorts, of 800 and 8,000 honest clients: exact rates, sums that fit, and mistakes with many alone.

A test of 80 shares says nothing about 800 where the code may ask how many they are: each planted mistake passes at 80.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.entropy import Entropy, ReplayableEntropy
from hushsum.noise import DiscreteGaussian, DiscreteLaplace, PolyaShare, Sampler, polya
from hushsum.noise.polya import counts, sizes
from tests.hushsum.noise.goodness import FALSE_ALARM, p_value
from tests.hushsum.noise.observed_polya import CHOICES, Zeros, block_ends, events_at_most, one_event

COHORTS = (80, 800, 8000)
MANY = 200  # shares from which on the planted mistakes are made
DIGITS = 96  # of U that are looked at: the first 32, and one further word
FINE = 1 << 256  # enclosures are integers over it
DRAWS = {800: 90_000, 8000: 8000}  # counters; 5 % of the scale shows at 800, half the variance at both
DRAWS_MISTAKEN = 4000  # half the variance then fails by far
GAUSSIAN_SHARE = Fraction(4)  # σ²/h, the least that is accepted

Bounds = tuple[Fraction, Fraction]
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def entropy(seed: int) -> ReplayableEntropy:
    return ReplayableEntropy(seed.to_bytes(8, "big"))


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """For mistakes in what is observed, which is kept."""
    one_event.cache_clear()
    yield monkeypatch
    one_event.cache_clear()


def total(share: Sampler, shares: int, counters: int, entropy: Entropy) -> npt.NDArray[np.int64]:
    """(counters,) sums of so many drawn shares."""
    at_once = 50
    assert shares % at_once == 0
    draws = np.zeros(counters, dtype=np.int64)
    for _ in range(shares // at_once):
        draws += share.sample(at_once * counters, entropy).reshape(at_once, counters).sum(axis=0)
    return draws


# ------------------------------------------------------------------------------------------------- exact rates


def check_rates(share: PolyaShare, reach: int, stride: int = 1) -> None:
    """What the running sampler draws has events ±k at rate 2·q^k/(h·k), from its observed decisions, to 2^−95 of p.

    Args:
        share: Whose events.
        reach: Of k; sizes beyond 23 scales come from the tail.
        stride: Every so manieth k is looked at.
    """
    rate = observed_rate(share)
    blocks = math.ceil(23 * share.scale - 1).bit_length()  # the ordinary ones; the tail is behind them
    ends = [0, *block_ends(share, blocks + 1)]
    stated = powers(share.scale, reach)
    looked = range(1, reach + 1, stride)
    chosen, coins, low, high = [], [], [], []
    for size in looked:
        block = min(size.bit_length() - 1, blocks)
        piece = (
            size.bit_length() - block
        )  # 1 for an ordinary block and for the first piece of the tail, 2 for the second
        halvings = size.bit_length() - 1 + (piece if block == blocks else 0)  # one place of many, one piece of many
        weight = Fraction(ends[block + 1] - ends[block], CHOICES << halvings)
        least, most = (Fraction(2, share.shares * size) * power / weight for power in stated[size])
        chosen.append(ends[block])
        coins.append((1 << piece - 1) - 1 if block == blocks else None)
        low.append(math.floor(least / rate[1] * 2**DIGITS) - 1)
        high.append(math.ceil(most / rate[0] * 2**DIGITS) + 1)
    sized = np.array(looked)
    assert np.array_equal(drawn(share, chosen, looked, coins, low), sized), "a size comes less often than stated"
    assert not drawn(share, chosen, looked, coins, high).any(), "a size comes more often than stated"


def drawn(
    share: PolyaShare, chosen: list[int], looked: range, coins: list[int | None], digits: list[int]
) -> npt.NDArray[np.int64]:
    """What draws of one event of each of these sizes give, all in one call, where U begins with these digits.

    The first 32 digits are those of p, the others not: each draw reads one further word, in the tail coins before it.
    """
    words, further = b"", b""
    for choice, size, heads, u in zip(chosen, looked, coins, digits, strict=True):
        place = size - (1 << size.bit_length() - 1)
        words += (choice << 32 | u >> 64).to_bytes(8, "little") + place.to_bytes(8, "little")
        further += b"" if heads is None else heads.to_bytes(8, "little")
        further += (u & 2**64 - 1).to_bytes(8, "little")
    tape = Zeros(one_event(share) * len(looked) + words + further)
    values = share.sample(len(looked), tape)
    assert tape.at == len(tape.data), "the comparisons read other digits than those of the stated probabilities"
    return values


def observed_rate(share: PolyaShare) -> Bounds:
    """Bounds of Λ by the observed chance of a draw without events; the chances of 1 to 3 are Poisson's."""
    one = 1 << 144
    none = events_at_most(share, 0)
    rate = logarithm(Fraction(none + 1, one))[0], logarithm(Fraction(none, one))[1]
    sums, terms = [Fraction(1)] * 2, [Fraction(1)] * 2
    for n in range(1, 4):
        terms = [term * each / n for term, each in zip(terms, rate, strict=True)]
        sums = [a + b for a, b in zip(sums, terms, strict=True)]
        seen = events_at_most(share, n)
        assert Fraction(none, one) * sums[0] <= Fraction(seen + 1, one)
        assert Fraction(seen, one) <= Fraction(none + 1, one) * sums[1]
    return rate


def logarithm(x: Fraction) -> Bounds:
    """Bounds of −ln x."""
    with localcontext() as context:
        context.prec = 70
        value = Fraction(-(Decimal(x.numerator) / Decimal(x.denominator)).ln())
    return value - Fraction(1, 10**65), value + Fraction(1, 10**65)


def powers(scale: Fraction, reach: int) -> list[Bounds]:
    """Bounds of q^k, k = 0, 1, …, q = e^(−1/scale), by multiplication with the rounding outwards."""
    with localcontext() as context:
        context.prec = 100
        q = Fraction((-Decimal(scale.denominator) / Decimal(scale.numerator)).exp())
    factors = math.floor(q * FINE) - 1, math.ceil(q * FINE) + 1
    ends = [(FINE, FINE)]
    for _ in range(reach):
        ends.append((ends[-1][0] * factors[0] // FINE, -(-ends[-1][1] * factors[1] // FINE)))
    return [(Fraction(low, FINE), Fraction(high, FINE)) for low, high in ends]


@pytest.mark.parametrize("shares", COHORTS)
def test_events_of_every_size_come_at_exactly_their_rate_however_many_share(shares: int) -> None:
    """Each of the 255 sizes of the ordinary blocks, and of the tail those that p tells from 0 in 96 digits."""
    check_rates(PolyaShare(Fraction(15, 2), shares), 560)


@pytest.mark.parametrize("shares", COHORTS[1:])
def test_so_they_do_at_a_usual_scale(shares: int) -> None:
    check_rates(PolyaShare(Fraction(1053), shares), 32_767, 97)


def half_the_variance(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(polya, "counts", lambda scale, shares: counts(scale, shares * (2 if shares >= MANY else 1)))


def five_percent_fewer_events(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(polya, "counts", lambda scale, shares: counts(scale, shares * 21 // 20 if shares >= MANY else shares))


def sizes_five_percent_rarer(patch: pytest.MonkeyPatch) -> None:
    """Of every size 1/1.05 of its events are kept."""

    def wrong(scale: Fraction) -> Any:
        right = sizes(scale)
        return replace(right, peak=right.peak * 20 // 21, heights=right.heights * (20 / 21))

    patch.setattr(polya, "sizes", wrong)


def a_block_is_missing(patch: pytest.MonkeyPatch) -> None:
    """The words of the sizes 8 to 15 choose 16 to 31."""

    def wrong(scale: Fraction) -> Any:
        right = sizes(scale)
        ends = right.ends.copy()
        ends[3] = ends[2]
        return replace(right, ends=ends)

    patch.setattr(polya, "sizes", wrong)


@pytest.mark.parametrize("shares", COHORTS[1:])
@pytest.mark.parametrize("mistake", [half_the_variance, five_percent_fewer_events], ids=lambda each: each.__name__)
def test_a_rate_that_is_wrong_for_many_shares_fails_the_exact_check_of_many(
    mistake: Plant, shares: int, plant: pytest.MonkeyPatch
) -> None:
    mistake(plant)
    check_rates(PolyaShare(Fraction(2), 80), 63)
    with pytest.raises(AssertionError, match="stated"):
        check_rates(PolyaShare(Fraction(2), shares), 63)


@pytest.mark.parametrize("mistake", [sizes_five_percent_rarer, a_block_is_missing], ids=lambda each: each.__name__)
def test_sizes_that_are_too_rare_fail_the_exact_check(mistake: Plant, plant: pytest.MonkeyPatch) -> None:
    mistake(plant)
    with pytest.raises(AssertionError):
        check_rates(PolyaShare(Fraction(2), 800), 63)


# -------------------------------------------------------------------------------------------- sums of drawn shares


@pytest.mark.statistical
@pytest.mark.parametrize("shares", DRAWS)
def test_sums_of_many_polya_shares_fit_discrete_laplace_noise(shares: int, entropy: Entropy) -> None:
    """χ², false alarm 1e-6."""
    draws = total(PolyaShare(Fraction(3), shares), shares, DRAWS[shares], entropy)
    assert p_value(DiscreteLaplace(Fraction(3)), draws) > FALSE_ALARM


@pytest.mark.statistical
@pytest.mark.parametrize("shares", DRAWS)
def test_sums_of_half_the_variance_do_not_fit(shares: int, entropy: Entropy, monkeypatch: pytest.MonkeyPatch) -> None:
    half_the_variance(monkeypatch)
    draws = total(PolyaShare(Fraction(3), shares), shares, DRAWS_MISTAKEN, entropy)
    assert p_value(DiscreteLaplace(Fraction(3)), draws) < FALSE_ALARM


@pytest.mark.statistical
def test_sums_of_a_scale_five_percent_off_do_not_fit(entropy: Entropy) -> None:
    draws = total(PolyaShare(Fraction(3) * 20 / 21, 800), 800, DRAWS[800], entropy)
    assert p_value(DiscreteLaplace(Fraction(3)), draws) < FALSE_ALARM


@pytest.mark.statistical
@pytest.mark.parametrize("shares", DRAWS)
def test_sums_of_many_gaussian_shares_fit_discrete_gaussian_noise(shares: int, entropy: Entropy) -> None:
    """χ², false alarm 1e-6: at σ²/h = 4 the sum is no further from discrete Gaussian noise than e^±10^-16 is from 1."""
    draws = total(DiscreteGaussian(GAUSSIAN_SHARE), shares, DRAWS[shares] * 2 // 3, entropy)
    assert p_value(DiscreteGaussian(shares * GAUSSIAN_SHARE), draws) > FALSE_ALARM


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("factor", "counters"), [(Fraction(400, 441), 60_000), (Fraction(1, 2), 4000)], ids=["5 % off", "half the variance"]
)
def test_sums_of_narrower_gaussian_shares_do_not_fit(factor: Fraction, counters: int, entropy: Entropy) -> None:
    draws = total(DiscreteGaussian(GAUSSIAN_SHARE * factor), 800, counters, entropy)
    assert p_value(DiscreteGaussian(800 * GAUSSIAN_SHARE), draws) < FALSE_ALARM
