"""What the README and the examples show is run as it stands."""

import asyncio
import os
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hushsum as hs
from aggregator.app import running
from aggregator.backup import back_up
from aggregator.runtime import SystemRuntime
from edge_client import EdgeClient, NotCountedWarning, Policy
from edge_client.testing import MemoryService
from hushsum import Plan
from hushsum.entropy import OsEntropy
from hushsum.releases import draw
from hushsum.signed_plan import SignedPlan
from hushsum.signing import SigningKey
from hushsum_cli.advise import advise
from hushsum_proto.credentials import Credentials
from hushsum_simulator.console import Console
from tests.hushsum_cli.calling import Hushsum
from tests.plans import small_plan
from tests.services import config_of

ROOT = Path(__file__).parents[1]
FIRST_RELEASE = (ROOT / "docs" / "first-release.md").read_text(encoding="utf-8")
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


def people(path: Path) -> None:
    """The file of docs/first-release.md."""
    rng = np.random.default_rng(0)
    rows = zip(rng.integers(20, 90, 2000), rng.integers(10_000, 90_000, 2000), strict=True)
    path.write_text("\n".join(["age,income", *(f"{age},{income}" for age, income in rows)]))


def test_the_commands_from_a_file_to_a_release_run_as_they_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    people(tmp_path / "people.csv")
    commands = [line for line in FIRST_RELEASE.splitlines() if line.startswith("hushsum ")]
    assert len(commands) == 4
    out = ""
    for command in commands:
        ended = Hushsum(monkeypatch, capsys)(*shlex.split(command, comments=True)[1:])
        assert ended.status == 0, ended.err
        out = ended.out
    assert "kernel sum" in out


def test_the_call_from_a_frame_to_a_release_runs_as_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    people(tmp_path / "people.csv")
    code = "\n".join(re.findall(r"```python\n(.*?)```", FIRST_RELEASE, re.DOTALL))
    bounds = {"age": (0, 120), "income": (0, 200_000)}
    hs.Release.from_data("people.csv", bounds=bounds, epsilon=1.0).save("yesterday.hush")
    plan, names = hs.load("yesterday.hush").plan, {"hs": hs, "pd": pd, "df": pd.read_csv("people.csv")}
    for window in range(5, 8):
        sketch = hs.Sketch(plan).add("people.csv")
        made = draw(sketch, kind="tumbling", window=window, entropy=OsEntropy(), accounted=True)
        made.save(f"{window}.hush")
    names |= {"paths": [f"{window}.hush" for window in range(5, 8)], "monday": 5, "next_monday": 7}
    exec(compile(code, "first-release.md", "exec"), names)
    assert "hermite, kernel gaussian" in capsys.readouterr().out
    with hs.Ledger("ledger.db") as ledger:
        assert float(ledger.spent.epsilon) == 2.0, "of the release and of the fit"


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
# Blocks of `python` and `console` are run in their order. A comment before a block makes it a file of that name. What
# is shown under a command, or in the `text` after a `python` block, is in its output: … stands for anything.

DOCS = ROOT / "docs"
BLOCK = re.compile(r"(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)```", re.DOTALL)


REFUSED = "! "  # before a command that is to end with status 1: an error is shown under it


def shows(expected: str, out: str) -> bool:
    """Whether an output has what a page shows, whatever the width of its lines and tables."""
    parts = [re.escape(" ".join(part.split())) for part in expected.split("…")]
    return re.search(".*".join(parts), " ".join(out.split())) is not None


def commands_of(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block, with the lines that are shown under it."""
    for part in re.split(r"^\$ ", textwrap.dedent(block), flags=re.MULTILINE)[1:]:
        command, *lines = part.splitlines()
        yield command, [line for line in lines if line.strip()]


def run_page(name: str, folder: Path, run: Callable[[str], str]) -> int:
    """Runs the blocks of a page in a folder; the number of blocks that were run.

    Args:
        name: Its path within docs/.
        folder: The current directory.
        run: Runs a command of a console block, and gives its output.
    """
    names: dict[str, Any] = {}
    out, blocks = None, 0
    for block in BLOCK.finditer((DOCS / name).read_text(encoding="utf-8")):
        kind, text = block["kind"], block["text"]
        assert kind, f"{name}: a block without a language: {text}"
        if block["file"]:
            (folder / block["file"]).write_text(text, encoding="utf-8")
        elif kind == "python":
            printed = StringIO()
            with redirect_stdout(printed):
                exec(compile(text, name, "exec"), names)
            out, blocks = printed.getvalue(), blocks + 1
            continue
        elif kind == "console":
            blocks += 1
            commands = list(commands_of(text))
            assert commands, f"{name}: a console block without a command: {text}"
            for command, lines in commands:
                is_refused = any(line.strip().startswith("hushsum: ") or ": failed: " in line for line in lines)
                came = run(f"{REFUSED}{command}" if is_refused else command)
                assert all(shows(line, came) for line in lines), f"{name}: {command}: {lines}\n{came}"
        elif kind == "text" and out is not None:
            assert shows(text, out), f"{name}: {text}\n{out}"
        out = None
    return blocks


async def leave_data(folder: Path) -> None:
    """Leaves what a service has: `plan.json`, and in `data` one released window, before which `sunday` was taken."""
    runtime = SystemRuntime()
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


@pytest.mark.parametrize("name", sorted(path.name for path in (DOCS / "how-to").glob("*.md")))
def test_a_how_to_page_runs_as_it_is_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shown_id = "0123456789abcdef"

    def process(program: str, words: list[str]) -> str:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
        ended = subprocess.run(
            [sys.executable if program == "python" else program, *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def run(command: str) -> str:
        """The output of a command, as in a shell: `*` stands for files, `>>` appends, and an id is the first listed."""
        nonlocal shown_id
        status, command = int(command.startswith(REFUSED)), command.removeprefix(REFUSED)
        command, _, target = command.replace("0123456789abcdef", shown_id).partition(" >> ")
        program, *rest = shlex.split(command)
        words: list[str] = []
        for word in rest:
            words += sorted(str(path) for path in Path().glob(word)) if "*" in word else [word]
        if program != "hushsum":
            return process(program, words)
        ended = Hushsum(monkeypatch, capsys)(*words)
        assert ended.status == status, ended.out + ended.err
        if status:
            return ended.out + ended.err
        if target:
            with Path(target).open("a", encoding="utf-8") as file:
                file.write(ended.out)
        if command.startswith("hushsum admin tokens list"):
            shown_id = re.findall(r"\b[0-9a-f]{16}\b", ended.out)[0]
        return ended.out.replace(shown_id, "0123456789abcdef")

    if name == "backups.md":
        asyncio.run(leave_data(tmp_path))
    assert run_page(f"how-to/{name}", tmp_path, run) >= 2


def test_a_page_that_shows_another_output_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "DOCS", tmp_path)
    for shown, is_right in (("2 3", True), ("2 …", True), ("2 4", False)):
        page = f"```python\nprint(1 + 1, 3)\n```\n\n```text\n{shown}\n```\n"
        (tmp_path / "a.md").write_text(page, encoding="utf-8")
        if is_right:
            assert run_page("a.md", tmp_path, str) == 1
        else:
            with pytest.raises(AssertionError, match=shown):
                run_page("a.md", tmp_path, str)


def files_of(name: str) -> dict[str, str]:
    """The files that a page lets its reader write."""
    found = BLOCK.finditer((DOCS / name).read_text(encoding="utf-8"))
    return {block["file"]: block["text"] for block in found if block["file"]}


async def test_the_device_of_the_tutorial_contributes_to_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = files_of("tutorials/three-devices.md")
    monkeypatch.chdir(tmp_path)
    async with running(config_of(tmp_path, Plan.from_toml(files["rooms.toml"])), SystemRuntime()) as service:
        monkeypatch.setattr(sys, "argv", ["device.py", "kitchen", "21", "50"])
        code = files["device.py"].replace("localhost:7443", service.grpc)
        await asyncio.to_thread(exec, compile(code, "device.py", "exec"), {})
    assert "kitchen added 500 readings; 1 delta acknowledged\n" in capsys.readouterr().out


class Terminals:
    """Two terminals of a reader: commands as real processes, on a free port; what serves goes on in the other one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}", "PYTHONUNBUFFERED": "1"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._serving: subprocess.Popen[str] | None = None
        self._window = ""

    def run(self, command: str) -> str:
        """The output of a command; of what serves, until it listens."""
        words = shlex.split(command.replace("20783", self._window or "20783"))
        program = [sys.executable] if words[0] == "python" else [sys.executable, "-m", "hushsum_cli"]
        if words[:2] == ["hushsum", "serve"]:
            listen = ["--listen", self.address, "--metrics-listen", ""]
            return self._serve([*program, *words[1:], *listen])
        option = {"admin": "--at", "release": "--from"}.get(words[1])
        where = [option, self.address] if option else []
        out = self._ended([*program, *words[1:], *where])
        while "0 published" in out:  # a reader who types is slower than a release
            time.sleep(0.5)
            out = self._ended([*program, *words[1:], *where])
        if words[1:3] == ["admin", "windows"]:
            self._window = re.findall(r"\d+", out)[0]
        return out.replace(self._window, "20783") if self._window else out

    def _ended(self, words: list[str]) -> str:
        ended = subprocess.run(
            words, cwd=self._folder, env=self._environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def _serve(self, words: list[str]) -> str:
        self._serving = subprocess.Popen(
            words, cwd=self._folder, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._serving.stdout is not None
        said = ""
        for line in self._serving.stdout:
            said += line
            if "listening" in line:
                break
        return said

    def close(self) -> None:
        """Ends what serves, as Ctrl-C does."""
        if self._serving is not None:
            self._serving.terminate()
            self._serving.communicate(timeout=60)


@contextmanager
def terminals(folder: Path) -> Iterator[Terminals]:
    opened = Terminals(folder)
    try:
        yield opened
    finally:
        opened.close()


@pytest.mark.long
def test_the_tutorial_of_three_devices_runs_as_a_reader_types_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its device connects to the address of the test, all else is as on the page; the values are near the truth."""
    name, answers = "tutorials/three-devices.md", ""
    text = (DOCS / name).read_text(encoding="utf-8")
    monkeypatch.setattr(sys.modules[__name__], "DOCS", tmp_path / "docs")
    with terminals(tmp_path) as opened:

        def run(command: str) -> str:
            nonlocal answers
            out = opened.run(command)
            if command.startswith("hushsum query"):
                answers = out
            return out

        (tmp_path / "docs" / "tutorials").mkdir(parents=True)
        here = text.replace("localhost:7443", opened.address)
        (tmp_path / "docs" / name).write_text(here, encoding="utf-8")
        assert run_page(name, tmp_path, run) == 8
    near, _, far = [numbers(line)[2:4] for line in answers.splitlines() if re.match(r" *\d+, \d+ ", line)]
    assert near[0] > 400
    assert abs(far[0]) < 6 * far[1]
