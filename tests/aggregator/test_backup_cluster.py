"""Back-ups of a service with Kafka and PostgreSQL: a dump, the receipts, and where the topics must begin."""

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import grpc.aio
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from aggregator.backup import MANIFEST, BackupError, Restored
from aggregator.backup_cluster import back_up_cluster, restore_cluster, without_password
from aggregator.config import Config
from aggregator.errors import ReceiptsError
from aggregator.release.kafka_receipts import ReceiptsTopic
from aggregator.release.lost import LostOutcomes
from aggregator.release.receipts import KeptLine, Receipt, read_line
from aggregator.repair import begin_receipts_copy, end_receipts_copy, mark_all_lost, rebuild_receipts
from aggregator.runtime import SystemRuntime
from aggregator.verify import verify
from hushsum_proto.batches import topic_of
from hushsum_simulator.testbed.kafka import KafkaBroker
from hushsum_simulator.testbed.postgres import Postgres, client_programs
from tests.aggregator.test_app_roles import PLAN, cluster_config
from tests.services import HOUR_MS, NOW_MS, WINDOW, Contributor, RawClient, SetRuntime, service_of

# What aiokafka was just connecting when it is closed is left to the collector, which warns.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """pg_dump refuses a server that is newer than itself."""
    monkeypatch.setenv("PATH", f"{client_programs()}{os.pathsep}{os.environ['PATH']}")


def elsewhere(config: Config, dsn: str) -> Config:
    """The same topics, and another database."""
    return Config.of(**{**config.model_dump(exclude_unset=True), **paths(config), "postgres_dsn": dsn})


def paths(config: Config) -> Mapping[str, str]:
    return {"plan": str(config.plan)}


async def released(client: RawClient) -> None:
    """Seals and releases the oldest window, once the process is the releaser."""
    await once_leading(client.seal)
    await once_leading(client.release)


async def once_leading(step: Callable[[], Awaitable[object]]) -> None:
    """Does what only a releaser does, once the process is one."""
    while True:
        try:
            await step()
            break
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            await asyncio.sleep(0.02)


async def states(config: Config) -> dict[str, str]:
    found: dict[str, str] = {}

    def report(what: str, state: str, text: str) -> None:
        found[what] = state if state != "failed" else f"failed: {text}"

    await verify(config, SystemRuntime(), report)
    return found


async def test_a_dump_is_restored_beside_the_topics_and_one_from_before_a_release_is_refused(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    runtime = SystemRuntime()
    # A dump holds the lease of the releaser that ran: it has ended when the dump is restored.
    config = cluster_config(tmp_path, kafka, postgres.fresh_database(), lease_s=1.0)
    async with service_of(config, SetRuntime()) as service, RawClient(service.grpc) as client:
        await client.submit_one(PLAN.id, Contributor(PLAN, 3).delta()[1])
        await back_up_cluster(config, tmp_path / "before", runtime)
        await released(client)
        made = await back_up_cluster(config, tmp_path / "after", runtime)
    assert [*made.plans] == [("test", 1)]
    assert sorted(made.files) == ["receipts-topic.jsonl", "store.dump"]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "after").iterdir()} == {0o600}
    manifest = json.loads((tmp_path / "after" / MANIFEST).read_text())
    assert list(manifest["topics"]) == [topic_of(config.kafka_prefix, PLAN.id)]
    assert next(iter(manifest["topics"].values()))["0"] > 0
    with pytest.raises(BackupError, match="the database has tables"):
        await restore_cluster(tmp_path / "after", config, runtime)

    # A topic that was set back lacks a receipt from after the dump: the window would be drawn a second time.
    ahead = tmp_path / "ahead"
    shutil.copytree(tmp_path / "after", ahead)
    receipts = ahead / "receipts-topic.jsonl"
    [*_, last] = receipts.read_bytes().splitlines()
    receipt, _ = read_line(last)
    assert isinstance(receipt, Receipt)
    line, _ = receipt._replace(window=WINDOW + 1).to_line()
    receipts.write_bytes(receipts.read_bytes() + line + b"\n")
    manifest["files"][receipts.name]["sha256"] = hashlib.sha256(receipts.read_bytes()).hexdigest()
    (ahead / MANIFEST).write_text(json.dumps(manifest))
    nowhere = elsewhere(config, postgres.fresh_database())
    with pytest.raises(BackupError, match=r"topic .*: 2 lines, and the back-up's own receipts have 3: they are older"):
        await restore_cluster(ahead, nowhere, runtime)

    restored = elsewhere(config, nowhere.dsn)
    made_again = await restore_cluster(tmp_path / "after", restored, runtime)
    topic = f"topic {config.kafka_prefix}.receipts"
    assert made_again == Restored(LostOutcomes({}, {}), receipts=1, places=topic)
    assert not [state for state in (await states(restored)).values() if state.startswith("failed")]
    async with service_of(restored, SetRuntime()) as service, RawClient(service.grpc) as client:
        outcome = await service.store.outcome(PLAN.id, "tumbling", WINDOW)
        assert outcome is not None
        assert outcome.data

    older = elsewhere(config, postgres.fresh_database())
    with pytest.raises(BackupError, match=rf"published after it was taken: plan 'test', window {WINDOW}\. "):
        await restore_cluster(tmp_path / "before", older, runtime)
    assert "there is a receipt for window" in (await states(older))["plan test: receipts"]
    assert await mark_all_lost(older, runtime) == LostOutcomes({"test": [WINDOW]}, {})
    found = await states(older)
    assert (found["plan test: receipts"], found["ledger"]) == ("ok", "ok")


async def test_a_cluster_that_no_releaser_has_started_in_has_no_receipts_yet_and_nothing_fails(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    config = cluster_config(tmp_path, kafka, postgres.fresh_database(), role="worker")
    async with service_of(config):
        pass
    found = await states(config)
    assert (found["receipts"], found["ledger"]) == ("not checked", "not checked")
    assert not [state for state in found.values() if state.startswith("failed")]


async def test_a_second_topic_is_begun_by_an_operator_and_compared_at_a_start(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    config = cluster_config(tmp_path, kafka, postgres.fresh_database())
    async with service_of(config, SetRuntime()) as service, RawClient(service.grpc) as client:
        await released(client)
    copied = with_copy(config, kafka)
    assert "missing" in (await states(copied))["receipts"]
    assert await begin_receipts_copy(copied, SystemRuntime()) == 2
    found = await states(copied)
    assert (found["receipts"], found["copy of the receipts"]) == ("ok", "ok")
    async with service_of(copied, SetRuntime(NOW_MS + HOUR_MS)) as service, RawClient(service.grpc) as client:
        await released(client)
        for repair, repaired in (
            (begin_receipts_copy, copied),
            (rebuild_receipts, copied),
            (end_receipts_copy, config),
        ):
            with pytest.raises(ReceiptsError, match=r"plan 'test': \S+ holds the releaser lease for \d+ s more"):
                await repair(repaired, SystemRuntime())
    found = await states(copied)
    assert (found["receipts"], found["copy of the receipts"], found["plan test: receipts"]) == ("ok", "ok", "ok")


async def test_of_two_commands_at_once_the_second_is_refused_and_the_first_comes_to_its_end(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = cluster_config(tmp_path, kafka, postgres.fresh_database())
    async with service_of(config, SetRuntime()) as service, RawClient(service.grpc) as client:
        await released(client)
    copied = with_copy(config, kafka)
    append, is_copying, goes_on = ReceiptsTopic.append, asyncio.Event(), asyncio.Event()

    async def held(sink: ReceiptsTopic, kept: KeptLine) -> None:
        if not is_copying.is_set():  # the second command would not wait
            is_copying.set()
            await goes_on.wait()
        await append(sink, kept)

    monkeypatch.setattr(ReceiptsTopic, "append", held)
    first = asyncio.create_task(begin_receipts_copy(copied, SystemRuntime()))
    await is_copying.wait()
    with pytest.raises(ReceiptsError, match=r"plan 'test': hushsum admin \S+ holds the releaser lease for \d+ s more"):
        await begin_receipts_copy(copied, SystemRuntime())
    goes_on.set()
    assert await first == 2


async def released_and_backed_up(folder: Path, kafka: KafkaBroker, postgres: Postgres) -> tuple[Config, Config]:
    """A cluster whose receipts have a copy, with a release and a dump of then, without and with the copy's setting."""
    alone = cluster_config(folder, kafka, postgres.fresh_database(), lease_s=1.0)
    copied = with_copy(alone, kafka)
    async with service_of(copied, SetRuntime()) as service, RawClient(service.grpc) as client:
        await released(client)
    await back_up_cluster(copied, folder / "before", SystemRuntime())
    return alone, copied


@pytest.mark.long
async def test_another_topic_than_the_store_knows_is_refused_and_a_newer_one_is_not_given_up(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    """The topic of receipts is lost and made from an older copy; the copy that the store knows has one receipt more."""
    runtime = SystemRuntime()
    alone, copied = await released_and_backed_up(tmp_path, kafka, postgres)
    other = with_copy(alone, kafka, "other")
    assert await begin_receipts_copy(other, runtime) == 2
    assert await begin_receipts_copy(copied, runtime) == 0, "back to the first one"
    found = await states(other)
    assert f"receipts_copy names topic {alone.kafka_prefix}.other at {kafka.bootstrap} (2 lines), but" in str(found)
    async with service_of(copied, SetRuntime(NOW_MS + HOUR_MS)) as service, RawClient(service.grpc) as client:
        await released(client)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    await admin.delete_topics([f"{alone.kafka_prefix}.receipts"])
    older = elsewhere(other, postgres.fresh_database())
    with pytest.raises(ReceiptsError, match="--reverse` makes them from it"):
        await restore_cluster(tmp_path / "before", older, runtime)
    with pytest.raises(
        ReceiptsError, match=rf"the copy that the store knows, topic {alone.kafka_prefix}.copy at .*, wo"
    ):
        await rebuild_receipts(older, runtime)
    await admin.delete_topics([f"{alone.kafka_prefix}.copy"])
    await admin.close()
    assert await rebuild_receipts(older, runtime) == 2


@pytest.mark.long
async def test_lost_outcomes_of_an_older_dump_are_marked_although_the_copy_of_the_receipts_is_lost_too(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    runtime = SystemRuntime()
    alone, copied = await released_and_backed_up(tmp_path, kafka, postgres)
    async with service_of(copied, SetRuntime(NOW_MS + HOUR_MS)) as service, RawClient(service.grpc) as client:
        await released(client)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    await admin.delete_topics([f"{alone.kafka_prefix}.copy"])
    await admin.close()

    ended = elsewhere(alone, postgres.fresh_database())
    with pytest.raises(ReceiptsError, match="receipts_copy is not set"):
        await restore_cluster(tmp_path / "before", ended, runtime)
    with pytest.raises(ReceiptsError, match="use `hushsum admin mark-lost`"):
        await end_receipts_copy(ended, runtime)
    assert await mark_all_lost(ended, runtime) == LostOutcomes({"test": [WINDOW + 1]}, {})
    assert "receipts_copy is not set" in (await states(ended))["receipts"], "the store goes on knowing of its copy"
    assert await end_receipts_copy(ended, runtime) == f"topic {alone.kafka_prefix}.copy at {kafka.bootstrap}"

    marked = elsewhere(alone, postgres.fresh_database())
    made = await restore_cluster(tmp_path / "before", marked, runtime, marks_lost=True)
    assert made.lost.windows == {"test": [WINDOW + 1]}
    assert made.other_copy == f"topic {alone.kafka_prefix}.copy at {kafka.bootstrap}"
    assert "receipts_copy is not set" in (await states(marked))["receipts"]
    begun = with_copy(marked, kafka)
    assert await begin_receipts_copy(begun, runtime) == 3
    for config in (ended, begun):
        found = await states(config)
        found.pop("plan test: log")  # its entries are erased by now, or soon
        assert not [state for state in found.values() if state.startswith("failed")]


def with_copy(config: Config, kafka: KafkaBroker, name: str = "copy") -> Config:
    """The same with a copy of the receipts."""
    more = {"receipts_copy": f"kafka://{kafka.bootstrap}/{config.kafka_prefix}.{name}"}
    return Config.of(**{**config.model_dump(exclude_unset=True), **paths(config), **more, "postgres_dsn": config.dsn})


async def test_a_dump_that_cannot_be_taken_leaves_nothing(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = cluster_config(tmp_path, kafka, postgres.fresh_database())
    async with service_of(config, SetRuntime()):
        pass
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackupError, match="pg_dump: not installed"):
        await back_up_cluster(config, tmp_path / "copy", SystemRuntime())
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("dsn", "uri", "secrets"),
    [
        ("postgresql://me:p%40ss@host:1/db?sslmode=require", "postgresql://me@host:1/db?sslmode=require", "p@ss"),
        ("postgresql://me@host/db?password=p&x=1", "postgresql://me@host/db?x=1", "p"),
        ("postgresql:///db", "postgresql:///db", None),
    ],
)
def test_a_password_is_no_argument_of_a_program(dsn: str, uri: str, secrets: str | None) -> None:
    assert without_password(dsn) == (uri, {} if secrets is None else {"PGPASSWORD": secrets})


async def test_a_dump_from_before_the_last_erasure_is_told_with_its_cure_and_keeps_outcomes_and_charges(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    """After an outcome its entries are deleted in Kafka: a dump from before can never be folded any further."""
    runtime = SystemRuntime()
    config = cluster_config(tmp_path, kafka, postgres.fresh_database(), lease_s=1.0)
    async with service_of(config, SetRuntime()) as service, RawClient(service.grpc) as client:
        await back_up_cluster(config, tmp_path / "before", runtime)
        await client.submit_one(PLAN.id, Contributor(PLAN, 3).delta()[1])
        await released(client)
        while (await service.store.fold_marks(PLAN.id))[0].forgotten_through < WINDOW:  # noqa: ASYNC110  it is polled
            await asyncio.sleep(0.02)
    gap = "partition 0: entries 0 to .* are missing and not yet folded: the store is from before they were erased"
    older = elsewhere(config, postgres.fresh_database())
    with pytest.raises(BackupError, match=rf"window {WINDOW}\. .*Plan 'test' cannot go on with this one .*: {gap}"):
        await restore_cluster(tmp_path / "before", older, runtime)
    assert "failed: partition 0: entries 0 to" in (await states(older))["plan test: log"]
    marked = elsewhere(config, postgres.fresh_database())
    lost = (await restore_cluster(tmp_path / "before", marked, runtime, marks_lost=True)).lost
    assert lost.windows == {"test": [WINDOW]}
    assert "Restore a newer store, or the log; no entry is skipped" in lost.gaps["test"]
    found = await states(marked)
    assert (found["plan test: receipts"], found["ledger"]) == ("ok", "ok")
