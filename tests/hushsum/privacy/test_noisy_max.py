"""Report noisy max: audited exactly, over what the code does with every word, not over a formula."""

import math
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import product

import numpy as np
import pytest
from scipy.stats import chi2

from hushsum.entropy import OsEntropy, ReplayableEntropy
from hushsum.errors import GuaranteeError
from hushsum.noise.exp_thresholds import exp_upper
from hushsum.privacy import noisy_max
from hushsum.privacy.events import Event
from hushsum.privacy.noisy_max import event, report_noisy_max, scale_for, win_probabilities
from hushsum.public_random import PublicSeed
from tests.hushsum.noise.observed import Tape

WORDS = 2**64
STAYS, LEAVES = 0, WORDS - 1  # words far below and far above the threshold of a candidate that is not the best
SLACK = Fraction(1, 2**40)  # of ratios: each probability is read to 2^-64
EPSILON = Fraction(1)


def tape(*words: int) -> Tape:
    return Tape(b"".join(word.to_bytes(8, "little") for word in words))


def winner(utilities: Sequence[int], epsilon: Fraction, *words: int) -> int:
    return report_noisy_max(utilities, sensitivity=1, epsilon=epsilon, entropy=tape(*words))


@lru_cache(maxsize=1000)
def _staying(gap: int, epsilon: Fraction, scale: Fraction) -> Fraction:
    del scale  # what is kept here depends on it
    low, high = 0, WORDS  # the first words stay in, the last do not
    while high - low > 1:
        word = (low + high) // 2
        stays = (
            winner((-gap, 0), epsilon, word, LEAVES, 0) == 0
        )  # of two that are left, a last word of 0 takes the first
        low, high = (word, high) if stays else (low, word)
    return Fraction(high, WORDS)


def staying(gap: int, epsilon: Fraction) -> Fraction:
    """The probability that a candidate ``gap`` below the best stays in: the share of words, to 2^-64, by bisection."""
    return _staying(gap, epsilon, noisy_max.scale_for(1, epsilon))


def observed(utilities: Sequence[int], epsilon: Fraction = EPSILON) -> list[Fraction]:
    """Each candidate's probability to win: every set of candidates that may be left, and every word that picks one."""
    chances = [Fraction(0)] * len(utilities)
    gaps = [max(utilities) - utility for utility in utilities]
    for coins in product((True, False), repeat=len(utilities)):
        if any(gap == 0 and not coin for gap, coin in zip(gaps, coins, strict=True)):
            continue  # the best always stay
        chance = Fraction(1)
        for gap, coin in zip(gaps, coins, strict=True):
            stays = Fraction(1) if gap == 0 else staying(gap, epsilon)
            chance *= stays if coin else 1 - stays
        words = [STAYS if coin else LEAVES for coin in coins]
        for pick in range(sum(coins)):  # words are taken modulo their number
            chances[winner(utilities, epsilon, *words, pick)] += chance / sum(coins)
    return chances


def worst_ratio(epsilon: Fraction, *, levels: int = 3, candidates: int = 3) -> Fraction:
    """Of one winner's probability under two neighbours, over all small utilities that differ by 1 at most in each."""
    worst = Fraction(0)
    for utilities in product(range(levels), repeat=candidates):
        one = observed(utilities, epsilon)
        for step in product((-1, 0, 1), repeat=candidates):
            other = observed([u + move for u, move in zip(utilities, step, strict=True)], epsilon)
            worst = max(worst, *(a / b for a, b in zip(one, other, strict=True)))
    return worst


@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(1), Fraction(3)])
def test_no_neighbours_probabilities_differ_by_more_than_e_to_the_epsilon(epsilon: Fraction) -> None:
    assert worst_ratio(epsilon, candidates=2, levels=4) <= exp_upper(epsilon) * (1 + SLACK)


def test_three_candidates_that_move_their_own_ways_stay_within_epsilon() -> None:
    assert worst_ratio(EPSILON, levels=2) <= exp_upper(EPSILON) * (1 + SLACK)


def test_half_the_noise_fails_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Δ/ε is enough where all utilities move one way, and here they do not."""
    monkeypatch.setattr(noisy_max, "scale_for", lambda sensitivity, epsilon: sensitivity / epsilon)
    assert worst_ratio(EPSILON, candidates=2) > exp_upper(EPSILON) * Fraction(3, 2)


def test_the_coin_of_each_candidate_is_exact() -> None:
    for gap in (1, 2, 7, 40):
        with localcontext() as context:
            context.prec = 60
            wanted = Fraction((-Decimal(gap) / 2).exp())  # scale 2Δ/ε = 2
        assert abs(staying(gap, EPSILON) - wanted) <= Fraction(1, WORDS)


def test_a_word_that_equals_the_threshold_is_settled_by_the_next_one() -> None:
    tie = int(staying(3, EPSILON) * WORDS)
    assert winner((-3, 0), EPSILON, tie, LEAVES, STAYS, 0) == 0
    assert winner((-3, 0), EPSILON, tie, LEAVES, LEAVES, 0) == 1
    assert winner((-3, 0), EPSILON, tie - 1, LEAVES, 0) == 0
    assert winner((-3, 0), EPSILON, tie + 1, LEAVES, 0) == 1


def test_the_stated_probabilities_are_those_of_the_code() -> None:
    for utilities in ((0, 0), (5, 3, 4), (-2, -2, 0, -9), (7,)):
        stated = win_probabilities(utilities, scale_for(1, EPSILON))
        assert stated == pytest.approx([float(chance) for chance in observed(utilities)], abs=1e-15)
        assert stated.sum() == pytest.approx(1, abs=1e-14)


def test_equal_utilities_win_equally_often_wherever_they_stand() -> None:
    assert observed((4, 4, 4)) == [Fraction(1, 3)] * 3
    chances = observed((1, 0, 1))
    assert chances[0] == chances[2]


def test_its_error_is_never_above_that_of_the_exponential_mechanism(rng: np.random.Generator) -> None:
    for _ in range(50):
        utilities = rng.integers(-20, 1, 8)
        weights = np.exp((utilities - utilities.max()) / 2.0)
        exponential = float((weights / weights.sum()) @ (utilities.max() - utilities))
        chances = win_probabilities(utilities.tolist(), scale_for(1, EPSILON))
        assert float(chances @ (utilities.max() - utilities)) <= exponential + 1e-12


@pytest.mark.statistical
@pytest.mark.parametrize("utilities", [(0, -1, -3, -3), (5, 5, 4)])
def test_draws_have_the_stated_distribution(utilities: tuple[int, ...], seed: int) -> None:
    """χ² against the stated probabilities: false alarm 1e-6."""
    draws, entropy = 2_500, ReplayableEntropy(seed.to_bytes(8, "big"))
    counts = Counter(report_noisy_max(utilities, sensitivity=1, epsilon=EPSILON, entropy=entropy) for _ in range(draws))
    expected = win_probabilities(utilities, scale_for(1, EPSILON)) * draws
    statistic = sum((counts[r] - expected[r]) ** 2 / expected[r] for r in range(len(utilities)))
    assert chi2.sf(statistic, len(utilities) - 1) > 1e-6


def test_words_beyond_the_last_whole_multiple_are_drawn_again() -> None:
    beyond = WORDS - 1  # 2^64 = 1 modulo 3: the last word would favour the first candidate
    assert winner((0, 0, 0), EPSILON, 0, 0, 0, beyond, 2) == 2
    assert winner((0, 0, 0), EPSILON, 0, 0, 0, 1) == 1


def test_a_candidate_far_behind_costs_no_time_and_never_wins() -> None:
    utilities = (0, -(10**30))
    assert {report_noisy_max(utilities, sensitivity=1, epsilon=EPSILON, entropy=OsEntropy()) for _ in range(9)} == {0}
    assert win_probabilities(utilities, scale_for(1, EPSILON)).tolist() == [1.0, 0.0]


def test_every_candidate_takes_one_word_whatever_its_utility() -> None:
    for utilities in ((0, 0, 0), (0, -1, -100), (-(10**9), 0, 5)):
        entropy = tape(*[1 << 40] * 10)
        report_noisy_max(utilities, sensitivity=1, epsilon=EPSILON, entropy=entropy)
        assert entropy.at == 8 * (len(utilities) + 1)


def test_the_scale_is_rounded_towards_more_noise() -> None:
    assert scale_for(4096, Fraction(1)) == 8192
    assert scale_for(4096, Fraction(7, 11)) == Fraction("12873.2")  # 12873.14…
    for epsilon in (Fraction(1, 3), Fraction(7, 11), Fraction(10**9 + 7, 10**9)):
        exact = 2 * 4096 / epsilon
        assert exact <= scale_for(4096, epsilon) <= exact * (1 + Fraction(1, 10**5))


def test_the_event_is_of_the_parameters_that_are_drawn_with() -> None:
    of = event(5, sensitivity=4096, epsilon=Fraction(1, 7))
    assert of.scale == scale_for(4096, Fraction(1, 7))
    assert (of.sensitivity.linf, of.epsilon) == (4096, Fraction(1, 7))
    with pytest.raises(GuaranteeError):
        Event(of.mechanism, of.scale / 2, of.sensitivity, of.epsilon)


def test_what_is_not_exact_or_no_entropy_is_refused() -> None:
    with pytest.raises(TypeError, match="Entropy"):
        report_noisy_max([1, 2], sensitivity=1, epsilon=EPSILON, entropy=PublicSeed(3))  # type: ignore[arg-type]  # of the wrong type on purpose
    with pytest.raises(TypeError, match="Fraction"):
        scale_for(1, 0.5)  # type: ignore[arg-type]  # of the wrong type on purpose
    for sensitivity, epsilon in ((0, EPSILON), (1, Fraction(0)), (1, Fraction(-1))):
        with pytest.raises(ValueError, match="sensitivity"):
            scale_for(sensitivity, epsilon)
    for utilities in ([], [1.5, 2], [True, 3]):
        with pytest.raises(ValueError, match="utilities"):
            report_noisy_max(utilities, sensitivity=1, epsilon=EPSILON, entropy=OsEntropy())  # type: ignore[arg-type]  # of the wrong type on purpose


def test_entropy_that_ends_early_draws_nothing() -> None:
    class Short:
        def read(self, size: int) -> bytes:
            return bytes(size - 1)

    with pytest.raises(OSError, match="7 bytes of 8"):
        report_noisy_max([1, 2], sensitivity=1, epsilon=EPSILON, entropy=Short())


def test_more_epsilon_favours_the_best() -> None:
    chances = [float(win_probabilities((0, -3), scale_for(1, Fraction(e)))[0]) for e in (1, 2, 8)]
    assert chances == sorted(chances)
    assert chances[-1] == pytest.approx(1 - math.exp(-12) / 2)
