"""What is delivered, and what it is made of: builds, licences, the bill of materials, known vulnerabilities, bounds."""

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from build_tools import licences, release_check
from build_tools.licences import LOCK, ROOT, is_allowed, listed, locked

SHIPPED = ("hushsum", "hushsum_cli", "hushsum_page", "edge_client", "aggregator", "hushsum_simulator")
OURS = (*SHIPPED, "hushsum_proto")
IMPORTED = re.compile(r"^\s*(?:from|import) ([a-zA-Z_][\w.]*)", re.MULTILINE)
NOWHERE = "http://127.0.0.1:1"  # no proxy listens there


def recipe(target: str, **variables: str) -> list[str]:
    """The commands of a target of the Makefile itself, without those of what it needs."""
    words = [
        "make",
        "--dry-run",
        "--silent",
        target,
        f"PY={sys.executable}",
        *(f"{n}={v}" for n, v in variables.items()),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    told = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    commands = told.replace("\\\n", " ").splitlines()
    return [command for command in commands if "build_tools/setup.sh" not in command]


# ----------------------------------------------------------------------------------------------------------- licences
def test_every_package_of_the_lock_has_a_licence_that_is_allowed() -> None:
    rows = list(listed())
    assert len(rows) > 100
    assert not [row for row in rows if not is_allowed(row[2])]


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("BSD-3-Clause AND 0BSD AND MIT", True),
        ("GPL-3.0-only OR LGPL-3.0-only", False),
        ("(MIT)", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_an_expression_is_allowed_if_one_alternative_is(expression: str, *, allowed: bool) -> None:
    assert is_allowed(expression) is allowed


def test_a_package_that_says_nothing_or_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("no-such-package-anywhere==1.0 \\\n    --hash=sha256:00\nnumpy==2.0\n")
    (unknown, numpy) = listed(lock)
    assert unknown == ("no-such-package-anywhere", "1.0", "unknown")
    assert is_allowed(numpy[2])
    monkeypatch.setattr(licences, "ALLOWED", frozenset({"MIT"}))
    with pytest.raises(SystemExit, match=r"not allowed .*numpy: "):
        licences.main()


def test_no_licence_is_stated_for_a_package_that_is_not_locked() -> None:
    assert licences.STATED.keys() <= {name for name, _ in locked(LOCK.read_text(encoding="utf-8"))}


# ------------------------------------------------------------------------------------------------- bill of materials
@pytest.mark.long
def test_the_bill_of_materials_has_every_package_of_the_image_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    (_, command, _) = recipe("sbom")
    written = []
    for number in range(2):
        file = tmp_path / f"{number}.json"
        words = [str(file) if word == "build/hushsum.cdx.json" else word for word in shlex.split(command)]
        subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
        written.append(file.read_bytes())
    assert written[0] == written[1]
    bill = json.loads(written[0])
    image = dict(locked((ROOT / "compose" / "requirements.lock").read_text(encoding="utf-8")))
    assert {each["name"]: each["version"] for each in bill["components"]} == image
    assert bill["metadata"]["component"]["name"] == "hushsum"
    assert all(each["externalReferences"][0]["hashes"] for each in bill["components"])


# ---------------------------------------------------------------------------------------------- known vulnerabilities
def test_an_audit_that_reaches_no_index_fails_and_does_not_say_that_all_is_well() -> None:
    (command,) = recipe("audit-dependencies")
    assert "--strict" in command
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOWHERE)
    environment = {**os.environ, **proxies, "NO_PROXY": "", "no_proxy": ""}
    done = subprocess.run(shlex.split(command), cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "No known vulnerabilities found" not in done.stdout + done.stderr
    assert "127.0.0.1" in done.stderr, "it failed because nothing was reached"


# -------------------------------------------------------------------------------------------------------- the release
@pytest.mark.long
def test_wheel_and_sdist_have_the_same_bytes_wherever_and_whenever_they_are_built(tmp_path: Path) -> None:
    files = release_check.built_twice(tmp_path)
    assert sorted(Path(name).suffix for name in files) == [".gz", ".whl"]


def test_builds_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = iter(range(9))
    monkeypatch.setattr(release_check, "copy_of_sources", lambda folder, umask: None)

    def differing(_: Path, out: Path, *targets: str) -> dict[str, bytes]:
        out.mkdir(parents=True)
        tarfile.open(out / "a.tar.gz", "w:gz").close()
        return {"a.tar.gz": b"", "a.whl": b"%d" % next(calls)}

    monkeypatch.setattr(release_check, "build", differing)
    with pytest.raises(SystemExit, match=r"a\.whl has other bytes when it is built again"):
        release_check.built_twice(tmp_path)


# ------------------------------------------------------------------------------------------------ internal interfaces
#: By distribution, the modules that its project keeps for itself, beside those whose names begin with an underscore.
INTERNAL = {"aiokafka": re.compile(r"aiokafka\.(client|cluster|conn|protocol|consumer|producer|coordinator)\b")}

#: Private attributes that are used, by file: whose they are. ruff (SLF001) lets none pass without a mark in its line.
PRIVATE: Final[Mapping[str, str | None]] = {
    "aggregator/log/kafka/internals.py": "aiokafka",
    "aggregator/store/postgres.py": "asyncpg",
    "edge_client/testing.py": None,  # its own
    "hushsum/errors.py": None,  # Python's
    "hushsum/plan.py": None,  # its own
    "hushsum/statistics.py": None,  # its own
}


def files_with_private_attributes() -> set[str]:
    paths = (path for package in SHIPPED for path in (ROOT / package).rglob("*.py"))
    return {str(path.relative_to(ROOT)) for path in paths if "noqa: SLF001" in path.read_text(encoding="utf-8")}


def internal_uses() -> Iterator[tuple[str, str]]:
    """Distribution, and what of it is internal and used by what is shipped: a module, or the file that uses it."""
    yield from ((whose, file) for file, whose in PRIVATE.items() if whose is not None)
    for package in SHIPPED:
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in IMPORTED.findall(path.read_text(encoding="utf-8")):
                top = name.partition(".")[0]
                is_private = any(part.startswith("_") for part in name.split(".")) and not top.startswith("_")
                if top not in OURS and (is_private or (top in INTERNAL and INTERNAL[top].match(name))):
                    yield distribution_of(name), name


def distribution_of(module: str) -> str:
    if not module.startswith("opentelemetry"):
        return module.partition(".")[0]
    if module.startswith("opentelemetry.exporter"):
        return "opentelemetry-exporter-otlp-proto-grpc"
    return "opentelemetry-sdk" if module.startswith("opentelemetry.sdk") else "opentelemetry-api"


def test_every_use_of_private_attributes_says_whose_they_are() -> None:
    assert files_with_private_attributes() == PRIVATE.keys()


def test_what_is_used_through_an_internal_interface_has_an_upper_bound() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    bounds = {re.split(r"[<>=;\[ ]", each)[0]: each for each in needed}
    uses = dict(internal_uses())
    assert "aiokafka" in uses
    assert not {name: module for name, module in uses.items() if "<" not in bounds[name]}
