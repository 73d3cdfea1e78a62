"""Tests come in random order: another for each seed, the same for the same one, whole runs before the others."""

import json
import os
import subprocess
import sys
from itertools import groupby
from pathlib import Path

from tests.conftest import LONG_VARIABLE, WHOLE_RUNS

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


# One process for all orders: most of the time goes into what every test imports.
COLLECTED = """
import contextlib, io, json, sys
import pytest

options, files = map(json.loads, sys.argv[1:])
found = []
for each in options:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = pytest.main(["-p", "no:cacheprovider", "--collect-only", "-q", *each, *files])
    assert status == 0, output.getvalue()
    found.append([line for line in output.getvalue().splitlines() if "::" in line])
print(json.dumps(found))
"""


def collected(*options: list[str]) -> list[list[str]]:
    """Names of tests as pytest would run them, for each of these options."""
    command = [sys.executable, "-c", COLLECTED, json.dumps(options), json.dumps(FILES)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}
    environment.pop(LONG_VARIABLE, None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    orders: list[list[str]] = json.loads(done.stdout)
    return orders


def test_a_seed_decides_the_order_of_files_and_of_their_tests_and_whole_runs_stay_first() -> None:
    one, again, other, by_name = collected(
        ["--randomly-seed=1"], ["--randomly-seed=1"], ["--randomly-seed=2"], ["-p", "no:randomly"]
    )
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
