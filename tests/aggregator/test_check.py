"""A check tries what the start needs, with a real broker and a real database, and leaves everything as it was."""

import asyncio
import shutil
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from structlog.testing import capture_logs

from aggregator.check import check
from aggregator.config import Config
from aggregator.errors import LogError
from aggregator.release.receipts import Receipt
from aggregator.runtime import SystemRuntime
from aggregator.sqlite import SqliteFile
from aggregator.store.postgres import PostgresDatabase, PostgresSettings
from hushsum.entropy import OsEntropy
from hushsum.privacy.events import TUMBLING
from hushsum.releases import spend_of
from hushsum.signing import DirectoryKey, Role, SigningKey, toml_of
from hushsum_simulator.testbed.kafka import KafkaBroker
from hushsum_simulator.testbed.postgres import Postgres
from hushsum_simulator.testbed.process import free_port
from tests.aggregator import stores
from tests.aggregator.shuffler.shuffled import shuffled_plan
from tests.aggregator.store.test_formats import of_format
from tests.aggregator.test_app_roles import PLAN as ROLES_PLAN
from tests.aggregator.test_app_roles import cluster_config
from tests.aggregator.test_backup_cluster import released as released_once_leading
from tests.authorities import Certified
from tests.plans import small_plan
from tests.services import WINDOW, Contributor, RawClient, SetRuntime, config_of, service_of

PLAN = small_plan()
OF_FILES = ["process", "data", "store", "plan", "log", "receipts"]
NOT_TRIED = "not tried: requires the plan"


async def checked(config: Config) -> dict[str, str]:
    """What was tried, in its order, and why it failed; empty where it did not."""
    found: dict[str, str] = {}

    def report(what: str, why: str) -> None:
        assert what not in found
        found[what] = why

    await check(config, SystemRuntime(), report)
    return found


def failures_of(found: dict[str, str]) -> dict[str, str]:
    return {what: why for what, why in found.items() if why}


def files_in(folder: Path) -> dict[str, tuple[int, bytes]]:
    """The mode and the bytes of each file."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


async def released(config: Config) -> None:
    """Leaves what a service leaves that has released a window."""
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await client.submit_one(PLAN.id, Contributor(PLAN, 1).delta(3)[1])
        await client.seal()
        await client.release()


async def assert_no_start(config: Config, why: str) -> None:
    with pytest.raises(LogError, match=why):
        async with service_of(config):
            pass


async def test_all_that_a_process_with_a_folder_needs_is_tried_and_no_file_is_made(tmp_path: Path) -> None:
    pages = {"metrics_listen": "127.0.0.1:0", "health_listen": "127.0.0.1:0"}
    found = await checked(config_of(tmp_path, PLAN, **pages))
    listening = ["listen 127.0.0.1:0", "health_listen 127.0.0.1:0", "metrics_listen 127.0.0.1:0"]
    assert found == dict.fromkeys([*OF_FILES, *listening], "")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["lock"]


async def test_a_folder_in_use_stays_as_it_is(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN, metrics_listen="127.0.0.1:0")
    async with service_of(config):
        before = files_in(tmp_path)
        assert failures_of(await checked(config)) == {
            "data": f"{tmp_path / 'data'} is in use by another process of the service: stop it first"
        }
        assert files_in(tmp_path) == before
    assert failures_of(await checked(config)) == {}


async def test_a_folder_of_something_else_and_a_damaged_store_are_told(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN)
    (tmp_path / "data").write_text("a file")
    assert "cannot be used as the data directory" in (await checked(config))["data"]
    (tmp_path / "data").unlink()
    (tmp_path / "data").mkdir(mode=0o700)
    for name in ("store.db", "log.db", "receipts.jsonl"):
        (tmp_path / "data" / name).write_text("something else " * 100)
    assert set(failures_of(await checked(config))) == {"store", "log", "receipts"}


async def test_files_with_data_stay_as_they_are(tmp_path: Path) -> None:
    receipts = tmp_path / "elsewhere" / "receipts.jsonl"
    receipts.parent.mkdir()
    data = tmp_path / "data"
    for config in (config_of(tmp_path, PLAN, receipts=str(receipts)), config_of(tmp_path, PLAN)):
        await released(config)
        file = config.receipts or data / "receipts.jsonl"
        (data / "listening.json").write_text("of a process that was killed")
        file.with_name("receipts.jsonl.lock").unlink(missing_ok=True)
        file.write_bytes(file.read_bytes()[:-1])  # its last line is complete: a start adds the break
        file.chmod(0o640)
        before = files_in(tmp_path)
        assert failures_of(await checked(config)) == {}
        assert files_in(tmp_path) == before
        shutil.rmtree(data)


async def test_a_torn_receipt_is_told_and_left_to_the_start(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN)
    await released(config)
    with (tmp_path / "data" / "receipts.jsonl").open("ab") as file:
        file.write(b'{"checksum":"12')
    before = files_in(tmp_path)
    with capture_logs() as logged:
        assert failures_of(await checked(config)) == {}
    assert "incomplete receipt will be truncated at the start" in [line["event"] for line in logged]
    assert files_in(tmp_path) == before
    async with service_of(config):
        assert (tmp_path / "data" / "receipts.jsonl.torn").exists()


async def test_what_a_killed_service_left_in_a_write_ahead_log_is_read(tmp_path: Path) -> None:
    config, data = config_of(tmp_path, PLAN), tmp_path / "data"
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await client.submit_one(PLAN.id, Contributor(PLAN, 1).delta(3)[1])
        shutil.copytree(data, tmp_path / "killed")
    shutil.rmtree(data)
    (tmp_path / "killed").rename(data)
    assert (data / "log.db-wal").stat().st_size > 0
    before = files_in(tmp_path)
    assert failures_of(await checked(config)) == {}
    after = files_in(tmp_path)
    assert {name for name in before if before[name] != after[name]} <= {"data/log.db-shm", "data/store.db-shm"}
    assert after.keys() == before.keys()


async def test_a_log_that_ends_before_what_is_folded_is_told(tmp_path: Path) -> None:
    config, log = config_of(tmp_path, PLAN), tmp_path / "data" / "log.db"
    await released(config)
    whole = log.read_bytes()
    log.unlink()
    before = files_in(tmp_path)
    missing = failures_of(await checked(config))
    assert set(missing) == {"log"}
    assert "the log ends at 0, but the fold has processed" in missing["log"]
    assert files_in(tmp_path) == before
    await assert_no_start(config, "the log ends at 0")
    assert failures_of(await checked(config)) == missing, "the start has made an empty log"

    log.write_bytes(whole)
    (tmp_path / "data" / "store.db").unlink()
    failed = failures_of(await checked(config))
    assert "older than its receipts" in failed["receipts"]


async def test_overwritten_pages_are_told(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN)
    await released(config)
    for name in ("log", "store"):
        path = tmp_path / "data" / f"{name}.db"
        whole = path.read_bytes()
        path.write_bytes(whole[:4096] + bytes(range(256)) * 16 + whole[8192:])
        assert set(failures_of(await checked(config))) >= {name}
        path.write_bytes(whole)
    assert failures_of(await checked(config)) == {}


async def test_a_file_that_is_too_large_to_check_in_time_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, PLAN)
    await released(config)
    monkeypatch.setattr("aggregator.sqlite._PAGES_S", 0.0)
    read = SqliteFile.read

    async def slowly(file: SqliteFile, work: Callable[[sqlite3.Connection], object]) -> object:
        await asyncio.sleep(0.02)  # a small file in memory may be checked in no time
        return await read(file, work)

    monkeypatch.setattr(SqliteFile, "read", slowly)
    with capture_logs() as logged:
        assert failures_of(await checked(config)) == {}
    partly = [line["file"] for line in logged if line["event"] == "file checked in part: it is too large"]
    assert partly == ["store", "log"]


async def test_receipts_that_are_deleted_cut_or_of_another_store_are_told(tmp_path: Path) -> None:
    config, path = config_of(tmp_path, PLAN), tmp_path / "data" / "receipts.jsonl"
    await released(config)
    lines = path.read_bytes().splitlines(keepends=True)
    for kept, why in ((None, "missing, although this store has receipts"), (lines[:-1], "an older copy")):
        path.unlink() if kept is None else path.write_bytes(b"".join(kept))
        before = files_in(tmp_path)
        failed = failures_of(await checked(config))
        assert set(failed) == {"receipts"}
        assert why in failed["receipts"]
        assert files_in(tmp_path) == before
    (tmp_path / "other").mkdir()
    await released(config_of(tmp_path / "other", PLAN))
    path.write_bytes((tmp_path / "other" / "data" / "receipts.jsonl").read_bytes())
    assert "expected the" in failures_of(await checked(config))["receipts"]


@pytest.mark.parametrize("version", [1, 2, 3, 4])
async def test_a_store_of_an_older_format_is_not_upgraded(tmp_path: Path, version: int) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    of_format(tmp_path / "data", version)
    before = files_in(tmp_path / "data")
    failed = failures_of(await checked(config_of(tmp_path, stores.PLAN, partitions=stores.PARTITIONS)))
    assert set(failed) == {"log"}, "the sample has none"
    after = files_in(tmp_path / "data")
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"lock"}


async def test_another_number_of_partitions_is_told(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN)):
        pass
    assert "has 1 partitions, got 4" in (await checked(config_of(tmp_path, PLAN, partitions=4)))["plan"]


async def test_a_port_in_use_is_told_and_a_free_one_is_free_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        used = f"127.0.0.1:{taken.getsockname()[1]}"
        config = config_of(tmp_path, PLAN, listen=used, metrics_listen=used, health_listen=used)
        failed = failures_of(await checked(config))
    assert set(failed) == {f"{setting} {used}" for setting in ("listen", "metrics_listen", "health_listen")}
    assert all("cannot be used" in why or "cannot listen on" in why for why in failed.values())

    free = f"127.0.0.1:{free_port()}"
    config = config_of(tmp_path, PLAN, listen=free)
    assert failures_of(await checked(config)) == {}
    async with service_of(config) as service:
        assert service.grpc == free


@pytest.mark.parametrize(
    ("data", "why"),
    (
        (None, "plan.json cannot be read"),
        (b"not a plan", "TOML"),
        (PLAN.bundle[:-20], "plan"),
        (small_plan(sketch={"rows": 2**20}).bundle, "expected at most counters_max = 100000"),
    ),
    ids=("missing", "text", "truncated", "large"),
)
async def test_a_wrong_plan_is_told_with_what_needs_it(tmp_path: Path, data: bytes | None, why: str) -> None:
    config = config_of(tmp_path, PLAN, counters_max=100_000)
    assert config.plan is not None
    config.plan.unlink() if data is None else config.plan.write_bytes(data)
    failed = failures_of(await checked(config))
    assert set(failed) == {"plan", "log", "receipts"}
    assert why in failed["plan"]
    assert failed["log"] == failed["receipts"] == NOT_TRIED


async def test_a_plan_file_that_was_changed_since_its_first_start_is_told(tmp_path: Path) -> None:
    toml = (
        'name = "points"\n[record]\ndim = 2\nlower = [0, 0]\nupper = [9, 9]\n'
        '[sketch]\nfamily = "hashed"\nkernel = "euclidean"\nbandwidth = 2\nrows = 8\nbuckets = 64\n'
        "[privacy]\nepsilon = 1\ntotal_epsilon = 3\n"
    )
    (tmp_path / "plan.toml").write_text(toml)
    config = config_of(tmp_path, PLAN).model_copy(update={"plan": tmp_path / "plan.toml"})
    async with service_of(config):
        pass
    assert failures_of(await checked(config)) == {}
    (tmp_path / "plan.toml").write_text(toml.replace("rows = 8", "rows = 9"))
    assert "sketch.rows is 8, the file says 9" in (await checked(config))["plan"]


async def test_a_key_that_does_not_fit_and_missing_files_are_told(tmp_path: Path) -> None:
    site, other = Certified(tmp_path / "tls"), Certified(tmp_path / "other")
    settings = {"authentication": "token", "tokens": str(tmp_path / "tokens"), "listen": f"127.0.0.1:{free_port()}"}
    (tmp_path / "tokens").touch(mode=0o600)
    assert failures_of(await checked(config_of(tmp_path, PLAN, **site.settings, **settings))) == {}

    (tmp_path / "tokens").unlink()
    site.key.write_bytes(other.key.read_bytes())
    failed = failures_of(await checked(config_of(tmp_path, PLAN, **site.settings, **settings)))
    assert set(failed) == {"tls_cert, tls_key", "tokens"}
    assert "not the private key of the certificate" in failed["tls_cert, tls_key"]
    assert "cannot be read" in failed["tokens"]

    site.certificate.unlink()
    failed = failures_of(await checked(config_of(tmp_path, PLAN, **site.settings)))
    assert "No such file" in failed["tls_cert, tls_key"]


async def test_a_cluster_is_tried_and_nothing_is_created(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    dsn = postgres.fresh_database()
    config = cluster_config(tmp_path, kafka, dsn)
    found = await checked(config)
    parts = ["process", "database", "plan", "brokers", "log", "receipts", "listen 127.0.0.1:0"]
    assert found == dict.fromkeys(parts, "")
    assert "receipts" not in await checked(config.model_copy(update={"role": "worker"}))
    database = await PostgresDatabase.open(PostgresSettings(dsn, pool=3, migrates=False), SystemRuntime())
    assert not database.has_tables
    await database.close()
    assert config.kafka_prefix not in " ".join(await kafka_topics(kafka))

    async with service_of(config, SystemRuntime()):  # type: ignore[arg-type]  # the real clock, as leases need it
        assert failures_of(await checked(config)) == {}
    failed = failures_of(await checked(config.model_copy(update={"partitions": 2})))
    assert "has 1 partitions, got 2" in failed["plan"]
    assert failed["log"] == NOT_TRIED


async def test_the_receipts_of_a_cluster_are_compared_with_its_store(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    config = cluster_config(tmp_path, kafka, postgres.fresh_database())
    async with service_of(config, SetRuntime()) as service, RawClient(service.grpc) as client:
        await released_once_leading(client)
        assert failures_of(await checked(config)) == {}
    topic = f"{config.kafka_prefix}.receipts"
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap)
    await producer.start()
    spend = spend_of(ROLES_PLAN, kind=TUMBLING, window=WINDOW + 1)
    lost = Receipt(ROLES_PLAN.id, TUMBLING, WINDOW + 1, bytes(32), spend)
    await producer.send_and_wait(topic, lost.to_line()[0])
    await producer.stop()
    assert "the store does not contain its outcome" in failures_of(await checked(config))["receipts"]
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    await admin.delete_topics([topic])
    await admin.close()
    assert f"topic {topic}: missing, although this store has receipts" in failures_of(await checked(config))["receipts"]
    assert topic not in await kafka_topics(kafka), "nothing is created"


async def kafka_topics(kafka: KafkaBroker) -> list[str]:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        return [str(name) for name in await admin.list_topics()]
    finally:
        await admin.close()


async def test_brokers_and_a_database_that_are_away_are_told(tmp_path: Path) -> None:
    away = f"127.0.0.1:{free_port()}"
    config = config_of(
        tmp_path, PLAN, data=None, log="kafka", store="postgresql", kafka_bootstrap=away,
        postgres_dsn=f"postgresql://user:hidden@{away}/name", start_s=0.3,
    )  # fmt: skip
    failed = failures_of(await checked(config))
    assert set(failed) == {"database", "brokers", "log"}
    assert "PostgreSQL cannot be reached" in failed["database"]
    assert all("kafka unavailable" in failed[what] for what in ("brokers", "log"))
    assert "hidden" not in str(failed)


async def test_keys_that_the_directory_does_not_have_are_told(tmp_path: Path) -> None:
    key, other = (SigningKey.generate(OsEntropy()) for _ in range(2))
    key.save(tmp_path / "gateway.pem")
    entry = DirectoryKey("gw", Role.GATEWAY, other.verify_key)
    (tmp_path / "directory.toml").write_text(toml_of(entry))
    config = config_of(
        tmp_path, PLAN, data=None, log="kafka", store="postgresql", role="gateway",
        kafka_bootstrap="127.0.0.1:1", postgres_dsn="postgresql://user@127.0.0.1:1/name", start_s=0.1,
        directory=str(tmp_path / "directory.toml"), gateway_key=str(tmp_path / "gateway.pem"),
    )  # fmt: skip
    assert "gateway" in failures_of(await checked(config))["directory"]


async def test_what_a_shuffler_needs_is_tried(tmp_path: Path) -> None:
    plan, key = shuffled_plan(), SigningKey.generate(OsEntropy())
    key.save(tmp_path / "shuffler.pem")
    (tmp_path / "shufflers.toml").write_text(toml_of(DirectoryKey("s", Role.SHUFFLER, key.verify_key)))
    (tmp_path / "a").mkdir()
    shufflers = {"shufflers": str(tmp_path / "shufflers.toml")}
    async with service_of(config_of(tmp_path / "a", plan, **shufflers)) as service:
        settings = {
            **shufflers,
            "role": "shuffler",
            "data": str(tmp_path / "s"),
            "listen": "127.0.0.1:0",
            "metrics_listen": "",
            "shuffler_key": str(tmp_path / "shuffler.pem"),
        }
        found = await checked(Config.of(upstream=service.grpc, **settings))
        upstream = f"upstream {service.grpc}"
        tried = ["process", "data", "shuffler_key, shufflers", upstream, "plan", "listen 127.0.0.1:0"]
        assert found == dict.fromkeys(tried, "")
        (tmp_path / "shuffler.pem").chmod(0o644)
        failed = failures_of(await checked(Config.of(upstream=service.grpc, **settings)))
        assert "chmod 600" in failed["shuffler_key, shufflers"]
    (tmp_path / "shuffler.pem").chmod(0o600)
    failed = failures_of(await checked(Config.of(upstream=service.grpc, **settings)))
    assert set(failed) == {upstream, "plan"}
