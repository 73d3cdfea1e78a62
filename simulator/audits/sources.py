"""Where the noise comes from: every release must have its own, in one process, in two, and after a fork.

A source that is seeded, by a constant, by public values or by what a fork copies, repeats its noise: the difference of
two releases then shows exact counters. No ε of a single release tells, so it is looked for by itself: the noise of one
sketch is drawn again and again, under the same plan and window, and no two draws may be equal. Each has at least
64 counters: honest draws are equal with a probability below 10⁻³⁰.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import hushsum as hs
from hushsum.entropy import OsEntropy
from hushsum.outcomes import decide
from hushsum.privacy.event import TUMBLING
from hushsum.releases import Release
from simulator.audits.cases import column, plan_of
from simulator.audits.report import Check

#: Draws in a process of its own.
PROGRAM: Final = (sys.executable, "-c", "from simulator.audits import sources; sources.main()")

_ROWS: Final = 16
_BUCKETS: Final = 4
_IN_ONE: Final = 8  # releases of each kind in one process
# The mechanisms are written, so that no process has to calibrate.
_PROMISES: Final[tuple[Mapping[str, object], ...]] = (
    {"mechanism": {"name": "discrete-laplace", "scale": "17", "count_scale": 1}},
    {"mechanism": {"name": "discrete-gaussian", "scale": "1000", "count_scale": 1}, "delta": "0.000001"},
)
_WAIT_S: Final = 60


def drawn() -> list[str]:
    """A digest of the noise of each of a few releases and outcomes of one sketch, drawn in this process."""
    found = []
    for promise in _PROMISES:
        plan = plan_of(sketch={"rows": _ROWS, "buckets": _BUCKETS}, **promise)
        sketch = hs.Sketch(plan)
        sketch.add(column(1.0, 2.0, 3.0))
        for _ in range(_IN_ONE):
            outcome = decide(sketch, kind=TUMBLING, window=0, clients=1, entropy=OsEntropy())
            assert isinstance(outcome, Release), "the plan releases every window"
            found += [_digest(hs.release(sketch), sketch), _digest(outcome, sketch)]
    return found


def drawn_apart() -> list[str]:
    """The same in this process, and in a child that was forked between two draws."""
    found = drawn()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as file:
            file.write("\n".join(drawn()))
        os._exit(0)
    os.close(writing)
    found += drawn()
    with os.fdopen(reading) as file:
        found += file.read().split()
    os.waitpid(child, 0)
    return found


def source_checks(program: Sequence[str] = PROGRAM) -> list[Check]:
    """Whether noise ever repeats, in this process and in another.

    Args:
        program: What the other process runs.

    Raises:
        subprocess.CalledProcessError: It has failed.
    """
    here, elsewhere = drawn(), _run(program)
    return [
        _distinct("releases of one process have noise of their own", here),
        _distinct("so has a process that was forked between two releases", elsewhere),
        _distinct("and so has every process, for the same plan and window", [*here, *elsewhere]),
    ]


def _run(program: Sequence[str]) -> list[str]:
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=_WAIT_S)
    return done.stdout.split()


def _distinct(what: str, found: Sequence[str]) -> Check:
    different = len(set(found))
    return Check(what, different == len(found) > 1, f"{different} different of {len(found)}")


def _digest(release: Release, sketch: hs.Sketch) -> str:
    noise = (release.counters - sketch.counters).tobytes() + (release.counts - sketch.counts).tobytes()
    return hashlib.sha256(noise).hexdigest()


def main() -> None:
    """What the other process runs."""
    sys.stdout.write("\n".join(drawn_apart()) + "\n")
