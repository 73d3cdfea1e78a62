"""Devices, a shuffler that is killed twice, and an aggregator, each a process: every report is counted exactly once."""

import asyncio
import signal
from pathlib import Path

import numpy as np
import pytest

from edge_client import Config, EdgeClient, SystemRuntime
from hushsum import Release
from hushsum.delta import DeltaId
from hushsum.entropy import OsEntropy
from hushsum.errors import Reason
from hushsum.local.report_batch import ReportBatch
from hushsum.plan import Plan
from hushsum.signing import DirectoryKey, Role, SigningKey, toml_of
from hushsum_proto.answers import Status
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_simulator.testbed.process import free_port
from tests.aggregator.shuffler.shuffled import shuffled_plan
from tests.processes import Aggregator
from tests.services import RawClient

# Half of the lateness is for devices: on a busy machine their processes and two starts of a shuffler take long.
PLAN = shuffled_plan(2000, window={"length": "5s", "lateness": "60s"})
CONFIG = Config(backoff_first_s=0.05, backoff_longest_s=0.2, close_flush_s=0.0)
DEVICES = 4
RECORDS = 700  # of each


def keys_in(folder: Path) -> dict[str, str]:
    key = SigningKey.generate(OsEntropy())
    key.save(folder / "shuffler.pem")
    (folder / "shufflers.toml").write_text(toml_of(DirectoryKey("sh-1", Role.SHUFFLER, key.verify_key)))
    return {"shufflers": str(folder / "shufflers.toml")}


async def window_begins(plan: Plan) -> int:
    """Returns right after a window has begun, with its index."""
    clock, schedule = SystemRuntime(), plan.window
    window = schedule.index_at(clock.now_ms()) + 1
    await asyncio.sleep((schedule.start_ms(window) - clock.now_ms()) / 1000 + 0.01)
    return window


async def contribute(target: str, folder: Path, number: int, window: int, rng: np.random.Generator) -> None:
    """A device with its records, until all of them are acknowledged."""
    async with EdgeClient(
        target=target, spool=folder / f"device-{number}.spool", client_id=f"device-{number}", config=CONFIG
    ) as device:
        for part in np.array_split(rng.uniform(0, 10, (RECORDS, 2)), 5):
            await device.add(part, time=PLAN.window.start_ms(window))
        await device.flush(240)


async def published(address: str, window: int) -> Release:
    async with RawClient(address) as client:
        watching = client.catalog.WatchReleases(pb.ListReleasesRequest(first_window=window, from_first=True))
        async for info in watching:
            if info.window == window:
                break
        chunks = client.catalog.GetRelease(pb.GetReleaseRequest(kind=info.kind, window=window))
        return Release.from_bytes(b"".join([chunk.data async for chunk in chunks]))


@pytest.mark.long
@pytest.mark.slow
async def test_over_kills_of_the_shuffler_each_report_is_counted_once(tmp_path: Path, rng: np.random.Generator) -> None:
    (tmp_path / "plan.json").write_bytes(PLAN.bundle)
    shufflers = keys_in(tmp_path)
    aggregator = Aggregator(tmp_path, "aggregator", {"plan": str(tmp_path / "plan.json"), **shufflers})
    await aggregator.start()
    upstream, target = await aggregator.address(), f"127.0.0.1:{free_port()}"
    settings = {
        "role": "shuffler",
        "upstream": upstream,
        "listen": target,
        "shuffler_key": str(tmp_path / "shuffler.pem"),
    }
    shuffler = Aggregator(tmp_path, "shuffler", {**settings, **shufflers})
    try:
        await shuffler.start()
        await shuffler.listening()
        window = await window_begins(PLAN)
        devices = [asyncio.create_task(contribute(target, tmp_path, n, window, rng)) for n in range(DEVICES)]
        await asyncio.wait(devices, return_when=asyncio.FIRST_COMPLETED)
        await shuffler.stop(signal.SIGKILL)
        await shuffler.start()
        await asyncio.gather(*devices)
        await shuffler.said(f"window={window}")
        await shuffler.stop(signal.SIGKILL)
        await shuffler.start()
        release = await published(upstream, window)
        assert release.count == DEVICES * RECORDS
        assert release.shuffled
        assert release.amplified is not None
        await refuses_a_device(upstream)
        assert await shuffler.stop() == 0
        held = b"".join(path.read_bytes() for path in (tmp_path / "shuffler").iterdir())
        assert b"device-" not in held + shuffler.output.read_bytes()
    finally:
        for each in (shuffler, aggregator):
            await each.stop(signal.SIGKILL)


async def refuses_a_device(upstream: str) -> None:
    """What a device sends to the aggregator itself is worth nothing there."""
    async with RawClient(upstream) as device:
        now = (await device.hello(PLAN.id)).window
        data = ReportBatch(PLAN.id, now, DeltaId(1, 0), np.arange(1000)).pack(PLAN)
        answer = await device.submit_one(PLAN.id, data)
    assert answer.status is Status.REFUSED
    assert answer.refusal is not None
    assert answer.refusal.reason is Reason.UNSHUFFLED
