"""What coverage finds and mutation does not: a mistake behind comparisons that chance alone would not pass."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import coverage, octets
from tests.fuzz.__main__ import main
from tests.fuzz.course import run
from tests.fuzz.found import compiled_modules
from tests.fuzz.parent import shares, slices
from tests.fuzz.target import Kit, Target, plainly
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
SAMPLE = b"a good sample"
needs_atheris = pytest.mark.skipif(bool(coverage.MISSING), reason=coverage.MISSING)
#: A module with one target, whose decoder fails behind three comparisons, each of one byte in 256.
PLANTED = """
from tests.fuzz.test_coverage import SAMPLE, target_of


def decode(data):
    if len(data) > 3 and data[0] == 0x68:
        if data[1] == 0x75:
            if data[2] == 0x73:
                raise KeyError("planted")
    if data != SAMPLE:
        raise ValueError("not the sample")


TARGETS = {"planted": target_of(decode)}
"""
DIES = PLANTED.replace('raise KeyError("planted")', "os._exit(9)").replace("data[1] == 0x75", "True")
DIES = "import os\n" + DIES.replace("data[2] == 0x73", "True")


def target_of(decode: object) -> Target:
    assert callable(decode)
    return Target("planted", (), lambda: Kit([SAMPLE], plainly(decode, ValueError), octets.mutated))


def covered(folder: Path, source: str, **task: object) -> "subprocess.CompletedProcess[str]":
    """A process of coverage that is asked once, about the target of a planted module."""
    (folder / "planted.py").write_text(source)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "proto", folder)))}
    command = [sys.executable, "-m", "tests.fuzz.coverage", str(folder / "current"), "planted"]
    asked = json.dumps({"target": "planted", "seed": "5", "every": 1, **task}) + "\n"
    return subprocess.run(command, input=asked, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@needs_atheris
def test_coverage_finds_behind_nested_comparisons_what_as_many_mutations_do_not(tmp_path: Path) -> None:
    done = covered(tmp_path, PLANTED, count=120, found=1)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [finding["kind"] for finding in answer["findings"]] == ["KeyError"]
    planted: dict[str, dict[str, Target]] = {}
    exec(compile(PLANTED, "planted.py", "exec"), planted)
    assert not run(planted["TARGETS"]["planted"].kit(), "5", answer["inputs"]).findings


@needs_atheris
def test_a_process_that_dies_says_of_what_target(tmp_path: Path) -> None:
    from tests.fuzz.child import Current

    done = covered(tmp_path, DIES, count=120)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("the process of planted ended with 9\n")
    _, data = Current(tmp_path / "current", write=False).get()
    assert data[:1] == b"h"


@pytest.mark.long
@needs_atheris
@pytest.mark.slow
def test_a_run_prints_the_table_of_its_targets_and_leaves_nothing_where_nothing_was_found(tmp_path: Path) -> None:
    asked = ["--engine", "coverage", "--seconds", "1", "--target", "canonical-real", "--findings", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *asked],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "proto")))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^canonical-real +[1-9][0-9,]* .* CanonicalError", done.stdout, re.MULTILINE), done.stdout
    assert list(tmp_path.iterdir()) == []


def test_without_atheris_coverage_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(coverage, "MISSING", "atheris is not installed: pip install 'hushsum[dev]'")
    monkeypatch.setattr(sys, "argv", ["tests.fuzz", "--engine", "coverage"])
    with pytest.raises(SystemExit):
        main()
    assert "--engine coverage: atheris is not installed: pip install 'hushsum[dev]'" in capsys.readouterr().err


def test_each_target_has_the_same_share_of_the_time() -> None:
    work = shares(list(TARGETS.values()), 600)
    assert [name for name, _, _ in work] == list(TARGETS)
    assert {count for _, _, count in work} == {round(600 / len(TARGETS))}
    assert {name for name, _, _ in slices(list(TARGETS.values()), 1)} == set(TARGETS)


def test_modules_whose_loops_numba_compiles_are_not_instrumented() -> None:
    assert {"hushsum.delta_decoder_loops", "hushsum_proto.entry_loops", "aggregator.fold.loops"} <= set(
        compiled_modules()
    )
    assert "hushsum.delta" not in compiled_modules()
