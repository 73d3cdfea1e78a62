"""The fourier family: what it refuses, what it writes, and where its answers and their error bars come from."""

import math
import pickle
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from hushsum import canonical
from hushsum.errors import DeltaError, PlanError, Reason, RecordError
from hushsum.families.base import Increments, SetRecords, VectorRecords
from hushsum.families.fourier import Fourier
from hushsum.parameters import Parameters, digest
from hushsum.schema import Table

KEYS: dict[str, object] = {"kernel": "gaussian", "bandwidth": 2.5, "rows": 24, "seed": 3}
RNG = np.random.default_rng(7)
FREQUENCIES = np.concatenate([RNG.normal(0, 1.4, (24, 2)), RNG.random((24, 1))], axis=1).astype(np.float32)
GIVEN = Parameters.of([FREQUENCIES])
EVERY: tuple[dict[str, object], ...] = (
    {},
    {"kernel": "laplacian", "fraction_bits": 4},
    {"kernel": "cauchy", "fraction_bits": 16},
    {"kernel": "exponential-p", "exponent": "1.25"},
    {"draws": "sobol"},
    {"draws": "sobol", "sobol_sets": 4},
    {"draws": "orthogonal"},
    {"draws": "given", "parameters": digest(FREQUENCIES)},
    {"transforms": [{"kind": "scale", "factor": [2, "0.5"]}]},
)


def bounds(lower: float | Fraction = 0, upper: float | Fraction = 10, dim: int = 2) -> VectorRecords:
    return VectorRecords(dim, (Fraction(lower),) * dim, (Fraction(upper),) * dim)


def family(record: VectorRecords | None = None, beside: Parameters = GIVEN, /, **changes: object) -> Fourier:
    keys = {key: value for key, value in {**KEYS, **changes}.items() if value is not ...}
    return Fourier.from_table(Table(keys, "sketch"), record or bounds(), beside)


def counters_of(sketched: Fourier, records: npt.ArrayLike) -> npt.NDArray[np.int64]:
    counters = np.zeros(sketched.shape, np.int64)
    sketched.add(counters, sketched.accept(records)[0])
    return counters


REFUSED: tuple[tuple[dict[str, object], str], ...] = (
    ({"kernel": "euclidean"}, "kernel"),
    ({"kernel": ...}, "kernel"),
    ({"bandwidth": 0}, "bandwidth"),
    ({"bandwidth": "wide"}, "bandwidth"),
    ({"bandwidth": Fraction(1, 2**65)}, "bandwidth"),
    ({"bandwidth": 2**65}, "bandwidth"),
    ({"bandwidth": "1e-10"}, "bandwidth"),
    ({"kernel": "laplacian", "bandwidth": "1e-6"}, "bandwidth"),
    ({"exponent": 1.5}, "exponent"),
    ({"kernel": "exponential-p"}, "exponent"),
    ({"kernel": "exponential-p", "exponent": "0.99"}, "exponent"),
    ({"kernel": "exponential-p", "exponent": "2.01"}, "exponent"),
    ({"rows": 0}, "rows"),
    ({"rows": 2**20 + 1}, "rows"),
    ({"rows": True}, "rows"),
    ({"rows": 25, "draws": "sobol"}, "rows"),
    ({"rows": 25, "draws": "orthogonal"}, "rows"),
    ({"fraction_bits": 3}, "fraction_bits"),
    ({"fraction_bits": 17}, "fraction_bits"),
    ({"draws": "halton"}, "draws"),
    ({"draws": "orthogonal", "kernel": "cauchy"}, "draws"),
    ({"sobol_sets": 8}, "sobol_sets"),
    ({"draws": "sobol", "sobol_sets": 1}, "sobol_sets"),
    ({"parameters": digest(FREQUENCIES)}, "parameters"),
    ({"draws": "given"}, "parameters"),
    ({"draws": "given", "parameters": "0" * 64}, "parameters"),
    ({"draws": "given", "parameters": digest(FREQUENCIES), "rows": 23}, "parameters"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**53}, "seed"),
    ({"bandwith": 1}, "bandwith"),
)


@pytest.mark.parametrize("changes, key", REFUSED)
def test_a_wrong_key_is_refused_by_its_name(changes: dict[str, object], key: str) -> None:
    with pytest.raises(PlanError) as caught:
        family(**changes)
    assert caught.value.key == f"sketch.{key}"


@pytest.mark.parametrize("spoilt", (1.0, -0.01))
def test_given_phases_outside_a_turn_are_refused(spoilt: float) -> None:
    wrong = FREQUENCIES.copy()
    wrong[5, 2] = spoilt
    with pytest.raises(PlanError, match=r"sketch\.parameters: .*0 to below 1 turn"):
        family(bounds(), Parameters.of([wrong]), draws="given", parameters=digest(wrong))


def test_sobol_points_of_too_many_dimensions_are_refused() -> None:
    family(bounds(dim=511), draws="sobol")
    with pytest.raises(PlanError, match=r"sketch\.draws"):
        family(bounds(dim=512), draws="sobol")
    with pytest.raises(PlanError, match=r"sketch\.draws"):
        family(bounds(dim=256), draws="sobol", kernel="exponential-p", exponent=1)


def test_sets_and_too_many_numbers_are_refused() -> None:
    with pytest.raises(PlanError, match=r"record\.kind"):
        Fourier.from_table(Table(dict(KEYS), "sketch"), SetRecords(10))
    with pytest.raises(PlanError, match=r"sketch\.rows: .*at most 335544\b"):
        family(bounds(dim=100), rows=335_545)


@pytest.mark.parametrize("kernel", ("gaussian", "laplacian", "cauchy", "exponential-p"))
def test_plans_of_maps_and_colours_are_taken(kernel: str) -> None:
    exponent: object = "1.3" if kernel == "exponential-p" else ...
    city = VectorRecords(2, (Fraction("-74.1"), Fraction("40.5")), (Fraction("-73.15"), Fraction("40.9")))
    for record, bandwidth in ((city, "0.01"), (bounds(0, 255, 3), 5)):
        assert counters_of(
            family(record, kernel=kernel, bandwidth=bandwidth, exponent=exponent), [[*map(float, record.lower)]]
        ).any()


@pytest.mark.parametrize("changes", EVERY)
def test_the_fields_are_canonical_and_make_the_same_family(changes: dict[str, object]) -> None:
    sketched = family(**changes)
    written = sketched.to_fields()
    canonical.encode(written)
    back = Fourier.from_table(Table(written, "sketch"), sketched.record, GIVEN)
    assert back == sketched
    assert back.to_fields() == written
    assert sketched.digests == ((digest(FREQUENCIES),) if changes.get("draws") == "given" else ())


@pytest.mark.parametrize("changes", EVERY)
def test_a_family_survives_pickling_without_its_tables(changes: dict[str, object], rng: np.random.Generator) -> None:
    sketched, records = family(**changes), rng.uniform(0, 10, (20, 2))
    before = counters_of(sketched, records)
    copy = pickle.loads(pickle.dumps(sketched))
    assert copy == sketched
    assert "_pairs" not in copy.__dict__
    assert np.array_equal(counters_of(copy, records), before)


def test_fewer_independent_pairs_are_a_prefix_of_more(rng: np.random.Generator) -> None:
    records = rng.uniform(0, 10, (30, 2))
    assert np.array_equal(counters_of(family(rows=9), records), counters_of(family(rows=40), records)[:9])


def test_another_seed_draws_other_frequencies_unless_they_are_given(rng: np.random.Generator) -> None:
    records = rng.uniform(0, 10, (30, 2))
    for changes in EVERY:
        same = np.array_equal(counters_of(family(**changes), records), counters_of(family(**changes, seed=4), records))
        assert same == (changes.get("draws") == "given")


@pytest.mark.parametrize("changes", EVERY)
@pytest.mark.parametrize("n", (0, 1, 200))
def test_increments_pass_their_own_checks_and_survive_packing(
    changes: dict[str, object], n: int, rng: np.random.Generator
) -> None:
    sketched = family(**changes)
    increments = sketched.encode(sketched.accept(rng.uniform(-2, 12, (n, 2)))[0])
    sketched.check(increments, n)
    encoding, data = sketched.pack(increments, max(n, 1))
    assert len(data) <= sketched.packed_bytes_max(max(n, 1))
    back = sketched.unpack(encoding, data, max(n, 1))
    assert np.array_equal(back.indices, increments.indices)
    assert np.array_equal(back.values, increments.values)


def test_packed_bytes_beyond_what_the_records_can_make_are_refused(rng: np.random.Generator) -> None:
    sketched = family()
    increments = sketched.encode(sketched.accept(rng.uniform(0, 10, (500, 2)))[0])
    large = Increments(increments.indices, increments.values * 1000)
    encoding, data = sketched.pack(large, 500_000)
    with pytest.raises(DeltaError) as caught:
        sketched.unpack(encoding, data, 1)
    assert caught.value.reason in {Reason.MALFORMED, Reason.IMPOSSIBLE_COUNTS}


def test_a_query_whose_phases_cannot_be_told_is_refused() -> None:
    sketched, counters = family(kernel="laplacian"), np.zeros((24, 2), np.int64)
    assert np.isfinite(sketched.answer(counters, [[1e9, -1e9]]).value).all()
    for far in (1e25, 1e300):
        with pytest.raises(RecordError, match="number 1 is too far"):
            sketched.answer(counters, [[1.0, 2.0], [far, 0.0]])


def test_counters_and_records_of_another_shape_are_refused() -> None:
    sketched = family()
    with pytest.raises(ValueError, match="counters"):
        sketched.answer(np.zeros((2, 24), np.int64), [[1.0, 2.0]])
    with pytest.raises(ValueError, match="counters"):
        sketched.add(np.zeros((24, 2), np.int64).T, sketched.accept([[1.0, 2.0]])[0])
    with pytest.raises(RecordError):
        sketched.add(np.zeros((24, 2), np.int64), np.full((1, 2), 99.0, np.float32))


# ----------------------------------------------------------------------------------------------- answers, error bars
def reference(sketched: Fourier, counters: npt.NDArray[np.int64], query: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """What each pair alone answers, from sketches of one pair each: independent of how answers are summed."""
    only = np.zeros((sketched.rows, *sketched.shape), np.int64)
    for p in range(sketched.rows):
        only[p, p] = counters[p] * sketched.rows
    return np.array([sketched.answer(alone, query).value[0] for alone in only])


def test_an_answer_is_the_mean_of_its_pairs_and_its_error_that_of_a_mean(rng: np.random.Generator) -> None:
    sketched, query = family(), rng.uniform(0, 10, (1, 2))
    counters = counters_of(sketched, rng.uniform(0, 10, (300, 2)))
    alone, answer = reference(sketched, counters, query), sketched.answer(counters, query)
    assert (answer.spread, answer.degrees) == ("rows", 23)
    assert answer.value[0] == pytest.approx(alone.mean(), rel=1e-9)
    assert answer.std_error[0] == pytest.approx(alone.std(ddof=1) / math.sqrt(24), rel=1e-9)


@pytest.mark.parametrize("draws, sets", (("sobol", 8), ("orthogonal", 12)))
def test_pairs_that_depend_on_each_other_give_the_error_of_their_sets(
    draws: str, sets: int, rng: np.random.Generator
) -> None:
    sketched, query = family(draws=draws), rng.uniform(0, 10, (1, 2))
    counters = counters_of(sketched, rng.uniform(0, 10, (300, 2)))
    means = reference(sketched, counters, query).reshape(sets, -1).mean(axis=1)
    answer = sketched.answer(counters, query)
    assert (answer.spread, answer.degrees) == ("sets", sets - 1)
    assert answer.value[0] == pytest.approx(means.mean(), rel=1e-9)
    assert answer.std_error[0] == pytest.approx(means.std(ddof=1) / math.sqrt(sets), rel=1e-9)
    with pytest.raises(ValueError, match="groups"):
        sketched.answer(counters, query, groups=4)


@pytest.mark.parametrize("groups", (1, 2, 5, 24))
def test_groups_give_the_median_of_their_means(groups: int, rng: np.random.Generator) -> None:
    sketched, query = family(), rng.uniform(0, 10, (1, 2))
    counters = counters_of(sketched, rng.uniform(0, 10, (300, 2)))
    alone = reference(sketched, counters, query)
    ends = [24 * g // groups for g in range(groups + 1)]
    means = np.array([alone[start:stop].mean() for start, stop in pairwise(ends)])
    answer = sketched.answer(counters, query, groups=groups)
    assert answer.spread == "groups"
    assert answer.value[0] == pytest.approx(np.median(means), rel=1e-9)
    assert math.isnan(answer.std_error[0]) == (groups == 1)


@pytest.mark.parametrize("groups", (0, 25, -1, True))
def test_groups_that_are_no_part_of_the_pairs_are_refused(groups: int) -> None:
    with pytest.raises(ValueError, match="groups"):
        family().answer(np.zeros((24, 2), np.int64), [[1.0, 2.0]], groups=groups)


def test_given_frequencies_answer_their_own_kernel_with_the_noise_alone_as_error(rng: np.random.Generator) -> None:
    sketched = family(draws="given", parameters=digest(FREQUENCIES))
    records, queries = rng.uniform(0, 10, (300, 2)), rng.uniform(0, 10, (20, 2))
    answer = sketched.answer(counters_of(sketched, records), queries, noise_variance=9.0)
    assert np.all(np.abs(answer.value - sketched.kernel(records, queries).sum(axis=0)) < 300 * sketched.kernel_error)
    assert np.all(answer.std_error == math.sqrt(sketched.answer_variance(9.0)))
    assert answer.spread == "noise"
    assert sketched.kernel_min == -1.0 <= sketched.kernel(records, queries).min() < 0.0


def test_one_pair_has_an_answer_and_no_error() -> None:
    sketched = family(rows=1)
    answer = sketched.answer(counters_of(sketched, [[1.0, 2.0]]), [[1.0, 2.0]])
    assert answer.value[0] == pytest.approx(1.0, abs=1e-3)
    assert math.isnan(answer.std_error[0])


def test_noise_has_the_stated_part_in_an_answer(rng: np.random.Generator) -> None:
    """The answer is linear in the counters: its weights are read one by one, and their squares add up to ‖g‖²."""
    sketched, query = replace(family(), rows=10), rng.uniform(0, 10, (1, 2))
    weights = []
    for index in range(20):
        counters = np.zeros((10, 2), np.int64)
        counters.reshape(-1)[index] = 2**30
        weights.append(sketched.answer(counters, query).value[0] / 2**30)
    assert sum(w * w for w in weights) * 7.0 == pytest.approx(sketched.answer_variance(7.0), rel=1e-9)
