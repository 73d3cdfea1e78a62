"""`hushsum admin verify` finds each change of store, ledger, receipts, releases and published copies."""

import hashlib
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from aggregator.config import Config
from aggregator.errors import ConfigError
from aggregator.release.copies import destination_of
from aggregator.release.receipts import ReceiptsFile
from aggregator.repair import end_receipts_copy
from aggregator.runtime import SystemRuntime
from aggregator.verify import State, verify
from hushsum.canonical import decode, encode
from hushsum.entropy import ReplayableEntropy
from hushsum.plan import Plan
from tests.aggregator.deltas import cumulative_plan, tally_plan
from tests.aggregator.disk_site import DiskSite, disk_site
from tests.doubles import ManualRuntime
from tests.plans import tables
from tests.services import config_of, service_of

PLAN = tally_plan(counters=1000, records_per_client=3, total_epsilon=4)
COPY = "copy.jsonl"
Found = list[tuple[str, State, str]]


async def collected(folder: Path, plan: Plan = PLAN) -> None:
    """Two windows are released and copied, a third one is sealed, a fourth one open."""
    async with disk_site(folder, plan, ManualRuntime(), open_windows=4, copied=True) as site:
        copies = destination_of(str(folder / "releases"), plan, SystemRuntime())
        for number in range(2):
            await site.send(number, window=site.window + number)
            await site.releaser.seal(early=True)
            outcome = await site.releaser.release()
            await copies.write(outcome.window, outcome.data)
        await site.releaser.seal(early=True)


async def verified(folder: Path, **settings: str | None) -> Found:
    found: Found = []
    with_all = {"receipts_copy": str(folder / COPY), "publish": str(folder / "releases"), **settings}
    config = Config.load(None, {"data": str(folder), **with_all}, needs_plan=False)
    await verify(config, SystemRuntime(), lambda *part: found.append(part))
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def failures(found: Found) -> str:
    return "\n".join(f"{what}: {text}" for what, state, text in found if state == "failed")


def changed(folder: Path, statement: str, *arguments: object) -> None:
    with closing(sqlite3.connect(folder / "store.db")) as database:
        assert database.execute(statement, arguments).rowcount == 1
        database.commit()


async def test_everything_that_agrees_is_said_in_plain_words(tmp_path: Path) -> None:
    await collected(tmp_path)
    before = contents(tmp_path)
    found = await verified(tmp_path)
    after = contents(tmp_path)
    assert {name: data for name, data in after.items() if name in before} == before
    assert after.keys() - before.keys() <= {"lock"}, "nothing is made"
    assert [(what, state) for what, state, _ in found] == [
        ("store", "ok"),
        ("receipts", "ok"),
        ("copy of the receipts", "ok"),
        ("plan test: receipts", "ok"),
        ("plan test: log", "ok"),
        ("plan test: releases", "ok"),
        ("ledger", "ok"),
        ("plan test: published copies", "ok"),
        ("all of them together", "not checked"),
    ]
    said = {what: text for what, _, text in found}
    assert said["store"] == "1 plan, 2 published outcomes"
    assert re.fullmatch(r"readable: 2 receipts, 3 lines of id [0-9a-f]{8}, checksum [0-9a-f]{16}", said["receipts"])
    assert said["receipts"] == said["copy of the receipts"]
    assert said["ledger"] == "ε = 2 spent, the sum of 2 charges that receipts prove"
    assert said["plan test: releases"] == "2 outcomes with the digests of the receipts"


async def test_an_outcome_that_is_charged_and_not_published_yet_is_no_contradiction(tmp_path: Path) -> None:
    await collected(tmp_path)
    site = await DiskSite.open(tmp_path, PLAN, ManualRuntime(), copied=True)
    sealed = await site.store.sealed_window(PLAN, site.window + 2)
    assert sealed is not None
    entropy = ReplayableEntropy(b"test")
    await site.store.reserve_outcome(PLAN, "tumbling", site.window + 2, sealed.digest(), entropy, fence=site.fence)
    await site.die()
    found = await verified(tmp_path)
    assert not failures(found)
    text = "ε = 3 spent, the sum of 2 charges that receipts prove and of 1 window without an outcome yet"
    assert ("ledger", "ok", text) in found


def shortened(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def a_spend_is_gone(folder: Path) -> None:
    changed(folder, "DELETE FROM spends WHERE number = 1")


def a_spend_is_smaller(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "store.db")) as database:
        (fields,) = database.execute("SELECT fields FROM spends WHERE number = 1").fetchone()
    spend = decode(fields)
    assert isinstance(spend, dict)
    spend["events"] = []
    changed(folder, "UPDATE spends SET fields = ? WHERE number = 1", encode(spend))


def a_spend_is_of_nothing(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "store.db")) as database:
        (fields,) = database.execute("SELECT fields FROM spends WHERE number = 1").fetchone()
    spend = decode(fields)
    assert isinstance(spend, dict)
    spend["window"] = 7
    statement = "INSERT INTO spends (population, plan_id, kind, window, fields) VALUES ('', ?, 'tumbling', 7, ?)"
    changed(folder, statement, PLAN.hex_id, encode(spend))


def a_release_is_changed(folder: Path) -> None:
    changed(folder, "UPDATE outcomes SET data = x'00' WHERE window = (SELECT min(window) FROM outcomes)")


def a_release_and_its_digest_are_changed(folder: Path) -> None:
    digest = hashlib.sha256(b"\0").digest()
    where = "WHERE window = (SELECT min(window) FROM outcomes)"
    changed(folder, f"UPDATE outcomes SET data = x'00', sha256 = ? {where}", digest)


def an_outcome_is_gone(folder: Path) -> None:
    changed(folder, "DELETE FROM outcomes WHERE window = (SELECT min(window) FROM outcomes)")


def files_of(folder: Path) -> list[Path]:
    return sorted((folder / "releases").glob("*/*.hush"))


@pytest.mark.parametrize(
    ("tampered", "why"),
    [
        (a_spend_is_gone, r"^ledger: plan \w{12}, window \d+: a receipt proves a charge that is missing$"),
        (a_spend_is_smaller, r"^ledger: .*: the charge differs from that which its receipt proves$"),
        (a_spend_is_of_nothing, r"^ledger: .*, window 7: it is charged, and has neither a receipt nor a window"),
        (a_release_is_changed, r"^plan test: releases: window \d+: its bytes are not those of its receipt$"),
        (a_release_and_its_digest_are_changed, r"^plan test: receipts: the receipt of window \d+ differs from the out"),
        (an_outcome_is_gone, r"^plan test: receipts: there is a receipt for window \d+, but the store does not cont"),
        (
            lambda folder: (folder / "log.db").unlink(),
            r"^plan test: log: partition 0: the log ends at 0, but",
        ),
        (lambda folder: shortened(folder / "receipts.jsonl"), r"^plan test: receipts: .*2 of the 3 lines of receipts"),
        (lambda folder: damaged(folder / "receipts.jsonl"), r"^receipts: .*, line 2: not a receipt"),
        (
            lambda folder: (folder / "receipts.jsonl").unlink(),
            r"^receipts: .*receipts\.jsonl: missing or empty: find it, or make it",
        ),
        (lambda folder: shortened(folder / COPY), r"copy\.jsonl: it has 2 of the 3 lines of .* an older copy"),
        (lambda folder: damaged(folder / COPY), r"^receipts: .*copy\.jsonl, line 2: not a receipt"),
        (
            lambda folder: (folder / COPY).unlink(),
            r"^copy of the receipts: .*copy\.jsonl: missing or empty: find it, or make it",
        ),
        (lambda folder: damaged(files_of(folder)[0]), r"copies: test-\d+\.hush: its bytes are not those of the rec"),
        (lambda folder: files_of(folder)[0].unlink(), r"published copies: test-\d+\.hush: missing"),
        (
            lambda folder: shutil.copy(files_of(folder)[0], files_of(folder)[0].with_name("test-9.hush")),
            r"published copies: test-9\.hush: no outcome of the store is published under this name",
        ),
    ],
)
async def test_what_was_changed_is_found(tmp_path: Path, tampered: Callable[[Path], object], why: str) -> None:
    await collected(tmp_path)
    tampered(tmp_path)
    assert re.search(why, failures(await verified(tmp_path)), re.MULTILINE)


async def test_where_the_receipts_are_lost_or_anothers_the_ledger_is_compared_with_what_is_left(
    tmp_path: Path,
) -> None:
    await collected(tmp_path)
    other = await ReceiptsFile.open(tmp_path / "other", SystemRuntime(), ReplayableEntropy(b"another store"))
    await other.begin()
    for lost in ("receipts.jsonl", COPY):
        shutil.copy(tmp_path / lost, tmp_path / "aside")
        shutil.copy(tmp_path / "other", tmp_path / lost)
        found = await verified(tmp_path)
        assert [what for what, state, _ in found if state == "failed"] == ["plan test: receipts"]
        assert ("ledger", "ok", "ε = 2 spent, the sum of 2 charges that receipts prove") in found
        shutil.copy(tmp_path / "aside", tmp_path / lost)
    for lost in ("receipts.jsonl", COPY):
        (tmp_path / lost).unlink()
    found = await verified(tmp_path)
    assert failures(found).count("If all are lost, nothing can tell what was published: begin with a new store") == 2
    assert ("ledger", "not checked", "it is compared with this store's receipts, which were not found") in found


async def test_no_lock_is_made_for_a_copy_that_is_missing(tmp_path: Path) -> None:
    await collected(tmp_path)
    (tmp_path / COPY).unlink()
    assert "missing" in failures(await verified(tmp_path))
    assert not [name for name in contents(tmp_path) if name.startswith(COPY)]


async def test_receipts_of_a_plan_that_the_store_has_lost_are_found(tmp_path: Path) -> None:
    """Its ledger is another population's, which the store does not have either."""
    privacy = {"total_epsilon": 4, "population": "elsewhere"}
    fields = tables(sketch={"rows": 1, "buckets": 100}, privacy=privacy)
    other = Plan.from_fields({**fields, "name": "other"})
    await collected(tmp_path)
    for name in ("store", "log"):
        shutil.copy(tmp_path / f"{name}.db", tmp_path / f"{name}.old")
    async with disk_site(tmp_path, other, ManualRuntime(), open_windows=1, copied=True) as site:
        await site.releaser.seal(early=True)
        await site.releaser.release()
    for name in ("store", "log"):
        for end in ("-wal", "-shm"):
            (tmp_path / f"{name}.db{end}").unlink(missing_ok=True)
        shutil.copy(tmp_path / f"{name}.old", tmp_path / f"{name}.db")
    why = f"plan {other.hex_id[:12]}: receipts: 1 receipt of a plan that the store does not have"
    assert failures(await verified(tmp_path)).startswith(why)


async def test_a_store_without_plans_beside_receipts_is_found(tmp_path: Path) -> None:
    await collected(tmp_path)
    for name in ("store.db", "store.db-wal", "store.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    found = await verified(tmp_path)
    assert "2 receipts of a plan that the store does not have" in failures(found)
    assert f"store: {tmp_path} has no store.db: restore it from a back-up" in failures(found)


async def test_a_cumulative_sequence_is_charged_once_and_each_release_compared(tmp_path: Path) -> None:
    plan = cumulative_plan(horizon=20, counters=100)
    await collected(tmp_path, plan)
    found = await verified(tmp_path)
    assert not failures(found)
    assert ("ledger", "ok", "ε = 1 spent, the sum of 1 charge that receipts prove") in found


async def test_what_cannot_be_checked_is_said(tmp_path: Path) -> None:
    await collected(tmp_path)
    changed(tmp_path, "UPDATE outcomes SET data = x'' WHERE window = (SELECT min(window) FROM outcomes)")
    assert await end_receipts_copy(Config.load(None, {"data": str(tmp_path)}, needs_plan=False), SystemRuntime())
    found = await verified(tmp_path, receipts_copy=None, publish="s3://bucket/releases")
    assert not failures(found)
    assert [(what, text) for what, state, text in found if state == "not checked"] == [
        ("copy of the receipts", "receipts_copy is not set, and the store knows of no copy"),
        ("plan test: releases", "1 outcome whose bytes are removed or lost: the store has their digests alone"),
        ("plan test: published copies", "s3://bucket/releases is no directory"),
        (
            "all of them together",
            "whether the store and every sink of receipts were set back together, or a copy of all of them runs",
        ),
    ]


async def test_a_directory_that_is_missing_or_in_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        await verified(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    async with service_of(config_of(tmp_path, PLAN)):
        with pytest.raises(ConfigError, match="in use by another process"):
            await verified(tmp_path / "data")
