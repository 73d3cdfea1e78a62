"""What is erased from PostgreSQL is gone when that is said, whoever else works in the database."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from aggregator.errors import StoreError, StoreUnavailableError
from aggregator.runtime import SystemRuntime
from aggregator.store.postgres import PostgresDatabase, PostgresSettings, vacuum
from aggregator.store.store import Store
from aggregator.store.transaction import Transaction
from hushsum.privacy.events import TUMBLING
from hushsum_simulator.testbed.postgres import Postgres, PostgresServer, missing_postgres
from tests.aggregator.stores import FENCE, MARK, PLAN, W, committed, fresh_schema, prepared, reserved, sealed
from tests.brokers import left_out

KEY = b"SECRETKEY-SECRETKEY-SECRETKEY-!!"


@pytest.fixture
async def admin(postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection beside the store's."""
    connection = await asyncpg.connect(postgres_dsn, server_settings={"application_name": "a dump"})
    yield connection
    await connection.close()


async def opened(dsn: str, schema: str, *, pool: int = 4, older_s: float = 0.2) -> Store:
    settings = PostgresSettings(dsn, schema=schema, pool=pool, older_s=older_s)
    return Store(await PostgresDatabase.open(settings, SystemRuntime()))


async def with_a_key(store: Store) -> None:
    await prepared(store)
    await sealed(store)
    await reserved(store, W, KEY)


async def published(store: Store) -> None:
    await committed(store, W, b"draw")
    await store.publish(PLAN.id, TUMBLING, W, receipts=MARK, fence=FENCE)


@asynccontextmanager
async def transaction(connection: asyncpg.Connection, isolation: str) -> AsyncIterator[None]:
    inside = connection.transaction(isolation=isolation)
    await inside.start()
    try:
        yield
    finally:
        await inside.rollback()


async def size_of(connection: asyncpg.Connection, schema: str, table: str) -> int:
    """Bytes of a table's file, deleted or not."""
    size = await connection.fetchval("SELECT pg_relation_size($1::regclass)", f"{schema}.{table}")
    return int(size)


async def test_forgetting_is_not_done_while_a_session_reads_a_moment_before_it(
    postgres_dsn: str, admin: asyncpg.Connection
) -> None:
    schema = fresh_schema()
    store = await opened(postgres_dsn, schema)
    await with_a_key(store)
    async with transaction(admin, "repeatable_read"):
        await admin.fetch("SELECT 1 FROM pg_class LIMIT 1")
        await published(store)
        with pytest.raises(StoreUnavailableError, match=r"another session \(session \d+ a dump"):
            await store.forget(PLAN, W, fence=FENCE)
        assert await admin.fetchval(f"SELECT key FROM {schema}.reservations") == KEY, "which is why"
    await store.forget(PLAN, W, fence=FENCE)
    for table in ("reservations", "blocks"):
        assert await size_of(admin, schema, table) == 0
    await store.close()


async def test_forgetting_goes_on_once_the_older_session_has_ended(
    postgres_dsn: str, admin: asyncpg.Connection
) -> None:
    schema = fresh_schema()
    store = await opened(postgres_dsn, schema, older_s=20.0)
    await with_a_key(store)
    async with transaction(admin, "repeatable_read"):
        await admin.fetch("SELECT 1 FROM pg_class LIMIT 1")
        await published(store)
        forgetting = asyncio.create_task(store.forget(PLAN, W, fence=FENCE))
        await asyncio.sleep(0.3)
        assert not forgetting.done()
    await forgetting
    assert await size_of(admin, schema, "reservations") == 0
    await store.close()


async def test_a_transaction_of_another_database_that_still_writes_is_waited_for_and_one_that_reads_is_not(
    postgres: Postgres, postgres_dsn: str
) -> None:
    """What still writes decides which moment the next reader of any database reads."""
    store = await opened(postgres_dsn, fresh_schema())
    await with_a_key(store)
    elsewhere = await asyncpg.connect(postgres.fresh_database())
    async with transaction(elsewhere, "repeatable_read"):
        await elsewhere.fetch("SELECT 1 FROM pg_class LIMIT 1")
        await published(store)
        await store.forget(PLAN, W, fence=FENCE)
    async with transaction(elsewhere, "read_committed"):
        await elsewhere.execute("CREATE TABLE something ()")
        with pytest.raises(StoreUnavailableError, match="an older snapshot"):
            await store.forget(PLAN, W, fence=FENCE)
    await elsewhere.close()
    await store.close()


async def test_a_prepared_transaction_is_an_older_moment_too() -> None:
    if (why := missing_postgres()) is not None:
        left_out(why)
    with PostgresServer({"max_prepared_transactions": "2"}) as server:
        store = await opened(server.dsn, fresh_schema())
        await with_a_key(store)
        connection = await asyncpg.connect(server.dsn)
        await connection.execute("BEGIN; CREATE TABLE something (); PREPARE TRANSACTION 'left behind'")
        await published(store)
        with pytest.raises(StoreUnavailableError, match="prepared transaction left behind"):
            await store.forget(PLAN, W, fence=FENCE)
        await connection.execute("ROLLBACK PREPARED 'left behind'")
        await store.forget(PLAN, W, fence=FENCE)
        await connection.close()
        await store.close()


async def test_an_outcome_is_committed_whoever_reads_an_older_moment(
    postgres_dsn: str, admin: asyncpg.Connection
) -> None:
    store = await opened(postgres_dsn, fresh_schema(), older_s=600.0)
    await with_a_key(store)
    async with transaction(admin, "repeatable_read"):
        await admin.fetch("SELECT 1 FROM pg_class LIMIT 1")
        async with asyncio.timeout(120):
            await committed(store, W, b"draw")
    await store.close()


async def test_many_slow_writes_and_an_erasing_that_is_held_up_leave_a_connection_to_who_asks(
    postgres_dsn: str, admin: asyncpg.Connection
) -> None:
    schema = fresh_schema()
    store = await opened(postgres_dsn, schema, pool=4)
    await prepared(store)
    go = asyncio.Event()

    async def slow(_: Transaction) -> None:
        await go.wait()

    async with transaction(admin, "read_committed"):
        await admin.execute(f"LOCK TABLE {schema}.verdicts")
        works = [asyncio.create_task(store.database.write(slow)) for _ in range(16)]
        works.append(asyncio.create_task(store.database.erase("verdicts", certain=False)))
        await asyncio.sleep(0.3)
        for _ in range(20):
            began_s = time.monotonic()
            async with asyncio.timeout(120):
                assert await store.windows(PLAN.id) == {}
            assert not any(work.done() for work in works), f"all wait; this took {time.monotonic() - began_s:.3f} s"
        go.set()
    await asyncio.gather(*works)
    await store.close()


async def test_a_page_that_somebody_is_just_reading_is_waited_for_and_not_passed_over(
    postgres_dsn: str, admin: asyncpg.Connection
) -> None:
    """The reader began after the deletion: no older moment holds the row, and still VACUUM would leave it there."""
    await admin.execute("CREATE TABLE page (number BIGINT); INSERT INTO page SELECT generate_series(1, 3)")
    await admin.execute("DELETE FROM page WHERE number = 1")
    eraser = await asyncpg.connect(postgres_dsn)
    async with transaction(admin, "read_committed"):
        cursor = await admin.cursor("SELECT number FROM page")
        assert await cursor.fetchrow() == (2,)
        await vacuum(eraser, ("page",), certain=False)
        erasing = asyncio.create_task(vacuum(eraser, ("page",), certain=True))
        await asyncio.sleep(0.3)
        assert not erasing.done()
    await erasing
    await eraser.close()


async def test_a_table_that_another_role_owns_cannot_be_said_to_be_erased(
    postgres_dsn: str, admin: asyncpg.Connection
) -> None:
    role = f"role_{fresh_schema()[-12:]}"
    await admin.execute(
        f"CREATE TABLE owned (number BIGINT); CREATE ROLE {role} LOGIN; GRANT ALL ON SCHEMA public TO {role}"
    )
    await admin.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON owned TO {role}")
    eraser = await asyncpg.connect(postgres_dsn, user=role)
    await vacuum(eraser, ("owned",), certain=False)
    with pytest.raises(StoreError, match=r"deleted data is not erased: .*owned"):
        await vacuum(eraser, ("owned",), certain=True)
    await eraser.close()
    await admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
