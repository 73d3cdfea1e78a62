"""gRPC streaming with durable acknowledgements, beside a bare grpc.aio stream of the same messages."""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.report import Row
from benchmarks.service.deltas import Deltas, plan_of
from benchmarks.service.endpoints import Endpoint, bare, service, stream
from hushsum_proto import convert
from hushsum_proto.v1 import wire_pb2 as pb

TITLE = (
    "gRPC streaming, a delta of one record a message, W = 1024; SQLite with fsync (bare: a grpc.aio stream answering "
    "at once; the same client for both, in a process of its own; us: CPU of a delta)"
)


def measure(*, quick: bool) -> list[Row]:
    """One row for each number of rows R and of sessions."""
    cases = ((100, 1), (100, 8)) if quick else ((100, 1), (100, 8), (100, 32), (1000, 8))
    return [_measure(rows, sessions, quick=quick) for rows, sessions in cases]


def _measure(rows: int, sessions: int, *, quick: bool) -> Row:
    plan, count, rounds = plan_of(rows), 400 if quick else 4000 // sessions, 1 if quick else 3
    window = plan.window.index_at(time.time_ns() // 1_000_000)
    deltas = Deltas(plan, window)
    rates: dict[str, list[float]] = {"bare": [], "ours": []}
    server_us: dict[str, list[float]] = {"bare": [], "ours": []}
    client_us: dict[str, list[float]] = {"bare": [], "ours": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        bare(Path(folder) / "bare") as other,
        service(plan, Path(folder) / "ours") as ours,
    ):
        began_bytes = 0
        for number in range(rounds + 1):
            each = [_requests(plan.id, deltas.packed(session, number * count, count)) for session in range(sessions)]
            for name, endpoint in (("bare", other), ("ours", ours)):
                seconds, client_s, server_s = _run(endpoint, each)
                if number > 0:  # the first is not counted
                    total = sessions * count
                    rates[name].append(total / seconds)
                    client_us[name].append(1e6 * client_s / total)
                    server_us[name].append(1e6 * server_s / total)
            began_bytes = began_bytes or ours.memory()
        grown = ours.memory() - began_bytes
    return {
        "R": rows,
        "bytes a delta": len(deltas.packed(0, 0, 1)[0]),
        "sessions": sessions,
        "bare, deltas/s": statistics.median(rates["bare"]),
        "ours, deltas/s": statistics.median(rates["ours"]),
        "ours / bare": statistics.median(own / bare for own, bare in zip(rates["ours"], rates["bare"], strict=True)),
        "client, us": statistics.median(client_us["ours"]),
        "bare server, us": statistics.median(server_us["bare"]),
        "our server, us": statistics.median(server_us["ours"]),
        "grown, MB": grown / 1e6,
    }


def _run(endpoint: Endpoint, each: list[list[pb.SubmitRequest]]) -> tuple[float, float, float]:
    """Seconds by the clock, of this process's CPU, of the server's."""

    async def run() -> None:
        await asyncio.gather(*(stream(endpoint.address, f"client-{n}", some) for n, some in enumerate(each)))

    began, client, server = time.perf_counter(), time.process_time(), endpoint.cpu_s()
    asyncio.run(run())
    return time.perf_counter() - began, time.process_time() - client, endpoint.cpu_s() - server


def _requests(plan_id: bytes, deltas: list[bytes]) -> list[pb.SubmitRequest]:
    return [convert.submission_to_wire(plan_id, delta) for delta in deltas]
