"""A series of releases: any span of its windows answers as a release does, with the noise of all of them."""

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

import hushsum as hs
from hushsum import query
from hushsum.cumulative import initial, step
from hushsum.entropy import ReplayableEntropy
from hushsum.errors import PlanError, ReleaseError
from hushsum.query import noise_covariance
from hushsum.releases import draw, of_reports, of_silos, of_sums
from hushsum.releases.series import Span
from hushsum.statistics import Statistics
from tests.hushsum.local_plans import report_plan, silo_plan
from tests.plans import classed_plan, client_plan, secure_plan, small_plan

PLACES = np.array([[2.0, 8.0], [5.0, 5.0]])
LAPLACE: dict[str, object] = {}
GAUSSIAN: dict[str, object] = {"delta": "0.000001", "total_delta": "0.0001"}
FALSE_ALARM_SIGMAS = 4.9  # of a normal quantity: 1e-6, both sides


def windows(
    plan: hs.Plan, numbers: range, records: int = 0, seed: int = 5, at: Callable[[int], Any] = lambda _: [2.0, 8.0]
) -> list[hs.Release]:
    """Releases of windows with so many records, at one place each."""
    releases = []
    for number in numbers:
        sketch = hs.Sketch(plan)
        if records:
            sketch.add(np.tile(at(number), (records, 1)))
        entropy = ReplayableEntropy(f"{seed} {number}".encode())
        releases.append(draw(sketch, kind="tumbling", window=number, entropy=entropy, accounted=True))
    return releases


def assert_noise_has_its_variance(span: Span) -> None:
    """Of a span without records, whose counters are noise alone: false alarm 1e-6 (their kurtosis is at most 6)."""
    noise = span.counters.ravel().astype(np.float64)
    ratio = np.mean(np.square(noise)) / query.noise_variance(span.plan, draws=span.draws)
    assert abs(ratio - 1) < FALSE_ALARM_SIGMAS * math.sqrt(5 / len(noise)), ratio


@pytest.mark.statistical
@pytest.mark.parametrize("privacy", [LAPLACE, GAUSSIAN], ids=["laplace", "gaussian"])
def test_a_span_has_the_noise_of_its_windows(privacy: dict[str, object], seed: int) -> None:
    plan = small_plan(privacy=privacy, sketch={"rows": 50})
    span = hs.Series(windows(plan, range(8), seed=seed)).between(-1, 7)
    assert span.draws == 8
    assert_noise_has_its_variance(span)
    for wrong in (1.0, 6.0):
        with pytest.raises(AssertionError):
            assert_noise_has_its_variance(replace(span, contributions=wrong))


def test_a_span_answers_as_the_sum_of_its_windows() -> None:
    plan = small_plan()
    releases = windows(plan, range(10, 16), 200)
    span = hs.Series(reversed(releases)).between(11, 14)
    assert (span.windows, span.first, span.last) == (3, 12, 14)
    chosen = releases[2:5]
    assert span.count == pytest.approx(sum(each.count for each in chosen))
    summed = sum(each.kernel_sum(PLACES).value for each in chosen)
    assert np.allclose(span.kernel_sum(PLACES).value, summed)
    assert np.allclose(span.density(PLACES).value, span.kernel_sum(PLACES).value / span.count)
    assert query.count_std_error(plan, draws=span.draws) == pytest.approx(math.sqrt(3) * query.count_std_error(plan))


def test_a_span_of_one_window_is_its_release_without_a_copy() -> None:
    series = hs.Series(windows(small_plan(), range(3)))
    for span, release in zip(series.consecutive(), series, strict=True):
        assert np.shares_memory(span.counters, release.counters)
        assert np.array_equal(span.counts, release.counts)
        assert not span.counters.flags.writeable


@pytest.mark.statistical
def test_intervals_of_a_span_hold_the_exact_sum_at_their_rate(seed: int) -> None:
    """Of independent spans of one kernel without hashing error; false alarm 1e-6, by the binomial distribution."""
    keys = {"family": "hermite", "kernel": "gaussian", "rows": ..., "buckets": ..., "seed": ...}
    plan = small_plan(record={"dim": 1, "lower": [0], "upper": [10]}, sketch=keys)
    held, short, spans = 0, 0, 400
    for number in range(spans):
        releases = windows(plan, range(4), 10, seed=seed + number, at=lambda _: [5.0])
        span = hs.Series(releases).between(-1, 3)
        low, high = span.kernel_sum([[5.0]]).interval(0.95)
        held += int(low[0] <= 40 <= high[0])
        low, high = replace(span, contributions=1).kernel_sum([[5.0]]).interval(0.95)
        short += int(low[0] <= 40 <= high[0])
    allowed = FALSE_ALARM_SIGMAS * math.sqrt(spans * 0.95 * 0.05)
    assert abs(held - 0.95 * spans) < allowed
    assert abs(short - 0.95 * spans) > allowed, "the noise of one window would have been found"


def test_windows_without_a_release_are_an_error_that_names_them() -> None:
    plan = small_plan()
    releases = windows(plan, range(8), 100)
    series = hs.Series([each for each in releases if each.window not in {3, 5}])
    with pytest.raises(ReleaseError, match=r"no release of windows 3, 5: withheld, or not in the series"):
        series.between(0, 7)
    span = series.between(0, 7, skip_missing=True)
    assert (span.windows, span.missing, span.contributions) == (5, (3, 5), 5)
    assert "without 3, 5" in repr(span)
    assert "Windows 3, 5 are missing." in span.statement()
    with pytest.raises(ReleaseError, match=r"no release of windows 8, 9, 10"):
        series.between(7, 10, skip_missing=True)


def test_a_span_is_named_by_the_moments_at_its_ends() -> None:
    releases = windows(small_plan(), range(498_691, 498_695), 100)
    series = hs.Series(releases)
    start, end = (datetime(2026, 11, 21, hour, tzinfo=UTC) for hour in (20, 22))
    span = series.between(start, end)
    assert (span.first, span.last) == (498_692, 498_693)
    assert span.period_ms == (round(start.timestamp() * 1000), round(end.timestamp() * 1000))
    for wrong, expected in (
        (datetime(2026, 11, 21, 20, 30, tzinfo=UTC), "the end of a window"),
        (datetime(2026, 11, 21, 20), "a moment with a time zone"),  # noqa: DTZ001 -- which is what is refused
    ):
        with pytest.raises(ValueError, match=expected):
            series.between(wrong, end)
    with pytest.raises(ValueError, match="expected a window after t0"):
        series.between(end, start)
    assert "2 windows, 2026-11-21 20:00 to 22:00 UTC" in span.plot().get_suptitle()
    assert "ε = 1 per record" in span.plot().get_suptitle()


def test_a_title_says_where_each_window_of_a_client_has_its_own_epsilon() -> None:
    plan = client_plan()
    releases = [
        draw(hs.Sketch(plan), kind="tumbling", window=number, entropy=ReplayableEntropy(b"1"), accounted=True)
        for number in range(2)
    ]
    assert "per client and window" in hs.Series(releases).between(-1, 1).plot().get_suptitle()
    assert "per client\n" in releases[0].plot().get_suptitle().replace("  ·", "\n")


def test_sums_of_secure_sums_and_silos_have_the_noise_of_their_clients() -> None:
    secure, silo = secure_plan(), silo_plan()
    ones, zeros = np.ones(silo.counters_shape, np.int64), np.zeros(silo.count_counters, np.int64)
    sums = [of_sums(secure, ones, zeros, window=at, cohorts=2, submissions=18 + at) for at in range(3)]
    silos = [of_silos(silo, ones, zeros, window=at, submissions=5 + at) for at in range(3)]
    for releases, submissions in ((sums, 19 + 20), (silos, 6 + 7)):
        span = hs.Series(releases).between(0, 2)
        assert span.contributions == submissions
        assert span.counters.max() == 2
        one = query.noise_variance(span.plan, draws=query.draws_of(span.plan, 1))
        assert query.noise_variance(span.plan, draws=span.draws) == pytest.approx(submissions * one)
        assert f"the noise of {submissions} clients of 2 windows" in span.statement()


def test_reports_of_several_windows_have_no_more_error_than_of_one() -> None:
    plan = report_plan()
    _, rows, outputs = plan.counters_shape
    draws = np.random.default_rng(3).multinomial(3_000, np.full(rows * outputs, 1 / (rows * outputs)), 2)
    releases = [
        of_reports(plan, each.reshape(1, rows, outputs), np.array([3_000]), window=at, shuffled=False)
        for at, each in enumerate(draws)
    ]
    span = hs.Series(releases).between(-1, 1)
    whole = of_reports(plan, draws.sum(axis=0).reshape(1, rows, outputs), np.array([6_000]), window=9, shuffled=False)
    assert span.count == whole.count == 6_000
    assert span.kernel_sum(PLACES).std_error.tolist() == whole.kernel_sum(PLACES).std_error.tolist()
    assert "it has the errors of one window with as many reports" in span.statement()


def test_classes_add_up() -> None:
    plan = classed_plan("a", "b")
    releases = []
    for number in range(3):
        sketch = hs.Sketch(plan).add(np.tile([2.0, 8.0], (300, 1)), labels=["a", "b", "b"] * 100)
        entropy = ReplayableEntropy(bytes([number]))
        releases.append(draw(sketch, kind="tumbling", window=number, entropy=entropy, accounted=True))
    span = hs.Series(releases).between(-1, 2)
    assert span.count_of("b") == pytest.approx(sum(each.count_of("b") for each in releases))
    assert span.plot().axes


def test_what_is_no_series_is_refused() -> None:
    plan = small_plan()
    releases = windows(plan, range(2))
    in_process = hs.release(hs.Sketch(plan))
    other = windows(small_plan(privacy={"epsilon": 2}), range(3, 4))
    for wrong, expected in (
        ([*releases, releases[0]], "got two of window 0"),
        ([*releases, in_process], "got one of kind 'in-process'"),
        ([*releases, *other], "a series is of one plan"),
    ):
        with pytest.raises(ReleaseError, match=expected):
            hs.Series(wrong)
    with pytest.raises(ValueError, match="expected one or more"):
        hs.Series([])
    assert repr(hs.Series(releases)) == "Series('test', 2 windows from 0 to 1)"
    assert [each.window for each in hs.Series(reversed(releases))] == [0, 1]


def test_sums_beyond_64_bits_are_refused() -> None:
    plan = silo_plan()
    counters = np.full(plan.counters_shape, 2**61)
    counts = np.zeros(plan.count_counters, np.int64)
    for some, others in ((counters, counts), (np.ones_like(counters), np.full_like(counts, 2**61))):
        releases = [of_silos(plan, some, others, window=at, submissions=5) for at in range(2)]
        with pytest.raises(ReleaseError, match="exceeds 64 bits"):
            hs.Series(releases).between(-1, 1)


def test_spans_compare_and_their_statistics_do_not_hide_shared_noise() -> None:
    cells: dict[str, object] = {"family": "partition", "bandwidth": 1, "rows": 1, "buckets": 16, "seed": 3}
    record = {"dim": 1, "lower": [0], "upper": [10]}
    plan = small_plan(record=record, sketch={"kernel": ..., **cells})
    series = hs.Series(windows(plan, range(6), 500, at=lambda window: [2.5 if window < 3 else 7.5]))
    before, after, overlapping = series.between(-1, 2), series.between(2, 5), series.between(1, 4)
    assert before.compare(after).p_value() < 1e-6
    assert before.compare(before).p_value() == 1
    difference = Statistics(after).count - Statistics(before).count
    assert difference.std_error[0] == pytest.approx(math.sqrt(2) * Statistics(after).count.std_error[0])
    with pytest.raises(ValueError, match="they share noise"):
        _ = Statistics(before).count + Statistics(overlapping).count
    with pytest.raises(PlanError):
        before.compare(hs.Series(windows(small_plan(), range(2))).between(-1, 1))


def sequence(plan: hs.Plan, numbers: range, records: int = 0, seed: int = 5, skipped: int | None = None) -> list[Any]:
    """The cumulative releases of windows with so many records each, but for one without a step."""
    state, releases = initial(plan), []
    for number in numbers:
        if number == skipped:
            continue
        sketch = hs.Sketch(plan)
        if records:
            sketch.add(np.tile([2.0, 8.0], (records, 1)))
        entropy = ReplayableEntropy(f"{seed} {number}".encode())
        release, state = step(plan, state, sketch, window=number, sealed=bytes(32), entropy=entropy)
        releases.append(release)
    return releases


def cumulative_plan(privacy: dict[str, object] = LAPLACE, rows: int = 50) -> hs.Plan:
    return small_plan(privacy=privacy, sketch={"rows": rows}, window={"release": "cumulative", "horizon": 30})


@pytest.mark.statistical
@pytest.mark.parametrize("privacy", [LAPLACE, GAUSSIAN], ids=["laplace", "gaussian"])
def test_a_span_of_a_cumulative_sequence_has_the_noise_of_its_ends(privacy: dict[str, object], seed: int) -> None:
    plan = cumulative_plan(privacy)
    series = hs.Series(sequence(plan, range(20, 40), seed=seed))
    for first, last in ((19, 39), (20, 21), (24, 37), (0, 25)):
        span = series.between(first, last)
        assert_noise_has_its_variance(span)
        assert span.windows == last - max(first, 19)
    independent = noise_covariance(plan, 20, 20) + noise_covariance(plan, 19, 19)
    span = series.between(38, 39)
    assert span.draws is not None
    assert span.draws < 0.75 * independent, "what both ends share cancels"


@pytest.mark.statistical
@pytest.mark.parametrize("privacy", [LAPLACE, GAUSSIAN], ids=["laplace", "gaussian"])
def test_spans_that_follow_each_other_differ_by_more_noise_than_both_have(
    privacy: dict[str, object], seed: int
) -> None:
    """Of the release between them, whose noise is in both with opposite signs; false alarm 1e-6."""
    series = hs.Series(sequence(cumulative_plan(privacy, rows=400), range(30), seed=seed))
    before, after = series.between(9, 14), series.between(14, 19)
    noise = (before.counters - after.counters).ravel().astype(np.float64)
    one = query.noise_variance(before.plan, draws=1)
    assert before.draws is not None
    assert after.draws is not None
    apart, opposed = before.draws + after.draws, query.opposed_draws(before, after)
    assert opposed > 0.1 * apart
    reach = FALSE_ALARM_SIGMAS * math.sqrt(5 / len(noise))
    assert abs(np.mean(np.square(noise)) / one / (apart + 2 * opposed) - 1) < reach
    assert abs(np.mean(np.square(noise)) / one / apart - 1) > reach, "as if they were independent"
    errors = [query.count_std_error(each.plan, draws=each.draws) for each in (before, after)]
    expected = math.sqrt(errors[0] ** 2 + errors[1] ** 2) * math.sqrt(1 + 2 * opposed / apart)
    assert before.compare(after).count().std_error[0] == pytest.approx(expected, rel=0.01)
    assert query.opposed_draws(before, before) == 0.0


def test_a_span_of_a_sequence_is_the_difference_of_its_releases() -> None:
    releases = sequence(cumulative_plan(), range(10, 22), records=100, skipped=15)
    series = hs.Series([each for each in releases if each.window != 17])
    span = series.between(12, 18)
    assert (span.windows, span.first, span.last, span.steps) == (5, 13, 18, (3, 8))
    assert np.array_equal(span.counters, releases[7].counters - releases[2].counters)
    assert span.count == pytest.approx(releases[7].count - releases[2].count)
    assert abs(span.count - 500) < 10 * query.count_std_error(span.plan, draws=span.draws)
    whole = series.between(0, 21)
    assert (whole.windows, whole.first) == (11, 10)
    assert whole.kernel_sum(PLACES).std_error.tolist() == releases[-1].kernel_sum(PLACES).std_error.tolist()
    assert "ε = 1 per record" in span.plot().get_suptitle()
    with pytest.raises(ReleaseError, match=r"no release at the end of windows 15, 17"):
        series.between(15, 17)
    assert series.between(11, 17, skip_missing=True).last == 16
    with pytest.raises(ReleaseError, match="tells what came between"):
        series.between(16, 17, skip_missing=True)
    with pytest.raises(ReleaseError, match="a series is of one cumulative sequence: got releases that begin"):
        hs.Series([*releases, *sequence(cumulative_plan(), range(30, 31))])
    with pytest.raises(ReleaseError, match="got step 11 at window 21 and step 3 at window 22"):
        hs.Series([*releases, replace(releases[2], window=22)])


def test_what_is_no_release_and_no_window_is_refused_with_what_to_do() -> None:
    for given in (["t0.hush"], "t0.hush"):
        with pytest.raises(TypeError, match=r"expected releases; read a file with hushsum\.load\(path\)"):
            hs.Series(given)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ReleaseError, match="makes have no window, use those of a service"):
        hs.Series([hs.release(hs.Sketch(small_plan()))])
    series = hs.Series(windows(small_plan(), range(2)))
    for moment in ("2026-11-26", 0.5):
        with pytest.raises(TypeError, match="expected a window index or a datetime"):
            series.between(moment, 1)  # type: ignore[arg-type]  # wrong on purpose


def test_windows_far_away_are_counted_and_not_listed() -> None:
    far = 10**15  # as a list they would not fit into any memory
    series = hs.Series(windows(small_plan(), range(far, far + 2)))
    named = r"no release of windows 1, 2, .* 8 and 999,999,999,999,991 more: .* has windows from 10+ to 10+1; skip"
    with pytest.raises(ReleaseError, match=named):
        series.between(0, far + 1)
    with pytest.raises(ValueError, match="at most 10,000,000 windows without a release"):
        series.between(0, far + 1, skip_missing=True)
    assert series.between(far - 3, far + 1, skip_missing=True).missing == (far - 2, far - 1)
