"""Clients of one round in a process of their own, so that what the server's process holds can be measured."""

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np

from hushsum.plan import Plan
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
from tests.aggregator.secure_clients import fleet_of


class Crowd:
    """The near end: what the far clients answer to a message, as bytes.

    Args:
        pipe: To the other process.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def begin(self, client: int) -> list[bytes]:
        """A client's first messages."""
        return self._ask(client, b"")

    def hear(self, client: int, data: bytes) -> list[bytes]:
        """Its answers to a message; after a grant it has a vector instead."""
        return self._ask(client, data)

    def chunk(self, client: int, offset: int, size: int) -> bytes:
        """A part of its vector; empty behind its end."""
        self._pipe.send((client, (offset, size)))
        return self._pipe.recv_bytes()

    def _ask(self, client: int, data: bytes) -> list[bytes]:
        self._pipe.send((client, data))
        return [self._pipe.recv_bytes() for _ in range(self._pipe.recv())]


@contextmanager
def crowd_of(bundle: bytes, number: int, window: int, round_id: bytes) -> Iterator[Crowd]:
    """So many clients of a plan, in another process as long as the block lasts."""
    context = get_context("spawn")
    near, far = context.Pipe()
    process = context.Process(target=_live, args=(far, bundle, number, window, round_id))
    process.start()
    try:
        yield Crowd(near)
    finally:
        near.send(None)
        process.join()
        near.close()
        far.close()


def _live(pipe: Connection, bundle: bytes, number: int, window: int, round_id: bytes) -> None:
    fleet = fleet_of(Plan.from_bytes(bundle), number, np.random.default_rng(0))
    machines = [client.machine_of(window, round_id) for client in fleet]
    vectors: dict[int, bytes] = {}
    while (asked := pipe.recv()) is not None:
        client, what = asked
        if isinstance(what, tuple):
            offset, size = what
            pipe.send_bytes(vectors[client][offset : offset + size])
            continue
        machine = machines[client]
        effects = machine.begin() if not what else machine.handle(ServerMessage(what))
        said = list(_said(machine, effects, client, vectors))
        pipe.send(len(said))
        for data in said:
            pipe.send_bytes(data)


def _said(machine: ClientRound, effects: list[Effect], client: int, vectors: dict[int, bytes]) -> Iterator[bytes]:
    for effect in effects:
        match effect:
            case Send(data):
                yield data
            case CountAttempt():
                yield from _said(machine, machine.handle(Opened()), client, vectors)
            case SpendWindow():
                yield from _said(machine, machine.handle(Spent()), client, vectors)
            case SendVector(data):
                vectors[client] = data
            case _:
                pass
