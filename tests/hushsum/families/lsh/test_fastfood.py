"""Walsh–Hadamard directions: collisions at the kernel's rate, the definition in both engines, ends and error bars."""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import kstest

from hushsum.errors import PlanError, RecordError
from hushsum.families import Hashed
from hushsum.families.lsh import numpy_engine
from hushsum.families.lsh.codes import fastfood
from hushsum.families.lsh.codes.fastfood import Fastfood
from hushsum.public_random import PublicSeed
from hushsum.schema import Table
from tests.hushsum.families.lsh import hash_checks, reference

EUCLIDEAN: dict[str, object] = {"draws": "fastfood", "kernel": "euclidean", "bandwidth": 3}
ANGULAR: dict[str, object] = {"draws": "fastfood", "kernel": "angular"}
KERNELS = {"euclidean": EUCLIDEAN, "angular": ANGULAR}
Floats = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]


def coder_of(family: Hashed) -> Fastfood:
    code = family._tables.code
    assert isinstance(code, Fastfood)
    return code


def planted(code: Fastfood, mistake: str) -> Fastfood:
    """The same with a mistake."""
    if mistake == "no signs":
        return replace(code, flips=np.ones_like(code.flips))
    if mistake == "no permutation":
        same = np.tile(np.arange(code.size, dtype=np.int32), (len(code.permutations), 1))
        return replace(code, permutations=same)
    assert mistake == "scales 5 % off"
    return replace(code, scales=code.scales * np.float32(1.05))


def block_shares(family: Hashed, code: Fastfood, x: npt.ArrayLike, y: npt.ArrayLike) -> Floats:
    """(blocks, n): the share of a block's rows that give x_i and y_i the same codes."""
    plain, parts = numpy_engine.coder(code), slice(0, len(code))
    one, other = (plain.codes(parts, plain.prepare(family._space.queries(points))).copy() for points in (x, y))
    same = (one == other).reshape(family.rows, code.power, -1).all(axis=1)
    return np.asarray(same.reshape(-1, code.height, same.shape[1]).mean(axis=1), np.float64)


def assert_rate(shares: Floats, expected: Floats, error: float) -> None:
    """Means over blocks, independent given the signs, by the normal distribution: 1e-6 over 8 pairs."""
    reach = 5.6 * shares.std(axis=0, ddof=1) / np.sqrt(len(shares)) + error
    assert np.all(np.abs(shares.mean(axis=0) - expected) <= reach), (shares.mean(axis=0), expected, reach)


# ---------------------------------------------------------------------------------------------------- distribution
def near_pairs(dim: int, distance: float, seed: int) -> tuple[Floats, Floats]:
    """Eight pairs: two along the diagonal or equal, the others anywhere."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (8, dim))
    y = x + rng.normal(0, distance / np.sqrt(dim), (8, dim))
    x[0], y[0], y[1] = 0.5, 0.5 + distance / np.sqrt(dim), x[1]
    return x, y


@pytest.mark.statistical
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dim, power", ((1, 1), (3, 2), (11, 1), (40, 2)))
def test_rows_share_codes_at_the_rate_of_the_kernel(kernel: str, dim: int, power: int, seed: int) -> None:
    """8,192 rows: false alarm 1e-6."""
    x, y = near_pairs(dim, 2.0, seed)
    family = hash_checks.build(dim, -5, 5, **KERNELS[kernel], power=power, rows=2**13, seed=seed % 2**53)
    error = family.draws.rounding(family.product, family._space)
    assert 0 < error < 2e-3
    assert_rate(block_shares(family, coder_of(family), x, y), hash_checks.pairwise_kernel(family, x, y), error)


@pytest.mark.statistical
def test_scales_5_percent_off_are_caught(seed: int) -> None:
    x, y = near_pairs(11, 2.0, seed)
    family = hash_checks.build(11, -5, 5, **EUCLIDEAN, rows=2**15, seed=seed % 2**53)
    expected = hash_checks.pairwise_kernel(family, x, y)
    with pytest.raises(AssertionError):
        assert_rate(block_shares(family, planted(coder_of(family), "scales 5 % off"), x, y), expected, 1e-4)


def assert_blocks_vary_like_rows(family: Hashed, code: Fastfood) -> None:
    """Over 4,096 blocks of 16 rows each, for differences with a pattern; the variance has a relative error of 3 %.

    By theory the ratio is below 1.1 with E/D = 1/4, and far above 1.5 for rows that share their projections' size.
    """
    along = np.zeros((3, 64))
    along[0], along[1, :2], along[2, [0, 8]] = 0.125, math.sqrt(0.5), math.sqrt(0.5)  # of length 1 each
    shares = block_shares(family, code, np.zeros((3, 64)), along)
    mean = shares.mean(axis=0)
    ratio = shares.var(axis=0, ddof=1) * code.height / (mean * (1 - mean))
    assert np.all(ratio < 1.3), ratio


@pytest.mark.statistical
@pytest.mark.parametrize("mistake", ("", "no signs", "no permutation"))
def test_rows_of_a_block_hardly_depend_on_each_other(mistake: str, seed: int) -> None:
    """False alarm below 1e-6: 1.3 is 6 standard errors above 1.1. Either mistake fails."""
    family = hash_checks.build(64, -5, 5, **{**EUCLIDEAN, "bandwidth": "0.25"}, rows=2**16, seed=seed % 2**53)
    code = coder_of(family)
    assert code.height == 16
    if mistake:
        with pytest.raises(AssertionError):
            assert_blocks_vary_like_rows(family, planted(code, mistake))
    else:
        assert_blocks_vary_like_rows(family, code)


@pytest.mark.statistical
@pytest.mark.parametrize("degrees", (2, 8, 1024))
def test_lengths_are_those_of_normal_vectors(degrees: int, seed: int) -> None:
    """Kolmogorov–Smirnov at 1e-6, 20,000 draws."""
    found = fastfood.chi(PublicSeed(seed % 2**53), "lengths", 20_000, degrees)
    assert kstest(found, "chi", args=(degrees,)).pvalue > 1e-6
    assert found.max() <= fastfood.chi_limit(degrees)
    assert np.array_equal(fastfood.chi(PublicSeed(seed % 2**53), "lengths", 50, degrees), found[:50])


@pytest.mark.statistical
@pytest.mark.parametrize("rows, dim", ((100, 3), (200, 40)))
def test_error_bars_cover_at_their_rate(rows: int, dim: int, seed: int) -> None:
    """300 noiseless sketches, 95 % bars."""
    rng, inside = np.random.default_rng(seed), 0
    records, query = rng.normal(0, 1, (60, dim)), rng.normal(0, 1, (1, dim))
    for number in range(300):
        keys = {**EUCLIDEAN, "rows": rows, "bandwidth": 2 * dim // 3, "seed": (seed + number) % 2**53}
        family = hash_checks.build(dim, -5, 5, **keys)
        counters = np.zeros(family.shape, np.int64)
        family.add(counters, family.accept(records)[0])
        answer = family.answer(counters, query)
        low, high = answer.interval(0.95)
        inside += bool(low <= family.kernel(records, query).sum() <= high)
        assert answer.spread == "sets"
    assert 0.87 <= inside / 300 <= 0.997, inside / 300  # either has a probability below 1e-6


# ------------------------------------------------------------------------------------------------------- definition
def transformed(numbers: list[np.float32]) -> list[np.float32]:
    """H, pair by pair."""
    h = len(numbers) // 2
    while h:
        for j in range(len(numbers)):
            if not j & h:
                a, b = numbers[j], numbers[j + h]
                numbers[j], numbers[j + h] = a + b, a - b
        h //= 2
    return numbers


def defined_codes(code: Fastfood, record: Float32) -> list[int]:
    """(R·p,): the definition, one number at a time."""
    padded = [*record, *[np.float32(0)] * (code.size - code.dim)]
    u = transformed([flip * x for flip, x in zip(code.flips, padded, strict=True)])
    blocks = [
        transformed([factor * u[source] for factor, source in zip(theta, order, strict=True)])
        for theta, order in zip(code.diagonals, code.permutations, strict=True)
    ]
    found = []
    for index, (scale, offset) in enumerate(zip(code.scales.tolist(), code.offsets.tolist(), strict=True)):
        row, part = divmod(index, code.power)
        p = blocks[row // code.height * code.power + part][row % code.height]
        found.append(int(p >= 0) if code.signs else math.floor(scale * float(p) + offset))
    return found


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "dim, rows, power", ((1, 20, 1), (2, 40, 2), (5, 100, 1), (9, 70, 3), (33, 260, 1), (64, 20, 1))
)
@pytest.mark.parametrize("buckets", (64, 5000))
def test_both_engines_follow_the_definition(
    kernel: str, dim: int, rows: int, power: int, buckets: int, rng: np.random.Generator
) -> None:
    keys = {**KERNELS[kernel], "rows": rows, "power": power, "buckets": buckets}
    family, points = hash_checks.build(dim, -5, 5, **keys), rng.uniform(-5, 5, (300, dim))
    tables, code, records = family._tables, coder_of(family), family.accept(points)[0]
    codes = hash_checks.code_vectors(family, points).reshape(len(code), -1)
    for i in (0, 150, 299):
        assert codes[:, i].tolist() == defined_codes(code, records[i])
    found = []
    for name, engine in reference.ENGINES.items():
        whole, pieces = np.zeros(family.shape, np.int64), np.zeros(family.shape, np.int64)
        engine.add(tables, whole, records)
        for some in (slice(0, 1), slice(1, 130), slice(130, 300)):
            for which in (slice(0, 9), slice(9, rows)):
                engine.add(tables, pieces[which], np.ascontiguousarray(records[some]), which)
        assert np.array_equal(whole, pieces), name
        few = engine.encode(tables, records[:3])
        reads = engine.sums(tables, whole, np.zeros(rows), (records * 3)[:140])
        found.append([array.tobytes() for array in (whole, *few, *engine.encode(tables, records), *reads)])
    assert found[0] == found[1]
    expected = np.zeros(family.shape, np.int64)
    vectors, places = codes.reshape(rows, power, -1).copy(), tables.placement
    np.add.at(expected, (np.arange(rows)[:, None], places.place(slice(0, rows), vectors)), 1)
    assert found[0][0] == expected.tobytes()


@pytest.mark.parametrize("dim", (1, 3, 20))
def test_no_code_lies_beyond_the_ends_and_they_are_tight(dim: int, rng: np.random.Generator) -> None:
    family = hash_checks.build(dim, -3, 7, **EUCLIDEAN, rows=64)
    code = coder_of(family)
    lower, upper = family._space.ends
    least, largest = code.ends(lower, upper)
    units = fastfood.spread(code, np.eye(dim, dtype=np.float32))
    directions = fastfood.rotated(code, slice(0, len(code.permutations)), units).reshape(-1, dim)[: len(code)]
    corners = np.where(directions > 0, upper, lower).astype(np.float32)
    points = np.concatenate([corners, rng.uniform(lower, upper, (500, dim)).astype(np.float32)])
    plain = numpy_engine.coder(code)
    codes = plain.codes(slice(0, len(code)), plain.prepare(points))
    assert np.all(codes >= least[:, None])
    assert np.all(codes <= largest[:, None])
    assert np.mean(codes.max(axis=1) == largest) > 0.95
    norms = replace(code, scales=code.scales).scales * np.sqrt(code.size * np.square(np.maximum(-lower, upper)).sum())
    assert np.all(largest <= np.floor(norms * 1.01 + 1))


def test_far_queries_are_refused() -> None:
    family = hash_checks.build(20, -3, 7, **EUCLIDEAN)
    counters = np.zeros(family.shape, np.int64)
    assert family.answer(counters, np.full((1, 20), 1e6)).value.tolist() == [0.0]
    with pytest.raises(RecordError, match=r"number 1 .*32 bits"):
        family.answer(counters, [[0.0] * 20, [1e10] + [0.0] * 19])


def test_where_a_direction_has_few_rows_blocks_get_smaller() -> None:
    assert [fastfood.block_size(dim) for dim in (1, 2, 3, 64, 65)] == [2, 2, 4, 64, 128]
    assert [fastfood.block_rows(64, rows) for rows in (1, 15, 16, 100, 1000)] == [1, 1, 2, 8, 16]
    assert [fastfood.block_rows(1024, rows) for rows in (100, 1000, 10_000)] == [8, 64, 256]


# ------------------------------------------------------------------------------------------------------------- plan
def test_fields_make_the_same_family_and_the_seed_another() -> None:
    family = hash_checks.build(5, -3, 3, **EUCLIDEAN)
    assert family.to_fields()["draws"] == "fastfood"
    assert Hashed.from_table(Table(family.to_fields(), "sketch"), family.record) == family
    other = hash_checks.build(5, -3, 3, **EUCLIDEAN, seed=4)
    one, two = coder_of(family), coder_of(other)
    assert not np.array_equal(one.diagonals, two.diagonals)
    assert not np.array_equal(one.scales, two.scales)
    assert (one.flips**2 == 1).all()
    assert np.array_equal(np.sort(one.permutations, axis=1)[0], np.arange(one.size))


@pytest.mark.parametrize(
    "keys, match",
    (
        ({"kernel": "manhattan", "bandwidth": 3}, "only the kernels euclidean and angular"),
        ({"kernel": "laplacian", "bandwidth": 3}, "only the kernels euclidean and angular"),
        ({"kernel": "euclidean", "bandwidth": "0.0001"}, "draws: .*rounding"),
        ({"groups": [{"columns": [0, 1], "kernel": "euclidean", "bandwidth": 3}]}, "groups"),
    ),
)
def test_what_cannot_be_drawn_so_is_refused(keys: dict[str, object], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        hash_checks.build(2, -5, 5, **keys, draws="fastfood")


@pytest.mark.parametrize("dim, rows, degrees", ((3, 100, 63), (40, 200, 11), (40, 1000, 61), (40, 16, 7), (40, 3, 2)))
def test_degrees_of_freedom_are_those_of_the_blocks(dim: int, rows: int, degrees: int) -> None:
    family = hash_checks.build(dim, -5, 5, **EUCLIDEAN, rows=rows)
    assert family.answer(np.zeros(family.shape, np.int64), np.zeros((1, dim))).degrees == degrees


def test_dependent_rows_have_no_median() -> None:
    family = hash_checks.build(2, -5, 5, **EUCLIDEAN)
    with pytest.raises(ValueError, match="dependent"):
        family.answer(np.zeros(family.shape, np.int64), [[0.0, 0.0]], groups=2)
