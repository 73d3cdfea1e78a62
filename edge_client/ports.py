"""Every way out of the SDK's pure core: time, tasks, threads, and the wire.

Structural protocols, so that the real thing and a double are exchanged freely; :class:`SystemRuntime` is the one place
of this package that reads a clock, sleeps, or starts a task.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol, TypeVar

from edge_client.session_events import Loss
from hushsum.signed_plan import SignedPlan
from hushsum_proto.answers import Answer
from hushsum_proto.messages import Welcome
from hushsum_proto.rounds import RoundReply, RoundRequest

T = TypeVar("T")


class Runtime(Protocol):
    """Time, tasks and threads. Many clients of one process share one."""

    def now_ms(self) -> int:
        """The wall clock, ms since 1970-01-01T00:00:00Z."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Returns after so many seconds."""
        ...

    def spawn(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        """Starts a task; its owner awaits or cancels it."""
        ...

    async def blocking(self, function: Callable[..., T], *arguments: object) -> T:
        """Runs what waits for the spool (a commit, a read) off the event loop."""
        ...

    async def computing(self, function: Callable[..., T], *arguments: object) -> T:
        """Hashes records off the event loop, in other threads: however many there are, no :meth:`blocking` waits."""
        ...


class SystemRuntime:
    """The real clock, event loop and threads.

    Args:
        threads: That hash, and as many for spools; they start when they are needed.
    """

    def __init__(self, threads: int = 2) -> None:
        self._hashing = ThreadPoolExecutor(threads, thread_name_prefix="hushsum-edge-hash")
        self._spools = ThreadPoolExecutor(threads, thread_name_prefix="hushsum-edge-spool")

    def now_ms(self) -> int:
        """The wall clock, ms since 1970-01-01T00:00:00Z."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Returns after so many seconds."""
        await asyncio.sleep(seconds)

    def spawn(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        """Starts a task; its owner awaits or cancels it."""
        return asyncio.create_task(work, name=name)

    async def blocking(self, function: Callable[..., T], *arguments: object) -> T:
        """Runs a call in one of the threads for spools."""
        return await asyncio.get_running_loop().run_in_executor(self._spools, lambda: function(*arguments))

    async def computing(self, function: Callable[..., T], *arguments: object) -> T:
        """Runs a call in one of the threads that hash."""
        return await asyncio.get_running_loop().run_in_executor(self._hashing, lambda: function(*arguments))

    def close(self) -> None:
        """Lets the threads end once they are idle; nothing can be run any more."""
        for threads in (self._hashing, self._spools):
            threads.shutdown(wait=False)


class ConnectionLostError(Exception):
    """A call or a stream ended without what it was made for.

    Args:
        loss: What is known about it.
    """

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.detail)
        self.loss = loss


class PlanReply(NamedTuple):
    """A plan as a service sent it, unchecked.

    Attributes:
        bundle: Canonical bytes.
        signed: With the signature that came with it; None where there is none that this version reads.
    """

    bundle: bytes
    signed: SignedPlan | None


class Connection(Protocol):
    """One connection to a service; every method raises :class:`ConnectionLostError` when it breaks."""

    async def greet(self, plan_id: bytes) -> Welcome:
        """Says hello; the plan id is empty where none is known yet."""
        ...

    async def fetch_plan(self, plan_id: bytes) -> PlanReply:
        """A plan as the service has it; whoever asks checks that it hashes to its id."""
        ...

    def open(self, *, unary: bool) -> None:
        """Makes ready to send: one stream, or a call for each delta."""
        ...

    async def send(self, delta: bytes) -> None:
        """Writes a packed delta; its answer comes in :meth:`answers`."""
        ...

    def answers(self) -> AsyncGenerator[Answer, None]:
        """Answers as they come, in any order; ends when the service ends the stream."""
        ...

    async def close(self) -> None:
        """Ends everything at once; never raises."""
        ...


class Transport(Protocol):
    """How to get connections."""

    def connect(self) -> Connection:
        """A new connection; nothing is sent before it is used."""
        ...


class RoundCall(Protocol):
    """One client's part in a window, on a connection of its own; raises :class:`ConnectionLostError` when it breaks."""

    async def send(self, request: RoundRequest) -> None:
        """Writes one request; returns when there is room for the next."""
        ...

    async def receive(self) -> RoundReply:
        """The next reply; that the service ended the call without an outcome is a loss."""
        ...

    async def close(self) -> None:
        """Ends everything at once; never raises."""
        ...


class RoundTransport(Protocol):
    """How to take part in secure sums."""

    def take_part(self, message_bytes_max: int) -> RoundCall:
        """A new call; nothing is sent before it is used. A reply with a longer message breaks it."""
        ...

    async def fetch_directory(self, plan_id: bytes) -> bytes:
        """The canonical bytes of the directory of clients; whoever asks checks their digest.

        Raises:
            ConnectionLostError: They did not come whole.
            DirectoryError: They are more than any directory has.
        """
        ...
