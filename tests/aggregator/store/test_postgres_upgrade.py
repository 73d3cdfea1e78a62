"""Older tables in PostgreSQL: upgraded by processes that start at once, whole or not at all, and gone on with."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from aggregator.errors import StoreError, StoreUnavailableError
from aggregator.model import ReceiptsMark
from aggregator.runtime import SystemRuntime
from aggregator.store import schema as postgres_schema
from aggregator.store.postgres import PostgresDatabase, PostgresSettings
from aggregator.store.schema import POSTGRES_SCHEMA_FORMAT
from hushsum.privacy.events import TUMBLING
from hushsum_simulator.testbed.postgres import Postgres
from tests.aggregator.stores import (
    FENCE,
    MARK,
    PARTITIONS,
    PLAN,
    Folding,
    W,
    fresh_schema,
    lower_fence,
    postgres_store,
    reserved,
    seal,
    spend,
)
from tests.vectors.generate_store import FOLDER, SIGNED, TABLES

ROOT = Path(__file__).resolve().parents[3]
OLDER = [1, 2, 3, 4]
SEES_A_LOCK = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = "


class Sample:
    """A database with a schema that an older version has left behind."""

    def __init__(self, dsn: str, schema: str, admin: "asyncpg.Connection") -> None:
        self.dsn, self.schema, self.admin = dsn, schema, admin

    async def load(self, version: int) -> None:
        await self.admin.execute(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE; CREATE SCHEMA {self.schema}")
        await self.admin.execute((FOLDER / f"postgres-{version}.sql").read_text("utf-8"))

    async def versions(self) -> list[int]:
        rows = await self.admin.fetch("SELECT version FROM hushsum_schema ORDER BY version")
        return [row["version"] for row in rows]

    async def columns(self) -> list[tuple[str, ...]]:
        """Every column of every table, and every index: what the tables are."""
        columns = await self.admin.fetch(
            "SELECT table_name, column_name, data_type, is_nullable, is_identity, collation_name "
            "FROM information_schema.columns WHERE table_schema = $1 ORDER BY 1, 2",
            self.schema,
        )
        indexes = await self.admin.fetch(
            "SELECT tablename, replace(indexdef, $1, '') FROM pg_indexes WHERE schemaname = $1 ORDER BY indexname",
            self.schema,
        )
        stored = await self.admin.fetch(
            "SELECT relname, attname, attstorage::text FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid "
            "WHERE relnamespace = $1::regnamespace AND attnum > 0 AND relkind = 'r' ORDER BY 1, 2",
            self.schema,
        )
        return [tuple(row) for row in (*columns, *indexes, *stored)]

    async def rows(self, version: int) -> dict[str, list[tuple[object, ...]]]:
        """All that the tables of a version hold."""
        tables = [table for step in TABLES[:version] for table in step]
        return {
            table: sorted((tuple(row) for row in await self.admin.fetch(f"SELECT * FROM {table}")), key=repr)
            for table in tables
        }


@pytest.fixture
async def sample(postgres: Postgres) -> AsyncIterator[Sample]:
    dsn, schema = postgres.fresh_database(), fresh_schema()
    admin = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    yield Sample(dsn, schema, admin)
    await admin.close()


async def opening(sample: Sample) -> asyncio.subprocess.Process:
    """A process that opens the store there."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.aggregator.upgrade_victim", "postgres", sample.dsn, sample.schema),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])},
    )


async def until(sample: Sample, query: str, expected: int) -> None:
    async with asyncio.timeout(120):
        while await sample.admin.fetchval(query) != expected:  # noqa: ASYNC110  another process's state is polled
            await asyncio.sleep(0.02)


async def waiting(sample: Sample, number: int) -> None:
    """Returns once so many wait for the lock of upgrades."""
    oid = await sample.admin.fetchval("SELECT oid FROM pg_database WHERE datname = current_database()")
    await until(sample, f"{SEES_A_LOCK}{oid}", number)


def test_every_version_has_a_sample() -> None:
    assert sorted(path.name for path in FOLDER.glob("postgres-*.sql")) == [
        f"postgres-{version}.sql" for version in range(1, POSTGRES_SCHEMA_FORMAT + 1)
    ]
    assert max(OLDER) == POSTGRES_SCHEMA_FORMAT - 1


@pytest.mark.parametrize("version", [*OLDER, POSTGRES_SCHEMA_FORMAT])
def test_the_tables_of_a_version_are_made_as_they_were_when_it_was_new(version: int) -> None:
    lines = (FOLDER / f"postgres-{version}.sql").read_text(encoding="utf-8").splitlines()
    then = [line for line in lines if line.startswith(("CREATE", "ALTER")) and "hushsum_schema" not in line]
    steps = postgres_schema.POSTGRES_MIGRATIONS[:version]
    now = [f"{' '.join(statement.split())};" for step in steps for statement in step if "INSERT" not in statement]
    assert sorted(now) == sorted(then)


@pytest.mark.parametrize("version", OLDER)
async def test_processes_that_start_at_once_upgrade_it_once_and_lose_nothing(sample: Sample, version: int) -> None:
    await (await postgres_store(sample.dsn, schema=sample.schema)).close()
    fresh = await sample.columns()
    await sample.load(POSTGRES_SCHEMA_FORMAT)
    assert await sample.columns() == fresh, "the sample of this version is what it makes"
    await sample.load(version)
    before = await sample.rows(version)
    assert all(before.values())
    assert await sample.columns() != fresh
    await sample.admin.execute("SELECT pg_advisory_lock($1)", postgres_schema._LOCK)
    processes = [await opening(sample) for _ in range(2)]
    await waiting(sample, 2)
    assert await sample.versions() == [*range(1, version + 1)]
    await sample.admin.execute("SELECT pg_advisory_unlock($1)", postgres_schema._LOCK)
    assert [await asyncio.wait_for(process.wait(), 120) for process in processes] == [0, 0]
    assert await sample.versions() == [*range(1, POSTGRES_SCHEMA_FORMAT + 1)]
    assert await sample.columns() == fresh
    assert await sample.rows(version) == before


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
async def test_a_service_goes_on_from_it(sample: Sample, version: int) -> None:
    await sample.load(version)
    store = await postgres_store(sample.dsn, schema=sample.schema)
    assert await store.signed_plan(PLAN.id) == (None if version == 1 else SIGNED)
    copied = replace(MARK, copy="receipts copy.jsonl" if version >= 5 else "")
    assert await store.receipts_mark() == (ReceiptsMark(b"", 0, b"") if version < 3 else copied)
    assert await store.windows(PLAN.id) == {W: "released", W + 1: "sealed", W + 2: "open"}
    assert await store.acquire_lease(PLAN.id, "test", "", 10) is not None
    await store.database.write(lower_fence)
    assert await store.forget_asked(PLAN.id) is None
    outcome = await store.outcome(PLAN.id, TUMBLING, W)
    assert outcome is not None
    assert outcome.data == b"the draw"
    assert await reserved(store, W + 1, b"2" * 32) == b"1" * 32
    assert (await store.account("")).spends == (spend(W), spend(W + 1))
    await store.commit_outcome(PLAN, TUMBLING, W + 1, b"draw", fence=FENCE)
    await store.mark_closing(PLAN.id, W + 2, fence=FENCE)
    for partition in range(PARTITIONS):
        folding = await Folding.of(store, partition)
        await folding.apply(folding.delta(5, W + 2, sequence=1), seal(W + 2))
    sealed = await store.sealed_window(PLAN, W + 2)
    assert sealed is not None
    assert sealed.sketch.counters[0, 0, 5] == PARTITIONS, "the one that was counted before is a duplicate"
    await store.keep_plan_signature(SIGNED)
    await store.close()


async def test_an_upgrade_that_is_cut_off_leaves_the_older_tables(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sample.load(1)
    before = (await sample.columns(), await sample.rows(1))
    slow = (*postgres_schema.POSTGRES_MIGRATIONS[1], "SELECT pg_sleep(600)")
    with monkeypatch.context() as patched:
        patched.setattr(postgres_schema, "POSTGRES_MIGRATIONS", (postgres_schema.POSTGRES_MIGRATIONS[0], slow))
        settings = PostgresSettings(sample.dsn, schema=sample.schema, patience_s=0)
        cut = asyncio.create_task(PostgresDatabase.open(settings, SystemRuntime()))
        asleep = "FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
        await until(sample, f"SELECT count(*) {asleep}", 1)
        await sample.admin.execute(f"SELECT pg_terminate_backend(pid) {asleep}")
        with pytest.raises(StoreUnavailableError):
            await cut
    await until(sample, f"SELECT count(*) {asleep}", 0)
    assert (await sample.columns(), await sample.rows(1)) == before
    assert await sample.versions() == [1]
    await (await postgres_store(sample.dsn, schema=sample.schema)).close()
    assert await sample.versions() == [*range(1, POSTGRES_SCHEMA_FORMAT + 1)]


@pytest.mark.parametrize("version", [*OLDER, POSTGRES_SCHEMA_FORMAT])
async def test_who_reads_alone_knows_whether_the_tables_are_of_this_version(sample: Sample, version: int) -> None:
    await sample.load(version)
    settings = PostgresSettings(sample.dsn, schema=sample.schema, migrates=False)
    database = await PostgresDatabase.open(settings, SystemRuntime())
    await database.close()
    assert (database.has_tables, database.is_current) == (True, version == POSTGRES_SCHEMA_FORMAT)
    assert await sample.versions() == [*range(1, version + 1)]


async def test_tables_of_a_newer_version_are_refused_with_what_to_do(sample: Sample) -> None:
    await sample.load(POSTGRES_SCHEMA_FORMAT)
    await sample.admin.execute("INSERT INTO hushsum_schema VALUES ($1)", POSTGRES_SCHEMA_FORMAT + 1)
    newest = POSTGRES_SCHEMA_FORMAT
    told = f"has format {newest + 1}; this version reads up to {newest}: update the service"
    with pytest.raises(StoreError, match=told):
        await postgres_store(sample.dsn, schema=sample.schema)
    assert (await sample.versions())[-1] == POSTGRES_SCHEMA_FORMAT + 1
