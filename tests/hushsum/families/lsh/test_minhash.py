"""MinHash, full and from one permutation: the definition, both engines, and what is drawn."""

from collections.abc import Callable

import numpy as np
import pytest

from hushsum.families.lsh import numpy_engine
from hushsum.families.lsh.codes import minhash, one_permutation
from hushsum.families.lsh.compiled import engine as compiled_engine
from hushsum.families.lsh.compiled.minhash import LANES, TILE
from hushsum.families.lsh.placement import HashedRows, direct, rehash
from hushsum.families.sets import Sets
from hushsum.public_random import PublicSeed
from tests.hushsum.families.lsh import reference
from tests.hushsum.families.lsh.minhash_reference import WORD, Definition, defined, fast_codes, packed, plain_codes

DRAWS: dict[str, Callable[..., Definition]] = {"full": minhash.draw, "one-permutation": one_permutation.draw}


def random_sets(rng: np.random.Generator, universe: int, sizes: tuple[int, ...]) -> Sets:
    return packed(*(rng.integers(0, universe, size) for size in sizes), [0], [universe - 1], [0, universe - 1])


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize(
    "universe, rows, power",
    ((WORD, 1, 1), (WORD, LANES + 3, 1), (50, 7, 3), (5000, LANES // 2, 2), (2**31 + 1, 2, 8), (300, 3 * LANES, 1)),
)
def test_codes_are_those_of_the_definition_in_both_engines(
    kind: str, universe: int, rows: int, power: int, rng: np.random.Generator
) -> None:
    code = DRAWS[kind](PublicSeed(int(rng.integers(2**53))), rows=rows, power=power, universe=universe)
    sets = random_sets(rng, universe, (1, 2, 3, 5, 9, 40, 2, 1, 3, 1, 4, 12, 300, 2, 2))
    assert len(sets) > TILE
    expected = defined(code, sets)
    assert expected.max() >= 2**31 or universe < 2**31
    for codes in (plain_codes, fast_codes):
        assert np.array_equal(codes(code, sets), expected), codes.__name__
        for parts in (slice(0, power), slice(power * (rows - 1), power * rows)):
            assert np.array_equal(codes(code, sets, parts), expected[parts]), codes.__name__


def rows_of(code: Definition, power: int, buckets: int) -> HashedRows:
    least, largest = (end.reshape(-1, power) for end in code.ends())
    rehashed = rehash(PublicSeed(4), rows=len(least), power=power, buckets=buckets)
    return HashedRows(code, direct(least, largest, buckets) or rehashed, power, buckets)


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("power, buckets", ((1, 200), (1, 128), (2, 4096), (2, 900)))
def test_both_engines_count_the_same_in_every_batch(
    kind: str, power: int, buckets: int, rng: np.random.Generator
) -> None:
    """Direct buckets and rehashed ones, few and many records; all of it from the definition."""
    code = DRAWS[kind](PublicSeed(8), rows=9, power=power, universe=64 if power == 2 else 150)
    rows, sets = rows_of(code, power, buckets), random_sets(rng, code.universe, (3, 1, 8, 30, 2) * 40)
    n, codes = len(sets), defined(code, sets).reshape(9, power, -1)
    chosen = rows.placement.place(slice(0, 9), codes.copy())
    expected = np.stack([np.bincount(row, minlength=buckets) for row in chosen])
    weights = rng.integers(0, 2**20, expected.shape)
    read = np.take_along_axis(weights, chosen, axis=1)
    for name, engine in reference.ENGINES.items():
        whole, split = np.zeros_like(expected), np.zeros_like(expected)
        engine.add(rows, whole, sets)
        for start, stop in ((0, 1), (1, 2), (2, 50), (50, n)):
            engine.add(rows, split, sets[start:stop])
        assert np.array_equal(whole, expected), name
        assert np.array_equal(split, expected), name
        for some in (sets[:1], sets[:5], sets):
            wanted = np.zeros(expected.size, np.int64)
            np.add.at(wanted, chosen[:, : len(some)] + np.arange(9)[:, None] * buckets, 1)
            indices, values = engine.encode(rows, some)
            assert np.array_equal(indices, np.flatnonzero(wanted)), name
            assert np.array_equal(values, wanted[indices]), name
        first, total, _ = engine.sums(rows, weights, np.zeros(9), sets)
        assert np.array_equal(first, read[0]), name
        assert np.array_equal(total, (read - read[0]).sum(axis=0)), name


def test_fewer_rows_of_full_minhash_are_a_prefix_of_more(rng: np.random.Generator) -> None:
    sets = random_sets(rng, 10**6, (5, 50))
    few, more = (minhash.draw(PublicSeed(2), rows=rows, power=2, universe=10**6) for rows in (5, 70))
    assert np.array_equal(plain_codes(few, sets), plain_codes(more, sets)[:10])


def test_an_order_has_an_inverse(rng: np.random.Generator) -> None:
    order = minhash.orders(PublicSeed(3), "test", 20)
    ids = np.concatenate([rng.integers(0, WORD, 1000), [0, 1, WORD // 2, WORD - 1]]).astype(np.uint32)
    for part in range(20):
        assert np.array_equal(order.ids(part, order.images(part, order.mixed(ids))), ids)
    assert np.all(order.first % 2 == 1)
    assert np.all(order.second % 2 == 1)
    assert len(np.unique(np.concatenate([order.keys, order.first, order.second]))) == 60


def test_a_set_of_one_id_lends_it_to_every_bin() -> None:
    code = one_permutation.draw(PublicSeed(1), rows=500, power=2, universe=WORD)
    for codes in (plain_codes, fast_codes):
        assert np.array_equal(codes(code, packed([7], [WORD - 1])), np.tile([7, WORD - 1], (1000, 1)))


@pytest.mark.parametrize("engine", ("plain", "fast"))
def test_all_bins_of_a_block_are_computed_once(engine: str, rng: np.random.Generator) -> None:
    code = one_permutation.draw(PublicSeed(1), rows=20, power=1, universe=1000)
    sets, each = (
        random_sets(rng, 1000, (5, 9, 30)),
        numpy_engine.coder(code) if engine == "plain" else compiled_engine.coder(code, np.zeros(20, np.int32)),
    )
    kept = each.prepare(sets[1:3])
    assert each.prepare(sets[1:3]) is kept
    before = kept.copy()
    each.codes(slice(0, 20), kept)[:] = 0  # the caller may write to what it gets
    assert np.array_equal(each.prepare(sets[1:3]), before)
    for other in (sets[0:2], sets[1:2], sets[2:4]):
        expected = numpy_engine.coder(code).prepare(other)
        assert np.array_equal(each.prepare(other), expected)
