"""What waits for a log's partitions: batched, bounded, one message of a partition under way at a time, in order.

In order matters: a fold takes an id that comes 64 or more behind its stream's highest for one that it has seen before.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from edge_client.backoff import BackOff
from edge_client.errors import EdgeError, SettingsError, UnreachableError
from edge_client.ports import Runtime
from hushsum.entropy import OsEntropy
from hushsum_proto.batches import BATCH_ENTRIES_MAX

_BACK_OFF_S: Final = (0.05, 5.0)
_BATCH_BYTES_MAX: Final = 1 << 19


class NotStoredError(Exception):
    """Whether a message is stored is not known, or it is not; sending it again may help."""


@dataclass(frozen=True)
class OutboxSettings:
    """How entries are gathered into messages, and how many may wait; none of it changes what is counted.

    Attributes:
        linger_s: How long the first entry of a message waits for others, where none is under way.
        batch_bytes: Of the entries of one message, 1 to 524,288; a larger entry goes alone.
        waiting_bytes_max: Of all entries that are not stored yet: who submits more waits.
        timeout_s: How long one message is tried.

    Raises:
        SettingsError: A number is out of its range.
    """

    linger_s: float = 0.005
    batch_bytes: int = 1 << 18
    waiting_bytes_max: int = 1 << 24
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        # Every topic of the service takes messages of 1 MiB, whatever its plan.
        if not 1 <= self.batch_bytes <= _BATCH_BYTES_MAX:
            raise SettingsError(f"batch_bytes: got {self.batch_bytes}, expected 1 to {_BATCH_BYTES_MAX}")
        for name, value in (("linger_s", self.linger_s), ("timeout_s", self.timeout_s)):
            if not 0 <= value < math.inf:
                raise SettingsError(f"{name}: got {value}, expected 0 or more seconds")
        if self.waiting_bytes_max < 1:
            raise SettingsError(f"waiting_bytes_max: got {self.waiting_bytes_max}, expected 1 or more")


class _Ticket:
    """Who waits for some entries: until each is stored, or one is not."""

    def __init__(self, entries: int) -> None:
        self.left = entries
        self.stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end_one(self, error: EdgeError | None) -> None:
        self.left -= 1
        if self.stored.done():
            return  # told already, or waits no longer
        if error is not None:
            self.stored.set_exception(error)
        elif not self.left:
            self.stored.set_result(None)

    def close(self) -> None:
        """Nobody waits any more, and nothing that comes now is an error that was overlooked."""
        if not self.stored.cancel() and not self.stored.cancelled():
            self.stored.exception()


class _Waiting(NamedTuple):
    entry: bytes
    ticket: _Ticket


class Outbox:
    """The queues of all partitions.

    Args:
        send: Stores one message of (partition, entries) durably, or raises :class:`NotStoredError`; any other
            :class:`EdgeError` is final.
        runtime: Time and tasks.
        settings: How much waits for how long.
    """

    def __init__(
        self, send: Callable[[int, Sequence[bytes]], Awaitable[None]], runtime: Runtime, settings: OutboxSettings
    ) -> None:
        self._send = send
        self._runtime = runtime
        self._settings = settings
        self._queues: dict[int, deque[_Waiting]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()  # first come, first served
        self._freed = asyncio.Event()
        self._bytes = 0
        self._dropped = False

    async def store(self, entries: Sequence[tuple[int, bytes]]) -> None:
        """Takes entries, each for its partition, once there is room for them: in the order of the calls.

        Returns:
            Once all of them are stored.

        Raises:
            EdgeError: One is not known to be; what becomes of the others is open.
        """
        ticket = _Ticket(len(entries))
        try:
            async with self._turn:
                for partition, entry in entries:
                    await self._take(partition, entry, ticket)
            if entries:
                await ticket.stored
        finally:
            ticket.close()

    async def flush(self) -> None:
        """Returns once nothing waits any more."""
        while self._tasks:
            await asyncio.wait([*self._tasks.values()])

    async def drop(self) -> None:
        """Stops at once; what is not stored yet ends with an error."""
        self._dropped = True
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for partition in self._queues:
            self._fail(partition, _dropped())

    async def _take(self, partition: int, entry: bytes, ticket: _Ticket) -> None:
        while self._bytes and self._bytes + len(entry) > self._settings.waiting_bytes_max:
            self._freed.clear()
            await self._freed.wait()
        if ticket.stored.done():
            return  # one has failed: what comes after it must not be stored first
        if self._dropped:
            raise _dropped()
        self._bytes += len(entry)
        self._queues.setdefault(partition, deque()).append(_Waiting(entry, ticket))
        if partition not in self._tasks:
            self._tasks[partition] = self._runtime.spawn(self._drain(partition), f"produce-{partition}")

    async def _drain(self, partition: int) -> None:
        queue = self._queues[partition]
        try:
            await self._runtime.sleep(self._settings.linger_s)
            while queue:
                await self._deliver(partition, self._next_entries(queue))
        except EdgeError as error:
            # What stands behind goes too: were it stored first, what failed would come out of order when sent again.
            self._fail(partition, error)
        except Exception as error:  # noqa: BLE001  whatever it is, those who wait are told
            self._fail(partition, UnreachableError(f"partition {partition}: {type(error).__name__}: {error}"))
        finally:
            del self._tasks[partition]

    async def _deliver(self, partition: int, entries: Sequence[bytes]) -> None:
        """Stores the head of the queue, and takes it out."""
        began_s, back_off = self._runtime.monotonic(), BackOff(*_BACK_OFF_S, OsEntropy())
        while True:
            try:
                await self._send(partition, entries)
                break
            except NotStoredError as error:
                if self._runtime.monotonic() - began_s >= self._settings.timeout_s:
                    tried = f"not known to be stored after {self._settings.timeout_s:g} s ({error})"
                    advice = "the same deltas can be sent again, each counts once"
                    raise UnreachableError(f"partition {partition}: {tried}; {advice}") from error
                await self._runtime.sleep(back_off.next_s())
        for _ in entries:
            self._end(self._queues[partition].popleft(), None)

    def _next_entries(self, queue: deque[_Waiting]) -> list[bytes]:
        taken: list[bytes] = []
        size = 0
        for waiting in queue:
            size += len(waiting.entry)
            if taken and (size > self._settings.batch_bytes or len(taken) == BATCH_ENTRIES_MAX):
                break
            taken.append(waiting.entry)
        return taken

    def _fail(self, partition: int, error: EdgeError) -> None:
        queue = self._queues[partition]
        while queue:
            self._end(queue.popleft(), error)

    def _end(self, waiting: _Waiting, error: EdgeError | None) -> None:
        self._bytes -= len(waiting.entry)
        self._freed.set()
        waiting.ticket.end_one(error)


def _dropped() -> UnreachableError:
    return UnreachableError("the producer was closed before this was stored")
