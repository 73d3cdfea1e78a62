"""Closed forms against hashing and features drawn at random, against other formulas, and at the ends of the numbers."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy.integrate import quad
from scipy.spatial.distance import cdist

from hushsum import kernels

Floats = npt.NDArray[np.float64]
DRAWS = 10**6
SIGMAS = 6.0  # a false alarm in 2e-9 of the comparisons
X = np.array([[0.3, -1.1, 0.7, 2.0]])
Y = np.array([[0.9, -0.6, 0.5, 1.8]])
EXTREMES = np.array([0.0, -0.0, 5e-324, 1e-300, 1e-160, 1e-9, 0.5, 1.0, 3.0, 1e9, 1e160, 1e300, math.inf])
SCALES = (5e-324, 1e-300, 1e-9, 1.0, 1e9, 1e300)

Draw = Callable[[np.random.Generator], Floats]
At = Callable[[float], float]  # the closed form at a bandwidth times this
CASES: dict[str, tuple[Draw, At]] = {}


def floors(a: Floats, width: float, rng: np.random.Generator) -> Floats:
    """Whether ⌊(a·x + b)/w⌋ is the same for X and Y."""
    b = rng.uniform(0, width, len(a))
    return np.asarray(np.floor((a @ X[0] + b) / width) == np.floor((a @ Y[0] + b) / width), np.float64)


def waves(omega: Floats) -> Floats:
    """cos ω·x cos ω·y + sin ω·x sin ω·y."""
    return np.asarray(np.cos(omega @ (X - Y)[0]), np.float64)


def stable(p: float, rng: np.random.Generator) -> Floats:
    """Symmetric p-stable, E[exp(itω)] = exp(−|t|^p): Chambers, Mallows and Stuck 1976."""
    u, e = rng.uniform(-math.pi / 2, math.pi / 2, (DRAWS, 4)), rng.exponential(size=(DRAWS, 4))
    draws: Floats = np.sin(p * u) / np.cos(u) ** (1 / p) * (np.cos((1 - p) * u) / e) ** ((1 - p) / p)
    return draws


def binning(rng: np.random.Generator) -> Floats:
    pitch = rng.gamma(2.0, 1.5, (DRAWS, 4))
    offset = rng.uniform(size=(DRAWS, 4)) * pitch
    same = np.floor((X - offset) / pitch) == np.floor((Y - offset) / pitch)
    return np.asarray(np.all(same, axis=1), np.float64)


def hyperplanes(rng: np.random.Generator) -> Floats:
    a = rng.normal(size=(DRAWS, 4))
    return np.asarray((a @ X[0] >= 0) == (a @ Y[0] >= 0), np.float64)


CASES["euclidean"] = (
    lambda rng: floors(rng.normal(size=(DRAWS, 4)), 1.5, rng),
    lambda factor: float(kernels.euclidean(kernels.euclidean_distances(X, Y), 1.5 * factor)[0, 0]),
)
CASES["manhattan"] = (
    lambda rng: floors(rng.standard_cauchy((DRAWS, 4)), 1.5, rng),
    lambda factor: float(kernels.manhattan(kernels.manhattan_distances(X, Y), 1.5 * factor)[0, 0]),
)
CASES["laplacian by random binning"] = (
    binning,
    lambda factor: float(kernels.laplacian(kernels.manhattan_distances(X, Y), 1.5 * factor)[0, 0]),
)
CASES["angular"] = (hyperplanes, lambda factor: float(kernels.angular(factor * kernels.angles(X, Y))[0, 0]))
CASES["gaussian by waves"] = (
    lambda rng: waves(rng.normal(0.0, math.sqrt(2.0) / 0.8, (DRAWS, 4))),
    lambda factor: float(kernels.gaussian(kernels.euclidean_distances(X, Y), 0.8 * factor)[0, 0]),
)
CASES["laplacian by waves"] = (
    lambda rng: waves(rng.standard_cauchy((DRAWS, 4)) / 1.5),
    lambda factor: float(kernels.laplacian(kernels.manhattan_distances(X, Y), 1.5 * factor)[0, 0]),
)
CASES["cauchy by waves"] = (
    lambda rng: waves(rng.laplace(0.0, 1 / 0.8, (DRAWS, 4))),
    lambda factor: float(kernels.cauchy(X, Y, 0.8 * factor)[0, 0]),
)
CASES["exponential-1.5 by waves"] = (
    lambda rng: waves(stable(1.5, rng) / 0.8),
    lambda factor: float(kernels.exponential_p(X, Y, 0.8 * factor, 1.5)[0, 0]),
)


@pytest.mark.statistical
@pytest.mark.parametrize("name", CASES)
def test_the_closed_form_is_the_mean_of_random_draws_and_five_per_cent_of_bandwidth_is_seen(
    name: str, rng: np.random.Generator
) -> None:
    draw, at = CASES[name]
    draws = draw(rng)
    error = SIGMAS * draws.std() / math.sqrt(DRAWS)
    assert abs(draws.mean() - at(1.0)) < error
    assert abs(draws.mean() - at(1.05)) > error
    assert abs(draws.mean() - at(0.95)) > error


@pytest.mark.statistical
def test_a_zero_vector_has_the_angle_that_hyperplanes_give_it(rng: np.random.Generator) -> None:
    a = rng.normal(size=(DRAWS, 4))
    share = float(np.mean((a @ np.zeros(4) >= 0) == (a @ Y[0] >= 0)))
    assert abs(share - kernels.angular(kernels.angles(np.zeros((1, 4)), Y))[0, 0]) < SIGMAS * 0.5 / math.sqrt(DRAWS)


@pytest.mark.parametrize("width", (0.3, 1.0, 60.0))
@pytest.mark.parametrize("c", (1e-3, 0.1, 1.0, 7.0, 1e4))
def test_manhattan_is_the_integral_that_it_is_the_closed_form_of(c: float, width: float) -> None:
    def integrand(t: float) -> float:  # for a gap t, half-Cauchy of scale c, 1 − t/w or nothing
        return 2 / (math.pi * c) / (1 + (t / c) ** 2) * (1 - t / width)

    ends = sorted({min(width, k * c) for k in (1, 10, 100)})
    value = math.fsum(quad(integrand, a, b, epsrel=1e-12)[0] for a, b in zip([0.0, *ends], [*ends, width], strict=True))
    assert kernels.manhattan(c, width) == pytest.approx(value, rel=1e-9)


def test_far_away_manhattan_falls_like_its_asymptote() -> None:
    c = np.geomspace(1e6, 1e300, 400)
    assert np.allclose(kernels.manhattan(c, 1.0) * c * math.pi, 1.0, rtol=1e-12, atol=0)


def test_nearby_manhattan_leaves_one_like_its_asymptote() -> None:
    c = np.geomspace(1e-12, 1e-4, 100)
    assert np.allclose(1 - kernels.manhattan(c, 1.0), 2 / math.pi * c * (1 - np.log(c)), rtol=1e-7, atol=3e-16)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("form", (kernels.euclidean, kernels.manhattan, kernels.laplacian, kernels.gaussian))
def test_forms_of_a_distance_fall_from_exactly_one_to_exactly_nothing_without_a_warning(
    form: Callable[[Floats, float], Floats], scale: float
) -> None:
    k = form(EXTREMES, scale)
    assert k.dtype == np.float64
    assert k[0] == k[1] == 1.0
    assert k[-1] == 0.0
    assert np.all((k >= 0) & (k <= 1))
    assert np.all(np.diff(k) <= 0)


@pytest.mark.parametrize("scale", SCALES)
def test_forms_of_points_are_exactly_one_at_equal_points_and_never_warn(scale: float) -> None:
    points = np.concatenate([EXTREMES[:-1, None] * [1.0, -1.0, 0.5], [[1.7e308, -1.7e308, 0.0], [-1.7e308, 0.0, 1.0]]])
    for k in (
        kernels.cauchy(points, points, scale),
        kernels.exponential_p(points, points, scale, 1.0),
        kernels.exponential_p(points, points, scale, 1.3),
        kernels.exponential_p(points, points, scale, 2.0),
        kernels.laplacian(kernels.manhattan_distances(points, points), scale),
        kernels.angular(kernels.angles(points, points)),
    ):
        assert np.all(np.diag(k) == 1.0)
        assert np.all((k >= 0) & (k <= 1))
        assert np.array_equal(k, k.T)


def test_exponential_p_is_laplacian_at_one_and_gaussian_at_two(rng: np.random.Generator) -> None:
    x, y = rng.normal(size=(30, 5)), rng.normal(size=(20, 5))
    laplacian = kernels.laplacian(cdist(x, y, "cityblock"), 2.0)
    assert np.allclose(kernels.exponential_p(x, y, 2.0, 1.0), laplacian, rtol=1e-13, atol=0)
    gaussian = kernels.gaussian(cdist(x, y), 2.0)
    assert np.allclose(kernels.exponential_p(x, y, 2.0, 2.0), gaussian, rtol=1e-13, atol=0)


def test_cauchy_and_exponential_p_are_their_definitions(rng: np.random.Generator) -> None:
    x, y = rng.normal(size=(12, 3)), rng.normal(size=(9, 3))
    cauchy, exponential = kernels.cauchy(x, y, 0.7), kernels.exponential_p(x, y, 0.7, 1.4)
    for i, a in enumerate(x.tolist()):
        for j, b in enumerate(y.tolist()):
            gaps = [abs(s - t) / 0.7 for s, t in zip(a, b, strict=True)]
            assert cauchy[i, j] == pytest.approx(math.prod(1 / (1 + gap * gap) for gap in gaps), rel=1e-14)
            assert exponential[i, j] == pytest.approx(math.exp(-math.fsum(gap**1.4 for gap in gaps)), rel=1e-13)


@pytest.mark.parametrize("p", (0.99, 2.01, math.nan))
def test_an_exponent_without_a_stable_distribution_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="a number from 1 to 2"):
        kernels.exponential_p(X, Y, 1.0, p)


@pytest.mark.parametrize("power", (1, 2, 5, 8))
def test_a_power_is_the_power(power: int) -> None:
    c = np.geomspace(0.01, 3.0, 50)
    for form in (kernels.manhattan, kernels.laplacian):
        assert np.allclose(form(c, 2.0, power), form(c, 2.0) ** power, rtol=1e-13, atol=0)
    assert np.allclose(kernels.angular(c, power), kernels.angular(c) ** power, rtol=1e-13, atol=0)


@pytest.mark.parametrize("d", (1, 3, 40))
def test_manhattan_distances_are_those_of_scipy(d: int, rng: np.random.Generator) -> None:
    x, y = rng.normal(size=(40, d)), rng.normal(size=(30, d))
    y[:5] = x[:5]
    distances = kernels.manhattan_distances(x, y)
    assert np.allclose(distances, cdist(x, y, "cityblock"), rtol=1e-13, atol=0)
    assert np.all(np.diag(distances)[:5] == 0.0)


@pytest.mark.parametrize("d", (2, 9, 300))
def test_angles_are_right_to_the_last_digits_at_both_ends(d: int, rng: np.random.Generator) -> None:
    expected = np.concatenate([np.geomspace(1e-9, 1.5, 200), math.pi - np.geomspace(1e-9, 1.5, 200)])
    basis, _ = np.linalg.qr(rng.normal(size=(d, 2)))
    x = basis[:, 0][None, :]
    y = np.cos(expected)[:, None] * x + np.sin(expected)[:, None] * basis[:, 1]
    lengths = np.geomspace(1e-200, 1e200, len(y))[:, None]
    assert np.allclose(kernels.angles(x * 1e-250, y * lengths)[0], expected, rtol=0, atol=1e-13)


def test_angles_are_exact_where_they_can_be(rng: np.random.Generator) -> None:
    x = rng.normal(size=(50, 20))
    zero = np.zeros((1, 20))
    assert np.all(np.diag(kernels.angles(x, x)) == 0.0)
    assert np.all(np.diag(kernels.angles(x, 4 * x)) == 0.0)
    assert np.all(np.diag(kernels.angles(x, -x)) == math.pi)
    assert np.all(kernels.angles(zero, x) == math.pi / 2)
    assert np.all(kernels.angles(x, zero) == math.pi / 2)
    assert kernels.angles(zero, zero) == 0.0
    assert kernels.angular(math.pi) == 0.0
