"""What a device loads."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = (
    "numba",
    "scipy",
    "sklearn",
    "matplotlib",
    "pandas",
    "pyarrow",
    "dp_accounting",
    "aggregator",
    "hushsum_simulator",
)

PROGRAM = """
import sys
from edge_client import EdgeClient, Policy
EdgeClient("localhost:7443", spool="never-made.db", policy=Policy(max_epsilon=1.0))
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_a_client_is_imported_and_made_without_anything_heavy() -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    loaded = set(done.stdout.split())
    assert {"edge_client", "hushsum", "grpc", "numpy"} <= loaded
    assert not loaded.intersection(HEAVY)
