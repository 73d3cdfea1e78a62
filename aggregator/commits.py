"""Group commit: so many appends at a time, one by default; what comes meanwhile makes up the next group.

After a group's append is durable, one read of the store's window states, begun only then, serves the whole group: a
delta may be acknowledged only by such a read (WIRE: windows, seals and answers).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from aggregator.journal import journal
from aggregator.metrics import Metrics
from aggregator.openings import Openings
from aggregator.ports import Appended, Log, Runtime
from aggregator.retries import TRANSIENT
from aggregator.windows import WindowState
from hushsum_proto.answers import Refusal, ServiceReason

RETRY_AFTER_MS_MIN: Final = 20
_FAILED_RETRY_AFTER_MS: Final = 1000
_NEVER_OPEN: Final = frozenset({None, WindowState.SKIPPED})

_journal = journal("commits")


class Committed(NamedTuple):
    """What is known of an entry that is durable.

    Attributes:
        position: In its partition.
        state: Of its window, by a read begun after the entry was durable.
    """

    position: int
    state: WindowState | None


Commit = asyncio.Future[Committed | Refusal]


@dataclass(frozen=True)
class CommitLimits:
    """How much may wait, how much goes into one group, and how many groups may be on their way at once."""

    pending_entries_max: int
    pending_bytes_max: int
    group_entries_max: int
    group_bytes_max: int
    groups_max: int = 1


class _Pending(NamedTuple):
    entry: Appended
    commit: Commit


class Commits:
    """The one writer of a gateway.

    Args:
        log: Where entries go.
        openings: Which windows are open: read after each append.
        runtime: Tasks and a clock.
        limits: Beyond them, what is offered is refused as overload.
        metrics: Counts groups, their sizes and their failures.
    """

    def __init__(
        self,
        log: Log,
        openings: Openings,
        runtime: Runtime,
        limits: CommitLimits,
        metrics: Metrics,
    ) -> None:
        self._log = log
        self._openings = openings
        self._runtime = runtime
        self._limits = limits
        self._metrics = metrics
        self._pending: list[_Pending] = []
        self._entries = 0  # waiting, or in the group that is under way
        self._bytes = 0
        self._group_s = 0.0  # how long the last group took
        self._wake = asyncio.Event()
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def partitions(self) -> int:
        """P of the log."""
        return self._log.partitions

    def start(self) -> None:
        """Starts the writer."""
        self._tasks = [self._runtime.spawn(self._run(), "commits") for _ in range(self._limits.groups_max)]

    async def stop(self) -> None:
        """Commits what was offered, and ends."""
        self._stopping = True
        self._wake.set()
        for task in self._tasks:
            await task

    def offer(self, entry: Appended) -> Commit | Refusal:
        """Takes an entry for the next group; its future ends with what became of it, never with an exception."""
        limits = self._limits
        if self._stopping:
            return Refusal.of(ServiceReason.SHUTTING_DOWN, "the service is stopping", RETRY_AFTER_MS_MIN)
        if self._entries >= limits.pending_entries_max or self._bytes + len(entry.data) > limits.pending_bytes_max:
            detail = (
                f"at most {limits.pending_entries_max} deltas or {limits.pending_bytes_max} bytes may wait for the log"
            )
            return Refusal.of(ServiceReason.OVERLOADED, detail, self._retry_after_ms())
        commit: Commit = asyncio.get_running_loop().create_future()
        self._pending.append(_Pending(entry, commit))
        self._entries += 1
        self._bytes += len(entry.data)
        self._wake.set()
        return commit

    def _retry_after_ms(self) -> int:
        """About the time in which what waits now will be written."""
        groups = 1 + self._entries // self._limits.group_entries_max
        return max(RETRY_AFTER_MS_MIN, round(1000 * groups * self._group_s))

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            while self._pending:
                await self._commit(self._take())
            if self._stopping:
                return
            self._wake.clear()

    def _take(self) -> Sequence[_Pending]:
        """The oldest entries that make up one group: at least one."""
        size = count = 0
        for pending in self._pending[: self._limits.group_entries_max]:
            size += len(pending.entry.data)
            if count and size > self._limits.group_bytes_max:
                break
            count += 1
        group, self._pending = self._pending[:count], self._pending[count:]
        return group

    async def _commit(self, group: Sequence[_Pending]) -> None:
        size = sum(len(pending.entry.data) for pending in group)
        try:
            await self._append(await self._opened(group))
        except Exception as error:  # noqa: BLE001  whatever the disk says, every sender gets its answer
            self._failed(error)
            _refuse(group, ServiceReason.UNAVAILABLE, "the log or the store failed: whether it is durable is not known")
        finally:
            self._entries -= len(group)
            self._bytes -= size

    async def _opened(self, group: Sequence[_Pending]) -> Sequence[_Pending]:
        """What may be appended: nothing of a window that was skipped, or that the clock has not opened."""
        await self._openings.ensure({pending.entry.window for pending in group})
        never = [each for each in group if self._openings.state(each.entry.window) in _NEVER_OPEN]
        if not never:
            return group
        _refuse(never, ServiceReason.WINDOW_NOT_OPEN, "no gateway had the window open in its time")
        return [pending for pending in group if not pending.commit.done()]

    async def _append(self, group: Sequence[_Pending]) -> None:
        began = self._runtime.monotonic()
        positions = await self._log.append([pending.entry for pending in group])
        self._group_s = self._runtime.monotonic() - began
        await self._openings.refresh({pending.entry.window for pending in group})
        self._observe(group, positions)
        for pending, position in zip(group, positions, strict=True):
            pending.commit.set_result(Committed(position, self._openings.state(pending.entry.window)))

    def _observe(self, group: Sequence[_Pending], positions: Sequence[int]) -> None:
        self._metrics.committed(len(group), sum(len(pending.entry.data) for pending in group), self._group_s)
        ends = {pending.entry.partition: position + 1 for pending, position in zip(group, positions, strict=True)}
        for partition, end in ends.items():
            self._metrics.appended(partition, end)

    def _failed(self, error: Exception) -> None:
        self._metrics.commit_failed()
        tell = _journal.warning if isinstance(error, TRANSIENT) else _journal.error
        tell("append failed", error=str(error), kind=type(error).__name__)


def _refuse(group: Sequence[_Pending], reason: ServiceReason, detail: str) -> None:
    """Answers those that have no answer yet."""
    for pending in group:
        if not pending.commit.done():
            pending.commit.set_result(Refusal.of(reason, detail, _FAILED_RETRY_AFTER_MS))
