"""A process among strangers: connections that say nothing, an interpreter without assertions, memory that runs out."""

import asyncio
import contextlib
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hushsum_simulator.console import Console
from tests.plans import small_plan
from tests.processes import Aggregator
from tests.services import RawClient

FILES = 1024
SILENT = 1500
PLAN = small_plan(sketch={"rows": 200, "buckets": 1024})  # its noise is drawn by compiled loops


@contextmanager
def silent_connections(address: str, number: int) -> Iterator[int]:
    """Connections that never say anything; gives how many the other side has not closed at once."""
    host, port = address.rsplit(":", 1)
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(number):
            connection = stack.enter_context(socket.socket())
            connection.settimeout(20)
            with contextlib.suppress(OSError):
                connection.connect((host, int(port)))
                made.append(connection)
        yield len(made)


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process holds the attacker's sockets."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < SILENT + 512:
        pytest.skip(f"the hard limit of open files is {before[1]}, and {SILENT} connections are to be opened")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[1], 8192), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def settings_of(folder: Path, **settings: object) -> dict[str, object]:
    (folder / "plan.json").write_bytes(PLAN.bundle)
    return {"plan": str(folder / "plan.json"), "manual": True, "lease_s": 2, "stop_s": 10, **settings}


@pytest.mark.usefixtures("many_files")
async def test_silent_connections_beyond_the_files_that_may_be_open_end_nothing(tmp_path: Path) -> None:
    service = Aggregator(tmp_path, "service", settings_of(tmp_path), open_files=FILES)
    await service.start()
    address = await service.address()
    async with Console(address) as console:
        await console.status()  # connected before the others come
        with silent_connections(address, SILENT):
            await asyncio.sleep(1)
            await console.seal(early=True)
            released = await console.release()
            async with RawClient(address) as late, asyncio.timeout(120):
                assert (await late.hello(wait=True)).plan_id == PLAN.id, (
                    "places become free as handshakes run out of time"
                )
    assert released.release.size_bytes > 0
    assert await service.stop() == 0
    assert "connections limited by the open-file limit" in service.output.read_text()


async def test_nothing_is_imported_once_it_listens(tmp_path: Path) -> None:
    service = Aggregator(tmp_path, "service", settings_of(tmp_path), options=("-X", "importtime"))
    await service.start()
    address = await service.address()
    await service.said("listening")
    async with RawClient(address) as client:
        welcome = await client.hello()
        assert welcome.plan_id == PLAN.id
        await client.submit_one(PLAN.id, b"junk")
    async with Console(address) as console:
        await console.seal(early=True)
        await console.release()
        for info in await console.releases():
            await console.fetch(info)
        await console.status()
        await console.ledger()
    assert await service.stop() == 0
    lines = service.output.read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if "listening" in line)
    end = next(number for number, line in enumerate(lines) if "stopping" in line)
    assert [line for line in lines[begin:end] if line.startswith("import time:")] == []


def test_an_interpreter_that_leaves_assertions_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(PLAN.bundle)
    command = [sys.executable, "-O", "-m", "aggregator", "--plan", str(tmp_path / "plan.json"), "--data"]
    ended = subprocess.run([*command, str(tmp_path / "data")], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    starting, refusal = ended.stderr.splitlines()
    assert "starting" in starting
    assert refusal.startswith("aggregator: Python runs with -O or PYTHONOPTIMIZE")


async def test_a_process_without_memory_to_work_with_says_so_and_ends(tmp_path: Path) -> None:
    service = Aggregator(tmp_path, "service", settings_of(tmp_path, memory_max=64 * 2**20))
    await service.start()
    assert await service.ended() == 1
    text = service.output.read_text()
    assert "are in use at start, of 64 MiB allowed: give this process more memory" in text.splitlines()[-1]
    assert "Traceback" not in text
