"""A copy of the receipts elsewhere than the store knows it takes the place of that one by a command alone."""

import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc.aio
import pytest
from structlog.testing import capture_logs

from aggregator.config import Config
from aggregator.errors import ReceiptsError
from aggregator.release.receipts import ReceiptsFile, reconcile
from aggregator.release.receipts_copy import CopiedReceipts, begin_copy, is_same_place
from aggregator.repair import begin_receipts_copy, end_receipts_copy, rebuild_receipts
from aggregator.runtime import SystemRuntime
from hushsum.entropy import ReplayableEntropy
from tests.aggregator.disk_site import DiskSite, disk_site
from tests.aggregator.release.test_receipts_copy import PLAN_OF_FOUR, history, put, stopped
from tests.aggregator.test_app_roles import PLAN as SERVED
from tests.aggregator.test_backup_cluster import once_leading, released
from tests.aggregator.test_check import checked, failures_of
from tests.aggregator.test_repair import copy_of, killed_at_the_third_line, place, unbound
from tests.aggregator.test_verify import COPY, failures, verified
from tests.doubles import ManualRuntime
from tests.services import HOUR_MS, NOW_MS, RawClient, SetRuntime, config_of, service_of

RECEIPTS, OTHER = "receipts.jsonl", "other.jsonl"


def config(folder: Path, copy: str | None = OTHER) -> Config:
    named = {} if copy is None else {"receipts_copy": str(folder / copy)}
    return Config.load(None, {"data": str(folder), **named}, needs_plan=False)


# What was there before the settings named another copy: store, receipts and that copy after so many of three releases.
# The copy that the store knows has all three. The last three lines show a store and receipts that were set back.
STARTS: list[tuple[tuple[int, int], int | bytes | None, str]] = [
    ((3, 3), 3, "4 lines"),
    ((3, 3), 2, "3 lines"),
    ((3, 3), 0, "1 line"),
    ((3, 3), b"", "missing or empty"),
    ((3, 3), None, "missing or empty"),
    ((1, 1), 1, "2 lines"),
    ((1, 1), b"", "missing or empty"),
    ((0, 0), 0, "1 line"),
]


@pytest.mark.parametrize(("state", "named", "has"), STARTS)
async def test_a_start_with_another_copy_than_the_store_knows_releases_nothing_and_names_both(
    tmp_path: Path, state: tuple[int, int], named: int | bytes | None, has: str
) -> None:
    await history(tmp_path, ManualRuntime())
    put(tmp_path, *state, 3)
    before = (tmp_path / f"{named}.{COPY}").read_bytes() if isinstance(named, int) else named
    if before is not None:
        (tmp_path / OTHER).write_bytes(before)
    told = await stopped(tmp_path, ManualRuntime(), OTHER)
    names = rf"receipts_copy names receipts {tmp_path / OTHER} \({has}\), .* knows .* at receipts {tmp_path / COPY};"
    assert re.search(names, told)
    assert "`hushsum admin begin-receipts-copy`" in told
    assert "`hushsum admin end-receipts-copy`" in told
    assert re.search(names, failures(await verified(tmp_path, receipts_copy=str(tmp_path / OTHER), publish=None)))
    assert await place(tmp_path) == f"receipts {tmp_path / COPY}"
    assert ((tmp_path / OTHER).read_bytes() if before is not None else None) == before


async def test_a_copy_that_was_moved_is_recorded_by_a_command_which_completes_it(tmp_path: Path) -> None:
    for left, copied in ((3, 0), (1, 2)):
        folder = tmp_path / str(left)
        folder.mkdir()
        await history(folder, ManualRuntime())
        (folder / COPY).unlink()
        shutil.copy(folder / f"{left}.{COPY}", folder / OTHER)
        assert await stopped(folder, ManualRuntime(), OTHER)
        assert await begin_receipts_copy(config(folder), SystemRuntime()) == copied
        assert await place(folder) == f"receipts {folder / OTHER}"
        assert await stopped(folder, ManualRuntime(), OTHER) == ""


async def test_a_directory_that_is_not_there_is_told_with_the_place_that_the_store_knows(tmp_path: Path) -> None:
    await history(tmp_path, ManualRuntime())
    mistyped = tmp_path / "mistyped" / COPY
    told = failures(await verified(tmp_path, receipts_copy=str(mistyped), publish=None))
    assert f"receipts {mistyped}: its directory does not exist: is the disk mounted" in told
    assert f"This store knows the copy of its receipts at receipts {tmp_path / COPY}." in told


async def test_the_same_file_by_another_path_is_the_same_copy(tmp_path: Path) -> None:
    await history(tmp_path, ManualRuntime())
    (tmp_path / "link").symlink_to(tmp_path)
    assert await stopped(tmp_path, ManualRuntime(), f"link/{COPY}") == ""
    assert await place(tmp_path) == f"receipts {tmp_path / COPY}", "as it was recorded"


def test_a_topic_is_the_same_where_an_address_of_its_brokers_is() -> None:
    known = "topic a.copy at one:9092,two:9092"
    assert is_same_place(known, "topic a.copy at three:9092, two:9092")
    assert not is_same_place(known, "topic a.copy at three:9092")
    assert not is_same_place(known, "topic b.copy at one:9092,two:9092")
    assert not is_same_place(known, "receipts /copy.jsonl")


async def test_brokers_are_replaced_one_by_one_while_every_start_shares_an_address_with_the_start_before(
    tmp_path: Path,
) -> None:
    async with disk_site(tmp_path, PLAN_OF_FOUR, ManualRuntime()) as site:
        copy = await ReceiptsFile.open(tmp_path / COPY, ManualRuntime(), ReplayableEntropy(b""))
        await begin_copy(site.receipts, copy)
        receipts = CopiedReceipts(site.receipts, copy)
        for brokers in ("one:1,two:2", "two:2,three:3", "three:3,four:4"):
            copy.lines.where = f"topic a.copy at {brokers}"
            assert (await reconcile(PLAN_OF_FOUR.id, site.store, receipts, fence=None))[0] == ""
            assert (await reconcile(PLAN_OF_FOUR.id, site.store, receipts, fence=site.fence))[0] == ""
            assert await copy_of(site.store) == copy.lines.where
        for other in ("topic a.copy at one:1,two:2", "topic b.copy at three:3"):
            copy.lines.where = other
            problem, _ = await reconcile(PLAN_OF_FOUR.id, site.store, receipts, fence=site.fence)
            assert "knows the copy of its receipts at topic a.copy at three:3,four:4" in problem
        assert await copy_of(site.store) == "topic a.copy at three:3,four:4"


async def test_serve_and_its_check_say_so_and_collect(tmp_path: Path) -> None:
    known = config_of(tmp_path, SERVED, receipts_copy=str(tmp_path / COPY))
    async with service_of(known, SetRuntime()) as service, RawClient(service.grpc) as client:
        await released(client)
    shutil.copy(tmp_path / COPY, tmp_path / OTHER)
    other = config_of(tmp_path, SERVED, receipts_copy=str(tmp_path / OTHER))
    names = f"receipts_copy names receipts {tmp_path / OTHER} (2 lines), but this store knows the copy"
    assert failures_of(await checked(other))["receipts"].startswith(names)
    async with service_of(other, SetRuntime(NOW_MS + HOUR_MS)) as service, RawClient(service.grpc) as client:
        await once_leading(client.seal)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await once_leading(client.release)
        assert "receipts_copy names" in (refused.value.details() or "")
    assert "receipts" not in failures_of(await checked(known))


# ------------------------------------------------------------------------------- commands do not give up a newer copy


@pytest.mark.parametrize("command", [begin_receipts_copy, end_receipts_copy, rebuild_receipts])
async def test_a_copy_that_is_newer_than_a_store_that_was_set_back_is_not_given_up(
    tmp_path: Path, command: Callable[[Config, SystemRuntime], Awaitable[object]]
) -> None:
    """Store and receipts are from one back-up, so that they fit each other; the copy alone tells what came later."""
    await history(tmp_path, ManualRuntime())
    put(tmp_path, 1, None if command is rebuild_receipts else 1, 3)
    if command is rebuild_receipts:
        shutil.copy(tmp_path / f"1.{COPY}", tmp_path / OTHER)  # an older one
    used = config(tmp_path, None if command is end_receipts_copy else OTHER)
    with pytest.raises(ReceiptsError, match=rf"^the copy that the store knows, receipts {tmp_path / COPY}, would be"):
        await command(used, SystemRuntime())
    assert await place(tmp_path) == f"receipts {tmp_path / COPY}"
    with capture_logs() as logged:
        shutil.move(tmp_path / COPY, tmp_path / "away")
        await command(used, SystemRuntime())
    assert [line["why"] for line in logged if "was not compared" in line["event"]] == ["missing or empty"]


async def test_a_copy_that_is_damaged_is_not_given_up_and_another_stores_receipts_in_its_place_say_nothing(
    tmp_path: Path,
) -> None:
    await history(tmp_path, ManualRuntime())
    data = (tmp_path / COPY).read_bytes()
    (tmp_path / COPY).write_bytes(data.replace(b"tumbling", b"rumbling", 1))
    with pytest.raises(ReceiptsError, match=r"line 2: not a receipt.*move this file away"):
        await begin_receipts_copy(config(tmp_path), SystemRuntime())
    assert await place(tmp_path) == f"receipts {tmp_path / COPY}"
    (tmp_path / COPY).unlink()
    other = await ReceiptsFile.open(tmp_path / COPY, SystemRuntime(), ReplayableEntropy(b"another store"))
    await other.begin()
    with capture_logs() as logged:
        assert await begin_receipts_copy(config(tmp_path), SystemRuntime()) == 4
    assert [line["why"] for line in logged if "why" in line and "store" in line["why"]]


async def test_a_copy_that_is_made_where_the_known_one_is_missing_is_told(tmp_path: Path) -> None:
    """Its disk may only be not mounted."""
    await history(tmp_path, ManualRuntime())
    (tmp_path / COPY).unlink()
    assert "Is its disk mounted?" in await stopped(tmp_path, ManualRuntime(), COPY)
    with capture_logs() as logged:
        assert await begin_receipts_copy(config(tmp_path, COPY), SystemRuntime()) == 4
    assert [line["why"] for line in logged if "was not compared" in line["event"]] == ["missing or empty"]


async def test_a_known_copy_that_is_empty_or_cannot_be_read_is_told(tmp_path: Path) -> None:
    await history(tmp_path, ManualRuntime())
    (tmp_path / COPY).unlink()
    (tmp_path / COPY).mkdir()
    with pytest.raises(ReceiptsError, match=r"knows, .* does not fit: .*Is a directory.* move it away, and use"):
        await begin_receipts_copy(config(tmp_path), SystemRuntime())
    (tmp_path / COPY).rmdir()
    (tmp_path / COPY).touch()
    with capture_logs() as logged:
        assert await begin_receipts_copy(config(tmp_path), SystemRuntime()) == 4
    assert [line["why"] for line in logged if "was not compared" in line["event"]] == ["missing or empty"]


async def test_receipts_that_are_lost_may_be_taken_over_by_their_copy(tmp_path: Path) -> None:
    """The setting receipts then names the file that the store knows as the copy; another copy is begun."""
    await history(tmp_path, ManualRuntime())
    (tmp_path / RECEIPTS).unlink()
    settings = {"data": str(tmp_path), "receipts": str(tmp_path / COPY), "receipts_copy": str(tmp_path / OTHER)}
    assert await begin_receipts_copy(Config.load(None, settings, needs_plan=False), SystemRuntime()) == 4


# -------------------------------------------------------------------------------------------------- kills, and races


async def test_where_receipts_of_a_store_without_an_id_were_made_in_part_it_knows_their_id_and_their_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a start without the copy, or mark-lost, would take the part for all that was ever published."""
    await history(tmp_path, ManualRuntime())
    put(tmp_path, 0, None, 3)
    unbound(tmp_path, publishes=True)
    await killed_at_the_third_line(tmp_path, monkeypatch)
    alone = failures(await verified(tmp_path, receipts_copy=None, publish=None))
    assert "receipts_copy is not set" in alone
    site = await DiskSite.open(tmp_path, PLAN_OF_FOUR, ManualRuntime())
    await site.releaser.start()
    assert "it has 2 of the 4 lines" in site.releaser.stopped
    await site.die()


async def test_releasers_of_two_plans_that_first_start_with_two_copies_at_once_do_not_both_release(
    tmp_path: Path,
) -> None:
    """The store keeps the place of the one that was first."""
    async with disk_site(tmp_path, PLAN_OF_FOUR, ManualRuntime()) as site:
        first = site.receipts
        bound = await site.store.receipts_mark()
        assert bound is not None
        both = [
            CopiedReceipts(first, await ReceiptsFile.open(tmp_path / name, ManualRuntime(), ReplayableEntropy(b"")))
            for name in (COPY, OTHER)
        ]
        marks = [await each.begin() for each in both]
        await site.store.bind_receipts(PLAN_OF_FOUR.id, marks[0], fence=site.fence)
        known = await site.store.bind_receipts(PLAN_OF_FOUR.id, marks[1], fence=site.fence)
        await both[0].check(known)
        with pytest.raises(ReceiptsError, match="receipts_copy names"):
            await both[1].check(known)
