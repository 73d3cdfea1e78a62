"""Store and receipts that do not belong together: whatever an operator lost or mixed up, no window is drawn twice."""

import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from aggregator.errors import ForeignReceiptsError, ReceiptsError, ReleasingStoppedError
from aggregator.model import ReceiptsMark, StoredOutcome
from aggregator.release.receipts import ReceiptsFile, reconcile
from aggregator.store.outcomes import advance_receipts
from aggregator.store.store import memory_store
from hushsum.entropy import ReplayableEntropy
from hushsum.plan import Plan
from hushsum.privacy.events import TUMBLING
from hushsum.releases import spend_of
from hushsum_proto import convert_admin
from hushsum_proto.v1 import wire_pb2 as pb
from tests.aggregator.disk_site import DiskSite, disk_site, restore_store
from tests.aggregator.release.test_releaser import HOUR_S, PLAN, CountingEntropy
from tests.doubles import CrashError, ManualRuntime, MemoryReceipts, Steps
from tests.plans import small_plan, tables
from tests.services import HOUR_MS, NOW_MS, RawClient, SetRuntime, config_of, service_of
from tests.vectors import generate_files

RECEIPTS = "receipts.jsonl"
OLDER_RECEIPTS = [1, 2]


async def released_once(folder: Path, runtime: ManualRuntime) -> None:
    """One window released, the next one sealed; copies of the store from before the release, and of now, are kept."""
    async with disk_site(folder, PLAN, runtime, open_windows=2) as site:
        await site.send(0)
        await site.releaser.seal(early=True)
        await site.sqlite.writer.truncate()
        shutil.copy(folder / "store.db", folder / "store.old")
        await site.releaser.release()
        await site.releaser.seal(early=True)
    shutil.copy(folder / "store.db", folder / "store.new")


def is_lost(receipts: Path) -> None:
    receipts.unlink()


def is_emptied(receipts: Path) -> None:
    receipts.write_bytes(b"")


def has_lost_its_header(receipts: Path) -> None:
    """As an older version would begin it anew."""
    receipts.write_bytes(b"")
    line = b'{"checksum":"0"'  # torn: it is cut off
    receipts.write_bytes(line)


async def another_receipts(path: Path) -> ReceiptsFile:
    """Receipts of another store, with an id of their own."""
    return await ReceiptsFile.open(path, ManualRuntime(), ReplayableEntropy(b"another store"))


async def check_stopped(folder: Path, runtime: ManualRuntime, why: str) -> None:
    """Collection goes on, nothing is drawn or charged, and everybody can see why."""
    entropy = CountingEntropy(b"again")
    async with disk_site(folder, PLAN, runtime, entropy=entropy) as site:
        before = await site.store.outcomes(PLAN.id)
        with pytest.raises(ReleasingStoppedError, match=why):
            await site.releaser.release()
        assert site.observer.stops == [site.releaser.stopped]
        await site.store.open_windows(PLAN.id, site.window + 2, site.window + 2)
        await site.send(1, window=site.window + 2)
        await runtime.advance(10 * HOUR_S)
        await site.releaser.take_due()
        assert (await site.store.unfinished(PLAN.id))[site.window + 2] == "sealed"
        assert await site.store.outcomes(PLAN.id) == before
    assert entropy.reads == 0


# --------------------------------------------------------------------------------------------------- the store is older


async def test_a_store_that_is_older_than_its_receipts_stops_releasing_and_counts_their_spends(tmp_path: Path) -> None:
    runtime, entropy = ManualRuntime(), CountingEntropy(b"again")
    await released_once(tmp_path, runtime)
    restore_store(tmp_path, "store.old")
    async with disk_site(tmp_path, PLAN, runtime, entropy=entropy) as site:
        assert await site.store.unfinished(PLAN.id) == {site.window: "sealed", site.window + 1: "open"}
        with pytest.raises(ReleasingStoppedError, match=f"a receipt for window {site.window}, but the store does not"):
            await site.releaser.release()
        assert (await site.store.account("")).spent.epsilon == 1
        await runtime.advance(10 * HOUR_S)
        await site.releaser.take_due()
        assert (await site.store.unfinished(PLAN.id))[site.window] == "sealed"
    assert entropy.reads == 0
    restore_store(tmp_path, "store.new")  # the operator's way out
    async with disk_site(tmp_path, PLAN, runtime) as site:
        assert site.releaser.stopped == ""
        await site.releaser.release()


@pytest.mark.parametrize(
    ("happened", "why"),
    [
        (is_lost, r"receipts\.jsonl: missing, although this store has receipts; .* are restored"),
        (is_emptied, r"receipts\.jsonl: missing or empty, expected the 1 line"),
        (has_lost_its_header, r"receipts\.jsonl: missing or empty, expected the 1 line"),
    ],
)
async def test_an_older_store_whose_receipts_are_gone_draws_no_window_again(
    tmp_path: Path, happened: Callable[[Path], None], why: str
) -> None:
    runtime, receipts = ManualRuntime(), tmp_path / RECEIPTS
    await released_once(tmp_path, runtime)
    restore_store(tmp_path, "store.old")
    kept = receipts.read_bytes()
    happened(receipts)
    for _ in range(2):  # another start makes it no better
        await check_stopped(tmp_path, runtime, why)
    receipts.write_bytes(kept)
    restore_store(tmp_path, "store.new")
    async with disk_site(tmp_path, PLAN, runtime) as site:
        assert (await site.releaser.release()).window == site.window + 1


async def test_a_receipt_for_another_outcome_than_the_stored_one_stops_releasing(tmp_path: Path) -> None:
    """As where an older version has drawn again."""
    runtime = ManualRuntime()
    await released_once(tmp_path, runtime)
    restore_store(tmp_path, "store.old")
    site = await DiskSite.open(tmp_path, PLAN, runtime, entropy=ReplayableEntropy(b"again"))
    entropy = CountingEntropy(b"again")
    await site.store.reserve_outcome(PLAN, TUMBLING, site.window, b"d" * 32, entropy, fence=site.fence)
    await site.store.commit_outcome(PLAN, TUMBLING, site.window, b"another draw", fence=site.fence)
    await site.die()
    async with disk_site(tmp_path, PLAN, runtime) as again:
        with pytest.raises(ReleasingStoppedError, match=f"receipt of window {again.window} differs from the outcome"):
            await again.releaser.release()


# ---------------------------------------------------------------------------------------------- the receipts are others


async def test_receipts_that_are_gone_stop_releasing_until_they_are_restored(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    await released_once(tmp_path, runtime)
    (tmp_path / RECEIPTS).rename(tmp_path / "kept")
    await check_stopped(tmp_path, runtime, r"receipts\.jsonl: missing, although this store has receipts")
    assert not (tmp_path / RECEIPTS).exists(), "nobody has made them anew"
    (tmp_path / "kept").replace(tmp_path / RECEIPTS)
    async with disk_site(tmp_path, PLAN, runtime) as site:
        assert (await site.releaser.release()).window == site.window + 1


async def test_a_store_that_has_only_reserved_an_outcome_misses_its_receipts(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    steps = Steps(7, after=True)
    site = await DiskSite.open(tmp_path, PLAN, runtime, steps=steps)
    await site.store.open_windows(PLAN.id, site.window, site.window)
    with suppress(CrashError):
        await site.start()
        await site.releaser.seal(early=True)
        await site.releaser.release()
    await site.die()
    assert steps.names[-1] == "Store.reserve_outcome"
    (tmp_path / RECEIPTS).unlink()
    await check_stopped(tmp_path, runtime, "missing, although this store has receipts")


async def test_receipts_that_lost_whole_lines_at_their_end_stop_releasing(tmp_path: Path) -> None:
    runtime, receipts = ManualRuntime(), tmp_path / RECEIPTS
    await released_once(tmp_path, runtime)
    header, _ = receipts.read_bytes().splitlines(keepends=True)
    receipts.write_bytes(header)
    await check_stopped(tmp_path, runtime, "1 of the 2 lines of receipts .*: an older copy")


async def test_receipts_that_lost_the_lines_of_another_plan_stop_releasing() -> None:
    runtime, receipts, plan = ManualRuntime(), MemoryReceipts(), Plan.from_fields({**tables(), "name": "other"})
    store = memory_store(runtime)
    fences = []
    for registered in (small_plan(), plan):
        await store.register(registered, 1, 0)
        fences.append(await store.acquire_lease(registered.id, "test", "", 10) or 0)
    assert (await reconcile(small_plan().id, store, receipts, fence=fences[0]))[0] == ""
    outcome = StoredOutcome(small_plan().id, TUMBLING, 0, b"", bytes(32))
    written = await receipts.write(outcome, spend_of(small_plan(), kind=TUMBLING, window=0))
    await store.database.write(advance_receipts, written)  # as a publication does
    assert (await reconcile(plan.id, store, receipts, fence=fences[1]))[0] == ""
    lost = MemoryReceipts()
    await lost.begin()
    problem, _ = await reconcile(plan.id, store, lost, fence=fences[1])
    assert "receipts in memory: it has 1 of the 2 lines" in problem
    await store.close()


async def test_receipts_of_another_store_stop_releasing_and_count_for_nothing(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    async with disk_site(tmp_path, PLAN, runtime, open_windows=2) as site:
        for _ in range(2):
            await site.releaser.seal(early=True)
    is_lost(tmp_path / RECEIPTS)
    others = await another_receipts(tmp_path / RECEIPTS)
    await others.begin()
    for window in (None, 7):  # empty of this plan's windows, or not
        if window is not None:
            outcome = StoredOutcome(PLAN.id, TUMBLING, window, b"", bytes(32))
            await others.write(outcome, spend_of(PLAN, kind=TUMBLING, window=window))
        why = r"receipts\.jsonl: receipts [0-9a-f]{8}, expected the 1 line of receipts"
        await check_stopped(tmp_path, runtime, why)
    async with disk_site(tmp_path, PLAN, runtime) as site:
        assert (await site.store.account("")).spends == ()


async def test_the_receipts_of_a_copy_that_ran_too_stop_releasing_and_count(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    async with disk_site(here, PLAN, runtime, open_windows=2) as site:
        await site.releaser.seal(early=True)
    shutil.copytree(here, there)
    for folder, key in ((here, b"here"), (there, b"there")):
        async with disk_site(folder, PLAN, runtime, entropy=ReplayableEntropy(key)) as site:
            await site.releaser.release()
            assert site.releaser.stopped == "", "nobody can know"
    shutil.copy(there / RECEIPTS, here / RECEIPTS)
    why = "other lines with the same id, from another copy, expected the 2 lines of receipts"
    await check_stopped(here, runtime, why)


# -------------------------------------------------------------------------------------------------------------- binding


async def test_a_new_store_and_new_receipts_are_bound_before_anything_is_drawn(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN) as site:
        bound = await site.store.receipts_mark()
        assert bound is not None
        assert (len(bound.id), bound.lines) == (16, 1)
        assert f'"id":"{bound.id.hex()}"' in (tmp_path / RECEIPTS).read_text()
        await site.releaser.seal(early=True)
        await site.releaser.release()
        after = await site.store.receipts_mark()
        assert after is not None
        assert (after.id, after.lines) == (bound.id, 2)
    async with disk_site(tmp_path, PLAN) as again:
        assert again.releaser.stopped == ""
        assert await again.store.receipts_mark() == after


async def test_receipts_that_cannot_be_made_stop_releasing_alone(tmp_path: Path) -> None:
    site = await DiskSite.open(tmp_path, PLAN, ManualRuntime())
    (tmp_path / RECEIPTS).mkdir()
    await site.start()
    assert "created by another process" in site.releaser.stopped
    assert await site.store.receipts_mark() is None
    (tmp_path / RECEIPTS).rmdir()
    await site.releaser.start()
    await site.die()
    async with disk_site(tmp_path, PLAN) as again:
        assert again.releaser.stopped == ""


async def test_an_outcome_is_not_published_whose_receipt_stands_elsewhere(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN) as site:
        await site.releaser.seal(early=True)
        others = await another_receipts(tmp_path / "others.jsonl")
        await others.begin()
        site.receipts.lines = others.lines
        with pytest.raises(Exception, match="the receipts belong to another store"):
            await site.releaser.release()
        (outcome,) = await site.store.outcomes(PLAN.id)
        assert not outcome.published
        assert site.observer.releases == []


# ------------------------------------------------------------------------------------------------------- older versions


def older_folder(tmp_path: Path, version: int) -> Path:
    """A data folder as a service of this format of receipts has left it: one window is released, another one open."""
    path = generate_files.ARCHIVE if version == 1 else generate_files.RECEIPTS / f"format-{version}.zip"
    (tmp_path / "data").mkdir(mode=0o700)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "data", generate_files.FILES)
    return tmp_path / "data"


async def stopped(client: RawClient) -> str:
    """Why nothing is released, as an operator is told."""
    status = await client.administration.GetStatus(pb.StatusRequest())
    return convert_admin.status_from_wire(status).releasing_stopped


@pytest.mark.parametrize("version", OLDER_RECEIPTS)
async def test_receipts_of_an_older_version_keep_their_bytes_and_are_the_stores_own_from_then_on(
    tmp_path: Path, version: int
) -> None:
    folder = older_folder(tmp_path, version)
    before = (folder / RECEIPTS).read_bytes()
    config = config_of(tmp_path, generate_files.PLAN, partitions=2)
    for _ in range(2):
        async with service_of(config, SetRuntime(NOW_MS + HOUR_MS)) as service, RawClient(service.grpc) as client:
            assert await stopped(client) == ""
            bound = await service.store.receipts_mark()
        assert (folder / RECEIPTS).read_bytes().startswith(before)
        assert bound is not None
        assert (len(bound.id), bound.lines) == (16, 2), "a header comes after what there was, once"
    (folder / RECEIPTS).unlink()
    async with service_of(config, SetRuntime(NOW_MS + HOUR_MS)) as service, RawClient(service.grpc) as client:
        assert "missing, although this store has receipts" in await stopped(client)


@pytest.mark.parametrize("version", OLDER_RECEIPTS)
async def test_a_store_of_an_older_version_without_its_receipts_makes_none(tmp_path: Path, version: int) -> None:
    folder = older_folder(tmp_path, version)
    (folder / RECEIPTS).unlink()
    config = config_of(tmp_path, generate_files.PLAN, partitions=2)
    async with service_of(config, SetRuntime(NOW_MS + HOUR_MS)) as service, RawClient(service.grpc) as client:
        assert "missing, although this store has receipts" in await stopped(client)
    assert not (folder / RECEIPTS).exists()


@pytest.mark.parametrize("mistake", [is_emptied, has_lost_its_header])
async def test_a_store_of_an_older_version_is_not_bound_to_receipts_that_lack_what_it_has_published(
    tmp_path: Path, mistake: Callable[[Path], None]
) -> None:
    runtime = ManualRuntime()
    await released_once(tmp_path, runtime)
    database = sqlite3.connect(tmp_path / "store.db")
    database.execute("UPDATE receipts SET id = x'', lines = 0, digest = x''")  # as an upgrade leaves it
    database.commit()
    database.close()
    receipts = tmp_path / RECEIPTS
    whole = receipts.read_bytes()
    mistake(receipts)
    await check_stopped(tmp_path, runtime, "has no receipt")
    with closing(sqlite3.connect(tmp_path / "store.db")) as database:
        assert database.execute("SELECT id FROM receipts").fetchone() == (b"",), "bound to the wrong ones for good"
    receipts.write_bytes(whole)
    async with disk_site(tmp_path, PLAN, runtime) as site:
        assert site.releaser.stopped == ""


async def test_a_check_tells_receipts_that_are_others_from_those_that_are_damaged(tmp_path: Path) -> None:
    receipts = await another_receipts(tmp_path / RECEIPTS)
    with pytest.raises(ForeignReceiptsError, match="missing"):
        await receipts.check(ReceiptsMark(b"", 0, b""))
    mark = await receipts.begin()
    await receipts.check(mark)
    await receipts.check(ReceiptsMark(b"", 0, b""))
    with pytest.raises(ForeignReceiptsError, match="expected the 1 line of receipts 78787878"):
        await receipts.check(ReceiptsMark(b"x" * 16, 1, mark.digest))
    for lines, digest in ((2, mark.digest), (1, bytes(32))):
        with pytest.raises(ReceiptsError) as caught:
            await receipts.check(ReceiptsMark(mark.id, lines, digest))
        assert not isinstance(caught.value, ForeignReceiptsError)
