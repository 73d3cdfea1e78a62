"""Shares the inputs out among targets and processes, saves what they find, and prints the table."""

import base64
import hashlib
import json
import math
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from tests.fuzz import child
from tests.fuzz.child import Current
from tests.fuzz.course import Finding, Memory, Tally
from tests.fuzz.target import Target

#: Inputs that a process is asked for at a time.
SLICE: Final = 2000
#: Of each target at least, in so many inputs of all.
_LEAST: Final = 2500
_DEATHS_MAX: Final = 5  # of one target's processes: then it is given up
_PROGRESS_S: Final = 15.0
Slice = tuple[str, int, int]  # of a target: its number there, how many inputs


class Campaign:
    """A run over several targets.

    Args:
        targets: Which.
        work: What is tried, as :func:`slices` shares it out.
        seed: Of all that is drawn.
        jobs: Processes at a time.
        every: Of the plans of samples every so-manieth is kept.
        folder: For what is found.
        module: Of the processes that try the inputs.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        work: Sequence[Slice],
        seed: str,
        jobs: int,
        every: int,
        folder: Path,
        module: str = child.__name__,
    ) -> None:
        self._seed, self._jobs, self._every, self._folder, self._module = seed, jobs, every, folder, module
        self._tallies = {target.name: Tally() for target in targets}
        self._deaths: Counter[str] = Counter()
        self._queue: SimpleQueue[Slice] = SimpleQueue()
        self._guard, self._began_s, self._told_s = threading.Lock(), time.monotonic(), 0.0
        self._of = f" of {sum(count for _, _, count in work):,}" if module == child.__name__ else ""
        for part in work:
            self._queue.put(part)

    def run(self) -> int:
        """Runs it all; the exit status."""
        if not Memory.can_be_reset():
            print("peaks of memory cannot be set back here: less than a process's highest so far is not seen")  # noqa: T201  a program that people run
        threads = [threading.Thread(target=self._work, args=(job,)) for job in range(self._jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(table(self._tallies))  # noqa: T201  a program that people run
        took_s = time.monotonic() - self._began_s
        total, found = (sum(getattr(tally, key) for tally in self._tallies.values()) for key in ("inputs", "found"))
        print(f"{total:,} inputs in {took_s:.0f} s, seed {self._seed}: {found} broke a decoder's word")  # noqa: T201  a program that people run
        return 1 if found or any(self._deaths.values()) else 0

    def _work(self, job: int) -> None:
        current = self._folder / f".current-{job}"
        process: subprocess.Popen[str] | None = None
        try:
            while True:
                try:
                    name, at, count = self._queue.get_nowait()
                except Empty:
                    break
                if self._deaths[name] >= _DEATHS_MAX:
                    continue
                process = process or _started(self._module, current)
                task = {"target": name, "seed": f"{self._seed}/{name}/{at}", "count": count, "every": self._every}
                answer = _answer(process, task)
                if answer is None:
                    self._died(name, process, current)
                    process = None
                else:
                    self._take(name, answer)
        finally:
            if process is not None:
                _stop(process)
            current.unlink(missing_ok=True)
            _log_of(current).unlink(missing_ok=True)

    def _take(self, name: str, answer: dict[str, Any]) -> None:
        with self._guard:
            tally = self._tallies[name]
            for key in ("inputs", "accepted", "first", "found"):
                setattr(tally, key, getattr(tally, key) + answer[key])
            tally.refused.update(answer["refused"])
            tally.slowest_s = max(tally.slowest_s, answer["slowest_s"])
            tally.peak_bytes = max(tally.peak_bytes, answer["peak_bytes"])
            for each in answer["findings"]:
                finding = Finding(each["kind"], each["where"], each["told"], base64.b64decode(each["data"]))
                self._keep(name, finding)
            self._progress(name)

    def _died(self, name: str, process: "subprocess.Popen[str]", current: Path) -> None:
        status = _stop(process)
        last = _log_of(current).read_text(encoding="utf-8", errors="replace")[-3000:]
        number, data = Current(current, write=False).get()
        with self._guard:
            self._deaths[name] += 1
            tally = self._tallies[name]
            tally.inputs, tally.found = tally.inputs + number + 1, tally.found + 1
            finding = Finding("died", f"status {status}", f"the process ended with status {status}\n{last}", data)
            self._keep(name, finding)

    def _keep(self, name: str, finding: Finding) -> None:
        """Saves what was not found before: at once, so that a run that is cut short has it."""
        findings = self._tallies[name].findings
        if (finding.kind, finding.where) not in findings:
            findings[finding.kind, finding.where] = finding
            self._save(name, finding)

    def _progress(self, name: str) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s > _PROGRESS_S:
            self._told_s = now_s
            done, found = (sum(getattr(tally, key) for tally in self._tallies.values()) for key in ("inputs", "found"))
            print(f"{now_s - self._began_s:6.0f} s: {done:,}{self._of} inputs, {found} found, at {name}", flush=True)  # noqa: T201  a program that people run

    def _save(self, name: str, finding: Finding) -> None:
        path = self._folder / f"{name}--{finding.kind}-{hashlib.sha256(finding.data).hexdigest()[:8]}.bin"
        path.write_bytes(finding.data)
        print(f"\n{name}: {finding.kind} at {finding.where}, {len(finding.data)} bytes\n{finding.told.strip()}")  # noqa: T201  a program that people run
        print(f"again: python -m tests.fuzz --target {name} --replay {path}")  # noqa: T201  a program that people run


def slices(targets: Sequence[Target], inputs: int, least: int = 1) -> list[Slice]:
    """Each part of the work, all targets' first parts first.

    Args:
        targets: Which.
        inputs: Of all together, shared out by the targets' weights.
        least: Of each, whatever its weight.
    """
    total = sum(target.weight for target in targets)
    least = max(least, inputs // _LEAST)
    found = []
    for target in targets:
        count = max(least, math.ceil(inputs * target.weight / max(0.01, total)))
        found += [(at, target.name, min(SLICE, count - start)) for at, start in enumerate(range(0, count, SLICE))]
    return [(name, at, count) for at, name, count in sorted(found, key=lambda part: part[0])]


def shares(targets: Sequence[Target], seconds: float) -> list[Slice]:
    """The same time for each target, in seconds: one at least."""
    return [(target.name, 0, max(1, round(seconds / len(targets)))) for target in targets]


def table(tallies: dict[str, Tally]) -> str:
    """A row for each target."""
    rows = [("target", "inputs", "accepted", "deep", "slowest", "peak", "refused")]
    for name, tally in sorted(tallies.items()):
        inputs = max(1, tally.inputs)
        reasons = ", ".join(f"{reason} {100 * count / inputs:.0f}%" for reason, count in tally.refused.most_common(6))
        deep = 1 - tally.first / inputs
        cost = f"{1000 * tally.slowest_s:.1f} ms", f"{tally.peak_bytes / 2**20:.0f} MiB"
        shares = f"{100 * tally.accepted / inputs:.0f}%", f"{100 * deep:.0f}%"
        rows.append((name, f"{tally.inputs:,}", *shares, *cost, reasons))
    widths = [max(len(row[at]) for row in rows) for at in range(6)]
    lines = []
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:6], widths[1:], strict=True)),
        ]
        lines.append("  ".join([*cells, row[6]]))
    return "\n".join(lines)


def _started(module: str, current: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", module, str(current)]
    with _log_of(current).open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)


def _log_of(current: Path) -> Path:
    """What its process says beside its answers: why it died, if it dies."""
    return current.with_suffix(".log")


def _answer(process: "subprocess.Popen[str]", task: dict[str, Any]) -> dict[str, Any] | None:
    """What the process says; None where it has died of it."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        return None
    return json.loads(line) if line.endswith("\n") else None


def _stop(process: "subprocess.Popen[str]") -> int:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    return process.wait()
