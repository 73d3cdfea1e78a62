"""Kernels in closed form against what they are the closed form of, and exact sums against the plain double loop."""

import math
import sys

import numpy as np
import numpy.typing as npt
import pytest
from scipy.integrate import quad

from hushsum import kernels

Floats = npt.NDArray[np.float64]
DISTANCES = (1e-3, 0.1, 0.5, 1.0, 2.0, 7.0, 100.0, 1e4)


def collision_probability(c: float, w: float) -> float:
    """P(⌊(a·x + b)/w⌋ = ⌊(a·y + b)/w⌋): for a gap t = |a·(x − y)|, half-normal of scale c, 1 − t/w or nothing."""

    def integrand(t: float) -> float:
        return math.sqrt(2 / math.pi) / c * math.exp(-0.5 * (t / c) ** 2) * (1 - t / w)

    value, error = quad(integrand, 0, w, points=[min(w, k * c) for k in (1, 3, 6)], epsabs=1e-13, epsrel=1e-12)
    assert error < 1e-9
    return float(value)


def direct_sums(records: Floats, queries: Floats, width: float) -> Floats:
    return np.array(
        [
            math.fsum(float(kernels.euclidean(math.dist(x, q), width)) for x in records.tolist())
            for q in queries.tolist()
        ]
    )


def euclidean_kernel(x: Floats, y: Floats) -> Floats:
    return kernels.euclidean(kernels.euclidean_distances(x, y), 3.0)


@pytest.mark.parametrize("width", (0.3, 1.0, 60.0))
@pytest.mark.parametrize("c", DISTANCES)
def test_the_closed_form_is_the_collision_probability(c: float, width: float) -> None:
    assert kernels.euclidean(c, width) == pytest.approx(collision_probability(c, width), rel=1e-8, abs=1e-12)


def test_a_wrong_bandwidth_is_seen_by_that_comparison() -> None:
    assert kernels.euclidean(1.0, 1.05) != pytest.approx(collision_probability(1.0, 1.0), rel=1e-2)


def test_equal_points_give_exactly_one_and_infinitely_far_ones_exactly_nothing() -> None:
    assert kernels.euclidean([0.0, -0.0], 2.5).tolist() == [1.0, 1.0]
    assert kernels.euclidean(math.inf, 2.5) == 0.0
    assert kernels.euclidean(5e-324, 1e300) == 1.0


def test_it_falls_with_the_distance_from_one_to_nothing() -> None:
    k = kernels.euclidean(np.geomspace(1e-9, 1e9, 5000), 1.0)
    assert np.all(np.diff(k) <= 0)
    assert np.all(np.diff(k[(k > 1e-6) & (k < 1 - 1e-6)]) < 0)
    assert np.all((k >= 0) & (k <= 1))


def test_far_away_it_falls_like_its_asymptote() -> None:
    c = np.geomspace(1e5, 1e12, 200)
    assert np.allclose(kernels.euclidean(c, 1.0), math.sqrt(2 / math.pi) / (2 * c), rtol=1e-4, atol=0)


@pytest.mark.parametrize("power", (1, 2, 5, 8))
def test_a_power_is_the_power(power: int) -> None:
    assert np.allclose(kernels.euclidean(DISTANCES, 2.0, power), kernels.euclidean(DISTANCES, 2.0) ** power, rtol=1e-14)


def test_without_scipy_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    c = np.concatenate([[0.0, math.inf], np.geomspace(1e-9, 1e9, 3000)])
    usual = kernels.euclidean(c, 1.0)
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(ImportError):
        from scipy.special import erf  # noqa: F401  shows that it cannot be imported now
    assert np.allclose(kernels.euclidean(c, 1.0), usual, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("d", (1, 2, 8, 9, 55))
@pytest.mark.parametrize("shift", (0.0, 1e6))
def test_distances_are_those_of_the_definition(d: int, shift: float, rng: np.random.Generator) -> None:
    x, y = rng.normal(size=(40, d)) + shift, rng.normal(size=(30, d)) + shift
    y[:10] = x[:10]
    y[10:20] = x[10:20] + 1e-7 * rng.normal(size=(10, d))
    distances = kernels.euclidean_distances(x, y)
    expected = np.array([[math.dist(a, b) for b in y.tolist()] for a in x.tolist()])
    assert np.array_equal(np.diag(distances)[:10], np.zeros(10))
    assert np.allclose(distances, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("block_pairs", (1, 7, 64, 1000, 1 << 18))
def test_kernel_sums_are_the_direct_sums_in_blocks_of_any_size(block_pairs: int, rng: np.random.Generator) -> None:
    records = rng.integers(0, 4, (120, 3)).astype(np.float64)  # 64 different points at most: many are equal
    queries = np.concatenate([rng.uniform(0, 4, (7, 3)), records[:4]])
    sums = kernels.kernel_sums(euclidean_kernel, records, queries, block_pairs=block_pairs)
    assert np.allclose(sums, direct_sums(records, queries, 3.0), rtol=1e-13)


def test_equal_records_are_evaluated_once(rng: np.random.Generator) -> None:
    evaluated = []

    def kernel(x: Floats, y: Floats) -> Floats:
        evaluated.append(len(x))
        return euclidean_kernel(x, y)

    records = np.repeat(rng.normal(size=(5, 2)), 100, axis=0)
    kernels.kernel_sums(kernel, rng.permutation(records), records[:1])
    assert sum(evaluated) == 5


def test_the_order_of_the_records_changes_no_bit(rng: np.random.Generator) -> None:
    records, queries = rng.normal(size=(300, 3)), rng.normal(size=(5, 3))
    sums = kernels.kernel_sums(euclidean_kernel, records, queries)
    assert sums.tobytes() == kernels.kernel_sums(euclidean_kernel, rng.permutation(records), queries).tobytes()


def test_sums_over_nothing_are_nothing() -> None:
    assert kernels.kernel_sums(euclidean_kernel, np.empty((0, 3)), np.zeros((2, 3))).tolist() == [0.0, 0.0]
    assert kernels.kernel_sums(euclidean_kernel, np.zeros((2, 3)), np.empty((0, 3))).shape == (0,)


def test_points_that_are_no_matrix_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3,\), expected \(n, d\)"):
        kernels.euclidean_distances([1.0, 2.0, 3.0], [[1.0]])
