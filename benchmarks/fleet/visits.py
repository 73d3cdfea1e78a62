"""Visits of devices: TLS with a token, hello, one delta, its durable answer, gone."""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.fleet.site import Site
from benchmarks.report import Row
from benchmarks.service.deltas import Deltas, plan_of
from benchmarks.service.endpoints import Endpoint
from hushsum_simulator.testbed.tcp_proxy import TcpProxy

TITLE = (
    "Visits (TLS, token, hello, one delta of R rows, its durable answer, gone), 16 at once; a second and a core: by "
    "the server's own CPU; bare: a grpc.aio server with TLS that greets and answers at once; the same client for both; "
    "bytes: of TCP's payload in one visit to ours"
)
_AT_ONCE = 16
_DEVICES = 200


def measure(*, quick: bool) -> list[Row]:
    """One row for each R."""
    return [_measure(rows, quick=quick) for rows in ((100,) if quick else (100, 1000))]


def _measure(rows: int, *, quick: bool) -> Row:
    plan, count, rounds = plan_of(rows), 60 if quick else 600, 1 if quick else 5
    deltas = Deltas(plan, plan.window.index_at(time.time_ns() // 1_000_000))
    rates: dict[str, list[float]] = {"bare": [], "ours": []}
    server_us: dict[str, list[float]] = {"bare": [], "ours": []}
    p50: dict[str, list[float]] = {"bare": [], "ours": []}
    client_us: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        site = Site.made(Path(name), plan, _DEVICES)
        with site.bare() as other, site.service() as ours:
            sent, received = asyncio.run(network_bytes(site, ours.address, deltas.packed(_DEVICES, 0, 1)[0]))
            for number in range(rounds + 1):
                for which, endpoint in (("bare", other), ("ours", ours)):
                    packed = [deltas.packed(n, number, 1)[0] for n in range(count)]
                    took, seconds, client_s, server_s = _run(site, endpoint, packed)
                    if number > 0:  # the first is not counted
                        rates[which].append(count / seconds)
                        server_us[which].append(1e6 * server_s / count)
                        p50[which].append(1e3 * statistics.median(took))
                        client_us.append(1e6 * client_s / count)
    bare_us, our_us = statistics.median(server_us["bare"]), statistics.median(server_us["ours"])
    return {
        "R": rows,
        "bare, visits/s": statistics.median(rates["bare"]),
        "ours, visits/s": statistics.median(rates["ours"]),
        "ours / bare": statistics.median(own / bare for own, bare in zip(rates["ours"], rates["bare"], strict=True)),
        "bare, visits/s and core": 1e6 / bare_us,
        "ours, visits/s and core": 1e6 / our_us,
        "ours / bare, a core": bare_us / our_us,
        "client, us": statistics.median(client_us),
        "bare, ms": statistics.median(p50["bare"]),
        "ours, ms": statistics.median(p50["ours"]),
        "sent, bytes": sent,
        "received, bytes": received,
    }


async def network_bytes(site: Site, address: str, delta: bytes) -> tuple[int, int]:
    """Bytes that a device sends and receives in one visit, TLS and gRPC included, TCP's own not."""
    async with TcpProxy(address) as proxy:
        await site.device(proxy.address, 0).visit([delta])
    return proxy.sent, proxy.received


def _run(site: Site, endpoint: Endpoint, packed: list[bytes]) -> tuple[list[float], float, float, float]:
    """How long each visit took; seconds by the clock, of this process's CPU, of the server's."""
    waiting = list(enumerate(packed))[::-1]
    took: list[float] = []

    async def visitor() -> None:
        while waiting:
            number, delta = waiting.pop()
            took.append(await site.device(endpoint.address, number % _DEVICES).visit([delta]))

    async def run() -> None:
        await asyncio.gather(*(visitor() for _ in range(_AT_ONCE)))

    began, client, server = time.perf_counter(), time.process_time(), endpoint.cpu_s()
    asyncio.run(run())
    return took, time.perf_counter() - began, time.process_time() - client, endpoint.cpu_s() - server
