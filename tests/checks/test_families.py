"""What every sketch family must do. It finds them in ``FAMILIES``: a new one needs an entry in EXAMPLES and no more.

A check of the mathematics is a function that raises AssertionError; planted mistakes below show that it does.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2, t

from hushsum import canonical
from hushsum.errors import DeltaError, Reason, RecordError
from hushsum.families import FAMILIES, Answer, Family, Hashed, Increments, VectorRecords
from hushsum.families.lsh.placement import Rehash
from hushsum.schema import Table

ROOT = Path(__file__).resolve().parents[2]
Floats = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
FALSE_ALARM = 1e-6
SEEDS = 80


@dataclass(frozen=True)
class Example:
    """Parameters to check a family with; every family has a public ``seed``.

    Attributes:
        family: Its name in FAMILIES.
        label: What is special about these.
        sketch: The keys of ``[sketch]`` without ``family`` and ``seed``.
        dim, low, high: The bounds, the same for each coordinate.
        wide: Keys that make one sketch hold many independent draws of (f, g), for the mathematics.
    """

    family: str
    label: str
    sketch: dict[str, object]
    dim: int
    low: int
    high: int
    wide: dict[str, object]

    def build(self, seed: int = 1, **changes: object) -> Family:
        return FAMILIES[self.family].from_table(
            Table({**self.sketch, "seed": seed % 2**53, **changes}, "sketch"), self.record
        )

    @property
    def record(self) -> VectorRecords:
        return VectorRecords(self.dim, (Fraction(self.low),) * self.dim, (Fraction(self.high),) * self.dim)

    def random(self, rng: np.random.Generator, n: int) -> Floats:
        return rng.uniform(self.low, self.high, (n, self.dim))

    def extreme(self) -> Floats:
        """Corners, the centre and points beyond the bounds."""
        corners = [*product((self.low, self.high), repeat=min(self.dim, 4))]
        points = [[*corner] + [self.high] * (self.dim - len(corner)) for corner in corners]
        middle = (self.low + self.high) / 2
        return np.array([*points, [middle] * self.dim, [1e300] * self.dim, [-1e300] * self.dim])


def hashed(label: str, dim: int, low: int, high: int, **sketch: object) -> Example:
    return Example("hashed", label, {"kernel": "euclidean", "rows": 20, **sketch}, dim, low, high, {"rows": 1000})


EXAMPLES: tuple[Example, ...] = (
    hashed("direct", 2, 0, 10, bandwidth=4, buckets=64),
    hashed("direct-power-2", 2, -1, 1, bandwidth=1, buckets=512, power=2),
    hashed("power-of-two", 3, 0, 255, bandwidth=60, buckets=8),
    hashed("any-width", 1, -5, 5, bandwidth=1, buckets=7, power=2),
    hashed("many-dimensions", 20, 0, 1, bandwidth=1, buckets=100),
)


@pytest.fixture(params=EXAMPLES, ids=lambda example: f"{example.family}-{example.label}")
def example(request: pytest.FixtureRequest) -> Example:
    found: Example = request.param
    return found


def accepted(family: Family, records: npt.ArrayLike) -> npt.NDArray[np.float32]:
    return family.accept(records)[0]


def counters_of(family: Family, records: npt.ArrayLike) -> Int64:
    counters = np.zeros(family.shape, np.int64)
    family.add(counters, accepted(family, records))
    return counters


def dense(family: Family, increments: Increments) -> Int64:
    counters = np.zeros(family.shape, np.int64)
    counters.reshape(-1)[increments.indices] = increments.values
    return counters


# -------------------------------------------------------------------------------------------------- the mathematics
Make = Callable[[int], Family]


def assert_means(samples: Floats, expected: Floats, tests: int) -> None:
    """Each column's mean is as expected, by Student's t at the false alarm over so many tests in all."""
    reach = t.isf(FALSE_ALARM / (2 * tests), len(samples) - 1) * samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    wrong = np.flatnonzero(np.abs(samples.mean(axis=0) - expected) > np.maximum(reach, 1e-9 * (1 + np.abs(expected))))
    assert not len(wrong), [(int(i), float(samples.mean(axis=0)[i]), float(expected[i])) for i in wrong]


def pairs_of(example: Example, seed: int) -> tuple[Floats, Floats]:
    """Random pairs at distances where the kernel is steep, equal, corner to corner, and along the boundary."""
    rng, side = np.random.default_rng(seed), example.high - example.low
    x = example.random(rng, 5)
    steps = np.array([0.03, 0.1, 0.25, 0.5])[:, None] * side / np.sqrt(example.dim)
    y = np.clip(x[:4] + steps * rng.choice([-1.0, 1.0], (4, example.dim)), example.low, example.high)
    low, high = np.full((1, example.dim), example.low), np.full((1, example.dim), example.high)
    edge = low + 0.2 * side * (np.arange(example.dim) == 0)
    return np.concatenate([x, low, low, high]), np.concatenate([y, x[4:], high, edge, high])


def assert_answers_are_the_kernel(make: Make, exact: Family, x: Floats, y: Floats, seed: int) -> None:
    """E[f(x)·g(y)] = k(x, y) for each pair, over SEEDS seeds: the answer of a sketch of x alone at y."""
    samples = np.empty((SEEDS, len(x)))
    for number in range(SEEDS):
        family = make(seed + number)
        for i in range(len(x)):
            sketched = dense(family, family.encode(accepted(family, x[i : i + 1])))
            samples[number, i] = family.answer(sketched, y[i : i + 1]).value[0]
    expected = np.array([exact.kernel(x[i : i + 1], y[i : i + 1])[0, 0] for i in range(len(x))])
    assert_means(samples, expected, len(x))


def assert_sums_are_unbiased(make: Make, exact: Family, records: Floats, queries: Floats, seed: int) -> None:
    """The answers of a noiseless sketch are Σ k(x, q) on average."""
    samples = np.empty((SEEDS, len(queries)))
    for number in range(SEEDS):
        family = make(seed + number)
        samples[number] = family.answer(counters_of(family, records), queries).value
    assert_means(samples, exact.kernel(records, queries).sum(axis=0), len(queries))


def assert_noise_has_its_variance(family: Family, query: Floats, rng: np.random.Generator) -> None:
    """Noise of variance 10 on zero counters: the answers' variance by χ², and their mean."""
    draws = 2500
    values = np.array([family.answer(rng.integers(-5, 6, family.shape), query).value[0] for _ in range(draws)])
    ratio = draws * np.square(values).mean() / family.answer_variance(10.0)
    assert chi2.isf(1 - FALSE_ALARM / 4, draws) < ratio < chi2.isf(FALSE_ALARM / 4, draws), ratio / draws
    assert_means(values[:, None], np.zeros(1), 2)


def test_every_family_has_examples() -> None:
    assert {example.family for example in EXAMPLES} == set(FAMILIES)


def test_every_family_is_listed_under_its_own_name() -> None:
    assert all(family.name == name for name, family in FAMILIES.items())


@pytest.mark.statistical
def test_the_product_of_f_and_g_is_the_kernel_on_average(example: Example, seed: int) -> None:
    """Eight pairs; false alarm 1e-6 in all. A bandwidth that is 5 % wrong fails (see below)."""
    x, y = pairs_of(example, seed)
    assert_answers_are_the_kernel(lambda number: example.build(number, **example.wide), example.build(), x, y, seed)


@pytest.mark.statistical
def test_answers_of_a_noiseless_sketch_are_unbiased(example: Example, seed: int) -> None:
    """Four queries; false alarm 1e-6 in all."""
    rng = np.random.default_rng(seed)
    records, queries = example.random(rng, 200), example.random(rng, 4)
    assert_sums_are_unbiased(
        lambda number: example.build(number, **example.wide), example.build(), records, queries, seed
    )


@pytest.mark.statistical
def test_noise_on_the_counters_has_the_stated_part_in_an_answer(example: Example, rng: np.random.Generator) -> None:
    """False alarm 1e-6; answers are means of many counters, normal enough for χ² with the noise's flat tails."""
    assert_noise_has_its_variance(example.build(), example.random(rng, 1), rng)


def test_the_kernel_is_symmetric_within_one_and_one_on_the_diagonal(example: Example, rng: np.random.Generator) -> None:
    x = np.concatenate([example.random(rng, 20), example.extreme()[:-2]])
    k = example.build().kernel(x, x)
    assert np.allclose(k, k.T, rtol=1e-12, atol=1e-15)
    assert np.all((k >= 0) & (k <= 1))
    assert np.all(np.diag(k) == 1)


# ----------------------------------------------------------------------------------------------------- sensitivity
def test_one_record_changes_no_more_than_the_sensitivity_says(example: Example, rng: np.random.Generator) -> None:
    """By brute force over random and extreme records; each bound is reached by one of them at least."""
    family, stated = example.build(), example.build().sensitivity
    seen: list[tuple[int, int, int, int]] = []
    for record in np.concatenate([example.random(rng, 200), example.extreme()]):
        change = np.abs(counters_of(family, record[None]).reshape(-1)).tolist()
        seen.append((sum(c != 0 for c in change), sum(change), sum(c * c for c in change), max(change)))
    assert tuple(np.max(seen, axis=0)) == (stated.l0, stated.l1, stated.l2_squared, stated.linf)


@pytest.mark.parametrize("n", (0, 1, 2, 15, 300))
def test_encoding_gives_what_adding_does_to_zeroes(example: Example, n: int, rng: np.random.Generator) -> None:
    family, records = example.build(), example.random(rng, n)
    increments = family.encode(accepted(family, records))
    assert increments.indices.dtype == increments.values.dtype == np.int64
    assert np.array_equal(dense(family, increments), counters_of(family, records))
    assert np.all(np.diff(increments.indices) > 0)
    assert np.all(increments.values != 0)
    assert len(increments.indices) <= min(n * family.sensitivity.l0, int(np.prod(family.shape)))


def test_sketches_are_linear(example: Example, rng: np.random.Generator) -> None:
    family, records = example.build(), example.random(rng, 90)
    whole = counters_of(family, records)
    assert np.array_equal(whole, sum(counters_of(family, part) for part in np.split(records, [1, 30])))
    assert np.array_equal(whole, counters_of(family, rng.permutation(records)))
    assert np.array_equal(3 * whole, counters_of(family, np.tile(records, (3, 1))))
    counters = rng.integers(-100, 100, family.shape)
    expected = counters + whole
    family.add(counters, accepted(family, records))
    assert np.array_equal(counters, expected)


def test_answers_are_linear_in_the_counters(example: Example, rng: np.random.Generator) -> None:
    family, queries = example.build(), example.random(rng, 9)
    a, b = rng.integers(-1000, 1000, (2, *family.shape))
    separate = family.answer(a, queries).value + 2 * family.answer(b, queries).value
    assert np.allclose(family.answer(a + 2 * b, queries).value, separate, rtol=1e-9, atol=1e-6)


# ------------------------------------------------------------------------------------------------------- same bytes
def digest(example: Example) -> str:
    """Of all that a family computes from some records and queries."""
    rng, family = np.random.default_rng(5), example.build()
    records, queries = np.concatenate([example.random(rng, 1500), example.extreme()]), example.random(rng, 50)
    counters = counters_of(family, records)
    few = family.encode(accepted(family, records[:3]))
    answer = family.answer(counters, queries)
    parts = (counters, few.indices, few.values, answer.value, answer.std_error)
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


def test_plain_and_fast_give_the_same_bytes(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for kernels in ("plain", "fast"):
        monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
        digests.append(digest(example))
    assert digests[0] == digests[1]


@pytest.mark.parametrize("kernels", ("plain", "fast"))
def test_batches_of_any_size_give_the_same_bytes(
    example: Example, kernels: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    family, records = example.build(), example.random(rng, 1000)
    whole, queries = counters_of(family, records), records[:40]
    one_by_one = np.zeros(family.shape, np.int64)
    for i in range(len(records)):
        family.add(one_by_one, accepted(family, records[i : i + 1]))
    assert np.array_equal(one_by_one, whole)
    together = family.answer(whole, queries)
    apart = [family.answer(whole, queries[i : i + 1]) for i in range(len(queries))]
    assert np.concatenate([a.value for a in apart]).tobytes() == together.value.tobytes()
    assert np.concatenate([a.std_error for a in apart]).tobytes() == together.std_error.tobytes()


PROCESS = """
import os
from tests.checks import test_families as suite
for kernels in ("plain", "fast"):
    os.environ["HUSHSUM_KERNELS"] = kernels
    print(*map(suite.digest, suite.EXAMPLES))
"""


def test_another_process_gives_the_same_bytes() -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "proto")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "77"}
    command = [sys.executable, "-c", PROCESS]
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == 2 * [digest(example) for example in EXAMPLES]


# ------------------------------------------------------------------------------------------- what comes from outside
@pytest.mark.parametrize("n", (0, 1, 2, 40))
def test_check_takes_every_honest_increments(example: Example, n: int, rng: np.random.Generator) -> None:
    family = example.build()
    for records in (example.random(rng, n), np.repeat(example.extreme()[:1], n, axis=0)):
        family.check(family.encode(accepted(family, records)), n)


@pytest.mark.parametrize("place", (0, -1))
@pytest.mark.parametrize("sign", (1, -1))
@pytest.mark.parametrize("huge", (False, True))
def test_check_refuses_more_than_the_records_can_make(
    example: Example, place: int, sign: int, huge: bool, rng: np.random.Generator
) -> None:
    family = example.build()
    honest = family.encode(accepted(family, example.random(rng, 5)))
    values = honest.values.copy()
    values[place] = sign * (2**62 if huge else 5 * family.sensitivity.linf + 1)
    with pytest.raises(DeltaError) as caught:
        family.check(replace(honest, values=values), 5)
    assert caught.value.reason == Reason.IMPOSSIBLE_COUNTS


def test_check_refuses_increments_of_no_records(example: Example, rng: np.random.Generator) -> None:
    family = example.build()
    honest = family.encode(accepted(family, example.random(rng, 5)))
    for records in (0, -1):
        with pytest.raises(DeltaError):
            family.check(honest, records)


def bad_arrays(dim: int) -> dict[str, Any]:
    good = np.ones((3, dim))
    return {
        "object": good.astype(object),
        "None": [[None] * dim],
        "complex": good.astype(complex),
        "str": good.astype(str),
        "float16": good.astype(np.float16),
        "datetime": good.astype("M8[s]"),
        "a dimension more": np.ones((3, dim + 1)),
        "a dimension less": np.ones((3, dim - 1)),
        "one point alone": np.ones(dim),
        "a number": 1.0,
        "three axes": good[None],
        "masked": np.ma.masked_array(good, mask=good > 2),
        "ragged": [[1.0] * dim, [1.0] * (dim + 1)],
    }


@pytest.mark.parametrize("what", bad_arrays(1))
def test_an_array_that_cannot_be_used_is_refused(example: Example, what: str) -> None:
    family, array = example.build(), bad_arrays(example.dim)[what]
    with pytest.raises(RecordError, match="records"):
        family.accept(array)
    with pytest.raises(RecordError, match="queries"):
        family.answer(np.zeros(family.shape, np.int64), array)


@pytest.mark.parametrize("bad", (np.nan, np.inf, -np.inf))
def test_a_bad_record_is_dropped_alone_and_a_bad_query_is_refused(
    example: Example, bad: float, rng: np.random.Generator
) -> None:
    family, records = example.build(), example.random(rng, 30)
    spoilt = records.copy()
    spoilt[[0, 7, 29], rng.integers(0, example.dim, 3)] = bad
    rest, kept = family.accept(spoilt)
    assert np.flatnonzero(~kept).tolist() == [0, 7, 29]
    assert np.array_equal(rest, accepted(family, records[kept]))
    with pytest.raises(RecordError):
        family.answer(np.zeros(family.shape, np.int64), spoilt)


def test_records_beyond_the_bounds_are_those_on_the_bounds(example: Example, rng: np.random.Generator) -> None:
    family = example.build()
    far = example.random(rng, 50) * 5 - 2 * (example.low + example.high)
    clipped = np.clip(far, example.low, example.high)
    assert not np.array_equal(far, clipped)
    assert np.array_equal(counters_of(family, far), counters_of(family, clipped))


def test_no_records_change_nothing(example: Example) -> None:
    family, none = example.build(), np.empty((0, example.dim))
    assert not counters_of(family, none).any()
    assert not len(family.encode(accepted(family, none)).indices)
    assert family.answer(counters_of(family, none), none).value.shape == (0,)


def test_the_fields_are_canonical_and_make_the_same_family(example: Example) -> None:
    family = example.build()
    written = family.to_fields()
    canonical.encode(written)
    back = FAMILIES[example.family].from_table(Table(written, "sketch"), example.record)
    assert back == family
    assert back.to_fields() == written
    assert example.build(2) != family


def test_another_seed_places_records_elsewhere(example: Example, rng: np.random.Generator) -> None:
    records = example.random(rng, 50)
    assert not np.array_equal(counters_of(example.build(1), records), counters_of(example.build(2), records))


# -------------------------------------------------------------------------------------------------- planted mistakes
REHASHED = next(example for example in EXAMPLES if example.label == "power-of-two")


class Unadjusted(Hashed):
    """Forgets that different codes share a bucket in one row of W."""

    def answer(self, counters: Int64, queries: npt.ArrayLike) -> Answer:
        right = super().answer(counters, queries)
        total = counters.sum(axis=1).mean()
        return Answer(right.value * (1 - 1 / self.buckets) + total / self.buckets, right.std_error)


def unadjusted(number: int) -> Family:
    keys = {**REHASHED.sketch, **REHASHED.wide, "seed": number % 2**53}
    return Unadjusted.from_table(Table(keys, "sketch"), REHASHED.record)


def assert_pairs_fail(make: Make, example: Example, seed: int) -> None:
    x, y = pairs_of(example, seed)
    with pytest.raises(AssertionError):
        assert_answers_are_the_kernel(make, example.build(), x, y, seed)


@pytest.mark.statistical
def test_an_answer_without_the_correction_is_caught(seed: int) -> None:
    assert_pairs_fail(unadjusted, REHASHED, seed)
    rng = np.random.default_rng(seed)
    records, queries = REHASHED.random(rng, 200), REHASHED.random(rng, 4)
    with pytest.raises(AssertionError):
        assert_sums_are_unbiased(unadjusted, REHASHED.build(), records, queries, seed)


@pytest.mark.statistical
def test_a_bare_modulus_is_caught(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def modulus(self: Rehash, rows: slice, codes: Int64) -> Int64:
        return np.asarray(codes.sum(axis=1) % self.buckets, np.int64)

    monkeypatch.setenv("HUSHSUM_KERNELS", "plain")
    monkeypatch.setattr(Rehash, "place", modulus)
    monkeypatch.setattr(Rehash, "place_within", modulus)
    assert_pairs_fail(lambda number: REHASHED.build(number, **REHASHED.wide), REHASHED, seed)


@pytest.mark.statistical
def test_a_bandwidth_that_is_5_percent_wrong_is_caught(example: Example, seed: int) -> None:
    wrong = Fraction(str(example.sketch["bandwidth"])) * Fraction(105 if EXAMPLES.index(example) % 2 else 95, 100)
    keys = {**example.wide, "bandwidth": wrong}
    assert_pairs_fail(lambda number: example.build(number, **keys), example, seed)


@pytest.mark.statistical
def test_a_variance_that_forgets_the_correction_is_caught(rng: np.random.Generator) -> None:
    class Forgetful(Hashed):
        def answer_variance(self, counter_variance: float) -> float:
            return counter_variance / self.rows

    family = Forgetful.from_table(Table({**REHASHED.sketch, "buckets": 3, "seed": 1}, "sketch"), REHASHED.record)
    with pytest.raises(AssertionError):
        assert_noise_has_its_variance(family, REHASHED.random(rng, 1), rng)
