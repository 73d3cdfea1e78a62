"""CPU of one record: from its numbers to a packed delta, and all that the client does with it."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.edge.bare_device import BareHashing
from benchmarks.report import Row
from benchmarks.service.deltas import plan_of
from benchmarks.stopwatch import Rounds

TITLE = (
    "CPU of one record, µs, W = 1024, d = 2 (bare: NumPy's product, floor and remainder; encode: a packed delta; "
    "whole: add, spool, send in memory, answer, removal; batch: of 1,000 records, for each)"
)
_BATCH = 1000


def measure(*, quick: bool) -> list[Row]:
    """One row for each R, without numba and with it."""
    rows: list[Row] = []
    for kernels in ("plain", "fast"):
        environment = {**os.environ, "HUSHSUM_KERNELS": kernels}
        command = [sys.executable, "-m", "benchmarks.edge.hashing", "quick" if quick else "full"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        rows += [{"kernels": kernels, **row} for row in json.loads(done.stdout.splitlines()[-1])]
    return rows


def _measure(rows: int, *, quick: bool) -> Row:
    from edge_client import Policy
    from edge_client.blocking import EdgeClient
    from edge_client.encoding import split
    from edge_client.testing import MemoryService

    plan, bare, record = plan_of(rows), BareHashing(rows), [1.5, 2.5]
    batch = np.random.default_rng(2).uniform(0, 10, (_BATCH, 2))
    repeats, times = (3, 20) if quick else (15, 200)

    def encode() -> None:
        for _ in range(times):
            (packed,) = split(plan, record, 0).deltas
            assert packed.records == 1

    def hash_bare() -> None:
        for _ in range(times):
            bare.hashed(record)

    cases = {
        "bare": hash_bare,
        "encode": encode,
        "bare batch": lambda: bare.hashed(batch),
        "batch": lambda: split(plan, batch, 0),
    }
    rounds = Rounds(cases, repeats=repeats, clock=time.process_time)
    with (
        tempfile.TemporaryDirectory() as folder,
        EdgeClient(MemoryService(plan), spool=Path(folder) / "spool.db", policy=Policy(max_epsilon=1.0)) as client,
    ):
        client.add(record)
        client.flush(60)
        before = time.process_time()
        for _ in range(times):
            client.add(record)
            client.flush(60)
        whole = (time.process_time() - before) / times
    return {
        "R": rows,
        "bare": 1e6 * rounds.seconds("bare") / times,
        "encode": 1e6 * rounds.seconds("encode") / times,
        "encode/bare": rounds.ratio(["encode"], ["bare"]),
        "batch, bare": 1e6 * rounds.seconds("bare batch") / _BATCH,
        "batch, encode": 1e6 * rounds.seconds("batch") / _BATCH,
        "batch, encode/bare": rounds.ratio(["batch"], ["bare batch"]),
        "whole": 1e6 * whole,
    }


if __name__ == "__main__":
    print(json.dumps([_measure(rows, quick=sys.argv[1] == "quick") for rows in (100, 1000)]))
