"""A day of 100,000 devices in ten minutes: each visits once, more of them by day than by night, in 24 windows."""

import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.fleet.site import Site
from benchmarks.report import Row
from benchmarks.service.deltas import Deltas
from benchmarks.service.endpoints import Endpoint
from hushsum.plan import Plan
from hushsum_simulator.testbed.process import free_port

TITLE = (
    "A day of devices in ten minutes: each visits once (TLS, token, hello, one delta of R = 100, its answer, gone), "
    "more by day than by night; 24 windows, each released when it has ended"
)
_WINDOWS = 24
_SWING = 0.7  # of the rate of visits, around its mean


def measure(*, quick: bool) -> list[Row]:
    """One row: the whole day."""
    count, seconds = (200, 12.0) if quick else (100_000, 600.0)
    return [asyncio.run(_measure(count, seconds))]


def plan_of(seconds: float) -> Plan:
    """Windows of a 24th of the day, sealed at once: no device of the fleet is late."""
    return Plan.from_fields(
        {
            "name": "day",
            "record": {"kind": "vector", "dim": 2, "lower": [0, 0], "upper": [10, 10]},
            "sketch": {"family": "hashed", "kernel": "euclidean", "bandwidth": 1, "rows": 100, "buckets": 1024},
            "privacy": {"epsilon": 1, "total_epsilon": 1000},
            "window": {"length": f"{round(1000 * seconds / _WINDOWS)}ms", "lateness": "2s"},
        }
    )


async def _measure(count: int, seconds: float) -> Row:
    with tempfile.TemporaryDirectory() as name:
        site = await asyncio.to_thread(Site.made, Path(name), plan_of(seconds), count)
        page = f"127.0.0.1:{free_port()}"
        with site.service(manual=False, metrics_listen=page) as service:
            before_bytes, server_s = service.memory(), service.cpu_s()
            day = _Day(site, service, seconds)
            await day.pass_by(count)
            server_s = service.cpu_s() - server_s
            counted = await site.until_folded(page, len(day.took))
            after_bytes = service.memory()
    return {
        "devices": count,
        "minutes": seconds / 60,
        "answered": len(day.took),
        "counted": counted,
        "failed": day.failed,
        "p50, ms": 1e3 * float(np.percentile(day.took, 50)),
        "p99, ms": 1e3 * float(np.percentile(day.took, 99)),
        "longest, ms": 1e3 * max(day.took),
        "visits/s at the peak": (1 + _SWING) * count / seconds,
        "server CPU, %": 100 * server_s / seconds,
        "grown, MB": (after_bytes - before_bytes) / 1e6,
    }


class _Day:
    """The visits of one day, and what became of them."""

    def __init__(self, site: Site, service: Endpoint, seconds: float) -> None:
        self._site, self._service, self._seconds = site, service, seconds
        self._window = -1
        self._deltas = Deltas(site.plan, 0)
        self.took: list[float] = []
        self.failed = 0

    async def pass_by(self, count: int) -> None:
        """Every device visits once, at its time of the day."""
        times = self._seconds * _times_of_day(count)
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number, at_s in enumerate(times):
                await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
                group.create_task(self._visit(number))

    async def _visit(self, number: int) -> None:
        window = self._site.plan.window.index_at(time.time_ns() // 1_000_000)
        if window != self._window:
            self._deltas, self._window = Deltas(self._site.plan, window), window
        try:
            device = self._site.device(self._service.address, number)
            self.took.append(await device.visit(self._deltas.packed(number, 0, 1)))
        except Exception as error:  # noqa: BLE001  whatever a device meets is a finding
            self.failed += 1
            print(f"device {number}: {type(error).__name__}: {error}")


def _times_of_day(count: int) -> np.ndarray:
    """When each visits, ascending, as shares of the day: the rate is 1 - swing * cos(2 pi t)."""
    share = np.linspace(0, 1, 10_001)
    passed = share - _SWING * np.sin(2 * np.pi * share) / (2 * np.pi)
    times: np.ndarray = np.interp((np.arange(count) + 0.5) / count, passed, share)
    return times
