"""The stated bias of the hermite family's answers: never less than the error without noise, and not much more."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.entropy import ReplayableEntropy
from hushsum.families.base import Answer, VectorRecords
from hushsum.families.hermite import Hermite
from hushsum.families.hermite import bias as hermite_bias
from hushsum.families.hermite.weights import WEIGHTS
from hushsum.noise import DiscreteLaplace
from hushsum.schema import Table

Floats = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def family(dim: int = 2, lower: float = 0, upper: float = 10, **changes: object) -> Hermite:
    record = VectorRecords(dim, (Fraction(lower),) * dim, (Fraction(upper),) * dim)
    return Hermite.from_table(Table({"kernel": "gaussian", "bandwidth": 1, **changes}, "sketch"), record)


def counters_of(some: Hermite, records: npt.ArrayLike) -> Int64:
    counters = np.zeros(some.shape, np.int64)
    some.add(counters, some.accept(records)[0])
    return counters


def bias_of(answer: Answer) -> Floats:
    assert answer.bias is not None
    return answer.bias


def errors(some: Hermite, records: Floats, queries: Floats) -> tuple[Floats, Floats]:
    """How far the answers without noise are from the kernel sums, and how far they may be by their own account."""
    answer = some.answer(counters_of(some, records), queries)
    return np.abs(answer.value - some.kernel(records, queries).sum(axis=0)), bias_of(answer)


def mesh(low: float, high: float, count: int, dim: int) -> Floats:
    axes = np.meshgrid(*[np.linspace(low, high, count)] * dim, indexing="ij")
    return np.stack([axis.reshape(-1) for axis in axes], axis=1)


@pytest.mark.parametrize("order, cutoff", [*product((2, 4, 8), (2, 3, 5)), (1, 1), (16, 3)])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_no_records_are_farther_from_the_kernel_than_stated(
    weights: str, order: int, cutoff: int, rng: np.random.Generator
) -> None:
    """Random ones, and the worst: all at one corner of a cell, or every cell's records at the same corner of it."""
    for dim, bits in ((1, 20), (1, 6), (2, 12), (3, 16)):
        if order**dim > 300:
            continue
        some = family(dim, 0, 5, order=order, cutoff=cutoff, fraction_bits=bits, weights=weights)
        queries = np.concatenate([mesh(-4, 9, {1: 400, 2: 14, 3: 4}[dim], dim), rng.uniform(-3, 8, (50, dim))])
        cells, rest = np.array([*product(range(5), repeat=dim)]), np.nextafter(np.float32(1), 0)
        sets = [rng.uniform(0, 5, (300, dim)), rng.uniform(0, 5, (1, dim))]
        for corner in [*product((0.0, float(rest)), repeat=dim)][:4]:
            sets += [2.0 + np.array([corner]), (cells + corner).clip(0, 5)]
        for records in sets:
            error, stated = errors(some, records, queries)
            # Records that are farther than 6σ are left out.
            wrong = error > stated + len(records) * 2.0**-48
            assert not wrong.any(), (dim, bits, records[:1], queries[wrong][:1], error[wrong][:1], stated[wrong][:1])


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("dim, bits", ((1, 4), (2, 4), (3, 4), (2, 12), (3, 20)))
def test_products_over_coordinates_bound_what_the_multipliers_of_each_moment_leave(
    weights: str, dim: int, bits: int, rng: np.random.Generator
) -> None:
    """Of moments that are read and of those that are not, and hardly more; of equal weights exactly."""
    grid = family(dim, 0, 3, order=8, fraction_bits=bits, weights=weights)._grid
    products = 1.0 / grid.relative[grid.degrees].prod(axis=1)
    assert np.all(grid.ratios <= grid.ratio_excess * products)
    lost = np.where(grid.bounds > 0, 0.5 / np.maximum(grid.scales, 1), 0.5 ** grid.degrees.sum(axis=1))
    assert np.all(lost <= grid.rounding_excess * 0.5 / grid.scale * products)
    both = (grid.ratio_excess, grid.rounding_excess)
    assert both == (1.0, 1.0) if weights == "equal" else all(1.0 <= each < 1.2 for each in both)
    v = rng.uniform(-4, 4, 50)
    series, _, _, sizes, _ = hermite_bias._tables(v, grid.relative, 0.0)
    assert np.allclose(sizes, (np.abs(series) / grid.relative[:, None]).sum(axis=0), rtol=1e-12)


def test_the_bound_is_nearly_reached_by_one_record() -> None:
    """Half of it would be refuted, by the series and by the cutoff."""
    for order, cutoff in ((2, 5), (4, 5), (4, 2), (8, 2), (8, 3)):
        some = family(1, 0, 5, order=order, cutoff=cutoff, fraction_bits=20)
        ratios = []
        for place in (2.0, 2.5, 2.999999):
            error, stated = errors(some, np.array([[place]]), mesh(-4, 9, 4001, 1))
            ratios.append(float((error[error > 1e-3 * error.max()] / stated[error > 1e-3 * error.max()]).max()))
        assert 0.5 < max(ratios) <= 1.0, (order, cutoff, ratios)


def test_the_bound_is_within_some_ten_times_the_error_of_random_records(rng: np.random.Generator) -> None:
    """7 and 12 times were seen. Within a plain of records their errors cancel, and no bound of this kind shows it."""
    for bandwidth, records in ((2, rng.normal(5, 1, (20_000, 2))), (2, rng.uniform(0, 10, (20_000, 2)))):
        some = family(order=4, bandwidth=bandwidth)
        error, stated = errors(some, records.clip(0, 10), rng.uniform(-1, 11, (200, 2)))
        assert np.all(error <= stated)
        assert stated.mean() < 15 * error.mean()
        assert stated.mean() < len(records) * some.kernel_error / 25


def test_the_interval_of_a_large_release_holds_the_kernel_sum(rng: np.random.Generator, seed: int) -> None:
    """100,000 records at ε = 1: without the bias the interval of order 4 is some five times too short to reach it."""
    some = family(order=4, bandwidth=2)
    records, query = rng.normal(5, 1, (100_000, 2)).clip(0, 10), np.array([[5.0, 5.0]])
    noise = DiscreteLaplace(Fraction(some.sensitivity.l1))
    drawn = noise.sample(math.prod(some.shape), ReplayableEntropy(seed.to_bytes(8, "big") * 4)).reshape(some.shape)
    answer = some.answer(counters_of(some, records) + drawn, query, noise_variance=noise.variance)
    exact = some.kernel(records, query).sum()
    low, high = answer.interval(0.95)
    assert low <= exact <= high
    assert abs(answer.value[0] - exact) > 3 * answer.std_error[0]
    assert high - low < 0.05 * exact


def test_coordinates_that_float32_cannot_tell_apart_are_counted(rng: np.random.Generator) -> None:
    """A unit in the last place is half a bandwidth, two of them, and 64."""
    for lower, width, size in ((2.0**22, 1, 2.0**22), (2.0**24, 1, 2000.0), (2.0**30, 1, 2.0**15)):
        some = family(1, lower, lower + size, bandwidth=width, order=8, cutoff=4)
        records = lower + rng.uniform(0, size, (300, 1))
        queries = np.concatenate([records + 0.7, records - 1.1, records[:, :1] + rng.uniform(-9, 9, (300, 1))])
        error, stated = errors(some, records, queries)
        assert np.all(error <= stated)
        assert error.max() > 0.1


def test_nothing_is_stated_where_no_records_are_in_sight(rng: np.random.Generator) -> None:
    some = family(2, 0, 40, order=4)
    counters = counters_of(some, np.full((50, 2), 20.5))
    far = [[-30.0, 5.0], [1e30, 20.0], [-1e300, 1e300], [5.5, 20.5], [20.5, 36.0]]
    assert not bias_of(some.answer(counters, far)).any()
    assert np.all(bias_of(some.answer(counters, rng.uniform(15, 26, (50, 2)))) > 0)
    assert not bias_of(some.answer(np.zeros(some.shape, np.int64), [[20.5, 20.5]])).any()


def test_noise_raises_the_stated_bias_on_average(rng: np.random.Generator) -> None:
    """A negative number of records counts for none, and the two series' difference by its absolute value."""
    some, queries = family(order=4), rng.uniform(2, 8, (5, 2))
    counters = counters_of(some, rng.uniform(0, 10, (2000, 2)))
    stated = bias_of(some.answer(counters, queries))
    for half, rise in ((2**13, 1.0), (2**19, 1.5)):
        noised = [counters + rng.integers(-half, half + 1, some.shape) for _ in range(50)]
        mean = np.mean([bias_of(some.answer(each, queries)) for each in noised], axis=0)
        assert np.all(mean > rise * stated)


def test_the_bias_has_the_same_bits_in_any_batch_and_with_either_engine(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dim, bandwidth in ((1, "0.1"), (2, "0.3"), (3, "1.3")):
        some = family(dim, bandwidth=Fraction(bandwidth))
        counters, queries, found = rng.integers(-(10**6), 10**12, some.shape), rng.uniform(-1, 11, (80, dim)), set()
        for kernels, size in (("plain", 80), ("fast", 80), ("fast", 7), ("plain", 40), ("fast", 1)):
            monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
            parts = [bias_of(some.answer(counters, queries[i : i + size])) for i in range(0, 80, size)]
            found.add(b"".join(part.tobytes() for part in parts))
        assert len(found) == 1
