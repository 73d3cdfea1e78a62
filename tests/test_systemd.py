"""The systemd unit: systemd accepts it, it is confined, and the service takes its settings."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.config import Config
from hushsum_cli.serve import serve

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "systemd"
UNIT = FOLDER / "hushsum.service"
EXPOSURE_MAX = 25  # tenths, of 100

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not there")


def values(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)


def options() -> Iterator[tuple[str, str]]:
    """The options of the command, by the names of settings."""
    (command,) = values("ExecStart")
    program, name, *words = shlex.split(command)
    assert (Path(program).name, name) == ("hushsum", "serve")
    for option, value in zip(words[::2], words[1::2], strict=True):
        yield option.removeprefix("--").replace("-", "_"), value


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that is here."""
    text = UNIT.read_text(encoding="utf-8").replace("/opt/hushsum/bin/hushsum", sys.executable)
    copy = tmp_path / UNIT.name
    copy.write_text(text, encoding="utf-8")
    return copy


def analyzed(*words: str) -> tuple[int, str]:
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@needs_systemd
def test_systemd_has_nothing_to_say(unit: Path) -> None:
    # Other units of this machine are none of ours.
    assert analyzed("verify", "--man=no", "--recursive-errors=no", str(unit)) == (0, "")


@needs_systemd
def test_systemd_names_an_option_that_it_does_not_know(unit: Path) -> None:
    unit.write_text(unit.read_text(encoding="utf-8").replace("UMask", "UMaks"), encoding="utf-8")
    assert "UMaks" in analyzed("verify", "--man=no", "--recursive-errors=no", str(unit))[1]


@needs_systemd
def test_the_process_is_confined(unit: Path) -> None:
    status, told = analyzed("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(unit))
    assert status == 0, told


def test_the_command_takes_every_option_and_the_service_the_settings() -> None:
    given = dict(options())
    known = {parameter.name for parameter in serve.params}
    names = {name: name if name != "config" else "config_file" for name in given}
    assert set(names.values()) <= known
    overrides: dict[str, object] = {name: value for name, value in given.items() if name != "config"}
    config = Config.load(FOLDER / "hushsum.toml", overrides)
    assert config.authentication == "token"
    assert config.memory_max is not None
    assert values("MemoryMax") == ["1G"]
    assert config.memory_max < 2**30
    assert values("TimeoutStopSec") == ["40"]
    assert config.stop_s < 40
    assert str(config.data) == f"/var/lib/{values('StateDirectory')[0]}"
    assert given["config"] == f"/etc/hushsum/{(FOLDER / 'hushsum.toml').name}"


def test_every_credential_is_loaded_and_every_loaded_one_is_used() -> None:
    used = {Path(value).name for name, value in options() if value.startswith("${CREDENTIALS_DIRECTORY}/")}
    assert used == {each.partition(":")[0] for each in values("LoadCredential")}
    assert not re.search(r"(?i)password|secret", UNIT.read_text(encoding="utf-8"))


def test_the_user_is_that_of_sysusers() -> None:
    (line,) = re.findall(r"^u (\S+) - .* (\S+)$", (FOLDER / "hushsum.sysusers.conf").read_text("utf-8"), re.MULTILINE)
    assert line == (values("User")[0], "/var/lib/hushsum")
