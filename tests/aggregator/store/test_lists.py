"""Lists of plans and of windows, asked of both databases and of the double: by the index, never all there is."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from aggregator.model import RegisteredPlan
from aggregator.store import windows as store_windows
from aggregator.store.schema import STORE_FILE
from aggregator.store.store import Store, open_sqlite_store
from aggregator.store.transaction import Row
from hushsum.plan import Plan
from hushsum.signed_plan import SignedPlan
from hushsum.signing import SigningKey
from hushsum_simulator.testbed.postgres import Postgres
from tests.aggregator.stores import FENCE, PARTITIONS, PLAN, W, fresh_schema, postgres_store, prepared
from tests.doubles import ManualRuntime, MemoryStore
from tests.plans import tables

OTHER = Plan.from_fields({**tables(privacy={"population": "tills"}), "name": "other"})


@pytest.fixture(params=["double", "sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store
    match request.param:
        case "double":
            opened = MemoryStore()
        case "sqlite":
            opened = await open_sqlite_store(tmp_path / "store.db", ManualRuntime())
        case _:
            opened = await postgres_store(request.getfixturevalue("postgres_dsn"))
    yield opened
    await opened.close()


async def test_plans_are_listed_in_the_order_of_their_registration_with_who_signed_them(store: Store) -> None:
    assert await store.plans() == []
    await prepared(store)
    first = RegisteredPlan(PLAN.id, PLAN.name, "central", "", PARTITIONS, W, "")
    assert await store.plans() == [first]
    await store.keep_plan_signature(SignedPlan.sign(PLAN.bundle, SigningKey(bytes(32)), "planner"))
    signed = first._replace(signed_by="planner")
    assert await store.plans() == [signed]
    if not isinstance(store, MemoryStore):  # the double is of one plan
        await store.register(OTHER, 5, W - 7)
        other = RegisteredPlan(OTHER.id, "other", "central", "tills", 5, W - 7, "")
        assert await store.plans() == [signed, other]


async def test_windows_come_in_pages_the_newest_first(store: Store) -> None:
    await prepared(store)
    assert await store.newest_windows(PLAN.id, None, 10) == []
    await store.open_windows(PLAN.id, W, W + 6)
    await store.mark_closing(PLAN.id, W, fence=FENCE)
    assert await store.newest_windows(PLAN.id, None, 2) == [(W + 6, "open"), (W + 5, "open")]
    assert await store.newest_windows(PLAN.id, W + 2, 5) == [(W + 1, "open"), (W, "closing")]
    for before in (W, -(2**63)):
        assert await store.newest_windows(PLAN.id, before, 5) == []
    pages: list[tuple[int, str]] = []
    while page := await store.newest_windows(PLAN.id, pages[-1][0] if pages else None, 3):
        pages += page
    assert dict(pages) == await store.windows(PLAN.id)
    assert [window for window, _ in pages] == [*range(W + 6, W - 1, -1)]


class Explained:
    """A transaction that keeps what the database says of how it would run a query, and gives no rows."""

    def __init__(self, explain: str) -> None:
        self.explain, self.asked = explain, ""

    async def fetch(self, query: str, *arguments: object) -> list[Row]:
        self.asked = f"{self.explain} {query}"
        for number in range(len(arguments), 0, -1):
            value = arguments[number - 1]
            literal = f"'\\x{value.hex()}'" if isinstance(value, bytes) else str(value)
            self.asked = self.asked.replace(f"${number}", literal)
        return []


async def explained(explain: str) -> str:
    asked = Explained(explain)
    await store_windows.newest_windows(asked, PLAN.id, None, 100)  # type: ignore[arg-type]  # it has what this asks of it
    return asked.asked


async def test_a_page_reads_the_index_and_sorts_nothing(tmp_path: Path, postgres: Postgres) -> None:
    file = STORE_FILE.open_writing(tmp_path / "store.db")
    query = (await explained("EXPLAIN QUERY PLAN")).replace("'\\x", "x'")
    steps = " / ".join(row[3] for row in file.execute(query))
    file.close()
    assert "SEARCH windows USING PRIMARY KEY" in steps
    assert "B-TREE" not in steps, "it would sort"

    dsn, schema = postgres.fresh_database(), fresh_schema()
    opened = await postgres_store(dsn, schema=schema)
    await opened.register(PLAN, PARTITIONS, 0)
    await opened.open_windows(PLAN.id, 0, 5000)
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    await connection.execute("ANALYZE windows")
    steps = " / ".join(row[0] for row in await connection.fetch(await explained("EXPLAIN")))
    await connection.close()
    await opened.close()
    assert "Index Scan Backward using windows_pkey" in steps
    assert "Sort" not in steps
