"""Group commit: one append at a time; what comes meanwhile makes up the next group.

After a group's append is durable, one read of the store's window states, begun only then, serves the whole group: a
delta may be acknowledged only by such a read.

Where entries are anonymous, those of one group are appended in an order drawn from the operating system's entropy, and
their answers still find their callers. That hides who came before whom within a group, and nothing more: positions tell
which group was before which, and under little load a group is one entry.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Final, Generic, NamedTuple, TypeVar

from typing_extensions import override

from aggregator.config import Config
from aggregator.errors import never_open
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.interfaces import NO_TRACES, Log, Tracer
from aggregator.logs import FailureLog, journal
from aggregator.model import NewEntry
from aggregator.observability.metrics import Metrics
from aggregator.runtime import TRANSIENT, Runtime
from aggregator.windows import WindowState
from hushsum.entropy import Entropy
from hushsum.plan import Plan
from hushsum.privacy.guarantee import CENTRAL
from hushsum_proto.answers import Refusal, ServiceReason

RETRY_AFTER_MS_MIN: Final = 20
_FAILED_RETRY_AFTER_MS: Final = 1000
_KEY_BYTES: Final = 16
_ENVELOPE_BYTES: Final = 4096
_FATE_OPEN: Final = "the log or the store failed: the delta may or may not be durable"

_journal = journal("commits")


class CommitResult(NamedTuple):
    """What is known of an entry that is durable.

    Attributes:
        position: In its partition.
        state: Of its window, by a read begun after the entry was durable; None where that read promises nothing.
    """

    position: int
    state: WindowState | None


OnResult = Callable[[CommitResult | Refusal], None]


@dataclass(frozen=True)
class CommitLimits:
    """How much may wait, beyond which entries are refused as overload, and how much goes into one group."""

    pending_entries_max: int
    pending_bytes_max: int
    group_entries_max: int
    group_bytes_max: int


def commit_limits_of(config: Config, plan: Plan) -> CommitLimits:
    """The configured limits, and room for two of the largest entries: one that never fits would never be taken."""
    largest = plan.upload_bytes_max if plan.privacy.cohort is None else plan.words.bytes
    least = 0 if plan.privacy.mode == CENTRAL else 2 * largest + _ENVELOPE_BYTES
    return CommitLimits(
        pending_entries_max=config.pending_entries_max,
        pending_bytes_max=max(config.pending_bytes_max, least),
        group_entries_max=config.group_entries_max,
        group_bytes_max=config.group_bytes_max,
    )


T = TypeVar("T")
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class _Pending(NamedTuple, Generic[Item, Outcome]):
    item: Item
    size: int
    on_result: Callable[[Outcome], None]


class GroupWriter(ABC, Generic[Item, Outcome]):
    """A bounded queue with one writer: what arrives during a commit makes up the next group."""

    def __init__(self, runtime: Runtime, limits: CommitLimits, name: str) -> None:
        self._runtime = runtime
        self._limits = limits
        self._name = name
        self._pending: list[_Pending[Item, Outcome]] = []
        self._entries = 0  # waiting, or in the group that is under way
        self._bytes = 0
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def commit(self, group: Sequence[Item]) -> Sequence[Outcome]:
        """Writes one group; returns the outcome of each item, also if the write fails."""

    def start(self) -> None:
        self._task = self._runtime.spawn(self._run(), self._name)

    async def stop(self) -> None:
        """Commits what waits, and ends."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await self._task

    def enqueue(self, item: Item, size: int, on_result: Callable[[Outcome], None]) -> bool:
        """Takes an item of ``size`` bytes for the next group; False if too much waits.

        ``on_result`` is called once, later, with the outcome; it must not raise.
        """
        limits = self._limits
        if self._entries >= limits.pending_entries_max or self._bytes + size > limits.pending_bytes_max:
            return False
        self._pending.append(_Pending(item, size, on_result))
        self._entries += 1
        self._bytes += size
        self._wake.set()
        return True

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            while self._pending:
                await self._commit_group(self._next_group())
            if self._stopping:
                return
            self._wake.clear()

    def _next_group(self) -> Sequence[_Pending[Item, Outcome]]:
        """The oldest items that make up one group: at least one."""
        size = count = 0
        for pending in self._pending[: self._limits.group_entries_max]:
            size += pending.size
            if count and size > self._limits.group_bytes_max:
                break
            count += 1
        group, self._pending = self._pending[:count], self._pending[count:]
        return group

    async def _commit_group(self, group: Sequence[_Pending[Item, Outcome]]) -> None:
        try:
            outcomes = await self.commit([pending.item for pending in group])
        finally:
            self._entries -= len(group)
            self._bytes -= sum(pending.size for pending in group)
        for pending, outcome in zip(group, outcomes, strict=True):
            try:
                pending.on_result(outcome)
            except Exception as error:  # noqa: BLE001  the others of the group get theirs, and the writer goes on
                _journal.error("commit result not delivered to the caller", exc_info=error)


class GroupCommitter(GroupWriter[NewEntry, CommitResult | Refusal]):
    """The one writer of a gateway. It starts with :meth:`start`.

    The entries of a group are appended in an order that ``shuffle`` draws; None: in the order of arrival.
    """

    def __init__(
        self,
        log: Log,
        window_tracker: WindowTracker,
        runtime: Runtime,
        limits: CommitLimits,
        metrics: Metrics,
        *,
        shuffle: Entropy | None = None,
        tracer: Tracer = NO_TRACES,
    ) -> None:
        super().__init__(runtime, limits, "commits")
        self._log = log
        self._shuffle = shuffle
        self._tracer = tracer
        self._window_tracker = window_tracker
        self._metrics = metrics
        self._group_s = 0.0  # how long the last group took
        self._failures = FailureLog(_journal)
        self.partitions = log.partitions  # P

    def offer(self, entry: NewEntry, on_result: OnResult) -> Refusal | None:
        """Takes an entry for the next group, or refuses it at once.

        ``on_result`` is called once, later, with what is known of the entry then; it must not raise.
        """
        limits = self._limits
        if self._stopping:
            return Refusal.of(ServiceReason.SHUTTING_DOWN, "the service is stopping", RETRY_AFTER_MS_MIN)
        if self.enqueue(entry, len(entry.data), on_result):
            return None
        detail = f"at most {limits.pending_entries_max} deltas or {limits.pending_bytes_max} bytes may be pending"
        return Refusal.of(ServiceReason.OVERLOADED, detail, self._retry_after_ms())

    def _retry_after_ms(self) -> int:
        """About the time until all that waits now is written."""
        groups = 1 + self._entries // self._limits.group_entries_max
        return max(RETRY_AFTER_MS_MIN, round(1000 * groups * self._group_s))

    @override
    def _next_group(self) -> Sequence[_Pending[NewEntry, CommitResult | Refusal]]:
        group = super()._next_group()
        return group if self._shuffle is None else _shuffled(group, self._shuffle)

    @override
    async def commit(self, group: Sequence[NewEntry]) -> Sequence[CommitResult | Refusal]:
        with self._tracer.span("commit", entries=len(group)):
            return await self._results(group)

    async def _results(self, entries: Sequence[NewEntry]) -> Sequence[CommitResult | Refusal]:
        """The result of each entry; never an exception."""
        windows = {entry.window for entry in entries}
        never: Collection[int] = ()
        committed: Iterator[CommitResult | Refusal]
        try:
            never = await self._window_tracker.never_open(windows)
            open_entries = [entry for entry in entries if entry.window not in never] if never else entries
            committed = iter(await self._append(open_entries) if open_entries else ())
        except Exception as error:  # noqa: BLE001  whatever the disk says, every sender gets its answer
            self._metrics.commit_failed()
            passes = isinstance(error, TRANSIENT)
            self._failures.failed(self._runtime.monotonic(), "log appends fail", error, passes=passes)
            committed = repeat(Refusal.of(ServiceReason.UNAVAILABLE, _FATE_OPEN, _FAILED_RETRY_AFTER_MS))
        if not never:
            return list(islice(committed, len(entries)))
        refusal = never_open()
        return [refusal if entry.window in never else next(committed) for entry in entries]

    async def _append(self, entries: Sequence[NewEntry]) -> Sequence[CommitResult]:
        began_s = self._runtime.monotonic()
        positions = await self._log.append(entries)
        self._group_s = self._runtime.monotonic() - began_s
        states = await self._window_tracker.read_confirmed({entry.window for entry in entries})
        self._failures.worked(self._runtime.monotonic(), "log appends work again")
        self._metrics.committed(len(entries), sum(len(entry.data) for entry in entries), self._group_s)
        ends = {entry.partition: position + 1 for entry, position in zip(entries, positions, strict=True)}
        for partition, end in ends.items():
            self._metrics.appended(partition, end)
        return [
            CommitResult(position, states[entry.window]) for entry, position in zip(entries, positions, strict=True)
        ]


def _shuffled(group: Sequence[T], entropy: Entropy) -> list[T]:
    """The same in a uniformly random order: sorted by keys that are all different but with chance n²/2^129."""
    keys = entropy.read(_KEY_BYTES * len(group))
    order = sorted(range(len(group)), key=lambda at: keys[_KEY_BYTES * at : _KEY_BYTES * (at + 1)])
    return [group[at] for at in order]
