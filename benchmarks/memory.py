"""What a batch takes beside its records and counters, at its peak: measured in a process of its own.

``python -m benchmarks.memory DATA RECORDS KEYS`` prints it in bytes; KEYS is ``[sketch]`` as JSON.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data_files import shown
from benchmarks.report import Row
from benchmarks.workloads import Keys, Workload, data, hashed
from hushsum.families import FAMILIES

TITLE = "Memory of one batch at its peak, beside its records and counters, MB, by number of records"
BATCHES = (1000, 100_000, 1_000_000)
WORK: tuple[tuple[str, Keys], ...] = (
    ("skin", hashed("euclidean", bandwidth=5)),
    ("covtype", hashed("euclidean", bandwidth=50, rows=256)),
    ("skin", hashed("laplacian", bandwidth=25, rows=256)),
    ("skin", hashed("angular", power=8, buckets=256, rows=256)),
    ("slashdot", hashed("jaccard", minhash="full", rows=64)),
    ("slashdot", hashed("jaccard", minhash="one-permutation", rows=64)),
    ("skin", {"family": "fourier", "kernel": "gaussian", "bandwidth": 20, "rows": 1000}),
    ("taxi", {"family": "hermite", "kernel": "gaussian", "bandwidth": "0.01"}),
    ("taxi", {"family": "partition", "bandwidth": "0.01", "rows": 16, "buckets": 4096}),
)


def measure(*, quick: bool) -> list[Row]:
    """One row a family."""
    rows: list[Row] = []
    for name, keys in WORK[:2] if quick else WORK:
        if keys["family"] not in FAMILIES:
            continue
        about = {key: str(keys[key]) for key in ("family", "kernel", "minhash") if key in keys}
        sizes = BATCHES[:2] if quick else BATCHES
        rows.append({"data": shown(name), **about, **{f"{n:,}": batch_bytes(keys, name, n) / 1e6 for n in sizes}})
    return rows


def batch_bytes(keys: Keys, name: str, records: int) -> int:
    """What ``add`` of so many records (repeated where there are fewer) takes at its peak, on all cores."""
    command = [sys.executable, "-m", "benchmarks.memory", name, str(records), json.dumps(dict(keys))]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def _measure(name: str, records: int, keys: Keys) -> int:
    workload = Workload(name, keys, data(name))
    family, counters = workload.family, np.zeros(workload.family.shape, np.int64)
    counters += 1  # every page is there from now on
    family.add(counters, family.accept(workload.values[:10])[0])  # and whatever is made once
    usable = family.accept(_repeated(workload.values, records))[0]
    before = _reset_peak()
    family.add(counters, usable)
    return _peak() - before


def _repeated(values: Any, records: int) -> Any:
    times = -(-records // values.shape[0])
    if isinstance(values, np.ndarray):
        return np.tile(values.astype(np.float32), (times, 1))[:records]
    from scipy import sparse

    return sparse.vstack([values] * times, format="csr")[:records]


def _reset_peak() -> int:
    """Where Linux offers it the peak is that of now, in bytes, from here on; elsewhere that of the process so far."""
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5", "ascii")
    return _peak()


def _peak() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text("ascii").splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    print(_measure(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])))
