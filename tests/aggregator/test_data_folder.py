"""The data folder is its user's alone, whatever the mask of the process says."""

import io
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from aggregator.data_dir import DataDir
from aggregator.errors import ConfigError
from aggregator.logs import write_journal
from tests.plans import small_plan
from tests.services import HOUR_MS, NOW_MS, Contributor, RawClient, SetRuntime, config_of, service_of

PLAN = small_plan()


@pytest.fixture(autouse=True)
def usual_mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_no_file_of_a_running_service_can_be_read_by_others(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await client.submit_one(PLAN.id, Contributor(PLAN, 3).delta()[1])
        await client.seal()
        await client.release()

        modes = {path.name: mode(path) for path in config.folder.iterdir()}

        assert mode(config.folder) == 0o700
        assert modes == dict.fromkeys(modes, 0o600)
        databases = {f"{name}.db{side}" for name in ("log", "store") for side in ("", "-wal", "-shm")}
        assert modes.keys() == {*databases, "lock", "receipts.jsonl", "listening.json"}


def test_a_folder_that_was_open_to_others_is_closed_and_the_journal_says_so(tmp_path: Path) -> None:
    said = io.StringIO()
    write_journal("info", "json", said)
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    for name in ("lock", "store.db", "store.db-wal", "log.db", "receipts.jsonl"):
        (data / name).touch()
    assert mode(data / "log.db") == 0o644

    DataDir.open(data).close()

    assert mode(data) == 0o700
    assert {mode(path) for path in data.iterdir()} == {0o600}
    assert "the data folder was open to others" in said.getvalue()


def test_a_folder_for_everybodys_files_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o1777)

    with pytest.raises(ConfigError, match="open to others"):
        DataDir.open(data)

    assert stat.S_IMODE(data.stat().st_mode) == 0o1777


# ------------------------------------------------------------------------------------------------- receipts elsewhere


async def test_receipts_go_where_the_setting_says_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "receipts.jsonl"
    elsewhere.parent.mkdir()
    config = config_of(tmp_path, PLAN, receipts=str(elsewhere))
    for window in range(2):
        runtime = SetRuntime(NOW_MS + window * HOUR_MS)
        async with service_of(config, runtime) as service, RawClient(service.grpc) as client:
            await client.seal()
            await client.release()
    assert elsewhere.read_bytes().count(b"\n") == 3, "a header and two receipts"
    assert mode(elsewhere) == mode(elsewhere.with_name("receipts.jsonl.lock")) == 0o600
    assert not (config.folder / "receipts.jsonl").exists()


async def test_receipts_that_another_process_uses_are_refused(tmp_path: Path) -> None:
    shared = str(tmp_path / "receipts.jsonl")
    for name in ("own", "others"):
        (tmp_path / name).mkdir()
    others = config_of(tmp_path / "others", PLAN, receipts=shared)
    async with service_of(config_of(tmp_path / "own", PLAN, receipts=shared)):
        with pytest.raises(ConfigError, match=r"receipts: .*receipts\.jsonl is in use by another aggregator"):
            async with service_of(others):
                pass


async def test_a_volume_that_is_not_there_stops_releasing_alone(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN, receipts=str(tmp_path / "not mounted" / "receipts.jsonl"))
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await client.submit_one(PLAN.id, Contributor(PLAN, 3).delta()[1])
        await client.seal()
        with pytest.raises(grpc.aio.AioRpcError, match="nothing is released until they can be used"):
            await client.release()
        assert not await service.store.outcomes(PLAN.id)
        assert await service.store.receipts_mark() is None


@pytest.mark.parametrize("apart", [False, True])
async def test_receipts_on_the_volume_of_the_store_are_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, apart: bool
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if apart:
        monkeypatch.setattr("aggregator.backends._volume", str)
    write_journal("info", "json", sys.stdout)
    async with service_of(config_of(tmp_path, PLAN, receipts=str(elsewhere / "receipts.jsonl"))):
        pass
    assert capsys.readouterr().out.count("is on the store's volume, and lost with it") == (not apart)
