"""The angular hash: signs of projections."""

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.families.lsh import numpy_engine
from hushsum.families.lsh.codes.projection import Signs
from hushsum.families.lsh.placement import Direct
from tests.hushsum.families.lsh import hash_checks, reference

KEYS: dict[str, object] = {"kernel": "angular"}


@pytest.mark.statistical
@pytest.mark.parametrize("power", (1, 3))
def test_two_points_share_their_codes_as_often_as_the_kernel_says(power: int, seed: int) -> None:
    """60,000 rows, 6 pairs of all angles and the zero vector: false alarm 1e-6; 5 % more power fails."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (6, 4))
    y = x + np.array([0.0, 0.2, 0.5, 1, 2, 0])[:, None] * rng.normal(size=(6, 4))
    x[0], y[5] = 0.0, -x[5]
    keys = {**KEYS, "power": power, "rows": 60_000, "seed": seed % 2**53}
    family = hash_checks.build(4, -1, 1, **keys)
    expected = hash_checks.pairwise_kernel(family, x, y)
    assert expected[0] == 0.5**power
    assert expected[5] == 0
    hash_checks.assert_collisions(family, expected, x, y)
    with pytest.raises(AssertionError):
        hash_checks.assert_collisions(family, expected**1.05, x, y)


def near_edges(family_signs: Signs, rng: np.random.Generator, d: int) -> npt.NDArray[np.float64]:
    """Records whose sums are within float64's rounding of 0, on both sides, exactly on it, and far below float32."""
    found = [np.zeros(d), np.full(d, -0.0), np.full(d, 1e-45), np.full(d, -1e-30)]
    for direction in family_signs.directions.astype(np.float64)[:12]:
        x = rng.uniform(-1, 1, d).astype(np.float32).astype(np.float64)
        j = int(np.argmax(np.abs(direction)))
        x[j] = np.float32(-(x @ direction - x[j] * direction[j]) / direction[j])
        found += [x, np.where(np.arange(d) == j, np.nextafter(np.float32(x[j]), np.float32(9)), x), x * 1e-20]
        if d > 1:
            exact = np.zeros(d)
            exact[0], exact[1] = direction[1], -direction[0]
            found += [exact / 16, -exact / 16]
    return np.array(found).reshape(-1, d)


@pytest.mark.parametrize("power, buckets", ((1, 2), (3, 5), (1, 7), (8, 100), (3, 8), (8, 256)))
@pytest.mark.parametrize("d", (1, 3, 30))
def test_both_engines_follow_the_definition_next_to_the_edge(
    d: int, power: int, buckets: int, rng: np.random.Generator
) -> None:
    family = hash_checks.build(d, -1, 1, **KEYS, power=power, buckets=buckets)
    assert family.rehashed == (2**power > buckets)
    signs = family._tables.projection
    assert isinstance(signs, Signs)
    points = np.concatenate([near_edges(signs, rng, d), rng.uniform(-1, 1, (20, d))])
    hash_checks.assert_engines_agree_with_the_definition(family, points)


@pytest.mark.parametrize("d", (3, 30))
def test_a_sign_in_float32_alone_is_caught_by_the_edge(d: int, rng: np.random.Generator) -> None:
    family = hash_checks.build(d, -1, 1, **KEYS)
    signs = family._tables.projection
    assert isinstance(signs, Signs)
    signs.__dict__["limit"] = np.float32(-np.inf)  # no code is ever flagged
    with pytest.raises(AssertionError):
        hash_checks.assert_engines_agree_with_the_definition(family, near_edges(signs, rng, d))


@pytest.mark.parametrize("d", (2, 6, 20))
def test_queries_that_no_record_can_be_like_read_the_same_in_both_engines(d: int, rng: np.random.Generator) -> None:
    from hushsum.families.lsh.compiled import engine as compiled_engine

    rows = hash_checks.build(d, 1, 3, **KEYS, power=3, buckets=8)._tables
    assert isinstance(rows.placement, Direct)
    assert set(rows.placement.spans.reshape(-1).tolist()) == {1, 2}, "some signs are those of every record"
    counters, less = rng.integers(1, 9, (len(rows), 8)), rng.normal(size=len(rows))
    for queries in (rng.uniform(-3, 3, (1500, d)).astype(np.float32), np.full((1, d), -2, np.float32)):
        found, expected = (engine.sums(rows, counters, less, queries) for engine in (compiled_engine, numpy_engine))
        assert [part.tobytes() for part in found] == [part.tobytes() for part in expected]


def test_few_codes_are_computed_again(rng: np.random.Generator) -> None:
    from hushsum.families.lsh.compiled import engine as compiled_engine

    for d in (3, 30):
        family = hash_checks.build(d, -1, 1, **KEYS)
        engine = compiled_engine.BucketEngine(family._tables)
        records = family.accept(rng.uniform(-1, 1, (5000, d)))[0]
        engine.add(slice(0, 40), np.zeros(family.shape, np.int64), records)
        assert engine.flagged < 1e-3 * engine.codes == 1e-3 * 40 * 5000


def test_the_zero_vector_has_code_1_in_every_part() -> None:
    assert np.all(hash_checks.code_vectors(hash_checks.build(3, -1, 1, **KEYS, power=3), [[0.0, 0.0, -0.0]]) == 1)


def test_lengths_do_not_matter_and_opposite_vectors_share_nothing(rng: np.random.Generator) -> None:
    family = hash_checks.build(3, -1, 1, **KEYS, power=2)
    x = rng.uniform(-0.4, 0.4, (20, 3)).astype(np.float32)
    assert hash_checks.shared(family, x, 2 * x).all()
    assert not hash_checks.shared(family, x, -x).any()
    assert hash_checks.shared(family, x, x * 1e-12).all()


def test_records_are_not_centred_and_a_bandwidth_is_refused() -> None:
    family = hash_checks.build(2, 2, 10, **KEYS)
    assert family.accept([[3.0, 4.0]])[0].tolist() == [[3, 4]]
    hash_checks.refused(r"sketch\.bandwidth: .*expected a known key", **KEYS, bandwidth=1)
    assert set(family.to_fields()) == {"kernel", "power", "rows", "buckets", "draws", "seed"}


@pytest.mark.parametrize("far", (1e31, -3e38, 1e300))
def test_a_query_whose_sums_could_overflow_is_refused(far: float) -> None:
    from hushsum.errors import RecordError

    family = hash_checks.build(2, -1, 1, **KEYS)
    with pytest.raises(RecordError, match="number 1 is too far"):
        family.answer(np.zeros(family.shape, np.int64), [[1e29, 0.0], [far, 0.0]])


def test_signs_that_fit_are_placed_directly(rng: np.random.Generator) -> None:
    hash_checks.assert_direct_and_rehash_agree(3, -1, 1, rng, **KEYS, power=4)


def test_the_reference_knows_signs() -> None:
    signs = Signs.of(np.array([[1.0, -1.0]], np.float32), np.ones(2, np.float32))
    assert reference.codes(signs, np.array([[1, 1], [0, 1], [1, 0]], np.float32)).tolist() == [[1, 0, 1]]
