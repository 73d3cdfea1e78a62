"""Draws from uniforms: the distributions they claim, within the limits they state, the same bits as ever."""

import hashlib
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from hushsum import distributions as dist
from hushsum.errors import PlanError
from hushsum.math_portable import Floats
from hushsum.public_random import PublicSeed, PublicStream, open_unit
from hushsum.sobol import MAX_DIMS, MAX_POINTS, sobol

FALSE_ALARM = 1e-6
# Each takes two arrays of uniforms, of which most look at one only.
DRAW: dict[str, Callable[[Floats, Floats], Floats]] = {
    "normal": lambda u, v: dist.normal(u),
    "cauchy": lambda u, v: dist.cauchy(u),
    "laplace": lambda u, v: dist.laplace(u),
    "gamma2": dist.gamma2,
    "stable-1": lambda u, v: dist.stable(u, v, 1.0),
    "stable-1.5": lambda u, v: dist.stable(u, v, 1.5),
    "stable-2": lambda u, v: dist.stable(u, v, 2.0),
}
LAW = {
    "normal": stats.norm(),
    "cauchy": stats.cauchy(),
    "laplace": stats.laplace(),
    "gamma2": stats.gamma(2),
    "stable-1": stats.cauchy(),
    "stable-2": stats.norm(0, math.sqrt(2)),
}
LIMIT = {
    "normal": dist.NORMAL_LIMIT,
    "cauchy": dist.CAUCHY_LIMIT,
    "laplace": dist.LAPLACE_LIMIT,
    "gamma2": dist.GAMMA2_LIMIT,
    "stable-1": dist.STABLE_LIMIT,
    "stable-1.5": dist.STABLE_LIMIT,
}
# SHA-256 of 10,000 draws each, in little-endian bytes. They never change: plans' parameters are made of them.
FROZEN = {
    "normal": "9dea7687eb7c1787d2d2e9b4b2c8accb3bd99f7e5bc288d6e8715dc35c105cff",
    "cauchy": "93d52b512e0b35b90e268865babde73c4ab8f971e5b61537a6aa9466faf84dc6",
    "laplace": "f7135d1a740e9d1b2c15d53ff7eaa43a817e26d771286b10c91b58e38143030a",
    "gamma2": "0a613fcfe9aff9af73bf6707236a80e9ba119706a58587bd45763ff741cc7268",
    "stable-1": "c4db645dccceccd0b890844f19671cc914e82c59d97393a774684c0fa7dd7530",
    "stable-1.5": "a0c17e64c8409df567b24c87df9717ee77c54708e49adb03752a8b1cb9c8b165",
    "stable-2": "836cfe87fc323dca46308b327c8678090647fe888c9c109bc637d4f36811479f",
}


def seed_of(seed: int) -> PublicSeed:
    return PublicSeed(seed % 2**53)


def drawn(name: str, seed: int, n: int) -> Floats:
    u, v = dist.uniforms(seed_of(seed), "test", rows=n, dims=2, draws="independent").T
    return DRAW[name](u, v)


@pytest.mark.parametrize("name", DRAW)
def test_the_bits_are_those_of_ever(name: str) -> None:
    assert hashlib.sha256(drawn(name, 1, 10_000).astype("<f8").tobytes()).hexdigest() == FROZEN[name]


@pytest.mark.statistical
@pytest.mark.parametrize("name", LAW)
def test_draws_follow_their_law_and_a_scale_5_percent_wrong_does_not(name: str, seed: int) -> None:
    """Kolmogorov and Smirnov's test on 400,000 draws: false alarm 1e-6."""
    draws = drawn(name, seed, 400_000)
    assert stats.kstest(draws, LAW[name].cdf, method="asymp").pvalue > FALSE_ALARM
    for scale in (0.95, 1.05):
        assert stats.kstest(scale * draws, LAW[name].cdf, method="asymp").pvalue < FALSE_ALARM


@pytest.mark.statistical
@pytest.mark.parametrize("p", (1.0, 1.2, 1.5, 1.8, 2.0))
def test_stable_draws_have_their_characteristic_function(p: float, seed: int) -> None:
    """Means of cos tX over 400,000 draws at 3 t within 6 σ: false alarm 6e-9; 5 % wrong scales are beyond at t = 1."""
    u, v = dist.uniforms(seed_of(seed), "test", rows=400_000, dims=2, draws="independent").T
    draws = dist.stable(u, v, p)

    def distance(t: float, x: Floats) -> float:
        cosines = np.cos(t * x)
        return float(abs(cosines.mean() - math.exp(-(t**p))) / (cosines.std() / math.sqrt(len(x))))

    assert all(distance(t, draws) < 6 for t in (0.2, 1.0, 2.5))
    assert all(distance(1.0, scale * draws) > 6 for scale in (0.95, 1.05))


@pytest.mark.parametrize("p", (1.0, 1.01, 1.3, 1.7, 1.99, 2.0))
def test_a_stable_draw_is_chambers_mallows_and_stucks(p: float, rng: np.random.Generator) -> None:
    u, v = rng.uniform(0.01, 0.99, (2, 10_000))
    angle, waiting = math.pi * (u - 0.5), -np.log(v)
    expected = np.sin(p * angle) / np.cos(angle) ** (1 / p) * (np.cos((p - 1) * angle) / waiting) ** ((1 - p) / p)
    assert np.allclose(dist.stable(u, v, p), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", LIMIT)
def test_no_draw_is_beyond_its_limit_and_some_come_near(name: str) -> None:
    ends = np.array([0.0, 5e-324, 2.0**-53, 1e-9, 0.5, 1 - 2.0**-53, 1.0])
    u, v = (grid.reshape(-1) for grid in np.meshgrid(ends, ends))
    size = np.abs(DRAW[name](u, v))
    assert 0.999 * LIMIT[name] < size.max() <= LIMIT[name]


def test_a_gamma_draw_is_never_below_its_least() -> None:
    ends = np.array([1.0, 1 - 2.0**-53])
    assert dist.GAMMA2_LEAST <= dist.gamma2(ends, ends).min() < 1.001 * dist.GAMMA2_LEAST


@pytest.mark.parametrize("p", (1.0, 1.1, 1.5, 2.0))
def test_a_stable_draw_is_cut_off_as_seldom_as_stated(p: float) -> None:
    assert 2 * stats.levy_stable.sf(dist.STABLE_LIMIT, p, 0) < 2.0**-19
    assert 2 * stats.cauchy.sf(dist.CAUCHY_LIMIT) == pytest.approx(6.1e-7, rel=0.01)


@pytest.mark.parametrize("name", ("normal", "cauchy", "laplace", "stable-1.5"))
def test_symmetric_draws_turn_their_sign_with_the_first_uniform(name: str, seed: int) -> None:
    u, v = dist.uniforms(seed_of(seed), "test", rows=5_000, dims=2, draws="independent").T
    assert np.allclose(DRAW[name](1.0 - u, v), -DRAW[name](u, v), rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", ("normal", "cauchy", "laplace"))
def test_draws_of_one_uniform_rise_with_it(name: str, seed: int) -> None:
    u = np.sort(dist.uniforms(seed_of(seed), "test", rows=20_000, dims=1, draws="independent").reshape(-1))
    assert np.all(np.diff(DRAW[name](u, u)) > 0)


@pytest.mark.parametrize("p", (0.999, 2.001, float("nan")))
def test_only_p_from_1_to_2_is_stable_here(p: float) -> None:
    half = np.array([0.5])
    with pytest.raises(ValueError, match="p from 1 to 2"):
        dist.stable(half, half, p)


def test_independent_uniforms_are_the_words_of_their_stream_row_by_row(seed: int) -> None:
    words = PublicStream(seed_of(seed), "rows").words(35).tolist()
    came = dist.uniforms(seed_of(seed), "rows", rows=5, dims=7, draws="independent")
    assert came.reshape(-1).tolist() == [((word >> 12) + 0.5) / 2**52 for word in words]
    more = dist.uniforms(seed_of(seed), "rows", rows=9, dims=7, draws="independent", sets=4)
    assert np.array_equal(more[:5], came)


def test_no_uniform_is_0_or_1() -> None:
    ends = open_unit(np.array([0, 2**52 - 1], np.uint64))
    assert ends.tolist() == [dist.LEAST_UNIFORM, 1 - dist.LEAST_UNIFORM]
    assert 0 < ends[0] < ends[1] < 1


def test_sobol_uniforms_are_the_sets_one_after_another(seed: int) -> None:
    came = dist.uniforms(seed_of(seed), "rows", rows=60, dims=3, draws="sobol", sets=4)
    assert np.array_equal(came, sobol(seed_of(seed), "rows", sets=4, points=15, dims=3))


@pytest.mark.parametrize(
    "numbers, key",
    (
        ({"draws": "halton"}, "sketch.draws"),
        ({"rows": 10, "sets": 4}, "sketch.rows"),
        ({"sets": 0}, "sketch.rows"),
        ({"rows": 2 * MAX_POINTS + 2, "sets": 2}, "sketch.rows"),
        ({"dims": MAX_DIMS + 1}, "sketch.draws"),
    ),
)
def test_what_cannot_be_drawn_is_refused_by_the_plans_key(numbers: dict[str, int | str], key: str) -> None:
    asked = {"rows": 8, "dims": 2, "draws": "sobol", "sets": 2} | numbers
    with pytest.raises(PlanError, match=rf"^{key}: "):
        dist.uniforms(PublicSeed(1), "rows", **asked)  # type: ignore[arg-type]  # numbers of mixed types on purpose
