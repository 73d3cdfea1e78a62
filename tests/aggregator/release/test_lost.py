"""A restored store whose lost outcomes are marked: they are charged, final and never drawn again; the rest goes on."""

import shutil
from pathlib import Path

import pytest

from aggregator.errors import ReceiptsError, StoreError
from aggregator.release.catalog import NotFoundError, ReleaseCatalog
from aggregator.release.lost import mark_lost
from aggregator.release.receipts import ReceiptsFile, lost_outcomes
from aggregator.release.receipts_copy import begin_copy
from aggregator.windows import WindowState
from hushsum.entropy import ReplayableEntropy
from hushsum.plan import Plan
from hushsum.privacy.events import TUMBLING
from hushsum.releases import spend_of
from tests.aggregator.deltas import cumulative_plan, tally_plan
from tests.aggregator.disk_site import DiskSite, disk_site, restore_store
from tests.aggregator.release.test_receipts_copy import PLAN_OF_FOUR, history, pair, put
from tests.doubles import ManualRuntime, MemoryReceipts

PLAN = PLAN_OF_FOUR


async def restored(folder: Path, runtime: ManualRuntime, released: int) -> None:
    """Store and log as they were after so many of three releases; the receipts are the newest."""
    await history(folder, runtime)
    put(folder, released, 3, 3)
    shutil.copy(folder / f"{released}.log.db", folder / "log.db")


async def marked(folder: Path, runtime: ManualRuntime, plan: Plan = PLAN) -> list[int]:
    """What an operator does: the windows that were lost."""
    site = await DiskSite.open(folder, plan, runtime)
    try:
        return await mark_lost(plan, site.store, site.receipts, fence=site.fence)
    finally:
        await site.die()


@pytest.mark.parametrize("released", [0, 1, 2])
async def test_after_lost_outcomes_are_marked_the_next_window_is_released_and_no_lost_one_again(
    tmp_path: Path, released: int
) -> None:
    runtime = ManualRuntime()
    await restored(tmp_path, runtime, released)
    windows = await marked(tmp_path, runtime)
    assert len(windows) == 3 - released
    assert await marked(tmp_path, runtime) == [], "once"
    site = await DiskSite.open(tmp_path, PLAN, runtime)
    for mark in (await site.store.fold_marks(PLAN.id)).values():
        # A gateway that is asked again answers *unknown*, not *late*: it may have been counted.
        assert mark.forgotten_through == mark.closed_through == windows[-1]
    await site.die()
    async with disk_site(tmp_path, PLAN, runtime, copied=True, open_windows=0) as site:
        assert site.releaser.stopped == ""
        for window in windows:
            assert (await site.releaser.release(window)).data == b"", "it is final"
            await site.send(9, window=window)
            with pytest.raises(NotFoundError, match="lost"):
                await ReleaseCatalog(PLAN, site.store).release(TUMBLING, window)
        await site.send(1, window=site.window + 3)
        assert await site.releaser.seal(early=True) == site.window + 3
        drawn = await site.releaser.release()
        assert (drawn.window, len(drawn.data) > 0) == (site.window + 3, True)
        spends = sorted(spend.window for spend in (await site.store.account("")).spends if spend.window is not None)
        assert spends == [site.window + number for number in range(4)]
        rows = await site.sqlite.reader.read(lambda db: db.execute("SELECT kind, window FROM verdicts").fetchall())
        assert ("counted", site.window + 3) in rows
        assert "counted" not in {kind for kind, window in rows if window in windows}
    assert (tmp_path / "receipts.jsonl").read_bytes() == (tmp_path / "copy.jsonl").read_bytes()


async def test_a_charged_and_sealed_window_that_is_lost_is_not_drawn_from_what_the_store_still_has(
    tmp_path: Path,
) -> None:
    """The copy was taken between the reservation of its outcome and the commit."""
    runtime = ManualRuntime()
    async with disk_site(tmp_path, PLAN, runtime, open_windows=2) as site:
        delta = await site.send(0)
        await site.releaser.seal(early=True)
        sealed = await site.store.sealed_window(PLAN, site.window)
        assert sealed is not None
        key = ReplayableEntropy(b"test")
        await site.store.reserve_outcome(PLAN, TUMBLING, site.window, sealed.digest(), key, fence=site.fence)
        await site.sqlite.writer.truncate()
        await site.log._writer.truncate()
        for name in ("store", "log"):
            shutil.copy(tmp_path / f"{name}.db", tmp_path / f"{name}.old")
        await site.releaser.release()
    restore_store(tmp_path)
    shutil.copy(tmp_path / "log.old", tmp_path / "log.db")
    assert await marked(tmp_path, runtime) == [site.window]
    async with disk_site(tmp_path, PLAN, runtime, open_windows=2) as again:
        assert again.releaser.stopped == ""
        assert await again.store.unfinished(PLAN.id) == {site.window + 1: "open"}
        assert delta not in again.files(), "what the store still had is erased"
        rows = await again.sqlite.reader.read(lambda db: db.execute("SELECT key FROM reservations").fetchall())
        assert rows == []


async def test_a_withheld_window_that_is_lost_is_withheld_and_charged_its_test_alone(tmp_path: Path) -> None:
    plan = tally_plan(counters=100, records_per_client=3, min_clients=50, total_epsilon=4)
    runtime = ManualRuntime()
    async with disk_site(tmp_path, plan, runtime, open_windows=2) as site:
        await site.sqlite.writer.truncate()
        shutil.copy(tmp_path / "store.db", tmp_path / "store.old")
        await site.log._writer.truncate()
        shutil.copy(tmp_path / "log.db", tmp_path / "log.old")
        await site.releaser.seal(early=True)
        assert (await site.releaser.release()).withheld
    restore_store(tmp_path)
    shutil.copy(tmp_path / "log.old", tmp_path / "log.db")
    assert await marked(tmp_path, runtime, plan) == [site.window]
    async with disk_site(tmp_path, plan, runtime, open_windows=2) as site:
        assert (await site.store.windows(plan.id))[site.window] == WindowState.WITHHELD
        spend = spend_of(plan, kind=TUMBLING, window=site.window, withheld=True)
        assert (await site.store.account("")).spends == (spend,)


async def test_of_a_withheld_window_that_was_charged_in_full_when_the_copy_was_taken_the_test_alone_stays(
    tmp_path: Path,
) -> None:
    """As its receipt proves; `verify` would find another amount for ever."""
    plan = tally_plan(counters=100, records_per_client=3, min_clients=50, total_epsilon=4)
    runtime = ManualRuntime()
    async with disk_site(tmp_path, plan, runtime, open_windows=2) as site:
        await site.releaser.seal(early=True)
        sealed = await site.store.sealed_window(plan, site.window)
        assert sealed is not None
        key = ReplayableEntropy(b"test")
        await site.store.reserve_outcome(plan, TUMBLING, site.window, sealed.digest(), key, fence=site.fence)
        await site.sqlite.writer.truncate()
        await site.log._writer.truncate()
        for name in ("store", "log"):
            shutil.copy(tmp_path / f"{name}.db", tmp_path / f"{name}.old")
        assert (await site.releaser.release()).withheld
    restore_store(tmp_path)
    shutil.copy(tmp_path / "log.old", tmp_path / "log.db")
    assert await marked(tmp_path, runtime, plan) == [site.window]
    async with disk_site(tmp_path, plan, runtime, open_windows=2) as site:
        spend = spend_of(plan, kind=TUMBLING, window=site.window, withheld=True)
        assert (await site.store.account("")).spends == (spend,)


async def test_a_cumulative_sequence_that_lost_steps_cannot_go_on(tmp_path: Path) -> None:
    plan, runtime = cumulative_plan(horizon=20, counters=100), ManualRuntime()
    async with disk_site(tmp_path, plan, runtime, open_windows=3) as site:
        for released in range(2):
            await site.releaser.seal(early=True)
            await site.releaser.release()
            if not released:
                await site.sqlite.writer.truncate()
                shutil.copy(tmp_path / "store.db", tmp_path / "store.old")
    restore_store(tmp_path)
    with pytest.raises(StoreError, match=r"lost steps cannot go on: .* end the plan"):
        await marked(tmp_path, runtime, plan)
    site = await DiskSite.open(tmp_path, plan, runtime)
    assert len(await site.store.outcomes(plan.id)) == 1
    await site.die()


async def test_nothing_is_marked_by_receipts_of_another_store_or_where_something_else_is_wrong(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    await restored(tmp_path, runtime, 1)
    other = await ReceiptsFile.open(tmp_path / "other", runtime, ReplayableEntropy(b"another store"))
    await other.begin()
    site = await DiskSite.open(tmp_path, PLAN, runtime)
    for receipts, why in ((other, "expected the 2 lines"), (MemoryReceipts(), "missing or empty")):
        with pytest.raises(ReceiptsError, match=why):
            await mark_lost(PLAN, site.store, receipts, fence=site.fence)
    assert len(await lost_outcomes(PLAN.id, site.store, site.receipts)) == 2
    await site.die()


async def test_a_window_before_a_lost_one_that_has_neither_outcome_nor_receipt_is_refused(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    await restored(tmp_path, runtime, 1)
    site = await DiskSite.open(tmp_path, PLAN, runtime)
    await site.store.open_windows(PLAN.id, site.window, site.window + 3)
    lost = await lost_outcomes(PLAN.id, site.store, site.receipts)
    *_, last = [(kind, window, digest, spend) for _, kind, window, digest, spend in lost]
    mark = await site.receipts.begin()
    with pytest.raises(StoreError, match=r"window \d+ is open and has no receipt, but window \d+ has one"):
        await site.store.mark_lost(PLAN, [last], receipts=mark, fence=site.fence)
    assert len(await site.store.outcomes(PLAN.id)) == 1, "nothing is changed"
    await site.die()


async def test_a_store_that_was_copied_before_it_knew_its_receipts_is_bound_to_them(
    tmp_path: Path,
) -> None:
    runtime = ManualRuntime()
    site = await DiskSite.open(tmp_path, PLAN, runtime)
    await site.store.open_windows(PLAN.id, site.window, site.window + 1)
    for name in ("store", "log"):
        await (site.sqlite.writer if name == "store" else site.log._writer).truncate()
        shutil.copy(tmp_path / f"{name}.db", tmp_path / f"{name}.old")
    await site.die()
    async with disk_site(tmp_path, PLAN, runtime, open_windows=2) as site:
        await site.releaser.seal(early=True)
        await site.releaser.release()
    restore_store(tmp_path)
    shutil.copy(tmp_path / "log.old", tmp_path / "log.db")
    assert await marked(tmp_path, runtime) == [site.window]
    async with disk_site(tmp_path, PLAN, runtime, open_windows=2) as site:
        assert site.releaser.stopped == ""
        await site.releaser.seal(early=True)
        assert (await site.releaser.release()).window == site.window + 1


async def test_where_the_copy_of_the_receipts_is_lost_too_the_lost_outcomes_are_marked_first(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    await restored(tmp_path, runtime, 1)
    (tmp_path / "copy.jsonl").unlink()
    assert len(await marked(tmp_path, runtime)) == 2
    first, copy = await pair(tmp_path)
    assert await begin_copy(first, copy) == 4
    async with disk_site(tmp_path, PLAN, runtime, copied=True, open_windows=0) as site:
        assert site.releaser.stopped == ""
