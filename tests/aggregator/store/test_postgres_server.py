"""What a PostgreSQL server promises, and what is said of an address that cannot be used."""

from pathlib import Path

import asyncpg
import pytest

from aggregator.errors import StoreError, StoreUnavailableError
from aggregator.runtime import SystemRuntime
from aggregator.store.postgres import PostgresDatabase, PostgresSettings, address_error, promises_lost
from hushsum_simulator.testbed.postgres import Postgres, PostgresServer, missing_postgres
from tests.aggregator.stores import fresh_schema
from tests.brokers import left_out

PASSWORD = "not-to-be-seen"


async def opened(dsn: str) -> PostgresDatabase:
    settings = PostgresSettings(dsn, schema=fresh_schema(), pool=3, patience_s=0.0)
    return await PostgresDatabase.open(settings, SystemRuntime())


async def test_a_server_that_waits_for_no_standby_is_used_and_what_that_means_is_told() -> None:
    if (why := missing_postgres()) is not None:
        left_out(why)
    with PostgresServer() as server:
        database = await opened(server.dsn)
        [warning] = database.warnings
        assert "synchronous_standby_names is empty" in warning
        assert "may not survive the loss of the database's machine" in warning
        await database.close()
    # A standby of whom there is the name alone: whoever waits for it, waits for ever.
    with PostgresServer({"synchronous_standby_names": "other", "synchronous_commit": "local"}) as server:
        database = await opened(server.dsn)
        [warning] = database.warnings
        assert "synchronous_commit is local" in warning
        await database.close()
        for value in ("on", "remote_write", "remote_apply"):
            connection = await asyncpg.connect(server.dsn, server_settings={"synchronous_commit": value})
            assert await promises_lost(connection) == ()
            await connection.close()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("sslmode=verify_everything", "store: postgres_dsn: `sslmode` parameter must be one of: disable"),
        ("sslmode=verify-full&sslrootcert={folder}/none.pem", "sslrootcert: {folder}/none.pem cannot be used: No such"),
        ("sslmode=verify-full&sslrootcert={folder}/bad.pem", "sslrootcert: {folder}/bad.pem cannot be used: "),
        ("sslmode=require&sslcert={folder}/bad.pem", "sslcert: {folder}/bad.pem cannot be used: "),
        ("sslmode", "store: postgres_dsn: a port, or an option after the ?, cannot be read"),
    ],
)
async def test_what_is_wrong_with_an_address_is_told_at_once_and_without_its_password(
    postgres: Postgres, tmp_path: Path, option: str, said: str
) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    host, port = postgres.address
    with pytest.raises(StoreError) as caught:
        await opened(f"postgresql://user:{PASSWORD}@{host}:{port}/x?{option.format(folder=tmp_path)}")
    assert not isinstance(caught.value, StoreUnavailableError), "it does not pass by itself"
    assert said.format(folder=tmp_path) in str(caught.value)
    error: BaseException | None = caught.value
    while error is not None:
        assert PASSWORD not in f"{error!r} {error}"
        error = error.__cause__


@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        (f"postgresql://user:{PASSWORD}/x", PASSWORD),
        (f"postgresql://user:{PASSWORD}@host/x", f"near {PASSWORD}"),
        ("postgresql://user:not%2Dto%2Dbe%2Dseen@host/x", PASSWORD),
        (f"postgresql:///x?user=u&password={PASSWORD}", PASSWORD),
        (f"postgresql://user:a:{PASSWORD}@host/x", PASSWORD),
        (f"postgresql://[{PASSWORD}", PASSWORD),
    ],
)
def test_a_text_that_shows_a_part_of_an_address_that_may_be_secret_is_left_out(dsn: str, said: str) -> None:
    told = address_error(asyncpg.exceptions.ClientConfigurationError(said), dsn)
    assert str(told) == "store: postgres_dsn: it is not the address of a PostgreSQL database"


async def test_a_port_that_is_a_password_is_not_shown() -> None:
    with pytest.raises(StoreError, match=r"postgres_dsn: ") as caught:
        await opened(f"postgresql://user:{PASSWORD}/x")  # what was meant for a user's password, without its host
    assert PASSWORD not in str(caught.value)
