"""How long an acknowledgement takes, while the fold is stored and while it is not."""

import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.report import Row
from benchmarks.service.deltas import Deltas, plan_of
from benchmarks.service.endpoints import Endpoint, service, stream
from hushsum_proto import convert

TITLE = (
    "Acknowledgement, ms, 4 sessions of up to 100 deltas/s each, SQLite with fsync (storing: a checkpoint each 0.25 s, "
    "in which nearly every block is touched; not storing: none; medians of rounds that take turns)"
)
_SESSIONS = 4
_PAUSE_S = 0.01


def measure(*, quick: bool) -> list[Row]:
    """One row for each number of rows R."""
    return [_measure(rows, quick=quick) for rows in ((100,) if quick else (100, 1000))]


def _measure(rows: int, *, quick: bool) -> Row:
    plan, count, rounds = plan_of(rows), 50 if quick else 250, 1 if quick else 7
    deltas = Deltas(plan, plan.window.index_at(time.time_ns() // 1_000_000))
    p50: dict[str, list[float]] = {"storing": [], "not storing": []}
    p99: dict[str, list[float]] = {"storing": [], "not storing": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        service(plan, Path(folder) / "storing", checkpoint_s=0.25, checkpoint_entries=10**9) as storing,
        service(plan, Path(folder) / "resting", checkpoint_s=3600.0, checkpoint_entries=10**9) as resting,
    ):
        for number in range(rounds + 1):
            for name, endpoint in (("not storing", resting), ("storing", storing)):
                took = asyncio.run(_run(endpoint, plan.id, deltas, number * count, count))
                if number > 0:  # the first is not counted
                    p50[name].append(1e3 * float(np.percentile(took, 50)))
                    p99[name].append(1e3 * float(np.percentile(took, 99)))
    return {
        "R": rows,
        "p50, not storing": float(np.median(p50["not storing"])),
        "p99, not storing": float(np.median(p99["not storing"])),
        "p50, storing": float(np.median(p50["storing"])),
        "p99, storing": float(np.median(p99["storing"])),
        "p99 ratio": float(np.median(np.divide(p99["storing"], p99["not storing"]))),
    }


async def _run(endpoint: Endpoint, plan_id: bytes, deltas: Deltas, first: int, count: int) -> list[float]:
    async def session(number: int) -> list[float]:
        requests = [convert.submission_to_wire(plan_id, delta) for delta in deltas.packed(number, first, count)]
        return await stream(endpoint.address, f"client-{number}", requests, _PAUSE_S)

    return [took for some in await asyncio.gather(*map(session, range(_SESSIONS))) for took in some]
