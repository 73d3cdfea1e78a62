"""Devices in processes of their own: ``python -m benchmarks.edge.devices JOB`` prints the job's figures as JSON.

A device is the client of ``edge_client``, or a bare one. Jobs import what they need themselves: imports are measured.
"""

import asyncio
import gc
import importlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_PAGE_BYTES: Final = resource.getpagesize()
#: After so much silence the client has erased what was answered.
QUIET_S: Final = 6.0
_BEGIN, _END = b"-begin-\n", b"-end-\n"
#: What the client is built of: its dependencies, as far as it imports them.
_BARE_IMPORTS: Final = (
    *("asyncio", "sqlite3", "ssl", "hashlib", "concurrent.futures", "logging", "numpy", "zstandard", "grpc.aio"),
    *("google.protobuf.message", "cryptography.hazmat.primitives.asymmetric.ed25519"),
    *("cryptography.hazmat.primitives.asymmetric.x25519", "cryptography.hazmat.primitives.ciphers.aead"),
)


@dataclass(frozen=True)
class Usage:
    """What a process has used so far, or between two moments.

    Attributes:
        written: Bytes that it gave the file system's cache to write, in blocks of 4 KiB; each sync writes them.
        cpu_s: Of all threads.
        wake_ups: Times that one of its threads has waited, and gone on.
        took_s: By the clock.
    """

    written: int
    cpu_s: float
    wake_ups: int
    took_s: float

    @classmethod
    def now(cls) -> "Usage":
        """Of this process so far."""
        lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text("ascii").splitlines())
        wake_ups = 0
        for status in Path("/proc/self/task").glob("*/status"):
            found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status.read_text("utf-8"), re.MULTILINE)
            wake_ups += int(found[1]) if found else 0
        return cls(int(lines["write_bytes"]), time.process_time(), wake_ups, time.monotonic())

    def since(self, before: "Usage") -> dict[str, float]:
        """What was used since, by name."""
        return {name: value - getattr(before, name) for name, value in vars(self).items()}


# --------------------------------------------------------------------------------------------- run by a benchmark


def run(job: str, *options: object, kernels: str = "plain") -> dict[str, float]:
    """The figures of a job in a process of its own.

    Args:
        job: Its name in ``_JOBS``.
        options: Its arguments.
        kernels: ``plain`` is without numba.
    """
    return _output_of(_command(job, options), kernels)


def traced(job: str, *options: object, folder: Path) -> dict[str, float]:
    """The same; where ``strace`` is installed also the calls in its marked part: bytes that it writes, and syncs."""
    command, strace = _command(job, options), shutil.which("strace")
    if strace is None:
        return _output_of(command, "plain")
    trace = folder / "trace"
    calls = "trace=pwrite64,write,fsync,fdatasync,ftruncate"
    figures = _output_of([strace, "-f", "-y", "-s", "8", "-e", calls, "-o", str(trace), *command], "plain")
    text = trace.read_text("utf-8", errors="replace")
    marked = text[text.index(_BEGIN.decode().strip()) : text.rindex(_END.decode().strip())]
    figures["calls_bytes"] = sum(map(int, re.findall(r" pwrite64\(.* = (\d+)$", marked, re.MULTILINE)))
    figures["syncs"] = len(re.findall(r" f(?:data)?sync\(", marked))
    trace.unlink()
    return figures


def _command(job: str, options: Sequence[object]) -> list[str]:
    return [sys.executable, "-m", "benchmarks.edge.devices", job, *map(str, options)]


def _output_of(command: Sequence[str], kernels: str) -> dict[str, float]:
    environment = {**os.environ, "HUSHSUM_KERNELS": kernels, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


# ------------------------------------------------------------------------------------------------------------ jobs


def resident() -> int:
    """Bytes of this process that are in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * _PAGE_BYTES


def files() -> int:
    """Files and sockets that this process has open."""
    return len(list(Path("/proc/self/fd").iterdir())) - 1


def imports(*modules: str) -> dict[str, float]:
    """Memory of a process that has imported these; without any: what a device is built of."""
    for name in modules or _BARE_IMPORTS:
        importlib.import_module(name)
    return {"resident": resident()}


def fleet(kind: str, folder: str, address: str, count: str, own_connection: str) -> dict[str, float]:
    """Memory and files of so many devices in one process, each of which has sent two records and rests."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return asyncio.run(_fleet(kind, Path(folder), address, int(count), own_connection=own_connection == "own"))


async def _fleet(kind: str, folder: Path, address: str, count: int, *, own_connection: bool) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        made = [_device(kind, folder, address, 100, number, own_connection=own_connection) for number in range(count)]
        devices = [await stack.enter_async_context(device) for device in made]
        for _ in range(2):
            for device in devices:
                await device.add(_record(0))
        for device in devices:
            await device.flush(120)
        await asyncio.sleep(QUIET_S + 2)
        return {"resident": resident(), "files": files()}


def days(kind: str, folder: str, address: str, rows: str, count: str, pause_s: str) -> dict[str, float]:
    """What one device uses while it adds and sends so many records, with a pause after each."""
    return asyncio.run(_days(kind, Path(folder), address, int(rows), int(count), float(pause_s)))


async def _days(kind: str, folder: Path, address: str, rows: int, count: int, pause_s: float) -> dict[str, float]:
    async with _device(kind, folder, address, rows, 0, own_connection=True) as device:
        for number in range(20):
            await device.add(_record(number))
        await device.flush(60)
        await asyncio.sleep(QUIET_S)
        os.write(1, _BEGIN)
        before = Usage.now()
        for number in range(count):
            await device.add(_record(number))
            await asyncio.sleep(pause_s)
        await device.flush(60)
        figures = Usage.now().since(before)
        os.write(1, _END)
        return figures


def idle(kind: str, folder: str, address: str, seconds: str) -> dict[str, float]:
    """What one device uses that has sent a record, is connected and has nothing to do."""
    return asyncio.run(_idle(kind, Path(folder), address, float(seconds)))


async def _idle(kind: str, folder: Path, address: str, seconds: float) -> dict[str, float]:
    async with _device(kind, folder, address, 100, 0, own_connection=True) as device:
        await device.add(_record(0))
        await device.flush(60)
        await asyncio.sleep(QUIET_S)
        before = Usage.now()
        await asyncio.sleep(seconds)
        return Usage.now().since(before)


def _record(number: int) -> list[float]:
    return [number % 97 / 10, number % 89 / 10]


def _device(kind: str, folder: Path, address: str, rows: int, number: int, *, own_connection: bool) -> Any:
    """Any: a client or a bare device, of which one alone is imported."""
    path = folder / f"{kind}-{rows}-{number}-{time.monotonic_ns()}.db"
    if kind == "bare":
        from benchmarks.edge.bare_device import BareDevice

        return BareDevice(address, path, rows, own_connection=own_connection)
    from edge_client import Config, EdgeClient, Policy, SystemRuntime

    global _runtime  # noqa: PLW0603  the clients of a process share one
    _runtime = _runtime or SystemRuntime()
    config = Config(own_connection=own_connection)
    policy = Policy(max_epsilon=1.0)
    return EdgeClient(address, spool=path, client_id=f"device-{number}", policy=policy, config=config, runtime=_runtime)


_runtime: Any = None
_JOBS: Final[dict[str, Callable[..., dict[str, float]]]] = {
    "imports": imports,
    "fleet": fleet,
    "days": days,
    "idle": idle,
}

if __name__ == "__main__":
    print(json.dumps(_JOBS[sys.argv[1]](*sys.argv[2:])))
