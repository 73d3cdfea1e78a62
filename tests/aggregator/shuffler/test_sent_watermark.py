"""A reports file that is put back sends no second pool: the difference of two would be one device's reports."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from typing_extensions import override

from aggregator.errors import StoreError, StoreUnavailableError
from aggregator.shuffler.reports_file import OutgoingBatch, PoolAnswer, SentWatermark
from hushsum_proto.answers import Answer, Status
from tests.aggregator.shuffler.shuffled import FILE, LEAST, PLAN, Counting, Site, bytes_in, copied, opened, taken
from tests.aggregator.shuffler.test_forwarder import CUT_S, FIRST_STREAM, OVER_S, collect, site_on
from tests.aggregator.shuffler.test_intake import door_at
from tests.doubles import ManualRuntime

LEFT = "shuffler.left"
LATER = FIRST_STREAM + 100


async def left_from(folder: Path, backup: Path, receiver: Counting) -> Counter[int]:
    """Forwards a window, and copies the folder from before one device's last batch of it; what was forwarded."""
    async with site_on(folder, receiver) as site:
        await site.forwarder.close_windows()
        reports = await collect(site, 2 * LEAST)
        copied(folder, backup)
        await site.file.take([taken([999, 1000], window=site.window, stream=LATER)])
        await site.file.tidy()
        await site.runtime.advance(CUT_S)
        assert await site.turn()
        assert receiver.reports == {site.window: reports + Counter([999, 1000])}
        return receiver.reports[site.window].copy()


async def test_a_reports_file_that_is_put_back_from_before_a_cut_sends_nothing_of_that_window(tmp_path: Path) -> None:
    receiver, folder, backup = Counting(), tmp_path / "live", tmp_path / "backup"
    whole = await left_from(folder, backup, receiver)
    for name in (FILE, f"{FILE}-wal", f"{FILE}-shm"):
        (folder / name).unlink(missing_ok=True)
        if (backup / name).exists():
            shutil.copy(backup / name, folder / name)
    async with site_on(folder, receiver) as site:
        window = site.window
        await site.runtime.advance(CUT_S - 1)  # by a clock that was set back: it says that the window is open
        await site.forwarder.close_windows()
        (late,) = await site.file.take([taken([7], window=window, stream=LATER + 1)])
        assert isinstance(late, PoolAnswer)
        assert not late.is_open
        await site.runtime.advance(1)
        assert await site.turn()
        assert (len(receiver.sent), receiver.reports) == (1, {window: whole})
        assert site.outcomes("lost") == 1
        assert FIRST_STREAM.to_bytes(8, "big") not in bytes_in(folder)
        site.window = window + 1  # and the next window is collected as ever
        await collect(site, LEAST, first_stream=LATER + 10)
        await site.runtime.advance(10)
        assert await site.turn()
        assert sum(receiver.reports[window + 1].values()) == LEAST


async def test_a_reports_file_that_is_put_back_alone_sends_nothing_of_windows_whose_cut_has_come(
    tmp_path: Path,
) -> None:
    receiver, backup, folder = Counting(), tmp_path / "backup", tmp_path / "new"
    whole = await left_from(tmp_path / "live", backup, receiver)
    (backup / LEFT).unlink()
    copied(backup, folder)
    async with site_on(folder, receiver) as site:
        await site.runtime.advance(CUT_S)
        assert await site.turn()
        assert (len(receiver.sent), receiver.reports) == (1, {site.window: whole})
        assert site.outcomes("lost") == 1
    async with site_on(backup) as site:  # before the cut nothing has left, and nothing is lost
        await site.turn()
        assert (backup / LEFT).read_text() == f"{site.window - 2}\n"  # the cut of the one before is still to come
        await site.runtime.advance(CUT_S)
        assert await site.turn()
        assert sum(site.receiver.reports[site.window].values()) == 2 * LEAST


async def test_a_pool_whose_window_is_over_never_leaves(tmp_path: Path) -> None:
    for waited, sent in ((OVER_S - 0.001, 1), (OVER_S, 0), (86_400.0, 0)):
        async with site_on(tmp_path / f"{waited}") as site:
            await site.forwarder.close_windows()
            await collect(site, LEAST)
            await site.runtime.advance(waited)
            assert await site.turn()
            assert (len(site.receiver.sent), site.outcomes("lost")) == (sent, 1 - sent)
            assert await site.file.closed_pools() == []


class Looking(Counting):
    """Looks, at each batch, at what the small file says by then."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.seen = path, list[str]()

    @override
    async def submit(self, plan_id: bytes, outgoing: OutgoingBatch) -> Answer:
        self.seen.append(self.path.read_text())
        return await super().submit(plan_id, outgoing)


async def test_that_a_window_leaves_is_noted_before_its_first_byte_does(tmp_path: Path) -> None:
    receiver = Looking(tmp_path / LEFT)
    async with site_on(tmp_path, receiver) as site:
        await site.forwarder.close_windows()
        await collect(site, LEAST)
        await site.runtime.advance(CUT_S)
        await site.forwarder.close_windows()
        assert (tmp_path / LEFT).read_text() == "none\n"
        await site.forwarder.send()
    assert receiver.seen == [f"{site.window}\n"]


async def test_nothing_leaves_while_that_cannot_be_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with site_on(tmp_path) as site:
        await site.forwarder.close_windows()
        await collect(site, LEAST)
        await site.runtime.advance(CUT_S)
        await site.forwarder.close_windows()
        with monkeypatch.context() as patch:
            patch.setattr("aggregator.shuffler.reports_file.os.fsync", _full)
            with pytest.raises(StoreUnavailableError):
                await site.forwarder.send()
        assert site.receiver.sent == {}
        assert await site.forwarder.send()
        assert len(site.receiver.sent) == 1


def _full(_: int) -> None:
    raise OSError(28, "the disk is full")


async def test_a_kill_between_that_note_and_the_answer_sends_the_same_bytes_again(tmp_path: Path) -> None:
    receiver, folder, dead = Counting(), tmp_path / "live", tmp_path / "dead"
    receiver.loses_answers = 1
    async with site_on(folder, receiver) as site:
        await site.forwarder.close_windows()
        reports = await collect(site, LEAST)
        await site.runtime.advance(CUT_S)
        assert not await site.turn()
        copied(folder, dead)
    runtime = ManualRuntime()
    runtime._now_ms += round(1000 * CUT_S)
    file = await opened(dead, runtime)
    assert await Site(file, receiver, runtime).turn()
    await file.close()
    (copies,) = receiver.sent.values()
    assert len(copies) == 2
    assert len(set(copies)) == 1
    assert receiver.reports == {site.window: reports}


def test_the_note_never_goes_back_and_says_what_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / LEFT
    sent_watermark = SentWatermark(path, fresh=True)
    assert (sent_watermark.through, sent_watermark.known, path.read_text()) == (None, True, "none\n")
    for window in (-3, 7, 5):
        sent_watermark.reach(window)
    assert path.stat().st_mode & 0o077 == 0
    assert SentWatermark(path, fresh=True).through == SentWatermark(path, fresh=False).through == 7
    path.write_text("seven")
    with pytest.raises(StoreError, match="invalid content"):
        SentWatermark(path, fresh=False)
    path.unlink()
    unknown = SentWatermark(path, fresh=False)
    assert (unknown.through, unknown.known, path.exists()) == (None, False, False)
    unknown.reach(2)
    assert unknown.known
    assert SentWatermark(path, fresh=False).through == 2


async def test_a_batch_of_a_window_that_was_put_back_is_told_that_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / LEFT).write_text(f"{PLAN.window.index_at(ManualRuntime().now_ms())}\n")
    async with door_at(tmp_path) as door:
        assert (await door.send(door.batch(1))).status is Status.ACKNOWLEDGED
        site = Site(door.file, Counting(), door.runtime)
        await site.forwarder.close_windows()
        for stream in (1, 2):
            assert (await door.send(door.batch(1, stream=stream))).status is Status.UNKNOWN
