"""The main job in secure mode, small: real clients over gRPC, real dropouts, the real server."""

import json
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

import hushsum as hs
from hushsum_simulator.data import photograph

pytestmark = [pytest.mark.usefixtures("sources_on_path"), pytest.mark.slow]

# Of a plan with room for two dropouts in a cohort of eight, and a sketch that takes no time.
PLAN = """
name = "colours"
[record]
dim = 3
lower = [0, 0, 0]
upper = [255, 255, 255]
[sketch]
family = "hashed"
kernel = "euclidean"
bandwidth = 20
rows = 50
buckets = 128
[privacy]
mode = "secure"
epsilon = 2
delta = 0.000001
total_epsilon = 8
total_delta = 0.000001
[privacy.secure]
cohort = 8
dropout = 0.25
cohort_wait = "5s"
[window]
length = "3650d"
"""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hushsum_cli", "simulate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)


@pytest.mark.long
def test_a_run_with_dropouts_sums_exactly_who_is_in_it_and_leaves_its_files(tmp_path: Path) -> None:
    np.save(tmp_path / "pixels.npy", photograph().values[::200])
    (tmp_path / "plan.toml").write_text(PLAN)
    out = tmp_path / "out"
    data = ("--data", str(tmp_path / "pixels.npy"), "--plan", str(tmp_path / "plan.toml"), "--out", str(out))
    ended = simulate("--mode", "secure", *data, "--clients", "16", "--dropout-rate", "0.125", "--seed", "3")

    assert ended.returncode == 0, ended.stderr
    assert "the plan's noise." in ended.stdout
    assert "cohort 1: " in ended.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["mode"], summary["clients_dropped"], summary["cohorts"]) == ("secure", 2, 2)
    assert summary["submissions_counted"] == summary["submissions_released"] >= 14
    assert summary["submissions_counted"] + summary["submissions_lost"] == summary["submissions_spent"]
    assert summary["submissions_spent"] + summary["clients_unspent"] == 16
    assert summary["submissions_asked"] == 1, "one of the two vanishes after it has spent its window"
    assert summary["vector_bytes"] < summary["upload_bytes_per_client"] < 3 * summary["vector_bytes"]
    # The release without the clients that it says are counted. Of 18 standard normal quantities one passes 6 once in
    # 10⁷ runs.
    assert max(abs(summary[key]) for key in ("noise_variance_z", "noise_mean_z", "client_z")) < 6
    assert 0.3 < summary["mean_relative_error"] / summary["central_relative_error"] < 3
    release = hs.load(out / "release.hush")
    assert (release.submissions, release.cohorts) == (summary["submissions_released"], 2)
    assert release.plan.hex_id == summary["plan_id"]
    assert matplotlib.image.imread(out / "density.png").std() > 0.05  # something is drawn
