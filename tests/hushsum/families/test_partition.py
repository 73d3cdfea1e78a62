"""The partition family: cells, hashes with signs, what they make of answers, and what is refused."""

import math
import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import t

from hushsum.errors import DeltaError, PlanError, Reason, RecordError
from hushsum.families import Increments, SetRecords, VectorRecords
from hushsum.families.partition import Partition, signed_hashes
from hushsum.families.partition.density import density, volumes
from hushsum.kernels import euclidean
from hushsum.public_random import PublicSeed, PublicStream
from hushsum.schema import Table

Floats = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
FALSE_ALARM = 1e-6


def family_of(dim: int = 2, low: str = "0", high: str = "10", **sketch: object) -> Partition:
    keys: dict[str, object] = {"bandwidth": 1, "rows": 5, "buckets": 16, "seed": 7, **sketch}
    return Partition.from_table(
        Table(keys, "sketch"), VectorRecords(dim, (Fraction(low),) * dim, (Fraction(high),) * dim)
    )


def counters_of(family: Partition, records: npt.ArrayLike) -> Int64:
    counters = np.zeros(family.shape, np.int64)
    family.add(counters, family.accept(records)[0])
    return counters


# ------------------------------------------------------------------------------------------------------------- cells
def words_by_integers(family: Partition, x: list[float], level: int) -> list[int]:
    """The cell of a record whose coordinates and bounds float64 divides without rounding, in exact arithmetic."""
    words = []
    for value, low, high in zip(x, family.record.lower, family.record.upper, strict=True):
        cells = math.ceil((high - low) / family.bandwidth)
        words.append(min(math.floor((Fraction(value) - low) / family.bandwidth), cells - 1) >> level)
    return words


def counters_by_integers(family: Partition, records: Floats) -> Int64:
    """The family's definition in Python's integers, without its code."""
    counters, rows, width = np.zeros(family.shape, np.int64), family.rows, family.buckets
    d = family.record.dim
    for level in range(family.levels):
        places = PublicStream(PublicSeed(family.seed.value), f"partition/level {level}/buckets").words(rows * (d + 1))
        signs = PublicStream(PublicSeed(family.seed.value), f"partition/level {level}/signs").words(rows * (d + 1))
        for row in range(rows):
            m, s = (list(map(int, line.reshape(rows, d + 1)[row])) for line in (places, signs))
            for x in records.tolist():
                words = [1, *words_by_integers(family, x, level)]
                h, sign = (sum(a * b for a, b in zip(line, words, strict=True)) % 2**64 for line in (m, s))
                bucket = (h >> 32) * width >> 32
                counters[level * rows + row, bucket] += -1 if sign >> 63 else 1
    return counters


@pytest.mark.parametrize("kernels", ("plain", "fast"))
@pytest.mark.parametrize("buckets", (8, 13))
def test_counters_are_those_of_the_definition_in_integers(
    buckets: int, kernels: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    family = family_of(dim=3, low="-3", high="5", bandwidth="0.25", levels=3, rows=4, buckets=buckets)
    records = rng.integers(-3 * 64, 5 * 64, (40, 3), endpoint=True) / 64
    assert np.array_equal(counters_of(family, records), counters_by_integers(family, records))


def test_every_record_within_the_bounds_has_a_cell_and_the_last_one_is_closed() -> None:
    grid = family_of(dim=1, high="255", bandwidth=5).tables.grid
    assert grid is not None
    assert grid.counts.tolist() == [51]
    points = np.array([[0], [4.9999995], [5], [254.9], [255]], np.float32)
    assert grid.codes(points).tolist() == [[0], [0], [1], [50], [50]]
    assert grid.words(points).tolist() == [[0, 0, 1, 50, 50]]
    low, high = grid.corners(np.array([[0], [50]]))
    assert (low.tolist(), high.tolist()) == ([[0], [250]], [[5], [255]])


def test_the_cells_of_a_level_are_halves_of_those_above(rng: np.random.Generator) -> None:
    """Where nothing collides, a cell's records are those of its children together, at each level."""
    family = family_of(dim=2, high="7", levels=4, bandwidth="0.3", buckets=1024, rows=2)
    counters = counters_of(family, rng.uniform(0, 7, (3000, 2)))
    tables, grid = family.tables, family.tables.grid
    assert grid is not None
    for level in range(3):
        counts = grid.level_counts(level)
        codes = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"), axis=-1).reshape(-1, 2)
        parents: dict[tuple[int, int], float] = {}
        for code, count in zip((codes >> 1).tolist(), tables.read(counters, codes, level), strict=True):
            parents[code[0], code[1]] = parents.get((code[0], code[1]), 0.0) + count
        above = tables.read(counters, np.array(list(parents)), level + 1)
        assert above.tolist() == list(parents.values())
        assert len(parents) == math.prod(grid.level_counts(level + 1).tolist())


def test_a_query_beyond_the_bounds_has_no_cell_and_no_error(rng: np.random.Generator) -> None:
    family = family_of(buckets=4)
    counters = rng.integers(-9, 9, family.shape)
    beyond = np.array([[-0.1, 5], [5, 10.1], [1e300, 5]])
    answer = family.answer(counters, np.append(beyond, [[0.0, 10.0]], axis=0))
    assert answer.value[:3].tolist() == answer.std_error[:3].tolist() == [0, 0, 0]
    assert answer.std_error[3] > 0
    assert family.kernel([[10, 10]], beyond).tolist() == [[0, 0, 0]]
    assert family.kernel([[99.0, 99.0]], [[10.0, 10.0], [9.5, 9.5], [8.9, 9.5]]).tolist() == [[1, 1, 0]]


# ----------------------------------------------------------------------------------------------- hashes with signs
Draw = Callable[..., signed_hashes.SignedHashes]


def without_signs(*seed: Any, **sizes: Any) -> signed_hashes.SignedHashes:
    right = signed_hashes.draw(*seed, **sizes)
    return replace(right, signs=np.zeros_like(right.signs))


def one_hash_for_both(*seed: Any, **sizes: Any) -> signed_hashes.SignedHashes:
    right = signed_hashes.draw(*seed, **sizes)
    return replace(right, signs=right.places)


def bits_of_one_hash(*seed: Any, **sizes: Any) -> signed_hashes.SignedHashes:
    """The sign is the bit of h below those of the bucket: pairwise independent, and yet not independent enough."""
    right = signed_hashes.draw(*seed, **sizes)
    return replace(right, signs=right.places << np.uint64(64 - right.shift))


LINE = np.array([[8], [9], [10], [11], [12], [13]])
COUNTS = np.array([0, 40, 25, 0, 25, 40])


def row_errors(draw: Draw, seed: int, rows: int = 40_000) -> Floats:
    """What each of many rows reads at the empty cell 11 of a line of cells."""
    drawn = draw(PublicSeed(seed % 2**53), 0, rows=rows, parts=1, buckets=8, counts=None)
    tokens = drawn.tokens(slice(0, rows), LINE.T[None].astype(np.uint64))
    bucket, sign = tokens >> 1, 1 - 2 * (tokens & 1)
    return np.asarray(((bucket == bucket[:, 3:4]) * sign * COUNTS).sum(axis=1) * sign[:, 3], np.float64)


def assert_unbiased(draw: Draw, seed: int) -> None:
    errors = row_errors(draw, seed)
    reach = t.isf(FALSE_ALARM / 2, len(errors) - 1) * errors.std(ddof=1) / math.sqrt(len(errors))
    assert abs(errors.mean()) <= reach, errors.mean()


def assert_variance_is_that_of_collisions(draw: Draw, seed: int) -> None:
    """Σc²/W, within five standard errors of the mean of squares (bounded, 40,000 rows: normal; false alarm 6e-7)."""
    squares = np.square(row_errors(draw, seed))
    expected = np.square(COUNTS).sum() / 8
    assert abs(squares.mean() - expected) <= 5 * squares.std() / math.sqrt(len(squares)), squares.mean() / expected


@pytest.mark.statistical
def test_signs_make_a_row_unbiased_with_the_variance_of_its_collisions(seed: int) -> None:
    """False alarm 2e-6 for both."""
    assert_unbiased(signed_hashes.draw, seed)
    assert_variance_is_that_of_collisions(signed_hashes.draw, seed)


@pytest.mark.statistical
@pytest.mark.parametrize("mistake", (without_signs, one_hash_for_both))
def test_missing_signs_and_signs_of_the_bucket_are_caught(mistake: Draw, seed: int) -> None:
    with pytest.raises(AssertionError):
        assert_unbiased(mistake, seed)


@pytest.mark.statistical
def test_signs_from_the_same_hash_as_the_bucket_are_caught(seed: int) -> None:
    """Cells on either side of the query share its bucket together, with opposite signs, or alike."""
    with pytest.raises(AssertionError):
        assert_variance_is_that_of_collisions(bits_of_one_hash, seed)


def test_where_all_cells_fit_none_collide(rng: np.random.Generator) -> None:
    family = family_of(buckets=100, rows=3)
    records, queries = rng.uniform(0, 10, (500, 2)), rng.uniform(0, 10, (50, 2))
    exact = family.kernel(records, queries).sum(axis=0)
    answer = family.answer(counters_of(family, records), queries, noise_variance=12.0)
    assert answer.value.tolist() == exact.tolist()
    assert answer.spread == "noise"
    assert np.all(answer.std_error == 2.0)
    assert family_of(buckets=99, rows=3).answer(counters_of(family, records)[:, :99], queries).spread == "rows"


# ------------------------------------------------------------------------------------------------------------ engines
@pytest.mark.parametrize(
    "keys",
    (
        {"levels": 3, "bandwidth": "0.01", "buckets": 1 << 16},
        {"dim": 40, "bandwidth": 3, "buckets": 1000, "rows": 7},
        {"cells": "lsh", "power": 3, "bandwidth": 2, "buckets": 999, "dim": 5, "rows": 12},
        {"bandwidth": 5, "buckets": 4},
    ),
)
def test_both_engines_give_the_same_bytes(
    keys: dict[str, Any], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = family_of(**keys)
    records, queries = rng.uniform(0, 10, (9000, family.record.dim)), rng.uniform(-1, 11, (60, family.record.dim))
    found = []
    for kernels in ("plain", "fast"):
        monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
        counters, parts = counters_of(family, records), [family.encode(family.accept(records[:n])[0]) for n in (1, 300)]
        answers = [family.answer(counters, queries, groups=groups) for groups in (None, 1, 2, 5)]
        arrays: list[npt.NDArray[Any]] = [counters, *(part.indices for part in parts), *(part.values for part in parts)]
        arrays += [array for answer in answers for array in (answer.value, answer.std_error)]
        found.append([array.tobytes() for array in arrays])
    assert found[0] == found[1]


def test_encoding_many_records_is_adding_them(rng: np.random.Generator) -> None:
    """More records than half the buckets are counted, fewer are sorted; some counters cancel to 0 either way."""
    family = family_of(buckets=64, levels=2, bandwidth="0.5")
    for n in (1, 31, 32, 700):
        records = family.accept(rng.uniform(0, 10, (n, 2)))[0]
        counters, increments = np.zeros(family.shape, np.int64), family.encode(records)
        counters.reshape(-1)[increments.indices] = increments.values
        assert np.array_equal(counters, counters_of(family, records))
        assert np.all(increments.values != 0)


@pytest.mark.parametrize("cells", ("grid", "lsh"))
def test_a_longer_batch_takes_no_more_memory(
    cells: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", "plain")
    family, peaks = family_of(cells=cells), []
    for n in (20_000, 100_000):
        records = family.accept(rng.uniform(0, 10, (n, 2)))[0]
        counters_of(family, records[:10])
        counters = np.zeros(family.shape, np.int64)
        tracemalloc.start()
        family.add(counters, records)
        family.answer(counters, records[:100])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


def test_a_pickled_family_holds_its_fields_alone() -> None:
    family = family_of(rows=1000)
    before = pickle.dumps(family)
    counters_of(family, [[1, 2]])
    assert pickle.dumps(family) == before
    assert pickle.loads(before) == family


# ----------------------------------------------------------------------------------------------------------- answers
def test_a_median_of_means_shrugs_off_one_full_cell(rng: np.random.Generator) -> None:
    """A cell of a million records spoils one row in eight of others, and with them their means."""
    family = family_of(rows=45, buckets=8)
    records = np.concatenate([np.full((20, 2), 1.5), np.full((1000, 2), 8.5)])
    counters = counters_of(family, records) + 1000 * counters_of(family, records[-1000:])
    median, mean = (family.answer(counters, [[1.5, 1.5]], groups=groups) for groups in (45, None))
    assert abs(median.value[0] - 20) < 1
    assert abs(mean.value[0] - 20) > 1000
    assert (median.spread, median.degrees, mean.degrees) == ("groups", 44, 44)


@pytest.mark.parametrize("groups", (0, -1, 6))
def test_groups_that_rows_cannot_make_are_refused(groups: int) -> None:
    family = family_of(rows=5)
    with pytest.raises(ValueError, match="groups"):
        family.answer(np.zeros(family.shape, np.int64), [[1, 1]], groups=groups)


def test_one_row_says_that_it_knows_no_error() -> None:
    family = family_of(rows=1)
    assert np.isnan(family.answer(counters_of(family, [[1, 1]]), [[1, 1]]).std_error).all()


def test_the_kernel_of_lsh_cells_is_the_collision_probability(rng: np.random.Generator) -> None:
    family = family_of(cells="lsh", bandwidth=2, power=3)
    x, y = rng.uniform(0, 10, (2, 5, 2))
    distances = np.sqrt(np.square(x[:, None] - y[None]).sum(axis=2))
    assert np.allclose(family.kernel(x, y), euclidean(distances, 2.0, 3), rtol=1e-12)
    with pytest.raises(RecordError, match="number 1 is too far"):
        family.answer(np.zeros(family.shape, np.int64), [[1.0, 1.0], [1e12, 0.0]])


@pytest.mark.statistical
def test_the_error_of_a_density_holds_the_noise_of_the_counters_and_of_the_count(rng: np.random.Generator) -> None:
    """4,000 noised sketches of 800 records: the ratio of variances is within 0.85 to 1.15 at 1e-6, and n's part is
    three quarters of the cell's: either alone is caught."""
    family = family_of(bandwidth=5, buckets=16, rows=1)
    counters = counters_of(family, np.concatenate([rng.uniform(0, 5, (700, 2)), rng.uniform(5, 10, (100, 2))]))
    found = []
    for _ in range(4000):
        noised, n = counters + rng.integers(-50, 51, counters.shape), 800 + float(rng.integers(-50, 51))
        found.append(density(family, noised, [[1.0, 1.0]], n, noise_variance=50 * 51 / 3))
    ratio = np.mean([answer.std_error[0] ** 2 for answer in found]) / np.var([answer.value[0] for answer in found])
    assert 0.85 < ratio < 1.15, ratio


def test_densities_integrate_to_one_over_cells_that_the_bounds_cut(rng: np.random.Generator) -> None:
    family = family_of(bandwidth=3, buckets=16, rows=1)
    counters = counters_of(family, rng.uniform(0, 10, (800, 2)))
    centres = np.stack(np.meshgrid([1, 4, 7, 9.5], [1, 4, 7, 9.5]), axis=-1).reshape(-1, 2)
    space = volumes(family, centres)
    assert sorted(set(space.round(9).tolist())) == [1, 3, 9]
    found = density(family, counters, centres, 800, noise_variance=0.0)
    assert (found.value * space).sum() == pytest.approx(1, abs=1e-12)
    outside = density(family, counters, [[11, 1]], 800, noise_variance=4.0)
    assert (outside.value.tolist(), outside.std_error.tolist()) == ([0], [0])
    assert np.isnan(volumes(family, [[11, 1]])).all()
    with pytest.raises(ValueError, match="no volume"):
        volumes(family_of(cells="lsh"), centres)


# ----------------------------------------------------------------------------------------------------------- refused
def increments_of(values: list[int], indices: list[int] | None = None) -> Increments:
    places = list(range(len(values))) if indices is None else indices
    return Increments(np.array(places, np.int64), np.array(values, np.int64))


SMALL = family_of(rows=2, buckets=4, bandwidth=1)


@pytest.mark.parametrize(
    ("values", "indices", "n"),
    (
        ([3, 1], [0, 4], 2),  # more than the records
        ([2, 1, 1, 1], [0, 1, 4, 5], 2),  # together more than the records
        ([1, 2], [0, 4], 2),  # odd in a row of even sum
        ([2], [0], 1),
        ([2, 0], [0, 4], 2),  # a zero is no entry
        ([1], [0], 1),  # nothing in the second row, which one record cannot leave
        ([2**63 - 1, -(2**63), 2, 2], [0, 1, 4, 5], 2),
        ([-(2**63), 2], [0, 4], 2),
        ([2**38, 2**38, 2, 2], [0, 1, 4, 5], 2**38),
    ),
)
def test_check_refuses_what_no_records_make(values: list[int], indices: list[int], n: int) -> None:
    with pytest.raises(DeltaError) as caught:
        SMALL.check(increments_of(values, indices), n)
    assert caught.value.reason == Reason.IMPOSSIBLE_COUNTS


@pytest.mark.parametrize(
    ("values", "indices", "n"),
    (
        ([], [], 2),
        ([2, -2], [0, 4], 2),
        ([1, -1, 2], [0, 3, 5], 2),
        ([-(2**38), 2**37, -(2**37)], [3, 4, 5], 2**38),
    ),
)
def test_check_takes_what_records_make(values: list[int], indices: list[int], n: int) -> None:
    SMALL.check(increments_of(values, indices), n)


@pytest.mark.parametrize(("levels", "buckets"), ((1, 16), (1, 20), (2, 16), (3, 12)))
def test_check_refuses_cells_that_are_no_sum_of_records(levels: int, buckets: int, rng: np.random.Generator) -> None:
    """Where no cells collide each row's signed cells sum to the records: no wrong sign, no bucket without cell."""
    family, size = family_of(high="4", rows=2, buckets=buckets, levels=levels), 2 * buckets
    honest = family.encode(family.accept(rng.uniform(0, 4, (50, 2)))[0])
    family.check(honest, 50)
    collides = buckets < 16  # the finest level, of 16 cells
    for at in range(len(honest.values)):
        wrong = honest.values.copy()
        wrong[at] *= -1
        if collides and honest.indices[at] < size:
            family.check(Increments(honest.indices, wrong), 50)
            continue
        with pytest.raises(DeltaError, match="that are no sum of 50 records"):
            family.check(Increments(honest.indices, wrong), 50)
        less = honest.values.copy()
        less[at] -= 2 * np.sign(less[at])
        kept = less != 0
        with pytest.raises(DeltaError, match="that are no sum of 50 records"):
            family.check(Increments(honest.indices[kept], less[kept]), 50)
    cells = 1 if levels == 3 else 4 if levels == 2 else 16
    if cells < buckets:
        beyond = honest.indices.copy()
        beyond[-1] = levels * size - 1  # the last bucket of the last row has no cell
        with pytest.raises(DeltaError, match="that are no sum of 50 records"):
            family.check(Increments(beyond, honest.values), 50)


@pytest.mark.parametrize("n", (-1, 2**38 + 1))
def test_check_refuses_a_number_of_records_that_no_delta_has(n: int) -> None:
    with pytest.raises(DeltaError):
        SMALL.check(increments_of([]), n)


@pytest.mark.parametrize(
    ("keys", "named"),
    (
        ({"cells": "voronoi"}, "sketch.cells"),
        ({"power": 2}, "sketch.power"),
        ({"cells": "lsh", "levels": 2}, "sketch.levels"),
        ({"kernel": "euclidean"}, "sketch.kernel"),
        ({"draws": "independent"}, "sketch.draws"),
        ({"levels": 0}, "sketch.levels"),
        ({"levels": 6}, "sketch.levels"),
        ({"bandwidth": 0}, "sketch.bandwidth"),
        ({"bandwidth": "1e-9"}, "sketch.bandwidth"),
        ({"bandwidth": Fraction(2**65)}, "sketch.bandwidth"),
        ({"cells": "lsh", "bandwidth": "1e-9"}, "sketch.bandwidth"),
        ({"buckets": 1}, "sketch.buckets"),
        ({"rows": 2**20, "buckets": 2**12}, "sketch.rows"),
        ({"rows": 2**20, "dim": 300, "buckets": 2}, "sketch.rows"),
        ({"dim": 2**16 + 1}, "record.dim"),
    ),
)
def test_a_plan_with_a_wrong_key_is_refused_by_its_name(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(PlanError, match=named):
        family_of(**keys)


def test_levels_up_to_one_cell_are_taken() -> None:
    family = family_of(levels=5)
    assert family.tables.grid is not None
    assert family.tables.grid.level_counts(4).tolist() == [1, 1]
    assert family.shape == (25, 16)


def test_sets_have_no_cells() -> None:
    with pytest.raises(PlanError, match=r"record\.kind"):
        Partition.from_table(Table({"bandwidth": 1, "rows": 1, "buckets": 2}, "sketch"), SetRecords(100))


def test_counters_of_another_shape_are_refused() -> None:
    family = family_of()
    with pytest.raises(ValueError, match="counters"):
        family.add(np.zeros((5, 15), np.int64), family.accept([[1, 1]])[0])
    with pytest.raises(ValueError, match="counters"):
        family.answer(np.zeros((5, 15), np.int64), [[1, 1]])
