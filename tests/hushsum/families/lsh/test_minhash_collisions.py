"""MinHash codes of two sets are equal as often as the sets overlap, and weaker orders are caught."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binomtest, t

from hushsum.families.lsh.arrays import UInt32
from hushsum.families.lsh.codes import minhash, one_permutation
from hushsum.families.lsh.codes.one_permutation import OnePermutation
from hushsum.families.sets import Sets
from hushsum.public_random import PublicSeed
from tests.hushsum.families.lsh.minhash_reference import (
    WORD,
    Codes,
    Definition,
    Int64,
    fast_codes,
    image,
    packed,
    unpacked,
)

Bools = npt.NDArray[np.bool_]
Pair = tuple[npt.ArrayLike, npt.ArrayLike]
FALSE_ALARM = 1e-6


def run(start: int, stop: int, step: int = 1) -> Int64:
    return np.arange(start, stop, step)


#: Sets that a weak hash orders wrongly: runs, progressions, one or two ids, the highest bits alone, grids, a point far
#: away; and random ones.
PAIRS: tuple[Pair, ...] = (
    (run(0, 1), run(0, 2)),
    ([1], run(0, 3)),
    ([0], run(0, 3)),
    (run(0, 100), run(20, 70)),
    (run(50, 100), run(0, 75)),
    (run(0, 40, 2), run(0, 40, 4)),
    ([2**30], [0, 2**30, 2**31]),
    ([2**25], [j * 2**25 for j in range(5)]),
    ([0, 2**16], [j * 2**16 for j in range(4)]),
    ([j * 2**24 for j in range(64)], [j * 2**24 for j in range(256)]),
    ([0], 2 ** run(0, 32)),
    ([2**31], [*range(15), 2**31]),
    ([0, 1, 2**16, 2**16 + 1], [i + j * 2**16 for i in range(4) for j in range(4)]),
    ([3, 2**31 + 5, 99], [2**31 + 5, 99, 2**32 - 1, 17]),
    (run(0, 5), run(10, 15)),
    (run(7, 30), run(7, 30)),
)


def similarity(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    return len(np.intersect1d(x, y)) / len(np.union1d(x, y))


def collisions(code: Definition, codes: Codes, pairs: tuple[Pair, ...], power: int = 1) -> Bools:
    """(R, pairs): whether the two sets of a pair share all codes of a row."""
    found = codes(code, packed(*(each for pair in pairs for each in pair))).reshape(-1, power, 2 * len(pairs))
    return np.asarray((found[:, :, 0::2] == found[:, :, 1::2]).all(axis=1), np.bool_)


def assert_collisions(codes: Codes, seed: int, rows: int = 200_000) -> None:
    """Independent rows: exact binomial against the nearest probability within the stated bias, 1e-6 over all pairs."""
    code = minhash.draw(PublicSeed(seed % 2**53), rows=rows, power=1, universe=WORD)
    for count, pair in zip(collisions(code, codes, PAIRS).sum(axis=0).tolist(), PAIRS, strict=True):
        exact = similarity(*pair)
        near = float(np.clip(count / rows, max(0.0, exact - minhash.BIAS), min(1.0, exact + minhash.BIAS)))
        if exact in {0.0, 1.0}:
            near = exact  # sets that are equal, or share nothing, leave nothing to chance
        assert binomtest(count, rows, near).pvalue > FALSE_ALARM / len(PAIRS), (pair, count / rows, exact)


def linear(code: Definition, sets: Sets) -> Int64:
    """The planted mistake of textbooks: id·m + k is pairwise independent, and no random order."""
    return first_by(lambda ids: ids * code.order.first[:, None] + code.order.keys[:, None], sets)


def one_fold(code: Definition, sets: Sets) -> Int64:
    """The planted mistake that looks random: no mixing that all parts share, so ids that differ at the top go wrong."""

    def images(ids: UInt32) -> UInt32:
        words = (ids ^ code.order.keys[:, None]) * code.order.first[:, None]
        return np.asarray((words ^ (words >> np.uint32(16))) * code.order.second[:, None], np.uint32)

    return first_by(images, sets)


def first_by(images: Callable[[UInt32], UInt32], sets: Sets) -> Int64:
    columns = [np.array(ids, np.uint32) for ids in unpacked(sets)]
    return np.stack([ids[images(ids).argmin(axis=1)] for ids in columns], axis=1).astype(np.int64)


def five_percent_off(code: Definition, sets: Sets) -> Int64:
    """Every twentieth row never collides."""
    codes = fast_codes(code, sets)
    codes[::20] = np.arange(len(sets))
    return codes


@pytest.mark.statistical
def test_two_sets_share_a_code_as_often_as_they_overlap(seed: int) -> None:
    assert_collisions(fast_codes, seed)


@pytest.mark.statistical
@pytest.mark.parametrize("planted", (linear, one_fold, five_percent_off))
def test_an_order_that_is_not_random_is_caught(planted: Codes, seed: int) -> None:
    with pytest.raises(AssertionError, match=r"\(array|\(\["):
        assert_collisions(planted, seed, rows=50_000)


def assert_collisions_of_bins(codes: Codes, seed: int, rows: int, power: int, draws: int = 600) -> None:
    """Rows of one draw depend on each other: Student's t of the share of rows over draws, 1e-6 over all pairs."""
    pairs = (*PAIRS, (run(0, 3 * rows), run(rows, 5 * rows)))
    shares = np.stack(
        [
            collisions(
                one_permutation.draw(PublicSeed((seed + i) % 2**53), rows=rows, power=power, universe=WORD),
                codes,
                pairs,
                power,
            ).mean(axis=0)
            for i in range(draws)
        ]
    )
    exact = np.array([similarity(*pair) for pair in pairs]) ** power
    reach = t.isf(FALSE_ALARM / (2 * len(pairs)), draws - 1) * shares.std(axis=0, ddof=1) / np.sqrt(draws)
    wrong = np.flatnonzero(np.abs(shares.mean(axis=0) - exact) > reach + power * minhash.BIAS)
    assert not len(wrong), [(int(i), float(shares.mean(axis=0)[i]), float(exact[i])) for i in wrong]


def not_densified(code: Definition, sets: Sets) -> Int64:
    """The planted mistake: bins without ids share the code of nothing."""
    assert isinstance(code, OnePermutation)
    codes = np.full((len(code), len(sets)), -1, np.int64)
    for number, ids in enumerate(unpacked(sets)):
        for each in sorted(ids, key=lambda one: -image(code, 0, one)):
            codes[image(code, 0, each) * code.bins >> 32, number] = each
    return codes


def borrowed_from_the_right(code: Definition, sets: Sets) -> Int64:
    """The planted mistake of a wrong claim: a bin without ids takes the largest code that the set has."""
    codes = not_densified(code, sets)
    return np.where(codes < 0, codes.max(axis=0), codes)


@pytest.mark.statistical
@pytest.mark.parametrize("rows, power", ((1, 1), (16, 1), (100, 1), (4, 3)))
def test_two_sets_share_a_densified_code_as_often_as_they_overlap(rows: int, power: int, seed: int) -> None:
    assert_collisions_of_bins(fast_codes, seed, rows, power)


@pytest.mark.statistical
@pytest.mark.parametrize("planted", (not_densified, borrowed_from_the_right))
def test_a_wrong_densification_is_caught(planted: Codes, seed: int) -> None:
    with pytest.raises(AssertionError, match=r"\[\("):
        assert_collisions_of_bins(planted, seed, 16, 1, draws=40)


@pytest.mark.statistical
@pytest.mark.parametrize("size", (2, 20, 2000))
def test_densified_rows_vary_hardly_more_than_independent_ones(size: int, seed: int) -> None:
    """The share of rows that collide has at most twice the variance of independent rows; 300 draws allow 2.6 times."""
    pair, rows, draws = (run(0, size), run(size // 2, size + size // 2)), 200, 300
    orders = (
        one_permutation.draw(PublicSeed((seed + i) % 2**53), rows=rows, power=1, universe=WORD) for i in range(draws)
    )
    shares = np.array([collisions(each, fast_codes, (pair,)).mean() for each in orders])
    exact = similarity(*pair)
    assert np.mean((shares - exact) ** 2) < 2.6 * exact * (1 - exact) / rows
