"""What the README and the examples show is run as it stands."""

import asyncio
import re
import runpy
import shlex
import shutil
import textwrap
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.app import running
from aggregator.backup import back_up
from aggregator.runtime import SystemRuntime
from edge_client import EdgeClient, NotCountedWarning, Policy
from edge_client.testing import MemoryService
from hushsum import Plan
from hushsum.signed_plan import SignedPlan
from hushsum.signing import SigningKey
from hushsum_cli.advise import advise
from hushsum_proto.credentials import Credentials
from hushsum_simulator.console import Console
from tests.doc_pages import in_process, run_page
from tests.hushsum_cli.calling import Hushsum
from tests.plans import small_plan
from tests.services import SetRuntime, config_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
EXAMPLE_PLAN = Plan.from_toml(ROOT / "examples" / "plan.toml")


def numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", line)]


def test_the_readme_shows_an_analyst_and_a_device() -> None:
    assert len(BLOCKS) == 2


def test_the_readmes_minute_of_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[0], "README.md", "exec"), {})
    assert (tmp_path / "today.hush").stat().st_size > 1000
    assert "charged to the ledger" in capsys.readouterr().out


async def test_the_readmes_device_contributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with running(config_of(tmp_path, EXAMPLE_PLAN), SystemRuntime()) as service:
        code = BLOCKS[1].replace("localhost:7443", service.grpc)
        imports, body = code.split("\n\n", 1)
        source = (
            f"{imports}\nasync def contribute(record_or_batch):\n{textwrap.indent(body, '    ')}    return client\n"
        )
        names: dict[str, object] = {}
        exec(compile(source, "README.md", "exec"), names)
        client = await names["contribute"](np.ones((5, 2)))  # type: ignore[operator]  # defined just above
    assert isinstance(client, EdgeClient)
    assert client.status().records == 5


def test_what_the_readme_lets_an_operator_do_with_a_plan_works_with_the_plan_of_the_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(ROOT / "examples" / "plan.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    operator = README.partition("**An operator**")[2].split("```")[1]
    commands = [shlex.split(line, comments=True)[1:] for line in operator.splitlines() if "hushsum plan " in line]
    assert [command[:3] for command in commands] == [["plan", name, "plan.toml"] for name in ("advise", "make")]
    assert " ".join(["hushsum", *commands[0]]) in (advise.epilog or "").splitlines()[2].strip()
    for command in commands:
        ended = Hushsum(monkeypatch, capsys)(*command)
        assert ended.status == 0, ended.err
    assert Plan.from_bytes((tmp_path / "plan.json").read_bytes()).id == EXAMPLE_PLAN.id


def test_the_analyst_example_runs_and_its_intervals_are_near(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "analyst.py"))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("at ")]
    assert len(lines) == 3
    for line in lines:
        value, _, low, high, exact = numbers(line.partition("]")[2])
        assert low < value < high
        assert abs(value - exact) < 3 * (high - low) / 2


def test_every_family_of_the_example_answers_near_the_truth(capsys: pytest.CaptureFixture[str]) -> None:
    """The seeds of hashes and records are fixed, so that noise alone varies: far less than what is left here."""
    runpy.run_path(str(ROOT / "examples" / "families.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:9]] == ["hashed"] * 3 + ["fourier"] * 3 + ["hermite"] * 3
    for line in lines[:9]:
        value, _, low, high, exact = numbers(line)
        assert low < value < high
        assert abs(value - exact) < min(0.02, 3 * (high - low) / 2)
    for line, name in zip(lines[9:11], ("weekday", "weekend"), strict=True):
        assert line.startswith(name)
        near, error, count, exact = numbers(line)
        assert abs(near - exact) < 6 * error < 1000
        assert abs(count - 10_000) < 1000
    heavy, *means = numbers(lines[11])
    assert 300 < heavy < 600
    assert np.abs(np.array(means) - 5).max() < 0.1
    slope, other, *true = numbers(lines[12])
    assert true == [0.5, -0.3]
    assert np.abs(np.array([slope, other]) - true).max() < 0.1
    assert len(lines) == 13


def test_the_secure_sum_of_the_example_is_of_nine_devices_and_near_their_records(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runpy.run_path(str(ROOT / "examples" / "secure_sum.py"), run_name="__main__")
    held, sent, told, *lines = capsys.readouterr().out.splitlines()
    assert numbers(held.partition("holds")[2]) != numbers(sent.partition("sends")[2])[:6]
    assert told.startswith("in the sum: 9 of 10, without device-3")
    assert len(lines) == 3
    for line in lines:
        value, _, low, high, exact = numbers(line.partition("]")[2])
        assert low < value < high
        assert abs(value - exact) < 3 * (high - low) / 2


def test_the_reports_of_the_example_are_near_the_records_that_nobody_saw(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "local_mode.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["report"] * 3
    reports, devices, width = numbers(lines[4].replace(",", ""))
    assert (reports, devices) == (100_000, 1000)
    assert 2 < width < 3
    for line in lines[5:8]:
        value, _, low, high, exact = numbers(line.partition("]")[2])
        assert low < value < high
        assert abs(value - exact) < 3 * (high - low) / 2
    assert lines[8].startswith("ε = 4, δ = 0, unit record, replace")


async def test_the_device_example_contributes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "device.py"))
    async with running(config_of(tmp_path, EXAMPLE_PLAN), SystemRuntime()) as service:
        await example["contribute"](service.grpc, str(tmp_path / "spool.db"))
    assert "1000" in capsys.readouterr().out


DEVICES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "devices.md").read_text(encoding="utf-8"), re.DOTALL)


def device_code(containing: str) -> dict[str, Any]:
    """The names that a block of docs/devices.md defines."""
    (source,) = [block for block in DEVICES if containing in block]
    names: dict[str, Any] = {}
    exec(compile(source, "docs/devices.md", "exec"), names)
    return names


async def test_both_clients_of_the_page_for_devices_contribute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    service = MemoryService(EXAMPLE_PLAN)
    asynchronous, blocking = (block.replace('"localhost:7443"', "service") for block in DEVICES[:2])
    imports, body = asynchronous.split("\n\n", 1)
    names: dict[str, Any] = {"service": service}
    source = f"{imports}\nasync def contribute():\n{textwrap.indent(body, '    ')}"
    exec(compile(source, "docs/devices.md", "exec"), names)
    await names["contribute"]()
    assert service.records == 2
    await asyncio.to_thread(exec, compile(blocking, "docs/devices.md", "exec"), {"service": service})
    assert service.records == 4


async def test_what_the_page_for_devices_watches_and_tests_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    looked: dict[str, Any] = {}
    prometheus, told = device_code("prometheus_client"), device_code("from opentelemetry")
    shown = device_code("EventKind.LATE")
    for number, names in enumerate((prometheus, told, shown)):
        service = MemoryService(EXAMPLE_PLAN)
        service.late()
        spool = tmp_path / f"{number}.db"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotCountedWarning)
            async with EdgeClient(service, spool=spool, on_event=names["on_event"]) as client:
                if "watch" in names:
                    names["watch"](client)
                await client.add([1.5, 2.5])
            looked["client"] = client
    assert "late" in capsys.readouterr().out
    counted = prometheus["EVENTS"].labels("late")
    assert counted._value.get() == 1
    look = next(block for block in DEVICES if "status.next_attempt_ms" in block)
    exec(compile(look, "docs/devices.md", "exec"), looked)
    assert "1 late" in capsys.readouterr().out
    test = device_code("def test_readings_are_contributed")["test_readings_are_contributed"]
    await asyncio.to_thread(test, EXAMPLE_PLAN, tmp_path)


async def test_the_loop_of_the_page_for_devices_follows_its_service_to_a_new_plan(tmp_path: Path) -> None:
    key = SigningKey(bytes(32))
    first, other = small_plan(), small_plan(sketch={"rows": 10})
    plans: list[Plan] = []
    begun = asyncio.Event()

    async def contribute(client: EdgeClient) -> None:
        plans.append(client.plan)
        begun.set()
        while True:
            await client.add([1.5, 2.5])
            await asyncio.sleep(0.05)

    service = MemoryService(first, signed=SignedPlan.sign(first.bundle, key, "planner"))
    policy = Policy(signed_by=key.verify_key, new_plan_after_s=0)
    loop = device_code("async def follow")["follow"]
    running = asyncio.create_task(loop(service, tmp_path / "spool.db", policy, contribute))
    await begun.wait()
    begun.clear()
    service.plan, service.signed = other, SignedPlan.sign(other.bundle, key, "planner")
    service.go_away()
    service.come_back()
    await begun.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert plans == [first, other]


# ------------------------------------------------------------------------------------------- the pages of docs/

HOW_TO = ROOT / "docs" / "how-to"
EXPLANATION = ROOT / "docs" / "explanation"
#: One is read beside a screen; what the others show needs a cluster, or changes the machine.
WITHOUT_COMMANDS = {"dashboard.md", "kubernetes.md", "systemd.md"}


async def leave_data(folder: Path) -> None:
    """Leaves what a service has: `plan.json`, and in `data` one released window, before which `sunday` was taken."""
    runtime = SetRuntime(SystemRuntime().now_ms())  # an hour that ended meanwhile would be a second window
    (folder / "elsewhere").mkdir()
    (folder / "backups").mkdir(mode=0o700)
    places = {"receipts_copy": str(folder / "elsewhere" / "receipts.jsonl"), "publish": str(folder / "releases")}
    config = config_of(folder, EXAMPLE_PLAN, **places)
    async with running(config, runtime) as service:
        await back_up(config, folder / "backups" / "sunday", runtime)
        now_ms = runtime.now_ms()
        async with EdgeClient(service.grpc, spool=folder / "spool.db") as client:
            await client.add([1.5, 2.5], time=now_ms)
            await client.flush(60)
        async with Console(service.grpc, Credentials()) as console:
            window = await console.seal(EXAMPLE_PLAN.window.index_at(now_ms), early=True)
            await console.release(window)
        while not [*(folder / "releases").glob("*/*.hush")]:  # noqa: ASYNC110  it is copied in the background
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("name", sorted(path.name for path in HOW_TO.glob("*.md")))
def test_a_how_to_page_runs_as_it_is_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "backups.md":
        asyncio.run(leave_data(tmp_path))
    blocks = run_page(HOW_TO / name, tmp_path, in_process(monkeypatch, capsys))
    assert blocks >= (0 if name in WITHOUT_COMMANDS else 2)


def refuse(command: str) -> str:
    raise AssertionError(f"a page of explanations runs no command: {command}")


@pytest.mark.parametrize(
    "name", sorted(path.name for path in EXPLANATION.glob("*.md") if "```python" in path.read_text("utf-8"))
)
def test_an_explanation_runs_as_it_is_shown(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(EXPLANATION / name, tmp_path, refuse) >= 1


def test_a_page_that_shows_another_output_is_found(tmp_path: Path) -> None:
    for shown, differs, is_right in (
        ("2 3", False, True),
        ("2 …", False, True),
        ("2 4", False, False),
        ("5 −7", True, False),
        ("-5 1,000.5", True, True),
        ("5", True, True),
        ("5 of 6", True, False),
    ):
        mark = "<!-- numbers differ -->\n" if differs else ""
        page = tmp_path / "a.md"
        page.write_text(f"```python\nprint(1 + 1, 3)\n```\n\n{mark}```text\n{shown}\n```\n", encoding="utf-8")
        if is_right:
            assert run_page(page, tmp_path, str) == 1
        else:
            with pytest.raises(AssertionError, match=shown):
                run_page(page, tmp_path, str)
