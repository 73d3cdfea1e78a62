"""`hushsum drift` and `hushsum plot --over-time`, on the releases of several windows."""

import json
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

import hushsum as hs
from hushsum.entropy import ReplayableEntropy
from hushsum.releases import draw
from tests.hushsum_cli.calling import Hushsum
from tests.plans import small_plan


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Six windows of a plan of cells, with a change after the third."""
    record: dict[str, object] = {"dim": 1, "lower": [0], "upper": [16], "names": ["speed"], "units": ["m/s"]}
    sketch: dict[str, object] = {"family": "partition", "kernel": ..., "bandwidth": 2, "rows": 1, "buckets": 8}
    plan = small_plan(record=record, sketch={**sketch, "seed": 3})
    paths = []
    for number in range(6):
        made = hs.Sketch(plan).add(np.full((2_000, 1), 3.0 if number < 3 else 13.0))
        entropy = ReplayableEntropy(bytes([number]))
        path = tmp_path / f"{number}.hush"
        draw(made, kind="tumbling", window=number, entropy=entropy, accounted=True).save(path)
        paths.append(str(path))
    return paths


def test_drift_says_when_and_at_which_rate_of_false_alarms(hushsum: Hushsum, files: list[str]) -> None:
    shown = json.loads(hushsum("drift", *files, "--level", "0.01", "--horizon", "12", "--json").out)
    (change,) = shown["changes"]
    assert (change["after_window"], change["at"]) == (2, "1970-01-01T03:00:00+00:00")
    assert change["within_windows"] == [2, 3]
    assert change["p_value"] <= 0.01
    assert (shown["windows"], shown["level"], shown["horizon"]) == (6, 0.01, 12)
    text = hushsum("drift", *files).out
    assert "1970-01-01 03:00:00 " in text
    assert "+00:00" not in text
    assert "That any change is false has probability 0.05 at most" in text
    assert "no change found" in hushsum("drift", *files[:3]).out


def test_plot_over_time_draws_the_windows_and_changes(hushsum: Hushsum, files: list[str], tmp_path: Path) -> None:
    picture, text = tmp_path / "time.png", tmp_path / "time.html"
    ended = hushsum("plot", "--over-time", *files, "--at", "3", "--at", "13", "-o", str(picture))
    assert (ended.status, ended.out) == (0, f"{picture}\n")
    assert matplotlib.image.imread(picture).std() > 0.05
    assert hushsum("plot", "--over-time", *files, "-o", str(text), "--dark").status == 0
    assert "1 change found" in text.read_text(encoding="utf-8")
    assert hushsum("plot", "--over-time", files[0], "-o", str(picture)).status == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--over-time", "--kind", "cdf"), "--over-time goes with"),
        (("--over-time", "--at", "3,4"), "got '3,4', expected 1 numbers"),
        ((), "several releases and --at are for --over-time"),
    ],
)
def test_what_goes_with_over_time_is_told(
    hushsum: Hushsum, files: list[str], arguments: tuple[str, ...], expected: str
) -> None:
    ended = hushsum("plot", *files, *arguments)
    assert ended.status == 2
    assert expected in ended.err


def test_what_is_no_series_is_an_error(hushsum: Hushsum, files: list[str], release_file: Path) -> None:
    for wrong, status, expected in (
        ((*files, files[0]), 1, "got two of window 0"),
        ((*files, str(release_file)), 1, "got one of kind 'in-process'"),
        ((files[0],), 2, "drift needs releases of at least 2 windows, got 1"),
        ((*files, "--horizon", "4"), 2, "horizon: got 4 windows, expected at least 6"),
    ):
        ended = hushsum("drift", *wrong)
        assert ended.status == status
        assert expected in ended.err


def test_the_help_of_plot_keeps_the_list_of_kinds(hushsum: Hushsum) -> None:
    assert "\n  pairs    of up to five columns\n" in hushsum("plot", "--help").out
