"""Fixtures of the client's tests."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.edge_client.local_clients import RushingClock
from tests.edge_client.model_service import ModelService
from tests.edge_client.spools import close_all
from tests.plans import small_plan


@pytest.fixture(autouse=True)
def _closed_spools() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture
async def service() -> AsyncIterator[ModelService]:
    """A running model service of the small plan of unit record."""
    model = ModelService(small_plan())
    await model.start()
    yield model
    await model.stop()


@pytest.fixture
async def clock() -> AsyncIterator[RushingClock]:
    """A clock for devices in local mode."""
    clock = RushingClock()
    yield clock
    clock.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a spool."""
    return tmp_path / "spool.db"
