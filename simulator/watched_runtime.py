"""A client's runtime that lets the run see which step of a round its machine is in."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final, TypeVar

from edge_client import Runtime
from hushsum.secure_sum.client import ClientRound, ClientStep, Received
from simulator.vanishing import Stage

T = TypeVar("T")
_ROUND: Final = slice(42, 74)  # of a message: its round's id, after format, kind, plan id and window
_STAGES: Final = {
    ClientStep.NEW: Stage.WAITING,
    ClientStep.ADVERTISED: Stage.KEYS,
    ClientStep.COUNTING: Stage.GRAPH,
    ClientStep.OPENED: Stage.GRAPH,
    ClientStep.SHARED: Stage.SHARES,
    ClientStep.READY: Stage.SHARES,
    ClientStep.SPENDING: Stage.SHARES,  # not durable yet
    ClientStep.SENT: Stage.UPLOAD,
    ClientStep.CONSENTED: Stage.CONSENT,
    ClientStep.REVEALED: Stage.REVEAL,
    ClientStep.REFUSED: Stage.WAITING,
}


class WatchedRuntime:
    """Passes everything on to a runtime that many clients share.

    Args:
        runtime: That one.

    Attributes:
        round: The id of the round that this client was in last, once a message of it has come; empty before.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._machine: ClientRound | None = None
        self.round = b""

    @property
    def stage(self) -> Stage:
        """Where the client stands, by its machine; until it has one, it waits for a cohort."""
        return Stage.WAITING if self._machine is None else _STAGES[self._machine.step]

    def now_ms(self) -> int:
        """The shared wall clock."""
        return self._runtime.now_ms()

    def monotonic(self) -> float:
        """The shared clock that never goes back."""
        return self._runtime.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Returns after so many seconds."""
        await self._runtime.sleep(seconds)

    def spawn(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        """Starts a task."""
        return self._runtime.spawn(work, name)

    async def blocking(self, function: Callable[..., T], *arguments: object) -> T:
        """Runs what waits for the spool."""
        return await self._runtime.blocking(function, *arguments)

    async def computing(self, function: Callable[..., T], *arguments: object) -> T:
        """Runs what computes; where that is a step of a round, its machine is noted."""
        owner = getattr(function, "__self__", None)
        if isinstance(owner, ClientRound):
            self._machine = owner
        if arguments and isinstance(arguments[0], Received):
            self.round = arguments[0].data[_ROUND]
        return await self._runtime.computing(function, *arguments)
