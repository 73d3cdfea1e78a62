"""`hushsum plan`."""

import json
from pathlib import Path

import pytest

import hushsum as hs
from tests.hushsum_cli.calling import Hushsum

TOML = """name = "colours"
[record]
kind = "vector"
dim = 3
lower = [0, 0, 0]
upper = [255, 255, 255]
[sketch]
family = "hashed"
kernel = "euclidean"
bandwidth = 5.0
rows = 50
buckets = 256
[privacy]
epsilon = 1.0
total_epsilon = 30.0
"""


@pytest.fixture
def plan_toml(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(TOML)
    return path


def test_make_writes_the_canonical_bytes_beside_the_plan_file(hushsum: Hushsum, plan_toml: Path) -> None:
    ended = hushsum("plan", "make", str(plan_toml))
    plan = hs.Plan.from_toml(plan_toml)
    assert ended.status == 0
    assert plan_toml.with_suffix(".json").read_bytes() == plan.to_bytes()
    assert plan.hex_id in ended.out
    assert "ε = 1 per record and window" in ended.out


def test_make_does_not_replace_another_plan_unasked(hushsum: Hushsum, plan_toml: Path, tmp_path: Path) -> None:
    out = tmp_path / "made.json"
    out.write_text("precious")
    ended = hushsum("plan", "make", str(plan_toml), "-o", str(out))
    assert ended.status == 1
    assert out.read_text() == "precious"
    assert hushsum("plan", "make", str(plan_toml), "-o", str(out), "--force").status == 0
    assert hushsum("plan", "make", str(plan_toml), "-o", str(out)).status == 0  # the same again is no harm


def test_show_reads_made_and_declared_plans_alike(hushsum: Hushsum, plan_toml: Path) -> None:
    hushsum("plan", "make", str(plan_toml))
    declared = json.loads(hushsum("plan", "show", str(plan_toml), "--json").out)
    made = json.loads(hushsum("plan", "show", str(plan_toml.with_suffix(".json")), "--json").out)
    assert declared == made
    assert made["plan"]["sketch"]["rows"] == 50
    assert made["noise_std_error"] == pytest.approx(10.5, rel=0.02)  # √(2·50), and a twentieth for the count


def test_a_wrong_key_is_named(hushsum: Hushsum, plan_toml: Path) -> None:
    plan_toml.write_text(TOML.replace("rows = 50", "rows = 0"))
    ended = hushsum("plan", "make", str(plan_toml))
    assert ended.status == 1
    assert ended.err.startswith("hushsum: sketch.rows: got 0")
