"""Every role, put together around a real broker and a real database: what it serves, what it refuses, how it starts."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # it ships no types
from structlog.testing import capture_logs

from aggregator.config import Config
from aggregator.errors import ConfigError, StoreError
from aggregator.observability import health
from aggregator.runtime import SystemRuntime
from hushsum.entropy import OsEntropy
from hushsum.errors import HushsumError
from hushsum.plan import Plan
from hushsum.signing import DirectoryKey, Role, SigningKey, toml_of
from hushsum_proto.answers import Status
from hushsum_proto.batches import signed_batch
from hushsum_proto.convert_batches import batch_to_bytes
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_simulator.testbed.kafka import KafkaBroker
from hushsum_simulator.testbed.postgres import Postgres
from hushsum_simulator.testbed.process import free_port
from tests.brokers import ProxiedKafka, ProxiedPostgres, fresh_prefix
from tests.plans import small_plan
from tests.services import Contributor, RawClient, SetRuntime, config_of, counted, service_of, trailing

PLAN = small_plan()
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def cluster_config(
    folder: Path, kafka: KafkaBroker | ProxiedKafka, dsn: str, plan: Plan = PLAN, **settings: object
) -> Config:
    parts = {"log": "kafka", "store": "postgresql", "data": None, "postgres_dsn": dsn, "postgres_pool": 3}
    given = {"kafka_bootstrap": kafka.bootstrap, "kafka_prefix": fresh_prefix(), **parts, **settings}
    return config_of(folder, plan, **given)


async def health_of(client: RawClient, service: str) -> object:
    stub = health_pb2_grpc.HealthStub(client.channel)
    try:
        return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status
    except grpc.aio.AioRpcError as error:
        return error.code()


SERVED = {
    "all": {"Collection", "Catalogue", "Administration"},
    "gateway": {"Collection", "Catalogue", "Administration"},
    "worker": {"Administration"},
    "releaser": {"Catalogue", "Administration"},
}


# It stops as soon as it has started: what aiokafka was just connecting is then left to the collector, which warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("role", SERVED)
async def test_a_role_serves_what_is_its_own_and_its_status_and_leaves_the_rest_to_others(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres, role: str
) -> None:
    config = cluster_config(tmp_path, kafka, postgres.fresh_database(), role=role)
    async with service_of(config, SetRuntime()) as service, RawClient(service.grpc) as client:
        served = {
            name
            for name in ("Collection", "Catalogue", "Administration")
            if await health_of(client, f"hushsum.v1.{name}") == SERVING
        }
        status = await client.administration.GetStatus(pb.StatusRequest())

        assert served == SERVED[role]
        assert await health_of(client, "") == SERVING
        assert (status.plan_id, status.partitions, status.role) == (PLAN.id, 1, role)
        assert [(fold.partition, fold.position) for fold in status.folds] == [(0, 0)]
        if role in {"gateway", "worker"}:
            with pytest.raises(grpc.aio.AioRpcError, match="no process holds the releaser lease") as caught:
                await client.seal()
            assert trailing(caught.value)["hushsum-reason"] == "unavailable"


async def test_one_process_may_do_everything_on_kafka_with_its_store_in_a_file(
    tmp_path: Path, kafka: KafkaBroker
) -> None:
    prefix = fresh_prefix()
    config = config_of(tmp_path, PLAN, log="kafka", kafka_bootstrap=kafka.bootstrap, kafka_prefix=prefix, partitions=2)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        answer = await client.submit_one(PLAN.id, Contributor(PLAN, 3).delta()[1])
        await client.seal()
        released = await client.release()

    assert answer.status is Status.ACKNOWLEDGED
    assert released.release.size_bytes
    assert not (config.folder / "receipts.jsonl").exists(), "receipts are where the log is, apart from the store"
    async with service_of(config) as service, RawClient(service.grpc) as client:
        assert [*(await client.catalog.ListReleases(pb.ListReleasesRequest())).releases] == [released.release]


def signed(folder: Path) -> Mapping[str, str]:
    """The settings of a directory with a key for each role."""
    lines = []
    for role in (Role.GATEWAY, Role.RELEASER):
        key = SigningKey.generate(OsEntropy())
        key.save(folder / f"{role}.pem")
        lines.append(toml_of(DirectoryKey(f"{role}-1", role, key.verify_key)))
    (folder / "directory.toml").write_text("".join(lines))
    return {
        "directory": str(folder / "directory.toml"),
        "gateway_key": str(folder / "gateway.pem"),
        "releaser_key": str(folder / "releaser.pem"),
    }


async def test_with_a_directory_what_gateway_and_releaser_write_is_signed_and_counts(
    tmp_path: Path, kafka: KafkaBroker
) -> None:
    prefix = fresh_prefix()
    plain = {"log": "kafka", "kafka_bootstrap": kafka.bootstrap, "kafka_prefix": prefix}
    async with (
        service_of(config_of(tmp_path, PLAN, **plain, **signed(tmp_path))) as service,
        RawClient(service.grpc) as client,
    ):
        assert (await client.submit_one(PLAN.id, Contributor(PLAN, 3).delta()[1])).status is Status.ACKNOWLEDGED
        await client.seal()
        assert counted(service, "hushsum_folded_total", partition="0", verdict="counted") == 1


@pytest.mark.parametrize(
    ("role", "mode", "message"),
    (
        (Role.GATEWAY, 0o640, "gateway_key: .*chmod 600"),
        (Role.RELEASER, 0o600, "releaser key .*not in the key registry"),
    ),
)
async def test_a_key_that_others_may_read_or_that_the_directory_does_not_hold_is_refused_at_the_start(
    tmp_path: Path, kafka: KafkaBroker, role: Role, mode: int, message: str
) -> None:
    plain = {"log": "kafka", "kafka_bootstrap": kafka.bootstrap, "kafka_prefix": fresh_prefix()}
    config = config_of(tmp_path, PLAN, **plain, **signed(tmp_path))
    file = tmp_path / f"{role}.pem"
    file.unlink()
    SigningKey.generate(OsEntropy()).save(file)
    file.chmod(mode)
    with pytest.raises(HushsumError, match=message):
        async with service_of(config):
            pass


# ------------------------------------------------------------------------------------------------ what is not there


async def test_brokers_that_do_not_answer_end_a_start_with_one_line_when_its_patience_ends(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    config = config_of(tmp_path, PLAN, log="kafka", kafka_bootstrap=address, start_s=1.5)
    with pytest.raises(ConfigError) as caught:
        async with service_of(config):
            pass

    assert str(caught.value).startswith("kafka unavailable for 1.5 s (start_s): kafka, ")


async def test_a_database_that_is_not_up_yet_is_waited_for(
    tmp_path: Path, kafka: KafkaBroker, postgres_behind_proxy: ProxiedPostgres
) -> None:
    dsn, _ = postgres_behind_proxy.fresh_database()
    config = cluster_config(tmp_path, kafka, dsn, role="gateway", start_s=120.0)
    proxy = postgres_behind_proxy.proxy
    proxy.refuse()

    async def heal() -> None:
        while not proxy.refused:  # noqa: ASYNC110  the proxy counts, and tells nobody
            await asyncio.sleep(0.02)
        proxy.heal()

    healing = asyncio.create_task(heal())
    async with service_of(config, SetRuntime()) as service, RawClient(service.grpc) as client:
        assert (await client.hello()).plan_id == PLAN.id
        assert counted(service, "hushsum_retries_total", what="the database") >= 1
    await healing


async def test_a_database_that_does_not_answer_ends_a_start_with_one_line_and_no_password(
    tmp_path: Path, kafka: KafkaBroker
) -> None:
    dsn = f"postgresql://hushsum:correct-horse@127.0.0.1:{free_port()}/counts"
    with pytest.raises(ConfigError, match=r"^the database unavailable for 0\.3 s \(start_s\): store: ") as caught:
        async with service_of(cluster_config(tmp_path, kafka, dsn, start_s=0.3)):
            pass

    assert "correct-horse" not in f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"


async def test_a_database_that_does_not_know_us_is_not_asked_again(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    host, port = postgres.address
    database = postgres.fresh_database().rpartition("/")[2]
    dsn = f"postgresql://stranger:correct-horse@{host}:{port}/{database}"
    with pytest.raises(StoreError, match=r"PostgreSQL refuses: .*stranger") as caught:
        async with service_of(cluster_config(tmp_path, kafka, dsn)):
            pass

    assert "correct-horse" not in str(caught.value)


async def test_a_promise_that_the_database_cannot_keep_is_a_warning_of_the_start(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    with capture_logs() as lines:
        async with service_of(cluster_config(tmp_path, kafka, postgres.fresh_database(), role="worker")):
            pass
    told = [line["log_level"] for line in lines if "synchronous_standby_names is empty" in line.get("why", "")]
    assert told == ["warning"]


async def test_a_plan_keeps_its_number_of_partitions(tmp_path: Path, kafka: KafkaBroker, postgres: Postgres) -> None:
    dsn = postgres.fresh_database()
    async with service_of(cluster_config(tmp_path, kafka, dsn, role="worker", partitions=2), SetRuntime()):
        pass
    with pytest.raises(StoreError, match="partitions"):
        async with service_of(cluster_config(tmp_path, kafka, dsn, role="gateway", partitions=3), SetRuntime()):
            pass


async def test_health_says_so_while_the_database_cannot_be_reached_for_long_and_no_longer(
    tmp_path: Path, kafka: KafkaBroker, postgres_behind_proxy: ProxiedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "LOOK_S", 0.05)
    monkeypatch.setattr(health, "PATIENCE_S", 2.0)
    dsn, _ = postgres_behind_proxy.fresh_database()
    config = cluster_config(tmp_path, kafka, dsn, role="gateway")
    async with (
        service_of(config, SystemRuntime()) as service,  # type: ignore[arg-type]  # the real clock, for leases
        RawClient(service.grpc) as client,
    ):
        watching = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(service=""))
        said = [(await watching.read()).status]
        postgres_behind_proxy.proxy.refuse()
        said.append((await watching.read()).status)
        assert counted(service, "hushsum_ready") == 0
        postgres_behind_proxy.proxy.heal()
        said.append((await watching.read()).status)

        assert said == [SERVING, NOT_SERVING, SERVING]
        assert counted(service, "hushsum_ready") == 1
        watching.cancel()


async def test_a_stop_comes_to_its_end_although_neither_brokers_nor_database_answer(
    tmp_path: Path, kafka_behind_proxy: ProxiedKafka, postgres_behind_proxy: ProxiedPostgres
) -> None:
    dsn, _ = postgres_behind_proxy.fresh_database()
    config = cluster_config(tmp_path, kafka_behind_proxy, dsn, stop_s=0.5)
    async with asyncio.timeout(240):
        async with service_of(config, SetRuntime()) as service, RawClient(service.grpc) as client:
            answer = await client.submit_one(PLAN.id, Contributor(PLAN, 3).delta()[1])
            kafka_behind_proxy.proxy.fall_silent()
            postgres_behind_proxy.proxy.fall_silent()

    assert answer.status is Status.ACKNOWLEDGED


@pytest.mark.parametrize("allowed", [False, True])
async def test_producers_are_believed_where_the_settings_say_so(
    tmp_path: Path, kafka: KafkaBroker, *, allowed: bool
) -> None:
    settings = {**signed(tmp_path), "direct_producers": allowed}
    key = SigningKey.generate(OsEntropy())
    with (tmp_path / "directory.toml").open("a") as directory:
        directory.write(toml_of(DirectoryKey("producer-1", Role.PRODUCER, key.verify_key)))
    plain = {"log": "kafka", "kafka_bootstrap": kafka.bootstrap, "kafka_prefix": fresh_prefix()}
    async with service_of(config_of(tmp_path, PLAN, **plain, **settings)) as service:
        batch = signed_batch([b"entry"], plan_id=PLAN.id, partition=0, key_id="producer-1", key=key)
        opened = service.log._messages.read(0, batch_to_bytes(batch))  # type: ignore[attr-defined]  # a log of Kafka has them
    assert opened.signer is (Role.PRODUCER if allowed else None)


async def test_a_gateway_takes_nothing_before_the_folds_of_others_have_stored_what_stands_in_the_log(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    dsn, prefix = postgres.fresh_database(), fresh_prefix()
    alone = cluster_config(tmp_path, kafka, dsn, role="gateway", kafka_prefix=prefix)
    sender = Contributor(PLAN, 3)
    async with service_of(alone, SetRuntime()) as service, RawClient(service.grpc) as client:
        assert (await client.submit_one(PLAN.id, sender.delta()[1])).status is Status.ACKNOWLEDGED
    async with service_of(alone, SetRuntime()) as service, RawClient(service.grpc) as client:
        assert await health_of(client, "") == NOT_SERVING
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError, match="check that worke") as caught:
                await client.submit_one(PLAN.id, sender.delta()[1])
            assert trailing(caught.value)["hushsum-reason"] == "unavailable"
        config = cluster_config(tmp_path, kafka, dsn, role="worker", kafka_prefix=prefix, checkpoint_s=0.2)
        async with service_of(config, SetRuntime()), asyncio.timeout(240):
            watching = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(service=""))
            assert [(await watching.read()).status for _ in range(2)] == [NOT_SERVING, SERVING]
            watching.cancel()
        assert (await client.submit_one(PLAN.id, sender.delta()[1])).status is Status.ACKNOWLEDGED
