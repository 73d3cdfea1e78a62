"""The hashed family: what it refuses, what it takes, and where its answers come from."""

import math
import pickle
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.errors import DeltaError, PlanError, Reason, RecordError
from hushsum.families import Hashed, Increments, VectorRecords
from hushsum.families.lsh.placement import Direct
from hushsum.schema import Table
from tests.hushsum.families.lsh import reference

KEYS: dict[str, object] = {"kernel": "euclidean", "bandwidth": 2.5, "rows": 20, "buckets": 64, "seed": 3}


def bounds(lower: float | Fraction = 0, upper: float | Fraction = 10, dim: int = 2) -> VectorRecords:
    return VectorRecords(dim, (Fraction(lower),) * dim, (Fraction(upper),) * dim)


def family(record: VectorRecords | None = None, /, **changes: object) -> Hashed:
    keys = {key: value for key, value in {**KEYS, **changes}.items() if value is not ...}
    return Hashed.from_table(Table(keys, "sketch"), record or bounds())


def counters_of(sketched: Hashed, records: npt.ArrayLike) -> npt.NDArray[np.int64]:
    counters = np.zeros(sketched.shape, np.int64)
    sketched.add(counters, sketched.accept(records)[0])
    return counters


REFUSED: tuple[tuple[str, object], ...] = (
    ("kernel", "gaussian"),
    ("kernel", ...),
    ("bandwidth", 0),
    ("bandwidth", -1.5),
    ("bandwidth", "wide"),
    ("bandwidth", Fraction(1, 2**65)),
    ("bandwidth", 2**65),
    ("bandwidth", ...),
    ("power", 0),
    ("power", 9),
    ("power", 1.0),
    ("rows", 0),
    ("rows", 2**20 + 1),
    ("rows", True),
    ("rows", ...),
    ("buckets", 1),
    ("buckets", 2**24 + 1),
    ("buckets", ...),
    ("draws", "halton"),
    ("seed", -1),
    ("seed", 2**53),
    ("seed", 1.5),
    ("bandwith", 1),
)


@pytest.mark.parametrize("key, value", REFUSED)
def test_a_wrong_key_is_refused_by_its_name(key: str, value: object) -> None:
    with pytest.raises(PlanError) as caught:
        family(**{key: value})
    assert caught.value.key == f"sketch.{key}"


def test_more_counters_than_memory_are_refused_with_the_rows_that_would_do() -> None:
    with pytest.raises(PlanError, match=r"sketch\.rows: .*at most 128\b"):
        family(rows=129, buckets=2**24)
    with pytest.raises(PlanError, match=r"sketch\.rows: .*at most 8192\b"):
        family(bounds(dim=4096), rows=8193, buckets=2, bandwidth=10**6)


@pytest.mark.parametrize(
    "record, key",
    (
        (bounds(-(2**65), 0), "record.lower"),
        (bounds(0, 2**65), "record.upper"),
        (bounds(1, 1 + Fraction(1, 2**30)), "record.upper"),
        (bounds(16_777_216, 16_777_217), "record.upper"),
        (bounds(0, 10, dim=65_537), "record.dim"),
    ),
)
def test_bounds_that_float32_cannot_hold_are_refused_by_their_name(record: VectorRecords, key: str) -> None:
    with pytest.raises(PlanError) as caught:
        family(record)
    assert caught.value.key == key


def test_a_bandwidth_below_the_rounding_of_coordinates_is_refused_with_the_least_that_would_do() -> None:
    with pytest.raises(PlanError, match=r"sketch\.bandwidth.*32 bits"):
        family(bounds(0, 2**40), bandwidth=1)
    with pytest.raises(PlanError, match=r"sketch\.bandwidth.*more than about \S+, .*32 bits") as caught:
        family(bounds(0, 2**40), bandwidth=2**20)
    least = float(caught.value.expected.split()[3].rstrip(","))
    with pytest.raises(PlanError, match=r"sketch\.bandwidth"):
        family(bounds(0, 2**40), bandwidth=0.99 * least)
    widest = family(bounds(0, 2**40), bandwidth=1.01 * least, rows=500)
    corners = np.array([*product((0.0, 2.0**40), repeat=2)])
    accepted, _ = widest.accept(corners)
    assert np.abs(reference.codes(widest._tables.projection, accepted)).max() < 2**31
    assert np.array_equal(counters_of(widest, corners), reference.counters(widest._tables, accepted))


@pytest.mark.parametrize("dtype", ("f8", "f4", "i1", "u1", "i4", "u8", "?"))
def test_numbers_of_every_usual_type_are_the_same_records(dtype: str) -> None:
    records = np.array([[0, 1], [1, 1], [1, 0]])
    accepted, kept = family().accept(records.astype(dtype))
    assert accepted.dtype == np.float32
    assert np.array_equal(accepted, records - 5.0)
    assert kept.tolist() == [True] * 3


def test_lists_views_and_other_layouts_are_the_same_records(rng: np.random.Generator) -> None:
    records = rng.uniform(0, 10, (40, 2))
    expected = counters_of(family(), records)
    for other in (records.tolist(), np.asfortranarray(records), np.repeat(records, 3, axis=0)[::3], records[::-1]):
        assert np.array_equal(counters_of(family(), other), expected)


def test_accepting_leaves_the_callers_array_alone() -> None:
    for records in (np.array([[99.0, -99.0]], np.float32), np.array([[99.0, np.nan]], np.float32)):
        before = records.tobytes()
        family().accept(records)
        assert records.tobytes() == before


def test_records_are_clipped_to_the_bounds_and_centred() -> None:
    accepted, kept = family().accept([[1e300, -1e300], [10.0, 0.0], [10.000001, -0.0], [3.0, 5.0]])
    assert kept.all()
    assert accepted.tolist() == [[5, -5], [5, -5], [5, -5], [-2, 0]]


def test_records_are_centred_in_float32_whatever_they_came_in() -> None:
    """0.1 is no float32: cast, clip and subtraction each round as the definition says."""
    record = VectorRecords(1, (Fraction("0.1"),), (Fraction("0.7"),))
    accepted, _ = family(record).accept([[0.0], [0.3], [0.9]])
    middle = np.float32(float(Fraction("0.4")))
    assert accepted[:, 0].tolist() == [float(np.float32(x) - middle) for x in (0.1, 0.3, 0.7)]


def test_a_bad_record_is_dropped_alone() -> None:
    records = [[1.0, 1.0], [math.nan, 1.0], [2.0, -math.inf], [3.0, 3.0], [math.inf, math.nan], [1e308, 4.0]]
    accepted, kept = family().accept(records)
    assert kept.tolist() == [True, False, False, True, False, True]
    assert accepted.tolist() == [[-4, -4], [-2, -2], [5, -1]]


@pytest.mark.parametrize("kernels", ("plain", "fast"))
def test_records_that_were_not_accepted_are_refused(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    some, counters = family(), np.zeros((20, 64), np.int64)
    inside = np.full((70, 2), 5.0, np.float32)
    some.encode(inside)
    bad: list[npt.NDArray[Any]] = [np.zeros((1, 3), np.float32), np.zeros(2, np.float32), np.zeros((1, 2))]
    for place, value in product((0, 41, 69), (5.000001, -5.000001, 1e30, math.nan, math.inf, -math.inf)):
        records = inside.copy()
        records[place, place % 2] = value
        bad.append(records)
    for records in bad:
        with pytest.raises(RecordError, match="accept"):
            some.add(counters, records)
        with pytest.raises(RecordError, match="accept"):
            some.encode(records)
    assert not counters.any()


@pytest.mark.parametrize(
    "counters", (np.zeros((20, 63), np.int64), np.zeros((20, 64), np.int32), np.zeros((64, 20), np.int64).T)
)
def test_counters_of_another_layout_are_refused(counters: npt.NDArray[Any]) -> None:
    with pytest.raises(ValueError, match=r"expected C-contiguous int64 \(20, 64\)"):
        family().add(counters, np.zeros((1, 2), np.float32))


PLACED = [(w, p, b) for w in (0.5, 3, 11) for p in (1, 2) for b in (8, 30, 1000)]


@pytest.mark.parametrize("bandwidth, power, buckets", PLACED)
def test_the_placement_is_direct_exactly_where_all_codes_fit(
    bandwidth: float, power: int, buckets: int, rng: np.random.Generator
) -> None:
    """Every corner and 10^5 random records: all buckets within [0, W); the spans are attained, so no other fits."""
    some = family(bounds(-3, 10, dim=3), bandwidth=bandwidth, power=power, buckets=buckets, rows=10)
    corners, _ = some.accept([*product((-3.0, 10.0), repeat=3)])
    codes = reference.codes(some._tables.projection, corners)
    least, largest = codes.min(axis=1), codes.max(axis=1)
    spans = (largest - least + 1).reshape(10, power)
    assert some.rehashed == bool(np.any(spans.prod(axis=1) > buckets))
    chosen = some._tables.placement
    if isinstance(chosen, Direct):
        assert np.array_equal(chosen.lowest.reshape(-1), least)
        assert np.array_equal(chosen.spans, spans)
    records, _ = some.accept(rng.uniform(-4, 11, (100_000, 3)))
    projection = some._tables.projection
    inner = np.floor(
        projection.directions.astype(np.float64) @ records.T.astype(np.float64) + projection.offsets[:, None]
    )
    assert np.all((inner >= least[:, None]) & (inner <= largest[:, None]))
    counters = np.zeros(some.shape, np.int64)
    some.add(counters, corners)
    some.add(counters, records)
    assert np.all(counters.sum(axis=1) == 100_008)
    assert np.all(counters >= 0)


def test_those_placements_are_of_both_kinds() -> None:
    kinds = {family(bounds(-3, 10, dim=3), bandwidth=w, power=p, buckets=b, rows=10).rehashed for w, p, b in PLACED}
    assert kinds == {True, False}


def test_a_query_outside_the_bounds_reads_nothing_from_codes_that_no_record_has() -> None:
    some = family(bandwidth=5, rows=200)
    assert not some.rehashed
    queries = np.array([[1000.0, -700.0], [50.0, 5.0], [10.5, 5.0], [5.0, 5.0]])
    centred = (queries - 5.0).astype(np.float32)
    codes = reference.codes(some._tables.projection, centred)
    chosen = some._tables.placement
    assert isinstance(chosen, Direct)
    within = (codes >= chosen.lowest) & (codes < chosen.lowest + chosen.spans)
    value = some.answer(np.ones(some.shape, np.int64), queries).value
    assert np.allclose(value, within.mean(axis=0), rtol=1e-12)
    assert value[0] < 0.05 < value[1] < 1 == value[3]


@pytest.mark.parametrize("bandwidth", (5, 0.01), ids=("direct", "rehashed"))
def test_a_query_outside_the_bounds_is_not_clipped(bandwidth: float) -> None:
    some = family(bandwidth=bandwidth, rows=500)
    counters = counters_of(some, np.full((1000, 2), 10.0))
    inside, outside = some.answer(counters, [[10.0, 10.0], [10.0 + 10 * bandwidth, 10.0]]).value
    assert inside == pytest.approx(1000)
    assert outside < 300


@pytest.mark.parametrize("far", (1e30, -1e30, 1e39, 1e300, 2.0**31 * 30))
def test_a_query_whose_code_would_leave_32_bits_is_refused_with_its_number(far: float) -> None:
    with pytest.raises(RecordError, match="number 1 is too far"):
        family().answer(np.zeros((20, 64), np.int64), [[0.0, 0.0], [0.0, far], [far, 0.0]])


@pytest.mark.parametrize("bad", (math.nan, math.inf, -math.inf))
def test_a_query_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(RecordError, match="NaN or infinity"):
        family().answer(np.zeros((20, 64), np.int64), [[0.0, bad]])


@pytest.mark.parametrize("bandwidth", (5, 0.01), ids=("direct", "rehashed"))
def test_an_answer_is_the_mean_of_the_rows_with_its_standard_error(bandwidth: float, rng: np.random.Generator) -> None:
    some = family(bandwidth=bandwidth)
    counters = rng.integers(-50, 500, some.shape)  # as after noise: rows of different totals
    queries = rng.uniform(0, 10, (30, 2))
    chosen = reference.buckets(some._tables, some.accept(queries)[0])
    read = np.take_along_axis(counters, chosen, axis=1).astype(np.float64)
    if some.rehashed:
        read = (read - counters.sum(axis=1, keepdims=True) / 64) * 64 / 63
    answer = some.answer(counters, queries)
    assert np.allclose(answer.value, read.mean(axis=0), rtol=1e-12, atol=1e-9)
    assert np.allclose(answer.std_error, read.std(axis=0, ddof=1) / math.sqrt(20), rtol=1e-9, atol=1e-9)


def test_one_row_knows_no_standard_error() -> None:
    some = family(rows=1)
    answer = some.answer(counters_of(some, [[5.0, 5.0]]), [[5.0, 5.0], [0.0, 0.0]])
    assert np.isnan(answer.std_error).all()
    assert np.isfinite(answer.value).all()


@pytest.mark.statistical
@pytest.mark.parametrize("bandwidth, buckets", ((6, 64), (0.5, 16)), ids=("direct", "rehashed"))
def test_the_standard_error_is_honest(bandwidth: float, buckets: int, seed: int) -> None:
    """Over 1,000 seeds the variance of answers agrees with the mean of std_error² within 27 %.

    The ratio's own standard deviation is √(2/1000) = 4.5 % for near-normal answers, so that is 6 σ: false alarm 2e-9 a
    query. An error bar that is half or √2 of the truth fails.
    """
    records = np.random.default_rng(seed).uniform(2, 8, (60, 2))
    queries = [[5.0, 5.0], [3.0, 7.0]]
    answers = []
    for number in range(1000):
        some = family(bandwidth=bandwidth, buckets=buckets, seed=(seed + number) % 2**53)
        answer = some.answer(counters_of(some, records), queries)
        answers.append((answer.value, answer.std_error))
    values, errors = np.array(answers).transpose(1, 0, 2)
    ratio = np.square(errors).mean(axis=0) / values.var(axis=0, ddof=1)
    assert np.all(np.abs(ratio - 1) < 0.27), ratio


def increments(values: dict[tuple[int, int], int]) -> Increments:
    flat = sorted((row * 64 + bucket, value) for (row, bucket), value in values.items())
    return Increments(np.array([i for i, _ in flat], np.int64), np.array([v for _, v in flat], np.int64))


GOOD = {(row, bucket): 1 + bucket for row in range(20) for bucket in (0, 1)}


def test_counts_of_three_records_in_every_row_are_taken() -> None:
    family().check(increments(GOOD), 3)
    family().check(increments({}), 0)


@pytest.mark.parametrize(
    "change, records",
    (
        ({}, 2),
        ({}, 4),
        ({}, 0),
        ({}, -3),
        ({}, 2**40),
        ({(0, 0): 2}, 3),
        ({(19, 63): 1}, 3),
        ({(7, 0): -1, (7, 1): 4}, 3),
        ({(7, 0): -1, (7, 1): 2, (7, 2): 2}, 3),
        ({(7, 0): 2**62, (7, 1): 2**62, (7, 2): 2**62, (7, 3): 2**62 + 3}, 3),
        ({(7, 0): -(2**63)}, 3),
        ({(3, 0): 2, (4, 0): 0}, 3),
    ),
)
def test_counts_that_the_records_cannot_make_are_refused(change: dict[tuple[int, int], int], records: int) -> None:
    with pytest.raises(DeltaError) as caught:
        family().check(increments({**GOOD, **change}), records)
    assert caught.value.reason == Reason.IMPOSSIBLE_COUNTS


@pytest.mark.parametrize("row", (0, 11, 19))
def test_a_row_that_is_missing_is_refused(row: int) -> None:
    with pytest.raises(DeltaError, match=f"row {row} sums to 0, expected 3"):
        family().check(increments({key: value for key, value in GOOD.items() if key[0] != row}), 3)


def test_a_family_is_pickled_by_its_parameters_alone(rng: np.random.Generator) -> None:
    some, records = family(rows=1000), rng.uniform(0, 10, (50, 2))
    counters = counters_of(some, records)
    data = pickle.dumps(some)
    assert len(data) < 2000
    back = pickle.loads(data)
    assert back == some
    assert hash(back) == hash(some)
    assert np.array_equal(counters_of(back, records), counters)


def test_other_parameters_are_another_family() -> None:
    families = {family(), family(seed=4), family(rows=21), family(buckets=65), family(power=2), family(bandwidth=2)}
    assert len(families | {family()}) == 6


def test_fewer_rows_are_a_prefix_of_more(rng: np.random.Generator) -> None:
    records = rng.uniform(0, 10, (30, 2))
    for bandwidth in (5, 0.01):
        few, many = (family(rows=rows, bandwidth=bandwidth) for rows in (5, 30))
        assert np.array_equal(counters_of(few, records), counters_of(many, records)[:5])


def test_defaults_are_those_of_the_format() -> None:
    some = family(seed=...)
    assert some.to_fields() == {
        "kernel": "euclidean",
        "bandwidth": "2.5",
        "power": 1,
        "rows": 20,
        "buckets": 64,
        "draws": "independent",
        "seed": 0,
    }
