"""Error bars that cover where rows are few, depend on each other, or are no draws; and kernels that they are about."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom, chi2

from hushsum.errors import RecordError
from hushsum.families import Hashed, SetRecords, VectorRecords
from hushsum.families.estimators import Division
from hushsum.families.fourier import Fourier
from hushsum.families.lsh import numpy_engine
from hushsum.families.lsh.placement import Rehash
from hushsum.learned_hashes import given_hash
from hushsum.parameters import Parameters, digest
from hushsum.schema import Table
from tests.hushsum.families.lsh import hash_checks

FALSE_ALARM = 1e-6
Floats = npt.NDArray[np.float64]


def counters_of(family: Hashed | Fourier, records: object) -> npt.NDArray[np.int64]:
    counters = np.zeros(family.shape, np.int64)
    family.add(counters, family.accept(records)[0])  # type: ignore[arg-type]  # sets, or vectors
    return counters


def coverage(make: Callable[[int], Hashed | Fourier], records: Floats, query: Floats, seed: int, trials: int) -> int:
    """How many 95 % intervals hold the exact sum."""
    hits = 0
    for number in range(trials):
        family = make((seed + number) % 2**53)
        truth = float(family.kernel(records, query).sum())
        low, high = family.answer(counters_of(family, records), query).interval(0.95)
        hits += bool(low <= truth <= high)
    return hits


def least(trials: int, rate: float) -> float:
    """Hits that a true coverage falls short of once in a million runs of a test."""
    return float(binom.ppf(FALSE_ALARM, trials, rate))


# -------------------------------------------------------------------------------------------------------- few rows
@pytest.mark.statistical
def test_bars_of_few_rows_are_wide_enough(seed: int) -> None:
    """300 sketches of 2 rows: Student's t with one degree covers about 92 %, the normal interval about 64 %."""
    records, query = np.random.default_rng(seed).uniform(-2, 2, (500, 2)), np.zeros((1, 2))

    def make(number: int) -> Hashed:
        return hash_checks.build(2, -2, 2, kernel="euclidean", bandwidth=1, rows=2, seed=number)

    assert coverage(make, records, query, seed, 300) >= least(300, 0.88) > 0.75 * 300


@pytest.mark.parametrize("rows, degrees", ((1, None), (2, 1), (40, 39)))
def test_the_spread_of_independent_rows_has_one_degree_of_freedom_less(rows: int, degrees: int | None) -> None:
    hashed = hash_checks.build(2, -2, 2, kernel="euclidean", bandwidth=1, rows=rows)
    record = VectorRecords(2, (Fraction(-2),) * 2, (Fraction(2),) * 2)
    fourier = Fourier.from_table(Table({"kernel": "gaussian", "bandwidth": 1, "rows": rows}, "sketch"), record)
    for family in (hashed, fourier):
        answer = family.answer(counters_of(family, [[0.5, 1.0]]), [[0.0, 1.0]])
        assert (answer.spread, answer.degrees) == ("rows", degrees)
        assert np.isnan(answer.std_error).all() == (rows == 1)


# ------------------------------------------------------------------------------------------------------- dependent
@pytest.mark.statistical
def test_orthogonal_rows_that_err_together_have_bars_that_cover(seed: int) -> None:
    """400 sketches of three directions that orthogonal pairs of signs repeat: the spread of rows covers 78 %."""
    angles = np.deg2rad([45, 135, -90])
    records = np.stack([np.cos(angles), np.sin(angles)], axis=1).repeat(10, axis=0)

    def make(number: int) -> Hashed:
        return hash_checks.build(2, -2, 2, kernel="angular", rows=64, buckets=2, draws="orthogonal", seed=number)

    hits = coverage(make, records, np.array([[1.0, 0.0]]), seed, 400)
    assert hits >= least(400, 0.93) > 0.82 * 400


def test_sets_of_orthogonal_rows_are_whole_blocks_of_all_groups() -> None:
    groups = [
        {"columns": [0, 1], "kernel": "euclidean", "bandwidth": 3},
        {"columns": [2, 3, 4], "kernel": "angular", "power": 2},
    ]
    for rows, keys, sets in (
        (40, {"kernel": "euclidean", "bandwidth": 3}, 8),
        (43, {"kernel": "euclidean", "bandwidth": 3, "power": 2}, 8),
        (640, {"kernel": "angular"}, 64),
        (9, {"kernel": "angular"}, 1),
        (40, {"groups": groups}, 6),
    ):
        family = hash_checks.build(5, -2, 2, rows=rows, draws="orthogonal", **keys)
        answer = family.answer(counters_of(family, np.eye(5)), np.zeros((1, 5)) + 0.1)
        assert (answer.spread, answer.degrees) == ("sets", sets - 1 if sets > 1 else None)
        assert np.isnan(answer.std_error).all() == (sets == 1)
    one = hash_checks.build(1, -2, 2, kernel="euclidean", bandwidth=3, rows=40, draws="orthogonal")
    assert one.answer(counters_of(one, [[0.5]]), [[0.0]]).spread == "rows"


def test_what_no_block_is_left_for_goes_into_the_last_set() -> None:
    assert Division.of_blocks(43, 5).ends.tolist() == [0, 5, 10, 15, 20, 25, 30, 35, 43]
    assert Division.of_blocks(4, 5).ends.tolist() == [0, 4]
    sizes = np.diff(Division.of_blocks(1003, 5).ends)
    assert len(sizes) == 64
    assert set(sizes[:-1].tolist()) == {15, 20}
    assert sizes.sum() == 1003


@pytest.mark.statistical
def test_the_error_of_unequal_sets_is_that_of_their_mean(rng: np.random.Generator) -> None:
    """30,000 queries of 23 normal rows in sets of 5, 5, 5 and 8: the ratio is 1 within 5 σ of 0.5 % each."""
    rows = rng.normal(size=(23, 30_000))

    def read(some: slice) -> tuple[Floats, Floats, Floats]:
        part = rows[some]
        return part[0], (part - part[0]).sum(axis=0), np.square(part - part[0]).sum(axis=0)

    value, error = Division.of_blocks(23, 5).reduce(read)
    assert np.allclose(value, rows.mean(axis=0))
    assert np.square(error).mean() * 23 == pytest.approx(1.0, abs=0.03)


def test_bars_of_one_permutation_allow_for_rows_that_share_ids(rng: np.random.Generator) -> None:
    keys: dict[str, object] = {"kernel": "jaccard", "minhash": "one-permutation", "rows": 64, "buckets": 50}
    family = Hashed.from_table(Table(keys, "sketch"), SetRecords(50))
    counters = rng.integers(0, 9, family.shape)
    query = [np.array([3, 17])]
    codes = numpy_engine.coder(family._tables.code)
    chosen = codes.codes(slice(0, 64), codes.prepare(family._space.queries(query)))[:, 0]
    read = counters[np.arange(64), chosen]
    assert not family.rehashed
    expected = math.sqrt(2) * read.std(ddof=1) / 8
    assert family.answer(counters, query).std_error[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.statistical
def test_one_permutation_of_small_sets_errs_no_more_than_its_bars_say(seed: int) -> None:
    """Sets of 3 ids in 64 bins over 300 seeds, by χ²."""
    keys: dict[str, object] = {"kernel": "jaccard", "minhash": "one-permutation", "rows": 64, "buckets": 300}
    records, query, found = [np.array([1, 2, 3])], [np.array([2, 3, 4])], []
    for number in range(300):
        family = Hashed.from_table(Table({**keys, "seed": (seed + number) % 2**53}, "sketch"), SetRecords(300))
        answer = family.answer(counters_of(family, records), query)
        found.append((answer.value[0], answer.std_error[0]))
    values, errors = np.array(found).T
    ratio = np.square(values - 0.5).sum() / np.square(errors).mean()
    assert ratio < chi2.isf(FALSE_ALARM, 300), ratio / 300


# ----------------------------------------------------------------------------------------------------------- given
@pytest.mark.statistical
def test_given_rows_that_are_rehashed_have_bars_that_cover(seed: int) -> None:
    """100 sketches: multipliers are drawn, and collisions of other codes are most of the error. Noiseless bars of 0
    would cover nothing."""
    table = given_hash(np.eye(3, dtype=np.float32), rows=32, bandwidth=5.0, seed=1)
    rng = np.random.default_rng(seed)
    records, query = rng.uniform(0, 100, (2000, 3)), np.full((1, 3), 50.0)
    keys: dict[str, object] = {"kernel": "euclidean", "rows": 32, "buckets": 16, "draws": "given"}

    def make(number: int) -> Hashed:
        brought = Parameters.of([table])
        family = hash_checks.build(3, 0, 100, brought, **keys, parameters=digest(table), seed=number)
        assert isinstance(family._tables.placement, Rehash)
        return family

    answer = make(1).answer(counters_of(make(1), records), query, noise_variance=5.0)
    assert (answer.spread, answer.degrees) == ("rows", 31)
    assert coverage(make, records, query, seed, 100) >= least(100, 0.93)


def coherent(pairs: int) -> tuple[Fourier, Floats, Floats]:
    """Given pairs that all have the same phase, and records and queries just beside the edge of one of its steps."""
    table = np.zeros((pairs, 2), np.float32)
    table[:, 0], table[:, 1] = 1.0, 0.25
    keys: dict[str, object] = {"kernel": "gaussian", "bandwidth": 1, "rows": pairs, "draws": "given"}
    record = VectorRecords(1, (Fraction(-1),), (Fraction(1),))
    family = Fourier.from_table(Table({**keys, "parameters": digest(table)}, "sketch"), record, Parameters.of([table]))
    step = 2 * np.pi / 512
    return family, np.full((20_000, 1), -60 * step - 1e-4), np.linspace(-1, 1, 401)[:, None]


def test_the_steps_of_given_phases_are_part_of_the_kernel() -> None:
    family, records, queries = coherent(64)
    answer = family.answer(counters_of(family, records), queries)
    off = np.abs(answer.value / len(records) - family.kernel(records[:1], queries)[0]).max()
    assert off <= family.kernel_error < 2e-4
    smooth = np.cos(records[:1] - queries.T)[0]
    assert np.abs(family.kernel(records[:1], queries)[0] - smooth).max() > 5e-3, "a step of 2π/512 moves every pair"


def test_the_kernel_of_given_pairs_is_one_at_equal_points_and_clips_records() -> None:
    family, records, _ = coherent(8)
    x = np.concatenate([records[:1], [[0.3], [-1.0], [1.0]]])
    assert np.array_equal(np.diag(family.kernel(x, x)), np.ones(4))
    assert np.array_equal(family.kernel([[7.0]], x), family.kernel([[1.0]], x))
    assert family.kernel(x[:0], x).shape == (0, 4)
    with pytest.raises(RecordError, match="records: number 0 has NaN"):
        family.kernel([[np.nan]], x)
