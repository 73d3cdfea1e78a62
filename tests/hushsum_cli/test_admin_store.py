"""`admin backup`, `restore`, `verify`, `mark-lost`, `begin-receipts-copy`: what they print, and how they end.

docs/how-to/backups.md, which a test runs, has the rest.
"""

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest

from tests.aggregator.release.test_receipts_copy import history, put
from tests.aggregator.test_app_roles import PLAN as SERVED
from tests.aggregator.test_backup_cluster import released as once_released
from tests.aggregator.test_verify import PLAN, collected, shortened
from tests.doubles import ManualRuntime
from tests.hushsum_cli.calling import Hushsum
from tests.services import HOUR_MS, NOW_MS, WINDOW, Contributor, RawClient, SetRuntime, config_of, service_of


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two released windows of three, and a copy of the receipts."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    asyncio.run(collected(folder))
    return folder


def test_a_copy_that_is_lost_is_begun_again_and_one_that_knows_more_is_not_touched(
    hushsum: Hushsum, data: Path
) -> None:
    places = ("--data", str(data), "--receipts-copy", str(data / "copy.jsonl"))
    (data / "copy.jsonl").unlink()
    assert hushsum("admin", "verify", *places).status == 1
    ended = hushsum("admin", "begin-receipts-copy", *places)
    assert ended.out == f"{data}/copy.jsonl: 3 lines copied; start the service with this receipts_copy\n"
    assert hushsum("admin", "verify", *places).status == 0
    shortened(data / "receipts.jsonl")
    before = (data / "copy.jsonl").read_bytes()
    ended = hushsum("admin", "begin-receipts-copy", *places)
    assert (ended.status, "2 of the 3 lines of receipts" in ended.err) == (1, True)
    assert (data / "copy.jsonl").read_bytes() == before
    ended = hushsum("admin", "begin-receipts-copy", "--data", str(data))
    assert ended.err == "hushsum: receipts_copy: required: where the copy is to be\n"


def test_lost_outcomes_are_marked_in_a_store_that_was_restored_already(hushsum: Hushsum, tmp_path: Path) -> None:
    asyncio.run(history(tmp_path, ManualRuntime()))
    put(tmp_path, 1, 3, 3)
    shutil.copy(tmp_path / "1.log.db", tmp_path / "log.db")
    places = ("--data", str(tmp_path), "--receipts-copy", str(tmp_path / "copy.jsonl"))
    assert hushsum("admin", "verify", *places).status == 1
    ended = hushsum("admin", "mark-lost", *places)
    assert re.fullmatch(r"plan test: marked as lost, charged, never drawn again: windows \d+, \d+\n", ended.out)
    assert hushsum("admin", "mark-lost", *places).out == "no outcome is lost\n"
    ended = hushsum("admin", "verify", *places)
    assert ended.status == 0, ended.out
    assert "ledger: ok: ε = 3 spent, the sum of 3 charges that receipts prove\n" in ended.out


@pytest.mark.parametrize("way", ["begin-receipts-copy", "end-receipts-copy"])
def test_an_older_store_whose_copy_is_lost_too_goes_on_with_its_receipts(
    hushsum: Hushsum, tmp_path: Path, way: str
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy.jsonl"
    alone = ("--data", str(data))
    places = (*alone, "--receipts-copy", str(copy))
    asyncio.run(released(tmp_path, 0, receipts_copy=str(copy)))
    assert hushsum("admin", "backup", *alone, str(tmp_path / "older")).status == 0
    asyncio.run(released(tmp_path, 1, receipts_copy=str(copy)))
    for name in ("store.db", "log.db"):  # both in write-ahead mode, and closed
        shutil.copy(tmp_path / "older" / name, data / name)
    copy.unlink()

    used = alone if way == "end-receipts-copy" else places
    assert "use `hushsum admin mark-lost`" in hushsum("admin", way, *used).err
    ended = hushsum("admin", "mark-lost", *places)
    assert (ended.status, "use `hushsum admin mark-lost` without receipts_copy first" in ended.err) == (1, True)
    (tmp_path / "service.toml").write_text(f'data = "{data}"\nreceipts_copy = "{copy}"\n')
    ended = hushsum("admin", "mark-lost", "--config", str(tmp_path / "service.toml"), "--receipts-copy", "")
    assert ended.out == f"plan test: marked as lost, charged, never drawn again: window {WINDOW + 1}\n"
    ended = hushsum("admin", "verify", *alone)
    assert "receipts: failed: receipts_copy is not set" in ended.out, "the store goes on knowing of its copy"
    ended = hushsum("admin", way, *used)
    assert ended.status == 0, ended.err
    ended = hushsum("admin", "verify", *used)
    assert ended.status == 0, ended.out
    asyncio.run(released(tmp_path, 2, receipts_copy=None if way == "end-receipts-copy" else str(copy)))
    assert hushsum("admin", "verify", *used).status == 0


async def released(folder: Path, number: int, **settings: str | None) -> None:
    """A service starts in the hour after a window, releases it, and stops."""
    runtime = SetRuntime(NOW_MS + number * HOUR_MS)
    async with service_of(config_of(folder, SERVED, **settings), runtime) as service, RawClient(service.grpc) as client:
        await client.submit_one(SERVED.id, Contributor(SERVED, 3).delta(window=WINDOW + number)[1])
        await once_released(client)


def test_receipts_are_made_from_their_copy_and_a_copy_is_ended(hushsum: Hushsum, data: Path) -> None:
    places = ("--data", str(data), "--receipts-copy", str(data / "copy.jsonl"))
    (data / "receipts.jsonl").unlink()
    ended = hushsum("admin", "begin-receipts-copy", *places, "--reverse")
    assert ended.out == f"receipts: 3 lines copied from {data}/copy.jsonl; start the service\n"
    assert hushsum("admin", "verify", *places).status == 0
    ended = hushsum("admin", "verify", "--data", str(data))
    assert (ended.status, "receipts: failed: receipts_copy is not set, but this store's" in ended.out) == (1, True)
    assert "receipts_copy: still set" in hushsum("admin", "end-receipts-copy", *places).err
    ended = hushsum("admin", "end-receipts-copy", "--data", str(data))
    gone = f"receipts {data}/copy.jsonl: no longer the copy of this store's receipts; start the service without it\n"
    assert ended.out == gone
    assert hushsum("admin", "verify", "--data", str(data)).status == 0
    ended = hushsum("admin", "end-receipts-copy", "--data", str(data))
    assert ended.out == "the store knows of no copy of its receipts\n"


def test_what_is_found_is_json_for_machines(hushsum: Hushsum, data: Path, tmp_path: Path) -> None:
    places = ("--receipts-copy", str(data / "copy.jsonl"))
    found = json.loads(hushsum("admin", "verify", "--data", str(data), *places, "--json").out)
    assert found["ok"] is True
    assert {part["state"] for part in found["parts"]} == {"ok", "not checked"}
    made = json.loads(hushsum("admin", "backup", "--data", str(data), str(tmp_path / "copy"), "--json").out)
    assert made["plans"] == [{"name": PLAN.name, "published_outcomes": 2}]
    assert sorted(made["files"]) == ["log.db", "receipts.jsonl", "store.db"]
    (data / "receipts.jsonl").unlink()
    ended = hushsum("admin", "verify", "--data", str(data), "--json")
    assert (ended.status, json.loads(ended.out)["ok"]) == (1, False)


def test_a_back_up_and_a_restore_say_what_was_compared(hushsum: Hushsum, data: Path, tmp_path: Path) -> None:
    copied = ("--receipts-copy", str(data / "copy.jsonl"))
    ended = hushsum("admin", "backup", "--data", str(data), str(tmp_path / "one"))
    assert ended.out == (
        f"plan test: 2 published outcomes\n{tmp_path}/one: store.db, log.db, receipts.jsonl; 3 lines of receipts\n"
        "opened; store, log and receipts compared with each other: ok\n"
    )
    ended = hushsum("admin", "backup", "--data", str(data), *copied, str(tmp_path / "two"))
    assert ended.out.endswith("\nthe copy of the receipts: not compared; `hushsum admin verify` does that\n")

    new, receipts = tmp_path / "new", data / "receipts.jsonl"
    ended = hushsum("admin", "restore", str(tmp_path / "one"), str(new), "--receipts", str(receipts))
    said = f"{new}: restored; every outcome that is proved by {receipts} (2 receipts) is in the store\n"
    other = f"{new}: the copy of its receipts, {data}/copy.jsonl, was not compared; `hushsum admin verify` with "
    assert ended.out == f"{said}{other}--receipts-copy compares it\n"
    both = ("--receipts", str(receipts), "--receipts", str(data / "copy.jsonl"))
    ended = hushsum("admin", "restore", str(tmp_path / "one"), str(tmp_path / "newer"), *both)
    assert ended.out == said.replace(str(new), str(tmp_path / "newer"))

    own = str(tmp_path / "one" / "receipts.jsonl")
    ended = hushsum("admin", "restore", str(tmp_path / "one"), str(tmp_path / "never"), "--receipts", own)
    assert (ended.status, ended.err.startswith(f"hushsum: receipts {own}: this file is part of a")) == (1, True)


def test_warnings_are_printed_as_those_of_other_commands(hushsum: Hushsum, data: Path) -> None:
    ended = hushsum("admin", "verify", "--data", str(data), "--receipts-copy", str(data / "copy.jsonl"))
    assert ended.err.startswith(f"hushsum: warning: durability is reduced: {data}/copy.jsonl is on the same volume")
    with (data / "receipts.jsonl").open("ab") as file:
        file.write(b'{"checksum":"')
    ended = hushsum("admin", "verify", "--data", str(data), "--receipts-copy", str(data / "copy.jsonl"))
    line = "incomplete receipt will be truncated at the start (line = 4, size_bytes = 13, copy = receipts.jsonl.torn)"
    assert f"hushsum: warning: {line}\n" in ended.err


def test_a_restore_without_receipts_is_refused_before_anything_is_looked_at(hushsum: Hushsum, tmp_path: Path) -> None:
    ended = hushsum("admin", "restore", str(tmp_path / "a"), str(tmp_path / "b"))
    assert (ended.status, "TARGET and --receipts are required, or --config" in ended.err) == (2, True)
    (tmp_path / "files.toml").write_text(f'data = "{tmp_path}"\n')
    for arguments, why in (
        ((str(tmp_path / "b"),), "--config excludes TARGET and --receipts"),
        ((), "--config is for a service with Kafka and PostgreSQL"),
    ):
        ended = hushsum("admin", "restore", str(tmp_path / "a"), *arguments, "--config", str(tmp_path / "files.toml"))
        assert (ended.status, why in ended.err) == (2, True)


@pytest.mark.parametrize("command", ["backup", "verify", "mark-lost", "begin-receipts-copy", "end-receipts-copy"])
def test_a_command_without_a_data_directory_says_so(hushsum: Hushsum, tmp_path: Path, command: str) -> None:
    target = [str(tmp_path / "copy")] if command == "backup" else []
    ended = hushsum("admin", command, *target)
    assert (ended.status, ended.err) == (1, "hushsum: data: required\n")
