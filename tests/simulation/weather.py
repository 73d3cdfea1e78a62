"""What goes wrong between a process and what it calls: drawn for each call, from rates that operations change."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeVar

from aggregator.store.transaction import run_to_end
from tests.simulation.loop import Process, VirtualLoop, current_process

T = TypeVar("T")

DELAY_S: Final = 0.002  # of one way, on average
SLOW_S: Final = 2.5  # the longest that a slow call takes: longer than its caller waits
TIMEOUT_S: Final = 1.5


@dataclass
class Weather:
    """Chances of what may happen to one call.

    Attributes:
        drop: It never arrives.
        lose: It is carried out, and the reply is lost.
        slow: It takes seconds; its caller may have given it up when it is carried out.
        full: It fails at once, and nothing is done: a full disk.
    """

    drop: float = 0.0
    lose: float = 0.0
    slow: float = 0.0
    full: bool = False

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        self.drop = self.lose = self.slow = 0.0
        self.full = False


@dataclass(frozen=True)
class Ambush:
    """What happens to the next call of one name.

    Attributes:
        hold_s: It arrives so much later; its caller is paused for as long.
        lose: It is carried out, and the reply is lost.
        then: Is done when it is called.
    """

    hold_s: float = 0.0
    lose: bool = False
    then: Callable[[], None] = lambda: None


class Line:
    """The way to one server, from every process.

    Args:
        loop: Time.
        name: Of the server.
        seed: Of what goes wrong.
        lost: Makes the error of a call of which nobody knows whether it was carried out.
        full: Makes the error of a full disk.
        embedded: The server is a library of its caller: it dies with it, and no reply is ever lost.

    Attributes:
        weather: Now.
        cut: Hosts whose calls do not arrive.
        ambushes: By the name of the call that is waited for.
        sprung: Names of the calls that were met.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        name: str,
        seed: int,
        *,
        lost: Callable[[str], Exception],
        full: Callable[[str], Exception],
        embedded: bool,
    ) -> None:
        self.weather = Weather()
        self.cut: set[str] = set()
        self.ambushes: dict[str, Ambush] = {}
        self.sprung: list[str] = []
        self.embedded = embedded
        self.random = Random(f"{name}/{seed}")
        self.lost, self.full = lost, full
        self._loop, self._name = loop, name
        self._breaks = 0

    def delay_s(self) -> float:
        """One way."""
        return self.random.expovariate(1 / DELAY_S)

    def break_off(self) -> None:
        """Every connection to the server breaks: nothing that is on its way arrives."""
        self._breaks += 1

    def arrives(self, process: Process | None) -> bool:
        """Whether a call of this process arrives; draws."""
        if process is not None and (process.host in self.cut or (self.embedded and not process.alive)):
            return False
        return self.embedded or self.random.random() >= self.weather.drop

    def is_slow(self) -> bool:
        """Whether this call is; draws."""
        return self.weather.slow > 0 and self.random.random() < self.weather.slow

    def slow_s(self) -> float:
        """How long a slow call takes."""
        return self.random.random() * SLOW_S

    def loses(self) -> bool:
        """Whether the reply is lost; draws."""
        return not self.embedded and self.weather.lose > 0 and self.random.random() < self.weather.lose

    async def call(self, what: str, work: Callable[[Process | None], Coroutine[Any, Any, T]], *, writes: bool) -> T:
        """Has the server do something that never waits.

        Raises:
            Exception: What ``work`` raises, or what this line makes.
        """
        process, loop, breaks = current_process(), self._loop, self._breaks
        if writes and self.weather.full:
            await self._pause()
            raise self.full(f"{self._name}: the disk is full")
        reply: Any = loop.create_future()  # Any: an asyncio.Future[T] that ends either way
        wait_s = self.delay_s() + (self.slow_s() if self.is_slow() else 0.0)
        ambush = self.ambushes.pop(what, None)
        if ambush is not None:
            self.sprung.append(what)
            wait_s += self._spring(ambush, process)

        def give_up() -> None:
            if not reply.done():
                reply.set_exception(self.lost(f"{self._name}: no reply to {what}"))

        def serve() -> None:
            if breaks != self._breaks or not self.arrives(process):
                return
            try:
                result, error = run_to_end(work(process)), None
            except Exception as raised:  # noqa: BLE001  it is the caller's
                result, error = None, raised
            if not (self.loses() or (ambush is not None and ambush.lose and not self.embedded)):
                loop.call_world(self.delay_s(), answer, result, error)

        def answer(result: object, error: Exception | None) -> None:
            if not reply.done():
                reply.set_result(result) if error is None else reply.set_exception(error)

        loop.call_world(wait_s, serve)
        if not self.embedded:
            loop.call_world(TIMEOUT_S, give_up)
        result: T = await reply
        return result

    def _spring(self, ambush: Ambush, process: Process | None) -> float:
        """How much later the call arrives."""
        ambush.then()
        if ambush.hold_s and process is not None:
            self._loop.pause(process)
            self._loop.call_world(ambush.hold_s, self._loop.resume, process)
        return ambush.hold_s * (0.9 + 0.2 * self.random.random())

    async def _pause(self) -> None:
        await asyncio.sleep(self.delay_s())
