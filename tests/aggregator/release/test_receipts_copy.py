"""A second sink of receipts: killed anywhere the two agree again, and what was set back is found by what was not."""

import itertools
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.errors import ForeignReceiptsError, ReceiptsError, ReleasingStoppedError
from aggregator.model import ReceiptsMark, StoredOutcome
from aggregator.release.receipts import ReceiptsFile, reconcile
from aggregator.release.receipts_copy import CopiedReceipts, begin_copy
from aggregator.store.store import Store, memory_store
from hushsum.entropy import ReplayableEntropy
from hushsum.plan import Plan
from hushsum.privacy.events import TUMBLING
from hushsum.releases import spend_of
from tests.aggregator.deltas import tally_plan
from tests.aggregator.disk_site import DiskSite, disk_site, restore_store
from tests.aggregator.release.test_releaser import (
    PLAN,
    CountingEntropy,
    check_all_is_well,
    lived,
    prepared,
)
from tests.doubles import ManualRuntime, MemoryReceipts, Steps
from tests.plans import small_plan, tables

FIRST, COPY = "receipts.jsonl", "copy.jsonl"
STEPS = 29  # of two windows
PLAN_OF_FOUR = tally_plan(counters=1000, records_per_client=3, total_epsilon=4)  # enough for four windows


def equal(folder: Path) -> bool:
    return (folder / FIRST).read_bytes() == (folder / COPY).read_bytes()


# ----------------------------------------------------------------------------------------------------------- kills


async def test_a_receipt_is_in_both_before_its_outcome_is_published(tmp_path: Path) -> None:
    runtime, steps = ManualRuntime(), Steps()
    await prepared(tmp_path, runtime)
    await lived(tmp_path, runtime, steps, b"first", copied=True)
    assert steps.count == STEPS
    of_receipts = [name for name in steps.names if "Receipts" in name or name.endswith(("bind_receipts", "publish"))]
    begun, written = ["ReceiptsFile.begin", "ReceiptsFile.append", "Store.bind_receipts"], ["ReceiptsFile.write"]
    assert of_receipts == begun + 2 * [*written, "ReceiptsFile.append", "Store.publish"]
    assert equal(tmp_path)
    assert (tmp_path / COPY).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("fatal", range(1, STEPS + 1))
async def test_killed_at_any_step_and_started_again_both_are_equal_and_nothing_is_stopped(
    tmp_path: Path, fatal: int, after: bool
) -> None:
    runtime = ManualRuntime()
    await prepared(tmp_path, runtime)
    steps = Steps(fatal, after=after)
    first = await lived(tmp_path, runtime, steps, b"first", copied=True)
    assert steps.count >= fatal
    second = await lived(tmp_path, runtime, Steps(), b"second", copied=True)
    assert second.releaser.stopped == ""
    await check_all_is_well(tmp_path, [first, second], runtime)
    assert equal(tmp_path)


async def test_a_copy_that_cannot_be_written_keeps_its_outcome_from_being_shown_until_it_can(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN, copied=True) as site:
        await site.releaser.seal(early=True)
        (tmp_path / COPY).rename(tmp_path / "away")
        with pytest.raises(ReceiptsError, match=r"copy\.jsonl.*No such file"):
            await site.releaser.release()
        assert await site.store.outcome(PLAN.id, TUMBLING, site.window) is None
        assert "charged and drawn but not published yet" in site.releaser.stopped
        (tmp_path / "away").rename(tmp_path / COPY)
        assert (await site.releaser.release()).window == site.window
        assert site.releaser.stopped == ""
    assert equal(tmp_path)


# ------------------------------------------------------------------------------------------- what is lost or set back


async def history(folder: Path, runtime: ManualRuntime) -> None:
    """Copies of store, log and both sinks after 0, 1, 2 and 3 releases: ``0.store.db`` and so on."""
    async with disk_site(folder, PLAN_OF_FOUR, runtime, open_windows=4, copied=True) as site:
        for released in range(4):
            if released:
                await site.releaser.seal(early=True)
                await site.releaser.release()
            await site.sqlite.writer.truncate()
            await site.log._writer.truncate()
            for name in ("store.db", "log.db", FIRST, COPY):
                shutil.copy(folder / name, folder / f"{released}.{name}")


def put(folder: Path, store: int, first: int | None, copy: int | None) -> None:
    """Each as it was after so many releases; None: it is lost."""
    restore_store(folder, f"{store}.store.db")
    for name, released in ((FIRST, first), (COPY, copy)):
        (folder / name).unlink(missing_ok=True)
        if released is not None:
            shutil.copy(folder / f"{released}.{name}", folder / name)


async def stopped(folder: Path, runtime: ManualRuntime, copy_name: str = COPY) -> str:
    """Why nothing is released after a start with this copy; then nothing is drawn."""
    entropy = CountingEntropy(b"again")
    site = await DiskSite.open(folder, PLAN_OF_FOUR, runtime, entropy=entropy, copied=True, copy_name=copy_name)
    try:
        await site.releaser.start()
        if site.releaser.stopped:
            with pytest.raises(ReleasingStoppedError):
                await site.releaser.release()
            assert entropy.reads == 0
        return site.releaser.stopped
    finally:
        await site.die()


async def test_whatever_is_set_back_or_lost_is_found_where_the_store_or_one_of_the_two_is_newer(tmp_path: Path) -> None:
    """Every combination of states of three releases; only those that all come from one moment are accepted."""
    runtime = ManualRuntime()
    await history(tmp_path, runtime)
    states = [None, 0, 1, 2, 3]
    accepted = set()
    for store, first, copy in itertools.product(range(4), states, states):
        put(tmp_path, store, first, copy)
        if not await stopped(tmp_path, runtime):
            accepted.add((store, first, copy))
    assert accepted == {(released, released, released) for released in range(4)}


WHAT_TO_DO = (
    r"\(1\) Stop the service\. \(2\) .*`hushsum admin begin-receipts-copy` with --reverse .*"
    r"\(3\) .*`hushsum admin mark-lost`\. \(4\) Start the service"
)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ((3, 3, None), r"copy\.jsonl: missing, although .*receipts\.jsonl has 4 lines; .*begin-receipts-copy"),
        ((0, 0, None), r"copy\.jsonl: missing, although .*receipts\.jsonl has 1 line;"),
        ((3, None, 3), r"receipts\.jsonl: missing, although this store has receipts"),
        ((3, 3, 2), r"copy\.jsonl: it has 3 of the 4 lines of .*receipts\.jsonl that this store knows: an older copy"),
        ((1, 3, 1), r"copy\.jsonl: 2 receipts of .*receipts\.jsonl are missing at its end"),
        ((1, 1, 3), rf"receipts\.jsonl: it has 2 lines, and .*copy\.jsonl has 4: the former is older; .*{WHAT_TO_DO}"),
        ((1, 3, 3), "there is a receipt for window .* but the store does not contain its outcome"),
        ((1, 2, 1), "there is a receipt for window .* but the store does not contain its outcome"),
    ],
)
async def test_the_error_says_what_was_found_and_what_to_do(
    tmp_path: Path, state: tuple[int, int | None, int | None], why: str
) -> None:
    runtime = ManualRuntime()
    await history(tmp_path, runtime)
    put(tmp_path, *state)
    assert re.search(why, await stopped(tmp_path, runtime))


async def test_what_the_newer_of_the_two_proves_is_charged(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    await history(tmp_path, runtime)
    for first, copy in ((1, 3), (3, 1)):
        put(tmp_path, 1, first, copy)
        await stopped(tmp_path, runtime)
        site = await DiskSite.open(tmp_path, PLAN_OF_FOUR, runtime, copied=True)
        assert len((await site.store.account("")).spends) == 3
        await site.die()


async def test_a_copy_of_another_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    await history(tmp_path, runtime)
    other = await ReceiptsFile.open(tmp_path / "other", runtime, ReplayableEntropy(b"another store"))
    await other.begin()
    shutil.copy(tmp_path / "other", tmp_path / COPY)
    before = (tmp_path / COPY).read_bytes()
    assert "they are of two stores" in await stopped(tmp_path, runtime)
    assert (tmp_path / COPY).read_bytes() == before


async def test_two_stores_that_both_released_are_found_by_the_line_that_differs(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    await history(tmp_path, runtime)
    put(tmp_path, 1, 1, 1)
    shutil.copy(tmp_path / "1.log.db", tmp_path / "log.db")
    async with disk_site(tmp_path, PLAN_OF_FOUR, runtime, entropy=ReplayableEntropy(b"clone"), copied=True) as clone:
        for _ in range(2):
            await clone.releaser.seal(early=True)
            await clone.releaser.release()
    shutil.copy(tmp_path / f"3.{COPY}", tmp_path / COPY)
    assert "copy.jsonl: line 3 differs from that of" in await stopped(tmp_path, runtime)


# ---------------------------------------------------------------------------------------------------- beginning a copy


async def pair(folder: Path) -> tuple[ReceiptsFile, ReceiptsFile]:
    runtime = ManualRuntime()
    first, copy = [
        await ReceiptsFile.open(folder / name, runtime, ReplayableEntropy(name.encode())) for name in (FIRST, COPY)
    ]
    return first, copy


async def test_a_store_that_has_receipts_gets_a_copy_by_an_operator_alone(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    await prepared(tmp_path, runtime)
    async with disk_site(tmp_path, PLAN, runtime) as site:
        await site.releaser.seal(early=True)
        await site.releaser.release()
    async with disk_site(tmp_path, PLAN, runtime, copied=True) as site:
        assert "copy.jsonl: missing" in site.releaser.stopped
    assert not (tmp_path / COPY).exists()
    assert await begin_copy(*await pair(tmp_path)) == 2
    assert equal(tmp_path)
    assert await begin_copy(*await pair(tmp_path)) == 0
    async with disk_site(tmp_path, PLAN, runtime, copied=True) as site:
        assert site.releaser.stopped == ""


async def test_a_copy_that_was_begun_in_part_is_completed_and_one_that_knows_more_is_left_alone(tmp_path: Path) -> None:
    await history(tmp_path, ManualRuntime())
    shutil.copy(tmp_path / f"1.{COPY}", tmp_path / COPY)
    assert await begin_copy(*await pair(tmp_path)) == 2
    assert equal(tmp_path)
    shutil.copy(tmp_path / f"1.{FIRST}", tmp_path / FIRST)
    with pytest.raises(ReceiptsError, match=r"receipts\.jsonl: it has 2 lines, and .*copy\.jsonl has 4"):
        await begin_copy(*await pair(tmp_path))
    (tmp_path / FIRST).unlink()
    with pytest.raises(ReceiptsError, match="no receipts to copy"):
        await begin_copy(*await pair(tmp_path))


async def test_receipts_of_an_older_version_are_copied_with_their_bytes(tmp_path: Path) -> None:
    """Their lines have older formats, and their id stands after them."""
    import zipfile

    from tests.vectors import generate_files

    with zipfile.ZipFile(generate_files.RECEIPTS / "format-2.zip") as archive:
        archive.extract(FIRST, tmp_path)
    first, copy = await pair(tmp_path)
    both = CopiedReceipts(first, copy)
    with pytest.raises(ForeignReceiptsError, match="missing"):
        await both.begin()
    assert await begin_copy(first, copy) == 2
    assert equal(tmp_path)


# ------------------------------------------------------------------------------------------- several plans at one store


async def test_of_each_plan_one_receipt_may_be_missing_in_the_copy() -> None:
    """As where the releasers of two plans die at once, each between the two sinks."""
    runtime, first, copy = ManualRuntime(), MemoryReceipts("first"), MemoryReceipts("copy")
    plans = [small_plan(), Plan.from_fields({**tables(), "name": "other"})]
    store = memory_store(runtime)
    both = CopiedReceipts(first, copy)
    for plan in plans:
        await store.register(plan, 1, 0)
        fence = await store.acquire_lease(plan.id, "test", "", 10) or 0
        assert await reconcile(plan.id, store, both, fence=fence) == ("", [])
    for window in range(2):
        for plan in plans:
            await first.write(outcome(plan, window), spend_of(plan, kind=TUMBLING, window=window))
        if window == 0:
            await both.check(await mark_of(store))
    with pytest.raises(ReceiptsError, match="4 receipts of first are missing at its end"):
        await both.check(await mark_of(store))
    await store.close()


async def test_lines_that_are_in_a_topic_twice_count_once(tmp_path: Path) -> None:
    """Two releasers that hand over write the same receipt, in either topic."""
    plan, first, copy = small_plan(), MemoryReceipts("first"), MemoryReceipts("copy")
    both = CopiedReceipts(first, copy)
    await both.begin()
    mark = await both.write(outcome(plan, 0), spend_of(plan, kind=TUMBLING, window=0))
    for kept in first.lines.kept:
        await copy.append(kept)
    await first.append(first.lines.kept[1])
    mark = await both.write(outcome(plan, 1), spend_of(plan, kind=TUMBLING, window=1))
    assert (mark.lines, copy.lines.mark.lines) == (4, 5)
    await both.check(mark)
    assert [kept.line for kept in copy.lines.kept] == [kept.line for kept in first.lines.kept]
    short = MemoryReceipts("short")
    for kept in copy.lines.kept[:2]:
        await short.append(kept)
    with pytest.raises(ReceiptsError, match="short: it has 2 of the 3 lines"):
        await CopiedReceipts(first, short).check(replace(mark, copy="short"))


async def mark_of(store: Store) -> ReceiptsMark:
    bound = await store.receipts_mark()
    assert bound is not None
    return bound


def outcome(plan: Plan, window: int) -> StoredOutcome:
    return StoredOutcome(plan.id, TUMBLING, window, b"", bytes([window]) * 32)
