"""Help, exit statuses, and errors that are one line."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import hushsum as package
from build_tools.docs_site import service_pages
from hushsum_cli.extras import EXTRAS
from hushsum_cli.main import cli
from tests.hushsum_cli.calling import Hushsum
from tests.plans import small_plan


def commands(group: click.Group, *names: str) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        found.append((*names, name))
        if isinstance(command, click.Group):
            found += commands(command, *names, name)
    return found


ALL = commands(cli)
ROOT = Path(__file__).parents[2]
TOML = """name = "points"
record = { dim = 2, lower = [0, 0], upper = [10, 10], names = ["x", "y"] }
sketch = { family = "hashed", kernel = "euclidean", bandwidth = 2, rows = 20, buckets = 64 }
[privacy]
epsilon = 1
total_epsilon = 100
"""
ASKED: dict[str, list[str]] = {
    "click": [],
    "rich": ["plan", "show", "plan.toml"],
    "pyarrow": ["simulate", "--data", "records.csv"],
    "vl_convert": ["plot", "today.hush", "-o", "today.html"],
    "jinja2": ["view", "today.hush"],
}


def test_the_commands_are_those_that_were_promised() -> None:
    promised = {
        "simulate",
        "serve",
        "send",
        "plan",
        "release",
        "query",
        "describe",
        "drift",
        "plot",
        "view",
        "audit",
        "ledger",
        "keys",
    }
    promised |= {"admin"}
    assert {names[0] for names in ALL} == promised
    operators = {names[1] for names in ALL if names[0] == "admin" and len(names) > 1}
    assert operators == {
        *("seal", "release", "status", "plans", "windows", "ledger", "tokens"),
        *("backup", "restore", "verify", "mark-lost", "begin-receipts-copy", "end-receipts-copy"),
    }


@pytest.mark.parametrize("names", ALL, ids=" ".join)
def test_every_command_explains_itself(hushsum: Hushsum, names: tuple[str, ...]) -> None:
    ended = hushsum(*names, "--help")
    assert ended.status == 0
    assert "Usage: hushsum " + " ".join(names) in ended.out
    is_group = names in {("plan",), ("release",), ("admin",), ("admin", "tokens"), ("ledger",), ("keys",)}
    assert is_group or f"\n  Example:\n    hushsum {' '.join(names)}" in ended.out.replace("Examples:", "Example:")


def test_serve_shows_what_one_client_may_send_under_one_heading_and_the_settings_table_has_it(hushsum: Hushsum) -> None:
    shown = hushsum("serve", "--help").out
    _, _, section = shown.partition("Limits per client:\n")
    options = set(re.findall(r"--client-[a-z-]+", section.partition("\n\n")[0]))
    assert options == {
        *("--client-bytes-rate", "--client-bytes-burst", "--client-calls-rate", "--client-calls-burst"),
        *("--client-sessions-max", "--client-streams-max"),
    }
    table = service_pages.settings()
    assert all(f"`{option[2:].replace('-', '_')}`" in table for option in options)


def test_help_and_version_need_no_heavy_package() -> None:
    code = (
        "import sys\nfrom hushsum_cli.main import main\nsys.argv = ['hushsum', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    print(sorted({'numpy', 'grpc', 'rich', 'sklearn'} & {*sys.modules}))"
    )
    root = Path(__file__).resolve().parent.parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "proto")])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.endswith("[]\n")


def test_the_version_is_the_packages(hushsum: Hushsum) -> None:
    assert hushsum("--version").out == f"hushsum {package.__version__}\n"


def test_a_wrong_call_ends_with_2(hushsum: Hushsum) -> None:
    assert hushsum("query").status == 2
    assert hushsum("nonsense").status == 2
    assert hushsum("simulate", "--epsilon", "much").status == 2
    assert hushsum("simulate", "--unit", "client").status == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        (("admin", "seal", "--at", "127.0.0.1:1"), "127.0.0.1:1: no service answers here"),
        (("release", "list", "--from", "127.0.0.1:1"), "no service answers here"),
        (("serve", "--plan", "plan.json"), "data: required"),
        (
            ("serve", "--plan", "nowhere.toml", "--data", "data", "--listen", "127.0.0.1:0"),
            "nowhere.toml cannot be read",
        ),
        (("plan", "show", "broken.toml"), "plan: got"),
        (("query", "broken.toml", "--at", "1,2"), "not a .hush file"),
        (("simulate", "--data", "broken.toml"), "expected a file with extension .parquet, .csv, .npy"),
        (("simulate", "--data", "words.csv"), "column 'a' contains str"),
        (("release", "list", "--from", "127.0.0.1:1", "--ca", "one.csv"), "ca: one.csv: expected certificates in PEM"),
        (("release", "list", "--cert", "one.csv"), "--cert and --cert-key must be given together"),
        (("release", "list", "--token-file", "one.csv"), "token: expected a line of printable ASCII"),
        (
            ("release", "list", "--from", "gateway.example:7443", "--insecure", "--token-file", "one.csv"),
            "--insecure and --token-file cannot be combined: a token would be sent unencrypted",
        ),
    ),
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_what_goes_wrong_is_one_line_and_ends_with_1(
    hushsum: Hushsum, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.toml").write_text("name = \n")
    Path("words.csv").write_text("a\nword\n")
    Path("one.csv").write_text("a\n1\n")
    ended = hushsum(*arguments)
    assert ended.status == 1
    # Before it stand, of a service, the lines of its start so far.
    lines = [line for line in ended.err.splitlines() if arguments[0] != "serve" or "[info     ]" not in line]
    assert len(lines) == 1
    assert lines[0].startswith("hushsum: ")
    assert message in lines[0]
    assert ended.out == ""


@pytest.mark.parametrize("name", ["aggregator", "edge_client"])
def test_a_package_of_somebody_else_under_a_name_of_ours_is_named(
    hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for module in [each for each in sys.modules if each.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    ended = hushsum("--version")
    assert (ended.status, ended.out) == (1, "")
    path = tmp_path / name / "__init__.py"
    assert ended.err == (f"hushsum: {path} shadows Hushsum's package {name}: remove its directory from PYTHONPATH\n")


def test_a_bug_of_ours_shows_its_trace(hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("hushsum.releases.load", broken)
    (tmp_path / "x").touch()
    with pytest.raises(ZeroDivisionError):
        hushsum("query", str(tmp_path / "x"), "--at", "1,2")


def test_a_check_prints_a_line_for_each_part_and_ends_with_1_where_one_failed(hushsum: Hushsum, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(TOML)
    given = ("serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--metrics-listen", "", "--check")
    tried = ["settings", "process", "data", "store", "plan", "log", "receipts", "listen 127.0.0.1:0"]
    ended = hushsum(*given, "--plan", str(tmp_path / "plan.toml"))
    assert (ended.status, ended.out.splitlines()) == (0, [f"{what}: ok" for what in tried])
    ended = hushsum(*given, "--plan", str(tmp_path / "nowhere.toml"))
    assert ended.status == 1
    assert f"plan: failed: {tmp_path / 'nowhere.toml'} cannot be read: No such file or directory\n" in ended.out
    assert "log: failed: not tried: requires the plan\n" in ended.out
    ended = hushsum(*given)
    assert (ended.status, ended.out) == (1, "settings: failed: plan: required\n")


def test_each_extra_is_the_smallest_that_has_its_packages() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {"prometheus_client": "prometheus-client", "dp_accounting": "dp-accounting", "PIL": "pillow",
             "sklearn": "scikit-learn", "grpc_health": "grpcio-health-checking", "grpc_reflection": "grpcio-reflection",
             "opentelemetry": "opentelemetry-api", "vl_convert": "vl-convert-python"}  # fmt: skip

    def packages(extra: str) -> set[str]:
        found: set[str] = set()
        for need in extras[extra]:
            name, _, inner = re.split(r"[<>=; \]]", need)[0].partition("[")
            found |= set().union(*map(packages, inner.split(","))) if inner else {name}
        return found

    for module, extra in EXTRAS.items():
        having = {name: len(packages(name)) for name in extras if names.get(module, module) in packages(name)}
        assert min(having, key=having.__getitem__) == extra, module
    assert (
        set(EXTRAS.values())
        == {"cli", "files", "analyst", "server", "fast", "interactive", "objects", "page", "all"}
        == set(extras) - {"dev"}
    )


@pytest.mark.parametrize(
    ("module", "extra"),
    [("click", "cli"), ("rich", "cli"), ("pyarrow", "files"), ("vl_convert", "interactive"), ("jinja2", "page")],
)
def test_a_package_that_is_not_installed_is_one_line_that_names_its_extra(
    tmp_path: Path, module: str, extra: str
) -> None:
    (tmp_path / "plan.toml").write_text(TOML)
    (tmp_path / "records.csv").write_text("x,y\n1,2\n")
    package.release(package.Sketch(small_plan())).save(tmp_path / "today.hush")
    code = (
        f"import sys\nsys.modules[{module!r}] = None\n"  # an import of it fails, as where it is not installed
        "from hushsum_cli.__main__ import main\n"
        f"sys.argv = ['hushsum', *{ASKED[module]!r}]\nmain()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert f"pip install 'hushsum[{extra}]'" in ended.stderr


def test_a_plan_that_may_not_be_meant_is_a_line_on_standard_error(hushsum: Hushsum, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(TOML.replace("epsilon = 1\n", "epsilon = 11\n"))
    ended = hushsum("plan", "make", str(tmp_path / "plan.toml"))
    assert (ended.status, ended.err.count("\n")) == (0, 1)
    assert ended.err.startswith("hushsum: warning: privacy.epsilon: 11 is above 10")
    delta = 'delta = "0.00001"\ntotal_delta = "0.001"\n'
    (tmp_path / "plan.toml").write_text(TOML.replace("epsilon = 1\n", "epsilon = 1\n" + delta))
    for records, warned in (("1e5", False), ("1e6", True)):
        ended = hushsum("plan", "make", str(tmp_path / "plan.toml"), "--force", "--records", records)
        assert ended.status == 0
        assert ("privacy.delta: 1e-5 is above 1/1,000,000" in ended.err) == warned == bool(ended.err)
