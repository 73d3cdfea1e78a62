"""One target's run in this process: inputs from a seed, what the decoders make of them, and what they cost."""

import os
import random
import re
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.fuzz.target import GROWTH, Kit, Refused, Verdict

#: Of the processor's time, for one input.
SLOW_S: Final = 1.0
#: By the clock: whoever takes longer may hang for good.
HANG_S: Final = 60.0
_KEPT_MAX: Final = 300  # inputs that were told something new, to be changed again
_KEPT_BYTES_MAX: Final = 20_000
_NOTICED: Final = 1 << 20  # growth of memory that is looked at
_SHRINK_STEPS: Final = 400
_SHRINK_S: Final = 5.0
_HERE: Final = Path(__file__).parents[2]
_DIGITS: Final = re.compile(r"[0-9a-f]{6,}|\d+|'[^']*'|\"[^\"]*\"|U\+\w+")


class HangError(Exception):
    """An input took longer than HANG_S."""


@dataclass(frozen=True)
class Finding:
    """An input after which a decoder broke its word."""

    kind: str
    where: str
    told: str
    data: bytes


@dataclass
class Tally:
    """What became of a target's inputs."""

    inputs: int = 0
    accepted: int = 0
    first: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    peak_bytes: int = 0
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)
    found: int = 0


def inputs(kit: Kit, seed: str, told: Callable[[], str | None]) -> Iterator[bytes]:
    """Samples and what becomes of them, for ever. What was told something new is a sample from then on.

    Args:
        kit: Of the target.
        seed: Of everything that is drawn.
        told: What became of the last one, without its numbers; None: nothing that is worth keeping.
    """
    rng = random.Random(seed)
    samples, known = list(kit.samples), set[str]()
    fixed = len(samples)
    while True:
        if rng.random() < 0.02:
            data = rng.choice(samples)
        else:
            at = rng.randrange(len(samples)) if rng.random() < 0.4 else rng.randrange(fixed)
            donors = [rng.choice(samples) for _ in range(3)]
            data = kit.change(rng, samples[at], donors)
        yield data
        word = told()
        if word is not None and word not in known and len(data) <= _KEPT_BYTES_MAX:
            known.add(word)
            if len(samples) < fixed + _KEPT_MAX:
                samples.append(data)
            else:
                samples[rng.randrange(fixed, len(samples))] = data


def run(kit: Kit, seed: str, count: int, before: Callable[[int, bytes], None] | None = None) -> Tally:
    """Tries so many inputs.

    Args:
        kit: Of the target.
        seed: Of the inputs.
        count: How many.
        before: Is told each with its number before it is tried, so that it is known even if the process ends.
    """
    tally, word = Tally(), None
    drawn = inputs(kit, seed, lambda: word)
    with alarm():
        for sample in kit.samples:
            attempt(kit, sample)  # what a process loads for itself, it loads now
        memory = Memory()
        for number in range(count):
            data = next(drawn)
            if before is not None:
                before(number, data)
            word = try_one(kit, data, tally, memory)
    return tally


def try_one(kit: Kit, data: bytes, tally: Tally, memory: "Memory") -> str | None:
    """Tries one input, and takes into account what became of it and what it cost.

    Returns:
        What became of it, without its numbers; None where something was found.
    """
    memory.grown()  # what it took to draw the input is not the decoder's
    began_s = time.process_time()
    verdict, finding = attempt(kit, data)
    took_s = time.process_time() - began_s
    grown = memory.grown()
    finding = finding or _costly(kit, data, took_s, grown)
    tally.slowest_s, tally.peak_bytes = max(tally.slowest_s, took_s), max(tally.peak_bytes, grown)
    return _counted(tally, kit, verdict, finding)


def attempt(kit: Kit, data: bytes) -> tuple[Verdict, Finding | None]:
    """What one input comes to."""
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        return kit.attempt(data), None
    except Exception as error:  # noqa: BLE001  whatever a decoder lets through is a finding
        return None, Finding(
            type(error).__name__, _where(error), "".join(traceback.format_exception(error))[-3000:], data
        )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _counted(tally: Tally, kit: Kit, verdict: Verdict, finding: Finding | None) -> str | None:
    """Takes what became of an input into account; gives it without its numbers, where nothing was found."""
    tally.inputs += 1
    if finding is not None:
        tally.found += 1
        key = finding.kind, finding.where
        if key not in tally.findings:
            tally.findings[key] = shrunk(kit, finding)
        return None
    if verdict is None:
        tally.accepted += 1
        return f"accepted {tally.accepted.bit_length()}"
    tally.refused[verdict.reason] += 1
    tally.first += kit.first.search(verdict.text) is not None
    return f"{verdict.reason} {_DIGITS.sub('#', verdict.text)[:120]}"


def _costly(kit: Kit, data: bytes, took_s: float, grown: int) -> Finding | None:
    if took_s > SLOW_S:
        return Finding("slow", f"{took_s:.0f}s", f"{took_s:.2f} s for {len(data)} bytes, at most {SLOW_S} s", data)
    if grown > (most := GROWTH * len(data) + kit.room):
        return Finding("memory", f"{grown >> 24}", f"{grown} bytes more for {len(data)} bytes, at most {most}", data)
    return None


def shrunk(kit: Kit, finding: Finding) -> Finding:
    """The same finding with less of its input, as far as that is found soon."""
    if finding.kind in {"slow", "memory", "HangError", "MemoryError"}:
        return finding
    best, steps, until_s = finding, 0, time.monotonic() + _SHRINK_S
    size = max(1, len(finding.data) // 2)
    while size and steps < _SHRINK_STEPS and time.monotonic() < until_s:
        at = 0
        while at < len(best.data) and steps < _SHRINK_STEPS and time.monotonic() < until_s:
            steps += 1
            _, found = attempt(kit, best.data[:at] + best.data[at + size :])
            if found is not None and (found.kind, found.where) == (finding.kind, finding.where):
                best = found
            else:
                at += size
        size //= 2
    return best


def _where(error: BaseException) -> str:
    """The innermost place of the tree's own sources that the error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(str(_HERE))]
    places = [frame for frame in own if "site-packages" not in frame.filename]  # an environment may stand in the tree
    if not places:
        return "?"
    last = places[-1]
    return f"{Path(last.filename).relative_to(_HERE)}:{last.name}"


class Memory:
    """How much more memory this process has taken at its peak since it was last asked.

    Where the system's peak cannot be set back, only growth beyond the highest peak of the process so far is seen.
    """

    def __init__(self) -> None:
        self._before = self._reset()

    def grown(self) -> int:
        """Bytes; less than 1 MiB is taken for nothing."""
        # The first, which is never less than the second, takes a hundredth of its time.
        if _peak_of_usage() - self._before < _NOTICED or (grown := _peak() - self._before) < _NOTICED:
            return 0
        self._before = self._reset()
        return grown

    @staticmethod
    def can_be_reset() -> bool:
        """Whether the system sets a peak back when asked to."""
        return os.access("/proc/self/clear_refs", os.W_OK) and _peak_of_status() is not None

    @staticmethod
    def _reset() -> int:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return _peak()


def _peak() -> int:
    """Bytes. Not ru_maxrss where it can be helped: that begins with the peak of the process that started this one."""
    if (peak := _peak_of_status()) is not None:
        return peak
    return _peak_of_usage()


def _peak_of_usage() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _peak_of_status() -> int | None:
    with suppress(OSError):
        found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
        return None if found is None else int(found[1]) * 1024
    return None


@contextmanager
def alarm() -> Iterator[None]:
    """Turns the timer's signal into HangError, as long as the block lasts."""

    def ring(_: int, frame: FrameType | None) -> None:
        raise HangError(f"more than {HANG_S:g} s")

    before: Any = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def refused_at_first(kit: Kit) -> list[Refused]:
    """What good samples are refused for: nothing, where the target is sound."""
    return [verdict for sample in kit.samples if (verdict := kit.attempt(sample)) is not None]


def accepted_at_first(kit: Kit) -> list[str]:
    """What is wrong with bad samples that are accepted: nothing, where the decoders are sound."""
    return [what for what, sample in kit.bad.items() if kit.attempt(sample) is None]
