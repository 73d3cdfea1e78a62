"""What the releaser does when its receipts cannot be written, a caller goes away, or a reader holds on to old bytes."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from aggregator.errors import ReceiptsError, WindowOrderError
from aggregator.log.sqlite import LOG_FILE
from hushsum.privacy.events import TUMBLING
from tests.aggregator.disk_site import DiskSite, disk_site
from tests.aggregator.release.test_releaser import HOUR_S, PLAN, CountingEntropy
from tests.doubles import ManualRuntime


async def is_published(site: DiskSite, window: int) -> bool:
    return await site.store.outcome(PLAN.id, TUMBLING, window) is not None


async def spent(site: DiskSite) -> list[int | None]:
    return [spend.window for spend in (await site.store.account("")).spends]


# --------------------------------------------------------------------------------------------------------- receipts


async def test_an_outcome_whose_receipt_failed_twice_is_published_and_forgotten_by_the_clock_alone(
    tmp_path: Path,
) -> None:
    runtime, receipts, away = ManualRuntime(), tmp_path / "receipts.jsonl", tmp_path / "away"
    async with disk_site(tmp_path, PLAN, runtime, open_windows=2) as site:
        delta = await site.send(0)
        receipts.rename(away)
        running = asyncio.ensure_future(site.releaser.run())
        await runtime.advance(1.5 * HOUR_S)
        for _ in range(2):
            await runtime.advance(1)
            await runtime.settle(2000)
            assert f"window {site.window} is charged and drawn but not published yet" in site.releaser.stopped
            assert (await site.store.windows(PLAN.id))[site.window] == "released"
            assert not await is_published(site, site.window)
        await runtime.advance(HOUR_S)
        await runtime.settle(2000)
        assert (await site.store.windows(PLAN.id))[site.window + 1] == "sealed", "it is sealed in time all the same"
        away.rename(receipts)
        await runtime.advance(1)
        await runtime.settle(4000)
        assert [release.window for release in site.observer.releases] == [site.window, site.window + 1]
        assert site.releaser.stopped == site.observer.stops[-1] == ""
        assert await spent(site) == [site.window, site.window + 1]
        assert delta not in site.files()
        running.cancel()


async def test_an_outcome_whose_receipt_failed_twice_is_what_a_repeated_release_gives(tmp_path: Path) -> None:
    entropy, receipts, away = CountingEntropy(b"key"), tmp_path / "receipts.jsonl", tmp_path / "away"
    async with disk_site(tmp_path, PLAN, entropy=entropy, open_windows=2) as site:
        delta = await site.send(0)
        await site.releaser.seal(early=True)
        receipts.rename(away)
        for _ in range(2):
            with pytest.raises(ReceiptsError, match="No such file"):
                await site.releaser.release()
        reads = entropy.reads
        await site.releaser.seal(early=True)  # another window waits, and is not drawn in place of the first
        away.rename(receipts)
        assert (await site.releaser.release()).window == site.window
        assert entropy.reads == reads
        assert site.releaser.stopped == site.observer.stops[-1] == ""
        assert delta not in site.files()
        assert (await site.releaser.release()).window == site.window + 1
        with pytest.raises(WindowOrderError, match="no sealed window to release"):
            await site.releaser.release()


@pytest.mark.parametrize("effect", [False, True], ids=["before it took effect", "after it"])
@pytest.mark.parametrize("step", ["reserve_outcome", "commit_outcome", "write", "publish", "forget"])
async def test_a_release_that_is_cancelled_anywhere_is_finished_by_the_next(
    tmp_path: Path, step: str, effect: bool
) -> None:
    async with disk_site(tmp_path, PLAN) as site:
        delta = await site.send(0)
        await site.releaser.seal(early=True)
        port: object = site.receipts if step == "write" else site.store
        honest, reached = getattr(port, step), asyncio.Event()

        async def held(*arguments: object, **keywords: object) -> None:
            if effect:
                await honest(*arguments, **keywords)
            reached.set()
            await asyncio.Event().wait()

        setattr(port, step, held)
        call = asyncio.create_task(site.releaser.release())
        await reached.wait()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        setattr(port, step, honest)

        await site.releaser.take_due()
        assert (await site.releaser.release(site.window)).window == site.window
        assert [release.window for release in site.observer.releases] == [site.window]
        assert await spent(site) == [site.window]
        assert delta not in site.files()
        assert [bool(why) for why in site.observer.pending] == ([True, False] if step == "forget" else [])


# ------------------------------------------------------------------------------------------------------- forgetting


def holding(path: Path) -> sqlite3.Connection:
    """Another process's connection in the middle of a reading transaction."""
    reader = LOG_FILE.open_reading(path)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM entries").fetchone()
    return reader


async def released_under_a_reader(site: DiskSite, runtime: ManualRuntime) -> tuple[bytes, sqlite3.Connection]:
    delta = await site.send(0)
    await site.releaser.seal(early=True)
    reader = holding(site.folder / "log.db")
    await site.send(1, window=site.window + 1)  # the reader's moment is not the last one
    call = asyncio.create_task(site.releaser.release())
    for _ in range(12):  # each pause between two tries
        await runtime.advance(0.1)
    assert call.done(), "it does not wait for a reader that stays"
    assert (await call).window == site.window, "a reader does not make a release fail"
    return delta, reader


@pytest.mark.parametrize("by", ["loop", "seal", "release", "start"])
async def test_what_a_reader_keeps_from_being_erased_is_erased_once_it_lets_go(tmp_path: Path, by: str) -> None:
    runtime = ManualRuntime()
    async with disk_site(tmp_path, PLAN, runtime, open_windows=2) as site:
        delta, reader = await released_under_a_reader(site, runtime)
        assert "an open reader prevents erasure" in site.observer.pending[-1]
        assert delta in site.files()
        blocks = await site.sqlite.reader.read(lambda db: db.execute("SELECT window FROM blocks").fetchall())
        assert (site.window,) not in blocks, "the store does not wait for the log"
        reader.close()
        if by == "loop":
            running = asyncio.ensure_future(site.releaser.run())
            await runtime.advance(2)
            await runtime.settle(1000)
            running.cancel()
        elif by == "seal":
            await site.releaser.seal(site.window, early=True)
        elif by == "release":
            await site.releaser.release(site.window)
        if by != "start":
            assert site.observer.pending[-1] == ""
            assert delta not in site.files()
    async with disk_site(tmp_path, PLAN, runtime) as again:
        assert again.observer.pending == []
        assert delta not in again.files()


async def test_a_reader_that_stays_is_told_once_and_tried_ever_more_rarely(tmp_path: Path) -> None:
    runtime, tries = ManualRuntime(), 0
    async with disk_site(tmp_path, PLAN, runtime, open_windows=1) as site:
        _, reader = await released_under_a_reader(site, runtime)
        honest = site.log.forget

        async def counted(*arguments: object) -> None:
            nonlocal tries
            tries += 1
            await honest(*arguments)  # type: ignore[arg-type]  # handed on as they came

        site.log.forget = counted  # type: ignore[method-assign, assignment]  # it counts the tries
        running = asyncio.ensure_future(site.releaser.run())
        for _ in range(300):
            await runtime.advance(0.1)
        assert 3 <= tries <= 8
        assert len(site.observer.pending) == 1
        running.cancel()
        await asyncio.wait([running])
        reader.close()
        await site.releaser.release(site.window)
        assert site.observer.pending[-1] == ""
