"""Memory of idle sessions: devices that stay connected, each with its stream open, and send nothing."""

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.fleet.site import Site
from benchmarks.report import Row
from benchmarks.service.deltas import Deltas, plan_of
from benchmarks.service.endpoints import Endpoint

TITLE = (
    "Idle sessions, each a TLS connection of its own with an open stream that has answered one delta (grown: resident "
    "memory of the server since before the first; bare: a grpc.aio server with TLS and the same open streams)"
)
_AT_ONCE = 32
_SETTLE_S = 5.0


def measure(*, quick: bool) -> list[Row]:
    """One row for each number of sessions."""
    counts = (100,) if quick else (1_000, 10_000)
    return [_measure(count) for count in counts]


def _measure(count: int) -> Row:
    plan = plan_of(100)
    deltas = Deltas(plan, plan.window.index_at(time.time_ns() // 1_000_000))
    packed = [deltas.packed(n, 0, 1)[0] for n in range(count)]
    with tempfile.TemporaryDirectory() as name:
        site = Site.made(Path(name), plan, count)
        with site.bare() as other:
            bare_bytes, _, _ = asyncio.run(_grown(site, other, packed))
        with site.service(sessions_max=count + 100) as ours:
            our_bytes, seconds, cpu_s = asyncio.run(_grown(site, ours, packed))
    return {
        "sessions": count,
        "bare grown, MB": bare_bytes / 1e6,
        "ours grown, MB": our_bytes / 1e6,
        "ours / bare": our_bytes / bare_bytes,
        "kB a session": our_bytes / count / 1e3,
        "opened/s": count / seconds,
        "idle CPU, %": 100 * cpu_s / _SETTLE_S,
    }


async def _grown(site: Site, endpoint: Endpoint, packed: list[bytes]) -> tuple[int, float, float]:
    """Bytes that the server's memory has grown by; seconds to open all; CPU seconds of the server while they idle."""
    async with AsyncExitStack() as stack:

        async def opened(number: int, delta: bytes) -> None:
            device = site.device(endpoint.address, number)
            await device.submit(await stack.enter_async_context(device.session()), delta)

        await opened(0, packed[0])
        before, began = endpoint.memory(), time.perf_counter()
        waiting = list(enumerate(packed))[:0:-1]

        async def opener() -> None:
            while waiting:
                await opened(*waiting.pop())

        await asyncio.gather(*(opener() for _ in range(_AT_ONCE)))
        opened_s = time.perf_counter() - began
        await asyncio.sleep(_SETTLE_S)
        cpu_s = endpoint.cpu_s()
        await asyncio.sleep(_SETTLE_S)
        return endpoint.memory() - before, opened_s, endpoint.cpu_s() - cpu_s
