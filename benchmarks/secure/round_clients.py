"""Some clients of a round, in a process of their own: their machines, and a pipe to the server's."""

import enum
import queue
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from benchmarks.secure.round_setting import Setting
from hushsum.entropy import OsEntropy
from hushsum.secure_sum.client import (
    ClientRound,
    CountAttempt,
    Effect,
    Opened,
    Send,
    SendVector,
    ServerMessage,
    SpendWindow,
    Spent,
)


class Said(enum.Enum):
    """What comes out of the pipe, with a client's id and bytes."""

    READY = enum.auto()
    MESSAGE = enum.auto()
    VECTOR = enum.auto()
    VANISHED = enum.auto()
    OVER = enum.auto()  # with the seconds that the clients have computed, as text


def take_part(pipe: Connection, setting: Setting, ids: tuple[str, ...]) -> None:
    """Plays the clients of these ids, each from its invitation on, until the pipe says None."""
    vanishing, begin = set(setting.ids[: setting.vanishing]), _beginning(setting, ids)
    told, machines = _told(pipe), dict[str, ClientRound]()
    start = time.process_time()
    pipe.send((Said.READY, "", b""))
    while (message := told.get()) is not None:
        name, data = message
        if name in machines:
            effects = machines[name].handle(ServerMessage(data))
        else:
            machines[name] = begin(name)
            effects = machines[name].begin()
        for said, answer in _done(machines[name], effects, vanishes=name in vanishing):
            pipe.send((said, name, answer))
    pipe.send((Said.OVER, "", str(time.process_time() - start).encode()))


def _beginning(setting: Setting, ids: tuple[str, ...]) -> Callable[[str], ClientRound]:
    """Makes a client's machine; what a client has before a round is made once."""
    keys, directory, parameters = {name: setting.key(name) for name in ids}, setting.directory, setting.parameters
    counters, counts = setting.brought
    share, entropy = setting.mechanism.share(), OsEntropy()

    def begin(name: str) -> ClientRound:
        return ClientRound(
            parameters,
            client_id=name,
            key=keys[name],
            directory=directory,
            counters=counters,
            counts=counts,
            share=share,
            entropy=entropy,
        )

    return begin


def _done(machine: ClientRound, effects: list[Effect], *, vanishes: bool) -> Iterator[tuple[Said, bytes]]:
    """Does what a machine wants; nothing is durable here, which costs a real client a write each."""
    for effect in effects:
        if isinstance(effect, Send):
            yield Said.MESSAGE, effect.data
        elif isinstance(effect, CountAttempt):
            yield from _done(machine, machine.handle(Opened()), vanishes=vanishes)
        elif isinstance(effect, SpendWindow) and vanishes:
            yield Said.VANISHED, b""
        elif isinstance(effect, SpendWindow):
            yield from _done(machine, machine.handle(Spent()), vanishes=vanishes)
        elif isinstance(effect, SendVector):
            yield Said.VECTOR, effect.data


def _told(pipe: Connection) -> "queue.SimpleQueue[tuple[str, bytes] | None]":
    """What comes in through the pipe: read as it comes, so that two who both write never wait for each other."""
    told: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()

    def read() -> None:
        while True:
            message = pipe.recv()
            told.put(message)
            if message is None:
                return

    threading.Thread(target=read, daemon=True).start()
    return told
