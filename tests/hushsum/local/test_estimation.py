"""Answers of reports undo the randomiser exactly on average, and say so through the release.

Exactly: decoding is linear in the counters, so counters that hold every report as often as its probability says, in
whole numbers, must give the answer of a whole sketch, to the rounding of float64.
"""

import math
from typing import Any

import numpy as np
import pytest

from hushsum import GuaranteeError, Plan, RecordError, Release, query
from hushsum.families import Hashed
from hushsum.families.fourier import Fourier
from hushsum.local import estimation
from hushsum.local.reports import bit_of, choice_of
from hushsum.noise import Projective
from hushsum.privacy.events import IN_PROCESS
from hushsum.releases import of_reports
from tests.hushsum.local.report_plans import BOTH, Int64, collected, entropy_of, rehashed_plan, report_plan, wave_plan
from tests.plans import small_plan

QUERIES = np.array([[3.0, 3.0], [3.1, 2.9], [8.0, 1.0], [40.0, -7.0]])
SETTINGS = pytest.mark.parametrize("make", [report_plan, rehashed_plan])


def expected_counters(plan: Plan, records: Any, labels: list[str] | None = None) -> tuple[Int64, int]:
    """Counters in which each record sent its whole law, and how many reports that is of each record."""
    family, randomiser = plan.family, choice_of(plan)
    assert isinstance(family, Hashed)
    usable, kept = family.accept(records)
    classes = np.zeros(len(kept), np.int64) if labels is None else np.array([plan.classes.index(x) for x in labels])
    law = {
        value: [randomiser.probability(value, output) for output in range(randomiser.outputs)]
        for value in range(-1, randomiser.inputs)
    }
    whole = math.lcm(*(share.denominator for shares in law.values() for share in shares))
    counters = np.zeros(plan.counters_shape, np.int64)
    for row in range(family.rows):
        values = np.full(len(kept), -1)
        values[kept] = classes[kept] * family.buckets + family.buckets_of(usable, np.full(len(usable), row))
        for value in values.tolist():
            counters[0, row] += [int(share * whole) for share in law[value]]
    return counters, whole * family.rows


def of_sketch(plan: Plan, records: Any, queries: Any) -> Any:
    """What a whole sketch of exact counters answers, in the same rows."""
    counters = np.zeros(plan.family.shape, np.int64)
    plan.family.add(counters, plan.family.accept(records)[0])
    return plan.family.answer(counters, queries).value


@SETTINGS
@pytest.mark.parametrize("randomiser", BOTH)
def test_answers_are_unbiased_exactly(make: Any, randomiser: str, rng: np.random.Generator) -> None:
    plan = make(randomiser, 1.5, sketch={"rows": 4})
    records = np.concatenate([rng.uniform(0, 10, (5, 2)), [[3.0, 3.0]] * 4])
    counters, each = expected_counters(plan, records)
    found = estimation.kernel_sum(plan, counters, QUERIES).value / each
    np.testing.assert_allclose(found, of_sketch(plan, records, QUERIES), atol=1e-9)
    shares = estimation.density(plan, counters, QUERIES).value
    np.testing.assert_allclose(shares, of_sketch(plan, records, QUERIES) / 9, atol=1e-9)


@SETTINGS
@pytest.mark.parametrize("randomiser", BOTH)
def test_answers_and_counts_of_each_class_are_unbiased_exactly(
    make: Any, randomiser: str, rng: np.random.Generator
) -> None:
    plan = make(randomiser, 1.5, sketch={"rows": 4, "buckets": 8}, record={"classes": ["a", "b", "c"]})
    records = np.concatenate([rng.uniform(0, 10, (5, 2)), [[3.0, 3.0]] * 4])
    labels = list("abccaabbb")
    counters, each = expected_counters(plan, records, labels)
    for label in "abc":
        mine = records[np.array(labels) == label]
        found = estimation.kernel_sum(plan, counters, QUERIES, label=label).value / each
        np.testing.assert_allclose(found, of_sketch(plan, mine, QUERIES), atol=1e-9)
        assert estimation.count_of(plan, counters, label) / each == pytest.approx(len(mine))
        shares = estimation.density(plan, counters, QUERIES, label=label).value
        np.testing.assert_allclose(shares, of_sketch(plan, mine, QUERIES) / len(mine), atol=1e-9)
    together = estimation.kernel_sum(plan, counters, QUERIES).value / each
    np.testing.assert_allclose(together, of_sketch(plan, records, QUERIES), atol=1e-9)


@pytest.mark.parametrize("randomiser", BOTH)
def test_an_unusable_record_adds_what_is_stated_to_every_answer(randomiser: str) -> None:
    records = [[3.0, 3.0], [math.nan, 1.0], [math.nan, 2.0]]
    for plan in (report_plan(randomiser, sketch={"rows": 4}), rehashed_plan(randomiser, sketch={"rows": 4})):
        assert isinstance(plan.family, Hashed)
        counters, each = expected_counters(plan, records)
        found = estimation.kernel_sum(plan, counters, QUERIES[:3]).value / each
        stated, width = 1 / choice_of(plan).outputs, plan.family.buckets
        if plan.family.rehashed:
            stated = (stated - 1 / width) * width / (width - 1)
        np.testing.assert_allclose(found - of_sketch(plan, records[:1], QUERIES[:3]), 2 * stated, atol=1e-9)


@pytest.mark.parametrize("draws", ["independent", "sobol", "orthogonal"])
def test_answers_of_bits_are_unbiased_exactly(draws: str, rng: np.random.Generator) -> None:
    plan = wave_plan(1.5, draws=draws, rows=16)
    family, coin = plan.family, bit_of(plan)
    assert isinstance(family, Fourier)
    records = rng.uniform(0, 10, (6, 2))
    counters, whole = np.zeros(plan.counters_shape, np.int64), 0
    usable, _ = family.accept(records)
    zero = coin.probability(0, 1).denominator
    whole = coin.probability(1, 1).denominator * zero
    for feature in range(2 * family.rows):
        entries = family.entries_of(usable, np.full(6, feature)).tolist()
        ones = [coin.probability(entry, 1) * whole for entry in entries]
        assert all(one == int(one) for one in ones)
        counters[0, feature // 2, 2 * (feature % 2) + 1] = int(sum(ones))
        counters[0, feature // 2, 2 * (feature % 2)] = 6 * whole - int(sum(ones))
    queries = QUERIES[:3]
    found = estimation.kernel_sum(plan, counters, queries).value / (whole * 2 * family.rows)
    np.testing.assert_allclose(found, of_sketch(plan, records, queries), atol=1e-7)
    shares = estimation.density(plan, counters, queries).value
    np.testing.assert_allclose(shares, of_sketch(plan, records, queries) / 6, atol=1e-7)


@SETTINGS
def test_the_size_of_a_batch_of_queries_changes_no_bit(make: Any, rng: np.random.Generator) -> None:
    plan = make(record={"classes": ["a", "b"]})
    labels = ["ab"[i] for i in rng.integers(0, 2, 500)]
    counters = collected(plan, rng.uniform(0, 10, (500, 2)), entropy_of(rng), labels)
    for label in (None, "b"):
        every = estimation.kernel_sum(plan, counters, QUERIES, label=label)
        for i, one in enumerate(QUERIES):
            alone = estimation.kernel_sum(plan, counters, one[None], label=label)
            assert (alone.value[0], alone.std_error[0]) == (every.value[i], every.std_error[i])
    nothing = estimation.kernel_sum(plan, counters, np.empty((0, 2)))
    assert len(nothing.value) == len(nothing.std_error) == 0


def test_a_query_outside_all_buckets_reads_exactly_zero(rng: np.random.Generator) -> None:
    plan = report_plan()
    counters = collected(plan, rng.uniform(0, 10, (500, 2)), entropy_of(rng))
    assert estimation.kernel_sum(plan, counters, [[900.0, 900.0]]).value.tolist() == [0.0]


def test_the_number_of_reports_is_exact(rng: np.random.Generator) -> None:
    plan = report_plan(record={"classes": ["a", "b"]})
    counts = np.array([500])
    assert estimation.count(plan, counts) == 500.0
    counters = collected(plan, rng.uniform(0, 10, (500, 2)), entropy_of(rng), ["a"] * 500)
    assert estimation.count_std_error(plan, counters) == 0.0


def test_no_reports_answer_nothing() -> None:
    for plan in (report_plan(), wave_plan(rows=20)):
        answer = estimation.density(plan, np.zeros(plan.counters_shape, np.int64), QUERIES[:3])
        assert answer.value.tolist() == [0.0] * 3


def test_medians_of_groups_are_of_sums_of_all_rows(rng: np.random.Generator) -> None:
    plan = report_plan(epsilon=8)
    records = np.full((4000, 2), 3.0)
    counters = collected(plan, records, entropy_of(rng))
    answer = estimation.kernel_sum(plan, counters, QUERIES[:1], groups=4)
    assert (answer.spread, answer.degrees) == ("groups", 3)
    assert answer.value[0] == pytest.approx(4000, rel=0.2)
    with pytest.raises(ValueError, match="groups"):
        estimation.kernel_sum(plan, counters, QUERIES, groups=21)
    sobol = report_plan(sketch={"draws": "sobol", "sobol_sets": 4})
    with pytest.raises(ValueError, match="dependent"):
        estimation.kernel_sum(sobol, counters, QUERIES, groups=4)


def test_medians_of_shares_know_that_the_number_of_records_is_estimated(rng: np.random.Generator) -> None:
    plan = report_plan(epsilon=4, record={"classes": ["a", "b"]})
    counters = collected(plan, np.full((900, 2), 3.0), entropy_of(rng), ["a"] * 500 + ["b"] * 400)
    sums = estimation.kernel_sum(plan, counters, QUERIES[:1], label="a", groups=5)
    shares = estimation.density(plan, counters, QUERIES[:1], label="a", groups=5)
    records = estimation.count_of(plan, counters, "a")
    assert shares.value[0] == pytest.approx(sums.value[0] / records)
    assert shares.std_error[0] > sums.std_error[0] / records


def test_a_release_of_reports_answers_after_a_round_trip(rng: np.random.Generator) -> None:
    plan = report_plan("projective", record={"classes": ["a", "b"]})
    counters = collected(plan, rng.uniform(0, 10, (500, 2)), entropy_of(rng), ["a"] * 300 + ["b"] * 200)
    made = of_reports(plan, counters, np.array([500]), window=None, shuffled=False, kind=IN_PROCESS)
    release = Release.from_bytes(made.to_bytes())
    assert release.count == 500
    for label in (None, "b"):
        expected = estimation.kernel_sum(plan, counters, QUERIES, label=label)
        assert np.array_equal(release.kernel_sum(QUERIES, label=label).value, expected.value)
        shares = estimation.density(plan, counters, QUERIES, label=label)
        assert np.array_equal(release.density(QUERIES, label=label).std_error, shares.std_error, equal_nan=True)
    assert release.count_of("b") == estimation.count_of(plan, counters, "b")


def test_queries_of_a_plan_of_reports_are_answered_from_them(rng: np.random.Generator) -> None:
    plan = report_plan(record={"classes": ["a", "b"]})
    counters = collected(plan, rng.uniform(0, 10, (500, 2)), entropy_of(rng), ["a"] * 300 + ["b"] * 200)
    counts = np.array([500])
    for label in (None, "a"):
        expected = estimation.kernel_sum(plan, counters, QUERIES, label=label)
        assert np.array_equal(query.kernel_sum(plan, counters, QUERIES, label=label).value, expected.value)
        shares = estimation.density(plan, counters, QUERIES, label=label)
        assert np.array_equal(query.density(plan, counters, counts, QUERIES, label=label).value, shares.value)
    assert query.count(plan, counts) == 500
    assert query.count_std_error(plan) == 0
    assert query.count(plan, counts, label="a", counters=counters) == estimation.count_of(plan, counters, "a")
    error = query.count_std_error(plan, label="a", counters=counters)
    assert error == estimation.count_std_error(plan, counters, label="a") > 0
    assert query.noise_std_error(plan, draws=400) == pytest.approx(20 * query.noise_std_error(plan))
    for ask in (query.count, query.count_std_error):
        with pytest.raises(GuaranteeError, match="requires their counters"):
            ask(plan, *([counts] if ask is query.count else []), label="a")
    with pytest.raises(GuaranteeError):
        query.noise_variance(plan)


@pytest.mark.parametrize("ask", [estimation.kernel_sum, estimation.density])
def test_an_unknown_class_is_refused(ask: Any) -> None:
    for plan in (report_plan(), report_plan(record={"classes": ["a", "b"]})):
        with pytest.raises(RecordError, match="label: got 'z'"):
            ask(plan, np.zeros(plan.counters_shape, np.int64), QUERIES, label="z")


def test_counters_of_noise_are_not_taken_for_reports() -> None:
    plan = small_plan(privacy={"mode": "local", "local": {"form": "silo"}})
    with pytest.raises(GuaranteeError, match="devices of this plan send no reports"):
        estimation.kernel_sum(plan, np.zeros(plan.counters_shape, np.int64), QUERIES)
    one, many = query.noise_variance(plan, draws=1), query.noise_variance(plan, draws=7)
    assert many == 7 * one


def test_sets_are_answered(rng: np.random.Generator) -> None:
    keys = {"kind": "set", "universe": 100, "dim": ..., "lower": ..., "upper": ...}
    sketch = {"kernel": "jaccard", "bandwidth": ..., "rows": 200, "buckets": 16}
    for extra in ({}, {"minhash": "one-permutation"}):
        plan = report_plan(epsilon=6, record=keys, sketch={**sketch, **extra})
        records = [[1, 2, 3]] * 3000 + [[50, 60]] * 1000
        counters = collected(plan, records, entropy_of(rng))
        answer = estimation.kernel_sum(plan, counters, [[1, 2, 3], [70]])
        error = 6 * answer.std_error
        assert abs(answer.value[0] - 3000) < error[0] < 1500
        assert abs(answer.value[1]) < error[1] < 1500


def test_a_release_folds_its_counters_once_for_all_queries(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, folds = report_plan("projective"), []
    counters = collected(plan, rng.uniform(0, 10, (500, 2)), entropy_of(rng))
    release = of_reports(plan, counters, np.array([500]), window=None, shuffled=False, kind=IN_PROCESS)
    honest = Projective.support

    def support(self: Projective, counts: Int64) -> Int64:
        folds.append(len(counts))
        return honest(self, counts)

    monkeypatch.setattr(Projective, "support", support)
    first = release.kernel_sum(QUERIES)
    again, shares = release.kernel_sum(QUERIES), release.density(QUERIES)
    assert folds == [20]
    assert np.array_equal(first.value, again.value)
    assert np.array_equal(shares.value, estimation.density(plan, counters, QUERIES).value)
