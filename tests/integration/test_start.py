"""``python -m aggregator`` says in one line what keeps it from starting."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plans import small_plan
from tests.processes import Aggregator

PASSWORD = "correct-horse"
FREE = "127.0.0.1:0"
KAFKA = 'log = "kafka"\nkafka_bootstrap = "127.0.0.1:1"\nstart_s = 0.2\n'
ROOT = Path(__file__).resolve().parent.parent.parent


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
    command = [sys.executable, "-m", "aggregator", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    (
        ("partitons = 4\n", "aggregator: partitons: unknown key; did you mean partitions?\n"),
        (
            'listen = "0.0.0.0:7443"\n',
            "aggregator: listen: unencrypted connections are allowed only on loopback, got 0.0.0.0:7443",
        ),
    ),
)
def test_what_keeps_it_from_starting_is_one_line(tmp_path: Path, settings: str, message: str) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(small_plan().to_bytes())
    file = tmp_path / "aggregator.toml"
    file.write_text(settings)
    needed = ("--plan", str(plan), "--data", str(tmp_path / "data"))
    ended = started("--config", str(file), *needed)

    assert ended.returncode == 1
    assert message in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert not ended.stdout


@pytest.mark.parametrize(
    ("settings", "message"),
    (
        (f'postgres_dsn = "postgresql://hushsum:{PASSWORD}@db/counts"\n', "aggregator: postgres_dsn: allowed only"),
        (KAFKA, "aggregator: kafka unavailable for 0.2 s (start_s)"),
        (
            f'{KAFKA}store = "postgresql"\npostgres_dsn = "postgresql://hushsum:{PASSWORD}@127.0.0.1:1/counts"\n',
            "aggregator: the database unavailable for 0.2 s (start_s)",
        ),
    ),
    ids=("a setting that means nothing", "no broker", "no database"),
)
def test_a_cluster_that_cannot_be_had_is_one_line_too_and_holds_no_password(
    tmp_path: Path, settings: str, message: str
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(small_plan().to_bytes())
    file = tmp_path / "aggregator.toml"
    file.write_text(f'{settings}log_level = "debug"\n')
    ended = started("--config", str(file), "--plan", str(plan), "--data", str(tmp_path / "data"), "--listen", FREE)

    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(message)
    assert "Traceback" not in ended.stderr
    assert PASSWORD not in ended.stderr


async def test_a_start_that_waits_for_brokers_is_ended_by_a_signal_at_once(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(small_plan().to_bytes())
    settings = {"plan": str(tmp_path / "plan.json"), "log": "kafka", "kafka_bootstrap": "127.0.0.1:1"}
    waiting = Aggregator(tmp_path, "waiting", settings)
    await waiting.start()
    await waiting.said("waiting for kafka")

    assert await waiting.stop() == 0
    assert "Traceback" not in waiting.output.read_text()
