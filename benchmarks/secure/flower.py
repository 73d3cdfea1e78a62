"""Flower's helper functions, in a process of their own that has what our environment has not."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from build_tools import peers

_WORKER = Path(__file__).with_name("flower_worker.py")


class Flower:
    """The process: a line says what it does once, and it answers when that is done."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def case(self, *words: object) -> Callable[[], None]:
        """What it does once: see the worker. The way there and back costs some 50 µs, which count as its time."""
        line = " ".join(map(str, words)) + "\n"

        def run() -> None:
            assert self._process.stdin is not None, "a pipe"
            assert self._process.stdout is not None, "a pipe"
            self._process.stdin.write(line)
            self._process.stdin.flush()
            if self._process.stdout.readline() != "done\n":
                raise RuntimeError(f"Flower's process did not do {line.strip()!r}; see its words above")

        return run


@contextmanager
def flower() -> Iterator[Flower | None]:
    """The process while the context lasts; None where Flower could not be fetched."""
    if not peers.is_ready():
        yield None
        return
    command = [sys.executable, str(_WORKER), str(peers.PACKAGES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Flower(process)
        assert process.stdin is not None, "a pipe"
        process.stdin.close()
