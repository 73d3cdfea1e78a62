"""Stores without a plan, as every test of what a store promises takes them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aggregator.store.store import Store, memory_store, open_sqlite_store
from hushsum_simulator.testbed.postgres import Postgres
from tests.aggregator.stores import postgres_store
from tests.doubles import ManualRuntime, MemoryStore


@pytest.fixture(scope="module")
def postgres_dsn(postgres: Postgres) -> str:
    """A database for one file; each store in it has a schema of its own."""
    return postgres.fresh_database()


@pytest.fixture(params=["double", "memory", "sqlite", "postgresql"])
async def empty_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """The double of the tests, the tables in memory, and both databases."""
    opened: Store
    match request.param:
        case "double":
            opened = MemoryStore(ManualRuntime())
        case "memory":
            opened = memory_store(ManualRuntime())
        case "sqlite":
            opened = await open_sqlite_store(tmp_path / "store.db", ManualRuntime())
        case _:
            opened = await postgres_store(request.getfixturevalue("postgres_dsn"))
    yield opened
    await opened.close()
