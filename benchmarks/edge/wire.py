"""What goes over the wire: bytes of a delta beside its entropy, and round trips of a visit."""

import asyncio
import math
import tempfile
import time
from pathlib import Path

import grpc.aio

from benchmarks.report import Row
from benchmarks.service.deltas import WIDTH, Deltas, plan_of
from benchmarks.service.endpoints import bare, service
from edge_client import Config, EdgeClient, Policy
from hushsum.plan import Plan
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs
from hushsum_simulator.testbed.tcp_proxy import TcpProxy

TITLE = (
    "Bytes and round trips after the handshakes of TCP and TLS, W = 1024 (entropy: R log2 W bits of one record; "
    "visit: a client with its plan connects, sends a delta and hears its answer; further: the next delta of the same "
    "connection; bare: one stream of gRPC on a new connection that carries as many bytes; round trips of a visit: its "
    "seconds over a link of 0.2 s there and back, by 0.2, and gRPC's wait for the settings of HTTP/2 is one of them)"
)
_LINK_S = 0.1  # one way
_FURTHER = 20
_RECORD = [1.5, 2.5]


def measure(*, quick: bool) -> list[Row]:
    """One row for each R."""
    return [asyncio.run(_measure(rows)) for rows in ((100,) if quick else (100, 1000))]


async def _measure(rows: int) -> Row:
    plan = plan_of(rows)
    delta = Deltas(plan, plan.window.index_at(time.time_ns() // 1_000_000)).packed(1, 0, 1)[0]
    entropy = rows * math.log2(WIDTH) / 8
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with service(plan, folder / "service") as ours:
            visit, further = await _visit(ours.address, folder / "spool.db")
        with bare(folder / "bare") as least:
            bare_visit, bare_further = await _bare_visit(least.address, plan, delta)
    return {
        "R": rows,
        "delta, bytes": len(delta),
        "entropy, bytes": entropy,
        "delta/entropy": len(delta) / entropy,
        "further, sent": further["sent"] / _FURTHER,
        "further, bare": bare_further["sent"] / _FURTHER,
        "sent/entropy": further["sent"] / _FURTHER / entropy,
        "further, received": further["received"] / _FURTHER,
        "further, round trips": further["turns"] / _FURTHER,
        "visit, sent": visit["sent"],
        "visit, received": visit["received"],
        "visit, round trips": visit["round trips"],
        "bare visit, sent": bare_visit["sent"],
        "bare visit, round trips": bare_visit["round trips"],
    }


async def _visit(address: str, spool: Path) -> tuple[dict[str, float], dict[str, float]]:
    policy, config = Policy(max_epsilon=1.0), Config(close_flush_s=0)
    async with EdgeClient(address, spool=spool, policy=policy) as client:
        await client.add(_RECORD)
        await client.flush(60)
    async with TcpProxy(address) as proxy:
        # What waits in the spool when it starts goes with the first connection.
        async with EdgeClient("127.0.0.1:1", spool=spool, policy=policy, config=config) as offline:
            await offline.add(_RECORD)
        proxy.delay(_LINK_S)
        began = time.perf_counter()
        async with EdgeClient(proxy.address, spool=spool, policy=policy) as client:
            await client.flush(60)
            visit = _counted(proxy, time.perf_counter() - began)
            proxy.delay(0.0)
            for _ in range(_FURTHER):
                await client.add(_RECORD)
                await client.flush(60)
            after = _counted(proxy)
    return visit, {name: after[name] - visit[name] for name in visit}


async def _bare_visit(address: str, plan: Plan, delta: bytes) -> tuple[dict[str, float], dict[str, float]]:
    request = pb.SubmitRequest(plan_id=plan.id, delta=delta)
    async with TcpProxy(address) as proxy, grpc.aio.insecure_channel(proxy.address) as channel:
        proxy.delay(_LINK_S)
        began = time.perf_counter()
        call = stubs.CollectionStub(channel).Submit()
        await call.write(request)
        await call.read()
        visit = _counted(proxy, time.perf_counter() - began)
        proxy.delay(0.0)
        for _ in range(_FURTHER):
            await call.write(request)
            await call.read()
        after = _counted(proxy)
    return visit, {name: after[name] - visit[name] for name in visit}


def _counted(proxy: TcpProxy, seconds: float = 0.0) -> dict[str, float]:
    return {
        "sent": proxy.sent,
        "received": proxy.received,
        "turns": proxy.turns,
        "round trips": seconds / (2 * _LINK_S),
    }
