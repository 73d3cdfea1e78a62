"""Elementary functions: accurate to an ulp or so, and the same bits as ever."""

import hashlib
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ndtri

from hushsum.math_portable import EXP_LIMIT, Floats, exp, ln, normal_quantile, power, sin_cos_turns
from hushsum.public_random import PublicSeed, PublicStream

ONE_BY_ONE: dict[str, Callable[[Floats], Floats]] = {
    "ln": ln,
    "exp": lambda u: exp(1400.0 * u - 700.0),
    "sin": lambda u: sin_cos_turns(8.0 * u - 4.0)[0],
    "cos": lambda u: sin_cos_turns(8.0 * u - 4.0)[1],
    "power": lambda u: power(u, 0.3),
    "normal_quantile": normal_quantile,
}
# SHA-256 of 10,000 values each, in little-endian bytes. They never change: plans' draws are made of them.
FROZEN = {
    "ln": "6274afe600509224d06a1dcccb2570950c72c658348459ed31f1b03716797086",
    "exp": "89fe4d3e82ceeb0e53418ca62c25ec70972270c8de900b0382c36d686a95080e",
    "sin": "954c22008c74dd4de34976c19d3f1f1b71ca3cf95c7f294d2aabc4076658dd12",
    "cos": "5be2cfdd03cc259e01d6ac60b6d36e6b4b2e9551725b54494518c0f05f8633fe",
    "power": "4294a7d2bda1190be9abecb0931209da8faf1f8e18ccc9641fa5759525c0628f",
    "normal_quantile": "451ed978ffd56efb0e12810f3e25af5b1fcd6f28cd2ff7233b3427372d8e758c",
}


def ulps(came: Floats, expected: Floats) -> float:
    return float((np.abs(came - expected) / np.spacing(np.abs(expected))).max())


def sin_cos_in_fractions(turns: float) -> tuple[float, float]:
    """Brought into an eighth of a turn exactly, then the C library's sine and cosine."""
    quarters = round(4 * Fraction(turns))
    x = 2 * math.pi * float(Fraction(turns) - Fraction(quarters, 4))
    sine, cosine = math.sin(x), math.cos(x)
    return [(sine, cosine), (cosine, -sine), (-sine, -cosine), (-cosine, sine)][quarters % 4]


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_the_bits_are_those_of_ever(name: str) -> None:
    uniforms = PublicStream(PublicSeed(1), "elementary").open_uniform(10_000)
    assert hashlib.sha256(ONE_BY_ONE[name](uniforms).astype("<f8").tobytes()).hexdigest() == FROZEN[name]


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_shape_and_neighbours_do_not_change_a_value(name: str, rng: np.random.Generator) -> None:
    f, u = ONE_BY_ONE[name], rng.random((7, 11)) + 2.0**-60
    assert f(u).shape == (7, 11)
    assert f(u).tobytes() == np.array([f(u.reshape(-1)[i : i + 1]) for i in range(77)]).tobytes()
    assert f(u[:, ::2]).tobytes() == np.ascontiguousarray(f(u)[:, ::2]).tobytes()


def test_the_logarithm_is_that_of_the_c_library_to_an_ulp_or_so(rng: np.random.Generator) -> None:
    x = np.concatenate([2.0 ** rng.uniform(-1022, 1023, 20_000), 1 - 2.0 ** -np.arange(1.0, 54), [1.0]])
    assert ulps(ln(x), np.array([math.log(value) for value in x])) <= 2


def test_the_exponential_is_that_of_the_c_library_to_an_ulp_or_so(rng: np.random.Generator) -> None:
    small = rng.uniform(-1, 1, 20_000) * 2.0 ** -rng.integers(0, 60, 20_000)
    x = np.concatenate([rng.uniform(-EXP_LIMIT, EXP_LIMIT, 20_000), small, [0.0, -EXP_LIMIT, EXP_LIMIT]])
    assert ulps(exp(x), np.array([math.exp(value) for value in x])) <= 2


def test_the_exponential_stays_finite_beyond_its_limit() -> None:
    far = np.array([-np.inf, -EXP_LIMIT - 1, EXP_LIMIT + 1, np.inf])
    assert np.array_equal(exp(far), exp(np.array([-EXP_LIMIT, -EXP_LIMIT, EXP_LIMIT, EXP_LIMIT])))


def test_sine_and_cosine_keep_their_relative_accuracy_everywhere(rng: np.random.Generator) -> None:
    near = rng.integers(-8, 9, 5_000) / 8 + rng.uniform(-1, 1, 5_000) * 2.0 ** -rng.integers(5, 50, 5_000)
    turns = np.concatenate([rng.random(5_000), near, rng.uniform(-1e9, 1e9, 2_000), 2.0 ** rng.uniform(-900, 0, 500)])
    expected = np.array([sin_cos_in_fractions(value) for value in turns])
    for came, wanted in zip(sin_cos_turns(turns), expected.T, strict=True):
        assert np.all(np.abs(came - wanted) <= 4 * np.spacing(np.abs(wanted)))


def test_sine_and_cosine_are_exact_at_quarter_turns() -> None:
    sine, cosine = sin_cos_turns(np.concatenate([np.arange(-3, 4) / 4, [1e300, 2.0**51 + 0.5]]))
    assert sine.tolist() == [1, 0, -1, 0, 1, 0, -1, 0, 0]
    assert cosine.tolist() == [0, -1, 0, 1, 0, -1, 0, 1, -1]


@pytest.mark.parametrize("y", (-3.7, -1.0, 0.0, 1 / 3, 1.0, 2.5))
def test_powers_are_as_accurate_as_stated(y: float, rng: np.random.Generator) -> None:
    x = 2.0 ** rng.uniform(-200, 200, 20_000)
    expected = np.array([math.pow(value, y) for value in x])
    allowed = 2.0**-52 * (2 + 2 * np.abs(y * np.log(x)))
    assert np.all(np.abs(power(x, y) / expected - 1) <= allowed)


def test_the_normal_quantile_is_accurate_in_the_centre_and_far_out(rng: np.random.Generator) -> None:
    edges = np.array([0.075, 0.925, np.exp(-25.0), np.nextafter(0.075, 0), 2.0**-53, 1 - 2.0**-53])
    far, near_half = 2.0 ** -rng.uniform(1, 1000, 10_000), 0.5 + rng.uniform(-1, 1, 10_000) * 2.0**-20
    u = np.concatenate([rng.uniform(1e-9, 1, 20_000), far, near_half, edges])
    u = u[u != 0.5]
    assert np.abs(normal_quantile(u) / ndtri(u) - 1).max() < 1e-13
    assert normal_quantile(np.array([0.5])).tolist() == [0.0]


def test_the_normal_quantile_is_odd_about_a_half(seed: int) -> None:
    u = PublicStream(PublicSeed(seed % 2**53), "test").open_uniform(10_000)
    assert np.array_equal(normal_quantile(1.0 - u), -normal_quantile(u))
