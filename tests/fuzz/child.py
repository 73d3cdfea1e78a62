"""The process that tries inputs: asked by lines of JSON, it answers in such lines, and may die of an input.

The input that it is at lies in a file, so that it is known then too. Its address space is limited.
"""

import base64
import faulthandler
import json
import mmap
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Final, TextIO

from tests.fuzz import worlds
from tests.fuzz.course import HANG_S, Tally, accepted_at_first, refused_at_first, run
from tests.fuzz.target import Kit, Target

_CURRENT_BYTES: Final = 1 << 24
_HEAD: Final = 16
#: Beside what the process has taken when its samples are there.
ADDRESSES: Final = 1 << 30
_LOOK_S: Final = 2.0


class Current:
    """The input that is tried now, in a file that outlives the process."""

    def __init__(self, path: Path, *, write: bool) -> None:
        with path.open("r+b" if path.exists() else "w+b") as file:
            if write:
                file.truncate(_CURRENT_BYTES)
            self._map = mmap.mmap(file.fileno(), _CURRENT_BYTES)

    def put(self, number: int, data: bytes) -> None:
        """Replaces it."""
        kept = data[: _CURRENT_BYTES - _HEAD]
        self._map[:_HEAD] = number.to_bytes(8, "big") + len(kept).to_bytes(8, "big")
        self._map[_HEAD : _HEAD + len(kept)] = kept

    def get(self) -> tuple[int, bytes]:
        """Its number and its bytes."""
        size = int.from_bytes(self._map[8:_HEAD], "big")
        return int.from_bytes(self._map[:8], "big"), self._map[_HEAD : _HEAD + size]


class Watch:
    """Is told each input before it is tried: it keeps the input, and ends a process that hangs with it for good."""

    def __init__(self, current: Path) -> None:
        self._current, self._last_s = Current(current, write=True), 0.0

    def __call__(self, number: int, data: bytes) -> None:
        """The input that is next, and its number."""
        self._current.put(number, data)
        if (now_s := time.monotonic()) - self._last_s > _LOOK_S:  # each look starts a thread
            self._last_s = now_s
            faulthandler.dump_traceback_later(2 * HANG_S + _LOOK_S, exit=True)


def sound_kit(target: Target) -> Kit:
    """What a target works with, once its good samples are accepted and its bad ones refused."""
    kit = target.kit()
    refused = refused_at_first(kit)
    assert not refused, f"{target.name}: good samples are refused: {refused[0]}"
    accepted = accepted_at_first(kit)
    assert not accepted, f"{target.name}: bad samples are accepted: {', '.join(accepted)}"
    return kit


def serve(current: Path, asked: TextIO, answers: TextIO) -> None:
    """Answers until nothing more is asked."""
    from tests.fuzz.targets import TARGETS

    warnings.simplefilter("error")
    watch, kits = Watch(current), dict[str, Kit]()
    for line in asked:
        task = json.loads(line)
        worlds.thin(task["every"])
        limit_addresses(None)
        faulthandler.cancel_dump_traceback_later()
        if task["target"] not in kits:
            kits[task["target"]] = sound_kit(TARGETS[task["target"]])
        limit_addresses(ADDRESSES)
        tally = run(kits[task["target"]], task["seed"], task["count"], watch)
        faulthandler.cancel_dump_traceback_later()
        answers.write(json.dumps(told(tally)) + "\n")
        answers.flush()


def limit_addresses(more: int | None) -> None:
    """At most so many bytes beyond what is mapped now; None: no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if more is None:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        return
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))


def told(tally: Tally) -> dict[str, Any]:
    """A tally as JSON."""
    findings = [
        {"kind": each.kind, "where": each.where, "told": each.told, "data": base64.b64encode(each.data).decode()}
        for each in tally.findings.values()
    ]
    plain = {key: getattr(tally, key) for key in ("inputs", "accepted", "first", "slowest_s", "peak_bytes", "found")}
    return {**plain, "refused": dict(tally.refused), "findings": findings}


if __name__ == "__main__":
    faulthandler.enable()
    serve(Path(sys.argv[1]), sys.stdin, sys.stdout)
