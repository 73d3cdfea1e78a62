"""The mathematics that every sketch family must keep, for whatever stands in ``FAMILIES``.

A check is a function that raises AssertionError; planted mistakes below show that it does.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom, chi2, t

from hushsum.families import FAMILIES, Answer, Family, Hashed
from hushsum.families.lsh.placement import Rehash
from hushsum.schema import Table
from tests.checks.examples import EXAMPLES, Example, Floats, Int64

FALSE_ALARM = 1e-6
TRIALS = 200
Make = Callable[[int], Family]


@pytest.fixture(params=EXAMPLES, ids=lambda example: f"{example.family}-{example.label}")
def example(request: pytest.FixtureRequest) -> Example:
    found: Example = request.param
    return found


def wide(example: Example) -> Make:
    return lambda number: example.build(number, **example.wide)


def assert_means(samples: Floats, expected: Floats, tests: int, slack: float = 0.0) -> None:
    """Each column's mean is as expected, by Student's t at the false alarm over so many tests in all."""
    reach = t.isf(FALSE_ALARM / (2 * tests), len(samples) - 1) * samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    allowed = np.maximum(reach, 1e-9 * (1 + np.abs(expected))) + slack
    wrong = np.flatnonzero(np.abs(samples.mean(axis=0) - expected) > allowed)
    assert not len(wrong), [(int(i), float(samples.mean(axis=0)[i]), float(expected[i])) for i in wrong]


def assert_answers_are_the_kernel(make: Make, example: Example, seed: int) -> None:
    """E[f(x)·g(y)] = k(x, y) for each pair, over many seeds: the answer of a sketch of x alone at y."""
    x, y = (example.each(points) for points in example.points.pairs(np.random.default_rng(seed)))
    exact, seeds = example.build(), example.seeds if example.seeded else 2
    samples = np.empty((seeds, len(x)))
    for number in range(seeds):
        family = make(seed + number)
        for i in range(len(x)):
            samples[number, i] = family.answer(example.counters_of(family, x[i]), y[i]).value[0]
    expected = np.array([exact.kernel(a, b)[0, 0] for a, b in zip(x, y, strict=True)])
    assert_means(samples, expected, len(x), exact.kernel_error)


def assert_sums_are_unbiased(make: Make, example: Example, seed: int) -> None:
    """The answers of a noiseless sketch are Σ k(x, q) on average."""
    rng, exact = np.random.default_rng(seed), example.build()
    records, queries = example.points.random(rng, 200), example.points.queries(rng, 4)
    seeds = example.seeds if example.seeded else 2
    samples = np.empty((seeds, 4))
    for number in range(seeds):
        family = make(seed + number)
        samples[number] = family.answer(example.counters_of(family, records), queries).value
    assert_means(samples, exact.kernel(records, queries).sum(axis=0), 4, 200 * exact.kernel_error)


def assert_noise_has_its_variance(family: Family, query: Any, rng: np.random.Generator, *, even: bool = True) -> None:
    """Noise of variance 10 on zero counters: the answers' variance by χ², and their mean."""
    draws = 800 if even else 200  # an upper limit alone is far from the truth if it is wrong
    values = np.array([family.answer(rng.integers(-5, 6, family.shape), query).value[0] for _ in range(draws)])
    ratio = draws * np.square(values).mean() / family.answer_variance(10.0)
    assert ratio < chi2.isf(FALSE_ALARM / 4, draws), ratio / draws
    assert ratio > (chi2.isf(1 - FALSE_ALARM / 4, draws) if even else 0.0), ratio / draws
    assert_means(values[:, None], np.zeros(1), 2)


def assert_bars_cover(make: Make, example: Example, seed: int) -> None:
    """95 % intervals of noised sketches hold the exact sum in 95 % of the trials, by the binomial distribution.

    The band is fifteen points wide at 200 trials: bars that are a third too short fail (see below).
    """
    rng, exact, inside = np.random.default_rng(seed), example.build(), 0
    half = 3 * exact.sensitivity.linf  # of the noise, uniform on integers from −half to half
    variance = half * (half + 1) / 3
    for number in range(TRIALS):
        family = make(seed + number)
        records, query = example.points.random(rng, 60), example.points.queries(rng, 1)
        counters = example.counters_of(family, records) + rng.integers(-half, half + 1, family.shape)
        answer = family.answer(counters, query, noise_variance=variance)
        truth, slack = exact.kernel(records, query).sum(), 60 * exact.kernel_error if answer.bias is None else 0.0
        low, high = answer.interval(0.95)
        inside += bool(low - slack <= truth <= high + slack)
    least, most = binom.isf(1 - FALSE_ALARM / 2, TRIALS, 0.95), binom.isf(FALSE_ALARM / 2, TRIALS, 0.95)
    assert least <= inside <= (TRIALS if example.cautious else most), inside / TRIALS


def test_every_family_has_examples() -> None:
    assert {example.family for example in EXAMPLES} == set(FAMILIES)


def test_every_family_is_listed_under_its_own_name() -> None:
    assert all(family.name == name for name, family in FAMILIES.items())


@pytest.mark.statistical
def test_the_product_of_f_and_g_is_the_kernel_on_average(example: Example, seed: int) -> None:
    """Eight or nine pairs; false alarm 1e-6 in all. A bandwidth that is 5 % wrong fails (see below)."""
    assert_answers_are_the_kernel(wide(example), example, seed)


@pytest.mark.long
@pytest.mark.statistical
def test_answers_of_a_noiseless_sketch_are_unbiased(example: Example, seed: int) -> None:
    """Four queries; false alarm 1e-6 in all.

    What is shown above of single records holds of sums where sketches and answers are linear, which is checked below.
    """
    assert_sums_are_unbiased(wide(example), example, seed)


@pytest.mark.statistical
def test_noise_on_the_counters_has_the_stated_part_in_an_answer(example: Example, rng: np.random.Generator) -> None:
    """False alarm 1e-6; answers are means of many counters, normal enough for χ² with the noise's flat tails."""
    assert_noise_has_its_variance(example.build(), example.points.queries(rng, 1), rng, even=example.even)


@pytest.mark.statistical
def test_error_bars_cover_at_their_nominal_rate(example: Example, seed: int) -> None:
    """False alarm 1e-6."""
    assert_bars_cover(lambda number: example.build(number, **example.bars), example, seed)


def test_the_kernel_is_symmetric_within_one_and_one_on_the_diagonal(example: Example, rng: np.random.Generator) -> None:
    if not example.kernel:
        pytest.skip("queries of this family are no records")
    x = example.points.join(example.points.random(rng, 20), example.points.inside())
    family = example.build()
    k = family.kernel(x, x)
    assert np.allclose(k, k.T, rtol=1e-12, atol=1e-15)
    assert np.all((k >= family.kernel_min) & (k <= 1))
    assert np.all(np.diag(k) == 1)


def assert_no_counter_weighs_more(family: Family, queries: Any, rng: np.random.Generator) -> None:
    """Of random counters, one at a time."""
    counters = np.zeros(family.shape, np.int64)
    for number in rng.integers(0, counters.size, 200):
        counters.flat[number] = 2**30
        assert np.abs(family.answer(counters, queries).value).max() / 2**30 <= family.answer_weight_max * (1 + 1e-12)
        counters.flat[number] = 0


def test_no_counter_has_more_weight_in_an_answer_than_is_said(example: Example, rng: np.random.Generator) -> None:
    assert_no_counter_weighs_more(example.build(), example.points.queries(rng, 50), rng)


# ----------------------------------------------------------------------------------------------------- sensitivity
def test_one_record_changes_no_more_than_the_sensitivity_says(example: Example, rng: np.random.Generator) -> None:
    """By brute force over random and extreme records; each bound is reached by one of them at least."""
    family, stated = example.build(), example.build().sensitivity
    seen: list[tuple[int, int, int, int]] = []
    for record in example.each(example.points.join(example.points.random(rng, 200), example.points.extreme())):
        change = np.abs(example.counters_of(family, record).reshape(-1)).tolist()
        seen.append((sum(c != 0 for c in change), sum(change), sum(c * c for c in change), max(change)))
    reached, bound = np.max(seen, axis=0), (stated.l0, stated.l1, stated.l2_squared, stated.linf)
    assert np.all(reached <= bound)
    assert not example.reached or tuple(reached) == bound


def test_rows_that_say_so_sum_to_the_number_of_records(example: Example, rng: np.random.Generator) -> None:
    """Of exact counters they tell it exactly; of noise alone with the variance that the family states."""
    family = example.build()
    if not family.rows_sum_to_records:
        with pytest.raises(ValueError, match="a count counter tells it"):
            family.records_in(np.zeros(family.shape, np.int64))
        return
    for n in (0, 1, 90):
        assert round(family.records_in(example.counters_of(family, example.points.random(rng, n))), 6) == n
    drawn = np.array([family.records_in(rng.integers(-1, 2, family.shape)) for _ in range(400)])  # of variance 2/3
    assert drawn.var() == pytest.approx(family.record_rows.count * 2 / 3, rel=5 * math.sqrt(2 / 400))


def test_encoding_gives_what_adding_does_to_zeroes(example: Example, rng: np.random.Generator) -> None:
    family = example.build()
    for n in (0, 1, 2, 15, 300):
        records = example.points.random(rng, n)
        increments = family.encode(example.accepted(family, records))
        added = np.zeros(family.shape, np.int64)
        added.reshape(-1)[increments.indices] = increments.values
        assert increments.indices.dtype == increments.values.dtype == np.int64
        assert np.array_equal(added, example.counters_of(family, records))
        assert np.all(np.diff(increments.indices) > 0)
        assert np.all(increments.values != 0)
        assert len(increments.indices) <= min(n * family.sensitivity.l0, int(np.prod(family.shape)))


def test_sketches_are_linear(example: Example, rng: np.random.Generator) -> None:
    family, points, records = example.build(), example.points, example.points.random(rng, 90)
    whole = example.counters_of(family, records)
    parts = [points.take(records, np.arange(a, b)) for a, b in ((0, 1), (1, 30), (30, 90))]
    assert np.array_equal(whole, sum(example.counters_of(family, part) for part in parts))
    assert np.array_equal(whole, example.counters_of(family, points.take(records, rng.permutation(90))))
    assert np.array_equal(3 * whole, example.counters_of(family, points.join(records, records, records)))
    counters = rng.integers(-100, 100, family.shape)
    expected = counters + whole
    family.add(counters, example.accepted(family, records))
    assert np.array_equal(counters, expected)


def test_answers_are_linear_in_the_counters(example: Example, rng: np.random.Generator) -> None:
    family, queries = example.build(), example.points.queries(rng, 9)
    a, b = rng.integers(-1000, 1000, (2, *family.shape))
    separate = family.answer(a, queries).value + 2 * family.answer(b, queries).value
    assert np.allclose(family.answer(a + 2 * b, queries).value, separate, rtol=1e-9, atol=1e-6)


# -------------------------------------------------------------------------------------------------- planted mistakes
REHASHED = next(example for example in EXAMPLES if example.label == "power-of-two")


class Unadjusted(Hashed):
    """Forgets that different codes share a bucket in one row of W."""

    def answer(self, counters: Int64, queries: npt.ArrayLike, **how: Any) -> Answer:
        right = super().answer(counters, queries, **how)
        total = counters.sum(axis=1).mean()
        return replace(right, value=right.value * (1 - 1 / self.buckets) + total / self.buckets)


class Timid(Hashed):
    """Bars that are a third too short."""

    def answer(self, counters: Int64, queries: npt.ArrayLike, **how: Any) -> Answer:
        right = super().answer(counters, queries, **how)
        return replace(right, std_error=right.std_error * 2 / 3)


def mistaken(kind: type[Hashed], **keys: object) -> Make:
    def make(number: int) -> Family:
        table = Table({**REHASHED.sketch, **REHASHED.wide, **keys, "seed": number % 2**53}, "sketch")
        return kind.from_table(table, REHASHED.points.record)

    return make


def assert_pairs_fail(make: Make, example: Example, seed: int) -> None:
    with pytest.raises(AssertionError):
        assert_answers_are_the_kernel(make, example, seed)


@pytest.mark.statistical
def test_an_answer_without_the_correction_is_caught(seed: int) -> None:
    assert_pairs_fail(mistaken(Unadjusted), REHASHED, seed)
    with pytest.raises(AssertionError):
        assert_sums_are_unbiased(mistaken(Unadjusted), REHASHED, seed)


@pytest.mark.statistical
def test_bars_that_are_too_short_are_caught(seed: int) -> None:
    with pytest.raises(AssertionError):
        assert_bars_cover(mistaken(Timid, rows=100), REHASHED, seed)


@pytest.mark.statistical
def test_a_bare_modulus_is_caught(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def modulus(self: Rehash, rows: slice, codes: Int64) -> Int64:
        return np.asarray(codes.sum(axis=1) % self.buckets, np.int64)

    monkeypatch.setenv("HUSHSUM_KERNELS", "plain")
    monkeypatch.setattr(Rehash, "place", modulus)
    monkeypatch.setattr(Rehash, "place_within", modulus)
    assert_pairs_fail(wide(REHASHED), REHASHED, seed)


@pytest.mark.long
@pytest.mark.statistical
def test_a_kernel_that_is_5_percent_off_is_caught(example: Example, seed: int) -> None:
    if not example.steep:
        pytest.skip("no key of these parameters moves the kernel")
    right = Fraction(str(example.sketch[example.steep]))
    wrong = right * Fraction(105 if EXAMPLES.index(example) % 2 else 95, 100)
    keys = {**example.wide, example.steep: wrong}
    assert_pairs_fail(lambda number: example.build(number, **keys), example, seed)


def test_a_weight_that_is_too_small_is_caught(rng: np.random.Generator) -> None:
    class Light(Hashed):
        @property
        def answer_weight_max(self) -> float:
            return 0.9 / self.rows

    family = Light.from_table(Table({**REHASHED.sketch, "seed": 1}, "sketch"), REHASHED.points.record)
    with pytest.raises(AssertionError):
        assert_no_counter_weighs_more(family, REHASHED.points.queries(rng, 50), rng)


@pytest.mark.statistical
def test_a_variance_that_forgets_the_correction_is_caught(rng: np.random.Generator) -> None:
    class Forgetful(Hashed):
        def answer_variance(self, counter_variance: float) -> float:
            return counter_variance / self.rows

    keys = {**REHASHED.sketch, "buckets": 3, "seed": 1}
    family = Forgetful.from_table(Table(keys, "sketch"), REHASHED.points.record)
    with pytest.raises(AssertionError):
        assert_noise_has_its_variance(family, REHASHED.points.queries(rng, 1), rng)
