"""The main job in local mode, small: the real fleet, the real kills, the real server and the real shuffler."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hushsum as hs
from hushsum_simulator.data import photograph
from tests.hushsum_simulator.demo.test_simulate import simulate

pytestmark = [pytest.mark.usefixtures("sources_on_path"), pytest.mark.slow]


TABLES = """
name = "colours"
[record]
kind = "vector"
dim = 3
lower = [0, 0, 0]
upper = [255, 255, 255]
[sketch]
kernel = "{kernel}"
family = "{family}"
bandwidth = 40
rows = 64
{buckets}
[privacy]
mode = "local"
epsilon = 4
total_epsilon = 12
{privacy}
[window]
{window}
"""
HASHED = {"kernel": "euclidean", "family": "hashed", "buckets": "buckets = 56", "privacy": "", "window": ""}
BITS = {**HASHED, "kernel": "gaussian", "family": "fourier", "buckets": ""}
SILO = {**HASHED, "privacy": '[privacy.local]\nform = "silo"', "window": 'length = "3650d"'}
SHUFFLED = {
    **HASHED,
    "privacy": "delta = 1e-3\n[privacy.local]\nshuffle_min = 8000",
    "window": 'length = "2s"\nlateness = "20s"',  # after half of it the window is cut, and taken for as long again
}


def ran(folder: Path, tables: dict[str, str], *arguments: str, every: int = 80) -> tuple[dict[str, Any], str]:
    """The summary of a run over some pixels, and what was printed."""
    records = photograph().values[::every].copy()
    records[5, 0] = np.nan
    np.save(folder / "pixels.npy", records)
    (folder / "plan.toml").write_text(TABLES.format(**tables))
    data = ("--data", str(folder / "pixels.npy"), "--plan", str(folder / "plan.toml"), "--queries", "50")
    ended = simulate("--mode", "local", *data, "--seed", "3", "--out", str(folder / "out"), *arguments)
    assert ended.returncode == 0, ended.stderr
    return json.loads((folder / "out" / "summary.json").read_text()), ended.stdout


@pytest.mark.long
@pytest.mark.parametrize("tables", (pytest.param(HASHED, id="k-rr"), pytest.param(BITS, id="one-bit")))
def test_every_report_is_in_the_release_once_over_a_kill(tmp_path: Path, tables: dict[str, str]) -> None:
    summary, printed = ran(tmp_path, tables, "--clients", "9", "--deltas", "60")
    release = hs.load(tmp_path / "out" / "release.hush")
    assert "Nothing was lost" in printed
    assert summary["records_dropped"] <= 1  # unless it was held out
    assert summary["records"] + summary["records_dropped"] == summary["reports_counted"] == release.count
    assert (summary["restarts"], summary["names_found"], summary["epsilon_spent"]) == (1, 0, 4.0)
    assert summary["deltas_resent"] > 0
    assert summary["report_bytes"] <= summary["report_bytes_max"]
    assert summary["central_relative_error"] > 0


@pytest.mark.long
def test_silos_leave_noise_beside_the_exact_sum_over_a_kill(tmp_path: Path) -> None:
    summary, printed = ran(tmp_path, SILO, "--clients", "6")
    assert "the plan's noise." in " ".join(printed.split())
    assert hs.load(tmp_path / "out" / "release.hush").submissions == summary["submissions_acknowledged"] == 6
    assert summary["names_found"] == 6
    assert (summary["restarts"], summary["deltas_lost"]) == (1, 0)


@pytest.mark.long
def test_over_kills_of_shuffler_and_server_each_report_counts_once(tmp_path: Path) -> None:
    summary, printed = ran(tmp_path, SHUFFLED, "--clients", "9", "--deltas", "60", every=25)
    release = hs.load(tmp_path / "out" / "release.hush")
    assert "ε, shuffled" in printed
    assert release.shuffled
    assert release.count == summary["reports_sent"]
    assert (summary["restarts"], summary["shuffler_restarts"], summary["duplicates_dropped"]) == (1, 1, 1)
    assert 0 < summary["amplified_epsilon"] < 4
