"""PostgreSQL as the store's database: how it is opened, what is refused, and what passes."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress

import asyncpg
import pytest

from aggregator.errors import StoreError, StoreUnavailableError
from aggregator.runtime import SystemRuntime
from aggregator.store import windows as store_windows
from aggregator.store.postgres import PostgresDatabase, PostgresSettings, translated
from aggregator.store.schema import POSTGRES_SCHEMA_FORMAT
from aggregator.store.store import Store
from aggregator.store.transaction import Transaction
from hushsum.privacy.events import TUMBLING
from hushsum.signed_plan import SignedPlan
from hushsum.signing import SigningKey
from hushsum_simulator.testbed.postgres import Postgres, PostgresServer, missing_postgres
from hushsum_simulator.testbed.tcp_proxy import Fault
from tests.aggregator.stores import (
    FENCE,
    MARK,
    PARTITIONS,
    PLAN,
    Folding,
    W,
    committed,
    fresh_schema,
    postgres_store,
    prepared,
    reserved,
    sealed,
)
from tests.brokers import ProxiedPostgres, left_out

PASSWORD = "not-to-be-seen"


@pytest.fixture
async def admin(postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection beside the store's."""
    connection = await asyncpg.connect(postgres_dsn)
    yield connection
    await connection.close()


async def opened(dsn: str, timeout_s: float = 15.0, patience_s: float = 0.0, schema: str | None = None) -> Store:
    where = schema or fresh_schema()
    settings = PostgresSettings(dsn, schema=where, pool=3, timeout_s=timeout_s, patience_s=patience_s)
    return Store(await PostgresDatabase.open(settings, SystemRuntime()))


# --------------------------------------------------------------------------------------------------------- opening


async def test_processes_that_start_at_once_make_the_tables_once(postgres_dsn: str, admin: asyncpg.Connection) -> None:
    schema = fresh_schema()
    stores = await asyncio.gather(*(postgres_store(postgres_dsn, schema=schema, pool=1) for _ in range(4)))
    versions = await admin.fetch(f"SELECT version FROM {schema}.hushsum_schema ORDER BY version")
    assert [row["version"] for row in versions] == [*range(1, POSTGRES_SCHEMA_FORMAT + 1)]
    for store in stores:
        await store.close()


async def test_a_schema_without_signatures_of_plans_gets_them_and_keeps_what_it_holds(
    postgres_dsn: str, admin: asyncpg.Connection
) -> None:
    schema = fresh_schema()
    first = await postgres_store(postgres_dsn, schema=schema)
    await first.register(PLAN, PARTITIONS, W)
    await first.close()
    later = (
        "plan_signatures",
        "round_claims",
        "receipts",
        "sequences",
        "sequence_parts",
        "client_windows",
        "receipts_copy",
    )
    for table in later:  # as the first version left it
        await admin.execute(f"DROP TABLE {schema}.{table}")
    await admin.execute(f"DROP INDEX {schema}.sequence_spends, {schema}.unpublished")
    await admin.execute(f"DELETE FROM {schema}.hushsum_schema WHERE version > 1")
    again = await postgres_store(postgres_dsn, schema=schema)
    assert await again.load_plan(PLAN.id) == PLAN
    assert await again.signed_plan(PLAN.id) is None
    signed = SignedPlan.sign(PLAN.bundle, SigningKey(bytes(32)), "planner")
    await again.keep_plan_signature(signed)
    assert await again.signed_plan(PLAN.id) == signed
    await again.close()


async def test_a_newer_schema_is_refused_and_left_alone(postgres_dsn: str, admin: asyncpg.Connection) -> None:
    schema = fresh_schema()
    await (await postgres_store(postgres_dsn, schema=schema)).close()
    await admin.execute(f"INSERT INTO {schema}.hushsum_schema VALUES ({POSTGRES_SCHEMA_FORMAT + 1})")
    with pytest.raises(
        StoreError, match=f"format {POSTGRES_SCHEMA_FORMAT + 1}; this version reads up to {POSTGRES_SCHEMA_FORMAT}"
    ):
        await postgres_store(postgres_dsn, schema=schema)
    assert await admin.fetchval(f"SELECT max(version) FROM {schema}.hushsum_schema") == POSTGRES_SCHEMA_FORMAT + 1


async def test_everything_is_there_after_opening_it_again(postgres_dsn: str) -> None:
    schema = fresh_schema()
    first = await postgres_store(postgres_dsn, schema=schema)
    await prepared(first)
    await sealed(first, (W, W + 1))
    await committed(first, W, b"draw")
    await reserved(first, W + 1, b"1" * 32)
    await first.close()
    again = await postgres_store(postgres_dsn, schema=schema)
    assert await again.windows(PLAN.id) == {W: "released", W + 1: "sealed"}
    assert [outcome.data for outcome in await again.unpublished(PLAN.id)] == [b"draw"]
    assert await reserved(again, W + 1, b"2" * 32) == b"1" * 32
    await again.close()


async def test_a_role_that_may_only_make_its_schema_is_enough(postgres: Postgres) -> None:
    dsn = postgres.fresh_database()
    connection, role = await asyncpg.connect(dsn), f"role_{fresh_schema()[-12:]}"
    database = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    await connection.execute(f"GRANT CREATE ON DATABASE {database} TO {role}")
    host, port = postgres.address
    store = await opened(f"postgresql://{role}:{PASSWORD}@{host}:{port}/{database}")
    await prepared(store)
    await sealed(store)
    await committed(store, W, b"draw")
    await store.publish(PLAN.id, TUMBLING, W, receipts=MARK, fence=FENCE)
    await store.forget(PLAN, W, fence=FENCE)
    await store.close()
    await connection.execute(f"REVOKE CREATE ON DATABASE {database} FROM {role}")
    with pytest.raises(StoreError, match=r"permission denied .* privileges"):
        await opened(f"postgresql://{role}:{PASSWORD}@{host}:{port}/{database}")
    await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    await connection.close()


@pytest.mark.parametrize(
    ("dsn", "match"),
    [
        ("postgresql://user:{password}@{host}:{port}/no_such_database", "refuses"),
        ("http://user:{password}@{host}:{port}/postgres", "store: postgres_dsn: invalid DSN: scheme is expected"),
        ("postgresql://user:{password}@{host}:1/postgres", "cannot be reached"),
    ],
)
async def test_what_cannot_be_opened_is_said_without_the_password(postgres: Postgres, dsn: str, match: str) -> None:
    host, port = postgres.address
    with pytest.raises(StoreError, match=match) as caught:
        await opened(dsn.format(password=PASSWORD, host=host, port=port))
    chain: BaseException | None = caught.value
    while chain is not None:
        assert PASSWORD not in f"{chain!r} {chain}"
        chain = chain.__cause__
    assert PASSWORD not in repr(PostgresSettings(dsn.format(password=PASSWORD, host=host, port=port)))


async def test_a_server_that_answers_before_its_commit_is_on_the_disk_is_refused(postgres: Postgres) -> None:
    dsn = postgres.fresh_database()
    connection = await asyncpg.connect(dsn)
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    await connection.close()
    with pytest.raises(StoreError, match=r"synchronous_commit is off .* would not survive power loss"):
        await opened(dsn)


async def test_a_server_that_does_not_wait_for_its_disk_only_reads_or_is_not_there_is_refused() -> None:
    if (why := missing_postgres()) is not None:
        left_out(why)
    with PostgresServer({"fsync": "off"}) as server:
        with pytest.raises(StoreError, match=r"fsync is off .* would not survive power loss"):
            await opened(server.dsn)
        server.stop()
        with pytest.raises(StoreUnavailableError, match="cannot be reached"):
            await opened(server.dsn)
        (server._data / "standby.signal").touch()
        server.start()
        with pytest.raises(StoreError, match="replica") as caught:
            await opened(server.dsn)
        assert not isinstance(caught.value, StoreUnavailableError)


# --------------------------------------------------------------------------------------------------------- what passes


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (asyncpg.CannotConnectNowError("starting"), True),
        (asyncpg.AdminShutdownError("stopping"), True),
        (asyncpg.DeadlockDetectedError("a circle"), True),
        (asyncpg.SerializationError("overtaken"), True),
        (asyncpg.TooManyConnectionsError("no room"), True),
        (asyncpg.DiskFullError("no room"), True),
        (asyncpg.ReadOnlySQLTransactionError("a replica now"), True),
        (asyncpg.InterfaceError("closed"), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (asyncpg.InvalidPasswordError("who?"), False),
        (asyncpg.InsufficientPrivilegeError("no"), False),
        (asyncpg.UndefinedTableError("none"), False),
        (asyncpg.DataError(f"a value: {PASSWORD}"), False),
        (ssl.SSLCertVerificationError("self-signed"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_what_passes_by_itself_is_told_from_what_somebody_must_put_right(error: Exception, passes: bool) -> None:
    came = translated(error)
    assert isinstance(came, StoreUnavailableError) == passes
    assert PASSWORD not in str(came)


async def test_a_connection_that_falls_silent_ends_in_the_time_that_was_set(
    postgres_behind_proxy: ProxiedPostgres,
) -> None:
    proxied, direct = postgres_behind_proxy.fresh_database()
    schema = fresh_schema()
    patient = await opened(direct, schema=schema)
    await prepared(patient)
    await patient.close()
    store = await opened(proxied, timeout_s=0.5, patience_s=120.0, schema=schema)
    postgres_behind_proxy.proxy.fall_silent()
    for work in (store.open_windows(PLAN.id, W, W), store.windows(PLAN.id)):
        async with asyncio.timeout(120):  # neither for ever nor for TCP's own quarter of an hour
            with pytest.raises(StoreUnavailableError):
                await work
    postgres_behind_proxy.proxy.heal()
    assert await windows_opened(store) == {W: "open"}
    await store.close()


async def windows_opened(store: Store) -> dict[int, str]:
    """Opens a window, and lists all; again where a busy machine takes longer than was set."""
    while True:
        with suppress(StoreUnavailableError):
            await store.open_windows(PLAN.id, W, W)
            return dict(await store.windows(PLAN.id))


async def test_a_commit_whose_reply_is_lost_may_be_done_and_can_be_repeated(
    postgres_behind_proxy: ProxiedPostgres,
) -> None:
    proxied, _ = postgres_behind_proxy.fresh_database()
    store = await opened(proxied)
    await prepared(store)
    await sealed(store)
    postgres_behind_proxy.proxy.inject(Fault.CUT_BEFORE_REPLY, only=lambda data: b"COMMIT;" in data)
    with pytest.raises(StoreUnavailableError):
        await reserved(store, W, b"1" * 32)
    assert postgres_behind_proxy.proxy.struck == 1
    assert await reserved(store, W, b"2" * 32) == b"1" * 32, "it was done"
    assert len((await store.account("")).spends) == 1
    await store.close()


async def test_a_process_that_stops_inside_a_transaction_holds_the_others_up_for_a_while_only(
    postgres_dsn: str,
) -> None:
    schema = fresh_schema()
    other = await opened(postgres_dsn, schema=schema)
    await prepared(other)
    slow = await opened(postgres_dsn, timeout_s=1.0, patience_s=120.0, schema=schema)
    has_the_lock, goes_on = asyncio.Event(), asyncio.Event()

    async def stopped(tx: Transaction) -> None:
        await store_windows.renew_lease(tx, PLAN.id, 10, "", fence=FENCE)
        has_the_lock.set()
        await goes_on.wait()

    stopping = asyncio.create_task(slow.database.write(stopped))
    await has_the_lock.wait()
    await other.renew_lease(PLAN.id, 10, "mine", fence=FENCE)
    assert not stopping.done(), "the other one did not wait for its end"
    goes_on.set()
    with pytest.raises(StoreUnavailableError):
        await stopping
    lease = await other.lease(PLAN.id)
    assert lease is not None
    assert lease.note == "mine"
    await slow.close()
    await other.close()


async def test_a_cancelled_write_is_whole_and_leaves_the_pool_usable(postgres_dsn: str) -> None:
    store = await postgres_store(postgres_dsn, pool=1)
    await prepared(store)
    for pause_s in (0, 0.001, 0.002, 0.004, 0.008):
        writing = asyncio.create_task(store.open_windows(PLAN.id, W, W + 99))
        await asyncio.sleep(pause_s)
        writing.cancel()
        await asyncio.wait([writing])
        assert len(await store.windows(PLAN.id)) in (0, 100)
    await store.close()


# ------------------------------------------------------------------------------------------------------ forgetting


async def test_what_is_forgotten_gives_its_space_back(postgres_dsn: str, admin: asyncpg.Connection) -> None:
    schema = fresh_schema()
    store = await postgres_store(postgres_dsn, schema=schema)
    await prepared(store)
    await sealed(store)
    await committed(store, W, b"draw")
    await store.publish(PLAN.id, TUMBLING, W, receipts=MARK, fence=FENCE)
    tables = ("blocks", "counts", "streams", "contributions", "reservations")
    before = [await admin.fetchval("SELECT pg_table_size($1::regclass)", f"{schema}.{table}") for table in tables]
    assert before[0] >= PARTITIONS * 4096
    for partition in range(PARTITIONS):
        folding = await Folding.of(store, partition)
        folding.fold.forget(W)
        await folding.apply()
    await store.forget(PLAN, W, fence=FENCE)
    for table in tables:
        query = "SELECT pg_relation_size($1::regclass) + coalesce(pg_relation_size(nullif(reltoastrelid, 0)), 0) "
        left = await admin.fetchval(f"{query} FROM pg_class WHERE oid = $1::regclass", f"{schema}.{table}")
        assert left == 0, table
    await store.close()
