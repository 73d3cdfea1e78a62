"""A short run over all targets, every input that ever broke a decoder, and planted mistakes, each of which is found."""

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hushsum import canonical
from hushsum.errors import CanonicalError
from tests.fuzz import octets, worlds
from tests.fuzz.course import Memory, Tally, alarm, attempt, run
from tests.fuzz.tables import json_mutator
from tests.fuzz.target import Kit, plainly, same_bytes
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
REGRESSIONS = Path(__file__).parent / "regressions"
LEAST = 50
SHORT = ["--inputs", "1", "--least", str(LEAST), "--seed", "1", "--every", "11"]
SAMPLES = [b'{"a":1,"b":["x","1/3"]}', b'[1,2,{"c":"d"}]']
#: Prints what is found of :func:`greedy`.
GREEDY = "from tests.fuzz.test_fuzz import greedy, kinds_of, planted; print(*kinds_of(planted(greedy, count=20)))"


def python(*arguments: str) -> str:
    """What a process of its own prints."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_short_run_over_all_targets_finds_nothing(tmp_path: Path) -> None:
    told = python("-m", "tests.fuzz", *SHORT, "--findings", str(tmp_path))
    rows = {line.split()[0]: line.split()[1] for line in told.splitlines() if line.split()[:1] != ["target"] and line}
    assert all(int(rows[name].replace(",", "")) >= LEAST for name in TARGETS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(path.name for path in REGRESSIONS.iterdir()))
def test_what_once_broke_a_decoder_is_refused(name: str) -> None:
    worlds.thin(11)
    with alarm():
        verdict, finding = attempt(TARGETS[name.partition("--")[0]].kit(), (REGRESSIONS / name).read_bytes())
    assert finding is None, finding.told
    assert verdict is not None


def planted(decode: Any, *, count: int = 1500, room: int = 1 << 22) -> Tally:
    """What a run finds of a decoder of canonical bytes that has a mistake."""
    kit = Kit(SAMPLES, plainly(decode, CanonicalError, check=same_bytes(canonical.encode)), json_mutator(), room)
    return run(kit, "planted", count)


def kinds_of(tally: Tally) -> set[str]:
    return {kind for kind, _ in tally.findings}


def test_nothing_is_found_of_a_decoder_without_a_mistake() -> None:
    tally = planted(canonical.decode)
    assert not tally.findings
    assert 0 < tally.accepted < tally.inputs == 1500
    assert tally.refused["CanonicalError"] == tally.inputs - tally.accepted


def test_an_error_that_is_not_the_decoders_own_is_found() -> None:
    assert {"JSONDecodeError", "UnicodeDecodeError"} <= kinds_of(planted(lambda data: json.loads(data.decode())))


def test_two_byte_strings_for_one_value_are_found() -> None:
    assert "BrokenPromiseError" in kinds_of(planted(lambda data: canonical.decode(data.replace(b" ", b"").strip())))


def greedy(data: bytes) -> object:
    assert bytearray(64 << 20 if b"{" in data else 1)
    return canonical.decode(data)


def test_a_memory_that_is_too_large_is_found() -> None:
    """In a process of its own, for where peaks cannot be set back that of the tests before it would hide it."""
    assert python("-c", GREEDY).split() == ["memory"]


@pytest.mark.skipif(not Memory.can_be_reset(), reason="this system sets no peak of memory back")
def test_a_peak_of_before_hides_no_memory_that_is_too_large() -> None:
    """In a process of its own, too: what others have freed in this one may be taken again, and grows nothing."""
    assert python("-c", f"bytearray(512 << 20); {GREEDY}").split() == ["memory"]


@pytest.mark.skipif(not Memory.can_be_reset(), reason="this system sets no peak of memory back")
def test_a_peak_of_the_process_that_started_a_run_hides_no_memory_that_is_too_large() -> None:
    start = (
        "import subprocess, sys; bytearray(512 << 20); subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    )
    assert python("-c", start, GREEDY).split() == ["memory"]


def wasteful(rng: random.Random, data: bytes, donors: Sequence[bytes]) -> bytes:
    """Draws an input by way of 64 MB."""
    return (b" " * (64 << 20))[:1] + json_mutator()(rng, data, donors)


def test_what_it_takes_to_draw_an_input_is_not_its_decoders() -> None:
    kit = Kit(SAMPLES, plainly(canonical.decode, CanonicalError, check=same_bytes(canonical.encode)), wasteful, 1 << 22)
    assert not run(kit, "wasteful", 20).findings


def test_what_takes_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.course.SLOW_S", 0.05)

    def slow(data: bytes) -> object:
        until_s = time.process_time() + 0.1
        while time.process_time() < until_s:
            pass
        return canonical.decode(data)

    assert kinds_of(planted(slow, count=3)) == {"slow"}


def test_what_hangs_is_found_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.course.HANG_S", 0.05)

    def hangs(data: bytes) -> object:
        while True:
            pass

    tally = planted(hangs, count=3)
    assert kinds_of(tally) == {"HangError"}
    assert tally.inputs == 3


def test_a_process_that_dies_is_found_with_its_input(tmp_path: Path) -> None:
    from tests.fuzz.child import Current

    current = tmp_path / "current"
    Current(current, write=True).put(7, b"what it was at")
    assert Current(current, write=False).get() == (7, b"what it was at")


def test_the_same_seed_gives_the_same_inputs() -> None:
    def all_of(seed: str) -> list[bytes]:
        seen: list[bytes] = []
        kit = Kit(SAMPLES, plainly(canonical.decode, CanonicalError), octets.mutated)
        run(kit, seed, 200, lambda _, data: seen.append(data))
        return seen

    assert all_of("a") == all_of("a") != all_of("b")


def test_an_input_is_made_smaller_before_it_is_kept() -> None:
    def breaks(data: bytes) -> None:
        if b"1/3" in data:
            raise KeyError(data)

    kit = Kit(SAMPLES, plainly(breaks), octets.mutated)
    (finding,) = run(kit, "small", 300).findings.values()
    assert finding.data == b"1/3"


def test_a_run_tells_its_targets() -> None:
    assert re.findall(r"\S+", python("-m", "tests.fuzz", "--list")) == list(TARGETS)
