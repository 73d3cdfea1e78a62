"""Resident memory and open files: of an import, of one client, and of a gateway's thousand clients."""

import tempfile
from pathlib import Path

from benchmarks.edge import devices
from benchmarks.report import Row
from benchmarks.service.deltas import plan_of
from benchmarks.service.endpoints import bare, service

TITLE = (
    "Resident memory and open files of a process at rest, R = 100 (bare: the same dependencies imported; a log and a "
    "stream of gRPC for each device)"
)
_SHARED = 400  # a service takes 512 calls on one connection, and a client has one for as long as it runs


def measure(*, quick: bool) -> list[Row]:
    """One row for the import, and one for each number of clients."""
    least, ours = devices.run("imports")["resident"], devices.run("imports", "edge_client")["resident"]
    rows: list[Row] = [
        {"what": "import", "bare, MB": least / 1e6, "ours, MB": ours / 1e6, "ratio": ours / least},
    ]
    cases = [(1, "own"), (10 if quick else 1000, "own"), (10 if quick else _SHARED, "shared")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for count, connection in cases:
            place = folder / f"{count}-{connection}"
            place.mkdir()
            with bare(place / "bare") as stream:
                bare_fleet = devices.run("fleet", "bare", place, stream.address, count, connection)
            with service(plan_of(100), place / "service", sessions_max=2 * count + 16) as endpoint:
                fleet = devices.run("fleet", "client", place, endpoint.address, count, connection)
            rows.append(
                {
                    "what": f"{count} devices, {'a connection each' if connection == 'own' else 'one connection'}",
                    "bare, MB": bare_fleet["resident"] / 1e6,
                    "ours, MB": fleet["resident"] / 1e6,
                    "ratio": fleet["resident"] / bare_fleet["resident"],
                    "bare, kB a device": (bare_fleet["resident"] - least) / count / 1e3,
                    "ours, kB a device": (fleet["resident"] - ours) / count / 1e3,
                    "bare, files": bare_fleet["files"],
                    "ours, files": fleet["files"],
                }
            )
    return rows
