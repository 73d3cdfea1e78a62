"""Drift: changes of a series are found where they are, and falsely at no more than the stated rate."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

import hushsum as hs
from hushsum import drift, panels, query
from hushsum.cumulative import initial, step
from hushsum.drift import Change, Drift, comparisons_of
from hushsum.entropy import ReplayableEntropy
from hushsum.plot_pages import page
from hushsum.query import span_draws
from hushsum.releases import draw
from hushsum.releases.series import Span
from tests.plans import small_plan

LINE: dict[str, object] = {"dim": 1, "lower": [0], "upper": [16], "names": ["speed"], "units": ["m/s"]}
CELLS: dict[str, object] = {"family": "partition", "kernel": ..., "bandwidth": 2, "rows": 1, "buckets": 8, "seed": 3}
PLACES = np.arange(1.0, 16.0, 2.0)[:, None]
FALSE_ALARM = 1e-6


def plan_of(*, cumulative: bool = False, sketch: dict[str, object] | None = None, epsilon: float = 1.0) -> hs.Plan:
    window = {"release": "cumulative", "horizon": 16} if cumulative else {}
    return small_plan(record=LINE, sketch=sketch or CELLS, window=window, privacy={"epsilon": epsilon})


def series_of(plan: hs.Plan, records: Sequence[Any], key: str, first: int = 100) -> hs.Series:
    """The releases of windows with these records."""
    releases, state = [], initial(plan) if plan.window.horizon else b""
    for number, some in enumerate(records, first):
        sketch, entropy = hs.Sketch(plan).add(some), ReplayableEntropy(f"{key} {number}".encode())
        if plan.window.horizon:
            release, state = step(plan, state, sketch, window=number, sealed=bytes(32), entropy=entropy)
        else:
            release = draw(sketch, kind="tumbling", window=number, entropy=entropy, accounted=True)
        releases.append(release)
    return hs.Series(releases)


def drawn(rng: np.random.Generator, centres: Sequence[float], records: int) -> list[Any]:
    return [np.clip(rng.normal(centre, 2.0, (rng.poisson(records) + 1, 1)), 0, 16) for centre in centres]


def test_the_tests_of_a_horizon_compare_equal_numbers_of_windows_around_every_place() -> None:
    assert comparisons_of(1) == []
    assert comparisons_of(4) == [(1, 1), (1, 2), (1, 3), (2, 2)]
    made = comparisons_of(24)
    assert {scale for scale, _ in made} == {1, 2, 4, 8}
    assert all(at - scale >= 0 and at + scale <= 24 for scale, at in made)
    assert len(made) == sum(24 - 2 * scale + 1 for scale in (1, 2, 4, 8))
    assert set(comparisons_of(10)) <= set(comparisons_of(11)), "a longer series has the tests of a shorter one"


@pytest.mark.parametrize("cumulative", [False, True])
def test_changes_are_found_where_they_are(cumulative: bool, rng: np.random.Generator) -> None:
    centres = [4.0] * 5 + [7.0] * 4 + [12.0] * 7
    series = series_of(plan_of(cumulative=cumulative, epsilon=4), drawn(rng, centres, 3_000), "found")
    found = series.drift(queries=PLACES)
    assert [change.after for change in found.changes] == [104, 108]
    assert all(change.first <= change.after < change.last for change in found.changes)
    assert all(change.p_value <= 0.05 for change in found.changes)
    assert (found.horizon, found.tests, found.made) == (16, len(comparisons_of(16)), len(comparisons_of(16)))


def test_small_changes_are_found_by_more_windows(rng: np.random.Generator) -> None:
    series = series_of(plan_of(), drawn(rng, [7.0] * 8 + [7.45] * 8, 1_000), "small")
    (change,) = series.drift(queries=PLACES).changes
    assert change.last - change.first + 1 >= 4
    assert change.first <= 107 < change.last
    alone = hs.Series(each for each in series if each.window in {107, 108})
    assert not len(alone.drift(queries=PLACES))


def alarms(plan: hs.Plan, trials: int, seed: int, level: float) -> int:
    """In how many series without a change some change is found. Noise is larger than what sampling makes differ."""
    draws = max(span_draws(plan, at, at + 1) for at in range(6)) if plan.window.horizon else 1.0
    found, records = 0, math.ceil(9 * query.count_std_error(plan, draws=draws))
    for trial in range(trials):
        drawn_from = drawn(np.random.default_rng([seed, trial]), [8.0] * 6, records)
        found += bool(len(series_of(plan, drawn_from, f"{seed} {trial}").drift(level=level, horizon=6, queries=PLACES)))
    return found


def assert_false_alarms_are_rare(found: int, trials: int, level: float) -> None:
    assert found <= binom.isf(FALSE_ALARM, trials, level), found


@pytest.mark.statistical
@pytest.mark.slow
@pytest.mark.parametrize("cumulative", [False, True])
def test_false_alarms_are_no_more_frequent_than_is_said(
    cumulative: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the binomial distribution: false alarm 1e-6. If noise is taken for a quarter of what it is, they are not."""
    window = {"release": "cumulative", "horizon": 6} if cumulative else {}
    privacy = {"epsilon": 0.03, "delta": "0.000001", "total_delta": "0.0001", "noise": "gaussian"}
    plan = small_plan(record=LINE, sketch=CELLS, privacy=privacy, window=window)
    trials, level = 60, 0.1
    assert_false_alarms_are_rare(alarms(plan, trials, seed, level), trials, level)
    right: Any = Span.draws
    monkeypatch.setattr(Span, "draws", property(lambda span: right.fget(span) / 16))
    monkeypatch.setattr("hushsum.query.opposed_draws", lambda one, other: 0.0)
    with pytest.raises(AssertionError):
        assert_false_alarms_are_rare(alarms(plan, trials, seed, level), trials, level)


@dataclass(frozen=True)
class Told:
    """Spans whose comparison has the p-value that is given for it."""

    first: int
    last: int


def test_the_rate_is_that_of_all_tests_of_the_horizon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Holm's: the smallest p-value times the number of tests, the next times one less, and never below the last."""
    given = {(1, 2): 0.001, (1, 5): 0.002, (2, 4): 0.0021}

    class Compared:
        def __init__(self, before: Told, after: Told) -> None:
            self.key = before.last - before.first, before.last
            assert after.first == before.last

        def p_value(self, queries: Any, *, label: str | None) -> float:
            return given.get(self.key, 0.9)

    monkeypatch.setattr(drift, "Comparison", Compared)
    told: Any = Told
    find: Any = partial(drift.drift_between, range(10, 18), told, queries=None, label=None)
    number = len(comparisons_of(8))
    found = find(level=0.05, horizon=None)
    assert [(c.after, c.first, c.last) for c in found.changes] == [(11, 11, 12), (14, 14, 15)]
    assert [c.p_value for c in found.changes] == [0.001 * number, 0.002 * (number - 1)]
    assert [c.after for c in find(level=0.02, horizon=None).changes] == [11]
    longer = find(level=0.05, horizon=32)
    assert (longer.tests, longer.made) == (len(comparisons_of(32)), number)
    assert not len(longer), "as many tests as the horizon has, whatever is made so far"
    for wrong, expected in (
        ({"level": 1.0, "horizon": None}, "level: got 1.0"),
        ({"level": 0.05, "horizon": 7}, "horizon: got 7 windows, expected at least 8"),
    ):
        with pytest.raises(ValueError, match=expected):
            find(**wrong)


def test_windows_without_a_release_are_passed_over(rng: np.random.Generator) -> None:
    records = drawn(rng, [4.0] * 4 + [12.0] * 4, 2_000)
    series = series_of(plan_of(epsilon=4), records, "withheld")
    kept = hs.Series(each for each in series if each.window not in {103, 104})
    (change,) = kept.drift(queries=PLACES).changes
    assert (change.after, change.first, change.last) == (102, 102, 105)
    assert "Change" in repr(change)
    assert repr(kept.drift(queries=PLACES)) == (
        "Drift(after window 102; any is false with probability 0.05 at most in 6 windows)"
    )


def test_a_figure_over_time_shows_what_each_window_answers(rng: np.random.Generator) -> None:
    plan = plan_of(epsilon=4)
    series = series_of(plan, drawn(rng, [4.0] * 3 + [12.0] * 3, 2_000), "drawn")
    found = Drift((Change(102, 102, 103, 0.01),), 0.05, 6, 5, 5)
    shown = panels.over_time_panels(series, found, places=[[3.0], [13.0]])
    (records,), (densities,) = shown.rows
    assert isinstance(records, panels.LinePanel)
    assert isinstance(densities, panels.LinePanel)
    assert records.curves[0].value.tolist() == [each.count for each in series.consecutive()]
    answers = [each.density([[3.0], [13.0]]) for each in series.consecutive()]
    for number, curve in enumerate(densities.curves):
        assert curve.value.tolist() == [each.value[number] for each in answers]
        assert curve.high.tolist() == [each.interval(0.95).high[number] for each in answers]
    assert [curve.name for curve in densities.curves] == ["speed = 3", "speed = 13"]
    schedule = plan.window
    ends = (schedule.end_ms(102), schedule.start_ms(102), schedule.end_ms(103))
    assert densities.changes == records.changes == (tuple(map(float, ends)),)
    assert "1 change found" in shown.title
    figure = series.plot(found, places=[[3.0], [13.0]])
    top, bottom = figure.axes
    assert np.asarray(bottom.lines[0].get_ydata()).tolist() == densities.curves[0].value.tolist()
    assert top.get_xlabel().startswith("middle of the window (UTC)\ndashed: a change")
    text = page(shown)
    assert len(re.findall(r'"from": [0-9.]+', text)) == 2
    assert "1970-01-05 04:30" in text  # the middle of window 100
    chosen = series.plot(found, dark=True).axes[1]
    assert "at places chosen for high answers and large changes" in chosen.get_title()
    assert len(chosen.get_legend_handles_labels()[1]) == 2
    with pytest.raises(ValueError, match="places: got 8"):
        series.plot(places=np.zeros((8, 1)))
    assert replace(found, changes=())._repr_html_().count("<tr") == 1
