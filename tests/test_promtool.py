"""The promtool of the tests: one that is there is taken, and what keeps it from being fetched is told in one line."""

import stat
from pathlib import Path

import pytest

from build_tools import promtool


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any program, and without a cache; the folder of its path."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(promtool, "CACHE", tmp_path / "cache")
    return tmp_path / "bin"


@pytest.mark.parametrize("place", ["bin", "cache"])
def test_one_that_is_there_is_taken_and_nothing_is_done(
    empty: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program(empty.parent / place, "promtool", "exit 0")
    assert promtool.promtool() == str(empty.parent / place / "promtool")
    assert promtool.main() == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("ci", [True, False])
@pytest.mark.parametrize("programs", [{}, {"dpkg-deb": "exit 0", "apt-get": "echo 'E: no network' >&2; exit 100"}])
def test_what_keeps_it_away_is_one_line_and_a_failure_under_ci(
    empty: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    programs: dict[str, str],
    ci: bool,
) -> None:
    for name, script in programs.items():
        program(empty, name, script)
    monkeypatch.setenv("CI", str(ci).lower())
    assert promtool.main() == int(ci)
    shown = capsys.readouterr()
    assert shown.out.count("\n") == shown.err.count("\n") == 1
    assert ("E: no network" if programs else "there is no apt-get") in shown.err
    assert promtool.promtool() is None
