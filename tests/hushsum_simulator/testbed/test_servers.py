"""The real broker and the real database: what they hold survives a kill, and a proxy stands between."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import aiokafka
import asyncpg
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from build_tools import kafka_jars
from hushsum_simulator.testbed import kafka as kafka_backend
from hushsum_simulator.testbed.kafka import KafkaBroker
from hushsum_simulator.testbed.process import free_port
from hushsum_simulator.testbed.tcp_proxy import Fault
from tests import brokers
from tests.brokers import ProxiedKafka, ProxiedPostgres, fresh_prefix, running_postgres


async def make_topic(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    finally:
        await admin.close()


async def test_what_kafka_acknowledged_through_the_proxy_is_read_without_it(kafka_behind_proxy: ProxiedKafka) -> None:
    topic = fresh_prefix()
    await make_topic(kafka_behind_proxy.direct, topic)
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=kafka_behind_proxy.bootstrap, acks="all", enable_idempotence=True, retry_backoff_ms=20
    )
    async with producer:
        await producer.send_and_wait(topic, b"0")
        before = kafka_behind_proxy.proxy.sent
        # Sent and done, but the answer is lost: what is sent again is the same, by the producer's number.
        kafka_behind_proxy.proxy.inject(Fault.CUT_BEFORE_REPLY, only=lambda data: data[4:6] == b"\0\0")
        await producer.send_and_wait(topic, b"1")
    assert kafka_behind_proxy.proxy.struck == 1
    assert kafka_behind_proxy.proxy.sent > before
    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=kafka_behind_proxy.direct, auto_offset_reset="earliest"
    )
    async with consumer:
        assert [(await consumer.getone()).value for _ in range(2)] == [b"0", b"1"]
        ends = await consumer.end_offsets(consumer.assignment())
        assert list(ends.values()) == [2]


async def test_a_commit_whose_reply_is_cut_off_is_done(postgres_behind_proxy: ProxiedPostgres) -> None:
    proxied, direct = postgres_behind_proxy.fresh_database()
    through = await asyncpg.connect(proxied)
    await through.execute("CREATE TABLE kept (value int)")
    postgres_behind_proxy.proxy.inject(Fault.CUT_BEFORE_REPLY, only=lambda data: b"COMMIT" in data)
    with pytest.raises((asyncpg.ConnectionDoesNotExistError, ConnectionError)):
        async with through.transaction():
            await through.execute("INSERT INTO kept VALUES (7)")
    through.terminate()
    connection = await asyncpg.connect(direct)
    assert await connection.fetchval("SELECT value FROM kept") == 7
    await connection.close()


async def test_what_postgresql_committed_survives_a_kill_while_paused() -> None:
    with running_postgres() as server:
        dsn = server.fresh_database()
        connection = await asyncpg.connect(dsn)
        await connection.execute("CREATE TABLE kept (value int); INSERT INTO kept VALUES (7)")
        server.pause()
        server.resume()
        assert await connection.fetchval("SELECT value FROM kept") == 7
        server.pause()
        server.kill()
        assert not server.is_running
        connection.terminate()
        server.start()
        connection = await asyncpg.connect(dsn)
        assert await connection.fetchval("SELECT value FROM kept") == 7
        assert await connection.fetchval("SHOW fsync") == "on"
        await connection.close()
        server.stop()
        assert not server.is_running


@pytest.mark.long
def test_a_broker_starts_from_what_is_prepared_once_for_all(tmp_path: Path) -> None:
    if (why := brokers.missing_kafka()) is not None:
        brokers.left_out(why)
    jars = tmp_path / "jars"
    shutil.copytree(brokers.JARS, jars)
    with KafkaBroker(jars) as fresh:
        formatted = {path.name for path in fresh.data.iterdir() if path.is_file()}
    assert [kafka_backend.prepare_brokers(jars) for _ in range(2)] == [True, False]
    prepared = jars.parent / "prepared"
    assert {path.name for path in (prepared / "data").iterdir()} <= formatted
    with KafkaBroker(jars) as broker:
        assert (broker.data / "meta.properties").read_bytes() == (prepared / "data" / "meta.properties").read_bytes()
        if sys.platform == "linux":
            assert str(prepared / "classes.jsa") in Path(f"/proc/{broker.pid}/maps").read_text(encoding="utf-8")
    (jars / "other.jar").write_bytes(b"")
    assert kafka_backend.prepare_brokers(jars), "the jars are others"


def test_a_broker_leaves_nothing_behind(kafka: KafkaBroker) -> None:
    assert kafka.data.is_dir()
    other = KafkaBroker(brokers.JARS)
    assert len({other.port, kafka.port, other.proxy_port, kafka.proxy_port}) == 4
    folder = other.data.parent
    assert folder.is_dir()
    other.close()
    assert not folder.exists()


@pytest.mark.parametrize("ci", [False, True])
def test_what_cannot_run_is_skipped_with_the_reason_but_not_in_ci(ci: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true") if ci else monkeypatch.delenv("CI", raising=False)
    expected = pytest.fail.Exception if ci else pytest.skip.Exception
    with pytest.raises(expected, match="Maven is not there"):
        brokers.left_out("Maven is not there")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ('openjdk version "11.0.2"', "Java is 11"),
        ('java version "1.8.0_302"', "Java is 8"),
        ("what", "unknown version"),
    ],
)
def test_an_old_java_is_named(told: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "java").write_text(f"#!/bin/sh\necho '{told}' >&2\n")
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert expected in (kafka_backend.missing_java() or "")


def test_without_java_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install Java 17" in (kafka_backend.missing_java() or "")


def test_files_of_the_broker_that_differ_from_the_list_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_jars, "LISTED", tmp_path / "jars.sha256")
    digest = hashlib.sha256(b"right").hexdigest()
    (tmp_path / "jars.sha256").write_text("".join(f"{digest}  {name}.jar\n" for name in ("right", "wrong", "gone")))
    folder = tmp_path / "jars"
    folder.mkdir()
    for name, data in {"right": b"right", "wrong": b"other", "more": b"right"}.items():
        (folder / f"{name}.jar").write_bytes(data)
    assert kafka_jars.problems(folder) == [
        "gone.jar is missing",
        "more.jar is not in the list",
        "wrong.jar has other bytes",
    ]


def test_a_port_that_was_given_is_not_given_again_here_or_by_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    given, free = free_port(), free_port()
    claims = "from hushsum_simulator.testbed import process\nimport sys\noffers = map(int, sys.argv[1:])\n"
    claims += "process.secrets.choice = lambda _: next(offers)\nprint(process.free_port())"
    elsewhere = [sys.executable, "-c", claims, str(given), str(free), "0"]
    assert subprocess.run(elsewhere, check=True, capture_output=True, text=True).stdout == "0\n"
    offers = iter((given, free, 0))
    monkeypatch.setattr("hushsum_simulator.testbed.process.secrets.choice", lambda _: next(offers))
    assert free_port() == 0, "neither of the two, though nobody listens there yet"
