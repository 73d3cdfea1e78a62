"""After an outage: devices whose spools have filled up come back, all at the moment at which the service listens."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from benchmarks.fleet.site import Site
from benchmarks.report import Row
from benchmarks.service.deltas import plan_of
from benchmarks.service.endpoints import Endpoint
from edge_client import Config, EdgeClient, Policy
from hushsum_proto.credentials import Credentials
from hushsum_simulator.testbed.process import free_port

TITLE = (
    "Devices (edge clients with their spools, TLS and a token, all in one process) that come back at once after an "
    "outage, with three deltas each (R = 100): seconds from the moment at which the service listens"
)
_AT_ONCE = 32
_WAITING = 3
_FLUSH_S = 300.0
_STORED_S = 1.0
_RECORD = [1.5, 2.5]


def measure(*, quick: bool) -> list[Row]:
    """One row for each number of devices."""
    return [asyncio.run(_measure(count)) for count in ((50,) if quick else (100, 1000))]


async def _measure(count: int) -> Row:
    with tempfile.TemporaryDirectory() as name:
        site = Site.made(Path(name), plan_of(100), count)
        for number, token in enumerate(site.tokens):
            path = site.folder / f"{number}.token"
            path.touch(0o600)
            path.write_text(token)
        page = f"127.0.0.1:{free_port()}"
        with site.service(metrics_listen=page, checkpoint_s=0.1) as service:

            async def come_first(number: int) -> None:
                async with _client(site, service.address, number) as client:
                    await client.add(_RECORD)
                    await client.flush(_FLUSH_S)

            async def gather(number: int) -> None:
                async with _client(site, "127.0.0.1:1", number) as client:
                    for _ in range(_WAITING):
                        await client.add(_RECORD)

            await _for_each(count, come_first)
            await asyncio.sleep(_STORED_S)  # so that what is counted from here on is of the return alone
            service.close()
            await _for_each(count, gather)
            service.start()
            took, client_s, server_s = await _come_back(site, service, count)
            counted = await site.until_folded(page, _WAITING * count)
    return {
        "devices": count,
        "p50, s": float(np.percentile(took, 50)),
        "p99, s": float(np.percentile(took, 99)),
        "all, s": max(took),
        "deltas": _WAITING * count,
        "counted": counted,
        "server CPU, ms a device": 1e3 * server_s / count,
        "client CPU, ms a device": 1e3 * client_s / count,
    }


def _client(site: Site, address: str, number: int) -> EdgeClient:
    credentials = Credentials(ca=site.folder / "ca.pem", token_file=site.folder / f"{number}.token")
    spool, config = site.folder / f"{number}.db", Config(close_flush_s=0, own_connection=True)
    return EdgeClient(address, spool=spool, policy=Policy(max_epsilon=1.0), config=config, credentials=credentials)


async def _for_each(count: int, work: Callable[[int], Awaitable[None]]) -> None:
    waiting = list(range(count))

    async def worker() -> None:
        while waiting:
            await work(waiting.pop())

    await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))


async def _come_back(site: Site, service: Endpoint, count: int) -> tuple[list[float], float, float]:
    """Seconds until each device has all its answers; CPU seconds of this process and of the server meanwhile."""
    began, client_s, server_s = time.perf_counter(), time.process_time(), service.cpu_s()

    async def come(number: int) -> float:
        async with _client(site, service.address, number) as client:
            await client.flush(_FLUSH_S)
        return time.perf_counter() - began

    took = await asyncio.gather(*map(come, range(count)))
    return took, time.process_time() - client_s, service.cpu_s() - server_s
