"""Tests come in random order: another for each seed, the same for the same one, whole runs before the others."""

import os
import subprocess
import sys
from itertools import groupby
from pathlib import Path

from tests.conftest import WHOLE_RUNS

ROOT = Path(__file__).parents[1]
FILES = (
    *(
        "tests/hushsum_simulator/test_progress.py",
        "tests/hushsum_simulator/demo/test_summary.py",
        "tests/hushsum_simulator/test_data.py",
    ),
    *("tests/hushsum/test_error_bounds.py", "tests/hushsum/test_canonical.py", "tests/hushsum/test_student_t.py"),
    *("tests/hushsum/test_bitpacking.py", "tests/hushsum/test_math_portable.py"),
)


def collected(*options: str) -> list[str]:
    """Names of tests as pytest would run them."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", *options, *FILES]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_a_seed_decides_the_order_of_files_and_of_their_tests_and_whole_runs_stay_first() -> None:
    one, again, other = (collected(f"--randomly-seed={seed}") for seed in (1, 1, 2))
    by_name = collected("-p", "no:randomly")
    assert one == again
    assert sorted(one) == sorted(other) == sorted(by_name)
    files = [
        [file for file, _ in groupby(name.partition("::")[0] for name in order)] for order in (by_name, one, other)
    ]
    for order in files:
        assert sorted(order) == sorted(FILES), "a file's tests stay together"
        assert [file.startswith(WHOLE_RUNS) for file in order] == [True] * 3 + [False] * 5
    for part in (slice(3), slice(3, None)):
        assert len({tuple(order[part]) for order in files}) == 3
    inside = [[name for name in order if "test_student" in name] for order in (by_name, one, other)]
    assert len({tuple(names) for names in inside}) == 3
