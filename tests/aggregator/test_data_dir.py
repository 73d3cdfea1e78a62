"""The data folder is its user's alone, whatever the mask of the process says."""

import io
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from aggregator import data_dir
from aggregator.data_dir import DataDir, ReloadedFiles
from aggregator.errors import AggregatorError, ConfigError
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
    for name in ("lock", "store.db", "store.db-wal", "log.db", "receipts.jsonl", "audit.jsonl", "audit-1.jsonl"):
        (data / name).touch()
    assert mode(data / "log.db") == 0o644

    DataDir.open(data).close()

    assert mode(data) == 0o700
    assert {mode(path) for path in data.iterdir()} == {0o600}
    assert "data directory permissions restricted" in said.getvalue()


def test_a_folder_for_everybodys_files_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o1777)

    with pytest.raises(ConfigError, match="accessible to other users"):
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
        with pytest.raises(ConfigError, match=r"receipts: .*receipts\.jsonl is in use by another process"):
            async with service_of(others):
                pass


async def test_a_volume_that_is_not_there_stops_releasing_alone(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN, receipts=str(tmp_path / "not mounted" / "receipts.jsonl"))
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await client.submit_one(PLAN.id, Contributor(PLAN, 3).delta()[1])
        await client.seal()
        why = r"its directory does not exist: is the disk mounted.* Nothing is released until"
        with pytest.raises(grpc.aio.AioRpcError, match=why):
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
    assert capsys.readouterr().out.count("is on the same volume as the store and would be lost with the store") == (
        not apart
    )


# ---------------------------------------------------------------------------------------- files that are read again


class Reloaded:
    """Two files of one letter each, whose letters are a value if they are equal."""

    def __init__(self, folder: Path) -> None:
        self.paths = folder / "a", folder / "b"
        self.readings, self.failures, self.now_s = 0, list[str](), 0.0
        self.write("x")
        self.files = ReloadedFiles(self.paths, self._read, self.failures.append, lambda: self.now_s)
        self.readings = 0

    def write(self, *letters: str) -> None:
        for path, letter in zip(self.paths, letters * 2, strict=False):
            path.with_name("new").write_text(letter)
            path.with_name("new").replace(path)

    def refreshed(self) -> tuple[bool, str, int]:
        """Whether a refresh gave a new value, the value then, and how often the files were read for it."""
        before = self.readings
        return self.files.refresh(), self.files.value, self.readings - before

    def _read(self) -> str:
        self.readings += 1
        first, second = (path.read_text() for path in self.paths)
        if first != second:
            raise AggregatorError(f"{first} is not {second}")
        return first


def test_files_are_read_again_when_one_changes_and_not_else(tmp_path: Path) -> None:
    world = Reloaded(tmp_path)
    assert world.refreshed() == (False, "x", 0)
    world.write("y")
    assert world.refreshed() == (True, "y", 1)
    assert world.refreshed() == (False, "y", 0)
    world.paths[0].chmod(0o600 if mode(world.paths[0]) != 0o600 else 0o640)
    assert world.refreshed() == (True, "y", 1), "its mode may be what is wrong with it"


def test_files_that_are_wrong_leave_the_last_value_and_are_read_again_when_they_change(tmp_path: Path) -> None:
    world = Reloaded(tmp_path)
    world.write("x", "y")
    assert world.refreshed() == (False, "x", 1)
    assert world.refreshed() == (False, "x", 0)
    assert (world.files.failure, world.failures) == ("x is not y", ["x is not y"])
    world.write("x", "z")
    assert world.refreshed() == (False, "x", 1)
    world.write("y", "y")
    assert world.refreshed() == (True, "y", 1)
    assert (world.files.failure, world.failures) == ("", ["x is not y", "x is not z"])


def test_files_that_cannot_be_read_are_tried_again_each_time_and_reported_once(tmp_path: Path) -> None:
    world = Reloaded(tmp_path)
    away = world.paths[1].replace(tmp_path / "away")
    for _ in range(3):
        assert world.refreshed() == (False, "x", 1)
    assert len(world.failures) == 1
    away.replace(world.paths[1])
    assert world.refreshed() == (True, "x", 1)
    assert world.files.failure == ""


@pytest.mark.parametrize("tick_ms", (4, 1000, 2000))
def test_a_change_in_place_within_one_tick_of_the_file_system_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tick_ms: int
) -> None:
    """Whenever it comes, by a file system whose clock has such ticks, and whatever is read between."""
    written_s, stamp = 0.0, data_dir._stamp

    def coarse(path: Path) -> data_dir._Stamp | None:
        found, tick = stamp(path), int(1000 * written_s) // tick_ms
        return None if found is None else found._replace(modified_ns=tick, changed_ns=tick)

    monkeypatch.setattr(data_dir, "_stamp", coarse)
    for began_s in (0.0, 0.0039, 0.9999, 1.9999):
        for later_s in (0.0, 0.0001, 0.5, 1.9999, 2.5, 7.0):
            written_s = began_s
            world = Reloaded(tmp_path)
            world.now_s = began_s
            world.write("y")
            assert world.refreshed()[:2] == (True, "y")
            for at in range(round(10 * later_s)):
                world.now_s = began_s + at / 10
                assert world.refreshed() == (False, "y", 0)
            world.now_s = written_s = began_s + later_s
            for path in world.paths:
                path.write_text("z")  # as long as before, and the same file
            world.now_s += 0.001
            assert world.refreshed() == (True, "z", 1), f"written {began_s} s and {later_s} s after that"


def test_files_that_stay_as_they_are_are_not_opened_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, digests = Reloaded(tmp_path), 0

    def counted(path: Path, stamp: data_dir._Stamp | None) -> bytes:
        nonlocal digests
        digests += 1
        return digest(path, stamp)

    digest = data_dir._digest
    monkeypatch.setattr(data_dir, "_digest", counted)
    for at in range(10):
        world.now_s = float(at)
        assert world.refreshed() == (False, "x", 0)
    assert digests == 2 * 3, "twice until the stamps are two seconds old, and once then"


def test_a_change_while_files_are_read_is_found(tmp_path: Path) -> None:
    world = Reloaded(tmp_path)
    world.write("y")
    honest = world._read

    def overtaken() -> str:
        value = honest()
        world.write("z")
        return value

    world.files._read = overtaken
    assert world.refreshed() == (True, "y", 1)
    world.files._read = honest
    assert world.refreshed() == (True, "z", 1)
