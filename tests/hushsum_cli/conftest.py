"""What the tests of the command line share."""

import os
from pathlib import Path

import numpy as np
import pytest

import hushsum as hs
from tests.hushsum_cli.calling import Hushsum
from tests.plans import small_plan

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def hushsum(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Hushsum:
    """The command line, called in this process."""
    monkeypatch.setenv("COLUMNS", "160")  # of the terminal that tables are made for
    return Hushsum(monkeypatch, capsys)


@pytest.fixture
def sources_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a test starts find these sources, whether or not they are installed."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "proto")]))


@pytest.fixture
def release_file(tmp_path: Path) -> Path:
    """The release of 500 records at (3, 7), of a plan with named columns."""
    sketch = hs.Sketch(small_plan(record={"names": ["x", "y"], "units": ["m", "s"]}))
    sketch.add(np.tile([3.0, 7.0], (500, 1)))
    path = tmp_path / "today.hush"
    hs.release(sketch).save(path)
    return path
