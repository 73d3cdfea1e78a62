"""The shape of the code: what the import contracts in pyproject.toml and the linters cannot say."""

import ast
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import tidy_rules as rules
from tests.tidy_rules import RULES, Finding, Rule, Source

ROOT = Path(__file__).resolve().parent.parent


@cache
def committed_paths() -> tuple[str, ...]:
    """What git tracks, or would with the next `git add`, and is there."""
    # Where another user owns the checkout, git wants to be told that this is meant.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(sorted(name for name in set(listed.stdout.split("\0")) if name and (ROOT / name).is_file()))


@cache
def sources() -> tuple[Source, ...]:
    """Every Python file that a person wrote."""
    names = (name for name in committed_paths() if name.endswith(".py") and not re.search(r"_pb2(_grpc)?\.py$", name))
    return tuple(Source(name, (ROOT / name).read_text(encoding="utf-8")) for name in names)


def breaches(rule: Rule) -> Iterator[Finding]:
    """What breaks a rule today."""
    for source in sources():
        yield from rule(source)


def report(found: list[Finding]) -> str:
    return "\n" + "\n".join(str(finding) for finding in found)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rule_holds_everywhere(rule: Rule) -> None:
    found = list(breaches(rule))
    assert not found, report(found)


def test_the_rules_look_at_every_package() -> None:
    seen = {source.path.partition("/")[0] for source in sources()}
    assert {
        "hushsum",
        "hushsum_cli",
        "hushsum_page",
        "edge_client",
        "aggregator",
        "hushsum_simulator",
        "proto",
        "tests",
    } <= seen


PLANTED: list[tuple[Rule, str, str]] = [
    (rules.the_core_reads_no_clock, "hushsum/plan.py", "import time\n"),
    (rules.the_core_reads_no_clock, "hushsum/plan.py", "from time import monotonic as tick\n"),
    (rules.the_core_reads_no_clock, "hushsum/plan.py", "import datetime as dt\nx = dt.datetime.now()\n"),
    (rules.the_core_reads_no_clock, "hushsum/plan.py", "from datetime import datetime\ndefault = datetime.utcnow\n"),
    (rules.the_core_reads_no_clock, "hushsum/plan.py", "from datetime import date\nx = date.today()\n"),
    (rules.the_core_has_one_database, "hushsum/privacy/events.py", "from sqlite3 import connect\n"),
    (rules.the_shell_takes_time_and_tasks_from_its_ports, "aggregator/workers/worker.py", "import time\n"),
    (
        rules.the_shell_takes_time_and_tasks_from_its_ports,
        "edge_client/spool/spool.py",
        "from asyncio import sleep as nap\n",
    ),
    (
        rules.the_shell_takes_time_and_tasks_from_its_ports,
        "aggregator/workers/worker.py",
        "import asyncio\nasyncio.sleep(1)\n",
    ),
    (
        rules.the_shell_takes_time_and_tasks_from_its_ports,
        "aggregator/workers/worker.py",
        "group.create_task(work())\n",
    ),
    (
        rules.the_shell_takes_time_and_tasks_from_its_ports,
        "aggregator/workers/worker.py",
        "loop.run_in_executor(None, work)\n",
    ),
    (
        rules.the_shell_takes_time_and_tasks_from_its_ports,
        "aggregator/workers/worker.py",
        "from asyncio import to_thread\nto_thread(f)\n",
    ),
    (
        rules.the_shell_takes_time_and_tasks_from_its_ports,
        "edge_client/session/session.py",
        "import os\nkey = os.urandom(8)\n",
    ),
    (rules.the_shell_takes_time_and_tasks_from_its_ports, "edge_client/session/session.py", "import secrets\n"),
    (rules.heavy_packages_are_loaded_by_the_function_that_needs_them, "hushsum/kernels.py", "import numba\n"),
    (
        rules.heavy_packages_are_loaded_by_the_function_that_needs_them,
        "hushsum/kernels.py",
        "from scipy import stats\n",
    ),
    (
        rules.heavy_packages_are_loaded_by_the_function_that_needs_them,
        "edge_client/a.py",
        "try:\n    import sklearn.x as y\nfinally:\n    pass\n",
    ),
    (
        rules.private_randomness_is_the_operating_systems,
        "hushsum/noise/a.py",
        "import numpy as np\ng = np.random.default_rng(1)\n",
    ),
    (
        rules.private_randomness_is_the_operating_systems,
        "aggregator/release/releaser.py",
        "from hushsum.entropy import ReplayableEntropy\n",
    ),
    (
        rules.private_randomness_is_the_operating_systems,
        "aggregator/release/releaser.py",
        "from hushsum import entropy\nentropy.ReplayableEntropy(b'')\n",
    ),
    (
        rules.private_randomness_is_the_operating_systems,
        "hushsum/releases.py",
        "from hushsum.entropy import KeyedEntropy\n",
    ),
    (rules.private_randomness_is_the_operating_systems, "edge_client/spool/spool.py", "import random\n"),
    (rules.private_randomness_is_the_operating_systems, "hushsum/releases.py", "import os\nos.urandom(8)\n"),
    (rules.generated_stubs_stay_at_the_edges, "aggregator/fold/fold.py", "from hushsum_proto.v1 import wire_pb2\n"),
    (
        rules.generated_stubs_stay_at_the_edges,
        "edge_client/session/session.py",
        "from google.protobuf.message import Message\n",
    ),
    (rules.generated_stubs_stay_at_the_edges, "proto/hushsum_proto/entries.py", "from .v1 import wire_pb2\n"),
    (rules.nobody_imports_the_estimators, "hushsum/__init__.py", "from . import estimators\n"),
    (
        rules.nobody_imports_the_estimators,
        "hushsum_simulator/demo/fleet.py",
        "from hushsum.estimators import KernelDensity\n",
    ),
    (rules.modules_are_named_after_ideas, "aggregator/utils.py", ""),
    (rules.modules_are_named_after_ideas, "hushsum/common/codes.py", ""),
    (
        rules.events_and_effects_are_no_tuples,
        "aggregator/secure/cohorts.py",
        "class Waits(NamedTuple):\n    by: int\nclass Closed(NamedTuple):\n    by: int\nEffect = Waits | Closed\n",
    ),
    (
        rules.events_and_effects_are_no_tuples,
        "edge_client/session/session.py",
        "import typing\nclass Woke(typing.NamedTuple):\n    now: float\nclass Begun: ...\nEvent = Begun | Woke\n",
    ),
    (rules.suppressions_name_their_rule_and_their_reason, "tests/a.py", "x = 1  # noqa\n"),
    (rules.suppressions_name_their_rule_and_their_reason, "tests/a.py", "x = 1  # noqa: E501\n"),
    (
        rules.suppressions_name_their_rule_and_their_reason,
        "tests/a.py",
        "x = 1  # type: ignore  # for some good reason\n",
    ),
    (rules.suppressions_name_their_rule_and_their_reason, "tests/a.py", "x = 1  # type: ignore[arg-type]\n"),
    (rules.suppressions_name_their_rule_and_their_reason, "tests/a.py", "# mypy: ignore-errors\n"),
]

ALLOWED: list[tuple[str, str]] = [
    ("hushsum/schedule.py", "from datetime import UTC, datetime\nepoch = datetime.fromisoformat('2000-01-01')\n"),
    ("hushsum/a.py", "def f(time: float) -> float:\n    return time\n"),
    ("hushsum/kernels.py", "def f() -> None:\n    import numba\n"),
    ("hushsum/plots.py", "import matplotlib\n"),
    ("hushsum/entropy.py", "import os\nos.urandom(8)\nclass ReplayableEntropy: ...\n"),
    ("aggregator/release/releaser.py", "from hushsum.entropy import KeyedEntropy\n"),
    ("aggregator/runtime.py", "import asyncio\nimport time\nasyncio.create_task(work(time.time()))\n"),
    (
        "aggregator/workers/worker.py",
        "import asyncio\nlock = asyncio.Lock()\nruntime.sleep(1)\nruntime.spawn(work())\n",
    ),
    ("aggregator/ingest/gateway_streams.py", "from hushsum_proto.v1 import wire_pb2\n"),
    ("hushsum_simulator/demo/fleet.py", "import random\nimport time\n"),
    ("tests/hushsum_proto/test_convert.py", "from hushsum_proto.v1 import wire_pb2\n"),
    (
        "hushsum/events.py",
        "class Woke: ...\nclass Caller(NamedTuple):\n    id: int\nclass Left: ...\nEvent = Woke | Left\n",
    ),
    ("examples/skin.py", "from hushsum.estimators import KernelDensity\n"),
    ("tests/a.py", "x = 1\n" * 1000 + "# noqa: E501  the line is quoted as it came\n"),
    ("hushsum/a.py", "x = f()  # type: ignore[no-any-return]  # numba ships no types\n"),
]


@pytest.mark.parametrize(("rule", "path", "text"), PLANTED)
def test_the_rule_finds_a_planted_breach(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text)))


def test_every_rule_has_a_planted_breach() -> None:
    assert {rule for rule, _, _ in PLANTED} == set(RULES)


@pytest.mark.parametrize(("path", "text"), ALLOWED)
def test_no_rule_objects_to_what_is_right(path: str, text: str) -> None:
    found = [finding for rule in RULES for finding in rule(Source(path, text))]
    assert not found, report(found)


PACKAGES = ("hushsum", "hushsum_cli", "hushsum_page", "hushsum_proto", "edge_client", "aggregator", "hushsum_simulator")


def public_classes_of_one_name(files: Iterable[Source]) -> list[Finding]:
    """Classes of one package that share a name: a reader would take one for the other.

    But for blocking twins: those are meant to be taken for the other, by a changed import.
    """
    first: dict[tuple[str, str], Source] = {}
    found = []
    for source in files:
        if source.package not in PACKAGES or source.module.endswith(".blocking"):
            continue
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                other = first.setdefault((source.package, node.name), source)
                if other is not source:
                    found.append(source.found(node.lineno, f"{node.name}: {other.path} has a class of this name"))
    return found


def test_no_two_public_classes_of_a_package_share_a_name() -> None:
    found = public_classes_of_one_name(sources())
    assert not found, report(found)


def test_a_planted_class_of_the_same_name_is_found() -> None:
    a, b = Source("aggregator/a.py", "class Pool: ...\n"), Source("aggregator/secure/b.py", "class Pool: ...\n")
    assert public_classes_of_one_name([a, b]) == [b.found(1, "Pool: aggregator/a.py has a class of this name")]
    assert not public_classes_of_one_name([a, Source("edge_client/b.py", b.text)])


# Paths of one machine, and where packages come from: neither belongs to the project. The brackets keep the pattern from
# finding itself.
MACHINE = re.compile(r"[/]work/|[/]farm/|[/]root/|[/]home/[a-z]|bash[_]jobs|index[-]url|find[-]links")
TEXT_MAX = 1_000_000  # bytes; what is larger is data


def foreign_lines(name: str, text: str) -> list[Finding]:
    """The lines that name a machine's path or a package index."""
    return [Finding(name, at, line.strip()) for at, line in enumerate(text.splitlines(), 1) if MACHINE.search(line)]


def test_committed_files_name_no_machine_and_no_package_index() -> None:
    small = (name for name in committed_paths() if (ROOT / name).stat().st_size <= TEXT_MAX)
    found = [line for name in small for line in foreign_lines(name, (ROOT / name).read_text(errors="replace"))]
    assert not found, report(found)


def test_a_planted_machine_path_is_found() -> None:
    planted = f"see {os.sep}root/.cache"
    assert foreign_lines("a.md", f"fine\n{planted}\n") == [Finding("a.md", 2, planted)]


LOCKED = re.compile(r"(?P<name>[a-z0-9-]+)==[\w.]+(?: ; [\w .'=<>!()]+)? \\")
HASH = re.compile(r" {4}--hash=sha256:[0-9a-f]{64}(?: \\)?")


def unlike_a_lock(text: str) -> list[str]:
    """The lines that are no comment, no `name==version ; marker` and no hash; so no index, host or path either."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [line for line in lines if not LOCKED.fullmatch(line) and not HASH.fullmatch(line)]


def test_the_lock_holds_names_versions_and_hashes_alone() -> None:
    assert not unlike_a_lock((ROOT / "requirements.lock").read_text())


@pytest.mark.parametrize("line", ["--no-index", "numpy @ file:///tmp/numpy.whl", "numpy>=2", "-e ."])
def test_a_planted_line_is_unlike_a_lock(line: str) -> None:
    assert unlike_a_lock(line) == [line]


def test_every_declared_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for names in project["optional-dependencies"].values() for name in names),
    ]
    declared = {re.split(r"[\[<>=;]", name)[0].replace(".", "-") for name in wanted} - {"hushsum"}
    locked = {
        match["name"] for match in map(LOCKED.fullmatch, (ROOT / "requirements.lock").read_text().splitlines()) if match
    }
    assert declared <= locked


def hidden_submodules(public: list[str], submodules: set[str]) -> set[str]:
    """Names that would mean the module before an import, and the public thing after it, or the other way round."""
    return submodules.intersection(public)


def test_no_public_name_of_hushsum_hides_a_submodule() -> None:
    import hushsum

    submodules = {module.name for module in pkgutil.iter_modules(hushsum.__path__)}
    assert submodules
    assert not hidden_submodules(hushsum.__all__, submodules)
    assert hidden_submodules([*hushsum.__all__, "plan"], submodules) == {"plan"}


def loaded_by(statement: str) -> set[str]:
    """The heavy packages that a fresh interpreter has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    # The sources are what is looked at, whether or not they are installed.
    path = os.pathsep.join([str(ROOT), str(ROOT / "proto")])
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path})
    return {"PIL", "pyarrow", *rules.HEAVY}.intersection(done.stdout.split())


@pytest.mark.parametrize("package", ["hushsum", "edge_client", "aggregator"])
def test_importing_the_package_loads_nothing_heavy(package: str) -> None:
    assert loaded_by(f"import {package}") == set()


def test_a_heavy_package_that_is_loaded_is_seen() -> None:
    assert "scipy" in loaded_by("import scipy")
