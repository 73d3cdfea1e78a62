"""The laplacian hash: random binning."""

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.errors import RecordError
from hushsum.families.lsh.codes.bins import Bins
from hushsum.families.lsh.codes.projection import CODE_LIMIT
from hushsum.families.lsh.random_binning import PITCH_LEAST
from tests.hushsum.families.lsh import hash_checks

KEYS: dict[str, object] = {"kernel": "laplacian", "bandwidth": 4}


@pytest.mark.statistical
@pytest.mark.parametrize("power", (1, 2))
def test_two_points_share_their_codes_as_often_as_the_kernel_says(power: int, seed: int) -> None:
    """60,000 rows, 6 pairs: false alarm 1e-6; a bandwidth that is 5 % wrong fails."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 10, (6, 3))
    y = x + np.array([0.01, 0.1, 0.3, 0.6, 1, 2])[:, None] * rng.choice([-1, 1], (6, 3))
    keys = {**KEYS, "power": power, "rows": 60_000, "seed": seed % 2**53, "buckets": 4}
    family = hash_checks.build(3, -5, 15, **keys)
    expected = hash_checks.pairwise_kernel(family, x, y)
    hash_checks.assert_collisions(family, expected, x, y, family.kernel_error)
    wrong = hash_checks.build(3, -5, 15, **{**keys, "bandwidth": "4.2"})
    with pytest.raises(AssertionError):
        hash_checks.assert_collisions(wrong, expected, x, y, family.kernel_error)


def edges(bins: Bins, rng: np.random.Generator, bound: float) -> npt.NDArray[np.float64]:
    """Records each of whose coordinates is next to an edge of some part, on both sides."""
    found = []
    for a, b in zip(bins.inverses.astype(np.float64)[:30], bins.offsets[:30], strict=True):
        x = rng.uniform(-bound, bound, len(a))
        edge = ((np.rint(a * x + b) - b) / a).astype(np.float32)
        found += [edge, np.nextafter(edge, np.float32(99)), np.nextafter(edge, np.float32(-99))]
    records = np.array(found, np.float64)
    return np.asarray(records[np.abs(records).max(axis=1) <= bound])


@pytest.mark.parametrize("power", (1, 2))
@pytest.mark.parametrize("dim", (1, 2, 3, 30))
@pytest.mark.parametrize("buckets", (64, 100))
def test_both_engines_follow_the_definition(dim: int, power: int, buckets: int, rng: np.random.Generator) -> None:
    family = hash_checks.build(dim, -2, 2, **KEYS, power=power, buckets=buckets)
    assert family.rehashed or dim < 4
    bins = family._tables.code
    assert isinstance(bins, Bins)
    points = np.concatenate([edges(bins, rng, 2.0), rng.uniform(-2, 2, (1100, dim)).astype(np.float32)[:60]])
    hash_checks.assert_engines_agree_with_the_definition(family, points)


def test_codes_that_fit_are_placed_directly(rng: np.random.Generator) -> None:
    hash_checks.assert_direct_and_rehash_agree(2, 0, 1, rng, **{**KEYS, "bandwidth": 50, "rows": 8})


def test_a_bandwidth_with_which_the_finest_pitch_leaves_32_bits_is_refused() -> None:
    least = 5 / PITCH_LEAST / CODE_LIMIT
    hash_checks.refused(r"sketch\.bandwidth.*32 bits", **{**KEYS, "bandwidth": 0.99 * least})
    hash_checks.build(1, -5, 5, **{**KEYS, "bandwidth": 1.01 * least})


def test_the_error_of_the_kernel_is_the_probability_of_a_pitch_at_the_least_and_rounding() -> None:
    family = hash_checks.build(3, 0, 1, **KEYS, power=2)
    exact = -np.expm1(-PITCH_LEAST) - PITCH_LEAST * np.exp(-PITCH_LEAST)  # of Gamma(2): 1 − e^−t (1 + t)
    rounded = 6 * 2.0**-23 * 1.5 / 4  # 1 and 0.5, the sizes of coordinates before and after centring
    assert family.kernel_error == pytest.approx(6 * exact + rounded, rel=1e-4)
    assert exact < 2e-9


def test_a_query_beyond_32_bits_in_one_coordinate_is_refused() -> None:
    family = hash_checks.build(2, 0, 10, **KEYS)
    with pytest.raises(RecordError, match="number 1 is too far"):
        family.answer(np.zeros(family.shape, np.int64), [[1e4, 0.0], [0.0, 1e13]])


def test_fewer_rows_are_a_prefix_of_more(rng: np.random.Generator) -> None:
    points = rng.uniform(0, 10, (20, 2))
    few, more = (hash_checks.code_vectors(hash_checks.build(2, 0, 10, **KEYS, rows=rows), points) for rows in (7, 30))
    assert np.array_equal(few, more[:7])


def test_many_records_are_added_in_blocks_as_one_by_one(rng: np.random.Generator) -> None:
    from tests.hushsum.families.lsh import reference

    family = hash_checks.build(5, 0, 10, **KEYS, rows=6)
    records = family.accept(rng.uniform(0, 10, (3000, 5)))[0]
    expected = reference.counters(family._tables, records)
    for engine in reference.ENGINES.values():
        total = np.zeros(family.shape, np.int64)
        engine.add(family._tables, total, records)
        assert np.array_equal(total, expected)
