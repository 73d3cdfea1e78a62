"""``make soak``: a service for an hour, with 50 good clients and 2,000 hostile connections that have no token.

Writes ``benchmarks/results/soak.json`` and ``docs/explanation/soak.png``: memory, connections and answers over time.
Ends with 1 where an acknowledged delta was not counted, or a good client had to wait for an answer longer than a
minute.
"""

import argparse
import asyncio
import json
import re
import resource
import statistics
import sys
import tempfile
import time
import urllib.request
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from aggregator.auth.tokens import change_table, issue
from aggregator.model import Scope
from benchmarks.command import RESULTS
from benchmarks.report import Row, print_table, write_json
from edge_client import EdgeClient
from edge_client.runtime import SystemRuntime
from hushsum import Plan
from hushsum.entropy import OsEntropy
from hushsum_proto.credentials import Credentials
from hushsum_simulator.demo.services import Service

TITLE: Final = "A service among strangers: good clients beside hostile connections"
PICTURE: Final = Path(__file__).parent.parent.parent / "docs" / "explanation" / "soak.png"
_SAMPLE_S: Final = 10.0
_PAUSE_S: Final = 1.0  # between two batches of one client
_STAY_S: Final = 300.0  # a client then leaves, and comes again on a new connection
_WAIT_S_MAX: Final = 60.0
_BATCH: Final = 20
_QUIET_SHARE: Final = 1 / 12  # of the time, before the attack begins,
_QUIET_S_MIN: Final = 30.0  # and at least so long


@dataclass
class Measured:
    """What was seen since the last sample, and in all."""

    waits: list[float] = field(default_factory=list)
    acknowledged: int = 0
    longest_s: float = 0.0
    failures: list[str] = field(default_factory=list)


def plan_of() -> Plan:
    """A small plan with windows of five minutes."""
    return Plan.from_fields(
        {
            "name": "soak",
            "record": {"kind": "vector", "dim": 2, "lower": [0, 0], "upper": [10, 10]},
            "sketch": {"family": "hashed", "kernel": "euclidean", "bandwidth": 2, "rows": 100, "buckets": 1024},
            "privacy": {"epsilon": 1, "total_epsilon": 1000},
            "window": {"length": "5m", "lateness": "30s"},
        }
    )


async def good_client(name: str, address: str, token: Path, folder: Path, until_s: float, seen: Measured) -> None:
    """Sends a batch a second and waits for its answer, on a new connection now and then."""
    rng, runtime = np.random.default_rng(hash(name) % 2**32), SystemRuntime()
    while time.monotonic() < until_s:
        leave_s = min(time.monotonic() + _STAY_S * rng.uniform(0.5, 1.5), until_s)
        credentials = Credentials(token_file=token)
        try:
            async with EdgeClient(
                address, client_id=name, spool=folder / f"{name}.db", runtime=runtime, credentials=credentials
            ) as client:
                while time.monotonic() < leave_s:
                    await client.add(rng.uniform(0, 10, (_BATCH, 2)))
                    began_s = time.monotonic()
                    await client.flush(_WAIT_S_MAX)
                    waited_s = time.monotonic() - began_s
                    seen.waits.append(waited_s)
                    seen.acknowledged += 1
                    seen.longest_s = max(seen.longest_s, waited_s)
                    await asyncio.sleep(_PAUSE_S)
        except Exception as error:  # noqa: BLE001  whatever a good client meets is a finding
            seen.failures.append(f"{name}: {type(error).__name__}: {error}")


_PROCESS_LABELS: Final = re.compile(r'\b(?:plan|role)="[^"]*",?')  # every sample has them


def figures(page: str) -> dict[str, float]:
    """What the service says of itself, by sample without the labels of the process."""
    with urllib.request.urlopen(f"http://{page}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[_PROCESS_LABELS.sub("", name).replace(",}", "}").replace("{}", "")] = float(value)
    return found


def sample(page: str, began_s: float, seen: Measured) -> Row:
    """One row of what is seen now."""
    said = figures(page)
    waits, seen.waits = sorted(seen.waits), []
    closed = {key.split('"')[1]: value for key, value in said.items() if key.startswith("hushsum_connections_closed_t")}
    return {
        "minutes": (time.monotonic() - began_s) / 60,
        "memory, MB": said["process_resident_memory_bytes"] / 1e6,
        "open files": said["process_open_fds"],
        "answers": len(waits),
        "wait, median ms": 1000 * statistics.median(waits) if waits else float("nan"),
        "wait, 99 % ms": 1000 * waits[int(0.99 * (len(waits) - 1))] if waits else float("nan"),
        "wait, longest ms": 1000 * waits[-1] if waits else float("nan"),
        **{f"closed, {reason}": number for reason, number in closed.items()},
    }


def draw(rows: list[Row], attack_minutes: float, path: Path) -> None:
    """The picture of the documentation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7.5), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True)
    minutes = [row["minutes"] for row in rows]
    for axis, names, label in zip(
        axes,
        (("memory, MB",), ("open files",), ("wait, median ms", "wait, 99 % ms")),
        ("memory of the service, MB", "open files and connections", "a good client waits, ms"),
        strict=True,
    ):
        for name in names:
            axis.plot(minutes, [row[name] for row in rows], label=name.removeprefix("wait, "))
        axis.axvline(attack_minutes, color="0.5", linestyle=":")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        axis.set_ylim(bottom=0)
    axes[2].set_yscale("log")
    axes[2].set_ylim(1, None)
    axes[2].legend()
    axes[2].set_xlabel("minutes; the attack begins at the dotted line")
    axes[0].set_title("2,000 hostile connections beside 50 good clients")
    figure.savefig(path, dpi=110)


async def soak(minutes: float, clients: int, connections: int) -> tuple[list[Row], Measured, int, float]:
    """Runs it; gives its samples, what good clients saw, deltas counted or late, and when the attack began."""
    seen = Measured()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hushsum-soak-")))
        (folder / "plan.json").write_bytes(plan_of().bundle)
        now_ms, tokens = time.time_ns() // 1_000_000, []
        for number in range(clients):
            issued = issue(OsEntropy(), f"till-{number}", (Scope.SUBMIT,), now_ms=now_ms, expires_ms=None)
            file = folder / f"till-{number}.token"
            file.write_text(issued.text)
            file.chmod(0o600)
            tokens.append((file, issued.entry))
        change_table(folder / "tokens.jsonl", lambda table: table.changed(with_=[entry for _, entry in tokens]))
        settings: dict[str, str | float] = {
            "plan": str(folder / "plan.json"),
            "authentication": "token",
            "tokens": str(folder / "tokens.jsonl"),
            "sessions_max": 512,  # so that there are places for 2,048 connections: the attack would take nearly all
        }
        service = await stack.enter_async_context(Service(folder, "aggregator", settings))
        began_s = time.monotonic()
        until_s, attack_s = began_s + 60 * minutes, max(60 * minutes * _QUIET_SHARE, _QUIET_S_MIN)
        async with asyncio.TaskGroup() as group:
            for number, (file, _) in enumerate(tokens):
                work = good_client(f"till-{number}", service.address, file, folder, until_s, seen)
                group.create_task(work)
            group.create_task(_attacked(service.address, connections, began_s + attack_s, until_s))
            rows = []
            while time.monotonic() < until_s:
                await asyncio.sleep(_SAMPLE_S)
                service.check_running()
                rows.append(await asyncio.to_thread(sample, service.metrics, began_s, seen))
                print(json.dumps(rows[-1]), flush=True)
        said = await asyncio.to_thread(figures, service.metrics)
        counted = sum(value for key, value in said.items() if key.startswith("hushsum_folded_t") and "counted" in key)
        counted += said['hushsum_deltas_total{status="late"}']  # a client that was told so has its answer as well
        return rows, seen, round(counted), attack_s / 60


async def _attacked(address: str, connections: int, from_s: float, until_s: float) -> None:
    await asyncio.sleep(max(from_s - time.monotonic(), 0))
    command = (sys.executable, "-m", "benchmarks.soak.attackers", address, "--connections", str(connections))
    process = await asyncio.create_subprocess_exec(*command)
    try:
        await asyncio.sleep(max(until_s - time.monotonic(), 0))
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def main() -> int:
    """Measures, and writes what came of it."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="no files are written")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    rows, seen, counted, attack_minutes = asyncio.run(soak(options.minutes, options.clients, options.connections))
    before = [row for row in rows if float(row["minutes"]) <= attack_minutes]
    after = [row for row in rows if float(row["minutes"]) > attack_minutes]
    table: list[Row] = []
    for name, part in (("without an attack", before), ("under attack", after)):
        median = {key: float(np.nanmedian([float(row[key]) for row in part])) for key in part[0] if key != "minutes"}
        longest = max(float(row["wait, longest ms"]) for row in part)
        peak = max(float(row["memory, MB"]) for row in part)
        table.append({"": name, **median, "wait, longest ms": longest, "memory, peak MB": peak})
    print_table(TITLE, table)
    lost = seen.acknowledged - counted
    print(f"\nanswered {seen.acknowledged}, counted or late {counted}; failures of good clients: {len(seen.failures)}")
    for failure in seen.failures[:20]:
        print(failure)
    if not options.quick:
        write_json(RESULTS / "soak.json", TITLE, table)
        draw(rows, attack_minutes, PICTURE)
    return 1 if lost > 0 or seen.failures else 0


if __name__ == "__main__":
    sys.exit(main())
