"""``python -m aggregator`` says in one line what keeps it from starting."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plans import small_plan

ROOT = Path(__file__).resolve().parent.parent.parent


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
    command = [sys.executable, "-m", "aggregator", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    (
        ("partitons = 4\n", "aggregator: partitons: unknown key; did you mean partitions?\n"),
        ('listen = "0.0.0.0:7443"\n', "aggregator: listen: plaintext off loopback is refused: got 0.0.0.0:7443"),
    ),
)
def test_what_keeps_it_from_starting_is_one_line(tmp_path: Path, settings: str, message: str) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(small_plan().to_bytes())
    file = tmp_path / "aggregator.toml"
    file.write_text(settings)
    needed = ("--plan", str(plan), "--data", str(tmp_path / "data"))
    ended = started("--config", str(file), *needed)

    assert ended.returncode == 1
    assert message in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert not ended.stdout
