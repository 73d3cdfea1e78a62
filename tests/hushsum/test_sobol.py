"""Scrambled Sobol points: the sequence of Joe and Kuo, Owen's scrambling, and what both promise."""

import hashlib
import math

import numpy as np
import pytest
from scipy import stats

from hushsum.math_portable import Floats
from hushsum.public_random import PublicSeed, PublicStream
from hushsum.sobol import MAX_DIMS, MAX_POINTS, sequence, sobol

FALSE_ALARM = 1e-6
# SHA-256 of the points' little-endian bytes, by (sets, points, dims) with seed 1. They never change.
FROZEN = {
    (1, 1, 1): "36cc947e2fa0562fdf35e284fd0b9cfd20b650d5f83ba9269fe7503b041f5fef",
    (2, 8, 3): "6eddce05ba36eb8adf3c155cec2495170cbb6b4461c3ee5591d125b8ff054df3",
    (3, 100, 40): "4f06547797132b6062ea3bd33f623fa06889ff0036a129b7e8ef8b6b9bb2ad9a",
    (1, 2, 512): "769331433a1c9dcb9badaeac2688ca6d28e5180026ac75ef1d832e069b0d1215",
}


def points_of(seed: int, sets: int, points: int, dims: int) -> Floats:
    """(sets, points, dims)"""
    drawn = sobol(PublicSeed(seed % 2**53), "test", sets=sets, points=points, dims=dims)
    return drawn.reshape(sets, points, dims)


@pytest.mark.parametrize("shape", FROZEN)
def test_the_bits_are_those_of_ever(shape: tuple[int, int, int]) -> None:
    assert hashlib.sha256(points_of(1, *shape).astype("<f8").tobytes()).hexdigest() == FROZEN[shape]


@pytest.mark.parametrize("levels, dims", ((0, MAX_DIMS), (1, MAX_DIMS), (10, MAX_DIMS), (20, 3), (16, 40)))
def test_without_scrambling_the_points_are_scipys(levels: int, dims: int) -> None:
    expected = stats.qmc.Sobol(dims, scramble=False).random(2**levels).T * 2.0**levels
    assert np.array_equal(sequence(levels, dims), expected)


@pytest.mark.parametrize("level", range(9))
def test_every_dyadic_interval_of_every_dimension_holds_its_share_of_every_block(level: int, seed: int) -> None:
    drawn = points_of(seed, sets=3, points=300, dims=MAX_DIMS)
    for start in range(0, 300 - 2**level + 1, 2**level):
        cells = np.floor(drawn[:, start : start + 2**level] * 2**level)
        assert np.array_equal(np.sort(cells, axis=1), np.broadcast_to(np.arange(2**level)[:, None], cells.shape))


@pytest.mark.parametrize("level", range(9))
def test_the_first_two_dimensions_are_a_net_of_quality_0(level: int, seed: int) -> None:
    for drawn in points_of(seed, sets=4, points=256, dims=2):
        boxes = np.floor(drawn[:, 0] * 2**level) * 2 ** (8 - level) + np.floor(drawn[:, 1] * 2 ** (8 - level))
        assert np.array_equal(np.sort(boxes), np.arange(256))


def test_scrambling_flips_a_digit_by_the_digits_before_it_alone(seed: int) -> None:
    drawn = np.floor(points_of(seed, sets=2, points=64, dims=5) * 64).astype(np.int64)
    plain = sequence(6, 5).T
    flips: set[tuple[int, int]] = set()
    for level in range(6):
        before, digit = plain >> (6 - level), (drawn ^ plain) >> (5 - level) & 1
        for prefix in range(2**level):
            for dim in range(5):
                same = digit[:, before[:, dim] == prefix, dim]
                assert np.array_equal(same, np.broadcast_to(same[:, :1], same.shape))
                flips.update((level, int(bit)) for bit in same[:, 0])
    assert len(flips) == 12  # each level flips somewhere and does not flip somewhere


@pytest.mark.statistical
def test_the_flips_are_independent_fair_bits(seed: int) -> None:
    """χ² over the 2⁷ scramblings of 8 points in one dimension, 25,600 of them over dimensions and sets: 1e-6."""
    drawn = np.floor(points_of(seed, sets=50, points=8, dims=MAX_DIMS) * 8).astype(np.int64)
    at = np.argsort(sequence(3, MAX_DIMS).T, axis=0)  # the point of each unscrambled value
    image = np.take_along_axis(drawn, at[None], axis=1)
    code = ((image * 8 ** np.arange(8)[:, None]).sum(axis=1)).reshape(-1)
    _, counts = np.unique(code, return_counts=True)
    assert len(counts) == 128
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


@pytest.mark.statistical
def test_a_point_alone_is_uniform_over_the_sets(seed: int) -> None:
    """Kolmogorov and Smirnov on each of 12 points in each of 2 dimensions of 10,000 sets: false alarm 24 × 4e-8."""
    drawn = points_of(seed, sets=10_000, points=12, dims=2)
    values = [stats.kstest(drawn[:, i, j], "uniform").pvalue for i in range(12) for j in range(2)]
    assert min(values) > FALSE_ALARM / 24
    assert stats.kstest(0.95 * drawn[:, 5, 1], "uniform").pvalue < FALSE_ALARM / 24


@pytest.mark.statistical
def test_a_point_alone_is_uniform_over_the_seeds(seed: int) -> None:
    """Kolmogorov and Smirnov on the sixth point of 1,500 seeds: false alarm 1e-6."""
    drawn = np.array([points_of(seed + i, sets=1, points=12, dims=2)[0, 5] for i in range(1_500)])
    assert min(stats.kstest(column, "uniform").pvalue for column in drawn.T) > FALSE_ALARM / 2


@pytest.mark.statistical
def test_sets_and_dimensions_are_uncorrelated(seed: int) -> None:
    """Products of the fifth points of neighbouring sets and of two dimensions, 2,000 sets, 6 σ: false alarm 4e-9."""
    centred = points_of(seed, sets=2_000, points=8, dims=2)[:, 4] - 0.5
    for products in (centred[1:, 0] * centred[:-1, 0], centred[:, 0] * centred[:, 1]):
        assert abs(products.mean()) < 6 / 12 / math.sqrt(len(products))


@pytest.mark.statistical
def test_the_mean_of_a_smooth_function_is_unbiased_and_far_steadier_than_independent_points(seed: int) -> None:
    """Π (½ + u_j) over 5 dimensions, mean 1, 256 points in each of 100 sets; the mean of the sets within 6 σ."""
    means = np.prod(0.5 + points_of(seed, sets=100, points=256, dims=5), axis=2).mean(axis=1)
    independent = ((1 + 1 / 12) ** 5 - 1) / 256
    assert means.var(ddof=1) < independent / 50
    assert abs(means.mean() - 1) < 6 * means.std(ddof=1) / 10


def test_fewer_sets_are_the_first_of_more(seed: int) -> None:
    assert np.array_equal(points_of(seed, 2, 20, 3), points_of(seed, 5, 20, 3)[:2])


def test_one_point_a_set_is_the_stream_itself(seed: int) -> None:
    drawn = points_of(seed, sets=3, points=1, dims=4)
    for index in range(3):
        stream = PublicStream(PublicSeed(seed % 2**53), f"test/sobol/{index}")
        stream.words(4)  # a word a dimension for its scrambling, which has nothing to flip
        assert np.array_equal(drawn[index, 0], stream.open_uniform(4))


def test_points_are_odd_multiples_of_their_unit_within_0_and_1(seed: int) -> None:
    drawn = points_of(seed, 3, 300, 7)
    assert drawn.min() > 0
    assert drawn.max() < 1
    assert np.all((drawn * 2.0**53).astype(np.uint64) & np.uint64(1) == 1)


def test_no_points_and_no_sets_are_empty_arrays() -> None:
    assert sobol(PublicSeed(1), "test", sets=3, points=0, dims=2).shape == (0, 2)
    assert sobol(PublicSeed(1), "test", sets=0, points=3, dims=2).shape == (0, 2)


@pytest.mark.parametrize(
    "sets, points, dims", ((-1, 1, 1), (1, -1, 1), (1, MAX_POINTS + 1, 1), (1, 1, 0), (1, 1, MAX_DIMS + 1))
)
def test_numbers_out_of_range_are_refused(sets: int, points: int, dims: int) -> None:
    with pytest.raises(ValueError, match="expected, got"):
        sobol(PublicSeed(1), "test", sets=sets, points=points, dims=dims)
