"""Real brokers and databases for tests: who has none here is told why, and under CI=true that is a failure."""

import os
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from hushsum_simulator.testbed.kafka import KafkaBroker, missing_java
from hushsum_simulator.testbed.postgres import (
    DSN_VARIABLE,
    ExternalPostgres,
    Postgres,
    PostgresServer,
    missing_postgres,
    with_address,
)
from hushsum_simulator.testbed.tcp_proxy import TcpProxy

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "kafka"
JARS = CACHE / "jars"


def missing_kafka() -> str | None:
    """Why no broker can be started here; None where one can."""
    if (java := missing_java()) is not None:
        return java
    if not (CACHE / "ready").exists():
        return "the broker's files are not in .cache/kafka; run make broker"
    return None


def left_out(why: str) -> NoReturn:
    """Skips the test, or fails it where nothing may be skipped."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"under CI=true this must run: {why}", pytrace=False)
    pytest.skip(why)


def started_kafka() -> KafkaBroker:
    """A broker, or a skipped test; whoever asks closes it."""
    if (why := missing_kafka()) is not None:
        left_out(why)
    return KafkaBroker(JARS).__enter__()


@contextmanager
def running_postgres() -> Generator[PostgresServer, None, None]:
    """A server of our own, or a skipped test."""
    if (why := missing_postgres()) is not None:
        left_out(why)
    with PostgresServer() as server:
        yield server


@contextmanager
def some_postgres() -> Generator[Postgres, None, None]:
    """The server that the environment names, else one of our own."""
    if dsn := os.environ.get(DSN_VARIABLE):
        external = ExternalPostgres(dsn)
        try:
            yield external
        finally:
            external.close()
        return
    with running_postgres() as server:
        yield server


def fresh_prefix() -> str:
    """Of topics and groups that no other test uses."""
    return f"hushsum-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True)
class ProxiedKafka:
    """A broker behind a proxy."""

    broker: KafkaBroker
    proxy: TcpProxy

    @property
    def bootstrap(self) -> str:
        """For clients that are to meet the proxy's faults, and only them."""
        return self.proxy.address

    @property
    def direct(self) -> str:
        """For those that are not."""
        return self.broker.bootstrap


@dataclass(frozen=True)
class ProxiedPostgres:
    """A database server behind a proxy."""

    server: Postgres
    proxy: TcpProxy

    def fresh_database(self) -> tuple[str, str]:
        """The DSN of a new database through the proxy, and that without it."""
        direct = self.server.fresh_database()
        return with_address(direct, self.proxy.address), direct
