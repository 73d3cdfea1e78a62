"""Pages of docs/ run as they stand: their blocks of `python` and `console` in their order, against what they show."""

import os
import re
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from build_tools.docs_site.tutorials import BLOCK, STOP, commands_of
from hushsum_simulator.testbed.process import free_port
from tests.hushsum_cli.calling import Hushsum

ROOT = Path(__file__).parents[1]
#: How long a list of releases is asked for again until it shows what a page shows: a reader waits for a window's end.
PATIENCE_S = 120
#: What `run` is given where a page says that the reader stops the service.
INTERRUPT = "^C"
SHOWN_WINDOW = "20783"
_SHOWN_TOKEN = "0123456789abcdef"
_SHOWN_DIGEST = "50201d268163f7a140c62f8c2ba756663b58d529f4936e46c6cf0c65589296f3"
#: Of each id of a page, where each reader has another: the command that prints it, and where.
_SHOWN_IDS = {
    _SHOWN_DIGEST: ("hushsum keys check ", r"digest ([0-9a-f]{64})"),
    _SHOWN_TOKEN: ("hushsum admin tokens list ", r"\b([0-9a-f]{16})\b"),
}
_NUMBER = r"\b[0-9a-f]{8,}\b|-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"


class Refused(str):
    """The output of a command that has ended with an error."""

    __slots__ = ()


def shows(expected: str, out: str, *, numbers_differ: bool = False) -> bool:
    """Whether an output has what a page shows, whatever the width of its lines and tables; … stands for anything."""
    if numbers_differ:
        expected, out = (re.sub(_NUMBER, "#", each) for each in (expected, out))
    expected, out = (re.sub("─+", "─", " ".join(each.split())) for each in (expected, out))
    parts = [re.escape(part.strip()) for part in expected.split("…")]
    return re.search(".*".join(parts), out) is not None


def answers(out: str) -> list[list[float]]:
    """Value and standard error at each place of an output of `hushsum query`."""
    lines = re.findall(r"^ *\d+, \d+ (.*)$", out, re.MULTILINE)
    return [[float(number.replace(",", "")) for number in line.split()[:2]] for line in lines]


def run_page(page: Path, folder: Path, run: Callable[[str], str], patience_s: float = 0) -> int:
    """Runs the blocks of a page in a folder; the number of blocks that were run.

    A comment before a block makes it a file of that name. What is shown under a command, or in the `text` after a
    `python` block, is in its output.

    Args:
        page: Its path.
        folder: The current directory.
        run: Runs a command of a console block, and gives its output. It gets `^C` where the page says that the reader
            stops the service.
        patience_s: How long `hushsum release list` is repeated until its output is as shown.
    """
    names: dict[str, Any] = {}
    out, blocks, name, end = None, 0, page.name, 0
    whole = page.read_text(encoding="utf-8")
    for block in BLOCK.finditer(whole):
        kind, text = block["kind"], block["text"]
        if STOP in whole[end : block.start()]:
            run(INTERRUPT)
        end = block.end()
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
                until = time.monotonic() + (patience_s if command.startswith("hushsum release list") else 0)
                differs = bool(block["differs"])
                errors = any(line.strip().startswith("hushsum: ") or ": failed: " in line for line in lines)
                while missing := missing_of(lines, came := run(command), numbers_differ=differs):
                    assert time.monotonic() < until, f"{name}: {command}: {missing}\n{came}"
                    time.sleep(2)
                assert errors or not isinstance(came, Refused), f"{name}: {command}: {came}"
        elif kind == "text" and out is not None:
            assert shows(text, out, numbers_differ=bool(block["differs"])), f"{name}: {text}\n{out}"
        out = None
    return blocks


def missing_of(lines: list[str], came: str, *, numbers_differ: bool) -> list[str]:
    """The lines that a page shows and an output lacks."""
    return [line for line in lines if not shows(line, came, numbers_differ=numbers_differ)]


def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """What runs commands without a shell and gives their output: `hushsum` in this process, others as processes.

    `*` stands for files, `>>` appends, and the id that pages show is the first that was listed.
    """
    own = _SHOWN_TOKEN

    def run(command: str) -> str:
        nonlocal own
        command, _, target = command.replace(_SHOWN_TOKEN, own).partition(" >> ")
        program, *rest = shlex.split(command)
        words: list[str] = []
        for word in rest:
            words += sorted(str(path) for path in Path().glob(word)) if "*" in word else [word]
        if program != "hushsum":
            return process(program, words)
        ended = Hushsum(monkeypatch, capsys)(*words)
        if ended.status:
            return Refused(ended.out + ended.err)
        if target:
            with Path(target).open("a", encoding="utf-8") as file:
                file.write(ended.out)
        if command.startswith("hushsum admin tokens list"):
            own = re.findall(r"\b[0-9a-f]{16}\b", ended.out)[0]
        return ended.out.replace(own, _SHOWN_TOKEN)

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

    return run


_HUSHSUM = """\
#!/bin/sh
case "$1 $2" in
  "serve "*) set -- "$@" --listen {address} --metrics-listen "" ;;
  "admin tokens" | "admin backup" | "admin restore" | "release make" | "release show") ;;
  "admin "*) set -- "$@" --at {address} ;;
  "release "*) set -- "$@" --from {address} ;;
  "send "*) set -- "$@" --to {address} ;;
esac
exec {python} -m hushsum_cli "$@"
"""
_PYTHON = """\
#!/bin/sh
exec {python} "$@"
"""


class Terminals:
    """Two terminals of a reader: commands in a real shell, on a free port; what serves goes on in the other one.

    Attributes:
        address: Of the service: stands for the default address of every command, and for `localhost:7443` in files.
        environment: Of every command; `export` changes it.
        outputs: Each command that has ended, with its output.
    """

    def __init__(self, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.outputs: list[tuple[str, str]] = []
        programs = folder / "programs"
        programs.mkdir(parents=True)
        for name, script in (("hushsum", _HUSHSUM), ("python", _PYTHON)):
            file = programs / name
            file.write_text(script.format(address=self.address, python=shlex.quote(sys.executable)), encoding="utf-8")
            file.chmod(file.stat().st_mode | stat.S_IXUSR)
        self.folder = folder / "empty"
        self.folder.mkdir()
        self.environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}",
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "80",
        }
        self._serving: subprocess.Popen[str] | None = None
        self._own = {SHOWN_WINDOW: str(int(time.time() // 86_400))}

    def run(self, command: str) -> str:
        """The output of a command, errors included; of what serves, until it listens.

        A command fails where its output ends with an error, and only there.
        """
        if command == INTERRUPT:
            self.close()
            return ""
        if command.startswith("export "):
            self.environment |= dict(word.split("=", 1) for word in shlex.split(command)[1:])
            return ""
        if command.startswith("hushsum serve ") and "--check" not in command:
            assert self._serving is None, "a service runs already: the page says nowhere that it is stopped"
            return self._serve(command)
        for file in self.folder.glob("*.toml"):
            text = file.read_text(encoding="utf-8")
            if text != (own := self._with_own(text)):
                file.write_text(own, encoding="utf-8")
        out = self._ended(self._with_own(command))
        self.outputs.append((command, out))
        for shown, (prints, where) in _SHOWN_IDS.items():
            if command.startswith(prints):
                self._own[shown] = re.findall(where, out)[0]
        for shown, own in self._own.items():
            out = out.replace(own, shown)
        return out

    def _with_own(self, text: str) -> str:
        """What a reader types: a page's text with the reader's own ids."""
        for shown, own in self._own.items():
            text = text.replace(shown, own)
        return text

    def copy_of(self, page: Path) -> Path:
        """A copy of a page whose files name the address of the service."""
        copy = self.folder.parent / page.name
        text = page.read_text(encoding="utf-8").replace("localhost:7443", self.address)
        copy.write_text(text, encoding="utf-8")
        return copy

    def _ended(self, command: str) -> str:
        ended = subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            timeout=180,
        )
        errors = re.findall(r"^(?:hushsum: (?!warning)|Error: ).*", ended.stdout, re.MULTILINE)
        assert (ended.returncode != 0) == bool(errors), f"{command}: status {ended.returncode}\n{ended.stdout}"
        return ended.stdout

    def _serve(self, command: str) -> str:
        self._serving = subprocess.Popen(
            ["sh", "-c", f"exec {command}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._serving.stdout is not None
        said = ""
        for line in self._serving.stdout:
            said += line
            if "listening" in line:
                return said
        raise AssertionError(f"{command}: {said}")

    def close(self) -> None:
        """Ends what serves, as Ctrl-C does."""
        if self._serving is not None:
            self._serving.terminate()
            self._serving.communicate(timeout=120)
            self._serving = None


@contextmanager
def terminals(folder: Path) -> Iterator[Terminals]:
    """Terminals whose service is stopped at the end. They do not begin in the last three minutes of a day (UTC)."""
    left_s = 86_400 - time.time() % 86_400
    if left_s < 180:
        time.sleep(left_s)
    opened = Terminals(folder)
    try:
        yield opened
    finally:
        opened.close()
