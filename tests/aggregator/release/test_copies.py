"""Copies of published releases: in a folder, in an object store (fsspec's in memory), in a topic of a real broker."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from aggregator.app import Service
from aggregator.errors import ConfigError
from aggregator.log.kafka.client import KafkaSettings
from aggregator.log.kafka.topic import releases_topic
from aggregator.release.catalog import NotFoundError
from aggregator.release.copies import CopyError, ReleaseCopier, destination_of, folder_name
from aggregator.release.kafka_copies import ReleasesTopic
from aggregator.runtime import SystemRuntime
from hushsum.entropy import OsEntropy
from hushsum.releases import Release, draw
from hushsum.sketch import Sketch
from hushsum_simulator.testbed.kafka import KafkaBroker
from tests.brokers import fresh_prefix
from tests.doubles import RecordingObserver
from tests.plans import small_plan
from tests.services import WINDOW, RawClient, config_of, counted, service_of

PLAN = small_plan()
NAMES = [f"test-{WINDOW + number}.hush" for number in range(3)]


async def release(client: RawClient, windows: int = 1) -> None:
    for _ in range(windows):
        await client.seal()
        await client.release()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 -- a counter of the service wakes nobody
            await asyncio.sleep(0.01)


def pending(service: Service) -> bool:
    return counted(service, "hushsum_release_copy_pending") == 1


async def test_each_release_is_in_the_folder_once_whatever_was_there_and_across_starts(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN, skew_s=7200.0, publish=str(tmp_path / "out" / "releases"))
    folder = tmp_path / "out" / "releases" / folder_name(PLAN)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await release(client, 2)
        await until(lambda: counted(service, "hushsum_release_copies_total") == 2)
        stored = [await service.store.outcome(PLAN.id, "tumbling", WINDOW + number) for number in range(2)]
    assert [file.name for file in sorted(folder.iterdir())] == NAMES[:2]
    assert [(folder / name).read_bytes() for name in NAMES[:2]] == [each.data for each in stored if each is not None]
    assert Release.from_bytes((folder / NAMES[1]).read_bytes()).window == WINDOW + 1

    (folder / NAMES[0]).unlink()
    (folder / NAMES[1]).write_bytes(b"half of it")
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await release(client)
        await until(lambda: counted(service, "hushsum_release_copies_total") == 3)
        assert [(folder / name).read_bytes() for name in NAMES[:2]] == [
            each.data for each in stored if each is not None
        ]
        assert [file.name for file in sorted(folder.iterdir())] == NAMES
        assert not pending(service)


async def test_a_folder_that_cannot_be_written_holds_up_no_release_and_gets_its_copies_later(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN, skew_s=7200.0, publish=str(tmp_path / "out"))
    folder = tmp_path / "out" / folder_name(PLAN)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        folder.rmdir()
        folder.write_text("a file")
        await release(client, 2)
        await until(lambda: pending(service))
        folder.unlink()
        folder.mkdir()
        await until(lambda: counted(service, "hushsum_release_copies_total") == 2)
        assert not pending(service)
    assert [file.name for file in sorted(folder.iterdir())] == NAMES[:2]


async def test_a_folder_that_cannot_be_made_and_a_url_of_no_kind_are_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"publish: .*Not a directory"):
        async with service_of(config_of(tmp_path, PLAN, publish=str(tmp_path / "file"))):
            pass
    with pytest.raises(ConfigError, match=r"publish: nothing://: Protocol not known: nothing"):
        async with service_of(config_of(tmp_path, PLAN, publish="nothing://bucket")):
            pass


def test_a_role_that_releases_nothing_has_nothing_to_copy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="publish: allowed only with role = all or releaser, got role = worker"):
        config_of(
            tmp_path,
            PLAN,
            role="worker",
            publish="out",
            log="kafka",
            kafka_bootstrap="127.0.0.1:9092",
            store="postgresql",
            postgres_dsn="postgresql://127.0.0.1/hushsum",
        )


async def test_a_withheld_window_has_no_copy(tmp_path: Path) -> None:
    plan = small_plan(window={"min_clients": 10**6})
    config = config_of(tmp_path, plan, publish=str(tmp_path / "out"))
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await release(client)
        assert counted(service, "hushsum_outcomes_withheld_total", kind="tumbling") == 1
    assert [*(tmp_path / "out" / folder_name(plan)).iterdir()] == []


async def test_releases_beyond_those_to_keep_are_removed_from_the_store_and_listed_as_removed(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN, skew_s=7200.0, keep_releases=2, publish=str(tmp_path / "out"))
    folder = tmp_path / "out" / folder_name(PLAN)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await release(client, 2)
        await until(lambda: counted(service, "hushsum_release_copies_total") == 2)
        await release(client)
        await until(lambda: counted(service, "hushsum_release_copies_total") == 3)
        infos = await service.catalog.releases(None)
        assert [(info.window, info.removed) for info in infos] == [
            (WINDOW, True),
            (WINDOW + 1, False),
            (WINDOW + 2, False),
        ]
        with pytest.raises(
            NotFoundError, match=f"release of window {WINDOW} was removed: it is older than keep_releases"
        ):
            await service.catalog.release("tumbling", WINDOW)
    for name in NAMES[:2]:
        (folder / name).unlink()
    async with service_of(config_of(tmp_path, PLAN, skew_s=7200.0, keep_releases=2)) as service:
        destination = destination_of(str(tmp_path / "out"), PLAN, SystemRuntime())
        done: list[int] = []
        copier = ReleaseCopier(
            service.catalog,
            destination,
            service.runtime,
            on_pending=lambda where, why: pytest.fail(f"{where}: {why}") if why else None,
            on_copied=lambda _, window: done.append(window),
        )
        service.catalog.close()  # so that it ends
        await copier.run()
    assert done == [WINDOW + 1]
    assert [file.name for file in sorted(folder.iterdir())] == NAMES[1:]


async def test_an_object_store_has_each_release_once(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/releases"
    config, files = config_of(tmp_path, PLAN, skew_s=7200.0, publish=url), fsspec.filesystem("memory")
    folder = f"/{tmp_path.name}/releases/{folder_name(PLAN)}"
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await release(client, 2)
        await until(lambda: counted(service, "hushsum_release_copies_total") == 2)
    files.rm(f"{folder}/{NAMES[0]}")
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await release(client)
        await until(lambda: counted(service, "hushsum_release_copies_total") == 2)
    assert sorted(path.rpartition("/")[2] for path in files.ls(folder, detail=False)) == NAMES
    assert [Release.from_bytes(files.cat_file(f"{folder}/{name}")).window for name in NAMES] == [
        *range(WINDOW, WINDOW + 3)
    ]
    files.rm(f"/{tmp_path.name}", recursive=True)


async def test_a_failing_object_store_is_a_failed_copy_whatever_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    store = destination_of("memory://bucket", PLAN, SystemRuntime())
    assert store.where == f"memory://bucket/{folder_name(PLAN)}"

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no credentials")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", fail)
    with pytest.raises(CopyError, match="RuntimeError: no credentials"):
        await store.has(WINDOW, 5)


async def windows_in(settings: KafkaSettings) -> list[int | None]:
    where = TopicPartition(releases_topic(settings, PLAN).name, 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=settings.bootstrap, group_id=None, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([where])
        end = (await consumer.end_offsets([where]))[where]
        found: list[int | None] = []
        while len(found) < end:
            record = await consumer.getone()
            found.append(Release.from_bytes(record.value or b"").window)
        return found
    finally:
        await consumer.stop()


async def test_a_topic_has_each_release_once_in_their_order_across_starts(tmp_path: Path, kafka: KafkaBroker) -> None:
    settings = KafkaSettings(kafka.bootstrap, fresh_prefix())
    config = config_of(
        tmp_path,
        PLAN,
        log="kafka",
        kafka_bootstrap=kafka.bootstrap,
        kafka_prefix=settings.prefix,
        kafka_publish=True,
        kafka_replication=1,
        skew_s=7200.0,
    )
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await release(client, 2)
        await until(lambda: counted(service, "hushsum_release_copies_total") == 2)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await release(client)
        await until(lambda: counted(service, "hushsum_release_copies_total") == 1)
    assert await windows_in(settings) == [WINDOW, WINDOW + 1, WINDOW + 2]


async def test_a_topic_with_something_else_in_it_gets_no_copy(kafka: KafkaBroker) -> None:
    settings = KafkaSettings(kafka.bootstrap, fresh_prefix(), replication=1)
    topic = await ReleasesTopic.open(settings, PLAN, SystemRuntime(threads=1), RecordingObserver())
    assert not await topic.has(WINDOW, 5)
    other = await ReleasesTopic.open(settings, PLAN, SystemRuntime(threads=1), RecordingObserver())
    data = draw(Sketch(PLAN), kind="tumbling", window=WINDOW, entropy=OsEntropy(), accounted=True).to_bytes()
    await other.write(WINDOW, data)
    await other.close()
    try:
        assert await topic.has(WINDOW, 5), "another process wrote it"
        producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap)
        await producer.start()
        await producer.send_and_wait(releases_topic(settings, PLAN).name, b"something else")
        await producer.stop()
        again = await ReleasesTopic.open(settings, PLAN, SystemRuntime(threads=1), RecordingObserver())
        with pytest.raises(CopyError, match="message 1 is no release"):
            await again.has(WINDOW, 5)
        await again.close()
    finally:
        await topic.close()
