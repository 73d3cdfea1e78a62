"""`hushsum simulate --windows N --release cumulative`: one table, one plot, and noise as the plan says."""

import json
from pathlib import Path

import numpy as np
import pytest

import hushsum as hs
from hushsum_simulator.demo import over_time
from hushsum_simulator.demo.over_time import OverTime, WindowErrors
from tests.hushsum.cumulative_plans import cumulative_plan
from tests.hushsum_cli.calling import Hushsum
from tests.plans import small_plan

ASKED = ("simulate", "--windows", "6", "--release", "cumulative")


@pytest.fixture
def data(tmp_path: Path) -> tuple[str, ...]:
    np.save(tmp_path / "records.npy", np.random.default_rng(7).uniform(0, 1, (3000, 2)))
    return "--data", str(tmp_path / "records.npy"), "--queries", "50", "--out", str(tmp_path / "out")


@pytest.mark.parametrize("delta", ["0", "1e-6"])
def test_cumulative_releases_are_compared_with_sums_of_tumbling_ones(
    hushsum: Hushsum, tmp_path: Path, data: tuple[str, ...], delta: str
) -> None:
    ran = json.loads(hushsum(*ASKED, *data, "--delta", delta, "--json").out)
    assert [each["step"] for each in ran["windows"]] == [*range(1, 7)]
    assert ran["windows"][-1]["records"] == 2950
    assert abs(ran["variance_ratio"] - 1) < 0.1
    for each in ran["windows"]:  # of 50 queries, whose noise is shared in part
        assert each["cumulative"] / each["stated"] == pytest.approx(1, abs=0.5)
        assert each["tumbling"] / each["tumbling_stated"] == pytest.approx(1, abs=0.5)
    assert (tmp_path / "out" / "errors.png").stat().st_size > 10_000
    release = hs.load(tmp_path / "out" / "release.hush")
    assert (release.kind, release.step, release.plan.window.horizon) == ("cumulative", 6, 6)


def test_the_table_has_a_row_for_each_power_of_two_and_the_last(hushsum: Hushsum, data: tuple[str, ...]) -> None:
    lines = hushsum(*ASKED, *data).out.splitlines()
    shown = [line.split()[0] for line in lines if line.split() and line.split()[0].isdigit()]
    assert shown == ["1", "2", "4", "6"]
    assert any("× the stated variance" in line for line in lines)
    assert "windows: released so far" in lines
    assert any(line.startswith("ratio: ") for line in lines)
    assert "this plan's releases have the same noise as sums of windows: δ = 0 and a short horizon" in lines


def test_the_ratio_is_of_the_stated_errors() -> None:
    windows = tuple(WindowErrors(step, 1, 7.0, 2.0, 9.0, 3.0) for step in (1, 2))
    plan = cumulative_plan(delta="0.000001")
    table = over_time.rows(OverTime(plan, windows, 1.0, 0.0))
    assert [row[-1] for row in table] == ["1.50", "1.50"]
    assert not any("same noise" in line for line in over_time.explanation(plan))
    assert not any("same noise" in line for line in over_time.explanation(cumulative_plan(horizon=1000)))


def test_noise_that_is_not_the_stated_one_is_a_violation() -> None:
    windows = (WindowErrors(1, 1, 1.0, 1.0, 1.0, 1.0),)
    plan = small_plan()
    assert OverTime(plan, windows, 1.05, 0.0).violations() == []
    assert "1.210 × the stated one" in OverTime(plan, windows, 1.21, 0.0).violations()[0]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--windows", "6"), "--windows and --release cumulative must be given together"),
        ((*ASKED[1:], "--mode", "secure"), "--windows requires --mode central"),
    ],
)
def test_options_that_do_not_fit_are_refused(hushsum: Hushsum, options: tuple[str, ...], told: str) -> None:
    ended = hushsum("simulate", *options)
    assert ended.status == 2
    assert told in ended.err
