"""What tests that start processes share."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def sources_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a test starts find these sources, whether or not they are installed."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "proto")]))
