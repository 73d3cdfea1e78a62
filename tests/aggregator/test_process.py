"""What a process gets from its operating system: room for files beside connections, a bound on memory, no surprises."""

import asyncio
import errno
import mmap
import os
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from aggregator import process
from aggregator.config import Config
from aggregator.errors import ConfigError, LogUnavailableError, MemoryLimitError, OpenFilesError, StoreUnavailableError
from aggregator.log.sqlite import LOG_FILE
from aggregator.observability.metrics import Metrics
from aggregator.runtime import SystemRuntime, TaskSupervisor
from aggregator.store.schema import STORE_FILE
from hushsum.compiled import VARIABLE
from tests.plans import small_plan
from tests.processes import ROOT
from tests.services import RawClient, config_of, service_of

MIB = 2**20


def with_file_limit(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))


@pytest.mark.parametrize(
    ("limit", "wanted", "store", "most"),
    (
        (1024, 3072, "sqlite", 1024 - 192),
        (1 << 20, 3072, "sqlite", 3072),
        (1024, 3072, "postgresql", 1024 - 192 - 8),
        (256, 3072, "sqlite", 64),
        (resource.RLIM_INFINITY, 3072, "sqlite", 3072),
    ),
)
def test_connections_leave_room_for_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, wanted: int, store: str, most: int
) -> None:
    config = config_of(tmp_path, small_plan())
    if store == "postgresql":
        kafka = {"log": "kafka", "kafka_bootstrap": "127.0.0.1:1", "postgres_dsn": "postgresql://u@127.0.0.1/n"}
        config = Config.of(plan="plan.json", store="postgresql", **kafka)
    with_file_limit(monkeypatch, limit)
    with capture_logs() as logs:
        assert process.connections_max(wanted, config) == most
    assert [line["event"] for line in logs] == ["connections limited by the open-file limit"] * (most < wanted)


def test_a_limit_of_open_files_that_is_too_low_is_named() -> None:
    """In a process of its own: a hard limit that was lowered cannot be raised again."""
    command = 'ulimit -n 128; exec "$0" -c "from aggregator import process; process.raise_file_limit()"'
    ended = subprocess.run(
        ["sh", "-c", command, sys.executable], capture_output=True, text=True, cwd=ROOT, check=False, timeout=120
    )
    assert ended.returncode == 1
    assert "limit of open files: 128, expected at least 256 (ulimit -n)" in ended.stderr


@pytest.mark.parametrize("code", (errno.EMFILE, errno.ENFILE))
async def test_a_blocking_call_that_gets_no_file_may_be_tried_again(code: int) -> None:
    def full() -> None:
        raise OSError(code, "too many open files")

    with pytest.raises(OpenFilesError, match="too many open files") as caught:
        await SystemRuntime().blocking(full)
    assert isinstance(caught.value, StoreUnavailableError), "whatever waits for a store that is away waits for this"


async def test_another_error_of_a_blocking_call_stays_what_it_is() -> None:
    def gone() -> None:
        raise FileNotFoundError(errno.ENOENT, "no such file")

    with pytest.raises(FileNotFoundError):
        await SystemRuntime().blocking(gone)


@pytest.mark.parametrize(("kind", "error"), ((STORE_FILE, StoreUnavailableError), (LOG_FILE, LogUnavailableError)))
def test_a_side_file_that_cannot_be_opened_now_passes(kind: object, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect(tmp_path / "no folder" / "file")
    assert caught.value.sqlite_errorcode == sqlite3.SQLITE_CANTOPEN
    assert isinstance(kind.translated(caught.value), error)  # type: ignore[attr-defined]  # both are kinds of files


async def test_a_task_that_gets_no_file_on_the_event_loop_is_tried_again() -> None:
    from contextlib import AsyncExitStack

    tries = 0

    async def needs_a_file() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(errno.EMFILE, "too many open files")
        await asyncio.Event().wait()

    class Quick(SystemRuntime):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(0)

    async with AsyncExitStack() as stack:
        supervision = TaskSupervisor(stack, Quick(), Metrics().retried)
        supervision.forever("imports", needs_a_file)
        async with asyncio.timeout(120):
            while tries < 3:  # noqa: ASYNC110  nobody else changes it
                await asyncio.sleep(0)


async def test_more_memory_than_may_be_used_ends_the_watch_with_both_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = iter([10 * MIB, None, 99 * MIB, 101 * MIB])

    class Quick(SystemRuntime):
        async def sleep(self, seconds: float) -> None:
            assert seconds == process.MEMORY_CHECK_S

    def held() -> int:
        size = next(used)
        if size is None:
            raise OSError(errno.EMFILE, "too many open files")
        return size

    monkeypatch.setattr(process, "memory_used", held)
    with pytest.raises(MemoryLimitError, match="101 MiB of memory are in use, expected at most 100 MiB"):
        await process.watch_memory(100 * MIB, Quick())


def test_memory_that_is_in_use_is_read_from_the_system() -> None:
    with mmap.mmap(-1, 64 * MIB) as block:  # of the system's, not of what this process has freed
        before = process.memory_used()
        for at in range(0, len(block), 4096):
            block[at] = 1
        assert process.memory_used() - before > 48 * MIB


@pytest.mark.parametrize(
    ("written", "limit"), (("1000000000\n", 900_000_000), ("max\n", None), (f"{2**63 - 4096}\n", None), (None, None))
)
def test_a_container_stops_before_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str | None, limit: int | None
) -> None:
    file = tmp_path / "memory.max"
    if written is not None:
        file.write_text(written)
    monkeypatch.setattr(process, "_CGROUPS", (file,))
    config = config_of(tmp_path, small_plan())
    assert process.memory_limit(config) == limit
    assert process.memory_limit(config.model_copy(update={"memory_max": 123 * MIB})) == 123 * MIB


_LOAD = """
import sys
from pathlib import Path
{before}
from aggregator import process
from tests.plans import small_plan
from tests.processes import ROOT
from tests.services import config_of
process.import_modules(config_of(Path({folder!r}), small_plan(), role="all"))
analysts = {{"dp_accounting", "matplotlib", "pandas", "sklearn"}} & {{name.partition(".")[0] for name in sys.modules}}
assert not analysts, f"loaded, but only analysts use them: {{analysts}}"
assert "hushsum.estimators" not in sys.modules
"""
_WITHOUT_EXTRAS = """
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "aiokafka", "asyncpg"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


@pytest.mark.parametrize(("before", "variable"), (("", "auto"), (_WITHOUT_EXTRAS, "plain")), ids=("all", "plain"))
def test_every_module_of_a_role_on_files_can_be_loaded_with_and_without_the_packages_of_extras(
    tmp_path: Path, before: str, variable: str
) -> None:
    code = _LOAD.format(before=before, folder=str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), VARIABLE: variable}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_limit_that_leaves_no_memory_to_work_with_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, small_plan(), memory_max=100 * MIB)
    monkeypatch.setattr(process, "memory_used", lambda: 120 * MIB)
    with pytest.raises(ConfigError, match="memory_max: 120 MiB are in use at start, of 100 MiB allowed"):
        process.check_memory(config)
    monkeypatch.setattr(process, "memory_used", lambda: 90 * MIB)
    with capture_logs() as logs:
        process.check_memory(config)
    assert [line["event"] for line in logs] == ["memory is low"]


async def test_a_service_at_its_limit_of_memory_cannot_go_on_and_drains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MEMORY_CHECK_S", 0.01)
    used = [0]
    monkeypatch.setattr(process, "memory_used", lambda: used[0])
    async with service_of(config_of(tmp_path, small_plan(), memory_max=100 * MIB)) as service:
        async with RawClient(service.grpc) as client:
            assert (await client.hello()).plan_id
        used[0] = 101 * MIB
        async with asyncio.timeout(120):
            with pytest.raises(MemoryLimitError):
                await service.failed()
