"""A fleet against real processes over TLS with tokens, killed on the way; and what is planted beside it is found."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushsum_simulator.console import Console
from hushsum_simulator.demo.services import Server
from hushsum_simulator.deployment.check import check
from hushsum_simulator.deployment.journal import FleetJournal
from hushsum_simulator.deployment.prepare import prepare, prepared
from hushsum_simulator.deployment.settings import DeploymentSettings, operator_credentials
from hushsum_simulator.deployment.verdicts import counted_batches, retained
from hushsum_simulator.testbed.process import free_port

pytestmark = pytest.mark.usefixtures("sources_on_path")

SMALL = {
    "HUSHSUM_CLIENTS": "6",
    "HUSHSUM_RECORDS": "1500",
    "HUSHSUM_WINDOWS": "2",
    "HUSHSUM_WINDOW_S": "1",
    "HUSHSUM_LATENESS_S": "12",
    "HUSHSUM_ROWS": "104",
    "HUSHSUM_BUCKETS": "128",
    "HUSHSUM_DEADLINE_S": "240",
    "HUSHSUM_DATA": "points.npy",
}


def environment_in(folder: Path, port: int, more: Mapping[str, str]) -> dict[str, str]:
    folders = {
        f"HUSHSUM_{name}": str(folder / name.lower()) for name in ("CONFIG", "SECRETS", "FLEET", "OPERATOR", "REPORTS")
    }
    store = {"HUSHSUM_STORE": str(folder / "data" / "store.db"), "HUSHSUM_GATEWAYS": f"localhost:{port}"}
    points = np.random.default_rng(1).normal([[80.0, 80.0]] * 700 + [[180.0, 120.0]] * 800, 12)
    np.save(folder / "points.npy", points.round())
    return {**SMALL, **folders, **store, "HUSHSUM_DATA_FOLDER": str(folder), **more}


@asynccontextmanager
async def serving(folder: Path, settings: DeploymentSettings, port: int, *, manual: bool) -> AsyncIterator[Server]:
    """All roles in one process, on SQLite."""
    more: dict[str, str | int | bool] = {
        "listen": f"127.0.0.1:{port}",
        "manual": manual,
        "tls_cert": str(settings.secrets / "server.pem"),
        "tls_key": str(settings.secrets / "server.key"),
        "authentication": "token",
        "tokens": str(settings.secrets / "tokens.jsonl"),
    }
    if settings.mode == "secure":
        more |= {"client_directory": str(settings.config / "clients.toml"), "secure_step_s": 4, "secure_upload_s": 15}
    async with Server(folder, settings.plan_file, partitions=2, settings=more) as server:
        yield server


async def contributed(
    environment: Mapping[str, str], settings: DeploymentSettings, strike: Callable[[], Any] | None
) -> None:
    """Runs the fleet as the process that it is, and strikes once something is acknowledged."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hushsum_simulator.deployment", "fleet"),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        if strike is not None:
            deadline = time.monotonic() + 180
            while not progress(settings).get("acknowledged"):
                assert process.returncode is None
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            await strike()
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output.decode()


def progress(settings: DeploymentSettings) -> dict[str, Any]:
    try:
        read: dict[str, Any] = json.loads(settings.progress_file.read_text())
    except FileNotFoundError:
        return {}
    return read


async def run(
    folder: Path, more: Mapping[str, str], *, kill: bool = False
) -> tuple[DeploymentSettings, list[str], dict[str, Any]]:
    """Prepares, serves, contributes and checks; returns what was violated, and the summary.

    After a kill the operator seals: a window is open until the fleet has its answers, however slow the machine is.
    """
    port = free_port()
    environment = environment_in(folder, port, more)
    settings = DeploymentSettings.from_environment(environment)
    prepare(settings, lambda _: None)
    async with serving(folder, settings, port, manual=kill) as server:

        async def strike() -> None:
            await server.kill()
            await server.start()

        await contributed(environment, settings, strike if kill else None)
        if kill:
            async with Console(server.address, operator_credentials(settings, "admin")) as operator:
                last = FleetJournal.load(settings.sent_file).window_range[-1]
                await operator.seal_through(last)
                await operator.release_through(last)
        violations = await asyncio.to_thread(check, settings, lambda _: None)
        summary: dict[str, Any] = json.loads((settings.reports / "summary.json").read_text())
        if kill:
            violations += await planted(settings)
    return settings, violations, summary


async def planted(settings: DeploymentSettings) -> list[str]:
    """Checks again with a journal that names another window for a delta that counts, and leaves another one out."""
    journal = FleetJournal.load(settings.sent_file)
    verdicts = await retained(settings, prepared(settings))
    counted = [
        (name, batch)
        for window in journal.window_range
        for name, batches in counted_batches(journal, verdicts, window).items()
        for batch in batches
    ]
    (name, batch), (other, last) = counted[0], counted[-1]
    added = journal.accounts[name].added
    added[batch] = added[batch]._replace(window=added[batch].window + 1)
    del journal.accounts[other].added[last]
    journal.save(settings.sent_file)
    broken = await asyncio.to_thread(check, settings, lambda _: None)
    wanted = (
        "1 deltas were counted in another window",
        "1 deltas were counted twice, or belong to no client",
        "were added",
    )
    return [f"not found: {each}" for each in wanted if not any(each in sentence for sentence in broken)]


@pytest.mark.long
async def test_a_kill_loses_nothing_and_doubles_nothing_and_planted_faults_are_found(tmp_path: Path) -> None:
    settings, violations, summary = await run(tmp_path, {"HUSHSUM_LATENESS_S": "30"}, kill=True)
    assert violations == []
    total = summary["total"]
    assert total["sent"] == total["counted"] > 0
    assert summary["records_added"] == summary["records"] == 1350
    assert summary["lives"] > summary["clients"] == 6
    assert progress(settings)["done"] is True
    assert len(list(settings.reports.glob("release-*.hush"))) == len(summary["windows"])


@pytest.mark.long
async def test_batches_of_reports_are_all_in_their_windows(tmp_path: Path) -> None:
    _, violations, summary = await run(tmp_path, {"HUSHSUM_MODE": "local", "HUSHSUM_LATENESS_S": "30"})
    assert violations == []
    assert summary["reports_counted"] == summary["reports_sent"] == 1350
    assert summary["total"]["sent"] > 0


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param({"HUSHSUM_MODE": "secure", "HUSHSUM_CLIENTS": "10"}, id="secure"),
        pytest.param({"HUSHSUM_MODE": "local", "HUSHSUM_FORM": "silo"}, id="silo"),
    ],
)
async def test_every_submission_is_where_its_client_was_told(tmp_path: Path, mode: dict[str, str]) -> None:
    _, violations, summary = await run(tmp_path, {"HUSHSUM_WINDOWS": "1", "HUSHSUM_LATENESS_S": "60", **mode})
    assert violations == []
    filled = [each for each in summary["windows"] if each["filled"]]
    assert [each["tally"]["counted"] > 0 for each in filled] == [True]
