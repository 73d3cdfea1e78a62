"""The rehash is strongly universal: two different code vectors share a bucket in one row of W, whatever they are."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binomtest, chi2

from hushsum.families.lsh import placement
from hushsum.families.lsh.compiled import buckets
from hushsum.public_random import PublicSeed
from tests.hushsum.families.lsh import reference

Int64 = npt.NDArray[np.int64]
Place = Callable[[placement.Rehash, Int64], Int64]
FALSE_ALARM = 1e-6
ROWS = 250_000
WIDTHS = (2, 64, 1000, 1024)


def place(chosen: placement.Rehash, codes: Int64) -> Int64:
    """(rows, n) buckets of n code vectors (n, p), in every row."""
    spread = np.broadcast_to(codes.T, (len(chosen.multipliers), *codes.T.shape)).copy()
    return chosen.place(slice(0, len(chosen.multipliers)), spread)


def bare_modulus(chosen: placement.Rehash, codes: Int64) -> Int64:
    """The planted mistake of published code."""
    return np.broadcast_to(codes.sum(axis=1) % chosen.buckets, (len(chosen.multipliers), len(codes)))


def without_offset(chosen: placement.Rehash, codes: Int64) -> Int64:
    """The planted mistake that still looks random: no m₀, so that a vector of zeroes has bucket 0 in every row."""
    multipliers = chosen.multipliers.copy()
    multipliers[:, 0] = 0
    return place(placement.Rehash(multipliers, chosen.buckets), codes)


def pairs(width: int, power: int, rng: np.random.Generator) -> list[tuple[Int64, Int64]]:
    """Pairs of code vectors: random ones, and those that a weak hash sends to one bucket."""
    zero = np.zeros(power, np.int64)
    last = np.eye(power, dtype=np.int64)[-1]
    random = rng.integers(-(2**31), 2**31, (2, 2, power))
    adversarial = [
        (zero, zero + width),
        (zero, width * last),
        (random[0][0] // 4, random[0][0] // 4 + width * last),
        (zero, 2**16 * last),
        (zero, last),
        (zero, -last),
        (-last, zero + 2**31 - 1),
        (zero - 2**31, zero + 2**31 - 1),
        (zero - 2**31, zero),
    ]
    return [(random[0][0], random[0][1]), (random[1][0], random[1][1]), *adversarial]


def worst_p_value(placing: Place, width: int, power: int, seed: int) -> float:
    """The least p-value over all pairs, times their number: exact binomial against 1/W, and χ² of the joint bucket."""
    p_values: list[float] = []
    chosen = placement.rehash(PublicSeed(seed % 2**53), rows=ROWS // power, power=power, buckets=width)
    for x, y in pairs(width, power, np.random.default_rng(seed)):
        both = placing(chosen, np.stack([x, y]))
        assert both.min() >= 0
        assert both.max() < width
        together = int((both[:, 0] == both[:, 1]).sum())
        p_values.append(float(binomtest(together, len(both), 1 / width).pvalue))
        cells = min(width, 8)  # the joint distribution of the two, coarsened to 8 ranges of buckets each
        first, second = (both * cells // width).T
        weight = np.bincount(np.arange(width) * cells // width, minlength=cells) / width
        expected = np.outer(weight, weight).reshape(-1) * len(both)
        observed = np.bincount(first * cells + second, minlength=cells**2)
        p_values.append(float(chi2.sf(((observed - expected) ** 2 / expected).sum(), cells**2 - 1)))
    return min(p_values) * len(p_values)


@pytest.mark.statistical
@pytest.mark.parametrize("power", (1, 3))
@pytest.mark.parametrize("width", WIDTHS)
def test_two_code_vectors_meet_in_one_row_of_w(width: int, power: int, seed: int) -> None:
    """Over 2.5·10^5 independent rows, fewer by the power, Bonferroni over all pairs: false alarm 1e-6."""
    assert worst_p_value(place, width, power, seed) > FALSE_ALARM


@pytest.mark.statistical
@pytest.mark.parametrize("width", (64, 1000))
@pytest.mark.parametrize("planted", (bare_modulus, without_offset))
def test_a_weaker_hash_is_caught(planted: Place, width: int, seed: int) -> None:
    assert worst_p_value(planted, width, 1, seed) < FALSE_ALARM


@pytest.mark.parametrize("power", (1, 2, 8))
@pytest.mark.parametrize("width", (2, 3, 1000, 1024, 2**24))
def test_buckets_are_those_of_the_formula_in_both_engines(width: int, power: int, rng: np.random.Generator) -> None:
    rows, n = 7, 33
    chosen = placement.rehash(PublicSeed(1), rows=rows, power=power, buckets=width)
    codes = rng.integers(-(2**31), 2**31, (rows, power, n))
    codes[:, :, :3] = [-(2**31), 0, 2**31 - 1]
    expected = [
        [reference.rehash(chosen.multipliers[r].tolist(), codes[r, :, i].tolist(), width) for i in range(n)]
        for r in range(rows)
    ]
    assert chosen.place(slice(0, rows), codes.copy()).tolist() == expected
    words = codes.reshape(-1, n).astype(np.int32)
    buckets.hash_codes(words, chosen.multipliers, chosen.bits, width, np.empty(n, np.uint64))
    assert words[:rows].tolist() == expected


def test_fewer_rows_are_a_prefix_of_more() -> None:
    few, many = (placement.rehash(PublicSeed(2), rows=rows, power=2, buckets=10) for rows in (3, 50))
    assert np.array_equal(few.multipliers, many.multipliers[:3])


def test_rows_share_no_multiplier() -> None:
    multipliers = placement.rehash(PublicSeed(2), rows=1000, power=3, buckets=16).multipliers
    assert len(np.unique(multipliers)) == multipliers.size


@pytest.mark.parametrize("buckets, fits", ((12, True), (11, False), (1000, True)))
def test_codes_are_placed_directly_where_they_fit_and_only_there(buckets: int, fits: bool) -> None:
    least, largest = np.array([[-1, 5], [0, 0]]), np.array([[1, 8], [0, 0]])  # 3 × 4 codes in the first row
    assert (placement.direct(least, largest, buckets) is not None) == fits


def test_direct_buckets_are_different_for_different_codes() -> None:
    direct = placement.direct(np.array([[-1, 5]]), np.array([[1, 8]]), 12)
    assert direct is not None
    codes = np.stack(np.meshgrid(np.arange(-1, 2), np.arange(5, 9), indexing="ij")).reshape(1, 2, -1)
    assert sorted(direct.place(slice(0, 1), codes.copy())[0].tolist()) == list(range(12))
    assert np.array_equal(direct.place(slice(0, 1), codes.copy()), direct.place_within(slice(0, 1), codes.copy()))
    outside = np.array([[[-2, 2, 0, 0, 2**31 - 1], [5, 5, 4, 9, 2**31 - 1]]])
    assert direct.place(slice(0, 1), outside).tolist() == [[placement.OUTSIDE] * 5]
