"""Fixtures of the client's tests."""

from collections.abc import AsyncIterator

import pytest

from tests.edge_client.model_service import ModelService
from tests.plans import small_plan


@pytest.fixture
async def service() -> AsyncIterator[ModelService]:
    """A running model service of the small plan of unit record."""
    model = ModelService(small_plan())
    await model.start()
    yield model
    await model.stop()
