"""Energy by proxy: CPU seconds and wake-ups of a device, at rest and at some rates of records."""

import tempfile
from pathlib import Path

from benchmarks.edge import devices
from benchmarks.report import Row
from benchmarks.service.deltas import plan_of
from benchmarks.service.endpoints import bare, service

TITLE = (
    "CPU seconds a day of one connected device, R = 100, without numba (bare: the least device; wake-ups: of all "
    "threads of the process)"
)
_DAY_S = 86_400


def measure(*, quick: bool) -> list[Row]:
    """One row at rest, and one for each rate."""
    plan = plan_of(100)
    idle_s, count = (5, 10) if quick else (90, 100)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with service(plan, folder / "service") as ours, bare(folder / "bare") as least:
            used = {}
            for kind, address in (("client", ours.address), ("bare", least.address)):
                used[kind] = (
                    devices.run("idle", kind, folder, address, idle_s),
                    devices.run("days", kind, folder, address, 100, 2 if quick else 8, devices.QUIET_S),
                    devices.run("days", kind, folder, address, 100, count, 0.36),
                )
    for rate in (0, 1, 100, 10_000):
        mine, bares = (_cpu_s_a_day(*used[kind], rate) for kind in ("client", "bare"))
        rows.append({"records an hour": rate, "bare, s": bares, "ours, s": mine, "ratio": mine / bares})
    for kind, column in (("bare", "bare"), ("client", "ours")):
        rested = used[kind][0]
        rows[0][f"{column}, wake-ups a minute"] = rested["wake_ups"] * 60 / rested["took_s"]
        rows[0][f"{column}, bytes written at rest"] = rested["written"]
    return rows


def _cpu_s_a_day(idle: dict[str, float], alone: dict[str, float], busy: dict[str, float], rate: int) -> float:
    """Of a device at rest, and of records that come one by one, or at the highest rate as it was."""
    at_rest = idle["cpu_s"] / idle["took_s"]
    if rate >= 10_000:
        return busy["cpu_s"] / busy["took_s"] * _DAY_S
    record = max(0.0, alone["cpu_s"] - at_rest * alone["took_s"]) / (alone["took_s"] / devices.QUIET_S)
    return at_rest * _DAY_S + record * rate * 24
