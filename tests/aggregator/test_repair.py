"""The copy of the receipts as the store knows it: begun, required at every start, ended; and receipts made from it."""

import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from structlog.testing import capture_logs

from aggregator.backup import back_up, restore
from aggregator.backup_cluster import back_up_cluster, restore_cluster
from aggregator.config import Config
from aggregator.errors import ConfigError, FencedError, ForeignReceiptsError, ReceiptsError, StoreError
from aggregator.model import ReceiptsMark
from aggregator.release.receipts import KeptLine, ReceiptsFile, reconcile
from aggregator.release.receipts_copy import CopiedReceipts, begin_copy
from aggregator.repair import begin_receipts_copy, end_receipts_copy, mark_all_lost, rebuild_receipts
from aggregator.runtime import SystemRuntime
from aggregator.store.store import Store, open_sqlite_store
from hushsum.entropy import ReplayableEntropy
from hushsum_simulator.testbed.kafka import KafkaBroker
from hushsum_simulator.testbed.postgres import Postgres, client_programs
from tests.aggregator.disk_site import DiskSite, disk_site
from tests.aggregator.release.test_receipts_copy import PLAN_OF_FOUR, history, pair, put
from tests.aggregator.test_app_roles import PLAN as SERVED
from tests.aggregator.test_app_roles import cluster_config
from tests.aggregator.test_backup_cluster import elsewhere, once_leading, released, states, with_copy
from tests.aggregator.test_check import checked, failures_of
from tests.aggregator.test_verify import COPY, PLAN, changed, collected, contents, failures, shortened, verified
from tests.doubles import ManualRuntime, Steps
from tests.services import HOUR_MS, NOW_MS, WINDOW, Contributor, RawClient, SetRuntime, config_of, service_of

RECEIPTS = "receipts.jsonl"
UNNAMED = "receipts_copy is not set, but this store's receipts have a copy, last at: receipts {}"


def config(folder: Path, *, copied: bool = True) -> Config:
    copy = {"receipts_copy": str(folder / COPY)} if copied else {}
    return Config.load(None, {"data": str(folder), **copy}, needs_plan=False)


async def copy_of(store: Store) -> str | None:
    """Where a store knows the copy of its receipts to be."""
    mark = await store.receipts_mark()
    return None if mark is None else mark.copy or None


async def mark_of(folder: Path) -> ReceiptsMark | None:
    store = await open_sqlite_store(folder / "store.db", SystemRuntime())
    try:
        return await store.receipts_mark()
    finally:
        await store.close()


async def place(folder: Path) -> str | None:
    mark = await mark_of(folder)
    return None if mark is None else mark.copy or None


# ------------------------------------------------------------------------------------------- what the store knows of it


async def test_a_store_whose_first_start_had_a_copy_is_not_released_from_without_it(tmp_path: Path) -> None:
    await collected(tmp_path)
    assert await place(tmp_path) == f"receipts {tmp_path / COPY}"
    put_aside = tmp_path / "aside"
    shutil.move(tmp_path / COPY, put_aside)
    told = failures(await verified(tmp_path, receipts_copy=None))
    assert UNNAMED.format(tmp_path / COPY) in told
    assert "`hushsum admin begin-receipts-copy`" in told
    assert "`hushsum admin end-receipts-copy`" in told


async def test_a_service_that_starts_without_the_setting_collects_and_releases_nothing(tmp_path: Path) -> None:
    with_copy = config_of(tmp_path, SERVED, receipts_copy=str(tmp_path / COPY))
    async with service_of(with_copy, SetRuntime()) as service, RawClient(service.grpc) as client:
        await released(client)
    without = config_of(tmp_path, SERVED)
    async with service_of(without, SetRuntime(NOW_MS + HOUR_MS)) as service, RawClient(service.grpc) as client:
        await client.submit_one(SERVED.id, Contributor(SERVED, 3).delta(window=WINDOW + 1)[1])
        await once_leading(client.seal)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await once_leading(client.release)
        assert UNNAMED.format(COPY) in (refused.value.details() or ""), "a caller is not told where files are"
    assert UNNAMED.format(tmp_path / COPY) in failures_of(await checked(without))["receipts"]
    assert "receipts" not in failures_of(await checked(with_copy))
    async with service_of(with_copy, SetRuntime(NOW_MS + HOUR_MS)) as service, RawClient(service.grpc) as client:
        await once_leading(client.release)


async def test_beginning_a_copy_tells_the_store_before_a_line_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with disk_site(tmp_path, PLAN, ManualRuntime()) as site:
        await site.releaser.seal(early=True)
        await site.releaser.release()
    assert await place(tmp_path) is None

    async def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ReceiptsFile, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            await begin_receipts_copy(config(tmp_path), SystemRuntime())
    assert await place(tmp_path) == f"receipts {tmp_path / COPY}"
    assert "copy.jsonl: missing" in failures(await verified(tmp_path))
    assert await begin_receipts_copy(config(tmp_path), SystemRuntime()) == 2
    assert not failures(await verified(tmp_path, publish=None))


async def test_a_process_that_runs_without_the_copy_publishes_nothing_once_there_is_one(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN, ManualRuntime(), open_windows=2) as site:
        await site.releaser.seal(early=True)
        await site.releaser.release()
        bound = await site.store.receipts_mark()
        assert bound is not None
        await site.store.set_receipts(replace(bound, copy="receipts elsewhere"), fences={PLAN.id: site.fence})
        await site.send(1, window=site.window + 1)
        await site.releaser.seal(early=True)
        with pytest.raises(StoreError, match=r"a copy of the receipts was begun \(receipts elsewhere\) after this"):
            await site.releaser.release()
        assert await site.store.outcome(PLAN.id, "tumbling", site.window + 1) is None


async def test_a_start_with_the_copy_tells_a_store_of_an_older_version_once_where_it_is(tmp_path: Path) -> None:
    """Nothing need be published: from then on a start without the setting releases nothing."""
    async with disk_site(tmp_path, PLAN, ManualRuntime()) as site:
        await site.releaser.seal(early=True)
        await site.releaser.release()
    await begin_copy(*await pair(tmp_path))
    assert await place(tmp_path) is None, "as older versions left it"
    for told in (1, 0):
        steps = Steps()
        site = await DiskSite.open(tmp_path, PLAN, ManualRuntime(), steps=steps, copied=True)
        await site.start()
        assert steps.names.count("Store.bind_receipts") == told
        await site.die()
        assert await place(tmp_path) == f"receipts {tmp_path / COPY}"
    assert UNNAMED.format(tmp_path / COPY) in failures(await verified(tmp_path, receipts_copy=None))


async def test_a_releaser_that_has_lost_its_lease_tells_the_store_nothing_of_the_copy(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN, ManualRuntime()) as site:
        first, copy = await pair(tmp_path)
        await begin_copy(first, copy)
        with pytest.raises(FencedError):
            await reconcile(PLAN.id, site.store, CopiedReceipts(first, copy), fence=site.fence - 1)
        assert await copy_of(site.store) is None


async def test_a_back_up_and_what_is_restored_from_it_know_of_the_copy(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    await collected(data)
    await back_up(config(data), tmp_path / "copy", SystemRuntime())
    await restore(tmp_path / "copy", tmp_path / "new", [data / RECEIPTS, data / COPY], SystemRuntime())
    assert await place(tmp_path / "new") == f"receipts {data / COPY}"


async def test_an_ended_copy_is_not_asked_for_any_more(tmp_path: Path) -> None:
    await collected(tmp_path)
    with pytest.raises(ConfigError, match="receipts_copy: still set"):
        await end_receipts_copy(config(tmp_path), SystemRuntime())
    alone = config(tmp_path, copied=False)
    assert await end_receipts_copy(alone, SystemRuntime()) == f"receipts {tmp_path / COPY}"
    assert await end_receipts_copy(alone, SystemRuntime()) is None
    assert not failures(await verified(tmp_path, receipts_copy=None))
    assert not failures(await verified(tmp_path)), "the copy that is left still fits"


async def test_a_copy_is_not_ended_while_the_receipts_do_not_fit_the_store(tmp_path: Path) -> None:
    await collected(tmp_path)
    shortened(tmp_path / RECEIPTS)
    with pytest.raises(ReceiptsError, match="2 of the 3 lines"):
        await end_receipts_copy(config(tmp_path, copied=False), SystemRuntime())
    assert await place(tmp_path) is not None


@pytest.mark.parametrize("repair", [begin_receipts_copy, rebuild_receipts, mark_all_lost])
async def test_a_folder_without_a_store_is_left_as_it_is(
    tmp_path: Path, repair: Callable[[Config, SystemRuntime], Awaitable[object]]
) -> None:
    with pytest.raises(ConfigError, match=r"has no store\.db"):
        await repair(config(tmp_path), SystemRuntime())
    assert contents(tmp_path).keys() <= {"lock"}


# ---------------------------------------------------------------------------------- lost receipts, made from their copy


@pytest.mark.parametrize("left", [None, 1])
async def test_receipts_that_are_lost_or_older_are_made_from_the_copy(tmp_path: Path, left: int | None) -> None:
    await history(tmp_path, ManualRuntime())
    put(tmp_path, 3, left, 3)
    assert failures(await verified(tmp_path, publish=None))
    assert await rebuild_receipts(config(tmp_path), SystemRuntime()) == (4 if left is None else 2)
    assert (tmp_path / RECEIPTS).read_bytes() == (tmp_path / f"3.{RECEIPTS}").read_bytes()
    assert (tmp_path / RECEIPTS).stat().st_mode & 0o777 == 0o600
    assert not failures(await verified(tmp_path, publish=None))
    async with disk_site(tmp_path, PLAN_OF_FOUR, ManualRuntime(), open_windows=4, copied=True) as site:
        assert site.releaser.stopped == ""
        await site.releaser.seal(early=True)
        await site.releaser.release()
    assert (tmp_path / RECEIPTS).read_bytes() == (tmp_path / COPY).read_bytes()


async def killed_at_the_third_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Receipts are made from their copy, until a kill after two lines."""
    append, appended = ReceiptsFile.append, 0

    async def killed(sink: ReceiptsFile, kept: KeptLine) -> None:
        nonlocal appended
        appended += 1
        if appended == 3:
            raise KeyboardInterrupt
        await append(sink, kept)

    with monkeypatch.context() as patched:
        patched.setattr(ReceiptsFile, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            await rebuild_receipts(config(folder), SystemRuntime())


async def test_where_their_making_is_cut_off_the_store_knows_of_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a start without it would draw again what the receipts that are left do not prove."""
    await history(tmp_path, ManualRuntime())
    put(tmp_path, 1, None, 3)
    changed(tmp_path, "DELETE FROM receipts_copy")  # as in a store from before the copy was begun
    await killed_at_the_third_line(tmp_path, monkeypatch)
    assert await place(tmp_path) == f"receipts {tmp_path / COPY}"
    assert UNNAMED.format(tmp_path / COPY) in failures(await verified(tmp_path, receipts_copy=None, publish=None))
    assert await rebuild_receipts(config(tmp_path), SystemRuntime()) == 2


async def test_they_are_not_made_from_a_copy_that_is_older_than_the_store_or_of_another_one(tmp_path: Path) -> None:
    await history(tmp_path, ManualRuntime())
    for copy, why in ((2, "3 of the 4 lines"), (None, "missing")):
        put(tmp_path, 3, None, copy)
        with pytest.raises(ReceiptsError, match=why):
            await rebuild_receipts(config(tmp_path), SystemRuntime())
        assert not (tmp_path / RECEIPTS).exists()
    (tmp_path / COPY).unlink(missing_ok=True)
    other = await ReceiptsFile.open(tmp_path / COPY, SystemRuntime(), ReplayableEntropy(b"another store"))
    await other.begin()
    with pytest.raises(ForeignReceiptsError, match="expected the 4 lines of receipts"):
        await rebuild_receipts(config(tmp_path), SystemRuntime())
    put(tmp_path, 1, 3, 2)
    with pytest.raises(ReceiptsError, match="the former is older"):
        await rebuild_receipts(config(tmp_path), SystemRuntime())


async def test_a_store_that_was_set_back_gets_its_receipts_and_is_found_out_by_them(tmp_path: Path) -> None:
    await history(tmp_path, ManualRuntime())
    put(tmp_path, 1, None, 3)
    assert await rebuild_receipts(config(tmp_path), SystemRuntime()) == 4
    assert "the store does not contain its outcome" in failures(await verified(tmp_path, publish=None))


def unbound(folder: Path, *, publishes: bool) -> None:
    """A store of a version that knew no id; also one that has published nothing."""
    changed(folder, "UPDATE receipts SET id = x'', lines = 0, digest = x''")
    changed(folder, "DELETE FROM receipts_copy")
    if not publishes:
        changed(folder, "DELETE FROM outcomes")


async def test_a_copy_that_is_empty_or_missing_leaves_a_store_that_never_released_as_it_is(tmp_path: Path) -> None:
    """As where its path is mistyped: a store that is told of receipts which never were would never release."""
    await history(tmp_path, ManualRuntime())
    put(tmp_path, 0, None, None)
    for table in ("receipts", "receipts_copy"):
        changed(tmp_path, f"DELETE FROM {table}")
    with pytest.raises(ReceiptsError, match="no receipts to copy; the first start"):
        await rebuild_receipts(config(tmp_path), SystemRuntime())
    assert await mark_of(tmp_path) is None
    async with disk_site(tmp_path, PLAN_OF_FOUR, ManualRuntime()) as site:
        assert not site.releaser.stopped


@pytest.mark.parametrize("publishes", [True, False])
async def test_a_store_without_an_id_tells_its_own_copy_by_what_it_has_published_and_else_says_that_it_cannot(
    tmp_path: Path, publishes: bool
) -> None:
    await history(tmp_path, ManualRuntime())
    other = tmp_path / "other"
    other.mkdir()
    async with disk_site(other, PLAN_OF_FOUR, ManualRuntime(), entropy=ReplayableEntropy(b"another")) as site:
        await site.releaser.seal(early=True)
        await site.releaser.release()
    for copy, whose in ((other / RECEIPTS, "another's"), (tmp_path / f"3.{COPY}", "its own")):
        put(tmp_path, 1, None, None)
        unbound(tmp_path, publishes=publishes)
        shutil.copy(copy, tmp_path / COPY)
        with capture_logs() as logged:
            if publishes and whose == "another's":
                with pytest.raises(ReceiptsError, match="differs from the outcome in the store"):
                    await rebuild_receipts(config(tmp_path), SystemRuntime())
                assert not (tmp_path / RECEIPTS).exists()
            else:
                await rebuild_receipts(config(tmp_path), SystemRuntime())
                assert (tmp_path / RECEIPTS).read_bytes() == copy.read_bytes()
        told = [line["event"] for line in logged if "whether the copy is its own cannot be told" in line["event"]]
        assert len(told) == (not publishes)


async def last_line(kafka: KafkaBroker, topic: str) -> bytes:
    """The last message of a topic with one partition."""
    consumer, where = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap), TopicPartition(topic, 0)
    await consumer.start()
    try:
        consumer.assign([where])
        consumer.seek(where, (await consumer.end_offsets([where]))[where] - 1)
        return bytes((await consumer.getone(where)).value or b"")
    finally:
        await consumer.stop()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # see test_backup_cluster
async def test_a_lost_topic_of_receipts_is_made_from_its_copy(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the lost one had a line twice: the copy has it once, and the store's mark counts messages."""
    monkeypatch.setenv("PATH", f"{client_programs()}{os.pathsep}{os.environ['PATH']}")
    first = cluster_config(tmp_path, kafka, postgres.fresh_database(), lease_s=1.0)
    copied = with_copy(first, kafka)
    async with service_of(copied, SetRuntime()) as service, RawClient(service.grpc) as client:
        await released(client)
        assert await copy_of(service.store) == f"topic {first.kafka_prefix}.copy at {kafka.bootstrap}"
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap)
    await producer.start()
    await producer.send_and_wait(f"{first.kafka_prefix}.receipts", await last_line(kafka, f"{first.kafka_prefix}.copy"))
    await producer.stop()
    async with service_of(copied, SetRuntime(NOW_MS + HOUR_MS)) as service, RawClient(service.grpc) as client:
        await released(client)
        mark = await service.store.receipts_mark()
        assert mark is not None
        assert mark.lines == 4, "three, one of them twice"
    await back_up_cluster(copied, tmp_path / "dump", SystemRuntime())
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    await admin.delete_topics([f"{first.kafka_prefix}.receipts"])
    await admin.close()
    restored = elsewhere(copied, postgres.fresh_database())
    with pytest.raises(ReceiptsError, match=r"`hushsum admin begin-receipts-copy --reverse` makes them from it"):
        await restore_cluster(tmp_path / "dump", restored, SystemRuntime())
    assert await rebuild_receipts(restored, SystemRuntime()) == 3
    async with service_of(restored, SetRuntime(NOW_MS + 2 * HOUR_MS)) as service, RawClient(service.grpc) as client:
        await released(client)
    assert not [state for state in (await states(restored)).values() if state.startswith("failed")]
    assert "receipts_copy is not set" in (await states(elsewhere(first, restored.dsn)))["receipts"]
