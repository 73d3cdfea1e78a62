"""The main job, small: the real fleet, the real kill, the real server."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

import hushsum as hs
from hushsum_simulator import Summary
from hushsum_simulator.data import photograph
from tests.hushsum_simulator.demo.test_summary import PROMISED

pytestmark = [pytest.mark.usefixtures("sources_on_path"), pytest.mark.slow]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hushsum_cli", "simulate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)


@pytest.mark.long
def test_a_run_with_a_kill_loses_nothing_and_leaves_its_files(tmp_path: Path) -> None:
    records = photograph().values[::100].copy()
    records[5, 0] = np.nan
    np.save(tmp_path / "pixels.npy", records)
    out = tmp_path / "out"
    numbers = ("--clients", "12", "--deltas", "60", "--partitions", "4", "--seed", "3", "--epsilon", "2")
    ended = simulate("--data", str(tmp_path / "pixels.npy"), *numbers, "--out", str(out))

    assert ended.returncode == 0, ended.stderr
    assert "Nothing was lost" in ended.stdout
    assert ended.stderr.count("\n") == 1
    assert "NOT private" in ended.stderr  # bounds that were taken from the file
    summary = json.loads((out / "summary.json").read_text())
    assert list(summary) == [*PROMISED, *(field.name for field in fields(Summary) if field.name not in PROMISED)]
    assert summary["records"] + summary["records_dropped"] + summary["queries_held_out"] == len(records)
    assert summary["records_dropped"] == 1
    assert summary["deltas_counted"] == summary["deltas_sent"] >= 60
    assert (summary["deltas_lost"], summary["deltas_double_counted"]) == (0, 0)
    assert summary["counters_equal"] is True
    assert summary["deltas_resent"] > 0
    assert summary["duplicates_dropped"] >= summary["unacknowledged_at_kill"] > 0
    assert summary["restarts"] == 1
    assert (summary["epsilon_spent"], summary["epsilon_left"]) == (2.0, 18.0)
    # Mean over 273 correlated queries, so far from exact; noise of ten times the scale would still fail.
    assert 0.2 < summary["mean_relative_error"] / summary["expected_relative_error"] < 3
    release = hs.load(out / "release.hush")
    assert release.accounted
    assert release.plan.hex_id == summary["plan_id"]
    assert hs.Plan.from_bytes((out / "plan.json").read_bytes()).id == release.plan.id
    picture = matplotlib.image.imread(out / "density.png")
    assert picture.shape[0] > 500
    assert picture.std() > 0.05  # something is drawn


@pytest.mark.long
def test_unit_client_counts_at_most_its_bound_of_each_client(tmp_path: Path) -> None:
    np.save(tmp_path / "pixels.npy", photograph().values[::300])
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'name = "colours"\n[record]\nkind = "vector"\ndim = 3\nlower = [0, 0, 0]\nupper = [255, 255, 255]\n'
        '[sketch]\nfamily = "hashed"\nkernel = "euclidean"\nbandwidth = 20\nrows = 50\nbuckets = 256\n'
        "[privacy]\nepsilon = 1.0\ntotal_epsilon = 3\n"
    )
    asked = ("--unit", "client", "--records-per-client", "3", "--clients", "30", "--json")
    ended = simulate("--data", str(tmp_path / "pixels.npy"), "--plan", str(plan), *asked, "--out", str(tmp_path))

    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert ended.stdout == (tmp_path / "summary.json").read_text()
    assert ended.stderr == ""
    assert summary["unit"] == "client"
    assert summary["records"] == 90
    assert summary["counters_equal"] is True
    assert summary["noise_std_error"] == pytest.approx(3 * (2 * 50) ** 0.5, rel=0.1)


@pytest.mark.long
def test_a_labelled_file_is_counted_class_by_class(tmp_path: Path) -> None:
    pixels = photograph().values[::200]
    bright = pixels.sum(axis=1) > 400
    lines = [f"{r:g},{g:g},{b:g},{'sky' if up else 'ground'}" for (r, g, b), up in zip(pixels, bright, strict=True)]
    lines[3], lines[4] = "1,2,3,sea", "1,2,3,"  # of no class
    (tmp_path / "pixels.csv").write_text("\n".join(["r,g,b,part", *lines]) + "\n")
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'name = "colours"\n[record]\ndim = 3\nlower = [0, 0, 0]\nupper = [255, 255, 255]\n'
        'classes = ["ground", "sky"]\n'
        '[sketch]\nfamily = "hashed"\nkernel = "euclidean"\nbandwidth = 40\nrows = 50\nbuckets = 256\n'
        "[privacy]\nepsilon = 2\ntotal_epsilon = 3\n"
    )
    data = ("--data", str(tmp_path / "pixels.csv"), "--clients", "9", "--deltas", "40", "--out", str(tmp_path))
    ended = simulate(*data, "--plan", str(plan), "--label-column", "part", "--json")

    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert summary["records_dropped"] in range(3)  # one of the two may have been held out
    assert summary["records"] + summary["records_dropped"] + summary["queries_held_out"] == len(pixels)
    assert summary["counters_equal"] is True
    assert 0.2 < summary["mean_relative_error"] / summary["expected_relative_error"] < 3
    release = hs.load(tmp_path / "release.hush")
    held_out = summary["queries_held_out"] + 2
    # Discrete Laplace of scale 27 on counts of scale 3: 200 is farther than one in 10^9 goes.
    assert -200 < np.count_nonzero(bright) - release.count_of("sky") < held_out + 200
    assert -200 < np.count_nonzero(~bright) - release.count_of("ground") < held_out + 200


def test_labels_are_named_where_the_plan_has_classes_and_only_there(tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text("x,kind\n1,2\n3,4\n")
    data = ("--data", str(tmp_path / "records.csv"), "--out", str(tmp_path / "out"))
    assert simulate(*data, "--label-column", "kind").returncode == 2
    text = (
        'name = "n"\n[record]\ndim = 1\nlower = [0]\nupper = [5]\n[sketch]\nfamily = "hashed"\n'
        'kernel = "euclidean"\nbandwidth = 1\nrows = 8\nbuckets = 16\n[privacy]\nepsilon = 1\ntotal_epsilon = 3\n'
    )
    plan = tmp_path / "plan.toml"
    plan.write_text(text)
    ended = simulate(*data, "--plan", str(plan), "--label-column", "kind")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "the plan has no classes" in ended.stderr
    plan.write_text(text.replace("dim = 1", 'dim = 1\nclasses = ["2", "4"]'))
    ended = simulate(*data, "--columns", "x", "--plan", str(plan))
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "name the labels of --data with --label-column" in ended.stderr
