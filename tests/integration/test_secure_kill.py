"""Devices of a cohort are killed at chosen steps: the sum is exactly that of whoever is in it, or there is none."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_client import Config, EdgeClient
from hushsum import Release, Sketch
from hushsum_simulator.console import Console
from hushsum_simulator.plans import central_twin
from tests.integration.secure_device import SURVIVORS
from tests.plans import small_plan
from tests.processes import ROOT, Aggregator

MEMBERS = 10
# ε so large that every client's share of the noise is 0, but for one in 10^20: the sum is then to be exactly right.
PLAN = small_plan(
    sketch={"rows": 4, "buckets": 32},
    privacy={
        "mode": "secure",
        "epsilon": 1000,
        "total_epsilon": 5000,
        "total_delta": "0.000000001",
        "secure": {"cohort": MEMBERS, "dropout": "0.3", "corrupt": "0.1", "cohort_wait": "5m"},
    },
    window={"length": "3650d"},
)
LAST_WORDS_S = 300.0  # a cohort's processes start at the same time
PLAIN = {"HUSHSUM_KERNELS": "plain"}  # a handful of records each: nothing to compile for


class Device:
    """A device in a process of its own, which keeps its spool when it is killed."""

    def __init__(self, folder: Path, number: int, spool: Path | None = None) -> None:
        self.client_id = f"device-{number}"
        self.records = np.random.default_rng([11, number]).uniform(0, 10, (3 + number, 2))
        self.steps: list[str] = []
        self.spool = spool or folder / f"{self.client_id}.spool"
        self._errors = self.spool.with_suffix(".log")
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, target: str, *, halt: str = "", again: bool = False) -> None:
        records = "" if again else json.dumps(self.records.tolist())
        with self._errors.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.integration.secure_device"),
                *(target, str(self.spool), self.client_id, records, halt),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}", **PLAIN},
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )

    async def killed_at(self, step: str) -> None:
        """Waits until it says that it is there, and kills it."""
        async with asyncio.timeout(LAST_WORDS_S):
            while (line := await self._line()) != step:
                self.steps.append(line)
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def last_words(self) -> dict[str, int]:
        """What it knows of its submissions when it ends by itself."""
        async with asyncio.timeout(LAST_WORDS_S):
            while not (line := await self._line()).startswith("{"):
                self.steps.append(line)
        told: dict[str, int] = json.loads(line)
        return told

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            pytest.fail(f"{self.client_id} has ended after {self.steps}: {self._errors.read_text()}")
        return line.decode().strip()


@asynccontextmanager
async def cohort(folder: Path, halts: Mapping[int, str]) -> AsyncIterator[tuple[str, list[Device]]]:
    """The service, and a cohort's devices: those that are to be killed are, each at its step."""
    (folder / "plan.json").write_bytes(PLAN.bundle)
    aggregator = Aggregator(folder, "service", {"plan": str(folder / "plan.json"), "manual": True})
    devices = [Device(folder, number) for number in range(MEMBERS)]
    await aggregator.start()
    try:
        target = await aggregator.address()
        await asyncio.gather(*(device.start(target, halt=halts.get(at, "")) for at, device in enumerate(devices)))
        await asyncio.gather(*(devices[at].killed_at(step) for at, step in halts.items()))
        yield target, devices
    finally:
        await asyncio.gather(*(device.kill() for device in devices))
        await aggregator.stop(signal.SIGKILL)


async def told_again(device: Device, target: str) -> dict[str, int]:
    """What a device knows after it was started again with the same spool."""
    device.steps.clear()
    await device.start(target, again=True)
    return await device.last_words()


async def released(target: str) -> Release:
    async with Console(target) as console:
        await console.seal(early=True)
        await console.release()
        (info,) = await console.releases()
        return await console.fetch(info)


def counters_of(devices: list[Device]) -> Any:
    """The exact counters of these devices' records."""
    sketch = Sketch(central_twin(PLAN))
    for device in devices:
        sketch.add(device.records)
    return sketch.counters


SENT = {"spent": 1, "counted": 1, "lost": 0}
LOST = {"spent": 1, "counted": 0, "lost": 1}
NONE = {"spent": 0, "counted": 0, "lost": 0}


@pytest.mark.long
@pytest.mark.slow
async def test_devices_killed_before_in_and_after_their_vector_are_out_lost_and_counted(tmp_path: Path) -> None:
    halts = {0: "opened", 1: "sent", 2: SURVIVORS}
    async with cohort(tmp_path, halts) as (target, devices):
        stayed = devices[len(halts) :]
        assert await asyncio.gather(*(device.last_words() for device in stayed)) == [SENT] * len(stayed)
        # The first was killed before anything was spent: the others began again, and the round of all had to end.
        assert all(device.steps.count("advertised") == 2 for device in stayed)
        again = await asyncio.gather(*(told_again(device, target) for device in (devices[1], devices[2])))
        assert again == [LOST, SENT]
        assert [device.steps for device in (devices[1], devices[2])] == [[], []], (
            "a spent window is never entered again"
        )
        assert await told_again(devices[0], target) == NONE
        release = await released(target)
    assert (release.submissions, release.cohorts) == (MEMBERS - 2, 1)
    assert np.array_equal(release.counters, counters_of(devices[2:]))


@pytest.mark.long
@pytest.mark.slow
async def test_too_few_survivors_end_the_round_and_nobody_submits_the_window_again(tmp_path: Path) -> None:
    killed = range(6, MEMBERS)  # one more than a round may lose, and the last in the order of uploads
    async with cohort(tmp_path, dict.fromkeys(killed, "sent")) as (target, devices):
        assert await asyncio.gather(*(device.last_words() for device in devices[:6])) == [LOST] * 6
        again = [devices[0], devices[9]]
        assert await asyncio.gather(*(told_again(device, target) for device in again)) == [LOST] * 2
        assert not any(device.steps for device in again)
        release = await released(target)
    assert (release.submissions, release.cohorts) == (0, 0)
    assert not release.counters.any()


@pytest.mark.long
@pytest.mark.slow
async def test_of_a_device_and_a_copy_of_its_spool_one_vector_is_in_a_sum_also_after_the_service_was_killed(
    tmp_path: Path,
) -> None:
    (tmp_path / "plan.json").write_bytes(PLAN.bundle)
    aggregator = Aggregator(tmp_path, "service", {"plan": str(tmp_path / "plan.json"), "manual": True})
    devices = [Device(tmp_path, number) for number in range(2 * MEMBERS - 1)]
    copies = [Device(tmp_path, 0, tmp_path / f"copy-{number}.spool") for number in range(2)]
    await aggregator.start()
    try:
        target = await aggregator.address()
        config = Config(close_flush_s=0.0)
        async with EdgeClient(target, spool=devices[0].spool, client_id="device-0", config=config) as client:
            await client.add(devices[0].records)
        for copy in copies:  # with records that wait, and a window that is not spent
            shutil.copy(devices[0].spool, copy.spool)
        at_once = [*devices[:MEMBERS], copies[0]]
        await asyncio.gather(*(device.start(target) for device in at_once))
        told = await asyncio.gather(*(device.last_words() for device in at_once))
        assert told[1:-1] == [SENT] * (MEMBERS - 1)
        assert sorted((told[0]["counted"], told[-1]["counted"])) == [0, 1]
        assert told[0]["spent"] + told[-1]["spent"] == 1
        await aggregator.stop(signal.SIGKILL)
        await aggregator.start()
        target = await aggregator.address()
        later = [*devices[MEMBERS:], copies[1]]  # as many as a cohort
        await asyncio.gather(*(device.start(target) for device in later))
        assert await asyncio.gather(*(device.last_words() for device in later)) == [*[SENT] * (MEMBERS - 1), NONE]
        assert "sent" not in copies[1].steps
        release = await released(target)
    finally:
        await asyncio.gather(*(device.kill() for device in (*devices, *copies)))
        await aggregator.stop(signal.SIGKILL)
    assert (release.submissions, release.cohorts) == (2 * MEMBERS - 1, 2)
    # Device 0 and its copies have added its records twice.
    assert np.array_equal(release.counters, counters_of([*devices, devices[0]]))
