"""Writes frozen files, once each: ``python -m tests.vectors.generate_files [receipts]``.

Without an argument ``v1/files.zip``, the files of format version 1; with it ``receipts/format-N.zip``, a data folder
with the receipts and the store of this version.

A data folder (log, store, receipts) and a spool, as this version leaves them: one window is released, the next one is
open and holds two deltas, and the spool holds one delta that nobody has answered.
"""

import asyncio
import json
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from aggregator.release.receipts import RECEIPTS_FORMAT
from edge_client import EdgeClient, Policy
from tests.plans import small_plan
from tests.services import HOUR_MS, NOW_MS, WINDOW, Contributor, RawClient, SetRuntime, config_of, service_of

ARCHIVE = Path(__file__).parent / "v1" / "files.zip"
PLAN = small_plan(sketch={"rows": 4, "buckets": 16})
RECEIPTS = Path(__file__).parent / "receipts"
FILES = ("log.db", "store.db", "receipts.jsonl")


async def collect(folder: Path) -> dict[str, object]:
    """Runs a service and a device in ``folder``; returns what their files must say for ever."""
    runtime = SetRuntime()
    async with service_of(config_of(folder, PLAN, partitions=2), runtime) as service:
        async with EdgeClient(service.grpc, spool=folder / "spool.db", client_id="device") as device:
            stream = device.stream
        async with RawClient(service.grpc, "alice") as client:
            contributor = Contributor(PLAN, 5)
            await client.submit(PLAN.id, [contributor.delta(3)[1]])
            await client.seal()
            release = (await client.release()).release
            runtime.set_ms = NOW_MS + HOUR_MS
            await client.hello()
            later = Contributor(PLAN, 6, WINDOW + 1)
            await client.submit(PLAN.id, [later.delta(2)[1], later.delta(4)[1]])
    async with EdgeClient("localhost:1", spool=folder / "spool.db", policy=Policy(max_epsilon=1)) as device:
        await device.add(np.full((1, 2), 5.0), time=NOW_MS)
    return {
        "released_window": WINDOW,
        "release_sha256": release.sha256.hex(),
        "open_window": WINDOW + 1,
        "open_records": np.concatenate(later.records).tolist(),
        "stream": stream,
    }


def write(path: Path) -> None:
    """Writes an archive."""
    with TemporaryDirectory() as name, zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as archive:
        folder = Path(name)
        said = asyncio.run(collect(folder))
        for file in FILES:
            archive.write(folder / "data" / file, file)
        archive.write(folder / "spool.db", "spool.db")
        archive.writestr("said.json", json.dumps(said, indent=1))


if __name__ == "__main__":
    write(RECEIPTS / f"format-{RECEIPTS_FORMAT}.zip" if sys.argv[1:] == ["receipts"] else ARCHIVE)
