"""The data folder is its user's alone, whatever the mask of the process says."""

import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.data_folder import DataFolder
from aggregator.errors import ConfigError
from aggregator.journal import write_journal
from tests.plans import small_plan
from tests.services import Contributor, RawClient, config_of, service_of

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

    DataFolder.open(data).close()

    assert mode(data) == 0o700
    assert {mode(path) for path in data.iterdir()} == {0o600}
    assert "the data folder was open to others" in said.getvalue()


def test_a_folder_for_everybodys_files_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o1777)

    with pytest.raises(ConfigError, match="open to others"):
        DataFolder.open(data)

    assert stat.S_IMODE(data.stat().st_mode) == 0o1777
