"""What a record writes to flash, with its answer and its erasure."""

import tempfile
from pathlib import Path

from benchmarks.edge import devices
from benchmarks.report import Row
from benchmarks.service.deltas import Deltas, plan_of
from benchmarks.service.endpoints import bare, service

TITLE = (
    "Bytes written to flash, one device (written: /proc/self/io, blocks of 4 KiB that the file system writes at a "
    "sync, without its own journal; calls: bytes and syncs of the system calls, by strace; bare: a log that is synced "
    "for each record and each answer, and emptied as often)"
)
_HOURS = 24


def measure(*, quick: bool) -> list[Row]:
    """One row for each R and rate; what is alone in its five seconds costs the same at every lower rate."""
    rows: list[Row] = []
    for size in (100,) if quick else (100, 1000):
        plan = plan_of(size)
        delta_bytes = len(Deltas(plan, 0).packed(0, 0, 1)[0])
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with service(plan, folder / "service") as ours, bare(folder / "bare") as least:
                for rates, count, pause_s in (
                    ((1, 100), 2 if quick else 5, devices.QUIET_S),
                    ((10_000,), 10 if quick else 50, 0.36),
                ):
                    about = (size, count, pause_s)
                    mine = devices.traced("days", "client", folder, ours.address, *about, folder=folder)
                    bares = devices.traced("days", "bare", folder, least.address, *about, folder=folder)
                    rows += [_row(size, rate, count, delta_bytes, mine, bares) for rate in rates]
    return rows


def _row(rows: int, rate: int, count: int, delta_bytes: int, ours: dict[str, float], least: dict[str, float]) -> Row:
    row: Row = {
        "R": rows,
        "records an hour": rate,
        "a delta, bytes": delta_bytes,
        "deltas a day, MB": delta_bytes * rate * _HOURS / 1e6,
        "written a record, kB": ours["written"] / count / 1e3,
        "bare, kB": least["written"] / count / 1e3,
        "ratio": ours["written"] / max(1.0, least["written"]),
        "written a day, MB": ours["written"] / count * rate * _HOURS / 1e6,
    }
    if "syncs" in ours:
        row |= {
            "calls, bytes a record": ours["calls_bytes"] / count,
            "over the delta": ours["calls_bytes"] / count / delta_bytes,
            "syncs a record": ours["syncs"] / count,
            "bare, syncs": least["syncs"] / count,
            "syncs a day": ours["syncs"] / count * rate * _HOURS,
        }
    return row
