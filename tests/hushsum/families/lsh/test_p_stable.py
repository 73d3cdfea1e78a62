"""The manhattan hash: Cauchy directions."""

import numpy as np
import pytest

from hushsum import distributions
from hushsum.errors import PlanError
from hushsum.families.lsh.codes.projection import CODE_LIMIT
from tests.hushsum.families.lsh import hash_checks, reference

KEYS: dict[str, object] = {"kernel": "manhattan", "bandwidth": 3}


@pytest.mark.statistical
@pytest.mark.parametrize("power", (1, 2))
def test_two_points_share_their_codes_as_often_as_the_kernel_says(power: int, seed: int) -> None:
    """60,000 rows, 6 pairs: false alarm 1e-6; a bandwidth that is 5 % wrong fails."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 10, (6, 3))
    y = x + np.array([0.1, 0.5, 1, 1.5, 2, 3])[:, None] * rng.choice([-1, 1], (6, 3))
    keys = {**KEYS, "power": power, "rows": 60_000, "seed": seed % 2**53, "buckets": 4}
    family = hash_checks.build(3, -5, 15, **keys)
    expected = hash_checks.pairwise_kernel(family, x, y)
    hash_checks.assert_collisions(family, expected, x, y, family.kernel_error)
    wrong = hash_checks.build(3, -5, 15, **{**keys, "bandwidth": "3.15"})
    with pytest.raises(AssertionError):
        hash_checks.assert_collisions(wrong, expected, x, y, family.kernel_error)


@pytest.mark.parametrize("power", (1, 2))
@pytest.mark.parametrize("dim", (1, 3, 30))
@pytest.mark.parametrize("buckets", (64, 100))
def test_both_engines_follow_the_definition(dim: int, power: int, buckets: int, rng: np.random.Generator) -> None:
    family = hash_checks.build(dim, -2, 2, **KEYS, power=power, buckets=buckets)
    edges = reference.edge_records(family._tables.projection, rng, 1.5, per_part=1)
    edges = edges[np.abs(edges).max(axis=1) <= 2]
    hash_checks.assert_engines_agree_with_the_definition(
        family, np.concatenate([edges[:: 1 + len(edges) // 80], rng.uniform(-2, 2, (20, dim))])
    )


def test_a_bandwidth_with_which_the_largest_draw_leaves_32_bits_is_refused() -> None:
    least = 2 * 5 * distributions.CAUCHY_LIMIT / CODE_LIMIT
    hash_checks.refused(r"sketch\.bandwidth.*32 bits", **{**KEYS, "bandwidth": 0.99 * least})
    family = hash_checks.build(2, 0, 10, **{**KEYS, "bandwidth": 1.01 * least})
    assert family.to_fields()["kernel"] == "manhattan"


def test_the_error_of_the_kernel_is_the_probability_of_a_draw_that_is_cut_off_and_rounding() -> None:
    cut = 2 / np.pi * np.arctan(1 / distributions.CAUCHY_LIMIT)
    for dim, power in ((1, 1), (5, 2)):
        family = hash_checks.build(dim, 0, 1, **KEYS, power=power)
        apart = family.kernel([[0.0] * dim], [[2.0**-23 * 1.5] * dim])[0, 0]
        assert family.kernel_error == pytest.approx(power * dim * cut + 1 - apart, rel=1e-6)


def test_fewer_rows_are_a_prefix_of_more(rng: np.random.Generator) -> None:
    points = rng.uniform(0, 10, (20, 2))
    few, more = (hash_checks.code_vectors(hash_checks.build(2, 0, 10, **KEYS, rows=rows), points) for rows in (7, 30))
    assert np.array_equal(few, more[:7])


def test_a_query_too_far_away_is_refused_and_a_missing_bandwidth_too() -> None:
    from hushsum.errors import RecordError

    family = hash_checks.build(2, 0, 10, **KEYS)
    with pytest.raises(RecordError, match="number 1 is too far"):
        family.answer(np.zeros(family.shape, np.int64), [[0.0, 0.0], [1e12, 0.0]])
    with pytest.raises(PlanError, match="bandwidth"):
        hash_checks.build(2, 0, 10, kernel="manhattan")
