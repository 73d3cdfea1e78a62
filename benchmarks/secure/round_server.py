"""The server of a round, in a process of its own: its machine, pipes to the clients', and what it all took."""

import multiprocessing
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.secure.round_clients import Said, take_part
from benchmarks.secure.round_setting import Setting
from hushsum.secure_sum.server import (
    ClientMessage,
    Done,
    Drop,
    Effect,
    Failed,
    ServerRound,
    Sum,
    Tell,
    Uploaded,
    Vanished,
)

_SPAWN: Final = multiprocessing.get_context("spawn")
_CLIENT_PROCESSES: Final = 2
_EVENTS: Final[dict[Said, Callable[[str, bytes], ClientMessage | Uploaded | Vanished]]] = {
    Said.MESSAGE: ClientMessage,
    Said.VECTOR: Uploaded,
    Said.VANISHED: lambda name, _: Vanished(name),
}


@dataclass(frozen=True)
class Figures:
    """What a round took.

    Attributes:
        seconds: From the first client's start to the sum.
        server_seconds: That the server's machine computed.
        clients_seconds: That all clients computed.
        server_bytes: Of the server's process at its peak, beyond what it was before the round.
        upload_bytes: Of a client that survives: its vector and all else that it sends.
        submissions: In the sum.
    """

    seconds: float
    server_seconds: float
    clients_seconds: float
    server_bytes: int
    upload_bytes: float
    submissions: int


def measured(setting: Setting) -> Figures:
    """One round, with a process for the server and two for the clients."""
    # A copy: what a setting has derived does not pass through a pipe.
    with ProcessPoolExecutor(1, _SPAWN) as server:
        return server.submit(_round, replace(setting)).result()


class _Round:
    """The server's side of the pipes."""

    def __init__(self, setting: Setting) -> None:
        self.machine = ServerRound(setting.parameters, members=setting.ids, directory=setting.directory)
        self.pipes: list[Connection] = []
        self.sum: Sum | None = None
        self.sent = 0  # bytes, by all clients
        self.seconds = 0.0
        self._of: dict[str, Connection] = {}
        self._setting = setting

    def start(self) -> None:
        """Starts the clients' processes, and returns when they are ready."""
        for number in range(_CLIENT_PROCESSES):
            ids = self._setting.ids[number::_CLIENT_PROCESSES]
            pipe, theirs = _SPAWN.Pipe()
            _SPAWN.Process(target=take_part, args=(theirs, replace(self._setting), ids), daemon=True).start()
            theirs.close()
            self.pipes.append(pipe)
            self._of |= dict.fromkeys(ids, pipe)
        for pipe in self.pipes:
            assert pipe.recv()[0] is Said.READY

    def run(self) -> None:
        """From the first message to the sum."""
        self._do(self._timed(self.machine.begin))
        while self.sum is None:
            ready = wait(self.pipes)
            for pipe in self.pipes:
                if pipe in ready:
                    self._receive(pipe)

    def _receive(self, pipe: Connection) -> None:
        """What a client has said; when this returns, nobody but the machine holds its vector."""
        said, name, data = pipe.recv()
        self.sent += len(data)
        self._do(self._timed(partial(self.machine.handle, _EVENTS[said](name, data))))

    def stop(self) -> float:
        """Ends the clients' processes; the seconds that they computed."""
        seconds = 0.0
        for pipe in self.pipes:
            pipe.send(None)
            while (last := pipe.recv())[0] is not Said.OVER:
                self.sent += len(last[2])  # the sum was there before it
            seconds += float(last[2])
        return seconds

    def _timed(self, act: Callable[[], list[Effect]]) -> list[Effect]:
        start = time.process_time()
        effects = act()
        self.seconds += time.process_time() - start
        return effects

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell(client_id, data):
                    self._of[client_id].send((client_id, data))
                case Done(total):
                    self.sum = total
                case Drop() | Failed():
                    raise RuntimeError(f"a round without faults failed: {effect}")


def _round(setting: Setting) -> Figures:
    play = _Round(setting)
    play.start()
    before = _memory("VmRSS")
    start = time.perf_counter()
    play.run()
    seconds, peak, clients_seconds = time.perf_counter() - start, _memory("VmHWM"), play.stop()
    assert play.sum is not None
    survivors = setting.clients - setting.vanishing
    _check(setting, play.sum, survivors)
    return Figures(seconds, play.seconds, clients_seconds, peak - before, play.sent / survivors, play.sum.submissions)


def _check(setting: Setting, total: Sum, survivors: int) -> None:
    """The sum is that of the survivors, with noise of theirs."""
    counters, _ = setting.parameters.words.centred(total.words)
    errors = counters - survivors * setting.brought[0]
    share = setting.mechanism.share().std
    if total.submissions != survivors or not 0.8 < float(np.sqrt(np.mean(errors**2.0))) / share / survivors**0.5 < 1.25:
        raise RuntimeError("another sum came out than went in")


def _memory(what: str) -> int:
    """Bytes of this process, as Linux tells them."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return int(lines[what].split()[0]) * 1024
