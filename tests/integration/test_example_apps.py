"""The applications of examples/ as processes, while a real service is killed: each record counts once.

Each runs once before, for a first start needs the service: it fetches the plan.
"""

import asyncio
import json
import os
import signal
import sys
import urllib.request
from ast import literal_eval
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from aggregator.store.store import read_sealed
from hushsum import Sketch
from hushsum_simulator.testbed.process import free_port
from tests.integration.test_edge_client import PLAN, ROOT, Aggregator, aggregator_of

ADDED = 60


@asynccontextmanager
async def running(folder: Path, name: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "examples" / name), *arguments),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def fed(process: asyncio.subprocess.Process, lines: list[str]) -> str:
    """What a process prints that reads these lines."""
    said, _ = await asyncio.wait_for(process.communicate("".join(f"{line}\n" for line in lines).encode()), 120)
    assert process.returncode == 0
    return said.decode()


async def over_a_kill(aggregator: Aggregator, folder: Path, name: str, arguments: list[str], lines: list[str]) -> str:
    """What an application prints in its second run, during which the service is killed and started."""
    async with running(folder, name, *arguments) as process:
        await fed(process, lines)
    async with running(folder, name, *arguments) as process:
        feeding = asyncio.create_task(fed(process, lines))
        await asyncio.sleep(0.7)  # it may have begun to add or to send, or not
        await aggregator.end(signal.SIGKILL)
        await asyncio.sleep(0.3)
        await aggregator.start()
        return await feeding


async def counters_of(aggregator: Aggregator) -> Sketch:
    window = await aggregator.seal()
    sealed = read_sealed(aggregator.data / "store.db", PLAN, window)
    assert sealed is not None
    return Sketch.of_counters(PLAN, sealed.counters, sealed.counts)


def assert_same(counted: Sketch, records: list[list[int]]) -> None:
    expected = Sketch(PLAN)
    expected.add(np.array(records))
    assert np.array_equal(counted.counters, expected.counters)
    assert np.array_equal(counted.counts, expected.counts)


@pytest.mark.long
async def test_the_script_and_the_gateway_of_sensors_lose_and_double_nothing(tmp_path: Path) -> None:
    records = [[number % 9, number % 7] for number in range(ADDED)]
    (tmp_path / "spools").mkdir()
    async with aggregator_of(tmp_path, PLAN) as aggregator:
        arguments = [aggregator.target, "spool.db"]
        await over_a_kill(aggregator, tmp_path, "script.py", arguments, [f"{x},{y}" for x, y in records])
        arguments = [aggregator.target, "spools"]
        lines = [f"sensor-{n % 4} {x} {y}" for n, (x, y) in enumerate(records)]
        said = await over_a_kill(aggregator, tmp_path, "sensor_gateway.py", arguments, lines)
        assert literal_eval(said) == {f"sensor-{n}": 2 * ADDED // 4 for n in range(4)}
        assert_same(await counters_of(aggregator), 4 * records)


@pytest.mark.long
async def test_the_web_app_loses_and_doubles_nothing(tmp_path: Path) -> None:
    port = free_port()
    records = [[number % 9, number % 7] for number in range(ADDED)]

    def answer(path: str, data: bytes | None = None) -> str:
        with urllib.request.urlopen(f"http://localhost:{port}{path}", data, timeout=60) as reply:
            return str(reply.read().decode())

    async def is_served() -> bool:
        try:
            return bool(await asyncio.to_thread(answer, "/status"))
        except OSError:
            return False

    async with (
        aggregator_of(tmp_path, PLAN) as aggregator,
        running(tmp_path, "web_app.py", aggregator.target, str(port)) as web,
    ):
        while not await is_served():  # noqa: ASYNC110  another process decides
            await asyncio.sleep(0.1)
        for part in range(3):
            some = records[part * ADDED // 3 : (part + 1) * ADDED // 3]
            posts = [asyncio.to_thread(answer, "/reading", json.dumps(record).encode()) for record in some]
            assert set(await asyncio.gather(*posts)) == {"safe on disk\n"}
            if part == 0:
                await aggregator.end(signal.SIGKILL)
        await aggregator.start()
        async with asyncio.timeout(300):  # its last attempt may have been half a minute ago
            while " 0 deltas queued" not in (said := await asyncio.to_thread(answer, "/status")):  # noqa: ASYNC110  another process decides
                await asyncio.sleep(0.1)
        assert said.startswith(f"{ADDED} records, 0 deltas queued")
        web.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(web.wait(), 120) == 0
        assert_same(await counters_of(aggregator), records)


@pytest.mark.long
async def test_the_device_waits_for_a_service_that_is_killed(tmp_path: Path) -> None:
    async with aggregator_of(tmp_path, PLAN) as aggregator:
        said = await over_a_kill(aggregator, tmp_path, "device.py", [aggregator.target], [])
        assert "records=2000" in said
        assert (await counters_of(aggregator)).records == 2000
