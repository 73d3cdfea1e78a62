"""Back-ups of a service that runs, and what a restore accepts."""

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from aggregator import backup
from aggregator.backup import MANIFEST, BackupError, Restored, back_up, restore
from aggregator.config import Config
from aggregator.errors import ReceiptsError, StoreError
from aggregator.model import StoredOutcome
from aggregator.release.lost import LostOutcomes
from aggregator.release.receipts import ReceiptsFile
from aggregator.repair import mark_all_lost
from aggregator.runtime import SystemRuntime
from hushsum.entropy import ReplayableEntropy
from hushsum.plan import Plan
from hushsum.privacy.events import TUMBLING
from hushsum.releases import spend_of
from tests.aggregator.deltas import cumulative_plan, tally_plan
from tests.aggregator.disk_site import disk_site
from tests.doubles import ManualRuntime
from tests.plans import tables
from tests.services import config_of, service_of

PLAN = tally_plan(counters=1000, records_per_client=3, total_epsilon=4)
RECEIPTS = "receipts.jsonl"


def settings(folder: Path, **more: object) -> Config:
    return Config.load(None, {"data": str(folder), **more}, needs_plan=False)


async def backed_up(folder: Path, target: Path) -> None:
    await back_up(settings(folder), target, SystemRuntime())


def modes(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in folder.iterdir()}


async def history(tmp_path: Path) -> Path:
    """A data folder of four windows, backed up in ``0``, ``1`` and ``2`` after so many releases, while it is in use."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    async with disk_site(data, PLAN, ManualRuntime(), open_windows=4) as site:
        for released in range(3):
            if released:
                await site.send(released, window=site.window + released - 1)
                await site.releaser.seal(early=True)
                await site.releaser.release()
            await backed_up(data, tmp_path / str(released))
        await site.send(9, window=site.window + 2)
    return data


async def test_a_back_up_of_a_service_that_runs_is_whole_private_and_described(tmp_path: Path) -> None:
    await history(tmp_path)
    assert sorted(path.name for path in (tmp_path / "2").iterdir()) == ["log.db", MANIFEST, RECEIPTS, "store.db"]
    assert modes(tmp_path / "2") == {0o600}
    assert (tmp_path / "2").stat().st_mode & 0o777 == 0o700
    manifest = json.loads((tmp_path / "2" / MANIFEST).read_text())
    assert sorted(manifest) == ["files", "format", "made_ms", "plans", "receipts"]
    assert manifest["plans"] == [{"name": "test", "published_outcomes": 2}]
    assert manifest["receipts"]["lines"] == 3


async def test_what_is_restored_goes_on_where_it_was(tmp_path: Path) -> None:
    data = await history(tmp_path)
    made = await restore(tmp_path / "2", tmp_path / "new", [data / RECEIPTS], SystemRuntime())
    assert made == Restored(LostOutcomes({}, {}), receipts=2, places=str(data / RECEIPTS))
    assert modes(tmp_path / "new") == {0o600}
    async with disk_site(tmp_path / "new", PLAN, ManualRuntime(), open_windows=3) as site:
        assert site.releaser.stopped == ""
        await site.releaser.seal(early=True)
        assert (await site.releaser.release()).window == site.window + 2


@pytest.mark.parametrize("older", [0, 1])
async def test_a_back_up_that_is_older_than_the_receipts_is_refused_and_nothing_is_left(
    tmp_path: Path, older: int
) -> None:
    data = await history(tmp_path)
    with pytest.raises(BackupError, match=r"published after it was taken: plan 'test', windows? \d+"):
        await restore(tmp_path / str(older), tmp_path / "new", [data / RECEIPTS], SystemRuntime())
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir(mode=0o700)
    with pytest.raises(BackupError):
        await restore(tmp_path / str(older), tmp_path / "empty", [data / RECEIPTS], SystemRuntime())
    assert not [*(tmp_path / "empty").iterdir()]


async def test_with_lost_outcomes_marked_it_goes_on_with_the_next_window(tmp_path: Path) -> None:
    data, runtime = await history(tmp_path), ManualRuntime()
    made = await restore(tmp_path / "1", tmp_path / "new", [data / RECEIPTS], SystemRuntime(), marks_lost=True)
    async with disk_site(tmp_path / "new", PLAN, runtime, open_windows=4) as site:
        assert made.lost == LostOutcomes({"test": [site.window + 1]}, {})
        assert site.releaser.stopped == ""
        assert len((await site.store.account("")).spends) == 2
        await site.releaser.seal(early=True)
        assert (await site.releaser.release()).window == site.window + 2
        stored = await site.store.outcome(PLAN.id, TUMBLING, site.window + 1)
        assert stored is not None
        assert stored.data == b""


async def test_the_longest_of_all_receipts_is_taken_and_they_must_not_contradict_each_other(tmp_path: Path) -> None:
    data = await history(tmp_path)
    old = Path(shutil.copy(tmp_path / "1" / RECEIPTS, tmp_path / "old"))
    for given in ([old, data / RECEIPTS], [data / RECEIPTS, old]):
        with pytest.raises(BackupError, match="published after it was taken"):
            await restore(tmp_path / "1", tmp_path / "new", given, SystemRuntime())
    other = await ReceiptsFile.open(tmp_path / "other", SystemRuntime(), ReplayableEntropy(b"another store"))
    await other.begin()
    with pytest.raises(ReceiptsError, match="they are of two stores"):
        await restore(tmp_path / "2", tmp_path / "new", [tmp_path / "other"], SystemRuntime())
    with pytest.raises(ReceiptsError, match="no such file"):
        await restore(tmp_path / "2", tmp_path / "new", [tmp_path / "nothing"], SystemRuntime())
    with pytest.raises(BackupError, match="receipts that survived are required"):
        await restore(tmp_path / "2", tmp_path / "new", [], SystemRuntime())
    assert not (tmp_path / "new").exists()


async def test_receipts_that_were_cut_off_are_no_proof_that_nothing_came_later(tmp_path: Path) -> None:
    """A torn line in the file of a service is of an outcome that nobody saw, in a copy of the file of any outcome."""
    data = await history(tmp_path)
    whole = (data / RECEIPTS).read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(whole[:-20])
    again = Path(shutil.copy(tmp_path / "1" / RECEIPTS, tmp_path / "again"))
    told = list[str]()
    for given in ([cut], [cut, again], [again, cut]):
        with pytest.raises(
            BackupError, match=rf"receipts {cut}: the last line is incomplete.*Name the whole"
        ) as caught:
            await restore(tmp_path / "1", tmp_path / "new", given, SystemRuntime())
        told += re.findall("`(.*)`", str(caught.value))
    assert len(told) == 3
    leaving_out = await asyncio.create_subprocess_exec("sh", "-c", told[0], cwd=tmp_path)
    assert await leaving_out.wait() == 0
    assert (tmp_path / "whole.jsonl").read_bytes() == (tmp_path / "1" / RECEIPTS).read_bytes()
    assert not (tmp_path / "new").exists()
    with pytest.raises(BackupError, match="published after it was taken"):
        await restore(tmp_path / "1", tmp_path / "new", [cut, data / RECEIPTS], SystemRuntime())
    await restore(tmp_path / "2", tmp_path / "new", [cut, data / RECEIPTS], SystemRuntime())
    assert (tmp_path / "new" / RECEIPTS).read_bytes() == whole


async def test_a_restore_that_is_killed_leaves_no_store_without_receipts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start would make new receipts, if the back-up is from before the first ones."""
    data = await history(tmp_path)
    monkeypatch.setattr(backup, "_remove", lambda *_: None)  # nothing is cleaned up
    copy = backup._copy
    for step in (1, 2, 3):
        target = tmp_path / f"new{step}"
        left = step

        def killed(source: Path, to: Path) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise KeyboardInterrupt
            copy(source, to)

        monkeypatch.setattr(backup, "_copy", killed)
        with pytest.raises(KeyboardInterrupt):
            await restore(tmp_path / "2", target, [data / RECEIPTS], SystemRuntime())
        assert (target / RECEIPTS).exists() or not (target / "store.db").exists()
    assert (tmp_path / "new3" / "store.db").exists()


@pytest.mark.parametrize("is_empty", [False, True])
async def test_receipts_that_are_older_than_the_back_up_are_no_proof_of_what_came_after_it(
    tmp_path: Path, is_empty: bool
) -> None:
    """With them the outcomes after the back-up would be drawn a second time."""
    await history(tmp_path)
    old = tmp_path / "old"
    old.write_bytes(b"" if is_empty else (tmp_path / "1" / RECEIPTS).read_bytes())
    with pytest.raises(BackupError, match=r"old: \d lines?, and the back-up's own receipts have 3: they are older"):
        await restore(tmp_path / "2", tmp_path / "new", [old], SystemRuntime())
    assert not (tmp_path / "new").exists()


def its_own(folder: Path) -> Path:
    return folder / "1" / RECEIPTS


def a_symbolic_link(folder: Path) -> Path:
    (folder / "link").symlink_to(folder / "1" / RECEIPTS)
    return folder / "link"


def a_hard_link(folder: Path) -> Path:
    (folder / "link").hardlink_to(folder / "1" / RECEIPTS)
    return folder / "link"


def a_linked_directory(folder: Path) -> Path:
    (folder / "link").symlink_to(folder / "1")
    return folder / "link" / RECEIPTS


def a_copy_within_it(folder: Path) -> Path:
    return Path(shutil.copy(folder / "1" / RECEIPTS, folder / "1" / "more"))


def those_of_a_newer_back_up(folder: Path) -> Path:
    return folder / "2" / RECEIPTS


@pytest.mark.parametrize(
    "given", [its_own, a_symbolic_link, a_hard_link, a_linked_directory, a_copy_within_it, those_of_a_newer_back_up]
)
async def test_receipts_of_a_back_up_are_no_receipts_that_survived(
    tmp_path: Path, given: Callable[[Path], Path]
) -> None:
    """With them the outcomes after that back-up would be drawn a second time, and `verify` could not tell."""
    data = await history(tmp_path)
    path = given(tmp_path)
    why = (
        r"this file is part of a back-up, .*: those windows would be drawn again\. Give the receipts that the service "
        r"wrote last .*\. If all are lost, nothing can tell what was published: begin with a new store"
    )
    for receipts in ([path], [data / RECEIPTS, path]):
        with pytest.raises(BackupError, match=why):
            await restore(tmp_path / "1", tmp_path / "new", receipts, SystemRuntime())
    assert not (tmp_path / "new").exists()


async def test_receipts_beside_a_manifest_survived_if_a_service_has_written_them_since(tmp_path: Path) -> None:
    data = await history(tmp_path)
    shutil.copy(tmp_path / "1" / "manifest.json", data)  # as if its files had been copied here by hand
    made = await restore(tmp_path / "2", tmp_path / "new", [data / RECEIPTS], SystemRuntime())
    assert made.receipts == 2
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(ReceiptsError, match="no such file"):
        await restore(tmp_path / "2", tmp_path / "newer", [loop], SystemRuntime())


async def test_equal_receipts_elsewhere_survived_where_nothing_was_released_since(tmp_path: Path) -> None:
    data = await history(tmp_path)
    assert (data / RECEIPTS).read_bytes() == (tmp_path / "2" / RECEIPTS).read_bytes()
    made = await restore(tmp_path / "2", tmp_path / "new", [data / RECEIPTS], SystemRuntime())
    assert made.receipts == 2


async def test_a_copy_of_the_receipts_that_was_not_given_is_named_with_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    copy = "elsewhere/receipts.jsonl"
    async with service_of(config_of(tmp_path, PLAN, receipts_copy=copy)) as service:
        bound = await service.store.receipts_mark()
        assert bound is not None
        assert bound.copy == f"receipts {tmp_path / copy}"
    await backed_up(tmp_path / "data", tmp_path / "back-up")
    first = tmp_path / "data" / RECEIPTS
    made = await restore(tmp_path / "back-up", tmp_path / "one", [first], SystemRuntime())
    assert made.other_copy == str(tmp_path / copy)
    made = await restore(tmp_path / "back-up", tmp_path / "both", [first, Path(copy)], SystemRuntime())
    assert made.other_copy == ""


def is_changed(folder: Path) -> None:
    path = folder / "store.db"
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def has_no_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def has_a_newer_manifest(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "format": 2}))


def has_no_log(folder: Path) -> None:
    (folder / "log.db").unlink()


def names_others(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"]["../x"] = manifest["files"].pop("log.db")
    (folder / MANIFEST).write_text(json.dumps(manifest))


def is_no_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text("[]")


@pytest.mark.parametrize(
    ("tampered", "why"),
    [
        (is_changed, r"store\.db: its digest is \w{12}, expected \w{12}: it was changed"),
        (has_no_manifest, "is no back-up, or it was not completed"),
        (has_a_newer_manifest, "format 2; this version reads 1"),
        (has_no_log, r"log\.db: No such file"),
        (names_others, r"it names .*\.\./x"),
        (is_no_manifest, "it is no manifest of a back-up"),
    ],
)
async def test_a_back_up_that_is_not_what_was_taken_is_refused(
    tmp_path: Path, tampered: Callable[[Path], None], why: str
) -> None:
    data = await history(tmp_path)
    tampered(tmp_path / "2")
    with pytest.raises(BackupError, match=why):
        await restore(tmp_path / "2", tmp_path / "new", [data / RECEIPTS], SystemRuntime())
    assert not (tmp_path / "new").exists()


async def test_nothing_is_overwritten(tmp_path: Path) -> None:
    data = await history(tmp_path)
    with pytest.raises(BackupError, match="it exists; a back-up goes into a new directory"):
        await backed_up(data, tmp_path / "2")
    with pytest.raises(BackupError, match="not empty"):
        await restore(tmp_path / "2", data, [data / RECEIPTS], SystemRuntime())
    with pytest.raises(BackupError, match="it is no data directory"):
        await backed_up(tmp_path, tmp_path / "3")
    assert not (tmp_path / "3").exists()


async def test_a_back_up_during_which_windows_are_released_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    loop, honest = asyncio.get_running_loop(), backup._copy_receipts
    async with disk_site(data, PLAN, ManualRuntime(), open_windows=2) as site:
        await site.send(0)
        await site.releaser.seal(early=True)
        tries = 0

        async def released() -> None:
            if tries == 1:
                await site.releaser.release()

        def late(source: Path, target: Path) -> None:
            nonlocal tries
            tries += 1
            asyncio.run_coroutine_threadsafe(released(), loop).result()
            honest(source, target)

        monkeypatch.setattr(backup, "_copy_receipts", late)
        await backed_up(data, tmp_path / "copy")
        assert tries == 2
        manifest = json.loads((tmp_path / "copy" / MANIFEST).read_text())
        assert manifest["plans"] == [{"name": "test", "published_outcomes": 1}]


async def test_a_back_up_that_never_fits_is_no_back_up(tmp_path: Path) -> None:
    data = await history(tmp_path)
    shutil.copy(tmp_path / "1" / RECEIPTS, data / RECEIPTS)
    with pytest.raises(
        BackupError, match=r"the copies of store, log and receipts did not fit each other: .* 2 of the 3 lines"
    ):
        await backed_up(data, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


async def test_a_cumulative_sequence_that_lost_steps_is_not_restored(tmp_path: Path) -> None:
    plan, data = cumulative_plan(horizon=20, counters=100), tmp_path / "data"
    data.mkdir(mode=0o700)
    async with disk_site(data, plan, ManualRuntime(), open_windows=3) as site:
        await site.releaser.seal(early=True)
        await site.releaser.release()
        await backed_up(data, tmp_path / "copy")
        made = await restore(tmp_path / "copy", tmp_path / "same", [data / RECEIPTS], SystemRuntime())
        assert made.lost == LostOutcomes({}, {})
        await site.releaser.seal(early=True)
        await site.releaser.release()
    with pytest.raises(StoreError, match="lost steps cannot go on"):
        await restore(tmp_path / "copy", tmp_path / "new", [data / RECEIPTS], SystemRuntime(), marks_lost=True)
    assert not (tmp_path / "new").exists()


async def test_plans_that_were_registered_after_the_back_up_are_named_with_what_to_do(tmp_path: Path) -> None:
    data, runtime = await history(tmp_path), ManualRuntime()
    same = {"total_epsilon": 4, "participation": "protected", "unit": "client", "records_per_client": 3}
    later, window = Plan.from_fields({**tables(privacy=same), "name": "later"}), 7
    receipts = await ReceiptsFile.open(data / RECEIPTS, runtime, ReplayableEntropy(b"unused"))
    for number in (window, window + 1):
        outcome = StoredOutcome(later.id, TUMBLING, number, b"", bytes(32))
        await receipts.write(outcome, spend_of(later, kind=TUMBLING, window=number))
    named = rf"registered later, windows {window}, {window + 1}\. Restore a newer back-up; if there is none, --mark"
    with pytest.raises(BackupError, match=f"plan {later.hex_id[:12]}, {named}") as refused:
        await restore(tmp_path / "2", tmp_path / "new", [data / RECEIPTS], SystemRuntime())
    assert "must be started once with its plan file; then `hushsum admin mark-lost` marks" in str(refused.value)
    made = await restore(tmp_path / "2", tmp_path / "new", [data / RECEIPTS], SystemRuntime(), marks_lost=True)
    assert made.lost == LostOutcomes({}, {later.hex_id: [window, window + 1]})
    # What the error says to do: the start registers the plan, releases nothing, and charges what receipts prove.
    async with disk_site(tmp_path / "new", later, ManualRuntime(), open_windows=0) as site:
        assert "`hushsum admin mark-lost`" in site.releaser.stopped
        assert len((await site.store.account("")).spends) == 4
    assert await mark_all_lost(settings(tmp_path / "new"), SystemRuntime()) == LostOutcomes(
        {"later": [window, window + 1]}, {}
    )
    async with disk_site(tmp_path / "new", later, ManualRuntime(), open_windows=0) as site:
        assert site.releaser.stopped == ""
