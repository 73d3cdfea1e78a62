"""The systemd unit: systemd accepts it, it is confined, and the service takes its settings."""

import asyncio
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
from tests.aggregator.disk_site import disk_site
from tests.aggregator.test_verify import PLAN, collected
from tests.doubles import ManualRuntime

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "systemd"
UNIT = FOLDER / "hushsum.service"
BACKUP = FOLDER / "hushsum-backup.service"
TIMER = FOLDER / "hushsum-backup.timer"
EXPOSURE_MAX = 25  # tenths, of 100

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not there")


def values(key: str, unit: Path = UNIT) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)


def options() -> Iterator[tuple[str, str]]:
    """The options of the command, by the names of settings."""
    (command,) = values("ExecStart")
    program, name, *words = shlex.split(command)
    assert (Path(program).name, name) == ("hushsum", "serve")
    for option, value in zip(words[::2], words[1::2], strict=True):
        yield option.removeprefix("--").replace("-", "_"), value


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that is here, beside the others."""
    for each in FOLDER.glob("hushsum*.[st]*"):
        text = each.read_text(encoding="utf-8").replace("/opt/hushsum/bin/hushsum", sys.executable)
        (tmp_path / each.name).write_text(text, encoding="utf-8")
    return tmp_path / UNIT.name


def analyzed(*words: str) -> tuple[int, str]:
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@needs_systemd
def test_systemd_has_nothing_to_say(unit: Path) -> None:
    # Other units of this machine are none of ours.
    ours = [str(unit.with_name(name)) for name in (UNIT.name, BACKUP.name, TIMER.name)]
    assert analyzed("verify", "--man=no", "--recursive-errors=no", *ours) == (0, "")


@needs_systemd
def test_systemd_names_an_option_that_it_does_not_know(unit: Path) -> None:
    unit.write_text(unit.read_text(encoding="utf-8").replace("UMask", "UMaks"), encoding="utf-8")
    assert "UMaks" in analyzed("verify", "--man=no", "--recursive-errors=no", str(unit))[1]


@needs_systemd
@pytest.mark.parametrize("name", ("hushsum.service", "hushsum-backup.service"))
def test_the_process_is_confined(unit: Path, name: str) -> None:
    status, told = analyzed("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(unit.with_name(name)))
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


# ---------------------------------------------------------------------------------------------------------- back-ups
def ran(key: str, data: Path, target: Path) -> int:
    """The exit status of a command of the back-up's unit, as systemd would start it, over these directories."""
    (command,) = values(key, BACKUP)
    words = [
        word.replace("%%", "%")
        .replace("/opt/hushsum/bin/hushsum", f"{sys.executable} -m hushsum_cli")
        .replace("/var/lib/hushsum-backups", str(target))
        .replace("/var/lib/hushsum", str(data))
        for word in shlex.split(command)
    ]
    return subprocess.run(words, check=False, capture_output=True).returncode


async def test_a_back_up_is_made_and_replaces_older_ones_only_if_it_succeeded(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "backups"
    data.mkdir(mode=0o700)
    await collected(data)
    older = target / "2026-01-01T00-00-00Z"
    older.mkdir(parents=True)
    assert ran("ExecStart", tmp_path / "nothing", target) != 0
    assert list(target.iterdir()) == [older], "one that failed leaves nothing"
    assert ran("ExecStart", data, target) == 0
    assert ran("ExecStartPost", data, target) == 0
    (made,) = target.iterdir()
    assert made != older
    assert {"store.db", "log.db", "receipts.jsonl", "manifest.json"} <= {each.name for each in made.iterdir()}


def test_the_back_up_is_of_the_services_data_as_its_user() -> None:
    assert values("User", BACKUP) == values("User")
    assert values("StateDirectory", BACKUP)[0].split() == [values("StateDirectory")[0], "hushsum-backups"]
    # A timer without Unit= starts the service of its name.
    assert TIMER.with_suffix(".service") == BACKUP


# ----------------------------------------------------------------------------------- docs/how-to/systemd.md: a restore
AS_USER = "runuser -u hushsum -- /opt/hushsum/bin/hushsum "


def restoring() -> str:
    page = (FOLDER.parent.parent / "docs" / "how-to" / "systemd.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(.*?)```", page.partition("## Restore a back-up")[2], re.DOTALL)
    return str(block)


async def released(folder: Path) -> None:
    """One window is released, and its receipts have no copy."""
    async with disk_site(folder, PLAN, ManualRuntime()) as site:
        await site.send(0, window=site.window)
        await site.releaser.seal(early=True)
        await site.releaser.release()


def test_the_commands_of_the_page_restore_the_newest_back_up(tmp_path: Path) -> None:
    data, backups = tmp_path / "hushsum", tmp_path / "hushsum-backups"
    data.mkdir(mode=0o700)
    asyncio.run(released(data))
    backups.mkdir()
    assert ran("ExecStart", data, backups) == 0
    (backups / "2026-01-01T00-00-00Z").mkdir()  # an older one, of which there is nothing
    here = (
        restoring()
        .replace("/var/lib/", f"{tmp_path}/")
        .replace(AS_USER, f"{sys.executable} -m hushsum_cli ")
        .replace("-o hushsum -g hushsum ", "")  # there is no such user here
        .replace("systemctl ", ": ")
    )
    done = subprocess.run(["sh", "-euc", here], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "restored; every outcome that is proved by" in done.stdout
    assert "ledger: ok" in done.stdout
    assert (data / "store.db").exists()
    assert data.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "hushsum.old" / "receipts.jsonl").exists()


def test_a_restore_stops_what_uses_the_data_and_makes_its_files_as_the_units_user() -> None:
    first, *between, last = restoring().splitlines()
    assert first.split() == [
        "systemctl",
        "stop",
        *(each.name.removesuffix(".service") for each in (UNIT, TIMER)),
        BACKUP.name,
    ]
    assert last.split() == ["systemctl", "start", *(each.name.removesuffix(".service") for each in (UNIT, TIMER))]
    assert AS_USER.split()[2] == values("User")[0]
    commands = [line for line in between if "bin/hushsum" in line]
    assert len(commands) == 2
    assert all(line.startswith(AS_USER) for line in commands)
    (made,) = (shlex.split(line) for line in between if line.startswith("install "))
    assert made == ["install", "-d", "-m", "700", "-o", values("User")[0], "-g", values("Group")[0], "/var/lib/hushsum"]
