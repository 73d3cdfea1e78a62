"""Upgrades of older files by real processes: killed in the middle, at the same time as others, and gone on with."""

import os
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from aggregator import sqlite
from aggregator.errors import StoreError
from aggregator.release.receipts import RECEIPTS_FORMAT
from aggregator.store.schema import STORE_FILE, STORE_FORMAT
from hushsum.privacy.events import ClaimedEvent
from hushsum_simulator.console import Console
from tests.processes import Aggregator
from tests.vectors.generate_files import ARCHIVE, FILES, PLAN

ROOT = Path(__file__).resolve().parents[2]
STORES = Path(__file__).parent.parent / "vectors" / "store"
OLDER = [1, 2, 3, 4, 5, 6]
POINTS = 20


def of_format(folder: Path, version: int) -> Path:
    """A store that a service of this format has really left behind."""
    with zipfile.ZipFile(ARCHIVE if version == 1 else STORES / f"format-{version}.zip") as archive:
        archive.extract("store.db", folder)
    with closing(sqlite3.connect(folder / "store.db")) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (version,)
    return folder / "store.db"


def contents(path: Path, *, writing: bool = False) -> tuple[int, frozenset[str]]:
    """Version, and all tables with all rows: what a reader sees, or a service after its start."""
    with closing((STORE_FILE.open_writing if writing else STORE_FILE.open_reading)(path)) as file:
        return file.execute("PRAGMA user_version").fetchone()[0], frozenset(file.iterdump())


def rows(path: Path, tables: Mapping[str, tuple[str, ...]]) -> dict[str, list[tuple[object, ...]]]:
    """What these columns of these tables hold."""
    with closing(STORE_FILE.open_reading(path)) as file:
        return {
            table: sorted(file.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall(), key=repr)
            for table, columns in tables.items()
        }


def columns(path: Path) -> dict[str, tuple[str, ...]]:
    """The columns of each table."""
    with closing(STORE_FILE.open_reading(path)) as file:
        tables = [row[0] for row in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            table: tuple(row[0] for row in file.execute(f"SELECT name FROM pragma_table_info('{table}')"))
            for table in tables
        }


@contextmanager
def victim(*arguments: object) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.aggregator.upgrade_victim", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("version", OLDER)
def test_an_upgrade_keeps_every_row_and_every_value(tmp_path: Path, version: int) -> None:
    path = of_format(tmp_path, version)
    known = columns(path)
    before = rows(path, known)
    assert len(before["windows"]) >= 2
    STORE_FILE.open_writing(path).close()
    assert rows(path, known) == before


@pytest.mark.long
@pytest.mark.parametrize("version", OLDER)
def test_whenever_an_upgrade_is_killed_the_file_is_the_old_one_or_the_new_one(tmp_path: Path, version: int) -> None:
    path = of_format(tmp_path, version)
    old = contents(path)
    with victim("kill", path, POINTS) as process:
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0
    assert int(out) > 10 * POINTS, "the points are far from each other"
    new = contents(Path(f"{path}.whole"))
    assert new[0] == STORE_FORMAT
    copies = [Path(f"{path}.{point}") for point in range(POINTS)]
    found = [contents(copy) for copy in copies]
    assert set(found) <= {old, new}
    assert old in found, "no process was killed before its commit"
    for copy in copies:
        assert contents(copy, writing=True) == new, "and the next start makes it the new one"


@pytest.mark.parametrize("version", OLDER)
def test_wherever_the_disk_stopped_writing_the_commit_the_file_is_the_old_one_or_the_new_one(
    tmp_path: Path, version: int
) -> None:
    path = of_format(tmp_path, version)
    old = contents(path)
    before = path.read_bytes()
    with closing(STORE_FILE.open_writing(path)):
        log = path.with_name("store.db-wal").read_bytes()
    new = contents(path)
    found = []
    for share in range(POINTS + 1):
        torn = tmp_path / f"torn-{share}.db"
        torn.write_bytes(before)
        torn.with_name(f"{torn.name}-wal").write_bytes(log[: len(log) * share // POINTS])
        found.append(contents(torn))
        assert contents(torn, writing=True) == new
    assert set(found) == {old, new}


def test_who_starts_during_an_upgrade_waits_for_its_end_or_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = of_format(tmp_path, 2)
    with victim("hold", path) as process, ThreadPoolExecutor(1) as thread:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with monkeypatch.context() as patched:
            patched.setattr(sqlite, "_BUSY_MS", 10)
            with pytest.raises(StoreError, match=r"store .*store\.db cannot be opened: database is locked"):
                STORE_FILE.open_writing(path)
        assert contents(path)[0] == 2, "whoever only reads sees the older one until then"
        second = thread.submit(contents, path, writing=True)
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.wait(120) == 0
        assert second.result(120) == contents(Path(f"{path}.whole"))


@pytest.mark.long
async def test_a_start_on_an_older_folder_serves_releases_keeps_its_ledger_and_is_no_use_to_older_versions(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "service"
    folder.mkdir(mode=0o700)
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(folder, FILES)
    (tmp_path / "plan.json").write_bytes(PLAN.bundle)
    settings = {"plan": str(tmp_path / "plan.json"), "partitions": 2, "manual": True}
    service = Aggregator(tmp_path, "service", settings)
    await service.start()
    async with Console(await service.address()) as console:
        before = await console.ledger()
        (old,) = before.spends
        assert isinstance(old.events[0], ClaimedEvent), "as version 1 kept it"
        assert old.window is not None
        second = Aggregator(tmp_path, "service", settings)
        await second.start()
        assert await second.ended() == 1
        await second.said("is in use by another process")

        assert await console.seal(early=True) == old.window + 1
        assert (await console.release()).release.window == old.window + 1
        assert [info.window for info in await console.releases()] == [old.window, old.window + 1]
        for info in await console.releases():
            assert (await console.fetch(info)).accounted
        after = await console.ledger()
        assert after.spends[1:] == (old,)
        assert (after.spends[0].window, after.spends_total) == (old.window + 1, 2)
    assert await service.stop() == 0

    store = folder / "store.db"
    assert contents(store)[0] == STORE_FORMAT
    kept = (folder / "receipts.jsonl").read_text("utf-8").splitlines()
    formats = (1, RECEIPTS_FORMAT, RECEIPTS_FORMAT)  # the header comes after what there was
    assert [f'"format":{number}' in line for number, line in zip(formats, kept, strict=True)] == [True] * 3

    with closing(sqlite3.connect(store)) as file:
        file.execute(f"PRAGMA user_version={STORE_FORMAT + 1}")  # as the next version will leave it
    await service.start()
    assert await service.ended() == 1
    await service.said(f"has format {STORE_FORMAT + 1}; this version reads up to {STORE_FORMAT}: update the service")
    assert contents_are(store, STORE_FORMAT + 1), "and it is left alone"


def contents_are(path: Path, version: int) -> bool:
    with closing(sqlite3.connect(path)) as file:
        return bool(file.execute("PRAGMA user_version").fetchone() == (version,))
